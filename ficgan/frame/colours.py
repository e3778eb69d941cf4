"""Colours of a new face in the frame: light and colours are spread as in the photo, and meet it at the border.

Textures are float32 [R,R,3] in [0,1], where nothing else is said; `skin` are flat indices of places that are skin.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import LUMA, Image, blurred, brightest, carried, grey_of, luminance
from ficgan.frame import Floats
from ficgan.identity.kind import AGE, MALE

Indices = NDArray[np.int64]

# Colour that nothing of a new face is much darker than, of its skin.
_DARKEST = 0.15
# Standard deviation of the blur that leaves nothing of features, of the side.
_FEATURES = 1 / 16
# Standard deviation of the blur that takes spots of colour away, of the side.
_SPOTS = 0.035
# Blurs of the light and of the colours that skin takes over from the source, and of those at the border, and how far
# these reach inwards, of the side.
_LIGHT, _COLOUR, _NEAR_BORDER, _INWARDS = 0.15, 0.08, 0.05, 0.04
# Differences, in logarithms, that are no light, and at the border; of a colour there, from skin; most that light
# changes.
_ODD_LIGHT, _ODD, _FOREIGN, _MOST_CAST = 0.8, 0.2, 0.12, 0.7
# How often light is separated from what is not; what holds its surface where little is known, of the weight.
_PASSES, _STIFF = 3, 0.01
# Added to colours before their logarithm is taken; blur of lips, pixels.
LOG_BLACK, _SOFT = np.float32(0.03), 0.7
# How far lips follow; most that their colour changes; most light of theirs beside skin, logarithms.
_FOLLOWS, _MOST_OF_LIPS, _LIGHTEST_LIPS = 0.8, 0.5, 0.1
# Blur of what lies around nostrils, pixels; most that they are made darker; how much of it each colour takes.
_AROUND_NOSTRILS, _DARKEST_NOSTRIL, _INSIDE_NOSE = 4.0, 0.8, np.array([0.9, 1.05, 1.08], np.float32)
# Steps of light by which a photo without colours is tinted.
_TINTS = 16
# Light, redness and yellowness, of logarithms of colours; blur of what is around a place, of the side; quantiles that
# are matched; how much steps between them are narrowed, and widened, at most.
PLANES = np.column_stack([LUMA, (1, -1, 0), (0, 1, -1)]).astype(np.float32)
_SHADE, _LEVELS, _NARROWED, _WIDENED = 0.125, (0.05, 0.25, 0.5, 0.75, 0.9, 0.97, 0.995), 0.7, 3.0
# The most for each step of light. Shade is not deepened: what hair and glasses leave is dark, too.
_LIT = (1.0, 1.0, 1.5, 1.5, 1.5, 1.5)
# Blur of what redness and yellowness change, of the side: lines beside nostrils and brows are not reddened. The most,
# logarithms: what is farther apart is no skin.
_BROAD = 0.03
_FLUSH = np.float32(0.15)
# Share of the light of the brightest skin from which on what is brighter is dimmed.
_SHOULDER = 0.85
# Values of the second brightest colour between which a photo burns out: its colours say nothing there. Light from which
# on skin pales, up to white. Light of a new face between which it takes these colours over.
_BURNT, _PALE, _BLEACHED = (0.86, 0.96), 0.8, (0.55, 0.8)
# How much less a strong colour of skin changes with its light than a weak one: darker skin is more colourful. In 80
# portraits a logarithm of red changes .79 times as much as that of the light, and one of blue 1.21 times.
_FLESH = 0.8
# Blurs between which the relief of skin lies, pixels, and how much a new face's is weakened or raised.
_RELIEF, _WEAKENED, _RAISED = (1.0, 2.0, 4.0, 8.0, 16.0), 0.7, (1.8, 1.7, 1.3, 1.0)
# Share of a part that does not shine; most that a new face's shine is raised.
_LIGHTEST, _MOST_SHINE = 0.97, 1.6
# How much stronger it is made than it shall be: pasting blurs.
_PASTED = 1.12
# Light between brows, of the skin's, of which what is darker becomes so much; how much darker hair is that goes wholly.
_BETWEEN, _HAIRY = 0.85, 0.2
# Where brows are read; least that they are darker than skin, logarithms; how much less and more dark they are made;
# most that the ridge that they lie on is lighter than skin. Share of the source's redness and yellowness
# that they get; least and most of these.
_ON_BROWS, _NO_BROW, _DARKENED, _ABOVE = 0.9, 0.05, (0.4, 2.0), np.float32(0.06)
_AS_RED, _REDNESS = 0.8, (-0.12, 0.16)
# Weight of the border's usual difference, of that of each pixel.
_PRIOR = np.float32(0.01)
# Side of the square around hair in which skin counts as hair, pixels.
_BESIDE_HAIR = 7
# Change of light that leaves skin as it is.
_UNTOUCHED = 0.005


def read_lips(texture: Floats, skin: Indices, lips: Floats) -> Floats:
    """Colour of the lips, less that of the skin: float32 [3], logarithms. `lips` [R,R] is 1 on them."""
    mouth = cv2.GaussianBlur(texture, (0, 0), _SOFT)[lips > 0.7]
    both = (np.log(np.maximum(part, 0) + LOG_BLACK) for part in (mouth, texture.reshape(-1, 3)[skin]))
    of_lips, of_skin = (np.median(logs, axis=0) for logs in both)
    return np.asarray(of_lips - of_skin, np.float32)


def with_lips(texture: Floats, wanted: Floats, skin: Indices, lips: Floats) -> Floats:
    """A texture whose lips are as dark and as red beside its skin as `read_lips` says."""
    light = np.float32(wanted @ LUMA)
    if wanted[0] < light:  # hair, shine or paint: no lips are less red than the skin
        wanted = np.full(3, light)
    change = np.minimum(wanted, wanted - light + _LIGHTEST_LIPS) - read_lips(texture, skin, lips)
    colour = _FOLLOWS * np.clip(change, -_MOST_OF_LIPS, _MOST_OF_LIPS)
    return texture * np.exp(lips[..., None] * colour.astype(np.float32))


def read_nostrils(texture: Floats, nostrils: Floats) -> Floats:
    """How dark the nostrils are, compared with the skin around them: float32 [2], logarithms; [2,R,R] is 1 on each."""
    light = np.log(np.maximum(texture @ LUMA, 0) + LOG_BLACK)
    around = blurred(nostrils.sum(0), _AROUND_NOSTRILS) * (1 - nostrils.sum(0))
    inside = np.einsum("nhw,hw->n", nostrils, light) / nostrils.sum((1, 2))
    return np.asarray(inside - (around * light).sum() / around.sum(), np.float32)


def with_nostrils(texture: Floats, wanted: Floats, nostrils: Floats) -> Floats:
    """A texture whose nostrils are as dark as `read_nostrils` says: a mean of many people has none."""
    change = np.clip(wanted - read_nostrils(texture, nostrils), -_DARKEST_NOSTRIL, 0)
    spread = nostrils / np.square(nostrils).sum((1, 2), keepdims=True) * nostrils.sum((1, 2), keepdims=True)
    dark = np.einsum("n,nhw->hw", change, spread)
    out: Floats = texture * np.exp(dark[..., None] * _INSIDE_NOSE)
    return out.astype(np.float32)


def tinted(texture: Floats, photo: Image) -> Floats:
    """A texture whose colours follow from its light as those of a photo [R,R,3] in black and white, or in sepia, do."""
    seen = photo.reshape(-1, 3).astype(np.float32) / np.float32(255)
    light = luminance(seen)
    groups = np.digitize(light, np.quantile(light, np.linspace(0, 1, _TINTS + 1)[1:-1]))
    lit = np.column_stack([light, seen - light[:, None]])
    steps = np.array([np.median(lit[groups == group], axis=0) for group in np.unique(groups)])
    own = luminance(texture)
    out: Floats = own[..., None] + np.stack([np.interp(own, steps[:, 0], tint) for tint in steps.T[1:]], -1)
    return out.astype(np.float32)


def lit_as(texture: Floats, photo: Image, skin: Indices, flush: Floats | float = 1.0) -> Floats:
    """A texture whose skin varies in light, redness and yellowness as a photo's does: a mean is dull.

    Quantiles of the differences to the skin around are matched. Nothing becomes much brighter than the brightest skin
    of the photo: light that is guessed may burn out. Where the photo is burnt out, colours are those of bright skin.

    Args:
        flush: how far colours follow, 0 … 1, everywhere or at each place [R,R]; brows have other ones, and those of a
            photo with tinted glasses are not all of skin.
    """
    inside = np.zeros(texture.shape[:2], np.float32)
    inside.ravel()[skin] = 1
    seen = photo.astype(np.float32) / np.float32(255)
    burnt = np.interp(np.sort(blurred(seen, 1.0), axis=-1)[..., 1], _BURNT, (0, 1)).astype(np.float32)
    both = []
    for picture in (texture, seen):
        planes = np.log(np.maximum(picture, 0) + LOG_BLACK) @ PLANES
        both.append(planes - carried(planes, inside, _SHADE * len(planes)))
    change = np.zeros_like(both[0])
    coloured = skin[burnt.ravel()[skin] < 0.5]
    for number, (most, where) in enumerate(((_LIT, skin), (_WIDENED, coloured), (_WIDENED, coloured))):
        if not len(where):
            continue
        own, seen = (one[..., number] for one in both)
        have, want = (np.quantile(one.ravel()[where], _LEVELS) for one in (own, seen))
        steps = np.diff(have)
        wide = np.append(0, np.cumsum(np.clip(np.diff(want), _NARROWED * steps, steps * most)))
        change[..., number] = np.interp(own, have, want[0] + wide - have)
    change -= np.median(change.reshape(-1, 3)[skin], axis=0)
    broad = carried(change[..., 1:], inside, _BROAD * len(change))
    change[..., 1:] = np.asarray(flush, np.float32)[..., None] * _FLUSH * np.tanh(broad / _FLUSH)
    out = (texture + LOG_BLACK) * np.exp(change @ np.linalg.inv(PLANES)) - LOG_BLACK
    brightest_skin = np.quantile(luminance(photo.reshape(-1, 3)[skin]), _LEVELS[-1]) / np.float32(255)
    over = np.maximum(luminance(out) / np.maximum(_SHOULDER * brightest_skin, LOG_BLACK), 1)
    room = np.float32(1 / _SHOULDER - 1)
    limited: Floats = out * ((1 + room * (1 - np.exp((1 - over) / room))) / over)[..., None]
    light = luminance(limited)[..., None]
    bare = photo.reshape(-1, 3)[coloured if len(coloured) else skin]
    bright = np.median(bare[luminance(bare) >= np.quantile(luminance(bare), 0.8)], axis=0)
    tint = (bright / max(float(bright @ LUMA), 1)).astype(np.float32)
    pale = 1 + (tint - 1) * np.clip((1 - light) / np.float32(1 - _PALE), 0, 1)
    # A new face may be darker there: it keeps its colours.
    shares = blurred(burnt, _BROAD * len(burnt))[..., None] * np.interp(light, _BLEACHED, (0, 1)).astype(np.float32)
    limited += shares * (light * pale - limited)
    return limited.astype(np.float32)


def read_relief(texture: Floats, parts: Floats) -> Floats:
    """How strong four bands of fine light and shade are on parts of a face, and shine: float32 [6,5], of logarithms.

    Args:
        parts: float32 [6,R,R], shares of each; of eyes and brows the last.
    """
    bands = _bands(texture)
    return np.column_stack([_strengths(bands, parts), _shine(bands.sum(0), parts)])


def with_relief(texture: Floats, relief: Floats, parts: Floats) -> Floats:
    """A texture that is as strong in relief, part by part, as of `read_relief`, as far as it has some, and shines so.

    It shines where it is lightest. Eyes are only made weaker.
    """
    bands = _bands(texture)
    most = np.array(_RAISED, np.float32)
    gains = np.clip(_PASTED * relief[:, :-1] / (_strengths(bands, parts) + np.float32(1e-4)), _WEAKENED, most)
    gains[-1] = np.minimum(gains[-1], 1)
    change = np.einsum("phw,pb,bhw->hw", parts, gains - 1, bands)
    peaks = bands.sum(0) + change
    brighter = np.clip(relief[:-1, -1] / (_shine(peaks, parts)[:-1] + np.float32(1e-3)), 1, _MOST_SHINE)
    change += np.einsum("phw,p->hw", parts[:-1], brighter - 1) * np.maximum(peaks, 0)
    return shaded(texture, change.astype(np.float32))


def _shine(light: Floats, parts: Floats) -> Floats:
    """How much lighter the lightest places of parts [6,R,R] are than their surroundings: [6]."""
    return np.array(
        [np.quantile(light[part > 0.5], _LIGHTEST) if (part > 0.5).any() else 0 for part in parts], np.float32
    )


def _strengths(bands: Floats, parts: Floats) -> Floats:
    weights = parts / np.maximum(parts.sum((1, 2), keepdims=True), 1e-6)
    return np.sqrt(np.einsum("phw,bhw->pb", weights, np.square(bands))).astype(np.float32)


def _bands(texture: Floats) -> Floats:
    light = np.log(np.maximum(texture @ LUMA, 0) + LOG_BLACK)
    levels = [blurred(light, sigma) for sigma in _RELIEF]
    return np.stack([finer - coarser for finer, coarser in pairwise(levels)])


def parted(texture: Floats, skin: Indices, between: Floats) -> Floats:
    """A texture whose brows do not meet, as those of a mean do; `between` [R,R] is 1 where they would."""
    beside = skin[between.ravel()[skin] < 0.05]
    bare = np.maximum(np.exp(_skin_logs(texture, beside)) - LOG_BLACK, 0) * np.float32(_BETWEEN)
    dark = 1 - (texture @ LUMA) / np.maximum(bare @ LUMA, LOG_BLACK)
    share = between * np.clip(dark / np.float32(_HAIRY), 0, 1)
    return texture + share[..., None] * (bare - texture)


def read_brows(texture: Floats, on_brows: Floats, skin: Indices) -> Floats:
    """How red and how yellow the darkest third of the brows is beside the skin around: float32 [2], of logarithms.

    Args:
        on_brows: float32 [R,R], 1 on what is seen of them.
    """
    beside = (np.log(np.maximum(texture, 0) + LOG_BLACK) - _skin_logs(texture, skin)) @ PLANES
    brows = beside[on_brows > _ON_BROWS]
    return brows[np.argsort(brows[:, 0])[: len(brows) // 3], 1:].mean(0)


def with_brows(
    texture: Floats, darkest: float, lightest: float, tint: Floats, on_brows: Floats, skin: Indices
) -> Floats:
    """A texture whose brows are as red and yellow as `read_brows` says, and hardly lighter than skin.

    Args:
        darkest, lightest: how dark the darkest third of the brows may be beside the skin around, logarithms.
        tint: float32 [2] of `read_brows`; on_brows: float32 [R,R], 1 on them.
        skin: flat indices of what is skin.
    """
    bare = np.maximum(np.exp(_skin_logs(texture, skin)) - LOG_BLACK, LOG_BLACK)
    tinted = bare * (luminance(texture) / luminance(bare))[..., None]
    texture = texture + on_brows[..., None] * (tinted - texture)  # the brows of a mean are grey or red
    beside = np.log(np.maximum(luminance(texture), 0) + LOG_BLACK) - _skin_logs(texture, skin) @ LUMA
    darker, lighter, brows = np.minimum(beside, 0), np.maximum(beside, 0), np.sort(beside[on_brows > _ON_BROWS])
    own = float(brows[: len(brows) // 3].mean())
    gain = np.clip(min(max(own, darkest), lightest) / min(own, -_NO_BROW), *_DARKENED)
    colour = (np.array([0, *np.clip(_AS_RED * tint, *_REDNESS)]) @ np.linalg.inv(PLANES)).astype(np.float32)
    change = np.float32(gain - 1) * darker[..., None] + np.minimum(darker / np.float32(-_HAIRY), 1)[..., None] * colour
    change += (_ABOVE * np.tanh(lighter / _ABOVE) - lighter)[..., None]
    return texture * np.exp(on_brows[..., None] * change)


def no_lighter(texture: Floats, change: Floats, skin: Indices) -> Floats:
    """A change [R,R,3] of a texture that makes nothing lighter than the skin beside what is changed."""
    light, logs = change @ LUMA, np.log(np.maximum(texture, 0) + LOG_BLACK)
    beside = np.zeros(light.shape, np.float32)
    beside.ravel()[skin] = np.abs(light).ravel()[skin] < np.float32(_UNTOUCHED)
    usual = np.median(logs[beside > 0], axis=0)
    bare = np.exp(carried(logs - usual, beside, _LIGHT * len(light)) + usual) - LOG_BLACK
    lighter = np.maximum(light, 0)
    allowed = np.clip((bare - texture) @ LUMA, 0, lighter)
    share = allowed.sum() / max(float(lighter.sum()), 1e-6)  # as much of what becomes darker
    return change * np.where(light > 0, allowed / np.maximum(lighter, 1e-6), share)[..., None]


def _skin_logs(texture: Floats, skin: Indices) -> Floats:
    """Logarithms of skin's smooth colours [R,R,3], carried on where there is none."""
    weight = np.zeros(texture.shape[:2], np.float32)
    weight.ravel()[skin] = 1
    return carried(np.log(np.maximum(texture, 0) + LOG_BLACK), weight, _COLOUR * len(texture))


