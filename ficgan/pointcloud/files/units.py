"""Whether a cloud is as large as a face, and which unit would make it so."""

from __future__ import annotations

import numpy as np

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud

__all__ = ["UNITS", "check_size"]

UNITS = {"m": 1.0, "cm": 0.01, "mm": 0.001}
"""Metres in one."""

SMALLEST, LARGEST = 0.05, 4.0
"""Metres across: a part of a face, and a person with surroundings, among which the face is looked for."""
HEAD = (0.15, 0.6)
"""Metres across, from a cropped face to a bust. Only a unit by which a cloud is such is advised: a head in inches would
else be taken for a part of a face in centimetres."""


def check_size(cloud: Cloud, where: str = "", unit: str = "m") -> None:
    """Refuse a cloud in which no face can be, in metres.

    The longest side of the box around the middle 98 % of the points along each axis counts, so a few strays do not.

    Args:
        cloud: in metres, as it is believed.
        where: what the message begins with, such as the file's name; may be empty.
        unit: one of `UNITS`, by which its coordinates were read.

    Raises:
        InputError: less than .05 m or more than 4 m across; the message has the extent, and the unit by which it would
            be a head, if there is one.
    """
    low, high = np.percentile(cloud.points, [1, 99], axis=0) if len(cloud) else np.zeros((2, 3))
    with np.errstate(over="ignore"):
        extent = float((high - low).max())
    if SMALLEST <= extent <= LARGEST:
        return
    begin = f"{where}: the cloud" if where else "the cloud"
    if extent == 0:
        raise InputError(f"{begin} has all its points at one place")
    advised = [name for name in UNITS if HEAD[0] <= extent * UNITS[name] / UNITS[unit] <= HEAD[1]]
    if advised:
        advice = f"give --unit {advised[0]}"
    else:
        advice = f"none of {', '.join(UNITS)} makes it one: bring its coordinates to metres"
    read = "" if unit == "m" else f", read in {unit}"
    raise InputError(f"{begin} is {_length(extent)} across{read}; a face is some 0.2 m: {advice}")


def _length(metres: float) -> str:
    return f"{metres:.3g} m" if metres >= 0.01 else f"{metres * 1000:.3g} mm"
