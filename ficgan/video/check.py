"""The second look: source and result side by side, through a detector that had no part in finding the faces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.faces import Face, FaceDetector, Recognizer, detector_missing, get_detector
from ficgan.video.media import Frame

__all__ = ["CheckReport", "Finding", "check_frames", "independent_detector"]

MATES = ("insightface", "yunet", "centerface", "dlib")
"""Detectors for the second look, the best first."""


@dataclass(frozen=True)
class Finding:
    """A source face that a viewer of the result can still recognise."""

    frame: int
    time: float
    box: tuple[float, float, float, float]
    distance: float
    """Between source and result, by the recogniser; near 0 where the face was not covered at all."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "frame": self.frame,
            "time": round(self.time, 3),
            "box": [round(value, 1) for value in self.box],
            "distance": round(self.distance, 4),
        }


@dataclass
class CheckReport:
    """What the second look saw."""

    detector: str
    recognizer: str
    frames: int = 0
    """Frames looked at."""
    faces: int = 0
    """Faces that the detector found in the result."""
    exempt: int = 0
    """Of them, those a rule keeps."""
    findings: list[Finding] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "detector": self.detector,
            "recognizer": self.recognizer,
            "frames": self.frames,
            "faces": self.faces,
            "exempt": self.exempt,
            "findings": [finding.to_dict() for finding in self.findings],
        }


def independent_detector(used: str, size: int) -> FaceDetector:
    """A detector of another kind than the one that found the faces; of the same kind where there is no other.

    Args:
        used: name of that one.
        size: longest side in pixels at which frames are searched.
    """
    from ficgan.faces import DetectAt

    others = [name for name in MATES if not used.startswith(name) and detector_missing(name) is None]
    return DetectAt(get_detector(others[0] if others else "auto", scale=1.0), (size, size), enlarge=False)


def check_frames(
    pairs: Iterator[tuple[Frame, Frame]],
    kept_at: Callable[[int], NDArray[np.floating]],
    detector: FaceDetector,
    recognizer: Recognizer,
) -> CheckReport:
    """Look for source faces in a result.

    A face counts where the detector finds it in the result and the recogniser takes the same place in the source for
    the same person. What was not covered is the same in both, so that missed faces are found by the same rule.

    Args:
        pairs: the same frame of source and result.
        kept_at: boxes [n,4] of the faces that rules keep in a frame.
        detector: should not be the one that found the faces.
        recognizer: tells people apart.
    """
    report = CheckReport(detector.name, recognizer.name)
    for source, result in pairs:
        report.frames += 1
        faces = detector.detect(result.image)
        report.faces += len(faces)
        kept = kept_at(source.index)
        seen = [face for face in faces if not _exempt(face, kept)]
        report.exempt += len(faces) - len(seen)
        if not seen:
            continue
        marks = np.stack([face.landmarks for face in seen])
        before, after = recognizer.embed(source.image, marks), recognizer.embed(result.image, marks)
        for face, a, b in zip(seen, before, after, strict=True):
            if recognizer.is_match(a, b):
                x0, y0, x1, y1 = (float(value) for value in face.box)
                distance = float(recognizer.distance(a, b))
                report.findings.append(Finding(source.index, source.time, (x0, y0, x1, y1), distance))
    return report


def _exempt(face: Face, kept: NDArray[np.floating]) -> bool:
    """Whether a rule keeps a face: its centre lies in such a box, and the sizes agree within a factor of 2."""
    if not len(kept):
        return False
    centre, size = (face.box[:2] + face.box[2:]) / 2, float((face.box[2:] - face.box[:2]).max())
    sizes = (kept[:, 2:] - kept[:, :2]).max(1).clip(1e-6)
    inside = (kept[:, :2] <= centre).all(1) & (centre <= kept[:, 2:]).all(1)
    return bool((inside & (sizes / 2 <= size) & (size <= 2 * sizes)).any())
