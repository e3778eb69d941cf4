"""What side-cars say against publishing: faces to look at, what stayed as it was, and whether a page can be signed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ficgan.records import SYNTHETIC_ACTIONS, Folder, Record

# Distances below this multiple of the recogniser's threshold count as close to it.
CLOSE = 1.15
# So many of the close faces are at risk, and at most a tenth of all new ones: a flag on half of them is no flag.
MOST_CLOSE = 12
# Why a face is at risk, the worst first.
RISKS = {
    "matched": "Still recognised by the check. Do not publish.",
    "uncovered": "Not covered. Do not publish.",
    "lost": "Moved fast and was lost from sight. Look whether it is covered in the frames around.",
    "kept": "Left as found, because the operator asked for it.",
    "possible": "May be a face, and was left as found: the detector was unsure.",
    "reversible": "Blurred or pixelated. Programs exist that undo this in part.",
    "close": "Replaced. Of all new faces these are the most like their sources.",
    "doubt": "Perhaps no face, or only a part of one. Look whether another face beside it was missed.",
}
GRAVE = ("matched", "uncovered")
# What was done to a face, in words; of other ways the strength is not known here.
DONE = {
    "generated": "replaced by a new face",
    "retried": "replaced, after at least one new face was still recognised",
    "masked": "covered, because no new face was possible or good enough",
    "plain": "covered in one colour",
    "black": "covered in black",
    "solid": "covered in black",
    "region": "covered where a person drew a box",
    "kept": "left as found",
    "blurred": "blurred",
    "blur": "blurred",
    "mosaic": "pixelated",
}
_REVERSIBLE = frozenset({"blurred", "blur", "mosaic"})
_SURE = DONE.keys() - _REVERSIBLE
# What stayed of a face, "#" in place of the plural's s.
_LEFT = {
    "uncovered": "face# not covered",
    "matched": "face# still recognised",
    "possible": "place# with a possible face",
    "lost": "place# where a face was lost",
}


@dataclass(frozen=True, eq=False)
class AtRisk:
    """One face that a person should look at."""

    record: Record
    why: str  # a key of `RISKS`
    box: tuple[float, float, float, float]  # x0, y0, x1, y1, pixels of the result
    time: float | None = None  # seconds into a film; None in a photo
    detail: str = ""
    rank: float = 0.0  # the order within a kind, the worst first


def at_risk(records: Sequence[Record]) -> list[AtRisk]:
    """Faces to look at, the worst kind first, then by rank and file; of the close ones only the nearest."""
    order = list(RISKS)
    found = [face for record in records for face in _faces_of(record)]
    found.sort(key=lambda face: (order.index(face.why), face.rank, face.record.path))
    new = sum(face["action"] in SYNTHETIC_ACTIONS for record in records for face in record.faces)
    close = [face for face in found if face.why == "close"][: min(MOST_CLOSE, math.ceil(new / 10))]
    return [face for face in found if face.why != "close" or face in close]


def _faces_of(record: Record) -> Iterator[AtRisk]:
    limit = record.data.get("gate_threshold") or 0.0
    for face in record.faces:
        action, distance, rank, detail = face["action"], face.get("distance"), 0.0, ""
        if face.get("matched") is True:
            why = "matched"
        elif action == "kept":
            why, detail = "kept", str(face.get("note", ""))
        elif face.get("covered") is False:
            why = "uncovered"
        elif action in _REVERSIBLE:
            why, detail = "reversible", DONE[action]
        elif distance is not None and action in SYNTHETIC_ACTIONS and distance < CLOSE * limit:
            why, rank = "close", distance / limit
            detail = f"distance {distance:.3f}, recognised below {limit:.3f}"
        elif face.get("doubt"):
            done = "covered" if action in _SURE else f"changed by {action}"
            done = "replaced" if action in SYNTHETIC_ACTIONS else done
            why, detail = "doubt", f"{done}; {face['doubt']}"
        else:
            continue
        yield AtRisk(record, why, tuple(face["box"]), detail=detail, rank=rank)
    for place in record.data.get("possible_faces", []):
        score = place["score"]
        yield AtRisk(record, "possible", tuple(place["box"]), detail=f"score {score:.2f}", rank=-score)
    for place in record.check.get("findings", []):  # of films
        yield AtRisk(record, "matched", tuple(place["box"]), place["time"])
    for place in record.data.get("review", []):
        yield AtRisk(record, "lost", tuple(place["box"]), place["time"], str(place.get("reason", "")))


def many(number: int, what: str) -> str:
    """1 face, 2 faces: `what` has "#" in place of the plural's s."""
    return f"{number:,} {what.replace('#', '' if number == 1 else 's')}"


def _told(counts: Iterable[tuple[int, str]]) -> list[str]:
    return [many(number, what) for number, what in counts if number]


# -- one result ------------------------------------------------------------------------------------------------------


def done_to(record: Record) -> Counter[str]:
    """What was done to the faces of a photo, or to those of single frames of a film: action → number."""
    if record.is_film:
        return Counter(record.data.get("faces_by_action", {}))
    return Counter(face["action"] for face in record.faces)


def objects_in(record: Record) -> Counter[tuple[str, bool]]:
    """What is no face in a photo, or in single frames of a film: name and whether it was left as found → number."""
    if not record.is_film:
        return Counter((entry["name"], entry["action"] == "kept") for entry in record.data.get("objects", []))
    found: Counter[tuple[str, bool]] = Counter()
    for name, counts in record.data.get("objects", {}).items():
        found.update({(name, False): counts["covered"], (name, True): counts["kept"]})
    return found


