"""Beards: whether a face has one, and hairs of somebody else's that are drawn in its place.

A new face covers the beard, but what lies below the chin and beside the ears stays, and skin with a beard around it is
no face. So a bearded man gets a beard again: where his was and of its colours, both so blurred that no feature is left,
with the hairs of a synthetic face, drawn by chance.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import LUMA, Image, read_arrays, resize
from ficgan.device import embedded_file
from ficgan.frame import HI, LO, Floats
from ficgan.frame.look import strands

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
# Side of the small pictures of a beard's place and colours. With 32 beards look hardly better, and hide much less.
SMALL = 8
# Half of the mouth's width, of half the side, and share of the lenders who have a beard at a place that is amid one.
_MOUTH, _AMID = 0.3, 0.8
# Mesh points around the upper lip, where a moustache is; its blur, of the side, and how much of it one covers.
_LIP = [64, 98, 97, 2, 326, 327, 294, 410, 291, 409, 270, 269, 267, 0, 37, 39, 40, 185, 61, 186]
_SOFT, _COVERED = 0.012, 0.6
# How a beard is told from skin: length of the difference of its colours to skin's at which they begin to count, and
# count; how much of it a place must have; the least strength of hairs, of the cheeks', of the beard's and at all, and
# how much more than it is surely hair.
_COLOURED, _FAR, _HAIRY, _MORE = (0.15, 0.5), (0.35, 0.7), (1.6, 0.35, 0.02), (0.4, 0.02)
# Blurs of what was found, pixels of SIDE; shares of it, and of lenders, from which on there is a beard, and all of it.
_BLURS, _FOUND, _PLACES = (1.0, 3.0, 1.2), (0.3, 0.65), (0.05, 0.3)
# Of so many lenders whose beards are as light beside skin one is drawn.
_ALIKE = 5
# The clearest hairs, of the lender's; of hairs by chance, their deviation; the darkest and the lightest.
_MOST_HAIRS, _MOST_DRAWN, _SHADES = 1.4, 0.2, (-0.8, 0.6)
# Directions of hairs on the left and on the right, degrees.
_DIRECTIONS = (60, 120)
# Evidence from which on there is stubble, and all of it; how dark it may be, and how clear its hairs, of a beard's.
_STUBBLE, _DARKEST, _FINE = (-1.4, -0.9), 0.3, 0.5
# How strong lighter hairs of stubble are, of the darker.
_LIT = 0.3
# Steps of `BeardReader.hairs` in a logarithm.
HAIR_UNIT = 64.0


class BeardReader(NamedTuple):
    """What was learnt of beards: a support vector machine, and beards of L synthetic faces.

    Args:
        mean, scale: float32 [F] of the features of `tones_of`.
        vectors, weights, bias: [V,F], [V] and [1]; width: [1], of the kernel.
        usual: uint8 [2S-Y,2S], how much of the skin a beard hides on average, of twice SIDE, from row Y on.
        hairs: int8 [L,2S-Y,2S], how much lighter a beard is than its mean, in 1/64 of a logarithm.
        levels: float32 [L], logarithms of how light this mean is beside skin.
    """

    mean: Floats
    scale: Floats
    vectors: Floats
    weights: Floats
    bias: Floats
    width: Floats
    usual: Image
    hairs: NDArray[np.int8]
    levels: Floats

    def evidence(self, texture: Image, front: Floats) -> float:
        """Of a beard in a texture uint8 [R,R,3]; `UNSURE` and `SURE` are values of it."""
        x = (tones_of(texture, front) - self.mean) / self.scale
        apart = np.square(self.vectors - x).sum(1)
        return float(np.exp(-self.width[0] * apart) @ self.weights + self.bias[0])


@lru_cache(maxsize=1)
def beard_reader() -> BeardReader:
    """The embedded one."""
    arrays, _ = read_arrays(embedded_file("beards.safetensors"), kind="beard-reader")
    whole = {"usual", "hairs"}
    return BeardReader(
        *(arrays[name] if name in whole else arrays[name].astype(np.float32) for name in BeardReader._fields)
    )


def tones_of(texture: Image, front: Floats) -> Floats:
    """Tones and strength of hairs in the lower half of a texture [R,R,3], beside those of the cheeks; of both sides."""
    logs = np.log(resize(texture, SIDE).astype(np.float32) / np.float32(255) + np.float32(_BLACK))
    planes = [cv2.GaussianBlur(logs @ colour, (0, 0), _TONE) for colour in _COLOURS]
    planes.append(np.log(_strength(logs @ LUMA) + np.float32(_BALD)))
    out = []
    for plane in planes:
        beside = plane - np.median(np.concatenate(_cheeks(plane, front)))
        out.append(((beside + beside[:, ::-1]) / 2)[ROWS, COLUMNS].ravel())
    return np.concatenate(out).astype(np.float32)


def _strength(grey: Floats) -> Floats:
    band = grey - cv2.GaussianBlur(grey, (0, 0), _HAIRS)
    return np.sqrt(cv2.GaussianBlur(np.square(band), (0, 0), _AROUND))


def places(points: list[int], front: Floats, side: int) -> NDArray[np.int64]:
    """Pixels [n,2] of mesh points in a texture of a side."""
    scale = (side - 1) / (np.array(HI) - LO)
    return np.rint((front[points, :2] - LO) * scale).astype(np.int64)


def _cheeks(picture: Floats, front: Floats) -> list[Floats]:
    """Windows around `CHEEKS` in a picture [n,n,…] in the frame."""
    half = round(_WINDOW * len(picture) / SIDE)
    return [picture[y - half : y + half + 1, x - half : x + half + 1] for x, y in places(CHEEKS, front, len(picture))]


def skin_of(logs: Floats, front: Floats) -> Floats:
    """Logarithms of the skin's colours [n,n,3] at each place of those of a texture: from cheek to cheek."""
    side = len(logs)
    colours = [np.median(window.reshape(-1, 3), axis=0) for window in _cheeks(logs, front)]
    at = places(CHEEKS, front, side)[:, 0]
    share = np.clip((np.arange(side) - at[0]) / (at[1] - at[0]), -0.2, 1.2)[None, :, None]
    return np.asarray(colours[0] + (colours[1] - colours[0]) * share, np.float32)


