"""Neighbours, farthest-point samples, duplicates and outliers against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud import Cloud
from ficgan.pointcloud import cloud as neighbours
from ficgan.pointcloud.cloud import farthest_point_sample, inliers, without_duplicates, without_outliers


def _surface(rng: np.random.Generator, count: int) -> np.ndarray:
    flat = rng.uniform(-0.1, 0.1, (count, 2))
    return np.column_stack([-(flat**2).sum(axis=1) * 5, flat])


@pytest.mark.parametrize("k", [1, 7, 280, 600])
def test_mean_and_distance_equal_brute_force(rng: np.random.Generator, k: int) -> None:
    points, values = _surface(rng, 600), rng.random((600, 6))
    apart = cdist(points, points)
    order = np.argsort(apart, axis=1)[:, :k]
    np.testing.assert_allclose(neighbours.mean_of_neighbours(points, values, k), values[order].mean(axis=1), atol=1e-12)
    distances, indices = neighbours.search(points, points, k)
    np.testing.assert_allclose(distances, np.take_along_axis(apart, order, axis=1), atol=1e-15)
    assert (indices[:, 0] == np.arange(600)).all()


def test_few_points_are_refused() -> None:
    with pytest.raises(InputError, match="5 points, too few for 6"):
        neighbours.mean_of_neighbours(np.zeros((5, 3)), np.zeros((5, 3)), 6)
    with pytest.raises(UsageError, match="at least 1"):
        neighbours.mean_of_neighbours(np.zeros((5, 3)), np.zeros(5), 0)


def test_what_is_not_finite_is_refused(rng: np.random.Generator) -> None:
    queries = _surface(rng, 9000)
    queries[7000] = np.nan
    with pytest.raises(ValueError, match="finite"):
        neighbours.search(queries[:100], queries, 1)


# Farthest-point samples and duplicates.


def _slow(points: np.ndarray, count: int, start: int) -> list[int]:
    apart, chosen = cdist(points, points), [start]
    while len(chosen) < count:
        chosen.append(int(apart[chosen].min(axis=0).argmax()))
    return chosen


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


def test_the_sample_is_the_definition(rng: np.random.Generator) -> None:
    points = rng.random((500, 3))
    assert farthest_point_sample(points, 400, start=17).tolist() == _slow(points, 400, 17)


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


def test_bad_requests(rng: np.random.Generator) -> None:
    points = rng.random((10, 3))
    with pytest.raises(InputError, match="10 points, and a sample of 11"):
        farthest_point_sample(points, 11)
    with pytest.raises(UsageError, match="at least 1"):
        farthest_point_sample(points, 0)
    with pytest.raises(UsageError, match="start at 0 to 9"):
        farthest_point_sample(points, 3, start=10)


# Outliers.


def _dusty(rng: np.random.Generator, count: int) -> Cloud:
    flat = rng.uniform(-0.1, 0.1, (count, 2))
    points = np.column_stack([-5 * (flat**2).sum(axis=1), flat])
    far = rng.choice(count, count // 100, replace=False)
    points[far, 0] += rng.uniform(0.005, 0.08, len(far))
    return Cloud(points, rng.integers(0, 256, (count, 3), np.uint8))


@pytest.mark.parametrize(("neighbours", "ratio"), [(50, 4.0), (10, 1.0), (150, 2.0)])
def test_algorithm_7(rng: np.random.Generator, neighbours: int, ratio: float) -> None:
    cloud = _dusty(rng, 800)
    mean = [float(np.sort(row)[:neighbours].mean()) for row in cdist(cloud.points, cloud.points)]
    limit = np.mean(mean) + ratio * np.std(mean, ddof=1)
    kept = inliers(cloud, neighbours=neighbours, ratio=ratio)
    assert kept.tolist() == [one <= limit for one in mean]
    assert 0 < (~kept).sum() < 100


def test_colours_go_along(rng: np.random.Generator) -> None:
    cloud = _dusty(rng, 800)
    kept = inliers(cloud)
    left = without_outliers(cloud)
    assert left.colors is not None and cloud.colors is not None
    assert (left.colors == cloud.colors[kept]).all() and (left.points == cloud.points[kept]).all()


def test_refusals(rng: np.random.Generator) -> None:
    with pytest.raises(InputError, match=r"49 points.*50"):
        inliers(Cloud(rng.random((49, 3))))
    for wrong in ({"neighbours": 1}, {"ratio": 0.0}, {"ratio": float("nan")}):
        with pytest.raises(UsageError, match="outliers by"):
            inliers(Cloud(rng.random((60, 3))), **wrong)
