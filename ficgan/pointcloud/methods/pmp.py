"""PMP, point-mesh-point: the cloud's α-shape, and points sampled on its surface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ficgan.errors import InputError
from ficgan.pointcloud.base import CLOUD_ANONYMIZERS, CloudAnonymizer, CloudTraits
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.methods.colours import rounded_colors
from ficgan.registry import param

__all__ = ["PMP"]

_BY_X = 0.030
"""Metres; above this α the thesis draws results in the order of x, not y."""


@CLOUD_ANONYMIZERS.add
@dataclass(frozen=True)
class PMP(CloudAnonymizer):
    """Resampling of a coarser surface; colours are interpolated between the corners of a triangle.

    A small α leaves scraps of the face with holes between them, or nothing, which is an error; the thesis discards
    degrees 1 and 2 for this. A huge one gives the convex hull. An α-shape has an inner side too, behind the face.

    Source:
        Point-cloud thesis, §3.2.2.6, Algorithm 6; n by §4.3.3.6, and the order of drawing for α > .03. There the thesis
        also had "to resize the point clouds" against a swelling, "as elucidated in §4.3.2", which says of large points
        that they deform the face, and gives no other size than 25: that one is kept.
    """

    name: ClassVar[str] = "pmp"
    traits: ClassVar[CloudTraits] = CloudTraits(
        title="PMP",
        family="point operations",
        source="point-cloud thesis, §3.2.2.6, Algorithm 6",
        strength="alpha",
        of_degree=lambda degree: 0.00215 * degree,
        stochastic=True,
        keeps_order=False,
        order_of=lambda alpha: "x" if alpha > _BY_X else "y",
    )
    alpha: float = param(0.02, "largest circumradius of a tetrahedron that is kept, metres", low=0.0)
    n: int = param(10_352, "points of the result", low=1)

    def __call__(self, cloud: Cloud, *, name: str = "") -> Cloud:
        from ficgan.pointcloud.alpha_shape import alpha_shape, sample_surface

        triangles = alpha_shape(cloud.points, self.alpha)
        if not len(triangles):
            raise InputError(
                f"PMP with alpha = {self.alpha:g} leaves nothing of the cloud: every tetrahedron of its points has "
                "a larger circumradius; raise alpha (the thesis starts at degree 3)"
            )
        rows, weights = sample_surface(cloud.points, triangles, self.n, self.draws(name))
        points = np.einsum("nc,ncd->nd", weights, cloud.points[rows])
        if cloud.colors is None:
            return Cloud(points)
        return Cloud(points, rounded_colors(np.einsum("nc,ncd->nd", weights, cloud.colors[rows])))
