"""Anonymisers taken back: Tapering by whoever knows or guesses r, Merge2Faces by whoever has the target face."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.spatial.transform import Rotation

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.base import DEGREES
from ficgan.pointcloud.cloud import Cloud, Colors, Points
from ficgan.pointcloud.methods.colours import rounded_colors
from ficgan.pointcloud.methods.merge_faces import Merge2Faces
from ficgan.pointcloud.methods.tapering import taper_factors, taper_function
from ficgan.pointcloud.neighbours import mean_of_neighbours, search
from ficgan.pointcloud.registration import register

__all__ = ["Unmerged", "Untapered", "guess_merge_weight", "guess_taper", "unmerge", "untaper"]

_STEP = 0.0087
"""Of r: a tenth of a degree, so every degree of table 4.2 is tried."""
_TRIED = _STEP * np.arange(401)
_SLICES = 32
_SIZE_WEIGHT = 0.3
"""Of the face's size beside its shape: heads differ more in size (chosen on 12 scans and 8 made heads)."""
_APART = 0.02
"""Metres; what is further apart than this does not belong together."""
_HALF_HEIGHT, _DEPTH = 0.095, 0.09
"""Metres, of an inner face when no other faces are given."""

_ROUNDS = 8
"""Of finding how a target lay; three or four suffice where it can be found."""
_SETTLED = 1e-6
"""Metres of the source; a round that moves it by less is the last."""
_BESIDE = 1e-4
"""Metres; a point that is nearer to another target point than to its own by more was not brought back to its place."""
_GRAIN = 20.0
"""Levels of noise in colours above which neighbours are averaged."""


@dataclass(frozen=True)
class Untapered:
    """What came back.

    Args:
        cloud: in the order given; lost points lie where they were found.
        lost: [N] bool, points that were drawn so close to the z axis that nothing comes back.
    """

    cloud: Cloud
    lost: NDArray[np.bool_]


def untaper(cloud: Cloud, r: float, *, floor: float = 1e-3) -> Untapered:
    """The source of a tapered cloud.

    Args:
        cloud: all that was tapered together, and nothing else: ranks along z are counted.
        r: that it was tapered with.
        floor: points with |F| of less are lost; a guess of r that is off by δ misplaces the others by about |F′/F|·δ.

    Returns:
        The source, to rounding, and which points are lost.

    Raises:
        InputError: an empty cloud.

    Source:
        Point-cloud thesis, equation 3.2.
    """
    cloud.need(1, "the inverse of Tapering")
    factors = taper_factors(cloud.points[:, 2], r)
    lost = np.abs(factors) < floor
    points = cloud.points.copy()
    points[:, :2] /= np.where(lost, 1.0, factors)[:, None]
    return Untapered(cloud.with_points(points), lost)


def guess_taper(cloud: Cloud, *, background: Sequence[Cloud] = (), outer: Cloud | None = None) -> float:
    """r of a tapered cloud, without the key.

    How far a slice of the face lies from the z axis, slice by slice, is much the same for all faces; F bends that
    profile by an amount that depends on r alone. With the untouched outer part, r must also bring the face's edge back
    to it.

    Args:
        cloud: the tapered inner face, canonical frame, metres.
        background: inner faces of other people, not tapered, prepared alike; none: a half cylinder of a face's
            size, a poor stand-in for small r.
        outer: the part of the same scan that was not anonymised; None: unknown.

    Returns:
        r, 0…3.48. Up to r ≈ 0.5 faces differ more than the tapering bends them, and it bends them by 2 mm at most.

    Raises:
        InputError: fewer than 100 points.
    """
    cloud.need(100, "guessing the tapering")
    plain = np.mean([_profile(one.points) for one in background], axis=0) if background else _half_cylinder()
    bent = _profile(cloud.points) - plain - _bends()
    off = bent.mean(axis=1)
    misfit = ((bent - off[:, None]) ** 2).mean(axis=1) + _SIZE_WEIGHT * off**2
    if outer is None or not len(outer):
        return float(_TRIED[misfit.argmin()])
    return _by_edge(cloud, _edge(outer), misfit)


