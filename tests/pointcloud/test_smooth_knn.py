"""SmoothKNN against all distances, and Open3D's search."""

from __future__ import annotations

import numpy as np
import pytest

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud import Cloud
from ficgan.pointcloud.methods import SmoothKNN


def blob(rng: np.random.Generator, count: int) -> Cloud:
    return Cloud(rng.normal(0, 0.05, (count, 3)), rng.integers(0, 256, (count, 3), dtype=np.uint8))


@pytest.mark.parametrize("k", [2, 7, 60, 199, 200])
def test_like_a_loop_over_all_distances(rng, k):
    cloud = blob(rng, 200)
    out = SmoothKNN(k=k)(cloud)
    for row, point in enumerate(cloud.points):
        near = np.argsort(((cloud.points - point) ** 2).sum(axis=1))[:k]
        assert row in near
        np.testing.assert_allclose(out.points[row], cloud.points[near].mean(axis=0), rtol=0, atol=1e-12)
        sums = cloud.colors[near].astype(int).sum(axis=0)
        assert out.colors[row].tolist() == ((2 * sums + k) // (2 * k)).tolist()


@pytest.mark.parametrize("k", [8, 280])
def test_open3d_finds_the_same_neighbours(rng, k):
    o3d = pytest.importorskip("open3d")
    cloud = blob(rng, 1500)
    tree = o3d.geometry.KDTreeFlann(o3d.geometry.PointCloud(o3d.utility.Vector3dVector(cloud.points)))
    out = SmoothKNN(k=k)(cloud)
    for row in range(0, 1500, 7):
        near = np.asarray(tree.search_knn_vector_3d(cloud.points[row], k)[1])
        np.testing.assert_allclose(out.points[row], cloud.points[near].mean(axis=0), rtol=0, atol=1e-12)


def test_one_neighbour_changes_nothing_and_all_make_one_point(rng):
    cloud = Cloud(*(np.repeat(one, 3, axis=0) for one in (blob(rng, 20).points, blob(rng, 20).colors)))
    cloud = Cloud(cloud.points, rng.integers(0, 256, (60, 3), dtype=np.uint8))
    same, one = SmoothKNN(k=1)(cloud), SmoothKNN(k=60)(cloud)
    assert np.array_equal(same.points, cloud.points) and np.array_equal(same.colors, cloud.colors)
    np.testing.assert_allclose(one.points, np.broadcast_to(cloud.points.mean(axis=0), (60, 3)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", ["duplicates", "line"])
def test_duplicates_and_lines_work(shape):
    points = np.zeros((50, 3)) if shape == "duplicates" else np.linspace(0, 1, 50)[:, None] * np.ones(3)
    out = SmoothKNN(k=9)(Cloud(points))
    assert out.points.shape == (50, 3) and out.colors is None
    if shape == "duplicates":
        assert not out.points.any()
    else:
        np.testing.assert_allclose(out.points[4:-4], points[4:-4], rtol=0, atol=1e-12)


def test_bad_values_are_named(rng):
    with pytest.raises(InputError, match="40 points, and SmoothKNN with k = 48"):
        SmoothKNN.of_degree(6)(blob(rng, 40))
    with pytest.raises(InputError, match="0 points"):
        SmoothKNN(k=1)(Cloud(np.zeros((0, 3))))
    with pytest.raises(UsageError, match="k is 0"):
        SmoothKNN(k=0)
