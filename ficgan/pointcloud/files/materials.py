"""What an OBJ's material library says of colours: the texture `map_Kd`, else the plain colour `Kd`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError

__all__ = ["Materials", "bilinear", "materials_of"]

_LARGEST_LIBRARY = 16 << 20
# Options before the name of a texture, with their values: -o 0 0 0, -s 1 1 1, -clamp on …
_OPTIONS = re.compile(r"(-[a-zA-Z]+\s+((on|off|[rgbmlz]|[-+]?[\d.]+)(?=\s)\s+)*)*")


@dataclass(frozen=True)
class _Material:
    plain: tuple[float, float, float] | None = None
    texture: str = ""


@dataclass(frozen=True)
class Materials:
    """Materials by name, and where their textures are.

    Args:
        known: by name.
        folder: of the OBJ file.
        notes: takes what could not be found.
    """

    known: dict[str, _Material]
    folder: Path
    notes: list[str]

    def colors(
        self,
        used: Sequence[str],
        first: NDArray[np.int64],
        places: NDArray[np.float64],
        points: NDArray[np.float64],
    ) -> NDArray[np.uint8] | None:
        """A colour for every vertex; None, and a note, where that cannot be had.

        Args:
            used: names of materials.
            first: [N,3] of each vertex: place in the texture, (not used), place in `used`; −1: none.
            places: [M,≥2], u to the right and v up, 0 to 1.
            points: [N,3]; vertices without a colour take that of the nearest with one.
        """
        out, coloured = np.zeros((len(points), 3), np.uint8), np.zeros(len(points), bool)
        for index, name in enumerate(used):
            material = self.known.get(name)
            if material is None:
                if self.known:
                    self.notes.append(
                        f"its material {name!r} is in no library that was found, so colours were left out"
                    )
                    return None
                continue
            rows = np.flatnonzero(first[:, 2] == index)
            if material.texture:
                rows = rows[first[rows, 0] >= 0]
                picture = self._texture(material.texture)
                if picture is None:
                    return None
                out[rows] = bilinear(picture, places[first[rows, 0], :2])
            elif material.plain is not None:
                out[rows] = np.rint(np.clip(material.plain, 0, 1) * np.float64(255)).astype(np.uint8)
            else:
                continue
            coloured[rows] = True
        if not coloured.any():
            return None
        return out if coloured.all() else self._spread(out, coloured, points)

    def _texture(self, name: str) -> NDArray[np.uint8] | None:
        from ficgan.images import read_image

        path = _found(self.folder, name)
        if path is None:
            self.notes.append(f"its texture {name!r} is not there, so colours were left out; put it beside the file")
            return None
        try:
            return read_image(path).rgb
        except InputError as error:
            self.notes.append(f"its texture cannot be read, so colours were left out ({error})")
            return None

    def _spread(
        self, colors: NDArray[np.uint8], coloured: NDArray[np.bool_], points: NDArray[np.float64]
    ) -> NDArray[np.uint8]:
        from ficgan.pointcloud.neighbours import search

        bare = np.flatnonzero(~coloured)
        self.notes.append(
            f"{len(bare):,} of {len(points):,} vertices have no colour and took that of the nearest with one"
        )
        if np.isfinite(points).all():  # else the cloud is refused anyway
            colors[bare] = colors[coloured][search(points[coloured], points[bare])[1][:, 0]]
        return colors


def bilinear(picture: NDArray[np.uint8], places: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Colours of a picture between its pixels.

    Args:
        picture: [H,W,3].
        places: [M,2], u from left to right and v from the bottom up; pixels' centres lie at (i + .5)/size. Outside 0
            to 1 the picture repeats; within, its border is not mixed with the opposite one.

    Returns:
        [M,3].

    Raises:
        InputError: places that are not finite.
    """
    if not np.isfinite(places).all():
        raise InputError("some places in its texture (vt) are not finite")
    size = np.array(picture.shape[1::-1])
    inside = (places >= 0) & (places <= 1)
    u, v = np.where(inside, places, places - np.floor(places)).T
    at = np.clip(np.stack([u, 1 - v], axis=1) * size - 0.5, 0, size - 1)
    low = np.minimum(at.astype(np.int64), np.maximum(size - 2, 0))
    high = np.minimum(low + 1, size - 1)
    right, down = (at - low).T[:, :, None]
    (left_x, top_y), (right_x, bottom_y) = low.T, high.T
    top = picture[top_y, left_x] * (1 - right) + picture[top_y, right_x] * right
    bottom = picture[bottom_y, left_x] * (1 - right) + picture[bottom_y, right_x] * right
    return np.rint(top * (1 - down) + bottom * down).astype(np.uint8)


def materials_of(libraries: Sequence[str], folder: Path, notes: list[str]) -> Materials:
    """The materials of all libraries that can be found.

    Args:
        libraries: names, as the lines `mtllib` have them.
        folder: of the OBJ file.
        notes: takes which were not found.
    """
    known: dict[str, _Material] = {}
    for said in dict.fromkeys(libraries):
        whole = _found(folder, said)  # a name may hold blanks, and a line may hold several names
        for name in [said] if whole else said.split() or [said]:
            path = _found(folder, name)
            if path is None:
                notes.append(
                    f"its material library {name!r} is not there, so colours were left out; put it beside the file"
                )
            elif path.stat().st_size > _LARGEST_LIBRARY:
                notes.append(f"its material library {name!r} is too large to be one, so colours were left out")
            else:
                known |= _library(path.read_bytes().decode("utf-8", "replace"))
    return Materials(known, folder, notes)


def _library(text: str) -> dict[str, _Material]:
    known: dict[str, _Material] = {}
    name = ""
    for line in text.splitlines():
        word, _, rest = line.strip().replace("\t", " ").partition(" ")
        rest = rest.strip()
        if word == "newmtl":
            name = rest
            known[name] = _Material()
        elif word == "Kd" and name in known:
            known[name] = _Material(_plain(rest), known[name].texture)
        elif word == "map_Kd" and name in known:
            known[name] = _Material(known[name].plain, _OPTIONS.sub("", rest, count=1))
    return known


def _plain(text: str) -> tuple[float, float, float] | None:
    """A colour of three numbers; None for `spectral` and the like."""
    try:
        red, green, blue = (float(word) for word in (text.split() * 3)[:3] if np.isfinite(float(word)))
    except ValueError:
        return None
    return red, green, blue


def _found(folder: Path, name: str) -> Path | None:
    """A file by the name it had where the OBJ was made: as said, or, of another machine's path, the last part."""
    parts = PureWindowsPath(name.strip("\"'"))  # takes / and \ for separators
    tries = [folder / parts.name] if parts.anchor else [folder.joinpath(*parts.parts), folder / parts.name]
    for path in tries:
        try:
            if path.is_file():
                return path
        except (OSError, ValueError):
            continue
    return None
