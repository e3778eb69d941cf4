"""Where the parts of a face lie in the canonical frame: outlines of the mean face, as masks and as pixels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import blurred
from ficgan.faces.mesh import FACE_OVAL, LEFT_BROW, LEFT_EYE, LIPS_INNER, RIGHT_BROW, RIGHT_EYE
from ficgan.frame import HI, LO, FaceShape, Floats, Warp

# Units from an eye's corners, the edges of its lids, points of a brow, of nostrils, and of the folds of a smile, within
# which lies what belongs to it; over which that ends.
_EYES, _LASHES, _BROWS, _RIMS, _FOLDS, FADE = 12.0, 2.5, 6.0, 2.0, 9.0, 4.0
# Of the mesh: outlines of the lips; between the brows; of forehead, cheeks, nose and around the mouth. Marks below
# the nose and along the folds of a smile, and along the brows.
_LIPS = [61, 185, 40, 39, 37, 0, 267, 269, 270, 409, 291, 375, 321, 405, 314, 17, 84, 181, 91, 146]
_BETWEEN = [107, 108, 151, 337, 336, 285, 8, 55]
_SKIN = (
    [54, 103, 67, 109, 10, 338, 297, 332, 284, 334, 296, 336, 9, 107, 66, 105],
    [116, 117, 118, 119, 100, 203, 205, 187, 123],
    [345, 346, 347, 348, 329, 423, 425, 411, 352],
    [193, 48, 64, 2, 294, 278, 417],
    [203, 423, 436, 432, 395, 152, 170, 212, 216],
)
# Blur, in pixels, by which skin between the parts is shared out among them.
_BETWEEN_PARTS = 8.0
_NOSTRILS = [240, 166, 239, 20, 99], [460, 392, 459, 250, 328]
_FOLD_LINE = [2, 97, 326, 164, 206, 426, 216, 436, 212, 432, 207, 427, 214, 434, 102, 331, 129, 358, 64, 294]
_BROW_LINE = np.concatenate([LEFT_BROW[:5], RIGHT_BROW[:5]])


class FinePlaces(NamedTuple):
    """Where fine detail is measured: flat indices of skin, of eyes and brows, and of the forehead.

    And float32 [n,n], 1 on lids, around eyes and brows, on lashes, brows and rims of nostrils, on the forehead, on
    lips, below the nose and where smiles have folds, and on brows.
    """

    skin: NDArray[np.int64]
    eyes: NDArray[np.int64]
    forehead: NDArray[np.int64]
    on_lids: Floats
    around_eyes: Floats
    on_lashes: Floats
    on_forehead: Floats
    on_folds: Floats
    on_brows: Floats


class FrameParts:
    """The parts of the mean face of a model, by its `shape` and the side R of its frame, `size`."""

    shape: FaceShape
    size: int

    @cached_property
    def warp(self) -> Warp:
        """Between frame and upright coordinates."""
        return Warp(self.shape.front, self.size)

    @cached_property
    def mask(self) -> Floats:
        """float32 [R,R], how much of each pixel of the frame is replaced."""
        return frame_mask(self.shape.front, self.size, inset=2.0, feather=2.5)

    @cached_property
    def pixels(self) -> NDArray[np.int64]:
        """Flat indices [P] of the frame's pixels that the model knows."""
        return model_pixels(self.shape.front, self.size)

    @cached_property
    def fine_pixels(self) -> NDArray[np.int64]:
        """Flat indices [Q] of the doubled frame's pixels that lie well inside the outline and not in the mouth."""
        inside = frame_mask(self.shape.front, 2 * self.size, inset=3.0, feather=1.0) > 0.5
        scale = (2 * self.size - 1) / (np.array(HI) - LO)
        mouth = np.rint((np.asarray(self.shape.front)[LIPS_INNER] - LO) * scale * 16).astype(np.int32)
        cv2.fillPoly(closed := np.zeros(inside.shape, np.uint8), [mouth], 1, shift=4)
        return np.flatnonzero((inside & (closed == 0)).ravel())

    @cached_property
    def fine_mask(self) -> Floats:
        """float32 [2R,2R], how much of each pixel of the doubled frame gets detail of a network."""
        return frame_mask(self.shape.front, 2 * self.size, inset=1.5, feather=1.0)

    def _near(self, marks: Sequence[int] | NDArray[np.intp], reach: float) -> Floats:
        """float32 [2R,2R], 1 within a reach of points of the mesh, fading over a few units."""
        y, x = np.mgrid[: 2 * self.size, : 2 * self.size]
        place = np.stack([x, y], -1) * self.warp.step_of(2 * self.size) + LO
        apart = np.linalg.norm(place[:, :, None] - self.shape.front[np.asarray(marks)], axis=3).min(2) - reach
        return np.clip(-apart / FADE, 0, 1).astype(np.float32)

    @cached_property
    def _on_lids(self) -> Floats:
        return self._near((33, 133, 362, 263), _EYES)

    @cached_property
    def _around_eyes(self) -> Floats:
        """float32 [2R,2R], 1 around eyes and brows."""
        return np.maximum(self._on_lids, self._near(_BROW_LINE, _BROWS))

    @cached_property
    def not_skin(self) -> Floats:
        """float32 [R,R], 1 around eyes and brows and on the lips."""
        out = cv2.resize(self._around_eyes, (self.size, self.size), interpolation=cv2.INTER_AREA)
        self._fill(out, _LIPS, 1.0)
        return out

    @cached_property
    def well_inside(self) -> Floats:
        """float32 [R,R], 1 where all is replaced, 0 from where half is."""
        return np.clip(2 * self.mask - 1, 0, 1)

    @cached_property
    def lendable(self) -> Floats:
        """float32 [R,R], 1 well within the outline; 0 in the openings of eyes and mouth, and where a frown lies."""
        drawn = self.drawn((LEFT_EYE, 1.0), (RIGHT_EYE, 1.0), (LIPS_INNER, 1.0), soft=1.0)
        return self.well_inside * blurred(self.well_inside, 2.0) * (1 - drawn) * (1 - self.between_brows)

    @cached_property
    def lips(self) -> Floats:
        """float32 [R,R], 1 on the lips, ending over a unit or two."""
        return self.drawn((_LIPS, 1.0), (LIPS_INNER, 0.0), soft=1.0)

    @cached_property
    def nostrils(self) -> Floats:
        """float32 [2,R,R], 1 in the left and in the right nostril of the picture, ending over a unit or two."""
        return np.stack([self.drawn((outline, 1.0), soft=1.0) for outline in _NOSTRILS])

    @cached_property
    def skin_parts(self) -> Floats:
        """float32 [6,R,R], shares of skin on forehead, cheeks, nose and around the mouth, and of eyes and brows.

        They end over some units.
        """
        parts = np.stack([self.drawn((outline, 1.0), soft=3.0) for outline in _SKIN])
        parts += np.float32(1e-3) + np.float32(0.02) * np.stack([blurred(part, _BETWEEN_PARTS) for part in parts])
        eyes = cv2.resize(self._around_eyes, (self.size, self.size), interpolation=cv2.INTER_AREA)
        skin = self.well_inside * (1 - self.not_skin)
        return np.concatenate([skin * parts / parts.sum(0), eyes[None]]).astype(np.float32)

    @cached_property
    def nose(self) -> Floats:
        """float32 [R,R], 1 on the nose, ending over some units."""
        return np.minimum(2 * self.skin_parts[3], np.float32(1))

    @cached_property
    def on_brows(self) -> Floats:
        """float32 [R,R], 1 on the brows and close to them, ending over a few units."""
        return np.minimum(4 * self.drawn((LEFT_BROW, 1.0), (RIGHT_BROW, 1.0), soft=4.0), np.float32(1))

    @cached_property
    def between_brows(self) -> Floats:
        """float32 [R,R], 1 between the brows, ending over a few units."""
        brows = self.drawn((LEFT_BROW, 1.0), (RIGHT_BROW, 1.0), soft=1.0)
        return self.drawn((_BETWEEN, 1.0), soft=2.0) * (1 - brows)

    def drawn(self, *shapes: tuple[Any, float], soft: float) -> Floats:
        """float32 [R,R], outlines of mesh points filled with values one after the other, blurred."""
        out = np.zeros((self.size, self.size), np.float32)
        for outline, value in shapes:
            self._fill(out, outline, value)
        return cv2.GaussianBlur(out, (0, 0), soft)

    def _fill(self, picture: Floats, outline: Any, value: float) -> None:
        points = np.rint((self.shape.front[outline] - LO) / self.warp.step * 16).astype(np.int32)
        cv2.fillPoly(picture, [points], value, shift=4)

    @cached_property
    def plain_skin(self) -> NDArray[np.int64]:
        """Flat indices of the doubled frame's pixels that are skin: no brows, eyes or lips."""
        side = 2 * self.size
        other = cv2.resize(self.not_skin, (side, side), interpolation=cv2.INTER_LINEAR).ravel()
        return self.fine_pixels[other[self.fine_pixels] < 0.1]

    @cached_property
    def fine_places(self) -> FinePlaces:
        """Where fine detail is measured."""
        pixels, around_eyes, brow = self.fine_pixels, self._around_eyes, float(self.shape.front[_BROW_LINE, 1].mean())
        y = LO[1] + np.arange(2 * self.size) * self.warp.step[1] * (self.size - 1) / (2 * self.size - 1)
        on_forehead = (np.clip((brow - y) / FADE, 0, 1)[:, None] * (1 - around_eyes)).astype(np.float32)
        eyes, forehead = (pixels[places.ravel()[pixels] > 0.5] for places in (around_eyes, on_forehead))
        dark = ([*LEFT_EYE, *RIGHT_EYE], _LASHES), (_BROW_LINE, _BROWS), ([*_NOSTRILS[0], *_NOSTRILS[1]], _RIMS)
        lashes = np.maximum.reduce([self._near(marks, reach) for marks, reach in dark])
        brows, lips = (
            cv2.resize(part, (2 * self.size, 2 * self.size), interpolation=cv2.INTER_LINEAR)
            for part in (self.on_brows, self.lips)
        )
        nose = cv2.resize(self.nose, (2 * self.size, 2 * self.size), interpolation=cv2.INTER_LINEAR)
        folds = np.maximum(self._near(_FOLD_LINE, _FOLDS) * (1 - nose), lips)
        return FinePlaces(pixels, eyes, forehead, self._on_lids, around_eyes, lashes, on_forehead, folds, brows)

    @cached_property
    def places(self) -> Floats:
        """float32 [P,2], where the model's pixels lie, units."""
        y, x = np.divmod(self.pixels, self.size)
        return np.asarray(np.stack([x, y], 1) * self.warp.step + LO, np.float32)

    def close_to(self, marks: Sequence[int], reach: float) -> Floats:
        """float32 [P], how near the model's pixels are to points of the mesh; a Gaussian of a reach, units."""
        apart = np.linalg.norm(self.places[:, None] - self.shape.front[list(marks)], axis=2)
        return np.exp(-0.5 * (apart / reach) ** 2).max(1).astype(np.float32)


def frame_mask(front: NDArray[Any], size: int, *, inset: float = 0.0, feather: float = 1.5) -> Floats:
    """Soft mask [R,R] of the face's outline; `front` [468,2] are the mesh's places, inset and feather frame units."""
    scale = (size - 1) / (np.array(HI) - LO)
    outline = (np.asarray(front)[FACE_OVAL] - LO) * scale
    mask = np.zeros((size, size), np.float32)
    cv2.fillPoly(mask, [np.rint(outline * 16).astype(np.int32)], 1.0, shift=4)
    if inset > 0:
        radius = max(1, round(inset * float(scale[0])))
        kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1, 2 * radius + 1))
        mask = cv2.erode(mask, kernel, borderType=cv2.BORDER_CONSTANT, borderValue=0)
    return cv2.GaussianBlur(mask, (0, 0), feather * float(scale[0]))


def model_pixels(front: NDArray[Any], size: int) -> NDArray[np.int64]:
    """Flat indices [P] of the frame's pixels under the widest mask."""
    return np.flatnonzero(frame_mask(front, size).ravel() > 0.02)
