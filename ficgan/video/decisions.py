"""Who is hidden and who stays: the decisions of a film, and the boxes that a person draws.

Of the rules on one face the strongest level decides: track, person, spans and boxes, default (docs/video-project.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt, model_serializer, model_validator
from pydantic_core import PydanticCustomError

from ficgan.anonymizers.modes import check_mode, mode_type, shown
from ficgan.errors import UsageError
from ficgan.folders import Box, Strict, Text
from ficgan.options import COVERS, HIDING, KIND_PARTS, OPAQUE, check_cover, parse_kind
from ficgan.video.tracks import BoxKey, Track


def _hiding(mode: str) -> str:
    try:
        return check_mode(mode)
    except UsageError as error:  # of a type of its own, for a mode may hold a key that no message should show
        raise PydanticCustomError("mode", "{reason}", {"reason": str(error)}) from None


Cover = Annotated[str, AfterValidator(check_cover)]
HidingMode = Annotated[str, AfterValidator(_hiding)]
Mode = Annotated[str, AfterValidator(lambda mode: mode if mode == "keep" else _hiding(mode))]

# The last two are the default level: people who are not selected, and all others.
_TRACK, _PERSON, _GENERAL, _UNSELECTED, _DEFAULT = range(1, 6)


class Drawing(Strict):
    """How new faces are drawn: what `Deidentifier.with_controls` takes."""

    k: int = Field(3000, ge=2)
    layer: int = Field(0, ge=0)
    psi: float | Literal["auto"] = "auto"
    attributes: Text = Field("", max_length=200)
    keep_kind: Annotated[Text, AfterValidator(parse_kind)] = ",".join(KIND_PARTS)
    fallback: Cover = "plain"

    def applied(self, engine: Any) -> Any:
        """The engine with these controls; a UsageError where its model cannot do what they ask for."""
        controls = self.model_dump(include=set(Drawing.model_fields))
        return engine.with_controls(**{**controls, "attributes": self.attributes or None})


class _Brief(Strict):
    """Written without what is not said."""

    @model_serializer(mode="wrap")
    def _without_gaps(self, handler: Any) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value not in (None, "", ())}


class Decision(_Brief):
    """On a person or a track; in the file a bare mode will do: `"3": "keep"`.

    Args:
        mode: None: as decided on others; what is said of the new face counts where one is drawn.
        draw: number of the draw; another one gives another face. None: the first.
        drawing: how the new face is drawn; None: as all others.
    """

    mode: Mode | None = None
    draw: PositiveInt | None = None
    drawing: Drawing | None = None
    reason: Text = ""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"mode": value} if isinstance(value, str) else value

    @property
    def redrawn(self) -> bool:
        """Whether it says anything of the new face."""
        return self.draw is not None or self.drawing is not None


class _Timed(_Brief):
    """From one second on and before another one; None: from the beginning, to the end."""

    mode: Mode
    reason: Text = ""
    start: float | None = Field(None, alias="from", ge=0)
    end: float | None = Field(None, alias="to", gt=0)

    @model_validator(mode="after")
    def _forwards(self) -> _Timed:
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise ValueError(f"a span from {self.start} to {self.end} s is empty; `from` must be less than `to`")
        return self


class SpanRule(_Timed):
    """On a time span, of one track, of one person, or of everybody."""

    track: PositiveInt | None = None
    person: PositiveInt | None = None

    @model_validator(mode="after")
    def _one_subject(self) -> SpanRule:
        if self.track is not None and self.person is not None:
            raise ValueError("a span is on a track or on a person, not on both")
        if self.start is None and self.end is None:
            raise ValueError("a span needs `from` or `to`, in seconds")
        return self


class BoxRule(_Timed):
    """On a region of the picture: keeps faces wholly inside it, or hides those with their centre inside."""

    mode: Mode = "keep"
    box: Box


class Decisions(Strict):
    """All rules of a film; where `only` names people to hide, everybody else who is known is kept."""

    default: HidingMode = "ficgan"
    only: tuple[PositiveInt, ...] | None = Field(None, min_length=1)
    people: dict[PositiveInt, Decision] = Field(default_factory=dict)
    tracks: dict[PositiveInt, Decision] = Field(default_factory=dict)
    spans: tuple[SpanRule, ...] = ()
    boxes: tuple[BoxRule, ...] = ()

    @property
    def modes(self) -> set[str]:
        return {rule.mode for rule in _rules(self)} - {"keep"}

    def of_face(self, track: Track) -> Decision:
        """What is said of a track's new face: by the track, or else by its person."""
        own = self.tracks.get(track.id, Decision())
        return own if own.redrawn else self.people.get(track.person, Decision())


