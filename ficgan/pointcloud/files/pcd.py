"""PCD (Point Cloud Library, version .7): ASCII, binary, and compressed; cells without coordinates are left out."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.files.columns import (
    Columns,
    Fields,
    coordinates_kind,
    count_of,
    eight_bit,
    known_points,
    need_all,
    row_bytes,
    shown,
    stacked,
    table,
    write_rows,
)

_KINDS = {"F4": "f4", "F8": "f8"} | {f"{kind}{size}": f"{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)}
_KEYS = {b"VERSION", b"FIELDS", b"COLUMNS", b"SIZE", b"TYPE", b"COUNT", b"WIDTH", b"HEIGHT", b"VIEWPOINT", b"POINTS"}
_LONGEST_HEADER = 1 << 16
_MOST_NUMBERS = 4096  # in one point
_LONGEST_COPY = 264  # bytes that three bytes of LZF can ask for
_NAN = np.array(np.nan, np.float32).view(np.uint32)


class _Field(NamedTuple):
    name: str
    kind: str
    numbers: int  # in a point


class _Header(NamedTuple):
    fields: list[_Field]
    points: int
    form: str  # of the data
    end: int  # byte at which the data begin
    lines: int


def read(data: bytes, path: Path, notes: list[str]) -> Fields:
    """The points of a PCD file that have coordinates; InputError for a damaged header, or fewer points than it says."""
    header = _header(data)
    missing = [axis for axis in "xyz" if axis not in {field.name for field in header.fields}]
    if missing:
        raise InputError(f"its points have no field {' and no '.join(missing)}")
    need_all(header.points)
    arrays = {"ascii": _ascii, "binary": _binary, "binary_compressed": _compressed}[header.form](data, header)
    # Of a name that comes twice the first counts, and of a field of many numbers the first.
    columns: Columns = {}
    for field, array in zip(header.fields, arrays, strict=True):
        columns.setdefault(field.name, array[:, 0])
    points = stacked(columns, ("x", "y", "z"))
    assert points is not None
    known = known_points(points, notes)  # here already: the colours of the others are anything
    columns = {name: column[known] for name, column in columns.items()}
    normals = stacked(columns, ("normal_x", "normal_y", "normal_z"))
    return Fields(points[known], _colors(columns, notes), normals)


def _colors(columns: Columns, notes: list[str]) -> NDArray[np.uint8] | None:
    if (colors := stacked(columns, ("r", "g", "b"))) is not None:
        return eight_bit(colors)
    packed = columns.get("rgb", columns.get("rgba"))
    if packed is None or packed.dtype.itemsize != 4:
        return None
    bits = np.ascontiguousarray(packed).view(np.uint32)
    if packed.dtype == np.float32 and (bits == _NAN).all():  # what text makes of colours whose alpha is full
        notes.append("its colours are written as 'nan', so they were left out")
        return None
    return np.stack([bits >> 16 & 255, bits >> 8 & 255, bits & 255], axis=1).astype(np.uint8)


def _header(data: bytes) -> _Header:
    entries: dict[bytes, list[bytes]] = {}
    at, number = 0, 0
    while b"DATA" not in entries:
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
        entries[words[0]] = words[1:]
    names = [word.decode("latin-1").lower() for word in entries.get(b"FIELDS", entries.get(b"COLUMNS", []))]
    entries.setdefault(b"COUNT", [b"1"] * len(names))
    for key in (b"SIZE", b"TYPE", b"COUNT"):
        if len(given := entries.get(key, [])) != len(names):
            raise InputError(
                f"its header names {len(names)} FIELDS and gives {len(given)} of {key.decode()}; it is damaged"
            )
    fields = []
    for name, *rest, count in zip(names, entries[b"TYPE"], entries[b"SIZE"], entries[b"COUNT"], strict=True):
        if (kind := b"".join(rest).decode("latin-1")) not in _KINDS:
            raise InputError(f"field {name!r} is of the unknown kind {kind!r}; known are {', '.join(_KINDS)}")
        fields.append(_Field(name, _KINDS[kind], count_of(count, "a COUNT")))
    counts = [field.numbers for field in fields]
    if sum(counts) > _MOST_NUMBERS or 0 in counts:
        raise InputError(f"its points have {sum(counts):,} numbers each, or fields of none; it is damaged")
    form = b" ".join(entries[b"DATA"])
    if form not in (b"ascii", b"binary", b"binary_compressed"):
        raise InputError(f"its data are {shown(form)}; ascii, binary and binary_compressed can be read")
    points = 1
    for key in (b"POINTS",) if b"POINTS" in entries else (b"WIDTH", b"HEIGHT"):
        if len(entries.get(key, [])) != 1:
            raise InputError(f"its header has no {key.decode()}; it is damaged")
        points *= count_of(entries[key][0], key.decode())
    return _Header(fields, points, form.decode(), at, number)


def _binary(data: bytes, header: _Header) -> list[NDArray[np.generic]]:
    row = np.dtype([(f"f{at}", "<" + field.kind, (field.numbers,)) for at, field in enumerate(header.fields)])
    need_all(header.points, (len(data) - header.end) // row.itemsize)
    array = np.frombuffer(data, row, header.points, header.end)
    return [array[name] for name in row.names or ()]


def _compressed(data: bytes, header: _Header) -> list[NDArray[np.generic]]:
    size = header.points * sum(np.dtype(field.kind).itemsize * field.numbers for field in header.fields)
    there = len(data) - header.end - 8
    if there < 0:
        raise InputError("it is truncated: nothing follows its header; copy it again")
    packed, unpacked = struct.unpack_from("<II", data, header.end)
    if unpacked != size or packed > there:
        raise InputError(f"it is truncated or damaged: {packed:,} bytes should give {size:,}, and {there:,} are there")
    flat = unpack(data[header.end + 8 : header.end + 8 + packed], size)
    columns: list[NDArray[np.generic]] = []
    at = 0
    for _, kind, count in header.fields:  # field by field, not point by point
        columns.append(np.frombuffer(flat, "<" + kind, header.points * count, at).reshape(-1, count))
        at += columns[-1].nbytes
    return columns


def unpack(packed: bytes, size: int) -> bytes:
    """Undo LZF, which must give `size` bytes: runs of new bytes, and copies of what came before."""
    damage = "its compressed data are damaged or cut off ({}); copy it again"
    if size > len(packed) * _LONGEST_COPY // 3:
        raise InputError(damage.format(f"{len(packed):,} bytes cannot hold {size:,}"))
    out, at, end = bytearray(), 0, len(packed)
    while at < end and len(out) <= size:
        control = packed[at]
        at += 1
        if control < 32:  # that many bytes and one more follow as they are
            out += packed[at : at + control + 1]
            at += control + 1
            continue
        length, extra = control >> 5, 1
        if length == 7 and at < end:
            length, extra = 7 + packed[at], 2
        if at + extra > end:
            break
        back = ((control & 31) << 8 | packed[at + extra - 1]) + 1
        at, length, start = at + extra, length + 2, len(out) - back
        if start < 0:
            raise InputError(damage.format("a copy from before its beginning"))
        piece = out[start : start + length]
        out += (piece * (length // len(piece) + 1))[:length] if length > back else piece  # a copy may overlap itself
    if len(out) != size:
        raise InputError(damage.format(f"{len(out):,} bytes instead of {size:,}"))
    return bytes(out)


def _ascii(data: bytes, header: _Header) -> list[NDArray[np.generic]]:
    lines = [line for line in data[header.end :].splitlines() if line.strip()]
    need_all(header.points, len(lines))
    counts = [field.numbers for field in header.fields]
    values = table(lines[: header.points], lambda index: header.lines + index + 1, sum(counts))
    parts = np.split(values, np.cumsum(counts)[:-1], axis=1)
    return [
        _packed(part, kind) if name in ("rgb", "rgba") else part
        for part, (name, kind, _) in zip(parts, header.fields, strict=True)
    ]


def _packed(values: NDArray[np.float64], kind: str) -> NDArray[np.generic]:
    with np.errstate(over="ignore"):
        if kind[0] == "f":
            return values.astype(np.float32)
    if not (np.isfinite(values).all() and np.abs(values).max() < 2**32):
        raise InputError("some packed colours are no integers of 32 bits")
    return (values.astype(np.int64) & 0xFFFFFFFF).astype(np.uint32)


def write(file: BinaryIO, cloud: Cloud, binary: bool, unit: str = "m") -> None:
    """Write a PCD file, binary or ascii; colours packed into a float `rgb`, which PCL's own point types expect."""
    names, arrays = ["x", "y", "z"], [cloud.points.astype(coordinates_kind(cloud.points, unit))]
    if cloud.colors is not None:
        red, green, blue = cloud.colors.T.astype(np.uint32)
        names.append("rgb")
        arrays.append((red << 16 | green << 8 | blue).view(np.float32)[:, None])
    if cloud.normals is not None:
        names += ["normal_x", "normal_y", "normal_z"]
        arrays.append(cloud.normals.astype("f4"))
    sizes = [array.dtype.str[2:] for array in arrays for _ in range(array.shape[1])]
    lines = [
        "VERSION 0.7",
        f"FIELDS {' '.join(names)}",
        f"SIZE {' '.join(sizes)}",
        f"TYPE {' '.join(['F'] * len(names))}",
        f"COUNT {' '.join(['1'] * len(names))}",
        f"WIDTH {len(cloud)}",
        "HEIGHT 1",
        "VIEWPOINT 0 0 0 1 0 0 0",
        f"POINTS {len(cloud)}",
        f"DATA {'binary' if binary else 'ascii'}",
    ]
    file.write(("\n".join(lines) + "\n").encode())
    if binary:
        file.write(row_bytes(arrays))
    else:
        write_rows(file, arrays)
