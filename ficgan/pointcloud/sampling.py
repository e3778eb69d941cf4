"""Subsets of a cloud: one that covers it evenly (farthest-point sampling), and one that has every place once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import Cloud

__all__ = ["farthest_point_sample", "without_duplicates"]

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


def farthest_point_sample(points: Floats, count: int, *, start: int | None = None) -> Indices:
    """Indices of `count` points, each the farthest from those before it.

    No point of the cloud is farther from the sample than twice the least distance that a sample of that size can reach.
    With the package `fpsample` and no `start` the work hardly grows with the count; else it grows as points × count.

    Args:
        points: [N,3].
        count: 1…N; N gives all points.
        start: index of the first; None: any, the same for the same points.

    Returns:
        [count], none twice, in the order in which they were chosen.

    Raises:
        InputError: fewer points than `count`.
        UsageError: a count or start that cannot work.

    Source:
        Point-cloud thesis, §4.1.4.2 (standardization); Gonzalez 1985 for the bound.
    """
    if count < 1:
        raise UsageError(f"a sample of {count} points was asked for; it must have at least 1")
    if len(points) < count:
        raise InputError(f"the cloud has {len(points)} points, and a sample of {count} was asked for; ask for fewer")
    if start is not None and not 0 <= start < len(points):
        raise UsageError(f"the sample is to start at point {start} of {len(points)}; start at 0 to {len(points) - 1}")
    centred = np.asarray(points, np.float64) - np.mean(points, axis=0)
    chosen = _bucketed(centred, count) if start is None and len(points) >= _BUCKETED_FROM else None
    # fpsample chooses points again when all that are left lie on chosen ones; the loop takes each of them once.
    if chosen is None or len(np.unique(chosen)) < count:
        return _greedy(centred, count, start or 0)
    return chosen


def without_duplicates(cloud: Cloud) -> tuple[Cloud, int]:
    """Each place once: of points with the same coordinates, to the last bit, the first stays.

    A point that is there k times would be its own k nearest neighbours.

    Args:
        cloud: any.

    Returns:
        the cloud, the same object where none had to go, in its order; and how many went.
    """
    x, y, z = cloud.points.T
    along = np.sort(x)
    if not (along[1:] == along[:-1]).any():  # one sort in place of three, as real scans have few equal coordinates
        return cloud, 0
    order = np.lexsort((z, y, x))  # stable: equal points stay in their order
    rows = cloud.points[order]
    again = np.zeros(len(cloud), bool)
    again[order[1:]] = (rows[1:] == rows[:-1]).all(axis=1)
    count = int(again.sum())
    return (cloud.take(~again), count) if count else (cloud, 0)


_BUCKETED_FROM = 1024
"""Points from which on fpsample is used: its trees need some, and below the loop takes little time."""


def _bucketed(points: Floats, count: int) -> Indices | None:
    """The sample by fpsample, which computes in float32 and takes its start in an order of its own; None without it."""
    try:
        import fpsample
    except ImportError:
        return None
    scaled = (points / (np.abs(points).max() or 1.0)).astype(np.float32)
    height = 7 if len(points) > 8192 else 5
    return np.asarray(fpsample.bucket_fps_kdline_sampling(scaled, count, h=height, start_idx=0), np.intp)


def _greedy(points: Floats, count: int, start: int) -> Indices:
    x, y, z = np.ascontiguousarray(points.T)
    chosen = np.empty(count, np.intp)
    nearest = np.full(len(points), np.inf)
    for place in range(count):
        chosen[place] = start
        np.minimum(nearest, (x - x[start]) ** 2 + (y - y[start]) ** 2 + (z - z[start]) ** 2, out=nearest)
        nearest[start] = -1.0  # a duplicate of a chosen point may follow, the point itself may not
        start = int(nearest.argmax())
    return chosen
