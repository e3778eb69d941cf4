"""What a review holds about a file: what was found in it, what was decided, and the steps that lead back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, field_validator

from ficgan.deidentify.review import Drawing, ReviewedFace
from ficgan.folders import Box, Strict, Text
from ficgan.options import COVERS, check_cover

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
