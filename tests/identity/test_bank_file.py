"""The bank's file: written, read, checked, damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ficgan.errors import FicganError
from ficgan.identity import IdentityBank


@pytest.fixture
def bank(rng) -> IdentityBank:
    attributes = rng.integers(0, 2, (60, 3)).astype(np.uint8)
    return IdentityBank(rng.normal(size=(60, 32)).astype(np.float16), attributes, ("Female", "Hat", "Pale"), {"a": 1})


@pytest.fixture
def path(bank, tmp_path) -> Path:
    bank.save(tmp_path / "bank.safetensors")
    return tmp_path / "bank.safetensors"


def test_round_trip(bank, path):
    again, tensors = IdentityBank.load(path), load_file(path)
    assert set(tensors) == {"codes", "attributes"} and np.array_equal(tensors["codes"], bank.codes)
    assert np.array_equal(again.codes, bank.codes) and np.array_equal(again.attributes, bank.attributes)
    assert (again.names, again.provenance, again.digest) == (bank.names, bank.provenance, bank.digest)
    for array in (again.codes, again.attributes):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1
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
    assert again.digest == kept.digest != bank.digest
    assert np.array_equal(again.codes, kept.codes) and np.array_equal(again.attributes, bank.attributes)
    step = np.ptp(bank.codes.astype(float), axis=0) / 255
    assert (np.abs(again.codes.astype(float) - bank.codes) <= 0.51 * step + 2e-3).all()


def test_no_torch_is_needed(path):
    code = f"import sys\nfrom ficgan.identity import IdentityBank\nIdentityBank.load({str(path)!r}).k_same(9, 'x')\n"
    subprocess.run([sys.executable, "-c", f"{code}assert 'torch' not in sys.modules"], check=True)


DAMAGES = {  # each changes the tensors' entries, the bank's header or the numbers
    "longer": lambda entries, header, numbers: entries["codes"].update(shape=[61, 32]),
    "kind of numbers": lambda entries, header, numbers: entries["codes"].update(dtype="I16"),
    "absent": lambda entries, header, numbers: entries.pop("attributes"),
    "another kind": lambda entries, header, numbers: entries["__metadata__"].update(kind="model"),
    "foreign": lambda entries, header, numbers: entries["__metadata__"].update(format="other"),
    "no digest": lambda entries, header, numbers: header.update(digest=5),
    "another digest": lambda entries, header, numbers: header.update(digest="0" * 64),
    "numbers for names": lambda entries, header, numbers: header.update(names=[1, 2, 3]),
    "other names": lambda entries, header, numbers: header.update(names=["Male", "Hat", "Pale"]),
    "newer": lambda entries, header, numbers: header.update(schema_version=99),
    "codes": lambda entries, header, numbers: flip(numbers, entries["codes"]),
    "attributes": lambda entries, header, numbers: flip(numbers, entries["attributes"]),
}


def flip(numbers: bytearray, entry: dict) -> None:
    numbers[entry["data_offsets"][1] - 1] ^= 1


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_was_changed_is_refused(path, damage):
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    entries, numbers = json.loads(content[8:start]), bytearray(content[start:])
    header = json.loads(entries["__metadata__"]["header"])
    DAMAGES[damage](entries, header, numbers)
    entries["__metadata__"]["header"] = json.dumps(header)
    text = json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + numbers)
    with pytest.raises(FicganError) as caught:
        IdentityBank.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value) and caught.value.exit_code == 1


@pytest.mark.parametrize("value", [np.nan, 1e30])
def test_codes_that_are_not_finite_are_refused(bank, path, value):
    bank.save(path, small=True)
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    tensors["scale"][0, 0] = value
    save_file(tensors, path, metadata)
    with pytest.raises(FicganError, match="damaged"):
        IdentityBank.load(path)