def lifted(texture: Floats, skin: Floats) -> Floats:
    """A texture [R,R,3] without the colours below black that hard light makes of a draw; `skin` [3] is its mean."""
    least = np.maximum(_DARKEST * skin, 1e-3).astype(np.float32)
    return np.where(texture < least, least * np.exp(np.minimum(texture - least, 0) / least), texture)


def shaded(texture: Floats, change: Floats) -> Floats:
    """A texture [n,n,3] with shares [n,n] of its light added: darker skin is not greyer."""
    light = np.maximum(texture @ LUMA, LOG_BLACK)[..., None]
    tints = np.log(np.clip(texture / light, 0.4, 2.5))
    return texture * (1 + change[..., None] * (1 - np.float32(_FLESH) * tints))


def sharpened(texture: Floats, gains: Sequence[float]) -> Floats:
    """A texture whose bands of fine detail, between blurs of deviation 0, .7, 1.4, … pixels, are raised."""
    out, finer = texture.copy(), texture
    for number, gain in enumerate(gains):
        coarser = cv2.GaussianBlur(texture, (0, 0), 0.7 * 2**number)
        out += np.float32(gain - 1) * (finer - coarser)
        finer = coarser
    return out


def smoothed(picture: Floats) -> Floats:
    """A picture [R,R,3] without what is finer than the features of a face."""
    return blurred(picture, _FEATURES * len(picture))


