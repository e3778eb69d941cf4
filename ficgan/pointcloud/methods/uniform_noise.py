"""UniformNoise: each coordinate is moved by what is drawn from U(0, b), less the distribution's mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ficgan.pointcloud.base import CLOUD_ANONYMIZERS, CloudAnonymizer, CloudTraits
from ficgan.pointcloud.cloud import Cloud
from ficgan.registry import param

__all__ = ["UniformNoise"]


@CLOUD_ANONYMIZERS.add
@dataclass(frozen=True)
class UniformNoise(CloudAnonymizer):
    """Noise on coordinates; colours stay.

    A seed and the cloud's name draw the same directions at every b, so a point moves in proportion to b: whoever knows
    both, or has results at two b, takes the noise away. Without a seed every result has its own.

    Source:
        Point-cloud thesis, §3.2.2.2, Algorithm 2 (which its caption calls GaussianNoise), with a = 0 (§4.3.3.2).
    """

    name: ClassVar[str] = "uniform-noise"
    traits: ClassVar[CloudTraits] = CloudTraits(
        title="UniformNoise",
        family="noise",
        source="point-cloud thesis, §3.2.2.2, Algorithm 2",
        strength="b",
        of_degree=lambda degree: 0.00064 * degree,
        stochastic=True,
        reversible_by="whoever has the seed, entirely; anyone, in part: a surface is fitted to the points",
    )
    b: float = param(0.01, "width of the noise's interval, metres", low=0.0)

    def __call__(self, cloud: Cloud, *, name: str = "") -> Cloud:
        cloud.need(1, "UniformNoise")
        moved = self.draws(name).random(cloud.points.shape)
        moved -= 0.5
        moved *= self.b
        moved += cloud.points
        return cloud.with_points(moved)
