"""A camera before the face: what is nearer is larger, and lies over what is farther."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.projection.drawing import Drawing, Picture, changed, coloured, marker_radius, turned
from ficgan.pointcloud.projection.splat import splat

__all__ = ["Camera", "perspective"]

NEAR = 0.05
"""Metres; what is nearer to the camera is cut."""
THESIS_PER_METRE = 496 / 0.5
"""Pixels, upright."""


@dataclass(frozen=True, kw_only=True)
class Camera(Drawing):
    """A pinhole camera on the axis through the nose tip, and how points are drawn.

    Args:
        distance: metres from the camera to the nose tip.
        fov: degrees from the lower to the upper edge of the picture.

    The other settings are those of `Drawing`. Pixels are square. A disc has in metres the size it has upright in the
    thesis' picture, so it grows with the face.

    Raises:
        UsageError: numbers that cannot work.
    """

    distance: float = 1.0
    fov: float = 28.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (np.isfinite(self.distance) and self.distance > NEAR):
            raise UsageError(f"the camera is {self.distance} m away; give more than {NEAR} m")
        if not 0 < self.fov < 180:
            raise UsageError(f"the field of view is {self.fov} degrees; give more than 0 and less than 180")

    @property
    def focal_length(self) -> float:
        """Pixels."""
        return float(self.size[1] / 2 / np.tan(np.radians(self.fov) / 2))

    def places(self, points: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Columns and rows [N,2], pixel centres at integers, and depths [N] in metres, of points of the turned head."""
        depth = self.distance - points[:, 0]
        with np.errstate(divide="ignore"):
            scale = np.where(depth > NEAR, self.focal_length / depth, np.nan)
        middle = (np.array(self.size) - 1) / 2
        return middle - points[:, [2, 1]] * scale[:, None], depth


def perspective(cloud: Cloud, camera: Camera | None = None, **changes: Any) -> Picture:
    """The face as a camera before it sees it; of the discs over a pixel the one nearest to the camera is seen.

    Args:
        cloud: in the canonical frame; one without colours is shaded first.
        camera: None: a metre away, so that the picture holds half a metre at the nose tip.
        changes: fields of the camera, such as distance=0.4 or yaw=30.

    Returns:
        [height,width,3] uint8 RGB.

    Raises:
        InputError: the cloud is empty, or none of it lies before the camera.
        UsageError: settings that cannot work.
    """
    camera = changed(camera or Camera(), changes)
    cloud = turned(coloured(cloud), camera.yaw, camera.pitch)
    assert cloud.colors is not None
    places, depth = camera.places(cloud.points)
    order = np.argsort(-depth, kind="stable")
    order = order[depth[order] > NEAR]
    if len(order) == 0:
        raise InputError(f"no point lies more than {NEAR} m before the camera; move it away, or check the cloud's unit")
    metres = marker_radius(camera.point_size) / THESIS_PER_METRE
    return splat(
        places[order],
        cloud.colors[order],
        metres * camera.focal_length / depth[order],
        camera.size,
        background=camera.background,
        samples=camera.samples,
    )
