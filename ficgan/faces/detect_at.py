"""Detection on a copy of the picture that fits a given size (`--scale WxH`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ficgan.faces.detection import Face, FaceDetector

__all__ = ["DetectAt"]


@dataclass
class DetectAt:
    """A detector that sees every picture at about one size, its proportions kept.

    Args:
        detector: What detects.
        size: Width and height, in px, that the picture is scaled to fit.
        enlarge: Whether a smaller picture is enlarged to it.
    """

    detector: FaceDetector
    size: tuple[int, int]
    enlarge: bool = True
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.detector.name

    def detect(self, image: NDArray[np.uint8]) -> list[Face]:
        """Faces in pixels of `image` (uint8 [H,W,3] RGB), as `FaceDetector.detect` gives them."""
        return self.detect_and_doubt(image)[0]

    def detect_and_doubt(self, image: NDArray[np.uint8]) -> tuple[list[Face], list[Face]]:
        """Faces as of `detect`, and the weaker finds of a detector that tells of them."""
        import cv2

        height, width = image.shape[:2]
        factor = min(self.size[0] / width, self.size[1] / height)
        if factor == 1 or (factor > 1 and not self.enlarge):
            return self._look(image)
        target = max(1, round(width * factor)), max(1, round(height * factor))
        how = cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC
        small = np.asarray(cv2.resize(image, target, interpolation=how), np.uint8)
        ratio = np.array([width / target[0], height / target[1]], np.float32)
        # Landmarks are pixels, their centres at integers: (x + ½)·ratio − ½. Boxes are edges, continuous from 0.
        shift = (ratio - 1) / 2
        edge = np.array([width, height, width, height], np.float32)

        def enlarged(face: Face) -> Face:
            box = np.clip(face.box * np.tile(ratio, 2), 0, edge).astype(np.float32)
            return replace(face, box=box, landmarks=(face.landmarks * ratio + shift).astype(np.float32))

        sure, possible = self._look(small)
        return [enlarged(face) for face in sure], [enlarged(face) for face in possible]

    def _look(self, image: NDArray[np.uint8]) -> tuple[list[Face], list[Face]]:
        doubting = getattr(self.detector, "detect_and_doubt", None)
        return (self.detector.detect(image), []) if doubting is None else doubting(image)
