"""SCRFD, the detector of the insightface model packs, from a pack that is already on the disk.

Source: Guo et al., Sample and Computation Redistribution for Efficient Face Detection, 2021. The network reads
(RGB - 127.5) / 128 and gives, at strides 8, 16 and 32 with two anchors a cell, scores, distances from the cell's origin
to the four sides of the box, and five landmarks relative to it, all in strides.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ficgan.errors import InputError
from ficgan.faces.detection import FaceDetector, Image
from ficgan.faces.models import insightface_file, onnx_session
from ficgan.faces.pyramid import Plan, PyramidDetector, Rows

_FILES = ("det_*.onnx", "scrfd*kps*.onnx")
_STRIDES = (8, 16, 32)
_ANCHORS = 2
_THRESHOLD = 0.5


def missing() -> str | None:
    """None, or which folder belongs where."""
    if insightface_file(*_FILES):
        return None
    return (
        "The detector insightface needs a model pack on the disk: unpack buffalo_l into ~/.insightface/models "
        "or into a folder named in $FICGAN_MODELS."
    )


def build(threshold: float | None, scale: float | None, device: str) -> FaceDetector:
    """The detector; see `ficgan.faces.get_detector`."""
    path = insightface_file(*_FILES)
    assert path is not None  # build() follows missing()
    threshold = _THRESHOLD if threshold is None else threshold
    search = _Scrfd(path, device, threshold)
    # A file exported for one size sees tiles of that size.
    plan = Plan(tile=search.side, overlap=search.side // 4) if search.side else Plan()
    return PyramidDetector("insightface", search, threshold=threshold, scale=scale, plan=plan)


class _Scrfd:
    """One pass of the network over an image whose sides are multiples of 32."""

    def __init__(self, path: Path, device: str, threshold: float):
        self._session = onnx_session(path, device)
        self._threshold = threshold
        entry = self._session.get_inputs()[0]
        self._input = entry.name
        self.side = entry.shape[2] if isinstance(entry.shape[2], int) else None
        if len(self._session.get_outputs()) != 3 * len(_STRIDES):
            raise InputError(f"{path} is not an SCRFD detector with landmarks: use the detector of another pack.")

    def __call__(self, image: Image) -> Rows:
        if self.side:
            image = np.pad(image, [(0, self.side - image.shape[0]), (0, self.side - image.shape[1]), (0, 0)])
        x = (image.astype(np.float32).transpose(2, 0, 1)[None] - 127.5) / 128
        outputs = self._session.run(None, {self._input: x})
        found = []
        for level, stride in enumerate(_STRIDES):
            rows, columns = image.shape[0] // stride, image.shape[1] // stride
            scores, sides, marks = (outputs[level + len(_STRIDES) * kind] for kind in range(3))
            scores = scores.reshape(-1)
            keep = np.flatnonzero(scores >= self._threshold)
            y, x_ = np.divmod(keep // _ANCHORS, columns)
            assert len(scores) == rows * columns * _ANCHORS
            origin = np.stack([x_, y], axis=1) * stride
            sides = sides.reshape(-1, 4)[keep] * stride
            points = marks.reshape(-1, 5, 2)[keep] * stride + origin[:, None]
            found.append(
                np.column_stack(
                    [origin - sides[:, :2], origin + sides[:, 2:], scores[keep], points.reshape(-1, 10) - 0.5]
                )
            )
        return np.concatenate(found)
