"""Who is background, attacker and evaluation: people in no two of them, the same for the same seed, written down."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import generator
from ficgan.errors import InputError, UsageError

__all__ = ["PARTS", "Order", "Split", "split", "written"]

Rows = NDArray[np.int64]
Order = Literal["most-images", "any"]
PARTS = ("background", "attacker", "gallery", "probe", "unused")
_EVALUATION = ("gallery", "probe")


@dataclass(frozen=True)
class Split:
    """Rows of a set, each in one part.

    Args:
        background: images of people that anonymisers may mix in.
        attacker: images of people from whom attackers learn.
        gallery: enrolled images of the people of the evaluation.
        probe: the other images of the same people.
        unused: all other rows.
        manifest: how it was drawn, how many people and images each part has, a hash of each part and of all of it;
            JSON-ready.
    """

    background: Rows
    attacker: Rows
    gallery: Rows
    probe: Rows
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
    scale: float | None = None,
    order: Order = "most-images",
    names: Sequence[str] | None = None,
) -> Split:
    """Draw people for the background set, the attacker and the evaluation.

    Args:
        people: [N], one number per person, −1 where unknown: those images stay unused.
        background, attacker, test: how many people of each.
        enrolment: share of each evaluated person's images that is enrolled, between 0 and 1; one at least is, and one
            at least is not.
        seed: of the draw.
        scale: factor for the three numbers, above 0, at most 1; None: 1, or as much less as there are too few people.
        order: "most-images": the people with the most images are taken, and drawn from; "any": all are drawn from.
        names: N names of the images, for the hashes; None: their rows.

    Raises:
        UsageError: a setting that cannot work.
        InputError: too few people, or too few with two images.

    Source: Fantômas, sections 7.3 and 7.4: 200 + 4,500 + 300 of the 5,000 people with the most images, 75:25.
    """
    people = np.asarray(people, np.int64).reshape(-1)
    wanted = {"background": background, "attacker": attacker, "test": test}
    _check(wanted, enrolment, scale, order, people, names)
    who, counts = np.unique(people[people >= 0], return_counts=True)
    sizes, scale = _sizes(wanted, scale, len(who), int((counts >= 2).sum()))
    drawn = _draw(who, counts, sizes, order, seed)
    rows_of = _rows_of(people)
    gallery, probe = _enrol(drawn["test"], rows_of, enrolment, seed)
    parts: dict[str, Any] = {
        "background": _gathered(drawn["background"], rows_of),
        "attacker": _gathered(drawn["attacker"], rows_of),
        "gallery": gallery,
        "probe": probe,
    }
    used = np.zeros(len(people), bool)
    for rows in parts.values():
        used[rows] = True
    how = {
        "seed": seed,
        "order": order,
        "enrolment": enrolment,
        "wanted": wanted,
        "scale": scale,
        "people_with_one_image": int((counts == 1).sum()),
        "images_of_unknown_people": int((people < 0).sum()),
    }
    return written(Split(**parts, unused=np.flatnonzero(~used)), people, how, names)


def written(
    split: Split, people: NDArray[np.integer], how: dict[str, Any], names: Sequence[str] | None = None
) -> Split:
    """A split with its manifest: `how` it came about, then what is in it."""
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


def _check(
    wanted: dict[str, int],
    enrolment: float,
    scale: float | None,
    order: str,
    people: Rows,
    names: Sequence[str] | None,
) -> None:
    for part, count in wanted.items():
        least = 2 if part == "test" else 0
        if count < least:
            raise UsageError(f"{part} is {count} people; give at least {least}")
    if not 0 < enrolment < 1:
        raise UsageError(f"enrolment is {enrolment}; give the share of images that is enrolled, between 0 and 1")
    if scale is not None and not 0 < scale <= 1:
        raise UsageError(f"scale is {scale}; give a factor above 0 and at most 1")
    if order not in get_args(Order):
        raise UsageError(f"order is {order!r}; use one of {', '.join(get_args(Order))}")
    if names is not None and len(names) != len(people):
        raise UsageError(f"{len(people)} images came with {len(names)} names; give one for each")


def _sizes(wanted: dict[str, int], scale: float | None, people: int, several: int) -> tuple[dict[str, int], float]:
    """How many people each part gets: as wanted, or all of them smaller by one factor."""
    if several < 2:
        raise InputError(
            f"{several} of {people} people have two images or more; an evaluation needs at least 2 such people, "
            "each with an image to enrol and another to look for"
        )
    total = sum(wanted.values())
    factor = min(1.0, people / total, several / wanted["test"]) if scale is None else scale
    sizes = {part: _scaled(count, factor) for part, count in wanted.items()}
    sizes["test"] = max(2, sizes["test"])
    if scale is None:  # what rounding up has added is taken from the largest part
        largest = max(("background", "attacker"), key=lambda part: sizes[part])
        sizes[largest] -= min(sizes[largest], max(0, sum(sizes.values()) - people))
    if sum(sizes.values()) > people or sizes["test"] > several:
        raise InputError(
            f"{sum(sizes.values())} people were asked for, {sizes['test']} of them with two images or more, but there "
            f"are {people} and {several}; ask for fewer, or give a smaller scale or none"
        )
    return sizes, factor


def _scaled(count: int, factor: float) -> int:
    """A part never vanishes by scaling alone."""
    return max(min(count, 1), math.floor(count * factor + 1e-9))


def _draw(who: Rows, counts: Rows, sizes: dict[str, int], order: str, seed: int) -> dict[str, Rows]:
    """People of each part, ascending. Those of the evaluation are drawn first, among people with two images."""
    pool = np.arange(len(who))
    if order == "most-images":
        pool = np.sort(np.argsort(-counts, kind="stable")[: sum(sizes.values())])
    shuffled = generator(seed, "split").permutation(pool)
    test = shuffled[counts[shuffled] >= 2][: sizes["test"]]
    rest = shuffled[~np.isin(shuffled, test)]
    ends = sizes["background"], sizes["background"] + sizes["attacker"]
    drawn = {"background": rest[: ends[0]], "attacker": rest[ends[0] : ends[1]], "test": test}
    return {part: np.sort(who[index]) for part, index in drawn.items()}


def _rows_of(people: Rows) -> dict[int, Rows]:
    order = np.argsort(people, kind="stable")
    who, starts = np.unique(people[order], return_index=True)
    return dict(zip(who.tolist(), np.split(order, starts[1:]), strict=True)) if len(who) else {}


def _gathered(who: Rows, rows_of: dict[int, Rows]) -> Rows:
    return np.sort(np.concatenate([np.zeros(0, np.int64), *(rows_of[int(person)] for person in who)]))


def _enrol(who: Rows, rows_of: dict[int, Rows], enrolment: float, seed: int) -> tuple[Rows, Rows]:
    """Each person's images drawn apart; a person's draw does not depend on who else is there."""
    none = np.zeros(0, np.int64)
    gallery, probe = [none], [none]
    for person in who.tolist():
        rows = generator(seed, "enrolment", person).permutation(rows_of[person])
        count = min(max(1, math.floor(enrolment * len(rows) + 0.5)), len(rows) - 1)
        gallery.append(rows[:count])
        probe.append(rows[count:])
    return np.sort(np.concatenate(gallery)), np.sort(np.concatenate(probe))
