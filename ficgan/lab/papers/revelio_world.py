"""Who is who in Revelio's experiments: the reference that the attacker holds, and two kinds of people it meets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import generator
from ficgan.errors import InputError
from ficgan.lab.sets import Prepared
from ficgan.lab.sets.split import Split, written

__all__ = ["World", "divide"]

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class World:
    """Rows of a set.

    Args:
        reference: what the attacker is trained on and looks people up in.
        closed: photos of people who have others in the reference; none of these photos is in it.
        outside: photos of people of whom there is none in the reference.
    """

    reference: Rows
    closed: Rows
    outside: Rows

    def split(self, prepared: Prepared) -> Split:
        """As a bench takes it: reference is attacker and gallery at once, which is the closed world's grant."""
        faces = prepared.faces
        assert faces.people is not None
        none = np.zeros(0, np.int64)
        made = Split(none, self.reference, self.reference, self.closed, self.outside)
        return written(made, faces.people, {"world": "Revelio, section 5.1"}, faces.names)

    def facts(self, people: NDArray[np.int64]) -> dict[str, Any]:
        """Images and people of each part, JSON-ready."""
        parts = {"reference": self.reference, "closed": self.closed, "outside": self.outside}
        return {name: {"images": len(rows), "people": len(np.unique(people[rows]))} for name, rows in parts.items()}


def divide(
    prepared: Prepared,
    *,
    probes: int = 97,
    identities: int = 50,
    outside: int = 97,
    outsiders: int = 91,
    seed: int = 0,
) -> World:
    """Draw the people and photos that are attacked; all others are the attacker's reference.

    In a small set at most a quarter of the people are kept out of the reference. Of a person of the closed world at
    most half of the photos are taken away. A picture that is attacked is nowhere in the reference, whatever its name.

    Args:
        prepared: the set; people unknown (−1) are left out.
        probes, identities: photos and people of the closed world.
        outside, outsiders: photos and people outside the reference.
        seed: of the draw.

    Raises:
        InputError: too few people, or none with two photos.

    Source: Revelio, sections 5.1 and 5.5.
    """
    people = prepared.faces.people
    assert people is not None
    who, counts = np.unique(people[people >= 0], return_counts=True)
    several = who[counts >= 2]
    if len(who) < 4 or not len(several):
        raise InputError(
            f"{len(who)} people, {len(several)} of them with two photos, make no closed world and no open one; give a "
            "set of at least 4 people, some with several photos"
        )
    rng = generator(seed, "revelio")
    strangers = rng.permutation(who)[: max(1, min(outsiders, len(who) // 4))]
    known = rng.permutation(several[~np.isin(several, strangers)])[:identities]
    if not len(known):
        raise InputError("nobody with two photos is left for the closed world; give a larger set")
    closed = _rounds(people, known, probes, rng, keep=True)
    away = _rounds(people, strangers, outside, rng, keep=False)
    world = World(np.flatnonzero((people >= 0) & ~np.isin(people, strangers)), closed, away)
    return _without_twins(world, prepared)


def _rounds(people: NDArray[np.int64], of: Rows, total: int, rng: np.random.Generator, *, keep: bool) -> Rows:
    """One photo of each person, then a second one of each, until there are enough; with `keep` half stay behind."""
    stacks = [list(rng.permutation(np.flatnonzero(people == person))) for person in of]
    if keep:
        stacks = [stack[: max(1, len(stack) // 2)] for stack in stacks]
    drawn: list[int] = []
    while len(drawn) < total and any(stacks):
        for stack in stacks:
            if stack and len(drawn) < total:
                drawn.append(int(stack.pop()))
    return np.array(sorted(drawn), np.int64)


def _without_twins(world: World, prepared: Prepared) -> World:
    """The reference without the attacked photos and whatever equals one of them pixel for pixel."""
    digests = np.array(prepared.digests())
    attacked = np.concatenate([world.closed, world.outside])
    reference = world.reference[~np.isin(world.reference, attacked)]
    reference = reference[~np.isin(digests[reference], digests[attacked])]
    assert prepared.faces.people is not None
    people = prepared.faces.people
    closed = world.closed[np.isin(people[world.closed], people[reference])]
    if len(reference) < 2 or not len(closed):
        raise InputError("every photo of the people of the closed world is in the set twice; give another set")
    return replace(world, reference=reference, closed=closed)
