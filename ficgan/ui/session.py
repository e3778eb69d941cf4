"""A review at work: files are listed or dropped, get their pictures, and wait for the model in three queues."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import FicganError, InputError
from ficgan.images import read_image
from ficgan.ui.films import Films
from ficgan.ui.photos import PREVIEW, Photos
from ficgan.ui.project import Controls, Item, Kind, Review
from ficgan.ui.work import LATER, NOW, SOON, FileKinds, Queue, Workplace, hide_path, jpeg

if TYPE_CHECKING:
    from ficgan.deidentify import Deidentifier

__all__ = ["Session"]

THUMBNAIL = 320
"""Longest side in pixels of the pictures in the grid."""
FIRST_LOOK = 12
"""Thumbnails that are made before the model is loaded."""


class Session(Workplace):
    """The photos and films of a review, and what is common to both.

    Pictures, photos and films have a queue each, so that nothing waits for a long film. Nothing is held in memory but
    the last few photos: 500 files are 500 entries in a queue.
    """

    def __init__(self, review: Review, kinds: FileKinds, make_engine: Callable[[int], Deidentifier]) -> None:
        super().__init__(review, kinds, make_engine)
        self._first = threading.Event()
        self._begun: set[str] = set()
        self.pictures = Queue("pictures", self.changed)
        self.photos = Photos(self, self._prepare)
        self.films = Films(self, self.pictures, self.photos.queue)
        for item in review.items():
            self._begin(item)
        self.pictures.put(self._first.set, LATER)

    def open_folder(self) -> None:
        """List the files of the opened folder, in the background."""

        def listing() -> None:
            assert self.review.root is not None
            self.review.add_folder(self.kinds.files(self.review.root))
            for item in self.review.items():
                if item.id not in self._begun:
                    self._begin(item)
            self.pictures.put(self._first.set, LATER)

        self._first.clear()
        self.pictures.put(listing, NOW)

    def close(self) -> None:
        """Stop the work and let go of the folder. What was decided is on disk already."""
        self.stopping.set()
        self._first.set()
        for one in (self.pictures, self.photos.queue, self.films.queue):
            one.stop(10)
        self.films.close()
        self.review.close()

    def _prepare(self) -> None:
        self._first.wait(5)  # the first pictures are worth more than the model
        self.load()

    # -- files --------------------------------------------------------------------------------------------------------

    def _begin(self, item: Item) -> None:
        """Put a file into the queues it needs."""
        self._begun.add(item.id)
        self.pictures.put(lambda: self._picture(item.id), SOON if len(self._begun) <= FIRST_LOOK else LATER)
        if len(self._begun) == FIRST_LOOK:
            self.pictures.put(self._first.set, SOON)
        changed = item.kind == "photo" and item.state == "ready" and item.stamp != self.stamp(item)
        if changed:
            self.review.change(item.id, quiet=True, state="waiting", notes=("The file has changed.",))
        if item.state == "waiting" or changed:
            self.look(item.id)

    def look(self, number: str) -> None:
        """Look for faces in a file when its turn comes."""
        film = self.review[number].kind == "film"
        work, job = (self.films.queue, self.films.analyse) if film else (self.photos.queue, self.photos.draw)
        work.put(lambda: self.run(number, job))

    def add_upload(self, name: str, upload: str, number: str) -> Item:
        """Take a file that was written into the private folder.

        Raises:
            InputError: it is neither a photo nor a film, or broken; the file is removed again.
        """
        path = self.review.folder / upload
        try:
            kind: Kind = "film" if self.kinds.is_film(path) else "photo"
            image = self._first_picture(path, kind)
            self._write_pictures(number, image)
            item = self.review.add_upload(number, kind, name, upload)
            item = self.review.change(number, quiet=True, width=image.shape[1], height=image.shape[0])
        except BaseException as error:
            for left in (path, *self.review.folder.glob(f"*-{number}.jpg")):
                left.unlink(missing_ok=True)
            if isinstance(error, FicganError):
                raise InputError(hide_path(str(error), path, name)) from None
            raise
        self.look(number)
        return item

    @staticmethod
    def _first_picture(path: Path, kind: Kind) -> NDArray[np.uint8]:
        if kind == "photo":
            return read_image(path).rgb
        from ficgan.video import open_video

        with open_video(path) as source:
            for frame in source.frames():
                return frame.image
        raise InputError(f"{path}: holds no frame that can be decoded")

    def _picture(self, number: str) -> None:
        """Thumbnail and preview of a file as it is."""
        item = self.review[number]
        if self.review.picture("before", number).exists() and (item.upload or item.stamp == self.stamp(item)):
            return
        try:
            image = self._first_picture(self.review.source(item), item.kind)
            self._write_pictures(number, image)
            self.review.change(number, quiet=True, width=image.shape[1], height=image.shape[0])
        except (FicganError, OSError) as error:
            self.fail(number, error)

    def _write_pictures(self, number: str, image: NDArray[np.uint8]) -> None:
        self.review.write_file(f"before-{number}.jpg", jpeg(image, PREVIEW))
        self.review.write_file(f"thumb-{number}.jpg", jpeg(image, THUMBNAIL, 80))

    # -- both kinds ---------------------------------------------------------------------------------------------------

    def set_controls(self, controls: Controls, number: str | None = None) -> Future[Any] | None:
        """New controls for a photo, or (None) for all files. Every photo is drawn again.

        Raises:
            UsageError: a value that cannot work with the model.
        """
        if self.model == "ready":
            self.engine_with(controls)
        if number is not None:
            self.review.change(number, controls=controls.model_dump(), changed=True)
            return self.photos.redraw(number) if self.review[number].kind == "photo" else None
        self.review.set_controls(controls)
        for item in self.review.items():
            if item.kind == "photo" and item.state == "ready":
                self.review.change(item.id, quiet=True, changed=True)
                self.photos.redraw(item.id, LATER)
            elif item.kind == "film" and item.state == "ready":
                self.films.edit(item.id, default=controls.mode)
        return None

    def save(self, number: str) -> Future[Any]:
        """Write the result of a file into the output folder, under a name that is free."""
        item = self.review[number]
        if item.state in ("waiting", "working"):
            raise InputError(f"{item.name}: was not looked at yet; wait for it")
        return (self.films if item.kind == "film" else self.photos).save(number)

    def decisions(self, number: str | None = None) -> dict[str, Any]:
        """What was decided on a photo or film, or (None) on all photos that were looked at, as a file holds it."""
        from ficgan.deidentify.decided import as_tree

        if number is not None and self.review[number].kind == "film":
            return self.films.load(number).decisions_tree()
        ready = [item.id for item in self.review.items() if item.kind == "photo" and item.state == "ready"]
        return as_tree([self.photos.decisions(one) for one in ([number] if number is not None else ready)])
