"""The faces of one photo, step by step: found, read, generated, pasted, checked; retried or covered; accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.deidentify.found import Exemptions, FaceJob, FoundObjects, Image, Linked, cover_objects, doubts
from ficgan.errors import InputError, UsageError
from ficgan.face_model import FaceModel, ModelInfo, read_kinds
from ficgan.faces import Alignment, DlibRecognizer, Face, FaceDetector, Recognizer, cover_face, matching, public_name
from ficgan.faces.detection import detect_and_doubt, overlaps
from ficgan.identity.kind import match_share
from ficgan.options import OPAQUE, Diversity, Finding, Hiding
from ficgan.policy import Attempt, FaceResult, Policy, Result, covered

if TYPE_CHECKING:
    from ficgan.anonymizers import Anonymizer
    from ficgan.anonymizers.modes import Methods
    from ficgan.faces.covers import ObjectDetector

Mask = NDArray[np.float32]

_ACTIONS = {"blur": "blurred"}  # What the record states of a cover, where that is not its name


class Photos:
    """The steps of each photo, for a class with the tools and options, which all photos share."""

    model: FaceModel | None
    alignment: Alignment
    detector: FaceDetector
    exemptions: Exemptions
    gate: Recognizer | None  # checks new faces: one recogniser, or several as one
    recognizer: Recognizer | None  # the first of them, which also tells people apart
    policy: Policy
    mode: str
    method: Anonymizer | None  # that of the mode; None for the modes of our own
    hiding: Hiding
    seed: int | None
    finding: Finding
    psi: Diversity
    header: ModelInfo | None  # of the model's checkpoint, as are the digests
    digests: Mapping[str, str]
    objects: Sequence[ObjectDetector]
    linked: Linked | None = None  # None: each photo shows people of its own

    @property
    def face_model(self) -> FaceModel:
        """The model with the controls."""
        if self.model is None:
            raise UsageError(f"this Deidentifier was made for mode {self.mode} and has no model; make one for ficgan")
        return self.model

    @cached_property
    def methods(self) -> Methods:
        """The anonymisers of modes that are none of our own, for photos and films."""
        from ficgan.anonymizers.modes import Methods, mode_of

        mode = self.hiding.mode
        given = {} if isinstance(mode, str) else {mode_of(mode): mode}
        self.mode = self.mode or next(iter(given))
        return Methods(self.hiding.background, self.seed, {self.mode}, given)

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
        jobs = []
        for (index, face), why in zip(found, kept, strict=True):
            readable, doubt = self.alignment.fits(face.landmarks), doubts(face, image.shape, self.detector.name)
            jobs.append(FaceJob(face, f"{key}/{index}", psi, readable, self.hiding.fallback, doubt, why))
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
        hidden, kept = [job for job in jobs if not job.kept], [job for job in jobs if job.kept]
        for job in kept:
            job.result.keep(job.kept)
        if self.mode != "ficgan":
            out, mask = self._obscure(image, hidden)
        else:
            boxes = [job.face.box for job in kept]
            out, mask = self.settle(image, hidden, layer, lambda group: self._compose(image, group, boxes))
        faces = [job.result for job in jobs]
        result = Result(out, faces, self._audit(faces, layer), mask)
        if self.objects:
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
                job.result.action = _ACTIONS.get(job.fallback, job.fallback)
            elif self.finding.strict and job.result.doubt:
                job.result.mask(f"doubtful find ({job.result.doubt})")
            elif not job.live:
                job.result.mask("it has no usable landmarks" if job.reading is None else job.reading.problem)
            elif job.reading is not None:
                job.result.note = job.reading.note
        self._read(image, jobs)
        pending, changed = [job for job in jobs if job.live], jobs
        self._read_kinds(image, pending)
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
                # Only an attempt that also replaces hair over the forehead covers more.
                fit = (n for n, one in enumerate(attempts) if job.result.covered or one.bare > attempts[job.step].bare)
                job.step = next((n for n in fit if n > job.step), len(attempts))
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

    def _compose(self, image: Image, jobs: list[FaceJob], kept: list[NDArray[np.float32]]) -> tuple[Image, Mask]:
        """All faces pasted into a copy of the image, the largest last; those without a new face are covered.

        What is around a face moves with its outline, but not in the boxes `kept`.
        """
        out, mask = image.copy(), np.zeros(image.shape[:2], np.float32)
        for job in sorted(jobs, key=lambda job: float(np.ptp(job.face.landmarks[:, 0]))):
            if job.generated is None or job.reading is None:
                paste = cover_face(out, job.face, job.fallback, mask_scale=max(1.0, self.hiding.mask_scale))
            else:
                paste = self.face_model.paste(out, job.reading, job.generated, mask_scale=self.hiding.mask_scale)
            paste.onto(out, mask, kept=kept)
        return out, mask

    def _obscure(self, image: Image, jobs: list[FaceJob]) -> tuple[Image, Mask]:
        """Cover all faces by the mode, and read them again."""
        self._read(image, jobs)
        out, mask = image.copy(), np.zeros(image.shape[:2], np.float32)
        if self.method is None:
            for job in jobs:
                cover_face(out, job.face, self.mode, mask_scale=self.hiding.mask_scale).onto(out, mask)
                job.result.action = _ACTIONS.get(self.mode, self.mode)
        else:
            self._apply(self.method, out, mask, jobs)
        self._judge(out, mask, jobs)
        return out, mask

    def _apply(self, method: Anonymizer, out: Image, mask: Mask, jobs: list[FaceJob]) -> None:
        """An anonymiser on all faces, in place; a face that it cannot hide gets a cover of one colour."""
        from ficgan.anonymizers.modes import cover, cover_all, placement, square

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
                cover_face(out, job.face, job.fallback, mask_scale=max(1.0, self.hiding.mask_scale)).onto(out, mask)

    def _covers(self, mask: Mask, job: FaceJob) -> bool:
        outline = job.reading.outline if job.reading is not None and job.generated is not None else None
        return covered(mask, job.face.landmarks, job.face.box, self.policy.coverage, outline)

    def _read(self, image: Image, jobs: list[FaceJob]) -> None:
        readable = [job for job in jobs if job.readable and job.source is None]
        if self.gate is not None and readable:
            marks = np.stack([job.face.landmarks for job in readable])
            for job, embedding in zip(readable, self.gate.embed(image, marks), strict=True):
                job.source = embedding

    def _read_kinds(self, image: Image, jobs: Sequence[FaceJob]) -> None:
        """Read the kinds of faces of which something of it is kept."""
        jobs = [job for job in jobs if (self.face_model if job.own is None else job.own[0]).keeps_kind]
        sources = [job.source for job in jobs if job.source is not None]
        known = sources and isinstance(self.gate, DlibRecognizer) and len(sources) == len(jobs)
        marks = [job.face.landmarks for job in jobs]
        kinds = read_kinds([image] * len(jobs), marks, np.stack(sources) if known else None)
        for job, kind in zip(jobs, kinds, strict=True):
            job.kind = kind

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
        if self.gate is None or not readable:
            return
        shown = out
        for job, _ in readable:
            made = None if job.generated is None else self.face_model.checked(job.generated)
            if job.reading is not None and made is not job.generated:
                shown = shown.copy()
                self.face_model.paste(shown, job.reading, made, mask_scale=self.hiding.mask_scale).onto(shown)
        again = self.gate.embed(shown, np.stack([job.face.landmarks for job, _ in readable]))
        for (job, before), after in zip(readable, again, strict=True):
            share = match_share(job.kind)
            job.result.distance = float(self.gate.distance(before, after)) / share
            names = matching(self.gate, before, after, share)
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

        gate, model = self.gate, self.model
        mode: dict[str, Any] = {"mode": self.mode}
        if self.method is not None:
            from ficgan.anonymizers.modes import shown

            mode = {"mode": shown(self.mode, self.method), **self.methods.accounts([self.mode])}
        account = {
            "ficgan": __version__,
            **mode,
            "detector": self.detector.name,
            "gate": None if gate is None else public_name(gate),
            "gate_threshold": None if gate is None else float(gate.match_threshold),
            "checkpoint": self.digests.get("checkpoint"),
            "data_licence": None if self.header is None else self.header.data.get("licence"),
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


def _near(changed: Sequence[FaceJob], jobs: Sequence[FaceJob]) -> list[FaceJob]:
    """The faces that changed, and those whose surroundings they may reach into."""

    def reach(jobs: Sequence[FaceJob]) -> NDArray[np.float32]:
        boxes = np.stack([job.face.box for job in jobs])
        margins = 0.5 * np.max(boxes[:, 2:] - boxes[:, :2], axis=1, keepdims=True)
        return boxes + margins * np.array([-1, -1, 1, 1], np.float32)

    if len(changed) == len(jobs):
        return list(jobs)
    meeting = overlaps(reach(jobs), reach(changed))
    return [job for job, shares in zip(jobs, meeting, strict=True) if shares.any()]


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


def name_possible(result: Result, possible: Sequence[Face]) -> None:
    """State in the account which places may be faces and stay as they are.

    Weak finds beside faces are common. A place of which most was replaced with such a face is left out.
    """
    possible = [face for face in possible if not is_replaced(result.mask, face)]
    result.audit["possible_faces"] = [
        {"box": [round(float(value), 1) for value in face.box], "score": round(face.score, 4)} for face in possible
    ]
    if number := len(possible):
        places = "1 place may be a face and was" if number == 1 else f"{number} places may be faces and were"
        note = f"{places} left as found (see possible_faces); --strict covers them"
        result.audit["notes"] = [*result.audit.get("notes", ()), note]


def is_replaced(mask: Mask, face: Face) -> bool:
    """Whether more than half of a face's box was replaced."""
    x0, y0, x1, y1 = np.rint(face.box).astype(int).clip(0)
    place = mask[y0 : y1 + 1, x0 : x1 + 1]
    return bool(place.size and (place > 0.5).mean() > 0.5)
