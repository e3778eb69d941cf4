"""Files of point clouds: every format there and back, and against trimesh and Open3D both ways."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.files import FORMATS, check_size, check_writable, read_cloud, write_cloud

WRITABLE = [suffix for suffix, form in FORMATS.items() if form.write]
TWICE = [(suffix, True) for suffix in WRITABLE] + [(".ply", False), (".pcd", False)]


pytestmark = pytest.mark.filterwarnings("ignore:.*not kept. a point cloud has none")


def head(count: int = 500, colors: bool = True, normals: bool = True, seed: int = 3) -> Cloud:
    """Points on an ellipsoid .18 × .24 × .2 m."""
    rng = np.random.default_rng(seed)
    away = rng.normal(size=(count, 3))
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    colours = rng.integers(0, 256, (count, 3)).astype(np.uint8)
    return Cloud(away * [0.09, 0.12, 0.1], colours if colors else None, away if normals else None)


def assert_same(got: Cloud, expected: Cloud, loss: float = 1e-7) -> None:
    assert np.abs(got.points - expected.points).max() <= loss + 1e-9 * np.abs(expected.points).max()
    assert (got.colors is None) == (expected.colors is None)
    assert (got.normals is None) == (expected.normals is None)
    if expected.colors is not None:
        np.testing.assert_array_equal(got.colors, expected.colors)
    if expected.normals is not None:
        np.testing.assert_allclose(got.normals, expected.normals, atol=1e-6)


@pytest.mark.parametrize("normals", [False, True])
@pytest.mark.parametrize("colors", [False, True])
@pytest.mark.parametrize(("suffix", "binary"), TWICE)
def test_what_is_written_is_read(tmp_path: Path, suffix: str, binary: bool, colors: bool, normals: bool) -> None:
    cloud = head(colors=colors, normals=normals)
    path = tmp_path / f"head{suffix}"
    if suffix == ".npy" and (colors or normals):
        with pytest.raises(UsageError, match=r"head\.npy: a \.npy file holds points only.*\.npz"):
            write_cloud(path, cloud)
        assert not any(tmp_path.iterdir())
        return
    write_cloud(path, cloud, binary=binary)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    notes: list[str] = []
    assert_same(read_cloud(path, notes=notes), cloud, 0 if suffix in (".npy", ".npz") else 1e-7)
    assert notes == []


numbers = st.floats(-1e6, 1e6) | st.floats(-1, 1, width=32) | st.just(0.0)


@st.composite
def clouds(draw: st.DrawFn) -> Cloud:
    count = draw(st.integers(1, 6))
    points = draw(arrays(np.float64, (count, 3), elements=numbers))
    colours = draw(st.none() | arrays(np.uint8, (count, 3)))
    steps = draw(st.none() | arrays(np.int8, (count, 3), elements=st.integers(-9, 9)))
    if steps is None:
        return Cloud(points, colours)
    steps = np.where(np.any(steps, axis=1, keepdims=True), steps, [[0, 0, 1]])
    return Cloud(points, colours, steps / np.linalg.norm(steps, axis=1, keepdims=True))


@pytest.mark.parametrize(("suffix", "binary"), TWICE)
@settings(max_examples=15, deadline=None)
@given(cloud=clouds())
def test_any_cloud_comes_back(suffix: str, binary: bool, cloud: Cloud) -> None:
    if suffix == ".npy":
        cloud = Cloud(cloud.points)
    elif suffix == ".pts":
        cloud = Cloud(cloud.points, cloud.colors)  # without a line of names, the normal (1, 0, 0) may be red
    form, file, notes = FORMATS[suffix], io.BytesIO(), list[str]()
    assert form.write is not None
    form.write(file, cloud, binary)
    assert_same(form.read(file.getvalue(), Path(f"any{suffix}"), notes).cloud(1.0, notes), cloud)
    assert notes == []


def test_double_is_written_only_where_single_would_move_a_point(tmp_path: Path) -> None:
    near, far = head(), Cloud(head().points + 1000.0)
    for name, cloud in (("near", near), ("far", far)):
        write_cloud(tmp_path / f"{name}.ply", cloud)
    assert b"property float x" in (tmp_path / "near.ply").read_bytes()
    assert b"property double x" in (tmp_path / "far.ply").read_bytes()
    np.testing.assert_array_equal(read_cloud(tmp_path / "far.ply").points, far.points)


# --- oracles ---


@pytest.mark.parametrize(("suffix", "binary"), [(".ply", True), (".ply", False), (".obj", True)])
def test_trimesh_reads_what_is_written(tmp_path: Path, suffix: str, binary: bool) -> None:
    trimesh = pytest.importorskip("trimesh")
    cloud = head(normals=False)
    write_cloud(tmp_path / f"head{suffix}", cloud, binary=binary)
    got = trimesh.load(tmp_path / f"head{suffix}", process=False)
    np.testing.assert_allclose(got.vertices, cloud.points, atol=1e-7)
    np.testing.assert_array_equal(np.asarray(got.colors)[:, :3], cloud.colors)


@pytest.mark.parametrize("encoding", ["ascii", "binary"])
def test_the_vertices_of_a_mesh_by_trimesh_are_read(tmp_path: Path, encoding: str) -> None:
    trimesh = pytest.importorskip("trimesh")
    mesh = trimesh.creation.icosphere(subdivisions=2, radius=0.1)
    mesh.visual.vertex_colors = np.random.default_rng(0).integers(0, 256, (len(mesh.vertices), 4)).astype(np.uint8)
    (tmp_path / "ball.ply").write_bytes(trimesh.exchange.ply.export_ply(mesh, encoding=encoding, vertex_normal=True))
    got = read_cloud(tmp_path / "ball.ply")
    np.testing.assert_allclose(got.points, mesh.vertices, atol=1e-7)
    np.testing.assert_array_equal(got.colors, mesh.visual.vertex_colors[:, :3])
    np.testing.assert_allclose(got.normals, mesh.vertex_normals, atol=1e-6)


@pytest.mark.parametrize("kind", [".obj", ".xyz"])
def test_other_files_by_trimesh_are_read(tmp_path: Path, kind: str) -> None:
    trimesh = pytest.importorskip("trimesh")
    cloud = head(normals=False)
    trimesh.PointCloud(cloud.points, cloud.colors).export(tmp_path / f"head{kind}")
    got = read_cloud(tmp_path / f"head{kind}", notes=[])
    np.testing.assert_allclose(got.points, cloud.points, atol=1e-6)
    if kind == ".obj":
        np.testing.assert_array_equal(got.colors, cloud.colors)


def of_open3d(cloud: Cloud) -> object:
    o3d = pytest.importorskip("open3d")
    out = o3d.geometry.PointCloud(o3d.utility.Vector3dVector(cloud.points))
    if cloud.colors is not None:
        out.colors = o3d.utility.Vector3dVector(cloud.colors / 255.0)
    if cloud.normals is not None:
        out.normals = o3d.utility.Vector3dVector(cloud.normals)
    return out


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(("suffix", "binary"), [(".ply", True), (".ply", False), (".pcd", True), (".pcd", False)])
def test_open3d_reads_what_is_written(tmp_path: Path, suffix: str, binary: bool, full: bool) -> None:
    o3d = pytest.importorskip("open3d")
    cloud = head(colors=full, normals=full)
    write_cloud(tmp_path / f"head{suffix}", cloud, binary=binary)
    got = o3d.io.read_point_cloud(str(tmp_path / f"head{suffix}"))
    np.testing.assert_allclose(np.asarray(got.points), cloud.points, atol=1e-7)
    assert got.has_colors() == got.has_normals() == full
    if full:
        np.testing.assert_array_equal(np.rint(np.asarray(got.colors) * 255), cloud.colors)
        np.testing.assert_allclose(np.asarray(got.normals), cloud.normals, atol=1e-6)


@pytest.mark.parametrize("suffix", [".xyz", ".pts"])
def test_open3d_reads_the_coordinates_of_tables(tmp_path: Path, suffix: str) -> None:
    o3d = pytest.importorskip("open3d")
    cloud = head(colors=suffix == ".pts", normals=False)
    write_cloud(tmp_path / f"head{suffix}", cloud)
    got = o3d.io.read_point_cloud(str(tmp_path / f"head{suffix}"))
    np.testing.assert_allclose(np.asarray(got.points), cloud.points, atol=1e-7)
    if cloud.colors is not None:
        np.testing.assert_array_equal(np.rint(np.asarray(got.colors) * 255), cloud.colors)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("ascii_", [False, True])
@pytest.mark.parametrize("suffix", [".ply", ".pcd"])
def test_what_open3d_writes_is_read(tmp_path: Path, suffix: str, ascii_: bool, compressed: bool, full: bool) -> None:
    o3d = pytest.importorskip("open3d")
    cloud = head(colors=full, normals=full)
    path = tmp_path / f"head{suffix}"
    assert o3d.io.write_point_cloud(str(path), of_open3d(cloud), write_ascii=ascii_, compressed=compressed)
    assert_same(read_cloud(path), cloud, 1e-6)


@pytest.mark.parametrize("suffix", [".xyz", ".xyzn", ".xyzrgb", ".pts"])
def test_tables_that_open3d_writes_are_read(tmp_path: Path, suffix: str) -> None:
    o3d = pytest.importorskip("open3d")
    cloud = head(colors=suffix in (".xyzrgb", ".pts"), normals=suffix == ".xyzn")
    path = tmp_path / f"head{suffix}"
    assert o3d.io.write_point_cloud(str(path), of_open3d(cloud))
    assert_same(read_cloud(path), cloud, 1e-6)


def test_compression_that_repeats_is_undone(tmp_path: Path) -> None:
    """Equal points make copies that overlap themselves; Open3D packs them."""
    o3d = pytest.importorskip("open3d")
    points = np.repeat(head(8).points, 400, axis=0)
    path = tmp_path / "head.pcd"
    assert o3d.io.write_point_cloud(str(path), of_open3d(Cloud(points)), compressed=True)
    assert path.stat().st_size < 4000
    np.testing.assert_allclose(read_cloud(path).points, points, atol=1e-7)


def test_a_scan_is_read(shared_data: Path) -> None:
    path = shared_data / "clouds" / "f0001_neutral.ply"
    if not path.is_file():
        pytest.skip(f"needs the scans; there is no {path}")
    cloud = read_cloud(path)
    assert len(cloud) == 45_000 and cloud.colors is None and cloud.normals is None
    extent = np.ptp(cloud.points, axis=0)
    assert extent.min() > 0.1 and extent.max() < 0.4


# --- PLY ---


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_ply_passes_over_what_it_does_not_need(tmp_path: Path, order: str, newline: str) -> None:
    """Elements with lists before and within the vertices, comments, double coordinates, colours of floats."""
    cloud = head(20, normals=False)
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
    assert_same(read_cloud(path), cloud, 0)


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


# --- tables, PCD, NumPy ---

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
    assert_same(read_cloud(path, notes=notes), expected, 0)
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
    assert_same(read_cloud(tmp_path / "a.pcd"), Cloud(POINTS, COLORS))
    (tmp_path / "b.pcd").write_bytes(data.replace(b"TYPE F F F U", b"TYPE F F F F"))  # full alpha makes the float a NaN
    assert_same(read_cloud(tmp_path / "b.pcd"), Cloud(POINTS, COLORS))


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
    cloud = head(30)
    write_cloud(tmp_path / "a.npz", cloud)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as got:
        np.testing.assert_array_equal(got["points"], cloud.points)
        np.testing.assert_array_equal(got["colors"], cloud.colors)


# --- units and writing ---


@pytest.mark.parametrize(("unit", "scale"), [("m", 1), ("cm", 100), ("mm", 1000)])
def test_units(tmp_path: Path, unit: str, scale: float) -> None:
    cloud = head()
    write_cloud(tmp_path / "a.ply", Cloud(cloud.points * scale, cloud.colors))
    np.testing.assert_allclose(read_cloud(tmp_path / "a.ply", unit=unit).points, cloud.points, atol=1e-6)
    if unit != "m":
        with pytest.raises(InputError, match=rf"a\.ply: the cloud is .* m across; .* give --unit {unit}$"):
            read_cloud(tmp_path / "a.ply")
    else:
        with pytest.raises(InputError, match=r"is 0\.2.. mm across, read in mm; a face is some 0.2 m: give --unit m$"):
            read_cloud(tmp_path / "a.ply", unit="mm")


@pytest.mark.parametrize(
    ("extent", "message"),
    [
        (2e-4, "0.2 mm across.*bring its coordinates to metres"),
        (200, "200 m across.*--unit mm"),
        (20, "20 m.*--unit cm"),
        (9.8, "9.8 m across.*none of m, cm, mm makes it one"),  # a head in inches, of which cm would make 10 cm
        (1750, "1.75e.03 m across.*none of"),  # a whole person in mm; only whoever has the file knows
    ],
)
def test_a_size_that_no_face_has_is_named(extent: float, message: str) -> None:
    points = np.linspace(0, extent / 0.98, 101)[:, None] * [1.0, 0.5, 0.2]
    with pytest.raises(InputError, match=rf"^here: the cloud is {message}"):
        check_size(Cloud(points), "here")


def test_a_few_strays_do_not_decide_the_size() -> None:
    cloud = head(1000)
    check_size(Cloud(np.concatenate([cloud.points, [[50.0, 0, 0]] * 5])))
    with pytest.raises(InputError, match="cloud has all its points at one place"):
        check_size(Cloud(np.ones((9, 3))))
    check_size(Cloud(cloud.points * 8))  # a person from head to foot: the face is looked for


def test_nothing_is_overwritten_unasked_and_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cloud(tmp_path / "a.ply", head(5))
    before = (tmp_path / "a.ply").read_bytes()
    with pytest.raises(InputError, match=r"a\.ply: exists already"):
        write_cloud(tmp_path / "a.ply", head(6))
    from ficgan.pointcloud.files import ply

    def breaks(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ply, "coordinates_kind", breaks)
    with pytest.raises(KeyboardInterrupt):
        write_cloud(tmp_path / "a.ply", head(6), overwrite=True)
    assert [one.name for one in tmp_path.iterdir()] == ["a.ply"] and (tmp_path / "a.ply").read_bytes() == before
    monkeypatch.undo()
    write_cloud(tmp_path / "a.ply", head(6), overwrite=True)
    assert len(read_cloud(tmp_path / "a.ply")) == 6


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"did you mean \.ply\?"):
        write_cloud(tmp_path / "a.plyy", head(5))
    with pytest.raises(InputError, match="without points"):
        write_cloud(tmp_path / "a.ply", Cloud(np.zeros((0, 3))))
    with pytest.raises(UsageError, match="unit is 'inch'; use one of m, cm, mm"):
        read_cloud(tmp_path / "a.ply", unit="inch")
    assert not any(tmp_path.iterdir())


def test_reading_needs_neither_torch_nor_cv2_nor_trimesh() -> None:
    heavy = ["torch", "cv2", "scipy", "trimesh"]
    code = f"import sys, ficgan.pointcloud.files; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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


def test_speed_against_numpy_in_the_same_run(tmp_path: Path) -> None:
    """Text in a few times the time in which NumPy converts it; binary in less than that, on a busy machine too."""
    import time

    cloud = head(45_000, colors=False, normals=False)
    write_cloud(tmp_path / "a.xyz", cloud)
    write_cloud(tmp_path / "a.ply", cloud)
    text = (tmp_path / "a.xyz").read_bytes()

    def best(work: object) -> float:
        times = []
        for _ in range(3):
            start = time.perf_counter()
            work()  # type: ignore[operator]
            times.append(time.perf_counter() - start)
        return min(times)

    oracle = best(lambda: np.loadtxt(io.BytesIO(text)))
    assert best(lambda: read_cloud(tmp_path / "a.xyz")) < 5 * oracle
    assert best(lambda: read_cloud(tmp_path / "a.ply")) < oracle


@pytest.mark.parametrize("unit", ["m", "cm", "mm"])
@pytest.mark.parametrize("suffix", sorted(suffix for suffix, form in FORMATS.items() if form.write))
def test_a_unit_there_and_back(tmp_path: Path, suffix: str, unit: str) -> None:
    cloud = head(200, colors=suffix != ".npy", normals=suffix != ".npy")
    write_cloud(tmp_path / f"a{suffix}", cloud, unit=unit)
    assert_same(read_cloud(tmp_path / f"a{suffix}", unit=unit, check=False), cloud)


def test_the_unit_is_in_the_comment_and_does_not_make_numbers_longer(tmp_path: Path) -> None:
    cloud = Cloud(head(50).points.astype(np.float32))
    for unit, name in (("m", b"metres"), ("cm", b"centimetres"), ("mm", b"millimetres")):
        for suffix, start in ((".ply", b"\ncomment "), (".obj", b"# ")):
            write_cloud(tmp_path / f"{unit}{suffix}", cloud, unit=unit)
            data = (tmp_path / f"{unit}{suffix}").read_bytes()
            assert start + name + b"\n" in data and b"double" not in data
    far = Cloud(np.array([[20.0 + 1e-6, 0, 0]] * 3))
    write_cloud(tmp_path / "far.ply", far, unit="mm")
    assert b"property double x" in (tmp_path / "far.ply").read_bytes()
    with pytest.raises(UsageError, match="unit is 'inch'"):
        write_cloud(tmp_path / "a.ply", cloud, unit="inch")


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


@pytest.mark.parametrize(
    ("name", "has", "says"),
    [
        ("a.xyzrgb", {}, r"a\.xyzrgb: \.xyzrgb files are only read; write one of \.ply, "),
        ("a.XYZN", {}, r"\.xyzn files are only read"),
        ("a.plx", {}, "of no known point cloud; did you mean .ply"),
        ("a.npy", {"colors": True}, "holds points only, and the cloud has colours;"),
        ("a.npy", {"colors": True, "normals": True}, "colours and normals"),
    ],
)
def test_what_cannot_be_written_is_known_before(name: str, has: dict[str, bool], says: str) -> None:
    check_writable("a.npy")
    check_writable("a.npz", colors=True, normals=True)
    with pytest.raises(UsageError, match=says):
        check_writable(name, **has)
