"""The methods against slow loops, their degrees and traits."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats
from scipy.spatial import ConvexHull, Delaunay, cKDTree

from ficgan.anonymizers.base import generator
from ficgan.errors import InputError, UsageError
from ficgan.pointcloud import CLOUD_ANONYMIZERS, DEGREES, Cloud, methods
from ficgan.pointcloud.methods import (
    PMP,
    CentroidVoxel,
    Merge2Faces,
    SmoothKNN,
    UniformNoise,
    _registered,
    _tetrahedra,
    alpha_shape,
    sample_surface,
)


def colourful_blob(rng: np.random.Generator, count: int) -> Cloud:
    return Cloud(rng.normal(0, 0.05, (count, 3)), rng.integers(0, 256, (count, 3), dtype=np.uint8))


@pytest.mark.parametrize("k", [1, 2, 7, 60, 199, 200])
def test_like_a_loop_over_all_distances(rng, k):
    cloud = colourful_blob(rng, 200)
    out = SmoothKNN(k=k)(cloud)
    for row, point in enumerate(cloud.points):
        near = np.argsort(((cloud.points - point) ** 2).sum(axis=1))[:k]
        assert row in near
        np.testing.assert_allclose(out.points[row], cloud.points[near].mean(axis=0), rtol=0, atol=1e-12)
        sums = cloud.colors[near].astype(int).sum(axis=0)
        assert out.colors[row].tolist() == ((2 * sums + k) // (2 * k)).tolist()


@pytest.mark.parametrize("shape", ["duplicates", "line"])
def test_smoothed_duplicates_and_lines(shape):
    points = np.zeros((50, 3)) if shape == "duplicates" else np.linspace(0, 1, 50)[:, None] * np.ones(3)
    out = SmoothKNN(k=9)(Cloud(points))
    assert out.points.shape == (50, 3) and out.colors is None
    if shape == "duplicates":
        assert not out.points.any()
    else:
        np.testing.assert_allclose(out.points[4:-4], points[4:-4], rtol=0, atol=1e-12)


def test_bad_k_is_named(rng):
    with pytest.raises(InputError, match="40 points, and SmoothKNN with k = 48"):
        SmoothKNN.of_degree(6)(colourful_blob(rng, 40))
    with pytest.raises(InputError, match="0 points"):
        SmoothKNN(k=1)(Cloud(np.zeros((0, 3))))
    with pytest.raises(UsageError, match="k is 0"):
        SmoothKNN(k=0)


# UniformNoise.


def noise_source(count: int = 5000) -> Cloud:
    points = np.random.default_rng(1).normal(0, 0.05, (count, 3))
    return Cloud(points, np.full((count, 3), 9, np.uint8), np.zeros((count, 3)))


def test_noise_is_that_of_a_loop():
    source = noise_source(20)
    draw = generator(4, "uniform-noise", "anna")
    expected = [[value + draw.uniform(0, 0.01) - 0.005 for value in point] for point in source.points]
    np.testing.assert_allclose(UniformNoise(b=0.01, seed=4)(source, name="anna").points, expected, rtol=0, atol=1e-15)


def test_noise_is_uniform_about_zero_and_colours_stay():
    source = noise_source()
    out = UniformNoise(b=0.02, seed=0)(source)
    noise = (out.points - source.points).ravel()
    assert stats.kstest(noise, stats.uniform(-0.01, 0.02).cdf).pvalue > 0.001
    assert np.array_equal(out.colors, source.colors) and out.normals is None


def test_bad_b_is_named():
    with pytest.raises(UsageError, match="b is -1"):
        UniformNoise(b=-1.0)
    with pytest.raises(UsageError, match="b is nan"):
        UniformNoise(b=float("nan"))
    with pytest.raises(InputError, match="0 points"):
        UniformNoise()(Cloud(np.zeros((0, 3))))


# CentroidVoxel.


GRID_POINTS = hnp.arrays(
    np.float64, st.tuples(st.integers(1, 30), st.just(3)), elements=st.integers(-8, 8).map(lambda n: n / 64)
)


def slow_voxels(cloud: Cloud, size: float) -> dict[tuple[float, ...], tuple[int, ...]]:
    """Centre → colour, voxel by voxel."""
    origin = [min(axis) - size / 2 for axis in cloud.points.T]
    members: dict[tuple[int, ...], list[int]] = {}
    for row, point in enumerate(cloud.points):
        members.setdefault(tuple(math.floor((p - o) / size) for p, o in zip(point, origin, strict=True)), []).append(
            row
        )
    out = {}
    for cell, rows in sorted(members.items()):
        centre = tuple(o + (c + 0.5) * size for o, c in zip(origin, cell, strict=True))
        sums = cloud.colors[rows].astype(int).sum(axis=0)
        out[centre] = tuple((2 * int(one) + len(rows)) // (2 * len(rows)) for one in sums)
    return out


@given(GRID_POINTS, st.sampled_from([1 / 256, 1 / 32, 0.05, 3.0]))
def test_like_a_loop_over_voxels_in_the_order_of_voxels(points, size):
    cloud = Cloud(points, np.random.default_rng(len(points)).integers(0, 256, points.shape, dtype=np.uint8))
    out = CentroidVoxel(size=size)(cloud)
    expected = slow_voxels(cloud, size)
    assert np.allclose(out.points, list(expected), rtol=0, atol=1e-12)
    assert out.colors.tolist() == [list(color) for color in expected.values()]


def test_bad_sizes_are_named():
    with pytest.raises(InputError, match="0 points"):
        CentroidVoxel()(Cloud(np.zeros((0, 3))))
    with pytest.raises(InputError, match="too wide for voxels"):
        CentroidVoxel(size=1e-9)(Cloud(np.array([[0.0, 0, 0], [1e5, 1e5, 1e5]])))
    with pytest.raises(UsageError, match="size is 0"):
        CentroidVoxel(size=0.0)


# Merge2Faces.


SHIFT = np.eye(4)


SHIFT[:3, 3] = [0.01, -0.02, 0.005]


@pytest.fixture
def calls(monkeypatch) -> list[dict]:
    """A registration that always shifts by the same, and who asked for it."""
    asked: list[dict] = []

    def register(source, target, **how):
        asked.append({"source": source, "target": target, **how})
        return SimpleNamespace(transform=SHIFT, fitness=1.0, rmse=0.001)

    monkeypatch.setattr(methods, "register", register)
    _registered.cache_clear()
    yield asked
    _registered.cache_clear()


def merged_face(seed: int, count: int = 400, colour: bool = True) -> Cloud:
    rng = np.random.default_rng(seed)
    y, z = rng.uniform(-0.08, 0.08, (2, count))
    points = np.stack([-(6 + seed) * z**2 - 3 * y**2, y, z], axis=1)
    return Cloud(points, rng.integers(0, 256, (count, 3), dtype=np.uint8) if colour else None)


@pytest.mark.parametrize("weight", [0.0, 0.0285, 0.5, 0.9975, 1.0])
def test_like_a_loop_over_nearest_points(calls, weight):
    source, target = merged_face(1), merged_face(2)
    out = Merge2Faces(weight=weight).with_target(target)(source)
    moved = target.points + SHIFT[:3, 3]
    for row, point in enumerate(source.points):
        near = ((moved - point) ** 2).sum(axis=1).argmin()
        np.testing.assert_allclose(out.points[row], point + weight * (moved[near] - point), rtol=0, atol=1e-12)
        mixed = source.colors[row] + weight * (target.colors[near].astype(float) - source.colors[row])
        assert np.abs(out.colors[row] - mixed).max() <= 0.5 + 1e-9


def test_colours_are_mixed_where_both_have_them_and_dropped_elsewhere(calls):
    plain = Merge2Faces(weight=1.0).with_target(merged_face(2))
    assert plain(merged_face(1)).colors is None  # the source's photo would be left as it was
    assert Merge2Faces(weight=1.0).with_target(merged_face(2))(merged_face(1)).colors is None


def test_a_pair_is_registered_once_for_all_weights(calls):
    source, target = merged_face(1), merged_face(2)
    for degree in range(1, 36):
        Merge2Faces.of_degree(degree).with_target(target)(source)
    assert len(calls) == 1
    method = Merge2Faces().with_target(target)
    assert method.registered(source).fitness == 1.0 and len(calls) == 1
    method.registered(merged_face(3))
    Merge2Faces().with_target(merged_face(4)).registered(source)
    assert len(calls) == 3
    Merge2Faces(coarse="never").with_target(target).registered(source)
    assert [one["coarse"] for one in calls] == ["auto", "auto", "auto", "never"]


def test_the_target_is_no_parameter(calls):
    method = CLOUD_ANONYMIZERS.make("merge-2-faces", weight="0.25")
    assert method.with_target(merged_face(2)).settings() == {"weight": 0.25, "coarse": "auto"}
    assert method.with_target(merged_face(2)) == method and hash(method) == hash(method.with_target(merged_face(2)))
    with pytest.raises(UsageError, match="no parameter 'target'"):
        CLOUD_ANONYMIZERS.make("merge-2-faces", target="x.ply")


def test_the_target_is_registered_to_the_source():
    _registered.cache_clear()
    rng = np.random.default_rng(3)
    y, z = rng.uniform(-0.08, 0.08, (2, 3000))
    nose = 0.03 * np.exp(-((y / 0.02) ** 2) - (z / 0.012) ** 2) + 0.004 * np.sin(90 * y + 1) * np.cos(70 * z)
    source = Cloud(np.stack([nose - 6 * z**2 - 3 * y**2, y, z], axis=1))
    turn = np.eye(4)
    turn[:2, :2] = [[np.cos(0.05), -np.sin(0.05)], [np.sin(0.05), np.cos(0.05)]]
    turn[:3, 3] = [0.003, 0.002, -0.002]
    method = Merge2Faces(weight=1.0).with_target(source.moved(turn))
    found = method.registered(source)
    np.testing.assert_allclose(found.transform @ turn, np.eye(4), rtol=0, atol=1e-5)
    assert found.fitness == 1.0 and found.rmse < 1e-5
    assert np.abs(method(source).points - source.points).max() < 1e-5


def test_bad_weights_are_named(calls):
    with pytest.raises(UsageError, match="needs a target face"):
        Merge2Faces()(merged_face(1))
    with pytest.raises(InputError, match="the target of Merge2Faces"):
        Merge2Faces().with_target(Cloud(np.zeros((0, 3))))
    with pytest.raises(InputError, match="Merge2Faces needs at least 1"):
        Merge2Faces().with_target(merged_face(1))(Cloud(np.zeros((0, 3))))
    with pytest.raises(UsageError, match=r"weight is 1.2; give from 0.0 to 1.0"):
        Merge2Faces(weight=1.2)
    with pytest.raises(UsageError, match="coarse is 'ransac'"):
        Merge2Faces(coarse="ransac")


# α-shapes and PMP.


SMALL = hnp.arrays(np.float64, st.tuples(st.integers(0, 14), st.just(3)), elements=st.integers(-2, 2).map(float))


def shell(rng: np.random.Generator, count: int) -> np.ndarray:
    y, z = rng.uniform(-0.09, 0.09, (2, count))
    return np.stack([-6 * z**2 - 3 * y**2 + rng.normal(0, 2e-4, count), y, z], axis=1)


def radius(corners: np.ndarray) -> float:
    """Circumradius from the centre that is as far from all four corners."""
    edges = corners[1:] - corners[0]
    return float(np.linalg.norm(np.linalg.solve(2 * edges, (edges**2).sum(axis=1))))


def slow_shape(points: np.ndarray, alpha: float) -> set[tuple[int, ...]]:
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
    triangles = alpha_shape(Cloud(points), alpha)
    assert as_set(triangles) == slow_shape(points, alpha) and len(as_set(triangles)) == len(triangles)


def test_an_infinite_alpha_gives_the_convex_hull(rng):
    points = shell(rng, 500)
    hull = {tuple(sorted(face)) for face in ConvexHull(points).simplices.tolist()}
    assert as_set(alpha_shape(Cloud(points), np.inf)) == hull
    corners = np.array(np.meshgrid([0.0, 1.0], [0.0, 1.0], [0.0, 1.0])).reshape(3, -1).T
    sides = corners[alpha_shape(Cloud(corners), np.inf)]
    assert 0.5 * np.linalg.norm(np.cross(*(sides[:, c] - sides[:, 0] for c in (1, 2))), axis=1).sum() == pytest.approx(
        6
    )


def test_the_tetrahedra_of_a_sweep_are_computed_once(rng):
    cloud = Cloud(shell(rng, 300))
    before = _tetrahedra.cache_info().misses
    assert all(len(alpha_shape(cloud, alpha)) for alpha in (0.01, 0.02, 0.04))
    assert _tetrahedra.cache_info().misses == before + 1
    alpha_shape(Cloud(cloud.points + 1.0), 0.02)
    assert _tetrahedra.cache_info().misses == before + 2


def test_the_rule_takes_the_radius_itself():
    points = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]])
    reach = _tetrahedra(Cloud(points))[2][0]
    assert reach == pytest.approx(np.sqrt(3) / 2)
    assert len(alpha_shape(Cloud(points), reach)) == 4 and len(alpha_shape(Cloud(points), np.nextafter(reach, 0))) == 0


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
        alpha_shape(Cloud(points), 1.0)


@given(SMALL, st.sampled_from([0.5, 0.9, 1.3, 5.0, np.inf]))
def test_any_small_cloud_gives_triangles_or_a_sentence(points, alpha):
    try:
        triangles = alpha_shape(Cloud(points), alpha)
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


SMALLER = hnp.arrays(np.float64, st.tuples(st.integers(1, 12), st.just(3)), elements=st.integers(-2, 2).map(float))


def shaded_blob(rng: np.random.Generator, count: int = 300) -> Cloud:
    points = rng.normal(0, 0.05, (count, 3))
    return Cloud(points, (127.5 + 500 * points).clip(0, 255).astype(np.uint8))


def test_points_lie_on_the_hull_at_a_huge_alpha_and_none_is_favoured(rng):
    cloud = shaded_blob(rng)
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


def test_an_alpha_that_leaves_nothing_is_a_sentence(rng):
    with pytest.raises(InputError, match=r"alpha = 0\.00215 leaves nothing"):
        PMP.of_degree(1)(shaded_blob(rng))


@given(SMALLER)
def test_any_small_cloud_gives_n_points_or_a_sentence(points):
    try:
        out = PMP(alpha=100.0, n=7, seed=0)(Cloud(points))
    except InputError:
        return
    assert out.points.shape == (7, 3) and out.colors is None
    assert (out.points >= points.min(axis=0) - 1e-9).all() and (out.points <= points.max(axis=0) + 1e-9).all()


def test_bad_alphas_are_named():
    with pytest.raises(UsageError, match="n is 0"):
        PMP(n=0)
    with pytest.raises(UsageError, match="alpha is inf"):
        PMP(alpha=float("inf"))


# Degrees and traits.


TABLE = {
    "centroid-voxel": ("size", 0.00025),
    "merge-2-faces": ("weight", 0.0285),
    "pmp": ("alpha", 0.00215),
    "smooth-knn": ("k", 8),
    "tapering": ("r", 0.087),
    "uniform-noise": ("b", 0.00064),
}


def nosy_face(seed: int, count: int = 2500) -> Cloud:
    rng = np.random.default_rng(seed)
    y, z = rng.uniform(-0.08, 0.08, (2, count))
    nose = 0.02 * np.exp(-((y / 0.02) ** 2) - (z / 0.012) ** 2)
    points = np.stack([nose - 0.02 - (5 + seed) * z**2 - 3 * y**2, y, z], axis=1)
    return Cloud(points, rng.integers(0, 256, (count, 3), dtype=np.uint8), np.tile([1.0, 0, 0], (count, 1)))


@pytest.fixture
def aligned(monkeypatch):
    """Faces that need no registration."""
    found = SimpleNamespace(transform=np.eye(4))
    monkeypatch.setattr(methods, "register", lambda source, target, **how: found)
    _registered.cache_clear()
    yield
    _registered.cache_clear()


def made(name: str, degree: int, **given):
    if name == "pmp":
        given.setdefault("n", 1500)
    given.setdefault("seed", 0)
    return CLOUD_ANONYMIZERS[name].of_degree(degree, **given).with_target(nosy_face(2))


@pytest.mark.parametrize("name", TABLE)
def test_degrees_are_those_of_table_4_2(name):
    parameter, step = TABLE[name]
    cls = CLOUD_ANONYMIZERS[name]
    assert cls.traits.strength == parameter
    for degree in DEGREES:
        assert getattr(cls.of_degree(degree), parameter) == pytest.approx(step * degree)
    assert cls.of_degree(7, seed=3).seed == 3
    for degree in (0, 36, 1.5):
        with pytest.raises(UsageError, match="the degree is"):
            cls.of_degree(degree)


def test_traits_are_what_the_thesis_says():
    traits = {name: CLOUD_ANONYMIZERS[name].traits for name in TABLE}
    assert {name for name, one in traits.items() if one.stochastic} == {"uniform-noise", "pmp"}
    assert {name for name, one in traits.items() if not one.keeps_order} == {"centroid-voxel", "pmp"}
    assert {name for name, one in traits.items() if not one.reversible_by} == {"centroid-voxel", "pmp"}
    assert {name for name, one in traits.items() if one.needs_target} == {"merge-2-faces"}
    sizes = {name: [one.point_size(one.of_degree(degree)) for degree in DEGREES] for name, one in traits.items()}
    assert sizes["centroid-voxel"][0] == pytest.approx(25) and sizes["centroid-voxel"][-1] == pytest.approx(55)
    assert sizes["centroid-voxel"] == sorted(sizes["centroid-voxel"])
    assert set(sizes["smooth-knn"]) == {60}
    assert all(set(sizes[name]) == {25} for name in ("pmp", "merge-2-faces", "tapering", "uniform-noise"))


def test_results_are_drawn_by_their_own_parameter():
    assert PMP(alpha=0.03).drawn_with() == {"point_size": 25.0, "order": "y"}
    assert PMP(alpha=0.0301).drawn_with() == {"point_size": 25.0, "order": "x"}
    assert CentroidVoxel(size=0.0045).drawn_with()["point_size"] == pytest.approx(40)
    assert CentroidVoxel(size=1.0).drawn_with()["point_size"] == 55  # beyond what the thesis tried
    assert CLOUD_ANONYMIZERS["smooth-knn"].of_degree(1).drawn_with() == {"point_size": 60.0, "order": "y"}


@pytest.mark.parametrize("name", ["uniform-noise", "pmp"])
@pytest.mark.usefixtures("aligned")
def test_without_a_seed_no_two_results_are_alike(name):
    method = made(name, 20, seed=None)
    assert method.seed is None and CLOUD_ANONYMIZERS[name]().seed is None
    first, second = (method(nosy_face(1), name="x").points for _ in range(2))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.usefixtures("aligned")
def test_the_input_is_not_changed_and_runs_repeat(name, bare):
    source = nosy_face(1)
    if bare:
        source = Cloud(source.points)
    points, colors = source.points.copy(), None if bare else source.colors.copy()
    source.points.flags.writeable = False
    method = made(name, 9, seed=5)
    first, second = method(source, name="x"), method(source, name="x")
    assert np.array_equal(first.points, second.points) and np.array_equal(source.points, points)
    assert (first.colors is None) == bare and first.normals is None
    if not bare:
        assert np.array_equal(first.colors, second.colors) and np.array_equal(source.colors, colors)
    for other in (made(name, 9, seed=6)(source, name="x"), method(source, name="y")):
        assert np.array_equal(first.points, other.points) != method.traits.stochastic
    assert not method.traits.keeps_order or len(first) == len(source)


@pytest.mark.parametrize("name", ["uniform-noise", "smooth-knn", "merge-2-faces"])
@pytest.mark.usefixtures("aligned")
def test_mean_displacement_never_falls(name):
    source = nosy_face(1, 600)
    moved = [np.linalg.norm(made(name, degree)(source).points - source.points, axis=1).mean() for degree in DEGREES]
    assert all(np.diff(moved) > 0)


@pytest.mark.usefixtures("aligned")
def test_tapering_displaces_more_until_its_peak():
    source = nosy_face(1)
    moved = [
        np.linalg.norm(made("tapering", degree)(source).points - source.points, axis=1).mean() for degree in DEGREES
    ]
    assert all(np.diff(moved[:12]) > 0)  # r = π/3 at degree 12
    assert min(np.diff(moved)) < 0 < moved[-1] - 2 * max(moved[:12])


@pytest.mark.slow
def test_a_coarser_alpha_fills_more_and_lies_farther_from_the_cloud():
    """The solid grows with α; the mean distance on its surface may fall a little where a hollow closes."""
    source = nosy_face(1, 5000)
    tree = cKDTree(source.points)
    away = [tree.query(PMP.of_degree(degree, seed=0)(source).points)[0].mean() for degree in range(4, 36)]
    assert all(later > 0.95 * before for before, later in pairwise(away)) and away[-1] > 1.3 * away[0]
    rows, _, radii = _tetrahedra(source)
    corners = source.points[rows]
    volume = np.abs(np.linalg.det(corners[:, 1:] - corners[:, :1])) / 6
    filled = [volume[radii <= PMP.of_degree(degree).alpha].sum() for degree in DEGREES]
    assert all(np.diff(filled) > 0) and filled[-1] < ConvexHull(source.points).volume
