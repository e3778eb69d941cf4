"""IdentityBank: making, writing, reading, asking."""

from __future__ import annotations

import json
import struct
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from ficgan.errors import FicganError, UsageError
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


def test_many_people_equal_one_sum(rng, monkeypatch):
    """In pieces of few people as in one; the bits are those of a plain sum in the order of the images."""
    codes, people = rng.normal(size=(4000, 5)).astype(np.float32), rng.integers(-1, 1500, 4000)
    whole = IdentityBank.from_codes(codes, people)
    monkeypatch.setattr("ficgan.identity.bank.CHUNK", 7)
    assert IdentityBank.from_codes(codes, people).digest == whole.digest
    known = np.unique(people[people >= 0])
    total = np.zeros((len(known), 5))
    np.add.at(total, np.searchsorted(known, people[people >= 0]), codes[people >= 0].astype(np.float64))
    counts = np.array([(people == p).sum() for p in known])
    assert np.array_equal(whole.codes[: len(known)], (total / counts[:, None]).astype(np.float16))
    assert np.array_equal(whole.codes[len(known) :], codes[people < 0].astype(np.float16))


def test_making_takes_little_more_memory_than_the_bank(rng):
    codes, people = rng.random((40_000, 256), np.float32), np.arange(40_000) // 2
    attributes = np.ones((40_000, 20), np.uint8)
    tracemalloc.start()
    try:
        bank = IdentityBank.from_codes(codes, people, attributes, [f"A{i}" for i in range(20)])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * bank.codes.nbytes  # float64 sums of everybody would be four times as much


def test_unknown_people_are_not_merged():
    codes = np.eye(6, dtype=np.float32)
    bank = IdentityBank.from_codes(codes, [7, -1, 7, -1, 3, -1], provenance={"data": {}})
    assert len(bank) == 5
    expected = np.stack([codes[4], (codes[0] + codes[2]) / 2, codes[1], codes[3], codes[5]])
    assert np.array_equal(bank.codes, expected)
    assert bank.provenance["images_of_unknown_people"] == 3 and bank.provenance["identities_known"]
    strings = IdentityBank.from_codes(codes, ["b", "", "b", "", "a", ""])
    assert np.array_equal(strings.codes, expected)


def test_without_identities_every_picture_counts():
    bank = IdentityBank.from_codes(np.eye(4), None)
    assert np.array_equal(bank.codes, np.eye(4)) and bank.provenance["identities_known"] is False
    assert bank.provenance["people"] == bank.provenance["images_of_unknown_people"] == 4


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
    with pytest.raises(UsageError, match="name one for each"):
        IdentityBank.from_codes(np.ones((8, 4)), people, np.array(rows), names, columns=("g",))


def test_mean_is_computed_in_float64():
    codes = np.full((9000, 1), 2049, np.float16)  # a half-precision or float32 running sum would be off
    codes[0] = 60000
    bank = IdentityBank(codes, np.zeros((9000, 0), np.uint8))
    assert bank.mean.dtype == np.float32
    assert bank.mean[0] == np.float32((60000 + 8999 * float(codes[1, 0])) / 9000)


def test_round_trip(bank, tmp_path):
    path = tmp_path / "bank.safetensors"
    bank.save(path)
    again = IdentityBank.load(path)
    assert np.array_equal(again.codes, bank.codes) and np.array_equal(again.attributes, bank.attributes)
    assert (again.names, again.provenance, again.digest) == (bank.names, bank.provenance, bank.digest)
    assert [p.name for p in tmp_path.iterdir()] == ["bank.safetensors"], "something partial was left"


def test_round_trip_without_attributes(tmp_path):
    bank = IdentityBank.from_codes(np.ones((3, 4)), [1, 2, 3])
    bank.save(tmp_path / "b.safetensors")
    assert IdentityBank.load(tmp_path / "b.safetensors").attributes.shape == (3, 0)


def test_digest_covers_everything_that_decides_a_draw(bank):
    def changed(**parts):
        new = {"codes": bank.codes.copy(), "attributes": bank.attributes.copy(), "names": bank.names} | parts
        return IdentityBank(**new).digest

    assert changed() == bank.digest
    codes = bank.codes.copy()
    codes[5, 5] += 1
    attributes = bank.attributes.copy()
    attributes[5, 1] ^= 1
    digests = [
        changed(codes=codes),
        changed(attributes=attributes),
        changed(names=("Male", "Eyeglasses", "Pale_Skin")),
        changed(codes=bank.codes[::-1].copy()),  # the order decides which people a draw takes
    ]
    assert len({bank.digest, *digests}) == 5


def test_same_bank_whatever_the_order_of_the_images(rng):
    codes, people = rng.integers(-8, 8, (30, 4)).astype(np.float32), np.arange(30) % 7
    order = rng.permutation(30)
    a, b = IdentityBank.from_codes(codes, people), IdentityBank.from_codes(codes[order], people[order])
    assert a.digest == b.digest


