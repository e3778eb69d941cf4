"""The bank's file: written, mapped, checked, damaged."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from ficgan.cli.train import bank as command
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


def test_the_safetensors_library_reads_it(bank, path):
    tensors = load_file(path)
    assert set(tensors) == {"codes", "attributes"}
    assert np.array_equal(tensors["codes"], bank.codes) and np.array_equal(tensors["attributes"], bank.attributes)
    content = path.read_bytes()
    assert (8 + int.from_bytes(content[:8], "little")) % 8 == 0
    assert path.stat().st_mode & 0o777 == 0o644


def test_what_the_safetensors_library_writes_is_read(bank, path):
    metadata = split(path)[0]["__metadata__"]
    save_file({"attributes": bank.attributes, "codes": bank.codes, "more": np.ones(3)}, path, metadata)
    again = IdentityBank.load(path)
    assert np.array_equal(again.codes, bank.codes) and np.array_equal(again.attributes, bank.attributes)
    assert again.digest == bank.digest and again.verified


def test_codes_of_8_bits_lose_next_to_nothing(bank, path):
    large = path.stat().st_size
    kept = bank.save(path, small=True)
    assert path.stat().st_size < large - 60 * 32 + 32 * 8 + 150
    again = IdentityBank.load(path)
    assert again.verified and again.digest == kept.digest != bank.digest
    assert np.array_equal(again.codes, kept.codes) and np.array_equal(again.attributes, bank.attributes)
    step = np.ptp(bank.codes.astype(float), axis=0) / 255
    assert (np.abs(again.codes.astype(float) - bank.codes) <= 0.51 * step + 2e-3).all()
    with pytest.raises(ValueError, match="WRITEABLE"):
        again.codes.flags.writeable = True
    tensors = load_file(path)
    low, steps = tensors["scale"]
    assert np.allclose(tensors["codes"] * steps + low, kept.codes, atol=2e-3)


@pytest.mark.parametrize("damage", [np.float32(np.nan), np.float32(np.inf), np.float32(1e30)])
def test_a_damaged_scale_is_refused(bank, path, damage):
    bank.save(path, small=True)
    entries, numbers = split(path)
    begin, _ = entries["scale"]["data_offsets"]
    join(path, entries, numbers[:begin] + damage.tobytes() + numbers[begin + 4 :])
    with pytest.raises(FicganError, match="is damaged"):
        IdentityBank.load(path)
    entries["scale"]["shape"] = [1, 64]
    join(path, entries, numbers)
    with pytest.raises(FicganError, match="is damaged"):
        IdentityBank.load(path)


def test_no_codes_for_very_many_people_are_refused_at_once(bank, path):
    bank.save(path, small=True)
    entries, _ = split(path)
    for name, shape in (("codes", [2**40, 0]), ("scale", [2, 0]), ("attributes", [2**40, 0])):
        entries[name] |= {"shape": shape, "data_offsets": [0, 0]}
    join(path, entries, b"")
    with pytest.raises(FicganError, match="is damaged"):
        IdentityBank.load(path)


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
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
    bank.k_same(5, "x", attributes="Female", psi=1.0)
    bank.direction("Hat")
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


@pytest.mark.parametrize("place", ["codes", "attributes", "names", "digest"])
def test_verify_detects(bank, path, mapping, place):
    entries, numbers = split(path)
    header = json.loads(entries["__metadata__"]["header"])
    changed = bytearray(numbers)
    if place in ("codes", "attributes"):
        changed[entries[place]["data_offsets"][1] - 1] ^= 1
    elif place == "names":
        header["names"][0] = "Male"
    else:
        header["digest"] = "0" * 64
    entries["__metadata__"]["header"] = json.dumps(header)
    join(path, entries, bytes(changed))
    loaded = IdentityBank.load(path)
    for _ in range(2):
        with pytest.raises(FicganError, match="digest"):
            loaded.verify()
        assert not loaded.verified
    with pytest.raises(FicganError, match="digest"):  # nor is the false digest passed on
        loaded.save(path.with_name("copy.safetensors"))
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_command_line_checks(bank, path, mapping):
    def show(*options: str):
        return CliRunner().invoke(command, ["show", str(path), *options])

    assert json.loads(show().stdout)["digest_verified"] is False
    assert json.loads(show("--check").stdout)["digest_verified"] is True
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert json.loads(show().stdout)["digest"] == bank.digest
    refused = show("--check")
    assert refused.exit_code == 1 and "digest" in refused.stderr and not refused.stdout


def test_verify_reads_again(path, mapping):
    loaded = IdentityBank.load(path)
    loaded.verify()
    with open(path, "r+b") as overwritten:  # in place: what nobody should do
        overwritten.seek(-1, 2)
        overwritten.write(b"\7")
    with pytest.raises(FicganError, match="digest"):
        loaded.verify()
    assert not loaded.verified


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_codes_that_are_not_finite(bank, path, mapping, bad):
    entries, numbers = split(path)
    codes = bank.codes.copy()
    codes[7, 3] = bad
    join(path, entries, codes.tobytes() + numbers[codes.nbytes :])
    loaded = IdentityBank.load(path)
    with pytest.raises(FicganError, match="not finite") as caught:
        loaded.verify()
    assert caught.value.exit_code == 1
    for psi in (0.0, 0.6):
        with pytest.raises(FicganError, match="not finite"):
            loaded.k_same(60, "x", psi=psi)


def test_a_file_replaced_while_mapped(bank, path, mapping):
    loaded = IdentityBank.load(path)
    IdentityBank(-bank.codes, bank.attributes, bank.names).save(path)
    assert np.array_equal(loaded.codes, bank.codes)
    assert np.array_equal(IdentityBank.load(path).codes, -bank.codes)


def test_a_mapped_bank_saved_over_itself(bank, path, mapping):
    before = path.read_bytes()
    IdentityBank.load(path).save(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("pad", [0, 1, 2, 3])
def test_codes_at_any_place(bank, path, mapping, pad):
    join(path, *split(path), pad=pad)
    loaded = IdentityBank.load(path)
    loaded.verify()
    assert np.array_equal(loaded.k_same(9, "x", psi=0.5).w, bank.k_same(9, "x", psi=0.5).w)


def longer(entries: dict) -> None:
    entries["codes"]["shape"][0] += 1


def negative(entries: dict) -> None:
    entries["codes"]["shape"] = [-60, -32]


def early(entries: dict) -> None:
    begin, end = entries["codes"]["data_offsets"]
    entries["codes"]["data_offsets"] = [begin - 8, end - 8]


def words(entries: dict) -> None:
    entries["codes"]["shape"] = ["60", "32"]


def kind(entries: dict) -> None:
    entries["codes"]["dtype"] = "BF16"


def absent(entries: dict) -> None:
    del entries["attributes"]


def beyond(entries: dict) -> None:
    entries["attributes"]["data_offsets"] = [n + 1 for n in entries["attributes"]["data_offsets"]]


def no_list(entries: dict) -> None:
    entries["codes"] = 7


def no_digest(entries: dict) -> None:
    entries["__metadata__"]["header"] = json.dumps({"schema_version": 1, "names": [], "provenance": {}, "digest": 5})


def no_words(entries: dict) -> None:
    header = json.loads(entries["__metadata__"]["header"])
    entries["__metadata__"]["header"] = json.dumps({**header, "names": [1, 2, 3]})


def no_object(entries: dict) -> None:
    entries["__metadata__"]["header"] = "[1]"


@pytest.mark.parametrize(
    "damage", [longer, negative, early, words, kind, absent, beyond, no_list, no_digest, no_words, no_object]
)
@pytest.mark.parametrize("limit", [0, 2**20])
def test_headers_that_do_not_fit(path, monkeypatch, damage, limit):
    monkeypatch.setattr("ficgan.identity.bank.IN_MEMORY", limit)
    entries, numbers = split(path)
    damage(entries)
    join(path, entries, numbers)
    with pytest.raises(FicganError, match="damaged") as caught:
        IdentityBank.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value) and caught.value.exit_code == 1


@pytest.mark.parametrize("change", [-4000, -1, 1, 4096])
def test_a_large_file_of_another_length(path, mapping, change):
    content = path.read_bytes()
    path.write_bytes(content[:change] if change < 0 else content + bytes(change))
    with pytest.raises(FicganError, match=r"damaged .*bytes and states"):
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
