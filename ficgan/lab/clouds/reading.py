"""What is read in projections and in clouds, as records that can be kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import resize
from ficgan.errors import InputError
from ficgan.faces import DetectAt, FaceDetector, get_detector
from ficgan.faces.alignment import ARCFACE_POINTS
from ficgan.lab.clouds.config import CloudStudyConfig
from ficgan.lab.metrics.geometry import detect_faces
from ficgan.lab.metrics.perceptual import SqueezeNet, ssim
from ficgan.lab.readers import Reader, get_readers
from ficgan.lab.stored import files_digest
from ficgan.pointcloud.cloud import Cloud

__all__ = ["DISTORTION", "ClearShape", "PictureJudges", "Record", "ShapeJudges", "Template"]

Image = NDArray[np.uint8]
Record = NDArray[np.void]
"""[N]. Of projections: the fields `made`, `found`, `box`, `marks`, `ssim`, `seconds`, `features`, and `by NAME` for
each recogniser. Of clouds: `made`, those of `DISTORTION`, and `seen NAME` and `by NAME` for each recogniser."""
DISTORTION = ("chamfer", "normal-error", "curvature-error")
_LEAST = 16  # Pixels of the shortest side in which SSIM is taken; its window has 11


@dataclass(frozen=True)
class Template:
    """Where faces lie in clear projections: box [4] x0, y0, x1, y1 and marks [5,2], pixels."""

    box: NDArray[np.float32]
    marks: NDArray[np.float32]

    @classmethod
    def of(cls, clear: Record) -> Template | None:
        """The medians over clear projections in which a face was found, in whole pixels; None where there is none."""
        seen = clear[clear["found"]]
        if not len(seen):
            return None
        return cls(*(np.median(seen[name], axis=0).round().astype(np.float32) for name in ("box", "marks")))

    @property
    def key(self) -> list[Any]:
        """JSON-ready."""
        return [self.box.tolist(), self.marks.tolist()]


@dataclass
class PictureJudges:
    config: CloudStudyConfig
    readers: Sequence[Reader]
    detector: FaceDetector  # in one pass at the study's size and confidence
    squeezenet: SqueezeNet | None = None  # None where its file is not here
    squeezenet_digest: str = ""

    @classmethod
    def open(cls, config: CloudStudyConfig) -> PictureJudges:
        """Those the configuration names; one that is not available here is a `UsageError`."""
        from ficgan.faces.models import find_model

        readers = get_readers(config.recognisers)
        detector = get_detector(config.detector, threshold=config.confidence)
        once: Any = getattr(detector, "once", None)
        quick = DetectAt(once() if once else detector, (config.look, config.look))
        path = find_model("squeezenet*_features.onnx")
        if path is None:
            return cls(config, readers, quick)
        return cls(config, readers, quick, SqueezeNet(path), str(files_digest(str(path))))

    @property
    def key(self) -> list[Any]:
        """Of everything that a record depends on besides the image; JSON-ready."""
        config = self.config
        return [
            [reader.digest for reader in self.readers], self.detector.name, config.confidence, config.look,
            config.undetected, self.squeezenet_digest,
        ]  # fmt: skip

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
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
        self, images: Sequence[Image], template: Template | None, clear: tuple[Image, Record] | None = None
    ) -> Record:
        """What is read in projections H×W×3 uint8 RGB; `clear` is the projection and record that SSIM is taken to."""
        out: Record = np.zeros(len(images), self.dtype)
        out["made"], out["seconds"], out["ssim"] = True, np.nan, np.nan
        if not len(images):
            return out
        stack = np.stack(images)
        height, width = stack.shape[1:3]
        near = np.full((5, 2), (width / 2, height / 2), np.float32)  # of several faces the one nearest to here is taken
        if clear is not None and clear[1]["found"][0]:
            near = clear[1]["marks"][0]
        elif template is not None:
            near = template.marks
        seen = detect_faces(self.detector, stack, np.broadcast_to(near, (len(stack), 5, 2)))
        out["found"], out["box"], out["marks"] = seen.found, seen.boxes, seen.landmarks
        marks = np.where(seen.found[:, None, None], seen.landmarks, self.where_lost(stack[0], template))
        for reader in self.readers:
            out[f"by {reader.name}"] = embedded(reader, stack, marks)
        if clear is not None:
            out["ssim"] = _likeness(clear, stack, template)
        if self.squeezenet is not None:
            side = max(height, width)
            top, left = (side - height) // 2, (side - width) // 2
            around = ((top, side - height - top), (left, side - width - left), (0, 0))
            squares = [resize(np.pad(x, around, constant_values=255), self.squeezenet.size) for x in stack]
            out["features"] = self.squeezenet.read(np.stack(squares)).features
        return out

    def where_lost(self, image: Image, template: Template | None) -> NDArray[np.float32]:
        """[5,2]: at which landmarks an image without a face is read."""
        if template is not None and self.config.undetected == "template":
            return template.marks
        # The whole image as if it were a crop in the recogniser's template: a square about it, of its longer side.
        height, width = image.shape[:2]
        side = max(height, width)
        corner = np.array([width - side, height - side]) / 2
        return ((np.asarray(ARCFACE_POINTS) + 0.5) * side / 112 + corner - 0.5).astype(np.float32)


def embedded(reader: Reader, images: NDArray[np.uint8], marks: NDArray[np.float32]) -> NDArray[np.float32]:
    """Embeddings [N,D] of images [N,H,W,3] at landmarks [N,5,2]."""
    each: Any = getattr(reader.recognizer, "embed_each", None)
    if each is not None:
        found: NDArray[np.float32] = each(images, marks)
        return found
    return np.stack([reader.recognizer.embed(x, m[None])[0] for x, m in zip(images, marks, strict=True)])


def _likeness(clear: tuple[Image, Record], images: NDArray[np.uint8], template: Template | None) -> NDArray[np.float64]:
    """[N] SSIM within the box of the clear projection; within the template's, else all of it, where it has none."""
    image, record = clear
    height, width = image.shape[:2]
    box = np.array([0, 0, width, height]) if template is None else template.box
    x0, y0, x1, y1 = (record["box"][0] if record["found"][0] else box).astype(np.float64)
    left, top = max(int(np.floor(x0)), 0), max(int(np.floor(y0)), 0)
    right, bottom = max(int(np.ceil(x1)), left + _LEAST), max(int(np.ceil(y1)), top + _LEAST)
    part = images[:, top:bottom, left:right]
    return ssim(np.broadcast_to(image[top:bottom, left:right], part.shape), part)


