"""Distances between clouds, each against a brute-force matrix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.geometry import chamfer, cloud_distances, hausdorff, normal_error


def oriented_cloud(count: int, rng: np.random.Generator) -> Cloud:
    normals = rng.standard_normal((count, 3))
    return Cloud(rng.random((count, 3)), None, normals / np.linalg.norm(normals, axis=1, keepdims=True))


@given(st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=25, deadline=None)
def test_all_distances_are_brute_force(first, second):
    rng = np.random.default_rng(41 * first + second)
    a, b = oriented_cloud(first, rng), oriented_cloud(second, rng)
    gaps = np.linalg.norm(a.points[:, None] - b.points, axis=2)
    there, back = gaps.min(axis=1), gaps.min(axis=0)
    got = cloud_distances(a, b)
    assert (got.there, got.back) == pytest.approx((there.mean(), back.mean()))
    assert chamfer(a, b) == pytest.approx((there.mean() + back.mean()) / 2)
    assert hausdorff(a, b) == pytest.approx(max(there.max(), back.max()))
    assert got.hausdorff_95 == pytest.approx(max(np.percentile(there, 95), np.percentile(back, 95)))
    assert chamfer(a, b) == pytest.approx(chamfer(b, a))

    near = gaps.argmin(axis=1)
    angles = [np.degrees(np.arccos(min(1, abs(n @ b.normals[j])))) for n, j in zip(a.normals, near, strict=True)]
    assert normal_error(a, b) == pytest.approx(np.mean(angles))


def test_a_lifted_plane(rng):
    plane = np.column_stack([np.zeros(2000), rng.random((2000, 2))])
    lifted = plane + np.array([0.002, 0, 0])
    assert normal_error(Cloud(lifted), Cloud(plane)) < 1e-4
    assert hausdorff(Cloud(lifted), Cloud(plane)) == pytest.approx(0.002)
    assert chamfer(Cloud(plane), Cloud(plane)) == 0


def test_an_empty_cloud_is_refused(rng):
    with pytest.raises(InputError, match="0 points"):
        chamfer(Cloud(np.empty((0, 3))), oriented_cloud(3, rng))
