"""The part of `Deidentifier` that works on one photo after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer
from ficgan.anonymizers.modes import Methods, cover, cover_all, placement, square
from ficgan.deidentify.account import account_of
from ficgan.errors import InputError, UsageError
from ficgan.face_model import FaceModel, ModelInfo, Sight
from ficgan.faces import Alignment, Face, FaceDetector, Paste, Recognizer, blur_face, mosaic_face, solid_mask
from ficgan.policy import Attempt, Policy, covered
from ficgan.results import FaceResult, Result

__all__ = ["COVERS", "Image", "Mask", "Photos", "Work"]

Image = NDArray[np.uint8]
Mask = NDArray[np.float32]
COVERS: dict[str, tuple[Callable[..., Paste], str]] = {
    "blur": (blur_face, "blurred"),
    "mosaic": (mosaic_face, "mosaic"),
    "solid": (solid_mask, "solid"),
}


@dataclass
class Work:
    """One face on its way through the pipeline."""

    face: Face
    key: str
    psi: float
    readable: bool = True
    """Whether its landmarks span a face."""
    sight: Sight | None = None
    """What the model sees of it."""
    source: NDArray[np.float32] | None = None
    """Embedding of the source face by the gate."""
    generated: Any = None
    """New face, as the model made it."""
    rung: int = 0
    """Attempt of the policy's ladder this face is at."""
    result: FaceResult = field(init=False)

    def __post_init__(self) -> None:
        self.result = FaceResult(self.face.box, self.face.landmarks, self.face.score)

    @property
    def live(self) -> bool:
        """Whether a generated face can stand here; otherwise it is masked."""
        return self.sight is not None and not self.sight.problem and self.result.action != "masked"


