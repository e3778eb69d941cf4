"""PLY (Stanford polygon format): ASCII, binary of either byte order; everything but the vertices is skipped."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.files.columns import (
    UNIT_NAMES,
    Columns,
    Fields,
    coordinates_kind,
    count_of,
    eight_bit,
    faces_note,
    need_all,
    row_bytes,
    shown,
    stacked,
    table,
    write_rows,
)

_KINDS = {
    "char": "i1",
    "uchar": "u1",
    "short": "i2",
    "ushort": "u2",
    "int": "i4",
    "uint": "u4",
    "int8": "i1",
    "uint8": "u1",
    "int16": "i2",
    "uint16": "u2",
    "int32": "i4",
    "uint32": "u4",
    "float": "f4",
    "double": "f8",
    "float32": "f4",
    "float64": "f8",
}
_ORDERS = {b"ascii": "", b"binary_little_endian": "<", b"binary_big_endian": ">"}
_COLORS = (("red", "green", "blue"), ("diffuse_red", "diffuse_green", "diffuse_blue"), ("r", "g", "b"))
_LONGEST_HEADER = 1 << 20


class _Property(NamedTuple):
    name: str
    kind: str
    counted: str = ""  # kind of the number of entries, of a list


@dataclass(frozen=True)
class _Element:
    name: str
    count: int
    properties: list[_Property]

    @property
    def has_lists(self) -> bool:
        return any(field.counted for field in self.properties)

    def row(self, order: str) -> np.dtype[np.void]:
        return np.dtype([(f"f{index}", order + field.kind) for index, field in enumerate(self.properties)])


@dataclass(frozen=True)
class _Body:
    """What follows a header."""

    data: bytes
    order: str  # of bytes, as NumPy writes it; "": text
    start: int
    line: int  # at which it starts
    before: list[_Element]  # what stands before the vertices
    vertices: _Element


def read(data: bytes, path: Path, notes: list[str]) -> Fields:
    """The vertices of a PLY file; InputError where the header cannot be read, or there are fewer than it says."""
    order, elements, start, line = _header(data)
    place = next((at for at, element in enumerate(elements) if element.name == "vertex"), None)
    if place is None:
        raise InputError("its header has no element vertex, so it holds no points")
    vertices = elements[place]
    missing = [axis for axis in "xyz" if axis not in {field.name for field in vertices.properties}]
    if missing:
        raise InputError(f"its vertices have no property {' and no '.join(missing)}")
    need_all(vertices.count)
    body = _Body(data, order, start, line, elements[:place], vertices)
    values = _binary(body) if order else _ascii(body)
    notes += faces_note(sum(element.count for element in elements if element.name == "face"))
    # Of a name that comes twice the first counts.
    columns: Columns = dict(reversed([(field.name, v) for field, v in zip(vertices.properties, values, strict=True)]))
    # In text every column is read as numbers; what the header calls it decides what they mean.
    kinds = {field.name: np.dtype(field.kind) for field in reversed(vertices.properties)}
    colors = None
    for names in _COLORS:
        if (given := stacked(columns, names)) is not None:
            kind = kinds[names[0]]
            if kind == np.uint16 and np.isfinite(given).all() and given.min() >= 0 and given.max() <= 65535:
                given = given.astype(np.uint16)
            colors = eight_bit(given, whole=np.issubdtype(kind, np.integer))
            break
    points = stacked(columns, ("x", "y", "z"))
    assert points is not None
    return Fields(points, colors, stacked(columns, ("nx", "ny", "nz")))


def _header(data: bytes) -> tuple[str, list[_Element], int, int]:
    """Order of bytes, elements, and where the body begins: byte and line."""
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
            if words[1] not in _ORDERS or words[2] != b"1.0":
                known = ", ".join(name.decode() for name in _ORDERS)
                raise InputError(f"its format is {shown(b' '.join(words[1:]))}; version 1.0 of {known} can be read")
            order = _ORDERS[words[1]]
        elif words[0] == b"element" and len(words) == 3:
            count = count_of(words[2], f"the count of line {number}")
            elements.append(_Element(words[1].decode("latin-1"), count, []))
        elif words[0] == b"property" and elements and len(words) == (5 if words[1:2] == [b"list"] else 3):
            elements[-1].properties.append(_property(words))
        else:
            raise InputError(f"line {number} of its header is {shown(line)}, which PLY does not know; it is damaged")
    if order is None:
        raise InputError("its header has no line 'format'; it is damaged")
    return order, elements, end.end(), len(lines) + 2


def _property(words: list[bytes]) -> _Property:
    name = words[-1].decode("latin-1").lower()
    kinds = []
    for word in words[-2:-1] if len(words) == 3 else words[2:4]:
        if word.decode("latin-1") not in _KINDS:
            raise InputError(f"property {name!r} is of the unknown kind {shown(word)}; known are {', '.join(_KINDS)}")
        kinds.append(_KINDS[word.decode("latin-1")])
    if len(kinds) == 2 and kinds[0][0] == "f":
        raise InputError(f"the list {name!r} counts its entries in {shown(words[2])}, which is no kind of integers")
    return _Property(name, kinds[-1], kinds[0] if len(kinds) == 2 else "")


def _binary(body: _Body) -> list[NDArray[np.generic]]:
    at, vertices = body.start, body.vertices
    for element in body.before:
        at = _walk(body, at, element) if element.has_lists else at + element.count * element.row(body.order).itemsize
    if vertices.has_lists:
        rows: list[tuple[float, ...]] = []
        _walk(body, at, vertices, rows)
        return list(np.array(rows, np.float64).T)
    row = vertices.row(body.order)
    need_all(vertices.count, max(len(body.data) - at, 0) // row.itemsize)
    array = np.frombuffer(body.data, row, vertices.count, at)
    return [array[name] for name in row.names or ()]


def _walk(body: _Body, at: int, element: _Element, rows: list[tuple[float, ...]] | None = None) -> int:
    """Where an element with lists ends, which only a reading row by row tells; `rows` takes these, 0 for each list."""
    forms = {"i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "f4": "f", "f8": "d"}
    steps = [
        (Struct(body.order + forms[field.counted or field.kind]), np.dtype(field.kind).itemsize * bool(field.counted))
        for field in element.properties
    ]
    for done in range(element.count):
        row = []
        for form, size in steps:
            value = 0
            if at + form.size <= len(body.data):
                (value,) = form.unpack_from(body.data, at)
            at += form.size
            if size:
                if value < 0:
                    raise InputError(f"a list of {element.name} {done:,} has {value} entries; it is damaged")
                at, value = at + value * size, 0
            row.append(value)
        if at > len(body.data):
            if element.name == "vertex":
                need_all(element.count, done)
            raise InputError(
                f"it is truncated: its header says {element.count:,} of {element.name!r} and it holds {done:,}"
            )
        if rows is not None:
            rows.append(tuple(row))
    return at


def _ascii(body: _Body) -> list[NDArray[np.generic]]:
    lines = [line for line in body.data[body.start :].splitlines() if line.strip()]
    first, vertices = sum(element.count for element in body.before), body.vertices
    need_all(vertices.count, max(len(lines) - first, 0))
    lines = lines[first : first + vertices.count]
    if vertices.has_lists:
        lines = [_without_lists(line, vertices) for line in lines]
    return list(table(lines, lambda index: body.line + first + index + 1, len(vertices.properties)).T)


def _without_lists(line: bytes, element: _Element) -> bytes:
    words, kept, at = line.split(), [], 0
    for field in element.properties:
        if at >= len(words):
            break
        kept.append(b"0" if field.counted else words[at])
        at += 1 + (count_of(words[at], "the length of a list") if field.counted else 0)
    return b" ".join(kept if at == len(words) else kept[:-1])


def write(file: BinaryIO, cloud: Cloud, binary: bool, unit: str = "m") -> None:
    """Write a PLY file, binary (little-endian) or text: normals as float, coordinates as `coordinates_kind` says."""
    kind = coordinates_kind(cloud.points, unit)
    names = {"f4": "float", "f8": "double", "u1": "uchar"}
    parts: list[tuple[str, NDArray[np.generic]]] = [("x y z", cloud.points.astype(kind))]
    if cloud.normals is not None:
        parts.append(("nx ny nz", cloud.normals.astype("f4")))
    if cloud.colors is not None:
        parts.append(("red green blue", cloud.colors))
    lines = [
        "ply",
        f"format {'binary_little_endian' if binary else 'ascii'} 1.0",
        f"comment {UNIT_NAMES[unit]}",
        f"element vertex {len(cloud)}",
        *(f"property {names[array.dtype.str[1:]]} {name}" for three, array in parts for name in three.split()),
        "end_header",
    ]
    file.write(("\n".join(lines) + "\n").encode())
    arrays = [array for _, array in parts]
    if binary:
        file.write(row_bytes(arrays))
    else:
        write_rows(file, arrays)
