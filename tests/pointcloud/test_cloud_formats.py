"""Files of point clouds as others write them: PLY, tables, PCD and NumPy with all their liberties."""

from __future__ import annotations

import struct
import warnings
from pathlib import Path

import files_world
import numpy as np
import pytest

from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.files import read_cloud, write_cloud

pytestmark = pytest.mark.filterwarnings("ignore:.*not kept. a point cloud has none")


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_ply_passes_over_what_it_does_not_need(tmp_path: Path, order: str, newline: str) -> None:
    """Elements with lists before and within the vertices, comments, double coordinates, colours of floats."""
    cloud = files_world.head(20, normals=False)
    lines = [
        "ply",
        f"format binary_{'little' if order == '<' else 'big'}_endian 1.0",
        "comment end_header is not yet",
        "obj_info 1 2 3",
        "element face 3",
        "property list uchar int vertex_indices",
        "property ushort quality",
        "element camera 2",
        "property float view_x",
        "element vertex 20",
        *(f"property double {axis}" for axis in "xyz"),
        "property list uint short seen",
        *(f"property float diffuse_{name}" for name in ("red", "green", "blue", "alpha")),
        "element edge 1",
        "property int vertex1",
        "end_header",
    ]
    body = b"".join(struct.pack(f"{order}B{n}iH", n, *range(n), 7) for n in (3, 4, 0)) + struct.pack(f"{order}2f", 1, 2)
    assert cloud.colors is not None
    for index, (point, color) in enumerate(zip(cloud.points, cloud.colors / 255, strict=True)):
        seen = range(index % 3)
        body += struct.pack(f"{order}3dI{len(seen)}h4f", *point, len(seen), *seen, *color, 0.5)
    path = tmp_path / "head.ply"
    path.write_bytes((newline.join(lines) + newline).encode() + body + struct.pack(f"{order}i", 5))
    files_world.assert_same(read_cloud(path), cloud, 0)


