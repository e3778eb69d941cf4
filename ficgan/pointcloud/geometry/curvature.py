"""Curvature of the surface that a cloud lies on, by a quadric fitted around every point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.neighbours import search
from ficgan.pointcloud.registration.normals import with_normals

__all__ = ["Curvature", "curvature", "curvature_error"]

Floats = NDArray[np.float64]

_COEFFICIENTS = 6
_RIDGE = 1e-10


@dataclass(frozen=True)
class Curvature:
    """Curvature at every point; positive where the surface bulges to the side its normal looks.

    Args:
        mean: [N], 1/metre; 1/r on a sphere seen from outside.
        gaussian: [N], 1/metre².
    """

    mean: Floats
    gaussian: Floats

    @property
    def principal(self) -> tuple[Floats, Floats]:
        """The larger and the smaller curvature [N] of the two, 1/metre."""
        half = np.sqrt(np.maximum(self.mean**2 - self.gaussian, 0))
        return self.mean + half, self.mean - half

    @property
    def shape_index(self) -> Floats:
        """[N], −1 (cup) … 0 (saddle) … 1 (cap); 0 on a plane. Source: Koenderink, van Doorn (1992)."""
        largest, smallest = self.principal
        return 2 / np.pi * np.arctan2(largest + smallest, largest - smallest)

    @property
    def curvedness(self) -> Floats:
        """[N], 1/metre: how much the surface bends, whichever way. Source: Koenderink, van Doorn (1992)."""
        return np.sqrt((self.principal[0] ** 2 + self.principal[1] ** 2) / 2)


def curvature(cloud: Cloud, *, neighbours: int = 60) -> Curvature:
    """Mean and Gaussian curvature at every point.

    Args:
        cloud: normals are made, towards +x, where there are none; their sides decide the sign of the mean curvature.
        neighbours: points that a quadric is fitted to, the point itself among them: 10 or more for what is noisy.

    Raises:
        InputError: fewer points than a quadric has coefficients, or all on one line.

    Source:
        Do Carmo, "Differential Geometry of Curves and Surfaces", §3-3, for the graph z = au² + buv + cv² + du + ev + f.
    """
    if neighbours < _COEFFICIENTS:
        raise InputError(f"a quadric needs {_COEFFICIENTS} neighbours or more, not {neighbours}")
    cloud.need(_COEFFICIENTS, "curvature")
    if cloud.normals is None:
        cloud = with_normals(cloud)
    assert cloud.normals is not None
    _, rows = search(cloud.points, cloud.points, min(neighbours, len(cloud)))
    offsets = cloud.points[rows] - cloud.points[:, None]
    size = np.sqrt(np.einsum("nkd,nkd->n", offsets, offsets) / rows.shape[1])
    size = np.where(size > 0, size, 1)
    local = offsets @ _frames(cloud.normals) / size[:, None, None]
    u, v, z = local[..., 0], local[..., 1], local[..., 2]
    basis = np.stack([u * u, u * v, v * v, u, v, np.ones_like(u)], axis=2)
    normal_matrix = basis.transpose(0, 2, 1) @ basis + _RIDGE * rows.shape[1] * np.eye(_COEFFICIENTS)
    fit = np.linalg.solve(normal_matrix, basis.transpose(0, 2, 1) @ z[..., None])[..., 0]
    a, b, c, d, e, _ = fit.T
    steep = 1 + d * d + e * e
    mean = -((1 + e * e) * a - d * e * b + (1 + d * d) * c) / steep**1.5 / size
    return Curvature(mean, (4 * a * c - b * b) / steep**2 / size**2)


def curvature_error(result: Cloud, source: Cloud, *, neighbours: int = 60) -> float:
    """The mean difference of mean curvature between a point and the nearest point of the source, 1/metre.

    Args:
        result, source: as for `curvature`.
        neighbours: as for `curvature`.

    Raises:
        InputError: as `curvature`.
    """
    rows = search(source.points, result.points)[1][:, 0] if len(source) else np.empty(0, np.intp)
    ours, theirs = (curvature(cloud, neighbours=neighbours).mean for cloud in (result, source))
    return float(np.abs(ours - theirs[rows]).mean())


def _frames(normals: Floats) -> Floats:
    """Right-handed axes [N,3,3] in columns, the last of which is the normal."""
    helper = np.eye(3)[np.abs(normals).argmin(axis=1)]
    first = np.cross(helper, normals)
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    return np.stack([first, np.cross(normals, first), normals], axis=2)
