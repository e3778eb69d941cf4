"""Finding faces: what a detector promises, and which of the back ends is used."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError

# In the order in which "auto" prefers them: the embedded one first, so that files on the disk change no default.
DETECTORS = ("centerface", "insightface", "yunet", "dlib")
_MODULES = {"dlib": "dlib_hog"}

Image = NDArray[np.uint8]  # [H, W, 3] RGB


@dataclass(frozen=True, eq=False)
class Face:
    """A face found in a photo.

    Args:
        box: float32 [4], x0, y0, x1, y1 in pixels, inside the photo.
        landmarks: float32 [5, 2], (x, y) in pixels: eye on the viewer's left, eye on the viewer's right, nose tip,
            mouth corner left, mouth corner right. They may lie outside the photo where the face does.
        score: The detector's confidence; comparable within one detector only.
    """

    box: NDArray[np.float32]
    landmarks: NDArray[np.float32]
    score: float


@runtime_checkable
class FaceDetector(Protocol):
    """Finds the faces of an image."""

    name: str

    def detect(self, image: Image) -> list[Face]:
        """Faces of an H×W×3 uint8 RGB image, sorted by score, highest first; the image is not changed."""
        ...


def get_detector(
    name: str = "auto",
    *,
    threshold: float | None = None,
    scale: float | None = None,
    device: str = "cpu",
    thorough: bool = False,
) -> FaceDetector:
    """A face detector.

    Args:
        name: "centerface", "insightface", "yunet", "dlib", or "auto": the first of these that is available here;
            the detector's own `name` says which it became.
        threshold: Lowest score of a face; None for the back end's own, measured value.
        scale: Factor by which the photo is resized before it is searched, in one pass; None (recommended) searches an
            enlarged version for small faces and a reduced one for large faces.
        device: see `onnx_session`; yunet and dlib run on the CPU only.
        thorough: Search every photo at all scales, as all but CenterFace always do. False: once, and at the others
            where that shows small or doubtful faces, or none. It finds as many of 429 annotated faces, in a quarter of
            the time on portraits.

    Returns:
        A `FaceDetector`.

    Raises:
        UsageError: The name is unknown, the back end is not available here, or an argument cannot work.
    """
    if threshold is not None and not math.isfinite(threshold):
        raise UsageError(f"The detection threshold is {threshold}: give a finite number.")
    if scale is not None and not (math.isfinite(scale) and 0.0 < scale <= 8.0):
        raise UsageError(f"The detection scale is {scale}: give a factor above 0 and at most 8.")
    if name != "auto":
        module = _module(name)
        missing = module.missing()
        if missing:
            raise UsageError(missing)
        return _set(module.build(threshold, scale, device), thorough)
    available = [one for one in DETECTORS if detector_missing(one) is None]
    if device not in ("cpu", "auto"):
        # Only onnxruntime back ends can honour another device; the last one's error says what is wrong with it.
        available = [one for one in available if one in ("insightface", "centerface")]
    if not available:
        raise UsageError("No face detector is available here: install ficgan again.")
    return _set(_module(available[0]).build(threshold, scale, device), thorough)


def _set(detector: FaceDetector, thorough: bool) -> FaceDetector:
    # The landmarks of the others are worse where a face is large in the only look.
    if detector.name == "centerface" and hasattr(detector, "thorough"):
        detector.thorough = thorough
    return detector


def detector_missing(name: str) -> str | None:
    """None where a detector is available here, else a sentence that says what to install or where to put a file."""
    return _module(name).missing()


def check_image(image: object) -> Image:
    """The image itself, when it is a non-empty H×W×3 uint8 array.

    Raises:
        InputError: It is something else.
    """
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        what = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise InputError(f"An image must be a uint8 array of shape H×W×3 in RGB, got {what}: convert it first.")
    if image.size == 0:
        raise InputError(f"The image is empty ({image.shape[1]}×{image.shape[0]} pixels).")
    return image


def _module(name: str):  # type: ignore[no-untyped-def]  # a module with missing() and build()
    if name not in DETECTORS:
        raise UsageError(f"Unknown face detector {name!r}: use auto, {', '.join(DETECTORS)}.")
    return importlib.import_module(f"ficgan.faces.{_MODULES.get(name, name)}")
