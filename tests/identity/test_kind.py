"""Kinds of people: groups, how they are widened, and draws that keep nothing else of a source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kinds_world import NAMES, people

from ficgan.errors import FicganError, UsageError
from ficgan.identity import IdentityBank
from ficgan.identity.kind import (
    AGES,
    CELLS,
    CLEAR,
    ETHNICITIES,
    GENDERS,
    PARTS,
    Kind,
    KindReader,
    cells_of,
    parse_parts,
)


def reading(ethnicity: dict[str, float], male: float, years: float) -> np.ndarray:
    return np.float32([*(ethnicity.get(name, 0.0) for name in ETHNICITIES), male, years])


def parts_of(kind: Kind) -> list[set[str]]:
    pairs = zip((ETHNICITIES, GENDERS, AGES), (kind.ethnicity, kind.gender, kind.age), strict=True)
    return [{name for name, there in zip(names, mask, strict=True) if there} for names, mask in pairs]


@pytest.fixture(scope="module")
def bank() -> IdentityBank:
    """Codes that are a sum of ethnic group, gender, age and chance: their cells' means are known."""
    rng = np.random.default_rng(1)
    _, (e, g, a), table = people(5000, rng)
    codes = rng.normal(0, 1, (5000, 12)).astype(np.float16)
    codes[:, 0] += (e == ETHNICITIES.index("White")) * 4
    codes[:, 1] += g * 4
    codes[:, 2] += a
    return IdentityBank(codes, table, NAMES)


def test_labels_become_cells() -> None:
    rng = np.random.default_rng(2)
    cell, _, table = people(300, rng)
    order = rng.permutation(len(NAMES))
    assert np.array_equal(cells_of(table[:, order], [NAMES[n] for n in order]), cell)
    table[0, 7:9] = 1  # of both genders: unknown
    assert cells_of(table, NAMES)[0] == -1
    assert cells_of(table[:, 1:], NAMES[1:]) is None


@pytest.mark.parametrize(
    ("read", "parts", "ethnicity", "gender", "ages"),
    [
        (reading({"White": 0.9}, 0.9, 44), PARTS, {"White"}, {"Male"}, {"40-49"}),
        (reading({"White": 0.45, "Indian": 0.4}, 0.5, 2), PARTS, {"White", "Indian"}, set(GENDERS), {"0-2"}),
        (reading({"Black": 0.9}, 0.1, 90), ("gender",), set(ETHNICITIES), {"Female"}, set(AGES)),
        (reading({"Black": 0.9}, 0.1, 90), ("ethnicity", "age"), {"Black"}, set(GENDERS), {"70+"}),
    ],
)
def test_a_reading_is_quantised(
    read: np.ndarray, parts: tuple[str, ...], ethnicity: set[str], gender: set[str], ages: set[str]
) -> None:
    kind = Kind.of(read, parts)
    assert parts_of(kind) == [ethnicity, gender, ages]
    assert kind.cells.sum() == len(ethnicity) * len(gender) * len(ages)


def test_a_kind_is_widened_in_order_and_never_over_the_gender() -> None:
    kind = Kind.of(reading({"East Asian": 1}, 0, 25))
    steps = kind.widenings()
    sizes = [larger.cells.sum() for _, larger in steps]
    assert sizes == sorted(set(sizes)) and sizes[-1] == CELLS / 2
    assert [what for what, _ in steps] == ["", *["decades"] * 5, *["ethnic groups"] * 6]
    assert steps[6][1].ethnicity[ETHNICITIES.index("Southeast Asian")]
    assert all(np.array_equal(larger.gender, kind.gender) for _, larger in steps)


@pytest.mark.parametrize(
    ("wanted", "ethnicity", "gender", "ages"),
    [
        ({"20-29": True}, {"White"}, {"Male"}, {"20-29"}),
        ({"Female": True, "White": False}, set(ETHNICITIES) - {"White"}, {"Female"}, {"50-59"}),
        ({"Indian": False, "Eyeglasses": True}, {"White"}, {"Male"}, {"50-59"}),
    ],
)
def test_attributes_change_what_they_name(
    wanted: dict[str, bool], ethnicity: set[str], gender: set[str], ages: set[str]
) -> None:
    assert parts_of(Kind.of(reading({"White": 1}, 1, 55)).within(wanted)) == [ethnicity, gender, ages]


