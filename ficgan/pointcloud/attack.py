"""Anonymisers reversed: `untaper`, `unsmooth`, `denoise` and `unmerge`; the guesses find the anonymiser's parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.spatial.transform import Rotation

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import (
    Cloud,
    Colors,
    Points,
    closest,
    mean_of_neighbours,
    merged,
    pca_normals,
    rigid,
    rounded_colors,
    search,
)
from ficgan.pointcloud.geometry import register, rigid_fit
from ficgan.pointcloud.methods import DEGREES, Merge2Faces, SmoothKNN, taper_factors, taper_function

_FEWEST = 100  # points that a guess needs


def _unevenness(points: Points) -> float:
    gaps = search(points, points, 2)[0][:, 1]
    return float(gaps.std() / max(gaps.mean(), np.finfo(float).tiny))


# Tapering.

_R_STEP = 0.0087  # A tenth of a degree, so every degree of table 4.2 is tried
_R_TRIED = _R_STEP * np.arange(401)
_SLICES = 32
_SIZE_WEIGHT = 0.3
"""Of the face's size beside its shape: heads differ more in size (chosen on 12 scans and 8 made heads)."""
_APART = 0.02  # metres; what is further apart than this does not belong together
_HALF_HEIGHT, _DEPTH = 0.095, 0.09  # metres, of an inner face when no other faces are given


@dataclass(frozen=True)
class Untapered:
    """A tapering reversed."""

    cloud: Cloud  # in the order given; lost points lie where they were found
    lost: NDArray[np.bool_]  # [N] bool, points that were drawn so close to the z axis that nothing comes back


def untaper(cloud: Cloud, r: float, *, floor: float = 1e-3) -> Untapered:
    """The source of a tapered cloud, and which points are lost: |F| below `floor` (thesis, eq. 3.2).

    Exactly what was tapered together must be given: ranks along z are counted.
    """
    cloud.need(1, "the inverse of Tapering")
    factors = taper_factors(cloud.points[:, 2], r)
    lost = np.abs(factors) < floor
    points = cloud.points.copy()
    points[:, :2] /= np.where(lost, 1.0, factors)[:, None]
    return Untapered(cloud.with_points(points), lost)


def guess_taper(cloud: Cloud, *, background: Sequence[Cloud] = (), outer: Cloud | None = None) -> float:
    """r of a tapered cloud, 0…3.48, from its profile along z; unsure up to r ≈ 0.5.

    `background` are other people's untapered faces (none: a half cylinder), `outer` the untouched part of the scan.
    """
    cloud.need(_FEWEST, "guessing the tapering")
    plain = np.mean([_profile(face.points) for face in background], axis=0) if background else _half_cylinder()
    bent = _profile(cloud.points) - plain - _bends()
    off = bent.mean(axis=1)
    misfit = ((bent - off[:, None]) ** 2).mean(axis=1) + _SIZE_WEIGHT * off**2
    if outer is None or not len(outer):
        return float(_R_TRIED[misfit.argmin()])
    away = np.linalg.norm(outer.points, axis=1)
    return _taper_by_edge(cloud, outer.points[away <= np.quantile(away, 1 / 7)], misfit)


def _profile(points: Points) -> NDArray[np.float64]:
    squares = (points[np.argsort(points[:, 2], kind="stable"), :2] ** 2).sum(axis=1)
    return 0.5 * np.log([max(float(part.mean()), 1e-12) for part in np.array_split(squares, _SLICES)])


@lru_cache(maxsize=1)
def _bends() -> NDArray[np.float64]:
    """What each r of `_R_TRIED` adds to a profile, [R,slices]."""
    squares = taper_function(_R_TRIED[:, None] * np.linspace(-1.0, 1.0, _SLICES * 32)) ** 2
    return np.asarray(0.5 * np.log(squares.reshape(len(_R_TRIED), _SLICES, -1).mean(axis=2)))


def _half_cylinder() -> NDArray[np.float64]:
    angle = (np.arange(_SLICES) + 0.5) / _SLICES * np.pi - np.pi / 2
    return np.asarray(0.5 * np.log(_HALF_HEIGHT**2 / 3 + (_DEPTH * (1 - np.cos(angle))) ** 2))


