"""Who is shown to whom: pairs of faces, conditions in a Latin square, attention checks.

Every condition has the same number of pairs in every questionnaire, half of them of one person. Pairs lie in as many
blocks as there are conditions; questionnaire q shows block b under condition (b + q) mod C. So nobody sees a pair, or
any person, twice, everybody sees each condition equally often, and over all questionnaires each pair is seen under each
condition: what is difficult about a pair is then no merit of an anonymiser's.

Source: Fantômas, appendix D (eight pairs a method, half women and half men, half of them of one person); the square,
the matching of strangers and the attention checks are ours.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import generator
from ficgan.errors import InputError, UsageError

__all__ = ["Check", "Design", "Draft", "Pair", "Rules", "draw", "people_needed"]

GENDER = "gender"
CHECKS = ("identical", "genders")
"""The same photo twice; a woman and a man. In this order, again and again."""


@dataclass(frozen=True)
class Rules:
    """How a survey is drawn; the defaults are the paper's where it has any.

    Args:
        pairs: of a condition in a questionnaire; half of them show one person. Even, and a multiple of 4 where the set
            knows women and men.
        checks: attention checks in a questionnaire, alternately the same photo twice and a woman beside a man.
        questionnaires: None: as many as conditions, the whole square; 1: one for all, as in the paper.
        match: columns besides gender, such as "age", in which the two people of a pair of strangers agree.
        failures: most attention checks that somebody may fail.
        seed: of all that is drawn.

    Raises:
        UsageError: numbers that cannot be.

    Source: Fantômas, appendix D.
    """

    pairs: int = 8
    checks: int = 2
    questionnaires: int | None = None
    match: tuple[str, ...] = ()
    failures: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.pairs < 2 or self.pairs % 2:
            raise UsageError(f"{self.pairs} pairs cannot be half of one person, half of two; give an even number")
        if self.checks < 0 or self.seed < 0 or not 0 <= self.failures <= self.checks:
            raise UsageError("give 0 or more checks, failures from 0 to as many, and a seed of 0 or more")
        if self.questionnaires is not None and self.questionnaires < 1:
            raise UsageError(f"{self.questionnaires} questionnaires ask nobody; give at least 1")


@dataclass(frozen=True)
class Pair:
    """Two photos; `reference` stays clear, `shown` is what a condition changes.

    Args:
        number: from 0.
        block: of the square.
        reference, shown: rows of the set.
        same: whether they show one person.
        gender: of both; "" where the set does not know.
        swapped: the reference stands on the right.
    """

    number: int
    block: int
    reference: int
    shown: int
    same: bool
    gender: str
    swapped: bool


@dataclass(frozen=True)
class Check:
    """An attention check: two clear photos, rows of the set, `kind` one of `CHECKS`."""

    kind: str
    first: int
    second: int

    @property
    def same(self) -> bool:
        """The right answer."""
        return self.kind == CHECKS[0]


@dataclass(frozen=True)
class Draft:
    """A questionnaire before its pictures are made: each pair with the number of its condition, then the checks."""

    pairs: tuple[tuple[Pair, int], ...]
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Design:
    """A whole survey before its pictures are made.

    Attributes:
        pairs: all of them; each is in every questionnaire.
        checks: the same in every questionnaire.
        questionnaires: drafts.
        notes: what must be known of how it was drawn.
    """

    pairs: tuple[Pair, ...]
    checks: tuple[Check, ...]
    questionnaires: tuple[Draft, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Person:
    number: int
    gender: str
    kind: tuple[str, ...]
    reference: int
    shown: int


def people_needed(conditions: int, rules: Rules) -> int:
    """How many people a survey takes: one for each pair of one person, two for each of strangers, and the checks."""
    return conditions * rules.pairs * 3 // 2 + sum(1 + number % 2 for number in range(rules.checks))


def draw(
    people: NDArray[np.int64],
    references: NDArray[np.int64],
    shown: NDArray[np.int64],
    groups: Mapping[str, Sequence[str]],
    conditions: int,
    rules: Rules,
) -> Design:
    """Draw the pairs, blocks and checks of a survey; nobody is in two of them.

    Args:
        people: [N], one number per row of the set.
        references: rows of photos that stay clear.
        shown: rows of other photos of the same people, which conditions change.
        groups: column → N texts, "" where unknown.
        conditions: how many, at least 1.
        rules: sizes and seed.

    Raises:
        UsageError: numbers that cannot be balanced, or more questionnaires than conditions.
        InputError: too few people, or an unknown column.
    """
    asked = rules.questionnaires or conditions
    if asked > conditions:
        raise UsageError(f"{conditions} conditions make {conditions} questionnaires, not {asked}; ask for fewer")
    for column in rules.match:
        if column not in groups:
            raise InputError(f"the set does not know {column!r} of anybody; it has {', '.join(groups) or 'no columns'}")
    everybody, notes = _people(people, references, shown, groups, rules)
    genders = _genders(everybody)
    if not genders:
        notes.append("The set does not say who is a woman and who a man: strangers are not matched on gender.")
        if rules.checks > 1:
            notes.append("Attention checks are identical photos only: who always says yes passes them.")
    strata = genders or ("",)
    if rules.pairs % (2 * len(strata)):
        raise UsageError(f"{rules.pairs} pairs cannot be half women and half men; give a multiple of 4")
    each = conditions * rules.pairs // 2 // len(strata)
    pools = {one: [person for person in everybody if not genders or person.gender == one] for one in strata}
    checks = _checks(pools, rules.checks, len(strata) > 1)
    found: dict[tuple[str, bool], list[tuple[_Person, _Person]]] = {}
    for stratum, pool in pools.items():
        strangers, left = _strangers(pool, each)
        if len(strangers) < each or len(left) < each:
            raise InputError(_too_few(stratum, len(pool), 3 * each, rules))
        found[stratum, False] = strangers
        found[stratum, True] = [(person, person) for person in left[:each]]
    pairs = _blocks(found, conditions, rules.seed)
    drafts = tuple(
        Draft(tuple((pair, (pair.block + number) % conditions) for pair in pairs), checks) for number in range(asked)
    )
    return Design(pairs, checks, drafts, tuple(notes))


def _people(
    people: NDArray[np.int64], references: NDArray[np.int64], shown: NDArray[np.int64],
    groups: Mapping[str, Sequence[str]], rules: Rules,
) -> tuple[list[_Person], list[str]]:  # fmt: skip
    """Everybody with a photo on both sides, in drawn order; which photos are drawn apart for each of them."""
    rows: tuple[dict[int, list[int]], dict[int, list[int]]] = defaultdict(list), defaultdict(list)
    for some, side in zip((references, shown), rows, strict=True):
        for row in sorted(some.tolist()):
            side[int(people[row])].append(row)
    out = []
    for number in sorted(set(rows[0]) & set(rows[1]) - {-1}):
        mine = rows[0][number] + rows[1][number]
        told = {column: _usual([groups[column][row] for row in mine]) for column in (GENDER, *rules.match)
                if column in groups}  # fmt: skip
        rng = generator(rules.seed, "survey photos", number)
        first, second = (int(rng.choice(side[number])) for side in rows)
        kind = tuple(told[column] for column in rules.match)
        if all(kind):
            out.append(_Person(number, told.get(GENDER, ""), kind, first, second))
    missing = len(set(rows[0]) & set(rows[1]) - {-1}) - len(out)
    notes = [f"{missing} people of unknown {' or '.join(rules.match)} are left out."] if missing else []
    order = generator(rules.seed, "survey people").permutation(len(out))
    return [out[index] for index in order], notes


def _usual(values: Sequence[str]) -> str:
    """The most frequent known value, of equally frequent ones the first by code point."""
    counts = Counter(value for value in values if value)
    return min(counts, key=lambda value: (-counts[value], value)) if counts else ""


def _genders(everybody: Sequence[_Person]) -> tuple[str, ...]:
    """The two genders most people have; none where the set knows fewer."""
    counts = Counter(person.gender for person in everybody if person.gender)
    known = sorted(counts, key=lambda value: (-counts[value], value))[:2]
    return tuple(sorted(known)) if len(known) == 2 else ()


def _checks(pools: dict[str, list[_Person]], count: int, genders: bool) -> tuple[Check, ...]:
    """The checks; whoever is in them is taken out of the pools."""
    out = []
    for number in range(count):
        kind = CHECKS[number % 2 if genders else 0]
        sides = list(pools) if kind == CHECKS[1] else [list(pools)[number // 2 % len(pools)]]
        if not all(pools[side] for side in sides):
            raise InputError("there are too few people for the attention checks; ask for fewer pairs or methods")
        taken = [pools[side].pop() for side in sides]
        out.append(Check(kind, taken[0].reference, taken[-1].reference))
    return tuple(out)


def _strangers(pool: Sequence[_Person], wanted: int) -> tuple[list[tuple[_Person, _Person]], list[_Person]]:
    """At most `wanted` pairs of people of one kind, and everybody else, in the pool's order."""
    waiting: dict[tuple[str, ...], _Person] = {}
    pairs: list[tuple[_Person, _Person]] = []
    for person in pool:
        if len(pairs) == wanted:
            break
        other = waiting.pop(person.kind, None)
        if other is None:
            waiting[person.kind] = person
        else:
            pairs.append((other, person))
    used = {person.number for pair in pairs for person in pair}
    return pairs, [person for person in pool if person.number not in used]


def _blocks(
    found: Mapping[tuple[str, bool], list[tuple[_Person, _Person]]], conditions: int, seed: int
) -> tuple[Pair, ...]:
    """The pairs in blocks of one composition; in half of them, as nearly as can be, the reference is on the right."""
    out: list[Pair] = []
    for block in range(conditions):
        for same in (True, False):
            mine = [(gender, pair) for (gender, kind), pairs in found.items() if kind == same
                    for pair in pairs[block::conditions]]  # fmt: skip
            sides = generator(seed, "survey sides", block, same).permutation(len(mine)) + block + same
            for (gender, (first, second)), side in zip(mine, sides.tolist(), strict=True):
                out.append(Pair(len(out), block, first.reference, second.shown, same, gender, bool(side % 2)))
    return tuple(out)


def _too_few(stratum: str, there: int, wanted: int, rules: Rules) -> str:
    who = f"people of gender {stratum!r}" if stratum else "people"
    alike = f", so many alike in {' and '.join(rules.match)} that strangers can be paired" if rules.match else ""
    return (
        f"the survey needs {wanted} {who} with photos on both sides{alike}, and there are {there}; give more faces, or "
        "ask for fewer pairs or conditions"
    )
