"""The private folder of a review: which files there are, what was found in them and what was decided.

    FOLDER/                mode 0700; everything in it 0600
      .ficgan-folder       says that the folder is ours
      ui.json              settings for all files, the seed of the draws
      item-ID.json         a file: where it is, its faces, what was decided on each
      source-ID.jpg        a file that was dropped into the page
      people.json            how people who are in several photos were drawn, with identity codes
      thumb-, before-, after-, result-, draw-ID….jpg      pictures for the page
      film-ID/             the project of a film, as `ficgan analyse` makes it

Every file is written whole or not at all, so a full disk or a crash loses nothing but the last step.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import count, takewhile
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, NonNegativeInt

from ficgan import folders
from ficgan.deidentify.review import Drawing, Find, ReviewedFace
from ficgan.errors import InputError
from ficgan.files import atomic_write
from ficgan.folders import Strict, Text, check_schema, checked, hold, read_json, to_text
from ficgan.options import COVERS, check_cover
from ficgan.records import sidecar_path

SCHEMA, ITEM_SCHEMA = "ficgan-ui-project/1", "ficgan-ui-item/1"
# Steps of undo that a file keeps.
STEPS = 200
# What may happen to a face of a photo.
MODES = ("ficgan", "keep", *COVERS)

Kind = Literal["photo", "film"]
State = Literal["waiting", "working", "ready", "failed"]


class Controls(Drawing):
    """What happens to faces on which nothing was decided, and how new ones are drawn; `audio` is of films."""

    mode: Annotated[str, AfterValidator(lambda mode: mode if mode == "ficgan" else check_cover(mode))] = "ficgan"
    audio: Literal["copy", "drop"] = "copy"

    @property
    def drawing(self) -> Drawing:
        """How new faces are drawn."""
        return Drawing(**self.model_dump(include=set(Drawing.model_fields)))


class FaceEntry(ReviewedFace):
    """A face of a photo, what was decided on it, and what was done to it last."""

    drawn: bool = False  # a person drew the box
    possible: bool = False  # a weak find that a person took for a face
    draws: tuple[NonNegativeInt, ...] = (0,)  # numbers of the new faces that were shown, in their order
    action: str = ""
    note: Text = ""
    doubt: Text = ""
    matched: bool = False
    # Of the new face from the source, in units of the gate's threshold; None where it was not asked.
    distance: float | None = None


class PossibleFace(Find):
    """A find that is too weak for a face; `open`: the last drawing left it as it was."""

    open: bool = True


class Step(Strict):
    """What one step of undo or redo gives back."""

    number: NonNegativeInt  # of the action that it belongs to; what was changed together shares it
    # Which entries of `faces` go: from where, and how many.
    at: NonNegativeInt = 0
    drop: NonNegativeInt = 0
    faces: tuple[FaceEntry, ...] = ()  # what comes in their place
    controls: Controls | None = None
    reviewed: bool = False
    # What goes back to a film's project, in the form of its decisions.json; None: nothing.
    film: dict[str, Any] | None = None


class Entry(Strict):
    """What can be decided, and undone: on a file, or, as the settings of the review, on all."""

    controls: Controls | None = None  # of a file; None: those of the review
    faces: tuple[FaceEntry, ...] = ()
    reviewed: bool = False  # a person looked at it and is content
    # Steps of undo and redo, the next one last.
    past: tuple[Step, ...] = ()
    future: tuple[Step, ...] = ()


class Settings(Entry):
    """Those of the review; `seed` is of all draws, and as private as the folder."""

    id: ClassVar[str] = ""
    schema_: str = Field(SCHEMA, alias="schema")
    seed: int
    root: Text | None = None
    output: Text = ""
    controls: Controls = Controls()


class Item(Entry):
    """A photo or film of the review."""

    schema_: str = Field(ITEM_SCHEMA, alias="schema")
    id: str = Field(pattern=r"^[0-9a-f]{10}$")
    kind: Kind
    name: Text  # of the file, for people
    place: Text | None = None  # below the opened folder; None: it was dropped into the page, and is kept as `upload`
    upload: str | None = Field(None, pattern=r"^source-[0-9a-f]{10}(\.\w{1,8})?$")
    state: State = "waiting"
    error: Text = ""
    stamp: str = ""  # size and time of the file whose faces these are
    width: NonNegativeInt = 0
    height: NonNegativeInt = 0
    notes: tuple[Text, ...] = ()
    people: NonNegativeInt = 0  # of a film
    # Of a film, the numbers of the new faces that were shown, by person, or by "-track" where none is known.
    draws: dict[str, tuple[NonNegativeInt, ...]] = Field(default_factory=dict)
    saved: Text = ""  # name of the last result
    changed: bool = False  # whether something was decided after that
    possible: tuple[PossibleFace, ...] = ()


def _alike(one: Sequence[FaceEntry], other: Sequence[FaceEntry]) -> int:
    """How many faces from the beginning are decided alike."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0].decided == pair[1].decided, pairs))


