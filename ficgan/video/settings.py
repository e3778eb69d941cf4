"""What the user asks for: the numbers of films, and who stays as they are.

Several rules may concern one face. The strongest level that has one decides:

1. track: a decision on the face's track, in all of it or in a span of time
2. person: the same on its person
3. span or box: spans on everybody, and boxes of the picture
4. default: faces are hidden; where people were selected (`only`), others who are known are kept

In a level hiding beats keeping, then the later rule wins (spans come after decisions on the whole film).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Annotated, Any, NamedTuple, Self

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

from ficgan.anonymizers.modes import HIDING, check_cover, check_mode, mode_type, shown
from ficgan.errors import UsageError
from ficgan.options import FilmSearch, Hiding, check, option
from ficgan.video.folders import Box, Strict, Text
from ficgan.video.tracks import Track

__all__ = ["BoxRule", "Decider", "Decision", "Decisions", "Exemption", "Region", "Rules", "SpanRule", "VideoSettings"]

# Seconds without a sighting after which a track ends.
PATIENCE = 1.5
# Seconds for which a cover lasts at least on either side, so that modes do not flicker.
HOLD = 0.25
# Frames rendered together.
CHUNK = 8


class Pace(NamedTuple):
    """How often the detector looks at a film, in frames, and how long its tracks reach, in seconds."""

    stride: int
    pad: float
    patience: float


@dataclass(frozen=True)
class VideoSettings(FilmSearch):
    """How a film is searched, followed, redacted and checked.

    Args:
        mode: what takes a face's place where no rule says otherwise; see `ficgan.anonymizers.modes.check_mode`.
        fallback: covers a face that cannot be generated: too small, turned away, still recognised, or in a pad, where
            the detector saw nothing.
        mask_scale: size of the replaced region.
        stride, pad, link, verify: see `FilmSearch`, and `at` for other rates than 25 frames a second.
    """

    mode: str = str(Hiding.mode)
    fallback: str = Hiding.fallback
    mask_scale: float = option(Hiding.mask_scale, "Size of the replaced region.", low=0, above=True)
    detect_size: int = option(
        960, "Longest side in pixels at which frames are searched; larger ones are reduced.", low=1
    )
    segment: float = option(
        10.0, "Seconds of film in one part; an interrupted film resumes after its last whole part.", low=0, above=True
    )

    def __post_init__(self) -> None:
        check(self)
        check_mode(self.mode)
        if self.fallback == "ficgan":
            raise UsageError("a face that cannot be generated cannot fall back to ficgan; use plain, black or another")
        object.__setattr__(self, "fallback", check_cover(self.fallback))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, as others may read them: no key of a method."""
        return {**asdict(self), "mode": shown(self.mode)}

    def at(self, rate: float | Fraction | None) -> Pace:
        """For a film of this many frames a second.

        Below 25 the detector looks as often in a second as at 25, so that nobody crosses the picture between two looks.
        Below 12.5 pads and patience are as many frames as at 12.5: there a missed look is a large part of a second.
        """
        frames = float(rate or 25)
        stride, longer = max(1, round(self.stride * min(1.0, frames / 25))), max(1.0, 12.5 / frames)
        return Pace(stride, self.pad * longer, PATIENCE * longer)


@dataclass(frozen=True, eq=False)
class Rules:
    """Exemptions and selections: photos of people who stay (`keep`) or who alone are hidden (`only`), by name; boxes in
    which faces stay, x0, y0, x1, y1 in pixels; spans from one second to another (None: an end of the film) in which all
    do.
    """

    keep: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)
    only: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)
    boxes: Sequence[tuple[float, float, float, float]] = ()
    spans: Sequence[tuple[float | None, float | None]] = ()

    def __bool__(self) -> bool:
        return bool(self.keep or self.only or self.boxes or self.spans)


# -- decisions -------------------------------------------------------------------------------------------------------

