"""What two clouds have in common in 3D: distances, normals, curvature, identity by shape. Metres and degrees."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud, Tree, closest, search, thinned
from ficgan.pointcloud.registration import fpfh, icp, with_normals

Floats = NDArray[np.float64]
Vector = NDArray[np.float32]

_COEFFICIENTS = 6  # of a quadric
_RIDGE = 1e-10
_FEWEST = 30  # points of an upper face


@dataclass(frozen=True)
class CloudDistances:
    """Distances between a cloud and another."""

    there: float  # mean distance of the first's points to their nearest of the second
    back: float  # mean distance of the second's points to their nearest of the first
    hausdorff: float  # the largest of all those distances
    hausdorff_95: float  # the larger of both directions' 95 % quantiles

    @property
    def chamfer(self) -> float:
        """The mean of both directions (not their sum, and of distances, not of their squares)."""
        return (self.there + self.back) / 2


def cloud_distances(first: Cloud, second: Cloud) -> CloudDistances:
    """All distances; raises InputError where a cloud has no points."""
    there, back = _nearest(first, second)[0], _nearest(second, first)[0]
    return CloudDistances(
        float(there.mean()), float(back.mean()), float(max(there.max(), back.max())),
        float(max(np.quantile(there, 0.95), np.quantile(back, 0.95))),
    )  # fmt: skip


def chamfer(first: Cloud, second: Cloud) -> float:
    """Symmetric Chamfer distance; see `CloudDistances.chamfer`."""
    return cloud_distances(first, second).chamfer


def normal_error(result: Cloud, source: Cloud) -> float:
    """The mean angle, 0…90, between a point's normal and that of the nearest point of the source; 57.3 by chance."""
    a, b = (cloud if cloud.normals is not None else with_normals(cloud) for cloud in (result, source))
    assert a.normals is not None and b.normals is not None
    cosines = np.abs((a.normals * b.normals[_nearest(a, b)[1]]).sum(axis=1))
    return float(np.degrees(np.arccos(np.clip(cosines, 0, 1))).mean())


def _nearest(cloud: Cloud, other: Cloud) -> tuple[Floats, NDArray[np.int64]]:
    for needed in (cloud, other):
        needed.need(1, "a distance between clouds")
    return closest(other.points, cloud.points)


@dataclass(frozen=True)
class Curvature:
    """Curvature at every point; positive where the surface bulges to the side its normal looks."""

    mean: Floats  # [N], 1/metre; 1/r on a sphere seen from outside
    gaussian: Floats  # [N], 1/metre²


def curvature(cloud: Cloud, *, neighbours: int = 60) -> Curvature:
    """Mean and Gaussian curvature by a quadric fitted around every point (Do Carmo, §3-3); normals decide the sign."""
    if neighbours < _COEFFICIENTS:
        raise InputError(f"a quadric needs {_COEFFICIENTS} neighbours or more, not {neighbours}")
    cloud.need(_COEFFICIENTS, "curvature")
    if cloud.normals is None:
        cloud = with_normals(cloud)
    assert cloud.normals is not None
    rows = search(cloud.points, cloud.points, min(neighbours, len(cloud)))[1]
    offsets = cloud.points[rows] - cloud.points[:, None]
    size = np.sqrt(np.einsum("nkd,nkd->n", offsets, offsets) / rows.shape[1])
    size = np.where(size > 0, size, 1)
    across = np.cross(np.eye(3)[np.abs(cloud.normals).argmin(axis=1)], cloud.normals)
    across /= np.linalg.norm(across, axis=1, keepdims=True)
    axes = np.stack([across, np.cross(cloud.normals, across), cloud.normals], axis=2)
    u, v, z = np.moveaxis(offsets @ axes / size[:, None, None], 2, 0)
    basis = np.stack([u * u, u * v, v * v, u, v, np.ones_like(u)], axis=2)
    normal_matrix = basis.transpose(0, 2, 1) @ basis + _RIDGE * rows.shape[1] * np.eye(_COEFFICIENTS)
    fit = np.linalg.solve(normal_matrix, basis.transpose(0, 2, 1) @ z[..., None])[..., 0]
    a, b, c, d, e, _ = fit.T
    steep = 1 + d * d + e * e
    mean = -((1 + e * e) * a - d * e * b + (1 + d * d) * c) / steep**1.5 / size
    return Curvature(mean, (4 * a * c - b * b) / steep**2 / size**2)


