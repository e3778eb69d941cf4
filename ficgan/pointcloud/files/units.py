"""Whether a cloud is as large as a face, and which unit would make it so."""

from __future__ import annotations

import math

import numpy as np

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud

__all__ = ["UNITS", "check_size"]

UNITS = {"m": 1.0, "cm": 0.01, "mm": 0.001}
"""Metres in one."""

SMALLEST, LARGEST, USUAL = 0.05, 1.5, 0.25
"""Metres across: a part of a face, a bust, a face."""


def check_size(cloud: Cloud, where: str = "the cloud", unit: str = "m") -> None:
    """Refuse a cloud that cannot be a face or a head in metres.

    The longest side of the box around the middle 98 % of the points along each axis counts, so a few strays do not.

    Args:
        cloud: in metres, as it is believed.
        where: what the message begins with, such as the file's name.
        unit: one of `UNITS`, by which its coordinates were read.

    Raises:
        InputError: less than .05 m or more than 1.5 m across; the message has the extent and the unit that would fit.
    """
    low, high = np.percentile(cloud.points, [1, 99], axis=0) if len(cloud) else np.zeros((2, 3))
    with np.errstate(over="ignore"):
        extent = float((high - low).max())
    if SMALLEST <= extent <= LARGEST:
        return
    if extent == 0:
        raise InputError(f"{where}: its points are all at one place")
    fits = {name: extent * UNITS[name] / UNITS[unit] for name in UNITS}
    fits = {name: size for name, size in fits.items() if SMALLEST <= size <= LARGEST}
    if fits:
        advice = f"give --unit {min(fits, key=lambda name: abs(math.log(fits[name] / USUAL)))}"
    else:
        advice = f"none of {', '.join(UNITS)} makes it one: bring its coordinates to metres"
    read = "" if unit == "m" else f", read in {unit}"
    raise InputError(f"{where}: the cloud is {_length(extent)} across{read}; a face is some 0.2 m: {advice}")


def _length(metres: float) -> str:
    return f"{metres:.3g} m" if metres >= 0.01 else f"{metres * 1000:.3g} mm"
