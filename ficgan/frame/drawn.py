"""Drawn into a new face: eyes that look where the source looks, teeth, and the fine detail of skin.

The mean of many people has none of them. Light and colours are those of the photo; irises are everybody's, teeth and
detail are those of synthetic faces. Relief is fine detail as a share of the light around; there pictures are luminances
[n,n] in [0,1], and a fine one has twice the side of the frame.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import LUMA, blurred, luminance
from ficgan.faces.mesh import LEFT_EYE, LEFT_IRIS, LIPS_INNER, MESH_POINTS, RIGHT_EYE, RIGHT_IRIS
from ficgan.frame import LO, Warp
from ficgan.frame.appearance import AppearanceModel, Lender
from ficgan.frame.colours import shaded
from ficgan.frame.parts import FinePlaces
from ficgan.identity.kind import AGE, ETHNICITIES, MALE

Image = NDArray[np.uint8]
Floats = NDArray[np.float32]
Array = NDArray[Any]
# Of the pictures of teeth in a model's file: 1 in `teeth_of`.
TEETH_UNIT = 200


# Eyes: radius of the iris at ages (the mean of 13,445 FairFace crops; of children of crisp training faces), how far the
# irises are outside of the middle of the eyes when they look ahead, and the farthest that they are moved; in widths of
# the eye.
_AGES, _RADII, _AHEAD, _MOST = (1, 10), (0.265, 0.217), 0.04, 0.2
# Luminance of the white: at lids of luminance 1; its power of theirs, as the white is no darker in people with dark
# skin, but in shadow; least and most, of theirs. Share of their colour that it has. Of 568 crisp training faces.
_WHITE, _POWER, _WHITEST, _TINGED = 0.92, 0.63, (0.8, 1.8), 0.5
# How much darker the rim of an iris is than its middle.
_RIM = 0.45
# Colours of irises, of the white: dark brown, brown, hazel, green, blue, grey.
_IRISES = np.array(
    [
        [0.23, 0.18, 0.16],
        [0.32, 0.24, 0.19],
        [0.46, 0.40, 0.33],
        [0.47, 0.49, 0.43],
        [0.42, 0.56, 0.59],
        [0.52, 0.57, 0.58],
    ]
)
# How frequent they are in each ethnic group, in the order of `ETHNICITIES`. Rough estimates: brown nearly everywhere,
# lighter colours in Europe; Katsara and Nothnagel 2019 review where.
_FREQUENT = np.array(
    [
        [0.85, 0.15, 0.00, 0.00, 0.00, 0.00],
        [0.80, 0.20, 0.00, 0.00, 0.00, 0.00],
        [0.75, 0.25, 0.00, 0.00, 0.00, 0.00],
        [0.50, 0.38, 0.09, 0.03, 0.00, 0.00],
        [0.45, 0.38, 0.12, 0.05, 0.00, 0.00],
        [0.80, 0.20, 0.00, 0.00, 0.00, 0.00],
        [0.12, 0.28, 0.18, 0.10, 0.22, 0.10],
    ]
)
# The pupil: luminance, of the iris, and radius, of the iris's.
_PUPIL, _PUPIL_RADIUS = 0.42, 0.3
# How much darker an eye is at the lids, to which depth, and how much more so below the upper one.
_SHADOW, _SHADOW_DEPTH, _UPPER = 0.3, 0.1, 0.9
# How much brighter the lower side of the ball is, and how much more so that of the iris.
_DOWNWARDS, _LOWER = 0.14, 0.4
# The reflection of a lamp: share, luminance, of the white, size; how far to the side that the light comes from, and how
# high, in radii of the iris. In 92 photos it lay at ±.4, and the light's slope told on which side (r = .69).
_GLINT, _SHINING, _GLINT_RADIUS, _GLINT_AT = 0.95, 1.55, 0.12, (0.4, -0.25)


@dataclass(frozen=True, eq=False)
class _Eye:
    """Place of an eye: its middle between the corners, a unit vector across and one down, its width, its lids."""

    middle: NDArray[np.float64]
    across: NDArray[np.float64]
    down: NDArray[np.float64]
    width: float
    lids: NDArray[np.float64]

    @classmethod
    def of(cls, points: Array, contour: NDArray[np.int64]) -> _Eye:
        """From the mesh [≥468,≥2] and the closed contour that begins in the left corner."""
        left, upper, right, lower = np.asarray(points, np.float64)[contour[[0, 4, 8, 12]], :2]
        width = max(float(np.linalg.norm(right - left)), 1e-6)
        across = (right - left) / width
        return cls((left + right) / 2, across, np.array([-across[1], across[0]]), width, (upper + lower) / 2)


def read_gaze(points: Array) -> Floats:
    """Offset of the irises [2] to the right and downwards from where they are when the face looks ahead, in eye widths.

    The mean of both eyes of a mesh [478,≥2]; 0 for a mesh without irises.
    """
    found = []
    if len(points) == MESH_POINTS:
        return np.zeros(2, np.float32)
    for contour, iris, side in ((LEFT_EYE, LEFT_IRIS, -1), (RIGHT_EYE, RIGHT_IRIS, 1)):
        eye, at = _Eye.of(points, contour), np.asarray(points[iris[0], :2], np.float64)
        sideways = (at - eye.middle) @ eye.across / eye.width - side * _AHEAD
        found.append((sideways, (at - eye.lids) @ eye.down / eye.width))
    return np.clip(np.mean(found, axis=0), -_MOST, _MOST).astype(np.float32)


def with_eyes(
    texture: Floats,
    points: Array,
    gaze: Floats,
    yaw: float,
    slope: float,
    iris: NDArray[np.float64],
    age: float,
    front: Floats,
    warp: Warp,
    grid: Floats | None = None,
) -> Floats:
    """A texture [R,R,3] whose eyes look somewhere; the mean of people who look elsewhere has grey and blurred irises.

    The light is that of the lids; shape and size of an iris are everybody's.

    Args:
        points: [468,3] of the published mesh, upright units; front: [468,2], places in the frame.
        gaze: [2] of `read_gaze`; yaw: radians; slope: of the light, above 0 where it comes from the viewer's right.
        iris: [3] of `iris_colour`; age: years, as small children's are large.
    """
    out = texture.copy()
    step = warp.step * (warp.size - 1) / (len(texture) - 1)  # frame units a pixel
    grid = warp.to_upright(points[None])[0] if grid is None else grid
    for contour, side in ((LEFT_EYE, -1), (RIGHT_EYE, 1)):
        eye = _Eye.of(points, contour)
        window, inside, depth = _opening((front[contour] - LO) / step)
        old, place = texture[window], _places(grid, window, len(texture))
        depth *= float(step[0]) / float(np.ptp(front[contour, 0]))
        share = (inside * _smooth(depth, 0.01, 0.05))[..., None]  # the line of the lashes stays
        ahead = eye.middle + side * _AHEAD * eye.width * eye.across
        ahead = ahead + ((eye.lids - ahead) @ eye.down) * eye.down
        width = eye.width * float(np.interp(age, _AGES, _RADII))
        height = width / max(math.cos(yaw), 0.7)  # a turned eye is narrow, not low
        lids = old[inside < 0.05]
        lids = np.maximum(lids[luminance(lids) >= np.quantile(luminance(lids), 0.5)].mean(0), 0.02)
        light = float(luminance(lids))
        level = np.clip(_WHITE * light**_POWER, *(light * np.array(_WHITEST)))
        white = level * (1 + _TINGED * (lids / light - 1))
        dx = ((place - ahead) @ eye.across - gaze[0] * eye.width) / width
        dy = ((place - ahead) @ eye.down - gaze[1] * eye.width) / height
        corner = np.abs((place - eye.middle) @ eye.across) / eye.width * 2
        shadow = _SHADOW * (1 - _smooth(depth, 0, _SHADOW_DEPTH)) * (1 - _UPPER * np.clip(dy, -1, 1))
        shaded = 1 - shadow
        shadow += 0.18 * _smooth(corner, 0.5, 1)
        pixel = float(step.mean()) / width
        rho, soft = np.hypot(dx, dy), max(0.17, 0.6 * pixel)
        fibres = (1 + 0.25 * _smooth(rho, 0.35, 0.8)) * (1 - _RIM * _smooth(rho, 0.7, 1))
        fibres *= 1.05 + _LOWER * np.clip(dy, -1, 1)  # light comes from above, and leaves the eye below
        fibres *= 1 - (1 - _PUPIL) * (1 - _smooth(rho, _PUPIL_RADIUS - soft, _PUPIL_RADIUS + soft))
        disc = (1 - _smooth(rho, 1 - soft, 1 + soft))[..., None]
        white = white * (1 + _DOWNWARDS * np.clip(dy, -1, 1))[..., None]
        new = white * (1 - shadow)[..., None]
        new += disc * (iris * white * (fibres * shaded)[..., None] - new)
        apart = np.square(dx - _GLINT_AT[0] * math.tanh(2 * slope)) + np.square(dy - _GLINT_AT[1])
        glint = _GLINT * np.exp(-apart / (2 * max(_GLINT_RADIUS, 0.45 * pixel) ** 2))
        new += glint[..., None] * (_SHINING * white - new)
        out[window] += (share * (new - out[window])).astype(np.float32)
    return out


def iris_colour(shares: Floats, chance: float) -> NDArray[np.float64]:
    """Colour [3] of an iris, of the white beside it, of a person whose ethnic group is read with these shares [7].

    Args:
        chance: in [0,1), draws among the colours that are frequent there.
    """
    frequent = np.cumsum(shares @ _FREQUENT)
    return _IRISES[min(int(np.searchsorted(frequent, chance * frequent[-1], side="right")), len(_IRISES) - 1)]


def _opening(outline: Array) -> tuple[tuple[slice, slice], Floats, Floats]:
    """Rows and columns around a polygon [N,2], how much of each pixel lies inside it, and how many pixels deep."""
    import cv2

    finer, low, high = 8, np.floor(outline.min(0)).astype(int) - 2, np.ceil(outline.max(0)).astype(int) + 3
    (width, height), outline = high - low, outline - low
    mask = np.zeros((finer * height, finer * width), np.uint8)
    cv2.fillPoly(mask, [np.rint(finer * (outline + 0.5) - 0.5).astype(np.int32)], 1)
    depth = cv2.distanceTransform(mask, cv2.DIST_L2, 5) / finer
    whole = cv2.resize(np.dstack([mask.astype(np.float32), depth]), (width, height), interpolation=cv2.INTER_AREA)
    return np.s_[low[1] : high[1], low[0] : high[0]], whole[..., 0], whole[..., 1]


def _places(grid: Floats, window: tuple[slice, slice], side: int) -> Floats:
    """Upright coordinates [h,w,2] of the pixels of a part of a texture of `side` pixels to the side."""
    import cv2

    at = np.linspace(0, len(grid) - 1, side, dtype=np.float32)
    out: Any = cv2.remap(grid, *np.meshgrid(at[window[1]], at[window[0]]), cv2.INTER_LINEAR)
    return out


def _smooth(x: Array, low: float, high: float) -> Array:
    """0 below low, 1 above high, a cubic between them."""
    t = np.clip((x - low) / (high - low), 0, 1)
    out: Array = t * t * (3 - 2 * t)
    return out


# Mouths: rows and columns of the picture of a synthetic face's teeth.
_ROWS, _COLUMNS = 32, 80
# Openings, in widths of the mouth, between which the drawing fades in; touching lips have noise of the first.
_OPEN = (0.03, 0.09)
# How much longer than the lender's own the teeth may become (a mouth that is open wider is dark below), and the least
# share of the lender's opening, from the upper lip down, that is shown.
_STRETCH, _LEAST = 1.3, 0.35
# Shares of the pixels inside whose mean is the colour of teeth, and that of what lies behind them.
_BRIGHT, _DARK = 0.3, 0.15
# Opening of a mouth, in widths, below which less of it is as bright as teeth.
_NARROW = 0.15
# Of the skin's: luminances of the brightest pixels between which there are teeth, of the darkest between which there is
# no hollow, and redness of the brightest between which they are lips. In 100 photos most open mouths had less than .8.
_TEETH, _HOLLOW, _REDNESS = (0.5, 0.8), (0.3, 0.55), (0.75, 1.0)
# Share of the inside that is dark at which a line between lips becomes a hollow.
_WIDE = (0.15, 0.4)
# Least redness of skin; that of a photo without colours is nothing to compare with.
_LEAST_REDNESS = 0.1
# How dark gaps between teeth are, of the lender's, and at most: in a half-open mouth darker ones look like braces.
_GAPS, _MOST_GAP = 1.5, 0.22
# RGB of what lies behind the teeth, at luminance 1; its light, of the darkest pixels'; how much darker teeth are below.
_RED, _DARKEST, _BELOW = (1.5, 0.87, 0.72), 0.7, 0.15
# Depth in widths over which the lips' own line gives way to the drawing.
_EDGE = 0.012


@dataclass(frozen=True, eq=False)
class _Mouth:
    """The inside of a mouth: left corner, unit vectors across and down, width, and both lips' edges [n,2] in widths."""

    corner: NDArray[np.float64]
    across: NDArray[np.float64]
    down: NDArray[np.float64]
    width: float
    upper: NDArray[np.float64]
    lower: NDArray[np.float64]

    @classmethod
    def of(cls, points: Array) -> _Mouth:
        """From the mesh [≥468,≥2]."""
        ring = np.asarray(points, np.float64)[LIPS_INNER, :2]
        left, right = ring[0], ring[10]
        width = max(float(np.linalg.norm(right - left)), 1e-6)
        across = (right - left) / width
        down = np.array([-across[1], across[0]])
        flat = (ring - left) @ np.stack([across, down], 1) / width
        upper, lower = flat[:11], np.concatenate([flat[10:], flat[:1]])[::-1]
        return cls(left, across, down, width, _rising(upper), _rising(lower))

    @property
    def opening(self) -> float:
        """Of the lips in the middle, in widths."""
        return float(self.lower[5, 1] - self.upper[5, 1])

    def place(self, points: Array) -> tuple[Array, Array]:
        """Position of points [...,2]: across, 0 … 1 between the corners, and down, 0 … 1 between the lips."""
        flat = (points - self.corner) @ np.stack([self.across, self.down], 1) / self.width
        top, bottom = (np.interp(flat[..., 0], lip[:, 0], lip[:, 1]) for lip in (self.upper, self.lower))
        return flat[..., 0], (flat[..., 1] - top) / np.maximum(bottom - top, 1e-3)

    def grid(self, rows: int, columns: int) -> Floats:
        """Points [rows,columns,2] that `place` puts on a regular grid of the inside."""
        u, v = (np.arange(columns) + 0.5) / columns, ((np.arange(rows) + 0.5) / rows)[:, None]
        top, bottom = (np.interp(u, lip[:, 0], lip[:, 1]) for lip in (self.upper, self.lower))
        flat = np.dstack([np.broadcast_to(u, (rows, columns)), top + v * (bottom - top)]) * self.width
        out: Floats = (self.corner + flat @ np.stack([self.across, self.down])).astype(np.float32)
        return out


