"""FPFH against a loop written from the paper, and against Open3D."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.heads import made_head
from ficgan.pointcloud.registration.fpfh import fpfh, pair_features
from ficgan.pointcloud.registration.normals import with_normals


def slow_pair(p, n, q, m):
    line = q - p
    length = np.linalg.norm(line)
    if length == 0:
        return 0.0, 0.0, 0.0
    if math.acos(min(1, abs(n @ line) / length)) > math.acos(min(1, abs(m @ line) / length)):
        p, n, q, m, line = q, m, p, n, -line
    u = n
    v = np.cross(line / length, u)
    if np.linalg.norm(v) == 0:
        return 0.0, 0.0, 0.0
    v /= np.linalg.norm(v)
    w = np.cross(u, v)
    return math.atan2(w @ m, u @ m), v @ m, u @ line / length


def slow_fpfh(points, normals, radius, power):
    count = len(points)
    away = np.linalg.norm(points[:, None] - points, axis=2)
    near = [[j for j in range(count) if j != i and away[i, j] < radius] for i in range(count)]
    own = np.zeros((count, 33))
    for i in range(count):
        for j in near[i]:
            theta, alpha, phi = slow_pair(points[i], normals[i], points[j], normals[j])
            for part, share in enumerate([(theta + math.pi) / (2 * math.pi), (alpha + 1) / 2, (phi + 1) / 2]):
                own[i, 11 * part + min(10, max(0, int(11 * share)))] += 100 / len(near[i])
    full = own.copy()
    for i in range(count):
        around = sum((own[j] / away[i, j] ** power for j in near[i]), np.zeros(33)).reshape(3, 11)
        for part in range(3):
            if around[part].sum():
                full[i, 11 * part : 11 * part + 11] += 100 * around[part] / around[part].sum()
    return full


@pytest.mark.parametrize("power", [1, 2])
def test_features_are_those_of_a_loop(rng, power):
    points = rng.random((120, 3)) * [1, 1, 0.2]
    normals = rng.standard_normal((120, 3))
    cloud = Cloud(points, None, normals / np.linalg.norm(normals, axis=1, keepdims=True))
    got = fpfh(cloud, radius=0.3, power=power)
    np.testing.assert_allclose(got, slow_fpfh(points, cloud.normals, 0.3, power), atol=1e-8)
    np.testing.assert_allclose(got.reshape(-1, 3, 11).sum(axis=2), 200, atol=1e-8)


def test_a_lonely_point_has_zeros_and_doubles_do_no_harm(rng):
    points = np.concatenate([rng.random((30, 3)) * 0.01, [[1, 1, 1]], [[1, 1, 2], [1, 1, 2]]])
    features = fpfh(Cloud(points, None, np.tile([1.0, 0, 0], (33, 1))), radius=0.05)
    assert np.isfinite(features).all() and not features[30].any()


def test_pairs_are_symmetric_and_bounded(rng):
    points, normals = rng.random((50, 3)), rng.standard_normal((50, 3))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    i, j = rng.permutation(50), rng.permutation(50)
    np.testing.assert_allclose(pair_features(points, normals, i, j), pair_features(points, normals, j, i), atol=1e-12)
    assert (np.abs(pair_features(points, normals, i, j)) <= [np.pi, 1 + 1e-12, 1 + 1e-12]).all()


def test_a_rigid_motion_does_not_change_features(rng):
    cloud = with_normals(Cloud(made_head(3, points=800, colour=False).cloud.points))
    q, _ = np.linalg.qr(rng.standard_normal((3, 3)))
    move = np.eye(4)
    move[:3, :3], move[:3, 3] = q * np.sign(np.linalg.det(q)), [1, 2, 3]
    gap = np.abs(fpfh(cloud.moved(move)) - fpfh(cloud)).max(axis=1)
    assert np.quantile(gap, 0.95) < 1e-6  # a value on the border of two bins may fall to either side


def test_open3d_has_the_same_bins(rng):
    o3d = pytest.importorskip("open3d")
    cloud = with_normals(Cloud(made_head(4, points=3000, colour=False).cloud.points))
    # Where two points have one normal, rounding chooses whose frame Open3D takes.
    normals = cloud.normals + 1e-4 * rng.standard_normal((3000, 3))
    cloud = Cloud(cloud.points, None, normals / np.linalg.norm(normals, axis=1, keepdims=True))
    other = o3d.geometry.PointCloud()
    other.points, other.normals = (o3d.utility.Vector3dVector(x) for x in (cloud.points, cloud.normals))
    search = o3d.geometry.KDTreeSearchParamHybrid(0.02, 100)
    want = o3d.pipelines.registration.compute_fpfh_feature(other, search).data.T
    gap = np.abs(fpfh(cloud, radius=0.02, power=2) - want).max(axis=1)
    assert (gap < 1e-6).mean() > 0.97 and gap.max() < 10  # the rest: values on the border of two bins


def test_normals_are_needed():
    with pytest.raises(InputError, match="need normals"):
        fpfh(Cloud(np.eye(3)))