def plainer(texture: Floats) -> Floats:
    """A texture [R,R,3] whose colours beside grey are blurred: spots of colour go, its light and dark stay."""
    grey = grey_of(texture)[..., None]
    return grey + blurred(texture - grey, _SPOTS * len(texture))


def matched_border(made: Floats, source: Image, mask: Floats, hair: Floats | float, not_skin: Floats) -> Floats:
    """A texture [R,R,3] whose border has the source's colours, and whose skin has its coarse light and colours.

    Light multiplies, so it is logarithms that are compared: what is added to skin would lift dark eyes and brows to
    grey, or sink them into black. Hair, a hat or a hand over the border counts little: it differs from the face beside
    it, and more than light would; `hair` [R,R] that stays, and skin beside it, count nothing. `not_skin` [R,R] is 1 on
    brows, eyes, lips and beards.
    """
    half = (len(mask) + 1) // 2  # what fades smoothly needs no more pixels

    def reduced(image: Any) -> Any:
        return cv2.resize(image, (half, half), interpolation=cv2.INTER_AREA)

    small, colours = reduced(mask), reduced(source.astype(np.float32) / 255)
    difference = np.log(colours + LOG_BLACK) - np.log(np.maximum(reduced(made), 0) + LOG_BLACK)
    bare = reduced(free_of_hair(np.zeros_like(mask) + np.float32(hair))) > 0.9
    skin = (small >= 0.85) & bare
    plain = skin & (reduced(not_skin) < 0.5)
    cast = (
        np.clip(np.median(difference[plain], axis=0), -_MOST_CAST, _MOST_CAST)
        if plain.any()
        else np.zeros(3, np.float32)
    )
    difference -= cast
    ring = ((small > 0.02) & (small < 0.85) & bare).astype(np.float32)
    usual = np.median(difference[ring > 0], axis=0) if ring.any() else np.zeros(3, np.float32)
    odd = brightest(np.abs(difference - usual)) / np.float32(_ODD)
    inside = skin.astype(np.float32)
    near = [blurred(one, 0.2 * half) for one in (colours * inside[..., None], inside)]
    foreign = brightest(np.abs(colours - near[0] / np.maximum(near[1], 1e-6)[..., None])) / np.float32(_FOREIGN)
    ring *= np.exp(-np.square(np.minimum(odd, foreign)))  # skin goes on beyond the border, or differs as light does
    if (ring > 0.5).any():
        usual = np.median(difference[ring > 0.5], axis=0)
    # Near the border the nearest pixels decide; a few odd ones reach no farther.
    known = (ring[..., None] * difference + _PRIOR * usual) / (ring[..., None] + _PRIOR)
    fade = np.clip(carried(known, ring + _PRIOR, _NEAR_BORDER * half), -_MOST_CAST, _MOST_CAST)
    # Inside, the source's light and colours: so coarse that they show no face, and nothing of what lies over it.
    light = np.zeros_like(difference)
    for _ in range(_PASSES):  # hard light differs more from none than from itself
        odd = brightest(np.abs(difference - light)) / np.float32(_ODD_LIGHT)
        trust = (plain * np.exp(-np.square(odd))).astype(np.float32)
        bent = _bent(difference, trust)
        light = bent + carried(difference - bent, trust, _LIGHT * half)
    colour = bent + carried(difference - bent, trust, _COLOUR * half)
    light, colour = (np.clip(one, -_MOST_CAST, _MOST_CAST) for one in (light, colour))
    depth = cv2.distanceTransform(inside.astype(np.uint8), cv2.DIST_L2, 3)[..., None]
    # What the border needs, which is beside ears, hair and neck, reaches less far in than light and colours do.
    at_border = np.exp(-depth / np.float32(_INWARDS * half))
    within, fade = 1 - at_border, at_border * fade
    if plain.any():  # a border of another brightness must not bleach or darken the middle
        fade -= within * (np.median(fade[plain], axis=0) / np.median(within[plain]))
    fade += cast + within * (grey_of(light) - grey_of(colour))[..., None] + within * colour
    gains = np.exp(cv2.resize(fade, mask.shape[::-1], interpolation=cv2.INTER_LINEAR))
    return (made + LOG_BLACK) * gains - LOG_BLACK