@dataclass(frozen=True, eq=False)
class _Rule:
    """One decision in the common form; with `selected` it is on known people who are none of these."""

    level: int
    mode: Mode
    name: str
    reason: str = ""
    track: int | None = None
    person: int | None = None
    start: float | None = None
    end: float | None = None
    box: tuple[float, float, float, float] | None = None
    selected: tuple[int, ...] | None = None

    def concerns(self, track: Track) -> bool:
        if self.selected is not None and track.person in (0, *self.selected):
            return False
        return self.track in (None, track.id) and self.person in (None, track.person)

    def fits(self, times: NDArray[np.float64], boxes: NDArray[np.float64]) -> NDArray[np.bool_]:
        """[n] whether it speaks of a face at these times [n] and boxes [n,4]."""
        start, end = -math.inf if self.start is None else self.start, math.inf if self.end is None else self.end
        fits = (start <= times) & (times < end)
        if self.box is not None:
            low, high = boxes[:, :2], boxes[:, 2:]
            if self.mode != "keep":
                low = high = (low + high) / 2
            fits &= ((low >= self.box[:2]) & (high <= self.box[2:])).all(axis=1)
        return fits


def _rules(decisions: Decisions) -> Iterator[_Rule]:
    yield _Rule(_DEFAULT, decisions.default, "default")
    if decisions.only is not None:
        name = f"everybody but people {', '.join(map(str, sorted(set(decisions.only))))}"
        yield _Rule(_UNSELECTED, "keep", name, "not selected", selected=decisions.only)
    for person, choice in decisions.people.items():
        if choice.mode is not None:
            yield _Rule(_PERSON, choice.mode, f"person {person}", choice.reason, person=person)
    for track, choice in decisions.tracks.items():
        if choice.mode is not None:
            yield _Rule(_TRACK, choice.mode, f"track {track}", choice.reason, track=track)
    for box in decisions.boxes:
        name = f"box {_corners(box.box)}"
        yield _Rule(_GENERAL, box.mode, name, box.reason, start=box.start, end=box.end, box=box.box)
    for span in decisions.spans:
        level, subject = _GENERAL, "everybody"
        if span.track is not None:
            level, subject = _TRACK, f"track {span.track}"
        elif span.person is not None:
            level, subject = _PERSON, f"person {span.person}"
        yield _Rule(level, span.mode, f"span on {subject}", span.reason, span.track, span.person, span.start, span.end)


class Decider:
    """Decisions, looked up for each face of each frame, `times` [frames] in seconds; boxes are cut to `size` before.
    What is no face gets the cover of its kind (`covers`) where a rule does not name another one."""

    def __init__(
        self,
        decisions: Decisions,
        times: ArrayLike,
        size: tuple[int, int] | None = None,
        covers: Mapping[str, str] | None = None,
    ) -> None:
        self._times, self._size, self._covers = np.asarray(times, np.float64), size, covers or {}
        # Strongest first; in a level hiding before keeping, the later before the earlier. The first that fits wins.
        later_first = reversed(list(_rules(decisions)))
        self._rules = sorted(later_first, key=lambda rule: (rule.level, rule.mode == "keep"))

    def decide(self, track: Track) -> NDArray[np.str_]:
        """What happens to a track's face, for each row: str [n], wide enough for every fallback."""
        rules, winners = self._winners(track)
        modes = [rule.mode for rule in rules]
        if track.kind:
            usual, named = self._covers.get(track.kind, OPAQUE[0]), ("keep", *COVERS)
            modes = [rule.mode if rule.level != _DEFAULT and rule.mode in named else usual for rule in rules]
        return np.array(modes, mode_type(modes))[winners]

    def exemptions(self, tracks: Iterable[Track]) -> list[dict[str, Any]]:
        """Every rule that keeps, the strongest first: `rule`, `reason`, `start`, `end`, the `tracks` and `people` of
        whom it keeps a frame or more, and `rows`, the faces of single frames it keeps."""
        kept: dict[_Rule, list[tuple[Track, int]]] = {rule: [] for rule in self._rules if rule.mode == "keep"}
        for track in tracks if kept else ():
            rules, winners = self._winners(track)
            for rule, rows in zip(rules, np.bincount(winners, minlength=len(rules)), strict=True):
                if rows and rule.mode == "keep":
                    kept[rule].append((track, int(rows)))
        return [
            {
                "rule": rule.name,
                **{name: getattr(rule, name) for name in ("reason", "start", "end")},
                "tracks": sorted(track.id for track, _ in cases),
                "people": sorted({track.person for track, _ in cases}),
                "rows": sum(rows for _, rows in cases),
            }
            for rule, cases in kept.items()
        ]

    def _winners(self, track: Track) -> tuple[list[_Rule], NDArray[np.intp]]:
        """The rules that concern a track, and for each of its rows the index of the one that decides."""
        rules = [rule for rule in self._rules if rule.concerns(track)]
        times, boxes = self._times[track.first : track.last + 1], track.boxes.astype(np.float64)
        if self._size is not None:
            boxes = boxes.clip(0, (*self._size, *self._size))
        return rules, np.argmax([rule.fits(times, boxes) for rule in rules], axis=0)  # the default fits everything


