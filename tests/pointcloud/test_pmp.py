"""PMP: on the surface, in the colours of its corners, for its seed and name."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.spatial import ConvexHull

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud import Cloud
from ficgan.pointcloud.methods import PMP

SMALL = hnp.arrays(np.float64, st.tuples(st.integers(1, 12), st.just(3)), elements=st.integers(-2, 2).map(float))


def blob(rng: np.random.Generator, count: int = 300) -> Cloud:
    points = rng.normal(0, 0.05, (count, 3))
    return Cloud(points, (127.5 + 500 * points).clip(0, 255).astype(np.uint8))


def test_points_lie_on_the_hull_at_a_huge_alpha_and_none_is_favoured(rng):
    cloud = blob(rng)
    out = PMP(alpha=1e9, seed=0)(cloud)
    assert len(out) == 10_352
    hull = ConvexHull(cloud.points)
    heights = hull.equations[:, :3] @ out.points.T + hull.equations[:, 3:]
    assert np.abs(heights.max(axis=0)).max() < 1e-12
    on = np.bincount(heights.argmax(axis=0), minlength=len(hull.simplices)) / len(out)
    sides = cloud.points[hull.simplices]
    areas = 0.5 * np.linalg.norm(np.cross(sides[:, 1] - sides[:, 0], sides[:, 2] - sides[:, 0]), axis=1)
    assert np.abs(on - areas / areas.sum()).max() < 0.02


def test_colours_are_interpolated_between_corners():
    points = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    out = PMP(alpha=10.0, n=500, seed=0)(
        Cloud(points, np.array([[0, 0, 0], [200, 0, 0], [0, 200, 0], [0, 0, 200]], np.uint8))
    )
    assert np.abs(out.colors - 200 * out.points).max() <= 0.5 + 1e-9


def test_open3d_sees_no_difference_of_surface(rng):
    o3d = pytest.importorskip("open3d")
    cloud = blob(rng, 1000)
    mesh = o3d.geometry.TriangleMesh.create_from_point_cloud_alpha_shape(
        o3d.geometry.PointCloud(o3d.utility.Vector3dVector(cloud.points)), 0.05
    )
    scene = o3d.t.geometry.RaycastingScene()
    scene.add_triangles(o3d.t.geometry.TriangleMesh.from_legacy(mesh))
    out = PMP(alpha=0.05, n=2000, seed=0)(cloud).points.astype(np.float32)
    assert scene.compute_distance(o3d.core.Tensor(out)).numpy().max() < 1e-6


def test_depends_on_seed_and_name(rng):
    cloud = blob(rng)
    first = PMP(n=50, alpha=1.0, seed=0)(cloud, name="a").points
    assert np.array_equal(first, PMP(n=50, alpha=1.0, seed=0)(cloud, name="a").points)
    assert not np.array_equal(first, PMP(n=50, alpha=1.0, seed=0)(cloud, name="b").points)
    assert not np.array_equal(first, PMP(n=50, alpha=1.0, seed=1)(cloud, name="a").points)


def test_an_alpha_that_leaves_nothing_is_a_sentence(rng):
    with pytest.raises(InputError, match=r"alpha = 0\.00215 leaves nothing"):
        PMP.of_degree(1)(blob(rng))


@settings(deadline=None, max_examples=60)
@given(SMALL)
def test_any_small_cloud_gives_n_points_or_a_sentence(points):
    try:
        out = PMP(alpha=100.0, n=7, seed=0)(Cloud(points))
    except InputError:
        return
    assert out.points.shape == (7, 3) and out.colors is None
    assert (out.points >= points.min(axis=0) - 1e-9).all() and (out.points <= points.max(axis=0) + 1e-9).all()


def test_bad_values_are_named():
    with pytest.raises(UsageError, match="n is 0"):
        PMP(n=0)
    with pytest.raises(UsageError, match="alpha is inf"):
        PMP(alpha=float("inf"))
