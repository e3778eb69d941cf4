"""Tapering taken back by whoever knows or guesses r."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ficgan.pointcloud.cloud import Cloud, Points
from ficgan.pointcloud.methods.tapering import taper_factors, taper_function
from ficgan.pointcloud.neighbours import search

__all__ = ["Untapered", "guess_taper", "untaper"]

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
