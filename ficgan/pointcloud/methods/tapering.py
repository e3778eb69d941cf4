"""Tapering: x and y are scaled by a function of the point's rank along z."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ficgan.pointcloud.base import CLOUD_ANONYMIZERS, CloudAnonymizer, CloudTraits
from ficgan.pointcloud.cloud import Cloud
from ficgan.registry import param

__all__ = ["Tapering", "taper_factors", "taper_function"]


def taper_function(x: NDArray[np.floating]) -> NDArray[np.float64]:
    """F(x) = sin²x + cos x: 1 at 0, at most 1.25 (at ±π/3), 0 at ±2.237, negative beyond.

    Source:
        Point-cloud thesis, equation 4.4.
    """
    return np.asarray(np.sin(x) ** 2 + np.cos(x), np.float64)


def taper_factors(z: NDArray[np.floating], r: float) -> NDArray[np.float64]:
    """By what the x and y of each point are multiplied.

    Args:
        z: [N]; points at the same z are ranked in the order given.
        r: half the width of F's interval.

    Returns:
        [N], F at N evenly spaced values from −r to r, taken by the rank of z.
    """
    factors = np.empty(len(z))
    factors[np.argsort(z, kind="stable")] = taper_function(np.linspace(-r, r, len(z)))
    return factors


@CLOUD_ANONYMIZERS.add
@dataclass(frozen=True)
class Tapering(CloudAnonymizer):
    """Warping of x and y along z; colours stay, and so does the order (the thesis sorts by z, which changes no point).

    `ficgan.pointcloud.attack` takes it back: z is not changed, so the ranks are known.

    Source:
        Point-cloud thesis, §3.2.2.3, Algorithm 3, and equation 4.4; [−r, r] by §4.3.3.3.
    """

    name: ClassVar[str] = "tapering"
    traits: ClassVar[CloudTraits] = CloudTraits(
        title="Tapering",
        family="warping",
        source="point-cloud thesis, §3.2.2.3, Algorithm 3",
        strength="r",
        of_degree=lambda degree: 0.087 * degree,
        reversible_by="whoever guesses r, from the result alone",
    )
    r: float = param(1.0, "F is taken over [−r, r]", low=0.0)

    def __call__(self, cloud: Cloud, *, name: str = "") -> Cloud:
        cloud.need(1, "Tapering")
        points = cloud.points.copy()
        points[:, :2] *= taper_factors(points[:, 2], self.r)[:, None]
        return cloud.with_points(points)
