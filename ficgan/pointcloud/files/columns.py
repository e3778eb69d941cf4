"""Columns of numbers that all formats share, tables of text (ASC, XYZ, TXT, PTS, CSV), and NumPy's files."""

from __future__ import annotations

import io
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud

Columns = dict[str, NDArray[np.generic]]  # by the names that a header gives them

MAX_POINTS = 50_000_000
MAX_BYTES = 4 << 30
UNITS = {"m": 1.0, "cm": 0.01, "mm": 0.001}  # metres in one
UNIT_NAMES = {"m": "metres", "cm": "centimetres", "mm": "millimetres"}  # as a comment in a file says them
LOSS = 1e-7
"""Metres that single precision may cost before coordinates are written in double; scanners resolve 100 times less."""
_BLOCK = 1 << 16  # rows that are formatted as text at one time


def count_of(text: bytes, what: str) -> int:
    """A number of things that a header states; InputError where it is no whole number."""
    if not text.isdigit() or len(text) > 18:
        raise InputError(f"{what} is {shown(text)}, which is no count")
    return int(text)


def need_all(says: int, holds: int | None = None) -> None:
    """Refuse, before allocating, a cloud that is empty, larger than `MAX_POINTS`, or of which the file holds a part."""
    if says < 1:
        raise InputError("it holds no points")
    if says > MAX_POINTS:
        raise InputError(f"its header says {says:,} points, and {MAX_POINTS:,} is the limit; thin the cloud out")
    if holds is not None and holds < says:
        raise InputError(f"it is truncated: its header says {says:,} points and it holds {holds:,}; copy it again")


def shown(token: bytes) -> str:
    """A token of a file for a message: short, printable, in quotes."""
    return repr(token[:24].decode("latin-1")) + ("…" if len(token) > 24 else "")


@dataclass(frozen=True)
class Fields:
    """What a file holds: points [N,3], colours [N,3], normals [N,3] of any length."""

    points: NDArray[np.generic]  # [N,3] numbers
    colors: NDArray[np.uint8] | None = None  # [N,3] uint8, or None
    normals: NDArray[np.generic] | None = None  # [N,3] numbers of any length, or None

    def cloud(self, scale: float, notes: list[str]) -> Cloud:
        """The cloud in metres, by metres in one unit of the file; `notes` takes what had to be left out."""
        known = known_points(self.points, notes)
        with np.errstate(over="ignore", invalid="ignore"):
            metres = self.points[known].astype(np.float64) * scale
        cloud = Cloud(metres, None if self.colors is None else self.colors[known])
        if self.normals is None:
            return cloud
        with np.errstate(over="ignore", invalid="ignore"):
            normals = self.normals[known].astype(np.float64)
            length = np.linalg.norm(normals, axis=1, keepdims=True)
        bad = ~np.isfinite(length) | (length < 1e-30)
        if bad.any():
            notes.append(f"{int(bad.sum()):,} of {len(bad):,} normals have no direction, so the normals were left out")
            return cloud
        return Cloud(cloud.points, cloud.colors, normals if np.abs(length - 1).max() < 1e-6 else normals / length)


def stacked(columns: Columns, names: tuple[str, ...]) -> NDArray[np.generic] | None:
    """Columns [N] of these names side by side, [N,len(names)]; None where one is missing."""
    return np.stack([columns[name] for name in names], axis=1) if set(names) <= set(columns) else None


