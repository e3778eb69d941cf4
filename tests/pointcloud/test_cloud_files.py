"""Files of point clouds: every format there and back, as others write them, damaged, and in other units."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
import trimesh

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud import Cloud, read_cloud, write_cloud
from ficgan.pointcloud.cloud import check_size


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
def test_what_is_written_is_read(tmp_path: Path, colors: bool, unit: str) -> None:
    cloud, path, notes = ball(colors=colors), tmp_path / "head.ply", list[str]()
    write_cloud(path, cloud, unit=unit)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert_same(read_cloud(path, unit=unit, notes=notes), cloud, 1e-7)
    assert notes == []


def test_nothing_is_overwritten_unasked_and_wrong_calls_write_nothing(tmp_path: Path) -> None:
    for name, cloud, unit, error in (
        ("b.ply", ball(), "inch", UsageError),
        ("b.stl", ball(), "m", UsageError),
        ("b.ply", Cloud(np.zeros((0, 3))), "m", InputError),
    ):
        with pytest.raises(error):
            write_cloud(tmp_path / name, cloud, unit=unit)
    assert not any(tmp_path.iterdir())
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
    if kind != "stl":
        np.testing.assert_allclose(got.points, mesh.vertices, atol=1e-6)
    assert (got.colors is None) == (not colored)
    if colored:
        np.testing.assert_array_equal(got.colors, mesh.visual.vertex_colors[:, :3])


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
        (".txt", "x y z\n" + lines_of(POINTS, separator="\t"), False),
        (".csv", "\ufeffx,y,z\n" + lines_of(POINTS, separator=","), False),
        (".csv", lines_of(POINTS, separator=";"), False),
        (".xyz", lines_of(POINTS, COLORS), True),
        (".xyz", lines_of(POINTS, NORMALS), False),
        (".txt", "//X Y Z R G B Nx Ny Nz\n" + lines_of(POINTS, COLORS, NORMALS), True),
        (".csv", "nx,z,y,x\n" + lines_of(NORMALS[:, :1], POINTS[:, ::-1], separator=","), False),
        (".csv", "x y z r g b\n" + lines_of(POINTS, COLORS / 255), True),
    ],
)
def test_tables(tmp_path: Path, suffix: str, text: str, colors: bool) -> None:
    (tmp_path / f"a{suffix}").write_bytes(text.encode())
    assert_same(read_cloud(tmp_path / f"a{suffix}"), Cloud(POINTS, COLORS if colors else None), 0)


# -- damage -----------------------------------------------------------------------------------------------------------

XYZ = "".join(f"property float {axis}\n" for axis in "xyz")


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
        ("a.ply", ply(2, b"0 0 0\n1 1\n", "ascii")),
        ("a.ply", ply(2, b"0 0 0\n1 1 x\n", "ascii")),
        ("a.ply", ply(2, struct.pack("<6f", 0, 0, 0, np.inf, 0, 0))),
        ("a.obj", b"v 1 2\nv 2 3\n"),
        ("a.obj", b"# nothing\n"),
        ("a.stl", b"solid\nfacet"),
        ("a.off", b"OFF\n3 1 0\n0 0 0\n1 0 0\n0 1"),
        ("a.glb", b"glTF\x02\0\0\0"),
        ("a.xyz", b"0 0 0\n1 inf 1\n"),
        ("a.xyz", b"# x\n0 0 0\n\n1 1 abc\n"),
        ("a.xyz", b"0 0 0\n1 1 1 1\n"),
        ("a.xyz", b"1 2\n3 4\n"),
        ("a.xyz", b"\xff\1\2"),
        ("a.xyz", b"# nothing\n"),
        ("a.xyz", b"x y z r g b\n0 0 0 300 0 0\n"),
        ("a.jpeg", b"0 0 0\n"),
        ("folder.ply", None),
        ("pipe.ply", None),
        ("none.ply", None),
    ],
)
def test_damage_is_one_sentence(tmp_path: Path, name: str, data: bytes | None) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    elif name == "folder.ply":
        (tmp_path / name).mkdir()
    elif name == "pipe.ply":
        os.mkfifo(tmp_path / name)
    with pytest.raises(InputError) as caught:
        read_cloud(tmp_path / name)
    assert str(caught.value).startswith(f"{tmp_path / name}: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("extent", "advice"), [(2e-4, "metres"), (200, "--unit mm"), (20, "--unit cm"), (9.8, "metres"), (0, "metres")]
)
def test_a_size_that_no_face_has_is_named(extent: float, advice: str) -> None:
    points = np.linspace(0, extent / 0.98, 101)[:, None] * [1.0, 0.5, 0.2]
    with pytest.raises(InputError, match=advice):
        check_size(Cloud(points))
    cloud = ball(1000)
    check_size(Cloud(np.concatenate([cloud.points, [[50.0, 0, 0]] * 5])))  # a few strays do not decide it
    check_size(Cloud(cloud.points * 8))  # a person from head to foot: the face is looked for
