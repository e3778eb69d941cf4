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


@pytest.fixture(params=["pykdtree", "scipy"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pykdtree":
        pytest.importorskip("pykdtree")
    else:
        monkeypatch.setitem(sys.modules, "pykdtree.kdtree", None)
    return str(request.param)


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("count", [0, 1, 1024, 5000])
@pytest.mark.parametrize("axes", [1, 3])
def test_search_is_scipys(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, backend: str, cores: int, count: int, axes: int
) -> None:
    monkeypatch.setattr(neighbours, "_cores", lambda: cores)
    points, queries = _surface(rng, 300)[:, :axes], _surface(rng, count)[:, :axes]
    for k, within in ((1, np.inf), (5, 0.01), (400, np.inf)):
        expected, rows = cKDTree(points).query(queries, np.arange(1, k + 1), distance_upper_bound=within)
        distances, found = neighbours.search(points, queries, k, within=within)
        np.testing.assert_allclose(distances, expected, rtol=1e-12)
        np.testing.assert_array_equal(found, rows)


def test_nothing_is_near_no_points(backend: str) -> None:
    distances, rows = neighbours.search(np.zeros((0, 3)), np.zeros((2, 3)), 2)
    assert np.isinf(distances).all() and (rows == 0).all()


def test_what_is_not_finite_is_refused(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setattr(neighbours, "_cores", lambda: 3)
    queries = _surface(rng, 9000)
    queries[7000] = np.nan
    with pytest.raises(ValueError, match="finite"):
        neighbours.search(queries[:100], queries)


_LONG = """
import signal
import numpy as np
from ficgan.pointcloud import neighbours
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
neighbours._cores = lambda: 4
points = np.random.default_rng(0).random((20_000, 3))
print("ready", flush=True)
while True:
    neighbours.search(points, points, 50)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to another process")
@pytest.mark.parametrize("backend", ["pykdtree", "scipy"])
def test_an_interruption_ends_as_one_and_never_as_a_crash(backend: str) -> None:
    hidden = "import sys; sys.modules['pykdtree.kdtree'] = None\n" if backend == "scipy" else ""
    running = [
        subprocess.Popen([sys.executable, "-c", hidden + _LONG], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
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
