"""The faces of one photo, step by step: found, read, generated, pasted, checked; retried or covered; accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer
from ficgan.anonymizers.modes import OPAQUE, Methods, cover, cover_all, placement, shown, square
from ficgan.deidentify.options import Diversity, Exemptions, Image, doubts
from ficgan.errors import InputError, UsageError
from ficgan.face_model import FaceModel, ModelInfo, Sight, read_kinds
from ficgan.faces import (
    Alignment,
    DetectAt,
    DlibRecognizer,
    Face,
    FaceDetector,
    Paste,
    Recognizer,
    blur_face,
    matching,
    mosaic_face,
    plain_mask,
    public_name,
    solid_mask,
)
from ficgan.faces.detection import PyramidDetector
from ficgan.policy import Attempt, FaceResult, Policy, Result, covered

if TYPE_CHECKING:
    from ficgan.deidentify.linked import Linked

__all__ = [
    "NOWHERE",
    "Cast",
    "CheckedDetector",
    "Mask",
    "Photos",
    "Work",
    "checked_faces",
    "name_possible",
    "spans_a_face",
]

Mask = NDArray[np.float32]


_COVERS: dict[str, tuple[Callable[..., Paste], str]] = {
    "plain": (plain_mask, "plain"),
    "black": (solid_mask, "black"),
    "solid": (solid_mask, "solid"),
    "blur": (blur_face, "blurred"),
    "mosaic": (mosaic_face, "mosaic"),
}
"""What covers a face, and how the record calls it."""


@dataclass(frozen=True, eq=False)
class Cast:
    """How the new face of a person was drawn.

    Args:
        code: float32 [D], z_id of the face it was chosen for.
        kind: float32 [9], reading of the kind; None where nothing of it is kept.
        rung: attempt of the policy's ladder.
    """

    code: NDArray[np.float32]
    kind: NDArray[np.float32] | None
    rung: int


NOWHERE = np.full((5, 2), -1, np.float32)
"""Landmarks of a face that has none: outside of the picture. It can be covered, and not be drawn anew."""


def checked_faces(faces: Sequence[Face], shape: Sequence[int], detector: str) -> list[Face]:
    """What a detector found in a photo of this shape, with `NOWHERE` for landmarks that are None or not finite.

    Raises:
        InputError: a box is none, or shows nothing of the photo: what it was meant for would stay uncovered.
    """
    height, width = shape[:2]
    sound = []
    for face in faces:
        box = np.asarray(face.box, np.float32)
        inside = box.clip(0, (width, height, width, height)) if box.shape == (4,) and np.isfinite(box).all() else None
        if inside is None or (inside[2:] - inside[:2] < 1).any():
            corners = ", ".join(f"{value:.1f}" for value in box.ravel())
            raise InputError(
                f"{detector}: the box {corners} covers no pixel of a picture of {width}×{height}; give x0, y0, x1, y1 "
                "in its pixels"
            )
        marks = face.landmarks
        if marks is None or not np.isfinite(marks).all():
            marks = NOWHERE
        elif np.shape(marks) != (5, 2):
            raise InputError(f"{detector}: landmarks have the shape {np.shape(marks)}; give [5, 2] or None")
        sound.append(replace(face, box=box, landmarks=np.asarray(marks, np.float32)))
    return sound


@dataclass
class CheckedDetector:
    """A detector of the user's, which may know no landmarks; see `checked_faces`."""

    detector: FaceDetector
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.detector.name

    def detect(self, image: Image) -> list[Face]:
        return checked_faces(self.detector.detect(image), image.shape, self.name)


