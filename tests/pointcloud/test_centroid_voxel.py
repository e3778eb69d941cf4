"""CentroidVoxel against a slow loop and Open3D's voxel grid."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.spatial import cKDTree

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud import Cloud
from ficgan.pointcloud.methods import CentroidVoxel

POINTS = hnp.arrays(
    np.float64, st.tuples(st.integers(1, 30), st.just(3)), elements=st.integers(-8, 8).map(lambda n: n / 64)
)


def slow(cloud: Cloud, size: float) -> dict[tuple[float, ...], tuple[int, ...]]:
    """Centre → colour, voxel by voxel."""
    origin = [min(axis) - size / 2 for axis in cloud.points.T]
    members: dict[tuple[int, ...], list[int]] = {}
    for row, point in enumerate(cloud.points):
        members.setdefault(tuple(math.floor((p - o) / size) for p, o in zip(point, origin, strict=True)), []).append(
            row
        )
    out = {}
    for cell, rows in sorted(members.items()):
        centre = tuple(o + (c + 0.5) * size for o, c in zip(origin, cell, strict=True))
        sums = cloud.colors[rows].astype(int).sum(axis=0)
        out[centre] = tuple((2 * int(one) + len(rows)) // (2 * len(rows)) for one in sums)
    return out


def face(rng: np.random.Generator, count: int = 3000) -> Cloud:
    y, z = rng.uniform(-0.09, 0.09, (2, count))
    points = np.stack([-6 * z**2 - 3 * y**2, y, z], axis=1)
    return Cloud(points, rng.integers(0, 256, (count, 3), dtype=np.uint8))


@settings(deadline=None, max_examples=60)
@given(POINTS, st.sampled_from([1 / 256, 1 / 32, 0.05, 3.0]))
def test_like_a_loop_over_voxels_in_the_order_of_voxels(points, size):
    cloud = Cloud(points, np.random.default_rng(len(points)).integers(0, 256, points.shape, dtype=np.uint8))
    out = CentroidVoxel(size=size)(cloud)
    expected = slow(cloud, size)
    assert np.allclose(out.points, list(expected), rtol=0, atol=1e-12)
    assert out.colors.tolist() == [list(color) for color in expected.values()]


@pytest.mark.parametrize("size", [0.00025, 0.003, 0.00875, 0.05, 1.0])
def test_open3d_has_the_same_voxels_and_colours(rng, size):
    o3d = pytest.importorskip("open3d")
    cloud = face(rng)
    theirs = o3d.geometry.PointCloud(o3d.utility.Vector3dVector(cloud.points))
    theirs.colors = o3d.utility.Vector3dVector(cloud.colors / 255)
    grid = o3d.geometry.VoxelGrid.create_from_point_cloud(theirs, size)
    voxels = sorted(grid.get_voxels(), key=lambda voxel: tuple(voxel.grid_index))
    centres = np.array([grid.get_voxel_center_coordinate(voxel.grid_index) for voxel in voxels])
    out = CentroidVoxel(size=size)(cloud)
    np.testing.assert_array_equal(out.points, centres)
    # Theirs are not rounded; where a mean is a half, their floating point falls on either side.
    assert np.abs(255 * np.array([voxel.color for voxel in voxels]) - out.colors).max() <= 0.5 + 1e-9


def test_the_colour_is_the_rounded_mean_halves_up():
    cloud = Cloud(np.zeros((2, 3)), np.array([[0, 254, 7], [1, 255, 7]], np.uint8))
    assert CentroidVoxel(size=1.0)(cloud).colors.tolist() == [[1, 255, 7]]


def test_one_voxel_holds_everything():
    cloud = Cloud(np.array([[0.0, 0, 0], [0.2, 0.1, 0.3]]))
    out = CentroidVoxel(size=1.0)(cloud)
    assert out.points.tolist() == [[0.0, 0.0, 0.0]] and out.colors is None


def test_no_point_lies_farther_than_half_a_voxel_from_its_centre_and_no_voxel_is_empty(rng):
    cloud = face(rng)
    points, centres = cloud.points, CentroidVoxel(size=0.004)(cloud).points
    for some, others in ((points, centres), (centres, points)):
        assert cKDTree(others).query(some, p=np.inf)[0].max() <= 0.002 + 1e-12


def test_bad_input_is_named():
    with pytest.raises(InputError, match="0 points"):
        CentroidVoxel()(Cloud(np.zeros((0, 3))))
    with pytest.raises(InputError, match="too wide for voxels"):
        CentroidVoxel(size=1e-9)(Cloud(np.array([[0.0, 0, 0], [1e5, 1e5, 1e5]])))
    with pytest.raises(UsageError, match="size is 0"):
        CentroidVoxel(size=0.0)
