"""What side-cars say against publishing: faces to look at, what stayed as it was, and whether a page can be signed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ficgan.records.sidecars import Folder, Record, is_box

__all__ = [
    "GRAVE",
    "RISKS",
    "AtRisk",
    "SigningVerdict",
    "at_risk",
    "closeness",
    "count_of",
    "done_to",
    "edits_in",
    "left_in",
    "many",
    "verdict",
]

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
_SINGLE = {"blurred": "blurred", "mosaic": "pixelated"}
_NEW = frozenset({"generated", "retried"})
# What was done to a face: of other ways the strength is not known here.
_SURE = _NEW | {"masked", "plain", "black", "solid", "region", "kept"}


@dataclass(frozen=True)
class AtRisk:
    """One face that a person should look at."""

    record: Record
    why: str
    """A key of `RISKS`."""
    box: tuple[float, float, float, float]
    time: float | None = None
    """Seconds into a film; None in a photo."""
    detail: str = ""
    rank: float = 0.0
    """The order within a kind, the worst first."""


def at_risk(records: Sequence[Record]) -> list[AtRisk]:
    """Faces to look at, the worst kind first, then by rank and file; of the close ones only the nearest."""
    found: list[AtRisk] = []
    for record in records:
        found += _of_film(record) if record.is_film else _of_photo(record)
    order = list(RISKS)
    found.sort(key=lambda face: (order.index(face.why), face.rank, face.record.path))
    nearest = [face for face in found if face.why == "close"]
    left_out = set(map(id, nearest[min(MOST_CLOSE, math.ceil(len(closeness(records)) / 10)) :]))
    return [face for face in found if id(face) not in left_out]


def closeness(records: Sequence[Record]) -> list[float]:
    """Distance of each new face of the photos from its source, in units of the check's threshold, the nearest first."""
    return sorted(
        distance / limit
        for record in records
        for face in record.faces
        if face["action"] in _NEW and (distance := _distance(face)) is not None and (limit := _limit(record))
    )


def _distance(face: Mapping[str, Any]) -> float | None:
    value = face.get("distance")
    return float(value) if isinstance(value, float | int) and math.isfinite(value) else None


def _limit(record: Record) -> float:
    value = record.data.get("gate_threshold")
    return float(value) if isinstance(value, float | int) and math.isfinite(value) and value > 0 else 0.0


def _of_photo(record: Record) -> Iterator[AtRisk]:
    limit = _limit(record)
    for face in record.faces:
        action, distance, rank, detail = face["action"], _distance(face), 0.0, ""
        if face.get("matched") is True:
            why = "matched"
        elif action == "kept":
            why, detail = "kept", str(face.get("note", ""))
        elif face.get("covered") is False:
            why = "uncovered"
        elif action in _SINGLE:
            why, detail = "reversible", _SINGLE[action]
        elif distance is not None and action in _NEW and distance < CLOSE * limit:
            why, rank = "close", distance / limit
            detail = f"distance {distance:.3f}, recognised below {limit:.3f}"
        elif face.get("doubt"):
            done = "replaced" if action in _NEW else "covered" if action in _SURE else f"changed by {action}"
            why, detail = "doubt", f"{done}; {face['doubt']}"
        else:
            continue
        yield AtRisk(record, why, _box(face["box"]), detail=detail, rank=rank)
    for place, score in _possible(record):
        yield AtRisk(record, "possible", place, detail=f"score {score:.2f}", rank=-score)


def _of_film(record: Record) -> Iterator[AtRisk]:
    for why, places in (("matched", _tree(record.data, "check").get("findings")), ("lost", record.data.get("review"))):
        for place in _objects(places):
            box, time = place.get("box"), place.get("time")
            if is_box(box) and isinstance(time, float | int) and 0 <= time < 1e7:
                yield AtRisk(record, why, _box(box), float(time), str(place.get("reason", "")) if why == "lost" else "")