def test_ply_of_text_with_lists(tmp_path: Path) -> None:
    text = (
        "ply\nformat ascii 1.0\nelement face 1\nproperty list uchar int i\nelement vertex 2\n"
        "property list uchar int l\nproperty float x\nproperty float y\nproperty float z\n"
        "property ushort r\nproperty ushort g\nproperty ushort b\n"
        "end_header\n3 0 1 1\n2 8 9 .1 .2 .3 65535 0 257\n0 .4 .5 .6 0 0 0\n"
    )
    (tmp_path / "a.ply").write_text(text)
    got = read_cloud(tmp_path / "a.ply")
    np.testing.assert_array_equal(got.points, [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
    np.testing.assert_array_equal(got.colors, [[255, 0, 1], [0, 0, 0]])


def test_a_name_that_comes_twice_counts_once(tmp_path: Path) -> None:
    names = "".join(f"property float {axis}\n" for axis in "xyzx")
    header = f"ply\nformat binary_little_endian 1.0\nelement vertex 2\n{names}end_header\n"
    rows = np.array([[0, 0, 0, 9], [0.1, 0.2, 0.3, 9]], "<f4")
    (tmp_path / "a.ply").write_bytes(header.encode() + rows.tobytes())
    np.testing.assert_array_equal(read_cloud(tmp_path / "a.ply").points, rows[:, :3])


POINTS = np.array([[0.1, 0.2, 0.3], [-0.1, 0.0, 0.25], [0.0, 0.05, 0.1]])
COLORS = np.array([[255, 0, 51], [0, 102, 0], [0, 0, 204]], np.uint8)
NORMALS = np.array([[0.6, 0.8, 0], [0, -1, 0], [0, 0.6, -0.8]])


def lines_of(*columns: np.ndarray, separator: str = " ") -> str:
    return "".join(separator.join(str(value) for value in row) + "\n" for row in np.hstack(columns).tolist())


@pytest.mark.parametrize(
    ("suffix", "text", "colors", "normals"),
    [
        (".xyz", lines_of(POINTS), False, False),
        (".xyz", "# scanned\n// by me\n\n" + lines_of(POINTS), False, False),
        (".asc", "x y z\n" + lines_of(POINTS), False, False),
        (".txt", lines_of(POINTS, separator="\t"), False, False),
        (".csv", "\ufeffx,y,z\n" + lines_of(POINTS, separator=","), False, False),
        (".csv", lines_of(POINTS, separator=";").replace(".", ","), False, False),
        (".pts", "3\n" + lines_of(POINTS), False, False),
        (".pts", "3\n" + lines_of(POINTS, np.full((3, 1), -77.0), COLORS), True, False),
        (".xyz", lines_of(POINTS, np.full((3, 1), 0.5)), False, False),
        (".xyz", lines_of(POINTS, COLORS), True, False),
        (".xyz", lines_of(POINTS, COLORS / 255), True, False),
        (".xyz", lines_of(POINTS, NORMALS), False, True),
        (".xyz", lines_of(POINTS, NORMALS, COLORS), True, True),
        (".xyz", lines_of(POINTS, COLORS, NORMALS), True, True),
        (".asc", "//X Y Z R G B Nx Ny Nz\n" + lines_of(POINTS, COLORS, NORMALS), True, True),
        (
            ".csv",
            "nx,z,y,x,ny,nz\n" + lines_of(NORMALS[:, :1], POINTS[:, ::-1], NORMALS[:, 1:], separator=","),
            False,
            True,
        ),
        (".xyz", lines_of(POINTS).replace("\n", "\r\n"), False, False),
    ],
)
def test_tables(tmp_path: Path, suffix: str, text: str, colors: bool, normals: bool) -> None:
    path = tmp_path / f"head{suffix}"
    path.write_bytes(text.encode())
    notes: list[str] = []
    expected = Cloud(POINTS, COLORS if colors else None, NORMALS if normals else None)
    files_world.assert_same(read_cloud(path, notes=notes), expected, 0)
    assert notes == []


def test_columns_that_are_neither_are_named(tmp_path: Path) -> None:
    (tmp_path / "head.xyz").write_text(lines_of(POINTS, POINTS * 1e4))
    with pytest.warns(UserWarning, match=r"head\.xyz: columns 4 to 6 are unknown"):
        assert read_cloud(tmp_path / "head.xyz").colors is None


def test_nearly_black_is_not_white(tmp_path: Path) -> None:
    for ones, expected in (("1 1 0", [1, 1, 0]), ("1.0 1.0 0.0", [255, 255, 0])):
        (tmp_path / "a.xyz").write_text("x y z r g b\n" + "".join(f"{i / 10} 0 0 {ones}\n" for i in range(3)))
        np.testing.assert_array_equal(read_cloud(tmp_path / "a.xyz").colors, [expected] * 3)


def pcd(form: str, body: bytes, fields: str = "x y z", sizes: str = "4 4 4", types: str = "F F F", n: int = 3) -> bytes:
    head_ = f"# .PCD v0.7\nVERSION 0.7\nFIELDS {fields}\nSIZE {sizes}\nTYPE {types}\nWIDTH {n}\nHEIGHT 1\nPOINTS {n}\n"
    return f"{head_}DATA {form}\n".encode() + body


def test_pcd_leaves_out_what_no_pixel_saw(tmp_path: Path) -> None:
    rows = np.zeros(4, [("p", "<f4", 3), ("rgba", "<u4")])
    rows["p"][:3], rows["p"][3] = POINTS, [np.nan] * 3
    rows["rgba"][:3] = 0xFF000000 | (COLORS.astype(np.uint32) @ np.array([65536, 256, 1], np.uint32))
    data = pcd("binary", rows.tobytes(), "x y z rgba", "4 4 4 4", "F F F U", 4)
    (tmp_path / "a.pcd").write_bytes(data)
    files_world.assert_same(read_cloud(tmp_path / "a.pcd", notes=(notes := [])), Cloud(POINTS, COLORS))
    assert notes == ["1 of 4 points have no coordinates (NaN) and were left out"]
    (tmp_path / "b.pcd").write_bytes(data.replace(b"TYPE F F F U", b"TYPE F F F F"))  # full alpha makes the float a NaN
    files_world.assert_same(read_cloud(tmp_path / "b.pcd", notes=[]), Cloud(POINTS, COLORS))


@pytest.mark.parametrize("suffix", [".ply", ".xyz", ".csv", ".obj", ".pcd", ".npz"])
def test_points_without_coordinates_are_left_out_of_every_format_and_counted(tmp_path: Path, suffix: str) -> None:
    whole = files_world.head(400)
    path = tmp_path / f"a{suffix}"
    holes = np.arange(400) % 7 == 0
    broken = Cloud(whole.points, whole.colors, whole.normals)
    object.__setattr__(broken, "points", np.where(holes[:, None], np.nan, whole.points))  # no cloud holds them
    write_cloud(path, broken)
    got = read_cloud(path, notes=(notes := []))
    files_world.assert_same(got, whole.take(~holes), 1e-7)
    assert notes == ["58 of 400 points have no coordinates (NaN) and were left out"]
    with pytest.warns(UserWarning, match="58 of 400"):
        read_cloud(path)


@pytest.mark.parametrize(("kind", "value"), [("U", "16711731"), ("I", "-16777165"), ("F", "2.34180515e-38")])
def test_packed_colours_of_text(tmp_path: Path, kind: str, value: str) -> None:
    bits = np.array(float(value)).astype(np.float32).view(np.uint32) if kind == "F" else int(value) & 0xFFFFFFFF
    body = "".join(f"{x} {y} {z} {value}\n" for x, y, z in POINTS).encode()
    (tmp_path / "a.pcd").write_bytes(pcd("ascii", body, "x y z rgb", "4 4 4 4", f"F F F {kind}"))
    colors = read_cloud(tmp_path / "a.pcd").colors
    np.testing.assert_array_equal(colors, [[int(bits) >> 16 & 255, int(bits) >> 8 & 255, int(bits) & 255]] * 3)


@pytest.mark.parametrize("kind", [">f4", "<f8", "<i2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_any_kind(tmp_path: Path, kind: str, order: str) -> None:
    points = np.asarray(np.arange(30).reshape(10, 3) * (1 if kind == "<i2" else 0.01), kind, order=order)
    np.save(tmp_path / "a.npy", points)
    np.savez_compressed(tmp_path / "a.npz", points=points, colors=points / points.max())
    np.testing.assert_array_equal(read_cloud(tmp_path / "a.npy", check=False).points, points)
    np.testing.assert_array_equal(
        read_cloud(tmp_path / "a.npz", check=False).colors, np.rint(points / points.max() * 255).astype(np.uint8)
    )
    with np.load(tmp_path / "a.npz") as expected:
        np.testing.assert_array_equal(expected["points"], points)


def test_numpy_reads_what_is_written(tmp_path: Path) -> None:
    cloud = files_world.head(30)
    write_cloud(tmp_path / "a.npz", cloud)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as got:
        np.testing.assert_array_equal(got["points"], cloud.points)
        np.testing.assert_array_equal(got["colors"], cloud.colors)


def test_a_warning_is_given_where_no_list_takes_notes(tmp_path: Path) -> None:
    data = np.hstack([POINTS, np.zeros((3, 3))]).astype("<f4").tobytes()
    names = "x y z normal_x normal_y normal_z"
    (tmp_path / "a.pcd").write_bytes(pcd("binary", data, names, "4 4 4 4 4 4", "F F F F F F"))
    with pytest.warns(UserWarning, match=r"a\.pcd: 3 of 3 normals have no direction"):
        assert read_cloud(tmp_path / "a.pcd").normals is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_cloud(tmp_path / "a.pcd", notes=(notes := []))
    assert len(notes) == 1


@pytest.mark.parametrize(("count", "says"), [(1, "its 1 face is not kept"), (1200, "its 1,200 faces are not kept")])
def test_faces_that_are_lost_are_told(tmp_path: Path, count: int, says: str) -> None:
    rows = "".join(f"{x} {y} {z}\n" for x, y, z in POINTS)
    (tmp_path / "a.ply").write_text(
        "ply\nformat ascii 1.0\nelement vertex 3\nproperty float x\nproperty float y\nproperty float z\n"
        f"element face {count}\nproperty list uchar int vertex_indices\nend_header\n{rows}" + "3 0 1 2\n" * count
    )
    lines = "".join(f"v {row}\n" for row in rows.splitlines())
    (tmp_path / "a.obj").write_text(lines + "f 1 2 3\n" * count)
    for name in ("a.ply", "a.obj"):
        notes: list[str] = []
        assert len(read_cloud(tmp_path / name, notes=notes)) == 3
        assert notes == [f"{says}: a point cloud has none"]
