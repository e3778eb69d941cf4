"""Farthest-point samples: against the slow definition and Open3D, by covering radius; no repetition; bad requests."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.sampling import farthest_point_sample, without_duplicates


def _slow(points: np.ndarray, count: int, start: int) -> list[int]:
    apart, chosen = cdist(points, points), [start]
    while len(chosen) < count:
        chosen.append(int(apart[chosen].min(axis=0).argmax()))
    return chosen


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.sampled_from([-1.0, -0.0, 0.0, 2.5])] * 3), min_size=1, max_size=40))
def test_each_place_once(rows: list[tuple[float, float, float]]) -> None:
    """Against a set: the first point of each place stays, with its colour, in order."""
    colors = np.arange(len(rows), dtype=np.uint8)[:, None].repeat(3, axis=1)
    cloud = Cloud(np.array(rows), colors)
    seen: set[tuple[float, ...]] = set()
    first = [index for index, row in enumerate(rows) if row not in seen and not seen.add(row)]  # type: ignore[func-returns-value]
    left, count = without_duplicates(cloud)
    assert left.colors is not None and left.colors[:, 0].tolist() == first and count == len(rows) - len(first)
    assert count or left is cloud


def _covering(points: np.ndarray, chosen: np.ndarray) -> float:
    return float(cKDTree(points[chosen]).query(points)[0].max())


def _sphere(rng: np.random.Generator, count: int) -> np.ndarray:
    points = rng.normal(size=(count, 3))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def test_the_loop_is_the_definition(rng: np.random.Generator) -> None:
    points = rng.random((300, 3))
    assert farthest_point_sample(points, 120, start=17).tolist() == _slow(points, 120, 17)


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("count", [10, 700, 2500])
def test_covering_radius(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, installed: bool, count: int
) -> None:
    """Every point is as near to the sample as its points are to each other; the bound of 2 follows from that."""
    if installed:
        pytest.importorskip("fpsample")
    else:
        monkeypatch.setitem(sys.modules, "fpsample", None)
    points = _sphere(rng, 3000) + 5.0
    chosen = farthest_point_sample(points, count)
    radius = _covering(points, chosen)
    apart = cKDTree(points[chosen]).query(points[chosen], k=2)[0][:, 1].min()
    assert radius <= apart * (1 + 1e-4)
    assert radius == pytest.approx(
        _covering(points, farthest_point_sample(points, count, start=int(chosen[0]))), rel=0.02
    )
    assert len(np.unique(chosen)) == count


def test_the_bound_of_two_on_a_line() -> None:
    """21 places on a line: 6 points can cover it to 2, so a sample of 6 must to 4."""
    line = np.outer(np.arange(21.0), [1.0, 1.0, 1.0]) / np.sqrt(3)
    assert _covering(line, farthest_point_sample(line, 6)) <= 4 + 1e-9


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 2000), st.integers(1, 2000), st.integers(0, 1000), st.booleans())
def test_no_point_twice_and_repeatable(total: int, count: int, seed: int, few_places: bool) -> None:
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 3, (total, 3)).astype(float) if few_places else rng.normal(size=(total, 3))
    count = min(count, total)
    chosen = farthest_point_sample(points, count)
    assert len(chosen) == count == len(np.unique(chosen))
    assert (chosen == farthest_point_sample(points, count)).all()
    places = len(np.unique(points, axis=0))
    assert len(np.unique(points[chosen], axis=0)) == min(places, count)


def test_all_points_is_everything(rng: np.random.Generator) -> None:
    points = rng.random((2000, 3))
    assert sorted(farthest_point_sample(points, 2000).tolist()) == list(range(2000))


def test_bad_requests(rng: np.random.Generator) -> None:
    points = rng.random((10, 3))
    with pytest.raises(InputError, match="10 points, and a sample of 11"):
        farthest_point_sample(points, 11)
    with pytest.raises(UsageError, match="at least 1"):
        farthest_point_sample(points, 0)
    with pytest.raises(UsageError, match="start at 0 to 9"):
        farthest_point_sample(points, 3, start=10)


def test_covers_as_open3d_does(rng: np.random.Generator) -> None:
    open3d = pytest.importorskip("open3d")
    points = _sphere(rng, 8000) * 0.1
    cloud = open3d.geometry.PointCloud(open3d.utility.Vector3dVector(points))
    other = np.asarray(cloud.farthest_point_down_sample(1500).points)
    theirs = float(cKDTree(other).query(points)[0].max())
    assert _covering(points, farthest_point_sample(points, 1500)) <= 1.03 * theirs
    exact = farthest_point_sample(points, 1500, start=0)
    assert _covering(points, exact) == pytest.approx(theirs, rel=1e-6)
