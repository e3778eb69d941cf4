"""The guessing attack of tools/guessing_attack.py, on programs that keep a share of the source."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from ficgan.errors import UsageError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
from guessing_attack import combined, confirmation, far_from_source, main, near, repeated

SIDE, COUNT = 12, 30
WEIGHT = np.zeros((SIDE, SIDE), np.float32)
WEIGHT[3:9, 3:9] = 1


def leaky(share: float):
    """Puts noise of the seed into the middle, and this share of the source; the surroundings stay."""

    def run(images: np.ndarray, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        out = images.copy()
        noise = rng.integers(0, 256, (len(images), 6, 6, 3))
        out[:, 3:9, 3:9] = (share * images[:, 3:9, 3:9] + (1 - share) * noise).astype(np.uint8)
        return out

    return run


@pytest.fixture
def faces(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 256, (COUNT, SIDE, SIDE, 3), dtype=np.uint8)


def test_averaging_draws_confirms_what_a_program_keeps(faces: np.ndarray) -> None:
    order = np.random.default_rng(1).permutation(COUNT)
    found = {}
    for share in (0.0, 0.4):
        published = leaky(share)(faces[order], 999)
        scores = repeated(published, faces, leaky(share), seeds=range(8), weight=WEIGHT)
        found[share] = confirmation(scores, order)
    assert found[0.4].rank1[0] > 0.9 and found[0.4].auc[0] > 0.98
    assert found[0.0].rank1[1] <= 1 / COUNT + 0.1 and found[0.0].auc[1] < 0.5 < found[0.0].auc[2]


def test_surroundings_do_not_count(faces: np.ndarray) -> None:
    """A candidate whose surroundings are the published ones and whose face is another's is no better for that."""
    published = leaky(0.4)(faces[:1], 5)
    swapped = faces[0].copy()
    swapped[3:9, 3:9] = faces[1, 3:9, 3:9]
    scores = repeated(published, np.stack([faces[0], swapped, faces[2]]), leaky(0.4), seeds=range(4), weight=WEIGHT)
    assert scores[0, 0] > scores[0, 1] and scores[0].argmax() == 0


def test_the_choice_of_the_least_alike_draw_is_found(rng: np.random.Generator) -> None:
    source = rng.normal(size=(COUNT, 8))
    draws = rng.normal(size=(COUNT, 12, 8))
    cosine = np.einsum("nd,nkd->nk", source, draws) / np.linalg.norm(draws, axis=2)
    chosen = draws[np.arange(COUNT), cosine.argmin(1)]
    told = confirmation(far_from_source(chosen, source), np.arange(COUNT))
    assert told.auc[1] > 0.8
    blind = confirmation(far_from_source(draws[:, 0], source), np.arange(COUNT))
    assert blind.auc[0] < told.auc[1]


def test_readings_and_their_sum(rng: np.random.Generator) -> None:
    source = rng.normal(size=(COUNT, 5)) * [1, 1, 1, 1, 100]
    kept = source + rng.normal(size=source.shape) * [0.5, 0.5, 0.5, 0.5, 50]
    alone = near(kept, source)
    assert confirmation(alone, np.arange(COUNT)).auc[0] > 0.9
    empty = rng.normal(size=alone.shape)
    assert confirmation(combined(alone, alone * 3 + 7), np.arange(COUNT)) == confirmation(alone, np.arange(COUNT))
    assert confirmation(combined(alone, empty), np.arange(COUNT)).auc[0] > confirmation(empty, np.arange(COUNT)).auc[0]


def test_scores_that_say_nothing_are_at_chance() -> None:
    told = confirmation(np.zeros((20, 10)), np.arange(20) % 10)
    assert told.rank1[0] == pytest.approx(0.1) and told.auc[0] == 0.5 and told.confirmed[0] == 0.0
    with pytest.raises(UsageError):
        confirmation(np.zeros((3, 4)), [0, 1])
    with pytest.raises(UsageError):
        repeated(np.zeros((1, 4, 4, 3), np.uint8), np.zeros((1, 4, 4, 3), np.uint8), leaky(0), seeds=[], weight=WEIGHT)


@pytest.mark.parametrize("names", [[], ["a_1.jpg", "a_2.jpg", "b_1.jpg"]])
def test_a_folder_without_pairs_of_photos_is_wrong_usage(
    names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in names:
        (tmp_path / name).touch()
    monkeypatch.setattr(sys, "argv", ["guessing_attack.py", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "fewer than two people with two photos each" in capsys.readouterr().err
