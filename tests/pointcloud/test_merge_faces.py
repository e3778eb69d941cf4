"""Merge2Faces against a loop over nearest points, with a stand-in for the registration where that is not the matter."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud import CLOUD_ANONYMIZERS, Cloud, registration
from ficgan.pointcloud.methods import Merge2Faces
from ficgan.pointcloud.methods.merge_faces import _registered

SHIFT = np.eye(4)
SHIFT[:3, 3] = [0.01, -0.02, 0.005]


@pytest.fixture
def calls(monkeypatch) -> list[dict]:
    """A registration that always shifts by the same, and who asked for it."""
    asked: list[dict] = []

    def register(source, target, **how):
        asked.append({"source": source, "target": target, **how})
        return SimpleNamespace(transform=SHIFT, fitness=1.0, rmse=0.001, before=(0.5, 0.002), iterations=3)

    monkeypatch.setattr(registration, "register", register, raising=False)
    _registered.cache_clear()
    yield asked
    _registered.cache_clear()


def face(seed: int, count: int = 400, colour: bool = True) -> Cloud:
    rng = np.random.default_rng(seed)
    y, z = rng.uniform(-0.08, 0.08, (2, count))
    points = np.stack([-(6 + seed) * z**2 - 3 * y**2, y, z], axis=1)
    return Cloud(points, rng.integers(0, 256, (count, 3), dtype=np.uint8) if colour else None)


@pytest.mark.parametrize("weight", [0.0, 0.0285, 0.5, 0.9975, 1.0])
def test_like_a_loop_over_nearest_points(calls, weight):
    source, target = face(1), face(2)
    out = Merge2Faces(weight=weight).with_target(target)(source)
    moved = target.points + SHIFT[:3, 3]
    for row, point in enumerate(source.points):
        near = ((moved - point) ** 2).sum(axis=1).argmin()
        np.testing.assert_allclose(out.points[row], point + weight * (moved[near] - point), rtol=0, atol=1e-12)
        mixed = source.colors[row] + weight * (target.colors[near].astype(float) - source.colors[row])
        assert np.abs(out.colors[row] - mixed).max() <= 0.5 + 1e-9


def test_weight_1_is_the_target_and_weight_0_the_source(calls):
    source, target = face(1), face(2)
    swapped = Merge2Faces(weight=1.0).with_target(target)(source)
    moved = set(map(tuple, (target.points + SHIFT[:3, 3]).tolist()))
    assert set(map(tuple, swapped.points.tolist())) <= moved
    same = Merge2Faces(weight=0.0).with_target(target)(source)
    assert np.array_equal(same.points, source.points) and np.array_equal(same.colors, source.colors)


def test_colours_are_mixed_where_both_have_them_and_dropped_elsewhere(calls):
    plain = Merge2Faces(weight=1.0).with_target(face(2, colour=False))
    assert plain(face(1)).colors is None  # the source's photo would be left as it was
    assert Merge2Faces(weight=1.0).with_target(face(2))(face(1, colour=False)).colors is None


def test_a_pair_is_registered_once_for_all_weights(calls):
    source, target = face(1), face(2)
    for degree in range(1, 36):
        Merge2Faces.of_degree(degree).with_target(target)(Cloud(source.points.copy(), source.colors))
    assert len(calls) == 1
    method = Merge2Faces().with_target(target)
    assert method.registered(source).fitness == 1.0 and len(calls) == 1
    method.registered(face(3))
    Merge2Faces().with_target(face(4)).registered(source)
    assert len(calls) == 3
    Merge2Faces(coarse="never").with_target(target).registered(source)
    assert [one["coarse"] for one in calls] == ["auto", "auto", "auto", "never"]


def test_the_target_is_no_parameter(calls):
    method = CLOUD_ANONYMIZERS.make("merge-2-faces", weight="0.25")
    assert method.with_target(face(2)).settings() == {"weight": 0.25, "coarse": "auto"}
    assert method.with_target(face(2)) == method and hash(method) == hash(method.with_target(face(2)))
    with pytest.raises(UsageError, match="no parameter 'target'"):
        CLOUD_ANONYMIZERS.make("merge-2-faces", target="x.ply")


def test_the_target_is_registered_to_the_source():
    _registered.cache_clear()
    rng = np.random.default_rng(3)
    y, z = rng.uniform(-0.08, 0.08, (2, 3000))
    nose = 0.03 * np.exp(-((y / 0.02) ** 2) - (z / 0.012) ** 2) + 0.004 * np.sin(90 * y + 1) * np.cos(70 * z)
    source = Cloud(np.stack([nose - 6 * z**2 - 3 * y**2, y, z], axis=1))
    turn = np.eye(4)
    turn[:2, :2] = [[np.cos(0.05), -np.sin(0.05)], [np.sin(0.05), np.cos(0.05)]]
    turn[:3, 3] = [0.003, 0.002, -0.002]
    method = Merge2Faces(weight=1.0).with_target(source.moved(turn))
    found = method.registered(source)
    np.testing.assert_allclose(found.transform @ turn, np.eye(4), rtol=0, atol=1e-5)
    assert found.fitness == 1.0 and found.rmse < 1e-5 and found.before[1] > 1e-3
    assert np.abs(method(source).points - source.points).max() < 1e-5


def test_bad_input_is_named(calls):
    with pytest.raises(UsageError, match="needs a target face"):
        Merge2Faces()(face(1))
    with pytest.raises(InputError, match="the target of Merge2Faces"):
        Merge2Faces().with_target(Cloud(np.zeros((0, 3))))
    with pytest.raises(InputError, match="Merge2Faces needs at least 1"):
        Merge2Faces().with_target(face(1))(Cloud(np.zeros((0, 3))))
    with pytest.raises(UsageError, match=r"weight is 1.2; give from 0.0 to 1.0"):
        Merge2Faces(weight=1.2)
    with pytest.raises(UsageError, match="coarse is 'ransac'"):
        Merge2Faces(coarse="ransac")
