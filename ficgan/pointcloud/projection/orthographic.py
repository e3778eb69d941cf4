"""Orthographic projection of a face to the thesis' picture, and the views from around it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import UsageError
from ficgan.pointcloud.cloud import Cloud, merged
from ficgan.pointcloud.projection.drawing import (
    THESIS_SIZE,
    Drawing,
    Picture,
    changed,
    coloured,
    marker_radius,
    turned,
)
from ficgan.pointcloud.projection.splat import splat

__all__ = ["ANGLES", "Order", "ProjectionConfig", "project", "project_parts", "views"]

Order = Literal["y", "x", "depth"]

ANGLES = range(-10, 11, 2)
"""Degrees of yaw of the pictures that the auto-encoder learns from (thesis, figure 4.26: −10 to 10)."""


@dataclass(frozen=True, kw_only=True)
class ProjectionConfig(Drawing):
    """How a cloud becomes a picture; the thesis' numbers.

    Args:
        limits: metres from the nose tip to the side and to the upper edge of the drawn area.
        order: what is drawn last lies on top: "y", the highest; "x" or "depth", the nearest to the viewer.

    The other settings are those of `Drawing`.

    Raises:
        UsageError: numbers that cannot work.

    Source:
        Point-cloud thesis, §4.3.2; the order by x is for PMP with α > .03.
    """

    limits: tuple[float, float] = (0.18, 0.25)
    order: Order = "y"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.limits) != 2 or not all(0 < limit < np.inf for limit in self.limits):
            raise UsageError(f"the limits of the picture are {self.limits}; give two lengths above 0, in metres")
        if self.order not in get_args(Order):
            raise UsageError(f"the order of drawing is {self.order!r}; use one of {', '.join(get_args(Order))}")

    @property
    def radius(self) -> float:
        """Of a disc, pixels."""
        return marker_radius(self.point_size) * float(np.sqrt(np.prod(self.size) / np.prod(THESIS_SIZE)))

    def places(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Where points, such as landmarks, fall in the picture.

        Args:
            points: [N,3], canonical frame, before the head is turned.

        Returns:
            [N,2], column and row, pixel centres at integers; some may lie outside.
        """
        window = _Window.of(self)
        there: NDArray[np.float64] = window.places(turned(Cloud(points), self.yaw, self.pitch).points)
        return there + np.array([window.left, window.top])


def project(cloud: Cloud, config: ProjectionConfig | None = None, **changes: Any) -> Picture:
    """The front view of a face, drawn as the thesis draws it: a scatter plot of y and z, turned upright.

    The area within the limits fills the same pixels as in a matplotlib figure of the default size saved with a tight
    bounding box: 369.6×496 of 389×515, the rest is background. Columns run along −z, rows along −y.

    Args:
        cloud: in the canonical frame; one without colours is shaded first (`ficgan.pointcloud.projection.shading`).
        config: None: the thesis'.
        changes: settings to change, such as point_size=40 or yaw=10.

    Returns:
        [height,width,3] uint8 RGB.

    Raises:
        InputError: the cloud is empty, or has neither colours nor a surface.
        UsageError: settings that cannot work.

    Source:
        Point-cloud thesis, §4.3.2, eq. 4.3 (along x in place of z).
    """
    config = changed(config or ProjectionConfig(), changes)
    cloud = turned(coloured(cloud), config.yaw, config.pitch)
    assert cloud.colors is not None
    key = cloud.points[:, 1] if config.order == "y" else cloud.points[:, 0]
    order = np.argsort(key, kind="stable")
    window = _Window.of(config)
    drawn = splat(
        window.places(cloud.points[order]),
        cloud.colors[order],
        config.radius,
        window.size,
        background=config.background,
        samples=config.samples,
    )
    picture = np.empty((config.size[1], config.size[0], 3), np.uint8)
    picture[:] = config.background
    picture[window.top : window.top + window.size[1], window.left : window.left + window.size[0]] = drawn
    return picture


def project_parts(inner: Cloud, outer: Cloud, config: ProjectionConfig | None = None, **changes: Any) -> Picture:
    """The front view of a face whose inner part was anonymised: both parts are merged, then drawn in one order.

    Where a part has no colours, both are shaded together. Many results with one outer part are drawn faster when that
    part was shaded once and each inner part by itself.

    Args:
        inner: anonymised.
        outer: untouched.
        config: see `project`.
        changes: see `project`.

    Source:
        Point-cloud thesis, §4.3.2 and figure 4.15.
    """
    return project(merged(inner, outer), config, **changes)


def views(
    cloud: Cloud, angles: Iterable[float] = ANGLES, config: ProjectionConfig | None = None, **changes: Any
) -> list[Picture]:
    """Front views of the head turned by several angles of yaw.

    A cloud without colours is shaded once, before it is turned: its light turns with it.

    Args:
        cloud: in the canonical frame.
        angles: degrees of yaw.
        config: see `project`; its yaw is replaced.
        changes: see `project`.

    Source:
        Point-cloud thesis, figure 4.26.
    """
    config = changed(config or ProjectionConfig(), changes)
    cloud = coloured(cloud)
    return [project(cloud, replace(config, yaw=float(angle))) for angle in angles]


@dataclass(frozen=True)
class _Window:
    """The drawn area within the picture: whole pixels, as matplotlib clips, about a middle that lies between pixels."""

    left: int
    top: int
    size: tuple[int, int]
    middle: NDArray[np.float64]
    per_metre: NDArray[np.float64]

    @classmethod
    def of(cls, config: ProjectionConfig) -> _Window:
        # Of matplotlib's 640×480 pixels the axes take 496×369.6 from (80, 52.8). The tight box begins 10 pixels outside
        # them and is cut to whole pixels. Of 516 the thesis has 515; the lost one is the upper edge, once turned.
        scale = np.array(config.size) / THESIS_SIZE
        middle = scale * (194.2, 257.0)
        half = scale * (369.6 / 2, 496 / 2)
        low, high = np.floor(middle - half + 0.5).astype(int), np.floor(middle + half + 0.5).astype(int)
        (left, top), (width, height) = low.tolist(), np.maximum(high - low, 1).tolist()
        return cls(left, top, (width, height), middle - low, half / config.limits)

    def places(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """[N,2] columns and rows in the window, pixel centres at integers."""
        return self.middle - 0.5 - points[:, [2, 1]] * self.per_metre
