"""Covers over faces, and what is no face and is covered, too: plates, screens, found by a detector of the user's.

A blurred or a blocky cover can be reversed; one of one colour cannot. Detectors are read from ONNX.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import cv2
import numpy as np
from numpy.typing import NDArray

from ficgan.device import onnx_session
from ficgan.errors import InputError, UsageError, reason
from ficgan.faces.crops import Paste, check_mask_scale, mix, nothing
from ficgan.faces.detection import Face, Image

Colour = tuple[int, int, int]

# Detectors' boxes end at the brow and the chin; this brings hairline and ears under the mask.
_MARGIN = 1.3
# Widths of soft edges of covers, and of those in one colour beside the face, as a fraction of the cover's size.
_FEATHER, _PLAIN_FEATHER = 0.1, 0.2
# Standard deviation of a blurred cover and blocks of a mosaic, for the longer side of the face's box.
_BLUR, _BLOCKS = 0.12, 8
# Widest Gaussian in pixels that is computed at full size.
_SIGMA = 4.0


def cover_face(
    image: Image, face: Face, mode: str, *, colour: Colour | None = None, blur: float = _BLUR, mask_scale: float = 1.0
) -> Paste:
    """A photo [H, W, 3] with a face covered: the box and landmarks beyond it, times 1.3 and `mask_scale`.

    Args:
        mode: "plain", one colour in the shape of a head; "black" or "solid"; "blur" or "mosaic", which can be reversed.
        colour: RGB of a plain cover; None: that of `colour_beside` the face.
        blur: standard deviation of a blur, for the box's longer side.
    """
    check_mask_scale(mask_scale)
    plain = mode == "plain"
    feather = _PLAIN_FEATHER if plain else _FEATHER
    low, high, marks = _extent(face)
    centre, sides = (low + high) / 2, (high - low).clip(1)
    half = sides / 2 * _MARGIN * mask_scale
    height, width = image.shape[:2]
    reach = half * (1 + feather) + 2
    x0, y0 = (int(v) for v in np.floor(centre - reach).clip(0, (width, height)))
    x1, y1 = (int(v) for v in np.ceil(centre + reach).clip(0, (width, height)))
    if x1 <= x0 or y1 <= y0:
        return nothing(image)
    rows, columns = np.ogrid[y0:y1, x0:x1]
    across, down = ((columns + 0.5 - centre[0]) / half[0]) ** 2, ((rows + 0.5 - centre[1]) / half[1]) ** 2
    # 1 on the edge: of an ellipse, if there are landmarks and it hides them, else of a super-ellipse of exponent 4, a
    # rounded rectangle that holds the box.
    if plain and len(marks) and (((marks - centre) / half) ** 2).sum(1).max() <= 0.9:
        radius = np.sqrt((across + down).astype(np.float32))
    else:
        radius = np.sqrt(np.sqrt((across**2 + down**2).astype(np.float32)))
    edge = max(feather, 1.0 / float(half.min()))
    ramp = ((1 + edge - radius) / edge).clip(0, 1)
    region, side = image[y0:y1, x0:x1], float(sides.max())
    if mode == "blur":
        cover = _blurred(region, max(blur * side, 0.5))
    elif mode == "mosaic":
        cover = _in_blocks(region, side)
    else:
        cover = np.full_like(region, (colour or colour_beside([(image, face)])) if plain else 0)
    return mix(image, x0, y0, cover, ramp * ramp * (3 - 2 * ramp))


def colour_beside(views: Iterable[tuple[Image, Face]]) -> Colour:
    """The median RGB colour of the skin of neck or ears beside a face in several photos, or else of what lies below."""
    parts = [_beside(image, face) for image, face in views]
    neck, ears = (np.concatenate(part) for part in zip(*parts, strict=True))
    near = np.concatenate([neck, ears])
    found = neck if len(neck) else near
    for part in (near, neck):
        skin = part[_like_skin(part)]
        if len(skin) > _LEAST_SKIN * len(part):
            found = skin
    if not len(found):  # the face fills the picture
        return 128, 128, 128
    red, green, blue = np.median(found, axis=0).round().astype(int)
    return int(red), int(green), int(blue)


# Share of the pixels below or beside a face that must look like skin for the others not to count.
_LEAST_SKIN = 0.2
# About how many pixels of a line or a column beside a face are read.
_SAMPLES = 64


def _beside(image: Image, face: Face) -> tuple[Image, Image]:
    """Pixels [n, 3] below the box of a face, and on both sides of its lower half."""
    low, high, _ = _extent(face)
    width, height = high - low
    # The box is widened to whole pixels: none that it touches is read.
    (x0, y0), (x1, y1) = np.floor(low).astype(int), np.ceil(high).astype(int)
    side, below, inwards = max(1, round(0.15 * width)), max(1, round(0.3 * height)), round(0.2 * width)
    middle, step = (y0 + y1) // 2, max(1, int(max(width, height)) // _SAMPLES)

    def part(left: int, top: int, right: int, bottom: int) -> Image:
        return image[max(top, 0) : max(bottom, 0) : step, max(left, 0) : max(right, 0) : step].reshape(-1, 3)

    ears = part(x0 - side, middle, x0, y1), part(x1, middle, x1 + side, y1)
    return part(x0 + inwards, y1, x1 - inwards, y1 + below), np.concatenate(ears)


def _like_skin(pixels: Image) -> NDArray[np.bool_]:
    """[n] whether RGB pixels [n, 3] have the hue of skin (Chai and Ngan 1999)."""
    red, green, blue = pixels.astype(np.float32).T
    cb = 128 - 0.168736 * red - 0.331264 * green + 0.5 * blue
    cr = 128 + 0.5 * red - 0.418688 * green - 0.081312 * blue
    return np.asarray((cb >= 77) & (cb <= 127) & (cr >= 133) & (cr <= 173))


def _extent(face: Face) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Corners of what a cover hides, which is the box and landmarks beyond it, and the landmarks [n, 2]."""
    box, marks = np.asarray(face.box, dtype=np.float64), np.asarray(face.landmarks, dtype=np.float64)
    most = (box[2:] - box[:2]).clip(1) / 2  # landmarks farther away are no part of this face
    marks = marks[((marks >= box[:2] - most) & (marks <= box[2:] + most)).all(1)]
    return np.vstack([box[:2], marks]).min(0), np.vstack([box[2:], marks]).max(0), marks


