"""Photos under review: what was decided on each face, drawn at once, and saved; who is in several of them."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ficgan.deidentify.review import PhotoDecisions, ReviewedFace
from ficgan.errors import InputError
from ficgan.folders import checked
from ficgan.images import output_suffix
from ficgan.records import SYNTHETIC_ACTIONS
from ficgan.ui import FaceEntry, Item, PossibleFace, free_name
from ficgan.ui.tasks import CUT, PhotoTask, around, jpeg
from ficgan.ui.work import NOW, SOON, Queue, Workplace, sentence


class DeskPhotos:
    """The photos of a review. Decisions are written to disk at once and drawn in their turn."""

    def __init__(self, work: Workplace) -> None:
        self.work, self.review, self.queue = work, work.review, Queue("photos")
        self._drawn: dict[str, tuple[Any, ...]] = {}  # what each photo was drawn from last
        # How the new faces of people who are in several photos were drawn, with identity codes of the sources.
        self._identities: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            self._identities = dict(json.loads((self.review.folder / "people.json").read_text()))

    def _task(self, item: Item) -> PhotoTask:
        """A photo as it is decided, for the worker."""
        more = {"controls": self.review.controls_of(item), "stamp": self.review.stamp(item), "past": (), "future": ()}
        named = {face.identity for face in item.faces if face.person} & self._identities.keys()
        known = {name: self._identities[name] for name in named}
        return PhotoTask(item.model_copy(update=more), self.review.source(item), known)

    def _do(self, task: str, item: Item, **given: Any) -> Any:
        return self.work.do("photos", task, photo=self._task(item), **given)

    def draw(self, number: str) -> None:
        """The faces of a photo as decided, and the preview of it; a photo that is new or changed is looked at first."""
        item, stamp = self.review[number], self.review.stamp(self.review[number])
        if item.stamp != stamp or item.state == "waiting":
            found = self._do("look", item)
            faces = tuple(FaceEntry(**find) for find in found.pop("faces"))
            found["possible"] = tuple(PossibleFace(**find) for find in found["possible"])
            # The file is another one, the picture may not be: then what was decided holds.
            before = {face.place for face in item.faces if not (face.drawn or face.possible)}
            if item.faces and {face.place for face in faces} == before:
                found |= {"notes": ()}
            else:
                found |= {"faces": faces, "past": (), "future": (), "reviewed": False}
            self.review.change(number, quiet=True, stamp=stamp, **found)
        self._render(number, "render")

    def _render(self, number: str, task: str, **given: Any) -> Any:
        item = self.review[number]
        basis = self._from(item)
        made = self._do(task, item, **given)
        if any(name not in self._identities for name in made["people"]):
            self._identities = {**made["people"], **self._identities}
            self.review.write_file("people.json", json.dumps(self._identities).encode())
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

    def redraw(self, number: str, priority: int = NOW) -> Future[Any]:
        """Draw a photo again, unless it was drawn so when its turn comes: a result that was saved meanwhile, say."""

        def draw(number: str) -> None:
            if self._drawn.get(number) != self._from(self.review[number]):
                self.draw(number)

        return self.queue.put(lambda: self.work.run(number, "drawing", draw), priority)

    # -- decisions ----------------------------------------------------------------------------------------------------

    def decide(self, number: str, faces: Collection[int] | None, step: int | None = None, **values: Any) -> Future[Any]:
        """Change what was decided on faces (None: on all): mode, draw; an InputError changes nothing."""
        with self.review.lock:
            item = self.ready(number, faces or ())
            step = self.review.next_step() if step is None else step
            chosen = range(len(item.faces)) if faces is None else faces
            self._set(item, chosen, step, values)
            people = {item.faces[n].person for n in chosen} - {0}
            for other in self.review.items() if people else ():
                theirs = [n for n, face in enumerate(other.faces) if face.person in people]
                if theirs and other.id != number:
                    self._set(other, theirs, step, values)
                    self.redraw(other.id, SOON)
        return self.redraw(number)

    def _set(self, item: Item, faces: Collection[int], step: int, values: dict[str, Any]) -> None:
        if "draw" in values:
            self._keep_cuts(item, faces)
        entries = tuple(_decided(item, entry, values) if n in faces else entry for n, entry in enumerate(item.faces))
        self.review.decide(item.id, step, faces=entries)

    def add_face(self, number: str, box: tuple[float, float, float, float]) -> Future[Any]:
        """Take a box that was drawn over a face that the detector missed."""

        def add() -> None:
            entry = FaceEntry(**self._do("closer", self.ready(number), box=box), drawn=True)
            with self.review.lock:
                self.review.decide(number, faces=(*self.review[number].faces, entry))
            self.draw(number)

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
            entries = [FaceEntry(**place.model_dump(exclude={"open"}), possible=True) for place in taken]
            entries = [_decided(item, entry, {"mode": mode}) for entry in entries]
            self.review.decide(number, step, faces=(*item.faces, *entries))
        return self.redraw(number)

    def remove_face(self, number: str, face: int) -> Future[Any]:
        """Take back a box that was drawn."""
        with self.review.lock:
            item = self.ready(number, [face])
            if not (item.faces[face].drawn or item.faces[face].possible):
                raise InputError(f"{item.name}: only a drawn box can be removed; choose Keep for the others")
            self.review.decide(number, faces=item.faces[:face] + item.faces[face + 1 :])
        return self.redraw(number)

    def ready(self, number: str, faces: Collection[int] = ()) -> Item:
        """A photo that was looked at, and has these faces; an InputError for anything else."""
        item = self.review[number]
        if item.kind != "photo":
            raise InputError(f"{item.name}: is a film; decide on its people")
        if item.state == "waiting" or (item.state == "failed" and not item.stamp):
            raise InputError(f"{item.name}: was not looked at yet; wait for it, or look at what failed")
        for face in faces:
            if not 0 <= face < len(item.faces):
                raise InputError(f"{item.name}: has no face number {face + 1}")
        return item

    # -- pictures -----------------------------------------------------------------------------------------------------

    def whole(self, number: str) -> Future[Any]:
        """A photo as decided, in its full size, as JPEG."""
        item = self.ready(number)
        return self.queue.put(lambda: self._do("whole", item), NOW)

    def face_picture(self, item: Item, face: int) -> bytes:
        """A face of a photo as it is drawn now, as JPEG."""
        image = np.asarray(Image.open(self.review.picture("after", item.id)).convert("RGB"))
        return jpeg(around(image, np.array(item.faces[face].box) * image.shape[1] / item.width), CUT)

    def cut(self, item: Item, face: int, draw: int) -> Path:
        """Where the picture of a draw of a face is, if it was kept."""
        entry, usual = item.faces[face], self.review.controls_of(item).drawing
        return self.review.draw_file(item.id, (entry.box, draw, entry.drawing or usual))

    def _keep_cuts(self, item: Item, faces: Iterable[int]) -> None:
        """Keep the faces as they are drawn now, before others take their place."""
        for n in faces if self._drawn.get(item.id) == self._from(item) else ():
            if item.faces[n].action in SYNTHETIC_ACTIONS:
                name = self.cut(item, n, item.faces[n].draw).name
                self.review.write_file(name, self.face_picture(item, n))

    # -- results ------------------------------------------------------------------------------------------------------

    def save(self, number: str) -> Future[Any]:
        """Write the result of a photo into the output folder, under a name that is free."""

        def save() -> None:
            try:
                with self.work.stage(number, "saving"):
                    item = self.review[number]
                    path = free_name(self.review.output, item.name, output_suffix(self.review.source(item)))
                    place, options = path.relative_to(self.review.output).as_posix(), self.work.options(item)
                    made = self._render(number, "save", output=path, place=place, options=options)
                    self.work.write_sidecar(path, item, made["sidecar"])
                    self.review.change(number, saved=place, changed=False)
            except Exception as error:
                self.review.change(number, quiet=True, error=sentence(error))
                raise

        self.work.progress[number] = (0, None, "waiting to be saved")
        return self.queue.put(save, SOON)

    def decisions(self, number: str) -> PhotoDecisions:
        """What was decided on a photo, for export."""
        item = self.ready(number)
        controls, kept = self.review.controls_of(item), set(ReviewedFace.model_fields)
        return PhotoDecisions(
            name=item.name,
            analysis=self.work.do("pictures", "key", path=self.review.source(item)),
            default=controls.mode,
            drawing=controls.drawing,
            faces=tuple(ReviewedFace(**face.model_dump(include=kept)) for face in item.faces),
        )

    # -- people who are in several photos -----------------------------------------------------------------------------

    def people(self) -> list[dict[str, Any]]:
        """All people, with the photos and numbers of their faces."""
        found: dict[int, list[dict[str, Any]]] = {}
        for item in self.review.items():
            for n, face in enumerate(item.faces):
                if face.person:
                    shown = face.model_dump(include={"mode", "draw", "draws", "action"})
                    found.setdefault(face.person, []).append({"id": item.id, "name": item.name, "face": n, **shown})
        return [{"person": person, "faces": faces} for person, faces in sorted(found.items())]

    def link(self) -> Future[Any]:
        """Compare the faces of all photos that were looked at; who is in several gets a number. It is one step."""
        items = [item for item in self.review.items() if item.kind == "photo" and item.state == "ready" and item.faces]
        if not items:
            raise InputError("no photo with a face was looked at yet; wait for it")

        def compare() -> int:
            photos = [self._task(self.review[item.id]) for item in items]
            with self.work.stage(items[0].id, "comparing the faces of all photos"):
                met = self.work.do("photos", "meet", photos=photos)
            return self._number({photo.item.id: people for photo, people in zip(photos, met, strict=True)})

        return self.queue.put(compare, SOON)

    def _number(self, met: Mapping[str, list[int]]) -> int:
        """Give the people who were met the numbers that they have; returns how many are in several photos."""
        with self.review.lock:
            known = {number: self.review[number].faces for number in met}
            pairs = {number: list(zip(people, known[number], strict=False)) for number, people in met.items()}
            groups: dict[int, list[int]] = {}
            for person, face in itertools.chain(*pairs.values()):
                groups.setdefault(person, []).append(face.person)
            fresh = itertools.count(1 + max(face.person for faces in known.values() for face in faces))
            names: dict[int, int] = {}
            for person, numbers in groups.items():
                if person and len(numbers) > 1:
                    had = [n for n, _ in Counter(numbers).most_common() if n and n not in names.values()]
                    names[person] = had[0] if had else next(fresh)
            step = self.review.next_step()
            leaders: dict[int, FaceEntry] = {}
            for number, faces in pairs.items():
                entries = list(known[number])
                for n, (person, face) in enumerate(faces):
                    name = names.get(person, 0)
                    # One new face; whether it is shown is decided on each as before.
                    lead = leaders.setdefault(name, face) if name else face
                    same = {field: getattr(lead, field) for field in ("draw", "drawing", "draws")}
                    entries[n] = face.model_copy(update={"person": name, **same})
                if tuple(entries) != known[number]:
                    self.review.decide(number, step, faces=tuple(entries))
                    self.redraw(number, SOON)
            return len(names)


def _decided(item: Item, face: FaceEntry, values: dict[str, Any]) -> FaceEntry:
    """A face with other values, checked."""
    changed = checked(FaceEntry, {**face.model_dump(), **values}, item.name)
    return changed.model_copy(update={"draws": tuple(dict.fromkeys((*face.draws, face.draw, changed.draw)))})
