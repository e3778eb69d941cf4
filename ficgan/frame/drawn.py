"""Drawn into a new face: eyes that look where the source looks, and teeth.

The mean of many people has none of them. Light and colours are those of the photo; irises are everybody's, teeth are
those of synthetic faces.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import LUMA, Image, carried, luminance
from ficgan.faces.mesh import LEFT_EYE, LEFT_IRIS, LIPS_INNER, MESH_POINTS, RIGHT_EYE, RIGHT_IRIS
from ficgan.frame import LO, Doubles, Floats, Warp

Array = NDArray[Any]
# Of the pictures of teeth in a model's file: 1 in `teeth_of`.
TEETH_UNIT = 200


# Eyes: radius of the iris at ages, how far the irises are outside of the middle of the eyes when they look ahead, and
# the farthest that they are moved; in widths of the eye. Of 250 portraits, and of children of crisp training faces.
_AGES, _RADII, _AHEAD, _MOST = (2, 6, 11), (0.285, 0.253, 0.22), 0.07, 0.2
# Luminance of the white: at lids of luminance 1; its power of theirs, as the white is no darker in people with dark
# skin, but in shadow; least and most, of theirs. Share of their colour that it has. Of 568 crisp training faces.
_WHITE, _POWER, _WHITEST, _TINGED = 0.92, 0.63, (0.8, 1.8), 0.5
# Whites are read from pixels of which so much lies in an eye, at this quantile of luminance, where a drawn eye has so
# much of its white; least and most that they are lighter than usual, logarithms.
_WHOLLY, _BRIGHT_SHARE, _DRAWN, _LIGHTER = 0.95, 0.8, 0.83, (-0.4, 0.7)
# Colour of the flesh in the corner at the nose, of the white.
_FLESH = np.array([0.92, 0.78, 0.74])
# How much darker the rim of an iris is than its middle.
_RIM = 0.45
# Colours of irises, of the white: dark brown, brown, hazel, green, blue, grey.
_IRISES = np.array(
    [
        [0.23, 0.18, 0.16],
        [0.32, 0.24, 0.19],
        [0.46, 0.40, 0.33],
        [0.47, 0.49, 0.43],
        [0.43, 0.53, 0.59],
        [0.52, 0.56, 0.59],
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
# The pupil: luminance, of the white, and at most, of the iris; radius, of the iris's.
_PUPIL, _PALEST_PUPIL, _PUPIL_RADIUS = 0.12, 0.5, 0.3
# How much darker an eye is at the lids, to which depth, and how much more so below the upper one.
_SHADOW, _SHADOW_DEPTH, _UPPER = 0.3, 0.1, 0.9
# How much brighter the lower side of the ball is, and how much more so that of the iris.
_DOWNWARDS, _LOWER = 0.14, 0.4
# The reflection of a lamp: share, luminance, of the white, size; how far to the side that the light comes from, and how
# high, in radii of the iris. In 92 photos it lay at ±.4, and the light's slope told on which side (r = .69).
_GLINT, _SHINING, _GLINT_RADIUS, _GLINT_AT = 0.95, 1.8, 0.12, (0.4, -0.25)


class _Slit(NamedTuple):
    """An eye or a mouth: left corner, unit vectors across and down, width, both edges [n,2] in widths."""

    corner: Doubles
    across: Doubles
    down: Doubles
    width: float
    upper: Doubles
    lower: Doubles

    @classmethod
    def of(cls, points: Array, contour: NDArray[np.int64] = LIPS_INNER) -> _Slit:
        """From the mesh [≥468,≥2] and the closed contour that begins in the left corner."""
        ring, half = np.asarray(points, np.float64)[contour, :2], len(contour) // 2
        left, right = ring[0], ring[half]
        width = max(float(np.linalg.norm(right - left)), 1e-6)
        across = (right - left) / width
        down = np.array([-across[1], across[0]])
        flat = (ring - left) @ np.stack([across, down], 1) / width
        upper, lower = flat[: half + 1], np.concatenate([flat[half:], flat[:1]])[::-1]
        return cls(left, across, down, width, _rising(upper), _rising(lower))

    @property
    def opening(self) -> float:
        """Of the edges in the middle, in widths."""
        return float(np.ptp(self._amid))

    @property
    def level(self) -> float:
        """How far the middle between the edges lies below the corners, in widths."""
        return float(np.mean(self._amid))

    @property
    def _amid(self) -> Doubles:
        middle = len(self.upper) // 2
        return np.array([self.upper[middle, 1], self.lower[middle, 1]])

    def flat(self, points: Array) -> tuple[Array, Array]:
        """Positions [...] of points [...,2] across and down from the left corner, in widths."""
        places = (points - self.corner) @ np.stack([self.across, self.down], 1) / self.width
        return places[..., 0], places[..., 1]

    def edges(self, across: Array) -> tuple[Array, Array]:
        """How far down the upper and the lower edge lie at positions across, in widths."""
        upper, lower = (np.interp(across, edge[:, 0], edge[:, 1]) for edge in (self.upper, self.lower))
        return upper, lower

    def place(self, points: Array) -> tuple[Array, Array]:
        """Position of points [...,2]: across, 0 … 1 between the corners, and down, 0 … 1 between the edges."""
        across, down = self.flat(points)
        top, bottom = self.edges(across)
        return across, (down - top) / np.maximum(bottom - top, 1e-3)

    def beside(self, points: Array, share: float) -> tuple[Array, Array]:
        """Position of points [...,2], in widths: across from the left corner, and below a line so far down, 0 … 1."""
        across, down = self.flat(points)
        top, bottom = self.edges(across)
        return across, down - top - share * (bottom - top)

    def grid(self, rows: int, columns: int) -> Floats:
        """Points [rows,columns,2] that `place` puts on a regular grid of the inside."""
        u, v = (np.arange(columns) + 0.5) / columns, ((np.arange(rows) + 0.5) / rows)[:, None]
        top, bottom = self.edges(u)
        flat = np.dstack([np.broadcast_to(u, (rows, columns)), top + v * (bottom - top)]) * self.width
        return (self.corner + flat @ np.stack([self.across, self.down])).astype(np.float32)


def _rising(edge: Doubles) -> Doubles:
    """An edge whose points go from left to right, also where a mesh folds."""
    return np.column_stack([np.maximum.accumulate(edge[:, 0]), edge[:, 1]])


def read_gaze(points: Array) -> Floats:
    """Offset of the irises [2] to the right and downwards from where they are when the face looks ahead, in eye widths.

    The mean of both eyes of a mesh [478,≥2]; 0 for a mesh without irises.
    """
    found = []
    if len(points) == MESH_POINTS:
        return np.zeros(2, np.float32)
    for contour, iris, side in ((LEFT_EYE, LEFT_IRIS, -1), (RIGHT_EYE, RIGHT_IRIS, 1)):
        eye = _Slit.of(points, contour)
        across, down = eye.flat(np.asarray(points[iris[0], :2], np.float64))
        found.append((across - 0.5 - side * _AHEAD, down - eye.level))
    return np.clip(np.mean(found, axis=0), -_MOST, _MOST).astype(np.float32)


def read_whites(texture: Image, warp: Warp, seen: bool) -> Floats:
    """Luminances [2] of the whites of the left and the right eye in a texture [R,R,3], as light as in the photo.

    The lids tell too little: in a face with dark skin the whites shine. Both eyes are as much lighter than usual,
    within limits, and as light as usual where they are not `seen`: in a small face, or behind glasses.
    """
    usual, lighter = [], []
    for contour in (LEFT_EYE, RIGHT_EYE):
        window, inside, _ = _opening((warp.front[contour] - LO) / warp.step_of(len(texture)))
        old = texture[window].astype(np.float32) / np.float32(255)
        usual.append(_usual_white(float(luminance(_lids(old, inside)))))
        level = float(np.quantile(luminance(old[inside > _WHOLLY]), _BRIGHT_SHARE)) / _DRAWN
        lighter.append(math.log(max(level, 0.02) / usual[-1]))
    return np.asarray(np.array(usual) * math.exp(seen * np.clip(np.mean(lighter), *_LIGHTER)), np.float32)


def _lids(part: Floats, inside: Floats) -> Doubles:
    """Colour [3] of the lids of an eye, of a part [h,w,3] of a texture of which [h,w] lies inside the eye."""
    lids = part[inside < 0.05]
    return np.maximum(lids[luminance(lids) >= np.quantile(luminance(lids), 0.5)].mean(0), 0.02)


def _usual_white(light: float) -> float:
    return float(np.clip(_WHITE * light**_POWER, *(light * np.array(_WHITEST))))


def with_eyes(
    texture: Floats,
    points: Array,
    gaze: Floats,
    whites: Floats,
    yaw: float,
    slope: float,
    iris: Doubles,
    age: float,
    warp: Warp,
    grid: Floats,
) -> Floats:
    """A texture [R,R,3] whose eyes look somewhere; the mean of people who look elsewhere has grey and blurred irises.

    The colour of the light is that of the lids; shape and size of an iris are everybody's.

    Args:
        points: [468,3] of the published mesh, upright units.
        gaze: [2] of `read_gaze`; whites: [2] of `read_whites`; yaw: radians.
        slope: of the light, above 0 where it comes from the viewer's right.
        iris: [3] of `iris_colour`; age: years, as small children's are large.
    """
    out = texture.copy()
    front, step = warp.front, warp.step_of(len(texture))  # frame units a pixel
    for number, (contour, side) in enumerate(((LEFT_EYE, -1), (RIGHT_EYE, 1))):
        eye = _Slit.of(points, contour)
        window, inside, depth = _opening((front[contour] - LO) / step)
        old, place = texture[window], _places(grid, window, len(texture))
        depth *= float(step[0]) / float(np.ptp(front[contour, 0]))
        share = (inside * _smooth(depth, 0.01, 0.05))[..., None]  # the line of the lashes stays
        across, down = eye.flat(place)
        radius = float(np.interp(age, _AGES, _RADII))
        lids = _lids(old, inside)
        light = float(luminance(lids))
        white = whites[number] * (1 + _TINGED * (lids / light - 1))
        dx = (across - 0.5 - side * _AHEAD - gaze[0]) / radius
        dy = (down - eye.level - gaze[1]) / radius * max(math.cos(yaw), 0.7)  # a turned eye is narrow, not low
        outwards = side * (2 * across - 1)
        shadow = _SHADOW * (1 - _smooth(depth, 0, _SHADOW_DEPTH)) * (1 - _UPPER * np.clip(dy, -1, 1))
        shaded = 1 - shadow
        shadow += 0.18 * _smooth(np.abs(outwards), 0.5, 1)
        pixel = float(step.mean()) / (radius * eye.width)
        rho, soft = np.hypot(dx, dy), max(0.17, 0.6 * pixel)
        fibres = (1 + 0.25 * _smooth(rho, 0.35, 0.8)) * (1 - _RIM * _smooth(rho, 0.7, 1))
        fibres *= 1.05 + _LOWER * np.clip(dy, -1, 1)  # light comes from above, and leaves the eye below
        pupil = min(_PUPIL / float(luminance(iris)), _PALEST_PUPIL)
        fibres *= 1 - (1 - pupil) * (1 - _smooth(rho, _PUPIL_RADIUS - soft, _PUPIL_RADIUS + soft))
        disc = (1 - _smooth(rho, 1 - soft, 1 + soft))[..., None]
        white = white * (1 + _DOWNWARDS * np.clip(dy, -1, 1))[..., None]
        white *= 1 - (1 - _FLESH) * _smooth(-outwards, 0.65, 0.9)[..., None]
        new = white * (1 - shadow)[..., None]
        new += disc * (iris * white * (fibres * shaded)[..., None] - new)
        apart = np.square(dx - _GLINT_AT[0] * math.tanh(2 * slope)) + np.square(dy - _GLINT_AT[1])
        glint = _GLINT * np.exp(-apart / (2 * max(_GLINT_RADIUS, 0.45 * pixel) ** 2))
        new += glint[..., None] * (_SHINING * white - new)
        out[window] += (share * (new - out[window])).astype(np.float32)
    return out


def iris_colour(shares: Floats, chance: float) -> Doubles:
    """Colour [3] of an iris, of the white beside it, of a person whose ethnic group is read with these shares [7].

    Args:
        chance: in [0,1), draws among the colours that are frequent there.
    """
    frequent = np.cumsum(shares @ _FREQUENT)
    return _IRISES[min(int(np.searchsorted(frequent, chance * frequent[-1], side="right")), len(_IRISES) - 1)]


def _opening(outline: Array) -> tuple[tuple[slice, slice], Floats, Floats]:
    """Rows and columns around a polygon [N,2], how much of each pixel lies inside it, and how many pixels deep."""
    finer, low, high = 8, np.floor(outline.min(0)).astype(int) - 2, np.ceil(outline.max(0)).astype(int) + 3
    (width, height), outline = high - low, outline - low
    mask = np.zeros((finer * height, finer * width), np.uint8)
    cv2.fillPoly(mask, [np.rint(finer * (outline + 0.5) - 0.5).astype(np.int32)], 1)
    depth = cv2.distanceTransform(mask, cv2.DIST_L2, 5) / finer
    whole = cv2.resize(np.dstack([mask.astype(np.float32), depth]), (width, height), interpolation=cv2.INTER_AREA)
    return np.s_[low[1] : high[1], low[0] : high[0]], whole[..., 0], whole[..., 1]


def _places(grid: Floats, window: tuple[slice, slice], side: int) -> Floats:
    """Upright coordinates [h,w,2] of the pixels of a part of a texture of `side` pixels to the side."""
    at = np.linspace(0, len(grid) - 1, side, dtype=np.float32)
    return cv2.remap(grid, *np.meshgrid(at[window[1]], at[window[0]]), cv2.INTER_LINEAR)


def _smooth(x: Array, low: float, high: float) -> Array:
    """0 below low, 1 above high, a cubic between them."""
    t = np.clip((x - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


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
# Light of the tongue, of the lips', and between which depths it rises.
_TONGUE, _LIES = 0.3, (0.2, 0.9)
# Depth in widths over which the lips' own line gives way to the drawing.
_EDGE = 0.012
# Openings, in widths, between which what is shut becomes open: of lips without teeth or a hollow (the mesh of lips that
# touch has a small one), and of eyes; pixels over which the skin around is carried on.
_TOUCHING, _SHUT, _CARRIED = (0.1, 0.2), (0.08, 0.15), 3.0


class _Seam(NamedTuple):
    """A line between what touches: how far down it lies, 0 … 1; half its width, and how far it fades out at the
    corners, in widths; its luminance, of that of the skin around, at least and at most."""

    down: float
    half: float
    corner: float
    darkest: float
    lightest: float


_LIPS_LINE, _LASHES_LINE = _Seam(0.5, 0.018, 0.06, 0.45, 0.7), _Seam(0.8, 0.035, 0.05, 0.3, 0.3)


def teeth_of(photo: Image, points: Array) -> tuple[Floats, float]:
    """The inside of a photo's mouth: float32 [rows,columns], 0 the dark and 1 the teeth; and its opening in widths."""
    mouth = _Slit.of(points)
    at = mouth.grid(_ROWS, _COLUMNS)
    grey = cv2.remap(photo, at[..., 0], at[..., 1], cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE) @ LUMA
    low, high = np.quantile(grey, (_DARK, 1 - _BRIGHT / 2))
    return np.clip((grey - low) / max(float(high - low), 1e-6), 0, 1.25).astype(np.float32), mouth.opening


