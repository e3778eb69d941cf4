"""People over a review: who is in several photos has one new face there, and what is decided on them counts in all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from ficgan.errors import InputError
from ficgan.ui.items import Item
from ficgan.ui.work import SOON, Queue, Workplace

# How their new faces were drawn, with identity codes of the sources.
FILE = "people.json"


class DeskPeople:
    """The people of the photos of a review.

    Args:
        meet: who the faces of a photo are among those of all photos since the first, which the flag says.
        redraw: draws a photo again.
    """

    def __init__(
        self,
        work: Workplace,
        queue: Queue,
        meet: Callable[[Item, bool], list[int]],
        redraw: Callable[[str, float], object],
    ) -> None:
        self.work, self.review, self._queue, self._meet, self._redraw = work, work.review, queue, meet, redraw
        self.identities: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            self.identities = dict(json.loads((self.review.folder / FILE).read_text()))

    def keep(self, new: Mapping[str, Any]) -> None:
        """Remember how people were drawn, for their other photos."""
        if any(name not in self.identities for name in new):
            self.identities = {**new, **self.identities}
            self.review.write_file(FILE, json.dumps(self.identities).encode())

    def photos_of(self, people: Collection[int]) -> list[Item]:
        """The photos that people are in."""
        return [
            item
            for item in (self.review.items() if people else ())
            if item.kind == "photo" and any(face.person in people for face in item.faces)
        ]

    def rows(self) -> list[dict[str, Any]]:
        """All people, with the photos and numbers of their faces."""
        found: dict[int, list[dict[str, Any]]] = {}
        for item in self.review.items():
            for n, face in enumerate(item.faces):
                if face.person:
                    one = {"id": item.id, "name": item.name, "face": n, "mode": face.mode, "draw": face.draw}
                    found.setdefault(face.person, []).append({**one, "draws": face.draws, "action": face.action})
        return [{"person": person, "faces": faces} for person, faces in sorted(found.items())]

    def link(self) -> Future[Any]:
        """Compare the faces of all photos that were looked at; who is in several gets a number. It is one step."""
        items = [item for item in self.review.items() if item.kind == "photo" and item.state == "ready" and item.faces]
        if not items:
            raise InputError("no photo with a face was looked at yet; wait for it")
        work = self.work
        for item in items:
            work.progress[item.id] = (0, None, "comparing faces")

        def compare() -> int:
            try:
                met: dict[str, list[int]] = {}
                for n, item in enumerate(items):
                    met[item.id] = self._meet(self.review[item.id], n == 0)
                    work.progress.pop(item.id, None)
                    self.review.touch(item.id)
            finally:
                for item in items:
                    work.progress.pop(item.id, None)
                    self.review.touch(item.id)
            return self._number(met)

        return self._queue.put(compare, SOON)

    def _number(self, met: Mapping[str, list[int]]) -> int:
        """Give the people who were met the numbers that they have; returns how many are in several photos."""
        with self.review.lock:
            known = {number: self.review[number].faces for number in met}
            groups: dict[int, list[int]] = {}
            for number, people in met.items():
                for person, face in zip(people, known[number], strict=False):
                    groups.setdefault(person, []).append(face.person)
            groups = {person: faces for person, faces in groups.items() if person and len(faces) > 1}
            names: dict[int, int] = {}
            for person, faces in groups.items():
                had = [number for number, _ in Counter(faces).most_common() if number and number not in names.values()]
                names[person] = had[0] if had else 0
            fresh = max([0, *names.values(), *(face.person for faces in known.values() for face in faces)])
            for person, name in names.items():
                if not name:
                    fresh += 1
                    names[person] = fresh
            step = self.review.next_step()
            leaders: dict[int, Any] = {}
            for number, people in met.items():
                entries = list(known[number])
                for n, (person, face) in enumerate(zip(people, entries, strict=False)):
                    name = names.get(person, 0)
                    # One new face; whether it is shown is decided on each as before.
                    lead = leaders.setdefault(name, face) if name else face
                    same = {field: getattr(lead, field) for field in ("draw", "drawing", "draws")}
                    entries[n] = face.model_copy(update={"person": name, **same})
                if entries != list(known[number]):
                    self.review.decide(number, step, faces=tuple(entries))
                    self._redraw(number, SOON)
            return len(groups)
