"""What is found in a photo: faces and doubts, who is who, who stays as they are, and what else is covered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.face_model import FaceModel, FaceReading
from ficgan.faces import Face, FaceDetector, Recognizer, cover_face, get_recognizer
from ficgan.faces.covers import ObjectDetector
from ficgan.faces.recognition import embed_largest
from ficgan.options import Box, Finding, parse_cover_also
from ficgan.policy import FaceResult, Result

Image = NDArray[np.uint8]

# Landmarks of a face that has none: outside of the picture. It can be covered, and not be drawn anew.
NOWHERE = np.full((5, 2), -1, np.float32)
# Detection scores under which a find is doubtful, by detector; portraits have .95. None is known for the others.
DOUBTFUL_SCORE = {"centerface": 0.6}


def doubts(face: Face, shape: Sequence[int], detector: str) -> str:
    """Why a find of a detector may be no face in a photo of this shape; "" where it is clear."""
    x0, y0, x1, y1 = (float(value) for value in face.box)
    out = [f"low score {face.score:.2f}"] if face.score < DOUBTFUL_SCORE.get(detector, 0.0) else []
    out += ["cut by the border"] if x0 <= 0 or y0 <= 0 or x1 >= shape[1] or y1 >= shape[0] else []
    return ", ".join(out)


class NewIdentity(NamedTuple):
    """How a new face was drawn."""

    code: NDArray[np.float32]  # z_id [D] of the face it was chosen for
    kind: NDArray[np.float32] | None  # its `read_kinds` that was kept
    step: int  # index of the policy's attempt


def checked_faces(faces: Sequence[Face], shape: Sequence[int], detector: str) -> list[Face]:
    """The finds of a detector in a photo of this shape, with `NOWHERE` for landmarks that are None or not finite.

    Raises:
        InputError: a box is invalid or lies outside of the photo; its face would stay uncovered.
    """
    height, width = shape[:2]
    sound = []
    for face in faces:
        box = np.asarray(face.box, np.float32)
        inside = box.clip(0, (width, height, width, height)) if box.shape == (4,) else np.zeros(4)
        if not (inside[2:] - inside[:2] >= 1).all():  # also false for NaN
            corners = ", ".join(f"{value:.1f}" for value in box.ravel())
            raise InputError(f"{detector}: the box {corners} covers no pixel of a picture of {width}×{height}")
        marks = NOWHERE if face.landmarks is None or not np.isfinite(face.landmarks).all() else face.landmarks
        if np.shape(marks) != (5, 2):
            raise InputError(f"{detector}: landmarks have the shape {np.shape(marks)}; give [5, 2] or None")
        sound.append(replace(face, box=box, landmarks=np.asarray(marks, np.float32)))
    return sound


class CheckedDetector:
    """A detector of the user's, which may know no landmarks; see `checked_faces`."""

    def __init__(self, detector: FaceDetector) -> None:
        self.detector, self.name = detector, detector.name

    def detect(self, image: Image) -> list[Face]:
        return checked_faces(self.detector.detect(image), image.shape, self.name)


@dataclass
class FaceJob:
    """One face on its way through the pipeline."""

    face: Face
    key: str  # of its k-same draw
    psi: float  # diversity ψ of the draw
    readable: bool = True  # whether its landmarks span a face
    fallback: str = "plain"  # what covers it where it cannot be generated
    doubt: str = ""  # why the find may be no face; "" where it is clear
    kept: str = ""  # why it stays as it is; "" where it is hidden
    by_hand: bool = False  # whether a person chose its fallback in place of a new face
    reading: FaceReading | None = None  # of the source face by the model
    source: NDArray[np.float32] | None = None  # embedding of the source face by the gate
    kind: NDArray[np.float32] | None = None  # of `read_kinds`, the source's; None where nothing of it is kept
    generated: Any = None  # new face, as the model made it
    step: int = 0  # index of the policy's attempt that is tried
    linked: bool = False  # whether its key is the person's, who keeps one new face in all photos
    identity: NewIdentity | None = None  # how the person was drawn in an earlier photo
    own: tuple[FaceModel, int] | None = None  # its own controls: the model with them, the layer; None: the photo's
    result: FaceResult = field(init=False)

    def __post_init__(self) -> None:
        self.result = FaceResult(self.face.box, self.face.landmarks, self.face.score, doubt=self.doubt)

    def take(self, reading: FaceReading) -> None:
        """Take the model's reading of the source face."""
        self.reading = reading
        self.result.doubt = ", ".join(filter(None, [self.result.doubt, reading.doubt]))

    @property
    def live(self) -> bool:
        """Whether a generated face can stand here; otherwise it is covered."""
        return self.reading is not None and not self.reading.problem and self.result.action != "masked"


# -- who is who -------------------------------------------------------------------------------------------------------

# Factor of the recogniser's match threshold below which two faces of photos are one person. A photo shows a face once,
# where a film shows it often, so it is stricter than in films.
STRICTNESS = 0.8
_ANEW = "known from an earlier photo; the gate still knew it behind that new face, and it got another one here"


