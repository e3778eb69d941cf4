"""Beards: whether a face has one, and another one that is drawn in its place.

A new face covers the beard, but what lies below the chin and beside the ears stays, and skin with a beard around it is
no face. So a bearded man gets the beard of a synthetic face, drawn by chance, in the colour of his own and with hairs
as clear.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import LUMA, read_arrays, resize
from ficgan.device import embedded_file
from ficgan.frame import HI, LO
from ficgan.frame.look import strands

Image = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Side of the texture that is read, its rows and columns that are, and blurs in its pixels: of tones, of what is no
# hair, and of the strength of hairs.
SIDE, ROWS, COLUMNS, _TONE, _HAIRS, _AROUND = 128, slice(72, 124, 5), slice(14, 116, 6), 2.0, 2.0, 2.5
# Directions of colours that are read, of their logarithms: brightness, redness, and green.
_COLOURS = np.stack([LUMA, (0.63, -0.18, -0.75), (0.4, -0.8, 0.4)]).astype(np.float32)
# Added to colours and to strengths of hairs before their logarithm is taken.
_BLACK, _BALD = 0.03, 0.004
# Mesh points on the left and the right cheek, which beards leave free; half of the window around one, units.
CHEEKS, _WINDOW = [50, 280], 4.0
# Evidence from which on a beard begins to be drawn, and is drawn wholly.
UNSURE, SURE = -0.45, -0.15
# Half of the mouth's width and what lies between it and the jaw, of half the side; cover from which on all is beard.
_MOUTH, _FADE, _ALL = 0.3, 0.17, 0.6
# Square of the difference to skin at which a beard is hardly seen; how much of it the jaw has of a goatee, and of a
# full beard.
_FAINT, _GOATEE = 0.02, (0.25, 0.6)
# The clearest hairs, of the lender's; share of its light and shade that is lent; the darkest and the lightest.
_MOST_HAIRS, _SHADED, _SHADES = 1.4, 0.6, (-0.8, 0.6)
# Directions of hairs on the left and on the right, degrees.
_DIRECTIONS = (60, 120)
# Evidence from which on there is stubble, and all of it; how dark it may be, and how clear its hairs, of a beard's.
_STUBBLE, _DARKEST, _FINE = (-1.4, -0.9), 0.3, 0.5
# The lightest hairs, of a beard's colour, where skin is darker; how strong lighter ones of stubble are, of the darker.
_LIGHTEST, _LIT = np.float32(1.2), 0.3
# Steps of `BeardReader.hairs` in a logarithm.
HAIR_UNIT = 64.0


class BeardReader(NamedTuple):
    """What was learnt of beards: a support vector machine, and beards of L synthetic faces.

    Args:
        mean, scale: float32 [F] of the features of `tones_of`.
        vectors, weights, bias: [V,F], [V] and [1]; width: [1], of the kernel.
        cover: uint8 [L,2S-Y,2S], how much of the skin a beard hides, of twice SIDE, from row Y on.
        hairs: int8 of the same shape, how much lighter it is than its mean, in 1/64 of a logarithm.
    """

    mean: Floats
    scale: Floats
    vectors: Floats
    weights: Floats
    bias: Floats
    width: Floats
    cover: NDArray[np.uint8]
    hairs: NDArray[np.int8]

    def evidence(self, texture: Image, front: Floats) -> float:
        """Of a beard in a texture uint8 [R,R,3]; `UNSURE` and `SURE` are values of it."""
        x = (tones_of(texture, front) - self.mean) / self.scale
        apart = np.square(self.vectors - x).sum(1)
        return float(np.exp(-self.width[0] * apart) @ self.weights + self.bias[0])


@lru_cache(maxsize=1)
def beard_reader() -> BeardReader:
    """The embedded one."""
    arrays, _ = read_arrays(embedded_file("beards.safetensors"), kind="beard-reader")
    whole = {"cover", "hairs"}
    return BeardReader(
        *(arrays[name] if name in whole else arrays[name].astype(np.float32) for name in BeardReader._fields)
    )


def tones_of(texture: Image, front: Floats) -> Floats:
    """Tones and strength of hairs in the lower half of a texture [R,R,3], beside those of the cheeks; of both sides."""
    import cv2

    logs = np.log(resize(texture, SIDE).astype(np.float32) / np.float32(255) + np.float32(_BLACK))
    planes = [cv2.GaussianBlur(logs @ colour, (0, 0), _TONE) for colour in _COLOURS]
    planes.append(np.log(_strength(logs @ LUMA) + np.float32(_BALD)))
    x, y = places(CHEEKS, front, SIDE).T
    half, out = round(_WINDOW), []
    for plane in planes:
        cheeks = [plane[b - half : b + half + 1, a - half : a + half + 1] for a, b in zip(x, y, strict=True)]
        beside = plane - np.median(np.concatenate(cheeks))
        out.append(((beside + beside[:, ::-1]) / 2)[ROWS, COLUMNS].ravel())
    return np.concatenate(out).astype(np.float32)


def _strength(grey: Floats) -> Floats:
    import cv2

    band = grey - cv2.GaussianBlur(grey, (0, 0), _HAIRS)
    return np.sqrt(cv2.GaussianBlur(np.square(band), (0, 0), _AROUND))


def places(points: list[int], front: Floats, side: int) -> NDArray[np.int64]:
    """Pixels [n,2] of mesh points in a texture of a side."""
    scale = (side - 1) / (np.array(HI) - LO)
    return np.rint((front[points, :2] - LO) * scale).astype(np.int64)


def skin_of(logs: Floats, front: Floats) -> Floats:
    """Logarithms of the skin's colours [n,n,3] at each place of those of a texture: from cheek to cheek."""
    side = len(logs)
    half = round(_WINDOW * side / SIDE)
    colours, at = [], []
    for x, y in places(CHEEKS, front, side):
        colours.append(np.median(logs[y - half : y + half + 1, x - half : x + half + 1].reshape(-1, 3), axis=0))
        at.append(x)
    share = np.clip((np.arange(side) - at[0]) / (at[1] - at[0]), -0.2, 1.2)[None, :, None]
    return np.asarray(colours[0] + (colours[1] - colours[0]) * share, np.float32)


