"""Registration: normals, FPFH, ICP and where it starts, against slow loops and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud, facing_front, pca_normals, thinned, with_normals
from ficgan.pointcloud.geometry import fpfh, global_start, icp, pair_features, register, rigid_fit
from ficgan.pointcloud.heads import made_head


def sphere(count: int, rng: np.random.Generator) -> np.ndarray:
    points = rng.standard_normal((count, 3))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def test_normals_of_a_sphere_are_its_rays(rng):
    points = 0.1 * sphere(5000, rng) + [1, 2, 3]
    normals = pca_normals(points)
    assert (np.abs((normals * (points - [1, 2, 3])).sum(axis=1)) > 0.0995).all()


def test_normals_are_those_of_a_loop(rng):
    points = rng.random((200, 3)) * [1, 1, 0.3]
    got = pca_normals(points, neighbours=12)
    for i, point in enumerate(points):
        away = np.linalg.norm(points - point, axis=1)
        near = np.argsort(away)[:12]
        want = np.linalg.eigh(np.cov(points[near].T))[1][:, 0]
        assert abs(got[i] @ want) > 1 - 1e-9


@given(st.integers(3, 40), st.integers(3, 50), st.floats(1e-3, 1e3))
def test_any_cloud_has_unit_normals(count, neighbours, size):
    points = size * np.random.default_rng(count).random((count, 3))
    normals = pca_normals(points, neighbours=neighbours)
    np.testing.assert_allclose(np.linalg.norm(normals, axis=1), 1, atol=1e-9)


def test_sides():
    head = made_head(1, points=4000).cloud
    normals = facing_front(pca_normals(head.points))
    assert (normals[:, 0] >= 0).all()
    np.testing.assert_array_equal(with_normals(Cloud(head.points)).normals, normals)


def test_a_line_and_two_points_are_refused(rng):
    with pytest.raises(InputError, match="one line"):
        with_normals(Cloud(rng.random((50, 1)) * [1.0, 2, 3]))
    with pytest.raises(InputError, match="at least 3"):
        with_normals(Cloud(np.eye(3)[:2]))


# Features.


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


def slow_fpfh(points, normals, radius):
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
        around = sum((own[j] / away[i, j] for j in near[i]), np.zeros(33)).reshape(3, 11)
        for part in range(3):
            if around[part].sum():
                full[i, 11 * part : 11 * part + 11] += 100 * around[part] / around[part].sum()
    return full


def test_features_are_those_of_a_loop(rng):
    points = rng.random((120, 3)) * [1, 1, 0.2]
    normals = rng.standard_normal((120, 3))
    cloud = Cloud(points, None, normals / np.linalg.norm(normals, axis=1, keepdims=True))
    got = fpfh(cloud, radius=0.3)
    np.testing.assert_allclose(got, slow_fpfh(points, cloud.normals, 0.3), atol=1e-8)
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
    cloud = with_normals(Cloud(made_head(3, points=800).cloud.points))
    q, _ = np.linalg.qr(rng.standard_normal((3, 3)))
    move = np.eye(4)
    move[:3, :3], move[:3, 3] = q * np.sign(np.linalg.det(q)), [1, 2, 3]
    gap = np.abs(fpfh(cloud.moved(move)) - fpfh(cloud)).max(axis=1)
    assert np.quantile(gap, 0.95) < 1e-6  # a value on the border of two bins may fall to either side


def test_normals_are_needed():
    with pytest.raises(InputError, match="need normals"):
        fpfh(Cloud(np.eye(3)))


# ICP.


def face_of(seed: int, points: int = 4000, scan: int = 0) -> Cloud:
    return Cloud(made_head(seed, points=points, scan=scan).cloud.points)


def motion(degrees: float, shift: float, rng: np.random.Generator) -> np.ndarray:
    axis, way = rng.standard_normal((2, 3))
    move = np.eye(4)
    move[:3, :3] = Rotation.from_rotvec(np.radians(degrees) * axis / np.linalg.norm(axis)).as_matrix()
    move[:3, 3] = shift * way / np.linalg.norm(way)
    return move


def test_a_motion_is_undone_exactly(rng):
    face = face_of(0)
    move = motion(8, 0.008, rng)
    found = icp(face.moved(move), with_normals(face), reach=0.05)
    np.testing.assert_allclose(found.transform @ move, np.eye(4), atol=1e-6)
    assert found.fitness == 1 and found.rmse < 1e-6


def lying(moving: Cloud, fixed: Cloud):
    """How well a cloud lies where it is."""
    return icp(moving, Cloud(fixed.points, None, np.tile([1.0, 0, 0], (len(fixed), 1))), iterations=0)


def test_fitness_counts_points_of_the_cloud_that_moves():
    few, many = Cloud(np.zeros((1, 3))), Cloud(np.array([[0, 0, 0.001], [0, 0, 1], [0, 1, 0], [1, 0, 0]]))
    assert lying(few, many).fitness == 1
    assert lying(many, few).fitness == 0.25 and lying(many, few).rmse == pytest.approx(0.001)


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
    face = face_of(0, 500)
    found = icp(Cloud(face.points + 5), with_normals(face))
    assert (found.fitness, found.rmse) == (0, 0)
    np.testing.assert_array_equal(found.transform, np.eye(4))


def test_register_lays_the_target_on_the_source(rng):
    source, target = face_of(0), face_of(5)
    away = target.moved(motion(10, 0.01, rng))
    result = register(source, away)
    assert result.fitness > max(lying(away, source).fitness, 0.8)
    straight = register(source, target)
    np.testing.assert_allclose(
        target.moved(straight.transform).points[::100],
        target.moved(motion(10, 0.01, np.random.default_rng(20211))).moved(result.transform).points[::100],
        atol=5e-4,
    )


def test_auto_looks_for_the_faces_only_where_it_must(rng):
    source, far = face_of(0), face_of(1).moved(motion(140, 0.3, rng))
    never, auto, always = (register(source, far, coarse=how) for how in ("never", "auto", "always"))
    assert auto.fitness > 0.9 > never.fitness
    np.testing.assert_array_equal(auto.transform, always.transform)
    np.testing.assert_array_equal(auto.transform, register(source, far).transform)
    near = register(source, face_of(1))
    np.testing.assert_array_equal(near.transform, register(source, face_of(1), coarse="never").transform)


def test_bad_input_is_said(rng):
    face = face_of(0, 500)
    with pytest.raises(InputError, match="needs at least 3"):
        register(face, Cloud(face.points[:2]))
    with pytest.raises(InputError, match="one line"):
        register(Cloud(rng.random((50, 1)) * [1.0, 2, 3]), face)
    with pytest.raises(InputError, match="needs normals"):
        icp(face, face)


# The start.


def anywhere(seed: int) -> np.ndarray:
    move = np.eye(4)
    move[:3, :3] = Rotation.random(random_state=seed).as_matrix()
    move[:3, 3] = np.random.default_rng(seed).normal(size=3) * 0.3
    return move


def arrives(moving: Cloud, fixed: Cloud, seed: int) -> bool:
    """Whether ICP from where the faces are ends where ICP from the canonical frame does, to 3 mm at every point."""
    move = anywhere(seed)
    found = icp(moving.moved(move), fixed, global_start(moving.moved(move), fixed)).transform @ move
    want = icp(moving, fixed).transform
    return bool(np.linalg.norm(moving.moved(found).points - moving.moved(want).points, axis=1).max() < 0.003)


def test_a_rigid_motion_is_found_in_pairs(rng):
    moving, move = rng.random((20, 3)), anywhere(4)
    np.testing.assert_allclose(rigid_fit(moving, Cloud(moving).moved(move).points), move, atol=1e-12)


def test_thinned_has_the_mean_of_every_cube(rng):
    points = rng.random((300, 3))
    cubes: dict[tuple[int, ...], list[np.ndarray]] = {}
    for point in points:
        cubes.setdefault(tuple(np.floor((point - points.min(axis=0)) / 0.25).astype(int)), []).append(point)
    want = np.array([np.mean(cubes[key], axis=0) for key in sorted(cubes)])
    np.testing.assert_allclose(thinned(points, 0.25), want)


@pytest.mark.slow
def test_made_heads_arrive_from_anywhere():
    heads = [Cloud(made_head(seed, points=2500, scan=seed).cloud.points) for seed in range(4)]
    fixed = [with_normals(head) for head in heads]
    assert all(arrives(heads[seed % 4], fixed[(seed + 1 + seed // 4) % 4], seed) for seed in range(6))


def test_what_has_no_shape_is_refused():
    tiny = Cloud(0.001 * np.eye(3))
    with pytest.raises(InputError, match="protrudes"):
        global_start(tiny, tiny)