# -- boxes that a person draws ----------------------------------------------------------------------------------------


def _region_mode(mode: str) -> str:
    if mode not in HIDING[1:]:
        use = f"a region has no landmarks to place a new face by; use {', '.join(HIDING[1:])}"
        raise ValueError(f"{use}, or to keep the faces inside a box decisions.boxes")
    return mode


class Region(_Brief):
    """A box that a person adds: covered from one frame to another, whatever the tracks and decisions say.

    It has a `box`, or moves: in straight lines between `keys`, resting before the first and after the last.
    """

    first: NonNegativeInt
    last: NonNegativeInt
    mode: Annotated[str, AfterValidator(_region_mode)] = "plain"
    box: Box | None = None
    keys: tuple[BoxKey, ...] = ()
    reason: Text = ""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        frames = [key.frame for key in self.keys]
        if (self.box is None) == (not frames):
            raise ValueError("a region needs either `box` or `keys`")
        if self.first > self.last:
            raise ValueError(f"a region from frame {self.first} to {self.last} is empty")
        if frames != sorted(set(frames)) or (frames and not self.first <= frames[0] <= frames[-1] <= self.last):
            raise ValueError(f"the keys' frames must ascend and lie between {self.first} and {self.last}")
        return self

    def box_at(self, frame: int) -> NDArray[np.float32] | None:
        """x0, y0, x1, y1 in a frame, float32 [4]; None outside of the span."""
        if not self.first <= frame <= self.last:
            return None
        if self.box is not None:
            return np.asarray(self.box, np.float32)
        frames, sides = [key.frame for key in self.keys], zip(*(key.box for key in self.keys), strict=True)
        return np.array([np.interp(frame, frames, side) for side in sides], np.float32)


def edits_of(decisions: Decisions, regions: Iterable[Region], tracks: Iterable[Track] = ()) -> tuple[str, ...]:
    """Every rule beyond the default, every region, and every track whose boxes were moved, a sentence each."""

    def sentence(subject: str, mode: str, reason: str) -> str:
        done = "kept as it was" if mode == "keep" else f"hidden, mode {shown(mode)}"
        return f"{subject[0].upper()}{subject[1:]}: {done}" + (f" ({reason})." if reason else ".")

    edits = []
    for rule in _rules(decisions):
        if rule.level != _DEFAULT:
            ends = [f" {word} {at:g} s" for word, at in (("from", rule.start), ("to", rule.end)) if at is not None]
            edits.append(sentence("".join([rule.name, *ends]), rule.mode, rule.reason))
    for region in regions:
        box = f"the box {_corners(region.box)}" if region.box else f"a box that moves over {len(region.keys)} places"
        where = f"in frames {region.first} to {region.last} {box}"
        edits.append(sentence(where, region.mode, region.reason))
    moved = [track for track in tracks if track.keys]
    return (*edits, *(f"Track {one.id}: its box was moved by hand, set in {len(one.keys)} frames." for one in moved))


def _corners(box: tuple[float, ...]) -> str:
    return "[" + ", ".join(f"{value:g}" for value in box) + "]"