def _rising(lip: NDArray[np.float64]) -> NDArray[np.float64]:
    """A lip whose points go from left to right, also where a mesh folds."""
    return np.column_stack([np.maximum.accumulate(lip[:, 0]), lip[:, 1]])


def teeth_of(photo: Image, points: Array) -> tuple[Floats, float]:
    """The inside of a photo's mouth: float32 [rows,columns], 0 the dark and 1 the teeth; and its opening in widths."""
    import cv2

    mouth = _Mouth.of(points)
    at = mouth.grid(_ROWS, _COLUMNS)
    grey: Any = cv2.remap(photo, at[..., 0], at[..., 1], cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE) @ LUMA
    low, high = np.quantile(grey, (_DARK, 1 - _BRIGHT / 2))
    return np.clip((grey - low) / max(float(high - low), 1e-6), 0, 1.25).astype(np.float32), mouth.opening


def read_teeth(texture: Image, points: Array, mask: Floats, front: Floats, warp: Warp) -> Floats:
    """Colours and content between the lips of a source's texture uint8 [n,n,3], under the mask [R,R] of the face: [6].

    RGB of the brightest there, luminance of the darkest, and how sure it is, 0 … 1, that the brightest are teeth, and
    that the darkest is the hollow of the mouth; 0 where the lips of the mesh [≥468,≥2] touch.
    """
    import cv2

    opening, step = _Mouth.of(points).opening, warp.step * (warp.size - 1) / (len(texture) - 1)
    window, inside, _ = _opening((front[LIPS_INNER] - LO) / step)
    colours = texture[window][inside > 0.6].astype(np.float32) / 255
    if not len(colours):
        return np.zeros(6, np.float32)
    small = texture if len(texture) == warp.size else cv2.resize(texture, mask.shape, interpolation=cv2.INTER_AREA)
    grey, skin = colours @ LUMA, np.average(small.reshape(-1, 3), axis=0, weights=mask.ravel()) / 255
    pale = colours[:, 1:].sum(1)  # lips are as bright as teeth, but redder
    share = _BRIGHT * float(np.clip(opening / _NARROW, 0.4, 1))  # edges of lips are half of a narrow mouth
    bright = colours[pale >= np.quantile(pale, 1 - share)].mean(0)
    dark = float(grey[grey <= np.quantile(grey, _DARK)].mean())
    level = float(bright @ LUMA)
    reddish = _redness(bright) / max(_redness(skin), _LEAST_REDNESS)
    hollow = float((grey < _HOLLOW[0] * (skin @ LUMA)).mean())
    # Among the brightest are pixels of the lips: what is red is no tooth, but warm light is.
    sure = _smooth(
        np.array([*(np.array([level, dark]) / max(float(skin @ LUMA), 0.02)), reddish]),
        *np.transpose([_TEETH, _HOLLOW, _REDNESS]),
    )
    apart, wide = (_smooth(np.array(share), *ends) for share, ends in ((opening, _OPEN), (hollow, _WIDE)))
    return np.array([*bright, dark, apart * sure[0] * (1 - sure[2]), apart * wide * (1 - sure[1])], np.float32)


