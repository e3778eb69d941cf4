"""SmoothKNN: each point becomes the mean of its k nearest, itself included, in place and colour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ficgan.pointcloud.base import CLOUD_ANONYMIZERS, CloudAnonymizer, CloudTraits
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.methods.colours import rounded_colors
from ficgan.registry import param

__all__ = ["SmoothKNN"]


@CLOUD_ANONYMIZERS.add
@dataclass(frozen=True)
class SmoothKNN(CloudAnonymizer):
    """A mean filter over neighbours; k = 1 changes nothing, k = all makes one point of the cloud.

    Of neighbours as far as the k-th, any may be taken, the same ones each time.

    Source:
        Point-cloud thesis, §3.2.2.5, Algorithm 5; point size 60 by §4.3.3.5.
    """

    name: ClassVar[str] = "smooth-knn"
    traits: ClassVar[CloudTraits] = CloudTraits(
        title="SmoothKNN",
        family="smoothing",
        source="point-cloud thesis, §3.2.2.5, Algorithm 5",
        strength="k",
        of_degree=lambda degree: 8 * degree,
        point_size=lambda k: 60.0,
        reversible_by="anyone, by half: k is found from the result, and what the means took is added again",
    )
    k: int = param(80, "neighbours, the point itself included", low=1)

    def __call__(self, cloud: Cloud, *, name: str = "") -> Cloud:
        cloud.need(max(self.k, 1), f"SmoothKNN with k = {self.k}")
        if self.k == 1:
            return cloud.with_points(cloud.points.copy())
        from ficgan.pointcloud.neighbours import mean_of_neighbours

        if cloud.colors is None:
            return cloud.with_points(mean_of_neighbours(cloud.points, cloud.points, self.k))
        means = mean_of_neighbours(cloud.points, np.hstack([cloud.points, cloud.colors]), self.k)
        return cloud.with_points(means[:, :3], rounded_colors(means[:, 3:]))
