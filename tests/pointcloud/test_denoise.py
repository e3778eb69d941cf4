"""UniformNoise lessened: on planes, spheres and made heads, whose surface is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial import cKDTree

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud import Cloud
from ficgan.pointcloud.attack import denoise, guess_noise
from ficgan.pointcloud.heads import made_head
from ficgan.pointcloud.methods import UniformNoise
from ficgan.pointcloud.neighbours import mean_of_neighbours
from ficgan.pointcloud.segments import segmented

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


@pytest.mark.parametrize("b", [0.01, 0.02])
def test_a_sphere_keeps_its_radius_better_than_by_means(b):
    out = noisy(sphere(), b)
    off = lambda points: np.abs(np.linalg.norm(points, axis=1) - 0.08).mean()  # noqa: E731
    found = off(denoise(out, b).points)
    assert found < 0.3 * off(out.points)
    assert found < min(off(mean_of_neighbours(out.points, out.points, count)) for count in (20, 50, 100, 200))


@pytest.mark.parametrize("b", [0.004, 0.0128, 0.0224])
@pytest.mark.parametrize("surface", [plane, sphere])
def test_the_width_is_guessed(surface, b):
    assert guess_noise(noisy(surface(), b)) == pytest.approx(b, rel=0.06)


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


def test_bad_input_is_named():
    cloud = Cloud(np.random.default_rng(0).normal(size=(99, 3)))
    for b in (-0.1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="width of the noise"):
            denoise(cloud, b)
    with pytest.raises(InputError, match="99 points, and the inverse of UniformNoise"):
        denoise(cloud, 0.01)
    with pytest.raises(InputError, match="99 points, and guessing the noise"):
        guess_noise(cloud)
