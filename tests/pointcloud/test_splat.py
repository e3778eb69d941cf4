"""The splat renderer beside a loop over points and cells."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ficgan.errors import UsageError
from ficgan.pointcloud.projection import splat


def looped(places, colors, radius, size, background, samples):
    """Cell by cell, point by point; then the mean of each pixel's cells."""
    width, height = size
    cells = np.empty((height * samples, width * samples, 3))
    cells[:] = background
    rows, columns = np.indices(cells.shape[:2])
    for (x, y), color, one in zip(places, colors, np.broadcast_to(radius, len(places)), strict=True):
        column, row = np.floor((x + 0.5) * samples), np.floor((y + 0.5) * samples)
        near = (columns - column) ** 2 + (rows - row) ** 2 <= (one * samples) ** 2
        cells[near] = color
    means = cells.reshape(height, samples, width, samples, 3).mean(axis=(1, 3))
    return np.floor(means + 0.5).astype(np.uint8)


@given(
    count=st.integers(0, 40),
    radius=st.floats(0.3, 6),
    size=st.tuples(st.integers(1, 24), st.integers(1, 24)),
    samples=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_picture_is_that_of_a_loop_over_points(count, radius, size, samples, seed):
    draw = np.random.default_rng(seed)
    places = draw.uniform(-8, max(size) + 8, (count, 2))
    colors = draw.integers(0, 256, (count, 3), np.uint8)
    got = splat(places, colors, radius, size, background=(10, 200, 90), samples=samples)
    assert got.dtype == np.uint8
    assert (got == looped(places, colors, radius, size, (10, 200, 90), samples)).all()


def test_every_point_may_have_its_own_radius(rng):
    places, colors = rng.uniform(0, 30, (60, 2)), rng.integers(0, 256, (60, 3), np.uint8)
    radius = rng.integers(1, 9, 60) / 2
    got = splat(places, colors, radius, (30, 26), samples=2)
    assert (got == looped(places, colors, radius, (30, 26), 255, 2)).all()


@pytest.mark.parametrize("count", [300, 70_000])  # ranks of 16 bits, and more
def test_the_last_point_lies_on_top(rng, count):
    places = rng.uniform(2, 5, (count, 2))
    colors = rng.integers(0, 200, (count, 3), np.uint8)
    places[-1], colors[-1] = (3, 3), (201, 202, 203)
    assert (splat(places, colors, 20.0, (8, 8))[:] == (201, 202, 203)).all()
    first = splat(places[::-1], colors[::-1], 20.0, (8, 8))
    assert not (first == (201, 202, 203)).all(axis=-1).any()


def test_a_disc_has_its_area_and_its_middle():
    radius, size = 4.1667, (64, 48)
    dark = 255.0 - splat(np.array([[30.25, 20.75]]), np.zeros((1, 3), np.uint8), radius, size, samples=4)[..., 0]
    rows, columns = np.indices(dark.shape)
    assert dark.sum() / 255 == pytest.approx(np.pi * radius**2, rel=0.02)
    assert (dark * columns).sum() / dark.sum() == pytest.approx(30.25, abs=0.13)
    assert (dark * rows).sum() / dark.sum() == pytest.approx(20.75, abs=0.13)


@pytest.mark.parametrize(
    ("radius", "size", "samples", "says"),
    [
        (601.0, (40, 30), 1, "on 40×30 .* 512 pixels"),
        (np.inf, (40, 30), 1, "inf pixels"),
        (50.0, (1, 30_000_000), 2, "4 GiB are the most"),
        (1.0, (100_000, 100_000), 1, "GiB"),
    ],
)
def test_what_would_take_all_memory_is_refused(radius, size, samples, says):
    with pytest.raises(UsageError, match=says):
        splat(np.zeros((3, 2)), np.zeros((3, 3), np.uint8), radius, size, samples=samples)