@dataclass
class ShapeJudges:
    """Recognisers of shape, who know another scan of each, and distortion."""

    names: Sequence[str]  # of `GEOMETRIC_RECOGNISERS`
    enrolled: Callable[[], list[Cloud]]  # inner parts of the gallery, which icp compares clouds with
    rows: int  # how many are enrolled
    example: Callable[[], Cloud]  # from which the lengths of the records are taken

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        from ficgan.pointcloud.geometry import GEOMETRIC_RECOGNISERS

        fields: list[Any] = [("made", bool), *((name, np.float32) for name in DISTORTION)]
        for name in self.names:
            length = self.rows if name == "icp" else len(GEOMETRIC_RECOGNISERS[name]().describe(self.example()))
            # Depths are millimetres, of which halves of a hundredth matter; shares and unit vectors need fewer digits.
            kind = np.float32 if name in ("depth", "icp") else np.float16
            fields += [(f"seen {name}", bool), (f"by {name}", kind, (length,))]
        return np.dtype(fields)

    def read(self, clouds: Sequence[Cloud | None], source: ClearShape | None = None, *, enrolled: bool) -> Record:
        """What recognisers see in clouds (None: none was made), and how far these are from their source."""
        from ficgan.pointcloud.geometry import GEOMETRIC_RECOGNISERS, IcpRecogniser

        out: Record = np.zeros(len(clouds), self.dtype)
        for name in DISTORTION:
            out[name] = np.nan
        for place, cloud in enumerate(clouds):
            out["made"][place] = cloud is not None
            if cloud is None:
                continue
            if source is not None:
                for name, value in zip(DISTORTION, source.measure(cloud), strict=True):
                    out[name][place] = value
            for name in self.names:
                if name == "icp" and enrolled:
                    continue
                try:
                    if name == "icp":
                        out["by icp"][place] = IcpRecogniser().compare(self.enrolled(), [cloud])[0]
                    else:
                        out[f"by {name}"][place] = GEOMETRIC_RECOGNISERS[name]().describe(cloud)
                    out[f"seen {name}"][place] = True
                except InputError:
                    out[f"seen {name}"][place] = False
        return out

    @staticmethod
    def compare(name: str, record: Record, gallery: Record) -> NDArray[np.float32]:
        """[P,G] scores; a gallery cloud without an upper face is unlike everybody, and no part of the mean face."""
        from ficgan.pointcloud.geometry import GEOMETRIC_RECOGNISERS

        probes = record[f"by {name}"].astype(np.float32)
        if name == "icp":
            return np.asarray(probes)
        seen = gallery[f"seen {name}"]
        scores = np.full((len(record), len(gallery)), -1e9, np.float32)
        scores[:, seen] = GEOMETRIC_RECOGNISERS[name]().compare(gallery[seen][f"by {name}"].astype(np.float32), probes)
        return scores


@dataclass(frozen=True)
class ClearShape:
    """What anonymised clouds are measured against: a cloud with normals, and its mean curvature, computed once."""

    cloud: Cloud
    curvature: NDArray[np.float64]

    @classmethod
    def of(cls, cloud: Cloud) -> ClearShape:
        from ficgan.pointcloud.geometry import curvature
        from ficgan.pointcloud.registration import with_normals

        fitted = with_normals(cloud)
        return cls(fitted, curvature(fitted).mean)

    def measure(self, cloud: Cloud) -> tuple[float, float, float]:
        """Chamfer distance in mm, normal error in degrees, curvature error in 1/m; NaN where there is no surface."""
        from ficgan.pointcloud.geometry import chamfer, curvature, normal_error
        from ficgan.pointcloud.neighbours import nearest
        from ficgan.pointcloud.registration import with_normals

        apart = 1000 * chamfer(cloud, self.cloud)
        try:
            fitted = with_normals(cloud)
            rows = nearest(self.cloud.points, cloud.points, 1)[1][:, 0]
            bent = float(np.abs(curvature(fitted).mean - self.curvature[rows]).mean())
            return apart, normal_error(fitted, self.cloud), bent
        except InputError:  # all on one line
            return apart, float("nan"), float("nan")
