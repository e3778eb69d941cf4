"""What a person decided about a film, in sentences for whoever answers for data protection."""

from __future__ import annotations

from ficgan.anonymizers.modes import shown
from ficgan.video.decisions import SpanRule
from ficgan.video.project import Project

__all__ = ["edits_of"]


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