def read_teeth(texture: Image, points: Array, mask: Floats, warp: Warp) -> Floats:
    """Colours and content between the lips of a source's texture uint8 [n,n,3], under the mask [R,R] of the face: [6].

    RGB of the brightest there, luminance of the darkest, and how sure it is, 0 … 1, that the brightest are teeth, and
    that the darkest is the hollow of the mouth; 0 where the lips of the mesh [≥468,≥2] touch.
    """
    opening, step = _Slit.of(points).opening, warp.step_of(len(texture))
    window, inside, _ = _opening((warp.front[LIPS_INNER] - LO) / step)
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


def with_touching_lips(texture: Floats, points: Array, seen: Floats, warp: Warp, grid: Floats) -> Floats:
    """A texture whose lips touch, with a dark line between them, where a mean of many people has a light blur.

    Arguments as of `with_teeth`.
    """
    opening = np.array(_Slit.of(points).opening)
    share = float((1 - seen[4:].max()) * (1 - _smooth(opening, *_TOUCHING)))
    return _closed(texture, points, LIPS_INNER, share, _LIPS_LINE, float(seen[3]), warp, grid)


def with_shut_eyes(texture: Floats, points: Array, source: Array, warp: Warp, grid: Floats) -> Floats:
    """A texture whose eyes are lids and a line of lashes, as far as those of the mesh of the `source` are shut, too.

    Arguments as of `with_eyes`.
    """
    eyes = LEFT_EYE, RIGHT_EYE
    opening = max(np.mean([_Slit.of(mesh, contour).opening for contour in eyes]) for mesh in (points, source))
    share = 1 - float(_smooth(np.array(opening), *_SHUT))
    for contour in eyes:
        texture = _closed(texture, points, contour, share, _LASHES_LINE, 0.0, warp, grid)
    return texture


