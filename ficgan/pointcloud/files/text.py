"""Tables of numbers as scanners and CloudCompare write them: ASC, XYZ, TXT, PTS, CSV."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.files.fields import Fields, coordinates_kind, eight_bit, is_number, table, write_rows
from ficgan.pointcloud.files.limits import need_all

__all__ = ["read", "write", "write_csv", "write_pts"]

_COMMENT = (b"#", b"//")
_PLAIN = {name: name for name in ("x", "y", "z", "r", "g", "b", "nx", "ny", "nz")}
_NAMES = _PLAIN | {"red": "r", "green": "g", "blue": "b", "rf": "r", "gf": "g", "bf": "b"}


@dataclass(frozen=True)
class _Columns:
    """Which columns are what; (): there are none."""

    points: tuple[int, ...] = (0, 1, 2)
    colors: tuple[int, ...] = ()
    normals: tuple[int, ...] = ()


def read(data: bytes, path: Path, notes: list[str]) -> Fields:
    """The points of a table; columns by the names in its first line if it has them, else by the look of their numbers.

    Args:
        data: the file; columns apart by white space, commas or semicolons; beside these, a comma is a decimal point.
        path: a `.pts` with seven columns has the intensity before the colours, others something after them.
        notes: takes which columns were left out.

    Raises:
        InputError: lines that are not numbers, or not of one length, or fewer than the first line says.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    if b"\0" in data:
        raise InputError("it is not text (it holds zero bytes); tables are read as ASCII or UTF-8")
    lines = _spaced(data).splitlines()
    rows = [line for line in lines if (bare := line.lstrip()) and not bare.startswith(_COMMENT)]
    header = next((line for line in lines if line.strip()), b"")
    names = _names(header)
    skipped = int(bool(rows) and not all(is_number(word) for word in rows[0].split()))
    says = 0
    if len(rows) > skipped + 1 and rows[skipped].strip().isdigit() and len(rows[skipped + 1].split()) > 1:
        says, skipped = int(rows[skipped].strip()[:18]), skipped + 1
    rows = rows[skipped:]
    if says:
        need_all(says, len(rows))
        rows = rows[:says]
    need_all(len(rows))
    values = table(rows, lambda index: _line_of(lines, index + skipped))
    if values.shape[1] < 3:
        raise InputError(f"it has {values.shape[1]} columns; three coordinates are needed")
    columns = _by_name(names, values.shape[1]) or _by_look(values, rows, path, notes)
    colors = None
    if columns.colors:
        given = values[:, columns.colors]
        colors = eight_bit(given, whole=bool(given.max() <= 1) and _as_integers(values, rows, columns.colors))
    return Fields(values[:, columns.points], colors, values[:, columns.normals] if columns.normals else None)


def _spaced(data: bytes) -> bytes:
    """Only white space between the columns."""
    if b";" in data:
        return data.replace(b",", b".").replace(b";", b" ")
    return data.replace(b",", b" ")


def _line_of(lines: list[bytes], index: int) -> int:
    kept = [number for number, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith(_COMMENT)]
    return kept[index]


def _names(line: bytes) -> list[str]:
    """Names of columns in a first line such as `//X Y Z R G B`; [] where it names no coordinates."""
    words = re.sub(rb"^\s*(#|//)+", b"", line).decode("latin-1").lower().split()
    names = [_NAMES.get(word.strip("\"'"), "") for word in words]
    return names if all(names.count(name) == 1 for name in "xyz") else []


def _by_name(names: list[str], width: int) -> _Columns | None:
    if len(names) != width:
        return None

    def at(*wanted: str) -> tuple[int, ...]:
        return tuple(names.index(name) for name in wanted) if set(wanted) <= set(names) else ()

    return _Columns(at("x", "y", "z"), at("r", "g", "b"), at("nx", "ny", "nz"))


def _by_look(values: NDArray[np.float64], rows: list[bytes], path: Path, notes: list[str]) -> _Columns:
    width = values.shape[1]
    first = 4 if width == 7 and path.suffix.lower() == ".pts" else 3
    colors: tuple[int, ...] = ()
    normals: tuple[int, ...] = ()
    used = first
    for start in range(first, width - 2, 3):
        triple = tuple(range(start, start + 3))
        if not normals and _are_normals(values[:, triple]) and not _as_integers(values, rows, triple):
            normals, used = triple, start + 3
        elif not colors and _are_colors(values[:, triple]):
            colors, used = triple, start + 3
        else:
            break
    if used < width and width > 4:  # a fourth column alone is an intensity by custom
        notes.append(
            f"columns {used + 1} to {width} are unknown and were left out; a first line 'x y z r g b' names them"
        )
    return _Columns((0, 1, 2), colors, normals)


def _are_normals(triple: NDArray[np.float64]) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):
        return bool((np.abs(np.linalg.norm(triple, axis=1) - 1) < 0.01).all())


def _are_colors(triple: NDArray[np.float64]) -> bool:
    return bool((triple >= 0).all() and (triple <= 255).all())


def _as_integers(values: NDArray[np.float64], rows: list[bytes], columns: tuple[int, ...]) -> bool:
    """Whether these columns are written without a point: then 1 is one of 255, not full."""
    triple = values[:, columns]
    if not (triple == np.rint(triple)).all():
        return False
    return all(word.lstrip(b"+-").isdigit() for row in rows for word in _picked(row, columns))


def _picked(row: bytes, columns: tuple[int, ...]) -> list[bytes]:
    words = row.split()
    return [words[column] for column in columns]


def _table(cloud: Cloud, unit: str) -> tuple[list[str], list[NDArray[np.generic]]]:
    names, columns = ["x", "y", "z"], [cloud.points.astype(coordinates_kind(cloud.points, unit))]
    if cloud.colors is not None:
        names, columns = [*names, "r", "g", "b"], [*columns, cloud.colors]
    if cloud.normals is not None:
        names, columns = [*names, "nx", "ny", "nz"], [*columns, cloud.normals.astype("f4")]
    return names, columns


def write(file: BinaryIO, cloud: Cloud, binary: bool, unit: str = "m") -> None:
    """Write a table apart by blanks: x y z, then r g b (0 to 255), then nx ny nz, with their names in a comment.

    Args:
        file: to write to.
        cloud: in that unit.
        binary: of no effect.
        unit: m, cm or mm.
    """
    names, columns = _table(cloud, unit)
    file.write(f"# {' '.join(names)}\n".encode())
    write_rows(file, columns)


def write_csv(file: BinaryIO, cloud: Cloud, binary: bool, unit: str = "m") -> None:
    """The same, apart by commas, with the names in the first line."""
    names, columns = _table(cloud, unit)
    file.write((",".join(names) + "\n").encode())
    write_rows(file, columns, separator=",")


def write_pts(file: BinaryIO, cloud: Cloud, binary: bool, unit: str = "m") -> None:
    """The same, apart by blanks, with the number of points in the first line."""
    _, columns = _table(cloud, unit)
    file.write(f"{len(cloud)}\n".encode())
    write_rows(file, columns)
