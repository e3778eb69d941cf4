"""How clearly new faces show their kind: learnt from readings, kept in the bank's file, applied to draws."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kinds_world import NAMES, people

from ficgan import pretrained
from ficgan.data import FaceData, open_faces
from ficgan.errors import FicganError
from ficgan.identity import IdentityBank
from ficgan.identity.kind import ETHNICITIES, Kind, KindCodes, Showing, logits
from ficgan.training import frame_faces as learning
from ficgan.training.frame_faces import with_showing

# Numbers of a code; one that only men's codes have; one that must not be moved.
SIZE, BEARD, FIXED = 16, 15, 14


def world(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cells of people, their codes, and the table of a bank."""
    rng = np.random.default_rng(seed)
    cell, (e, g, a), table = people(count, rng)
    codes = rng.normal(0, 1, (count, SIZE))
    codes[np.arange(count), e] += 2
    codes[:, 7] += 3.0 * (g - 0.5)
    codes[:, 8] += a / 2
    codes[:, BEARD] *= (g == 1) & (a > 2)
    return cell, codes, table


def read(codes: np.ndarray, faint: float) -> np.ndarray:
    """A reader [N,9] of codes: new faces show `faint` of what they have. A beard looks Middle Eastern and male."""
    x = codes.copy()
    x[:, 4] += codes[:, BEARD]
    x[:, 7] += codes[:, BEARD]
    shares = np.exp(faint * x[:, :7])
    male = 1 / (1 + np.exp(-faint * x[:, 7]))
    years = 35 + faint * (x[:, 8] - 2) * 15
    return np.column_stack([shares / shares.sum(1, keepdims=True), male, years]).astype(np.float32)


@pytest.fixture(scope="module")
def learnt() -> tuple[IdentityBank, Showing]:
    _, codes, table = world(6000, 0)
    bank = IdentityBank(codes.astype(np.float16), table, NAMES)
    new, drawn, _ = world(3000, 1)
    own, real, _ = world(600, 2)
    kinds, own_kinds = (np.stack([Kind.of_cell(int(one)).reading for one in cells]) for cells in (new, own))
    people = bank.kinds
    assert people is not None
    free = np.arange(SIZE) != FIXED
    return bank, Showing.fit(drawn, kinds, read(drawn, 0.3), own_kinds, read(real, 1), people, free)


def test_a_moved_code_reads_more_like_its_kind(learnt: tuple[IdentityBank, Showing]) -> None:
    _, showing = learnt
    cell, codes, _ = world(200, 3)
    kinds = [Kind.of_cell(int(one)) for one in cell]
    moved = np.stack([showing.moved(code, kind) for code, kind in zip(codes, kinds, strict=True)])
    before, after, real = (logits(one) for one in (read(codes, 0.3), read(moved, 0.3), read(codes, 1)))
    e, g, _ = np.unravel_index(cell, (7, 2, 9))
    rows = np.arange(len(cell))
    assert after[rows, e].mean() > before[rows, e].mean() + 0.3 * (real[rows, e].mean() - before[rows, e].mean())
    assert (after[:, 7] * (2 * g - 1)).mean() > 1.5 * (before[:, 7] * (2 * g - 1)).mean()
    # Draws of one kind read alike, since what they happen to read as is taken out in part.
    assert (after[rows, e] - before[rows, e]).std() > 0 and after[rows, e].std() < before[rows, e].std() + 0.05
    np.testing.assert_array_equal(moved[:, FIXED], codes[:, FIXED].astype(np.float32))


def test_children_and_women_grow_no_beard(learnt: tuple[IdentityBank, Showing]) -> None:
    _, showing = learnt
    middle = ETHNICITIES.index("Middle Eastern")
    grown = {}
    for name, gender, age in (("man", 1, 4), ("woman", 0, 4), ("boy", 1, 1)):
        kind = Kind.of_cell(int(np.ravel_multi_index((middle, gender, age), (7, 2, 9))))
        grown[name] = showing.moved(np.zeros(SIZE), kind)[BEARD]
    assert abs(grown["woman"]) < 1e-3 and abs(grown["boy"]) < 1e-3 < abs(grown["man"])


def test_a_bank_keeps_it(learnt: tuple[IdentityBank, Showing], tmp_path: Path) -> None:
    bank, showing = learnt
    shown = replace(bank, showing=showing)
    assert shown.digest != bank.digest
    kind, path = Kind.of_cell(40), tmp_path / "bank.safetensors"
    for small in (False, True):
        stored = shown.save(path, small=small)
        again = IdentityBank.load(path)
        assert again.digest == stored.digest and again.showing is not None
        for mine, theirs in zip(vars(again.showing).values(), vars(showing).values(), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        mine, theirs = (one.k_same(50, "a", kind=kind, psi=1).w for one in (again, stored))
        np.testing.assert_array_equal(mine, theirs)
    plain = KindCodes(bank.codes.astype(np.float32), bank.kinds.cell)  # type: ignore[union-attr]
    drawn = np.mean([shown.k_same(500, str(n), kind=kind).w for n in range(20)], 0)
    np.testing.assert_allclose(drawn, showing.moved(plain.mean(kind), kind), atol=0.15)
    np.testing.assert_allclose(shown.usual(kind), showing.moved(plain.mean(kind), kind), atol=1e-4)


@pytest.mark.parametrize("damage", ["shape", "nan"])
def test_a_damaged_one_is_refused(learnt: tuple[IdentityBank, Showing], tmp_path: Path, damage: str) -> None:
    bank, showing = learnt
    wanted = showing.wanted.T if damage == "shape" else np.full_like(showing.wanted, np.nan)
    path = tmp_path / "bank.safetensors"
    replace(bank, showing=replace(showing, wanted=wanted)).save(path)
    with pytest.raises(FicganError):
        IdentityBank.load(path)


# Learnt from faces that the embedded model makes


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


@pytest.mark.slow
def test_few_faces_teach_nothing(faces: FaceData, tmp_path: Path) -> None:
    bank = replace(IdentityBank.load(pretrained.path("bank")), showing=None)
    path = tmp_path / "bank.safetensors"
    made = with_showing(bank, path, pretrained.path("model"), faces.subset([0, 1, 2]))
    assert made.showing is None and not path.exists()
