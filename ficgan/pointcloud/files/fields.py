"""What every format reads: columns that become coordinates, colours and normals; and writing them as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.files.limits import shown
from ficgan.pointcloud.files.units import UNITS

__all__ = [
    "LOSS",
    "UNIT_NAMES",
    "Fields",
    "coordinates_kind",
    "eight_bit",
    "faces_note",
    "known_points",
    "table",
    "unit_length",
    "write_rows",
]

LOSS = 1e-7
"""Metres that single precision may cost before coordinates are written in double; scanners resolve 100 times less."""

UNIT_NAMES = {"m": "metres", "cm": "centimetres", "mm": "millimetres"}
"""As a comment in a file says them."""

_BLOCK = 1 << 16  # rows whose numbers are Python objects at one time


@dataclass(frozen=True)
class Fields:
    """Columns as they stand in a file.

    Args:
        points: [N,3] numbers.
        colors: [N,3] uint8, or None.
        normals: [N,3] numbers of any length, or None.
    """

    points: NDArray[np.generic]
    colors: NDArray[np.uint8] | None = None
    normals: NDArray[np.generic] | None = None

    def cloud(self, scale: float, notes: list[str]) -> Cloud:
        """The cloud in metres.

        Args:
            scale: metres in one unit of the file.
            notes: takes a sentence where points or normals had to be left out.

        Raises:
            InputError: infinite coordinates, or no point whose coordinates are known.
        """
        known = known_points(self.points, notes)
        points, colors, normals = self.points, self.colors, self.normals
        if not known.all():
            points = points[known]
            colors = None if colors is None else colors[known]
            normals = None if normals is None else normals[known]
        with np.errstate(over="ignore", invalid="ignore"):
            metres = points.astype(np.float64)
            metres = metres if scale == 1 else metres * scale
        cloud = Cloud(metres, colors)
        return cloud if normals is None else Cloud(cloud.points, cloud.colors, unit_length(normals, notes))


def known_points(points: NDArray[np.generic], notes: list[str]) -> NDArray[np.bool_]:
    """Which points have coordinates: an organised scan has one for each pixel of its sensor, NaN where it saw nothing.

    Args:
        points: [N,3].
        notes: takes how many have none.

    Returns:
        [N]; all, where none is NaN. Infinite ones are damage, and are not looked for.

    Raises:
        InputError: no point has.
    """
    with np.errstate(invalid="ignore"):  # a signalling NaN
        known: NDArray[np.bool_] = np.logical_not(np.isnan(points.astype(np.float64)).any(axis=1))
    missing = int((~known).sum())
    if missing == len(known) > 0:
        raise InputError("it holds no points: the coordinates of all are NaN")
    if missing:
        notes.append(f"{missing:,} of {len(known):,} points have no coordinates (NaN) and were left out")
    return known


def unit_length(normals: NDArray[np.generic], notes: list[str]) -> NDArray[np.float64] | None:
    """Normals of length 1; None, and a note, where some have no direction.

    Args:
        normals: [N,3].
        notes: takes the note.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        given = normals.astype(np.float64)
        length = np.linalg.norm(given, axis=1, keepdims=True)
    bad = ~np.isfinite(length) | (length < 1e-30)
    if bad.any():
        notes.append(f"{int(bad.sum()):,} of {len(given):,} normals have no direction, so the normals were left out")
        return None
    return given if np.abs(length - 1).max() < 1e-6 else given / length


def eight_bit(values: NDArray[np.generic], whole: bool = False) -> NDArray[np.uint8]:
    """Colours of 8 bits.

    Args:
        values: [N,3]; integers count to 255 (or, of 16 bits, to 65535), others to 1, or to 255 if one is above 1.
        whole: numbers of a floating kind that were written as integers.

    Raises:
        InputError: colours that are not finite, negative, or above 255.
    """
    if values.dtype == np.uint8:
        return values.view(np.uint8)
    low, high = (values.min(), values.max()) if len(values) else (0, 0)
    if not (np.isfinite(low) and np.isfinite(high)):
        raise InputError("some colours are not finite")
    floating = np.issubdtype(values.dtype, np.floating) and not whole
    if floating and high <= 1 + 1e-3:
        full = 1.0
    elif values.dtype == np.uint16 and high > 255:
        full = 65535.0
    else:
        full = 255.0
    if low < -1e-3 or high > full + 1e-3:
        raise InputError(f"its colours go from {low:g} to {high:g}; they must be 0 to 1 or 0 to 255")
    return np.rint(np.clip(values.astype(np.float64) * (255.0 / full), 0, 255)).astype(np.uint8)


def table(lines: Sequence[bytes], line_of: Callable[[int], int], width: int = 0) -> NDArray[np.float64]:
    """Numbers in columns.

    Args:
        lines: without empty ones and comments, the numbers apart by white space.
        line_of: index → number of that line in the file, asked for a message only.
        width: columns; 0: as the first line has.

    Returns:
        [len(lines), columns].

    Raises:
        InputError: a line with another number of columns, or a token that is no number.
    """
    if not all(map(bytes.strip, lines)):  # NumPy would pass over them
        raise _wrong(lines, line_of, width)
    try:
        values = np.loadtxt(lines, comments=None, ndmin=2) if lines else np.zeros((0, width))
    except ValueError:
        raise _wrong(lines, line_of, width) from None
    if width and values.shape[1] != width:
        raise _wrong(lines, line_of, width)
    return values


def is_number(token: bytes) -> bool:
    """Whether Python reads the token as a number, underscores apart."""
    try:
        float(token)
    except ValueError:
        return False
    return b"_" not in token


def _wrong(lines: Sequence[bytes], line_of: Callable[[int], int], width: int) -> InputError:
    width = width or len(lines[0].split())
    for at, words in enumerate(line.split() for line in lines):
        for token in words:
            if not is_number(token):
                return InputError(f"line {line_of(at)} has {shown(token)} where a number should be")
        if len(words) != width:
            return InputError(f"line {line_of(at)} has {len(words)} columns instead of {width}; it may be cut off")
    return InputError("its numbers cannot be read; it is damaged")


def faces_note(count: int) -> list[str]:
    """What is said of a mesh's faces: one sentence, none where it has none."""
    return [f"its {count:,} {'face is' if count == 1 else 'faces are'} not kept: a point cloud has none"] * (count > 0)


def coordinates_kind(points: NDArray[np.float64], unit: str = "m") -> str:
    """`f4` where single precision costs no coordinate more than `LOSS`, else `f8`.

    Args:
        points: [N,3].
        unit: of them: m, cm or mm.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        loss = np.abs(points.astype(np.float32) - points).max()
    return "f4" if loss * UNITS[unit] <= LOSS else "f8"


def write_rows(file: BinaryIO, columns: Sequence[NDArray[np.generic]], start: str = "", separator: str = " ") -> None:
    """Write columns as text: integers as such, other numbers in as many digits as their kind holds.

    Args:
        file: to write to.
        columns: each [N,any], of one kind.
        start: what each line begins with.
        separator: between two numbers.
    """
    digits = {"f4": "%.9g", "f8": "%.17g"}
    forms = [digits.get(one.dtype.str[1:], "%d") for one in columns for _ in range(one.shape[1])]
    line = start + separator.join(forms) + "\n"
    for first in range(0, len(columns[0]), _BLOCK):
        block = np.concatenate([one[first : first + _BLOCK].astype(np.float64) for one in columns], axis=1)
        file.write((line * len(block) % tuple(block.ravel().tolist())).encode())
