"""A photo that a person reviews: its faces are found and read once, then decided on one by one."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers.modes import HIDING, OPAQUE
from ficgan.arrays import content_key
from ficgan.deidentify.options import Image, doubts
from ficgan.deidentify.photos import NOWHERE, FaceJob, checked_faces
from ficgan.deidentify.pipeline import Deidentifier
from ficgan.errors import InputError, UsageError
from ficgan.face_model import FaceModel, FaceReading
from ficgan.faces import Face
from ficgan.faces.detection import PyramidDetector, overlaps
from ficgan.options import Box
from ficgan.policy import Result

__all__ = ["CHOICES", "Choice", "Retouch"]

# What may happen to a face of a photo.
CHOICES = (*HIDING, "keep")


@dataclass(frozen=True)
class Choice:
    """The decision on one face.

    Args:
        mode: "ficgan": a new face; "keep"; or a cover: "plain", "black" (or "solid"), "blur", "mosaic".
        draw: number of the draw; another one gives another face.
        exemplar: a name in `Retouch.exemplars`; the new face is drawn towards that one.
    """

    mode: str = "ficgan"
    draw: int = 0
    exemplar: str | None = None

    def __post_init__(self) -> None:
        if self.mode not in CHOICES:
            raise UsageError(f"a face cannot be given the mode {self.mode!r}; use {', '.join(CHOICES)}")
        if self.draw < 0:
            raise UsageError(f"the draw {self.draw} must be 0 or more")


class Retouch:
    """The faces of one photo. Drawing them again costs a fraction of the first time.

    Args:
        engine: of mode ficgan; finds and reads the faces.
        image: uint8 [H,W,3] RGB.
        key: names the photo in the keyed draw; None: a hash of the pixels.
        faces: known from before; None: they are looked for.
    """

    def __init__(
        self, engine: Deidentifier, image: Image, *, key: str | None = None, faces: Sequence[Face] | None = None
    ) -> None:
        if engine.mode != "ficgan":
            raise UsageError(f"a photo is retouched with a Deidentifier of mode ficgan, not {engine.mode}")
        self.engine, self.image = engine, image
        self.key = content_key(image) if key is None else key
        found = engine.detector.detect(image) if faces is None else faces
        self.faces = checked_faces(found, image.shape, engine.detector.name)
        self.names: dict[int, str] = {}  # in the keyed draw, by the number of the face; others go by their number
        self.exemplars: dict[str, tuple[Image, Face]] = {}
        self._readings: dict[int, FaceReading] = {}
        self._sources: dict[int, NDArray[np.float32]] = {}
        self._aimed: dict[tuple[FaceModel, str], FaceModel] = {}

    def doubt(self, number: int) -> str:
        """Why a find may be no face; "" where it is clear."""
        face = self.faces[number]
        return "" if face.score == 0 else doubts(face, self.image.shape, self.engine.detector.name)

    def add(self, box: Box, *, search: bool = True) -> int:
        """Take a box that a person drew for a face, and return its number.

        Where the detector finds a face in the box on a closer look (`search`), a new face can take its place. Otherwise
        it can only be covered, and its score is 0.
        """
        height, width = self.image.shape[:2]
        x0, y0, x1, y1 = np.asarray(box, np.float64).clip(0, (width, height) * 2)
        if not (x1 - x0 >= 4 and y1 - y0 >= 4):
            raise InputError("the box lies outside of the photo or is smaller than 4 pixels; draw a larger one")
        found = self._closer(np.array([x0, y0, x1, y1], np.float32)) if search else None
        self.faces.append(found or Face(np.array([x0, y0, x1, y1], np.float32), NOWHERE, 0.0))
        return len(self.faces) - 1

    def add_exemplar(self, name: str, photo: Image) -> None:
        """Read the face of a photo, so that a `Choice` may name it."""
        face = self.engine.exemplar_face(photo)
        copy(self.engine.face_model).aim_at(photo, face)  # a face that cannot be read is refused now
        self.exemplars[name] = (photo, face)

    def render(self, choices: Sequence[Choice], engine: Deidentifier | None = None) -> Result:
        """The photo with all faces as chosen, verified as ever.

        Args:
            choices: one per face.
            engine: made by `with_controls` of the first one; None: the first one.
        """
        engine = engine or self.engine
        jobs = [self._work(engine, number, choice) for number, choice in enumerate(choices)]
        if len(jobs) != len(self.faces):
            raise UsageError(f"there are {len(self.faces)} faces and {len(jobs)} choices")
        shown = [n for n, job in enumerate(jobs) if not (job.kept or job.by_hand) and job.readable]
        new = [n for n in shown if n not in self._readings]
        self._readings |= zip(new, engine.face_model.see([(self.image, self.faces[n]) for n in new]), strict=True)
        for n in shown:
            jobs[n].reading = reading = self._readings[n]
            jobs[n].result.doubt = ", ".join(filter(None, [jobs[n].result.doubt, reading.doubt]))
        result = engine.photos.finish(self.image, jobs, engine.layer)
        self._sources |= {n: job.source for n, job in enumerate(jobs) if job.source is not None}
        return result

    def _work(self, engine: Deidentifier, number: int, choice: Choice) -> FaceJob:
        face, cover = self.faces[number], choice.mode not in ("ficgan", "keep")
        key = f"{self.key}/{self.names.get(number, number)}" + (f"~{choice.draw}" if choice.draw else "")
        psi = engine.photos.auto_psi(len(self.faces))
        job = FaceJob(
            face,
            key,
            max(psi, 0.6) if choice.draw else psi,  # with the plain mean all draws are one face
            engine.alignment.fits(face.landmarks) and choice.mode not in (*OPAQUE, "solid"),
            choice.mode if cover else engine.photos.fallback,
            doubt=self.doubt(number),
            kept="chosen by hand" if choice.mode == "keep" else "",
            by_hand=cover,
        )
        job.source = self._sources.get(number)
        if choice.exemplar is not None and choice.mode == "ficgan":
            job.aimed = self._aim(engine.face_model, choice.exemplar)
        return job

    def _aim(self, model: FaceModel, name: str) -> FaceModel:
        if name not in self.exemplars:
            raise UsageError(f"there is no exemplar {name!r}")
        if (model, name) not in self._aimed:
            self._aimed[model, name] = aimed = copy(model)
            aimed.aim_at(*self.exemplars[name])
        return self._aimed[model, name]

    def _closer(self, box: NDArray[np.float32]) -> Face | None:
        """A face in an enlarged cut-out around a box; None where there is none."""
        import cv2

        height, width = self.image.shape[:2]
        margin = float((box[2:] - box[:2]).max())
        x0, y0 = (int(v) for v in np.floor(box[:2] - margin).clip(0))
        x1, y1 = (int(v) for v in np.ceil(box[2:] + margin).clip(0, (width, height)))
        factor = min(8.0, max(1.0, 160 / float((box[2:] - box[:2]).min())))
        size = round((x1 - x0) * factor), round((y1 - y0) * factor)
        cut = np.ascontiguousarray(cv2.resize(self.image[y0:y1, x0:x1], size, interpolation=cv2.INTER_CUBIC))
        shift = np.array([x0, y0], np.float32)
        detector = self.engine.detector
        for face in (detector.once() if isinstance(detector, PyramidDetector) else detector).detect(cut):
            place = face.box / np.float32(factor) + np.tile(shift, 2)
            if overlaps(place, box)[0, 0] >= 0.3:
                return replace(face, box=place, landmarks=face.landmarks / np.float32(factor) + shift)
        return None
