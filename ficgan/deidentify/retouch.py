"""A photo under a person's eyes: its faces are found and read once, then decided on one by one."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers.modes import HIDING, OPAQUE
from ficgan.arrays import content_key
from ficgan.deidentify.options import Box, Image, doubts
from ficgan.deidentify.photos import NOWHERE, Work, checked_faces, spans_a_face
from ficgan.deidentify.pipeline import Deidentifier
from ficgan.errors import InputError, UsageError
from ficgan.face_model import FaceModel, Sight
from ficgan.faces import Face
from ficgan.faces.detection import PyramidDetector, overlaps
from ficgan.policy import Result

__all__ = ["CHOICES", "Choice", "Retouch"]

CHOICES = (*HIDING, "keep")
"""What may happen to a face of a photo."""


@dataclass(frozen=True)
class Choice:
    """What shall happen to one face.

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
        self.names: dict[int, str] = {}
        """In the keyed draw, by the number of the face; others go by their number."""
        self.exemplars: dict[str, tuple[Image, Face]] = {}
        self._sights: dict[int, Sight] = {}
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
        face = self.engine._exemplar_face(photo)
        copy(self.engine.face_model).aim_at(photo, face)  # a face that cannot be read is refused now
        self.exemplars[name] = (photo, face)

    def render(self, choices: Sequence[Choice], engine: Deidentifier | None = None) -> Result:
        """The photo with all faces as chosen, verified as ever.

        Args:
            choices: one per face.
            engine: made by `with_controls` of the first one; None: the first one.
        """
        engine = engine or self.engine
        works = [self._work(engine, number, choice) for number, choice in enumerate(choices)]
        if len(works) != len(self.faces):
            raise UsageError(f"there are {len(self.faces)} faces and {len(works)} choices")
        shown = [n for n, work in enumerate(works) if not (work.kept or work.by_hand) and work.readable]
        new = [n for n in shown if n not in self._sights]
        self._sights |= zip(new, engine.face_model.see([(self.image, self.faces[n]) for n in new]), strict=True)
        for n in shown:
            works[n].sight = sight = self._sights[n]
            works[n].result.doubt = ", ".join(filter(None, [works[n].result.doubt, sight.doubt]))
        result = engine._photos.finish(self.image, works, engine.layer)
        self._sources |= {n: work.source for n, work in enumerate(works) if work.source is not None}
        return result

    def _work(self, engine: Deidentifier, number: int, choice: Choice) -> Work:
        face, cover = self.faces[number], choice.mode not in ("ficgan", "keep")
        key = f"{self.key}/{self.names.get(number, number)}" + (f"~{choice.draw}" if choice.draw else "")
        psi = engine._photos.auto_psi(len(self.faces))
        work = Work(
            face,
            key,
            max(psi, 0.6) if choice.draw else psi,  # with the plain mean all draws are one face
            spans_a_face(engine.alignment, face) and choice.mode not in (*OPAQUE, "solid"),
            choice.mode if cover else engine._photos.fallback,
            doubt=self.doubt(number),
            kept="chosen by hand" if choice.mode == "keep" else "",
            by_hand=cover,
        )
        work.source = self._sources.get(number)
        if choice.exemplar is not None and choice.mode == "ficgan":
            work.aimed = self._aim(engine.face_model, choice.exemplar)
        return work

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
