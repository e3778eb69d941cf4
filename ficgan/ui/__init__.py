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
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, field_validator

from ficgan.deidentify.review import Drawing, ReviewedFace
from ficgan.errors import InputError
from ficgan.files import atomic_write
from ficgan.folders import Box, Strict, Text, check_schema, checked, hold, make_private_folder, read_json, to_text
from ficgan.options import COVERS, check_cover
from ficgan.records import sidecar_path

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
    """A face of a photo, what was decided on it, and what was done to it last.

    Args:
        drawn: a person drew the box.
        possible: a weak find that a person took for a face.
        draws: numbers of the new faces that were shown, in their order.
        distance: of the new face from the source, in units of the gate's threshold; None where it was not asked.
    """

    drawn: bool = False
    possible: bool = False
    draws: tuple[NonNegativeInt, ...] = (0,)
    action: str = ""
    note: Text = ""
    doubt: Text = ""
    matched: bool = False
    distance: float | None = None

    @property
    def decided(self) -> tuple[Any, ...]:
        """What was decided on it."""
        return self.box, self.mode, self.draw, self.drawing, self.person


class PossibleFace(Strict):
    """A find that is too weak for a face; `open`: the last drawing left it as it was."""

    box: Box
    landmarks: tuple[tuple[float, float], ...] = Field(min_length=5, max_length=5)
    score: float = Field(ge=0, le=1)
    open: bool = True


class Step(Strict):
    """What one step of undo or redo gives a file back.

    Args:
        number: of the action that it belongs to; files that were changed together share it.
        at, drop: which entries of `faces` go: from where, and how many.
        faces: what comes in their place.
        controls, reviewed: of the file.
        film: what goes back to a film's project, in the form of its decisions.json; None: nothing.
    """

    number: NonNegativeInt
    at: NonNegativeInt = 0
    drop: NonNegativeInt = 0
    faces: tuple[FaceEntry, ...] = ()
    controls: Controls | None = None
    reviewed: bool = False
    film: dict[str, Any] | None = None


