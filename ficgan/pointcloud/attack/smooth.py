"""SmoothKNN taken back: what a mean over neighbours took away is added again, a few times."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ficgan.errors import UsageError
from ficgan.pointcloud.cloud import Cloud, Points
from ficgan.pointcloud.methods.colours import rounded_colors
from ficgan.pointcloud.methods.smooth_knn import SmoothKNN
from ficgan.pointcloud.neighbours import mean_of_neighbours, search

__all__ = ["guess_smoothing", "unsmooth"]

_STEPS = 4
"""On two made heads that no figure is of, the surface came nearest after two to four steps at k = 64, 160 and 280."""
_FEWEST = 100
_COARSE = (*range(10), 12, 16, 21, 27, 35)
"""Degrees that are tried first, then halfway to the neighbours of the best; 0 is no smoothing. Low ones are cheap, and
beside the right one nothing shows of it."""


def unsmooth(cloud: Cloud, k: int, *, steps: int = _STEPS) -> Cloud:
    """The source of a smoothed cloud, as far as it comes back.

    Smoothing what is sought must give what is there; what is missing is added to it, again and again. Whose mean a
    point was is not known, and is read off what has come back so far. Were the neighbours of the source known, many
    more steps would bring more (two fifths of the error are left at k = 64); with those that are found they bring
    noise, so the steps are few. Where a step leaves more missing than the one before, the iteration ends with what left
    least.

    Args:
        cloud: smoothed; all that was smoothed together, at least k points.
        k: that it was smoothed with; `guess_smoothing` finds it.
        steps: at most.

    Returns:
        In the order given. Colours, whose edges are lost at once, are brought back by one step, over the neighbours of
        the last, and clipped to 0…255. At k = 1 the cloud as it is.

    Raises:
        UsageError: k below 1, or steps below 0.
        InputError: fewer points than k.

    Source:
        Van Cittert (1931), as in Biemond, Lagendijk, Mersereau, "Iterative methods for image deblurring", Proceedings
        of the IEEE 78 (1990), §III; of a mean over neighbours, point-cloud thesis, Algorithm 5.
    """
    if k < 1:
        raise UsageError(f"the k to take back is {k}; give 1 or more")
    if steps < 0:
        raise UsageError(f"SmoothKNN is taken back in {steps} steps; give 0 or more")
    cloud.need(k, f"the inverse of SmoothKNN with k = {k}")
    if k == 1:
        return cloud.with_points(cloud.points.copy())
    points = _added(cloud.points, k, steps)
    if cloud.colors is None or steps == 0:
        return cloud.with_points(points)
    levels = cloud.colors.astype(np.float64)
    return cloud.with_points(points, rounded_colors(2 * levels - mean_of_neighbours(points, levels, k)))


def guess_smoothing(cloud: Cloud) -> int:
    """k of a smoothed cloud, without the key: the one of the 35 at which the source's points lie most evenly.

    Taken back with its own k, points lie as evenly as farthest-point sampling had left them; with another, neighbours
    are taken for means over others than they were, and come to lie unevenly.

    Args:
        cloud: smoothed; at least 100 points, evenly spaced before, as `ficgan.pointcloud.prepare` gives to anonymisers.

    Returns:
        A multiple of 8, at most 280, or 1: not smoothed.

    Raises:
        InputError: fewer points.
    """
    cloud.need(_FEWEST, "guessing the smoothing")
    found: dict[int, float] = {}
    asked = set(_COARSE)
    while asked:
        for degree in sorted(asked):
            k = _k_of(degree)
            if k <= len(cloud):
                found[degree] = _unevenness(cloud.points if k == 1 else _added(cloud.points, k, _STEPS))
        tried = sorted(found)
        best = tried.index(min(tried, key=lambda degree: found[degree]))
        around = tried[max(best - 1, 0) : best + 2]
        asked = {(low + high) // 2 for low, high in pairwise(around)} - found.keys()
    return _k_of(tried[best])


def _k_of(degree: int) -> int:
    return int(SmoothKNN.traits.of_degree(degree)) if degree else 1


def _added(given: Points, k: int, steps: int) -> Points:
    """What smooths to `given`."""
    back, missing = given, given - mean_of_neighbours(given, given, k)
    for _ in range(steps):
        further = back + missing
        still = given - mean_of_neighbours(further, further, k)
        if np.square(still).sum() >= np.square(missing).sum():
            break
        back, missing = further, still
    return back


def _unevenness(points: Points) -> float:
    """How the distances to nearest points vary, as a share of their mean."""
    gaps = search(points, points, 2)[0][:, 1]
    return float(gaps.std() / max(gaps.mean(), np.finfo(float).tiny))
