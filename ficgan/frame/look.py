"""What a photo looks like in and around a face: sharpness, noise, pores; and patterns that give a new face the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import LUMA, Image, brightest, grey_of, luminance
from ficgan.faces.crops import invert, transform_points
from ficgan.faces.mesh import LEFT_BROW, RIGHT_BROW
from ficgan.frame import HI, LO, Doubles, Floats
from ficgan.frame.appearance import AppearanceModel

# Mesh points at the outer corners of the eyes.
EYES = (33, 263)
# Mesh points amid skin; half of a window around one, of the distance of the eyes' outer corners, and at least so many
# pixels.
_SKIN, _WINDOW, _LEAST_HALF = [50, 280, 151, 205, 425, 199], 0.13, 6
# Most grain that is added, deviation in [0,1].
MOST_GRAIN = 0.03
# Times the frame in which the finest detail lies; widths between which pores lie there.
_FINEST, _PORES = 4, (0.8, 2.0)
# Length and width of hairs, size of their curls, and how far these bend them, pixels of a fine picture; angle at which
# they cross, degrees; power of their strengths, by which a few are clear. Directions of those of brows at both ends.
_HAIR, _HAIR_WIDTH, _CURL, _CURLED, _CROSSING, _CLEARER = 7, 1.4, 6.0, 1.5, 25, 2.3
_BROW_HAIRS = ((174, 130), (50, 6))


# Light that skin has beside what is expected, and that no skin has, on either side; differences of hue, relative to the
# light, that skin has, and that it does not have; difference, in [0,1], at which what lies on a forehead is hair.
SKIN_LIGHT, _SKIN_HUE, _HAIR_APART = (0.6, 0.75, 1.6, 1.9), (0.25, 0.375), 0.15
# Slope of the logarithm of light from one pixel to the next at the edge of what is no shine.
_CLEAR_EDGE = 0.12
# Cloth. Mesh points of skin between the eyes and on the lids, on the forehead, and of places that cloth covers; corners
# of what shows features, and lower lids; half of the window at a point, pixels. Differences that skin does not have, in
# logarithms: of hue, of light that is more, and less; share of them from which on it is cloth. How much lighter a
# forehead is than dark glasses; the least and the greatest redness and yellowness of skin. Correlation with a face, in
# colours that skin has and in others, and deviation of light, from which on it is no cloth. Redness that no skin has.
_EYES_SKIN, _FOREHEAD, _BELOW = (9, 168, 27, 257), (151, 108, 337), ((4,), (13, 14), (205, 425), (199, 200))
_BOX, _HALF, _OTHER, _CLOTH = (50, 280, 5, 18, 145, 374), 3, (0.3, 1.5, 0.5), 0.8
_DARK_GLASSES, _OF_SKIN, _FACE, _ROUGH, _NO_SKIN = 0.8, ((0.12, 0.05), (0.75, 0.8)), (0.3, 0.5), 0.4, 1.1


@dataclass(frozen=True)
class Look:
    """Sharpness and noise of a photo in and around a face, as standard deviations in [0,1].

    Args:
        sharpness: `sharpness_of` the source's texture in the frame.
        grain: of the noise around the face, photo pixels.
        coarse: noise that is left after averaging 2×2 pixels, of what white noise would leave; 1 … 2.
        fine, lashes, forehead: `Fineness` of a face; 0 for a tiny one.
        finest: `sharpness_of` the source's doubled texture; 0 for a tiny face.
        pores: of `read_pores`; 0 where none are added.
        blotches, specks: of `read_blotches`, of the source's texture, and of the doubled one; 0 for a tiny face.
    """

    sharpness: float
    grain: float
    coarse: float = 1.0
    fine: float = 0.0
    lashes: float = 0.0
    forehead: float = 0.0
    finest: float = 0.0
    pores: float = 0.0
    blotches: float = 0.0
    specks: float = 0.0


def read_look(photo: Image, upright: Doubles, texture: Image, mask: Floats) -> Look:
    """Sharpness of the source's texture, and grain as the median of a high-pass filter over what lies around the face.

    Source: Immerkær 1996, with a median in place of the mean.
    """
    sharpness = sharpness_of(texture.astype(np.float32) / np.float32(255), mask)
    unit = 1 / math.sqrt(abs(np.linalg.det(upright[:, :2])))
    centre = transform_points(invert(upright), [[64.0, 64.0]])[0]
    half = int(75 * unit) + 2
    x0, y0 = (int(v) for v in np.clip(np.rint(centre - half), 0, np.array(photo.shape[1::-1]) - 1))
    x1, y1 = (int(v) for v in np.clip(np.rint(centre + half), (x0 + 1, y0 + 1), photo.shape[1::-1]))
    if min(y1 - y0, x1 - x0) < 8:
        return Look(sharpness, 0.0)
    part = photo[y0:y1, x0:x1, 0] * (LUMA[0] / np.float32(255))  # one colour at a time: a third of the memory
    for colour in (1, 2):
        part += photo[y0:y1, x0:x1, colour] * (LUMA[colour] / np.float32(255))
    first = _noise(part)
    second = _noise(cv2.resize(part, (part.shape[1] // 2, part.shape[0] // 2), interpolation=cv2.INTER_AREA))
    # A face of few pixels is nothing but edges, which look like noise: the smaller, the less is believed.
    first *= float(np.clip(2 * unit - 1, 0, 1))
    return Look(sharpness, first, float(np.clip(2 * second / max(first, 1e-6), 1, 2)))


def read_pores(photo: Image, points: NDArray[Any]) -> float:
    """Fine detail of skin in a photo [H,W,3] at two pixels: deviation in [0,1], median over forehead, cheeks and chin.

    Args:
        points: [468,≥2] the mesh in the photo.
    """
    windows = skin_windows(points, photo.shape[1::-1])
    levels = [pore_noise(luminance(photo[window]) / np.float32(255)) for window in windows]
    return float(np.median(levels)) if levels else 0.0


def skin_windows(points: NDArray[Any], size: tuple[int, ...]) -> list[tuple[slice, slice]]:
    """Rows and columns of places of a picture of a size (width, height) where a face has skin; none of small faces."""
    half = int(_WINDOW * np.linalg.norm(points[EYES[0], :2] - points[EYES[1], :2]))
    middles = np.rint(points[_SKIN, :2]).astype(int)
    inside = ((middles >= half) & (middles + half <= size)).all(1)
    if half < _LEAST_HALF:
        return []
    return [np.s_[y - half : y + half, x - half : x + half] for x, y in middles[inside]]


def pore_noise(grey: Floats) -> float:
    return _noise(cv2.resize(grey, (grey.shape[1] // 2, grey.shape[0] // 2), interpolation=cv2.INTER_AREA))


def sharpness_of(texture: Floats, mask: Floats) -> float:
    """Standard deviation of the fine detail of a texture [R,R,3] in [0,1] under a mask."""
    grey = luminance(texture)
    fine = grey - cv2.GaussianBlur(grey, (0, 0), 1.2)
    return float(np.sqrt(np.average(np.square(fine), weights=mask)))


def no_sharper(texture: Floats, sharpness: float, of: Callable[[Floats], float]) -> Floats:
    """A texture blurred until the sharpness `of` it is at most what a blurred photo wants."""
    sharper, more = texture, of(texture)
    for sigma in (0.5, 0.8, 1.2, 1.8, 2.6, 4.0):
        if more <= sharpness:
            break
        blurred = cv2.GaussianBlur(texture, (0, 0), sigma)
        if (less := of(blurred)) <= sharpness:  # between the two, or the face of a film would flicker
            return blurred + np.float32((sharpness - less) / max(more - less, 1e-9)) * (sharper - blurred)
        sharper, more = blurred, less
    return sharper


def _noise(grey: Floats) -> float:
    """Standard deviation of white noise in a picture [h,w], by the median of a second difference."""
    kernel = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], np.float32) / 6
    return float(np.median(np.abs(cv2.filter2D(grey, -1, kernel)))) / 0.6745


def grain_of(shape: tuple[int, int], look: Look, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal(shape, np.float32)
    if look.coarse > 1.1:
        noise = cv2.GaussianBlur(noise, (0, 0), 0.5 * look.coarse)
        noise /= float(noise.std()) + 1e-6
    return np.float32(min(look.grain, MOST_GRAIN)) * noise


def hair_over(source: Image, expected: Floats, mask: Floats, brow: int, light: Sequence[float] = SKIN_LIGHT) -> Floats:
    """Share of each pixel [R,R] that is hair or a hat before the forehead and stays: it reaches the mask's upper edge.

    Args:
        expected: float32 [R,R,3] in [0,1], an average face in the light of the source.
        brow: row of the frame above which this is looked for.
        light: shares of the expected light: darker than the first is no skin, between the second and the third is skin,
            lighter than the fourth is none.
    """
    rows = np.arange(len(mask), dtype=np.float32)[:, None]
    high = np.clip((brow - rows) / (0.015 * len(mask)), 0, 1)
    seen = cv2.GaussianBlur(source, (0, 0), 0.7).astype(np.float32) / np.float32(255)
    other = brightest(np.abs(seen - expected)) / _HAIR_APART
    unlike = _unlike_skin(seen, expected, (mask > 0.9) & (rows > brow), light, mask > 0.3)
    found = (np.clip(2 * other - 1.5, 0, 1) * unlike * high * (mask > 0.02)).astype(np.float32)
    count, label = cv2.connectedComponents((found > 0.3).astype(np.uint8))
    edge = (mask > 0.02) & (mask < 0.5) & (high > 0)
    reaches = np.zeros(count, bool)
    reaches[np.unique(label[edge])] = True
    reaches[0] = False
    found *= cv2.dilate(reaches[label].astype(np.float32), np.ones((3, 3), np.uint8))
    return cv2.GaussianBlur(found, (0, 0), 1.0)


def _unlike_skin(
    seen: Floats, expected: Floats, face: NDArray[np.bool_], light: Sequence[float], within: NDArray[np.bool_]
) -> Floats:
    """How much each pixel [R,R] is darker or lighter than light makes skin, or of another hue than the `face` has.

    What is only lighter, and has no clear edge `within` the face, is skin that shines.
    """
    grey = grey_of(seen)
    tints = seen / np.maximum(grey, 0.02)[..., None]
    share = grey / np.maximum(grey_of(expected), 0.02)
    share /= max(float(np.median(share[face])), 0.02)
    hue = brightest(np.abs(tints - np.median(tints[face], axis=0)))
    lighter = np.interp(share, light[2:], (0, 1))
    slope = np.hypot(*np.gradient(np.log(np.maximum(grey, 0.02))))
    _, label = cv2.connectedComponents((lighter > 0).astype(np.uint8), ltype=cv2.CV_16U)
    square = np.ones((3, 3), np.uint8)
    edge, around = within & (cv2.erode(label, square) == 0), cv2.dilate(label, square)
    total, count = (np.bincount(around[edge], weights, around.max() + 1) for weights in (slope[edge], None))
    lighter *= (total > _CLEAR_EDGE * count)[label]
    levels = [np.interp(share, light[:2], (1, 0)), lighter, np.interp(hue, _SKIN_HUE, (0, 1))]
    return np.asarray(np.max(levels, axis=0), np.float32)


def cloth_over(texture: Image, model: AppearanceModel) -> Floats:
    """Share of each pixel [R,R] of a texture [R,R,3] that is a mask or a scarf over nose and mouth; 0 where none is.

    It is of another colour than the skin around the eyes, and shows hardly any features of a face.
    """
    logs = np.log(cv2.GaussianBlur(texture, (0, 0), 1.0).astype(np.float32) / np.float32(255) + np.float32(0.03))
    light = logs @ LUMA
    planes = np.dstack([light, logs[..., 0] - logs[..., 1], logs[..., 1] - logs[..., 2]])

    def at(marks: Sequence[int]) -> NDArray[np.int64]:
        return np.rint((model.shape.front[list(marks)] - LO) / model.warp.step).astype(int)

    def around(marks: Sequence[int]) -> Floats:
        parts = [planes[y - _HALF : y + _HALF + 1, x - _HALF : x + _HALF + 1].reshape(-1, 3) for x, y in at(marks)]
        return np.median(np.concatenate(parts), axis=0)

    def other(apart: Floats) -> Floats:
        hue = np.hypot(apart[..., 1], apart[..., 2]) / _OTHER[0]
        return np.maximum(hue, np.where(apart[..., 0] > 0, apart[..., 0] / _OTHER[1], -apart[..., 0] / _OTHER[2]))

    none, skin = np.zeros(light.shape, np.float32), around(_EYES_SKIN)
    below = np.array([around(marks) for marks in _BELOW])
    if around(_FOREHEAD)[0] > skin[0] + _DARK_GLASSES or other(below - skin).min() < _CLOTH:
        return none
    hues = np.vstack([skin, below])[:, 1:]
    skins: NDArray[np.bool_] = np.all((hues > _OF_SKIN[0]) & (hues < _OF_SKIN[1]), axis=1)
    if skins[1:].mean() > 0.5:  # skin, unlike dark glasses
        return none
    unlike_skin = skins[0] and ((hues[1:] < _OF_SKIN[0]).any(1) | (hues[1:, 0] > _NO_SKIN)).all()
    (left, _), (right, _), (_, top), (_, low), *lids = at(_BOX)
    usual = np.log(np.maximum(luminance(model.neutral_texture(np.zeros(model.code_size, np.float32))), 0) + 0.03)
    shown = [cv2.GaussianBlur(one, (0, 0), 1.2) - cv2.GaussianBlur(one, (0, 0), 8) for one in (light, usual)]
    seen, face = (one[top : low + 4, left:right].ravel() for one in shown)
    # The skin around the eyes has its usual colour, so blue or white below them is cloth, in which a nose may show. In
    # paint more of the face does.
    if seen.std() > _ROUGH or np.corrcoef(seen, face)[0, 1] > _FACE[int(unlike_skin)]:
        return none
    found = (other(planes - skin) > _CLOTH).astype(np.uint8)
    found[: max(y for _, y in lids) + 2] = 0  # eyes never stay
    found = cv2.morphologyEx(found, cv2.MORPH_CLOSE, np.ones((7, 7), np.uint8))
    _, label = cv2.connectedComponents(found)
    return cv2.GaussianBlur((label == label[low, (left + right) // 2]).astype(np.float32) * found, (0, 0), 0.8)


@cache
def chance_detail(side: int, narrow: float, wide: float) -> Floats:
    """Detail by chance [side,side] of deviation 1, the same for everybody, between blurs of two widths in pixels."""
    noise = np.random.default_rng(0).standard_normal((side, side), np.float32)
    band = cv2.GaussianBlur(noise, (0, 0), narrow) - cv2.GaussianBlur(noise, (0, 0), wide)
    return band / np.float32(band.std())


# Redder skin, in logarithms of colours: in 64 portraits .94 of the variance of skin's colour lies along this direction.
_REDDER = np.array([0.63, -0.18, -0.75], np.float32)
# How much darker redder skin is.
_DARKER = 0.7


class Blotches(NamedTuple):
    """Which spots of colour are read and added.

    Args:
        seen, widths: of the blurs between which they are read and added, pixels; specks are read where shading is not.
        most: the strongest that are added.
        share: of the photo's strength. Large ones get less: they lie by chance, and not where a face has them.
    """

    seen: tuple[float, float]
    widths: tuple[float, float]
    most: float
    share: float


# Blotches in a texture of the frame; specks in a doubled one.
BLOTCHES, SPECKS = Blotches((1.3, 5.0), (1.3, 5.0), 0.007, 0.75), Blotches((0.6, 1.4), (0.8, 3.0), 0.01, 1.0)


def read_blotches(texture: Floats, skin: NDArray[np.int64], which: Blotches = BLOTCHES) -> float:
    """How blotchy skin is in a texture [R,R,3] in [0,1]: deviation of its redness, in logarithms of colours.

    Args:
        skin: flat indices of places that are skin.
    """
    band = _band(np.log(np.maximum(texture, 0) + np.float32(0.03)) @ _REDDER, which.seen)
    # Hair and edges of shadows are no blotches: a small quantile leaves them out.
    return float(np.quantile(np.abs(band.ravel()[skin]), 0.35)) / 0.454


def with_blotches(
    texture: Floats, skin: NDArray[np.int64], blotches: float, chance: float, which: Blotches = BLOTCHES
) -> Floats:
    """A texture [R,R,3] in [0,1] with a share of blotches as of `read_blotches`, by chance in [0,1)."""
    side, have = len(texture), read_blotches(texture, skin, which)
    added = min(math.sqrt(max((which.share * blotches) ** 2 - have**2, 0)), which.most)
    if not added:
        return texture
    noise = np.random.default_rng([int(chance * 2**31), 3]).standard_normal((side, side), np.float32)
    band = _band(noise, which.widths)
    where, colour = np.zeros(side * side, np.float32), _REDDER - np.float32(_DARKER)
    where[skin] = added / float(_band(band, which.seen).std() * (colour @ _REDDER))
    strength = band * cv2.GaussianBlur(where.reshape(side, side), (0, 0), 1.0)
    return texture * np.exp(strength[..., None] * colour)


def _band(picture: Floats, widths: tuple[float, float]) -> Floats:
    finer, coarser = (cv2.GaussianBlur(picture, (0, 0), width) for width in widths)
    return finer - coarser


def skin_pattern(model: AppearanceModel, mask: Floats) -> Floats:
    """Pores by chance: float32 [4R,4R] in the frame.

    Args:
        mask: float32 [R,R], where a face is replaced.
    """
    side = _FINEST * model.size
    skin = cv2.resize(mask * (1 - model.not_skin), (side, side), interpolation=cv2.INTER_LINEAR)
    return chance_detail(side, *_PORES) * skin


def strands(side: int, directions: tuple[int, int], right: Floats) -> Floats:
    """Hairs by chance, float32 [side,side] of deviation 1 or less.

    Args:
        directions: of those on the left and on the right, degrees; 0 is level and 90 upright.
        right: float32 [side], how far columns are on the right, 0 … 1.
    """
    share = np.clip(right, 0, 1)
    left, other = (_strands(side, degrees) for degrees in directions)
    return np.asarray(left + share * (other - left), np.float32)


@cache
def _strands(side: int, degrees: int) -> Floats:
    noise = np.random.default_rng(degrees).standard_normal((5, side, side), np.float32)
    hairs = np.zeros((side, side), np.float32)
    # Plain noise in one direction looks like a fingerprint.
    for roots, direction in zip(noise, (degrees - _CROSSING, degrees, degrees + _CROSSING), strict=False):
        hairs += cv2.filter2D(np.sign(roots) * np.abs(roots) ** np.float32(_CLEARER), -1, _hair(direction))
    hairs -= cv2.GaussianBlur(hairs, (0, 0), _HAIR_WIDTH)
    bent = cv2.GaussianBlur(noise[3:].transpose(1, 2, 0), (0, 0), _CURL)
    places = np.dstack(np.meshgrid(np.arange(side), np.arange(side))) + _CURLED * bent / bent.std()
    hairs = cv2.remap(hairs, places.astype(np.float32), None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
    return np.asarray(hairs / hairs.std(), np.float32)


def _hair(degrees: int) -> Floats:
    """One hair amid a square, of sum 1."""
    along = np.zeros((_HAIR + 2, _HAIR + 2), np.uint8)
    middle, (x, y) = (_HAIR + 1) / 2, (_HAIR / 2 * turn(math.radians(degrees)) for turn in (math.cos, math.sin))
    one, other = ((round(256 * (middle + way * x)), round(256 * (middle - way * y))) for way in (-1, 1))
    cv2.line(along, one, other, 255, 1, cv2.LINE_AA, shift=8)  # in 256ths of a pixel
    return np.asarray(along / along.sum(), np.float32)


def brow_hairs(model: AppearanceModel, side: int) -> Floats:
    """Hairs of brows, float32 [side,side] in the frame; they stand up at the nose and lie down at the temples."""
    x = np.linspace(LO[0], HI[0], side, dtype=np.float32)
    out, middle = np.zeros((side, side), np.float32), model.shape.front[:, 0].mean()
    for outline, ends, half in zip((LEFT_BROW, RIGHT_BROW), _BROW_HAIRS, (x < middle, x >= middle), strict=True):
        at = model.shape.front[outline, 0]
        out += half * strands(side, ends, (x - at.min()) / np.ptp(at))
    shape = model.drawn((LEFT_BROW, 1.0), (RIGHT_BROW, 1.0), soft=1.0)
    return out * np.asarray(cv2.resize(shape, (side, side), interpolation=cv2.INTER_LINEAR), np.float32)
