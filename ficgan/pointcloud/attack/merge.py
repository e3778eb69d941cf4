"""Merge2Faces taken back by whoever has the target face."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.spatial.transform import Rotation

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.base import DEGREES
from ficgan.pointcloud.cloud import Cloud, Colors, Points, merged
from ficgan.pointcloud.methods.colours import rounded_colors
from ficgan.pointcloud.methods.merge_faces import Merge2Faces
from ficgan.pointcloud.neighbours import mean_of_neighbours, search
from ficgan.pointcloud.registration import register

__all__ = ["Unmerged", "guess_merge_weight", "target_from", "unmerge"]

_ROUNDS = 8
"""Of finding how a target lay; three or four suffice where it can be found."""
_TOUCHING = 0.5
"""Share of a result's points that another result at a high degree, or a stand-in for the target, is laid by."""
_SETTLED = 1e-6
"""Metres of the source; a round that moves it by less is the last."""
_BESIDE = 1e-4
"""Metres; a point that is nearer to another target point than to its own by more was not brought back to its place."""
_GRAIN = 20.0
"""Levels of noise in colours above which neighbours are averaged."""


@dataclass(frozen=True)
class Unmerged:
    """What came back.

    Args:
        cloud: in the order given; lost points lie where they were found.
        lost: [N] bool, points that did not come to lie where their own target point is the nearest.
        transform: [4,4], with which the target was laid on the cloud.
    """

    cloud: Cloud
    lost: NDArray[np.bool_]
    transform: Points


def unmerge(cloud: Cloud, weight: float, target: Cloud, transform: Points | None = None) -> Unmerged:
    """The source of a merged cloud.

    A point moves towards its nearest target point in a straight line, and no other target point comes nearer on the
    way: the target point that is nearest to the result is the one. How the target lay need not be known. It is what
    Merge2Faces would find for the source that comes back, and is sought as that: an error of it moves the source
    weight / (1 − weight) times as far the other way, and the target is then found as far off.

    The target need not be given away by whoever has it: what became of another person at degree 35 is the target but
    for .25 %, and does in its place, though less exactly; several such results may do better (`target_from`).

    Args:
        cloud: merged; the anonymised face alone, in the frame it was merged in.
        weight: that it was merged with, below 1; `guess_merge_weight` finds it.
        target: the face it was merged with, as it was given, or what stands in for it.
        transform: [4,4], that lays the target on the source; None: it is found.

    Returns:
        The source, to rounding with the transform. Without, on two pairs of real scans at degrees 1 to 35, in single
        precision, at most .003 mm off; on two of made heads with normals of their own, which the target was laid by and
        nobody gets, .11 mm in the mean and 1 % lost. Colours come back to ±½ / (1 − weight) levels; of noisier ones
        neighbours are averaged, and at degree 35 little is left of them.

    Raises:
        InputError: an empty cloud, or clouds that cannot be registered.
        UsageError: weight 1, which leaves nothing of the source, or a weight that is none.

    Source:
        Point-cloud thesis, Algorithm 4, line 5, solved for the source.
    """
    if not 0 <= weight < 1:
        raise UsageError(f"the weight to take back is {weight}; give 0 or more, below 1 (at 1 the source is gone)")
    for one, what in ((cloud, "the inverse of Merge2Faces"), (target, "its target")):
        one.need(1, what)
    if transform is not None:
        return _taken(cloud, weight, target, transform)
    bare = Cloud(cloud.points)
    back = _taken(cloud, weight, target, _laid(bare, weight, target))
    if not back.lost.any():
        return back
    # A stand-in, or a target without the normals it was laid by, need not register as the target did.
    touching = _pulled(bare, target, register(bare, target).transform, share=_TOUCHING)
    return min(back, _taken(cloud, weight, target, touching), key=lambda one: int(one.lost.sum()))


def guess_merge_weight(cloud: Cloud, target: Cloud) -> float:
    """The weight of a merged cloud, without the key: the one at which the source's points lie most evenly.

    Merging draws points together in clumps about the target's; a weight too high or too low leaves some of that.

    Args:
        cloud: merged, at least 100 points.
        target: as it was given.

    Returns:
        0…0.9975. On the faces of `unmerge` the nearest degree is the right one. It needs a source that is evenly
        spaced, as farthest-point sampling leaves it, which is what `ficgan.pointcloud.prepare` gives to anonymisers.

    Raises:
        InputError: fewer points, or clouds that cannot be registered.
    """
    cloud.need(100, "guessing the weight of the target")
    bare = Cloud(cloud.points)
    start = register(bare, target).transform
    lying = [target.moved(one).points for one in (start, _pulled(bare, target, start))]
    pairs = [(place, search(place, bare.points)[1][:, 0]) for place in lying]

    def unevenness(weight: float, place: Points, rows: NDArray[np.intp]) -> float:
        points = bare.points + weight / (1 - weight) * (bare.points - place[rows])
        gaps = search(points, points, 2)[0][:, 1:]
        return float(gaps.std() / max(gaps.mean(), np.finfo(float).tiny))

    grid = [Merge2Faces.traits.of_degree(degree) for degree in (0, *DEGREES)]
    _, best, chosen = min(
        (unevenness(weight, *pair), weight, n) for weight, (n, pair) in product(grid, enumerate(pairs))
    )
    low, high = max(best - grid[1], 0.0), min(best + grid[1], grid[-1])
    # Between degrees, in 1 / (1 − weight), which the points move in proportion to.
    found = minimize_scalar(
        lambda reach: unevenness(1 - 1 / reach, *pairs[chosen]), bounds=(1 / (1 - low), 1 / (1 - high)),
        method="bounded", options={"xatol": 1e-3 / (1 - best)},
    )  # fmt: skip
    return float(1 - 1 / found.x) if found.fun < unevenness(best, *pairs[chosen]) else float(best)


