"""Refusing what would make figures look better than they are: people in two parts, the same picture twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.lab.sets.split import PARTS, Split, written

__all__ = ["Duplicates", "check"]

Duplicates = Literal["refuse", "remove"]
# Of equal pictures the first in this order stays.
_PRIORITY = ("gallery", "probe", "attacker", "background")


def check(
    split: Split,
    people: NDArray[np.integer] | Sequence[int],
    *,
    names: Sequence[str] | None = None,
    digests: Sequence[str] | None = None,
    duplicates: Duplicates = "refuse",
) -> Split:
    """Look a split through, whoever made it.

    Args:
        split: of `split`, or one's own.
        people: [N], the person of each row.
        names: N names, for messages and hashes.
        digests: N hashes of the pixels (`Prepared.digests`): the same picture may not stand in two parts, nor twice in
            gallery or probe. None: not looked for.
        duplicates: "refuse" them, or "remove" all but one (gallery before probe before attacker before background) and
            say so in the manifest; people who lose their last enrolled or last probe image are left out.

    Returns:
        The split; with another manifest where duplicates were removed.

    Raises:
        UsageError: arguments of different lengths, or an unknown word.
        InputError: a row or a person in two parts, an unknown person, nobody to look for, a person with images on one
            side only, or duplicates that were not to be removed.
    """
    people = np.asarray(people, np.int64).reshape(-1)
    for what, given in (("names", names), ("digests", digests)):
        if given is not None and len(given) != len(people):
            raise UsageError(f"{len(people)} images came with {len(given)} {what}; give one for each")
    if duplicates not in get_args(Duplicates):
        raise UsageError(f"duplicates is {duplicates!r}; use one of {', '.join(get_args(Duplicates))}")
    called = list(names) if names is not None else [f"image {row}" for row in range(len(people))]
    _rows(split, people, called)
    _no_leak(split, people, called)
    if digests is not None:
        split = _duplicates(split, people, names, called, digests, duplicates)
    _both_sides(split, people)
    return split


def _rows(split: Split, people: NDArray[np.int64], called: Sequence[str]) -> None:
    seen: dict[int, str] = {}
    for part in PARTS:
        rows = getattr(split, part)
        if len(rows) and (rows.min() < 0 or rows.max() >= len(people)):
            raise InputError(f"the {part} has rows beyond the {len(people)} images of the set; draw the split anew")
        for row in rows.tolist():
            if row in seen:
                both = f"twice in the {part}" if seen[row] == part else f"in the {seen[row]} and in the {part}"
                raise InputError(f"{called[row]} is {both}; each image may be in one part only")
            seen[row] = part
        unknown = rows[people[rows] < 0]
        if part != "unused" and len(unknown):
            raise InputError(f"nobody knows who {called[unknown[0]]} in the {part} shows; leave such images out")


def _no_leak(split: Split, people: NDArray[np.int64], called: Sequence[str]) -> None:
    sides = {
        "background": split.background,
        "attacker's set": split.attacker,
        "evaluation": np.concatenate([split.gallery, split.probe]),
    }
    where: dict[int, str] = {}
    for side, rows in sides.items():
        for row in rows.tolist():
            before = where.setdefault(int(people[row]), side)
            if before != side:
                raise InputError(
                    f"the person of {called[row]} is in the {before} and in the {side}; each person may be in one only"
                )


def _both_sides(split: Split, people: NDArray[np.int64]) -> None:
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


def _duplicates(
    split: Split,
    people: NDArray[np.int64],
    names: Sequence[str] | None,
    called: Sequence[str],
    digests: Sequence[str],
    duplicates: str,
) -> Split:
    first: dict[str, tuple[int, str]] = {}
    drop: list[int] = []
    pairs: list[tuple[str, str, str, str]] = []
    for part in _PRIORITY:
        for row in getattr(split, part).tolist():
            kept, where = first.setdefault(digests[row], (row, part))
            # What attackers learn from and what is mixed in may repeat itself.
            if kept != row and not (where == part and part in ("attacker", "background")):
                drop.append(row)
                pairs.append((called[kept], where, called[row], part))
    if not drop:
        return split
    if duplicates == "refuse":
        kept_name, where, name, part = pairs[0]
        raise InputError(
            f"{len(drop)} images are pixel for pixel the same as others, such as {name} in the {part} and {kept_name} "
            f"in the {where}; remove them, or ask for duplicates to be removed"
        )
    gone = set(drop)
    gallery, probe = (set(people[[r for r in part if r not in gone]]) for part in (split.gallery, split.probe))
    # Whoever has lost one side leaves the evaluation with the other.
    alone = set(people[split.gallery]) ^ set(people[split.probe])
    lost = (gallery ^ probe) - alone
    both = np.concatenate([split.gallery, split.probe])
    gone |= {int(row) for row in both if people[row] in lost}
    removed = np.array(sorted(gone), np.int64)
    parts: dict[str, Any] = {part: np.setdiff1d(getattr(split, part), removed) for part in _PRIORITY}
    unused = np.sort(np.concatenate([split.unused, removed]))
    how = {key: value for key, value in split.manifest.items() if key not in ("parts", "sha256")}
    how |= {"duplicates_removed": len(drop), "people_lost_by_it": len(lost)}
    return written(replace(split, **parts, unused=unused), people, how, names)
