"""The inverses of the methods: against slow loops, on made heads, with and without the key."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.spatial import cKDTree

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud import Cloud
from ficgan.pointcloud.attack import (
    denoise,
    guess_merge_weight,
    guess_noise,
    guess_smoothing,
    guess_taper,
    target_from,
    unmerge,
    unsmooth,
    untaper,
)
from ficgan.pointcloud.cloud import farthest_point_sample, mean_of_neighbours
from ficgan.pointcloud.heads import made_head
from ficgan.pointcloud.methods import Merge2Faces, SmoothKNN, Tapering, UniformNoise, taper_factors, taper_function
from ficgan.pointcloud.scan import segmented

POINTS = hnp.arrays(
    np.float64, st.tuples(st.integers(1, 40), st.just(3)), elements=st.integers(-9, 9).map(lambda n: n / 90)
)


def slow_tapering(points: np.ndarray, r: float) -> np.ndarray:
    out = points.copy()
    for rank, row in enumerate(sorted(range(len(points)), key=lambda row: points[row, 2])):  # sorted() is stable
        x = -r + 2 * r * rank / (len(points) - 1) if len(points) > 1 else -r
        f = math.sin(x) ** 2 + math.cos(x)
        out[row] = [f * points[row, 0], f * points[row, 1], points[row, 2]]
    return out


def egg(seed: int) -> tuple[Cloud, Cloud]:
    """Inner and outer part of half an egg with a nose; sizes from the seed."""
    rng = np.random.default_rng(seed)
    width, height, depth = np.array([0.085, 0.125, 0.1]) * rng.uniform(0.95, 1.05, 3)
    v = rng.normal(size=(8_000, 3))
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    v[:, 0] = np.abs(v[:, 0])
    x = depth * v[:, 0] + 0.025 * np.exp(-((v[:, 1] / 0.2) ** 2) - (v[:, 2] / 0.15) ** 2)
    points = np.stack([x - depth - 0.025, height * v[:, 1], width * v[:, 2]], axis=1)
    near = np.linalg.norm(points, axis=1) <= 0.115
    return Cloud(points[near]), Cloud(points[~near])


@given(POINTS, st.floats(0, 3.2))
def test_like_a_loop_over_the_sorted_points(points, r):
    np.testing.assert_allclose(Tapering(r=r)(Cloud(points)).points, slow_tapering(points, r), rtol=0, atol=1e-12)


def test_the_function_is_1_in_the_middle_peaks_at_a_third_of_pi_and_turns_negative():
    assert taper_function(np.array([0.0]))[0] == 1.0
    fine = np.linspace(0, 3.2, 320_001)
    values = taper_function(fine)
    assert fine[values.argmax()] == pytest.approx(np.pi / 3, abs=1e-4) and values.max() == pytest.approx(1.25)
    assert fine[np.flatnonzero(values < 0)[0]] == pytest.approx(2.2370, abs=1e-3)


def test_a_wide_interval_mirrors_the_sides():
    z = np.linspace(-0.08, 0.08, 101)
    cloud = Cloud(np.stack([np.zeros(101), np.full(101, 0.1), z], axis=1))
    out = Tapering.of_degree(35)(cloud).points[:, 1]
    assert out[0] < 0 and out[-1] < 0 and out[50] == pytest.approx(0.1)


@given(POINTS, st.floats(0, 3.2))
def test_the_key_brings_back_what_is_not_lost(points, r):
    cloud = Cloud(points, np.full(points.shape, 5, np.uint8))
    back = untaper(Tapering(r=r)(cloud), r)
    np.testing.assert_allclose(back.cloud.points[~back.lost], points[~back.lost], rtol=1e-12, atol=1e-15)
    assert np.array_equal(back.lost, np.abs(taper_factors(points[:, 2], r)) < 1e-3)
    assert np.array_equal(back.cloud.colors, cloud.colors)


def test_the_inverse_survives_single_precision():
    cloud = egg(0)[0]
    stored = Cloud(Tapering.of_degree(35)(cloud).points.astype(np.float32).astype(np.float64))
    back = untaper(stored, 0.087 * 35, floor=0.05)
    assert back.lost.mean() < 0.03
    # Neighbours whose z become one number may swap ranks.
    assert np.abs(back.cloud.points - cloud.points)[~back.lost].max() < 1e-3
    assert np.median(np.abs(back.cloud.points - cloud.points)[~back.lost]) < 1e-8


def test_points_where_the_function_is_zero_are_reported():
    root = 2.2370357592874
    cloud = Cloud(np.array([[0.0, 0.1, -0.1], [0.0, 0.1, 0.0], [0.0, 0.1, 0.1]]))
    assert untaper(Tapering(r=root)(cloud), root).lost.tolist() == [True, False, True]


def left_of(tapered: Cloud, source: Cloud, guess: float) -> float:
    """What remains of the displacement after taking the guess back, as a fraction."""
    back = untaper(tapered, guess, floor=0.05)
    left = np.linalg.norm(back.cloud.points - source.points, axis=1)[~back.lost].mean()
    return float(left / np.linalg.norm(tapered.points - source.points, axis=1).mean())


@pytest.mark.parametrize("degree", [6, 13, 20, 27, 35])
def test_r_is_guessed_from_the_tapered_face_and_other_people(degree):
    source = egg(1)[0]
    tapered = Tapering.of_degree(degree)(source)
    guess = guess_taper(tapered, background=[egg(seed)[0] for seed in (2, 3, 4, 5)])
    assert abs(guess - 0.087 * degree) < 0.15 and left_of(tapered, source, guess) < 0.35


@pytest.mark.parametrize("degree", [21, 33])
def test_r_is_guessed_from_the_tapered_face_and_what_lies_around_it(degree):
    source, outer = egg(1)
    tapered = Tapering.of_degree(degree)(source)
    guess = guess_taper(tapered, outer=outer)
    assert abs(guess - 0.087 * degree) < 0.05 and left_of(tapered, source, guess) < 0.1


def test_what_was_not_tapered_is_hardly_bent_by_the_guess():
    source, outer = egg(1)
    assert guess_taper(source, outer=outer) < 0.25


def test_bad_tapering_is_named():
    with pytest.raises(InputError, match="99 points"):
        guess_taper(Cloud(np.zeros((99, 3))))
    with pytest.raises(InputError, match="0 points"):
        untaper(Cloud(np.zeros((0, 3))), 1.0)
    with pytest.raises(UsageError, match="r is -1"):
        Tapering(r=-1.0)


# SmoothKNN.


@cache
def smooth_face(seed: int, points: int = 2000) -> Cloud:
    """The inner part of a made head, evenly spaced, without normals."""
    head = segmented(made_head(seed, points=4 * points).cloud).inner
    head = head.take(farthest_point_sample(head.points, points))
    return Cloud(head.points, head.colors)


def smoothed(seed: int, k: int) -> Cloud:
    """In the precision of a file."""
    out = SmoothKNN(k=k)(smooth_face(seed))
    return Cloud(out.points.astype(np.float32), out.colors)


def mean_off(one: Cloud, other: Cloud) -> float:
    """Millimetres, in the mean."""
    return float(1e3 * np.linalg.norm(one.points - other.points, axis=1).mean())


def means(places: np.ndarray, values: np.ndarray, k: int) -> np.ndarray:
    """By all distances."""
    rows = np.linalg.norm(places[:, None] - places, axis=2).argsort(axis=1)[:, :k]
    return values[rows].mean(axis=1)


@pytest.mark.parametrize("steps", [1, 2])
def test_like_a_slow_loop(rng, steps):
    grid = np.stack(np.meshgrid(np.arange(12.0), np.arange(12.0)), axis=-1).reshape(-1, 2)
    points = np.column_stack([grid, np.sin(grid[:, 0])]) + rng.uniform(-0.1, 0.1, (144, 3))
    given = means(points, points, 9)
    expected = given.copy()
    for _ in range(steps):
        expected = expected + given - means(expected, expected, 9)
    np.testing.assert_allclose(unsmooth(Cloud(given), 9, steps=steps).points, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("k", "share"),
    [(64, 0.65), pytest.param(24, 0.85, marks=pytest.mark.slow), pytest.param(160, 0.55, marks=pytest.mark.slow)],
)
def test_much_of_a_face_comes_back(k, share):
    out = smoothed(1, k)
    assert mean_off(unsmooth(out, k), smooth_face(1)) < share * mean_off(out, smooth_face(1))


def test_colours_come_back_with_the_points():
    out, source = smoothed(1, 64), smooth_face(1)
    back = unsmooth(out, 64)
    assert back.colors.dtype == np.uint8
    error = [np.abs(one.colors.astype(int) - source.colors).mean() for one in (back, out)]
    assert error[0] < 0.97 * error[1]
    assert np.array_equal(unsmooth(Cloud(out.points), 64).points, back.points)
    again = 2.0 * out.colors - means(back.points, out.colors.astype(float), 64)
    assert np.abs(back.colors - again.clip(0, 255)).max() <= 0.5 + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 40, 120])
def test_the_number_of_neighbours_is_guessed(k):
    assert guess_smoothing(smoothed(2, k) if k > 1 else smooth_face(2)) == k


@pytest.mark.slow
def test_the_number_of_neighbours_of_a_sparse_face_is_guessed():
    assert guess_smoothing(SmoothKNN(k=16)(smooth_face(2, 800))) == 16


def test_the_wrong_number_brings_less_back():
    out = smoothed(2, 64)
    right, *wrong = (mean_off(unsmooth(out, k), smooth_face(2)) for k in (64, 24, 160))
    assert right < 0.8 * min(wrong)


def test_steps_that_would_diverge_are_not_taken(rng):
    # A blob's means say little of its points; a hundred steps would bring kilometres.
    source = rng.normal(0, 0.05, (300, 3))
    given = means(source, source, 40)
    missing = [
        np.linalg.norm(given - means(one, one, 40)) for one in (given, unsmooth(Cloud(given), 40, steps=100).points)
    ]
    assert missing[1] <= missing[0]
    assert np.abs(unsmooth(Cloud(given), 40, steps=100).points).max() < 1


def test_one_neighbour_or_no_step_changes_nothing():
    cloud = smooth_face(1)
    for back in (unsmooth(cloud, 1), unsmooth(cloud, 40, steps=0)):
        assert np.array_equal(back.points, cloud.points) and np.array_equal(back.colors, cloud.colors)
    spot = Cloud(np.zeros((30, 3)))
    assert not unsmooth(spot, 9).points.any()


def test_bad_smoothing_is_named():
    cloud = Cloud(np.zeros((40, 3)))
    with pytest.raises(UsageError, match="the k to take back is 0"):
        unsmooth(cloud, 0)
    with pytest.raises(UsageError, match="in -1 steps"):
        unsmooth(cloud, 3, steps=-1)
    with pytest.raises(InputError, match="40 points, and the inverse of SmoothKNN with k = 48"):
        unsmooth(cloud, 48)
    with pytest.raises(InputError, match="40 points, and guessing the smoothing"):
        guess_smoothing(cloud)


# Merge2Faces.


FEW_POINTS = hnp.arrays(np.float64, st.tuples(st.integers(1, 30), st.just(3)), elements=st.floats(-0.1, 0.1))


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


@given(FEW_POINTS, FEW_POINTS, st.floats(0, 0.99))
def test_the_nearest_target_stays_the_nearest_on_the_way(points, others, weight):
    near = np.linalg.norm(points[:, None] - others, axis=2).argmin(axis=1)
    out = Cloud((1 - weight) * points + weight * others[near])
    back = unmerge(out, weight, Cloud(others), np.eye(4))
    # Where two target points are equally near, either may be taken.
    apart = np.sort(np.linalg.norm(points[:, None] - others, axis=2), axis=1)
    clear = np.ones(len(points), bool) if len(others) == 1 else apart[:, 1] - apart[:, 0] > 1e-6
    np.testing.assert_allclose(back.cloud.points[clear], points[clear], rtol=0, atol=1e-12)


@pytest.mark.parametrize("degree", [20, *(pytest.param(degree, marks=pytest.mark.slow) for degree in (2, 34, 35))])
def test_the_transform_brings_all_back(degree):
    source, target, out, method = merged_at(degree)
    back = unmerge(out, method.weight, target, method.registered(source).transform)
    assert not back.lost.any() and off(back.cloud, source).max() < 0.005
    assert off(out, source).mean() > 0.01 * degree


@pytest.mark.parametrize(
    "degree", [10, 35, *(pytest.param(degree, marks=pytest.mark.slow) for degree in (2, 17, 25, 32))]
)
def test_output_weight_and_target_are_enough(degree):
    source, target, out, method = merged_at(degree)
    back = unmerge(out, method.weight, target)
    assert not back.lost.any() and off(back.cloud, source).max() < 0.2
    np.testing.assert_allclose(back.transform, method.registered(source).transform, rtol=0, atol=1e-4)


@pytest.mark.parametrize("degree", [14, *(pytest.param(degree, marks=pytest.mark.slow) for degree in (3, 29, 35))])
def test_the_weight_is_guessed_to_the_degree(degree):
    _, target, out, method = merged_at(degree)
    assert abs(guess_merge_weight(out, target) - method.weight) < 0.0285 / 2


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_wrong_target_brings_nobody_back():
    source, _, out, method = merged_at(25)
    assert off(unmerge(out, method.weight, face(3)).cloud, source).mean() > 1


def test_bad_merging_is_named():
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


# UniformNoise.


SPACING = 0.002


def plane() -> np.ndarray:
    """40 × 40 points of z = 0, 2 mm apart."""
    grid = SPACING * np.arange(40.0)
    return np.stack([*np.meshgrid(grid, grid), np.zeros((40, 40))], axis=-1).reshape(-1, 3)


def sphere(count: int = 3000, radius: float = 0.08) -> np.ndarray:
    """Evenly spaced (Fibonacci)."""
    turn, height = np.pi * (3 - np.sqrt(5)) * np.arange(count), 1 - 2 * (np.arange(count) + 0.5) / count
    flat = np.sqrt(1 - height**2)
    return radius * np.column_stack([flat * np.cos(turn), flat * np.sin(turn), height])


def noisy(points: np.ndarray, b: float, seed: int = 0) -> Cloud:
    return UniformNoise(b=b, seed=seed)(Cloud(points))


@pytest.mark.parametrize("width", [0.05, 0.3, 1.0, 3.0, 6.0, 10.0])
def test_never_worse_than_nothing_on_a_plane(width):
    out = noisy(plane(), width * SPACING)
    before, after = (np.abs(one.points[:, 2]).mean() for one in (out, denoise(out, width * SPACING)))
    assert after <= before
    if width >= 1:
        assert after < 0.4 * before


@pytest.mark.parametrize("b", [0.01, pytest.param(0.02, marks=pytest.mark.slow)])
def test_a_sphere_keeps_its_radius_better_than_by_means(b):
    out = noisy(sphere(), b)
    off = lambda points: np.abs(np.linalg.norm(points, axis=1) - 0.08).mean()  # noqa: E731
    found = off(denoise(out, b).points)
    assert found < 0.3 * off(out.points)
    assert found < min(off(mean_of_neighbours(out.points, out.points, count)) for count in (20, 50, 100, 200))


@pytest.mark.parametrize("b", [0.0128, *(pytest.param(b, marks=pytest.mark.slow) for b in (0.004, 0.0224))])
@pytest.mark.parametrize("surface", [plane, sphere])
def test_the_width_is_guessed(surface, b):
    assert guess_noise(noisy(surface(), b)) == pytest.approx(b, rel=0.06)


@pytest.mark.slow
def test_a_head_comes_nearer_to_its_surface():
    inner = segmented(made_head(1, points=8_000).cloud).inner
    surface = cKDTree(segmented(made_head(1, points=40_000, scan=1).cloud).inner.points)
    assert guess_noise(inner) < 0.0015
    for b, share in ((0.0064, 0.6), (0.0224, 0.4)):
        out = UniformNoise(b=b, seed=3)(inner)
        back = denoise(out, guess_noise(out))
        assert surface.query(back.points)[0].mean() < share * surface.query(out.points)[0].mean()
        assert np.array_equal(back.colors, inner.colors)


def test_no_noise_changes_nothing():
    cloud = Cloud(plane())
    assert np.array_equal(denoise(cloud, 0.0).points, cloud.points)
    assert guess_noise(cloud) == pytest.approx(0, abs=1e-6)


def test_bad_noise_is_named():
    cloud = Cloud(np.random.default_rng(0).normal(size=(99, 3)))
    for b in (-0.1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="width of the noise"):
            denoise(cloud, b)
    with pytest.raises(InputError, match="99 points, and the inverse of UniformNoise"):
        denoise(cloud, 0.01)
    with pytest.raises(InputError, match="99 points, and guessing the noise"):
        guess_noise(cloud)