def _profile(points: Points) -> NDArray[np.float64]:
    """Logarithm of the root mean square distance from the z axis, in slices of equally many points along z."""
    along = points[np.argsort(points[:, 2], kind="stable"), :2]
    squares = (along**2).sum(axis=1)
    return 0.5 * np.log([max(float(one.mean()), 1e-12) for one in np.array_split(squares, _SLICES)])


@lru_cache(maxsize=1)
def _bends() -> NDArray[np.float64]:
    """What each r of `_TRIED` adds to a profile, [R,slices]."""
    along = np.linspace(-1.0, 1.0, _SLICES * 32)
    squares = taper_function(_TRIED[:, None] * along) ** 2
    return np.asarray(0.5 * np.log(squares.reshape(len(_TRIED), _SLICES, -1).mean(axis=2)))


def _half_cylinder() -> NDArray[np.float64]:
    """The profile of an upright half cylinder whose front line is at the origin."""
    angle = (np.arange(_SLICES) + 0.5) / _SLICES * np.pi - np.pi / 2
    return np.asarray(0.5 * np.log(_HALF_HEIGHT**2 / 3 + (_DEPTH * (1 - np.cos(angle))) ** 2))


def _edge(outer: Cloud) -> Points:
    """Points of the outer part that lie next to the inner: the seventh that is nearest to the nose."""
    away = np.linalg.norm(outer.points, axis=1)
    return outer.points[away <= np.quantile(away, 1 / 7)]


def _by_edge(cloud: Cloud, edge: Points, misfit: NDArray[np.float64]) -> float:
    """r that brings the face up to the edge and not over it, the cut being a sphere around the nose.

    F rises and falls, so two r may do; the profile chooses between them.
    """

    def gap(row: int) -> float:
        back = untaper(cloud, float(_TRIED[row]), floor=0.05)
        points = back.cloud.points[~back.lost]
        short = np.minimum(search(points, edge, within=_APART)[0][:, 0], _APART)
        over = np.clip(np.linalg.norm(points, axis=1) - cut, 0, _APART)
        return float(short.sum() + over.sum())

    cut = np.linalg.norm(edge, axis=1).min()
    coarse = np.arange(0, len(_TRIED), 5)
    gaps = np.array([gap(row) for row in coarse.tolist()])
    close = coarse[gaps <= 1.1 * gaps.min()]
    best = int(close[misfit[close].argmin()])
    return float(_TRIED[min(range(max(best - 4, 0), min(best + 5, len(_TRIED))), key=gap)])


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

    Args:
        cloud: merged; the anonymised face alone, in the frame it was merged in.
        weight: that it was merged with, below 1; `guess_merge_weight` finds it.
        target: the face it was merged with, as it was given.
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
    if transform is None:
        transform = _laid(Cloud(cloud.points), weight, target)
    there = target.moved(transform)
    points, rows = _drawn_back(cloud.points, weight, there.points)
    own = np.linalg.norm(points - there.points[rows], axis=1)
    lost = own > search(there.points, points)[0][:, 0] + _BESIDE
    points[lost] = cloud.points[lost]
    colors = cloud.colors
    if colors is not None and target.colors is not None:
        colors = _unmixed(points, colors, weight, target.colors[rows])
    return Unmerged(cloud.with_points(points, colors), lost, transform)


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


def _pulled(cloud: Cloud, target: Cloud, transform: Points) -> Points:
    """The target laid where a merged cloud's points are nearest to its own: at a high weight they almost touch."""
    for _ in range(50):
        there = target.moved(transform).points
        there = there[search(there, cloud.points)[1][:, 0]]
        middle, mean = cloud.points.mean(axis=0), there.mean(axis=0)
        step = np.eye(4)
        step[:3, :3] = Rotation.align_vectors(cloud.points - middle, there - mean)[0].as_matrix()
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