MODES: tuple[str, ...] = (*HIDING, "keep")
"""Of our own; names of anonymisers are modes, too."""


def _hiding(mode: str) -> str:
    try:
        return check_mode(mode)
    except UsageError as error:  # of a type of its own, for a mode may hold a key that no message should show
        raise PydanticCustomError("mode", "{reason}", {"reason": str(error)}) from None


Cover = Annotated[str, AfterValidator(check_cover)]
HidingMode = Annotated[str, AfterValidator(_hiding)]
Mode = Annotated[str, AfterValidator(lambda mode: mode if mode == "keep" else _hiding(mode))]

_TRACK, _PERSON, _GENERAL, _DEFAULT = range(1, 5)


class _Brief(Strict):
    """Written without what is not said."""

    @model_serializer(mode="wrap")
    def _without_gaps(self, handler: Any) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value not in (None, "", ())}


class Decision(_Brief):
    """On a person or a track; in the file a bare mode will do: `"3": "keep"`."""

    mode: Mode
    reason: Text = ""


class _Timed(Decision):
    start: float | None = Field(None, alias="from", ge=0)
    """First second; None: from the beginning."""
    end: float | None = Field(None, alias="to", gt=0)
    """Second it ends before; None: to the end."""

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


_Short = Annotated[Decision, BeforeValidator(lambda value: {"mode": value} if isinstance(value, str) else value)]


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
    start: float | None = None
    end: float | None = None
    box: tuple[float, float, float, float] | None = None
    only: frozenset[int] | None = None
    """Of the default level: the people who are selected."""

    def concerns(self, track: Track) -> bool:
        if self.only is not None and (self.mode == "keep") != (track.person > 0 and track.person not in self.only):
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

    def sentence(self) -> str:
        first = "" if self.start is None else f" from {self.start:g} s"
        last = "" if self.end is None else f" to {self.end:g} s"
        return _sentence(f"{self.name[0].upper()}{self.name[1:]}{first}{last}", self.mode, self.reason)


def _corners(box: tuple[float, ...]) -> str:
    return "[" + ", ".join(f"{value:g}" for value in box) + "]"


def _sentence(subject: str, mode: str, reason: str) -> str:
    done = "kept as it was" if mode == "keep" else f"hidden, mode {shown(mode)}"
    return f"{subject}: {done}" + (f" ({reason})." if reason else ".")


def _compile(decisions: Decisions) -> Iterator[_Compiled]:
    only = None if decisions.only is None else frozenset(decisions.only)
    yield _Compiled(_DEFAULT, decisions.default, "default", only=only)
    if only is not None:
        name = f"everybody but people {', '.join(str(person) for person in sorted(only))}"
        yield _Compiled(_DEFAULT, "keep", name, "not selected", only=only)
    for person, choice in decisions.people.items():
        yield _Compiled(_PERSON, choice.mode, f"person {person}", choice.reason, person=person)
    for track, choice in decisions.tracks.items():
        yield _Compiled(_TRACK, choice.mode, f"track {track}", choice.reason, track=track)
    for box in decisions.boxes:
        name = f"box {_corners(box.box)}"
        yield _Compiled(_GENERAL, box.mode, name, box.reason, start=box.start, end=box.end, box=box.box)
    for span in decisions.spans:
        level, subject = _GENERAL, "everybody"
        if span.track is not None:
            level, subject = _TRACK, f"track {span.track}"
        elif span.person is not None:
            level, subject = _PERSON, f"person {span.person}"
        name = f"span on {subject}"
        yield _Compiled(level, span.mode, name, span.reason, span.track, span.person, span.start, span.end)


