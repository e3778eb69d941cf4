"""Which faces of a photo stay as they are, and which finds are doubtful."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ficgan.deidentify.options import Box, Finding, Image
from ficgan.errors import UsageError
from ficgan.faces import Face, FaceDetector, Recognizer, get_recognizer

__all__ = ["Exemptions", "doubts"]

DOUBTFUL_SCORE = {"centerface": 0.6}
"""Detection scores under which a find is doubtful, by detector; portraits have .95. None is known for the others."""
_STRICTNESS = 0.8
"""Factor of the recogniser's match threshold for leaving a person as is: a photo is a single look."""


def doubts(face: Face, shape: Sequence[int], detector: str) -> str:
    """Why a find is doubtful; "" where it is not.

    Args:
        face: the find.
        shape: of the photo, height first.
        detector: its name.
    """
    height, width = shape[:2]
    x0, y0, x1, y1 = (float(value) for value in face.box)
    out = []
    if face.score < DOUBTFUL_SCORE.get(detector, 0.0):
        out.append(f"low score {face.score:.2f}")
    if x0 <= 0 or y0 <= 0 or x1 >= width or y1 >= height:
        out.append("cut by the border")
    return ", ".join(out)


@dataclass(eq=False)
class Exemptions:
    """The rules about people and places, ready for use. In doubt a face is hidden.

    Args:
        recognizer: tells people apart; None: no rule needs it.
        keep: embeddings of people who stay, by the name of their photo.
        only: embeddings of the people who are hidden, where nobody else is.
        boxes: places in which faces stay.
    """

    recognizer: Recognizer | None
    keep: Mapping[str, NDArray[np.float32]]
    only: Mapping[str, NDArray[np.float32]]
    boxes: Sequence[Box]

    @classmethod
    def of(cls, finding: Finding, detector: FaceDetector, recognizer: Recognizer | str) -> Exemptions:
        """Read the reference photos.

        Args:
            finding: the rules.
            detector: finds the faces of the reference photos.
            recognizer: tells people apart, even where nothing is verified; or its name.

        Raises:
            UsageError: one shows no face.
        """
        if not (finding.keep or finding.only):
            return cls(None, {}, {}, finding.boxes)
        teller = get_recognizer(recognizer) if isinstance(recognizer, str) else recognizer

        def read(photos: Mapping[str, Image]) -> dict[str, NDArray[np.float32]]:
            return {name: _largest(photo, name, detector, teller) for name, photo in photos.items()}

        return cls(teller, read(finding.keep), read(finding.only), finding.boxes)

    def __call__(self, image: Image, faces: Sequence[Face]) -> list[str]:
        """Why each face stays as it is; "" where it is hidden."""
        readings: list[NDArray[np.float32] | None] = [None] * len(faces)
        if self.recognizer is not None:
            rows = [n for n, face in enumerate(faces) if np.ptp(face.landmarks, axis=0).min() > 0]
            if rows:
                found = self.recognizer.embed(image, np.stack([faces[n].landmarks for n in rows]))
                for n, reading in zip(rows, found, strict=True):
                    readings[n] = reading
        return [self._why(face, reading) for face, reading in zip(faces, readings, strict=True)]

    def _why(self, face: Face, reading: NDArray[np.float32] | None) -> str:
        x0, y0, x1, y1 = (float(value) for value in face.box)
        chosen = bool(self.only) and self._near(reading, self.only, 1.0) is not None
        if chosen:
            return ""
        if any(x0 >= box[0] and y0 >= box[1] and x1 <= box[2] and y1 <= box[3] for box in self.boxes):
            return "it lies in a given box"
        if self.keep and (name := self._near(reading, self.keep, _STRICTNESS)) is not None:
            return f"it matches {Path(name).name}"
        # A face that cannot be read may be the one that is meant.
        return "it is none of those to be hidden" if self.only and reading is not None else ""

    def _near(
        self, reading: NDArray[np.float32] | None, people: Mapping[str, NDArray[np.float32]], factor: float
    ) -> str | None:
        """The nearest of these people, where near enough."""
        if reading is None or self.recognizer is None or not np.isfinite(reading).all():
            return None
        apart = {name: self.recognizer.distance(reading, known) for name, known in people.items()}
        nearest = min(apart, key=lambda name: apart[name])
        return nearest if apart[nearest] < factor * self.recognizer.match_threshold else None


def _largest(photo: Image, name: str, detector: FaceDetector, recognizer: Recognizer) -> NDArray[np.float32]:
    """Embedding of the largest face of a reference photo."""
    faces = detector.detect(photo)
    if not faces:
        raise UsageError(f"{name}: no face was found in it; give a photo with one clear face")
    largest = max(faces, key=lambda face: float(np.prod(face.box[2:] - face.box[:2])))
    reading: NDArray[np.float32] = recognizer.embed(photo, largest.landmarks[None])[0]
    return reading
