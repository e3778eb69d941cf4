"""Lent to a new face by synthetic ones: light and shade of middle size, and the fine detail of skin.

The mean of many people has neither. Pictures are luminances [n,n] in [0,1]; a fine one has twice the side of the frame.
Relief is fine detail as a share of the light around.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import blurred, carried, luminance
from ficgan.frame import Floats
from ficgan.frame.appearance import AppearanceModel, Lender, Moment
from ficgan.frame.colours import shaded
from ficgan.frame.parts import FinePlaces
from ficgan.identity.kind import AGE, ETHNICITIES, MALE

# Blur that leaves light and shade of middle size behind, of the side; share of it that is a lender's; blur of the light
# that it is a share of, pixels.
_MIDDLE, _LENT, _AROUND_MIDDLE = 1 / 16, 0.45, 3.0
# Luminance that is nearly black. Luminance of certain hair, beside what the moment predicts, in units of its contrast:
# hair that counts as skin makes the ends of brows light.
_NEARLY_BLACK, _HAIR = 0.05, np.float32(-1.25)


def middle_of(pixels: Floats, model: AppearanceModel, moment: Moment) -> Floats:
    """Light and shade of middle size that a moment does not predict, in units of its contrast: float32 [R,R].

    Args:
        pixels: float32 [P,3] in [0,1], of a texture.
    """
    return _middle(model.unpredicted(pixels, moment).reshape(-1, 3), model)


def _middle(pixels: Floats, model: AppearanceModel) -> Floats:
    whole = np.zeros((model.size, model.size), np.float32)
    whole.ravel()[model.pixels] = luminance(pixels)
    beside = model.well_inside * (1 - model.on_brows) * np.clip(2 * (whole - _HAIR), 0, 1)
    wide = carried(whole[..., None], beside, _MIDDLE * model.size)[..., 0]
    return model.lendable * (whole - wide)


def with_middle(texture: Floats, lent: Floats, model: AppearanceModel, moment: Moment) -> Floats:
    """A texture whose light and shade of middle size are partly a lender's.

    Args:
        texture: float32 [R,R,3] in [0,1], of a new face.
        lent: float32 [R,R], `middle_of` the lender.
        moment: that the new face is drawn for.
    """
    own = middle_of(texture.reshape(-1, 3)[model.pixels], model, moment)
    around = np.maximum(blurred(luminance(texture), _AROUND_MIDDLE), np.float32(_NEARLY_BLACK))
    # Two brows, or two noses, half of each, look like a ghost.
    share = np.float32(_LENT) + np.float32(1 - _LENT) * np.maximum(model.on_brows, model.nose)
    change = np.zeros_like(own)
    change.ravel()[model.pixels] = (
        model.contrast(moment) * model.calm[:, 0] * (share * (lent - own)).ravel()[model.pixels]
    )
    change = np.divide(change, around, dtype=np.float32)
    return shaded(texture, np.where(change < 0, np.expm1(change), change))  # dark brows do not become black


# Lenders of the nearest kinds, and how many of these are asked. What a wholly different ethnic group and gender weigh
# beside a visible difference of age.
_NEAREST, ASKED, _ETHNICITY, _GENDER = 10, 8, 4.0, 6.0


def lender_of(model: AppearanceModel, kind: Floats, seen: Floats | None = None, chance: float = 0.0) -> int:
    """Number of the face that lends to another one: of some of much the same kind the one least like the source.

    A mean of many people is like nobody; a face that is like somebody by chance must not be like the source.

    Args:
        kind: float32 [9], of the new face, as a reading.
        seen: float32 [E], the gate's embedding of the source; None: the first of those that are asked lends.
        chance: in [0,1), draws which are asked.
    """
    near = _nearest(model, kind)
    asked = np.random.default_rng([int(chance * 2**31), 4]).permutation(near)[:ASKED]
    if seen is None or not model.lent_gate.size:
        return int(asked[0])
    return int(asked[np.argmin(model.lent_gate[asked] @ (seen - model.gate[0]))])


def lender_like(model: AppearanceModel, kind: Floats, code: Floats) -> int:
    """Number of the face of much the same kind whose light and shade are most like those of a code [D]."""
    near = _nearest(model, kind)
    if not len(model.middles):
        return int(near[0])
    drawn = code[len(model.shape.basis) + model.lights :] @ model.components[model.lights :]
    own = _middle(drawn.reshape(-1, 3), model).ravel()[model.pixels]
    return int(near[np.argmax([np.corrcoef(own, model.middles[number])[0, 1] for number in near])])


def _nearest(model: AppearanceModel, kind: Floats) -> NDArray[np.int64]:
    parts, lenders = len(ETHNICITIES), model.lenders
    alike = np.sqrt(lenders[:, :parts] * kind[:parts]).sum(1)  # Bhattacharyya's coefficient
    older = (lenders[:, AGE] - kind[AGE]) / (4 + 0.1 * kind[AGE])  # in differences that one sees
    # A mean of many looks young: a younger lender makes that worse.
    apart = np.abs(older) * np.where(older > 0, 1.3, 1.6)
    apart += _ETHNICITY * (1 - alike) + _GENDER * np.abs(lenders[:, MALE] - kind[MALE])
    return np.argsort(apart, kind="stable")[:_NEAREST]


# -- fine detail -------------------------------------------------------------------------------------------------------

# Standard deviation, in pixels of a fine picture, of the blur that leaves fine detail behind.
_FINE = 2.2
# Blur of what the frame can show, in the same pixels.
_OF_FRAME = 1.2
# Blur along a forehead that leaves its wrinkles; the deepest of the young and of the old, and the most of what lies
# beside them, of the strength of the skin's detail.
_ACROSS, _WRINKLES, _BESIDE = 6.0, (1.5, 9.5), 0.8
# The same of the blur whose colours detail has.
_TINT = 4.0
# Luminance that is added to light: what is nearly black has no relief.
_BLACK = 0.03
# Width of what lies around a place, of the side; difference in logarithms at which a lender's detail no longer fits.
_AROUND, _DARKER = 0.055, 0.22
# Depth of the deepest wrinkles, of the strength of the skin's detail, of the young and the old, lashes may be twice as
# dark; most that is lighter: wrinkles are shadows, and with light rims they look embossed; how much less deep those on
# lips, below the nose and beside the mouth are; depth of lashes, of the strength of the detail of eyes. How much
# stronger than the photo's detail of the old is: a median knows little of wrinkles.
_DEEP, _HIGH, _FOLDS, _LASHES, _OLDER = (4.0, 7.0), 2.5, 0.5, 4.0, 0.5
# Years from which on people begin to be old, and are.
_OLD = (40.0, 65.0)
# Most detail of a forehead, of that of all skin.
_WRINKLED = 1.4


class Fineness(NamedTuple):
    """Strength of the fine detail of skin, of eyes and of the forehead: standard deviations in [0,1]."""

    skin: float
    eyes: float
    forehead: float


def fineness(grey: Floats, places: FinePlaces) -> Fineness:
    """How strong the fine detail of a picture [n,n] is."""
    return _strength(_fine(grey), places)


def _strength(fine: Floats, places: FinePlaces) -> Fineness:
    # Of skin by the median: brows and nostrils do not count.
    skin, forehead = (float(np.median(np.abs(fine.ravel()[part]))) / 0.6745 for part in (places.skin, places.forehead))
    return Fineness(skin, float(np.quantile(np.abs(fine.ravel()[places.eyes]), 0.75)) / 1.15, forehead)


def _fine(grey: Floats) -> Floats:
    return grey - cv2.GaussianBlur(grey, (0, 0), _FINE)


def relief_of(grey: Floats) -> Floats:
    """Fine detail of a picture [n,n] as a share of the light around: float32 [n,n]."""
    return _fine(grey) / _resized(_light(_resized(grey, len(grey) // 4)), len(grey))


def tone_of(grey: Floats, side: int) -> Floats:
    """Logarithm of the light at each place of a picture [n,n] over that around: float32 [side,side]."""
    small = _resized(grey, side)
    return _tone(small, _light(small))


def _tone(grey: Floats, light: Floats) -> Floats:
    return np.log((np.maximum(grey, 0) + np.float32(_BLACK)) / light)


def _light(grey: Floats) -> Floats:
    """Luminance around each place, never quite black."""
    return np.maximum(cv2.GaussianBlur(grey, (0, 0), _AROUND * len(grey)), 0) + np.float32(_BLACK)


def _resized(picture: Floats, side: int) -> Floats:
    how = cv2.INTER_AREA if side < len(picture) else cv2.INTER_LINEAR
    return cv2.resize(picture, (side, side), interpolation=how)


def agedness(years: float) -> float:
    """How old a face of some years is, 0 … 1."""
    return float(np.interp(years, _OLD, (0, 1)))


def lent_detail(
    texture: Floats, lender: Lender, wanted: Fineness, places: FinePlaces, most: float, old: float = 0.0
) -> Floats:
    """The relief of another face as detail of a texture [n,n,3] in [0,1]: luminances [n,n] to be added.

    Where the lender is darker than the new face it has hair, a shadow or a frame of glasses there: nothing is lent.
    Lids and lashes are lent always.

    Args:
        wanted: `fineness` that the result shall have; that of a forehead with hair over it counts for no more than that
            of a wrinkled one.
        most: largest gain of the relief.
        old: 0 … 1; the old have deep wrinkles.
    """
    grey = luminance(texture)
    small = _resized(grey, len(lender.tone))
    light = _light(small)
    darker = np.maximum(_tone(small, light) - lender.tone, 0)
    trust = np.exp(-np.square(cv2.GaussianBlur(darker, (0, 0), 0.7) / _DARKER))
    fits = np.maximum(_resized(trust, len(grey)), places.on_lids)
    added = _without_strands(lender.relief, places, old) * fits * _resized(light, len(grey))
    # The texture has the lender's brows already. To add their edges again would draw a light rim.
    added -= places.on_brows * cv2.GaussianBlur(added, (0, 0), _OF_FRAME)
    fine = _fine(grey)
    none, full = _strength(fine, places), _strength(fine + _fine(added), places)
    limited = wanted.skin, wanted.eyes, min(wanted.forehead, _WRINKLED * wanted.skin)
    skin, around, above = (
        min(math.sqrt(max(want**2 - a**2, 0) / max(b**2 - a**2, 1e-8)), most)
        for want, a, b in zip(limited, none, full, strict=True)
    )
    gain = skin + np.float32(around - skin) * places.around_eyes + np.float32(above - skin) * places.on_forehead
    # On lips, and where a smile has folds, those of a lender who smiles another way are lines that nothing explains.
    deep, lash = _DEEP[0] + old * (_DEEP[1] - _DEEP[0]), 2 * _DEEP[0] * wanted.skin
    gain *= np.float32(1 + old * _OLDER)
    skin_deep, lash_deep = deep * wanted.skin + 1e-6, max(lash, _LASHES * wanted.eyes)
    most_deep = np.float32(skin_deep) * (1 - _FOLDS * places.on_folds)
    most_deep += places.on_lashes * (added < 0) * np.float32(max(lash_deep - skin_deep, 0))
    high = np.float32(_HIGH * wanted.skin + 1e-6) + np.float32(_HIGH * (wanted.eyes - wanted.skin)) * places.around_eyes
    most_deep = np.where(added < 0, most_deep, np.minimum(most_deep, high))
    return most_deep * np.tanh(gain * added / most_deep)


def _without_strands(relief: Floats, places: FinePlaces, old: float) -> Floats:
    """A lender's relief [n,n] without hair over its forehead: wrinkles lie across it, and strands do not."""
    usual = np.float32(np.median(np.abs(relief.ravel()[places.skin])) / 0.6745) + np.float32(1e-6)
    across = cv2.GaussianBlur(relief, (0, 0), _ACROSS, sigmaY=_FINE / 4)
    deep, rest = (usual * np.float32(part) for part in (_WRINKLES[0] + old * np.diff(_WRINKLES)[0], _BESIDE))
    plain = deep * np.tanh(across / deep) + rest * np.tanh((relief - across) / rest)
    return relief + places.on_forehead * (plain - relief)


