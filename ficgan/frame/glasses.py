"""Glasses: whether a face wears some, and others that are drawn in their place.

A new face covers the glasses, but their arms beside it stay. New ones begin where these arms end and have their
colour, and that of dark lenses; their form is drawn by chance. A mean of many people, some of whom wear glasses, has a
trace of them, which is taken away.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import Image, luminance, read_arrays, resize
from ficgan.device import embedded_file
from ficgan.faces.mesh import LEFT_EYE, RIGHT_EYE
from ficgan.frame import LO, Doubles, Floats, Warp
from ficgan.frame.appearance import AppearanceModel
from ficgan.frame.compose import stretched

# Side of the texture that is read, its rows around the eyes, and cells in which strength of lines is read.
SIDE, ROWS, CELLS = 128, slice(14, 78), (24, 16)
# Width of the blur that leaves lines behind, pixels; grey levels of contrast that every face has.
_LINE, _CONTRAST = 2.0, 4.0
# Share of a trace that is taken away; the strongest one, of the mean of those who wear glasses.
_TAKEN, _MOST_TRACE = 0.8, 1.3
# Evidence from which on new glasses begin to be drawn, and are drawn wholly. In between they are faint, so that they
# do not flicker in films.
UNSURE, SURE = -0.85, -0.7
# Lengths, in distances of the eyes. Where an arm leaves the face: beside the eye, and how far above and below it.
_TEMPLE, _ARM = 0.62, (-0.32, 0.18)
# Half the width, in units, in which such a line is looked for.
_ACROSS = 3.0
# Where the lower rim is looked for, how much darker than skin it must be, and what a lighter line counts.
_UNDER, _DARK_RIM, _LIGHTER = (0.2, 0.5), 0.25, 0.03
# Widest arm, and the width of the thinner arm up to which rims are not the widest, units.
_WIDEST, _THIN = 7.0, 2.5
# Lenses: half their widths and heights, how far they lie outside of the eyes and below them; half the rim's width.
_WIDTHS, _HEIGHTS, _OUTSIDE, _LOWER, _RIMS = (0.36, 0.41), (0.24, 0.31), 0.04, 0.05, (0.009, 0.015, 0.02)
# Where lenses are read, from the middle of the eye: half the width, and rows; rows of the cheek beside which they are
# dark, light of theirs, of the cheek's, between which they are tinted and clear; how much a tint hides above and below.
_BESIDE, _LENS, _CHEEK, _TINTED, _HIDES = 0.2, (0.11, 0.2), (0.5, 0.7), (0.34, 0.42), (0.99, 0.9)
# The sky that dark lenses mirror: share of the skin's light, and where and how wide its band is, of half the lens.
_SKY, _SKY_AT, _SKY_WIDE = 0.6, -0.45, 0.35
# How much larger dark lenses are, and colour of their rims, of theirs.
_LARGER, _RIM_OF_LENS = 0.05, 0.7
# Exponents of their outline, a superellipse, and how much narrower it is below; how much thicker rims are above;
# contrast of an arm from which on rims are wide and opaque.
_FORMS, _NARROWER, _THICKER, _CLEAR = (2.2, 4.0), (0.02, 0.14), 0.3, 0.1
# Light that a rim facing up has more; how dark its shadow is, and how far below it lies, in distances of the eyes; how
# much of the light clear lenses mirror.
_LIT, _SHADE, _BELOW, _MIRRORED = 0.2, 0.2, 0.03, 0.08
# Where light glints on a rim, degrees, least and most; how wide, radians, how much, and the quantile of all light that
# it has. Width of an arm, of a rim's; how much wider its hinge is, and how long, of the arm.
_GLINTS, _GLINT, _SHINE, _BRIGHT = ((-150, -60, 20), (-110, -30, 60)), 0.18, 0.6, 0.98
_ARM_WIDE, _HINGE, _HINGE_LONG = 1.1, 0.9, 0.25
# How much further from skin the colour of a dark rim is than read, how much greyer, and the darkest; how much of the
# faintest rims is seen.
_PURE, _GREYER, _DARKEST, _OPAQUE = 1.6, 0.5, 0.03, 0.7
# Half the width and height of what old lenses cover around an eye, and half the height of an arm.
_COVERED, _ARM_HIGH = (0.53, 0.42), 0.07
# Rows around the eyes in whose place rims are seen, distances of the eyes; most that a face bends there, units; how
# curved glasses are, of a face.
_AROUND, _MOST_BENT, _CURVED = 0.6, 8.0, 0.5
# Pads on the nose: how far beside the lens and below its middle they lie, half their width and height, in distances of
# the eyes, and how much of them, and of their wires, is seen.
_PAD, _WIRE = (0.03, 0.09, 0.018, 0.04, 0.35), 0.6
# Light of rims, of the face's, between which they begin to be of metal and are.
_METAL = (0.4, 0.7)


class GlassesReader(NamedTuple):
    """What was learnt of glasses.

    Args:
        weight: float32 [384] and bias [1], log odds from `lines_of`.
        trace: [128,128], how much lighter those who wear glasses are at each place around the eyes, in units of the
            contrast.
        levels: [2], how much of it textures have of those who wear none, and some: see `Trace`.
    """

    weight: Floats
    bias: Floats
    trace: Floats
    levels: Floats


@lru_cache(maxsize=1)
def glasses_reader() -> GlassesReader:
    """The embedded one."""
    arrays, _ = read_arrays(embedded_file("glasses.safetensors"), kind="glasses-reader")
    return GlassesReader(*(arrays[name].astype(np.float32) for name in GlassesReader._fields))


class Trace(NamedTuple):
    """The trace of glasses in the textures of a model with P pixels.

    Args:
        reads: float32 [3P], how much of it `AppearanceModel.unpredicted` has, in units of `GlassesReader.levels`.
        gives: float32 [P], luminance that those who wear glasses have more.
    """

    reads: Floats
    gives: Floats

    @classmethod
    def of(cls, model: AppearanceModel, trace: Floats) -> Trace:
        """Of a model, from `GlassesReader.trace`."""
        gives = cv2.resize(trace, (model.size, model.size), interpolation=cv2.INTER_AREA).ravel()[model.pixels]
        reader = model.reader[:, model.lights :]
        way = np.repeat(gives, 3) @ reader
        return cls((reader @ (way / np.linalg.norm(way))).astype(np.float32), gives.astype(np.float32))

    def taken_from(self, unpredicted: Floats) -> Floats:
        """What to add to a texture's luminance [P], in units of the contrast, so that little of a trace is left."""
        none, some = glasses_reader().levels
        share = np.clip((self.reads @ unpredicted - none) / (some - none), 0, _MOST_TRACE)
        return np.float32(-_TAKEN * share) * self.gives


