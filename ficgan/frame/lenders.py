"""Fine detail of new faces: relief, which one face can lend another, and the synthetic faces that lend it and teeth.

Relief is fine detail as a share of the light around. Pictures here are luminances [n,n] in [0,1]. A fine one has twice
the side of the frame.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import luminance
from ficgan.errors import InputError
from ficgan.faces import Alignment, MediaPipeMesh, find_meshes, get_recognizer
from ficgan.faces.mesh import GOOD_PRESENCE
from ficgan.frame.appearance import COVERED, TONE_UNIT, AppearanceModel, FinePlaces, Lender
from ficgan.frame.compose import read_texture
from ficgan.frame.drawn import TEETH_UNIT, read_teeth, teeth_of
from ficgan.frame.fit import images_of
from ficgan.identity.kind import AGE, ETHNICITIES, MALE, Kind, kind_reader

if TYPE_CHECKING:
    from ficgan.data import FaceData

Floats = NDArray[np.float32]

# Standard deviation, in pixels of a fine picture, of the blur that leaves fine detail behind.
_FINE = 2.2
# The same of the blur whose colours detail has.
_TINT = 4.0
# Luminance that is added to light: what is nearly black has no relief.
_DARK = 0.03
# Width of what lies around a place, of the side; difference in logarithms at which a lender's detail no longer fits.
_AROUND, _DARKER = 0.055, 0.22


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


# Faces that lend their detail; share of those that may, by how ordinary it is; share of a face that may be unlike the
# model: wrinkles are, as are glasses.
LENDERS, _ODDEST, _UNLIKE = 96, 0.9, 3 * COVERED
# Most turn of a face that lends anything, radians.
_FRONTAL = 0.3
# Opening of a mouth, in its widths, and brightness of its teeth above the dark, from which on they can be lent.
_OPEN, _CLEAR = 0.13, 0.2
# Lenders of the nearest kinds, and how many of them fit best: one of these lends its detail. What a wholly different
# ethnic group and gender weigh beside a visible difference of age.
_NEAREST, _FITTING, _ETHNICITY, _GENDER = 7, 3, 1.5, 3.0


def lender_of(model: AppearanceModel, code: Floats, kind: Floats, lot: float) -> int:
    """Number of the face that lends its detail to another one.

    Of those of much the same kind it is one of those whose brows, eyes and lips lie most where the new face's do.

    Args:
        code: [D] of the new face; kind: [9], its kind as a reading.
        lot: in [0,1), draws among those that fit.
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
    best = near[np.argsort(fits)[::-1][:_FITTING]]
    return int(best[int(lot * len(best)) % len(best)])


def lend(
    model: AppearanceModel, data: FaceData, mesh: MediaPipeMesh, number: int = LENDERS
) -> tuple[AppearanceModel, list[str]]:
    """The model with the fine detail and the teeth of aligned synthetic faces, and the names of those that lend detail.

    Of each kind of person, as far as there are faces, those lend detail that is closest to the median. Faces that
    something lies over lend none, but may lend teeth.

    Args:
        data: faces of at least twice the frame's size.
        number: how many lend detail, at most.
    """
    gate, corners = get_recognizer("dlib"), Alignment().points(data.resolution).astype(np.float32)
    details, tones, embeddings, mouths, names = [], [], [], [], []
    for name, image in zip(data.names, images_of(data), strict=True):
        found = find_meshes(mesh, image, corners[None])[0]
        if found.presence < GOOD_PRESENCE:
            continue
        read = model.shape.read(found.points[None])
        if abs(float(read.pose.yaw[0])) > _FRONTAL:
            continue
        small, double = (read_texture(image, read.upright[0], read.points[0], model.warp, finer=n) for n in (1, 2))
        mouths.append((*teeth_of(image, found.points), read_teeth(small, model.mask, model.shape.front, model.warp)))
        if model.uncovered(small, read)[1] > _UNLIKE:
            continue
        grey = luminance(double) / np.float32(255)
        details.append(relief_of(grey).ravel()[model.fine_pixels])
        tones.append(tone_of(grey, model.size // 2))
        embeddings.append(gate.embed(image, corners[None])[0])
        names.append(name)
    if not details:
        raise InputError("no face of the detail set is clear enough: give aligned, frontal faces")
    table, kinds = np.stack(details), kind_reader().read(np.stack(embeddings).astype(np.float32))
    rows = _typical(table, kinds, number)
    scale = float(np.quantile(np.abs(table[rows]), 0.9995)) / 127
    teeth, openings = _open_mouths(mouths)
    lent = replace(
        model,
        details=_steps(table[rows] / scale),
        detail_tones=_steps(TONE_UNIT * np.stack(tones)[rows]),
        lenders=kinds[rows],
        detail_scale=scale,
        teeth=teeth,
        teeth_openings=openings,
    )
    return lent, [names[row] for row in rows]


def _steps(values: Floats) -> NDArray[np.int8]:
    return np.clip(np.rint(values), -127, 127).astype(np.int8)


def _typical(table: Floats, kinds: Floats, number: int) -> NDArray[np.int64]:
    """Rows of the faces that lend their detail: of each kind those with the most typical one.

    Args:
        table: float32 [N,Q], relief of the faces; kinds: float32 [N,9], readings of a `KindReader`.

    Returns:
        int64 [≤ number], ascending.
    """
    spread = np.log(table.std(1))
    if len(table) > 2:  # the old have more detail than the young
        spread = spread - np.polyval(np.polyfit(kinds[:, AGE], spread, 1), kinds[:, AGE])
    deviation = np.abs(table - np.median(table, axis=0))
    lines = np.log(np.quantile(deviation, 0.995, axis=1) / table.std(1))  # lines and dots that others have not
    oddness = np.abs(spread - np.quantile(spread, 0.25)) + np.maximum(lines - np.median(lines), 0)
    kept = np.flatnonzero(oddness <= np.quantile(oddness, _ODDEST))
    cells = [Kind.of(kinds[row]).cells.argmax() for row in kept]
    rank, count = np.empty(len(kept), int), Counter[int]()
    for place in np.argsort(oddness[kept], kind="stable"):
        rank[place] = count[cells[place]]
        count[cells[place]] += 1
    return np.sort(kept[np.lexsort([oddness[kept], rank])[:number]])


def _open_mouths(mouths: Sequence[tuple[Floats, float, Floats]], number: int = 12) -> tuple[NDArray[np.uint8], Floats]:
    """Teeth and openings of those mouths that show theirs clearly, the most ordinary ones."""
    shown = [mouth for mouth in mouths if mouth[1] > _OPEN and mouth[2][:3].mean() - mouth[2][3] > _CLEAR]
    if not shown:
        return np.zeros((0, 1, 1), np.uint8), np.zeros(0, np.float32)
    table = np.stack([one[0] for one in shown])
    strange = np.abs(table - np.median(table, axis=0)).mean((1, 2))
    rows = np.sort(np.argsort(strange)[:number])
    steps = np.rint(np.clip(TEETH_UNIT * table[rows], 0, 255)).astype(np.uint8)
    return steps, np.array([shown[row][1] for row in rows], np.float32)