@dataclass
class Work:
    """One face on its way through the pipeline."""

    face: Face
    key: str
    psi: float
    readable: bool = True
    """Whether its landmarks span a face."""
    fallback: str = "plain"
    """What covers it where it cannot be generated."""
    doubt: str = ""
    """Why the find may be no face."""
    kept: str = ""
    """Why it stays as it is; "" where it is hidden."""
    by_hand: bool = False
    """Whether a person chose its fallback in place of a new face."""
    aimed: FaceModel | None = None
    """The model aimed at an exemplar for this face alone."""
    sight: Sight | None = None
    """What the model sees of it."""
    source: NDArray[np.float32] | None = None
    """Embedding of the source face by the gate."""
    kind: NDArray[np.float32] | None = None
    """Reading of the source's kind; None where nothing of it is kept."""
    generated: Any = None
    """New face, as the model made it."""
    rung: int = 0
    """Attempt of the policy's ladder this face is at."""
    linked: bool = False
    """Whether its key is the person's, who keeps one new face in all photos."""
    cast: Cast | None = None
    """How the person was drawn in an earlier photo."""
    result: FaceResult = field(init=False)

    def __post_init__(self) -> None:
        self.result = FaceResult(self.face.box, self.face.landmarks, self.face.score, doubt=self.doubt)

    @property
    def live(self) -> bool:
        """Whether a generated face can stand here; otherwise it is covered."""
        return self.sight is not None and not self.sight.problem and self.result.action != "masked"


