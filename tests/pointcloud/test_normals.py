"""Normals against closed forms, a slow loop, numpy's eigenvectors and Open3D."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.heads import made_head
from ficgan.pointcloud.registration.normals import oriented, pca_normals, smallest_eigenvector, with_normals


def sphere(count: int, rng: np.random.Generator) -> np.ndarray:
    points = rng.standard_normal((count, 3))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def turn(rng: np.random.Generator) -> np.ndarray:
    q, _ = np.linalg.qr(rng.standard_normal((3, 3)))
    return q * np.sign(np.linalg.det(q))


def test_normals_of_a_sphere_are_its_rays(rng):
    points = 0.1 * sphere(5000, rng) + [1, 2, 3]
    cloud = with_normals(Cloud(points), side="outwards")
    assert ((cloud.normals * (points - [1, 2, 3])).sum(axis=1) > 0.0995).all()


@pytest.mark.parametrize("radius", [None, 0.35])
def test_normals_are_those_of_a_loop(rng, radius):
    points = rng.random((200, 3)) * [1, 1, 0.3]
    got = pca_normals(points, neighbours=12, radius=radius)
    for i, point in enumerate(points):
        away = np.linalg.norm(points - point, axis=1)
        near = np.argsort(away)[:12]
        near = near if radius is None else near[(away[near] <= radius) | (np.arange(12) < 3)]
        want = np.linalg.eigh(np.cov(points[near].T))[1][:, 0]
        assert abs(got[i] @ want) > 1 - 1e-9


def test_the_closed_form_is_eigh_also_where_eigenvalues_meet(rng):
    values = np.array([[1, 2, 3], [0, 1, 1], [0, 0, 1], [1, 1, 1], [0, 0, 0], [1e-9, 1, 2], [1, 1 + 1e-9, 2]], float)
    turns = np.stack([turn(rng) for _ in values])
    matrices = turns * values[:, None] @ turns.transpose(0, 2, 1)
    found = smallest_eigenvector(matrices)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-9)
    quotients = np.einsum("ni,nij,nj->n", found, matrices, found)
    np.testing.assert_allclose(quotients, values[:, 0], atol=1e-7)


@given(st.integers(3, 40), st.integers(3, 50), st.floats(1e-3, 1e3))
@settings(max_examples=30, deadline=None)
def test_any_cloud_has_unit_normals(count, neighbours, size):
    points = size * np.random.default_rng(count).random((count, 3))
    normals = pca_normals(points, neighbours=neighbours)
    np.testing.assert_allclose(np.linalg.norm(normals, axis=1), 1, atol=1e-9)


def test_sides():
    head = made_head(1, points=4000, colour=False).cloud
    normals = pca_normals(head.points)
    assert (oriented(head.points, normals)[:, 0] >= 0).all()
    viewpoint = np.array([0.4, 0.1, 0.0])
    looking = oriented(head.points, normals, viewpoint)
    assert ((looking * (viewpoint - head.points)).sum(axis=1) >= 0).all()
    with pytest.raises(InputError, match="front, outwards"):
        oriented(head.points, normals, "inwards")  # type: ignore[arg-type]


def test_outwards_turns_with_the_cloud(rng):
    head = made_head(1, points=4000, colour=False).cloud
    at_home = with_normals(Cloud(head.points), side="outwards")
    move = np.eye(4)
    move[:3, :3], move[:3, 3] = turn(rng), [0.3, -0.2, 1]
    away = with_normals(Cloud(head.moved(move).points), side="outwards")
    same = (away.normals * at_home.moved(move).normals).sum(axis=1)
    assert (same > 0.99).mean() > 0.995
    front = np.linalg.norm(head.points, axis=1) < 0.08
    assert (at_home.normals[front, 0] > 0).mean() > 0.97


def test_open3d_has_the_same_normals():
    o3d = pytest.importorskip("open3d")
    points = made_head(2, points=5000, colour=False).cloud.points
    other = o3d.geometry.PointCloud()
    other.points = o3d.utility.Vector3dVector(points)
    other.estimate_normals(o3d.geometry.KDTreeSearchParamKNN(30))
    assert np.abs((np.asarray(other.normals) * pca_normals(points)).sum(axis=1)).min() > 1 - 1e-6


def test_a_line_and_two_points_are_refused(rng):
    with pytest.raises(InputError, match="one line"):
        with_normals(Cloud(rng.random((50, 1)) * [1.0, 2, 3]))
    with pytest.raises(InputError, match="at least 3"):
        with_normals(Cloud(np.eye(3)[:2]))
