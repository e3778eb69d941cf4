"""YuNet: a small, fast face detector, run by OpenCV (`cv2.FaceDetectorYN`) from an ONNX file of the user's."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from ficgan.errors import InputError
from ficgan.faces.detection import FaceDetector, Image
from ficgan.faces.models import find_model, model_folders, require_cpu
from ficgan.faces.pyramid import PyramidDetector, Rows

_FILES = ("yunet_n.onnx", "face_detection_yunet*.onnx", "yunet*.onnx")
# On 16 annotated photos recall .91, on 19 without a face three false boxes; chosen on these same photos.
_THRESHOLD = 0.65
_OPENING = threading.Lock()  # the level of OpenCV's messages is one for all threads


def missing() -> str | None:
    """None, or which file belongs where."""
    if find_model(*_FILES):
        return None
    return (
        "The detector yunet needs face_detection_yunet_2023mar.onnx (from the OpenCV model zoo): "
        f"put it into {model_folders()[-1]} or name its folder in $FICGAN_MODELS."
    )


def build(threshold: float | None, scale: float | None, device: str) -> FaceDetector:
    """The detector; see `ficgan.faces.get_detector`."""
    require_cpu("yunet", device)
    threshold = _THRESHOLD if threshold is None else threshold
    return PyramidDetector("yunet", _YuNet(threshold), threshold=threshold, scale=scale)


class _YuNet:
    """One pass of the network over an image whose sides are multiples of 32.

    OpenCV's network keeps the size and the buffers of its input, so each thread has one of its own.
    """

    def __init__(self, threshold: float):
        path = find_model(*_FILES)
        assert path is not None  # build() follows missing()
        self._path, self._threshold, self._own = path, threshold, threading.local()
        self._own.network = self._opened()  # a damaged file is known at once

    def _opened(self) -> Any:
        import cv2

        with _OPENING:
            level = cv2.utils.logging.getLogLevel()
            cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_ERROR)  # OpenCV 5 warns: it ignores its targets
            try:
                # The suppression over all passes is the pyramid's; here it only thins out.
                return cv2.FaceDetectorYN.create(str(self._path), "", (320, 320), max(self._threshold, 0.0), 0.9, 5000)
            except cv2.error as error:
                raise InputError(f"OpenCV cannot open {self._path} as a YuNet model: replace the file.") from error
            finally:
                cv2.utils.logging.setLogLevel(level)

    def __call__(self, image: Image) -> Rows:
        if not hasattr(self._own, "network"):
            self._own.network = self._opened()
        self._own.network.setInputSize((image.shape[1], image.shape[0]))
        _, found = self._own.network.detect(np.ascontiguousarray(image[:, :, ::-1]))
        if found is None:
            return np.zeros((0, 15))
        # x, y, width, height, five landmarks, score
        x, y, width, height = found[:, :4].T
        return np.column_stack([x, y, x + width, y + height, found[:, 14], found[:, 4:14]])
