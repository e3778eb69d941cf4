"""SmoothKNN taken back: against a slow loop, on made heads, and where nothing comes back."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud import Cloud
from ficgan.pointcloud.attack import guess_smoothing, unsmooth
from ficgan.pointcloud.heads import made_head
from ficgan.pointcloud.methods import SmoothKNN
from ficgan.pointcloud.sampling import farthest_point_sample
from ficgan.pointcloud.segments import segmented


@cache
def face(seed: int, points: int = 2000) -> Cloud:
    """The inner part of a made head, evenly spaced, without normals."""
    head = segmented(made_head(seed, points=4 * points).cloud).inner
    head = head.take(farthest_point_sample(head.points, points))
    return Cloud(head.points, head.colors)


def smoothed(seed: int, k: int) -> Cloud:
    """In the precision of a file."""
    out = SmoothKNN(k=k)(face(seed))
    return Cloud(out.points.astype(np.float32), out.colors)


def off(one: Cloud, other: Cloud) -> float:
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


@pytest.mark.parametrize(("k", "share"), [(24, 0.85), (64, 0.65), (160, 0.55)])
def test_much_of_a_face_comes_back(k, share):
    out = smoothed(1, k)
    assert off(unsmooth(out, k), face(1)) < share * off(out, face(1))


def test_colours_come_back_with_the_points():
    out, source = smoothed(1, 64), face(1)
    back = unsmooth(out, 64)
    assert back.colors.dtype == np.uint8
    error = [np.abs(one.colors.astype(int) - source.colors).mean() for one in (back, out)]
    assert error[0] < 0.97 * error[1]
    assert np.array_equal(unsmooth(Cloud(out.points), 64).points, back.points)
    again = 2.0 * out.colors - means(back.points, out.colors.astype(float), 64)
    assert np.abs(back.colors - again.clip(0, 255)).max() <= 0.5 + 1e-6


@pytest.mark.parametrize("k", [1, 40, 120])
def test_the_number_of_neighbours_is_guessed(k):
    assert guess_smoothing(smoothed(2, k) if k > 1 else face(2)) == k


def test_the_wrong_number_brings_less_back():
    out = smoothed(2, 64)
    right, *wrong = (off(unsmooth(out, k), face(2)) for k in (64, 24, 160))
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


def test_one_neighbour_changes_nothing_and_no_step_either():
    cloud = face(1)
    for back in (unsmooth(cloud, 1), unsmooth(cloud, 40, steps=0)):
        assert np.array_equal(back.points, cloud.points) and np.array_equal(back.colors, cloud.colors)
    spot = Cloud(np.zeros((30, 3)))
    assert not unsmooth(spot, 9).points.any()


def test_bad_input_is_named():
    cloud = Cloud(np.zeros((40, 3)))
    with pytest.raises(UsageError, match="the k to take back is 0"):
        unsmooth(cloud, 0)
    with pytest.raises(UsageError, match="in -1 steps"):
        unsmooth(cloud, 3, steps=-1)
    with pytest.raises(InputError, match="40 points, and the inverse of SmoothKNN with k = 48"):
        unsmooth(cloud, 48)
    with pytest.raises(InputError, match="40 points, and guessing the smoothing"):
        guess_smoothing(cloud)