def _possible(record: Record) -> list[tuple[tuple[float, float, float, float], float]]:
    """Boxes and scores of the places of a photo that may be faces and stayed as they were."""
    return [
        (_box(place["box"]), float(place["score"]))
        for place in _objects(record.data.get("possible_faces"))
        if is_box(place.get("box")) and isinstance(place.get("score"), float | int)
    ]


def _box(box: Any) -> tuple[float, float, float, float]:
    x0, y0, x1, y1 = map(float, box)
    return x0, y0, x1, y1


def _objects(items: Any) -> list[Mapping[str, Any]]:
    """The objects of a list of JSON; [] where it is none."""
    return [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []


def _tree(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object within another; an empty one where there is none."""
    found = tree.get(name)
    return found if isinstance(found, Mapping) else {}


def count_of(tree: Mapping[str, Any], name: str) -> int:
    """A number of a side-car; 0 where there is none."""
    value = tree.get(name)
    return value if type(value) is int else 0


def many(number: int, noun: str) -> str:
    """1 face, 2 faces."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# -- one result ------------------------------------------------------------------------------------------------------


def done_to(record: Record) -> Counter[str]:
    """What was done to the faces of a photo, or to those of single frames of a film: action → number."""
    if not record.is_film:
        return Counter(str(face["action"]) for face in record.faces)
    counts = _tree(record.data, "faces_by_action")
    return Counter({name: number for name in counts if (number := count_of(counts, name)) > 0})


def left_in(record: Record) -> list[str]:
    """What is in a result as it was in its source, or may be, a phrase each."""
    phrases: list[str] = []
    if not record.is_film:
        uncovered = sum(face.get("covered") is False and face["action"] != "kept" for face in record.faces)
        matched = sum(face.get("matched") is True for face in record.faces)
        stay = [face for face in record.faces if face["action"] == "kept"]
        notes = Counter(str(face.get("note") or "no reason is told") for face in stay)
        phrases += [f"{many(number, 'face')} left as found: {note}" for note, number in notes.items()]
        phrases += [f"{many(uncovered, 'face')} not covered"] if uncovered else []
        phrases += [f"{many(matched, 'face')} still recognised"] if matched else []
        phrases += [f"{many(len(places), 'place')} that may be faces"] if (places := _possible(record)) else []
        return phrases if record.faces or phrases else ["no face was found"]
    if kept := _kept(record):
        why = "; ".join(map(_exemption, _exemptions(record))) or "no rule is told"
        phrases += [f"{kept:,} of {many(done_to(record).total(), 'sighting')} of faces left as found: {why}"]
    faces = Counter(face.why for face in _of_film(record))
    phrases += [f"{many(faces['matched'], 'face')} still recognised"] if faces["matched"] else []
    phrases += [f"{many(faces['lost'], 'place')} where a face was lost"] if faces["lost"] else []
    return phrases if phrases or count_of(record.data, "tracks") else ["no face was found"]


def _exemptions(record: Record) -> list[Mapping[str, Any]]:
    """The rules that kept faces of a film."""
    return [rule for rule in _objects(record.data.get("exemptions")) if count_of(rule, "rows")]


def _kept(record: Record) -> int:
    """Faces that were left as found: of a photo, or of single frames of a film."""
    return max(done_to(record)["kept"], sum(count_of(rule, "rows") for rule in _exemptions(record)))


def _exemption(rule: Mapping[str, Any]) -> str:
    """A rule that kept faces of a film, in words."""
    bounds = [
        f"{word} {value:g} s"
        for word, name in (("from", "start"), ("to", "end"))
        if isinstance(value := rule.get(name), float | int)
    ]
    people = rule.get("people")
    whom = [str(person) for person in people if person] if isinstance(people, list) else []
    reason = [f"({rule['reason']})"] if rule.get("reason") else []
    phrases = " ".join((str(rule.get("rule", "a rule")).removeprefix("span on "), *bounds, *reason))
    return f"{phrases}, people {', '.join(whom)}" if whom else phrases


def edits_in(record: Record) -> list[str]:
    """What a person decided by hand on a result, beyond how it was asked for, a sentence each."""
    edits = record.data.get("edits")
    phrases = [str(edit) for edit in edits] if isinstance(edits, list) else []
    drawn = sum(face.get("score") == 0 for face in record.faces)
    return [*phrases, f"{drawn} box{'' if drawn == 1 else 'es'} drawn by hand."] if drawn else phrases


# -- all results -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SigningVerdict:
    """Whether a page can be signed."""

    fit: Literal["yes", "if", "no"]
    """"if": once a person has looked at what the line names, and agrees."""
    line: str


def verdict(folder: Folder) -> SigningVerdict:
    """One line: fit to sign, or what stands against it."""
    against, open_ = "; ".join(_against(folder)), "; ".join(_to_agree(folder))
    if against:
        also = f" Also to be looked at: {open_}." if open_ else ""
        return SigningVerdict("no", f"Not fit to sign: {against}.{also}")
    if open_:
        return SigningVerdict("if", f"Fit to sign once a person has looked at this and agrees: {open_}.")
    safe = "every face that was found was replaced or covered, and the check recognised nobody"
    return SigningVerdict("yes", f"Fit to sign: {safe}.")


def _against(folder: Folder) -> Iterator[str]:
    faces = Counter(face.why for face in at_risk(folder.records))
    changed = sum(bool(record.problem) for record in folder.records)
    for number, noun, one, more in (
        (faces["matched"], "face", "is still recognised", "are still recognised"),
        (faces["uncovered"], "face", "is not covered", "are not covered"),
        (changed, "result", "is missing, or not as it was made", "are missing, or not as they were made"),
        (len(folder.unrecorded), "file", "has no record", "have no record"),
        (len(folder.damaged), "record", "cannot be read", "cannot be read"),
        (len(folder.undone), "input", "has no result", "have no result"),
    ):
        if number:
            yield f"{many(number, noun)} {one if number == 1 else more}"


def _to_agree(folder: Folder) -> Iterator[str]:
    records = folder.records
    photos = [(record, kept) for record in records if not record.is_film and (kept := _kept(record))]
    films = [(record, kept) for record in records if record.is_film and (kept := _kept(record))]
    if photos:
        yield f"{many(sum(kept for _, kept in photos), 'face')} of {many(len(photos), 'photo')} left as found"
    if films:
        kept, seen = sum(kept for _, kept in films), sum(done_to(record).total() for record, _ in films)
        yield f"{kept:,} of {many(seen, 'sighting')} of faces in {many(len(films), 'film')} left as found"
    faces = Counter(face.why for face in at_risk(records))
    for number, what in (
        (sum(bool(edits_in(record)) for record in records), "file# decided on by hand"),
        (faces["possible"], "place# that may be faces"),
        (faces["lost"], "place# where a face was lost"),
        (sum(map(_is_weak, records)), "file# with faces blurred, pixelated or changed in a way of unknown strength"),
        (sum(not _is_checked(record) for record in records), "file# that no recogniser checked"),
        (sum(bool(record.data.get("damage")) for record in records), "source# damaged or cut"),
        (sum("no face was found" in left_in(record) for record in records), "file# without any face found"),
    ):
        if number:
            yield f"{number:,} {what.replace('#', '' if number == 1 else 's')}"
    if not folder.manifests:
        yield "no manifest, so inputs that failed are not known"
    if not folder.checked:
        yield "results not compared with their records"


def _is_weak(record: Record) -> bool:
    actions = done_to(record)
    soft = _tree(record.data, "options").get("fallback") in ("blur", "mosaic") and actions["masked"]
    return bool(soft or actions.keys() - _SURE)


def _is_checked(record: Record) -> bool:
    """Whether a recogniser looked at the result, or there was nothing that it could have recognised."""
    if record.is_film:
        return _tree(record.data, "check").get("checked") is True
    return record.data.get("gate") is not None or not any(
        action in _NEW or action not in _SURE for action in done_to(record)
    )
