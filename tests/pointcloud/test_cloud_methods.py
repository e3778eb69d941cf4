"""The methods and their inverses against slow loops, their strengths and traits."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.spatial import Delaunay

from ficgan.anonymizers.base import generator
from ficgan.errors import InputError, UsageError
from ficgan.pointcloud import CLOUD_ANONYMIZERS, Cloud, methods, segmented
from ficgan.pointcloud.cloud import farthest_point_sample, voxels
from ficgan.pointcloud.face import made_head
from ficgan.pointcloud.methods import (
    PMP,
    STRENGTHS,
    CentroidVoxel,
    Merge2Faces,
    SmoothKNN,
    Tapering,
    UniformNoise,
    _registered,
    alpha_shape,
    taper_factors,
    unmerge,
    unsmooth,
    untaper,
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


def test_noise_is_that_of_a_loop():
    source = colourful_blob(np.random.default_rng(1), 20)
    draw = generator(4, "uniform-noise", "anna")
    expected = [[value + draw.uniform(0, 0.01) - 0.005 for value in point] for point in source.points]
    np.testing.assert_allclose(UniformNoise(b=0.01, seed=4)(source, name="anna").points, expected, rtol=0, atol=1e-15)


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
        out[centre] = tuple((2 * int(each) + len(rows)) // (2 * len(rows)) for each in sums)
    return out


@given(GRID_POINTS, st.sampled_from([1 / 256, 1 / 32, 0.05, 3.0]))
def test_like_a_loop_over_voxels_in_the_order_of_voxels(points, size):
    cloud = Cloud(points, np.random.default_rng(len(points)).integers(0, 256, points.shape, dtype=np.uint8))
    out = CentroidVoxel(size=size)(cloud)
    expected = slow_voxels(cloud, size)
    assert np.allclose(out.points, list(expected), rtol=0, atol=1e-12)
    assert out.colors.tolist() == [list(color) for color in expected.values()]


def test_points_far_away_have_voxels_of_their_own():
    points = np.array([[0.0, 0.0, 0.0], [1e6, 1e6, 1e6], [0.001, 0.0, 0.0]])
    cubes, means = voxels(points, 0.006, points.min(axis=0))
    assert cubes[0].tolist() == [0, 0, 0] and (cubes[1] == np.floor(1e6 / 0.006)).all()
    assert np.allclose(means, [[0.0005, 0, 0], [1e6, 1e6, 1e6]])


SHIFT = np.eye(4)


SHIFT[:3, 3] = [0.01, -0.02, 0.005]


@pytest.fixture
def shifted(monkeypatch):
    """A registration that always shifts by the same."""
    found = SimpleNamespace(transform=SHIFT, fitness=1.0, rmse=0.001)
    monkeypatch.setattr(methods, "register", lambda source, target: found)
    _registered.cache_clear()
    yield
    _registered.cache_clear()


def merged_face(seed: int, count: int = 400, colour: bool = True) -> Cloud:
    rng = np.random.default_rng(seed)
    y, z = rng.uniform(-0.08, 0.08, (2, count))
    points = np.stack([-(6 + seed) * z**2 - 3 * y**2, y, z], axis=1)
    return Cloud(points, rng.integers(0, 256, (count, 3), dtype=np.uint8) if colour else None)


@pytest.mark.parametrize("weight", [0.0, 0.0285, 0.5, 0.9975, 1.0])
@pytest.mark.usefixtures("shifted")
def test_like_a_loop_over_nearest_points(weight):
    source, target = merged_face(1), merged_face(2)
    out = Merge2Faces(weight=weight).with_target(target)(source)
    moved = target.points + SHIFT[:3, 3]
    for row, point in enumerate(source.points):
        near = ((moved - point) ** 2).sum(axis=1).argmin()
        np.testing.assert_allclose(out.points[row], point + weight * (moved[near] - point), rtol=0, atol=1e-12)
        mixed = source.colors[row] + weight * (target.colors[near].astype(float) - source.colors[row])
        assert np.abs(out.colors[row] - mixed).max() <= 0.5 + 1e-9


@pytest.mark.usefixtures("shifted")
def test_colours_are_mixed_where_both_have_them_and_dropped_elsewhere():
    plain = Merge2Faces(weight=1.0).with_target(merged_face(2, colour=False))
    assert plain(merged_face(1)).colors is None  # the source's photo would be left as it was
    assert Merge2Faces(weight=1.0).with_target(merged_face(2))(merged_face(1, colour=False)).colors is None
    assert CLOUD_ANONYMIZERS.make("merge-2-faces", weight="0.25").settings() == {"weight": 0.25}


# α-shapes and PMP.


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


def test_colours_are_interpolated_between_corners():
    points = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    out = PMP(alpha=10.0, n=500, seed=0)(
        Cloud(points, np.array([[0, 0, 0], [200, 0, 0], [0, 200, 0], [0, 0, 200]], np.uint8))
    )
    assert np.abs(out.colors - 200 * out.points).max() <= 0.5 + 1e-9


TABLE = {
    "centroid-voxel": ("size", 0.00025),
    "merge-2-faces": ("weight", 0.0285),
    "pmp": ("alpha", 0.00215),
    "smooth-knn": ("k", 8),
    "tapering": ("r", 0.087),
    "uniform-noise": ("b", 0.00064),
}


def made(name: str, strength: int, **given):
    if name == "pmp":
        given.setdefault("n", 1500)
    given.setdefault("seed", 0)
    return CLOUD_ANONYMIZERS[name].of_strength(strength, **given).with_target(merged_face(2))


@pytest.mark.parametrize("name", TABLE)
def test_strengths_are_those_of_table_4_2(name):
    parameter, step = TABLE[name]
    cls = CLOUD_ANONYMIZERS[name]
    assert cls.traits.parameter == parameter
    for strength in STRENGTHS:
        assert getattr(cls.of_strength(strength), parameter) == pytest.approx(step * strength)
    assert cls.of_strength(7, seed=3).seed == 3
    for strength in (0, 36, 1.5):
        with pytest.raises(UsageError, match="the strength is"):
            cls.of_strength(strength)


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.usefixtures("shifted")
def test_the_input_is_not_changed_and_runs_repeat(name, bare):
    source = merged_face(1, 2500)
    if bare:
        source = Cloud(source.points)
    points, colors = source.points.copy(), None if bare else source.colors.copy()
    source.points.flags.writeable = False
    method = made(name, 9, seed=5)
    first, second = method(source, name="x"), method(source, name="x")
    assert np.array_equal(first.points, second.points) and np.array_equal(source.points, points)
    assert (first.colors is None) == bare
    if not bare:
        assert np.array_equal(first.colors, second.colors) and np.array_equal(source.colors, colors)
    for other in (made(name, 9, seed=6)(source, name="x"), method(source, name="y")):
        assert np.array_equal(first.points, other.points) != method.traits.stochastic
    assert name in ("centroid-voxel", "pmp") or len(first) == len(source)


NOTHING = Cloud(np.zeros((0, 3)))
FLAT = (
    np.full((9, 3), 0.1),
    np.linspace(0, 1, 9)[:, None] * np.array([1.0, 2, 3]),
    np.random.default_rng(0).random((30, 3)) * [1, 1, 0] + 5,
)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: SmoothKNN(k=0), UsageError),
        (lambda: SmoothKNN(k=41)(colourful_blob(np.random.default_rng(0), 40)), InputError),
        (lambda: UniformNoise(b=-1.0), UsageError),
        (lambda: UniformNoise(b=float("nan")), UsageError),
        (lambda: CentroidVoxel(size=0.0), UsageError),
        (lambda: CentroidVoxel(size=1e-9)(Cloud(np.array([[0.0, 0, 0], [1e5, 1e5, 1e5]]))), InputError),
        (lambda: PMP(alpha=-1.0), UsageError),
        (lambda: PMP(n=0), UsageError),
        (lambda: PMP(alpha=1e-6)(colourful_blob(np.random.default_rng(0), 40)), InputError),
        (lambda: Merge2Faces(weight=1.2), UsageError),
        (lambda: alpha_shape(NOTHING, 1.0), InputError),
        *((lambda flat=flat: alpha_shape(Cloud(flat), 1.0), InputError) for flat in FLAT),
        (lambda: Merge2Faces()(merged_face(1)), UsageError),
        (lambda: unsmooth(merged_face(1), 5000), InputError),
        *((lambda weight=weight: unmerge(NOTHING, weight, NOTHING, SHIFT), UsageError) for weight in (1.0, np.nan)),
        (lambda: SmoothKNN()(NOTHING), InputError),
    ],
)
def test_wrong_parameters_and_clouds(call, error):
    with pytest.raises(error):
        call()


# -- inverses ---------------------------------------------------------------------------------------------------------

FEW_POINTS = hnp.arrays(np.float64, st.tuples(st.integers(1, 30), st.just(3)), elements=st.floats(-0.1, 0.1))


@cache
def face(seed: int, points: int = 2000) -> Cloud:
    """The inner part of a made head, evenly spaced."""
    head = segmented(made_head(seed, points=4 * points).cloud)[0]
    return head.take(farthest_point_sample(head.points, points))


def off(each: Cloud, other: Cloud) -> np.ndarray:
    """Millimetres."""
    return 1e3 * np.linalg.norm(each.points - other.points, axis=1)


@given(FEW_POINTS, st.floats(0, 3.5))
def test_tapering_comes_back_but_for_what_is_lost(points: np.ndarray, r: float) -> None:
    back = untaper(Tapering(r=r)(Cloud(points)), r)
    kept = np.abs(taper_factors(points[:, 2], r)) >= 1e-3
    np.testing.assert_allclose(back.points[kept], points[kept], rtol=1e-12, atol=1e-15)


def means(places: np.ndarray, values: np.ndarray, k: int) -> np.ndarray:
    """By all distances."""
    rows = np.linalg.norm(places[:, None] - places, axis=2).argsort(axis=1)[:, :k]
    return values[rows].mean(axis=1)


def test_smoothing_is_taken_back_as_by_a_slow_loop(rng: np.random.Generator) -> None:
    grid = np.stack(np.meshgrid(np.arange(12.0), np.arange(12.0)), axis=-1).reshape(-1, 2)
    points = np.column_stack([grid, np.sin(grid[:, 0])]) + rng.uniform(-0.1, 0.1, (144, 3))
    smoothed = means(points, points, 9)
    expected, missing = smoothed, smoothed - means(smoothed, smoothed, 9)
    for _ in range(4):
        further = expected + missing
        still = smoothed - means(further, further, 9)
        if (still**2).sum() >= (missing**2).sum():
            break
        expected, missing = further, still
    assert expected is not smoothed
    np.testing.assert_allclose(unsmooth(Cloud(smoothed), 9).points, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("strength", [20, *(pytest.param(strength, marks=pytest.mark.slow) for strength in (2, 34))])
def test_a_merged_face_comes_back_to_whoever_has_the_target(strength: int) -> None:
    turn = np.eye(4)
    turn[:2, :2] = [[np.cos(0.04), -np.sin(0.04)], [np.sin(0.04), np.cos(0.04)]]
    turn[:3, 3] = [0.002, -0.001, 0.001]
    source, target = face(1), face(2).moved(turn)
    method = Merge2Faces.of_strength(strength).with_target(target)
    out = method(source)
    out = Cloud(out.points.astype(np.float32).astype(np.float64), out.colors)
    back = unmerge(out, method.weight, target, method.registered(source).transform)
    assert off(back, source).max() < 0.005 < off(out, source).mean()
    assert np.abs(back.colors.astype(int) - source.colors).mean() <= 0.5 / (1 - method.weight) + 0.5
