"""What happens to each face of a film, and every exemption with its reason.

Several rules may concern one face. The strongest wins, in this order:

1. a time span on its track
2. its track
3. a time span on its person
4. its person
5. boxes, and time spans on everybody
6. the selection (`only`): known people who are not in it are kept
7. the default, which always hides

Among rules of the same strength hiding beats keeping, then the later one wins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveInt,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from ficgan.anonymizers.modes import COVERS, HIDING, check_mode, mode_type, shown
from ficgan.errors import UsageError
from ficgan.video.folders import Box, Strict, Text
from ficgan.video.tracks import Track

if TYPE_CHECKING:
    from ficgan.video.project import Project

__all__ = [
    "HIDING", "MODES", "BoxRule", "Decider", "Decision", "Decisions", "Exemption", "HidingMode", "Mode", "Region",
    "SpanRule", "edits_of",
]  # fmt: skip

MODES: tuple[str, ...] = (*HIDING, "keep")
"""Of our own; names of anonymisers are modes, too."""


def _hiding(mode: str) -> str:
    try:
        return check_mode(mode)
    except UsageError as error:  # of a type of its own, for a mode may hold a key that no message should show
        raise PydanticCustomError("mode", "{reason}", {"reason": str(error)}) from None


def _any_mode(mode: str) -> str:
    return mode if mode == "keep" else _hiding(mode)


HidingMode = Annotated[str, AfterValidator(_hiding)]
Mode = Annotated[str, AfterValidator(_any_mode)]

_TRACK_SPAN, _TRACK, _PERSON_SPAN, _PERSON, _GENERAL, _SELECTION, _DEFAULT = range(7)


class _Rule(Strict):
    mode: Mode
    reason: Text = ""

    @model_serializer(mode="wrap")
    def _without_gaps(self, handler: Any) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value not in (None, "")}


class Decision(_Rule):
    """On a person or a track; in the file a bare mode will do: `"3": "keep"`."""


class _Timed(_Rule):
    start: float | None = Field(None, alias="from", ge=0)
    """First second; None: from the beginning."""
    end: float | None = Field(None, alias="to", gt=0)
    """Second it ends before; None: to the end."""

    @property
    def bounds(self) -> tuple[float, float]:
        """First second, and the second it ends before; infinite where it has no bound."""
        return (-math.inf if self.start is None else self.start, math.inf if self.end is None else self.end)

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


def _bare_mode(value: Any) -> Any:
    return {"mode": value} if isinstance(value, str) else value


_Short = Annotated[Decision, BeforeValidator(_bare_mode)]


class Decisions(Strict):
    """All rules of a film."""

    default: HidingMode = "ficgan"
    only: tuple[PositiveInt, ...] | None = Field(None, min_length=1)
    """People to hide; everybody else who is known is kept. None: everybody is hidden."""
    people: dict[PositiveInt, _Short] = Field(default_factory=dict)
    tracks: dict[PositiveInt, _Short] = Field(default_factory=dict)
    spans: tuple[SpanRule, ...] = ()
    boxes: tuple[BoxRule, ...] = ()

    @property
    def modes(self) -> set[str]:
        return {rule.mode for rule in _compile(self)} - {"keep"}

    def keep_person(self, person: int, reason: str) -> Decisions:
        """The same with an exemption for a person, such as one made by a reference photo ("matches keep.jpg")."""
        return self.model_copy(update={"people": {**self.people, person: Decision(mode="keep", reason=reason)}})


@dataclass(frozen=True)
class Exemption:
    """A rule that keeps faces, and which it kept."""

    rule: str
    """What it is on, in words."""
    reason: str
    start: float | None
    end: float | None
    """Seconds; None where it has no bound."""
    tracks: tuple[int, ...]
    """Tracks of which it keeps at least one frame."""
    people: tuple[int, ...]
    """Their people."""
    rows: int
    """Faces of single frames it keeps."""

    def to_dict(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


@dataclass(frozen=True, eq=False)
class _Compiled:
    """One rule in the common form."""

    level: int
    mode: Mode
    name: str
    reason: str = ""
    track: int | None = None
    person: int | None = None
    start: float = -math.inf
    end: float = math.inf
    box: tuple[float, float, float, float] | None = None
    unless: frozenset[int] | None = None
    """Of the selection: the people it does not keep."""

    def concerns(self, track: Track) -> bool:
        if self.unless is not None:
            return track.person > 0 and track.person not in self.unless
        return self.track in (None, track.id) and self.person in (None, track.person)


class Decider:
    """Decisions, ready to be looked up for each face of each frame.

    `times` [frames] are seconds from the first frame on; boxes are cut to `size` before comparison.
    """

    def __init__(self, decisions: Decisions, times: ArrayLike, size: tuple[int, int] | None = None) -> None:
        self._times = np.asarray(times, np.float64)
        self._size = size
        # Strongest first; in a level hiding before keeping, the later before the earlier. The first that fits wins.
        written = list(enumerate(_compile(decisions)))
        written.sort(key=lambda pair: (pair[1].level, pair[1].mode == "keep", -pair[0]))
        self._rules = [rule for _, rule in written]
        self._of: dict[tuple[int, int], list[_Compiled]] = {}

    def mode_of(self, track: Track, frame: int, time: float | None = None, box: ArrayLike | None = None) -> Mode:
        """What happens to a track's face in a frame, by default at the frame's second and the track's own box."""
        rules = self._concerning(track)
        if len(rules) == 1:
            return rules[0].mode
        now = self._times[frame] if time is None else time
        for rule in rules:
            if rule.start <= now < rule.end:
                if rule.box is None:
                    return rule.mode
                place = track.boxes[frame - track.first] if box is None else np.asarray(box)
                if self._inside(rule, place[None])[0]:
                    return rule.mode
        raise AssertionError("the default fits everything")

    def decide(self, track: Track) -> NDArray[np.str_]:
        """What happens to a track's face, for each row: str [n], wide enough for every fallback."""
        rules = self._concerning(track)
        modes = [rule.mode for rule in rules]
        return np.array(modes, mode_type(modes))[self._winners(track, rules)]

    def exemptions(self, tracks: Iterable[Track]) -> list[Exemption]:
        """Every rule that keeps, the strongest first, with the tracks it kept, if any."""
        kept: dict[_Compiled, list[tuple[Track, int]]] = {rule: [] for rule in self._rules if rule.mode == "keep"}
        for track in tracks if kept else ():
            rules = self._concerning(track)
            if any(rule.mode == "keep" for rule in rules):
                for index, rows in enumerate(np.bincount(self._winners(track, rules), minlength=len(rules))):
                    if rows and rules[index].mode == "keep":
                        kept[rules[index]].append((track, int(rows)))
        return [
            Exemption(
                rule.name,
                rule.reason,
                rule.start if math.isfinite(rule.start) else None,
                rule.end if math.isfinite(rule.end) else None,
                tuple(sorted(track.id for track, _ in cases)),
                tuple(sorted({track.person for track, _ in cases})),
                sum(rows for _, rows in cases),
            )
            for rule, cases in kept.items()
        ]

    def _concerning(self, track: Track) -> list[_Compiled]:
        key = (track.id, track.person)
        if key not in self._of:
            self._of[key] = [rule for rule in self._rules if rule.concerns(track)]
        return self._of[key]

    def _winners(self, track: Track, rules: list[_Compiled]) -> NDArray[np.intp]:
        """[n] index of the rule that decides on each row."""
        times = self._times[track.first : track.last + 1]
        winners = np.full(len(track), len(rules) - 1)
        for index in range(len(rules) - 2, -1, -1):
            rule = rules[index]
            fits = (rule.start <= times) & (times < rule.end)
            if rule.box is not None:
                fits &= self._inside(rule, track.boxes)
            winners[fits] = index
        return winners

    def _inside(self, rule: _Compiled, boxes: NDArray[Any]) -> NDArray[np.bool_]:
        """[n] whether faces at boxes [n,4] are what a box rule speaks of."""
        region, places = np.asarray(rule.box, np.float64), np.asarray(boxes, np.float64)
        if self._size is not None:
            places = places.clip(0, (*self._size, *self._size))
        if rule.mode == "keep":
            low, high = places[:, :2], places[:, 2:]
        else:
            low = high = (places[:, :2] + places[:, 2:]) / 2
        inside: Any = ((low >= region[:2]) & (high <= region[2:])).all(axis=1)
        return inside


