"""Statistical removal of outliers: points whose neighbours are farther away than is usual in their cloud."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import UsageError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.neighbours import mean_distances

__all__ = ["inliers", "without_outliers"]

NEIGHBOURS = 50
RATIO = 4.0


def inliers(cloud: Cloud, *, neighbours: int = NEIGHBOURS, ratio: float = RATIO) -> NDArray[np.bool_]:
    """Which points are no outliers.

    As in Open3D, which the thesis used, a point is one of its own neighbours, and the deviation is a sample's (N − 1).

    Args:
        cloud: at least `neighbours` points.
        neighbours: over which the distance of a point is averaged.
        ratio: standard deviations above the mean of these averages beyond which a point is an outlier.

    Returns:
        mask [N].

    Raises:
        InputError: fewer points than `neighbours`.
        UsageError: settings that cannot work.

    Source:
        Point-cloud thesis, algorithm 7.
    """
    if neighbours < 2 or not ratio > 0:
        raise UsageError(f"outliers by {neighbours} neighbours and {ratio} deviations; give at least 2 and more than 0")
    cloud.need(neighbours, f"removal of outliers by {neighbours} neighbours")
    distances = mean_distances(cloud.points, neighbours)
    return distances <= distances.mean() + ratio * distances.std(ddof=1) + np.spacing(distances.max())


def without_outliers(cloud: Cloud, *, neighbours: int = NEIGHBOURS, ratio: float = RATIO) -> Cloud:
    """The cloud without its outliers; arguments and errors are those of `inliers`."""
    return cloud.take(inliers(cloud, neighbours=neighbours, ratio=ratio))
