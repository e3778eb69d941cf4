"""The bank's file: written, mapped, checked, damaged."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from ficgan.errors import FicganError
from ficgan.identity import IdentityBank, audit


@pytest.fixture
def bank(rng) -> IdentityBank:
    attributes = rng.integers(0, 2, (60, 3)).astype(np.uint8)
    return IdentityBank(rng.normal(size=(60, 32)).astype(np.float16), attributes, ("Female", "Hat", "Pale"), {"a": 1})


@pytest.fixture
def path(bank, tmp_path) -> Path:
    bank.save(tmp_path / "bank.safetensors")
    return tmp_path / "bank.safetensors"


@pytest.fixture
def mapping(monkeypatch) -> None:
    """Treat files of any size as large ones."""
    monkeypatch.setattr("ficgan.identity.bank.IN_MEMORY", 0)


def split(path: Path) -> tuple[dict, bytes]:
    """Header and numbers of a safetensors file."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:start]), content[start:]


def join(path: Path, entries: object, numbers: bytes, pad: int = 0) -> None:
    text = json.dumps(entries).encode() + b" " * pad
    path.write_bytes(len(text).to_bytes(8, "little") + text + numbers)


def test_round_trip(bank, path):
    again, tensors = IdentityBank.load(path), load_file(path)
    assert set(tensors) == {"codes", "attributes"} and np.array_equal(tensors["codes"], bank.codes)
    assert np.array_equal(again.codes, bank.codes) and np.array_equal(again.attributes, bank.attributes)
    assert (again.names, again.provenance, again.digest) == (bank.names, bank.provenance, bank.digest)
    assert again.verified and path.stat().st_mode & 0o777 == 0o644
    assert [p.name for p in path.parent.iterdir()] == ["bank.safetensors"], "something partial was left"
    IdentityBank.from_codes(np.ones((3, 4)), [1, 2, 3]).save(path)
    assert IdentityBank.load(path).attributes.shape == (3, 0)
    with pytest.raises(FicganError):
        bank.save(path.parent / "nowhere" / "bank.safetensors")


def test_codes_of_8_bits_lose_next_to_nothing(bank, path):
    large = path.stat().st_size
    kept = bank.save(path, small=True)
    assert path.stat().st_size < large - 60 * 32 + 32 * 8 + 150
    again = IdentityBank.load(path)
    assert again.verified and again.digest == kept.digest != bank.digest
    assert np.array_equal(again.codes, kept.codes) and np.array_equal(again.attributes, bank.attributes)
    step = np.ptp(bank.codes.astype(float), axis=0) / 255
    assert (np.abs(again.codes.astype(float) - bank.codes) <= 0.51 * step + 2e-3).all()


def test_mapped_is_alike(bank, path, mapping):
    again = IdentityBank.load(path)
    assert np.array_equal(again.codes, bank.codes) and np.array_equal(again.attributes, bank.attributes)
    for psi, group in ((0.0, None), (0.6, None), (0.6, "Female,-Hat")):
        mine, theirs = (b.k_same(5, "x", attributes=group, psi=psi, seed=3) for b in (bank, again))
        assert np.array_equal(mine.w, theirs.w) and mine.members_digest == theirs.members_digest


@pytest.mark.parametrize("large", [False, True])
def test_codes_are_read_only_and_the_file_stays(path, monkeypatch, large):
    monkeypatch.setattr("ficgan.identity.bank.IN_MEMORY", 0 if large else 2**20)
    before = hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns
    bank = IdentityBank.load(path)
    for array in (bank.codes, bank.attributes):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1
    bank.k_same(5, "x", attributes="Female", psi=1.0)
    bank.verify()
    assert (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns) == before


def test_a_large_file_is_believed_until_it_is_verified(bank, path, mapping):
    assert bank.verified
    again = IdentityBank.load(path)
    assert again.digest == bank.digest and not again.verified
    stated = audit(again, k=5, psi=0.0, num_layers=8, layer=4, seed=7)["bank"]
    assert stated["digest"] == bank.digest and stated["digest_verified"] is False
    again.verify()
    assert again.verified
    assert audit(again, k=5, psi=0.0, num_layers=8, layer=4, seed=7)["bank"]["digest_verified"] is True
    with open(path, "r+b") as overwritten:  # in place: what nobody should do
        overwritten.seek(-1, 2)
        overwritten.write(b"\7")
    with pytest.raises(FicganError, match="digest"):
        again.verify()
    assert not again.verified


