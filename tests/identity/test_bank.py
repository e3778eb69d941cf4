"""IdentityBank: built from images, asked for groups and directions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ficgan.errors import UsageError
from ficgan.identity import IdentityBank, parse_direction


@pytest.fixture
def bank(rng) -> IdentityBank:
    attributes = rng.integers(0, 2, (60, 3)).astype(np.uint8)
    names = ("Female", "Eyeglasses", "Pale_Skin")
    return IdentityBank.from_codes(rng.normal(size=(60, 32)), np.arange(60), attributes, names, {"checkpoint": "c"})


@settings(derandomize=True)
@given(owners=st.lists(st.integers(0, 6), min_size=1, max_size=25), seed=st.integers(0, 1000))
def test_one_code_per_person(owners, seed):
    rng = np.random.default_rng(seed)
    codes = rng.normal(size=(len(owners), 4)).astype(np.float32)
    attributes = rng.integers(0, 2, (len(owners), 2))
    bank = IdentityBank.from_codes(codes, [f"p{o}" for o in owners], attributes, ("A", "B"), {"data": {"licence": "x"}})
    for row, person in enumerate(sorted(set(owners))):
        mine = [i for i, o in enumerate(owners) if o == person]
        np.testing.assert_allclose(bank.codes[row], sum(codes[i].astype(float) for i in mine) / len(mine), atol=2e-3)
        for a in range(2):
            assert bank.attributes[row, a] == (2 * sum(attributes[i, a] for i in mine) > len(mine))
    assert len(bank) == len(set(owners)) == bank.provenance["people"]
    assert bank.provenance["images"] == len(owners) and bank.provenance["data"] == {"licence": "x"}


def test_unknown_people_are_not_merged():
    codes = np.eye(6, dtype=np.float32)
    expected = np.stack([codes[4], (codes[0] + codes[2]) / 2, codes[1], codes[3], codes[5]])
    for people in ([7, -1, 7, -1, 3, -1], ["b", "", "b", "", "a", ""]):
        bank = IdentityBank.from_codes(codes, people)
        assert np.array_equal(bank.codes, expected)
        assert bank.provenance["images_of_unknown_people"] == 3 and bank.provenance["identities_known"]
    every = IdentityBank.from_codes(np.eye(4), None)
    assert np.array_equal(every.codes, np.eye(4)) and every.provenance["identities_known"] is False


def test_nobody_has_two_attributes_of_one_column():
    names, columns = ("Female", "Male", "20-29", "30-39", "40-49", "Hat"), ("g", "g", "a", "a", "a", "Hat")
    pictures = [  # of person 0, who is level in gender and hats, and of person 1, whose ages differ three to two to one
        (0, [1, 0, 1, 0, 0, 1]),
        (0, [0, 1, 1, 0, 0, 0]),
        *((1, [0, 1, 0, 1, 0, 1]) for _ in range(3)),
        *((1, [0, 1, 1, 0, 0, 1]) for _ in range(2)),
        (1, [1, 0, 0, 0, 1, 0]),
    ]
    people, rows = zip(*pictures, strict=True)
    bank = IdentityBank.from_codes(np.ones((8, 4)), people, np.array(rows), names, columns=columns)
    assert bank.attributes.tolist() == [[0, 0, 1, 0, 0, 0], [0, 1, 0, 1, 0, 1]]


def test_digest_covers_everything_that_decides_a_draw(bank):
    codes, attributes = bank.codes.copy(), bank.attributes.copy()
    codes[5, 5] += 1
    attributes[5, 1] ^= 1
    changes = [{"codes": codes}, {"attributes": attributes}, {"names": ("Male", "Eyeglasses", "Pale_Skin")}]
    changes += [{}, {"codes": bank.codes[::-1].copy()}]  # the order decides which people a draw takes
    digests = [replace(bank, **change).digest for change in changes]
    assert digests[3] == bank.digest and len(set(digests)) == 5


@pytest.mark.parametrize("text", ["", "Female", "-female", "Female,-EYEGLASSES", " pale skin , -Female"])
def test_query_equals_a_loop(bank, text):
    expected = []
    for i in range(len(bank)):
        row = {name.casefold(): bool(v) for name, v in zip(bank.names, bank.attributes[i], strict=True)}
        conditions = [c.strip().casefold().replace(" ", "_") for c in text.split(",") if c.strip()]
        if all(row[c.lstrip("-")] != c.startswith("-") for c in conditions):
            expected.append(i)
    assert bank.query(text).tolist() == expected and len(expected) > 0


def test_direction_and_counts(bank):
    column, codes = bank.attributes[:, 1] == 1, bank.codes.astype(np.float64)
    expected = codes[column].mean(0) - codes[~column].mean(0)
    np.testing.assert_allclose(bank.direction("eyeglasses"), expected, rtol=1e-5, atol=1e-6)
    assert bank.counts["Eyeglasses"] == column.sum() and parse_direction(" Pale Skin = -1 ") == ("Pale Skin", -1.0)


@pytest.mark.parametrize(
    "call",
    [
        *(lambda bank, text=text: bank.query(text) for text in ("Femal", "Female,,Hat", "Female,-", "Female,-Female")),
        lambda bank: IdentityBank(bank.codes, np.ones_like(bank.attributes), bank.names).direction("Female"),
        *(lambda bank, t=t: parse_direction(t) for t in ("Smiling", "Smiling=", "=1", "Smiling=much", "Smiling=nan")),
        lambda bank: IdentityBank.from_codes(np.ones((3, 4)), [1, 2]),
        lambda bank: IdentityBank.from_codes(np.ones((0, 4)), []),
        *(lambda bank, v=v: IdentityBank.from_codes(np.full((2, 4), v), [1, 2]) for v in (np.nan, 1e6)),
        lambda bank: IdentityBank.from_codes(np.ones((2, 4)), [1, 2], np.ones((2, 1)), ("A",), columns=("a", "b")),
        lambda bank: IdentityBank.from_codes(np.ones((2, 4)), [1, 2], np.ones((2, 2)), ("A", "a")),
        lambda bank: IdentityBank(np.ones((2, 4), np.float32), np.zeros((2, 0), np.uint8)),
        lambda bank: IdentityBank(np.full((2, 4), np.inf, np.float16), np.zeros((2, 0), np.uint8)),
    ],
)
def test_refusals(bank, call):
    with pytest.raises(UsageError):
        call(bank)