def test_a_draw_is_of_its_kind_and_tells_nothing_else(bank: IdentityBank) -> None:
    of = {
        name: Kind.of(reading(*args))
        for name, args in {
            "man": ({"White": 1}, 1, 65),
            "woman": ({"White": 1}, 0, 65),
            "child": ({"White": 1}, 1, 6),
            "black": ({"Black": 1}, 1, 65),
        }.items()
    }
    k = 1000  # more than belong to any group: members of others are moved
    w = {name: np.mean([bank.k_same(k, str(n), kind=kind).w for n in range(8)], 0) for name, kind in of.items()}
    known = bank.kinds
    assert known is not None
    for name, kind in of.items():
        np.testing.assert_allclose(w[name], known.mean(kind), atol=0.25)
    clear = CLEAR
    np.testing.assert_allclose((w["man"] - w["woman"])[1], 4 * clear, rtol=0.15)
    np.testing.assert_allclose((w["man"] - w["black"])[0], 4 * clear, rtol=0.15)
    np.testing.assert_allclose((w["man"] - w["child"])[2], 6 * clear, rtol=0.15)
    # The same kind and key give the same draw, whatever else the reading says.
    again = bank.k_same(k, "0", kind=Kind.of(reading({"White": 0.7, "Indian": 0.3}, 0.8, 61)), psi=1)
    assert np.array_equal(again.w, bank.k_same(k, "0", kind=of["man"], psi=1).w)


def test_at_psi_1_draws_of_a_kind_spread_as_its_people_do(bank: IdentityBank) -> None:
    kind = Kind.of(reading({"Indian": 1}, 1, 35))
    drawn = np.stack([bank.k_same(200, str(n), kind=kind, psi=1).w for n in range(150)])
    np.testing.assert_allclose(drawn.std(0), 1, rtol=0.3)  # what differs between groups is gone


def test_the_record_does_not_name_the_group(bank: IdentityBank) -> None:
    known = bank.kinds
    assert known is not None
    counts = np.bincount(known.cell, minlength=CELLS)
    told = [bank.k_same(1000, "x", kind=Kind.of_cell(cell)).kind for cell in range(CELLS)]
    for one, count in zip(told, counts, strict=True):
        assert one["people_at_least"] <= count < 2 * one["people_at_least"]
    assert len({str(one) for one in told}) <= 3
    assert bank.k_same(2, "x", kind=Kind.of_cell(3)).kind["widened"] == ""


def test_attributes_bound_the_members(bank: IdentityBank) -> None:
    kind = Kind.of(reading({"White": 1}, 1, 25))
    men = int((bank.attributes[:, NAMES.index("Indian")] & bank.attributes[:, NAMES.index("Male")]).sum())
    bank.k_same(men, "x", kind=kind, attributes="Indian")
    with pytest.raises(UsageError):
        bank.k_same(men + 1, "x", kind=kind, attributes="Indian")
    with pytest.raises(UsageError):  # men and women together would do
        bank.k_same(bank.counts["Male"] + 1, "x", kind=kind)
    unknown = IdentityBank(bank.codes, bank.attributes[:, :7], NAMES[:7])
    with pytest.raises(UsageError):
        unknown.k_same(10, "x", kind=kind)


def test_parts() -> None:
    assert parse_parts("ethnicity,gender,age") == PARTS and parse_parts(" age, gender") == ("gender", "age")
    assert parse_parts("none") == parse_parts([]) == ()
    with pytest.raises(UsageError):
        parse_parts("age,height")


def test_a_reader_is_a_small_network(tmp_path: Path, rng: np.random.Generator) -> None:
    sizes = [(128, 20), (20, 20), (20, 17)]
    weights = tuple(rng.normal(0, 0.2, size).astype(np.float16).astype(np.float32) for size in sizes)
    biases = tuple(rng.normal(0, 0.2, size[1]).astype(np.float16).astype(np.float32) for size in sizes)
    zero, one = np.zeros(128, np.float32), np.ones(128, np.float32)
    reader = KindReader(zero, one, weights, biases)
    x = rng.normal(size=(5, 128)).astype(np.float32)
    found = reader.read(x)
    assert found.shape == (5, 9) and np.allclose(found[:, :7].sum(1), 1, atol=1e-5)
    assert ((found[:, 7] > 0) & (found[:, 7] < 1)).all() and ((found[:, 8] >= 1) & (found[:, 8] <= 75)).all()
    reader.save(tmp_path / "kind.safetensors")
    np.testing.assert_allclose(KindReader.load(tmp_path / "kind.safetensors").read(x), found, atol=1e-4)
    (tmp_path / "kind.safetensors").write_bytes(b"x")
    with pytest.raises(FicganError):
        KindReader.load(tmp_path / "kind.safetensors")


def test_a_loosened_kind_keeps_its_gender_and_takes_in_decades_and_neighbours() -> None:
    kind = Kind.of(reading({"White": 1}, 0.9, 65))
    near = [{"White", "Latino_Hispanic", "Middle Eastern"}, {"Male"}, {"50-59", "60-69", "70+"}]
    assert parts_of(kind.loosened(1, 2)) == near
    assert parts_of(kind.loosened(4, len(ETHNICITIES) - 1)) == [set(ETHNICITIES), {"Male"}, set(AGES[3:])]
    assert parts_of(kind.loosened(0)) == parts_of(kind)
    boy = Kind.of(reading({"White": 1}, 0.9, 6))
    assert parts_of(boy.loosened(4)) == [{"White"}, set(GENDERS), set(AGES[:2])]  # no grown-up takes a child's place
