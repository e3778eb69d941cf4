"""The six anonymisers at their 35 degrees: table 4.2, what is declared, and more displacement at a higher degree."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.spatial import ConvexHull, cKDTree

from ficgan.errors import UsageError
from ficgan.pointcloud import CLOUD_ANONYMIZERS, DEGREES, Cloud, methods, registration
from ficgan.pointcloud.alpha_shape import tetrahedra
from ficgan.pointcloud.methods import PMP, CentroidVoxel
from ficgan.pointcloud.methods.merge_faces import _registered

TABLE = {
    "centroid-voxel": ("size", 0.00025),
    "merge-2-faces": ("weight", 0.0285),
    "pmp": ("alpha", 0.00215),
    "smooth-knn": ("k", 8),
    "tapering": ("r", 0.087),
    "uniform-noise": ("b", 0.00064),
}


def face(seed: int, count: int = 2500) -> Cloud:
    rng = np.random.default_rng(seed)
    y, z = rng.uniform(-0.08, 0.08, (2, count))
    nose = 0.02 * np.exp(-((y / 0.02) ** 2) - (z / 0.012) ** 2)
    points = np.stack([nose - 0.02 - (5 + seed) * z**2 - 3 * y**2, y, z], axis=1)
    return Cloud(points, rng.integers(0, 256, (count, 3), dtype=np.uint8), np.tile([1.0, 0, 0], (count, 1)))


@pytest.fixture(autouse=True)
def aligned(monkeypatch):
    """Faces that need no registration."""
    found = SimpleNamespace(transform=np.eye(4))
    monkeypatch.setattr(registration, "register", lambda source, target, **how: found, raising=False)
    _registered.cache_clear()
    yield
    _registered.cache_clear()


def made(name: str, degree: int, **given):
    if name == "pmp":
        given.setdefault("n", 1500)
    given.setdefault("seed", 0)
    return CLOUD_ANONYMIZERS[name].of_degree(degree, **given).with_target(face(2))


def test_there_are_six():
    assert set(CLOUD_ANONYMIZERS) >= set(TABLE)
    assert {getattr(methods, name).name for name in methods.__all__} == set(TABLE)


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
def test_without_a_seed_no_two_results_are_alike(name):
    method = made(name, 20, seed=None)
    assert method.seed is None and CLOUD_ANONYMIZERS[name]().seed is None
    first, second = (method(face(1), name="x").points for _ in range(2))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("bare", [False, True])
def test_the_input_is_not_changed_and_runs_repeat(name, bare):
    source = face(1)
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
    other = made(name, 9, seed=6)(source, name="x")
    assert np.array_equal(first.points, other.points) != method.traits.stochastic
    assert not method.traits.keeps_order or len(first) == len(source)


@pytest.mark.parametrize("name", ["uniform-noise", "smooth-knn", "merge-2-faces"])
def test_mean_displacement_never_falls(name):
    source = face(1, 1200)
    moved = [np.linalg.norm(made(name, degree)(source).points - source.points, axis=1).mean() for degree in DEGREES]
    assert all(np.diff(moved) > 0)


def test_tapering_displaces_more_until_its_peak():
    source = face(1)
    moved = [
        np.linalg.norm(made("tapering", degree)(source).points - source.points, axis=1).mean() for degree in DEGREES
    ]
    assert all(np.diff(moved[:12]) > 0)  # r = π/3 at degree 12
    assert min(np.diff(moved)) < 0 < moved[-1] - 2 * max(moved[:12])


def test_distance_to_the_voxel_centres_never_falls():
    source = face(1)
    away = []
    for degree in DEGREES:
        size = 0.00025 * degree
        within = (source.points - source.points.min(axis=0) + size / 2) % size
        away.append(np.linalg.norm(within - size / 2, axis=1).mean())
    assert all(np.diff(away) > 0)
    counts = [len(CentroidVoxel.of_degree(degree)(source)) for degree in DEGREES]
    assert counts[0] > 0.99 * len(source) and counts[-1] < len(source) / 4


def test_a_coarser_alpha_fills_more_and_lies_farther_from_the_cloud():
    """The solid grows with α; the mean distance on its surface may fall a little where a hollow closes."""
    source = face(1, 5000)
    tree = cKDTree(source.points)
    away = [tree.query(PMP.of_degree(degree, seed=0)(source).points)[0].mean() for degree in range(4, 36)]
    assert all(later > 0.95 * before for before, later in pairwise(away)) and away[-1] > 1.3 * away[0]
    every = tetrahedra(source.points)
    corners = source.points[every.corners]
    volume = np.abs(np.linalg.det(corners[:, 1:] - corners[:, :1])) / 6
    filled = [volume[every.radii <= PMP.of_degree(degree).alpha].sum() for degree in DEGREES]
    assert all(np.diff(filled) > 0) and filled[-1] < ConvexHull(source.points).volume