def _step_to(entry: Entry, values: Mapping[str, Any], number: int, film: dict[str, Any] | None) -> Step:
    """The step that leads from changed values back to an entry as it is."""
    old, new = entry.faces, values.get("faces", entry.faces)
    at = _alike(old, new)
    tail = min(_alike(old[::-1], new[::-1]), len(old) - at, len(new) - at)
    drop, faces = len(new) - at - tail, old[at : len(old) - tail]
    return Step(
        number=number, at=at, drop=drop, faces=faces, controls=entry.controls, reviewed=entry.reviewed, film=film
    )


# -- the folder --------------------------------------------------------------------------------------------------------


class Review:
    """A review on disk. Every change is written before it counts; several threads may use it.

    Args:
        folder: private folder; made if it is not there. An InputError where it is in use, damaged, or not ours.
        root: folder of photos and films; None: files are only dropped into the page.
        output: folder for the results.
    """

    def __init__(self, folder: Path, root: Path | None, output: Path) -> None:
        self.folder, self.root, self.output, self.lock = folder, root, output, threading.RLock()
        folders.make_private_folder(folder, "ui")
        with ExitStack() as held:
            held.enter_context(hold(folder))
            self.settings = self._load()
            self._items: dict[str, Item] = {}
            for path in sorted(folder.glob("item-*.json")):
                item = checked(Item, check_schema(read_json(path), ITEM_SCHEMA, str(path)), str(path))
                again = {"state": "waiting"} if item.state == "working" else {}
                self._items[item.id] = item.model_copy(update=again)
            self._held = held.pop_all()
        self._steps = max((step.number for entry in self._entries for step in (*entry.past, *entry.future)), default=0)
        # Changes the project of a film by its number, and returns what leads back.
        self.change_film: Callable[[str, Mapping[str, Any]], dict[str, Any]] = lambda number, film: {}
        self.revision = 1
        self._revisions = dict.fromkeys(self._items, 1)

    def _load(self) -> Settings:
        path, root = self.folder / "ui.json", None if self.root is None else str(self.root)
        if not path.exists():
            settings = Settings(seed=secrets.randbits(64), root=root, output=str(self.output))
            self._write("ui.json", settings)
            return settings
        found = checked(Settings, check_schema(read_json(path), SCHEMA, str(path)), str(path))
        if found.root != root:
            was = found.root or "dropped files"
            raise InputError(f"{self.folder}: is the review of {was}; choose another --project")
        return found

    def close(self) -> None:
        """Let go of the folder."""
        self._held.close()

    @property
    def _entries(self) -> list[Settings | Item]:
        return [self.settings, *self._items.values()]

    def _entry(self, number: str) -> Settings | Item:
        return self[number] if number else self.settings

    def controls_of(self, item: Item) -> Controls:
        """Those of the file, else those of the review."""
        return item.controls or self.settings.controls

    # -- decisions ----------------------------------------------------------------------------------------------------

    def next_step(self) -> int:
        """The number of an action, for `decide`."""
        with self.lock:
            self._steps += 1
            return self._steps

    def decide(self, number: str, step: int | None = None, film: dict[str, Any] | None = None, **values: Any) -> None:
        """Change `faces`, `controls` or `reviewed` so that it can be undone: of a file, or ("") of the settings.

        `step` is the number of the action, where it changes more than this; `film` as of a `Step`.
        """
        with self.lock:
            entry = self._entry(number)
            past = (*entry.past, _step_to(entry, values, self.next_step() if step is None else step, film))[-STEPS:]
            if number and set(values) != {"reviewed"}:
                values["changed"] = True
            self.change(number, **values, past=past, future=())

    def undoable(self, number: str | None = None, *, redo: bool = False) -> int:
        """The number of the action that `undo` takes back next, or does again until something else is decided; or 0."""
        with self.lock:
            entries = self._entries if number is None else [self._entry(number)]
            last = max((entry.past[-1].number for entry in entries if entry.past), default=0)
            first = min((entry.future[-1].number for entry in entries if entry.future), default=0)
            return last if not redo else first if first > last else 0

    def undo(self, number: str | None = None, *, redo: bool = False) -> list[str]:
        """Take back the last action on a file, or (None) on whatever files, or do it again.

        All that this action changed goes back. Returns these files, "" for the settings.
        """
        with self.lock:
            action = self.undoable(number, redo=redo)
            if not action:
                name = "" if number is None else f"{self[number].name}: "
                raise InputError(f"{name}there is nothing to {'redo' if redo else 'undo'}")
            changed = []
            for entry in self._entries:
                while (steps := entry.future if redo else entry.past) and steps[-1].number == action:
                    self._step_back(entry, redo)
                    changed.append(entry.id)
                    entry = self._entry(entry.id)
            return changed

    def _step_back(self, entry: Settings | Item, redo: bool) -> None:
        source, target = (entry.future, entry.past) if redo else (entry.past, entry.future)
        step = source[-1]
        end = step.at + step.drop
        shown = {face.box: face.draws for face in entry.faces[step.at : end]}
        back = (  # faces that were drawn meanwhile stay at hand
            face.model_copy(update={"draws": tuple(dict.fromkeys((*face.draws, *shown.get(face.box, ()))))})
            for face in step.faces
        )
        faces = (*entry.faces[: step.at], *back, *entry.faces[end:])
        values: dict[str, Any] = {"faces": faces, "controls": step.controls, "reviewed": step.reviewed}
        film = None if step.film is None else self.change_film(entry.id, step.film)
        target = *target, _step_to(entry, values, step.number, film)
        if isinstance(entry, Item) and (step.film or (faces, step.controls) != (entry.faces, entry.controls)):
            values["changed"] = True
        past, future = (target, source[:-1]) if redo else (source[:-1], target)
        self.change(entry.id, **values, past=past, future=future)

    # -- files --------------------------------------------------------------------------------------------------------

    def items(self) -> list[Item]:
        """All files, by name: the same order after every start."""
        with self.lock:
            return sorted(self._items.values(), key=lambda item: (item.name, item.id))

    def __getitem__(self, number: str) -> Item:
        with self.lock:
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

    def change(self, number: str, *, quiet: bool = False, **values: Any) -> None:
        """Change fields of an entry on disk, then here, if it can be written; `quiet`: not on disk."""
        with self.lock:
            entry = self._entry(number)
            tree = {**entry.model_dump(by_alias=True), **values}
            self.take(checked(type(entry), tree, number or "the settings"), quiet=quiet)

    def take(self, entry: Settings | Item, *, quiet: bool = False) -> None:
        """Take a new entry, or one in place of another; see `change`."""
        with self.lock:
            if not quiet:
                self._write(f"item-{entry.id}.json" if entry.id else "ui.json", entry)
            if isinstance(entry, Item):
                self._items[entry.id] = entry
            else:
                self.settings = entry
            self.touch(entry.id)

    def add_folder(self, files: Iterable[tuple[str, bool]]) -> list[Item]:
        """Take files below the root: place, and whether each is a film. Returns the new ones, which are not written."""
        added = []
        with self.lock:
            for place, film in files:
                number = hashlib.sha256(os.fsencode(place)).hexdigest()[:10]
                if number not in self._items:
                    added.append(Item(id=number, kind="film" if film else "photo", name=place, place=place))
                    self.take(added[-1], quiet=True)
        return added

    def remove(self, number: str) -> None:
        """Forget a file that was dropped, with its copy and all that was decided."""
        with self.lock:
            item = self[number]
            if item.upload is None:
                raise InputError(f"{item.name}: lies in the opened folder and stays in the list")
            self._items.pop(number)
            self._revisions.pop(number, None)
            self.revision += 1
            for path in (self.folder / item.upload, *self.folder.glob(f"*-{number}*.j*")):
                path.unlink(missing_ok=True)
            if self.film_folder(number).is_dir():
                folders.remove_folder(self.film_folder(number))

    def source(self, item: Item) -> Path:
        """The file itself; never one outside of the opened folder. An InputError where it is gone."""
        path = self.folder / (item.upload or "")
        if self.root is not None and item.place is not None:
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

    def picture(self, kind: Literal["thumb", "before", "after", "result"], number: str) -> Path:
        """Where a picture for the page is, if it was made."""
        return self.folder / f"{kind}-{number}.jpg"

    def stamp(self, item: Item) -> str:
        """Size and time of a file; "" where it is gone."""
        with suppress(OSError, InputError):
            status = self.source(item).stat()
            return f"{status.st_size}:{status.st_mtime_ns}"
        return ""

    def draw_file(self, number: str, basis: tuple[Any, ...]) -> Path:
        """Where the picture of a face as it was drawn once is, by what it was drawn from."""
        return self.folder / f"draw-{number}-{hashlib.sha256(repr(basis).encode()).hexdigest()[:16]}.jpg"

    def film_folder(self, number: str) -> Path:
        """Where a film's project is, if it was analysed."""
        return self.folder / f"film-{number}"

    def write_file(self, name: str, data: bytes) -> None:
        """A private file of the folder."""
        with atomic_write(self.folder / name, overwrite=True, mode=0o600) as file:
            file.write(data)

    def _write(self, name: str, document: Strict) -> None:
        self.write_file(name, to_text(document.model_dump(mode="json", by_alias=True)).encode(errors="replace"))


def free_name(folder: Path, name: str, suffix: str) -> Path:
    """A path in a folder that no file has: `name.suffix`, else `name-2.suffix` and so on; its side-car is free, too."""
    target = folder / name
    stems = (f"{target.stem}-{number}" if number > 1 else target.stem for number in count(1))
    paths = (target.with_name(f"{stem}{suffix}") for stem in stems)
    return next(path for path in paths if not (os.path.lexists(path) or os.path.lexists(sidecar_path(path))))