@pytest.mark.parametrize("place", ["codes", "attributes", "names", "digest", "infinite"])
def test_verify_detects(bank, path, mapping, place):
    entries, numbers = split(path)
    header = json.loads(entries["__metadata__"]["header"])
    changed = bytearray(numbers)
    if place in ("codes", "attributes"):
        changed[entries[place]["data_offsets"][1] - 1] ^= 1
    elif place == "names":
        header["names"][0] = "Male"
    elif place == "digest":
        header["digest"] = "0" * 64
    else:
        begin = entries["codes"]["data_offsets"][0]
        changed[begin + 14 : begin + 16] = np.float16(np.inf).tobytes()
    entries["__metadata__"]["header"] = json.dumps(header)
    join(path, entries, bytes(changed))
    loaded = IdentityBank.load(path)
    for _ in range(2):
        with pytest.raises(FicganError, match=r"digest|finite"):
            loaded.verify()
        assert not loaded.verified
    with pytest.raises(FicganError, match=r"digest|finite"):  # nor is the false digest passed on
        loaded.save(path.with_name("copy.safetensors"))
    if place == "infinite":
        with pytest.raises(FicganError, match="finite"):
            loaded.k_same(60, "x")
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_file_replaced_while_mapped(bank, path, mapping):
    loaded = IdentityBank.load(path)
    IdentityBank(-bank.codes, bank.attributes, bank.names).save(path)
    assert np.array_equal(loaded.codes, bank.codes)
    again = IdentityBank.load(path)
    again.save(path)  # over itself
    assert np.array_equal(IdentityBank.load(path).codes, -bank.codes)


@pytest.mark.parametrize("pad", [0, 1, 2, 3])
def test_codes_at_any_place(bank, path, mapping, pad):
    join(path, *split(path), pad=pad)
    loaded = IdentityBank.load(path)
    loaded.verify()
    assert np.array_equal(loaded.k_same(9, "x", psi=0.5).w, bank.k_same(9, "x", psi=0.5).w)


def header_of(entries: dict, **changes: object) -> None:
    entries["__metadata__"]["header"] = json.dumps({**json.loads(entries["__metadata__"]["header"]), **changes})


DAMAGES = {
    "longer": lambda e: e["codes"].update(shape=[61, 32]),
    "negative": lambda e: e["codes"].update(shape=[-60, -32]),
    "words": lambda e: e["codes"].update(shape=["60", "32"]),
    "kind of numbers": lambda e: e["codes"].update(dtype="BF16"),
    "absent": lambda e: e.pop("attributes"),
    "no entry": lambda e: e.update(codes=7),
    "another kind": lambda e: e["__metadata__"].update(kind="model"),
    "foreign": lambda e: e["__metadata__"].update(format="other"),
    "no digest": lambda e: header_of(e, digest=5),
    "names": lambda e: header_of(e, names=[1, 2, 3]),
    "newer": lambda e: header_of(e, schema_version=99),
    "no object": lambda e: e["__metadata__"].update(header="[1]"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("limit", [0, 2**20])
def test_headers_that_do_not_fit(path, monkeypatch, damage, limit):
    monkeypatch.setattr("ficgan.identity.bank.IN_MEMORY", limit)
    entries, numbers = split(path)
    DAMAGES[damage](entries)
    join(path, entries, numbers)
    with pytest.raises(FicganError) as caught:
        IdentityBank.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value) and caught.value.exit_code == 1


@pytest.mark.parametrize("damage", [np.float32(np.nan), np.float32(1e30), None])
def test_a_damaged_scale_is_refused(bank, path, damage):
    bank.save(path, small=True)
    tensors, metadata = load_file(path), split(path)[0]["__metadata__"]
    if damage is None:
        tensors["scale"] = tensors["scale"].reshape(1, 64)
    else:
        tensors["scale"][0, 0] = damage
    save_file(tensors, path, metadata)
    with pytest.raises(FicganError, match="damaged"):
        IdentityBank.load(path)


@settings(derandomize=True)
@given(place=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255), cut=st.booleans())
def test_no_damage_to_a_header_surprises(path, tmp_path, place, value, cut):
    content = bytearray(path.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    content[int(place * header)] = value
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(content[: int(place * len(content))] if cut else content)
    try:
        IdentityBank.load(damaged)
    except FicganError as error:
        assert str(damaged) in str(error)
    else:
        assert not cut


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc/self/statm, which this system has not")
def test_opening_a_large_bank_reads_little_of_it(tmp_path):
    """In a fresh process, which also shows that no torch is needed to open a bank and to draw from it."""
    codes = np.arange(200_000 * 64, dtype=np.uint32).astype(np.uint16).reshape(200_000, 64) & 0x3FFF
    IdentityBank(codes.view(np.float16), np.zeros((200_000, 0), np.uint8)).save(tmp_path / "bank.safetensors")
    code = f"""
import sys
import safetensors
from ficgan.identity import IdentityBank, bank
IdentityBank.load  # everything is imported
def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096
bank.IN_MEMORY = int(sys.argv[1])
before = resident()
bank = IdentityBank.load({str(tmp_path / "bank.safetensors")!r})
grown = resident() - before
w = bank.k_same(300, "x").w
assert "torch" not in sys.modules
print(grown)
"""
    grown = [
        int(subprocess.run([sys.executable, "-c", code, limit], capture_output=True, text=True, check=True).stdout)
        for limit in ("1000", "100000000")
    ]
    assert grown[0] < 3e6 and grown[1] > 20e6, "25.6 MB mapped, and read"