def curvature_error(result: Cloud, source: Cloud) -> float:
    """The mean difference of mean curvature between a point and the nearest point of the source, 1/metre."""
    ours, theirs = (curvature(cloud).mean for cloud in (result, source))
    return float(np.abs(ours - theirs[closest(source.points, result.points)[1]]).mean())


@dataclass(frozen=True)
class UpperFace:
    """The part of a face that expressions move least, nose, eyes and forehead, and a grid over it; canonical frame."""

    low: float = -0.02
    high: float = 0.07
    half: float = 0.05  # of |z|
    behind: float = 0.08  # no point with x below −`behind` belongs to it
    step: float = 0.0025  # of the grid
    # standard deviation of the weights by which points around a node of the grid are averaged, at least
    smooth: float = 0.004

    def nodes(self) -> tuple[int, int, Floats]:
        """Rows (upwards), columns (to the person's right), and y, z [rows·columns,2] of the nodes."""
        y = np.arange(self.low, self.high + self.step / 2, self.step)
        z = np.arange(-self.half, self.half + self.step / 2, self.step)
        return len(y), len(z), np.stack(np.meshgrid(y, z, indexing="ij"), axis=2).reshape(-1, 2)

    def cut(self, cloud: Cloud, margin: float = 0.0) -> Cloud:
        """The points of a cloud inside, or no farther than `margin` from it; InputError where there are hardly any."""
        x, y, z = cloud.points.T
        inside = (y >= self.low - margin) & (y <= self.high + margin)
        inside &= (np.abs(z) <= self.half + margin) & (x >= -self.behind - margin)
        if inside.sum() < _FEWEST:
            raise InputError(
                f"{int(inside.sum())} of {len(cloud)} points are where nose, eyes and forehead belong, and {_FEWEST} "
                "are needed; is the cloud in the canonical frame, in metres?"
            )
        return cloud.take(inside)

    def depth(self, cloud: Cloud) -> Floats:
        """Mean x [rows,columns] of the points about each node, less the tilt of the whole."""
        near = self.cut(cloud, 4 * self.smooth)
        rows, columns, nodes = self.nodes()
        count = min(24, len(near))
        distances, index = search(near.points[:, 1:], nodes, count)
        width = np.maximum(self.smooth, distances[:, min(3, count - 1)])
        weights = np.exp(-0.5 * (distances / width[:, None]) ** 2)
        depth = (weights * near.points[index, 0]).sum(axis=1) / weights.sum(axis=1)
        tilt = np.column_stack([np.ones(len(nodes)), nodes])
        return (depth - tilt @ np.linalg.lstsq(tilt, depth, rcond=None)[0]).reshape(rows, columns)


class GeometricRecogniser(ABC):
    """Describes a cloud once, without any training, and compares descriptions in one matrix product."""

    name: ClassVar[str]

    @abstractmethod
    def describe(self, cloud: Cloud) -> Vector:
        """One vector [D] of a cloud in the canonical frame; D does not depend on the cloud."""

    def compare(self, gallery: Vector, probes: Vector, *, probe_middle: Vector | None = None) -> Vector:
        """Scores [P,G], −1…1, of probes [P,D] and a gallery [G,D]: how alike they differ from the mean face.

        `probe_middle` [D], the mean of the probes, takes out what an anonymiser did to all of them.
        """
        middle = gallery.mean(axis=0)
        faces = gallery - middle
        if len(gallery) < 2 or not np.abs(faces).max() > 0:
            raise InputError(f"a gallery of {len(gallery)} needs two different faces or more to compare with")
        return _units(probes - (middle if probe_middle is None else probe_middle)) @ _units(faces).T


def _units(vectors: Vector) -> Vector:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)


