"""Photos under review: what was decided on each face, drawn at once, and saved."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.deidentify.publish import new_photo
from ficgan.errors import InputError
from ficgan.images import MAX_PIXELS, output_suffix, read_image
from ficgan.records.sidecars import photo_record
from ficgan.ui.project import FaceEntry, Item, free_name
from ficgan.ui.work import NOW, SOON, Queue, Workplace, jpeg, write_new

if TYPE_CHECKING:
    from ficgan.deidentify import Result, Retouch
    from ficgan.deidentify.decided import PhotoDecisions

__all__ = ["PREVIEW", "Photos"]

PREVIEW = 1600
"""Longest side in pixels of the pictures for the page."""
PHOTOS_KEPT = 3
REASON = "chosen in the review"


class Photos:
    """The photos of a review. Decisions are written to disk at once and drawn in a thread of their own."""

    def __init__(self, work: Workplace, prepare: Callable[[], object]) -> None:
        self.work, self.review = work, work.review
        self.queue = Queue("photos", work.changed, prepare)
        self._kept: OrderedDict[str, tuple[str, Retouch]] = OrderedDict()
        self._drawn: dict[str, tuple[Any, ...]] = {}
        """What each photo was drawn from last."""

    def _retouch(self, number: str) -> Retouch:
        """A photo with its faces, from memory where it is one of the last few."""
        from ficgan.deidentify import Retouch
        from ficgan.faces import Face

        item = self.review[number]
        stamp = self.work.stamp(item)
        if number in self._kept and self._kept[number][0] == stamp:
            self._kept.move_to_end(number)
            return self._kept[number][1]
        image = read_image(self.review.source(item)).rgb
        known = item.stamp == stamp and item.state != "waiting"
        faces = [
            Face(np.array(face.box, np.float32), np.array(face.landmarks, np.float32), face.score)
            for face in item.faces
        ]
        retouch = Retouch(self.work.engine, image, faces=faces if known else None)
        if not known:
            found = tuple(_entry(face) for face in retouch.faces)
            height, width = image.shape[:2]
            places = {(face.box, face.landmarks) for face in found}
            known = bool(item.faces) and places == {(f.box, f.landmarks) for f in item.faces if not f.drawn}
            if known:  # the file is another one, the picture is not: what was decided holds
                retouch, found = Retouch(self.work.engine, image, faces=faces), item.faces
            self.review.change(
                number,
                quiet=True,
                faces=found,
                stamp=stamp,
                width=width,
                height=height,
                notes=() if known else item.notes,
            )
        for face in item.faces if known else ():
            if face.exemplar is not None:
                retouch.add_exemplar(face.exemplar, read_image(self.review.folder / face.exemplar).rgb)
        self._kept[number] = (stamp, retouch)
        while len(self._kept) > PHOTOS_KEPT:
            self._kept.popitem(last=False)
        return retouch

    def draw(self, number: str) -> Item:
        """The faces of a photo as decided, and the preview of it."""
        self._render(number)
        return self.review[number]

    def _render(self, number: str) -> Result:
        from ficgan.deidentify import Choice

        retouch = self._retouch(number)
        item = self.review[number]
        basis, default = self._from(item), self.work.controls_of(item).mode
        choices = [Choice(face.mode or default, face.draw, face.exemplar) for face in item.faces]
        result = retouch.render(choices, self.work.engine_of(item))
        self.review.write_file(f"after-{number}.jpg", jpeg(result.image, PREVIEW))
        self._drawn[number] = basis
        faces = tuple(
            face.model_copy(
                update={"action": done.action, "note": done.note, "doubt": done.doubt, "matched": done.matched}
            )
            for face, done in zip(item.faces, result.faces, strict=True)
        )
        # Something else may have been decided meanwhile; then the next drawing follows at once.
        if [_decided(face) for face in self.review[number].faces] == [_decided(face) for face in item.faces]:
            self.review.change(number, state="ready", error="", faces=faces)
        return result

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
            retouch = self._retouch(number)
            with self.review.lock:
                at = retouch.add(box)
                entry = _entry(retouch.faces[at], drawn=True)
                try:
                    faces = (*self.review[number].faces, entry)
                    self.review.change(number, faces=faces, changed=True)
                except BaseException:
                    del retouch.faces[at]
                    raise
            return self.draw(number)

        self.ready(number)
        return self.queue.put(add, NOW)

    def remove_face(self, number: str, face: int) -> Future[Any]:
        """Take back a box that was drawn."""

        def remove() -> Item:
            item = self.ready(number)
            if not 0 <= face < len(item.faces) or not item.faces[face].drawn:
                raise InputError(f"{item.name}: only a box that was drawn can be removed; choose Keep for the others")
            faces = item.faces[:face] + item.faces[face + 1 :]
            self.review.change(number, faces=faces, changed=True)
            self._kept.pop(number, None)
            return self.draw(number)

        return self.queue.put(remove, NOW)

    def add_exemplar(self, number: str, face: int, photo: NDArray[np.uint8]) -> Future[Any]:
        """Draw a face towards the one of another photo."""

        def add() -> Item:
            retouch = self._retouch(number)
            _face_of(self.ready(number), face)
            name = f"exemplar-{secrets.token_hex(5)}.jpg"
            retouch.add_exemplar(name, photo)
            self.review.write_file(name, jpeg(photo, PREVIEW, 95))
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
        result = self._render(number)
        item = self.review[number]
        source = self.review.source(item)
        path = free_name(self.review.output, item.name, output_suffix(source))
        place = path.relative_to(self.review.output).as_posix()
        made = new_photo(lambda image, key: result, source.read_bytes(), item.name, output=place, max_pixels=MAX_PIXELS)
        write_new(path, made.data)
        self.work.write_sidecar(path, item, photo_record(made, place, self.work.options(item)))
        return self.review.change(number, saved=place, changed=False)

    def decisions(self, number: str) -> PhotoDecisions:
        """What was decided on a photo, for export."""
        from ficgan.arrays import content_key
        from ficgan.deidentify.decided import FoundFace, PhotoDecisions
        from ficgan.video.settings import Decision, Region

        item = self.ready(number)
        controls = self.work.controls_of(item)
        # A drawn box without a face cannot be given a new one.
        cover = controls.fallback if controls.mode == "ficgan" else controls.mode
        found = [face for face in item.faces if face.score > 0]
        return PhotoDecisions(
            name=item.name,
            analysis=content_key(read_image(self.review.source(item)).rgb),
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


def _entry(face: Any, *, drawn: bool = False) -> FaceEntry:
    box = tuple(float(value) for value in face.box)
    marks = tuple((float(x), float(y)) for x, y in face.landmarks)
    return FaceEntry(box=box, landmarks=marks, score=float(face.score), drawn=drawn)


def _decided(face: FaceEntry) -> tuple[Any, ...]:
    return face.box, face.mode, face.draw, face.exemplar