def left_in(record: Record) -> list[str]:
    """What is in a result as it was in its source, or may be, a phrase each."""
    phrases: list[str] = []
    kept = _kept(record)
    if record.is_film and kept:
        why = "; ".join(map(_exemption, _exemptions(record))) or "no rule is stated"
        total = many(done_to(record).total(), "sighting#")
        phrases.append(f"{kept:,} of {total} of faces left as found: {why}")
    elif kept:
        stay = [face for face in record.faces if face["action"] == "kept"]
        notes = Counter(str(face.get("note") or "no reason is stated") for face in stay)
        phrases += [many(number, f"face# left as found: {note}") for note, number in notes.items()]
    risks = Counter(face.why for face in _faces_of(record))
    phrases += _told((risks[why], what) for why, what in _LEFT.items())
    objects = [(name, number) for (name, left), number in objects_in(record).items() if left and number]
    phrases += [f"{number:,} × {name} left as found, in a given box or time" for name, number in objects]
    return phrases if phrases or not _is_empty(record) else ["no face was found"]


def _is_empty(record: Record) -> bool:
    return not (record.data.get("tracks") if record.is_film else record.faces)


def _exemptions(record: Record) -> list[Mapping[str, Any]]:
    """The rules that kept faces of a film."""
    return [rule for rule in record.data.get("exemptions", []) if rule.get("rows")]


def _kept(record: Record) -> int:
    """Faces that were left as found: of a photo, or of single frames of a film."""
    return max(done_to(record)["kept"], sum(rule["rows"] for rule in _exemptions(record)))


def _exemption(rule: Mapping[str, Any]) -> str:
    """A rule that kept faces of a film, in words."""
    text = str(rule["rule"]).removeprefix("span on ")
    for word, end in (("from", "start"), ("to", "end")):
        text += f" {word} {rule[end]:g} s" if rule.get(end) is not None else ""
    text += f" ({rule['reason']})" if rule.get("reason") else ""
    people = [str(person) for person in rule.get("people", []) if person]
    return text + (f", people {', '.join(people)}" if people else "")


def edits_in(record: Record) -> list[str]:
    """What a person decided by hand on a result, beyond how it was asked for, a sentence each."""
    drawn = sum(face.get("score") == 0 for face in record.faces)
    return [*record.data.get("edits", []), *_told([(drawn, "area# drawn by hand.")])]


# -- all results -----------------------------------------------------------------------------------------------------


class SigningVerdict(NamedTuple):
    """Whether a page can be signed; "if": once a person has looked at what the line names, and agrees."""

    fit: Literal["yes", "if", "no"]
    line: str


def verdict(folder: Folder) -> SigningVerdict:
    """One line: fit to sign, or what stands against it."""
    faces = Counter(face.why for face in at_risk(folder.records))
    grave = [
        *((faces[why], _LEFT[why]) for why in GRAVE),
        (sum(bool(record.problem) for record in folder.records), "result# missing or not as made"),
        (len(folder.unrecorded), "file# without a record"),
        (len(folder.damaged), "record# that cannot be read"),
        (len(folder.undone), "input# without a result"),
    ]
    against, open_ = "; ".join(_told(grave)), "; ".join(_to_agree(folder, faces))
    if against:
        also = f" Also to be looked at: {open_}." if open_ else ""
        return SigningVerdict("no", f"Not fit to sign: {against}.{also}")
    if open_:
        return SigningVerdict("if", f"Fit to sign once a person has looked at this and agrees: {open_}.")
    safe = "every face that was found was replaced or covered, and the check recognised nobody"
    return SigningVerdict("yes", f"Fit to sign: {safe}.")


def _to_agree(folder: Folder, faces: Counter[str]) -> Iterator[str]:
    records = folder.records
    photos = [kept for record in records if not record.is_film and (kept := _kept(record))]
    films = [record for record in records if record.is_film and _kept(record)]
    if photos:
        yield f"{many(sum(photos), 'face#')} of {many(len(photos), 'photo#')} left as found"
    if films:
        seen = many(sum(done_to(film).total() for film in films), "sighting#")
        yield f"{sum(map(_kept, films)):,} of {seen} of faces in {many(len(films), 'film#')} left as found"
    objects = sum(n for record in records for (_, left), n in objects_in(record).items() if left)
    yield from _told(
        [
            (sum(bool(edits_in(record)) for record in records), "file# decided on by hand"),
            (objects, "object# found by a detector of the operator's, and left as found"),
            (faces["possible"], _LEFT["possible"]),
            (faces["lost"], _LEFT["lost"]),
            (sum(map(_is_weak, records)), "file# with faces blurred, pixelated or changed in an unknown way"),
            (sum(not _is_checked(record) for record in records), "file# that no recogniser checked"),
            (sum(bool(record.data.get("damage")) for record in records), "source# damaged or cut"),
            (sum(map(_is_empty, records)), "file# without any face found"),
        ]
    )
    if not folder.manifests:
        yield "no manifest, so inputs that failed are not known"


def _is_weak(record: Record) -> bool:
    actions = done_to(record)
    soft = record.data["options"].get("fallback") in ("blur", "mosaic") and actions["masked"]
    return bool(soft or actions.keys() - _SURE)


def _is_checked(record: Record) -> bool:
    """Whether a recogniser looked at the result, or there was nothing that it could have recognised."""
    if record.is_film:
        return record.check.get("checked") is True
    return record.data.get("gate") is not None or not done_to(record).keys() - (_SURE - SYNTHETIC_ACTIONS)