class Item(Strict):
    """A photo or film of the review.

    Args:
        name: of the file, for people.
        place: below the opened folder; None: it was dropped into the page, and is kept as `upload`.
        stamp: size and time of the file whose faces these are.
        controls: None: those of the review.
        people: of a film.
        draws: of a film, the numbers of the new faces that were shown, by person, or by "-track" where none is known.
        saved: name of the last result.
        changed: whether something was decided after that.
        reviewed: a person looked at it and is content.
        past, future: steps of undo and redo, the next one last.
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
    draws: dict[str, tuple[NonNegativeInt, ...]] = Field(default_factory=dict)
    saved: Text = ""
    changed: bool = False
    possible: tuple[PossibleFace, ...] = ()
    reviewed: bool = False
    past: tuple[Step, ...] = ()
    future: tuple[Step, ...] = ()


def back_to(item: Item, values: Mapping[str, Any], number: int, film: Mapping[str, Any] | None = None) -> Step:
    """The step that leads from changed values (`faces`, `controls`, `reviewed`) back to a file as it is; `film` is that
    of the step."""
    old: Sequence[FaceEntry] = item.faces
    new: Sequence[FaceEntry] = values.get("faces", old)
    few = min(len(old), len(new))
    same = [one.decided == other.decided for one, other in zip(old, new, strict=False)]
    at = same.index(False) if False in same else few
    same = [one.decided == other.decided for one, other in zip(old[at:][::-1], new[at:][::-1], strict=False)]
    tail = same.index(False) if False in same else few - at
    return Step(
        number=number,
        at=at,
        drop=len(new) - at - tail,
        faces=tuple(old[at : len(old) - tail]),
        controls=item.controls,
        reviewed=item.reviewed,
        film=None if film is None else dict(film),
    )


def restored(item: Item, step: Step) -> dict[str, Any]:
    """The values of a file that a step gives back. Faces that were drawn meanwhile stay at hand."""
    shown = {face.box: face.draws for face in item.faces[step.at : step.at + step.drop]}
    faces = [
        face.model_copy(update={"draws": tuple(dict.fromkeys((*face.draws, *shown.get(face.box, ()))))})
        for face in step.faces
    ]
    after = item.faces[step.at + step.drop :]
    return {"faces": (*item.faces[: step.at], *faces, *after), "controls": step.controls, "reviewed": step.reviewed}


# -- the folder --------------------------------------------------------------------------------------------------------

SCHEMA = "ficgan-ui-project/1"
# Steps of undo that a file keeps.
STEPS = 200


class _OldControls(Strict):
    """Settings for all files that a step of undo or redo gives back; `number` as of a `Step`."""

    number: NonNegativeInt
    controls: Controls


class _ReviewSettings(Strict):
    schema_: str = Field(SCHEMA, alias="schema")
    seed: int
    root: Text | None = None
    output: Text = ""
    controls: Controls = Controls()
    past: tuple[_OldControls, ...] = ()
    future: tuple[_OldControls, ...] = ()


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
        holders: list[_ReviewSettings | Item] = [self._settings, *self._items.values()]
        self._steps = max((step.number for one in holders for step in (*one.past, *one.future)), default=0)
        # Changes the project of a film by its number, and returns what leads back.
        self.change_film: Callable[[str, Mapping[str, Any]], Mapping[str, Any]] = lambda number, film: {}
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

    def set_controls(self, controls: Controls) -> int:
        """For all files; those of their own are dropped. Returns the number of the action."""
        with self.lock:
            number = self.next_step()
            old = _OldControls(number=number, controls=self.controls)
            self._set(controls=controls, past=(*self._settings.past, old)[-STEPS:], future=())
            for item in self.items():
                if item.controls is not None:
                    self.decide(item.id, number, controls=None)
            return number

    def _set(self, **values: Any) -> None:
        settings = self._settings.model_copy(update=values)
        self._write("ui.json", settings)
        self._settings = settings
        self.revision += 1

    # -- decisions ----------------------------------------------------------------------------------------------------

    def next_step(self) -> int:
        """The number of an action that changes several files, for `decide`."""
        with self.lock:
            self._steps += 1
            return self._steps

    def decide(
        self, number: str, step: int | None = None, film: Mapping[str, Any] | None = None, **values: Any
    ) -> Item:
        """Change `faces`, `controls` or `reviewed` of a file so that it can be undone; `film` as of a `Step`.

        Raises:
            InputError: it cannot be written; the entry is as it was.
        """
        with self.lock:
            item = self[number]
            past = (*item.past, back_to(item, values, self.next_step() if step is None else step, film))[-STEPS:]
            changed = item.changed or set(values) != {"reviewed"}
            return self.change(number, **values, past=past, future=(), changed=changed)

    def undo(self, number: str, *, redo: bool = False) -> Item:
        """Take back the last decision on a file, or (`redo`) do again what was undone last."""
        with self.lock:
            item = self[number]
            source, target = (item.future, item.past) if redo else (item.past, item.future)
            if not source:
                raise InputError(f"{item.name}: there is nothing to {'redo' if redo else 'undo'}")
            step, values = source[-1], restored(item, source[-1])
            film = None if step.film is None else self.change_film(number, step.film)
            stacks = source[:-1], (*target, back_to(item, values, step.number, film))
            past, future = stacks[::-1] if redo else stacks
            changed = bool(step.drop or step.faces or step.film) or values["controls"] != item.controls
            changed = changed or item.changed
            return self.change(number, **values, past=past, future=future, changed=changed)

    def undo_step(self, number: str, *, redo: bool = False) -> list[str]:
        """`undo` of a file, and of the files that the same action changed and nothing else since; returns them all."""
        with self.lock:
            source = "future" if redo else "past"
            steps = getattr(self[number], source)
            step = steps[-1].number if steps else None
            others = [item.id for item in self.items() if (s := getattr(item, source)) and s[-1].number == step]
            for one in [number, *(other for other in others if other != number)]:
                self.undo(one, redo=redo)
            return others

    def undoable(self, *, redo: bool = False) -> int | None:
        """The number of the action that `undo_all` takes back next; None where there is none.

        What was undone is redone in its order, until something else is decided.
        """
        with self.lock:
            holders: list[_ReviewSettings | Item] = [self._settings, *self._items.values()]
            last = max((one.past[-1].number for one in holders if one.past), default=None)
            if not redo:
                return last
            first = min((one.future[-1].number for one in holders if one.future), default=None)
            return None if first is None or (last is not None and first < last) else first

    def undo_all(self, *, redo: bool = False) -> list[str]:
        """Take back the last action on whatever files it changed, or do it again; returns the files."""
        with self.lock:
            number = self.undoable(redo=redo)
            if number is None:
                raise InputError(f"there is nothing to {'redo' if redo else 'undo'}")
            old, source = self._settings, "future" if redo else "past"
            steps, target = getattr(old, source), "past" if redo else "future"
            everywhere = bool(steps) and steps[-1].number == number
            if everywhere:
                now = _OldControls(number=number, controls=old.controls)
                back = {source: steps[:-1], target: (*getattr(old, target), now)}
                self._set(controls=steps[-1].controls, **back)
            touched = [item.id for item in self.items() if (s := getattr(item, source)) and s[-1].number == number]
            for one in touched:
                self.undo(one, redo=redo)
            return [item.id for item in self.items()] if everywhere else touched

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
            for path in (self.folder / item.upload, *self.folder.glob(f"*-{number}*.j*")):
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

    def picture(self, kind: Literal["thumb", "before", "after", "result"], number: str) -> Path:
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
