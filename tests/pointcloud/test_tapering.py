"""Tapering against a slow loop, its exact inverse, and the guess of r from the tapered face alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud import Cloud
from ficgan.pointcloud.attack import guess_taper, untaper
from ficgan.pointcloud.methods import Tapering
from ficgan.pointcloud.methods.tapering import taper_factors, taper_function

POINTS = hnp.arrays(
    np.float64, st.tuples(st.integers(1, 40), st.just(3)), elements=st.integers(-9, 9).map(lambda n: n / 90)
)


def slow(points: np.ndarray, r: float) -> np.ndarray:
    out = points.copy()
    for rank, row in enumerate(sorted(range(len(points)), key=lambda row: points[row, 2])):  # sorted() is stable
        x = -r + 2 * r * rank / (len(points) - 1) if len(points) > 1 else -r
        f = math.sin(x) ** 2 + math.cos(x)
        out[row] = [f * points[row, 0], f * points[row, 1], points[row, 2]]
    return out


def head(seed: int) -> tuple[Cloud, Cloud]:
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


@settings(deadline=None, max_examples=80)
@given(POINTS, st.floats(0, 3.2))
def test_like_a_loop_over_the_sorted_points(points, r):
    np.testing.assert_allclose(Tapering(r=r)(Cloud(points)).points, slow(points, r), rtol=0, atol=1e-12)


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


@settings(deadline=None, max_examples=80)
@given(POINTS, st.floats(0, 3.2))
def test_the_key_brings_back_what_is_not_lost(points, r):
    cloud = Cloud(points, np.full(points.shape, 5, np.uint8))
    back = untaper(Tapering(r=r)(cloud), r)
    np.testing.assert_allclose(back.cloud.points[~back.lost], points[~back.lost], rtol=1e-12, atol=1e-15)
    assert np.array_equal(back.lost, np.abs(taper_factors(points[:, 2], r)) < 1e-3)
    assert np.array_equal(back.cloud.colors, cloud.colors)


def test_the_inverse_survives_single_precision():
    cloud = head(0)[0]
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
    source = head(1)[0]
    tapered = Tapering.of_degree(degree)(source)
    guess = guess_taper(tapered, background=[head(seed)[0] for seed in (2, 3, 4, 5)])
    assert abs(guess - 0.087 * degree) < 0.15 and left_of(tapered, source, guess) < 0.35


@pytest.mark.parametrize("degree", [21, 33])
def test_r_is_guessed_from_the_tapered_face_and_what_lies_around_it(degree):
    source, outer = head(1)
    tapered = Tapering.of_degree(degree)(source)
    guess = guess_taper(tapered, outer=outer)
    assert abs(guess - 0.087 * degree) < 0.05 and left_of(tapered, source, guess) < 0.1


def test_what_was_not_tapered_is_hardly_bent_by_the_guess():
    source, outer = head(1)
    assert guess_taper(source, outer=outer) < 0.25


def test_bad_input_is_named():
    with pytest.raises(InputError, match="99 points"):
        guess_taper(Cloud(np.zeros((99, 3))))
    with pytest.raises(InputError, match="0 points"):
        untaper(Cloud(np.zeros((0, 3))), 1.0)
    with pytest.raises(UsageError, match="r is -1"):
        Tapering(r=-1.0)
