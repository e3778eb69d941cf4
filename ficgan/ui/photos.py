"""Photos under review: what was decided on each face, drawn at once, and saved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image

from ficgan.errors import InputError
from ficgan.folders import checked
from ficgan.images import output_suffix
from ficgan.ui import FaceEntry, Item, PossibleFace, free_name
from ficgan.ui.tasks import CUT, around, jpeg
from ficgan.ui.work import NOW, SOON, DeskPeople, Queue, Workplace

if TYPE_CHECKING:
    from ficgan.deidentify.review import PhotoDecisions

# What was done to a face that got a new one.
NEW = ("generated", "retried")


class DeskPhotos:
    """The photos of a review. Decisions are written to disk at once and drawn in their turn."""

    def __init__(self, work: Workplace, prepare: Callable[[], object]) -> None:
        self.work, self.review = work, work.review
        self.queue = Queue("photos", work.changed, prepare)
        self._drawn: dict[str, tuple[Any, ...]] = {}  # what each photo was drawn from last
        self.people = DeskPeople(work, self.queue, self._meet, self.redraw)

    def _do(self, task: str, item: Item, **given: Any) -> Any:
        """A task of the worker on a photo as it is decided."""
        from ficgan.deidentify.review import person_key

        default = self.review.controls_of(item).mode
        photo: dict[str, Any] = {
            "id": item.id,
            "stamp": self.work.stamp(item),
            "path": self.review.source(item),
            "places": [_numbers(face) for face in item.faces],
            "choices": [
                (face.mode or default, face.draw, face.drawing and face.drawing.model_dump(), face.person)
                for face in item.faces
            ],
            "named": [person_key(face.person, face.draw, face.drawing) for face in item.faces if face.person],
            "possible": [_numbers(place) for place in item.possible],
        }
        known = self.people.identities
        photo["people"] = {name: known[name] for name in photo["named"] if name in known}
        return self.work.do("photos", task, photo=photo, **given)

    def draw(self, number: str) -> Item:
        """The faces of a photo as decided, and the preview of it; a photo that is new or changed is looked at first."""
        item, stamp = self.review[number], self.work.stamp(self.review[number])
        if item.stamp != stamp or item.state == "waiting":
            found = self._do("look", item)
            faces = tuple(_entry(place) for place in found.pop("faces"))
            found["possible"] = tuple(_possible(place) for place in found["possible"])
            # The file is another one, the picture may not be: then what was decided holds.
            same = {(face.box, face.landmarks) for face in faces} == {
                (face.box, face.landmarks) for face in item.faces if not (face.drawn or face.possible)
            }
            known = bool(item.faces) and same
            if known:
                found |= {"notes": ()}
            else:
                found |= {"faces": faces, "past": (), "future": (), "reviewed": False}
            self.review.change(number, quiet=True, stamp=stamp, **found)
        self._render(number, "render")
        return self.review[number]

    def _render(self, number: str, task: str, **given: Any) -> Any:
        item = self.review[number]
        basis = self._from(item)
        made = self._do(task, item, drawing=self.review.controls_of(item).drawing.model_dump(), **given)
        self.people.keep(made["people"])
        for kind in ("after", "result"):
            self.review.write_file(f"{kind}-{number}.jpg", made[kind])
        self._drawn[number] = basis
        with self.review.lock:
            now = self.review[number]
            # Something else may have been decided meanwhile; then the next drawing follows at once.
            if [face.decided for face in now.faces] == [face.decided for face in item.faces]:
                faces = tuple(face.model_copy(update=done) for face, done in zip(now.faces, made["faces"], strict=True))
                places = zip(now.possible, made["open"], strict=True)
                possible = tuple(place.model_copy(update={"open": is_open}) for place, is_open in places)
                self.review.change(number, state="ready", error="", faces=faces, possible=possible)
        return made

    def _from(self, item: Item) -> tuple[Any, ...]:
        return item.stamp, self.review.controls_of(item), *(face.decided for face in item.faces)

    def redraw(self, number: str, priority: float = NOW) -> Future[Any]:
        """Draw a photo again, unless it was drawn so when its turn comes: a result that was saved meanwhile, say."""

        def draw(number: str) -> Item:
            item = self.review[number]
            return item if self._drawn.get(number) == self._from(item) else self.draw(number)

        return self.queue.put(lambda: self.work.run(number, draw), priority)

    # -- decisions ----------------------------------------------------------------------------------------------------

    def decide(self, number: str, faces: Collection[int] | None, step: int | None = None, **values: Any) -> Future[Any]:
        """Change what was decided on faces (None: on all): mode, draw; `step` as of `Review.decide`.

        Raises:
            InputError: no such face, a wrong value, or the disk is full; nothing has changed then.
        """
        with self.review.lock:
            item = self.ready(number, faces or ())
            if "draw" in values:
                self._keep_cuts(item, range(len(item.faces)) if faces is None else faces)
            step = self.review.next_step() if step is None else step
            changed = [n for n in range(len(item.faces)) if faces is None or n in faces]
            self._set(item, changed, step, values)
            people = {item.faces[n].person for n in changed} - {0}
            for other in self.people.photos_of(people):
                theirs = [n for n, face in enumerate(other.faces) if face.person in people]
                if other.id != number:
                    if "draw" in values:
                        self._keep_cuts(other, theirs)
                    self._set(other, theirs, step, values)
                    self.redraw(other.id, SOON)
        return self.redraw(number)

    def _set(self, item: Item, faces: Collection[int], step: int, values: dict[str, Any]) -> None:
        entries = tuple(_decided(item, entry, values) if n in faces else entry for n, entry in enumerate(item.faces))
        self.review.decide(item.id, step, faces=entries)

    def undo(self, number: str, *, redo: bool = False) -> Future[Any]:
        """Take back the last decision on a photo, or do it again; also on other files that it changed."""
        for other in self.review.undo_step(number, redo=redo):
            if other != number and self.review[other].kind == "photo":
                self.redraw(other, SOON)
        return self.redraw(number)

    def add_face(self, number: str, box: tuple[float, float, float, float]) -> Future[Any]:
        """Take a box that was drawn over a face that the detector missed."""

        def add() -> Item:
            entry = _entry(self._do("closer", self.ready(number), box=box), drawn=True)
            with self.review.lock:
                self.review.decide(number, faces=(*self.review[number].faces, entry))
            return self.draw(number)

        self.ready(number)
        return self.queue.put(add, NOW)

    def take_possible(
        self, number: str, places: Collection[int] | None, mode: str, step: int | None = None
    ) -> Future[Any]:
        """Take places that may be faces (None: all that are still open) for faces, and give them a mode."""
        with self.review.lock:
            item = self.ready(number)
            if places is None:
                places = [n for n, place in enumerate(item.possible) if place.open]
            if any(not 0 <= n < len(item.possible) for n in places):
                raise InputError(f"{item.name}: has no such place that may be a face")
            known = {face.box for face in item.faces}
            taken = [item.possible[n] for n in sorted(places) if item.possible[n].box not in known]
            if not taken:
                raise InputError(f"{item.name}: has no place left that may be a face")
            entries = [_decided(item, _entry(_numbers(place), possible=True), {"mode": mode}) for place in taken]
            self.review.decide(number, step, faces=(*item.faces, *entries))
        return self.redraw(number)

    def remove_face(self, number: str, face: int) -> Future[Any]:
        """Take back a box that was drawn."""

        def remove() -> Item:
            with self.review.lock:
                item = self.ready(number, [face])
                if not (item.faces[face].drawn or item.faces[face].possible):
                    raise InputError(f"{item.name}: only a drawn box can be removed; choose Keep for the others")
                self.review.decide(number, faces=item.faces[:face] + item.faces[face + 1 :])
            return self.draw(number)

        return self.queue.put(remove, NOW)

    def ready(self, number: str, faces: Collection[int] = ()) -> Item:
        """A photo that was looked at, and has these faces; an InputError for anything else."""
        item = self.review[number]
        if item.kind != "photo":
            raise InputError(f"{item.name}: is a film; decide on its people")
        if item.state == "waiting" or (item.state == "failed" and not item.faces and not item.stamp):
            raise InputError(f"{item.name}: was not looked at yet; wait for it, or look at what failed")
        for face in faces:
            if not 0 <= face < len(item.faces):
                raise InputError(f"{item.name}: has no face number {face + 1}")
        return item

    def whole(self, number: str) -> Future[Any]:
        """A photo as decided, in its full size, as JPEG."""
        item = self.ready(number)
        drawing = self.review.controls_of(item).drawing.model_dump()
        return self.queue.put(lambda: self._do("whole", item, drawing=drawing), NOW)

    def _meet(self, item: Item, first: bool) -> list[int]:
        """Who the faces of a photo are among those of all photos since the `first`."""
        return list(self._do("meet", item, first=first))

    def face_picture(self, item: Item, face: int, kind: Literal["before", "after"]) -> bytes:
        """A face of a photo as JPEG."""
        image = np.asarray(Image.open(self.review.picture(kind, item.id)).convert("RGB"))
        return jpeg(around(image, np.array(item.faces[face].box) * image.shape[1] / item.width), CUT)

    # -- pictures of faces that were drawn before ---------------------------------------------------------------------

    def cut(self, item: Item, face: int, draw: int) -> Path:
        """Where the picture of a draw of a face is, if it was kept."""
        entry, usual = item.faces[face], self.review.controls_of(item).drawing
        return self.work.draw_file(item.id, (entry.box, draw, entry.drawing or usual))

    def _keep_cuts(self, item: Item, faces: Iterable[int]) -> None:
        """Keep the faces as they are drawn now, before others take their place."""
        if self._drawn.get(item.id) != self._from(item):
            return
        after = np.asarray(Image.open(self.review.picture("after", item.id)).convert("RGB"))
        for n in faces:
            if item.faces[n].action in NEW:
                box = np.array(item.faces[n].box) * after.shape[1] / item.width
                self.review.write_file(self.cut(item, n, item.faces[n].draw).name, jpeg(around(after, box), CUT))

    # -- results ------------------------------------------------------------------------------------------------------

    def save(self, number: str) -> Future[Any]:
        """Write the result of a photo into the output folder, under a name that is free."""

        def save() -> Item:
            self.work.progress[number] = (0, None, "saving")
            try:
                item = self.review[number]
                path = free_name(self.review.output, item.name, output_suffix(self.review.source(item)))
                place, options = path.relative_to(self.review.output).as_posix(), self.work.options(item)
                made = self._render(number, "save", name=item.name, output=path, place=place, options=options)
                self.work.write_sidecar(path, item, made["sidecar"])
                return self.review.change(number, saved=place, changed=False)
            finally:
                self.work.progress.pop(number, None)
                self.review.touch(number)

        self.work.progress[number] = (0, None, "waiting to be saved")
        return self.queue.put(save, SOON)

    def decisions(self, number: str) -> PhotoDecisions:
        """What was decided on a photo, for export."""
        from ficgan.deidentify.review import PhotoDecisions, ReviewedFace

        item = self.ready(number)
        controls, kept = self.review.controls_of(item), set(ReviewedFace.model_fields)
        return PhotoDecisions(
            name=item.name,
            analysis=self.work.do("pictures", "key", path=self.review.source(item)),
            default=controls.mode,
            drawing=controls.drawing,
            faces=tuple(ReviewedFace(**face.model_dump(include=kept)) for face in item.faces),
        )


def _entry(place: Sequence[Any], **more: bool) -> FaceEntry:
    box, landmarks, score = place
    return FaceEntry(box=box, landmarks=landmarks, score=score, **more)


def _possible(place: Sequence[Any]) -> PossibleFace:
    box, landmarks, score = place
    return PossibleFace(box=box, landmarks=landmarks, score=score)


def _numbers(face: FaceEntry | PossibleFace) -> list[Any]:
    """Box, landmarks and score, as a worker takes them."""
    return [[*face.box], [[x, y] for x, y in face.landmarks], face.score]


def _decided(item: Item, face: FaceEntry, values: dict[str, Any]) -> FaceEntry:
    """A face with other values, checked."""
    changed = checked(FaceEntry, {**face.model_dump(), **values}, item.name)
    return changed.model_copy(update={"draws": tuple(dict.fromkeys((*face.draws, face.draw, changed.draw)))})
