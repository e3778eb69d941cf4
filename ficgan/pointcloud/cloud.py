"""A point cloud: checked arrays of points, colours and normals."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError

__all__ = ["Cloud", "merged", "rounded_colors"]

Points = NDArray[np.float64]
Colors = NDArray[np.uint8]


@dataclass(frozen=True)
class Cloud:
    """Points [N,3] float64 with colours [N,3] uint8 RGB and unit normals [N,3] where they are known.

    In the canonical frame (thesis, §3.2.2, §4.1.4.2) the unit is the metre, the nose tip is the origin, the face looks
    towards +x, +y is up and +z is the person's right.
    """

    points: Points  # [N,3] float64, finite
    colors: Colors | None = None  # [N,3] uint8 RGB, or None
    normals: Points | None = None  # [N,3] float64 of unit length, or None

    def __post_init__(self) -> None:
        points = np.asarray(self.points)
        if points.ndim != 2 or points.shape[1] != 3 or not np.issubdtype(points.dtype, np.number):
            raise InputError(f"a cloud's points must be numbers [N,3], not {points.dtype} {list(points.shape)}")
        points = np.ascontiguousarray(points, np.float64)
        if not np.isfinite(points).all():
            bad = ~np.isfinite(points).all(axis=1)
            raise InputError(
                f"{int(bad.sum())} of {len(points)} points have coordinates that are not finite, the first is point "
                f"{int(bad.argmax())}; remove them"
            )
        object.__setattr__(self, "points", points)
        if self.colors is not None:
            colors = np.asarray(self.colors)
            if colors.shape != points.shape or colors.dtype != np.uint8:
                raise InputError(
                    f"a cloud of {len(points)} points needs colours [{len(points)},3] uint8, not {colors.dtype} "
                    f"{list(colors.shape)}"
                )
            object.__setattr__(self, "colors", np.ascontiguousarray(colors))
        if self.normals is not None:
            normals = np.asarray(self.normals)
            if normals.shape != points.shape or not np.issubdtype(normals.dtype, np.number):
                raise InputError(f"a cloud of {len(points)} points needs normals [{len(points)},3]")
            object.__setattr__(self, "normals", np.ascontiguousarray(normals, np.float64))

    def __len__(self) -> int:
        return len(self.points)

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> Cloud:
        """The points at `rows` (indices or a mask) in that order, with their colours and normals."""
        colors = None if self.colors is None else self.colors[rows]
        return Cloud(self.points[rows], colors, None if self.normals is None else self.normals[rows])

    def moved(self, transform: NDArray[np.floating]) -> Cloud:
        """The cloud after a rigid motion [4,4]."""
        rotation, shift = np.asarray(transform, np.float64)[:3, :3], np.asarray(transform, np.float64)[:3, 3]
        normals = None if self.normals is None else self.normals @ rotation.T
        return Cloud(self.points @ rotation.T + shift, self.colors, normals)

    def scaled(self, factor: float) -> Cloud:
        """The cloud with coordinates multiplied by a factor."""
        return self if factor == 1 else replace(self, points=self.points * factor)

    def with_points(self, points: Points, colors: Colors | None = None) -> Cloud:
        """As many other points in the same order; colours None: unchanged. Normals no longer hold and are dropped."""
        return replace(self, points=points, colors=self.colors if colors is None else colors, normals=None)

    def need(self, count: int, what: str) -> None:
        """Raise an InputError where the cloud has fewer points than `what` needs."""
        if len(self) < count:
            raise InputError(f"the cloud has {len(self)} points, and {what} needs at least {count}")


def merged(*clouds: Cloud) -> Cloud:
    """All points of one or more clouds, in order. Colours or normals that one cloud lacks are dropped for all."""
    colors = [cloud.colors for cloud in clouds if cloud.colors is not None]
    normals = [cloud.normals for cloud in clouds if cloud.normals is not None]
    return Cloud(
        np.concatenate([cloud.points for cloud in clouds]),
        np.concatenate(colors) if len(colors) == len(clouds) else None,
        np.concatenate(normals) if len(normals) == len(clouds) else None,
    )


def rounded_colors(levels: NDArray[np.floating]) -> Colors:
    """Levels 0…255 to the nearest uint8, halves up."""
    return np.floor(levels + 0.5).clip(0, 255).astype(np.uint8)
