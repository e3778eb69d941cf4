"""What is kept is found again, and only where nothing it depends on has changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ficgan.anonymizers import Faces
from ficgan.anonymizers.k_same import AverageFace
from ficgan.lab import Ficgan
from ficgan.lab.run import Store, files_digest, fingerprint


def test_an_array_is_made_once_and_made_again_when_damaged(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> np.ndarray:
        made.append(1)
        return np.arange(6).reshape(2, 3)

    store = Store(tmp_path / "store")
    for _ in range(3):
        assert np.array_equal(store.array(["a", 1], make), np.arange(6).reshape(2, 3))
    assert len(made) == 1
    store.array(["a", 2], make)
    assert len(made) == 2
    for path in (tmp_path / "store").iterdir():
        path.write_bytes(path.read_bytes()[:90])
    store.array(["a", 1], make)
    assert len(made) == 3
    Store(None).array(["a", 1], make)
    assert len(made) == 4


def test_files_are_known_by_what_is_in_them(tmp_path: Path) -> None:
    file = tmp_path / "v.onnx"
    file.write_bytes(b"one")
    first = files_digest(f"onnx:{file}")
    file.write_bytes(b"two, longer")
    assert len(first) == 1 and files_digest(f"onnx:{file}") != first
    assert files_digest(f"onnx:{file}+onnx:{file}") == files_digest(f"onnx:{file}") * 2
    assert files_digest("as_described") == [] and files_digest(str(tmp_path / "none.onnx")) == []
    (tmp_path / "inner.png").write_bytes(b"x")
    before = files_digest(str(tmp_path))
    (tmp_path / "inner.png").write_bytes(b"xy")
    assert files_digest(str(tmp_path)) != before


@pytest.mark.slow
def test_fingerprints_follow_parameters_seeds_and_backgrounds() -> None:
    rng = np.random.default_rng(0)
    sets = [Faces(rng.integers(0, 256, (3, 32, 32, 3), np.uint8), ("a", "b", "c")) for _ in range(2)]
    prints = {fingerprint(AverageFace().fit(faces)) for faces in sets} | {fingerprint(AverageFace())}
    assert len(prints) == 3
    assert fingerprint(AverageFace().fit(sets[0])) in prints
    weak = Ficgan(layer=7, k=10)
    assert len({fingerprint(one) for one in (weak, replace(weak, seed=1), replace(weak, layer=6))}) == 3
