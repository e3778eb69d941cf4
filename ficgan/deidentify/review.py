"""A photo that a person reviews: its faces are found and read once, then decided on one by one.

`ficgan ui` exports what was decided as a file, and `ficgan-deid --decisions` applies it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, field_validator

from ficgan.deidentify import Deidentifier
from ficgan.deidentify.found import NOWHERE, FaceJob, FoundObjects, Image, NewIdentity, checked_faces, doubts
from ficgan.errors import InputError, UsageError
from ficgan.face_model import FaceReading
from ficgan.faces import Face
from ficgan.faces.detection import PyramidDetector, detect_and_doubt, overlaps
from ficgan.files import content_key
from ficgan.folders import Box, Strict, Text, check_schema, checked, read_json
from ficgan.options import HIDING, OPAQUE
from ficgan.policy import Result
from ficgan.video.decisions import Drawing

SCHEMA = "ficgan-photo-decisions/1"
# What may happen to a face of a photo.
CHOICES = (*HIDING, "keep")
# Engines with controls of single faces that are kept.
ENGINES_KEPT = 8


@dataclass(frozen=True)
class Choice:
    """The decision on one face.

    Args:
        mode: "ficgan": a new face; "keep"; or a cover: "plain", "black" (or "solid"), "blur", "mosaic".
        draw: number of the draw; another one gives another face.
        drawing: how its new face is drawn; None: as those of the photo.
        person: number of somebody who has one new face in all photos; 0: in this photo alone.
    """

    mode: str = "ficgan"
    draw: int = 0
    drawing: Drawing | None = None
    person: int = 0

    def __post_init__(self) -> None:
        if self.mode not in CHOICES:
            raise UsageError(f"a face cannot be given the mode {self.mode!r}; use {', '.join(CHOICES)}")


class Retouch:
    """The faces of one photo. Drawing them again costs a fraction of the first time.

    Args:
        engine: of mode ficgan; finds and reads the faces.
        image: uint8 [H,W,3] RGB.
        key: names the photo in the keyed draw; None: a hash of the pixels.
        faces: known from before; None: they are looked for.
        objects: what is no face and is covered; None: it is looked for.
        people: how people who are in several photos were drawn, by `person_key`; new ones are added.
    """

    def __init__(
        self,
        engine: Deidentifier,
        image: Image,
        *,
        key: str | None = None,
        faces: Sequence[Face] | None = None,
        objects: FoundObjects | None = None,
        people: dict[str, NewIdentity] | None = None,
    ) -> None:
        if engine.mode != "ficgan":
            raise UsageError(f"a photo is retouched with a Deidentifier of mode ficgan, not {engine.mode}")
        self.engine, self.image = engine, image
        self.key = content_key(image) if key is None else key
        found, possible = detect_and_doubt(engine.detector, image) if faces is None else (faces, [])
        self._objects = engine.photos.objects_in(image) if objects is None else objects
        self.faces = checked_faces(found, image.shape, engine.detector.name)
        self.possible = checked_faces(possible, image.shape, engine.detector.name)  # weak finds, which stay as they are
        self.people: dict[str, NewIdentity] = {} if people is None else people
        self._readings: dict[int, FaceReading] = {}
        self._sources: dict[int, NDArray[np.float32]] = {}
        self._engines = lru_cache(maxsize=ENGINES_KEPT)(lambda drawing: drawing.applied(engine))

    def add(self, box: tuple[float, float, float, float], *, search: bool = True) -> int:
        """Take a box that a person drew for a face, and return its number.

        Where the detector finds a face in the box on a closer look (`search`), a new face can take its place. Otherwise
        it can only be covered, and its score is 0.
        """
        height, width = self.image.shape[:2]
        corners = np.asarray(box, np.float64).clip(0, (width, height) * 2).astype(np.float32)
        if not (corners[2:] - corners[:2] >= 4).all():
            raise InputError("the box lies outside of the photo or is smaller than 4 pixels; draw a larger one")
        found = self._closer(corners) if search else None
        self.faces.append(found or Face(corners, NOWHERE, 0.0))
        return len(self.faces) - 1

    def forget(self, number: int) -> None:
        """Let go of the faces from a number on."""
        del self.faces[number:]
        for known in (self._readings, self._sources):
            for n in [n for n in known if n >= number]:
                del known[n]

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

    def render(self, choices: Sequence[Choice], engine: Deidentifier | None = None) -> Result:
        """The photo with all faces as chosen, one choice each, verified as ever.

        `engine` was made by `with_controls` of the first one; None: the first one.
        """
        engine = engine or self.engine
        if len(choices) != len(self.faces):
            raise UsageError(f"there are {len(self.faces)} faces and {len(choices)} choices")
        jobs = [self._job(engine, number, choice) for number, choice in enumerate(choices)]
        shown = [n for n, job in enumerate(jobs) if not (job.kept or job.by_hand) and job.readable]
        new = [n for n in shown if n not in self._readings]
        self._readings |= zip(new, engine.face_model.see([(self.image, self.faces[n]) for n in new]), strict=True)
        for n in shown:
            jobs[n].take(self._readings[n])
        result = engine.photos.finish(self.image, jobs, engine.layer, self._objects)
        self._sources |= {n: job.source for n, job in enumerate(jobs) if job.source is not None}
        for job, choice in zip(jobs, choices, strict=True):
            if choice.person and job.reading is not None and job.generated is not None:
                identity = NewIdentity(job.reading.z_id, job.kind, job.step)
                self.people.setdefault(person_key(choice.person, choice.draw, choice.drawing), identity)
        return result

    def _job(self, engine: Deidentifier, number: int, choice: Choice) -> FaceJob:
        face, cover = self.faces[number], choice.mode not in ("ficgan", "keep")
        own = None
        if choice.drawing is not None:
            engine = self._engines(choice.drawing)
            own = engine.face_model, engine.layer
        name = f"person {choice.person}" if choice.person else f"{self.key}/{number}"
        key = name + (f"~{choice.draw}" if choice.draw else "")
        psi = engine.photos.auto_psi(2 if choice.person else len(self.faces))
        job = FaceJob(
            face,
            key,
            max(psi, 0.6) if choice.draw else psi,  # with the plain mean all draws are one face
            engine.alignment.fits(face.landmarks) and choice.mode not in (*OPAQUE, "solid"),
            choice.mode if cover else engine.photos.hiding.fallback,
            doubt="" if face.score == 0 else doubts(face, self.image.shape, self.engine.detector.name),
            kept="chosen by hand" if choice.mode == "keep" else "",
            by_hand=cover,
        )
        job.source, job.own = self._sources.get(number), own
        if choice.person:
            job.identity = self.people.get(person_key(choice.person, choice.draw, choice.drawing))
        return job


def person_key(person: int, draw: int, drawing: Drawing | None) -> str:
    """What names a new face of a person who is in several photos."""
    return f"{person}~{draw} {'' if drawing is None else drawing.model_dump_json()}".strip()


# -- decisions as a file ----------------------------------------------------------------------------------------------


class ReviewedFace(Strict):
    """A face of a photo, and what was decided on it.

    Args:
        score: 0 for a box that a person drew where no face was found.
        mode: one of `CHOICES`; "": as all others.
        draw: number of the draw. It gives the same face again only with the seed of the review.
        drawing: how its new face is drawn; None: as those of the photo.
        person: as of `Choice`.
    """

    box: Box
    landmarks: tuple[tuple[float, float], ...] = Field(min_length=5, max_length=5)
    score: float = Field(ge=0, le=1)
    mode: str = ""
    draw: NonNegativeInt = 0
    drawing: Drawing | None = None
    person: NonNegativeInt = 0

    @field_validator("mode")
    @classmethod
    def _mode(cls, mode: str) -> str:
        if mode and mode not in CHOICES:
            raise ValueError(f"a face of a photo cannot be given {mode!r}; use {', '.join(CHOICES)}")
        return mode


class PhotoDecisions(Strict):
    """What was decided on one photo.

    Args:
        name: for people.
        analysis: hash of the photo's pixels: it tells the photo whatever its name.
        default: what happens to faces without a mode of their own.
        drawing: None: as the engine draws.
    """

    name: Text = ""
    analysis: str = Field(pattern=r"^[0-9a-f]{32}$")
    default: Literal["ficgan", "plain", "black", "solid", "blur", "mosaic"] = "ficgan"
    drawing: Drawing | None = None
    faces: tuple[ReviewedFace, ...] = ()


class _File(Strict):
    schema_: str = Field(alias="schema")
    photos: tuple[PhotoDecisions, ...]


def as_tree(photos: list[PhotoDecisions]) -> dict[str, Any]:
    """The file, JSON-ready."""
    return {"schema": SCHEMA, "photos": [photo.model_dump(mode="json", by_alias=True) for photo in photos]}


def read_decisions(path: Path) -> dict[str, PhotoDecisions]:
    """The decisions of a file, by the photos' hashes."""
    where = str(path)
    found: dict[str, PhotoDecisions] = {}
    for photo in checked(_File, check_schema(read_json(path), SCHEMA, where), where).photos:
        twin = found.setdefault(photo.analysis, photo)
        if twin.model_copy(update={"name": photo.name}) != photo:
            raise InputError(f"{where}: {twin.name} and {photo.name} are one picture with different decisions")
    return found


def deciding(engine: Deidentifier, decisions: Mapping[str, PhotoDecisions]) -> Callable[..., Result]:
    """What is called like a `Deidentifier` and does what was decided; other photos are refused."""
    engines: dict[Drawing | None, Deidentifier] = {None: engine}
    people: dict[str, NewIdentity] = {}

    def decide(image: Image, *, key: str) -> Result:
        photo = decisions.get(key)
        if photo is None:
            raise InputError("nothing was decided on this photo, or its pixels changed; review it and export again")
        if photo.drawing is not None and photo.drawing not in engines:
            engines[photo.drawing] = photo.drawing.applied(engine)
        faces = [
            Face(np.array(face.box, np.float32), np.array(face.landmarks, np.float32), face.score)
            for face in photo.faces
        ]
        choices = [Choice(face.mode or photo.default, face.draw, face.drawing, face.person) for face in photo.faces]
        return Retouch(engine, image, key=key, faces=faces, people=people).render(choices, engines[photo.drawing])

    return decide
