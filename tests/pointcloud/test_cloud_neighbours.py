"""Neighbours, normals, farthest-point samples, duplicates and outliers against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud import Cloud
from ficgan.pointcloud.cloud import farthest_point_sample, mean_of_neighbours, pca_normals, search, without_outliers


def surface(rng: np.random.Generator, count: int) -> np.ndarray:
    flat = rng.uniform(-0.1, 0.1, (count, 2))
    return np.column_stack([-(flat**2).sum(axis=1) * 5, flat])


@pytest.mark.parametrize("k", [1, 7, 280, 600])
def test_mean_and_distance_equal_brute_force(rng: np.random.Generator, k: int) -> None:
    points, values = surface(rng, 600), rng.random((600, 6))
    apart = cdist(points, points)
    order = np.argsort(apart, axis=1)[:, :k]
    np.testing.assert_allclose(mean_of_neighbours(points, values, k), values[order].mean(axis=1), atol=1e-12)
    distances, indices = search(points, points, k)
    np.testing.assert_allclose(distances, np.take_along_axis(apart, order, axis=1), atol=1e-15)
    assert (indices[:, 0] == np.arange(600)).all()


def test_normals_are_those_of_a_loop_and_face_the_front(rng: np.random.Generator) -> None:
    points = rng.random((200, 3)) * [1, 1, 0.3]
    got = pca_normals(points, neighbours=12)
    for i, point in enumerate(points):
        near = np.argsort(np.linalg.norm(points - point, axis=1))[:12]
        want = np.linalg.eigh(np.cov(points[near].T))[1][:, 0]
        assert abs(got[i] @ want) > 1 - 1e-9 and got[i, 0] >= 0


def test_the_sample_is_the_definition(rng: np.random.Generator) -> None:
    points = rng.random((500, 3))
    apart, chosen = cdist(points, points), [0]
    while len(chosen) < 400:
        chosen.append(int(apart[chosen].min(axis=0).argmax()))
    assert farthest_point_sample(points, 400).tolist() == chosen


def test_outliers_are_those_of_algorithm_7(rng: np.random.Generator) -> None:
    points = surface(rng, 800)
    points[rng.choice(800, 8, replace=False), 0] += rng.uniform(0.005, 0.08, 8)
    cloud = Cloud(points, rng.integers(0, 256, (800, 3), np.uint8))
    mean = np.array([float(np.sort(row)[:50].mean()) for row in cdist(points, points)])
    kept = mean <= np.mean(mean) + 4 * np.std(mean, ddof=1)
    left = without_outliers(cloud)
    assert 0 < (~kept).sum() < 100 and left.colors is not None and cloud.colors is not None
    assert (left.colors == cloud.colors[kept]).all() and (left.points == points[kept]).all()


def test_refusals(rng: np.random.Generator) -> None:
    for call, error in (
        (lambda: mean_of_neighbours(np.zeros((5, 3)), np.zeros((5, 3)), 6), InputError),
        (lambda: mean_of_neighbours(np.zeros((5, 3)), np.zeros(5), 0), UsageError),
        (lambda: without_outliers(Cloud(rng.random((49, 3)))), InputError),
        (lambda: pca_normals(rng.random((50, 1)) * [1.0, 2, 3]), InputError),
        (lambda: pca_normals(np.eye(3)[:2]), InputError),
        (lambda: Cloud(np.zeros((3, 2))), InputError),
        (lambda: Cloud(np.full((3, 3), np.nan)), InputError),
        (lambda: Cloud(np.zeros((3, 3)), np.zeros((2, 3), np.uint8)), InputError),
    ):
        with pytest.raises(error):
            call()
