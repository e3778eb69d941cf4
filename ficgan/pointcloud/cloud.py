"""What a point cloud is, and what it must be before anything is computed from it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError

__all__ = ["Cloud", "merged"]

Points = NDArray[np.float64]
Colors = NDArray[np.uint8]


@dataclass(frozen=True)
class Cloud:
    """Points in space, with what is known of each.

    In the canonical frame the unit is the metre, the nose tip is the origin, the face looks towards +x, +y is up and +z
    is the person's right (the viewer's left); `ficgan.pointcloud.frame` brings a scan there.

    Args:
        points: [N,3] float64.
        colors: [N,3] uint8 RGB, or None.
        normals: [N,3] float64 of unit length, or None.

    Raises:
        InputError: shapes or kinds that do not fit together, or coordinates that are not finite.

    Source:
        Point-cloud thesis, §3.2.2 (a point has coordinates and a colour) and §4.1.4.2 (the frame).
    """

    points: Points
    colors: Colors | None = None
    normals: Points | None = None

    def __post_init__(self) -> None:
        points = np.asarray(self.points)
        if points.ndim != 2 or points.shape[1] != 3 or not np.issubdtype(points.dtype, np.number):
            raise InputError(f"a cloud's points must be numbers [N,3], not {points.dtype} {list(points.shape)}")
        points = np.ascontiguousarray(points, np.float64)
        if not np.isfinite(points).all():  # the rows, which take twenty times as long, only for the message
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
        """The points at `rows` (indices, or a mask), in that order, with their colours and normals."""
        return Cloud(
            self.points[rows],
            None if self.colors is None else self.colors[rows],
            None if self.normals is None else self.normals[rows],
        )

    def moved(self, transform: NDArray[np.floating]) -> Cloud:
        """The cloud under a rigid motion.

        Args:
            transform: [4,4], a rotation and a shift.
        """
        rotation, shift = np.asarray(transform, np.float64)[:3, :3], np.asarray(transform, np.float64)[:3, 3]
        normals = None if self.normals is None else self.normals @ rotation.T
        return Cloud(self.points @ rotation.T + shift, self.colors, normals)

    def scaled(self, factor: float) -> Cloud:
        """The cloud in another unit.

        Args:
            factor: new coordinates in one of the old.
        """
        return self if factor == 1 else replace(self, points=self.points * factor)

    def with_points(self, points: Points, colors: Colors | None = None) -> Cloud:
        """Other points, as many, in the same order; the normals, which no longer hold, are dropped.

        Args:
            points: [N,3].
            colors: [N,3] uint8; None: as they were.
        """
        return replace(self, points=points, colors=self.colors if colors is None else colors, normals=None)

    def need(self, count: int, what: str) -> None:
        """Refuse a cloud that is too small.

        Args:
            count: points that `what` needs.
            what: for the message, such as "SmoothKNN with k = 280".

        Raises:
            InputError: there are fewer.
        """
        if len(self) < count:
            raise InputError(f"the cloud has {len(self)} points, and {what} needs at least {count}")


def merged(*clouds: Cloud) -> Cloud:
    """All points of several clouds, in order. Colours or normals that one of them lacks are dropped for all.

    Args:
        clouds: at least one.
    """
    colors = [one.colors for one in clouds]
    normals = [one.normals for one in clouds]
    return Cloud(
        np.concatenate([one.points for one in clouds]),
        np.concatenate(colors) if all(one is not None for one in colors) else None,  # type: ignore[arg-type]
        np.concatenate(normals) if all(one is not None for one in normals) else None,  # type: ignore[arg-type]
    )
