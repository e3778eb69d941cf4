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

__all__ = ["FORMATS", "Format", "check_writable", "read_cloud", "write_cloud"]


@dataclass(frozen=True)
class Format:
    """A kind of files.

    Args:
        title: as a message says it.
        read: bytes, path and a list for notes → columns.
        write: file, cloud, whether binary is wanted, and the unit the cloud is in; None: such files are only read.
        points_only: it holds no colours and no normals.
    """

    title: str
    read: Callable[[bytes, Path, list[str]], Fields]
    write: Callable[[BinaryIO, Cloud, bool, str], None] | None
    points_only: bool = False


FORMATS = {
    ".ply": Format("PLY", ply.read, ply.write),
    ".obj": Format("OBJ", obj.read, obj.write),
    ".pcd": Format("PCD", pcd.read, pcd.write),
    **dict.fromkeys((".xyz", ".asc", ".txt"), Format("table", text.read, text.write)),
    **dict.fromkeys((".xyzn", ".xyzrgb"), Format("table", text.read, None)),
    ".pts": Format("table with a count", text.read, text.write_pts),
    ".csv": Format("CSV", text.read, text.write_csv),
    ".npy": Format("NumPy array", arrays.read_npy, arrays.write_npy, points_only=True),
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
    _need_unit(unit)
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


def check_writable(path: str | os.PathLike[str], *, colors: bool = False, normals: bool = False) -> None:
    """Refuse, before any work is done, a name under which a cloud cannot be written.

    Args:
        path: the file; neither it nor its folder is looked for.
        colors, normals: whether the cloud has them.

    Raises:
        UsageError: a suffix that is not known or only read, or of a format that cannot hold the cloud.
    """
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
    """Write a point cloud, whole or not at all.

    Coordinates of PLY, PCD, OBJ and tables are in single precision (9 digits), or in double (17 digits) where single
    would move a point by more than .0001 mm; `.npy` and `.npz` hold them exactly.

    Args:
        path: its suffix is one of `FORMATS`; its folder must exist.
        cloud: in metres.
        unit: of the file's coordinates: m, cm or mm; PLY and OBJ have it in a comment.
        binary: for PLY and PCD; False: as text.
        overwrite: replace an existing file; otherwise that is an error.

    Raises:
        InputError: the cloud is empty, or the file exists or cannot be written.
        UsageError: another unit, or what `check_writable` refuses.
    """
    path = Path(path)
    _need_unit(unit)
    check_writable(path, colors=cloud.colors is not None, normals=cloud.normals is not None)
    form = FORMATS[path.suffix.lower()]
    if not len(cloud):
        raise InputError(f"{path}: a cloud without points is not written")
    with atomic_write(path, overwrite=overwrite) as file:
        assert form.write is not None
        form.write(file, cloud.scaled(1 / UNITS[unit]), binary, unit)


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