def _closed(
    texture: Floats,
    points: Array,
    contour: NDArray[np.int64],
    share: float,
    line: _Seam,
    dark: float,
    warp: Warp,
    grid: Floats,
) -> Floats:
    """A texture with a share of a closed slit: the skin around goes on, up to a line of luminance `dark`."""
    if share == 0:
        return texture
    out, size = texture.copy(), len(texture)
    outline, margin = (warp.front[contour] - LO) / warp.step_of(size), size // 16 + 2
    left, top = np.floor(outline.min(0)).astype(int) - margin
    right, low = np.ceil(outline.max(0)).astype(int) + margin + 1
    window = np.s_[top:low, left:right]
    inside = np.zeros((size, size), np.uint8)
    cv2.fillPoly(inside, [np.rint(outline * 16).astype(np.int32)], 1, shift=4)
    within = cv2.dilate(inside, np.ones((3, 3), np.uint8))[window].astype(np.float32)
    skin = carried(out[window], 1 - within, _CARRIED)
    part = out[window] + share * cv2.GaussianBlur(within, (0, 0), 0.7)[..., None] * (skin - out[window])
    across, below = _Slit.of(points, contour).beside(_places(grid, window, size), line.down)
    level = np.clip(dark / max(float(np.average(luminance(skin), weights=within)), 0.02), line.darkest, line.lightest)
    ends = _smooth(np.minimum(across, 1 - across), -line.corner, line.corner)
    drawn = share * (1 - level) * ends * np.exp(-np.square(below / line.half) / 2)
    out[window] = part * (1 - drawn[..., None]).astype(np.float32)
    return out


