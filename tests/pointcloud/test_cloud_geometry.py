"""Registration and recognisers of shape."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud
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
