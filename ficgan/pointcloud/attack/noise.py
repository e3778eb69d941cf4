"""UniformNoise lessened by whoever has the result alone: the surface is where the points are in the mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import UsageError
from ficgan.pointcloud.cloud import Cloud, Points
from ficgan.pointcloud.neighbours import mean_of_neighbours, search
from ficgan.pointcloud.registration.normals import pca_normals

__all__ = ["denoise", "guess_noise"]

_FEWEST = 100
_MEANS, _FITTED = 20.0, 50.0
"""Neighbours of the mean and of the fit for every spacing of points that the noise is wide; chosen on four made heads
that no figure is of."""
_LEAST_MEANS, _LEAST_FITTED = 8, 24
_NORMALS = 60
"""Neighbours that a normal is found from, at most; the means lie on a surface already."""
_ASKED = 400
"""Points that the spacing is measured at."""
_BLOCK = 128
_FLOOR = 1e-6
"""Beside weights of about 1: keeps a fit solvable where points coincide."""


def denoise(cloud: Cloud, b: float) -> Cloud:
    """The surface under uniform noise, as far as neighbours tell it.

    Every point becomes the mean of its neighbours, which lies near the surface but too far inside where that is
    curved; there a paraboloid is fitted to the noisy points around, and the mean is moved onto it. How many neighbours
    these are follows from b: the wider the noise, the more are needed to average it, and the coarser is what remains.

    Args:
        cloud: noisy, at least 100 points.
        b: width of the noise's interval, metres; `guess_noise` finds it.

    Returns:
        In the order given, colours as they were. The rim of the cloud is drawn in by some points' width.

    Raises:
        UsageError: a negative b, or none.
        InputError: fewer points, or all of them on one line.

    Source:
        Moving least squares: Alexa et al., "Computing and rendering point set surfaces", IEEE TVCG 9 (2003), §3; here
        with the neighbours and places of a mean instead of a projection.
    """
    if not b >= 0 or np.isinf(b):
        raise UsageError(f"the width of the noise is {b}; give 0 or more, metres")
    cloud.need(_FEWEST, "the inverse of UniformNoise")
    if b == 0:
        return cloud.with_points(cloud.points.copy())
    return cloud.with_points(_fitted(cloud.points, *_counts(cloud.points, b)).points)


def guess_noise(cloud: Cloud) -> float:
    """b of a noisy cloud, without the key: how far points lie from the surface that is fitted to them.

    Args:
        cloud: noisy, at least 100 points.

    Returns:
        Metres; within 3 % from degree 10 on. What the fit leaves of a clear face looks like noise of .6 mm, degree 1.

    Raises:
        InputError: fewer points, or all of them on one line.
    """
    cloud.need(_FEWEST, "guessing the noise")
    b = 0.01
    for _ in range(2):
        b = float(np.sqrt(12 * np.median(_fitted(cloud.points, *_counts(cloud.points, b)).variance)))
    return b


@dataclass(frozen=True)
class _Surface:
    """Of every point: its place on the surface [N,3], and the variance of the noisy points about that [N], m²."""

    points: Points
    variance: NDArray[np.float64]


def _counts(points: Points, b: float) -> tuple[int, int]:
    """Neighbours of the mean, and of the fit."""
    width = b / _spacing(points, b)
    means, fitted = max(_LEAST_MEANS, round(_MEANS * width)), max(_LEAST_FITTED, round(_FITTED * width))
    return min(means, len(points) // 4), min(fitted, len(points) // 2)


def _spacing(points: Points, b: float) -> float:
    """Side of the square of surface that a point has, metres; by spheres in which the noise is thin."""
    asked = points[:: -(-len(points) // _ASKED)]
    count = 50
    while True:
        count = min(count, len(points) - 1)
        radius = float(np.median(search(points, asked, count + 1)[0][:, -1]))
        if radius >= 2 * b or count > len(points) // 4:
            return max(radius * float(np.sqrt(np.pi / count)), np.finfo(float).tiny)
        count *= 2


def _fitted(points: Points, means: int, count: int) -> _Surface:
    """Paraboloids over the tangent planes of the means, fitted to the noisy points whose means are near."""
    middle = mean_of_neighbours(points, points, means)
    normals = pca_normals(middle, neighbours=min(count, _NORMALS))
    first, second = _tangents(normals)
    rows = search(middle, middle, count)[1]
    found, variance = middle.copy(), np.empty(len(points))
    for start in range(0, len(points), _BLOCK):
        part = slice(start, start + _BLOCK)
        way = middle[rows[part]] - middle[part, None]
        across, along = (np.einsum("nmd,nd->nm", way, one[part]) for one in (first, second))
        up = np.einsum("nmd,nd->nm", points[rows[part]] - middle[part, None], normals[part])
        height, variance[part] = _paraboloid(across, along, up)
        found[part] += height[:, None] * normals[part]
    return _Surface(found, variance)


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


def _tangents(normals: Points) -> tuple[Points, Points]:
    """Two unit vectors across each normal and each other."""
    other = np.where(np.abs(normals[:, :1]) < 0.9, [[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]])
    first = np.cross(normals, other)
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    return first, np.cross(normals, first)
