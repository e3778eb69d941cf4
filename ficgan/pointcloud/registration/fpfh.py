"""Fast point feature histograms: how normals turn in the neighbourhood of a point, whatever the cloud's pose."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.neighbours import search

__all__ = ["BINS", "fpfh", "pair_features"]

Floats = NDArray[np.float64]
BINS = 11
"""Of each of the three angles."""


def fpfh(cloud: Cloud, *, radius: float = 0.025, most: int = 100, power: int = 1) -> Floats:
    """One histogram of 3 × 11 bins per point.

    As in the libraries that offer it, each of the three parts is scaled: a point's own histogram and the weighted sum
    of its neighbours' add up to 100 each, so the unit of length is of no effect (of the paper's 1/k · Σ 1/ω it is).

    Args:
        cloud: with normals whose sides are consistent (`ficgan.pointcloud.registration.normals.oriented`).
        radius: of a neighbourhood, metres.
        most: neighbours, the point itself among them, the nearest ones.
        power: a neighbour's histogram weighs distance^−power: 1 in the paper, 2 in PCL and Open3D.

    Returns:
        [N,33], θ, α, φ after one another; zeros for a point that has no neighbour.

    Raises:
        InputError: the cloud has no normals, or no points.

    Source:
        Rusu, Blodow, Beetz, "Fast Point Feature Histograms (FPFH) for 3D Registration", ICRA 2009, §III.
    """
    if cloud.normals is None:
        raise InputError("FPFH features need normals; make them with with_normals")
    cloud.need(1, "FPFH")
    distances, rows = search(cloud.points, cloud.points, min(most, len(cloud)), within=radius)
    # The first column is the point itself (or its double, which tells as little).
    near = np.isfinite(distances[:, 1:])
    centres, column = np.nonzero(near)
    others, apart = rows[centres, column + 1], distances[centres, column + 1]
    count, degree = len(cloud), near.sum(axis=1)

    own = _histograms(cloud, centres, others, degree)
    weights = np.divide(1.0, apart**power, out=np.zeros_like(apart), where=apart > 0)
    starts = np.concatenate([[0], np.cumsum(degree)])
    around = csr_array((weights, others, starts), shape=(count, count)) @ own
    parts = around.reshape(count, 3, BINS)
    totals = parts.sum(axis=2, keepdims=True)
    return (100 * parts / np.where(totals > 0, totals, 1)).reshape(count, -1) + own


def pair_features(points: Floats, normals: Floats, first: NDArray[np.integer], second: NDArray[np.integer]) -> Floats:
    """The three angles of pairs of oriented points, in the Darboux frame of that one whose normal is nearer the line.

    Args:
        points, normals: [N,3].
        first, second: [M] rows.

    Returns:
        [M,3]: θ in −π…π; α = v·n_t and φ = u·d in −1…1. All 0 where there is no frame: the points are one, or the
        line is along the normal.

    Source:
        Rusu et al., ICRA 2009, equation 1.
    """
    line = points[second] - points[first]
    apart = np.sqrt(np.einsum("md,md->m", line, line))
    line /= np.where(apart > 0, apart, 1)[:, None]
    a, b = normals[first], normals[second]
    slope_a, slope_b = np.einsum("md,md->m", a, line), np.einsum("md,md->m", b, line)
    # Near points may have one normal, and rounding must not choose between them.
    swap = np.abs(slope_a) < np.abs(slope_b) - 1e-9
    u, other = np.where(swap[:, None], b, a), np.where(swap[:, None], a, b)
    line[swap] *= -1
    phi = np.where(swap, -slope_b, slope_a)
    v = _cross(line, u)
    width = np.sqrt(np.einsum("md,md->m", v, v))
    v /= np.where(width > 0, width, 1)[:, None]
    alpha = np.einsum("md,md->m", v, other)
    theta = np.arctan2(np.einsum("md,md->m", _cross(u, v), other), np.einsum("md,md->m", u, other))
    return np.where(((apart > 0) & (width > 0))[:, None], np.stack([theta, alpha, phi], axis=1), 0.0)


def _histograms(
    cloud: Cloud, centres: NDArray[np.integer], others: NDArray[np.integer], degree: NDArray[np.integer]
) -> Floats:
    """Each point's own (simplified) histogram, three parts of 100."""
    assert cloud.normals is not None
    angles = pair_features(cloud.points, cloud.normals, centres, others)
    shares = (angles + np.array([np.pi, 1, 1])) * [BINS / (2 * np.pi), BINS / 2, BINS / 2]
    bins = np.clip(np.floor(shares), 0, BINS - 1).astype(np.int64) + BINS * np.arange(3)
    places = (bins + 3 * BINS * centres[:, None]).ravel()
    counts = np.bincount(places, minlength=3 * BINS * len(cloud)).reshape(len(cloud), -1)
    return counts * (100 / np.maximum(degree, 1))[:, None]


def _cross(a: Floats, b: Floats) -> Floats:
    """`np.cross`, in half its time."""
    return np.stack(
        [
            a[:, 1] * b[:, 2] - a[:, 2] * b[:, 1],
            a[:, 2] * b[:, 0] - a[:, 0] * b[:, 2],
            a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0],
        ],
        axis=1,
    )
