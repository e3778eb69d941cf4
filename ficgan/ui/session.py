"""A review at work: files are listed or dropped, get their pictures, and wait for the model in three queues."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ficgan.deidentify import Deidentifier
from ficgan.deidentify.review import Drawing, as_tree
from ficgan.errors import FicganError, InputError
from ficgan.images import film_suffix, output_suffix
from ficgan.ui import Controls, Item, Kind, Review
from ficgan.ui.films import DeskFilms
from ficgan.ui.photos import DeskPhotos
from ficgan.ui.work import FIRST, LATER, NOW, SOON, Queue, Workplace, hide_path, sentence
from ficgan.workers import Workers


class Session(Workplace):
    """The photos and films of a review, and what is common to both.

    Pictures, photos and films have a queue and a worker process each, so that nothing waits for a long film: 500 files
    are 500 entries in a queue.
    """

    def __init__(
        self, review: Review, make_engine: Callable[[int], Deidentifier], start: Callable[[Any], Workers] = Workers
    ) -> None:
        super().__init__(review, make_engine, start)
        self.pictures = Queue("pictures")
        self.photos = DeskPhotos(self)
        self.films = DeskFilms(self, self.pictures, self.photos.queue)
        loaded = self.photos.queue.put(self._load, FIRST)
        self.films.queue.put(loaded.result, FIRST)
        for item in review.items():
            self._begin(item)

    def open_folder(self) -> None:
        """List the files of the opened folder, in the background."""

        def listing() -> None:
            for item in self.review.add_folder(self.do("pictures", "files", root=self.review.root)):
                self._begin(item)

        self.pictures.put(listing, NOW)

    def close(self) -> None:
        """Stop the work and let go of the folder: what was decided is on disk. An unfinished film keeps its folder."""
        self.is_closing = True
        for workers in tuple(self._workers.values()):
            workers.close()
        for one in (self.pictures, self.photos.queue, self.films.queue):
            one.stop(10)
        items = self.review.items()
        for item in items if any(item.saved for item in items) else ():
            if not item.saved:
                suffix = film_suffix(Path(item.name)) if item.kind == "film" else output_suffix(item.name)
                output = (self.review.output / item.name).with_suffix(suffix)
                self.note(item, output, "undone", item.error or "nothing was saved in the review")
        self.review.close()

    def _load(self) -> None:
        try:
            self.about = self.do("photos", "about")
            self.model = "ready"
        except Exception as error:
            self.model = sentence(error)

    # -- files --------------------------------------------------------------------------------------------------------

    def _begin(self, item: Item) -> None:
        """Put a file into the queues it needs."""
        self.pictures.put(lambda: self._picture(item.id))
        changed = item.kind == "photo" and item.state == "ready" and item.stamp != self.review.stamp(item)
        if changed:
            self.review.change(item.id, quiet=True, state="waiting", notes=("The file has changed.",))
        if item.state == "waiting" or changed:
            self.look(item.id)

    def look(self, number: str) -> None:
        """Look for faces in a file when its turn comes."""
        film = self.review[number].kind == "film"
        work, job = (self.films.queue, self.films.analyse) if film else (self.photos.queue, self.photos.draw)
        work.put(lambda: self.run(number, "looking for faces", job))

    def add_upload(self, name: str, upload: str, number: str) -> Item:
        """Take a file that was written into the private folder; one that cannot be read is removed again."""
        path = self.review.folder / upload
        try:
            made = self.pictures.put(lambda: self._write_pictures(number, path), NOW).result()
            kind: Kind = "film" if made.pop("film") else "photo"
            item = Item(id=number, kind=kind, name=name, upload=upload, **made)
            self.review.take(item)
        except BaseException as error:
            for left in (path, *self.review.folder.glob(f"*-{number}.jpg")):
                left.unlink(missing_ok=True)
            if isinstance(error, FicganError):
                raise InputError(hide_path(str(error), path, name)) from None
            raise
        self.look(number)
        return item

    def _picture(self, number: str) -> None:
        """Thumbnail and preview of a file as it is."""
        item = self.review[number]
        if self.review.picture("before", number).exists() and (item.upload or item.stamp == self.review.stamp(item)):
            return
        try:
            made = self._write_pictures(number, self.review.source(item))
            self.review.change(number, quiet=True, width=made["width"], height=made["height"])
        except (FicganError, OSError) as error:
            self.fail(number, error)

    def _write_pictures(self, number: str, path: Path) -> dict[str, Any]:
        """Pictures for the page; width, height, and whether it is a film."""
        made: dict[str, Any] = self.do("pictures", "pictures", path=path)
        for kind in ("before", "thumb"):
            self.review.write_file(f"{kind}-{number}.jpg", made.pop(kind))
        return made

    def whole(self, number: str) -> Future[Any]:
        """A photo as it is, in its full size, as JPEG."""
        path = self.review.source(self.review[number])
        return self.pictures.put(lambda: self.do("pictures", "whole_source", path=path), NOW)

    # -- decisions ----------------------------------------------------------------------------------------------------

    def set_controls(self, controls: Controls, number: str | None = None) -> Future[Any] | None:
        """New controls for a photo, or (None) for all files. Every photo is drawn again."""
        self.check(controls.drawing)
        if number is not None:
            self.review.decide(number, controls=controls)
            return self.photos.redraw(number) if self.review[number].kind == "photo" else None
        step = self.review.next_step()
        self.review.decide("", step, controls=controls)
        for item in self.review.items():
            if item.controls is not None:
                self.review.decide(item.id, step, controls=None)
            if item.kind == "film" and item.state == "ready":
                self.films.edit(item.id, {"default": controls.mode}, step)
        self._redraw([""])
        return None

    def check(self, drawing: Drawing) -> None:
        """Raise a UsageError where the model, once it is loaded, cannot do what settings ask for."""
        if self.model == "ready":
            self.photos.queue.put(lambda: self.do("photos", "check", drawing=drawing), NOW).result()

    def _redraw(self, changed: Sequence[str]) -> None:
        """Draw photos again that were changed; "": all, since the settings were."""
        for item in self.review.items():
            if item.kind == "photo" and "" in changed and item.state == "ready":
                self.review.change(item.id, quiet=True, changed=True)
                self.photos.redraw(item.id, LATER)
            elif item.kind == "photo" and item.id in changed:
                self.photos.redraw(item.id, SOON)

    def undo(self, number: str | None = None, *, redo: bool = False) -> list[str]:
        """Take back the last action on a file, or (None) the last of all, or do it again; returns what it changed."""
        changed = self.review.undo(number, redo=redo)
        self._redraw(changed)
        return changed

    def decide(self, numbers: Sequence[str], values: Mapping[str, Any]) -> None:
        """One decision on several files: `reviewed`, and of photos `mode` of all faces and `possible`, of open places.

        It is one step of undo. Files that it does not suit, or that were not looked at yet, stay as they are.
        """
        step = self.review.next_step()
        for item in [self.review[number] for number in numbers]:
            if "reviewed" in values and item.reviewed != values["reviewed"]:
                self.review.decide(item.id, step, reviewed=bool(values["reviewed"]))
            if item.kind != "photo" or item.state != "ready":
                continue
            if "mode" in values and item.faces:
                self.photos.decide(item.id, None, step, mode=values["mode"])
            if "possible" in values and any(place.open for place in item.possible):
                self.photos.take_possible(item.id, None, values["possible"], step)

    def decisions(self, number: str | None = None) -> dict[str, Any]:
        """What was decided on a photo or film, or (None) on all photos that were looked at, as a file holds it."""
        if number is not None and self.review[number].kind == "film":
            return self.films.load(number).decisions_tree()
        ready = [item.id for item in self.review.items() if item.kind == "photo" and item.state == "ready"]
        return as_tree([self.photos.decisions(one) for one in ([number] if number is not None else ready)])

    # -- results ------------------------------------------------------------------------------------------------------

    def save(self, number: str) -> Future[Any] | None:
        """Write the result of a file into the output folder, under a name that is free; None: a film takes longer."""
        item = self.review[number]
        if item.state in ("waiting", "working"):
            raise InputError(f"{item.name}: was not looked at yet; wait for it")
        return (self.films if item.kind == "film" else self.photos).save(number)

    def save_all(self) -> int:
        """Save every file whose result is not written yet; returns how many. What goes wrong is noted at the file."""
        unsaved = [item for item in self.review.items() if item.state == "ready" and (item.changed or not item.saved)]
        begun = [item.id for item in unsaved if item.id not in self.progress]
        for number in begun:
            self.save(number)
        return len(begun)
