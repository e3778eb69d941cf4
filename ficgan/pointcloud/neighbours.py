"""Nearest neighbours of points, exactly: which they are, the mean of values over them, how far they are in the mean."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from ficgan.errors import InputError, UsageError

__all__ = ["Tree", "mean_distances", "mean_of_neighbours", "nearest", "search", "tree_order"]

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

_LEAF = 24
"""Points of a leaf; 10 takes 3 % longer."""
_CHUNK = 1024
"""Queries between two of which a search may be interrupted."""
_ROWS = 16384
_SORTED = 128
"""Neighbours up to which pykdtree is faster; it sorts what it finds by insertion."""
_MANY = 70
"""Neighbours from which on matrices of distances are faster than a search of the tree (280: half the time)."""
_BLOCK = 24
"""Points of such a matrix; with fewer, or with 48, it takes a tenth longer."""
_ROUNDING = 1 + 1e-12


class Tree:
    """Points among which the nearest are found, exactly: pykdtree's tree where it is installed, else SciPy's.

    Args:
        points: [N,D], finite.
    """

    def __init__(self, points: NDArray[np.floating]) -> None:
        self._points: Floats = np.ascontiguousarray(points, np.float64)

    @cached_property
    def _quick(self) -> Any:
        return _quick_tree(self._points)

    @cached_property
    def _plain(self) -> cKDTree:
        return cKDTree(self._points, leafsize=_LEAF)

    def nearest(
        self, queries: NDArray[np.floating], k: int = 1, *, within: float = np.inf
    ) -> tuple[Floats, NDArray[np.int64]]:
        """The `k` nearest points of each query, on all cores that this process may use.

        Args:
            queries: [M,D], finite. Those that lie together should follow each other: caches hold.
            k: 1 or more.
            within: points this far away or farther are not found.

        Returns:
            distances [M,k] and rows of the points [M,k], nearest first; inf and N where there is none.

        Raises:
            ValueError: queries that are not finite.
        """
        asked: Floats = np.ascontiguousarray(queries, np.float64)
        if k > _SORTED or self._quick is None:
            return _by_scipy(self._plain, asked, k, within)
        if not np.isfinite(asked).all():
            raise ValueError("queries of a tree must be finite")
        found = min(k, len(self._points))
        if not len(asked):
            return np.empty((0, k)), np.empty((0, k), np.int64)
        some = self._quick.query(asked, k=found, distance_upper_bound=None if np.isinf(within) else within)
        distances, rows = (part.reshape(len(asked), found) for part in some)
        if found == k:
            return distances, rows.astype(np.int64)
        beyond = (0, 0), (0, k - found)
        return (
            np.pad(distances, beyond, constant_values=np.inf),
            np.pad(rows.astype(np.int64), beyond, constant_values=len(self._points)),
        )


def search(
    points: NDArray[np.floating], queries: NDArray[np.floating], k: int = 1, *, within: float = np.inf
) -> tuple[Floats, NDArray[np.int64]]:
    """The `k` nearest points of each query, of a tree that is asked once; see `Tree.nearest`."""
    return Tree(points).nearest(queries, k, within=within)


def tree_order(points: Floats) -> Indices:
    """Rows [N] that put near points near one another in memory, in which a tree answers in half the time."""
    return cKDTree(points).indices


def _quick_tree(points: Floats) -> Any:
    """Of pykdtree, which takes half of SciPy's time; None without it, or without points."""
    try:
        from pykdtree.kdtree import KDTree
    except ImportError:
        return None
    return KDTree(points) if len(points) else None