@dataclass(frozen=True)
class DepthRecogniser(GeometricRecogniser):
    """By the relief of the upper face."""

    name: ClassVar[str] = "depth"
    face: UpperFace = UpperFace()

    def describe(self, cloud: Cloud) -> Vector:
        return (1000 * self.face.depth(cloud)).astype(np.float32).ravel()


@dataclass(frozen=True)
class NormalRecogniser(GeometricRecogniser):
    """By the normals of the relief, which tell more of noses and brows than of how wide a face is."""

    name: ClassVar[str] = "normals"
    face: UpperFace = UpperFace()

    def describe(self, cloud: Cloud) -> Vector:
        up, right = np.gradient(self.face.depth(cloud), self.face.step)
        normals = np.stack([np.ones_like(up), -up, -right])
        return (normals / np.linalg.norm(normals, axis=0)).astype(np.float32).ravel()


@dataclass(frozen=True)
class FpfhRecogniser(GeometricRecogniser):
    """By FPFH features at the nodes of a coarse grid over the upper face."""

    name: ClassVar[str] = "fpfh"
    face: UpperFace = UpperFace(step=0.01)  # its grid
    voxel: float = 0.006  # clouds are thinned to this first, so that dense and sparse ones are alike
    radius: float = 0.025  # of a feature
    around: int = 5  # features that are averaged at a node

    def describe(self, cloud: Cloud) -> Vector:
        near = with_normals(Cloud(thinned(self.face.cut(cloud, self.radius).points, self.voxel)))
        features = fpfh(near, radius=self.radius)
        rows = search(near.points[:, 1:], self.face.nodes()[2], min(self.around, len(near)))[1]
        # Square roots of shares: a difference between these is Hellinger's, which rare bins do not drown in full ones.
        return np.sqrt(features[rows].mean(axis=1) / 200).astype(np.float32).ravel()


GEOMETRIC_RECOGNISERS: dict[str, type[GeometricRecogniser]] = {
    recogniser.name: recogniser for recogniser in (DepthRecogniser, NormalRecogniser, FpfhRecogniser)
}
"""Those that describe a cloud once, by name; `IcpRecogniser` compares pairs."""


@dataclass(frozen=True)
class IcpRecogniser:
    """By what remains between two upper faces after ICP; exact, pair by pair, for small sets."""

    name: ClassVar[str] = "icp"
    face: UpperFace = UpperFace()  # that is compared
    voxel: float = 0.003  # clouds are thinned to this first
    trim: float = 0.2  # share of points, the worst, that are left out: hair, an eye that is closed

    def score(self, first: Cloud, second: Cloud) -> float:
        """Minus the trimmed mean distance of points to the other's planes, millimetres; the same in either order."""
        return self._score(self._prepared(first), self._prepared(second))

    def compare(self, gallery: Sequence[Cloud], probes: Sequence[Cloud]) -> Vector:
        """Scores [P,G] of every probe with every face of the gallery."""
        faces, others = ([self._prepared(cloud) for cloud in clouds] for clouds in (gallery, probes))
        return np.array([[self._score(face, other) for face in faces] for other in others], np.float32)

    def _prepared(self, cloud: Cloud) -> tuple[Cloud, Cloud]:
        wide = with_normals(Cloud(thinned(self.face.cut(cloud, 4 * self.voxel).points, self.voxel)))
        return self.face.cut(wide), wide

    def _score(self, first: tuple[Cloud, Cloud], second: tuple[Cloud, Cloud]) -> float:
        return -1000 * (self._residual(first[0], second[1]) + self._residual(second[0], first[1])) / 2

    def _residual(self, moving: Cloud, fixed: Cloud) -> float:
        assert fixed.normals is not None
        tree = Tree(fixed.points)
        transform, kept = np.eye(4), np.arange(len(moving))
        for _ in range(2):
            transform = icp(moving.take(kept), fixed, transform, iterations=15, tolerance=1e-5).transform
            moved = moving.moved(transform).points
            rows = tree.closest(moved)[1]
            gaps = np.abs(((moved - fixed.points[rows]) * fixed.normals[rows]).sum(axis=1))
            kept = np.argsort(gaps, kind="stable")[: max(3, round((1 - self.trim) * len(gaps)))]
        return float(gaps[kept].mean())