def free_of_hair(hair: Floats) -> Floats:
    """How much of each pixel [R,R] is not hair, nor skin that hair may lie on."""
    return 1 - cv2.dilate(hair, np.ones((_BESIDE_HAIR, _BESIDE_HAIR)))


def _bent(field: Floats, weight: Floats) -> Floats:
    """The parabolic surface [h,w,C] nearest to a field where it has weight [h,w]: blurs flatten slopes at edges."""
    y, x = np.mgrid[-1 : 1 : len(field) * 1j, -1 : 1 : len(field) * 1j].astype(np.float32)
    powers = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], -1)
    weighted = powers * weight[..., None]
    stiff = _STIFF * np.maximum(weight.sum(), np.float32(1e-6))  # where nothing is known, it is flat
    square = np.einsum("hwi,hwj->ij", weighted, powers) + stiff * np.eye(6, dtype=np.float32)
    found = np.linalg.solve(square, np.einsum("hwi,hwc->ic", weighted, field))
    return (powers @ found).astype(np.float32)


# -- the bias of new faces ---------------------------------------------------------------------------------------------

# Strengthened means have brows that are too high and dark, stains beside the mouth, and noses without redness. No
# single face shows it; the mean difference to many photos does, and it is taken away. Smiles have too faint folds: the
# bias depends on the expression that is published, too. Nothing else of a source takes part.

