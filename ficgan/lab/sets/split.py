"""Who is background, attacker and evaluation: nobody is in two parts, and the same seed gives the same parts."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import generator
from ficgan.errors import InputError, UsageError

__all__ = ["PARTS", "Split", "check", "split", "written"]

Rows = NDArray[np.int64]
PARTS = ("background", "attacker", "gallery", "probe", "unused")
_PRIORITY = ("gallery", "probe", "attacker", "background")  # Of equal pictures the first in this order stays


@dataclass(frozen=True)
class Split:
    """Rows of a set, each in one part. The manifest says how it was drawn and what each part holds, with hashes."""

    background: Rows  # images of people that anonymisers may mix in
    attacker: Rows  # images of people from whom attackers learn
    gallery: Rows  # enrolled images of the people of the evaluation
    probe: Rows  # the other images of the same people
    unused: Rows
    manifest: dict[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """sha256 of who and what is in which part."""
        return str(self.manifest["sha256"])


def split(
    people: NDArray[np.integer] | Sequence[int],
    *,
    background: int = 200,
    attacker: int = 4500,
    test: int = 300,
    enrolment: float = 0.75,
    seed: int = 0,
    names: Sequence[str] | None = None,
) -> Split:
    """Draw people for background, attacker and evaluation from those with the most images (Fantômas, §7.3, §7.4).

    Args:
        people: [N], one number per person, −1 where unknown: those images stay unused.
        background, attacker, test: how many people of each, scaled down alike where there are too few.
        enrolment: share of each evaluated person's images that is enrolled, between 0 and 1.
    """
    people = np.asarray(people, np.int64).reshape(-1)
    wanted = {"background": background, "attacker": attacker, "test": test}
    for part, count in wanted.items():
        least = 2 if part == "test" else 0
        if count < least:
            raise UsageError(f"{part} is {count} people; give at least {least}")
    if not 0 < enrolment < 1:
        raise UsageError(f"enrolment is {enrolment}; give the share of images that is enrolled, between 0 and 1")
    if names is not None and len(names) != len(people):
        raise UsageError(f"{len(people)} images came with {len(names)} names; give one for each")
    who, counts = np.unique(people[people >= 0], return_counts=True)
    sizes, scale = _sizes(wanted, len(who), int((counts >= 2).sum()))
    drawn = _draw(who, counts, sizes, seed)
    sides = [np.flatnonzero(np.isin(people, drawn[part])) for part in ("background", "attacker")]
    gallery, probe = _enrol(drawn["test"], people, enrolment, seed)
    unused = np.setdiff1d(np.arange(len(people)), np.concatenate([*sides, gallery, probe]))
    how = {
        "seed": seed,
        "enrolment": enrolment,
        "wanted": wanted,
        "scale": scale,
        "people_with_one_image": int((counts == 1).sum()),
        "images_of_unknown_people": int((people < 0).sum()),
    }
    return written(Split(sides[0], sides[1], gallery, probe, unused), people, how, names)


def written(
    split: Split, people: NDArray[np.integer], how: dict[str, Any], names: Sequence[str] | None = None
) -> Split:
    """A split with its manifest: `how` it was made, then what is in it."""
    parts: dict[str, dict[str, Any]] = {}
    for part in PARTS:
        rows = getattr(split, part)
        lines = [f"{people[row]}\0{names[row] if names is not None else row}" for row in rows]
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        known = people[rows][people[rows] >= 0]
        parts[part] = {"people": len(np.unique(known)), "images": len(rows), "sha256": digest}
    # What was drawn, not what was asked for: two ways to one division have one hash.
    total = hashlib.sha256("".join(parts[part]["sha256"] for part in PARTS).encode()).hexdigest()
    return replace(split, manifest={**how, "parts": parts, "sha256": total})


def _sizes(wanted: dict[str, int], people: int, several: int) -> tuple[dict[str, int], float]:
    if several < 2:
        raise InputError(
            f"{several} of {people} people have two images or more; an evaluation needs at least 2 such people, "
            "each with an image to enrol and another to look for"
        )
    factor = min(1.0, people / sum(wanted.values()), several / wanted["test"])
    # No part vanishes by scaling alone; what rounding up has added is taken from the largest part.
    sizes = {part: max(min(count, 1), math.floor(count * factor + 1e-9)) for part, count in wanted.items()}
    sizes["test"] = max(2, sizes["test"])
    largest = max(("background", "attacker"), key=lambda part: sizes[part])
    sizes[largest] -= min(sizes[largest], max(0, sum(sizes.values()) - people))
    if sum(sizes.values()) > people or sizes["test"] > several:
        raise InputError(
            f"{sum(sizes.values())} people are needed, {sizes['test']} of them with two images or more, but there "
            f"are {people} and {several}; ask for fewer"
        )
    return sizes, factor


def _draw(who: Rows, counts: Rows, sizes: dict[str, int], seed: int) -> dict[str, Rows]:
    pool = np.sort(np.argsort(-counts, kind="stable")[: sum(sizes.values())])
    shuffled = generator(seed, "split").permutation(pool)
    test = shuffled[counts[shuffled] >= 2][: sizes["test"]]
    rest = shuffled[~np.isin(shuffled, test)]
    background, attacker, _ = np.split(rest, np.cumsum([sizes["background"], sizes["attacker"]]))
    drawn = {"background": background, "attacker": attacker, "test": test}
    return {part: np.sort(who[index]) for part, index in drawn.items()}


def _enrol(who: Rows, people: Rows, enrolment: float, seed: int) -> tuple[Rows, Rows]:
    gallery, probe = [], []
    for person in who.tolist():
        rows = generator(seed, "enrolment", person).permutation(np.flatnonzero(people == person))
        count = min(max(1, math.floor(enrolment * len(rows) + 0.5)), len(rows) - 1)
        gallery.append(rows[:count])
        probe.append(rows[count:])
    return np.sort(np.concatenate(gallery)), np.sort(np.concatenate(probe))


# -- refusing what would make figures look better than they are -------------------------------------------------------


def check(
    split: Split,
    people: NDArray[np.integer] | Sequence[int],
    *,
    names: Sequence[str] | None = None,
    digests: Sequence[str] | None = None,
) -> Split:
    """Refuse people in two parts, and remove pictures (equal `digests`) that stand in two parts or twice.

    Gallery comes before probe, attacker and background. People who lose their last enrolled or probe image are left
    out.
    """
    people = np.asarray(people, np.int64).reshape(-1)
    for what, given in (("names", names), ("digests", digests)):
        if given is not None and len(given) != len(people):
            raise UsageError(f"{len(people)} images came with {len(given)} {what}; give one for each")
    shown = list(names) if names is not None else [f"image {row}" for row in range(len(people))]
    _check_rows(split, people, shown)
    _check_people(split, people, shown)
    if digests is not None:
        split = _without_duplicates(split, people, names, digests)
    _check_both_sides(split, people)
    return split


def _check_rows(split: Split, people: Rows, shown: Sequence[str]) -> None:
    seen: dict[int, str] = {}
    for part in PARTS:
        rows = getattr(split, part)
        if len(rows) and (rows.min() < 0 or rows.max() >= len(people)):
            raise InputError(f"the {part} has rows beyond the {len(people)} images of the set; draw the split again")
        for row in rows.tolist():
            if row in seen:
                both = f"twice in the {part}" if seen[row] == part else f"in the {seen[row]} and in the {part}"
                raise InputError(f"{shown[row]} is {both}; each image may be in one part only")
            seen[row] = part
        unknown = rows[people[rows] < 0]
        if part != "unused" and len(unknown):
            raise InputError(f"nobody knows who {shown[unknown[0]]} in the {part} shows; leave such images out")


def _check_people(split: Split, people: Rows, shown: Sequence[str]) -> None:
    evaluation = np.concatenate([split.gallery, split.probe])
    where: dict[int, str] = {}
    for side, rows in (
        ("background", split.background), ("attacker's set", split.attacker), ("evaluation", evaluation)
    ):  # fmt: skip
        for row in rows.tolist():
            before = where.setdefault(int(people[row]), side)
            if before != side:
                raise InputError(
                    f"the person of {shown[row]} is in the {before} and in the {side}; each person may be in one only"
                )


def _check_both_sides(split: Split, people: Rows) -> None:
    if not len(split.gallery) or not len(split.probe):
        part = "probe" if len(split.gallery) else "gallery"
        raise InputError(f"the {part} is empty; an evaluation needs people with two images or more")
    gallery, probe = np.unique(people[split.gallery]), np.unique(people[split.probe])
    for missing, side in ((np.setdiff1d(probe, gallery), "gallery"), (np.setdiff1d(gallery, probe), "probe")):
        if len(missing):
            raise InputError(
                f"{len(missing)} people of the evaluation, such as number {missing[0]}, have no image in the {side}; "
                "people with one image cannot be evaluated"
            )


def _without_duplicates(split: Split, people: Rows, names: Sequence[str] | None, digests: Sequence[str]) -> Split:
    first: dict[str, tuple[int, str]] = {}
    gone: set[int] = set()
    for part in _PRIORITY:
        for row in getattr(split, part).tolist():
            kept, where = first.setdefault(digests[row], (row, part))
            # What attackers learn from and what is mixed in may repeat itself.
            if kept != row and not (where == part and part in ("attacker", "background")):
                gone.add(row)
    if not gone:
        return split
    count = len(gone)
    gallery, probe = (set(people[[r for r in part if r not in gone]]) for part in (split.gallery, split.probe))
    # Whoever has lost one side leaves the evaluation with the other.
    alone = set(people[split.gallery]) ^ set(people[split.probe])
    lost = (gallery ^ probe) - alone
    gone |= {int(row) for row in np.concatenate([split.gallery, split.probe]) if people[row] in lost}
    removed = np.array(sorted(gone), np.int64)
    parts: dict[str, Any] = {part: np.setdiff1d(getattr(split, part), removed) for part in _PRIORITY}
    unused = np.sort(np.concatenate([split.unused, removed]))
    how = {key: value for key, value in split.manifest.items() if key not in ("parts", "sha256")}
    how |= {"duplicates_removed": count, "people_lost_by_it": len(lost)}
    return written(replace(split, **parts, unused=unused), people, how, names)
