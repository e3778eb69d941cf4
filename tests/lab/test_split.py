"""Divisions of people: disjoint, of the sizes asked for, the same for the same seed; and pictures that stand twice."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ficgan.errors import InputError
from ficgan.lab.sets import PARTS, Split, split, without_repeats


@given(
    counts=st.lists(st.integers(1, 9), min_size=6, max_size=40),
    unknown=st.integers(0, 5),
    enrolment=st.floats(0.05, 0.95),
    seed=st.integers(0, 99),
    shuffle=st.randoms(use_true_random=False),
)
def test_invariants(counts: list[int], unknown: int, enrolment: float, seed: int, shuffle: object) -> None:
    rows = [who * 3 + 1 for who, count in enumerate(counts) for _ in range(count)] + [-1] * unknown
    shuffle.shuffle(rows)  # type: ignore[attr-defined]
    people = np.array(rows)
    images = Counter(rows)
    several = sum(images[who * 3 + 1] >= 2 for who in range(len(counts)))
    options = {"enrolment": enrolment, "seed": seed}
    if several < 2:
        with pytest.raises(InputError, match="at least 2"):
            split(people, **options)  # type: ignore[arg-type]
        return
    drawn = split(people, **options)  # type: ignore[arg-type]
    every = np.concatenate([getattr(drawn, part) for part in PARTS])
    assert sorted(every.tolist()) == list(range(len(people)))
    who = {part: set(people[getattr(drawn, part)].tolist()) for part in PARTS}
    assert who["gallery"] == who["probe"] and len(who["gallery"]) >= 2
    for one, other in (("background", "attacker"), ("background", "gallery"), ("attacker", "gallery")):
        assert not who[one] & who[other]
    assert who["unused"] & (who["background"] | who["attacker"] | who["gallery"]) == set()
    for person in who["gallery"]:
        enrolled = int((people[drawn.gallery] == person).sum())
        wanted = enrolment * images[person]
        assert 1 <= enrolled <= images[person] - 1
        assert abs(enrolled - wanted) <= 0.5 + 1e-9 or enrolled in (1, images[person] - 1)
    for part in PARTS:
        assert drawn.manifest["parts"][part]["images"] == len(getattr(drawn, part))
    again = split(people, **options)  # type: ignore[arg-type]
    assert again.manifest == drawn.manifest
    assert all(np.array_equal(getattr(again, part), getattr(drawn, part)) for part in PARTS)


def rows(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


#             0  1  2  3  4  5  6  7  8   9
FACES = rows(1, 1, 1, 2, 2, 3, 3, 4, 4, -1)
GOOD = Split(rows(5, 6), rows(7, 8), rows(0, 1, 3), rows(2, 4), rows(9), {"seed": 0})


def test_the_same_picture_in_two_parts_is_removed() -> None:
    assert without_repeats(GOOD, FACES, None, list("abcdefghij")) is GOOD
    # The probe 2 is the gallery's 0, and the attacker's 7 the probe's 4; what repeats in the background may stay.
    digests = list("abadeffehe")
    digests[5:7] = "ff"
    cleaned = without_repeats(GOOD, FACES, None, digests)
    # Person 1 has lost the only probe: the enrolled images leave too. Of person 2 one pair stays.
    assert [getattr(cleaned, part).tolist() for part in PARTS] == [[5, 6], [8], [3], [4], [0, 1, 2, 7, 9]]
    assert cleaned.manifest["duplicates_removed"] == 2 and cleaned.manifest["people_lost_by_it"] == 1
    assert cleaned.manifest["seed"] == 0 and cleaned.manifest["parts"]["gallery"]["people"] == 1
    assert without_repeats(cleaned, FACES, None, digests) is cleaned
