"""Removal of outliers against algorithm 7 in a slow loop, and against Open3D point by point."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud import Cloud
from ficgan.pointcloud.outliers import inliers, without_outliers


def _dusty(rng: np.random.Generator, count: int) -> Cloud:
    flat = rng.uniform(-0.1, 0.1, (count, 2))
    points = np.column_stack([-5 * (flat**2).sum(axis=1), flat])
    far = rng.choice(count, count // 100, replace=False)
    points[far, 0] += rng.uniform(0.005, 0.08, len(far))
    return Cloud(points, rng.integers(0, 256, (count, 3), np.uint8))


@pytest.mark.parametrize(("neighbours", "ratio"), [(50, 4.0), (10, 1.0), (150, 2.0)])
def test_algorithm_7(rng: np.random.Generator, neighbours: int, ratio: float) -> None:
    cloud = _dusty(rng, 800)
    mean = [float(np.sort(row)[:neighbours].mean()) for row in cdist(cloud.points, cloud.points)]
    limit = np.mean(mean) + ratio * np.std(mean, ddof=1)
    kept = inliers(cloud, neighbours=neighbours, ratio=ratio)
    assert kept.tolist() == [one <= limit for one in mean]
    assert 0 < (~kept).sum() < 100


@pytest.mark.parametrize("count", [2000, 10_352])
@pytest.mark.parametrize(("neighbours", "ratio"), [(50, 4.0), (20, 1.5)])
def test_equals_open3d(rng: np.random.Generator, count: int, neighbours: int, ratio: float) -> None:
    open3d = pytest.importorskip("open3d")
    cloud = _dusty(rng, count)
    other = open3d.geometry.PointCloud(open3d.utility.Vector3dVector(cloud.points))
    rows = other.remove_statistical_outlier(neighbours, ratio)[1]
    assert np.flatnonzero(inliers(cloud, neighbours=neighbours, ratio=ratio)).tolist() == list(rows)


def test_colours_go_along(rng: np.random.Generator) -> None:
    cloud = _dusty(rng, 800)
    kept = inliers(cloud)
    left = without_outliers(cloud)
    assert left.colors is not None and cloud.colors is not None
    assert (left.colors == cloud.colors[kept]).all() and (left.points == cloud.points[kept]).all()


def test_nothing_stands_out_where_all_are_alike(rng: np.random.Generator) -> None:
    """A circle, and points in few places, have no outliers; a strict comparison would remove them all."""
    turn = np.arange(400) * 2 * np.pi / 400
    assert inliers(Cloud(np.column_stack([np.cos(turn), np.sin(turn), 0 * turn])), neighbours=20).all()
    assert inliers(Cloud(np.repeat(rng.random((5, 3)), 60, axis=0))).all()


def test_refusals(rng: np.random.Generator) -> None:
    with pytest.raises(InputError, match=r"49 points.*50"):
        inliers(Cloud(rng.random((49, 3))))
    for settings in ({"neighbours": 1}, {"ratio": 0.0}, {"ratio": float("nan")}):
        with pytest.raises(UsageError, match="outliers by"):
            inliers(Cloud(rng.random((60, 3))), **settings)