def _taper_by_edge(cloud: Cloud, edge: Points, misfit: NDArray[np.float64]) -> float:
    cut = np.linalg.norm(edge, axis=1).min()

    def gap(row: int) -> float:
        back = untaper(cloud, float(_R_TRIED[row]), floor=0.05)
        points = back.cloud.points[~back.lost]
        short = np.minimum(closest(points, edge, within=_APART)[0], _APART)
        over = np.clip(np.linalg.norm(points, axis=1) - cut, 0, _APART)
        return float(short.sum() + over.sum())

    coarse = np.arange(0, len(_R_TRIED), 5)
    gaps = np.array([gap(row) for row in coarse.tolist()])
    close = coarse[gaps <= 1.1 * gaps.min()]
    best = int(close[misfit[close].argmin()])
    return float(_R_TRIED[min(range(max(best - 4, 0), min(best + 5, len(_R_TRIED))), key=gap)])


# SmoothKNN.

_STEPS = 4
"""On two made heads that no figure is of, the surface came nearest after two to four steps at k = 64, 160 and 280."""
_COARSE_DEGREES = (*range(10), 12, 16, 21, 27, 35)
"""Tried first, then halfway to the neighbours of the best; 0 is no smoothing. Low ones are cheap, and beside the right
one nothing shows of it."""


def unsmooth(cloud: Cloud, k: int, *, steps: int = _STEPS) -> Cloud:
    """The source of a cloud smoothed with k, in part: van Cittert's iteration (Biemond et al. 1990, §III).

    Neighbours are those found so far, which is why the steps are few; it ends where a step leaves more missing.
    """
    if k < 1:
        raise UsageError(f"the k to take back is {k}; give 1 or more")
    if steps < 0:
        raise UsageError(f"SmoothKNN is taken back in {steps} steps; give 0 or more")
    cloud.need(k, f"the inverse of SmoothKNN with k = {k}")
    if k == 1:
        return cloud.with_points(cloud.points.copy())
    points = _sharpened(cloud.points, k, steps)
    if cloud.colors is None or steps == 0:
        return cloud.with_points(points)
    levels = cloud.colors.astype(np.float64)
    return cloud.with_points(points, rounded_colors(2 * levels - mean_of_neighbours(points, levels, k)))