@cache
def _zones(side: int) -> tuple[Floats, NDArray[np.bool_]]:
    """How much of the jaw each column is, float32 [side]; where all lenders have a beard: mouth, jaw [2,side,side]."""
    usual = _sized(beard_reader().cover.min(0) / np.float32(255), side) > _ALL
    jaw: Floats = np.clip((np.abs(np.linspace(-1, 1, side, dtype=np.float32)) - _MOUTH) / _FADE, 0, 1)
    return jaw, np.stack([usual & (jaw < 0.1), usual & (jaw > 0.9)])


@cache
def _usual(side: int) -> Floats:
    """How much of the skin [side,side] beards hide on average."""
    return _sized(beard_reader().cover.mean(0) / np.float32(255), side)


def _sized(rows: Floats, side: int) -> Floats:
    """A lender's last rows as a whole picture [side,side]."""
    import cv2

    out = np.zeros((2 * SIDE, 2 * SIDE), np.float32)
    out[-len(rows) :] = rows
    return np.asarray(cv2.resize(out, (side, side), interpolation=cv2.INTER_AREA))


def read_beard(texture: Image, front: Floats) -> Floats:
    """Evidence of a beard, and how it looks.

    Args:
        texture: uint8 [R,R,3] of a face in the frame.
        front: float32 [468,2], the mesh in the frame.

    Returns:
        float32 [9]: evidence; logarithms of red, green and blue around the mouth, and what the jaw's are more than
        these; strength of hairs; whether the jaw has a beard, too, 0 … 1.
    """
    evidence = beard_reader().evidence(texture, front)
    logs = np.log(texture.astype(np.float32) / np.float32(255) + np.float32(_BLACK))
    zones, beside = _zones(len(logs))[1], logs - skin_of(logs, front)
    mouth, jaw = (np.median(beside[zone], axis=0) for zone in zones)
    colours = [np.median(logs[zone], axis=0) for zone in zones]
    clear = float(np.median(_strength(logs @ LUMA)[zones.any(0)]))
    full = float(np.interp(mouth @ jaw / max(mouth @ mouth, _FAINT), _GOATEE, (0, 1)))
    return np.array([evidence, *colours[0], *colours[1] - colours[0], clear, full], np.float32)


