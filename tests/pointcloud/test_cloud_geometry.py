"""Registration, recognisers of shape, neighbours, samples and outliers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.spatial.transform import Rotation

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import (
    Cloud,
    farthest_point_sample,
    mean_of_neighbours,
    pca_normals,
    search,
    without_outliers,
)
from ficgan.pointcloud.face import made_head
from ficgan.pointcloud.geometry import DESCRIPTIONS, compare_descriptions, describe, icp, register


def face_of(seed: int, points: int = 4000, scan: int = 0) -> Cloud:
    return Cloud(made_head(seed, points=points, scan=scan).cloud.points)


def motion(degrees: float, shift: float, rng: np.random.Generator) -> np.ndarray:
    axis, way = rng.standard_normal((2, 3))
    move = np.eye(4)
    move[:3, :3] = Rotation.from_rotvec(np.radians(degrees) * axis / np.linalg.norm(axis)).as_matrix()
    move[:3, 3] = shift * way / np.linalg.norm(way)
    return move


# -- registration -----------------------------------------------------------------------------------------------------


def test_a_motion_is_undone_exactly(rng: np.random.Generator) -> None:
    face, move = face_of(0), motion(5, 0.004, rng)
    found = register(face, face.moved(move))
    np.testing.assert_allclose(found.transform @ move, np.eye(4), atol=1e-6)
    assert found.fitness == 1 and found.rmse < 1e-6


def test_fitness_counts_points_of_the_cloud_that_moves() -> None:
    few, many = np.zeros((1, 3)), np.array([[0, 0, 0.001], [0, 0, 1], [0, 1, 0], [1, 0, 0]])
    assert icp(few, many, np.tile([1.0, 0, 0], (4, 1)), np.eye(4)).fitness == 1
    found = icp(many, few, np.array([[1.0, 0, 0]]), np.eye(4))
    assert found.fitness == 0.25 and found.rmse == pytest.approx(0.001)


@pytest.mark.slow
def test_the_target_is_laid_on_the_source_wherever_it_lies(rng: np.random.Generator) -> None:
    source, target = face_of(0, 2500), face_of(5, 2500)
    straight = target.moved(register(source, target).transform).points
    for move in (motion(10, 0.01, rng), motion(140, 0.3, rng)):  # the second one is not found by ICP alone
        found = register(source, target.moved(move))
        assert found.fitness > 0.8
        np.testing.assert_allclose(target.moved(found.transform @ move).points, straight, atol=2e-3)


# -- recognisers of shape ---------------------------------------------------------------------------------------------

PEOPLE = [str(seed) for seed in range(6) for _ in range(2)]


def rank_1(scores: np.ndarray, people: list[str]) -> float:
    """Of the clouds that have another of the same person, the share whose best match other than itself is one."""
    best = np.where(np.eye(len(people), dtype=bool), -np.inf, scores).argmax(axis=1)
    return float(np.mean([people[j] == who for j, who in zip(best, people, strict=True) if people.count(who) > 1]))


@pytest.fixture(scope="module")
def heads() -> list[Cloud]:
    """Two scans each of six made people."""
    return [face_of(seed, 6000, scan) for seed in range(6) for scan in range(2)]


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_made_heads_are_known_again(heads: list[Cloud], name: str) -> None:
    vectors = np.stack([describe(head)[name] for head in heads])
    assert vectors.shape == (12, DESCRIPTIONS[name]) and np.isfinite(vectors).all()
    scores = compare_descriptions(vectors, vectors)
    assert rank_1(scores, PEOPLE) >= 10 / 12
    apart = vectors - vectors.mean(axis=0)
    want = [[np.dot(a, b) / np.sqrt(np.dot(a, a) * np.dot(b, b)) for b in apart] for a in apart]
    np.testing.assert_allclose(scores, want, atol=1e-4)
    assert compare_descriptions(vectors, vectors[:2]).shape == (2, 12)  # probes are rows
    with pytest.raises(InputError, match="two different faces"):
        compare_descriptions(vectors[:1], vectors)


def test_a_shift_and_a_small_turn_are_no_identity(heads: list[Cloud]) -> None:
    tilted = heads[0].points + np.column_stack([0.003 + 0.03 * heads[0].points[:, 1], np.zeros((len(heads[0]), 2))])
    np.testing.assert_allclose(describe(Cloud(tilted))["depth"], describe(heads[0])["depth"], atol=0.2)
    with pytest.raises(InputError, match="canonical frame"):
        describe(Cloud(heads[0].points + 1))


# -- neighbours --------------------------------------------------------------------------------------------------------


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
