"""The split of a set into background, attacker, gallery and probe."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import generator
from ficgan.errors import InputError

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

    `people` [N] are one number per person, −1 where unknown: those images stay unused. Where there are too few, all
    parts shrink alike. `enrolment` is the share of each evaluated person's images that is enrolled.
    """
    people = np.asarray(people, np.int64).reshape(-1)
    wanted = {"background": background, "attacker": attacker, "test": test}
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


def without_repeats(split: Split, people: Rows, names: Sequence[str] | None, digests: Sequence[str]) -> Split:
    """The split without pictures (equal `digests`) that stand in two parts or twice: they would flatter its figures.

    Gallery comes before probe, attacker and background. People who lose their last enrolled or probe image are left
    out.
    """
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
    lost = gallery ^ probe  # whoever has lost one side leaves the evaluation with the other
    gone |= {int(row) for row in np.concatenate([split.gallery, split.probe]) if people[row] in lost}
    if not gallery & probe:
        raise InputError("no picture of the evaluation is left that stands in one part only; give another set")
    removed = np.array(sorted(gone), np.int64)
    parts: dict[str, Any] = {part: np.setdiff1d(getattr(split, part), removed) for part in _PRIORITY}
    unused = np.sort(np.concatenate([split.unused, removed]))
    how = {key: value for key, value in split.manifest.items() if key not in ("parts", "sha256")}
    how |= {"duplicates_removed": count, "people_lost_by_it": len(lost)}
    return written(replace(split, **parts, unused=unused), people, how, names)
