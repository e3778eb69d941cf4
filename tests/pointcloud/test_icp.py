"""ICP and `register`: known motions, Open3D, free directions, the thesis' fitness."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.heads import made_head
from ficgan.pointcloud.registration import Icp, Registering, alignment_of, icp, register, with_normals
from ficgan.pointcloud.registration.icp import _Nearest


def head(seed: int, points: int = 4000, scan: int = 0) -> Cloud:
    return Cloud(made_head(seed, points=points, colour=False, scan=scan).cloud.points)


def motion(degrees: float, shift: float, rng: np.random.Generator) -> np.ndarray:
    axis, way = rng.standard_normal((2, 3))
    move = np.eye(4)
    move[:3, :3] = Rotation.from_rotvec(np.radians(degrees) * axis / np.linalg.norm(axis)).as_matrix()
    move[:3, 3] = shift * way / np.linalg.norm(way)
    return move


def test_a_motion_is_undone_exactly(rng):
    face = head(0)
    move = motion(8, 0.008, rng)
    found = icp(face.moved(move), with_normals(face), setting=Icp(reach=0.05))
    np.testing.assert_allclose(found.transform @ move, np.eye(4), atol=1e-6)
    assert found.fitness == 1 and found.rmse < 1e-6 and found.iterations <= 30


def test_open3d_ends_at_the_same_place(rng):
    o3d = pytest.importorskip("open3d")
    for seed in range(3):
        fixed, moving = with_normals(head(seed)), head(seed + 10).moved(motion(6, 0.006, rng))
        a, b = o3d.geometry.PointCloud(), o3d.geometry.PointCloud()
        a.points, b.points, b.normals = (
            o3d.utility.Vector3dVector(x) for x in (moving.points, fixed.points, fixed.normals)
        )
        o3 = o3d.pipelines.registration
        want = o3.registration_icp(a, b, 0.02, np.eye(4), o3.TransformationEstimationPointToPlane())
        found = icp(moving, fixed, setting=Icp(reach=0.02))
        close = np.abs(found.transform - want.transformation).max() < 1e-4
        assert close or (found.fitness, -found.rmse) >= (want.fitness, -want.inlier_rmse)
        measured = o3.evaluate_registration(a, b, 0.005, found.transform)
        ours = alignment_of(moving, fixed, found.transform)
        assert (ours.fitness, ours.rmse) == pytest.approx((measured.fitness, measured.inlier_rmse), abs=1e-9)


def test_fitness_counts_points_of_the_cloud_that_moves():
    few, many = Cloud(np.zeros((1, 3))), Cloud(np.array([[0, 0, 0.001], [0, 0, 1], [0, 1, 0], [1, 0, 0]]))
    assert alignment_of(few, many).fitness == 1
    assert alignment_of(many, few).fitness == 0.25 and alignment_of(many, few).rmse == pytest.approx(0.001)


def test_the_nearest_that_are_remembered_are_the_nearest(rng):
    fixed, points = rng.random((500, 3)), rng.random((300, 3)) * 1.5
    nearest = _Nearest(fixed, 0.12)
    for scale in (0, 0.05, 0.02, 0.01, 0.01, 0.003, 0.001, 0.0003, 0.1, 0.001):
        points = points + scale * rng.standard_normal(points.shape)
        away, want = cKDTree(fixed).query(points)
        np.testing.assert_array_equal(nearest(points), np.where(away <= 0.12, want, -1))


def test_free_directions_are_left_alone(rng):
    flat = np.column_stack([np.zeros(400), rng.random((400, 2)) * 0.1])
    plane = Cloud(flat, None, np.tile([1.0, 0, 0], (400, 1)))
    found = icp(plane.moved(motion(0, 0, rng) + 0.003 * np.eye(4, k=3)), plane)
    np.testing.assert_allclose(found.transform, np.eye(4) - 0.003 * np.eye(4, k=3), atol=1e-9)
    rays = rng.standard_normal((2000, 3))
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    ball = Cloud(0.1 * rays, None, rays)
    found = icp(ball.moved(motion(20, 0.004, rng)), ball)
    assert found.rmse < 0.005 and np.isfinite(found.transform).all()
    one = icp(Cloud(np.array([[0.001, 0, 0]])), plane)
    assert np.isfinite(one.transform).all()


def test_clouds_out_of_reach_stay_where_they_are():
    face = head(0, 500)
    found = icp(Cloud(face.points + 5), with_normals(face))
    assert (found.fitness, found.rmse, found.iterations) == (0, 0, 0)
    np.testing.assert_array_equal(found.transform, np.eye(4))


def test_register_lays_the_target_on_the_source(rng):
    source, target = head(0), head(5)
    result = register(source, target.moved(motion(10, 0.01, rng)))
    assert not result.coarse and result.fitness > result.before[0] and result.fitness > 0.8
    straight = register(source, target)
    np.testing.assert_allclose(
        target.moved(straight.transform).points[::100],
        target.moved(motion(10, 0.01, np.random.default_rng(20211))).moved(result.transform).points[::100],
        atol=5e-4,
    )


def test_auto_goes_global_only_where_it_must(rng):
    source, far = head(0), head(1).moved(motion(140, 0.3, rng))
    never, auto, always = (register(source, far, coarse=how) for how in ("never", "auto", "always"))
    assert auto.coarse and always.coarse and not never.coarse
    assert auto.fitness > 0.9 > never.fitness
    np.testing.assert_array_equal(auto.transform, always.transform)
    np.testing.assert_array_equal(auto.transform, register(source, far).transform)
    assert auto.before[0] == alignment_of(far, source).fitness


def test_bad_input_is_said(rng):
    face = head(0, 500)
    with pytest.raises(InputError, match="needs at least 3"):
        register(face, Cloud(face.points[:2]))
    with pytest.raises(InputError, match="one line"):
        register(Cloud(rng.random((50, 1)) * [1.0, 2, 3]), face)
    with pytest.raises(InputError, match="needs normals"):
        icp(face, face)
    with pytest.raises(UsageError, match="auto, always or never"):
        register(face, face, coarse="sometimes")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="reach"):
        Icp(reach=0)
    with pytest.raises(UsageError, match="3 or more"):
        Registering(neighbours=1)