def _in_blocks(region: Image, side: float) -> Image:
    """Eight blocks of their mean colour along a side."""
    height, width = region.shape[:2]
    block = max(1.0, side / _BLOCKS)
    size = max(1, round(width / block)), max(1, round(height / block))
    small = cv2.resize(region, size, interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.resize(small, (width, height), interpolation=cv2.INTER_NEAREST))


def _blurred(region: Image, sigma: float) -> Image:
    """Gaussian blur; a wide one on a reduced copy, which looks the same and costs a fraction."""
    height, width = region.shape[:2]
    factor = max(1.0, sigma / _SIGMA)
    small = max(1, round(width / factor)), max(1, round(height / factor))
    reduced = region if small == (width, height) else cv2.resize(region, small, interpolation=cv2.INTER_AREA)
    sigmas = sigma * small[0] / width, sigma * small[1] / height
    blurred: Any = cv2.GaussianBlur(reduced, (0, 0), sigmas[0], sigmaY=sigmas[1], borderType=cv2.BORDER_REPLICATE)
    if small != (width, height):
        blurred = cv2.resize(blurred, (width, height), interpolation=cv2.INTER_LINEAR)
    return blurred


# -- what is no face and is covered, too -------------------------------------------------------------------------------

# Least score of a find: what such networks are exported with. It is low, since a missed object stays in the picture.
LEAST_SCORE = 0.25
# Boxes that overlap more (intersection over union) are one object, of whatever class.
OVERLAP = 0.45
# Grey of the border around a picture that does not fill the network's input, as in training.
GREY = 114
# Of a network without a fixed size: its stride, and the longest side at which it looks, pixels.
STRIDE, LONGEST = 32, 1280