def target_from(results: Sequence[Cloud]) -> Cloud:
    """A target face, from what others became with it at a high degree: a stand-in for `unmerge`.

    Near weight 1 a result is the target, at the points that its own source was drawn to, and lying as it was laid on
    that source. Several are laid on the first, and have more of the target's points.

    Args:
        results: merged with one target at a weight near 1, one or more.

    Returns:
        All their points, without normals, lying as the first does.

    Raises:
        UsageError: no result.
        InputError: clouds that cannot be registered.
    """
    if not results:
        raise UsageError("there is no result to take the target from; give one or more")
    first, *others = (Cloud(one.points, one.colors) for one in results)
    bare = Cloud(first.points)
    laid = [
        one.moved(_pulled(bare, one, register(bare, Cloud(one.points)).transform, share=_TOUCHING)) for one in others
    ]
    return merged(first, *laid)


def _taken(cloud: Cloud, weight: float, target: Cloud, transform: Points) -> Unmerged:
    """The source, with the target as laid."""
    there = target.moved(transform)
    points, rows = _drawn_back(cloud.points, weight, there.points)
    own = np.linalg.norm(points - there.points[rows], axis=1)
    lost = own > search(there.points, points)[0][:, 0] + _BESIDE
    points[lost] = cloud.points[lost]
    colors = cloud.colors
    if colors is not None and target.colors is not None:
        colors = _unmixed(points, colors, weight, target.colors[rows])
    return Unmerged(cloud.with_points(points, colors), lost, transform)


def _drawn_back(points: Points, weight: float, target: Points) -> tuple[Points, NDArray[np.intp]]:
    """The source's points, and rows of the target points that they had been drawn to."""
    rows = search(target, points)[1][:, 0]
    return points + weight / (1 - weight) * (points - target[rows]), rows


def _laid(cloud: Cloud, weight: float, target: Cloud) -> Points:
    """The transform that Merge2Faces found for the source."""
    transform = register(cloud, target).transform
    if weight > 0.5:
        transform = _pulled(cloud, target, transform)
    best, least = transform, np.inf
    for _ in range(_ROUNDS):
        source = Cloud(_drawn_back(cloud.points, weight, target.moved(transform).points)[0])
        try:
            step = register(source, target).transform @ np.linalg.inv(transform)
        except InputError:  # the source is nowhere near
            break
        # The registration errs weight / (1 − weight) times as much the other way; so much of the step is the error.
        size = float(np.abs(Cloud(target.points).moved(step).points - target.points).max())
        if size < least:
            best, least = _share(step, 1 - weight) @ transform, size
        transform = _share(step, 1 - weight) @ transform
        if size * weight < _SETTLED:
            break
    return best


def _pulled(cloud: Cloud, target: Cloud, transform: Points, share: float = 1.0) -> Points:
    """The target laid where a merged cloud's points are nearest to its own: at a high weight they almost touch.

    Of the points, so many as `share` says are laid by, the nearest ones: others may have no partner.
    """
    for _ in range(50):
        there = target.moved(transform).points
        away, rows = (one[:, 0] for one in search(there, cloud.points))
        kept = away <= np.quantile(away, share)
        here, there = cloud.points[kept], there[rows[kept]]
        middle, mean = here.mean(axis=0), there.mean(axis=0)
        step = np.eye(4)
        step[:3, :3] = Rotation.align_vectors(here - middle, there - mean)[0].as_matrix()
        step[:3, 3] = middle - step[:3, :3] @ mean
        transform = step @ transform
        if np.abs(step - np.eye(4)).max() < 1e-8:
            break
    return transform


def _share(step: Points, share: float) -> Points:
    """So much of a small motion [4,4]."""
    part = np.eye(4)
    part[:3, :3] = Rotation.from_rotvec(share * Rotation.from_matrix(step[:3, :3]).as_rotvec()).as_matrix()
    part[:3, 3] = share * step[:3, 3]
    return part


def _unmixed(points: Points, colors: Colors, weight: float, theirs: Colors) -> Colors:
    """The source's colours; what rounding left of them, many times enlarged, is averaged over neighbours."""
    levels = colors + weight / (1 - weight) * (colors.astype(np.float64) - theirs)
    noise = np.sqrt(1 / 12) / (1 - weight)
    count = min(int(np.ceil((noise / _GRAIN) ** 2)), len(points))
    return rounded_colors(levels if count < 2 else mean_of_neighbours(points, levels, count))
