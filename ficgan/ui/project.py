"""The private folder of a review: which files there are, what was found in them and what was decided.

    FOLDER/                mode 0700; everything in it 0600
      .ficgan-folder       says that the folder is ours
      ui.json              settings for all files, the seed of the draws
      item-ID.json         a file: where it is, its faces, what was decided on each
      source-ID.jpg        a file that was dropped into the page
      thumb-, before-, after-ID.jpg      pictures for the page
      film-ID/             the project of a film, as `ficgan analyse` makes it

Every file is written whole or not at all, so a full disk or a crash loses nothing but the last step.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, field_validator

from ficgan.anonymizers.modes import COVERS, check_cover
from ficgan.deidentify.review import Drawing, ReviewedFace
from ficgan.errors import InputError
from ficgan.files import atomic_write
from ficgan.folders import Strict, Text, check_schema, checked, hold, make_private_folder, read_json, to_text
from ficgan.records.sidecars import sidecar_path

__all__ = ["Controls", "FaceEntry", "Item", "Review", "free_name"]

SCHEMA = "ficgan-ui-project/1"
ITEM_SCHEMA = "ficgan-ui-item/1"
# What may happen to a face of a photo.
MODES = ("ficgan", "keep", *COVERS)

Kind = Literal["photo", "film"]
State = Literal["waiting", "working", "ready", "failed"]


class Controls(Drawing):
    """What happens to faces on which nothing was decided, and how new ones are drawn; `audio` is of films."""

    mode: str = "ficgan"
    audio: Literal["copy", "drop"] = "copy"

    @field_validator("mode")
    @classmethod
    def _mode(cls, mode: str) -> str:
        return mode if mode == "ficgan" else check_cover(mode)

    @property
    def drawing(self) -> Drawing:
        """How new faces are drawn."""
        return Drawing(**self.model_dump(include=set(Drawing.model_fields)))


class FaceEntry(ReviewedFace):
    """A face of a photo, what was decided on it, and what was done to it last; `drawn`: a person drew the box."""

    drawn: bool = False
    action: str = ""
    note: Text = ""
    doubt: Text = ""
    matched: bool = False


class Item(Strict):
    """A photo or film of the review.

    Args:
        name: of the file, for people.
        place: below the opened folder; None: it was dropped into the page, and is kept as `upload`.
        stamp: size and time of the file whose faces these are.
        controls: None: those of the review.
        people: of a film.
        saved: name of the last result.
        changed: whether something was decided after that.
    """

    schema_: str = Field(ITEM_SCHEMA, alias="schema")
    id: str = Field(pattern=r"^[0-9a-f]{10}$")
    kind: Kind
    name: Text
    place: Text | None = None
    upload: str | None = Field(None, pattern=r"^source-[0-9a-f]{10}(\.\w{1,8})?$")
    state: State = "waiting"
    error: Text = ""
    stamp: str = ""
    width: NonNegativeInt = 0
    height: NonNegativeInt = 0
    controls: Controls | None = None
    faces: tuple[FaceEntry, ...] = ()
    notes: tuple[Text, ...] = ()
    people: NonNegativeInt = 0
    saved: Text = ""
    changed: bool = False


class _ReviewSettings(Strict):
    schema_: str = Field(SCHEMA, alias="schema")
    seed: int
    root: Text | None = None
    output: Text = ""
    controls: Controls = Controls()


class Review:
    """A review on disk. Every change is written before it counts; several threads may use it.

    Args:
        folder: private folder; made if it is not there.
        root: folder of photos and films; None: files are only dropped into the page.
        output: folder for the results.

    Raises:
        InputError: the folder is somebody else's, in use, damaged, or of another version.
    """

    def __init__(self, folder: Path, root: Path | None, output: Path) -> None:
        self.folder, self.root, self.output, self.lock = folder, root, output, threading.RLock()
        self._held = ExitStack()
        make_private_folder(folder, "ui")
        self._held.enter_context(hold(folder))
        try:
            self._settings = self._load()
            self.seed = self._settings.seed  # of all draws; as private as the folder
            self._items: dict[str, Item] = {}
            for path in sorted(folder.glob("item-*.json")):
                tree = check_schema(read_json(path), ITEM_SCHEMA, str(path))
                item = checked(Item, tree, str(path))
                self._items[item.id] = item if item.state != "working" else _with(item, state="waiting")
        except BaseException:
            self._held.close()
            raise
        self.revision = 1
        self._revisions = dict.fromkeys(self._items, 1)

    def _load(self) -> _ReviewSettings:
        path, root = self.folder / "ui.json", None if self.root is None else str(self.root)
        if not path.exists():
            settings = _ReviewSettings(seed=secrets.randbits(64), root=root, output=str(self.output))
            self._write("ui.json", settings)
            return settings
        found = checked(_ReviewSettings, check_schema(read_json(path), SCHEMA, str(path)), str(path))
        if found.root != root:
            raise InputError(
                f"{self.folder}: is the review of {found.root or 'dropped files'}; choose another --project"
            )
        return found

    def close(self) -> None:
        """Let go of the folder."""
        self._held.close()

    @property
    def controls(self) -> Controls:
        """For files without controls of their own."""
        return self._settings.controls

    def controls_of(self, item: Item) -> Controls:
        """Those of the file, else those of the review."""
        return item.controls or self.controls

    def set_controls(self, controls: Controls) -> None:
        """For all files; those of their own are dropped."""
        with self.lock:
            settings = self._settings.model_copy(update={"controls": controls})
            self._write("ui.json", settings)
            self._settings = settings
            for item in self.items():
                if item.controls is not None:
                    self.change(item.id, controls=None)
            self.revision += 1

    # -- files --------------------------------------------------------------------------------------------------------

    def items(self) -> list[Item]:
        """All files, by name: the same order after every start."""
        with self.lock:
            return sorted(self._items.values(), key=lambda item: (item.name, item.id))

    def __getitem__(self, number: str) -> Item:
        with self.lock:
            if number not in self._items:
                raise KeyError(number)
            return self._items[number]

    def revision_of(self, number: str) -> int:
        """Grows with every change of a file."""
        return self._revisions.get(number, 0)

    def touch(self, number: str) -> None:
        """Something about a file is to be told to the page."""
        with self.lock:
            self.revision += 1
            if number in self._items:
                self._revisions[number] = self.revision

    def change(self, number: str, *, quiet: bool = False, **values: Any) -> Item:
        """Change fields of a file's entry on disk, then here; `quiet`: not on disk.

        Raises:
            InputError: it cannot be written; the entry is as it was.
        """
        with self.lock:
            item = _with(self[number], **values)
            if not quiet:
                self._write(f"item-{number}.json", item)
            self._items[number] = item
            self.touch(number)
            return item

    def add_folder(self, files: Iterable[tuple[str, bool]]) -> None:
        """Take files below the root: place, and whether each is a film. Nothing is written for them yet."""
        with self.lock:
            for place, film in files:
                number = hashlib.sha256(os.fsencode(place)).hexdigest()[:10]
                if number not in self._items:
                    self._items[number] = Item(id=number, kind="film" if film else "photo", name=place, place=place)
                    self.touch(number)

    def add_upload(self, number: str, kind: Kind, name: str, upload: str) -> Item:
        """Take a file that was dropped and is in the folder already."""
        with self.lock:
            self._items[number] = Item(id=number, kind=kind, name=name, upload=upload)
            try:
                return self.change(number)
            except InputError:
                del self._items[number]
                raise

    def remove(self, number: str) -> None:
        """Forget a file that was dropped, with its copy and all that was decided."""
        from ficgan.folders import remove_folder

        with self.lock:
            item = self[number]
            if item.upload is None:
                raise InputError(f"{item.name}: lies in the opened folder and stays in the list")
            self._items.pop(number)
            self._revisions.pop(number, None)
            self.revision += 1
            for path in (self.folder / item.upload, *self.folder.glob(f"*-{number}.j*")):
                path.unlink(missing_ok=True)
            if self.film_folder(number).is_dir():
                remove_folder(self.film_folder(number))

    def source(self, item: Item) -> Path:
        """The file itself; never one outside of the opened folder. An InputError where it is gone."""
        if item.upload is not None:
            path = self.folder / item.upload
        else:
            if self.root is None or item.place is None:
                raise InputError(f"{item.name}: its folder was not opened")
            path = self.root / item.place
            if not path.resolve().is_relative_to(self.root.resolve()):
                raise InputError(f"{item.name}: leads out of the opened folder")
        if not path.is_file():
            raise InputError(f"{item.name}: is no longer there; put it back, or leave it")
        return path

    def result(self, item: Item) -> Path | None:
        """The last result of a file, where there is one."""
        path = self.output / item.saved
        return path if item.saved and path.is_file() else None

    def picture(self, kind: Literal["thumb", "before", "after"], number: str) -> Path:
        """Where a picture for the page is, if it was made."""
        return self.folder / f"{kind}-{number}.jpg"

    def film_folder(self, number: str) -> Path:
        """Where a film's project is, if it was analysed."""
        return self.folder / f"film-{number}"

    def write_file(self, name: str, data: bytes) -> None:
        """A private file of the folder."""
        with atomic_write(self.folder / name, overwrite=True, mode=0o600) as file:
            file.write(data)

    def _write(self, name: str, document: Strict) -> None:
        text = to_text(document.model_dump(mode="json", by_alias=True))
        try:
            self.write_file(name, text.encode(errors="replace"))
        except OSError as error:
            raise InputError(f"{self.folder / name}: cannot be written ({error.strerror})") from error


def _with(item: Item, **values: Any) -> Item:
    """A changed entry, checked as one that is read."""
    return checked(Item, {**item.model_dump(by_alias=True), **values}, item.name)


def free_name(folder: Path, name: str, suffix: str) -> Path:
    """A path in a folder that no file has: `name.suffix`, else `name-2.suffix` and so on; its side-car is free, too."""
    target = folder / name
    stem = target.stem
    for number in range(1, 10_000):
        path = target.with_name(f"{stem}-{number}{suffix}" if number > 1 else f"{stem}{suffix}")
        if not os.path.lexists(path) and not os.path.lexists(sidecar_path(path)):
            return path
    raise InputError(f"{target}: ten thousand results of this name are there; empty the output folder")