def guess_smoothing(cloud: Cloud) -> int:
    """k of a smoothed cloud, or 1: the one at which the source's points lie most evenly."""
    cloud.need(_FEWEST, "guessing the smoothing")
    found: dict[int, float] = {}
    wanted = set(_COARSE_DEGREES)
    while wanted:
        for degree in sorted(wanted):
            k = _k_of(degree)
            if k <= len(cloud):
                found[degree] = _unevenness(cloud.points if k == 1 else _sharpened(cloud.points, k, _STEPS))
        tried = sorted(found)
        best = tried.index(min(tried, key=lambda degree: found[degree]))
        wanted = {(low + high) // 2 for low, high in pairwise(tried[max(best - 1, 0) : best + 2])} - found.keys()
    return _k_of(tried[best])


def _k_of(degree: int) -> int:
    return int(SmoothKNN.traits.of_degree(degree)) if degree else 1


def _sharpened(given: Points, k: int, steps: int) -> Points:
    back, missing = given, given - mean_of_neighbours(given, given, k)
    for _ in range(steps):
        further = back + missing
        still = given - mean_of_neighbours(further, further, k)
        if np.square(still).sum() >= np.square(missing).sum():
            break
        back, missing = further, still
    return back


# UniformNoise.

_MEANS, _FITTED = 20.0, 50.0
"""Neighbours of the mean and of the fit for every spacing of points that the noise is wide; chosen on four made heads
that no figure is of."""
_LEAST_MEANS, _LEAST_FITTED = 8, 24
_NORMALS = 60  # neighbours that a normal is found from, at most; the means lie on a surface already
_SPACING_POINTS = 400  # points that the spacing is measured at
_BLOCK = 128
_FLOOR = 1e-6  # beside weights of about 1: keeps a fit solvable where points coincide


def denoise(cloud: Cloud, b: float) -> Cloud:
    """The surface under uniform noise of width b, metres, by moving least squares (Alexa et al. 2003, §3).

    Every point becomes the mean of its neighbours, moved onto a paraboloid fitted to the noisy points around.
    """
    if not b >= 0 or np.isinf(b):
        raise UsageError(f"the width of the noise is {b}; give 0 or more, metres")
    cloud.need(_FEWEST, "the inverse of UniformNoise")
    return cloud.with_points(cloud.points.copy() if b == 0 else _surface(cloud.points, b)[0])


def guess_noise(cloud: Cloud) -> float:
    """b of a noisy cloud, metres: within 3 % from degree 10 on; a clear face looks like noise of .6 mm, degree 1."""
    cloud.need(_FEWEST, "guessing the noise")
    b = 0.01
    for _ in range(2):
        b = float(np.sqrt(12 * np.median(_surface(cloud.points, b)[1])))
    return b


def _spacing(points: Points, b: float) -> float:
    """Side of the square of surface that a point has, metres; by spheres in which the noise is thin."""
    sample = points[:: -(-len(points) // _SPACING_POINTS)]
    count = 50
    while True:
        count = min(count, len(points) - 1)
        radius = float(np.median(search(points, sample, count + 1)[0][:, -1]))
        if radius >= 2 * b or count > len(points) // 4:
            return max(radius * float(np.sqrt(np.pi / count)), np.finfo(float).tiny)
        count *= 2


def _surface(points: Points, b: float) -> tuple[Points, NDArray[np.float64]]:
    """Of every point its place on the surface [N,3], and the variance of the noisy points about that [N], m²."""
    width = b / _spacing(points, b)
    means = min(max(_LEAST_MEANS, round(_MEANS * width)), len(points) // 4)
    count = min(max(_LEAST_FITTED, round(_FITTED * width)), len(points) // 2)
    middle = mean_of_neighbours(points, points, means)
    normals = pca_normals(middle, neighbours=min(count, _NORMALS))
    first = np.cross(normals, np.where(np.abs(normals[:, :1]) < 0.9, [[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]]))
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    axes = np.stack([first, np.cross(normals, first), normals], axis=2)
    rows = search(middle, middle, count)[1]
    found, variance = middle.copy(), np.empty(len(points))
    for start in range(0, len(points), _BLOCK):
        part = slice(start, start + _BLOCK)
        across, along = np.moveaxis((middle[rows[part]] - middle[part, None]) @ axes[part, :, :2], 2, 0)
        up = ((points[rows[part]] - middle[part, None]) @ axes[part, :, 2:])[..., 0]
        height, variance[part] = _paraboloid(across, along, up)
        found[part] += height[:, None] * normals[part]
    return found, variance


def _paraboloid(across: Points, along: Points, up: Points) -> tuple[Points, Points]:
    """Its height at the origin [N], and the variance of `up` [N,M] about it [N]; near points count more."""
    away = across**2 + along**2
    reach = np.sqrt(np.maximum(away.max(axis=1, keepdims=True), np.finfo(float).tiny))
    across, along, weights = across / reach, along / reach, 1.01 - away / reach**2
    terms = np.stack([np.ones_like(up), across, along, across**2, across * along, along**2], axis=-1)
    weighted = terms * weights[..., None]
    square = weighted.transpose(0, 2, 1) @ terms + _FLOOR * np.eye(6)
    answer = np.linalg.solve(square, np.einsum("nmi,nm->ni", weighted, up)[..., None])
    left = up - (terms @ answer)[..., 0]
    free = weights.sum(axis=1) - np.linalg.solve(square, weighted.transpose(0, 2, 1) @ weighted).trace(axis1=1, axis2=2)
    return answer[:, 0, 0], (weights * left**2).sum(axis=1) / free


# Merge2Faces.

_ROUNDS = 8  # of finding how a target lay; three or four suffice where it can be found
_TOUCHING = 0.5
"""Share of a result's points that another result at a high degree, or a stand-in for the target, is laid by."""
_SETTLED = 1e-6  # metres of the source; a round that moves it by less is the last
_BESIDE = 1e-4
"""Metres; a point that is nearer to another target point than to its own by more was not brought back to its place."""
_GRAIN = 20.0  # levels of noise in colours above which neighbours are averaged


@dataclass(frozen=True)
class Unmerged:
    """A merging reversed."""

    cloud: Cloud  # in the order given; lost points lie where they were found
    lost: NDArray[np.bool_]  # [N] bool, points that did not come to lie where their own target point is the nearest
    transform: Points  # [4,4], with which the target was laid on the cloud


def unmerge(cloud: Cloud, weight: float, target: Cloud, transform: Points | None = None) -> Unmerged:
    """The source of a merged cloud: thesis, Algorithm 4, line 5, solved for the source.

    A point moves straight towards its nearest target point, which is then the nearest to the result, too. Colours come
    back to ±½ / (1 − weight) levels.

    Args:
        cloud: the anonymised face alone, in the frame it was merged in.
        weight: that it was merged with, below 1; `guess_merge_weight` finds it.
        target: the face it was merged with, or a stand-in such as others' results at degree 35 (`target_from`).
        transform: [4,4], that lays the target on the source; None: it is found, within .003 mm on real scans.
    """
    if not 0 <= weight < 1:
        raise UsageError(f"the weight to take back is {weight}; give 0 or more, below 1 (at 1 the source is gone)")
    cloud.need(1, "the inverse of Merge2Faces")
    target.need(1, "its target")
    if transform is not None:
        return _unmerged(cloud, weight, target, transform)
    bare = Cloud(cloud.points)
    back = _unmerged(cloud, weight, target, _lay(bare, weight, target))
    if not back.lost.any():
        return back
    # A stand-in, or a target without the normals it was laid by, need not register as the target did.
    touching = _unmerged(cloud, weight, target, _pulled(bare, target, share=_TOUCHING))
    return touching if touching.lost.sum() < back.lost.sum() else back


def guess_merge_weight(cloud: Cloud, target: Cloud) -> float:
    """The weight of a merged cloud, 0…0.9975: the one at which the source's points lie most evenly."""
    cloud.need(_FEWEST, "guessing the weight of the target")
    bare = Cloud(cloud.points)
    places = [target.moved(lay).points for lay in (register(bare, target).transform, _pulled(bare, target))]
    rows = [closest(place, bare.points)[1] for place in places]

    def unevenness(weight: float, lay: int) -> float:
        return _unevenness(bare.points + weight / (1 - weight) * (bare.points - places[lay][rows[lay]]))

    grid = [Merge2Faces.traits.of_degree(degree) for degree in (0, *DEGREES)]
    least, best, chosen = min((unevenness(weight, lay), weight, lay) for weight, lay in product(grid, (0, 1)))
    low, high = max(best - grid[1], 0.0), min(best + grid[1], grid[-1])
    # Between degrees, in 1 / (1 − weight), which the points move in proportion to.
    found = minimize_scalar(
        lambda reach: unevenness(1 - 1 / reach, chosen),
        bounds=(1 / (1 - low), 1 / (1 - high)),
        method="bounded",
        options={"xatol": 1e-3 / (1 - best)},
    )
    return float(1 - 1 / found.x) if found.fun < least else float(best)


def target_from(results: Sequence[Cloud]) -> Cloud:
    """A stand-in for a target face, without normals: several results near weight 1, laid on the first."""
    if not results:
        raise UsageError("there is no result to take the target from; give one or more")
    first, *others = (Cloud(result.points, result.colors) for result in results)
    bare = Cloud(first.points)
    return merged(first, *(other.moved(_pulled(bare, Cloud(other.points), share=_TOUCHING)) for other in others))


def _unmerged(cloud: Cloud, weight: float, target: Cloud, transform: Points) -> Unmerged:
    there = target.moved(transform)
    points, rows = _drawn_back(cloud.points, weight, there.points)
    own = np.linalg.norm(points - there.points[rows], axis=1)
    lost = own > closest(there.points, points)[0] + _BESIDE
    points[lost] = cloud.points[lost]
    colors = cloud.colors
    if colors is not None and target.colors is not None:
        colors = _unmixed(points, colors, weight, target.colors[rows])
    return Unmerged(cloud.with_points(points, colors), lost, transform)


def _drawn_back(points: Points, weight: float, target: Points) -> tuple[Points, NDArray[np.int64]]:
    rows = closest(target, points)[1]
    return points + weight / (1 - weight) * (points - target[rows]), rows


def _lay(cloud: Cloud, weight: float, target: Cloud) -> Points:
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
        transform = _share(step, 1 - weight) @ transform
        if size < least:
            best, least = transform, size
        if size * weight < _SETTLED:
            break
    return best


def _pulled(cloud: Cloud, target: Cloud, share: float = 1.0) -> Points:
    transform = register(cloud, target).transform
    for _ in range(50):
        there = target.moved(transform).points
        away, rows = closest(there, cloud.points)
        kept = away <= np.quantile(away, share)
        step = rigid_fit(there[rows[kept]], cloud.points[kept])
        transform = step @ transform
        if np.abs(step - np.eye(4)).max() < 1e-8:
            break
    return transform


def _share(step: Points, share: float) -> Points:
    """So much of a small motion [4,4]."""
    turn = Rotation.from_rotvec(share * Rotation.from_matrix(step[:3, :3]).as_rotvec())
    return rigid(turn.as_matrix(), share * step[:3, 3])


def _unmixed(points: Points, colors: Colors, weight: float, theirs: Colors) -> Colors:
    levels = colors + weight / (1 - weight) * (colors.astype(np.float64) - theirs)
    noise = np.sqrt(1 / 12) / (1 - weight)
    count = min(int(np.ceil((noise / _GRAIN) ** 2)), len(points))
    return rounded_colors(levels if count < 2 else mean_of_neighbours(points, levels, count))
