"""The canonical frame: from landmarks, or found by what a face looks like."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.landmarks import FaceLandmarks, need_on_cloud

__all__ = ["CONVINCING", "FEWEST", "Placed", "canonical", "landmark_frame", "need_metres"]

Floats = NDArray[np.float64]

FEWEST = 500
"""Points a cloud must have to be taken for a face."""
_SIZES = (0.06, 4.0)
"""Metres across, between a part of a face and a person with surroundings."""
CONVINCING = 0.12
"""Likeness below which no face is claimed. Of twelve scans none was below it; sphere, cube, cone and noise are far
below, but of 48 random hilly surfaces four were above."""


@dataclass(frozen=True)
class Placed:
    """A cloud in the canonical frame.

    Args:
        cloud: there.
        transform: [4,4], from the frame it came in.
        how: "landmarks" or "automatic".
        likeness: to a face, 0…1, on a scale of its own; 1 with landmarks.
        residual: metres, root mean square from the made face; 0 with landmarks.
    """

    cloud: Cloud
    transform: Floats
    how: str
    likeness: float = 1.0
    residual: float = 0.0


def canonical(cloud: Cloud, landmarks: FaceLandmarks | None = None) -> Placed:
    """The cloud with its nose tip at the origin, looking towards +x, +y up and +z the person's right.

    Args:
        cloud: metres, in any orientation.
        landmarks: in the cloud's frame; None: the face is looked for.

    Raises:
        InputError: too few points, another unit than metres, landmarks that fit no face or another cloud, or, without
            them, no place that looks like a face.

    Source:
        Point-cloud thesis, §4.1.4.2 (the frame).
    """
    cloud.need(FEWEST, "a face")
    need_metres(cloud)
    if landmarks is not None:
        need_on_cloud(landmarks, cloud)
        transform = landmark_frame(landmarks)
        return Placed(cloud.moved(transform), transform, "landmarks")
    from ficgan.pointcloud.relief import find_face

    found = find_face(cloud.points)
    if found.likeness < CONVINCING:
        raise InputError(
            f"no face was found in the cloud (likeness {found.likeness:.2f}, at least {CONVINCING} is needed); "
            "give --landmarks, or a cloud in which the nose and its surroundings can be seen"
        )
    return Placed(cloud.moved(found.transform), found.transform, "automatic", found.likeness, found.residual)


def landmark_frame(landmarks: FaceLandmarks) -> Floats:
    """The rigid motion to the canonical frame that landmarks say.

    +z is the mean direction from points of the person's left half to their mirror points, longer ones counting more.
    +y, square to it, goes from the middle of the mouth's corners to the middle of the eyes', so that these lie in one
    upright plane. +x is what is left. The nose tip is the origin.

    Args:
        landmarks: metres.

    Returns:
        [4,4].

    Raises:
        InputError: points in one place or line, or with left and right exchanged.
    """
    five = landmarks.five
    sideways = (landmarks.right - landmarks.left).sum(axis=0)
    upwards = five[:2].mean(axis=0) - five[3:].mean(axis=0)
    across = np.cross(upwards, sideways)
    if np.linalg.norm(across) < 1e-3 * np.linalg.norm(upwards) * np.linalg.norm(sideways) or not across.any():
        raise InputError("the landmarks' eyes and mouth lie in one line; check the points")
    z = sideways / np.linalg.norm(sideways)
    x = across / np.linalg.norm(across)
    rotation = np.stack([x, np.cross(z, x), z])
    if rotation[0] @ (five[2] - five[[0, 1, 3, 4]].mean(axis=0)) <= 0:
        raise InputError(
            "the landmarks' nose tip lies behind eyes and mouth; left and right are exchanged, or the face is mirrored"
        )
    frame = np.eye(4)
    frame[:3, :3], frame[:3, 3] = rotation, -rotation @ five[2]
    return frame


def need_metres(cloud: Cloud) -> None:
    """Refuse a cloud of which no metre can be meant.

    Args:
        cloud: not empty.

    Raises:
        InputError: it is much smaller or larger than a head; the message names its size and the unit it may be in.
    """
    low, high = np.percentile(cloud.points, (2, 98), axis=0)
    size = float((high - low).max())
    if _SIZES[0] <= size <= _SIZES[1]:
        return
    units = {"millimetres": 1e-3, "centimetres": 1e-2, "kilometres": 1e3}
    meant = next((f"; its unit may be {name}" for name, unit in units.items() if 0.1 <= size * unit <= 1.0), "")
    raise InputError(f"the cloud is {size:.3g} m across, which no head is{meant}; scale its coordinates to metres")