class Decider:
    """Decisions, ready to be looked up for each face of each frame.

    `times` [frames] are seconds from the first frame on; boxes are cut to `size` before comparison.
    """

    def __init__(self, decisions: Decisions, times: ArrayLike, size: tuple[int, int] | None = None) -> None:
        self._times, self._size = np.asarray(times, np.float64), size
        # Strongest first; in a level hiding before keeping, the later before the earlier. The first that fits wins.
        later_first = reversed(list(_compile(decisions)))
        self._rules = sorted(later_first, key=lambda rule: (rule.level, rule.mode == "keep"))

    def mode_of(self, track: Track, frame: int) -> Mode:
        """What happens to a track's face in a frame."""
        return str(self.decide(track)[frame - track.first])

    def decide(self, track: Track) -> NDArray[np.str_]:
        """What happens to a track's face, for each row: str [n], wide enough for every fallback."""
        rules, winners = self._winners(track)
        modes = [rule.mode for rule in rules]
        return np.array(modes, mode_type(modes))[winners]

    def exemptions(self, tracks: Iterable[Track]) -> list[Exemption]:
        """Every rule that keeps, the strongest first, with the tracks it kept, if any."""
        kept: dict[_Compiled, list[tuple[Track, int]]] = {rule: [] for rule in self._rules if rule.mode == "keep"}
        for track in tracks if kept else ():
            rules, winners = self._winners(track)
            for rule, rows in zip(rules, np.bincount(winners, minlength=len(rules)), strict=True):
                if rows and rule.mode == "keep":
                    kept[rule].append((track, int(rows)))
        return [
            Exemption(
                rule.name,
                rule.reason,
                rule.start,
                rule.end,
                tuple(sorted(track.id for track, _ in cases)),
                tuple(sorted({track.person for track, _ in cases})),
                sum(rows for _, rows in cases),
            )
            for rule, cases in kept.items()
        ]

    def _winners(self, track: Track) -> tuple[list[_Compiled], NDArray[np.intp]]:
        """The rules that concern a track, and for each of its rows the index of the one that decides."""
        rules = [rule for rule in self._rules if rule.concerns(track)]
        times, boxes = self._times[track.first : track.last + 1], track.boxes.astype(np.float64)
        if self._size is not None:
            boxes = boxes.clip(0, (*self._size, *self._size))
        winners = np.full(len(track), len(rules) - 1)  # the default fits everything
        for index in range(len(rules) - 2, -1, -1):
            winners[rules[index].fits(times, boxes)] = index
        return rules, winners


# -- boxes that a person draws ----------------------------------------------------------------------------------------


def _region_mode(mode: str) -> str:
    if mode == "keep":
        raise ValueError("a region covers; to keep the faces inside a box write it under decisions.boxes")
    if mode not in HIDING or mode == "ficgan":
        known = ", ".join(cover for cover in HIDING if cover != "ficgan")
        raise ValueError(f"a region has no landmarks to place a new face by; use {known}")
    return mode


class _Key(Strict):
    frame: NonNegativeInt
    box: Box


class Region(_Brief):
    """A box that a person adds: covered from one frame to another, whatever the tracks and decisions say."""

    first: NonNegativeInt
    last: NonNegativeInt
    mode: Annotated[str, AfterValidator(_region_mode)] = "plain"
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

    def box_at(self, frame: int) -> NDArray[np.float32] | None:
        """x0, y0, x1, y1 in a frame, float32 [4]; None outside of the span."""
        if not self.first <= frame <= self.last:
            return None
        if self.box is not None:
            return np.asarray(self.box, np.float32)
        frames = [key.frame for key in self.keys]
        corners = np.array([key.box for key in self.keys])
        return np.array([np.interp(frame, frames, column) for column in corners.T], np.float32)


def edits_of(decisions: Decisions, regions: Iterable[Region]) -> tuple[str, ...]:
    """Every rule beyond the default, and every region, a sentence each."""
    edits = [rule.sentence() for rule in _compile(decisions) if rule.name != "default"]
    for region in regions:
        where = f"the box {_corners(region.box)}" if region.box else f"a box that moves over {len(region.keys)} places"
        edits.append(_sentence(f"In frames {region.first} to {region.last} {where}", region.mode, region.reason))
    return tuple(edits)