def lines_of(texture: Image) -> Floats:
    """How strong lines are around the eyes of a texture [R,R,3]: logarithms, float32 [384]."""
    grey = np.asarray(cv2.cvtColor(resize(texture, SIDE), cv2.COLOR_RGB2GRAY), np.float32)
    fine = np.abs(grey - cv2.GaussianBlur(grey, (0, 0), _LINE)) / (grey[20:110, 20:108].std() + _CONTRAST)
    return np.log(0.01 + cv2.resize(fine[ROWS], CELLS, interpolation=cv2.INTER_AREA)).ravel().astype(np.float32)


def read_glasses(texture: Image, warp: Warp) -> Floats:
    """Evidence of glasses, and where their arms leave the face.

    Args:
        texture: uint8 [n,n,3] of a face in the frame, with what lies over it.
        warp: of the frame.

    Returns:
        float32 [13]: log odds that there are glasses; y of the left and of the right arm in the frame; their red, green
        and blue, and contrast, in [0,1]; how far lenses are tinted, 0 … 1, and their red, green and blue; widths of the
        left and of the right arm, units.
    """
    reader = glasses_reader()
    seen = texture.astype(np.float32) / np.float32(255)
    lenses, cheeks = list[Floats](), list[Floats]()
    middles = _eyes(warp.front)
    apart = float(middles[1, 0] - middles[0, 0])
    arms = middles + np.array([[-_TEMPLE, 0], [_TEMPLE, 0]]) * apart
    step = warp.step_of(len(seen))
    lines = [_line(seen, step, place, _ARM, apart) for place in (*arms, middles.mean(0))]  # and of the bridge
    rims = [_line(seen, step, place, _UNDER, apart) for place in middles]
    lines += [rim for rim in rims if rim.lighter < -_DARK_RIM]  # others may be bags under the eyes
    # The clearest are least mixed with skin. Light ones may be a wall beside the face, or shine.
    weights = [(1.0 if one.lighter < 0 else _LIGHTER) * one.lighter**2 + 1e-6 for one in lines]
    for x, y in middles:
        left, right = np.rint((x + np.array([-_BESIDE, _BESIDE]) * apart - LO[0]) / step[0]).astype(int)
        for found, ends in ((lenses, _LENS), (cheeks, _CHEEK)):
            top, low = np.rint((y + np.array(ends) * apart - LO[1]) / step[1]).astype(int)
            found.append(np.median(seen[top : low + 1, left : right + 1].reshape(-1, 3), axis=0))
    light = np.mean(luminance(np.array(lenses)) / np.maximum(luminance(np.array(cheeks)), 0.02))
    evidence = float(reader.weight @ lines_of(texture) + reader.bias[0])
    contrast = np.mean([abs(one.lighter) for one in lines[:2]])
    drawn = [lines[0].y, lines[1].y, *np.average([one.colour for one in lines], axis=0, weights=weights), contrast]
    clear = [one.wide for one in lines[:3] if abs(one.lighter) > _CLEAR] or [0.0]
    wides = [min(one.wide if abs(one.lighter) > _CLEAR else min(clear), _WIDEST) for one in lines[:2]]
    return np.array([evidence, *drawn, np.interp(light, _TINTED, (1, 0)), *np.mean(lenses, 0), *wides], np.float32)


