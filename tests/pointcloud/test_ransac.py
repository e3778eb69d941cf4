"""Global registration: Kabsch against scipy, faces brought from anywhere into the basin of ICP."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.heads import made_head
from ficgan.pointcloud.registration import Ransac, global_registration, icp, with_normals
from ficgan.pointcloud.registration.ransac import matches, rigid_fits, thinned


def anywhere(seed: int) -> np.ndarray:
    move = np.eye(4)
    move[:3, :3] = Rotation.random(random_state=seed).as_matrix()
    move[:3, 3] = np.random.default_rng(seed).normal(size=3) * 0.3
    return move


def arrives(moving: Cloud, fixed: Cloud, seed: int) -> bool:
    """Whether ICP after the global start ends where ICP from the canonical frame does, to 3 mm at every point."""
    move = anywhere(seed)
    start = global_registration(moving.moved(move), fixed, seed=seed)
    found = icp(moving.moved(move), fixed, start).transform @ move
    want = icp(moving, fixed).transform
    return bool(np.linalg.norm(moving.moved(found).points - moving.moved(want).points, axis=1).max() < 0.003)


def test_kabsch_is_scipys(rng):
    moving, fixed = rng.random((20, 5, 3)), rng.random((20, 5, 3))
    rotations, shifts = rigid_fits(moving, fixed)
    for a, b, rotation, shift in zip(moving, fixed, rotations, shifts, strict=True):
        want = Rotation.align_vectors(b - b.mean(axis=0), a - a.mean(axis=0))[0].as_matrix()
        np.testing.assert_allclose(rotation, want, atol=1e-6)
        np.testing.assert_allclose(rotation @ a.mean(axis=0) + shift, b.mean(axis=0), atol=1e-12)
        assert np.linalg.det(rotation) == pytest.approx(1)


def test_matches_are_mutual_nearest(rng):
    a, b = rng.random((60, 33)), rng.random((50, 33))
    gaps = np.linalg.norm(a[:, None] - b, axis=2)
    want = [(i, j) for i in range(60) for j in range(50) if gaps[i].argmin() == j and gaps[:, j].argmin() == i]
    assert [tuple(pair) for pair in matches(a, b)] == want


def test_thinned_has_the_mean_of_every_cube(rng):
    points = rng.random((300, 3))
    cubes: dict[tuple[int, ...], list[np.ndarray]] = {}
    for point in points:
        cubes.setdefault(tuple(np.floor((point - points.min(axis=0)) / 0.25).astype(int)), []).append(point)
    want = np.array([np.mean(cubes[key], axis=0) for key in sorted(cubes)])
    np.testing.assert_allclose(thinned(Cloud(points), 0.25).points, want)


def test_made_heads_arrive_from_anywhere():
    heads = [Cloud(made_head(seed, points=2500, colour=False, scan=seed).cloud.points) for seed in range(4)]
    fixed = [with_normals(head) for head in heads]
    draws = [arrives(heads[seed % 4], fixed[(seed + 1 + seed // 4) % 4], seed) for seed in range(6)]
    assert sum(draws) >= 5


def test_the_seed_decides():
    head = Cloud(made_head(0, points=2000, colour=False).cloud.points)
    other = Cloud(made_head(1, points=2000, colour=False).cloud.points).moved(anywhere(3))
    first, again = (global_registration(other, head, seed=4) for _ in range(2))
    np.testing.assert_array_equal(first, again)


def test_what_has_no_shape_is_refused():
    tiny = Cloud(0.001 * np.eye(3))
    with pytest.raises(InputError, match=r"fit one motion|at least 3|one line"):
        global_registration(tiny, tiny)
    with pytest.raises(UsageError, match="voxel"):
        Ransac(voxel=0)
    with pytest.raises(UsageError, match="at least one draw"):
        Ransac(draws=0)
