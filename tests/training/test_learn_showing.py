"""Learning how new faces show their kind, from faces that the embedded model makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ficgan import pretrained
from ficgan.data import FaceData, open_faces
from ficgan.identity import IdentityBank
from ficgan.identity.kind import Kind
from ficgan.training import frame_faces as learning
from ficgan.training.frame_faces import with_showing

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def faces(shared_data: Path) -> FaceData:
    return open_faces([shared_data / "faces128-val.tar"], resolution=128).subset(np.arange(0, 1000, 25))


@pytest.mark.slow
def test_a_bank_learns_it(faces: FaceData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "LEAST", 100)
    bank = replace(IdentityBank.load(pretrained.path("bank")), showing=None)
    path = tmp_path / "bank.safetensors"
    made = with_showing(bank, path, pretrained.path("model"), faces)
    assert made.showing is not None and IdentityBank.load(path).digest == made.digest != bank.digest
    size = made.codes.shape[1]
    fixed = ~made.showing.gains.any((0, 2))
    assert 2 <= fixed.sum() < size / 10  # gender and age stay the group's
    kinds = [Kind.of_cell(cell) for cell in (4, 30, 70, 110)]
    for kind in kinds:
        code = bank.usual(kind)
        moved = made.showing.moved(code, kind)
        wanted = made.showing.moved(moved, kind) - moved  # what is still missing is less than what was
        assert np.linalg.norm(wanted) < 0.9 * np.linalg.norm(moved - code)


def test_few_faces_teach_nothing(faces: FaceData, tmp_path: Path) -> None:
    bank = replace(IdentityBank.load(pretrained.path("bank")), showing=None)
    path = tmp_path / "bank.safetensors"
    made = with_showing(bank, path, pretrained.path("model"), faces.subset([0, 1, 2]))
    assert made.showing is None and not path.exists()
