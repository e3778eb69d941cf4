"""Glasses: whether a face wears some, and others that are drawn in their place.

A new face covers the glasses, but their arms beside it stay. New ones begin where these arms end and have their colour;
their form is drawn by chance.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import luminance, read_arrays, resize
from ficgan.faces.mesh import LEFT_EYE, RIGHT_EYE
from ficgan.frame import LO, Warp

Image = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Side of the texture that is read, its rows around the eyes, and cells in which strength of lines is read.
SIDE, ROWS, CELLS = 128, slice(14, 78), (24, 16)
# Width of the blur that leaves lines behind, pixels; grey levels of contrast that every face has.
_LINE, _CONTRAST = 2.0, 4.0
# Evidence from which on new glasses begin to be drawn, and are drawn wholly. In between they are faint, so that they
# do not flicker in films.
UNSURE, SURE = -0.6, -0.35
# Lengths, in distances of the eyes. Where an arm leaves the face: beside the eye, and how far above and below it.
_TEMPLE, _ABOVE, _BELOW = 0.62, 0.32, 0.18
# Lenses: half their widths and heights, how far they lie outside of the eyes and below them; half the rim's width.
_WIDTHS, _HEIGHTS, _OUTSIDE, _LOWER, _RIMS = (0.36, 0.41), (0.24, 0.31), 0.04, 0.05, (0.012, 0.018, 0.03)
# Exponents of their outline, a superellipse; contrast of an arm from which on rims are wide and opaque.
_FORMS, _CLEAR = (2.2, 4.0), 0.08


@lru_cache(maxsize=1)
def _reader() -> tuple[Floats, float]:
    import ficgan.pretrained as pretrained

    arrays, _ = read_arrays(pretrained.path("glasses"), kind="glasses-reader")
    return arrays["weight"].astype(np.float32), float(arrays["bias"][0])


def lines_of(texture: Image) -> Floats:
    """How strong lines are around the eyes of a texture [R,R,3]: logarithms, float32 [384]."""
    import cv2

    grey = np.asarray(cv2.cvtColor(resize(texture, SIDE), cv2.COLOR_RGB2GRAY), np.float32)
    fine = np.abs(grey - cv2.GaussianBlur(grey, (0, 0), _LINE)) / (grey[20:110, 20:108].std() + _CONTRAST)
    return np.log(0.01 + cv2.resize(fine[ROWS], CELLS, interpolation=cv2.INTER_AREA)).ravel().astype(np.float32)


def read_glasses(texture: Image, front: Floats, warp: Warp) -> Floats:
    """Of a texture [R,R,3], float32 [7]: evidence of glasses, then of their arms: heights, colour and contrast.

    Args:
        front: [468,2] the mesh in the frame.

    Returns:
        Log odds that there are glasses; y of the left and the right arm in the frame; r, g, b and contrast in [0,1].
    """
    weight, bias = _reader()
    seen = texture.astype(np.float32) / np.float32(255)
    heights, colours, contrasts = [], [], []
    middles = _eyes(front)
    apart = float(middles[1, 0] - middles[0, 0])
    for side, (x, y) in zip((-1, 1), middles, strict=True):
        ys = np.arange(y - _ABOVE * apart, y + _BELOW * apart, warp.step[1])
        rows = np.rint((ys - LO[1]) / warp.step[1]).astype(int)
        column = round(float((x + side * _TEMPLE * apart - LO[0]) / warp.step[0]))
        block = seen[rows.clip(0, len(seen) - 1), max(column - 3, 0) : column + 4].mean(1)
        grey = luminance(block)
        odd = np.abs(grey - np.median(grey))
        heights.append(ys[odd.argmax()])
        colours.append(block[odd.argmax()])
        contrasts.append(odd.max())
    evidence = weight @ lines_of(texture) + bias
    return np.array([evidence, *heights, *np.mean(colours, 0), np.mean(contrasts)], np.float32)


def with_glasses(texture: Floats, glasses: Floats, chance: float, front: Floats, warp: Warp) -> Floats:
    """A texture [n,n,3] with glasses, as far as there is evidence of some.

    Args:
        glasses: float32 [7] of `read_glasses`.
        chance: in [0,1), draws their form.
    """
    share = float(np.interp(glasses[0], (UNSURE, SURE), (0, 1)))
    if not share:
        return texture
    arms, colour, contrast = glasses[1:3], glasses[3:6], float(glasses[6])
    rng = np.random.default_rng(int(chance * 2**31))
    form, half, high = (rng.uniform(*span) for span in (_FORMS, _WIDTHS, _HEIGHTS))
    rim = float(rng.choice(_RIMS)) if contrast > _CLEAR else _RIMS[0]
    middles = _eyes(front)
    apart = float(middles[1, 0] - middles[0, 0])
    half, high, rim = half * apart, high * apart, rim * apart
    step = warp.step * (warp.size - 1) / (len(texture) - 1)
    low, top = middles[:, 1].max() + 1.5 * high, min(float(middles[:, 1].min()) - 1.5 * high, float(arms.min()) - rim)
    rows = slice(*(int(v) for v in np.clip((np.array([top, low]) - LO[1]) / step[1], 0, len(texture))))
    ys, xs = np.mgrid[rows, : len(texture)].astype(np.float32)
    ys, xs = ys * step[1] + LO[1], xs * step[0] + LO[0]

    def line(distance: Floats, width: float) -> Floats:
        return np.clip((width - distance) / step[0] + 0.5, 0, 1)

    drawn, shadow = np.zeros_like(xs), np.zeros_like(xs)
    for side, (x, y), arm in zip((-1, 1), middles, arms, strict=True):
        x, y = x + side * _OUTSIDE * apart, y + _LOWER * apart
        far = (np.abs((xs - x) / half) ** form + np.abs((ys - y) / high) ** form) ** (1 / form)  # 1 on the outline
        distance = np.abs(far - 1) * np.hypot(xs - x, ys - y) / np.maximum(far, 1e-3)
        begin, end = np.array([x + side * half, y - 0.35 * high]), np.array([x + side * (half + 0.4 * apart), arm])
        along = end - begin
        part = ((xs - begin[0]) * along[0] + (ys - begin[1]) * along[1]) / (along @ along)
        beside = np.hypot(xs - begin[0] - part * along[0], ys - begin[1] - part * along[1])
        drawn = np.maximum.reduce([drawn, line(distance, rim), line(beside, 1.2 * rim) * (part > 0)])
        shadow = np.maximum(shadow, np.exp(-np.square(distance / (3 * rim))) * ((far > 1) & (ys > y)))
    middle, gap = middles[:, 0].mean(), apart / 2 + _OUTSIDE * apart - half
    arch = middles[:, 1].mean() + _LOWER * apart - 0.3 * high - 0.06 * apart * (1 - np.square((xs - middle) / gap))
    drawn = np.maximum(drawn, line(np.abs(ys - arch), rim) * (np.abs(xs - middle) < gap))
    drawn *= share * min(1.0, 0.5 + 0.5 * contrast / _CLEAR)
    gleam = 1 + 0.25 * np.sin(9 * xs / apart + 6 * chance)  # metal and plastic are nowhere evenly light
    out = texture.copy()
    out[rows] *= 1 - 0.12 * share * shadow[..., None]
    out[rows] += drawn[..., None] * (np.clip(colour * gleam[..., None], 0, 1) - out[rows])
    return out


def _eyes(front: Floats) -> NDArray[np.float64]:
    """Middles [2,2] of the eyes in the frame."""
    return np.array([np.asarray(front, np.float64)[contour].mean(0) for contour in (LEFT_EYE, RIGHT_EYE)])
