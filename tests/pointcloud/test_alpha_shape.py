"""α-shapes against a count of faces, Open3D, and the convex hull; sampling against areas."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.spatial import ConvexHull, Delaunay, cKDTree

from ficgan.errors import InputError
from ficgan.pointcloud.alpha_shape import _tetrahedra, alpha_shape, sample_surface, tetrahedra

SMALL = hnp.arrays(np.float64, st.tuples(st.integers(0, 14), st.just(3)), elements=st.integers(-2, 2).map(float))


def shell(rng: np.random.Generator, count: int) -> np.ndarray:
    y, z = rng.uniform(-0.09, 0.09, (2, count))
    return np.stack([-6 * z**2 - 3 * y**2 + rng.normal(0, 2e-4, count), y, z], axis=1)


def radius(corners: np.ndarray) -> float:
    """Circumradius from the centre that is as far from all four corners."""
    edges = corners[1:] - corners[0]
    return float(np.linalg.norm(np.linalg.solve(2 * edges, (edges**2).sum(axis=1))))


def slow(points: np.ndarray, alpha: float) -> set[tuple[int, ...]]:
    """Faces that belong to one tetrahedron of radius ≤ α."""
    count: Counter[tuple[int, ...]] = Counter()
    for tetra in Delaunay(points).simplices:
        if radius(points[tetra]) <= alpha:
            count.update(combinations(sorted(tetra.tolist()), 3))
    return {face for face, times in count.items() if times == 1}


def as_set(triangles: np.ndarray) -> set[tuple[int, ...]]:
    return set(map(tuple, triangles.tolist()))


@pytest.mark.parametrize("alpha", [0.004, 0.01, 0.02, 0.05, 1.0])
def test_faces_that_belong_to_one_tetrahedron(rng, alpha):
    points = shell(rng, 400)
    triangles = alpha_shape(points, alpha)
    assert as_set(triangles) == slow(points, alpha) and len(as_set(triangles)) == len(triangles)


@pytest.mark.parametrize("alpha", [0.0043, 0.00645, 0.02, 0.07525, 10.0])
def test_open3d_has_the_same_triangles(rng, alpha):
    o3d = pytest.importorskip("open3d")
    points = shell(rng, 3000)
    cloud = o3d.geometry.PointCloud(o3d.utility.Vector3dVector(points))
    mesh = o3d.geometry.TriangleMesh.create_from_point_cloud_alpha_shape(cloud, alpha)
    away, vertices = cKDTree(points).query(np.asarray(mesh.vertices))
    assert away.max() < 1e-7  # it keeps vertices in single precision
    theirs = {tuple(sorted(vertices[triangle].tolist())) for triangle in np.asarray(mesh.triangles)}
    assert as_set(alpha_shape(points, alpha)) == theirs and theirs


def test_an_infinite_alpha_gives_the_convex_hull(rng):
    points = shell(rng, 500)
    hull = {tuple(sorted(face)) for face in ConvexHull(points).simplices.tolist()}
    assert as_set(alpha_shape(points, np.inf)) == hull
    corners = np.array(np.meshgrid([0.0, 1.0], [0.0, 1.0], [0.0, 1.0])).reshape(3, -1).T
    sides = corners[alpha_shape(corners, np.inf)]
    assert 0.5 * np.linalg.norm(np.cross(*(sides[:, c] - sides[:, 0] for c in (1, 2))), axis=1).sum() == pytest.approx(
        6
    )


def test_the_tetrahedra_of_a_sweep_are_computed_once(rng):
    points = shell(rng, 300)
    first = tetrahedra(points)
    before = _tetrahedra.cache_info().misses
    sizes = [len(first.surface(alpha)) and len(alpha_shape(points.copy(), alpha)) for alpha in (0.01, 0.02, 0.04)]
    assert all(sizes) and _tetrahedra.cache_info().misses == before
    assert tetrahedra(points + 1.0) is not first


def test_the_rule_takes_the_radius_itself():
    points = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]])
    reach = tetrahedra(points).radii[0]
    assert reach == pytest.approx(np.sqrt(3) / 2)
    assert len(alpha_shape(points, reach)) == 4 and len(alpha_shape(points, np.nextafter(reach, 0))) == 0


@pytest.mark.parametrize(
    ("points", "said"),
    [
        (np.zeros((3, 3)), "3 points"),
        (np.full((9, 3), 0.1), "are all the same"),
        (np.linspace(0, 1, 9)[:, None] * np.array([1.0, 2, 3]), "lie on a line"),
        (np.random.default_rng(0).random((30, 3)) * [1, 1, 0] + 5, "lie in a plane"),
    ],
)
def test_what_has_no_inside_is_a_sentence(points, said):
    with pytest.raises(InputError, match=said):
        alpha_shape(points, 1.0)


@settings(deadline=None, max_examples=150)
@given(SMALL, st.sampled_from([0.5, 0.9, 1.3, 5.0, np.inf]))
def test_any_small_cloud_gives_triangles_or_a_sentence(points, alpha):
    try:
        triangles = alpha_shape(points, alpha)
    except InputError:
        assert len(points) < 4 or np.linalg.matrix_rank(points - points.mean(axis=0)) < 3
        return
    assert triangles.shape[1] == 3 and (not len(triangles) or triangles.max() < len(points))
    if alpha == np.inf:
        sides = points[triangles]
        area = 0.5 * np.linalg.norm(np.cross(sides[:, 1] - sides[:, 0], sides[:, 2] - sides[:, 0]), axis=1).sum()
        assert area == pytest.approx(ConvexHull(points).area)


def test_points_are_drawn_by_area_and_lie_on_their_triangles(rng):
    points = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 3]])
    triangles = np.array([[0, 1, 2], [0, 1, 3]])
    rows, weights = sample_surface(points, triangles, 40_000, rng)
    assert weights.min() >= 0 and np.allclose(weights.sum(axis=1), 1)
    second = (rows == triangles[1]).all(axis=1)
    assert second.mean() == pytest.approx(0.75, abs=0.01)
    for chosen in (second, ~second):  # uniform on a triangle: mean 1/3, variance 1/18 of each weight
        assert np.allclose(weights[chosen].mean(axis=0), 1 / 3, atol=0.01)
        assert np.allclose(weights[chosen].var(axis=0), 1 / 18, atol=0.003)
