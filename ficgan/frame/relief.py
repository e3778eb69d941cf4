"""Relief: the fine detail of a face as a share of the light around, which other faces can be given.

Pictures here are luminances [n,n] in [0,1]. A fine one has twice the side of the frame.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import luminance

Floats = NDArray[np.float32]

# Standard deviation, in pixels of a fine picture, of the blur that leaves fine detail behind.
_FINE = 2.2
# The same of the blur whose colours detail has.
_TINT = 4.0
# Luminance that is added to light: what is nearly black has no relief.
_DARK = 0.03
# Width of what lies around a place, of the side; difference in logarithms at which a lender's detail no longer fits.
_AROUND, _DARKER = 0.055, 0.22


class FinePlaces(NamedTuple):
    """Where fine detail is measured: flat indices of skin, and of eyes and brows; and [n,n], 1 around the eyes."""

    skin: NDArray[np.int64]
    eyes: NDArray[np.int64]
    around_eyes: Floats


class Lender(NamedTuple):
    """A lender's `relief_of`, float32 [n,n], and its `tone_of`, [h,h]."""

    relief: Floats
    tone: Floats


def fineness(grey: Floats, places: FinePlaces) -> tuple[float, float]:
    """Strength of the fine detail of skin and of eyes, standard deviations in [0,1]."""
    return _strength(_fine(grey), places)


def _strength(fine: Floats, places: FinePlaces) -> tuple[float, float]:
    # Of skin by the median: brows and nostrils do not count.
    return float(np.median(np.abs(fine.ravel()[places.skin]))) / 0.6745, float(fine.ravel()[places.eyes].std())


def _fine(grey: Floats) -> Floats:
    import cv2

    out: Any = grey - cv2.GaussianBlur(grey, (0, 0), _FINE)
    return out


def relief_of(grey: Floats) -> Floats:
    """Fine detail of a picture [n,n] as a share of the light around: float32 [n,n]."""
    out: Floats = _fine(grey) / _resized(_light(_resized(grey, len(grey) // 4)), len(grey))
    return out


def tone_of(grey: Floats, side: int) -> Floats:
    """Logarithm of the light at each place of a picture [n,n] over that around: float32 [side,side]."""
    small = _resized(grey, side)
    return _tone(small, _light(small))


def _tone(grey: Floats, light: Floats) -> Floats:
    return np.log((np.maximum(grey, 0) + np.float32(_DARK)) / light)


def _light(grey: Floats) -> Floats:
    """Luminance around each place, never quite black."""
    import cv2

    return np.maximum(cv2.GaussianBlur(grey, (0, 0), _AROUND * len(grey)), 0) + np.float32(_DARK)


def _resized(picture: Floats, side: int) -> Floats:
    import cv2

    how = cv2.INTER_AREA if side < len(picture) else cv2.INTER_LINEAR
    out: Any = cv2.resize(picture, (side, side), interpolation=how)
    return out


def with_relief(
    texture: Floats, lender: Lender, wanted: tuple[float, float], places: FinePlaces, most: float
) -> Floats:
    """A texture [n,n,3] in [0,1] with the relief of another face.

    Where the lender is darker than the new face it has hair, a shadow or a frame of glasses there: nothing is lent.
    Lids and lashes are lent always.

    Args:
        wanted: `fineness` of skin and eyes that the result shall have.
        most: largest gain of the relief.
    """
    import cv2

    grey = luminance(texture)
    small = _resized(grey, len(lender.tone))
    light = _light(small)
    darker = np.maximum(_tone(small, light) - lender.tone, 0)
    trust = np.exp(-np.square(cv2.GaussianBlur(darker, (0, 0), 0.7) / _DARKER))
    fits = np.maximum(_resized(trust, len(grey)), places.around_eyes)
    added = lender.relief * fits * _resized(light, len(grey))
    fine = _fine(grey)
    none, full = _strength(fine, places), _strength(fine + _fine(added), places)
    skin, around = (
        min(math.sqrt(max(want**2 - a**2, 0) / max(b**2 - a**2, 1e-8)), most)
        for want, a, b in zip(wanted, none, full, strict=True)
    )
    # Pores and wrinkles are darker and lighter skin, not grey.
    around_colour: Any = cv2.GaussianBlur(texture, (0, 0), _TINT)
    tint = around_colour / np.maximum(luminance(around_colour), _DARK)[..., None]
    gain = (skin + np.float32(around - skin) * places.around_eyes) * added
    out: Floats = texture + gain[..., None] * tint
    return out