class ObjectDetector:
    """A detector of objects called `name`, for a `cover` of `COVERS`, of one of two kinds of ONNX files.

    A YOLOv8 export has [1, 4 + classes, N]: centre, width and height, then a score for each class, not yet thinned out.
    An end-to-end export has [1, N, 6]: x0, y0, x1, y1, score, class. Both in pixels of the network's input
    [1, 3, H, W], RGB from 0 to 1, into which a picture is fitted with a grey border. All classes count. Any other file
    is a UsageError.
    """

    def __init__(self, file: str | Path, name: str, cover: str = "plain", *, device: str = "cpu") -> None:
        self.file, self.name, self.cover, self._device = Path(file), name, cover, device
        if not self.file.is_file():
            raise UsageError(f"--cover-also {name}: {file} is no file; name an ONNX model")
        try:
            self._session = onnx_session(self.file, device)
        except InputError as error:
            raise UsageError(f"--cover-also {name}: {error}") from error
        self._check()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), device=self._device), (self.file, self.name, self.cover)  # a session stays here

    def _check(self) -> None:
        """Refuse a network of another kind, by what it says of itself and what it makes of a grey picture."""
        task = self._session.get_modelmeta().custom_metadata_map.get("task", "detect")
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if len(inputs) != 1 or len(outputs) != 1 or task != "detect":
            self._refuse(f"it has {len(inputs)} inputs and {len(outputs)} outputs, and was made to {task}")
        entry = inputs[0]
        try:
            self._input, self._type = entry.name, np.float16 if entry.type == "tensor(float16)" else np.float32
            self._sides = tuple(side if isinstance(side, int) and side > 0 else None for side in entry.shape[2:])
            made = self._run(np.full((self._sides[0] or 320, self._sides[1] or 640, 3), GREY, np.uint8))
        except Exception as error:  # onnxruntime raises many private classes
            self._refuse(f"it cannot look at a picture [1, 3, H, W] of floats ({reason(error)[:120]})")
        self._end_to_end = made.shape[2:] == (6,)
        fits = self._end_to_end or (made.ndim == 3 and 5 <= made.shape[1] < made.shape[2])
        if len(made) != 1 or not fits:
            self._refuse(f"its output has the shape {list(made.shape)}")
        scores = made[0, :, 4] if self._end_to_end else made[0, 4:]
        if scores.size and not (scores.min() >= -1e-3 and scores.max() <= 1.001):  # also false for NaN
            self._refuse("what should be scores from 0 to 1 is not")

    def _refuse(self, why: str) -> NoReturn:
        raise UsageError(
            f"--cover-also {self.name}: {self.file.name} is no detector that can be read: {why}; give a YOLOv8 export "
            "[1, 4 + classes, N] or boxes [1, N, 6] (x0, y0, x1, y1, score, class)"
        )

    def detect(self, image: Image) -> list[Face]:
        """Objects in an H×W×3 uint8 RGB image, the best score first.

        Their landmarks are corners and middle of the box: a cover has to hold those, and no face is drawn by them.
        """
        height, width = image.shape[:2]
        shrink = min(1.0, LONGEST / max(height, width))
        sizes = (max(STRIDE, math.ceil(side * shrink / STRIDE) * STRIDE) for side in (height, width))
        high, wide = (fixed or size for fixed, size in zip(self._sides, sizes, strict=True))
        factor = min(high / height, wide / width)
        size = max(1, round(width * factor)), max(1, round(height * factor))
        left, top = (wide - size[0]) // 2, (high - size[1]) // 2
        how = cv2.INTER_AREA if factor < 1 else cv2.INTER_LINEAR
        canvas = np.full((high, wide, 3), GREY, np.uint8)
        canvas[top : top + size[1], left : left + size[0]] = cv2.resize(image, size, interpolation=how)
        boxes, scores = self._read(self._run(canvas)[0])
        ratio = np.tile([width / size[0], height / size[1]], 2)
        boxes = ((boxes - np.tile([left, top], 2)) * ratio).clip(0, np.tile([width, height], 2))
        sound = np.isfinite(boxes).all(1) & (scores >= LEAST_SCORE) & (boxes[:, 2:] - boxes[:, :2] >= 1).all(1)
        boxes, scores = boxes[sound], scores[sound]
        corners = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1)
        kept = cv2.dnn.NMSBoxes(corners.tolist(), scores.tolist(), LEAST_SCORE, OVERLAP) if len(boxes) else ()
        found = []
        for n in np.ravel(kept).astype(int):
            x0, y0, x1, y1 = box = boxes[n].astype(np.float32)
            marks = [(x0, y0), (x1, y0), ((x0 + x1) / 2, (y0 + y1) / 2), (x0, y1), (x1, y1)]
            found.append(Face(box, np.array(marks, np.float32), float(scores[n])))
        return found

    def _run(self, canvas: Image) -> NDArray[np.float32]:
        pixels = np.ascontiguousarray(canvas.transpose(2, 0, 1)[None] / np.float32(255), self._type)
        return np.asarray(self._session.run(None, {self._input: pixels})[0], np.float32)

    def _read(self, made: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Boxes [n,4] as corners and scores [n] of an output without its first axis."""
        if self._end_to_end:
            rows = made.astype(np.float64)
            return rows[:, :4], rows[:, 4]
        rows = made.T.astype(np.float64)
        middle, half = rows[:, :2], rows[:, 2:4] / 2
        return np.concatenate([middle - half, middle + half], 1), rows[:, 4:].max(1)