def worn(beard: Floats) -> float:
    """How much of a beard is drawn for what `read_beard` read."""
    return float(np.interp(beard[0], (UNSURE, SURE), (0, 1)))


def hidden(beard: Floats, side: int) -> Floats:
    """How much of the skin [side,side] a beard as of `read_beard` usually hides."""
    jaw, _ = _zones(side)
    return np.float32(worn(beard)) * _usual(side) * (1 - jaw * (1 - beard[8]))


def with_beard(texture: Floats, beard: Floats, chance: float, front: Floats) -> Floats:
    """A texture with a beard or stubble, as far as there is evidence of some.

    Args:
        texture: float32 [n,n,3] in [0,1] of a face in the frame.
        beard: float32 [9] of `read_beard`.
        chance: in [0,1), draws whose beard it is.
        front: as of `read_beard`.
    """
    import cv2

    share = worn(beard)
    stubble = (1 - share) * float(np.interp(beard[0], _STUBBLE, (0, 1)))
    if not share and not stubble:
        return texture
    reader, side = beard_reader(), len(texture)
    (colour, lighter), (clear, full) = beard[1:7].reshape(2, 3), beard[7:]
    jaw, zones = _zones(side)[0], _zones(SIDE)[1]
    number = int(chance * len(reader.cover)) % len(reader.cover)
    lent = reader.hairs[number] / np.float32(HAIR_UNIT)
    hairs, coarse = _sized(lent, side), _sized(lent, SIDE)
    gain = min(float(clear) / max(float(np.median(_strength(coarse)[zones.any(0)])), 1e-3), _MOST_HAIRS)
    soft = cv2.GaussianBlur(hairs, (0, 0), _HAIRS * side / SIDE)
    levels = [np.median(coarse[zone]) for zone in zones]
    shade = np.float32(_SHADED) * (soft - levels[0] - jaw * (levels[1] - levels[0]))
    fine = gain * (hairs - soft)
    more = strands(side, _DIRECTIONS, np.linspace(0, 1, side, dtype=np.float32))
    small = [cv2.resize(one, (SIDE, SIDE), interpolation=cv2.INTER_AREA) for one in (fine, more)]
    got, most = (float(np.median(_strength(one)[zones.any(0)])) for one in small)
    fine = fine + np.float32(math.sqrt(max(float(clear) ** 2 - got**2, 0)) / most) * more
    light = np.clip(shade + fine, *_SHADES)
    if stubble:  # skin as dark as the photo's, with hairs as clear
        own = np.log(cv2.resize(texture, (SIDE, SIDE), interpolation=cv2.INTER_AREA).clip(0) + np.float32(_BLACK))
        wanted = (colour, colour + lighter)
        beside = [goal - np.median(own[zone], axis=0) for goal, zone in zip(wanted, zones, strict=True)]
        darker = np.clip(beside, -_DARKEST, 0)
        dark = np.minimum(fine, np.float32(_LIT) * fine)
        change = darker[0] + jaw[:, None] * (darker[1] - darker[0]) + (_FINE * dark)[..., None]
        texture = texture * np.exp((stubble * _usual(side))[..., None] * change).astype(np.float32)
    cover = share * _sized(reader.cover[number] / np.float32(255), side) * (1 - jaw * (1 - full))
    usual = np.exp(colour + jaw[:, None] * lighter) - np.float32(_BLACK)
    most = np.maximum(np.minimum(texture, 1), _LIGHTEST * usual)  # hairs that shine are no lighter than skin
    new = (usual + np.float32(_BLACK)) * np.exp(light[..., None]) - np.float32(_BLACK)
    out: Floats = texture + cover[..., None] * (np.clip(new, 0, most) - texture)
    return out
