"""The inverses of the methods: against slow loops, and on made heads."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud import Cloud
from ficgan.pointcloud.attack import unmerge, unsmooth, untaper
from ficgan.pointcloud.cloud import farthest_point_sample
from ficgan.pointcloud.heads import made_head
from ficgan.pointcloud.methods import Merge2Faces, SmoothKNN, Tapering, taper_factors
from ficgan.pointcloud.scan import segmented

FEW_POINTS = hnp.arrays(np.float64, st.tuples(st.integers(1, 30), st.just(3)), elements=st.floats(-0.1, 0.1))
NOTHING = Cloud(np.zeros((0, 3)))


@cache
def face(seed: int, points: int = 2000) -> Cloud:
    """The inner part of a made head, evenly spaced."""
    head = segmented(made_head(seed, points=4 * points).cloud).inner
    return head.take(farthest_point_sample(head.points, points))


def off(one: Cloud, other: Cloud) -> np.ndarray:
    """Millimetres."""
    return 1e3 * np.linalg.norm(one.points - other.points, axis=1)


@given(FEW_POINTS, st.floats(0, 3.5))
def test_tapering_comes_back_but_for_what_is_lost(points: np.ndarray, r: float) -> None:
    back = untaper(Tapering(r=r)(Cloud(points)), r)
    assert np.array_equal(back.lost, np.abs(taper_factors(points[:, 2], r)) < 1e-3)
    np.testing.assert_allclose(back.cloud.points[~back.lost], points[~back.lost], rtol=1e-12, atol=1e-15)


def test_tapering_comes_back_from_single_precision() -> None:
    source = face(0)
    stored = Cloud(Tapering.of_degree(35)(source).points.astype(np.float32).astype(np.float64), source.colors)
    back = untaper(stored, 0.087 * 35, floor=0.05)
    left = off(back.cloud, source)[~back.lost]
    assert back.lost.mean() < 0.03 and left.max() < 1 and np.median(left) < 1e-4  # neighbours may swap ranks
    assert np.array_equal(back.cloud.colors, source.colors)


def means(places: np.ndarray, values: np.ndarray, k: int) -> np.ndarray:
    """By all distances."""
    rows = np.linalg.norm(places[:, None] - places, axis=2).argsort(axis=1)[:, :k]
    return values[rows].mean(axis=1)


def test_smoothing_is_taken_back_as_by_a_slow_loop(rng: np.random.Generator) -> None:
    grid = np.stack(np.meshgrid(np.arange(12.0), np.arange(12.0)), axis=-1).reshape(-1, 2)
    points = np.column_stack([grid, np.sin(grid[:, 0])]) + rng.uniform(-0.1, 0.1, (144, 3))
    smoothed = means(points, points, 9)
    expected, missing = smoothed, smoothed - means(smoothed, smoothed, 9)
    for _ in range(4):
        further = expected + missing
        still = smoothed - means(further, further, 9)
        if (still**2).sum() >= (missing**2).sum():
            break
        expected, missing = further, still
    assert expected is not smoothed
    np.testing.assert_allclose(unsmooth(Cloud(smoothed), 9).points, expected, rtol=0, atol=1e-12)


def test_much_of_a_smoothed_face_comes_back() -> None:
    source = face(1)
    out = SmoothKNN(k=64)(source)
    back, wrong = unsmooth(out, 64), unsmooth(out, 160)
    assert off(back, source).mean() < 0.7 * off(out, source).mean() < off(wrong, source).mean()
    error = [np.abs(one.colors.astype(int) - source.colors).mean() for one in (back, out)]
    assert error[0] < error[1]


def test_steps_that_would_diverge_are_not_taken(rng: np.random.Generator) -> None:
    source = rng.normal(0, 0.05, (300, 3))
    out = Cloud(means(source, source, 40))
    missing = [np.linalg.norm(out.points - means(one, one, 40)) for one in (out.points, unsmooth(out, 40).points)]
    assert missing[1] <= missing[0]
    assert np.array_equal(unsmooth(face(1), 1).points, face(1).points)


@given(FEW_POINTS, FEW_POINTS, st.floats(0, 0.99))
def test_the_nearest_target_stays_the_nearest_on_the_way(points: np.ndarray, others: np.ndarray, weight: float) -> None:
    near = np.linalg.norm(points[:, None] - others, axis=2).argmin(axis=1)
    out = Cloud((1 - weight) * points + weight * others[near])
    back = unmerge(out, weight, Cloud(others), np.eye(4))
    # Where two target points are equally near, either may be taken.
    apart = np.sort(np.linalg.norm(points[:, None] - others, axis=2), axis=1)
    clear = np.ones(len(points), bool) if len(others) == 1 else apart[:, 1] - apart[:, 0] > 1e-6
    np.testing.assert_allclose(back.cloud.points[clear], points[clear], rtol=0, atol=1e-12)


@pytest.mark.parametrize("degree", [20, *(pytest.param(degree, marks=pytest.mark.slow) for degree in (2, 34))])
def test_a_merged_face_comes_back_to_whoever_has_the_target(degree: int) -> None:
    turn = np.eye(4)
    turn[:2, :2] = [[np.cos(0.04), -np.sin(0.04)], [np.sin(0.04), np.cos(0.04)]]
    turn[:3, 3] = [0.002, -0.001, 0.001]
    source, target = face(1), face(2).moved(turn)
    method = Merge2Faces.of_degree(degree).with_target(target)
    out = method(source)
    out = Cloud(out.points.astype(np.float32).astype(np.float64), out.colors)
    told = unmerge(out, method.weight, target, method.registered(source).transform)
    found = unmerge(out, method.weight, target)
    assert not told.lost.any() and off(told.cloud, source).max() < 0.005 < off(out, source).mean()
    assert off(found.cloud, source).mean() < 0.1
    assert np.abs(told.cloud.colors.astype(int) - source.colors).mean() <= 0.5 / (1 - method.weight) + 0.5


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: untaper(NOTHING, 1.0), InputError),
        (lambda: unsmooth(face(1), 0), UsageError),
        (lambda: unsmooth(face(1), 5000), InputError),
        (lambda: unmerge(face(1), 1.0, face(2)), UsageError),
        (lambda: unmerge(face(1), float("nan"), face(2)), UsageError),
        (lambda: unmerge(NOTHING, 0.5, face(2)), InputError),
        (lambda: unmerge(face(1), 0.5, NOTHING), InputError),
    ],
)
def test_wrong_calls(call, error) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error):
        call()
