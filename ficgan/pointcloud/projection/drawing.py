"""What all pictures of a cloud share: their settings, the turned head, colours."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import Cloud

__all__ = ["Drawing", "changed", "coloured", "marker_radius", "turned"]

Picture = NDArray[np.uint8]
D = TypeVar("D", bound="Drawing")

THESIS_SIZE = (389, 515)
MOST_CELLS = 1 << 27
"""Of a picture: width × height × samples². Drawing takes up to 20 bytes for each."""
_PIXELS_PER_POINT = 100 / 72
"""At matplotlib's 100 dots per inch."""
_LINE_WIDTH = 1.0
"""Points; matplotlib draws a line of this width around a marker, half of it outside."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Settings of any picture of a cloud.

    Args:
        size: width and height in pixels.
        point_size: marker area, points² (thesis: 25, and up to 60 for sparse results); at most `largest_point`.
        background: grey or RGB.
        yaw: degrees the head is turned about the upright axis through the nose tip; above 0 towards the viewer's right.
        pitch: degrees the head is raised.
        samples: cells per pixel in each direction (see `splat`); 1 is fastest and has hard edges.

    Raises:
        UsageError: numbers that cannot work.
    """

    size: tuple[int, int] = THESIS_SIZE
    point_size: float = 25.0
    background: int | tuple[int, int, int] = 255
    yaw: float = 0.0
    pitch: float = 0.0
    samples: int = 2

    def __post_init__(self) -> None:
        if len(self.size) != 2 or min(self.size) < 1 or any(side != int(side) for side in self.size):
            raise UsageError(f"the size of the picture is {self.size}; give a width and a height, whole and above 0")
        if not 0 < self.point_size <= largest_point():
            raise UsageError(
                f"the point size is {self.point_size:g}; give a number above 0, and at most {largest_point()}, whose "
                "disc is as wide as the picture"
            )
        if np.shape(self.background) not in ((), (3,)) or np.min(self.background) < 0 or np.max(self.background) > 255:
            raise UsageError(f"the background is {self.background}; give a grey from 0 to 255, or three numbers of RGB")
        if not np.isfinite([self.yaw, self.pitch]).all():
            raise UsageError(f"yaw and pitch are {self.yaw} and {self.pitch}; give degrees")
        if not 1 <= self.samples <= 8:
            raise UsageError(f"the number of cells per pixel is {self.samples}; give 1 to 8")
        if (cells := int(self.size[0]) * int(self.size[1]) * self.samples**2) > MOST_CELLS:
            raise UsageError(
                f"a picture of {self.size[0]}×{self.size[1]} of {self.samples}² cells has {cells:,} of them, and "
                f"{MOST_CELLS:,} is the limit; give a smaller picture or fewer samples"
            )


def marker_radius(point_size: float) -> float:
    """Pixels, in the thesis' picture, of matplotlib's marker of that area with the line around it."""
    return float((np.sqrt(point_size) + _LINE_WIDTH) / 2 * _PIXELS_PER_POINT)


def largest_point() -> int:
    """The marker area, points², of a disc as wide as the thesis' picture; discs grow with the picture."""
    return int((THESIS_SIZE[0] / _PIXELS_PER_POINT - _LINE_WIDTH) ** 2)


def changed(drawing: D, changes: dict[str, Any]) -> D:
    """The settings with some of them changed.

    Raises:
        UsageError: a name that is no setting.
    """
    known = {field.name for field in fields(drawing)}
    if unknown := sorted(set(changes) - known):
        raise UsageError(f"a projection has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}")
    return replace(drawing, **changes)


def turned(cloud: Cloud, yaw: float, pitch: float = 0.0) -> Cloud:
    """The head turned about the nose tip: first raised, then turned aside.

    Args:
        cloud: in the canonical frame.
        yaw: degrees; above 0 the face looks towards the viewer's right.
        pitch: degrees; above 0 it looks up.
    """
    if yaw == 0 and pitch == 0:
        return cloud
    (s, t), (c, d) = np.sin(np.radians([yaw, pitch])), np.cos(np.radians([yaw, pitch]))
    transform = np.eye(4)
    transform[:3, :3] = np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]]) @ np.array([[d, -t, 0], [t, d, 0], [0, 0, 1]])
    return cloud.moved(transform)


def coloured(cloud: Cloud) -> Cloud:
    """The cloud itself, or shaded where it has no colours.

    Raises:
        InputError: it is empty.
    """
    if len(cloud) == 0:
        raise InputError("a cloud of no points cannot be drawn; give one with points")
    if cloud.colors is not None:
        return cloud
    from ficgan.pointcloud.projection.shading import shaded  # loads scipy

    return shaded(cloud)
