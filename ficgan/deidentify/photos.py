"""The faces of one photo, step by step: found, read, generated, pasted, checked; retried or covered; accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.face_model import FaceModel, FaceReading, ModelInfo, read_kinds
from ficgan.faces import (
    Alignment,
    DetectAt,
    DlibRecognizer,
    Face,
    FaceDetector,
    Paste,
    Recognizer,
    blur_face,
    get_recognizer,
    matching,
    mosaic_face,
    plain_mask,
    public_name,
    solid_mask,
)
from ficgan.faces.detection import PyramidDetector
from ficgan.faces.recognition import embed_largest
from ficgan.options import OPAQUE, Box, Diversity, Finding, Hiding
from ficgan.policy import Attempt, FaceResult, Policy, Result, covered

if TYPE_CHECKING:
    from ficgan.anonymizers import Anonymizer
    from ficgan.anonymizers.modes import Methods
    from ficgan.deidentify.objects import FoundObjects
    from ficgan.faces.objects import ObjectDetector

__all__ = [
    "NOWHERE",
    "CheckedDetector",
    "Exemptions",
    "FaceJob",
    "Image",
    "Linked",
    "Mask",
    "NewIdentity",
    "Photos",
    "checked_faces",
    "detect_and_doubt",
    "doubts",
    "is_replaced",
    "name_possible",
]

Image = NDArray[np.uint8]
Mask = NDArray[np.float32]

# What covers a face, and the action that its record states.
_COVERS: dict[str, tuple[Callable[..., Paste], str]] = {
    "plain": (plain_mask, "plain"),
    "black": (solid_mask, "black"),
    "solid": (solid_mask, "solid"),
    "blur": (blur_face, "blurred"),
    "mosaic": (mosaic_face, "mosaic"),
}
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
    """How a person's new face was drawn: z_id [D] of the face it was chosen for, kind [9] that was kept, attempt."""

    code: NDArray[np.float32]
    kind: NDArray[np.float32] | None
    step: int


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
    """One face on its way through the pipeline.

    Args:
        key: of its k-same draw.
        psi: diversity ψ of the draw.
        readable: whether its landmarks span a face.
        fallback: what covers it where it cannot be generated.
        doubt: why the find may be no face; "" where it is clear.
        kept: why it stays as it is; "" where it is hidden.
        by_hand: whether a person chose its fallback in place of a new face.
        reading: of the source face by the model.
        source: embedding of the source face by the gate.
        kind: float32 [9], reading of the source's kind; None where nothing of it is kept.
        generated: new face, as the model made it.
        step: index of the policy's attempt that is tried.
        linked: whether its key is the person's, who keeps one new face in all photos.
        identity: how the person was drawn in an earlier photo.
        own: controls of its own: the model with them, and the layer; None: those of the photo.
    """

    face: Face
    key: str
    psi: float
    readable: bool = True
    fallback: str = "plain"
    doubt: str = ""
    kept: str = ""
    by_hand: bool = False
    reading: FaceReading | None = None
    source: NDArray[np.float32] | None = None
    kind: NDArray[np.float32] | None = None
    generated: Any = None
    step: int = 0
    linked: bool = False
    identity: NewIdentity | None = None
    own: tuple[FaceModel, int] | None = None
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
    """The people whom the photos of a job have shown, and how the new face of each was drawn.

    People are found as in films, by average linkage of embeddings; two faces of one photo are two people. The first
    photo of a person settles the new face. All of it stays in memory. The order of the photos counts.

    Args:
        recognizer: tells people apart.
        gate: checks new faces; where it is the recogniser itself, its readings are used.
    """

    def __init__(self, recognizer: Recognizer, gate: Recognizer | None) -> None:
        from ficgan.video.people import People

        self._recognizer, self._read = recognizer, gate is recognizer
        self._people, self._lock = People.of(recognizer, "job", STRICTNESS), Lock()
        self._identities: dict[str, NewIdentity] = {}

    def meet(self, image: Image, jobs: Sequence[FaceJob]) -> None:
        """Name the faces of a photo, uint8 [H,W,3] RGB, by their people, and draw the known ones as before."""
        from ficgan.video.people import readable
        from ficgan.video.tracks import Sighting, Tracklet

        clear = [job for job in jobs if readable(job.face)]
        if not clear:
            return
        with self._lock:
            embeddings = [job.source for job in clear if self._read and job.source is not None]
            if len(embeddings) < len(clear):
                embeddings = list(self._recognizer.embed(image, np.stack([job.face.landmarks for job in clear])))
            seen = [
                Tracklet(number, [Sighting(0, job.face)], embeddings=embedding[None])
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
        """Read the reference photos. The recogniser tells people apart, even where nothing is verified; or its name."""
        if not (finding.keep or finding.only):
            return cls(None, {}, {}, finding.boxes)
        teller = get_recognizer(recognizer) if isinstance(recognizer, str) else recognizer

        def read(photos: Mapping[str, Image]) -> dict[str, NDArray[np.float32]]:
            return {name: embed_largest(photo, name, detector, teller) for name, photo in photos.items()}

        return cls(teller, read(finding.keep), read(finding.only), finding.boxes)

    def __call__(self, image: Image, faces: Sequence[Face]) -> list[str]:
        """Why each face stays as it is; "" where it is hidden."""
        readings: dict[int, NDArray[np.float32]] = {}
        rows = [n for n, face in enumerate(faces) if np.ptp(face.landmarks, axis=0).min() > 0]
        if self.recognizer is not None and rows:
            found = self.recognizer.embed(image, np.stack([faces[n].landmarks for n in rows]))
            readings = dict(zip(rows, found, strict=True))
        return [self._why(face, readings.get(n)) for n, face in enumerate(faces)]

    def _why(self, face: Face, reading: NDArray[np.float32] | None) -> str:
        x0, y0, x1, y1 = (float(value) for value in face.box)
        if self.only and self._near(reading, self.only, 1.0) is not None:
            return ""
        if any(x0 >= box[0] and y0 >= box[1] and x1 <= box[2] and y1 <= box[3] for box in self.boxes):
            return "it lies in a given box"
        if self.keep and (name := self._near(reading, self.keep, STRICTNESS)) is not None:
            return f"it matches {Path(name).name}"
        # A face that cannot be read may be the one that is meant.
        return "it is none of those to be hidden" if self.only and reading is not None else ""

    def _near(
        self, reading: NDArray[np.float32] | None, people: Mapping[str, NDArray[np.float32]], factor: float
    ) -> str | None:
        if reading is None or self.recognizer is None or not np.isfinite(reading).all():
            return None
        apart = {name: self.recognizer.distance(reading, known) for name, known in people.items()}
        nearest = min(apart, key=lambda name: apart[name])
        return nearest if apart[nearest] < factor * self.recognizer.match_threshold else None


# -- the steps of a photo ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Photos:
    """The tools and options that all photos of one `Deidentifier` share, and the steps of each photo.

    `method` is the mode's anonymiser, one of `methods`; both are None for the modes of our own. `info` and `digests`
    are of the model's checkpoint; without `linked` each photo shows people of its own. See the options for the rest.
    """

    model: FaceModel | None
    alignment: Alignment
    detector: FaceDetector
    exemptions: Exemptions
    recognizer: Recognizer | None
    policy: Policy
    mode: str
    methods: Methods | None
    method: Anonymizer | None
    hiding: Hiding
    finding: Finding
    psi: Diversity
    info: ModelInfo | None
    digests: Mapping[str, str]
    linked: Linked | None = None
    objects: Sequence[ObjectDetector] = ()

    @property
    def face_model(self) -> FaceModel:
        """The model with the controls."""
        if self.model is None:
            raise UsageError(f"this Deidentifier was made for mode {self.mode} and has no model; make one for ficgan")
        return self.model

    def find(self, image: Image, key: str) -> tuple[list[FaceJob], list[Face]]:
        """A job for each face, and places that may be faces and stay; with `strict` these are worked on, too."""
        faces, possible = detect_and_doubt(self.detector, image)
        least = -np.inf if self.finding.min_score is None else self.finding.min_score
        possible = [face for face in possible if face.score >= least]
        found = [(index, face) for index, face in enumerate(faces) if face.score >= least]
        psi = self.auto_psi(len(found))
        if self.finding.strict:
            found += list(enumerate(possible, len(faces)))
            possible = []
        kept = self.exemptions(image, [face for _, face in found])
        jobs = [
            FaceJob(
                face,
                f"{key}/{index}",
                psi,
                self.alignment.fits(face.landmarks),
                self.hiding.fallback,
                doubts(face, image.shape, self.detector.name),
                why,
            )
            for (index, face), why in zip(found, kept, strict=True)
        ]
        return jobs, possible

    def auto_psi(self, faces: int) -> float:
        """ψ for a photo with this many faces."""
        if self.psi != "auto":
            return float(self.psi)
        return 0.0 if self.model is None else self.model.auto_psi(faces)

    def objects_in(self, image: Image) -> FoundObjects:
        """What is no face and is covered, too, by its detector."""
        return {detector: detector.detect(image) for detector in self.objects}

    def finish(self, image: Image, jobs: list[FaceJob], layer: int, objects: FoundObjects) -> Result:
        """The photo with faces and objects hidden, and its account; `encode` comes first where faces are generated."""
        hidden = [job for job in jobs if not job.kept]
        for job in jobs:
            if job.kept:
                job.result.keep(job.kept)
        if self.mode != "ficgan":
            out, mask = self._obscure(image, hidden)
        else:
            kept = [job.face for job in jobs if job.kept]
            out, mask = self.settle(image, hidden, layer, lambda group: self._compose(image, group, kept))
        faces = [job.result for job in jobs]
        result = Result(out, faces, self._audit(faces, layer), mask)
        if self.objects:
            from ficgan.deidentify.objects import cover_objects

            cover_objects(result, objects, self.finding.boxes, mask_scale=self.hiding.mask_scale)
        return result

    def settle(
        self, image: Image, jobs: list[FaceJob], layer: int, compose: Callable[[list[FaceJob]], tuple[Image, Mask]]
    ) -> tuple[Image, Mask]:
        """Generate, compose and verify until every face of the last composite passes or is covered."""
        usual = self.face_model, layer

        def ladder(job: FaceJob) -> list[Attempt]:
            model, first = job.own or usual
            return self.policy.attempts(first, model.band, drawn=not model.swap)

        for job in jobs:
            if job.by_hand:
                job.result.action = _COVERS[job.fallback][1]
            elif self.finding.strict and job.result.doubt:
                job.result.mask(f"doubtful find ({job.result.doubt})")
            elif not job.live:
                job.result.mask("it has no usable landmarks" if job.reading is None else job.reading.problem)
            elif job.reading is not None:
                job.result.note = job.reading.note
        self._read(image, jobs)
        pending, changed = [job for job in jobs if job.live], jobs
        for job, kind in zip(pending, self.kinds(image, pending), strict=True):
            job.kind = kind
        if self.linked is not None:
            self.linked.meet(image, pending)
        for job in pending:
            if job.identity is not None:
                job.kind, job.step = job.identity.kind, min(job.identity.step, len(ladder(job)) - 1)
        while True:
            for own in dict.fromkeys(job.own for job in pending):
                group = [job for job in pending if job.own == own]
                for step in sorted({job.step for job in group}):
                    alike = [job for job in group if job.step == step]
                    self._generate(alike, ladder(alike[0])[step], (own or usual)[0])
            out, mask = compose(jobs)
            self._judge(out, mask, _near(changed, jobs))
            failing = [job for job in jobs if self._fails(job)]
            if not failing:
                break
            for job in failing:
                if not job.live:  # the fallback hides it no better
                    job.fallback, job.result.matched = _opaque(job.fallback), False
                    continue
                attempts = ladder(job)
                job.step = job.step + 1 if job.result.covered else _next_wider_attempt(attempts, job.step)
                if job.step == len(attempts):
                    job.generated = None
                    job.result.mask()
                else:
                    job.result.attempts, job.result.action = job.step + 1, "retried"
            pending, changed = [job for job in failing if job.live], failing
        if self.linked is not None:
            self.linked.settle(jobs)
        return out, mask

    @staticmethod
    def _fails(job: FaceJob) -> bool:
        """Whether something else has to take this face's place; nothing hides more than a cover of one colour."""
        bad = job.result.matched or not job.result.covered
        return bad and (job.live or (job.result.action == "masked" and job.fallback not in OPAQUE))

    def _compose(self, image: Image, jobs: list[FaceJob], kept: Sequence[Face] = ()) -> tuple[Image, Mask]:
        """All faces pasted into a copy of the image, the largest last; those without a new face are covered.

        What is around a face moves with its outline, but not in the boxes of faces that are `kept`.
        """
        out, mask = image.copy(), np.zeros(image.shape[:2], np.float32)
        for job in sorted(jobs, key=lambda job: float(np.ptp(job.face.landmarks[:, 0]))):
            if job.generated is None or job.reading is None:
                paste = _COVERS[job.fallback][0](out, job.face, mask_scale=max(1.0, self.hiding.mask_scale))
            else:
                paste = self.face_model.paste(out, job.reading, job.generated, mask_scale=self.hiding.mask_scale)
            paste.onto(out, mask, kept=[face.box for face in kept])
        return out, mask

    def _obscure(self, image: Image, jobs: list[FaceJob]) -> tuple[Image, Mask]:
        """Cover all faces by the mode, and read them again."""
        self._read(image, jobs)
        out, mask = image.copy(), np.zeros(image.shape[:2], np.float32)
        if self.method is None:
            effect, action = _COVERS[self.mode]
            for job in jobs:
                effect(out, job.face, mask_scale=self.hiding.mask_scale).onto(out, mask)
                job.result.action = action
        else:
            self._apply(self.method, out, mask, jobs)
        self._judge(out, mask, jobs)
        return out, mask

    def _apply(self, method: Anonymizer, out: Image, mask: Mask, jobs: list[FaceJob]) -> None:
        """An anonymiser on all faces, in place; a face that it cannot hide gets a cover of one colour."""
        from ficgan.anonymizers.modes import cover, cover_all, placement, square

        assert self.methods is not None
        kind, keyed = placement(method), method.traits.keyed and bool(getattr(method, "key", ""))
        if kind == "scene" and jobs:
            cover_all(method, out, [job.face for job in jobs], mask_scale=self.hiding.mask_scale).onto(out, mask)
        for job in jobs:
            job.result.action, name = method.name, self.methods.name(job.key)
            try:
                # The blur of a whole photo is as soft as its largest face wants it; the small ones get their own.
                if kind != "scene" or not self._covers(mask, job):
                    cover(method, out, job.face, name=name, mask_scale=self.hiding.mask_scale).onto(out, mask)
            except (InputError, UsageError) as error:
                if method.traits.family == "external":
                    raise
                job.result.note = str(error)
            else:
                if kind == "square":
                    job.result.square = square(job.face, out.shape[:2], mask_scale=self.hiding.mask_scale)
                    job.result.name = name if keyed else None  # what is drawn is undone with the key and the name
            if job.result.note or not self._covers(mask, job):
                job.result.mask(job.result.note)
                job.fallback = _opaque(job.fallback)
                _COVERS[job.fallback][0](out, job.face, mask_scale=max(1.0, self.hiding.mask_scale)).onto(out, mask)

    def _covers(self, mask: Mask, job: FaceJob) -> bool:
        outline = job.reading.outline if job.reading is not None and job.generated is not None else None
        return covered(mask, job.face.landmarks, job.face.box, self.policy.coverage, outline)

    def _read(self, image: Image, jobs: list[FaceJob]) -> None:
        readable = [job for job in jobs if job.readable and job.source is None]
        if self.recognizer is not None and readable:
            marks = np.stack([job.face.landmarks for job in readable])
            for job, embedding in zip(readable, self.recognizer.embed(image, marks), strict=True):
                job.source = embedding

    def kinds(self, image: Image, jobs: Sequence[FaceJob]) -> Sequence[NDArray[np.float32] | None]:
        """Readings [9] of the kinds of faces, None each where none is kept."""
        keeping = [(self.face_model if job.own is None else job.own[0]).keeps_kind for job in jobs]
        if not all(keeping):
            read = iter(self.kinds(image, [job for job, keeps in zip(jobs, keeping, strict=True) if keeps]))
            return [next(read) if keeps else None for keeps in keeping]
        if not jobs:
            return []
        sources = [job.source for job in jobs if job.source is not None]
        known = isinstance(self.recognizer, DlibRecognizer) and len(sources) == len(jobs)
        marks = [job.face.landmarks for job in jobs]
        return read_kinds([image] * len(jobs), marks, np.stack(sources) if known else None)

    def _judge(self, out: Image, mask: Mask, jobs: list[FaceJob]) -> None:
        """Whether each face of the composite is covered, and whether the gate still knows it."""
        for job in jobs:
            job.result.covered = self._covers(mask, job)
        # A cover of one colour need not be read: there is nothing to see.
        readable = [
            (job, job.source)
            for job in jobs
            if job.source is not None and (job.result.action != "masked" or job.fallback not in OPAQUE)
        ]
        if self.recognizer is None or not readable:
            return
        again = self.recognizer.embed(out, np.stack([job.face.landmarks for job, _ in readable]))
        for (job, before), after in zip(readable, again, strict=True):
            job.result.distance = float(self.recognizer.distance(before, after))
            names = matching(self.recognizer, before, after)
            job.result.matched = bool(names)
            job.result.matched_by += [name for name in names if name not in job.result.matched_by]

    # -- the model ----------------------------------------------------------------------------------------------------

    def encode(self, pairs: Sequence[tuple[Image, FaceJob]]) -> None:
        """Have the model read the faces of all images, together."""
        ready = [(image, job) for image, job in pairs if job.readable and not job.kept]
        readings = self.face_model.see([(image, job.face) for image, job in ready])
        for (_, job), reading in zip(ready, readings, strict=True):
            job.take(reading)

    def _generate(self, jobs: Sequence[FaceJob], attempt: Attempt, model: FaceModel) -> None:
        readings = [job.reading for job in jobs if job.reading is not None]
        draws = [
            model.draw(job.key, attempt, job.psi, job.identity.code if job.identity else reading.z_id, job.kind)
            for job, reading in zip(jobs, readings, strict=True)
        ]
        styles = model.styles(np.stack([reading.z_id for reading in readings]), draws, attempt)
        for job, draw, made in zip(jobs, draws, model.render(styles, readings), strict=True):
            job.generated = made
            job.result.layer = None if attempt.band else attempt.layer
            if not model.swap:
                job.result.k, job.result.psi, job.result.members_digest = draw.k, draw.psi, draw.members_digest
                job.result.kind = draw.kind

    # -- the account --------------------------------------------------------------------------------------------------

    def _audit(self, faces: Sequence[FaceResult], layer: int) -> dict[str, Any]:
        """JSON-ready: versions, mode and its settings, detector, gate, every face; no secrets, no folders."""
        from ficgan import __version__

        gate, model = self.recognizer, self.model
        mode: dict[str, Any] = {"mode": self.mode}
        if self.methods is not None:
            from ficgan.anonymizers.modes import shown

            mode = {"mode": shown(self.mode, self.method), **self.methods.accounts([self.mode])}
        account = {
            "ficgan": __version__,
            **mode,
            "detector": self.detector.name,
            "gate": None if gate is None else public_name(gate),
            "gate_threshold": None if gate is None else float(gate.match_threshold),
            "checkpoint": self.digests.get("checkpoint"),
            "data_licence": None if self.info is None else self.info.data.get("licence"),
            "precision": None if model is None else model.precision,
            "faces": [face.to_dict() for face in faces],
        }
        if notes := _notes(faces):
            account["notes"] = notes
        if self.mode == "ficgan":
            psi = [face.psi for face in faces if face.psi is not None]
            account |= self.face_model.account(layer=layer, psi=psi)
        return account


def _opaque(fallback: str) -> str:
    """The cover of one colour that stands in for a fallback that does not hide a face."""
    return fallback if fallback in OPAQUE else OPAQUE[0]


def _next_wider_attempt(attempts: Sequence[Attempt], step: int) -> int:
    """Index of the next attempt that also replaces hair over the forehead, the only one that covers more."""
    return next((n for n in range(step + 1, len(attempts)) if attempts[n].bare > attempts[step].bare), len(attempts))


def _near(changed: Sequence[FaceJob], jobs: Sequence[FaceJob]) -> list[FaceJob]:
    """The faces that changed, and those whose surroundings they may reach into."""
    if len(changed) == len(jobs):
        return list(jobs)

    def reach(job: FaceJob) -> NDArray[np.float32]:
        margin = 0.5 * float(np.ptp(job.face.box.reshape(2, 2), axis=0).max())
        return job.face.box + np.array([-margin, -margin, margin, margin], np.float32)

    boxes = [reach(job) for job in changed]
    return [
        job
        for job in jobs
        if any((np.maximum(a[:2], b[:2]) <= np.minimum(a[2:], b[2:])).all() for a in [reach(job)] for b in boxes)
    ]


def _notes(faces: Sequence[FaceResult]) -> list[str]:
    """Sentences about faces for users who do not open the audit."""
    found: Counter[str] = Counter()
    for face in faces:
        if face.action == "masked":
            found[f"masked: {face.note or 'no new face passed the check'}"] += 1
        elif face.action == "kept":
            found[f"left as found: {face.note}"] += 1
        elif face.note and face.action in ("generated", "retried"):
            found[f"made anew: {face.note}"] += 1
        if face.action == "retried":
            layer = f" with layer {face.layer}" if face.layer else ""
            found[f"still recognised at first and drawn again{layer}"] += 1
    notes = [f"{'1 face was' if number == 1 else f'{number} faces were'} {what}" for what, number in found.items()]
    for face in faces:
        if face.doubt and face.action != "kept":
            notes.append(f"doubtful find at {', '.join(str(round(float(value))) for value in face.box)}: {face.doubt}")
    return notes


def detect_and_doubt(detector: FaceDetector, image: Image) -> tuple[list[Face], list[Face]]:
    """Faces, and the weaker finds of a detector that tells of them."""
    if isinstance(detector, PyramidDetector | DetectAt):
        return detector.detect_and_doubt(image)
    return detector.detect(image), []


def name_possible(result: Result, possible: Sequence[Face]) -> None:
    """State in the account which places may be faces and stay as they are.

    Weak finds beside faces are common. A place of which most was replaced with such a face is left out.
    """
    possible = [face for face in possible if not is_replaced(result.mask, face)]
    result.audit["possible_faces"] = [
        {"box": [round(float(value), 1) for value in face.box], "score": round(face.score, 4)} for face in possible
    ]
    if possible:
        places = (
            "1 place may be a face and was" if len(possible) == 1 else f"{len(possible)} places may be faces and were"
        )
        note = f"{places} left as found (see possible_faces); --strict covers them"
        result.audit["notes"] = [*result.audit.get("notes", ()), note]


def is_replaced(mask: Mask, face: Face) -> bool:
    """Whether more than half of a face's box was replaced."""
    x0, y0, x1, y1 = np.rint(face.box).astype(int).clip(0)
    place = mask[y0 : y1 + 1, x0 : x1 + 1]
    return bool(place.size and (place > 0.5).mean() > 0.5)