# Deepest change of lent detail by a network, of the strength of the photo's; how much deeper around the eyes.
_FITTED, _FITTED_EYES = 2.0, 0.5


def most_fitted(fine: float, places: FinePlaces) -> Floats:
    """Most that a network may change lent detail by, luminances [n,n]; `fine` is that of the photo's skin.

    What lies deeper are scratches: a network draws lines where photos may have some, but not these.
    """
    eyes, folds = np.float32(_FITTED_EYES) * places.on_lashes, np.float32(_FOLDS) * places.on_folds
    return np.float32(_FITTED * fine + 1e-6) * (1 + eyes) * (1 - folds)


# Depth of the deepest lines where a head shows twice as much of a place as the lender's did, of the strength of the
# photo's detail.
_SMEARED = 1.5


def unsmeared(detail: Floats, fine: float, larger: Floats) -> Floats:
    """Detail [n,n] without the deep lines that smear where a turned head shows more of a cheek than the lender's did.

    Args:
        fine: strength of the detail of the photo's skin.
        larger: float32 [n,n], how many times as large each place is.
    """
    most = np.divide(np.float32(_SMEARED * fine), np.maximum(larger - 1, 1e-3), dtype=np.float32)
    return most * np.tanh(detail / most)


def with_detail(texture: Floats, detail: Floats) -> Floats:
    """A texture [n,n,3] in [0,1] with detail [n,n]: darker and lighter skin, not grey."""
    around = blurred(texture, _TINT)
    change: Any = detail / np.maximum(luminance(around), np.float32(_BLACK))
    return texture + shaded(around, change) - around


