"""OBJ (Wavefront): vertices with colours of their own, or those of the texture or material of their faces."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
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
from ficgan.pointcloud.files.limits import need_all, shown
from ficgan.pointcloud.files.materials import materials_of

__all__ = ["read", "write"]

_LINE = re.compile(rb"^[ \t]*(vt|vn|v|f|usemtl|mtllib)(?:[ \t]+([^\n]*))?$", re.M)
_CORNER = re.compile(rb"(?<!\S)(-?\d{1,18})(?:/(-?\d{1,18})?)?(?:/(-?\d{1,18})?)?(?!\S)")

Whole = NDArray[np.int64]


@dataclass
class _Lines:
    """The lines of a file by what they say, without their first word."""

    positions: list[bytes] = field(default_factory=list)
    textures: list[bytes] = field(default_factory=list)
    normals: list[bytes] = field(default_factory=list)
    faces: list[bytes] = field(default_factory=list)
    defined: list[tuple[int, int, int]] = field(default_factory=list)
    """Of each face: positions, textures and normals above it, from which negative indices count."""
    material: list[int] = field(default_factory=list)
    """Of each face: place in `used`; −1: none."""
    used: list[str] = field(default_factory=list)
    libraries: list[str] = field(default_factory=list)


def read(data: bytes, path: Path, notes: list[str]) -> Fields:
    """All vertices of an OBJ file in their order, whether a face names them or not.

    Normals are kept if every vertex has one: by the faces, or, in a file without faces, one after the other. Where a
    seam gives a vertex several normals or places in a texture, the first counts.

    Args:
        data: the file.
        path: materials and textures are looked for beside it.
        notes: takes what could not be found.

    Raises:
        InputError: lines that are not what they begin as, or faces that name what is not there.
    """
    text = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\\\n", b" ")
    lines = _sorted(text)
    need_all(len(lines.positions))
    values = _table(text, b"v", lines.positions)
    if values.shape[1] not in (3, 4, 6, 7):
        raise InputError(f"its vertices have {values.shape[1]} numbers; 3 coordinates, and 3 for a colour, can be read")
    colors = eight_bit(values[:, 3:6]) if values.shape[1] >= 6 else None
    wants_colors = colors is None and bool(lines.libraries) and bool(lines.faces)
    first = _first_corners(lines, len(values)) if lines.faces and (wants_colors or lines.normals) else None
    if wants_colors and first is not None:
        places = _table(text, b"vt", lines.textures, 2)
        colors = materials_of(lines.libraries, path.parent, notes).colors(lines.used, first, places, values[:, :3])
    notes += faces_note(len(lines.faces))
    return Fields(values[:, :3], colors, _normals(text, lines, first))


def _sorted(text: bytes) -> _Lines:
    found = _LINE.findall(text)
    out = _Lines(*([rest for word, rest in found if word == wanted] for wanted in (b"v", b"vt", b"vn", b"f")))
    if out.faces:
        _states(found, out)
    return out


def _states(found: list[tuple[bytes, bytes]], out: _Lines) -> None:
    """Fill in what holds at each face: its material, and what stands above it."""
    above, current = {b"v": 0, b"vt": 0, b"vn": 0}, -1
    places: dict[str, int] = {}
    for word, rest in found:
        if word == b"f":
            out.material.append(current)
            out.defined.append((above[b"v"], above[b"vt"], above[b"vn"]))
        elif word in above:
            above[word] += 1
        elif word == b"usemtl":
            current = places.setdefault(rest.strip().decode("utf-8", "replace"), len(places))
        else:
            out.libraries.append(rest.strip().decode("utf-8", "replace"))
    out.used += places


def _table(text: bytes, word: bytes, lines: list[bytes], least: int = 0) -> NDArray[np.float64]:
    """The numbers behind a word; of places in a texture the first two, since a third may follow or not."""

    def line_of(index: int) -> int:
        return [number for number, line in enumerate(text.splitlines(), 1) if line.split()[:1] == [word]][index]

    if least and len({len(line.split()) for line in lines}) > 1:
        lines = [b" ".join(line.split()[:least]) for line in lines]
    return table(lines, line_of)


def _corners(lines: _Lines) -> tuple[Whole, Whole]:
    """Indices [corners, (v, vt, vn)] from 0, −1 where there is none; the face of each corner."""
    joined = b"\n".join(lines.faces)
    lengths = [len(face.split()) for face in lines.faces]
    found = _CORNER.findall(joined)
    if len(found) != sum(lengths):
        face = next(
            face for face, length in zip(lines.faces, lengths, strict=True) if len(_CORNER.findall(face)) != length
        )
        raise InputError(f"a face is {shown(face)}; corners such as 1, 1/2, 1//3 or 1/2/3 can be read")
    given = np.array([int(one or b"0") for corner in found for one in corner], np.int64).reshape(-1, 3)
    faces = np.repeat(np.arange(len(lengths)), lengths)
    above = np.array(lines.defined, np.int64).reshape(-1, 3)[faces]
    indices = np.where(given < 0, above + given, given - 1)
    there = [len(lines.positions), len(lines.textures), len(lines.normals)]
    wrong = (indices >= there) | ((given < 0) & (indices < 0))
    wrong[:, 0] |= given[:, 0] == 0
    if wrong.any():
        corner, kind = np.argwhere(wrong)[0]
        what = ("vertex", "texture place", "normal")[kind]
        raise InputError(
            f"face {faces[corner] + 1:,} names {what} {given[corner, kind]}, and there are {there[kind]:,}"
        )
    return indices, faces


def _first_corners(lines: _Lines, count: int) -> Whole:
    """Of each vertex: texture place, normal and material of the first corner that names it [count,3]; −1: none."""
    indices, faces = _corners(lines)
    vertices, where = np.unique(indices[:, 0], return_index=True)
    out = np.full((count, 3), -1, np.int64)
    out[vertices, :2] = indices[where, 1:]
    out[vertices, 2] = np.array(lines.material, np.int64)[faces[where]]
    return out


def _normals(text: bytes, lines: _Lines, first: Whole | None) -> NDArray[np.float64] | None:
    if not lines.normals:
        return None
    values = _table(text, b"vn", lines.normals)
    if values.shape[1] != 3:
        raise InputError(f"its normals have {values.shape[1]} numbers instead of 3")
    if first is None:
        return values if len(values) == len(lines.positions) else None
    return values[first[:, 1]] if (first[:, 1] >= 0).all() else None


def write(file: BinaryIO, cloud: Cloud, binary: bool, unit: str = "m") -> None:
    """Write vertices (with colours 0 to 1, if there are any) and normals in the same order, without faces.

    Args:
        file: to write to.
        cloud: in that unit.
        binary: of no effect.
        unit: m, cm or mm; a comment says it.
    """
    columns: list[NDArray[np.generic]] = [cloud.points.astype(coordinates_kind(cloud.points, unit))]
    if cloud.colors is not None:
        columns.append((cloud.colors / np.float32(255)).astype("f4"))
    file.write(f"# {UNIT_NAMES[unit]}\n".encode())
    write_rows(file, columns, start="v ")
    if cloud.normals is not None:
        write_rows(file, [cloud.normals.astype("f4")], start="vn ")
