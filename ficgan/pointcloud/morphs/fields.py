"""Smooth random fields on a face: Gaussian processes with a squared-exponential kernel, of low rank."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.spatial.distance import cdist

__all__ = ["basis", "mirrored_bases"]

Array = NDArray[Any]
MIRROR = np.array([1.0, 1.0, -1.0])
JITTER = 1e-4
SPACING = 0.9


def basis(points: Array, scale: float) -> Array:
    """Functions whose sums with standard normal weights are a Gaussian process on the points.

    Args:
        points: [N,3] metres.
        scale: length scale of the kernel exp(−d²/2·scale²), metres.

    Returns:
        [N,K] float32: basis @ basisᵀ is the kernel, as closely as points 0.9·scale apart tell (Nyström).

    Source:
        Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, §8.1.
    """
    centres = _spread(points, SPACING * scale)
    root = np.linalg.cholesky(_kernel(centres, centres, scale) + JITTER * np.eye(len(centres)))
    return np.asarray(solve_triangular(root, _kernel(points, centres, scale).T, lower=True).T.astype(np.float32))


def mirrored_bases(points: Array, scale: float) -> tuple[Array, Array]:
    """Bases of the two halves of a Gaussian process: what is the same on both sides of z = 0, and what is opposite.

    Args:
        points: [N,3] metres, canonical frame.
        scale: length scale, metres.

    Returns:
        [N,K] float32 each: with independent weights, each gives values of variance 1 away from the plane of symmetry.
    """
    both = basis(np.concatenate([points, points * MIRROR]), scale)
    here, there = both[: len(points)], both[len(points) :]
    return (here + there) / np.float32(np.sqrt(2.0)), (here - there) / np.float32(np.sqrt(2.0))


def _kernel(a: Array, b: Array, scale: float) -> Array:
    return np.asarray(np.exp(-0.5 * cdist(a, b, "sqeuclidean") / scale**2))


def _spread(points: Array, gap: float) -> Array:
    """The middlemost point of each cell of a cubic grid."""
    cells = np.floor(points / gap).astype(np.int64)
    order = np.argsort(np.linalg.norm(points / gap - cells - 0.5, axis=1), kind="stable")
    _, first = np.unique(cells[order], axis=0, return_index=True)
    return np.asarray(points[order[first]])