class _Crossing(NamedTuple):
    """What crosses a column of the frame: y, colour [3], how much lighter it is than the rest, and its width, units."""

    y: float
    colour: Floats
    lighter: float
    wide: float


def _line(seen: Floats, step: NDArray[Any], place: Doubles, ends: tuple[float, float], apart: float) -> _Crossing:
    """The clearest line above or below a place of the frame, between ends in distances of the eyes."""
    ys = np.arange(place[1] + ends[0] * apart, place[1] + ends[1] * apart, step[1])
    rows = np.rint((ys - LO[1]) / step[1]).astype(int).clip(0, len(seen) - 1)
    columns = np.rint((place[0] + np.linspace(-_ACROSS, _ACROSS, 7) - LO[0]) / step[0]).astype(int)
    block = seen[rows][:, columns.clip(0, len(seen) - 1)]
    grey = luminance(block)
    lighter = grey - np.median(grey)
    usual = np.exp(-np.square(np.linspace(-1.3, 1.3, len(ys), dtype=np.float32)))[:, None]
    most = (usual * np.abs(lighter)).argmax(0)  # an arm may slope
    here = most, np.arange(len(columns))
    middle = np.argsort(most, kind="stable")[len(columns) // 2]
    strong = (2 * lighter * np.sign(lighter[here]) > np.abs(lighter[here])).astype(np.uint8)
    strong = [cv2.connectedComponents(column[:, None])[1].ravel() for column in strong.T]
    wide = float(np.median([(one == one[row]).sum() for one, row in zip(strong, most, strict=True)]) * step[1])
    return _Crossing(ys[most[middle]], np.median(block[here], axis=0), float(np.median(lighter[here])), wide)


def with_glasses(texture: Floats, glasses: Floats, chance: float, warp: Warp, grid: Floats) -> Floats:
    """A texture with glasses, as far as there is evidence of some.

    Args:
        texture: float32 [n,n,3] in [0,1] of a face in the frame.
        glasses: float32 [13] of `read_glasses`.
        chance: in [0,1), draws their form.
        warp: of the frame.
        grid: float32 [R,R,2], where the frame's pixels lie on the photo's face, upright units.
    """
    share = float(np.interp(glasses[0], (UNSURE, SURE), (0, 1)))
    if not share:
        return texture
    arms, colour, contrast, tint = glasses[1:3], glasses[3:6], float(glasses[6]), float(glasses[7])
    lens, wides = glasses[8:11], glasses[11:]
    rng = np.random.default_rng([int(chance * 2**31), 1])
    form, half, high, narrower = (rng.uniform(*span) for span in (_FORMS, _WIDTHS, _HEIGHTS, _NARROWER))
    half, high = half + tint * _LARGER, high + tint * _LARGER
    # A thin arm is read with the skin beside it.
    skin = np.median(texture.reshape(-1, 3), axis=0)
    if luminance(colour) < luminance(skin):
        colour = np.clip(skin + _PURE * (colour - skin), _DARKEST, 1)
        colour += _GREYER * (luminance(colour) - colour)
    # Beside dark lenses what is most unlike the rest is skin.
    colour = colour + tint * (_RIM_OF_LENS * lens - colour)
    # Light rims are of metal, and thin.
    dark = np.interp(luminance(colour) / max(float(np.median(luminance(texture))), 0.02), _METAL, (1, 0))
    widths = _RIMS if wides.min() > _THIN else _RIMS[:2]
    rim = float(np.interp(contrast * dark, (0.5 * _CLEAR, 1.5 * _CLEAR), (widths[0], rng.choice(widths))))
    eyes = _eyes(warp.front)
    apart = float(eyes[1, 0] - eyes[0, 0])
    half, high, rim = half * apart, high * apart, rim * apart
    step = warp.step_of(len(texture)).astype(np.float32)
    low, top = eyes[:, 1].max() + 1.5 * high, min(float(eyes[:, 1].min()) - 1.5 * high, float(arms.min()) - rim)
    rows = slice(*(int(v) for v in np.clip((np.array([top, low]) - LO[1]) / step[1], 0, len(texture))))
    ends = eyes + np.column_stack([(-_TEMPLE * apart, _TEMPLE * apart), arms - eyes[:, 1]])
    rigid = _rigid(warp, eyes, grid)
    middles, temples = (_sampled(rigid, (at - LO) / warp.step) for at in (eyes, ends))
    xs, ys = np.moveaxis(stretched(rigid, len(texture) // warp.size)[rows], 2, 0)

    def line(distance: Floats, width: Floats | float) -> Floats:
        return np.clip((width - distance) / step[0] + 0.5, 0, 1)

    def outline(x: float, y: float) -> tuple[Floats, Floats]:
        """How far each place is from the middle of a lens, 1 on its outline, and its distance to that."""
        below = (ys - y) / high
        across = (xs - x) / (half * (1 - narrower * np.clip(below, -1, 1)))
        far = (np.abs(across) ** form + np.abs(below) ** form) ** (1 / form)
        return far, np.abs(far - 1) * np.hypot(xs - x, ys - y) / np.maximum(far, 1e-3)

    def faded(y: float, ends: tuple[float, float]) -> Floats:
        """From the first value at the top of a lens to the second at its lower end."""
        return np.interp(ys, (y - high, y + high), ends).astype(np.float32)

    drawn, shadow, tinted, sky, up, pads, glint = (np.zeros_like(xs) for _ in range(7))
    glints = np.deg2rad(rng.uniform(*_GLINTS)).astype(np.float32)
    for side, (x, y), end, wide in zip((-1, 1), middles, temples, wides, strict=True):
        x, y = x + side * _OUTSIDE * apart, y + _LOWER * apart
        far, distance = outline(x, y)
        within = np.clip((1 - far) * half / step[0] + 0.5, 0, 1)
        tinted = np.maximum(tinted, within * faded(y, _HIDES))
        across = ((xs - x) + (ys - y)) / half - _SKY_AT
        sky += within * np.exp(-np.square(across / _SKY_WIDE)) * faded(y, (1, 0))
        above = (y - ys) / np.maximum(np.hypot(xs - x, ys - y), 1e-3)
        turned = np.arctan2(ys - y, xs - x)[..., None] - glints
        glint = np.maximum(glint, (np.exp((np.cos(turned) - 1) / _GLINT**2)).sum(-1) * line(distance, 0.5 * rim))
        up = np.where(distance < 3 * rim, above, up)
        begin = np.array([x + side * half, y - 0.35 * high])
        along = end - begin
        part = ((xs - begin[0]) * along[0] + (ys - begin[1]) * along[1]) / (along @ along)
        arm = rim + np.clip(part, 0, 1) * (max(wide / 2, rim) - rim)  # as wide as what is left of it beside the face
        hinge = _ARM_WIDE + _HINGE * np.exp(-np.square(part / _HINGE_LONG))
        beside = np.hypot(xs - begin[0] - part * along[0], ys - begin[1] - part * along[1])
        drawn = np.maximum.reduce(
            [drawn, line(distance, rim * (1 + _THICKER * above)), line(beside, arm * hinge) * (part > 0)]
        )
        # Thin rims rest on pads, each on a wire from the inner side of the lens.
        pad = np.array([x - side * (half + _PAD[0] * apart), y + _PAD[1] * apart])
        wire = np.array([x - side * half, y - 0.1 * high]) - pad
        part = np.clip(((xs - pad[0]) * wire[0] + (ys - pad[1]) * wire[1]) / (wire @ wire), 0, 1)
        pads = np.maximum(
            pads, _WIRE * line(np.hypot(xs - pad[0] - part * wire[0], ys - pad[1] - part * wire[1]), 0.7 * rim)
        )
        oval = np.hypot((xs - pad[0]) / _PAD[2], (ys - pad[1]) / _PAD[3]) / apart
        pads = np.maximum(pads, _PAD[4] * np.exp(-np.square(np.square(oval))))
        shadow = np.maximum(shadow, np.exp(-np.square(outline(x, y + _BELOW * apart)[1] / (2.5 * rim))))
    middle, gap = middles[:, 0].mean(), apart / 2 + _OUTSIDE * apart - half
    arch = middles[:, 1].mean() + _LOWER * apart - 0.3 * high - 0.06 * apart * (1 - np.square((xs - middle) / gap))
    drawn = np.maximum(drawn, line(np.abs(ys - arch), rim) * (np.abs(xs - middle) < gap))
    drawn = np.maximum(drawn, pads * (rim < 1.6 * _RIMS[0] * apart))
    drawn *= share * min(1.0, _OPAQUE + (1 - _OPAQUE) * contrast / _CLEAR)
    gleam = 1 + _LIT * up**3  # light comes from above
    out, bright = texture.copy(), np.quantile(texture.reshape(-1, 3), _BRIGHT, axis=0)
    out[rows] *= 1 - _SHADE * share * (shadow * (1 - drawn))[..., None]
    out[rows] += _MIRRORED * share * (1 - tint) * sky[..., None] * (1 - out[rows])
    glass = lens + (_SKY * sky)[..., None] * (np.median(texture[rows].reshape(-1, 3), axis=0) - lens)
    out[rows] += (share * tint * tinted)[..., None] * (glass - out[rows])
    shone = (_SHINE * np.minimum(glint, 1))[..., None]
    rims = np.clip(colour * gleam[..., None], 0, 1)
    out[rows] += drawn[..., None] * (rims + shone * (bright - rims) - out[rows])
    return out


def _sampled(field: Floats, at: Doubles) -> Floats:
    """A field [R,R,2] at places [n,2] of its pixels."""
    x, y = at.T.astype(np.float32)[..., None]
    return np.asarray(cv2.remap(field, x, y, cv2.INTER_LINEAR))[:, 0]


def _rigid(warp: Warp, eyes: Doubles, grid: Floats) -> Floats:
    """Where the frame's pixels would lie in it [R,R,2] on a face without lids and brows that move, and rather flat."""
    apart = eyes[1, 0] - eyes[0, 0]
    x, y = np.moveaxis((warp.grid - eyes.mean(0)) / apart, 2, 0)
    powers = np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], -1)
    near = (np.abs(x) < 0.8) & (np.abs(y) < _AROUND)
    surface = np.linalg.lstsq(powers[near], grid[near], rcond=None)[0]
    surface[3:] *= _CURVED
    bent = (grid - powers @ surface) @ np.linalg.inv(surface[1:3] / apart)
    return np.asarray(warp.grid + np.clip(bent, -_MOST_BENT, _MOST_BENT), np.float32)


def rims_beside(glasses: Floats, source: NDArray[Any], front: Floats) -> list[Doubles]:
    """Outlines [n,2] of where rims may be left beside a new face; arms between them stay.

    Args:
        glasses: float32 [13] of `read_glasses`.
        source: [468,≥2], the mesh that wears them.
        front: float32 [468,2], the mesh in the frame.
    """
    if glasses[0] < SURE:
        return []
    (own, places), out = (_eyes(mesh) for mesh in (front, source[:, :2])), []
    apart, scale = (float(np.linalg.norm(eyes[1] - eyes[0])) for eyes in (places, own))
    turn = np.linspace(0, 2 * np.pi, 48)
    for place, eye, arm in zip(places, own, glasses[1:3], strict=True):
        x, y = np.stack([np.cos(turn), np.sin(turn)]) * np.array(_COVERED)[:, None] + ((0,), (_LOWER,))
        level = (arm - eye[1]) / scale
        for part in (y < level - _ARM_HIGH, y > level + _ARM_HIGH):
            if part.sum() > 2:
                out.append(place + apart * np.column_stack([x, y])[part])
    return out


def _eyes(front: Floats) -> Doubles:
    """Middles [2,2] of the eyes in the frame."""
    return np.array([np.asarray(front, np.float64)[contour].mean(0) for contour in (LEFT_EYE, RIGHT_EYE)])