def _by_scipy(tree: Any, queries: Floats, k: int, within: float) -> tuple[Floats, NDArray[np.int64]]:
    """SciPy's own threads (`workers`) outlive an interruption and crash the interpreter as it ends; these do not."""
    columns = np.arange(1, k + 1)
    distances, rows = np.empty((len(queries), k)), np.empty((len(queries), k), np.int64)

    def answer(start: int) -> None:
        part = slice(start, start + _CHUNK)
        distances[part], rows[part] = tree.query(queries[part], columns, distance_upper_bound=within)

    starts = range(0, len(queries), _CHUNK)
    threads = min(_cores(), len(starts) // 2)
    if threads < 2:
        for start in starts:
            answer(start)
        return distances, rows
    pool = ThreadPoolExecutor(threads)
    try:
        for _ in pool.map(answer, starts):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
    return distances, rows


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def nearest(points: Floats, queries: Floats, k: int) -> tuple[Floats, Indices]:
    """The `k` points nearest to each query, nearest first.

    Args:
        points: [N,3].
        queries: [M,3]; a query that is itself one of the points finds itself, at distance 0, once.
        k: 1…N.

    Returns:
        distances [M,k] and indices into `points` [M,k].

    Raises:
        InputError: fewer than k points.
        UsageError: k below 1.
    """
    _need(points, k)
    return search(points, queries, k)


def mean_of_neighbours(points: Floats, values: Floats, k: int) -> Floats:
    """For each point, the mean of `values` over its k nearest points, of which it is one.

    Where several points are exactly as far away as the k-th, which of them count is left open.

    Args:
        points: [N,3].
        values: [N,C], or [N]: what is averaged.
        k: 1…N.

    Returns:
        as `values`, float64.

    Raises:
        InputError: fewer than k points.
        UsageError: k below 1.
    """
    _need(points, k)
    values = np.asarray(values, np.float64)
    columns = values.reshape(len(values), -1)
    mean = np.empty_like(columns)
    if k < _MANY:
        for rows, _, indices in _searched(points, k):
            starts = np.arange(0, indices.size + 1, k, dtype=np.int32)
            ones = csr_array((np.ones(indices.size), indices.ravel(), starts), shape=(len(rows), len(points)))
            mean[rows] = ones @ columns / k
    else:
        for rows, candidates, squared in _blocks(points, k):
            kth = np.partition(squared, k - 1, axis=1)[:, k - 1, None]
            near = (squared <= kth * _ROUNDING).astype(np.float64)
            mean[rows] = near @ columns[candidates] / near.sum(axis=1, keepdims=True)
    return mean.reshape(values.shape)


def mean_distances(points: Floats, k: int) -> Floats:
    """For each point, the mean distance to its k nearest points, of which it is one, at distance 0.

    Args:
        points: [N,3].
        k: 1…N.

    Returns:
        [N].

    Raises:
        InputError: fewer than k points.
        UsageError: k below 1.
    """
    _need(points, k)
    mean = np.empty(len(points))
    if k < _MANY:
        for rows, distances, _ in _searched(points, k):
            mean[rows] = distances.mean(axis=1)
    else:
        for rows, _, squared in _blocks(points, k):
            mean[rows] = np.sqrt(np.partition(squared, k - 1, axis=1)[:, :k]).mean(axis=1)
    return mean


def _searched(points: Floats, k: int) -> Iterator[tuple[Indices, Floats, NDArray[np.int32]]]:
    """Rows, distances and indices of their k nearest points, by search of a tree, some thousand rows at a time."""
    order = tree_order(points)
    together, numbers = points[order], order.astype(np.int32)
    tree = Tree(together)
    for start in range(0, len(points), _ROWS):
        rows = slice(start, start + _ROWS)
        distances, indices = tree.nearest(together[rows], k)
        yield order[rows], distances, numbers[indices]


def _blocks(points: Floats, k: int) -> Iterator[tuple[Indices, Indices, Floats]]:
    """Rows that lie together, candidates that hold the k nearest points of each of them, squared distances between.

    Rows within ρ of a centre, whose own k-th neighbour is R away, have their k nearest within R + ρ, so within R + 2ρ
    of the centre. One matrix of distances for a block is several times faster than a search of the tree for each row.
    """
    groups = _halved(points, _BLOCK)
    low = np.array([points[rows].min(axis=0) for rows in groups])
    high = np.array([points[rows].max(axis=0) for rows in groups])
    centres = (low + high) / 2
    tree = cKDTree(points)
    reach = tree.query(centres, k=[k])[0][:, 0]
    for rows, centre, radius in zip(groups, centres, reach, strict=True):
        block = points[rows]
        spread = np.sqrt(((block - centre) ** 2).sum(axis=1).max())
        found = tree.query_ball_point(centre, (radius + 2 * spread) * _ROUNDING, return_sorted=False)
        candidates = np.array(found, np.intp)
        yield rows, candidates, cdist(block, points[candidates], "sqeuclidean")


def _halved(points: Floats, size: int) -> list[Indices]:
    """Indices of all points in groups of at most `size`, halved at the median of the longest side."""
    groups, waiting = [], [np.arange(len(points))]
    while waiting:
        rows = waiting.pop()
        if len(rows) <= size:
            groups.append(rows)
            continue
        block = points[rows]
        axis = np.ptp(block, axis=0).argmax()
        order = np.argpartition(block[:, axis], len(rows) // 2)
        waiting += [rows[order[: len(rows) // 2]], rows[order[len(rows) // 2 :]]]
    return groups


def _need(points: Floats, k: int) -> None:
    if k < 1:
        raise UsageError(f"the number of neighbours is {k}; it must be at least 1")
    if len(points) < k:
        raise InputError(
            f"the cloud has {len(points)} points, too few for {k} neighbours; give a denser cloud or a smaller k"
        )
