"""NumPy's own files: `.npy` holds points, `.npz` points, colours and normals by these names. Nothing is unpickled."""

from __future__ import annotations

import io
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.files.fields import Fields, eight_bit
from ficgan.pointcloud.files.limits import need_all

__all__ = ["read_npy", "read_npz", "write_npy", "write_npz"]


def read_npy(data: bytes, path: Path, notes: list[str]) -> Fields:
    """The points of a `.npy` file [N,3].

    Args:
        data: the file.
        path, notes: not used.

    Raises:
        InputError: no array of numbers [N,3], or a truncated one.
    """
    return Fields(_array(io.BytesIO(data), "its array"))


def read_npz(data: bytes, path: Path, notes: list[str]) -> Fields:
    """The arrays `points`, and `colors` and `normals` if they are there, of a `.npz` file.

    Args:
        data: the file.
        path, notes: not used.

    Raises:
        InputError: no archive, no points, or arrays that are not of one shape.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            arrays = {
                name: _member(archive, name)
                for name in ("points", "colors", "normals")
                if f"{name}.npy" in archive.namelist()
            }
    except InputError:
        raise
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


def _member(archive: zipfile.ZipFile, name: str) -> NDArray[np.generic]:
    with archive.open(f"{name}.npy") as stream:
        return _array(stream, f"its array {name!r}")


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
    """Write the points alone.

    Args:
        file: to write to.
        cloud: in that unit, whose colours and normals are left out.
        binary: of no effect.
        unit: m, cm or mm.
    """
    npy.write_array(file, cloud.points, allow_pickle=False)


def write_npz(file: BinaryIO, cloud: Cloud, binary: bool, unit: str = "m") -> None:
    """Write points, colours and normals as they are in memory.

    Args:
        file: to write to.
        cloud: in that unit.
        binary: of no effect.
        unit: m, cm or mm.
    """
    arrays = {"points": cloud.points, "colors": cloud.colors, "normals": cloud.normals}
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            if array is not None:
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    npy.write_array(member, array, allow_pickle=False)
