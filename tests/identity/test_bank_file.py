"""The bank's file: written, read, checked, damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
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


def split(path: Path) -> tuple[dict, bytes]:
    """Header and numbers of a safetensors file."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:start]), content[start:]


def join(path: Path, entries: object, numbers: bytes) -> None:
    text = json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + numbers)


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


@pytest.mark.parametrize("place", ["codes", "attributes", "names", "digest", "infinite"])
def test_what_does_not_have_its_digest_is_refused(path, place):
    entries, numbers = split(path)
    header, changed = json.loads(entries["__metadata__"]["header"]), bytearray(numbers)
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
    with pytest.raises(FicganError, match=r"digest|finite"):
        IdentityBank.load(path)


def header_of(entries: dict, **changes: object) -> None:
    entries["__metadata__"]["header"] = json.dumps({**json.loads(entries["__metadata__"]["header"]), **changes})


DAMAGES = {
    "longer": lambda e: e["codes"].update(shape=[61, 32]),
    "words": lambda e: e["codes"].update(shape=["60", "32"]),
    "kind of numbers": lambda e: e["codes"].update(dtype="I16"),
    "absent": lambda e: e.pop("attributes"),
    "another kind": lambda e: e["__metadata__"].update(kind="model"),
    "foreign": lambda e: e["__metadata__"].update(format="other"),
    "no digest": lambda e: header_of(e, digest=5),
    "names": lambda e: header_of(e, names=[1, 2, 3]),
    "newer": lambda e: header_of(e, schema_version=99),
    "no object": lambda e: e["__metadata__"].update(header="[1]"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_headers_that_do_not_fit(path, damage):
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
