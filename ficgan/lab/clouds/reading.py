"""Who looks at projections, and what they read in them, as records that can be kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import resize
from ficgan.faces import DetectAt, FaceDetector, get_detector
from ficgan.faces.alignment import ARCFACE_POINTS
from ficgan.lab.clouds.config import CloudStudyConfig
from ficgan.lab.metrics.geometry import detect_faces
from ficgan.lab.metrics.perceptual import SqueezeNet, ssim
from ficgan.lab.readers import Reader, get_readers
from ficgan.lab.stored import files_digest

__all__ = ["Eyes", "Record", "Template", "square", "squares"]

Image = NDArray[np.uint8]
Record = NDArray[np.void]
"""[N] of the fields `made`, `found`, `box`, `marks`, `ssim`, `seconds`, `features`, and `by NAME` for each reader."""
_LEAST = 16
"""Pixels of the shortest side in which SSIM is taken; its window has 11."""


@dataclass(frozen=True)
class Template:
    """Where faces lie in clear projections.

    Args:
        box: [4] x0, y0, x1, y1, pixels.
        marks: [5,2] pixels.
    """

    box: NDArray[np.float32]
    marks: NDArray[np.float32]

    @classmethod
    def of(cls, clear: Record) -> Template | None:
        """The medians over clear projections in which a face was found; None where there is none.

        Rounded to whole pixels, so that one person more or less seldom changes what was computed with it.
        """
        seen = clear[clear["found"]]
        if not len(seen):
            return None
        box, marks = (np.median(seen[name], axis=0).round().astype(np.float32) for name in ("box", "marks"))
        return cls(box, marks)

    def key(self) -> list[Any]:
        """JSON-ready."""
        return [self.box.tolist(), self.marks.tolist()]


@dataclass
class Eyes:
    """Detector, recognisers and the network of image features.

    Args:
        config: of the study.
        readers: recognisers.
        detector: in one pass at the study's size and confidence.
        squeezenet: None where its file is not here.
        squeezenet_digest: of its file.
    """

    config: CloudStudyConfig
    readers: Sequence[Reader]
    detector: FaceDetector
    squeezenet: SqueezeNet | None = None
    squeezenet_digest: str = ""

    @classmethod
    def open(cls, config: CloudStudyConfig) -> Eyes:
        """Those the configuration names.

        Raises:
            UsageError: one that is not available here.
        """
        readers = get_readers(config.recognisers)
        detector = get_detector(config.detector, threshold=config.confidence)
        once: Any = getattr(detector, "once", None)
        quick = DetectAt(once() if once else detector, (config.look, config.look))
        path = _squeezenet()
        net = None if path is None else SqueezeNet(path)
        return cls(config, readers, quick, net, "" if path is None else str(files_digest(str(path))))

    def key(self) -> list[Any]:
        """Of everything that a record depends on besides the image."""
        config = self.config
        return [
            [reader.digest for reader in self.readers], self.detector.name, config.confidence, config.look,
            config.undetected, self.squeezenet_digest,
        ]  # fmt: skip

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """Of the records."""
        fields: list[Any] = [
            ("made", bool), ("found", bool), ("box", np.float32, (4,)), ("marks", np.float32, (5, 2)),
            ("ssim", np.float32), ("seconds", np.float32),
        ]  # fmt: skip
        blank = np.full((112, 112, 3), 255, np.uint8)
        for reader in self.readers:
            length = reader.recognizer.embed(blank, ARCFACE_POINTS[None]).shape[1]
            fields.append((f"by {reader.name}", np.float32, (length,)))
        if self.squeezenet is not None:
            fields.append(("features", np.float16, (self.squeezenet.read(blank[None]).features.shape[1],)))
        return np.dtype(fields)

    def read(
        self,
        images: Sequence[Image],
        *,
        clear: tuple[Image, Record] | None = None,
        template: Template | None = None,
        perception: bool = True,
    ) -> Record:
        """What is read in projections, all of one size.

        Args:
            images: H×W×3 uint8 RGB.
            clear: the clear projection of the same cloud and its record [1]: the SSIM is taken to it, within its box.
            template: for images in which no face is found.
            perception: whether SqueezeNet looks at them.
        """
        out: Record = np.zeros(len(images), self.dtype)
        out["made"], out["seconds"], out["ssim"] = True, np.nan, np.nan
        if not len(images):
            return out
        stack = np.stack(images)
        near = self._expected(stack, clear, template)
        seen = detect_faces(self.detector, stack, np.broadcast_to(near, (len(stack), 5, 2)))
        out["found"], out["box"], out["marks"] = seen.found, seen.boxes, seen.landmarks
        lost = self.where_lost(stack[0], template)
        marks = np.where(seen.found[:, None, None], seen.landmarks, lost)
        for reader in self.readers:
            out[f"by {reader.name}"] = _embedded(reader, stack, marks)
        if clear is not None:
            out["ssim"] = _likeness(clear, stack, template)
        if perception and self.squeezenet is not None:
            out["features"] = self.squeezenet.read(squares(stack, self.squeezenet.size)).features
        return out

    def _expected(
        self, images: NDArray[np.uint8], clear: tuple[Image, Record] | None, template: Template | None
    ) -> NDArray[np.float32]:
        """[5,2]: of several faces found, the one nearest to here is taken."""
        if clear is not None and clear[1]["found"][0]:
            return clear[1]["marks"][0]
        if template is not None:
            return template.marks
        height, width = images.shape[1:3]
        return np.full((5, 2), (width / 2, height / 2), np.float32)

    def where_lost(self, image: Image, template: Template | None) -> NDArray[np.float32]:
        """[5,2]: at which landmarks an image without a face is read."""
        if template is not None and self.config.undetected == "template":
            return template.marks
        # The whole image as if it were a crop in the recogniser's template: a square about it, of its longer side.
        height, width = image.shape[:2]
        side = max(height, width)
        corner = np.array([width - side, height - side]) / 2
        return ((np.asarray(ARCFACE_POINTS) + 0.5) * side / 112 + corner - 0.5).astype(np.float32)


def square(image: Image) -> Image:
    """H×W×3 on a white square of the longer side, in its middle."""
    height, width = image.shape[:2]
    side = max(height, width)
    top, left = (side - height) // 2, (side - width) // 2
    out = np.full((side, side, 3), 255, np.uint8)
    out[top : top + height, left : left + width] = image
    return out


def squares(images: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """[N,H,W,3] → [N,side,side,3], see `square`."""
    return np.stack([resize(square(image), side) for image in images])


def _embedded(reader: Reader, images: NDArray[np.uint8], marks: NDArray[np.float32]) -> NDArray[np.float32]:
    each: Any = getattr(reader.recognizer, "embed_each", None)
    if each is not None:
        found: NDArray[np.float32] = each(images, marks)
        return found
    return np.stack([reader.recognizer.embed(x, m[None])[0] for x, m in zip(images, marks, strict=True)])


def _likeness(clear: tuple[Image, Record], images: NDArray[np.uint8], template: Template | None) -> NDArray[np.float64]:
    """[N] SSIM within the box of the clear projection; within the template's, else all of it, where it has none."""
    image, record = clear
    height, width = image.shape[:2]
    box = np.array([0, 0, width, height], np.float64)
    if record["found"][0]:
        box = record["box"][0].astype(np.float64)
    elif template is not None:
        box = template.box.astype(np.float64)
    x0, y0 = np.floor(box[:2]).clip(0).astype(int)
    x1, y1 = max(int(np.ceil(box[2])), x0 + _LEAST), max(int(np.ceil(box[3])), y0 + _LEAST)
    part = images[:, y0:y1, x0:x1]
    return ssim(np.broadcast_to(image[y0:y1, x0:x1], part.shape), part)


def _squeezenet() -> Path | None:
    from ficgan.faces.models import find_model

    return find_model("squeezenet*_features.onnx")