# Of the numbers in a model's file: 1 in logarithms of light, redness and yellowness.
BIAS_UNIT = 500
# What is coarser than this follows the photo, and what is finer draws lines, of the side; share that is taken away.
_COARSE, _FINEST, _TAKEN = 0.125, 0.012, 0.8
# The same of what depends on expression. Folds lie elsewhere in each face, so their mean is fainter than any of them.
# Ages at which folds begin to show, and at which they show wholly.
_FINEST_FOLD, _TAKEN_FOLD, _FOLDED = 0.006, 1.6, (8, 30)
# Most of a difference that counts; what holds a rare kind to the mean, in faces; years between which it changes.
_MOST, _RIDGE, _AGES = 0.6, 20.0, (18, 75)


def bias_terms(kinds: Floats, numbers: Floats) -> Floats:
    """Inputs [N,15] of the bias, of readings [N,9] by a `KindReader` and expressions [N,6]: 1, groups, age, numbers."""
    ones = np.ones((len(kinds), 1), np.float32)
    years = np.clip(kinds[:, AGE], *_AGES)  # there are few portraits of others
    return np.column_stack([ones, kinds[:, :MALE], years / 40 - 1, numbers]).astype(np.float32)


def fit_bias(
    made: Image, photos: Image, kinds: Floats, shown: Floats, own: Floats, weights: Image, pixels: Any, on_brows: Floats
) -> NDArray[np.int8]:
    """The bias of new faces in the place of those of photos: int8 [15,P,3], see `BIAS_UNIT`.

    Args:
        made, photos: uint8 [N,R,R,3], textures in the frame.
        kinds: float32 [N,9], readings of the new faces.
        shown, own: float32 [N,6], numbers of expression of the new faces and of the photos.
        weights: uint8 [N,R,R], where 255 the skin, brows and lips of both show; 0 elsewhere.
        pixels: int [P], flat indices that are stored.
        on_brows: float32 [R,R], 1 where brows lie; a lender's do not depend on expression.
    """
    # Gender is shown more clearly on purpose: what men and women have too much of each stays. So does the difference
    # that comes from another expression than the photo's.
    wanted = bias_terms(kinds, shown)
    terms = np.column_stack([wanted, kinds[:, MALE] - 0.5, own - shown])
    found = np.zeros((len(made), len(pixels), 3), np.float32)
    for row, (new, old, weight) in enumerate(zip(made, photos, weights, strict=True)):
        logs = [np.log(one.astype(np.float32) / 255 + LOG_BLACK) @ PLANES for one in (new, old)]
        difference, seen = logs[0] - logs[1], weight.astype(np.float32) / 255
        difference -= carried(difference, seen, _COARSE * len(weight))
        found[row] = (np.clip(difference, -_MOST, _MOST) * seen[..., None]).reshape(-1, 3)[pixels]
    held = np.full(terms.shape[1], _RIDGE, np.float32)
    held[0] = 1e-3
    bias = np.linalg.solve(terms.T @ terms + np.diag(held), terms.T @ found.reshape(len(found), -1))[: wanted.shape[1]]
    whole = np.zeros((len(bias), *made.shape[1:]), np.float32)
    whole.reshape(len(bias), -1, 3)[:, pixels] = bias.reshape(len(bias), -1, 3)
    kind, folds = np.split(whole, [-shown.shape[1]])
    taken = [_TAKEN * cv2.GaussianBlur(one, (0, 0), _FINEST * len(one)) for one in kind]
    beside = _TAKEN_FOLD * (1 - on_brows[..., None])
    taken += [beside * cv2.GaussianBlur(one, (0, 0), _FINEST_FOLD * len(one)) for one in folds]
    steps = BIAS_UNIT * np.stack(taken).reshape(len(bias), -1, 3)[:, pixels]
    return np.clip(np.rint(steps), -127, 127).astype(np.int8)


def without_bias(texture: Floats, bias: NDArray[np.int8], kind: Floats, numbers: Floats, pixels: Any) -> Floats:
    """A texture [R,R,3] in [0,1] without the bias of its kind [9] and of its expression [6]."""
    terms = bias_terms(kind[None], np.interp(kind[AGE], _FOLDED, (0, 1)) * numbers[None])[0]
    change = np.tensordot(terms, bias.astype(np.float32), 1) * np.float32(-1 / BIAS_UNIT)
    out = texture.copy()
    flat = out.reshape(-1, 3)
    gains = np.exp(change @ np.linalg.inv(PLANES)).astype(np.float32)
    flat[pixels] = (flat[pixels] + LOG_BLACK) * gains - LOG_BLACK
    return out
