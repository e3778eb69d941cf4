"""The one way in and the one way out: the format by the suffix, and messages that begin with the file's name."""

from __future__ import annotations

import difflib
import os
import stat
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ficgan.errors import InputError, UsageError
from ficgan.images import atomic_write
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.files import arrays, obj, pcd, ply, text
from ficgan.pointcloud.files.fields import Fields
from ficgan.pointcloud.files.limits import MAX_BYTES
from ficgan.pointcloud.files.units import UNITS, check_size

__all__ = ["FORMATS", "Format", "read_cloud", "write_cloud"]


@dataclass(frozen=True)
class Format:
    """A kind of files.

    Args:
        title: as a message says it.
        read: bytes, path and a list for notes → columns.
        write: file, cloud and whether binary is wanted; None: such files are only read.
    """

    title: str
    read: Callable[[bytes, Path, list[str]], Fields]
    write: Callable[[BinaryIO, Cloud, bool], None] | None


FORMATS = {
    ".ply": Format("PLY", ply.read, ply.write),
    ".obj": Format("OBJ", obj.read, obj.write),
    ".pcd": Format("PCD", pcd.read, pcd.write),
    **dict.fromkeys((".xyz", ".asc", ".txt"), Format("table", text.read, text.write)),
    **dict.fromkeys((".xyzn", ".xyzrgb"), Format("table", text.read, None)),
    ".pts": Format("table with a count", text.read, text.write_pts),
    ".csv": Format("CSV", text.read, text.write_csv),
    ".npy": Format("NumPy array", arrays.read_npy, arrays.write_npy),
    ".npz": Format("NumPy archive", arrays.read_npz, arrays.write_npz),
}
"""By suffix, in small letters."""


def read_cloud(
    path: str | os.PathLike[str], *, unit: str = "m", check: bool = True, notes: list[str] | None = None
) -> Cloud:
    """Read a point cloud, or the vertices of a mesh.

    Args:
        path: a file with one of the suffixes in `FORMATS`.
        unit: of its coordinates: m, cm or mm.
        check: refuse a cloud that is not of a head's size (`check_size`).
        notes: takes one sentence for each thing that could not be kept, such as colours whose texture is missing;
            without it they are warnings.

    Returns:
        The cloud in metres, in the file's own frame and order.

    Raises:
        InputError: no such file, or one that is empty, damaged, truncated, too large, or of a size no head has.
        UsageError: another unit.
    """
    path = Path(path)
    if unit not in UNITS:
        raise UsageError(f"the unit is {unit!r}; use one of {', '.join(UNITS)}")
    form = _format(path, InputError, FORMATS)
    found: list[str] = []
    try:
        data = _bytes(path)
        cloud = form.read(data, path, found).cloud(UNITS[unit], found)
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


def write_cloud(path: str | os.PathLike[str], cloud: Cloud, *, binary: bool = True, overwrite: bool = False) -> None:
    """Write a point cloud, whole or not at all.

    Coordinates of PLY, PCD, OBJ and tables are in single precision (9 digits), or in double (17 digits) where single
    would move a point by more than .0001 mm; `.npy` and `.npz` hold them exactly.

    Args:
        path: its suffix is one of `FORMATS`; its folder must exist.
        cloud: in metres.
        binary: for PLY and PCD; False: as text.
        overwrite: replace an existing file; otherwise that is an error.

    Raises:
        InputError: the cloud is empty, or the file exists or cannot be written.
        UsageError: a suffix that is not known or only read, or a format that cannot hold the cloud.
    """
    path = Path(path)
    writable = {suffix: form for suffix, form in FORMATS.items() if form.write}
    form = _format(path, UsageError, writable)
    if not len(cloud):
        raise InputError(f"{path}: a cloud without points is not written")
    with atomic_write(path, overwrite=overwrite) as file:
        try:
            assert form.write is not None
            form.write(file, cloud, binary)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error


def _format(path: Path, error: type[Exception], formats: dict[str, Format]) -> Format:
    suffix = path.suffix.lower()
    if suffix in formats:
        return formats[suffix]
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