@dataclass(eq=False)
class Photos:
    """What all photos of one `Deidentifier` share, and the steps that each of them takes.

    `exemptions` say which faces stay, `methods` holds anonymisers by mode, `method` is the mode's (None for the modes
    of our own); `info` and `digests` are of the model's checkpoint, for the account. See the groups of options for the
    rest.
    """

    model: FaceModel | None
    alignment: Alignment
    detector: FaceDetector
    exemptions: Exemptions
    recognizer: Recognizer | None
    policy: Policy
    mode: str
    methods: Methods
    method: Anonymizer | None
    fallback: str
    mask_scale: float
    psi: Diversity
    min_score: float | None
    strict: bool
    info: ModelInfo | None
    digests: Mapping[str, str]
    linked: Linked | None = None
    """Who is who in all photos; None: each photo shows people of its own."""

    @property
    def face_model(self) -> FaceModel:
        """The model with the controls."""
        if self.model is None:
            raise UsageError(f"this Deidentifier was made for mode {self.mode} and has no model; make one for ficgan")
        return self.model

    def works(self, image: Image, key: str) -> tuple[list[Work], list[Face]]:
        """The faces to work on, and places that may be faces and stay; with `strict` these are worked on, too."""
        if isinstance(self.detector, PyramidDetector | DetectAt):
            faces, possible = self.detector.detect_and_doubt(image)
        else:
            faces, possible = self.detector.detect(image), []
        least = -np.inf if self.min_score is None else self.min_score
        possible = [face for face in possible if face.score >= least]
        found = [(index, face) for index, face in enumerate(faces) if face.score >= least]
        psi = self.auto_psi(len(found))
        if self.strict:
            found += list(enumerate(possible, len(faces)))
            possible = []
        kept = self.exemptions(image, [face for _, face in found])
        works = [
            Work(
                face,
                f"{key}/{index}",
                psi,
                spans_a_face(self.alignment, face),
                self.fallback,
                doubts(face, image.shape, self.detector.name),
                why,
            )
            for (index, face), why in zip(found, kept, strict=True)
        ]
        return works, possible

    def auto_psi(self, faces: int) -> float:
        """ψ for a photo with this many faces."""
        if self.psi != "auto":
            return float(self.psi)
        return 0.0 if self.model is None else self.model.auto_psi(faces)

    def finish(self, image: Image, works: list[Work], layer: int) -> Result:
        """The photo with its faces hidden, and what was done; `encode` comes first where faces are generated."""
        hidden = [work for work in works if not work.kept]
        for work in works:
            if work.kept:
                work.result.keep(work.kept)
        if self.mode != "ficgan":
            out, mask = self._obscure(image, hidden)
        else:
            out, mask = self.settle(image, hidden, layer, lambda group: self._compose(image, group))
        faces = [work.result for work in works]
        return Result(out, faces, self._audit(faces, layer), mask)

    def settle(
        self, image: Image, works: list[Work], layer: int, compose: Callable[[list[Work]], tuple[Image, Mask]]
    ) -> tuple[Image, Mask]:
        """Generate, compose and verify until every face of the last composite passes or is covered."""
        ladder = self.policy.attempts(layer, self.face_model.band, drawn=not self.face_model.swap)
        for work in works:
            if work.by_hand:
                work.result.action = _COVERS[work.fallback][1]
            elif self.strict and work.result.doubt:
                work.result.mask(f"doubtful find ({work.result.doubt})")
            elif not work.live:
                work.result.mask("it has no usable landmarks" if work.sight is None else work.sight.problem)
            elif work.sight is not None:
                work.result.note = work.sight.note
        self._read(image, works)
        pending, changed = [work for work in works if work.live], works
        for work, kind in zip(pending, self.kinds(image, pending), strict=True):
            work.kind = kind
        if self.linked is not None:
            self.linked.meet(image, pending)
            for work in pending:
                if work.cast is not None:
                    work.kind, work.rung = work.cast.kind, min(work.cast.rung, len(ladder) - 1)
        while True:
            for rung in sorted({work.rung for work in pending}):
                self._generate([work for work in pending if work.rung == rung], ladder[rung])
            out, mask = compose(works)
            self._judge(out, mask, _near(changed, works))
            failing = [work for work in works if self._fails(work)]
            if not failing:
                break
            for work in failing:
                if not work.live:  # the fallback hides it no better
                    work.fallback, work.result.matched = _opaque(work.fallback), False
                    continue
                work.rung = work.rung + 1 if work.result.covered else _barer(ladder, work.rung)
                if work.rung == len(ladder):
                    work.generated = None
                    work.result.mask()
                else:
                    work.result.attempts, work.result.action = work.rung + 1, "retried"
            pending, changed = [work for work in failing if work.live], failing
        if self.linked is not None:
            self.linked.settle(works)
        return out, mask

    @staticmethod
    def _fails(work: Work) -> bool:
        """Whether something else has to take this face's place; nothing hides more than a cover of one colour."""
        bad = work.result.matched or not work.result.covered
        return bad and (work.live or (work.result.action == "masked" and work.fallback not in OPAQUE))

    def _compose(self, image: Image, works: list[Work]) -> tuple[Image, Mask]:
        """All faces pasted into a copy of the image, the largest last; those without a new face are covered."""
        out, mask = image.copy(), np.zeros(image.shape[:2], np.float32)
        for work in sorted(works, key=lambda work: float(np.ptp(work.face.landmarks[:, 0]))):
            if work.generated is None or work.sight is None:
                paste = _COVERS[work.fallback][0](out, work.face, mask_scale=max(1.0, self.mask_scale))
            else:
                paste = self.face_model.paste(out, work.sight, work.generated, mask_scale=self.mask_scale)
            paste.onto(out, mask)
        return out, mask

    def _obscure(self, image: Image, works: list[Work]) -> tuple[Image, Mask]:
        """Cover all faces by the mode, and read them again."""
        self._read(image, works)
        out, mask = image.copy(), np.zeros(image.shape[:2], np.float32)
        if self.method is None:
            effect, action = _COVERS[self.mode]
            for work in works:
                effect(out, work.face, mask_scale=self.mask_scale).onto(out, mask)
                work.result.action = action
        else:
            self._apply(self.method, out, mask, works)
        self._judge(out, mask, works)
        return out, mask

    def _apply(self, method: Anonymizer, out: Image, mask: Mask, works: list[Work]) -> None:
        """An anonymiser on all faces, in place; a face that it cannot hide gets a cover of one colour."""
        kind, keyed = placement(method), method.traits.keyed and bool(getattr(method, "key", ""))
        if kind == "scene" and works:
            cover_all(method, out, [work.face for work in works], mask_scale=self.mask_scale).onto(out, mask)
        for work in works:
            work.result.action, name = method.name, self.methods.name(work.key)
            try:
                # The blur of a whole photo is as soft as its largest face wants it; the small ones get their own.
                if kind != "scene" or not self._covers(mask, work):
                    cover(method, out, work.face, name=name, mask_scale=self.mask_scale).onto(out, mask)
            except (InputError, UsageError) as error:
                if method.traits.family == "external":
                    raise
                work.result.note = str(error)
            else:
                if kind == "square":
                    work.result.square = square(work.face, out.shape[:2], mask_scale=self.mask_scale)
                    work.result.name = name if keyed else None  # what is drawn is undone with the key and the name
            if work.result.note or not self._covers(mask, work):
                work.result.mask(work.result.note)
                work.fallback = _opaque(work.fallback)
                _COVERS[work.fallback][0](out, work.face, mask_scale=max(1.0, self.mask_scale)).onto(out, mask)

    def _covers(self, mask: Mask, work: Work) -> bool:
        outline = work.sight.outline if work.sight is not None and work.generated is not None else None
        return covered(mask, work.face.landmarks, work.face.box, self.policy.coverage, outline)

    def _read(self, image: Image, works: list[Work]) -> None:
        readable = [work for work in works if work.readable and work.source is None]
        if self.recognizer is not None and readable:
            marks = np.stack([work.face.landmarks for work in readable])
            for work, embedding in zip(readable, self.recognizer.embed(image, marks), strict=True):
                work.source = embedding

    def kinds(self, image: Image, works: Sequence[Work]) -> Sequence[NDArray[np.float32] | None]:
        """Readings [9] of the kinds of faces, None each where none is kept."""
        if not works or not self.face_model.keeps_kind:
            return [None] * len(works)
        sources = [work.source for work in works if work.source is not None]
        known = isinstance(self.recognizer, DlibRecognizer) and len(sources) == len(works)
        marks = [work.face.landmarks for work in works]
        return read_kinds([image] * len(works), marks, np.stack(sources) if known else None)

    def _judge(self, out: Image, mask: Mask, works: list[Work]) -> None:
        """Whether each face of the composite is covered, and whether the gate still knows it."""
        for work in works:
            work.result.covered = self._covers(mask, work)
        # A cover of one colour need not be read: there is nothing to see.
        readable = [
            (work, work.source)
            for work in works
            if work.source is not None and (work.result.action != "masked" or work.fallback not in OPAQUE)
        ]
        if self.recognizer is None or not readable:
            return
        again = self.recognizer.embed(out, np.stack([work.face.landmarks for work, _ in readable]))
        for (work, before), after in zip(readable, again, strict=True):
            work.result.distance = float(self.recognizer.distance(before, after))
            names = matching(self.recognizer, before, after)
            work.result.matched = bool(names)
            work.result.matched_by += [name for name in names if name not in work.result.matched_by]

    # -- the model ----------------------------------------------------------------------------------------------------

    def encode(self, pairs: Sequence[tuple[Image, Work]]) -> None:
        """What the model sees of all faces of all images, together."""
        ready = [(image, work) for image, work in pairs if work.readable and not work.kept]
        sights = self.face_model.see([(image, work.face) for image, work in ready])
        for (_, work), sight in zip(ready, sights, strict=True):
            work.sight = sight
            if sight.doubt:
                work.result.doubt = ", ".join(filter(None, [work.result.doubt, sight.doubt]))

    def _generate(self, works: Sequence[Work], attempt: Attempt) -> None:
        for model in {work.aimed or self.face_model for work in works}:
            self._generate_by(model, [work for work in works if (work.aimed or self.face_model) is model], attempt)

    @staticmethod
    def _generate_by(model: FaceModel, works: Sequence[Work], attempt: Attempt) -> None:
        sights = [work.sight for work in works if work.sight is not None]
        draws = [
            model.draw(work.key, attempt, work.psi, work.cast.code if work.cast else sight.z_id, work.kind)
            for work, sight in zip(works, sights, strict=True)
        ]
        styles = model.styles(np.stack([sight.z_id for sight in sights]), draws, attempt)
        for work, draw, made in zip(works, draws, model.render(styles, sights), strict=True):
            work.generated = made
            work.result.layer = None if attempt.band else attempt.layer
            if not model.swap:
                work.result.k, work.result.psi, work.result.members_digest = draw.k, draw.psi, draw.members_digest
                work.result.kind = draw.kind

    # -- the account --------------------------------------------------------------------------------------------------

    def _audit(self, faces: Sequence[FaceResult], layer: int) -> dict[str, Any]:
        """JSON-ready: versions, mode and its settings, detector, gate, every face; no secrets, no folders."""
        from ficgan import __version__

        gate, model = self.recognizer, self.model
        account = {
            "ficgan": __version__,
            "mode": self.mode if self.method is None else shown(self.mode, self.method),
            **self.methods.accounts([self.mode]),
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


def _barer(ladder: Sequence[Attempt], rung: int) -> int:
    """The next rung that covers more than this one: no setting but a bare forehead does."""
    return next((n for n in range(rung + 1, len(ladder)) if ladder[n].bare > ladder[rung].bare), len(ladder))


def _near(changed: Sequence[Work], works: Sequence[Work]) -> list[Work]:
    """The faces that changed, and those whose surroundings they may reach into."""
    if len(changed) == len(works):
        return list(works)

    def reach(work: Work) -> NDArray[np.float32]:
        margin = 0.5 * float(np.ptp(work.face.box.reshape(2, 2), axis=0).max())
        return work.face.box + np.array([-margin, -margin, margin, margin], np.float32)

    boxes = [reach(work) for work in changed]
    return [
        work
        for work in works
        if any((np.maximum(a[:2], b[:2]) <= np.minimum(a[2:], b[2:])).all() for a in [reach(work)] for b in boxes)
    ]


def spans_a_face(alignment: Alignment, face: Face) -> bool:
    """False for landmarks in one point or on a line."""
    try:
        alignment.matrix(face.landmarks, 64)
    except InputError:
        return False
    return True


def _notes(faces: Sequence[FaceResult]) -> list[str]:
    """What a user should know without opening the audit."""
    masked = Counter(face.note or "no new face passed the check" for face in faces if face.action == "masked")
    notes = [f"{_were(number)} masked: {why}" for why, number in masked.items()]
    lowered = Counter(face.layer for face in faces if face.action == "retried" and face.layer is not None)
    if lowered:
        layers = ", ".join(str(layer) for layer in sorted(lowered))
        number = sum(lowered.values())
        again = "drawn again" if layers == "0" else f"drawn again, with layer {layers}"
        notes.append(f"{_were(number)} still recognised at first and {again}")
    kept = Counter(face.note for face in faces if face.action == "kept")
    notes += [f"{_were(number)} left as found: {why}" for why, number in kept.items()]
    seen = Counter(face.note for face in faces if face.note and face.action in ("generated", "retried"))
    notes += [f"{'1 face' if number == 1 else f'{number} faces'}: {what}" for what, number in seen.items()]
    notes += [
        f"doubtful find at {', '.join(str(round(float(value))) for value in face.box)}: {face.doubt}"
        for face in faces
        if face.doubt and face.action != "kept"
    ]
    return notes


def _were(number: int) -> str:
    return "1 face was" if number == 1 else f"{number} faces were"


def name_possible(result: Result, possible: Sequence[Face]) -> None:
    """Say in the account which places may be faces and stay as they are.

    Weak finds beside faces are common. One of which most was replaced with such a face is not as it was.
    """
    possible = [face for face in possible if not _is_replaced(result.mask, face)]
    result.audit["possible_faces"] = [
        {"box": [round(float(value), 1) for value in face.box], "score": round(face.score, 4)} for face in possible
    ]
    if possible:
        number = len(possible)
        places = "1 place may be a face and was" if number == 1 else f"{number} places may be faces and were"
        scores = f"{min(face.score for face in possible):.2f} to {max(face.score for face in possible):.2f}"
        note = f"{places} left as found (score {scores}; see possible_faces); --strict covers them"
        result.audit["notes"] = [*result.audit.get("notes", ()), note]


def _is_replaced(mask: Mask, face: Face) -> bool:
    """Whether more than half of a face's box was replaced."""
    x0, y0, x1, y1 = np.rint(face.box).astype(int).clip(0)
    place = mask[y0 : y1 + 1, x0 : x1 + 1]
    return bool(place.size and (place > 0.5).mean() > 0.5)
