"""How far two clouds are from one another: every length is in metres, every angle in degrees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.neighbours import search, tree_order
from ficgan.pointcloud.registration.normals import with_normals

__all__ = ["CloudDistances", "chamfer", "cloud_distances", "hausdorff", "normal_error"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CloudDistances:
    """Distances between a cloud and another, metres.

    Args:
        there: mean distance of the first's points to their nearest of the second.
        back: mean distance of the second's points to their nearest of the first.
        hausdorff: the largest of all those distances.
        hausdorff_95: the larger of both directions' 95 % quantiles.
    """

    there: float
    back: float
    hausdorff: float
    hausdorff_95: float

    @property
    def chamfer(self) -> float:
        """The mean of both directions (not their sum, and of distances, not of their squares)."""
        return (self.there + self.back) / 2


def cloud_distances(first: Cloud, second: Cloud) -> CloudDistances:
    """All distances from one search in either direction.

    Args:
        first, second: at least one point each.

    Raises:
        InputError: one has no points.
    """
    there, back = _nearest(first, second)[0], _nearest(second, first)[0]
    return CloudDistances(
        float(there.mean()),
        float(back.mean()),
        float(max(there.max(), back.max())),
        float(max(np.quantile(there, 0.95), np.quantile(back, 0.95))),
    )


def chamfer(first: Cloud, second: Cloud) -> float:
    """Symmetric Chamfer distance, metres; see `CloudDistances.chamfer`."""
    return cloud_distances(first, second).chamfer


def hausdorff(first: Cloud, second: Cloud) -> float:
    """Symmetric Hausdorff distance, metres."""
    return cloud_distances(first, second).hausdorff


def normal_error(result: Cloud, source: Cloud) -> float:
    """The mean angle between a point's normal and that of the nearest point of the source, degrees.

    Args:
        result, source: normals are made where there are none; their signs are of no effect.

    Returns:
        0…90; 57.3 where normals have nothing to do with one another.

    Raises:
        InputError: a cloud without normals of fewer than three points, or all on one line.
    """
    a, b = _with_normals(result), _with_normals(source)
    assert a.normals is not None and b.normals is not None
    cosines = np.abs((a.normals * b.normals[_nearest(a, b)[1]]).sum(axis=1))
    return float(np.degrees(np.arccos(np.clip(cosines, 0, 1))).mean())


def _with_normals(cloud: Cloud) -> Cloud:
    return cloud if cloud.normals is not None else with_normals(cloud)


def _nearest(cloud: Cloud, other: Cloud) -> tuple[Floats, NDArray[np.int64]]:
    """Distance to, and row of, the nearest point of the other cloud."""
    for one in (cloud, other):
        one.need(1, "a distance between clouds")
    order = tree_order(cloud.points)
    distances, rows = np.empty(len(cloud)), np.empty(len(cloud), np.int64)
    found = search(other.points, cloud.points[order])
    distances[order], rows[order] = found[0][:, 0], found[1][:, 0]
    return distances, rows