class Beard(NamedTuple):
    """How a beard looks.

    Args:
        evidence: of one; `UNSURE` and `SURE` are values of it.
        clear: strength of its hairs.
        cover: float32 [8,8], where it is, of a texture.
        colours: float32 [8,8,3], logarithms of its colours; where there is none, those of the skin.
        lip: float32 [4], how much of the upper lip it hides, and logarithms of its colours there.
    """

    evidence: float
    clear: float
    cover: Floats
    colours: Floats
    lip: Floats


@cache
def _usual(side: int) -> tuple[Floats, NDArray[np.bool_]]:
    """How much of the skin [side,side] beards hide on average; where nearly everybody's is, around the mouth."""
    usual = _sized(beard_reader().usual.astype(np.float32) / np.float32(255), side)
    return usual, (usual > _AMID) & (np.abs(np.linspace(-1, 1, side)) < _MOUTH)


def _sized(rows: Floats, side: int) -> Floats:
    """A lender's last rows as a whole picture [side,side]."""
    out = np.zeros((2 * SIDE, 2 * SIDE), np.float32)
    out[-len(rows) :] = rows
    return cv2.resize(out, (side, side), interpolation=cv2.INTER_AREA)


def _ramp(values: Floats, ends: tuple[float, float]) -> Floats:
    return np.clip((values - np.float32(ends[0])) / np.float32(ends[1] - ends[0]), 0, 1)


def read_beard(texture: Image, front: Floats) -> Beard:
    """Evidence of a beard, and how it looks.

    Args:
        texture: uint8 [R,R,3] of a face in the frame.
        front: float32 [468,2], the mesh in the frame.
    """

    def blurred(picture: Floats, number: int) -> Floats:
        return cv2.GaussianBlur(picture, (0, 0), _BLURS[number] * side / SIDE)

    side = len(texture)
    logs = np.log(texture.astype(np.float32) / np.float32(255) + np.float32(_BLACK))
    (usual, amid), beside, strength = _usual(side), logs - skin_of(logs, front), blurred(_strength(logs @ LUMA), 0)
    typical, clear = np.median(beside[amid], axis=0), float(np.median(strength[amid]))
    length = float(np.linalg.norm(typical))
    least = max(_HAIRY[0] * float(np.median(_cheeks(strength, front))), _HAIRY[1] * clear, _HAIRY[2])
    hairy = _ramp(strength, (least, least + max(_MORE[0] * clear, _MORE[1])))
    far = np.interp(length, _COLOURED, (0, 1)) * _ramp(blurred(beside, 0) @ typical / max(length**2, 1e-4), _FAR)
    found = _ramp(blurred(np.maximum(hairy, far.astype(np.float32)), 1), _FOUND)
    cover = blurred(found, 2) * _ramp(usual, _PLACES)
    weight = cover[..., None] + np.float32(1e-3)
    small, colours, count = (
        cv2.resize(part, (SMALL, SMALL), interpolation=cv2.INTER_AREA) for part in (cover, weight * logs, weight)
    )
    on_lip = _on_lip(front, side)
    upper = cover * on_lip
    share = min(float(upper.mean() / on_lip.mean()) / _COVERED, 1.0)
    lip = np.append(share, np.average(logs.reshape(-1, 3), axis=0, weights=upper.ravel() + np.float32(1e-6)))
    evidence = beard_reader().evidence(texture, front)
    return Beard(evidence, clear, small, colours / count[..., None], lip.astype(np.float32))


