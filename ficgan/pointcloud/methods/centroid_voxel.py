"""CentroidVoxel: each occupied voxel of a grid becomes one point at the voxel's centre, in the mean colour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.pointcloud.base import CLOUD_ANONYMIZERS, CloudAnonymizer, CloudTraits
from ficgan.pointcloud.cloud import Cloud, Points
from ficgan.pointcloud.methods.colours import rounded_colors
from ficgan.registry import param

__all__ = ["CentroidVoxel"]

_STEP = 0.00025
"""Metres a degree."""
_DENSE = 4
"""Voxels of the grid for each point up to which they are counted, in two thirds of the time that sorting takes."""


def _marker(size: float) -> float:
    """The thesis chose 25 to 55 by eye, the larger the sparser (§4.3.3.1); even steps between are ours."""
    return float(np.clip(25.0 + 30.0 * (size / _STEP - 1) / 34, 25.0, 55.0))


@CLOUD_ANONYMIZERS.add
@dataclass(frozen=True)
class CentroidVoxel(CloudAnonymizer):
    """Sampling on a grid; the grid begins half a voxel before the cloud's smallest coordinates.

    The points come in the order of their voxels: by x, then y, then z.

    Source:
        Point-cloud thesis, §3.2.2.1, Algorithm 1 ("centroid": the voxel's centre, wherever its points lie); the grid as
        Open3D's `VoxelGrid.create_from_point_cloud` lays it, which the thesis used (§4.3.3.1).
    """

    name: ClassVar[str] = "centroid-voxel"
    traits: ClassVar[CloudTraits] = CloudTraits(
        title="CentroidVoxel",
        family="sampling",
        source="point-cloud thesis, §3.2.2.1, Algorithm 1",
        strength="size",
        of_degree=lambda degree: _STEP * degree,
        keeps_order=False,
        point_size=_marker,
    )
    size: float = param(0.005, "side of a voxel, metres", low=1e-9)

    def __call__(self, cloud: Cloud, *, name: str = "") -> Cloud:
        cloud.need(1, "CentroidVoxel")
        origin, cells = self._grid(cloud.points)
        extent = cells.max(axis=0) + 1
        if extent.prod() >= 2.0**62:
            raise InputError(
                f"the cloud is {np.ptp(cloud.points, axis=0).max():.3g} m wide, too wide for voxels of {self.size} m; "
                "give its coordinates in metres, or a larger size"
            )
        shape = tuple(extent.astype(int).tolist())
        numbers: NDArray[np.int64] = np.asarray(np.ravel_multi_index(cells.astype(np.int64).T, shape), np.int64)
        voxels, voxel_of = _occupied(numbers)
        points = origin + (np.stack(np.unravel_index(voxels, shape), axis=1) + 0.5) * self.size
        if cloud.colors is None:
            return Cloud(points)
        counts = np.bincount(voxel_of)
        sums = np.stack([np.bincount(voxel_of, weights=channel) for channel in cloud.colors.T], axis=1)
        return Cloud(points, rounded_colors(sums / counts[:, None]))

    def _grid(self, points: Points) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The grid's origin [3] and the cell of each point [N,3], whole numbers from 0."""
        origin = points.min(axis=0) - self.size * 0.5
        return origin, np.floor((points - origin) / self.size)


def _occupied(cells: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers of the occupied voxels in order, and the place among them of each point's [N]."""
    if cells.max() >= _DENSE * len(cells):
        return np.unique(cells, return_inverse=True)
    filled = np.bincount(cells) > 0
    return np.flatnonzero(filled), (np.cumsum(filled) - 1)[cells]
