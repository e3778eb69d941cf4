"""PCD (Point Cloud Library, version .7): ASCII, binary, and compressed; points without coordinates (NaN) are left out.

An organised cloud keeps a cell for every pixel of its sensor, and one that saw nothing is NaN: there it is no damage.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.files.fields import Fields, coordinates_kind, eight_bit, known_points, table, write_rows
from ficgan.pointcloud.files.limits import count_of, need_all, shown
from ficgan.pointcloud.files.lzf import unpack

__all__ = ["read", "write"]

_KINDS = {"F4": "f4", "F8": "f8"} | {f"{kind}{size}": f"{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)}
_KEYS = {b"VERSION", b"FIELDS", b"COLUMNS", b"SIZE", b"TYPE", b"COUNT", b"WIDTH", b"HEIGHT", b"VIEWPOINT", b"POINTS"}
_LONGEST_HEADER = 1 << 16
_MOST_NUMBERS = 4096  # in one point

Columns = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class _Header:
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    counts: tuple[int, ...]
    points: int
    data: str
    end: int
    lines: int

    @property
    def row(self) -> np.dtype[np.void]:
        """One point; fields by position, since names (such as `_`, padding) may come twice."""
        parts = zip(self.kinds, self.counts, strict=True)
        return np.dtype([(f"f{index}", "<" + kind, (count,)) for index, (kind, count) in enumerate(parts)])

    def named(self, columns: list[NDArray[np.generic]]) -> Columns:
        """Fields [N,count] by name; of a name that comes twice the first."""
        return dict(reversed(list(zip(self.names, columns, strict=True))))


def read(data: bytes, path: Path, notes: list[str]) -> Fields:
    """The points of a PCD file that have coordinates.

    Args:
        data: the file.
        path: not used; the text is all there is.
        notes: takes what could not be kept.

    Raises:
        InputError: a header that cannot be read, or fewer points than it says.
    """
    header = _header(data)
    missing = [axis for axis in "xyz" if axis not in header.names]
    if missing:
        raise InputError(f"its points have no field {' and no '.join(missing)}")
    need_all(header.points)
    columns = {"ascii": _ascii, "binary": _binary, "binary_compressed": _compressed}[header.data](data, header)
    points = np.stack([columns[axis][:, 0] for axis in "xyz"], axis=1)
    known = known_points(points, notes)  # here already: the colours of the others are anything
    if not known.all():
        points, columns = points[known], {name: column[known] for name, column in columns.items()}
    return Fields(points, _colors(columns, notes), _normals(columns))


def _normals(columns: Columns) -> NDArray[np.generic] | None:
    names = [f"normal_{axis}" for axis in "xyz"]
    return np.stack([columns[name][:, 0] for name in names], axis=1) if set(names) <= set(columns) else None


def _colors(columns: Columns, notes: list[str]) -> NDArray[np.uint8] | None:
    if {"r", "g", "b"} <= set(columns):
        return eight_bit(np.stack([columns[name][:, 0] for name in "rgb"], axis=1))
    packed = columns.get("rgb", columns.get("rgba"))
    if packed is None or packed.dtype.itemsize != 4:
        return None
    bits = np.ascontiguousarray(packed[:, 0]).view(np.uint32)
    if packed.dtype == np.float32 and (bits == _NAN).all():  # what text makes of colours whose alpha is full
        notes.append("its colours are written as 'nan', so they were left out")
        return None
    return np.stack([bits >> 16 & 255, bits >> 8 & 255, bits & 255], axis=1).astype(np.uint8)


_NAN = np.array(np.nan, np.float32).view(np.uint32)


def _header(data: bytes) -> _Header:
    said: dict[bytes, list[bytes]] = {}
    at, number = 0, 0
    while b"DATA" not in said:
        end = data.find(b"\n", at, _LONGEST_HEADER)
        if end < 0:
            raise InputError(
                "its header has no end (no line 'DATA'), so it is no PCD file, or it is damaged or cut off"
            )
        words, at, number = data[at:end].split(), end + 1, number + 1
        if not words or words[0].startswith(b"#"):
            continue
        if words[0] not in _KEYS and words[0] != b"DATA":
            raise InputError(f"line {number} of its header begins with {shown(words[0])}, which PCD does not know")
        said[words[0]] = words[1:]
    names = tuple(word.decode("latin-1").lower() for word in said.get(b"FIELDS", said.get(b"COLUMNS", [])))
    sizes, types = _each(said, b"SIZE", names), _each(said, b"TYPE", names)
    counts = tuple(count_of(word, "a COUNT") for word in _each(said, b"COUNT", names, b"1"))
    if sum(counts) > _MOST_NUMBERS or 0 in counts:
        raise InputError(f"its points have {sum(counts):,} numbers each, or fields of none; it is damaged")
    kinds = []
    for name, kind, size in zip(names, types, sizes, strict=True):
        if (key := (kind + size).decode("latin-1")) not in _KINDS:
            raise InputError(
                f"field {name!r} is of the unknown kind {shown(kind + size)}; known are {', '.join(_KINDS)}"
            )
        kinds.append(_KINDS[key])
    form = b" ".join(said[b"DATA"])
    if form not in (b"ascii", b"binary", b"binary_compressed"):
        raise InputError(f"its data are {shown(form)}; ascii, binary and binary_compressed can be read")
    return _Header(names, tuple(kinds), counts, _points(said), form.decode(), at, number)


def _each(said: dict[bytes, list[bytes]], key: bytes, names: tuple[str, ...], default: bytes = b"") -> list[bytes]:
    words = said.get(key, [default] * len(names) if default else [])
    if len(words) != len(names):
        raise InputError(
            f"its header names {len(names)} FIELDS and gives {len(words)} of {key.decode()}; it is damaged"
        )
    return words


def _points(said: dict[bytes, list[bytes]]) -> int:
    def count(key: bytes) -> int:
        words = said.get(key, [])
        if len(words) != 1:
            raise InputError(f"its header has no {key.decode()}; it is damaged")
        return count_of(words[0], key.decode())

    return count(b"POINTS") if b"POINTS" in said else count(b"WIDTH") * count(b"HEIGHT")


def _binary(data: bytes, header: _Header) -> Columns:
    row = header.row
    need_all(header.points, (len(data) - header.end) // row.itemsize)
    array = np.frombuffer(data, row, header.points, header.end)
    return header.named([array[name] for name in row.names or ()])


def _compressed(data: bytes, header: _Header) -> Columns:
    size = header.points * header.row.itemsize
    if len(data) - header.end < 8:
        raise InputError("it is truncated: nothing follows its header; copy it again")
    packed, unpacked = struct.unpack_from("<II", data, header.end)
    if unpacked != size or packed > len(data) - header.end - 8:
        there = len(data) - header.end - 8
        raise InputError(f"it is truncated or damaged: {packed:,} bytes should give {size:,}, and {there:,} are there")
    flat = unpack(data[header.end + 8 : header.end + 8 + packed], size)
    columns: list[NDArray[np.generic]] = []
    at = 0
    for kind, count in zip(header.kinds, header.counts, strict=True):  # field by field, not point by point
        columns.append(np.frombuffer(flat, "<" + kind, header.points * count, at).reshape(-1, count))
        at += columns[-1].nbytes
    return header.named(columns)


def _ascii(data: bytes, header: _Header) -> Columns:
    lines = [line for line in data[header.end :].splitlines() if line.strip()]
    need_all(header.points, len(lines))
    values = table(lines[: header.points], lambda index: header.lines + index + 1, sum(header.counts))
    columns: list[NDArray[np.generic]] = []
    at = 0
    for name, kind, count in zip(header.names, header.kinds, header.counts, strict=True):
        column = values[:, at : at + count]
        columns.append(_packed(column, kind) if name in ("rgb", "rgba") else column)
        at += count
    return header.named(columns)


def _packed(values: NDArray[np.float64], kind: str) -> NDArray[np.generic]:
    """Colours of a text in the kind whose bits they are."""
    with np.errstate(over="ignore"):
        if kind[0] == "f":
            return values.astype(np.float32)
    whole = np.isfinite(values).all() and np.abs(values).max() < 2**32
    if not whole:
        raise InputError("some packed colours are no integers of 32 bits")
    return (values.astype(np.int64) & 0xFFFFFFFF).astype(np.uint32)


def write(file: BinaryIO, cloud: Cloud, binary: bool, unit: str = "m") -> None:
    """Write a PCD file; colours packed into a float `rgb`, which PCL's own point types expect.

    Args:
        file: to write to.
        cloud: in that unit.
        binary: as `binary`; else `ascii`.
        unit: m, cm or mm.
    """
    kind = coordinates_kind(cloud.points, unit)
    parts: list[tuple[list[str], str, NDArray[np.generic]]] = [(["x", "y", "z"], kind, cloud.points.astype(kind))]
    if cloud.colors is not None:
        red, green, blue = cloud.colors.T.astype(np.uint32)
        parts.append((["rgb"], "f4", (red << 16 | green << 8 | blue).view(np.float32)[:, None]))
    if cloud.normals is not None:
        parts.append((["normal_x", "normal_y", "normal_z"], "f4", cloud.normals.astype("f4")))
    kinds = [kind for names, kind, _ in parts for _ in names]
    header = {
        "VERSION": ["0.7"],
        "FIELDS": [name for names, *_ in parts for name in names],
        "SIZE": [kind[1] for kind in kinds],
        "TYPE": ["F"] * len(kinds),
        "COUNT": ["1"] * len(kinds),
        "WIDTH": [str(len(cloud))],
        "HEIGHT": ["1"],
        "VIEWPOINT": ["0", "0", "0", "1", "0", "0", "0"],
        "POINTS": [str(len(cloud))],
        "DATA": ["binary" if binary else "ascii"],
    }
    file.write("".join(f"{key} {' '.join(words)}\n" for key, words in header.items()).encode())
    if not binary:
        return write_rows(file, [array for *_, array in parts])
    rows = np.empty(len(cloud), [(names[0], "<" + kind, (len(names),)) for names, kind, _ in parts])
    for names, _, array in parts:
        rows[names[0]] = array
    file.write(rows.tobytes())
