"""Who it is by shape alone, without any training: attacks on anonymised clouds directly in 3D.

The region is that which expressions move least: nose, eyes, forehead. A cloud is described once; a gallery and its
probes are then compared in one matrix product.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.neighbours import Tree, search
from ficgan.pointcloud.registration.fpfh import fpfh
from ficgan.pointcloud.registration.icp import Icp, icp
from ficgan.pointcloud.registration.normals import with_normals
from ficgan.pointcloud.registration.ransac import thinned

__all__ = [
    "GEOMETRIC_RECOGNISERS",
    "DepthRecogniser",
    "FpfhRecogniser",
    "GeometricRecogniser",
    "IcpRecogniser",
    "NormalRecogniser",
    "UpperFace",
]

Floats = NDArray[np.float64]
Vector = NDArray[np.float32]

_FEWEST = 30


@dataclass(frozen=True)
class UpperFace:
    """The rigid part of a face, and a grid over it, in the canonical frame (metres; the nose tip is the origin).

    Args:
        low, high: bounds of y; the upper lip is below −0.02.
        half: of |z|.
        behind: no point with x below −`behind` belongs to it.
        step: of the grid.
        smooth: standard deviation of the weights by which points around a node of the grid are averaged, at least.
    """

    low: float = -0.02
    high: float = 0.07
    half: float = 0.05
    behind: float = 0.08
    step: float = 0.0025
    smooth: float = 0.004

    def nodes(self) -> tuple[int, int, Floats]:
        """Rows (upwards), columns (to the person's right), and y, z [rows·columns,2] of the nodes."""
        y = np.arange(self.low, self.high + self.step / 2, self.step)
        z = np.arange(-self.half, self.half + self.step / 2, self.step)
        return len(y), len(z), np.stack(np.meshgrid(y, z, indexing="ij"), axis=2).reshape(-1, 2)

    def cut(self, cloud: Cloud, margin: float = 0.0) -> Cloud:
        """The points of a cloud inside, or no farther than `margin` from it.

        Raises:
            InputError: there are hardly any.
        """
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
        """Mean x [rows,columns] of the points about each node, metres, as far as it is not a tilt of the whole.

        Where points are sparse the mean is taken over a wider range. A shift in x and a small turn about y or z are
        taken out: an inexact registration is no identity.
        """
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
    """Describes a cloud once, compares descriptions in bulk."""

    name: ClassVar[str]

    @abstractmethod
    def describe(self, cloud: Cloud) -> Vector:
        """One vector [D] of a cloud in the canonical frame; its length does not depend on the cloud's.

        Raises:
            InputError: there is no upper face.
        """

    def compare(self, gallery: Vector, probes: Vector, *, probe_middle: Vector | None = None) -> Vector:
        """Scores [P,G] of every probe with every face of the gallery: −1…1, how alike they differ from the mean face.

        Args:
            gallery: [G,D], of two different faces or more.
            probes: [P,D].
            probe_middle: [D], the mean face among the probes, which an attacker with many clouds of one anonymiser has:
                it takes out what the anonymiser did to all of them. None: the gallery's.

        Raises:
            InputError: a gallery of one face, which has no mean to differ from.
        """
        middle = gallery.mean(axis=0)
        faces = gallery - middle
        if len(gallery) < 2 or not np.abs(faces).max() > 0:
            raise InputError(f"a gallery of {len(gallery)} needs two different faces or more to compare with")
        return _units(probes - (middle if probe_middle is None else probe_middle)) @ _units(faces).T


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
    """By FPFH features at the nodes of a coarse grid over the upper face.

    Args:
        voxel: clouds are thinned to this first, metres, so that dense and sparse ones are alike.
        radius: of a feature, metres.
        around: features that are averaged at a node.
    """

    name: ClassVar[str] = "fpfh"
    face: UpperFace = UpperFace(step=0.01)
    voxel: float = 0.006
    radius: float = 0.025
    around: int = 5

    def describe(self, cloud: Cloud) -> Vector:
        near = with_normals(thinned(self.face.cut(cloud, self.radius), self.voxel))
        features = fpfh(near, radius=self.radius)
        _, _, nodes = self.face.nodes()
        count = min(self.around, len(near))
        rows = search(near.points[:, 1:], nodes, count)[1]
        # Square roots of shares: a difference between these is Hellinger's, which rare bins do not drown in full ones.
        return np.sqrt(features[rows].mean(axis=1) / 200).astype(np.float32).ravel()


@dataclass(frozen=True)
class IcpRecogniser:
    """By what remains between two upper faces after ICP; exact, pair by pair, for small sets.

    Args:
        voxel: clouds are thinned to this first, metres.
        trim: share of points, the worst, that are left out: hair, an eye that is closed.
    """

    name: ClassVar[str] = "icp"
    face: UpperFace = UpperFace()
    voxel: float = 0.003
    trim: float = 0.2

    def score(self, first: Cloud, second: Cloud) -> float:
        """Minus the trimmed mean distance of points to the other's planes, millimetres; the same in either order.

        Args:
            first, second: in the canonical frame, roughly.

        Raises:
            InputError: there is no upper face.
        """
        return self._score(self._prepared(first), self._prepared(second))

    def compare(self, gallery: Sequence[Cloud], probes: Sequence[Cloud]) -> Vector:
        """Scores [P,G] of every probe with every face of the gallery."""
        faces, others = ([self._prepared(cloud) for cloud in clouds] for clouds in (gallery, probes))
        return np.array([[self._score(face, other) for face in faces] for other in others], np.float32)

    def _prepared(self, cloud: Cloud) -> tuple[Cloud, Cloud]:
        """The part that moves, and the larger one that it is laid on, with normals."""
        wide = with_normals(thinned(self.face.cut(cloud, 4 * self.voxel), self.voxel))
        return self.face.cut(wide), wide

    def _score(self, first: tuple[Cloud, Cloud], second: tuple[Cloud, Cloud]) -> float:
        gaps = self._residual(first[0], second[1]), self._residual(second[0], first[1])
        return -1000 * sum(gaps) / 2

    def _residual(self, moving: Cloud, fixed: Cloud) -> float:
        assert fixed.normals is not None
        tree = Tree(fixed.points)
        transform, kept = np.eye(4), np.arange(len(moving))
        for _ in range(2):
            transform = icp(moving.take(kept), fixed, transform, Icp(iterations=15, tolerance=1e-5)).transform
            moved = moving.moved(transform).points
            rows = tree.nearest(moved)[1][:, 0]
            gaps = np.abs(((moved - fixed.points[rows]) * fixed.normals[rows]).sum(axis=1))
            kept = np.argsort(gaps, kind="stable")[: max(3, round((1 - self.trim) * len(gaps)))]
        return float(gaps[kept].mean())


GEOMETRIC_RECOGNISERS: dict[str, type[GeometricRecogniser]] = {
    one.name: one for one in (DepthRecogniser, NormalRecogniser, FpfhRecogniser)
}
"""Those that describe a cloud once, by name; `IcpRecogniser` compares pairs."""


def _units(vectors: Vector) -> Vector:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