@pytest.mark.parametrize("damage", ["cut", "flip", "foreign", "newer", "text", "empty", "missing", "kind", "shape"])
def test_damaged_files(bank, tmp_path, damage):
    path = tmp_path / "bank.safetensors"
    bank.save(path)
    content = path.read_bytes()
    header_size = struct.unpack("<Q", content[:8])[0]
    metadata = json.loads(content[8 : 8 + header_size])["__metadata__"]
    tensors = load_file(path)
    header = json.loads(metadata["header"])
    if damage == "cut":
        path.write_bytes(content[:-100])
    elif damage == "flip":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "text":
        path.write_text("not a bank")
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "missing":
        path.unlink()
    elif damage == "foreign":
        save_file(tensors, path)
    elif damage == "kind":
        save_file(tensors, path, {**metadata, "kind": "model"})
    elif damage == "newer":
        save_file(tensors, path, {**metadata, "header": json.dumps({**header, "schema_version": 99})})
    elif damage == "shape":
        tensors["attributes"] = torch.zeros(2, 3, dtype=torch.uint8)
        save_file(tensors, path, metadata)
    with pytest.raises(FicganError) as caught:
        IdentityBank.load(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message


def test_save_into_a_missing_folder(bank, tmp_path):
    with pytest.raises(FicganError, match="cannot be written"):
        bank.save(tmp_path / "nowhere" / "bank.safetensors")


@pytest.mark.parametrize("text", ["", "Female", "-female", "Female,-EYEGLASSES", " pale skin , -Female"])
def test_query_equals_a_loop(bank, text):
    expected = []
    for i in range(len(bank)):
        row = {name.casefold(): bool(v) for name, v in zip(bank.names, bank.attributes[i], strict=True)}
        conditions = [c.strip().casefold().replace(" ", "_") for c in text.split(",") if c.strip()]
        if all(row[c.lstrip("-")] != c.startswith("-") for c in conditions):
            expected.append(i)
    assert bank.query(text).tolist() == expected and bank.query(text).dtype == np.int64
    assert len(expected) > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Femal", r"did you mean Female\? .*Female \(\d+\), Eyeglasses \(\d+\), Pale_Skin \(\d+\)"),
        ("glasses", "did you mean Eyeglasses"),
        ("Beard", r"unknown attribute 'Beard'; this bank has Female"),
        ("Female,,Eyeglasses", "empty name"),
        ("Female,-", "empty name"),
        ("Female,-Female", "both"),
    ],
)
def test_query_refusals(bank, text, message):
    with pytest.raises(UsageError, match=message):
        bank.query(text)


def test_query_without_a_table():
    with pytest.raises(UsageError, match="no attribute table"):
        IdentityBank.from_codes(np.ones((3, 4)), [1, 2, 3]).query("Female")


def test_counts(bank):
    assert bank.counts == {n: int(bank.attributes[:, i].sum()) for i, n in enumerate(bank.names)}


def test_direction(bank):
    column = bank.attributes[:, 1] == 1
    codes = bank.codes.astype(np.float64)
    expected = codes[column].mean(0) - codes[~column].mean(0)
    np.testing.assert_allclose(bank.direction("eyeglasses"), expected, rtol=1e-5, atol=1e-6)
    everybody = IdentityBank(bank.codes, np.ones_like(bank.attributes), bank.names)
    with pytest.raises(UsageError, match="60 of 60"):
        everybody.direction("Female")


def test_parse_direction():
    assert parse_direction("Smiling=0.7") == ("Smiling", 0.7)
    assert parse_direction(" Pale Skin = -1 ") == ("Pale Skin", -1.0)
    for bad in ("Smiling", "Smiling=", "=1", "Smiling=much", "Smiling=nan", "Smiling=inf"):
        with pytest.raises(UsageError, match=r"Female=0\.7"):
            parse_direction(bad)


@pytest.mark.parametrize(
    "make",
    [
        lambda: IdentityBank.from_codes(np.ones((3, 4)), [1, 2]),
        lambda: IdentityBank.from_codes(np.ones((0, 4)), []),
        lambda: IdentityBank.from_codes(np.full((2, 4), np.nan), [1, 2]),
        lambda: IdentityBank.from_codes(np.full((2, 4), 1e6), [1, 2]),
        lambda: IdentityBank.from_codes(np.ones((2, 4)), [1, 2], np.ones((2, 1)), ()),
        lambda: IdentityBank.from_codes(np.ones((2, 4)), [1, 2], np.ones((2, 2)), ("A", "a")),
        lambda: IdentityBank(np.ones((2, 4), np.float32), np.zeros((2, 0), np.uint8)),
        lambda: IdentityBank(np.full((2, 4), np.inf, np.float16), np.zeros((2, 0), np.uint8)),
    ],
)
def test_refusals(make):
    with pytest.raises(UsageError):
        make()
