"""Files of point clouds: every format there and back, and against trimesh and Open3D both ways."""

from __future__ import annotations

import io
from pathlib import Path

import files_world
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ficgan.errors import UsageError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.files import FORMATS, read_cloud, write_cloud

WRITABLE = [suffix for suffix, form in FORMATS.items() if form.write]
TWICE = [(suffix, True) for suffix in WRITABLE] + [(".ply", False), (".pcd", False)]

pytestmark = pytest.mark.filterwarnings("ignore:.*not kept. a point cloud has none")


@pytest.mark.parametrize("normals", [False, True])
@pytest.mark.parametrize("colors", [False, True])
@pytest.mark.parametrize(("suffix", "binary"), TWICE)
def test_what_is_written_is_read(tmp_path: Path, suffix: str, binary: bool, colors: bool, normals: bool) -> None:
    cloud = files_world.head(colors=colors, normals=normals)
    path = tmp_path / f"head{suffix}"
    if suffix == ".npy" and (colors or normals):
        with pytest.raises(UsageError, match=r"head\.npy: a \.npy file holds points only.*\.npz"):
            write_cloud(path, cloud)
        assert not any(tmp_path.iterdir())
        return
    write_cloud(path, cloud, binary=binary)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    notes: list[str] = []
    files_world.assert_same(read_cloud(path, notes=notes), cloud, 0 if suffix in (".npy", ".npz") else 1e-7)
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
@settings(max_examples=5)
@given(cloud=clouds())
def test_any_cloud_comes_back(suffix: str, binary: bool, cloud: Cloud) -> None:
    if suffix == ".npy":
        cloud = Cloud(cloud.points)
    elif suffix == ".pts":
        cloud = Cloud(cloud.points, cloud.colors)  # without a line of names, the normal (1, 0, 0) may be red
    form, file, notes = FORMATS[suffix], io.BytesIO(), list[str]()
    assert form.write is not None
    form.write(file, cloud, binary)
    files_world.assert_same(form.read(file.getvalue(), Path(f"any{suffix}"), notes).cloud(1.0, notes), cloud)
    assert notes == []


def test_double_is_written_only_where_single_would_move_a_point(tmp_path: Path) -> None:
    near, far = files_world.head(), Cloud(files_world.head().points + 1000.0)
    for name, cloud in (("near", near), ("far", far)):
        write_cloud(tmp_path / f"{name}.ply", cloud)
    assert b"property float x" in (tmp_path / "near.ply").read_bytes()
    assert b"property double x" in (tmp_path / "far.ply").read_bytes()
    np.testing.assert_array_equal(read_cloud(tmp_path / "far.ply").points, far.points)


# --- oracles ---


@pytest.mark.parametrize(("suffix", "binary"), [(".ply", True), (".ply", False), (".obj", True)])
def test_trimesh_reads_what_is_written(tmp_path: Path, suffix: str, binary: bool) -> None:
    trimesh = pytest.importorskip("trimesh")
    cloud = files_world.head(normals=False)
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
    cloud = files_world.head(normals=False)
    trimesh.PointCloud(cloud.points, cloud.colors).export(tmp_path / f"head{kind}")
    got = read_cloud(tmp_path / f"head{kind}", notes=[])
    np.testing.assert_allclose(got.points, cloud.points, atol=1e-6)
    if kind == ".obj":
        np.testing.assert_array_equal(got.colors, cloud.colors)


def test_a_scan_is_read(shared_data: Path) -> None:
    path = shared_data / "clouds" / "f0001_neutral.ply"
    if not path.is_file():
        pytest.skip(f"needs the scans; there is no {path}")
    cloud = read_cloud(path)
    assert len(cloud) == 45_000 and cloud.colors is None and cloud.normals is None
    extent = np.ptp(cloud.points, axis=0)
    assert extent.min() > 0.1 and extent.max() < 0.4
