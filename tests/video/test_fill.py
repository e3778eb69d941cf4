"""Gap fill, motion and smoothing, against dense linear algebra, SciPy and known truths."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.signal import savgol_filter
from worlds import MARKS, RATE, box_at, face_at

from ficgan.faces.mesh import SmoothConfig, smooth_landmarks, smooth_middle
from ficgan.video.tracks import FILLED, PADDED, SEEN, Motion, Sighting, Track, fill_track, smooth, without_double_pads


def sighting(frame: int, x: float, y: float = 200.0, size: float = 60.0) -> Sighting:
    return Sighting(frame, face_at(box_at(x, y, size)))


# Motion


def dense(motion: Motion, times: NDArray, seen: NDArray, wanted: NDArray, scale: float) -> tuple[NDArray, NDArray]:
    """The same by Gaussian process regression: half the variogram of the integrated process, place unknown before."""

    def covariance(a: NDArray, b: NDArray) -> NDArray:
        lag, tau = np.abs(a[:, None] - b), motion.memory
        return -((motion.speed * scale) ** 2) * (tau * lag - tau**2 * -np.expm1(-lag / tau))

    m, n = len(times), len(wanted)
    # Kriging with an unknown mean: the weights sum to 1.
    system = np.ones((m + 1, m + 1))
    system[:m, :m] = covariance(times, times) + np.eye(m) * (motion.noise * scale) ** 2
    system[m, m] = 0.0
    right = np.ones((m + 1, n))
    right[:m] = covariance(times, wanted)
    weights = np.linalg.solve(system, right)
    return weights[:m].T @ seen, np.sqrt(np.maximum(-(weights * right).sum(0), 0.0))


@given(st.integers(0, 10**6), st.integers(1, 15), st.floats(0.1, 5.0), st.floats(0.1, 2.0), st.floats(0.5, 100.0))
def test_the_smoother_is_the_dense_least_squares_solution(
    seed: int, count: int, speed: float, memory: float, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    motion = Motion(0.05, speed, memory)
    times = np.cumsum(rng.uniform(0.04, 0.5, count))
    seen = rng.normal(size=(count, 2)) * scale
    wanted = np.sort(np.concatenate([times, rng.uniform(times[0] - 1, times[-1] + 1, 40)]))
    mean, deviation = smooth(motion, times, seen, wanted, scale)
    expected, spread = dense(motion, times, seen, wanted, scale)
    np.testing.assert_allclose(mean, expected, atol=1e-6 * scale)
    np.testing.assert_allclose(deviation, spread, atol=1e-5 * scale)


# Fill


@pytest.mark.parametrize("stride", [1, 4, 10])
def test_every_frame_has_a_row_and_says_how_it_is_known(stride: int) -> None:
    frames = list(range(20, 61, stride))
    track = fill_track([sighting(f, 100 + 2 * f) for f in frames], 0, 99, 0.4, 0.2, RATE, id=7, person=3, notes=["x"])
    assert (track.first, track.last, len(track)) == (10, frames[-1] + 5, frames[-1] + 5 - 10 + 1)
    expected = np.full(len(track), FILLED)
    expected[:10], expected[-5:] = PADDED, PADDED
    expected[[f - 10 for f in frames]] = SEEN
    assert track.origin.tolist() == expected.tolist()
    assert (track.scores > 0).tolist() == (expected == SEEN).tolist()
    assert (track.id, track.person, track.notes) == (7, 3, ["x"])
    assert (track.boxes[:, 2:] > track.boxes[:, :2]).all() and np.isfinite(track.landmarks).all()


def test_pads_and_gaps_follow_the_clock_of_a_film_with_variable_rate() -> None:
    """Two frames of the gap are shown late: the face is farther on there, and the pads have fewer frames."""
    times = np.cumsum([0.04] * 10 + [0.04, 0.04, 0.2, 0.04] + [0.1] * 20)
    x = 100 + 100 * times
    seen = [sighting(f, x[f]) for f in (4, 6, 8, 10, 14, 16, 18)]
    track = fill_track(seen, 0, len(times) - 1, 0.1, 0.25, times)
    assert (track.first, track.last) == (2, 20)
    centre = (track.boxes[:, 0] + track.boxes[:, 2]) / 2
    rows = slice(2, 17)
    np.testing.assert_allclose(centre[rows], x[4:19], atol=1.5)


@given(st.integers(0, 10**6), st.floats(10, 200))
def test_a_seen_box_lies_inside_and_a_gap_is_never_narrower_than_its_ends(seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    frames = np.cumsum(rng.integers(1, 20, 8))
    seen = [
        sighting(int(f), 300 + rng.normal() * size, 300 + rng.normal() * size, size * math.exp(rng.normal() * 0.1))
        for f in frames
    ]
    track = fill_track(seen, 0, 1000, 0.4, 0.4, RATE)
    for one in seen:
        box = track.boxes[one.frame - track.first]
        assert (box[:2] <= one.face.box[:2] + 1e-2).all() and (box[2:] >= one.face.box[2:] - 1e-2).all()
    sides = track.boxes[:, 2:] - track.boxes[:, :2]
    for a, b in itertools.pairwise(seen):
        least = np.minimum(*(one.face.box[2:] - one.face.box[:2] for one in (a, b)))
        assert (sides[a.frame - track.first : b.frame - track.first + 1] >= least - 1e-2).all()


def test_landmarks_move_with_the_box() -> None:
    """A face that comes nearer: in the gap the landmarks keep their places inside the true box."""
    size = {f: 60 * math.exp(0.02 * f) for f in range(41)}
    seen = [sighting(f, 100 + 3 * f, size=size[f]) for f in range(0, 41, 4)]
    track = fill_track(seen, 0, 40, 0, 0, RATE)
    for f in range(41):
        truth = box_at(100 + 3 * f, 200, size[f])
        marks = truth[:2] + MARKS * (truth[2:] - truth[:2])
        assert np.abs(track.landmarks[f] - marks).max() < 0.03 * size[f]


# Smoothing


def walk(n: int = 80, speed: float = 2.0, noise: float = 0.0, seed: int = 0) -> NDArray[np.float64]:
    """Landmarks [n,5,2] of a face of 100 px (eyes 40 px apart) that goes to the right."""
    marks = MARKS * 100 + 50 + np.arange(n)[:, None, None] * np.array([speed, 0.3 * speed])
    return marks + np.random.default_rng(seed).normal(size=marks.shape) * noise


def test_inside_it_is_savitzky_golay() -> None:
    marks = walk(noise=1.0)
    config = SmoothConfig(bound=1e9)
    reach = config.frames(RATE)
    expected = savgol_filter(marks, 2 * reach + 1, 2, axis=0)
    np.testing.assert_allclose(smooth_landmarks(marks, RATE, config)[reach:-reach], expected[reach:-reach], atol=1e-9)


@given(
    st.integers(0, 10**6),
    st.integers(1, 60),
    st.floats(0.2, 2.5),
    st.floats(-8, 8),
    st.sampled_from([10.0, 25.0, 60.0]),
)
def test_less_jitter_and_never_far_from_what_was_seen(
    seed: int, n: int, noise: float, speed: float, rate: float
) -> None:
    marks = walk(n, speed, noise, seed)
    smoothed = smooth_landmarks(marks, rate)
    assert smoothed.shape == marks.shape
    eyes = np.linalg.norm(marks[:, 1] - marks[:, 0], axis=-1)
    if n > 2:
        # second differences, in eye distances
        before, after = (
            np.square(np.diff(one, 2, axis=0) / eyes[1:-1, None, None]).mean() for one in (marks, smoothed)
        )
        assert np.sqrt(after) <= np.sqrt(before) * (1 + 1e-3) + 1e-9
    away = np.linalg.norm(smoothed - marks, axis=-1).max(1)
    assert (away <= SmoothConfig().bound * np.maximum(eyes, 30) + 1e-6).all()


@given(st.integers(1, 12), st.integers(0, 11), st.integers(0, 99))
def test_one_row_of_a_window_is_smoothed_as_in_the_whole(n: int, at: int, seed: int) -> None:
    """A window that reaches as far as the smoother looks says all about its middle; no row moves beyond the limit."""
    marks, reach = walk(n + 8, noise=1.0, seed=seed), SmoothConfig().frames(RATE)
    row = min(at, n + 7)
    first = max(0, row - reach)
    alone = smooth_middle(marks[first : row + reach + 1], row - first, np.inf)
    eyes = np.linalg.norm(marks[row, 1] - marks[row, 0])
    if np.linalg.norm(alone - marks[row], axis=-1).max() <= SmoothConfig().bound * eyes:
        np.testing.assert_allclose(alone, smooth_landmarks(marks, RATE)[row], atol=1e-9)
    near = smooth_middle(marks[first : row + reach + 1], row - first, 0.5)
    assert np.linalg.norm(near - marks[row], axis=-1).max() <= 0.5 + 1e-9


def test_a_pad_in_the_box_of_another_track_is_left_out() -> None:
    """One head whose track ended and began again has one cover; a pad elsewhere stays."""

    def line(number: int, first: int, last: int, x: float) -> Track:
        sightings = [Sighting(frame, face_at(box_at(x, 100, 60))) for frame in range(first, last + 1)]
        return fill_track(sightings, 0, 99, 0.4, 0.4, 25.0, id=number)

    early, late, beside = line(1, 20, 40, 100), line(2, 43, 60, 102), line(3, 43, 60, 300)
    made = {track.id: track for track in without_double_pads([early, late, beside])}
    assert (made[1].first, made[1].last) == (10, 42) and (made[2].first, made[2].last) == (41, 70)
    assert (made[3].first, made[3].last) == (33, 70)
    assert all(len(track.boxes) == len(track.origin) == len(track.landmarks) for track in made.values())
