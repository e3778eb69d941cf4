"""Neighbours against brute force: which, mean, distance; both ways of computing, threads, duplicates, refusals."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud import neighbours


def _surface(rng: np.random.Generator, count: int) -> np.ndarray:
    flat = rng.uniform(-0.1, 0.1, (count, 2))
    return np.column_stack([-(flat**2).sum(axis=1) * 5, flat])


@pytest.mark.parametrize("k", [1, 7, 99, 100, 280, 600])
def test_mean_and_distance_equal_brute_force(rng: np.random.Generator, k: int) -> None:
    points, values = _surface(rng, 600), rng.random((600, 6))
    apart = cdist(points, points)
    order = np.argsort(apart, axis=1)[:, :k]
    np.testing.assert_allclose(neighbours.mean_of_neighbours(points, values, k), values[order].mean(axis=1), atol=1e-12)
    np.testing.assert_allclose(
        neighbours.mean_distances(points, k), np.sort(apart, axis=1)[:, :k].mean(axis=1), atol=1e-15
    )
    distances, indices = neighbours.nearest(points, points, k)
    np.testing.assert_allclose(distances, np.take_along_axis(apart, order, axis=1), atol=1e-15)
    assert (indices[:, 0] == np.arange(600)).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 400), st.integers(0, 10_000), st.floats(1e-4, 1e4))
def test_both_ways_agree(k: int, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(400, 3)) * scale * [1.0, 0.2, 3.0] + rng.normal(size=3) * scale
    expected = np.sort(cdist(points, points), axis=1)[:, :k].mean(axis=1)
    np.testing.assert_allclose(neighbours.mean_distances(points, k), expected, rtol=1e-9)


@pytest.mark.parametrize("many", [0, 10_000])
def test_tree_and_matrices_give_the_same(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    points, values = _surface(rng, 3000), rng.random(3000)
    usual = neighbours.mean_of_neighbours(points, values, 120)
    monkeypatch.setattr(neighbours, "_MANY", many)
    assert usual.shape == (3000,)
    np.testing.assert_allclose(neighbours.mean_of_neighbours(points, values, 120), usual, atol=1e-12)


@pytest.mark.parametrize("k", [3, 150])
def test_duplicates_and_lines(rng: np.random.Generator, k: int) -> None:
    """A point of which there are k copies has them, and them alone, for neighbours; a point itself counts once."""
    places = rng.random((4, 3))
    points = np.repeat(places, k, axis=0)
    np.testing.assert_allclose(neighbours.mean_of_neighbours(points, points, k), points, atol=1e-15)
    assert (neighbours.mean_distances(points, k) == 0).all()
    line = np.outer(np.arange(2.0 * k), [1.0, 0.0, 0.0])
    assert neighbours.mean_of_neighbours(line, line, k)[k] == pytest.approx([k, 0, 0], abs=0.51)


def test_few_points_are_refused() -> None:
    with pytest.raises(InputError, match="5 points, too few for 6"):
        neighbours.mean_of_neighbours(np.zeros((5, 3)), np.zeros((5, 3)), 6)
    with pytest.raises(InputError, match="0 points"):
        neighbours.nearest(np.zeros((0, 3)), np.zeros((1, 3)), 1)
    with pytest.raises(UsageError, match="at least 1"):
        neighbours.mean_distances(np.zeros((5, 3)), 0)


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("count", [0, 1, 1024, 5000])
def test_search_is_scipys_in_order(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, cores: int, count: int
) -> None:
    monkeypatch.setattr(neighbours, "_cores", lambda: cores)
    tree, queries = cKDTree(_surface(rng, 300)), _surface(rng, count)
    for k, within in ((1, np.inf), (5, 0.01), (400, np.inf)):
        expected = tree.query(queries, np.arange(1, k + 1), distance_upper_bound=within)
        for got, one in zip(neighbours.search(tree, queries, k, within=within), expected, strict=True):
            np.testing.assert_array_equal(got, one)


def test_an_error_within_a_thread_comes_out(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_cores", lambda: 3)
    queries = _surface(rng, 9000)
    queries[7000] = np.nan
    with pytest.raises(ValueError, match="finite"):
        neighbours.search(cKDTree(queries[:100]), queries)


_LONG = """
import signal
import numpy as np
from scipy.spatial import cKDTree
from ficgan.pointcloud import neighbours
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
neighbours._cores = lambda: 4
points = np.random.default_rng(0).random((20_000, 3))
tree = cKDTree(points)
print("ready", flush=True)
while True:
    neighbours.search(tree, points, 50)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to another process")
def test_an_interruption_ends_as_one_and_never_as_a_crash() -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", _LONG], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    try:
        for number, process in enumerate(running):
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            time.sleep(0.02 * number)
            process.send_signal(signal.SIGINT)
        for process in running:
            _, said = process.communicate(timeout=60)
            assert process.returncode == -signal.SIGINT, said.decode()
            assert said.rstrip().endswith(b"KeyboardInterrupt")
    finally:
        for process in running:
            process.kill()
