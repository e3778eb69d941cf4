"""A photo that a person reviews: its faces are read once, then decided on one by one.

`ficgan ui` exports what was decided as a file, and `ficgan-deid --decisions` applies it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt

from ficgan.deidentify import Deidentifier
from ficgan.deidentify.found import NOWHERE, FaceJob, Image, NewIdentity, checked_faces, doubts
from ficgan.errors import InputError, UsageError
from ficgan.face_model import FaceReading
from ficgan.faces import Face
from ficgan.faces.detection import PyramidDetector, overlaps
from ficgan.files import content_key
from ficgan.folders import Box, Strict, Text, check_schema, checked, read_json
from ficgan.options import HIDING, OPAQUE
from ficgan.policy import Result
from ficgan.video.decisions import Drawing

SCHEMA = "ficgan-photo-decisions/1"
ENGINES_KEPT = 8  # Engines with controls of single faces that are kept


class Find(Strict):
    """A face of a photo as it was found."""

    box: Box
    landmarks: tuple[tuple[float, float], ...] = Field(min_length=5, max_length=5)
    score: float = Field(ge=0, le=1)  # 0 for a box that a person drew where no face was

    @property
    def face(self) -> Face:
        """As a detector gives it."""
        return Face(np.array(self.box, np.float32), np.array(self.landmarks, np.float32), self.score)

    @property
    def place(self) -> Any:
        """Where it is."""
        return self.box, self.landmarks


class ReviewedFace(Find):
    """A face of a photo, and what was decided on it."""

    mode: Literal[(*HIDING, "keep", "")] = ""  # type: ignore[valid-type]  # "": as all others
    draw: NonNegativeInt = 0  # number of the draw. It gives the same face again only with the seed of the review.
    drawing: Drawing | None = None  # how its new face is drawn; None: as those of the photo
    person: NonNegativeInt = 0  # number of somebody who has one new face in all photos; 0: in this photo alone

    @property
    def decided(self) -> Any:
        """All that its drawing depends on."""
        return self.place, self.mode, self.draw, self.drawing, self.person

    @property
    def identity(self) -> str:
        """Names the new face of a person who is in several photos."""
        drawing = "" if self.drawing is None else self.drawing.model_dump_json()
        return f"{self.person}~{self.draw} {drawing}".strip()


class Retouch:
    """The faces of one photo, uint8 [H,W,3] RGB. Drawing them again costs a fraction of the first time.

    Args:
        engine: of mode ficgan; finds and reads the faces.
        key: names the photo in the keyed draw; None: a hash of the pixels.
        people: how people who are in several photos were drawn, by `ReviewedFace.identity`; new ones are added.
    """

    def __init__(
        self,
        engine: Deidentifier,
        image: Image,
        *,
        key: str | None = None,
        people: dict[str, NewIdentity] | None = None,
    ) -> None:
        if engine.mode != "ficgan":
            raise UsageError(f"a photo is retouched with a Deidentifier of mode ficgan, not {engine.mode}")
        self.engine, self.image = engine, image
        self.key = content_key(image) if key is None else key
        self.people = {} if people is None else people
        self._objects = engine.objects_in(image)
        # By places of faces.
        self._readings: dict[Any, FaceReading] = {}
        self._sources: dict[Any, NDArray[np.float32]] = {}
        self._last: tuple[Any, Result] | None = None  # what was drawn last, and from what
        self._engines = lru_cache(maxsize=ENGINES_KEPT)(lambda drawing: drawing.applied(engine))

    def closer(self, box: Sequence[float]) -> Face:
        """The face in a box that a person drew, if the detector finds one on a closer look; else the box, of score 0.

        An InputError where the box shows nothing of the photo.
        """
        import cv2

        height, width = self.image.shape[:2]
        corners = np.asarray(box, np.float64).clip(0, (width, height) * 2).astype(np.float32)
        if not (corners[2:] - corners[:2] >= 4).all():
            raise InputError("the box lies outside of the photo or is smaller than 4 pixels; draw a larger one")
        margin = float((corners[2:] - corners[:2]).max())
        x0, y0 = (int(v) for v in np.floor(corners[:2] - margin).clip(0))
        x1, y1 = (int(v) for v in np.ceil(corners[2:] + margin).clip(0, (width, height)))
        factor = min(8.0, max(1.0, 160 / float((corners[2:] - corners[:2]).min())))
        size = round((x1 - x0) * factor), round((y1 - y0) * factor)
        cut = np.ascontiguousarray(cv2.resize(self.image[y0:y1, x0:x1], size, interpolation=cv2.INTER_CUBIC))
        shift = np.array([x0, y0], np.float32)
        detector = self.engine.detector
        for face in (detector.once() if isinstance(detector, PyramidDetector) else detector).detect(cut):
            place = face.box / np.float32(factor) + np.tile(shift, 2)
            if overlaps(place, corners)[0, 0] >= 0.3:
                return replace(face, box=place, landmarks=face.landmarks / np.float32(factor) + shift)
        return Face(corners, NOWHERE, 0.0)

    def render(
        self, faces: Sequence[ReviewedFace], engine: Deidentifier | None = None, default: str = "ficgan"
    ) -> Result:
        """The photo with all its faces as decided, verified as ever.

        Args:
            engine: made by `with_controls` of the first one; None: the first one.
            default: mode of faces without one of their own.
        """
        engine = engine or self.engine
        basis = engine, default, [face.decided for face in faces]
        if self._last is not None and self._last[0] == basis:
            return self._last[1]
        jobs = [self._job(engine, faces, number, default) for number in range(len(faces))]
        shown = [n for n, job in enumerate(jobs) if not (job.kept or job.by_hand) and job.readable]
        new = [n for n in shown if faces[n].place not in self._readings]
        readings = engine.face_model.see([(self.image, jobs[n].face) for n in new])
        self._readings |= zip([faces[n].place for n in new], readings, strict=True)
        for n in shown:
            jobs[n].take(self._readings[faces[n].place])
        result = engine.finish(self.image, jobs, engine.layer, self._objects)
        for face, job in zip(faces, jobs, strict=True):
            if job.source is not None:
                self._sources[face.place] = job.source
            if face.person and job.reading is not None and job.generated is not None:
                self.people.setdefault(face.identity, NewIdentity(job.reading.z_id, job.kind, job.step))
        self._last = basis, result
        return result

    def _job(self, engine: Deidentifier, faces: Sequence[ReviewedFace], number: int, default: str) -> FaceJob:
        face, detector = faces[number], self.engine.detector.name
        mode, own = face.mode or default, None
        (find,) = checked_faces([face.face], self.image.shape, detector)
        if face.drawing is not None:
            engine = self._engines(face.drawing)
            own = engine.face_model, engine.layer
        name = f"person {face.person}" if face.person else f"{self.key}/{number}"
        psi = engine.auto_psi(2 if face.person else len(faces))
        cover = mode not in ("ficgan", "keep")
        return FaceJob(
            find,
            name + (f"~{face.draw}" if face.draw else ""),
            max(psi, 0.6) if face.draw else psi,  # with the plain mean all draws are one face
            engine.alignment.fits(find.landmarks) and mode not in (*OPAQUE, "solid"),
            mode if cover else engine.hiding.fallback,
            doubt="" if face.score == 0 else doubts(find, self.image.shape, detector),
            kept="chosen by hand" if mode == "keep" else "",
            by_hand=cover,
            source=self._sources.get(face.place),
            identity=self.people.get(face.identity) if face.person else None,
            own=own,
        )


# -- decisions as a file ----------------------------------------------------------------------------------------------


class PhotoDecisions(Strict):
    """What was decided on one photo."""

    name: Text = ""  # for people
    analysis: str = Field(pattern=r"^[0-9a-f]{32}$")  # hash of the photo's pixels: it tells the photo whatever its name
    # What happens to faces without a mode of their own.
    default: Literal[HIDING] = "ficgan"  # type: ignore[valid-type]
    drawing: Drawing | None = None  # None: as the engine draws
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
    engines = lru_cache(maxsize=ENGINES_KEPT)(lambda drawing: drawing.applied(engine))
    people: dict[str, NewIdentity] = {}

    def decide(image: Image, *, key: str) -> Result:
        photo = decisions.get(key)
        if photo is None:
            raise InputError("nothing was decided on this photo, or its pixels changed; review it and export again")
        drawn = None if photo.drawing is None else engines(photo.drawing)
        return Retouch(engine, image, key=key, people=people).render(photo.faces, drawn, photo.default)

    return decide
