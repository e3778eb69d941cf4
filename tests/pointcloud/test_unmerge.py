"""Merge2Faces taken back by whoever has the target: with and without the transform, with and without the weight."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud import Cloud
from ficgan.pointcloud.attack import guess_merge_weight, target_from, unmerge
from ficgan.pointcloud.heads import made_head
from ficgan.pointcloud.methods import Merge2Faces
from ficgan.pointcloud.sampling import farthest_point_sample
from ficgan.pointcloud.segments import segmented

POINTS = hnp.arrays(np.float64, st.tuples(st.integers(1, 30), st.just(3)), elements=st.floats(-0.1, 0.1))
TURN = np.eye(4)
TURN[:2, :2] = [[np.cos(0.04), -np.sin(0.04)], [np.sin(0.04), np.cos(0.04)]]
TURN[:3, 3] = [0.002, -0.001, 0.001]


@cache
def face(seed: int, points: int = 3000) -> Cloud:
    """The inner part of a made head, evenly spaced, without normals."""
    head = segmented(made_head(seed, points=4 * points).cloud).inner
    head = head.take(farthest_point_sample(head.points, points))
    return Cloud(head.points, head.colors)


def merged_at(degree: int) -> tuple[Cloud, Cloud, Cloud, Merge2Faces]:
    """Source, target, and what came of them, in the precision of a file."""
    source, target = face(1), face(2).moved(TURN)
    method = Merge2Faces.of_degree(degree).with_target(target)
    out = method(source)
    return source, target, Cloud(out.points.astype(np.float32).astype(np.float64), out.colors), method


def off(back: Cloud, source: Cloud) -> np.ndarray:
    """Millimetres."""
    return 1e3 * np.linalg.norm(back.points - source.points, axis=1)


@settings(deadline=None, max_examples=80)
@given(POINTS, POINTS, st.floats(0, 0.99))
def test_the_nearest_target_stays_the_nearest_on_the_way(points, others, weight):
    near = np.linalg.norm(points[:, None] - others, axis=2).argmin(axis=1)
    out = Cloud((1 - weight) * points + weight * others[near])
    back = unmerge(out, weight, Cloud(others), np.eye(4))
    # Where two target points are equally near, either may be taken.
    apart = np.sort(np.linalg.norm(points[:, None] - others, axis=2), axis=1)
    clear = np.ones(len(points), bool) if len(others) == 1 else apart[:, 1] - apart[:, 0] > 1e-6
    np.testing.assert_allclose(back.cloud.points[clear], points[clear], rtol=0, atol=1e-12)


@pytest.mark.parametrize("degree", [2, 20, 34, 35])
def test_the_transform_brings_all_back(degree):
    source, target, out, method = merged_at(degree)
    back = unmerge(out, method.weight, target, method.registered(source).transform)
    assert not back.lost.any() and off(back.cloud, source).max() < 0.005
    assert off(out, source).mean() > 0.01 * degree


@pytest.mark.parametrize("degree", [2, 10, 17, 25, 32, 35])
def test_output_weight_and_target_are_enough(degree):
    source, target, out, method = merged_at(degree)
    back = unmerge(out, method.weight, target)
    assert not back.lost.any() and off(back.cloud, source).max() < 0.2
    np.testing.assert_allclose(back.transform, method.registered(source).transform, rtol=0, atol=1e-4)


@pytest.mark.parametrize("degree", [3, 14, 29, 35])
def test_the_weight_is_guessed_to_the_degree(degree):
    _, target, out, method = merged_at(degree)
    assert abs(guess_merge_weight(out, target) - method.weight) < 0.0285 / 2


def test_colours_come_back_as_far_as_rounding_left_them():
    source, target, out, method = merged_at(20)
    back = unmerge(out, method.weight, target)
    assert np.abs(back.cloud.colors.astype(int) - source.colors).max() <= 0.5 / (1 - method.weight) + 0.5
    source, target, out, method = merged_at(35)
    back = unmerge(out, method.weight, target)
    apart = np.abs(back.cloud.colors.astype(int) - source.colors).mean()
    single = (out.colors.astype(float) - method.weight * target.colors.mean(axis=0)) / (1 - method.weight)
    assert apart < 0.5 * np.abs(single.clip(0, 255) - source.colors).mean()
    bare = unmerge(Cloud(out.points), method.weight, target)
    assert bare.cloud.colors is None


def test_what_others_became_with_the_target_does_in_its_place():
    source, target, out, method = merged_at(20)
    high = Merge2Faces.of_degree(35).with_target(target)
    others = [high(face(seed).moved(np.linalg.inv(TURN))) for seed in (4, 5, 6)]
    one, several = (target_from(others[:count]) for count in (1, 3))
    assert len(one) == len(others[0]) and len(several) == sum(map(len, others))
    nothing = off(out, source).mean()
    assert off(unmerge(out, method.weight, one).cloud, source).mean() < 0.5 * nothing
    assert off(unmerge(out, method.weight, several).cloud, source).mean() < 0.2 * nothing
    assert abs(guess_merge_weight(out, several) - method.weight) < 0.0285
    with pytest.raises(UsageError, match="no result to take the target from"):
        target_from([])


def test_the_wrong_target_brings_nobody_back():
    source, _, out, method = merged_at(25)
    assert off(unmerge(out, method.weight, face(3)).cloud, source).mean() > 1


def test_bad_input_is_named():
    cloud = Cloud(np.random.default_rng(0).normal(size=(99, 3)))
    for weight in (1.0, -0.1, float("nan")):
        with pytest.raises(UsageError, match="weight to take back"):
            unmerge(cloud, weight, cloud)
    with pytest.raises(InputError, match="0 points, and the inverse of Merge2Faces"):
        unmerge(cloud.take(np.zeros(0, int)), 0.5, cloud)
    with pytest.raises(InputError, match="0 points, and its target"):
        unmerge(cloud, 0.5, cloud.take(np.zeros(0, int)))
    with pytest.raises(InputError, match="99 points"):
        guess_merge_weight(cloud, cloud)
