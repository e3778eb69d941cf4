"""Curvature of surfaces that have closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.geometry import curvature, curvature_error
from ficgan.pointcloud.registration.normals import with_normals


def ball(radius: float, rng: np.random.Generator, count: int = 6000) -> Cloud:
    rays = rng.standard_normal((count, 3))
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    return with_normals(Cloud(radius * rays), side="outwards")


def test_a_sphere(rng):
    found = curvature(ball(0.1, rng), neighbours=30)
    np.testing.assert_allclose(found.mean, 10, rtol=0.03)
    np.testing.assert_allclose(found.gaussian, 100, rtol=0.06)
    np.testing.assert_allclose(found.curvedness, 10, rtol=0.03)
    assert found.shape_index.min() > 0.85


def test_a_sphere_seen_from_inside(rng):
    outside = ball(0.1, rng)
    found = curvature(Cloud(outside.points, None, -outside.normals), neighbours=30)
    np.testing.assert_allclose(found.mean, -10, rtol=0.03)
    assert found.shape_index.max() < -0.85


def test_a_cylinder(rng):
    angle, height = rng.random(6000) * 2 * np.pi, rng.random(6000) * 0.3
    points = np.column_stack([0.05 * np.cos(angle), 0.05 * np.sin(angle), height])
    rays = points * [20, 20, 0]
    inner = (height > 0.03) & (height < 0.27)
    found = curvature(Cloud(points, None, rays), neighbours=30)
    np.testing.assert_allclose(found.mean[inner], 10, rtol=0.03)
    assert np.abs(found.gaussian[inner]).max() < 6  # of 400, if it were a sphere
    np.testing.assert_allclose(np.median(found.shape_index[inner]), 0.5, atol=0.01)


def test_a_saddle_where_the_surface_is_steep_too(rng):
    y, z = rng.random((2, 8000)) * 0.2 - 0.1
    points = np.column_stack([5 * (y * y - z * z), y, z])
    slopes = np.column_stack([np.ones(8000), -10 * y, 10 * z])
    normals = slopes / np.linalg.norm(slopes, axis=1, keepdims=True)
    steep = 1 + 100 * (y * y + z * z)
    mean = -((1 + 100 * z * z) * 10 - (1 + 100 * y * y) * 10) / 2 / steep**1.5
    inner = (np.abs(y) < 0.09) & (np.abs(z) < 0.09)
    found = curvature(Cloud(points, None, normals), neighbours=30)
    np.testing.assert_allclose(found.gaussian[inner], (-100 / steep**2)[inner], rtol=0.05)
    np.testing.assert_allclose(found.mean[inner], mean[inner], atol=0.3)


def test_a_plane_is_flat_and_doubles_do_no_harm(rng):
    flat = np.column_stack([np.zeros(500), rng.random((500, 2))])
    found = curvature(Cloud(np.concatenate([flat, flat[:50], np.tile(flat[:1], (80, 1))])), neighbours=20)
    assert np.isfinite(found.mean).all() and np.abs(found.mean).max() < 1e-6


def test_the_error_between_two_spheres(rng):
    small, large = ball(0.09, rng), ball(0.1, rng)
    assert curvature_error(small, large, neighbours=30) == pytest.approx(1 / 0.09 - 10, rel=0.1)
    assert curvature_error(large, large) == 0


def test_too_few_points_are_refused(rng):
    with pytest.raises(InputError, match="needs at least 6"):
        curvature(Cloud(rng.random((5, 3))))
    with pytest.raises(InputError, match="6 neighbours"):
        curvature(Cloud(rng.random((50, 3))), neighbours=4)