def _compile(decisions: Decisions) -> Iterable[_Compiled]:
    yield _Compiled(_DEFAULT, decisions.default, "default")
    if decisions.only is not None:
        listed = ", ".join(str(person) for person in decisions.only)
        yield _Compiled(
            _SELECTION, "keep", f"everybody but people {listed}", "not selected", unless=frozenset(decisions.only)
        )
    for person, choice in decisions.people.items():
        yield _Compiled(_PERSON, choice.mode, f"person {person}", choice.reason, person=person)
    for track, choice in decisions.tracks.items():
        yield _Compiled(_TRACK, choice.mode, f"track {track}", choice.reason, track=track)
    for region in decisions.boxes:
        corners = ", ".join(f"{value:g}" for value in region.box)
        start, end = region.bounds
        yield _Compiled(_GENERAL, region.mode, f"box [{corners}]", region.reason, start=start, end=end, box=region.box)
    for span in decisions.spans:
        level, subject = _GENERAL, "everybody"
        if span.track is not None:
            level, subject = _TRACK_SPAN, f"track {span.track}"
        elif span.person is not None:
            level, subject = _PERSON_SPAN, f"person {span.person}"
        start, end = span.bounds
        yield _Compiled(
            level, span.mode, f"span on {subject}", span.reason, span.track, span.person, start=start, end=end
        )


