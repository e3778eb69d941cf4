"""What is no face and is covered, too: plates, screens, found by a detector of the user's that is read from ONNX."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ficgan.device import onnx_session
from ficgan.errors import InputError, UsageError, reason
from ficgan.faces.detection import Face, Image, check_image

# Least score of a find: what such networks are exported with. It is low, since a missed object stays in the picture.
LEAST_SCORE = 0.25
# Boxes that overlap more (intersection over union) are one object, of whatever class.
OVERLAP = 0.45
# Grey of the border around a picture that does not fill the network's input, as in training.
GREY = 114
# Of a network without a fixed size: its stride, and the longest side at which it looks, pixels.
STRIDE, LONGEST = 32, 1280
# Height and width of the picture with which a file is tried, where the network fixes no side.
TRIAL = (320, 640)
# Columns of a box of an end-to-end export: x0, y0, x1, y1, score, class.
_END_TO_END = 6
# Fewest channels of a YOLOv8 export: centre, width and height, and the score of one class.
_FEWEST = 5
_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class ObjectDetector:
    """A detector of objects, of one of two kinds of ONNX files, told apart by their output.

    A YOLOv8 export has [1, 4 + classes, N]: centre, width and height, then a score for each class, not yet thinned out.
    An end-to-end export has [1, N, 6]: x0, y0, x1, y1, score, class. Both in pixels of the network's input
    [1, 3, H, W], RGB from 0 to 1, into which a picture is fitted with a grey border. All classes count.

    Args:
        file: the network.
        name: what it finds, such as "plates".
        cover: what covers a find, one of `ficgan.anonymizers.modes.COVERS`.
        device: see `ficgan.device.onnx_session`.

    Raises:
        UsageError: the file is missing, no ONNX model, or a network of another kind.
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
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        shape = inputs[0].shape if inputs else []
        if len(inputs) != 1 or len(shape) != 4 or inputs[0].type not in _TYPES or shape[1] not in (3, None):
            self._refuse("its input is not one picture [1, 3, H, W] of floats")
        if len(outputs) != 1:
            self._refuse(f"it has {len(outputs)} outputs, and one is read")
        task = self._session.get_modelmeta().custom_metadata_map.get("task", "detect")
        if task != "detect":
            self._refuse(f"it says that it was made to {task}, and not to detect")
        self._type = _TYPES[inputs[0].type]
        self._sides = tuple(side if isinstance(side, int) and side > 0 else None for side in shape[2:])
        trial = np.full((*(side or usual for side, usual in zip(self._sides, TRIAL, strict=True)), 3), GREY, np.uint8)
        try:
            made = self._run(trial)
        except Exception as error:  # onnxruntime raises many private classes
            self._refuse(f"it cannot look at a picture ({reason(error)[:120]})")
        if made.ndim != 3 or made.shape[0] != 1:
            self._refuse(f"its output has the shape {list(made.shape)}")
        self._end_to_end = made.shape[2] == _END_TO_END
        if not self._end_to_end and not _FEWEST <= made.shape[1] < made.shape[2]:
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
        import cv2

        image = check_image(image)
        height, width = image.shape[:2]
        high, wide = (side or _fitting(image.shape, axis) for axis, side in enumerate(self._sides))
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
        return [_object(boxes[n].astype(np.float32), float(scores[n])) for n in np.ravel(kept).astype(int)]

    def _run(self, canvas: Image) -> NDArray[np.float32]:
        pixels = np.ascontiguousarray(canvas.transpose(2, 0, 1)[None] / np.float32(255), self._type)
        return np.asarray(self._session.run(None, {self._session.get_inputs()[0].name: pixels})[0], np.float32)

    def _read(self, made: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Boxes [n,4] as corners and scores [n] of an output without its first axis."""
        if self._end_to_end:
            rows = made.astype(np.float64)
            return rows[:, :4], rows[:, 4]
        rows = made.T.astype(np.float64)
        middle, half = rows[:, :2], rows[:, 2:4] / 2
        return np.concatenate([middle - half, middle + half], 1), rows[:, 4:].max(1)


def _fitting(shape: tuple[int, ...], axis: int) -> int:
    """A side of the input for a picture of this shape, where the network fixes none."""
    factor = min(1.0, LONGEST / max(shape[:2]))
    return max(STRIDE, math.ceil(shape[axis] * factor / STRIDE) * STRIDE)


def _object(box: NDArray[np.float32], score: float) -> Face:
    x0, y0, x1, y1 = box
    marks = [(x0, y0), (x1, y0), ((x0 + x1) / 2, (y0 + y1) / 2), (x0, y1), (x1, y1)]
    return Face(box, np.array(marks, np.float32), score)
