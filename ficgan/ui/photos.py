"""Photos under review: what was decided on each face, drawn at once, and saved."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ficgan.errors import InputError
from ficgan.images import output_suffix
from ficgan.ui.project import FaceEntry, Item, free_name
from ficgan.ui.work import NOW, SOON, Queue, Workplace

if TYPE_CHECKING:
    from ficgan.deidentify.decided import PhotoDecisions

__all__ = ["DeskPhotos"]

REASON = "chosen in the review"


class DeskPhotos:
    """The photos of a review. Decisions are written to disk at once and drawn in their turn."""

    def __init__(self, work: Workplace, prepare: Callable[[], object]) -> None:
        self.work, self.review = work, work.review
        self.queue = Queue("photos", work.changed, prepare)
        self._drawn: dict[str, tuple[Any, ...]] = {}
        """What each photo was drawn from last."""

    def _do(self, task: str, item: Item, **given: Any) -> Any:
        """A task of the worker on a photo as it is decided."""
        default = self.work.controls_of(item).mode
        photo = {
            "id": item.id,
            "stamp": self.work.stamp(item),
            "path": self.review.source(item),
            "folder": self.review.folder,
            "places": [[[*face.box], [[x, y] for x, y in face.landmarks], face.score] for face in item.faces],
            "choices": [(face.mode or default, face.draw, face.exemplar) for face in item.faces],
        }
        return self.work.do("photos", task, photo=photo, **given)

    def draw(self, number: str) -> Item:
        """The faces of a photo as decided, and the preview of it; a photo that is new or changed is looked at first."""
        item, stamp = self.review[number], self.work.stamp(self.review[number])
        if item.stamp != stamp or item.state == "waiting":
            found = self._do("look", item)
            faces = tuple(_entry(place) for place in found.pop("faces"))
            # The file is another one, the picture may not be: then what was decided holds.
            same = {(face.box, face.landmarks) for face in faces} == {
                (face.box, face.landmarks) for face in item.faces if not face.drawn
            }
            known = bool(item.faces) and same
            faces, notes = (item.faces, ()) if known else (faces, item.notes)
            self.review.change(number, quiet=True, faces=faces, stamp=stamp, notes=notes, **found)
        self._render(number, "render")
        return self.review[number]

    def _render(self, number: str, task: str, **given: Any) -> Any:
        item = self.review[number]
        basis = self._from(item)
        made = self._do(task, item, drawing=self.work.controls_of(item).drawing.model_dump(), **given)
        self.review.write_file(f"after-{number}.jpg", made["after"])
        self._drawn[number] = basis
        faces = tuple(face.model_copy(update=done) for face, done in zip(item.faces, made["faces"], strict=True))
        # Something else may have been decided meanwhile; then the next drawing follows at once.
        if [_decided(face) for face in self.review[number].faces] == [_decided(face) for face in item.faces]:
            self.review.change(number, state="ready", error="", faces=faces)
        return made

    def _from(self, item: Item) -> tuple[Any, ...]:
        return item.stamp, self.work.controls_of(item), *map(_decided, item.faces)

    def redraw(self, number: str, priority: float = NOW) -> Future[Any]:
        """Draw a photo again, unless it was drawn so when its turn comes: a result that was saved meanwhile, say."""

        def draw(number: str) -> Item:
            item = self.review[number]
            return item if self._drawn.get(number) == self._from(item) else self.draw(number)

        return self.queue.put(lambda: self.work.run(number, draw), priority)

    # -- decisions ----------------------------------------------------------------------------------------------------

    def decide(self, number: str, face: int | None, **values: Any) -> Future[Any]:
        """Change what was decided on a face (None: on all): mode, draw, exemplar.

        Raises:
            InputError: no such face, a wrong value, or the disk is full; nothing has changed then.
        """
        self._decide(number, face, **values)
        return self.redraw(number)

    def _decide(self, number: str, face: int | None, **values: Any) -> None:
        with self.review.lock:
            item = self.ready(number)
            if face is not None:
                _face_of(item, face)
            faces = [
                {**entry.model_dump(), **values} if face in (None, n) else entry for n, entry in enumerate(item.faces)
            ]
            self.review.change(number, faces=faces, changed=True)

    def add_face(self, number: str, box: tuple[float, float, float, float]) -> Future[Any]:
        """Take a box that was drawn over a face that the detector missed."""

        def add() -> Item:
            entry = _entry(self._do("closer", self.ready(number), box=box), drawn=True)
            with self.review.lock:
                self.review.change(number, faces=(*self.review[number].faces, entry), changed=True)
            return self.draw(number)

        self.ready(number)
        return self.queue.put(add, NOW)

    def remove_face(self, number: str, face: int) -> Future[Any]:
        """Take back a box that was drawn."""

        def remove() -> Item:
            item = self.ready(number)
            if not 0 <= face < len(item.faces) or not item.faces[face].drawn:
                raise InputError(f"{item.name}: only a box that was drawn can be removed; choose Keep for the others")
            self.review.change(number, faces=item.faces[:face] + item.faces[face + 1 :], changed=True)
            return self.draw(number)

        return self.queue.put(remove, NOW)

    def add_exemplar(self, number: str, face: int, photo: Path) -> Future[Any]:
        """Draw a face towards the one of another photo."""

        def add() -> Item:
            picture = self.work.do("photos", "exemplar", path=photo)
            _face_of(self.ready(number), face)
            name = f"exemplar-{secrets.token_hex(5)}.jpg"
            self.review.write_file(name, picture)
            self._decide(number, face, exemplar=name, mode="ficgan")
            return self.draw(number)

        self.ready(number)
        return self.queue.put(add, NOW)

    def ready(self, number: str) -> Item:
        """A photo that was looked at; an InputError for anything else."""
        item = self.review[number]
        if item.kind != "photo":
            raise InputError(f"{item.name}: is a film; decide on its people")
        if item.state == "waiting" or (item.state == "failed" and not item.faces and not item.stamp):
            raise InputError(f"{item.name}: was not looked at yet; wait for it, or look at what failed")
        return item

    # -- results ------------------------------------------------------------------------------------------------------

    def save(self, number: str) -> Future[Any]:
        """Write the result of a photo into the output folder, under a name that is free."""
        self.work.progress[number] = (0, None, "waiting to be saved")
        return self.queue.put(lambda: self._saving(number), SOON)

    def _saving(self, number: str) -> Item:
        self.work.progress[number] = (0, None, "saving")
        try:
            return self._save(number)
        finally:
            self.work.progress.pop(number, None)
            self.review.touch(number)

    def _save(self, number: str) -> Item:
        item = self.review[number]
        path = free_name(self.review.output, item.name, output_suffix(self.review.source(item)))
        place, options = path.relative_to(self.review.output).as_posix(), self.work.options(item)
        made = self._render(number, "save", name=item.name, output=path, place=place, options=options)
        self.work.write_sidecar(path, item, made["sidecar"])
        return self.review.change(number, saved=place, changed=False)

    def decisions(self, number: str) -> PhotoDecisions:
        """What was decided on a photo, for export."""
        from ficgan.deidentify.decided import FoundFace, PhotoDecisions
        from ficgan.video.decisions import Decision, Region

        item = self.ready(number)
        controls = self.work.controls_of(item)
        source = self.review.source(item)
        # A drawn box without a face cannot be given a new one.
        cover = controls.fallback if controls.mode == "ficgan" else controls.mode
        found = [face for face in item.faces if face.score > 0]
        return PhotoDecisions(
            name=item.name,
            analysis=self.work.do("pictures", "key", path=source),
            default=controls.mode,
            drawing=controls.drawing,
            faces=tuple(
                FoundFace(id=n, box=face.box, landmarks=face.landmarks, score=face.score, draw=face.draw)
                for n, face in enumerate(found, 1)
            ),
            tracks={n: Decision(mode=face.mode, reason=REASON) for n, face in enumerate(found, 1) if face.mode},
            regions=tuple(
                Region(first=0, last=0, box=face.box, mode=face.mode or cover, reason="drawn in the review")
                for face in item.faces
                if face.score == 0 and face.mode != "keep"
            ),
        )


def _face_of(item: Item, face: int) -> None:
    if not 0 <= face < len(item.faces):
        raise InputError(f"{item.name}: has no face number {face + 1}")


def _entry(place: Any, *, drawn: bool = False) -> FaceEntry:
    box, landmarks, score = place
    return FaceEntry(box=box, landmarks=landmarks, score=score, drawn=drawn)


def _decided(face: FaceEntry) -> tuple[Any, ...]:
    return face.box, face.mode, face.draw, face.exemplar
