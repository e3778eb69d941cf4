"""Attribute names, groups and directions, as users write them."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import UsageError

from .gather import mean_of

Counts = Callable[[], Mapping[str, int]]
"""How many people have each attribute; asked only for an error message, as it takes time in a large bank."""


def find_attribute(name: str, names: Sequence[str], counts: Counts | None = None) -> int:
    """Index of an attribute; upper and lower case, spaces and underscores are alike.

    Args:
        name: as a user writes it.
        names: of the bank.
        counts: how many people have each, for the error message.

    Raises:
        UsageError: unknown; the sentence gives a name like it, where there is one, and the whole list.
    """
    known = {fold(n): i for i, n in enumerate(names)}
    if fold(name) in known:
        return known[fold(name)]
    if not names:
        raise UsageError(
            f"attribute {name!r} was asked for, but this bank has no attribute table; build one with labels"
        )
    near = difflib.get_close_matches(fold(name), known, n=1, cutoff=0.6)
    guess = f"did you mean {names[known[near[0]]]}? This" if near else "this"
    listed = ", ".join(f"{n} ({number})" for n, number in counts().items()) if counts else ", ".join(names)
    raise UsageError(f"unknown attribute {name!r}; {guess} bank has {listed}")


def fold(name: str) -> str:
    """The form in which attribute names are compared."""
    return name.strip().casefold().replace(" ", "_")


def parse_group(text: str, names: Sequence[str], counts: Counts | None = None) -> dict[int, bool]:
    """Read "Female,-White": comma means and, a leading minus means not.

    Returns:
        Index of the attribute → whether it must be there; empty text gives no condition.

    Raises:
        UsageError: an unknown or empty name, or one both wanted and unwanted.
    """
    wanted: dict[int, bool] = {}
    if not text.strip():
        return wanted
    for part in text.split(","):
        item = part.strip()
        absent = item.startswith("-")
        name = item[1:] if absent else item
        if not name.strip():
            raise UsageError(f"attributes {text!r} has an empty name; write for example Female,-White")
        index = find_attribute(name, names, counts)
        if wanted.setdefault(index, not absent) == absent:
            raise UsageError(f"attributes {text!r} wants {names[index]} both there and not there; nobody has that")
    return wanted


def members(attributes: NDArray[np.uint8], wanted: dict[int, bool]) -> NDArray[np.int64]:
    """Ascending indices of the people, rows of `attributes` [N,A], who meet all conditions."""
    keep = np.ones(len(attributes), bool)
    for index, present in wanted.items():
        keep &= (attributes[:, index] != 0) == present
    return np.flatnonzero(keep).astype(np.int64)


def parse_direction(text: str) -> tuple[str, float]:
    """Read "Female=0.7": an attribute and how far to go along its direction.

    Returns:
        Name and finite amount; 1 is the distance between the means of those with and without it.

    Raises:
        UsageError: another form.
    """
    name, equals, amount = text.partition("=")
    try:
        value = float(amount)
    except ValueError:
        value = math.nan
    if not equals or not name.strip() or not math.isfinite(value):
        raise UsageError(f"attribute direction {text!r} cannot be read; write a name and a number, such as Female=0.7")
    return name.strip(), value


def attribute_direction(codes: NDArray[np.float16], column: NDArray[np.uint8], name: str) -> NDArray[np.float32]:
    """mean(with) − mean(without) over the people of a bank.

    Args:
        codes: [N,512].
        column: uint8 [N], not 0 where a person has the attribute.
        name: for the error message.

    Returns:
        float32 [512], computed in float64.

    Raises:
        UsageError: everybody or nobody has it.
    """
    with_it, without = np.flatnonzero(column), np.flatnonzero(column == 0)
    if not len(with_it) or not len(without):
        raise UsageError(f"{name} has no direction in this bank: {len(with_it)} of {len(column)} people have it")
    return (mean_of(codes, with_it) - mean_of(codes, without)).astype(np.float32)


def majority(
    values: NDArray[np.uint8], owner: NDArray[np.int64], people: int, columns: Sequence[str] = ()
) -> NDArray[np.uint8]:
    """Attributes per person, from attributes per image.

    A person has an attribute that more than half of the images show. Attributes of one column exclude each other
    (Female and Male, the ages): of those a person has the one that most images show, and none where two are level.

    Args:
        values: [M,A], not 0 where the image shows the attribute.
        owner: [M], 0 … people − 1.
        people: N.
        columns: A names of columns, alike for attributes that exclude each other; empty: none do.

    Returns:
        uint8 [N,A] of 0 and 1.
    """
    pictures = np.bincount(owner, minlength=people)
    has = np.zeros((people, values.shape[1]), np.uint8)
    together: dict[str, list[int]] = {}
    for index, column in enumerate(columns or map(str, range(values.shape[1]))):
        together.setdefault(column, []).append(index)
    for group in together.values():
        shown = np.stack([np.bincount(owner[values[:, i] != 0], minlength=people) for i in group], 1)
        if len(group) == 1:
            has[:, group] = 2 * shown > pictures[:, None]
        else:
            most = shown.max(1, keepdims=True)
            has[:, group] = (shown == most) & (most > 0) & ((shown == most).sum(1, keepdims=True) == 1)
    return has