def with_teeth(
    texture: Floats, points: Array, seen: Floats, teeth: Array, opening: float, warp: Warp, grid: Floats
) -> Floats:
    """A texture with teeth, or a hollow, between open lips, where a mean of many people has a pink or grey blur.

    Arguments as of `with_eyes`; `seen` [6] is of `read_teeth`; `teeth`, `opening` of a synthetic face, see
    `TEETH_UNIT`.
    """
    out, mouth = texture.copy(), _Slit.of(points)
    share = float(seen[4:].max()) * float(_smooth(np.array(mouth.opening), *_OPEN))
    if share == 0:
        return out
    lips, step = warp.front[LIPS_INNER], warp.step_of(len(texture))
    window, inside, depth = _opening((lips - LO) / step)
    depth *= float(step[0]) / float(np.ptp(lips[:, 0]))
    weight = share * (inside * _smooth(depth, 0, _EDGE))[..., None]
    u, v = mouth.place(_places(grid, window, len(texture)))
    ratio = mouth.opening / max(opening, 1e-3)
    part = max(min(ratio, 1.0), ratio / _STRETCH, _LEAST)  # teeth hang from the upper lip
    down = v * part
    rows, columns = teeth.shape
    lent = teeth.astype(np.float32) / np.float32(TEETH_UNIT)
    without = cv2.morphologyEx(lent, cv2.MORPH_CLOSE, np.ones((1, max(columns // 16, 1)), np.uint8))
    lent = without + np.maximum(np.float32(_GAPS) * (lent - without), -np.float32(_MOST_GAP))
    at = (u * columns - 0.5).astype(np.float32), (np.minimum(down, 1) * rows - 0.5).astype(np.float32)
    tooth = cv2.remap(lent, *at, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    tooth = np.clip(tooth, 0, 1.25) * (1 - _smooth(down, 0.75, 1) if part > 1 else 1)
    beside, red = np.median(texture[window][inside < _EDGE], axis=0), np.array(_RED, np.float32)
    tongue = (_TONGUE * (1 - seen[4]) * _smooth(v, *_LIES))[..., None] * beside
    dark = (_DARKEST * seen[3] + tongue) * red
    tooth = tooth * (1 - _BELOW * _smooth(v, 0.4, 1))  # the lower lip's side lies in shadow
    new = dark + seen[4] * tooth[..., None] * (seen[:3] - dark)
    out[window] += (weight * (np.minimum(new, 1) - out[window])).astype(np.float32)
    return out