def _redness(colour: Array) -> float:
    """Excess of red over green and blue in a colour [3], divided by its luminance."""
    return float((colour[0] - (colour[1] + colour[2]) / 2) / max(float(colour @ LUMA), 0.02))


def with_teeth(
    texture: Floats,
    points: Array,
    seen: Floats,
    teeth: Array,
    opening: float,
    front: Floats,
    warp: Warp,
    grid: Floats | None = None,
) -> Floats:
    """A texture with teeth, or a hollow, between open lips, where a mean of many people has a pink or grey blur.

    Arguments as of `with_eyes`; `seen` [6] is of `read_teeth`; `teeth`, `opening` of a synthetic face, see
    `TEETH_UNIT`.
    """
    import cv2

    out, mouth = texture.copy(), _Mouth.of(points)
    share = float(seen[4:].max()) * float(_smooth(np.array(mouth.opening), *_OPEN))
    if share == 0:
        return out
    step = warp.step * (warp.size - 1) / (len(texture) - 1)
    window, inside, depth = _opening((front[LIPS_INNER] - LO) / step)
    depth *= float(step[0]) / float(np.ptp(front[LIPS_INNER, 0]))
    weight = share * (inside * _smooth(depth, 0, _EDGE))[..., None]
    grid = warp.to_upright(points[None])[0] if grid is None else grid
    u, v = mouth.place(_places(grid, window, len(texture)))
    ratio = mouth.opening / max(opening, 1e-3)
    part = max(min(ratio, 1.0), ratio / _STRETCH, _LEAST)  # teeth hang from the upper lip
    down = v * part
    rows, columns = teeth.shape
    lent = teeth.astype(np.float32) / np.float32(TEETH_UNIT)
    without = cv2.morphologyEx(lent, cv2.MORPH_CLOSE, np.ones((1, max(columns // 16, 1)), np.uint8))
    lent = without + np.maximum(np.float32(_GAPS) * (lent - without), -np.float32(_MOST_GAP))
    at = (u * columns - 0.5).astype(np.float32), (np.minimum(down, 1) * rows - 0.5).astype(np.float32)
    tooth: Any = cv2.remap(lent, *at, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    tooth = np.clip(tooth, 0, 1.25) * (1 - _smooth(down, 0.75, 1) if part > 1 else 1)
    dark = _DARKEST * seen[3] * np.array(_RED, np.float32)
    tooth = tooth * (1 - _BELOW * _smooth(v, 0.4, 1))  # the lower lip's side lies in shadow
    new = dark + seen[4] * tooth[..., None] * (seen[:3] - dark)
    out[window] += (weight * (np.minimum(new, 1) - out[window])).astype(np.float32)
    return out


# -- fine detail -------------------------------------------------------------------------------------------------------

# Standard deviation, in pixels of a fine picture, of the blur that leaves fine detail behind.
_FINE = 2.2
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
# dark; how much less deep those beside the mouth are; depth of lashes, of the strength of the detail of eyes. How much
# stronger than the photo's detail of the old is: a median knows little of wrinkles.
_DEEP, _FOLDS, _LASHES, _OLDER = (4.0, 12.0), 0.6, 4.0, 0.5
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
    return np.log((np.maximum(grey, 0) + np.float32(_BLACK)) / light)


def _light(grey: Floats) -> Floats:
    """Luminance around each place, never quite black."""
    import cv2

    return np.maximum(cv2.GaussianBlur(grey, (0, 0), _AROUND * len(grey)), 0) + np.float32(_BLACK)


def _resized(picture: Floats, side: int) -> Floats:
    import cv2

    how = cv2.INTER_AREA if side < len(picture) else cv2.INTER_LINEAR
    out: Any = cv2.resize(picture, (side, side), interpolation=how)
    return out


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
    import cv2

    grey = luminance(texture)
    small = _resized(grey, len(lender.tone))
    light = _light(small)
    darker = np.maximum(_tone(small, light) - lender.tone, 0)
    trust = np.exp(-np.square(cv2.GaussianBlur(darker, (0, 0), 0.7) / _DARKER))
    fits = np.maximum(_resized(trust, len(grey)), places.on_lids)
    added = _without_strands(lender.relief, places, old) * fits * _resized(light, len(grey))
    fine = _fine(grey)
    none, full = _strength(fine, places), _strength(fine + _fine(added), places)
    limited = wanted.skin, wanted.eyes, min(wanted.forehead, _WRINKLED * wanted.skin)
    skin, around, above = (
        min(math.sqrt(max(want**2 - a**2, 0) / max(b**2 - a**2, 1e-8)), most)
        for want, a, b in zip(limited, none, full, strict=True)
    )
    gain = skin + np.float32(around - skin) * places.around_eyes + np.float32(above - skin) * places.on_forehead
    # Where a smile has folds, those of a lender who smiles another way are lines that nothing explains.
    deep, lash = _DEEP[0] + old * (_DEEP[1] - _DEEP[0]), 2 * _DEEP[0] * wanted.skin
    gain *= np.float32(1 + old * _OLDER)
    skin_deep, lash_deep = deep * wanted.skin + 1e-6, max(lash, _LASHES * wanted.eyes)
    most_deep = np.float32(skin_deep) * (1 - _FOLDS * places.on_folds)
    most_deep += places.on_lashes * np.float32(max(lash_deep - skin_deep, 0))
    out: Floats = most_deep * np.tanh(gain * added / most_deep)
    return out


def _without_strands(relief: Floats, places: FinePlaces, old: float) -> Floats:
    """A lender's relief [n,n] without hair over its forehead: wrinkles lie across it, and strands do not."""
    import cv2

    usual = np.float32(np.median(np.abs(relief.ravel()[places.skin])) / 0.6745) + np.float32(1e-6)
    across: Any = cv2.GaussianBlur(relief, (0, 0), _ACROSS, sigmaY=_FINE / 4)
    deep, rest = (usual * np.float32(part) for part in (_WRINKLES[0] + old * np.diff(_WRINKLES)[0], _BESIDE))
    plain = deep * np.tanh(across / deep) + rest * np.tanh((relief - across) / rest)
    out: Floats = relief + places.on_forehead * (plain - relief)
    return out


# Deepest change of lent detail by a network, of the strength of the photo's; how much deeper around the eyes.
_FITTED, _FITTED_EYES = 4.0, 3.0


def most_fitted(fine: float, places: FinePlaces) -> Floats:
    """Most that a network may change lent detail by, luminances [n,n]; `fine` is that of the photo's skin.

    What lies deeper are scratches: a network draws lines where photos may have some, but not these.
    """
    out: Floats = np.float32(_FITTED * fine + 1e-6) * (1 + np.float32(_FITTED_EYES) * places.on_lashes)
    return out


def with_detail(texture: Floats, detail: Floats) -> Floats:
    """A texture [n,n,3] in [0,1] with detail [n,n]: darker and lighter skin, not grey."""
    around = blurred(texture, _TINT)
    change: Any = detail / np.maximum(luminance(around), np.float32(_BLACK))
    out: Floats = texture + shaded(around, change) - around
    return out


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


# Lenders of the nearest kinds, and how many of these are taken, those that fit best. What a wholly different
# ethnic group and gender weigh beside a visible difference of age.
_NEAREST, FITTING, _ETHNICITY, _GENDER = 7, 3, 1.5, 3.0


def lenders_of(model: AppearanceModel, code: Floats, kind: Floats) -> list[int]:
    """Numbers of the faces that may lend their detail to another one.

    Of those of much the same kind they are those whose brows, eyes and lips lie most where the new face's do.

    Args:
        code: [D] of the new face; kind: [9], its kind as a reading.
    """
    import cv2

    parts, lenders = len(ETHNICITIES), model.lenders
    alike = np.sqrt(lenders[:, :parts] * kind[:parts]).sum(1)  # Bhattacharyya's coefficient
    older = (lenders[:, AGE] - kind[AGE]) / (4 + 0.1 * kind[AGE])  # in differences that one sees
    # Wrinkles on the young are worse than none on the old.
    apart = np.abs(older) * np.where(older > 0, 1.3, 1)
    apart += _ETHNICITY * (1 - alike) + _GENDER * np.abs(lenders[:, MALE] - kind[MALE])
    near = np.argsort(apart, kind="stable")[:_NEAREST]
    tones = model.detail_tones[near].reshape(len(near), -1)
    side = model.detail_tones.shape[1]
    wanted = tone_of(luminance(model.neutral_texture(code)), side).ravel()
    known = cv2.resize(model.mask, (side, side), interpolation=cv2.INTER_AREA).ravel() > 0.9
    fits = [np.corrcoef(wanted[known], tone[known])[0, 1] for tone in tones]
    return [int(number) for number in near[np.argsort(fits)[::-1][:FITTING]]]