# Spots of skin: how many there are at least, and more for every ten years; radius in pixels of a fine picture, and how
# dark: least and most; and their colour, of the skin's, when they are wholly dark.
_SPOTS, _MORE_SPOTS, _SPOT_RADIUS, _SPOT_DEPTH = 2.0, 1.5, (0.7, 1.6), (0.1, 0.5)
_SPOT = np.array([0.7, 0.5, 0.45], np.float32)


def with_spots(texture: Floats, skin: NDArray[np.int64], age: float, chance: float) -> Floats:
    """A texture with a few small spots and moles by chance, which make skin real.

    Args:
        texture: float32 [n,n,3] in [0,1], twice the frame's size.
        skin: flat indices of places where there may be some.
        age: years; the old have more.
        chance: in [0,1), draws them.
    """
    rng, out = np.random.default_rng([int(chance * 2**31), 2]), texture.copy()
    for y, x in zip(
        *np.divmod(rng.choice(skin, rng.poisson(_SPOTS + _MORE_SPOTS * age / 10)), len(texture)), strict=True
    ):
        radius, depth = rng.uniform(*_SPOT_RADIUS), rng.uniform(*_SPOT_DEPTH) ** 2 / _SPOT_DEPTH[1]
        window = np.s_[max(y - 6, 0) : y + 7, max(x - 6, 0) : x + 7]
        ys, xs = np.ogrid[window]
        weight = depth * np.exp(-(np.square(ys - y) + np.square(xs - x)) / (2 * radius**2))
        out[window] *= 1 + weight[..., None].astype(np.float32) * (_SPOT - 1)
    return out
