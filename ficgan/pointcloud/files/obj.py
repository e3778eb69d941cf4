"""OBJ (Wavefront): vertices with colours of their own, or those of the texture or material of their faces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates

from ficgan.errors import InputError
from ficgan.images import read_image
from ficgan.pointcloud.cloud import Cloud, closest
from ficgan.pointcloud.files.columns import (
    UNIT_NAMES,
    Fields,
    coordinates_kind,
    eight_bit,
    faces_note,
    need_all,
    shown,
    table,
    write_rows,
)

_LINE = re.compile(rb"^[ \t]*(vt|vn|v|f|usemtl|mtllib)(?:[ \t]+([^\n]*))?$", re.M)
_CORNER = re.compile(rb"(?<!\S)(-?\d{1,18})(?:/(-?\d{1,18})?)?(?:/(-?\d{1,18})?)?(?!\S)")
_TEXTURE_OPTIONS = re.compile(r"(-[a-zA-Z]+\s+((on|off|[rgbmlz]|[-+]?[\d.]+)(?=\s)\s+)*)*")
"""Before the name of a texture, with their values: -o 0 0 0, -s 1 1 1, -clamp on …"""
_LARGEST_LIBRARY = 16 << 20

Whole = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass
class _Lines:
    """The arguments of the lines that count, by their first word, and what faces refer to."""

    v: list[bytes] = field(default_factory=list)
    vt: list[bytes] = field(default_factory=list)
    vn: list[bytes] = field(default_factory=list)
    f: list[bytes] = field(default_factory=list)
    above: list[tuple[int, int, int]] = field(default_factory=list)
    """Of each face: positions, textures and normals above it, from which negative indices count."""
    material: list[int] = field(default_factory=list)  # of each face: place in `used`; −1: none
    used: dict[str, int] = field(default_factory=dict)
    libraries: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, text: bytes) -> _Lines:
        out, current = cls(), -1
        plain = {b"v": out.v.append, b"vt": out.vt.append, b"vn": out.vn.append}
        for word, rest in _LINE.findall(text):
            if word in plain:
                plain[word](rest)
            elif word == b"f":
                out.f.append(rest)
                out.material.append(current)
                out.above.append((len(out.v), len(out.vt), len(out.vn)))
            elif word == b"usemtl":
                current = out.used.setdefault(rest.strip().decode("utf-8", "replace"), len(out.used))
            else:
                out.libraries.append(rest.strip().decode("utf-8", "replace"))
        return out


def read(data: bytes, path: Path, notes: list[str]) -> Fields:
    """All vertices of an OBJ file in order; at a seam the first normal and texture place count."""
    text = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\\\n", b" ")
    lines = _Lines.of(text)
    need_all(len(lines.v))
    values = _table(text, b"v", lines.v)
    if values.shape[1] not in (3, 4, 6, 7):
        raise InputError(f"its vertices have {values.shape[1]} numbers; 3 coordinates, and 3 for a colour, can be read")
    points = values[:, :3]
    colors = eight_bit(values[:, 3:6]) if values.shape[1] >= 6 else None
    wants_colors = colors is None and bool(lines.libraries) and bool(lines.f)
    first = _first_corners(lines) if lines.f and (wants_colors or lines.vn) else None
    if wants_colors and first is not None:
        places = _table(text, b"vt", [b" ".join(line.split()[:2]) for line in lines.vt], 2)
        colors = _material_colors(lines, path.parent, notes, first, places, points)
    notes += faces_note(len(lines.f))
    normals = _table(text, b"vn", lines.vn) if lines.vn else None
    if normals is not None and normals.shape[1] != 3:
        raise InputError(f"its normals have {normals.shape[1]} numbers instead of 3")
    if normals is not None and first is not None:
        normals = normals[first[:, 1]] if (first[:, 1] >= 0).all() else None
    return Fields(points, colors, None if normals is None or len(normals) != len(points) else normals)


def _table(text: bytes, word: bytes, lines: list[bytes], width: int = 0) -> Floats:
    def line_of(index: int) -> int:
        return [number for number, line in enumerate(text.splitlines(), 1) if line.split()[:1] == [word]][index]

    return table(lines, line_of, width)


def _first_corners(lines: _Lines) -> Whole:
    """Of each vertex: texture place, normal and material of the first corner that names it [N,3]; −1: none."""
    lengths = [len(face.split()) for face in lines.f]
    found = _CORNER.findall(b"\n".join(lines.f))
    if len(found) != sum(lengths):
        face = next(face for face, length in zip(lines.f, lengths, strict=True) if len(_CORNER.findall(face)) != length)
        raise InputError(f"a face is {shown(face)}; corners such as 1, 1/2, 1//3 or 1/2/3 can be read")
    given = np.array([int(number or b"0") for corner in found for number in corner], np.int64).reshape(-1, 3)
    faces = np.repeat(np.arange(len(lengths)), lengths)
    # From 0, −1 where there is none.
    indices = np.where(given < 0, np.array(lines.above, np.int64).reshape(-1, 3)[faces] + given, given - 1)
    there = [len(lines.v), len(lines.vt), len(lines.vn)]
    wrong = (indices >= there) | ((given < 0) & (indices < 0))
    wrong[:, 0] |= given[:, 0] == 0
    if wrong.any():
        corner, kind = np.argwhere(wrong)[0]
        what = ("vertex", "texture place", "normal")[kind]
        raise InputError(
            f"face {faces[corner] + 1:,} names {what} {given[corner, kind]}, and there are {there[kind]:,}"
        )
    vertices, where = np.unique(indices[:, 0], return_index=True)
    out = np.full((len(lines.v), 3), -1, np.int64)
    out[vertices, :2] = indices[where, 1:]
    out[vertices, 2] = np.array(lines.material, np.int64)[faces[where]]
    return out


@dataclass
class _Material:
    plain: tuple[float, float, float] | None = None
    texture: str = ""


def _material_colors(
    lines: _Lines, folder: Path, notes: list[str], first: Whole, places: Floats, points: Floats
) -> NDArray[np.uint8] | None:
    known = _materials(lines.libraries, folder, notes)
    out, coloured = np.zeros((len(points), 3), np.uint8), np.zeros(len(points), bool)
    for name, index in lines.used.items():
        rows = np.flatnonzero(first[:, 2] == index)
        material = known.get(name)
        if material is None:
            if known:
                notes.append(f"its material {name!r} is in no library that was found, so colours were left out")
                return None
        elif material.texture:
            rows = rows[first[rows, 0] >= 0]
            picture = _texture(folder, material.texture, notes)
            if picture is None:
                return None
            out[rows], coloured[rows] = bilinear(picture, places[first[rows, 0], :2]), True
        elif material.plain is not None:
            out[rows], coloured[rows] = np.rint(np.clip(material.plain, 0, 1) * np.float64(255)).astype(np.uint8), True
    if not coloured.any():
        return None
    bare = np.flatnonzero(~coloured)
    if len(bare):
        notes.append(f"{len(bare):,} of {len(points):,} vertices have no colour and took that of the nearest with one")
        if np.isfinite(points).all():  # else the cloud is refused anyway
            out[bare] = out[coloured][closest(points[coloured], points[bare])[1]]
    return out


def _materials(libraries: Sequence[str], folder: Path, notes: list[str]) -> dict[str, _Material]:
    known: dict[str, _Material] = {}
    for written in dict.fromkeys(libraries):
        whole = _found(folder, written)  # a name may hold blanks, and a line may hold several names
        for name in [written] if whole else written.split() or [written]:
            path = _found(folder, name)
            if path is None:
                notes.append(
                    f"its material library {name!r} is not there, so colours were left out; put it beside the file"
                )
            elif path.stat().st_size > _LARGEST_LIBRARY:
                notes.append(f"its material library {name!r} is too large to be one, so colours were left out")
            else:
                known |= _library(path.read_bytes().decode("utf-8", "replace"))
    return known


def _library(text: str) -> dict[str, _Material]:
    known: dict[str, _Material] = {}
    current = _Material()
    for line in text.splitlines():
        word, _, rest = line.strip().replace("\t", " ").partition(" ")
        rest = rest.strip()
        if word == "newmtl":
            current = known[rest] = _Material()
        elif word == "Kd":
            current.plain = _plain(rest)
        elif word == "map_Kd":
            current.texture = _TEXTURE_OPTIONS.sub("", rest, count=1)
    return known


def _plain(text: str) -> tuple[float, float, float] | None:
    try:
        red, green, blue = (float(word) for word in (text.split() * 3)[:3] if np.isfinite(float(word)))
    except ValueError:
        return None
    return red, green, blue


def _texture(folder: Path, name: str, notes: list[str]) -> NDArray[np.uint8] | None:
    path = _found(folder, name)
    if path is None:
        notes.append(f"its texture {name!r} is not there, so colours were left out; put it beside the file")
        return None
    try:
        return read_image(path).rgb
    except InputError as error:
        notes.append(f"its texture cannot be read, so colours were left out ({error})")
        return None


def _found(folder: Path, name: str) -> Path | None:
    parts = PureWindowsPath(name.strip("\"'"))  # takes / and \ for separators
    tries = [folder / parts.name] if parts.anchor else [folder.joinpath(*parts.parts), folder / parts.name]
    for path in tries:
        try:
            if path.is_file():
                return path
        except (OSError, ValueError):
            continue
    return None


def bilinear(picture: NDArray[np.uint8], places: Floats) -> NDArray[np.uint8]:
    """Colours [M,3] of a picture [H,W,3] at places [M,2] (u right, v up, 0…1); outside the picture repeats."""
    if not np.isfinite(places).all():
        raise InputError("some places in its texture (vt) are not finite")
    u, v = np.where((places >= 0) & (places <= 1), places, places - np.floor(places)).T
    at = np.stack([(1 - v) * picture.shape[0], u * picture.shape[1]]) - 0.5
    levels = [map_coordinates(picture[..., channel].astype(float), at, order=1, mode="nearest") for channel in range(3)]
    return np.rint(np.stack(levels, axis=1)).astype(np.uint8)


def write(file: BinaryIO, cloud: Cloud, binary: bool, unit: str = "m") -> None:
    """Write vertices (with colours 0 to 1, if there are any) and normals in the same order, without faces."""
    columns: list[NDArray[np.generic]] = [cloud.points.astype(coordinates_kind(cloud.points, unit))]
    if cloud.colors is not None:
        columns.append((cloud.colors / np.float32(255)).astype("f4"))
    file.write(f"# {UNIT_NAMES[unit]}\n".encode())
    write_rows(file, columns, start="v ")
    if cloud.normals is not None:
        write_rows(file, [cloud.normals.astype("f4")], start="vn ")
