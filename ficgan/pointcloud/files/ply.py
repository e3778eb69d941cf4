"""PLY (Stanford polygon format): ASCII, binary of either byte order; everything but the vertices is passed over."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.files.fields import (
    UNIT_NAMES,
    Fields,
    coordinates_kind,
    eight_bit,
    faces_note,
    table,
    write_rows,
)
from ficgan.pointcloud.files.limits import count_of, need_all, shown

__all__ = ["read", "write"]

_SHORT = {"char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4"}
_SIZED = {"int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2", "int32": "i4", "uint32": "u4"}
_KINDS = _SHORT | _SIZED | {"float": "f4", "double": "f8", "float32": "f4", "float64": "f8"}
_ORDERS = {b"ascii": "", b"binary_little_endian": "<", b"binary_big_endian": ">"}
_COLORS = (("red", "green", "blue"), ("diffuse_red", "diffuse_green", "diffuse_blue"), ("r", "g", "b"))
_LONGEST_HEADER = 1 << 20

Columns = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class _Property:
    name: str
    kind: str
    counted: str = ""
    """Kind of the number of entries, of a list."""


@dataclass(frozen=True)
class _Element:
    name: str
    count: int
    properties: tuple[_Property, ...] = ()

    @property
    def has_lists(self) -> bool:
        return any(one.counted for one in self.properties)

    def row(self, order: str) -> np.dtype[np.void]:
        """One row of an element without lists; fields by position, since names may come twice."""
        return np.dtype([(f"f{index}", order + one.kind) for index, one in enumerate(self.properties)])

    def named(self, columns: list[NDArray[np.generic]]) -> Columns:
        """Columns by name; of a name that comes twice the first."""
        return {one.name: column for one, column in reversed(list(zip(self.properties, columns, strict=True)))}


@dataclass(frozen=True)
class _Header:
    order: str
    elements: tuple[_Element, ...]
    end: int
    lines: int

    @property
    def before(self) -> tuple[_Element, ...]:
        """The elements before the vertices."""
        return self.elements[: self.elements.index(self.vertices)]

    @property
    def vertices(self) -> _Element:
        for element in self.elements:
            if element.name == "vertex":
                return element
        raise InputError("its header has no element vertex, so it holds no points")


def read(data: bytes, path: Path, notes: list[str]) -> Fields:
    """The vertices of a PLY file.

    Args:
        data: the file.
        path: not used; the text is all there is.
        notes: takes what could not be kept.

    Raises:
        InputError: a header that cannot be read, or fewer vertices than it says.
    """
    header = _header(data)
    vertices = header.vertices
    missing = [axis for axis in "xyz" if axis not in {one.name for one in vertices.properties}]
    if missing:
        raise InputError(f"its vertices have no property {' and no '.join(missing)}")
    need_all(vertices.count)
    columns = _binary(data, header) if header.order else _ascii(data, header)
    notes += faces_note(sum(element.count for element in header.elements if element.name == "face"))
    # In text every column is read as numbers; what the header calls it decides what they mean.
    kinds = {one.name: np.dtype(one.kind) for one in reversed(vertices.properties)}
    return _fields(columns, kinds)


def _fields(columns: Columns, kinds: Mapping[str, np.dtype[np.generic]]) -> Fields:
    def joined(names: tuple[str, ...]) -> NDArray[np.generic]:
        return np.stack([columns[name] for name in names], axis=1)

    colors = next((names for names in _COLORS if set(names) <= set(columns)), None)
    normals = ("nx", "ny", "nz")
    return Fields(
        joined(("x", "y", "z")),
        None if colors is None else _colors(joined(colors), kinds[colors[0]]),
        joined(normals) if set(normals) <= set(columns) else None,
    )


def _colors(values: NDArray[np.generic], kind: np.dtype[np.generic]) -> NDArray[np.uint8]:
    if kind == np.uint16 and np.isfinite(values).all() and values.min() >= 0 and values.max() <= 65535:
        values = values.astype(np.uint16)
    return eight_bit(values, whole=np.issubdtype(kind, np.integer))


def _header(data: bytes) -> _Header:
    start = re.match(rb"ply[ \t]*(\r\n|\n|\r)", data)
    if start is None:
        raise InputError("it does not begin with the line 'ply', so it is no PLY file")
    newline = rb"\r" if start[1] == b"\r" else rb"\r?\n"  # a lone CR may be followed by data that look like LF
    end = re.compile(rb"(?<=[\r\n])end_header[ \t]*" + newline).search(data, 0, _LONGEST_HEADER)
    if end is None:
        raise InputError("its header has no end (no line 'end_header'); it is damaged or cut off")
    lines = data[start.end() : end.start()].splitlines()
    order: str | None = None
    elements: list[_Element] = []
    for number, line in enumerate(lines, 2):
        words = line.split()
        if not words or words[0] in (b"comment", b"obj_info"):
            continue
        if words[0] == b"format" and len(words) == 3:
            order = _order(words)
        elif words[0] == b"element" and len(words) == 3:
            elements.append(_Element(words[1].decode("latin-1"), count_of(words[2], f"the count of line {number}")))
        elif words[0] == b"property" and elements and len(words) in (3, 5):
            last = elements.pop()
            elements.append(_Element(last.name, last.count, (*last.properties, _property(words, number))))
        else:
            raise InputError(f"line {number} of its header is {shown(line)}, which PLY does not know; it is damaged")
    if order is None:
        raise InputError("its header has no line 'format'; it is damaged")
    return _Header(order, tuple(elements), end.end(), len(lines) + 2)


def _order(words: list[bytes]) -> str:
    if words[1] not in _ORDERS or words[2] != b"1.0":
        known = ", ".join(name.decode() for name in _ORDERS)
        raise InputError(f"its format is {shown(b' '.join(words[1:]))}; version 1.0 of {known} can be read")
    return _ORDERS[words[1]]


def _property(words: list[bytes], number: int) -> _Property:
    kinds = words[2:4] if words[1] == b"list" and len(words) == 5 else words[1:2]
    if len(kinds) + 2 + (len(kinds) == 2) != len(words):
        raise InputError(
            f"line {number} of its header is {shown(b' '.join(words))}, which is no property; it is damaged"
        )
    known = [_KINDS.get(kind.decode("latin-1")) for kind in kinds]
    name = words[-1].decode("latin-1").lower()
    for kind, word in zip(known, kinds, strict=True):
        if kind is None:
            raise InputError(f"property {name!r} is of the unknown kind {shown(word)}; known are {', '.join(_KINDS)}")
    if len(known) == 2 and str(known[0])[0] == "f":
        raise InputError(f"the list {name!r} counts its entries in {shown(kinds[0])}, which is no kind of integers")
    return _Property(name, str(known[-1]), str(known[0]) if len(known) == 2 else "")


def _binary(data: bytes, header: _Header) -> Columns:
    at, vertices = header.end, header.vertices
    for element in header.before:
        if element.has_lists:
            at = _walk(data, at, element, header.order, lambda row: None)
        else:
            at += element.count * element.row(header.order).itemsize
    if vertices.has_lists:
        rows: list[tuple[float, ...]] = []
        _walk(data, at, vertices, header.order, rows.append)
        return vertices.named(list(np.array(rows, np.float64).T))
    row = vertices.row(header.order)
    need_all(vertices.count, max(len(data) - at, 0) // row.itemsize)
    array = np.frombuffer(data, row, vertices.count, at)
    return vertices.named([array[name] for name in row.names or ()])


def _walk(data: bytes, at: int, element: _Element, order: str, take: Callable[[tuple[float, ...]], None]) -> int:
    """Go through rows of unequal length; `take` is given the single values, a list as 0. Returns where they end."""
    forms = {"i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "f4": "f", "f8": "d"}
    steps = [(struct.Struct((order or "<") + forms[one.counted or one.kind]), one) for one in element.properties]
    sizes = [np.dtype(one.kind).itemsize for one in element.properties]
    for done in range(element.count):
        row = []
        for (form, one), size in zip(steps, sizes, strict=True):
            if at + form.size > len(data):
                raise _cut(element, done)
            (value,) = form.unpack_from(data, at)
            at += form.size
            if one.counted and value < 0:
                raise InputError(f"a list of {element.name} {done:,} has {value} entries; it is damaged")
            if one.counted:
                at, value = at + value * size, 0
            row.append(value)
        if at > len(data):
            raise _cut(element, done)
        take(tuple(row))
    return at


def _cut(element: _Element, done: int) -> InputError:
    if element.name == "vertex":
        need_all(element.count, done)
    return InputError(f"it is truncated: its header says {element.count:,} of {element.name!r} and it holds {done:,}")


def _ascii(data: bytes, header: _Header) -> Columns:
    lines = [line for line in data[header.end :].splitlines() if line.strip()]
    first = sum(element.count for element in header.before)
    vertices = header.vertices
    need_all(vertices.count, max(len(lines) - first, 0))
    lines = lines[first : first + vertices.count]
    if vertices.has_lists:
        lines = [_without_lists(line, vertices) for line in lines]
    values = table(lines, lambda index: header.lines + first + index + 1, len(vertices.properties))
    return vertices.named(list(values.T))


def _without_lists(line: bytes, element: _Element) -> bytes:
    """A line with 0 in place of each list; a line too short comes back shorter."""
    words, kept, at = line.split(), [], 0
    for one in element.properties:
        if at >= len(words):
            break
        kept.append(b"0" if one.counted else words[at])
        at += 1 + (count_of(words[at], "the length of a list") if one.counted else 0)
    return b" ".join(kept if at == len(words) else kept[:-1])


def write(file: BinaryIO, cloud: Cloud, binary: bool, unit: str = "m") -> None:
    """Write a PLY file: coordinates and normals as float, coordinates as double where float costs more than `LOSS`.

    Args:
        file: to write to.
        cloud: in that unit.
        binary: little-endian; else text.
        unit: m, cm or mm; a comment says it.
    """
    kind = coordinates_kind(cloud.points, unit)
    parts: list[tuple[str, str, NDArray[np.generic]]] = [("x y z", kind, cloud.points.astype(kind))]
    if cloud.normals is not None:
        parts.append(("nx ny nz", "f4", cloud.normals.astype("f4")))
    if cloud.colors is not None:
        parts.append(("red green blue", "u1", cloud.colors))
    kinds = {"f4": "float", "f8": "double", "u1": "uchar"}
    properties = [f"property {kinds[kind]} {name}" for names, kind, _ in parts for name in names.split()]
    form = "binary_little_endian" if binary else "ascii"
    lines = [
        "ply",
        f"format {form} 1.0",
        f"comment {UNIT_NAMES[unit]}",
        f"element vertex {len(cloud)}",
        *properties,
        "end_header",
    ]
    file.write(("\n".join(lines) + "\n").encode())
    if not binary:
        return write_rows(file, [array for *_, array in parts])
    rows = np.empty(len(cloud), [(names, "<" + kind, 3) for names, kind, _ in parts])
    for names, _, array in parts:
        rows[names] = array
    file.write(rows.tobytes())
