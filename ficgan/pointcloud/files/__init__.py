"""Point clouds in and out: PLY, OBJ with its materials, PCD, tables of numbers, NumPy files.

The parsers are ours because trimesh drops the normals of a PLY cloud, reads a truncated one without a word, and loses
OBJ vertices that no face names.
"""

from __future__ import annotations

import difflib
import os
import stat
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ficgan.errors import InputError, UsageError
from ficgan.images import atomic_write
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.files import columns, obj, pcd, ply
from ficgan.pointcloud.files.columns import MAX_BYTES, MAX_POINTS, UNITS, Fields

__all__ = [
    "FORMATS",
    "MAX_BYTES",
    "MAX_POINTS",
    "UNITS",
    "Format",
    "check_size",
    "check_writable",
    "read_cloud",
    "write_cloud",
]

SMALLEST, LARGEST = 0.05, 4.0
"""Metres across: a part of a face, and a person with surroundings, among which the face is searched for."""
HEAD = (0.15, 0.6)
"""Metres across, from a cropped face to a bust. Only a unit by which a cloud is such is advised: a head in inches would
otherwise be taken for a part of a face in centimetres."""


@dataclass(frozen=True)
class Format:
    """A kind of files."""

    read: Callable[[bytes, Path, list[str]], Fields]  # bytes, path and a list for notes → fields
    # file, cloud, whether binary is wanted, and the unit the cloud is in; None: such files are only read
    write: Callable[[BinaryIO, Cloud, bool, str], None] | None
    points_only: bool = False  # it holds no colours and no normals


FORMATS = {
    ".ply": Format(ply.read, ply.write),
    ".obj": Format(obj.read, obj.write),
    ".pcd": Format(pcd.read, pcd.write),
    **dict.fromkeys((".xyz", ".asc", ".txt"), Format(columns.read_table, columns.write_table)),
    **dict.fromkeys((".xyzn", ".xyzrgb"), Format(columns.read_table, None)),
    ".pts": Format(columns.read_table, columns.write_pts),
    ".csv": Format(columns.read_table, columns.write_csv),
    ".npy": Format(columns.read_npy, columns.write_npy, points_only=True),
    ".npz": Format(columns.read_npz, columns.write_npz),
}
"""By suffix, in small letters."""


def read_cloud(
    path: str | os.PathLike[str], *, unit: str = "m", check: bool = True, notes: list[str] | None = None
) -> Cloud:
    """Read a point cloud, or the vertices of a mesh, in metres, in the file's own frame and order.

    `notes` takes a sentence for each thing that could not be kept; without it they are warnings.
    """
    path = Path(path)
    _need_unit(unit)
    form = _format(path, InputError, FORMATS)
    found: list[str] = []
    try:
        cloud = form.read(_bytes(path), path, found).cloud(UNITS[unit], found)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    if check:
        check_size(cloud, str(path), unit)
    for note in found:
        if notes is None:
            warnings.warn(f"{path}: {note}", stacklevel=2)
        else:
            notes.append(note)
    return cloud


def check_size(cloud: Cloud, where: str = "", unit: str = "m") -> None:
    """Refuse a cloud in which no face can be: less than .05 m or more than 4 m across its middle 98 %."""
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
    length = f"{extent:.3g} m" if extent >= 0.01 else f"{extent * 1000:.3g} mm"
    read = "" if unit == "m" else f", read in {unit}"
    raise InputError(f"{begin} is {length} across{read}; a face is some 0.2 m: {advice}")


def check_writable(path: str | os.PathLike[str], *, colors: bool = False, normals: bool = False) -> None:
    """Refuse with a UsageError a file name whose format cannot hold a cloud with these parts."""
    path = Path(path)
    form = _format(path, UsageError, {suffix: form for suffix, form in FORMATS.items() if form.write})
    if form.points_only and (colors or normals):
        has = " and ".join(name for name, there in (("colours", colors), ("normals", normals)) if there)
        raise UsageError(
            f"{path}: a {path.suffix} file holds points only, and the cloud has {has}; write a .npz or .ply file"
        )


def write_cloud(
    path: str | os.PathLike[str], cloud: Cloud, *, unit: str = "m", binary: bool = True, overwrite: bool = False
) -> None:
    """Write a point cloud in metres to a file in that unit, whole or not at all; its folder must exist.

    Text and binary floats are single precision where that moves no point by more than .0001 mm; PLY and OBJ name the
    unit.
    """
    path = Path(path)
    _need_unit(unit)
    check_writable(path, colors=cloud.colors is not None, normals=cloud.normals is not None)
    if not len(cloud):
        raise InputError(f"{path}: a cloud without points is not written")
    write = FORMATS[path.suffix.lower()].write
    assert write is not None
    with atomic_write(path, overwrite=overwrite) as file:
        write(file, cloud.scaled(1 / UNITS[unit]), binary, unit)


def _need_unit(unit: str) -> None:
    if unit not in UNITS:
        raise UsageError(f"the unit is {unit!r}; use one of {', '.join(UNITS)}")


def _format(path: Path, error: type[Exception], formats: dict[str, Format]) -> Format:
    suffix = path.suffix.lower()
    if suffix in formats:
        return formats[suffix]
    if suffix in FORMATS:
        raise error(f"{path}: {suffix} files are only read; write one of {', '.join(formats)}")
    near = difflib.get_close_matches(suffix, formats, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(formats)}"
    raise error(f"{path}: its suffix {suffix!r} is of no known point cloud; {hint}")


def _bytes(path: Path) -> bytes:
    try:
        facts = path.stat()
        if stat.S_ISDIR(facts.st_mode):
            raise InputError("it is a folder; name one file")
        if not stat.S_ISREG(facts.st_mode):
            raise InputError("it is no regular file")
        if facts.st_size > MAX_BYTES:
            raise InputError(f"it has {facts.st_size:,} bytes, and {MAX_BYTES:,} is the limit; thin the cloud out")
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError("there is no such file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"it cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if not data:
        raise InputError("it is empty (0 bytes)")
    return data
