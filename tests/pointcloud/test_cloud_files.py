"""Files of point clouds: every format there and back, as others write them, damaged, and in other units."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import trimesh
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud import Cloud, read_cloud, write_cloud
from ficgan.pointcloud.files import FORMATS, MAX_POINTS, check_size, check_writable

WRITABLE = [suffix for suffix, form in FORMATS.items() if form.write]


def ball(count: int = 500, colors: bool = True) -> Cloud:
    """Points on an ellipsoid .18 × .24 × .2 m."""
    rng = np.random.default_rng(3)
    away = rng.normal(size=(count, 3))
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    colours = rng.integers(0, 256, (count, 3)).astype(np.uint8)
    return Cloud(away * [0.09, 0.12, 0.1], colours if colors else None)


def assert_same(got: Cloud, expected: Cloud, loss: float = 1e-7) -> None:
    assert np.abs(got.points - expected.points).max() <= loss + 1e-9 * np.abs(expected.points).max()
    assert (got.colors is None) == (expected.colors is None)
    if expected.colors is not None:
        np.testing.assert_array_equal(got.colors, expected.colors)


# -- there and back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["m", "mm"])
@pytest.mark.parametrize("colors", [False, True])
@pytest.mark.parametrize("suffix", WRITABLE)
def test_what_is_written_is_read(tmp_path: Path, suffix: str, colors: bool, unit: str) -> None:
    cloud, path, notes = ball(colors=colors), tmp_path / f"head{suffix}", list[str]()
    if suffix == ".npy" and colors:
        with pytest.raises(UsageError, match="points only"):
            write_cloud(path, cloud)
        assert not any(tmp_path.iterdir())
        return
    write_cloud(path, cloud, unit=unit)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    assert_same(read_cloud(path, unit=unit, notes=notes), cloud, 0 if suffix in (".npy", ".npz") else 1e-7)
    assert notes == []


@pytest.mark.parametrize("suffix", [".ply", ".xyz", ".pcd"])
def test_double_is_written_only_where_single_would_move_a_point(tmp_path: Path, suffix: str) -> None:
    far = Cloud(ball(colors=False).points + 1000.0)
    write_cloud(tmp_path / f"far{suffix}", far)
    np.testing.assert_array_equal(read_cloud(tmp_path / f"far{suffix}").points, far.points)
    write_cloud(tmp_path / "near.ply", ball(colors=False))
    assert b"property float x" in (tmp_path / "near.ply").read_bytes()


@pytest.mark.parametrize("name", ["a.ply", "a.obj", "a.xyz"])
def test_trimesh_reads_what_is_written(tmp_path: Path, name: str) -> None:
    cloud = ball(colors=name != "a.xyz")
    write_cloud(tmp_path / name, cloud)
    if name == "a.xyz":
        np.testing.assert_allclose(np.loadtxt(tmp_path / name), cloud.points, atol=1e-7)
        return
    got = trimesh.load(tmp_path / name, process=False)
    np.testing.assert_allclose(got.vertices, cloud.points, atol=1e-7)
    np.testing.assert_array_equal(np.asarray(got.colors)[:, :3], cloud.colors)


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    write_cloud(tmp_path / "a.ply", ball(5))
    with pytest.raises(InputError, match="exists already"):
        write_cloud(tmp_path / "a.ply", ball(6))
    write_cloud(tmp_path / "a.ply", ball(6), overwrite=True)
    assert len(read_cloud(tmp_path / "a.ply")) == 6


# -- as others write them ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ply", "obj", "stl", "off", "glb"])
def test_the_vertices_of_a_mesh_are_read(tmp_path: Path, kind: str) -> None:
    mesh = trimesh.creation.icosphere(subdivisions=2, radius=0.1)
    colored = kind in ("ply", "obj", "glb")
    if colored:
        mesh.visual.vertex_colors = np.random.default_rng(0).integers(0, 256, (len(mesh.vertices), 4)).astype(np.uint8)
    mesh.export(tmp_path / f"ball.{kind}")
    notes: list[str] = []
    got = read_cloud(tmp_path / f"ball.{kind}", notes=notes)
    assert len(got) == len(mesh.vertices) and len(notes) == 1 and "faces" in notes[0]
    order = (slice(None), slice(None)) if kind != "stl" else (np.lexsort(got.points.T), np.lexsort(mesh.vertices.T))
    if kind != "stl":
        np.testing.assert_allclose(got.points[order[0]], mesh.vertices[order[1]], atol=1e-6)
    if colored:
        np.testing.assert_array_equal(got.colors, mesh.visual.vertex_colors[:, :3])
    else:
        assert got.colors is None


SQUARE = "v 0 0 0\nv .2 0 0\nv .2 .2 0\nv 0 .2 0\nvt 0 0\nvt 1 0\nvt 1 1\nvt 0 1\n"


def test_texture_of_an_obj(tmp_path: Path) -> None:
    (tmp_path / "head.obj").write_text(f"mtllib head.mtl\n{SQUARE}usemtl skin\nf 1/1 2/2 3/3\nf 3/3 4/4 1/1\n")
    (tmp_path / "head.mtl").write_text("newmtl skin\nmap_Kd skin.png\n")
    picture = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [255, 255, 255]]], np.uint8)
    notes: list[str] = []
    assert read_cloud(tmp_path / "head.obj", notes=notes).colors is None and "texture" in notes[1]
    Image.fromarray(picture.repeat(8, 0).repeat(8, 1)).save(tmp_path / "skin.png")
    colors = read_cloud(tmp_path / "head.obj", notes=[]).colors
    np.testing.assert_array_equal(colors, [[0, 0, 255], [255, 255, 255], [0, 255, 0], [255, 0, 0]])  # v goes up


POINTS = np.array([[0.1, 0.2, 0.3], [-0.1, 0.0, 0.25], [0.0, 0.05, 0.1]])
COLORS = np.array([[255, 0, 51], [0, 102, 0], [0, 0, 204]], np.uint8)
NORMALS = np.array([[0.6, 0.8, 0], [0, -1, 0], [0, 0.6, -0.8]])


def lines_of(*columns: np.ndarray, separator: str = " ") -> str:
    return "".join(separator.join(str(value) for value in row) + "\n" for row in np.hstack(columns).tolist())


@pytest.mark.parametrize(
    ("suffix", "text", "colors"),
    [
        (".xyz", lines_of(POINTS), False),
        (".xyz", "# scanned\n// by me\n\n" + lines_of(POINTS).replace("\n", "\r\n"), False),
        (".asc", "x y z\n" + lines_of(POINTS), False),
        (".txt", lines_of(POINTS, separator="\t"), False),
        (".csv", "\ufeffx,y,z\n" + lines_of(POINTS, separator=","), False),
        (".csv", lines_of(POINTS, separator=";").replace(".", ","), False),
        (".pts", "3\n" + lines_of(POINTS), False),
        (".pts", "3\n" + lines_of(POINTS, np.full((3, 1), -77.0), COLORS), True),
        (".xyz", lines_of(POINTS, COLORS), True),
        (".xyz", lines_of(POINTS, COLORS / 255), True),
        (".xyz", lines_of(POINTS, NORMALS), False),
        (".asc", "//X Y Z R G B Nx Ny Nz\n" + lines_of(POINTS, COLORS, NORMALS), True),
        (".csv", "nx,z,y,x\n" + lines_of(NORMALS[:, :1], POINTS[:, ::-1], separator=","), False),
    ],
)
def test_tables(tmp_path: Path, suffix: str, text: str, colors: bool) -> None:
    (tmp_path / f"a{suffix}").write_bytes(text.encode())
    assert_same(read_cloud(tmp_path / f"a{suffix}", notes=[]), Cloud(POINTS, COLORS if colors else None), 0)


@pytest.mark.parametrize("form", ["ascii", "binary"])
def test_pcd_with_other_fields_and_gaps(tmp_path: Path, form: str) -> None:
    head = (
        "VERSION .7\nFIELDS x y z intensity rgb\nSIZE 4 4 4 4 4\nTYPE F F F F U\nCOUNT 1 1 1 2 1\nWIDTH 2\nHEIGHT 2\n"
    )
    rows = [(*point, 7.0, 7.0) for point in [*POINTS.tolist(), [np.nan] * 3]]
    packed = [0xFF0000, 0x00FF00, 0x0000FF, 0]
    if form == "ascii":
        body = "".join(f"{' '.join(map(str, row))} {color}\n" for row, color in zip(rows, packed, strict=True)).encode()
    else:
        body = b"".join(struct.pack("<5fI", *row, color) for row, color in zip(rows, packed, strict=True))
    (tmp_path / "a.pcd").write_bytes(f"{head}DATA {form}\n".encode() + body)
    notes: list[str] = []
    got = read_cloud(tmp_path / "a.pcd", notes=notes)
    assert_same(got, Cloud(POINTS, np.diag([255, 255, 255]).astype(np.uint8)), 1e-7)
    assert len(notes) == 1 and "1 of 4 points" in notes[0]


# -- damage -----------------------------------------------------------------------------------------------------------

XYZ = "".join(f"property float {axis}\n" for axis in "xyz")
PCD = b"FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\n"


def ply(count: object, body: bytes = b"", form: str = "binary_little_endian") -> bytes:
    return f"ply\nformat {form} 1.0\nelement vertex {count}\n{XYZ}end_header\n".encode() + body


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.ply", b""),
        ("a.ply", b"solid"),
        ("a.ply", b"ply\nformat binary_little_endian 1.0\nelement vertex 3\n"),
        ("a.ply", ply("many")),
        ("a.ply", ply(0)),
        ("a.ply", ply(10**15)),
        ("a.ply", ply(45_000, bytes(44_120 * 12 + 5))),
        ("a.ply", ply(3, b"0 0 0\n1 1 1\n", "ascii")),
        ("a.ply", ply(2, b"0 0 0\n1 1\n", "ascii")),
        ("a.ply", ply(2, b"0 0 0\n1 1 x\n", "ascii")),
        ("a.ply", ply(2, struct.pack("<6f", 0, 0, 0, np.inf, 0, 0))),
        ("a.obj", b"v 1 2\nv 2 3\n"),
        ("a.obj", b"# nothing\n"),
        ("a.obj", b"v 0 0 0\nv 1 x 0\nf 1 2 3\n"),
        ("a.stl", b"solid\nfacet"),
        ("a.off", b"OFF\n3 1 0\n0 0 0\n1 0 0\n0 1"),
        ("a.glb", b"glTF\x02\0\0\0"),
        (
            "a.glb",
            struct.pack("<4sIIII", b"glTF", 2, 60, 40, 0x4E4F534A) + b'{"accessors":[{"count":9999999999999}]}  ',
        ),
        ("a.xyz", b"0 0 0\n1 inf 1\n"),
        ("a.xyz", b"# x\n0 0 0\n\n1 1 abc\n"),
        ("a.xyz", b"0 0 0\n1 1 1 1\n"),
        ("a.xyz", b"1 2\n3 4\n"),
        ("a.xyz", b"\0\1\2"),
        ("a.xyz", b"# nothing\n"),
        ("a.xyz", b"x y z r g b\n0 0 0 300 0 0\n"),
        ("a.pts", b"45000\n0 0 0\n1 1 1\n"),
        ("a.pcd", b"VERSION .7\n"),
        ("a.pcd", b"FIELDS x y z\nSIZE 4 4 4\nTYPE F F Q\nPOINTS 1\nDATA ascii\n0 0 0\n"),
        ("a.pcd", b"FIELDS x y z\nSIZE 4 4\nTYPE F F F\nPOINTS 1\nDATA ascii\n0 0 0\n"),
        ("a.pcd", b"FIELDS x y\nSIZE 4 4\nTYPE F F\nPOINTS 1\nDATA ascii\n0 0\n"),
        ("a.pcd", PCD + b"WIDTH 100000000\nHEIGHT 10000000\nDATA binary\n"),
        ("a.pcd", PCD + b"POINTS 2\nDATA binary\n" + bytes(13)),
        ("a.pcd", PCD + b"POINTS 1\nDATA ascii\nnan nan nan\n"),
        ("a.pcd", PCD + b"POINTS 1\nDATA binary_compressed\n" + bytes(20)),
        ("a.npy", b"\x93NUMPY\x01\x00"),
        ("a.npy", b"PK\3\4 no archive"),
        ("a.npz", b"PK\3\4 no archive"),
        ("a.plx", b"0 0 0\n"),
        ("a.jpeg", b"0 0 0\n"),
    ],
)
def test_damage_is_one_sentence_in_little_time_and_memory(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    start = time.process_time()
    tracemalloc.start()
    with pytest.raises(InputError) as caught:
        read_cloud(tmp_path / name, notes=[])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(caught.value).startswith(f"{tmp_path / name}: ") and "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(tmp_path)) and peak < 2e7 and time.process_time() - start < 2


@pytest.mark.parametrize("array", [np.zeros((2, 3), complex), np.zeros((3, 2)), np.zeros((4, 3), "U3")])
def test_arrays_that_are_no_points(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "a.npz", points=array)
    np.savez(tmp_path / "b.npz", xyz=POINTS)
    np.savez(tmp_path / "c.npz", points=POINTS, colors=COLORS[:2])
    whole = (tmp_path / "c.npz").read_bytes()
    (tmp_path / "d.npz").write_bytes(whole[:-30])
    for name in ("a.npy", "a.npz", "b.npz", "c.npz", "d.npz"):
        with pytest.raises(InputError):
            read_cloud(tmp_path / name)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.ply").mkdir()
    os.mkfifo(tmp_path / "pipe.ply")
    for name in ("none.ply", "folder.ply", "pipe.ply"):
        with pytest.raises(InputError, match=name):
            read_cloud(tmp_path / name)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", WRITABLE)
@settings(max_examples=25)
@given(data=st.data())
def test_bytes_changed_at_random(tmp_path_factory: pytest.TempPathFactory, suffix: str, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("damage") / f"a{suffix}"
    write_cloud(path, ball(20, colors=suffix != ".npy"))
    changed = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        new = data.draw(st.sampled_from([*b"0123456789-+.eE \n\r\t/#;,_\0\xff"]))
        changed[at : at + data.draw(st.integers(0, 2))] = bytes([new])
    path.write_bytes(changed)
    try:
        read_cloud(path, check=False, notes=[])
    except InputError as error:
        assert "\n" not in str(error)


# -- sizes and names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extent", "advice"), [(2e-4, "metres"), (200, "--unit mm"), (20, "--unit cm"), (9.8, "none of"), (1750, "none of")]
)
def test_a_size_that_no_face_has_is_named(extent: float, advice: str) -> None:
    points = np.linspace(0, extent / 0.98, 101)[:, None] * [1.0, 0.5, 0.2]
    with pytest.raises(InputError, match=advice):
        check_size(Cloud(points), "here")


def test_a_few_strays_do_not_decide_the_size() -> None:
    cloud = ball(1000)
    check_size(Cloud(np.concatenate([cloud.points, [[50.0, 0, 0]] * 5])))
    check_size(Cloud(cloud.points * 8))  # a person from head to foot: the face is looked for
    with pytest.raises(InputError, match="one place"):
        check_size(Cloud(np.ones((9, 3))))


@pytest.mark.parametrize("name", ["a.xyzrgb", "a.XYZN", "a.stl", "a.plx", "a.npy"])
def test_what_cannot_be_written_is_known_before(name: str) -> None:
    with pytest.raises(UsageError):
        check_writable(name, colors=True)
    check_writable("a.npz", colors=True)


def test_wrong_calls_write_nothing(tmp_path: Path) -> None:
    for path, cloud, unit, error in (
        ("a.ply", ball(), "inch", UsageError),
        ("a.ply", Cloud(np.zeros((0, 3))), "m", InputError),
    ):
        with pytest.raises(error):
            write_cloud(tmp_path / path, cloud, unit=unit)
    assert not any(tmp_path.iterdir()) and MAX_POINTS < 10**9
