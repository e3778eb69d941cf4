"""UniformNoise: its distribution, and what it depends on."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ficgan.anonymizers.base import generator
from ficgan.errors import InputError, UsageError
from ficgan.pointcloud import Cloud
from ficgan.pointcloud.methods import UniformNoise


def cloud(count: int = 5000) -> Cloud:
    points = np.random.default_rng(1).normal(0, 0.05, (count, 3))
    return Cloud(points, np.full((count, 3), 9, np.uint8), np.zeros((count, 3)))


def test_like_a_loop_over_points():
    source = cloud(20)
    draw = generator(4, "uniform-noise", "anna")
    expected = [[value + draw.uniform(0, 0.01) - 0.005 for value in point] for point in source.points]
    np.testing.assert_allclose(UniformNoise(b=0.01, seed=4)(source, name="anna").points, expected, rtol=0, atol=1e-15)


def test_noise_is_uniform_about_zero_and_colours_stay():
    source = cloud()
    out = UniformNoise(b=0.02, seed=0)(source)
    noise = (out.points - source.points).ravel()
    assert stats.kstest(noise, stats.uniform(-0.01, 0.02).cdf).pvalue > 0.001
    assert np.array_equal(out.colors, source.colors) and out.normals is None


def test_depends_on_seed_and_name_alone():
    source = cloud(10)
    first = UniformNoise(seed=1)(source, name="a").points
    assert np.array_equal(first, UniformNoise(seed=1)(source, name="a").points)
    assert not np.array_equal(first, UniformNoise(seed=2)(source, name="a").points)
    assert not np.array_equal(first, UniformNoise(seed=1)(source, name="b").points)


def test_displacement_is_in_proportion_to_b():
    source = cloud(10)
    small, large = (UniformNoise(b=b, seed=0)(source).points - source.points for b in (0.01, 0.03))
    np.testing.assert_allclose(3 * small, large, rtol=0, atol=1e-15)


def test_bad_values_are_named():
    with pytest.raises(UsageError, match="b is -1"):
        UniformNoise(b=-1.0)
    with pytest.raises(UsageError, match="b is nan"):
        UniformNoise(b=float("nan"))
    with pytest.raises(InputError, match="0 points"):
        UniformNoise()(Cloud(np.zeros((0, 3))))