class Linked:
    """The people whom the photos of a job have shown, and how the new face of each was drawn; all of it in memory.

    People are found as in films, by average linkage of embeddings; two faces of one photo are two people. The first
    photo of a person settles the new face. Where the `gate` is the recogniser itself, its readings are used.
    """

    def __init__(self, recognizer: Recognizer, gate: Recognizer | None) -> None:
        from ficgan.video.people import People

        self._recognizer, self._read = recognizer, gate is recognizer
        self._people, self._lock = People(recognizer, "job", STRICTNESS), Lock()
        self._identities: dict[str, NewIdentity] = {}

    def meet(self, image: Image, jobs: Sequence[FaceJob]) -> None:
        """Name the faces of a photo, uint8 [H,W,3] RGB, by their people, and draw the known ones as before."""
        from ficgan.video.people import readable
        from ficgan.video.tracks import Reading, Sighting, Tracklet

        clear = [job for job in jobs if readable(job.face)]
        if not clear:
            return
        with self._lock:
            embeddings = [job.source for job in clear if self._read and job.source is not None]
            if len(embeddings) < len(clear):
                embeddings = list(self._recognizer.embed(image, np.stack([job.face.landmarks for job in clear])))
            seen = [
                Tracklet(number, [Sighting(0, job.face)], readings=[Reading(0, embedding)])
                for number, (job, embedding) in enumerate(zip(clear, embeddings, strict=True), start=1)
            ]
            for job, person in zip(clear, self._people.assign(seen), strict=True):
                if person:
                    job.key, job.linked = f"person {person}", True
                    job.identity = self._identities.get(job.key)

    def settle(self, jobs: Sequence[FaceJob]) -> None:
        """Remember how new people were drawn, and note where a known person had to be drawn anew."""
        with self._lock:
            for job in jobs:
                if not job.linked or job.reading is None or job.generated is None:
                    continue
                identity = self._identities.setdefault(job.key, NewIdentity(job.reading.z_id, job.kind, job.step))
                if job.step != identity.step:
                    job.result.note = "; ".join(filter(None, [job.result.note, _ANEW]))


def is_inside(box: NDArray[np.float32], places: Sequence[Box]) -> bool:
    """Whether a box lies wholly in one of some places."""
    x0, y0, x1, y1 = (float(value) for value in box)
    return any(x0 >= left and y0 >= top and x1 <= right and y1 <= low for left, top, right, low in places)


# Embeddings of people, by the names of their photos.
_Readings = dict[str, NDArray[np.float32]]


class Exemptions:
    """The rules about people and places. In doubt a face is hidden.

    The recogniser, or that of a name, tells people apart, even where nothing is verified.
    """

    def __init__(self, finding: Finding, detector: FaceDetector, recognizer: Recognizer | str) -> None:
        self.boxes = finding.boxes
        self.recognizer: Recognizer | None = None
        self.keep, self.only = _Readings(), _Readings()
        if finding.keep or finding.only:
            self.recognizer = teller = get_recognizer(recognizer)
            self.keep, self.only = (
                {name: embed_largest(photo, name, detector, teller) for name, photo in photos.items()}
                for photos in (finding.keep, finding.only)
            )

    def __call__(self, image: Image, faces: Sequence[Face]) -> list[str]:
        """Why each face stays as it is; "" where it is hidden."""
        readings: dict[int, NDArray[np.float32]] = {}
        rows = [n for n, face in enumerate(faces) if np.ptp(face.landmarks, axis=0).min() > 0]
        if self.recognizer is not None and rows:
            found = self.recognizer.embed(image, np.stack([faces[n].landmarks for n in rows]))
            readings = dict(zip(rows, found, strict=True))
        return [self._why(face, readings.get(n)) for n, face in enumerate(faces)]

    def _why(self, face: Face, reading: NDArray[np.float32] | None) -> str:
        if self.only and self._near(reading, self.only, 1.0) is not None:
            return ""
        if is_inside(face.box, self.boxes):
            return "it lies in a given box"
        if self.keep and (name := self._near(reading, self.keep, STRICTNESS)) is not None:
            return f"it matches {Path(name).name}"
        # A face that cannot be read may be the one that is meant.
        return "it is none of those to be hidden" if self.only and reading is not None else ""

    def _near(self, reading: NDArray[np.float32] | None, people: _Readings, factor: float) -> str | None:
        if reading is None or self.recognizer is None or not np.isfinite(reading).all():
            return None
        apart, nearest = min((self.recognizer.distance(reading, known), name) for name, known in people.items())
        return nearest if apart < factor * self.recognizer.match_threshold else None


# -- what is no face and is covered, too -------------------------------------------------------------------------------

FoundObjects = Mapping[ObjectDetector, Sequence[Face]]  # The finds of each detector in a photo


def load_objects(given: Iterable[str | ObjectDetector], *, device: str = "cpu") -> tuple[ObjectDetector, ...]:
    """Detectors of objects, made of texts such as "plates=FILE.onnx:black"; a UsageError where a name stands twice."""
    made: dict[str, ObjectDetector] = {}
    for entry in given:
        if isinstance(entry, str):
            try:
                name, file, cover = parse_cover_also(entry)
            except ValueError as error:
                raise UsageError(f"cover_also {entry!r} {error}") from None
            entry = ObjectDetector(file, name, cover, device=device)
        if entry.name in made:
            raise UsageError(f"cover_also {entry.name!r} stands twice; give each detector a name of its own")
        made[entry.name] = entry
    return tuple(made.values())


def cover_objects(result: Result, found: FoundObjects, keep: Sequence[Box], *, mask_scale: float = 1.0) -> None:
    """Cover objects in a result, in place, over whatever was done there, and add them to its account.

    They stay in boxes to `keep`. A `mask_scale` below 1 counts as 1.
    """
    entries: list[dict[str, Any]] = []
    for detector, faces in found.items():
        for face in faces:
            kept = is_inside(face.box, keep)
            if not kept:
                paste = cover_face(result.image, face, detector.cover, mask_scale=max(1.0, mask_scale))
                paste.onto(result.image, result.mask)
            place = {"box": [round(float(value), 1) for value in face.box], "score": round(face.score, 4)}
            entries.append({"name": detector.name, **place, "action": "kept" if kept else detector.cover})
    result.audit["objects"] = entries