class Photos:
    """Detects, generates, composes and reads again; what it needs is made by `Deidentifier`."""

    _face_model: FaceModel | None
    alignment: Alignment
    detector: FaceDetector
    recognizer: Recognizer | None
    policy: Policy
    psi: float | Literal["auto"]
    mode: str
    method: Anonymizer | None
    methods: Methods
    mask_scale: float
    header: ModelInfo | None
    digests: dict[str, str]

    @property
    def face_model(self) -> FaceModel:
        """The model with the controls.

        Raises:
            UsageError: this Deidentifier was made for another mode and loaded no model.
        """
        if self._face_model is None:
            raise UsageError(f"this Deidentifier was made for mode {self.mode} and has no model; make one for ficgan")
        return self._face_model

    def _works(self, image: Image, key: str) -> list[Work]:
        faces = self.detector.detect(image)
        psi = self._psi(len(faces))
        works = []
        for index, face in enumerate(faces):
            try:
                self.alignment.matrix(face.landmarks, 64)
                readable = True
            except InputError:  # landmarks in one point or on a line: the box is masked instead
                readable = False
            works.append(Work(face, f"{key}/{index}", psi, readable))
        return works

    def _psi(self, faces: int) -> float:
        if self.psi != "auto":
            return float(self.psi)
        return 0.0 if self._face_model is None else self._face_model.auto_psi(faces)

    def _finish(self, image: Image, works: list[Work], layer: int) -> Result:
        if self.mode != "ficgan":
            out, mask = self._obscure(image, works)
        else:
            out, mask = self._settle(image, works, layer, lambda group: self._compose(image, group))
        faces = [work.result for work in works]
        return Result(out, faces, self._audit(faces, layer), mask)

    def _settle(
        self, image: Image, works: list[Work], layer: int, compose: Callable[[list[Work]], tuple[Image, Mask]]
    ) -> tuple[Image, Mask]:
        """Generate, compose and verify until every face of the last composite passes or is masked."""
        ladder = self.policy.attempts(layer, self.face_model.band, drawn=not self.face_model.swap)
        for work in works:
            if not work.live:
                work.result.mask("" if work.sight is None else work.sight.problem)
            elif work.sight is not None:
                work.result.note = work.sight.note
        self._read(image, works)
        pending, changed = [work for work in works if work.live], works
        while True:
            for rung in sorted({work.rung for work in pending}):
                self._generate([work for work in pending if work.rung == rung], ladder[rung])
            out, mask = compose(works)
            self._judge(out, mask, _near(changed, works))
            failing = [work for work in works if work.live and (work.result.matched or not work.result.covered)]
            if not failing:
                break
            for work in failing:
                work.rung += 1
                if work.rung == len(ladder) or not work.result.covered:  # no setting covers more than another
                    work.generated = None
                    work.result.mask()
                else:
                    work.result.attempts, work.result.action = work.rung + 1, "retried"
            pending, changed = [work for work in failing if work.live], failing
        return out, mask

    def _compose(self, image: Image, works: list[Work]) -> tuple[Image, Mask]:
        """All faces pasted into a copy of the image, the largest last; those without a crop are masked."""
        out, mask = image.copy(), np.zeros(image.shape[:2], np.float32)
        for work in sorted(works, key=lambda work: float(np.ptp(work.face.landmarks[:, 0]))):
            if work.generated is None or work.sight is None:
                paste = solid_mask(out, work.face, mask_scale=max(1.0, self.mask_scale))
            else:
                paste = self.face_model.paste(out, work.sight, work.generated, mask_scale=self.mask_scale)
            paste.onto(out, mask)
        return out, mask

    def _obscure(self, image: Image, works: list[Work]) -> tuple[Image, Mask]:
        """Cover all faces by the mode, and read them again."""
        self._read(image, works)
        out, mask = image.copy(), np.zeros(image.shape[:2], np.float32)
        if self.method is None:
            effect, action = COVERS[self.mode]
            for work in works:
                effect(out, work.face, mask_scale=self.mask_scale).onto(out, mask)
                work.result.action = action
        else:
            self._apply(self.method, out, mask, works)
        self._judge(out, mask, works)
        return out, mask

    def _apply(self, method: Anonymizer, out: Image, mask: Mask, works: list[Work]) -> None:
        """An anonymiser on all faces, in place; a face that it cannot hide becomes a solid mask."""
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
                solid_mask(out, work.face, mask_scale=max(1.0, self.mask_scale)).onto(out, mask)

    def _covers(self, mask: Mask, work: Work) -> bool:
        return covered(mask, work.face.landmarks, work.face.box, self.policy.coverage)

    def _read(self, image: Image, works: list[Work]) -> None:
        """Embed the source faces."""
        readable = [work for work in works if work.readable]
        if self.recognizer is not None and readable:
            marks = np.stack([work.face.landmarks for work in readable])
            for work, embedding in zip(readable, self.recognizer.embed(image, marks), strict=True):
                work.source = embedding

    def _judge(self, out: Image, mask: Mask, works: list[Work]) -> None:
        """Whether each face of the composite is covered, and whether the gate still knows it."""
        for work in works:
            work.result.covered = self._covers(mask, work)
        readable = [(work, work.source) for work in works if work.source is not None and work.result.action != "masked"]
        if self.recognizer is None or not readable:
            return
        again = self.recognizer.embed(out, np.stack([work.face.landmarks for work, _ in readable]))
        for (work, before), after in zip(readable, again, strict=True):
            work.result.distance = float(self.recognizer.distance(before, after))
            work.result.matched = bool(self.recognizer.is_match(before, after))

    # -- the model --------------------------------------------------------------------------------------------------

    def _encode(self, pairs: Sequence[tuple[Image, Work]]) -> None:
        """What the model sees of all faces of all images, together."""
        ready = [(image, work) for image, work in pairs if work.readable]
        sights = self.face_model.see([(image, work.face) for image, work in ready])
        for (_, work), sight in zip(ready, sights, strict=True):
            work.sight = sight

    def _generate(self, works: Sequence[Work], attempt: Attempt) -> None:
        """New faces for these at one setting."""
        if not works:
            return
        model = self.face_model
        sights = [work.sight for work in works if work.sight is not None]
        draws = [model.draw(work.key, attempt, work.psi, sight.z_id) for work, sight in zip(works, sights, strict=True)]
        styles = model.styles(np.stack([sight.z_id for sight in sights]), draws, attempt)
        for work, draw, made in zip(works, draws, model.render(styles, sights), strict=True):
            work.generated = made
            work.result.layer = None if attempt.band else attempt.layer
            if not model.swap:
                work.result.k, work.result.psi, work.result.members_digest = draw.k, draw.psi, draw.members_digest

    def _audit(self, faces: Sequence[FaceResult], layer: int) -> dict[str, Any]:
        """JSON-ready account of what was done and of what k-same covers here."""
        account = account_of(self, faces)
        if self.mode == "ficgan":
            psi = [face.psi for face in faces if face.psi is not None]
            account |= self.face_model.account(layer=layer, psi=psi)
        return account


def _near(changed: Sequence[Work], works: Sequence[Work]) -> list[Work]:
    """The faces that changed, and those whose surroundings they may reach into."""
    if len(changed) == len(works):
        return list(works)

    def reach(work: Work) -> NDArray[np.float32]:
        margin = 0.5 * float(np.ptp(work.face.box.reshape(2, 2), axis=0).max())
        return work.face.box + np.array([-margin, -margin, margin, margin], np.float32)

    boxes = [reach(work) for work in changed]
    return [
        work for work in works
        if any((np.maximum(a[:2], b[:2]) <= np.minimum(a[2:], b[2:])).all() for a in [reach(work)] for b in boxes)
    ]  # fmt: skip
