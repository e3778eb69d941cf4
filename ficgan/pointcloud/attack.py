"""Anonymisers reversed, by whoever knows their parameter: `untaper` and `unmerge` exactly, `unsmooth` in part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import Cloud, Colors, Points, closest, mean_of_neighbours, rigid, rounded_colors
from ficgan.pointcloud.geometry import register, rigid_fit
from ficgan.pointcloud.methods import taper_factors

_STEPS = 4  # of van Cittert's iteration; with more, errors in the neighbours grow
_ROUNDS = 8  # of finding how a target lay; three or four suffice where it can be found
_SETTLED = 1e-6  # metres of the source; a round that moves it by less is the last
_BESIDE = 1e-4  # metres; a point nearer to another target point than to its own by more was not brought back
_GRAIN = 20.0  # levels of noise in colours above which neighbours are averaged


@dataclass(frozen=True)
class RestoredCloud:
    """An anonymisation reversed."""

    cloud: Cloud  # in the order given; lost points lie where they were found
    lost: NDArray[np.bool_]  # [N] bool, points that do not come back
    transform: Points | None = None  # [4,4], with which a target was laid on the cloud


def untaper(cloud: Cloud, r: float, *, floor: float = 1e-3) -> RestoredCloud:
    """The source of a tapered cloud (thesis, eq. 3.2).

    Args:
        cloud: exactly what was tapered together: ranks along z are counted.
        r: the anonymiser's parameter.
        floor: of |F|, below which a point is lost: it was drawn so close to the z axis that nothing comes back.
    """
    cloud.need(1, "the inverse of Tapering")
    factors = taper_factors(cloud.points[:, 2], r)
    lost = np.abs(factors) < floor
    points = cloud.points.copy()
    points[:, :2] /= np.where(lost, 1.0, factors)[:, None]
    return RestoredCloud(cloud.with_points(points), lost)


def unsmooth(cloud: Cloud, k: int) -> Cloud:
    """The source of a cloud smoothed with k, in part: van Cittert's iteration (Biemond et al. 1990, §III).

    Neighbours are those found so far, which is why the steps are few; it ends where a step leaves more missing.
    """
    if k < 1:
        raise UsageError(f"the k to take back is {k}; give 1 or more")
    cloud.need(k, f"the inverse of SmoothKNN with k = {k}")
    points, missing = cloud.points, cloud.points - mean_of_neighbours(cloud.points, cloud.points, k)
    for _ in range(_STEPS):
        further = points + missing
        still = cloud.points - mean_of_neighbours(further, further, k)
        if np.square(still).sum() >= np.square(missing).sum():
            break
        points, missing = further, still
    if cloud.colors is None:
        return cloud.with_points(points)
    levels = cloud.colors.astype(np.float64)
    return cloud.with_points(points, rounded_colors(2 * levels - mean_of_neighbours(points, levels, k)))


def unmerge(cloud: Cloud, weight: float, target: Cloud, transform: Points | None = None) -> RestoredCloud:
    """The source of a merged cloud: thesis, Algorithm 4, line 5, solved for the source.

    A point moves straight towards its nearest target point, which is then the nearest to the result, too. Colours come
    back to ±½ / (1 − weight) levels.

    Args:
        cloud: the anonymised face alone, in the frame it was merged in.
        weight: that it was merged with, below 1.
        target: the face it was merged with.
        transform: [4,4], that lays the target on the source; None: it is found.
    """
    if not 0 <= weight < 1:
        raise UsageError(f"the weight to take back is {weight}; give 0 or more, below 1 (at 1 the source is gone)")
    cloud.need(1, "the inverse of Merge2Faces")
    target.need(1, "its target")
    transform = _lay(Cloud(cloud.points), weight, target) if transform is None else transform
    there = target.moved(transform)
    points, rows = _drawn_back(cloud.points, weight, there.points)
    own = np.linalg.norm(points - there.points[rows], axis=1)
    lost = own > closest(there.points, points)[0] + _BESIDE
    points[lost] = cloud.points[lost]
    colors = cloud.colors
    if colors is not None and target.colors is not None:
        colors = _unmixed(points, colors, weight, target.colors[rows])
    return RestoredCloud(cloud.with_points(points, colors), lost, transform)


def _drawn_back(points: Points, weight: float, target: Points) -> tuple[Points, NDArray[np.int64]]:
    rows = closest(target, points)[1]
    return points + weight / (1 - weight) * (points - target[rows]), rows


def _lay(cloud: Cloud, weight: float, target: Cloud) -> Points:
    """How the target lay on the source [4,4], by turns with what the source then was."""
    transform = _pulled(cloud, target) if weight > 0.5 else register(cloud, target).transform
    best, least = transform, np.inf
    for _ in range(_ROUNDS):
        source = Cloud(_drawn_back(cloud.points, weight, target.moved(transform).points)[0])
        try:
            step = register(source, target).transform @ np.linalg.inv(transform)
        except InputError:  # the source is nowhere near
            break
        # The registration errs weight / (1 − weight) times as much the other way; so much of the step is the error.
        size = float(np.abs(Cloud(target.points).moved(step).points - target.points).max())
        turn = Rotation.from_rotvec((1 - weight) * Rotation.from_matrix(step[:3, :3]).as_rotvec())
        transform = rigid(turn.as_matrix(), (1 - weight) * step[:3, 3]) @ transform
        if size < least:
            best, least = transform, size
        if size * weight < _SETTLED:
            break
    return best


def _pulled(cloud: Cloud, target: Cloud) -> Points:
    """The motion [4,4] that lays a target on a result near to it: ICP from point to point, after `register`."""
    transform = register(cloud, target).transform
    for _ in range(50):
        there = target.moved(transform).points
        step = rigid_fit(there[closest(there, cloud.points)[1]], cloud.points)
        transform = step @ transform
        if np.abs(step - np.eye(4)).max() < 1e-8:
            break
    return transform


def _unmixed(points: Points, colors: Colors, weight: float, theirs: Colors) -> Colors:
    levels = colors + weight / (1 - weight) * (colors.astype(np.float64) - theirs)
    noise = np.sqrt(1 / 12) / (1 - weight)
    count = min(int(np.ceil((noise / _GRAIN) ** 2)), len(points))
    return rounded_colors(levels if count < 2 else mean_of_neighbours(points, levels, count))