def _on_lip(front: Floats, side: int) -> Floats:
    """float32 [side,side], 1 where a moustache is."""
    out = np.zeros((side, side), np.float32)
    cv2.fillPoly(out, [places(_LIP, front, side).astype(np.int32)], 1.0)
    return cv2.GaussianBlur(out, (0, 0), _SOFT * side)


def worn(beard: Beard) -> float:
    """How much of a beard is drawn for what `read_beard` read."""
    return float(np.interp(beard.evidence, (UNSURE, SURE), (0, 1)))


def hidden(beard: Beard, front: Floats, side: int) -> Floats:
    """How much of the skin [side,side] a beard hides; `front` as of `read_beard`."""
    cover = _large(beard.cover, side) * _ramp(_usual(side)[0], _PLACES)
    return np.float32(worn(beard)) * np.maximum(cover, beard.lip[0] * _on_lip(front, side))


def _large(small: Floats, side: int) -> Floats:
    return cv2.resize(small, (side, side), interpolation=cv2.INTER_LINEAR)


def with_beard(texture: Floats, beard: Beard, chance: float, front: Floats) -> Floats:
    """A texture with a beard or stubble, as far as there is evidence of some.

    Args:
        texture: float32 [n,n,3] in [0,1] of a face in the frame.
        chance: in [0,1), draws whose hairs it has.
        front: as of `read_beard`.
    """
    share = worn(beard)
    stubble = (1 - share) * float(np.interp(beard.evidence, _STUBBLE, (0, 1)))
    if not share and not stubble:
        return texture
    reader, side = beard_reader(), len(texture)
    (usual, _), (_, amid) = _usual(side), _usual(SIDE)
    cover, colours = hidden(beard, front, side), _large(beard.colours, side)
    colours += (beard.lip[0] * _on_lip(front, side))[..., None] * (beard.lip[1:] - colours)
    own = np.log(np.maximum(texture, 0) + np.float32(_BLACK))
    level = np.average((colours - skin_of(own, front)) @ LUMA, weights=cover + np.float32(1e-3) * usual)
    alike = np.argsort(np.abs(reader.levels - level), kind="stable")[:_ALIKE]
    hairs = reader.hairs[alike[int(chance * len(alike))]] / np.float32(HAIR_UNIT)
    hairs, coarse = _sized(hairs, side), _sized(hairs, SIDE)
    gain = min(beard.clear / max(float(np.median(_strength(coarse)[amid])), 1e-3), _MOST_HAIRS)
    fine = gain * (hairs - cv2.GaussianBlur(hairs, (0, 0), _HAIRS * side / SIDE))
    more = strands(side, _DIRECTIONS, np.linspace(0, 1, side, dtype=np.float32))
    small = [cv2.resize(one, (SIDE, SIDE), interpolation=cv2.INTER_AREA) for one in (fine, more)]
    got, most = (float(np.median(_strength(one)[amid])) for one in small)
    amount = min(math.sqrt(max(beard.clear**2 - got**2, 0)) / most, _MOST_DRAWN)
    fine = np.clip(fine + np.float32(amount) * more, *_SHADES)
    if stubble:  # skin as dark as the photo's, with hairs as clear
        darker = np.clip(colours - cv2.GaussianBlur(own, (0, 0), side / SMALL / 2), -_DARKEST, 0)
        change = darker + (_FINE * np.minimum(fine, np.float32(_LIT) * fine))[..., None]
        texture = texture * np.exp((stubble * usual)[..., None] * change).astype(np.float32)
    new = np.exp(colours + fine[..., None]) - np.float32(_BLACK)
    return texture + cover[..., None] * (np.clip(new, 0, 1) - texture)