def _cover(mode: str) -> str:
    if mode == "keep":
        raise ValueError("a region covers; to keep the faces inside a box write it under decisions.boxes")
    if mode not in COVERS:
        raise ValueError(f"a region has no landmarks to place a new face by; use {', '.join(COVERS)}")
    return mode


class _Key(Strict):
    frame: NonNegativeInt
    box: Box


class Region(Strict):
    """A box that a person adds: covered from one frame to another, whatever the tracks and decisions say."""

    first: NonNegativeInt
    last: NonNegativeInt
    mode: Annotated[str, AfterValidator(_cover)] = "solid"
    box: Box | None = None
    """Where it does not move."""
    keys: tuple[_Key, ...] = ()
    """Where it moves: linearly between these, resting before the first and after the last."""
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

    @model_serializer(mode="wrap")
    def _without_gaps(self, handler: Any) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value not in (None, "", ())}

    def box_at(self, frame: int) -> NDArray[np.float32] | None:
        """x0, y0, x1, y1 in a frame, float32 [4]; None outside of the span."""
        if not self.first <= frame <= self.last:
            return None
        if self.box is not None:
            return np.asarray(self.box, np.float32)
        frames = [key.frame for key in self.keys]
        corners = np.array([key.box for key in self.keys])
        return np.array([np.interp(frame, frames, column) for column in corners.T], np.float32)


def edits_of(film: Project) -> tuple[str, ...]:
    """Every rule of a project beyond its default, and every region, a sentence each."""
    rules = film.decisions
    edits = []
    if rules.only is not None:
        people = ", ".join(str(person) for person in rules.only)
        edits.append(f"Only people {people} are hidden; everybody else who is known is kept.")
    edits += [_sentence(f"Person {number}", choice.mode, choice.reason) for number, choice in rules.people.items()]
    edits += [_sentence(f"Track {number}", choice.mode, choice.reason) for number, choice in rules.tracks.items()]
    edits += [_sentence(_subject(span) + _time(*span.bounds), span.mode, span.reason) for span in rules.spans]
    for box in rules.boxes:
        edits.append(_sentence(f"Faces in the box {_corners(box.box)}{_time(*box.bounds)}", box.mode, box.reason))
    for region in film.regions:
        where = f"the box {_corners(region.box)}" if region.box else f"a box that moves over {len(region.keys)} places"
        frames = f"In frames {region.first} to {region.last} {where}"
        edits.append(_sentence(frames, region.mode, region.reason))
    return tuple(edits)


def _sentence(subject: str, mode: str, reason: str) -> str:
    verb = "are" if subject.startswith("Faces") else "is"
    done = "kept as it was" if mode == "keep" else f"hidden, mode {shown(mode)}"
    return f"{subject} {verb} {done}" + (f" ({reason})." if reason else ".")


def _subject(span: SpanRule) -> str:
    if span.track is not None:
        return f"Track {span.track}"
    return "Everybody" if span.person is None else f"Person {span.person}"


def _time(start: float, end: float) -> str:
    first = "" if start == float("-inf") else f" from {start:g} s"
    last = "" if end == float("inf") else f" to {end:g} s"
    return first + last


def _corners(box: tuple[float, ...]) -> str:
    return "[" + ", ".join(f"{value:g}" for value in box) + "]"
