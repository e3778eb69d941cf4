"""The part of a scan that is a face, and in it the inner part that is anonymised and the outer one that is not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud

__all__ = ["Segmentation", "Segments", "segmented"]


@dataclass(frozen=True)
class Segmentation:
    """Where a face is in the canonical frame, in metres.

    Args:
        x: back and front of the box.
        y: bottom and top; the thesis misprints the top as −.17, its 30 cm of height say .17.
        z: the person's left and right.
        front_slack: added to the front. With the nose tip at x = 0 an exact limit loses it to rounding, and where the
            frame leans by three degrees, as a pouting face makes it, forehead too (up to 1,258 of 45,000 points of
            twelve scans; with 5 mm, none).
        radius: of the sphere about the nose tip that holds the inner part.

    Source:
        Point-cloud thesis, equation 4.1 and §4.1.4.2.
    """

    x: tuple[float, float] = (-0.16, 0.0)
    y: tuple[float, float] = (-0.13, 0.17)
    z: tuple[float, float] = (-0.12, 0.12)
    front_slack: float = 0.005
    radius: float = 0.14


@dataclass(frozen=True)
class Segments:
    """Both parts of a face.

    Args:
        inner: within the sphere.
        outer: within the box, outside the sphere; may be empty.
    """

    inner: Cloud
    outer: Cloud


def segmented(cloud: Cloud, numbers: Segmentation | None = None) -> Segments:
    """Cut a face out by the box, and split it by the sphere.

    Args:
        cloud: in the canonical frame.
        numbers: box and sphere; None: the thesis'.

    Raises:
        InputError: no point lies in both.

    Source:
        Point-cloud thesis, §4.1.4.2, face segmentation.
    """
    numbers = numbers or Segmentation()
    low = np.array([numbers.x[0], numbers.y[0], numbers.z[0]])
    high = np.array([numbers.x[1] + numbers.front_slack, numbers.y[1], numbers.z[1]])
    boxed = ((cloud.points >= low) & (cloud.points <= high)).all(axis=1)
    near = np.linalg.norm(cloud.points, axis=1) <= numbers.radius
    inner = boxed & near
    if not inner.any():
        raise InputError(
            f"none of the cloud's {len(cloud)} points lies within {numbers.radius} m of the nose tip; bring the cloud "
            "to the canonical frame, in metres, first"
        )
    return Segments(cloud.take(inner), cloud.take(boxed & ~near))