def known_points(points: NDArray[np.generic], notes: list[str]) -> NDArray[np.bool_]:
    """Which points have coordinates (NaN: the sensor saw nothing); `notes` takes how many have none."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        known: NDArray[np.bool_] = np.logical_not(np.isnan(points.astype(np.float64)).any(axis=1))
    missing = int((~known).sum())
    if missing == len(known) > 0:
        raise InputError("it holds no points: the coordinates of all are NaN")
    if missing:
        notes.append(f"{missing:,} of {len(known):,} points have no coordinates (NaN) and were left out")
    return known


def eight_bit(values: NDArray[np.generic], whole: bool = False) -> NDArray[np.uint8]:
    """Colours of 8 bits: integers (or `whole`) count to 255 or 65535, others to 1, or to 255 if one is above 1."""
    if values.dtype == np.uint8:
        return values.view(np.uint8)
    low, high = (values.min(), values.max()) if len(values) else (0, 0)
    if not (np.isfinite(low) and np.isfinite(high)):
        raise InputError("some colours are not finite")
    if np.issubdtype(values.dtype, np.floating) and not whole and high <= 1 + 1e-3:
        full = 1.0
    else:
        full = 65535.0 if values.dtype == np.uint16 and high > 255 else 255.0
    if low < -1e-3 or high > full + 1e-3:
        raise InputError(f"its colours go from {low:g} to {high:g}; they must be 0 to 1 or 0 to 255")
    return np.rint(np.clip(values.astype(np.float64) * (255.0 / full), 0, 255)).astype(np.uint8)


def faces_note(count: int) -> list[str]:
    """The note on a mesh's faces: one sentence, none where it has none."""
    return [f"its {count:,} {'face is' if count == 1 else 'faces are'} not kept: a point cloud has none"] * (count > 0)


# Text.


def table(lines: Sequence[bytes], line_of: Callable[[int], int], width: int = 0) -> NDArray[np.float64]:
    """Numbers, separated by white space, in columns [len(lines), columns]; `width` 0: as the first line has."""
    if all(map(bytes.strip, lines)):  # NumPy would pass over empty lines
        try:
            values = np.loadtxt(lines, comments=None, ndmin=2) if lines else np.zeros((0, width))
            if width in (0, values.shape[1]):
                return values
        except ValueError:
            pass
    width = width or len(lines[0].split())
    for at, words in enumerate(line.split() for line in lines):
        for token in words:
            if not _is_number(token):
                raise InputError(f"line {line_of(at)} has {shown(token)} where a number should be")
        if len(words) != width:
            raise InputError(f"line {line_of(at)} has {len(words)} columns instead of {width}; it may be cut off")
    raise InputError("its numbers cannot be read; it is damaged")


def _is_number(token: bytes) -> bool:
    try:
        float(token)
    except ValueError:
        return False
    return b"_" not in token


_COMMENT = (b"#", b"//")
_NAMES = {name: name for name in ("x", "y", "z", "r", "g", "b", "nx", "ny", "nz")} | {
    "red": "r",
    "green": "g",
    "blue": "b",
    "rf": "r",
    "gf": "g",
    "bf": "b",
}


def read_table(data: bytes, path: Path, notes: list[str]) -> Fields:
    """The points of a table; columns by the names in its first line, else by the look of their numbers.

    Beside semicolons a comma is a decimal point. A `.pts` with seven columns has the intensity before the colours.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    if b"\0" in data:
        raise InputError("it is not text (it holds zero bytes); tables are read as ASCII or UTF-8")
    if b";" in data:
        data = data.replace(b",", b".").replace(b";", b" ")
    lines = data.replace(b",", b" ").splitlines()
    filled = [number for number, line in enumerate(lines) if line.strip()]
    numbers = [number for number in filled if not lines[number].lstrip().startswith(_COMMENT)]
    rows = [lines[number] for number in numbers]
    names = _names(lines[filled[0]]) if filled else []
    skipped = int(bool(rows) and not all(map(_is_number, rows[0].split())))
    says = 0
    if len(rows) > skipped + 1 and rows[skipped].strip().isdigit() and len(rows[skipped + 1].split()) > 1:
        says, skipped = int(rows[skipped].strip()[:18]), skipped + 1
    rows = rows[skipped:]
    if says:
        need_all(says, len(rows))
        rows = rows[:says]
    need_all(len(rows))
    values = table(rows, lambda index: numbers[index + skipped] + 1)
    width = values.shape[1]
    if width < 3:
        raise InputError(f"it has {width} columns; three coordinates are needed")
    if len(names) == width:
        points, colors, normals = (
            [names.index(name) for name in wanted] if set(wanted) <= set(names) else []
            for wanted in (("x", "y", "z"), ("r", "g", "b"), ("nx", "ny", "nz"))
        )
    else:
        first = 4 if width == 7 and path.suffix.lower() == ".pts" else 3
        points, (colors, normals) = [0, 1, 2], _by_look(values, rows, first, notes)
    colours = None
    if colors:
        given = values[:, colors]
        colours = eight_bit(given, whole=bool(given.max() <= 1) and _as_integers(given, rows, colors))
    return Fields(values[:, points], colours, values[:, normals] if normals else None)


def _names(line: bytes) -> list[str]:
    words = re.sub(rb"^\s*(#|//)+", b"", line).decode("latin-1").lower().split()
    names = [_NAMES.get(word.strip("\"'"), "") for word in words]
    return names if all(names.count(name) == 1 for name in "xyz") else []


def _by_look(
    values: NDArray[np.float64], rows: list[bytes], first: int, notes: list[str]
) -> tuple[list[int], list[int]]:
    width, used = values.shape[1], first
    colors: list[int] = []
    normals: list[int] = []
    for start in range(first, width - 2, 3):
        columns = [start, start + 1, start + 2]
        triple = values[:, columns]
        with np.errstate(over="ignore", invalid="ignore"):
            of_length_one = bool((np.abs(np.linalg.norm(triple, axis=1) - 1) < 0.01).all())
        if not normals and of_length_one and not _as_integers(triple, rows, columns):
            normals = columns
        elif not colors and (triple >= 0).all() and (triple <= 255).all():
            colors = columns
        else:
            break
        used = start + 3
    if used < width and width > 4:  # a fourth column alone is an intensity by custom
        notes.append(
            f"columns {used + 1} to {width} are unknown and were left out; a first line 'x y z r g b' names them"
        )
    return colors, normals


def _as_integers(triple: NDArray[np.float64], rows: list[bytes], columns: list[int]) -> bool:
    if not (triple == np.rint(triple)).all():
        return False
    return all(words[column].lstrip(b"+-").isdigit() for words in map(bytes.split, rows) for column in columns)


def coordinates_kind(points: NDArray[np.float64], unit: str = "m") -> str:
    """`f4` where single precision costs no coordinate [N,3] in that unit more than `LOSS`, else `f8`."""
    with np.errstate(over="ignore", invalid="ignore"):
        loss = np.abs(points.astype(np.float32) - points).max()
    return "f4" if loss * UNITS[unit] <= LOSS else "f8"


def write_rows(file: BinaryIO, columns: Sequence[NDArray[np.generic]], start: str = "", separator: str = " ") -> None:
    """Write columns, each [N,any], as lines of text: integers as such, other numbers in as many digits as they hold."""
    digits = {"f4": "%.9g", "f8": "%.17g"}
    forms = [digits.get(column.dtype.str[1:], "%d") for column in columns for _ in range(column.shape[1])]
    line = start + separator.join(forms) + "\n"
    for first in range(0, len(columns[0]), _BLOCK):
        block = np.concatenate([column[first : first + _BLOCK].astype(np.float64) for column in columns], axis=1)
        file.write((line * len(block) % tuple(block.ravel().tolist())).encode())


def row_bytes(columns: Sequence[NDArray[np.generic]]) -> bytes:
    """Columns, each [N,any], as little-endian rows one after another."""
    rows = np.empty(
        len(columns[0]),
        [(f"f{at}", column.dtype.newbyteorder("<"), column.shape[1:]) for at, column in enumerate(columns)],
    )
    for at, column in enumerate(columns):
        rows[f"f{at}"] = column
    return rows.tobytes()


def write_table(
    file: BinaryIO, cloud: Cloud, binary: bool, unit: str = "m", *, start: str = "# {names}\n", separator: str = " "
) -> None:
    """Write a table: x y z, then r g b (0 to 255), then nx ny nz, with their names, or the count, in the first line."""
    names, columns = ["x", "y", "z"], [cloud.points.astype(coordinates_kind(cloud.points, unit))]
    if cloud.colors is not None:
        names, columns = [*names, "r", "g", "b"], [*columns, cloud.colors]
    if cloud.normals is not None:
        names, columns = [*names, "nx", "ny", "nz"], [*columns, cloud.normals.astype("f4")]
    file.write(start.format(names=separator.join(names), count=len(cloud)).encode())
    write_rows(file, columns, separator=separator)


write_csv = partial(write_table, start="{names}\n", separator=",")
write_pts = partial(write_table, start="{count}\n")


# NumPy's files.


def read_npy(data: bytes, path: Path, notes: list[str]) -> Fields:
    """The points of a `.npy` file [N,3]; InputError where it holds no array of numbers, or a truncated one."""
    return Fields(_array(io.BytesIO(data), "its array"))


def read_npz(data: bytes, path: Path, notes: list[str]) -> Fields:
    """The arrays `points`, and `colors` and `normals` if they are there, of a `.npz` file."""
    arrays: dict[str, NDArray[np.generic]] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in ("points", "colors", "normals"):
                if f"{name}.npy" in archive.namelist():
                    with archive.open(f"{name}.npy") as stream:
                        arrays[name] = _array(stream, f"its array {name!r}")
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        OSError,
        RuntimeError,
        ValueError,
        LookupError,
        TypeError,
    ) as error:
        raise InputError(f"it is damaged or truncated, or no NumPy archive ({type(error).__name__})") from error
    if "points" not in arrays:
        raise InputError("it has no array 'points'; save it with np.savez(path, points=…, colors=…, normals=…)")
    for name, array in arrays.items():
        if array.shape != arrays["points"].shape:
            raise InputError(f"its {name} are {list(array.shape)} and its points {list(arrays['points'].shape)}")
    colors = arrays.get("colors")
    return Fields(arrays["points"], None if colors is None else eight_bit(colors), arrays.get("normals"))


def _array(stream: IO[bytes], what: str) -> NDArray[np.generic]:
    """An array [N,3]; its size is judged by its header, since NumPy would allocate first."""
    try:
        version = npy.read_magic(stream)
        heads = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's about headers of Python 2
            shape, fortran, kind = heads[version](stream)
    except Exception as error:  # the header is parsed as Python's own literals, and nearly anything can go wrong
        raise InputError(f"{what} is damaged or truncated, or not NumPy's ({type(error).__name__})") from error
    if kind.kind not in "fiu" or kind.itemsize > 8:
        raise InputError(f"{what} is of {kind}; numbers are needed")
    if len(shape) != 2 or shape[1] != 3:
        raise InputError(f"{what} is {list(shape)}; [N,3] is needed")
    need_all(shape[0])
    data = stream.read(shape[0] * 3 * kind.itemsize)
    need_all(shape[0], len(data) // (3 * kind.itemsize))
    array = np.frombuffer(data, kind).reshape(shape, order="F" if fortran else "C")
    return np.ascontiguousarray(array, kind.newbyteorder("="))


def write_npy(file: BinaryIO, cloud: Cloud, binary: bool, unit: str = "m") -> None:
    """Write the points alone."""
    npy.write_array(file, cloud.points, allow_pickle=False)


def write_npz(file: BinaryIO, cloud: Cloud, binary: bool, unit: str = "m") -> None:
    """Write points, colours and normals as they are in memory."""
    np.savez(file, **{name: array for name, array in vars(cloud).items() if array is not None})
