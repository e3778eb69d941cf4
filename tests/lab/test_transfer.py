"""Attackers tried on what they have not learnt: figures against loops, treatments against their steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_world import people, prepared

from ficgan.anonymizers import ANONYMIZERS, Defended, generator
from ficgan.anonymizers.defended import Rotation
from ficgan.lab import bench as lab_bench
from ficgan.lab.bench import Bench
from ficgan.lab.metrics import Bootstrap
from ficgan.lab.metrics.utility import Judges
from ficgan.lab.papers import read_trials, transfer, treated
from ficgan.lab.papers.revelio import (
    ATTACKER,
    DEFENCES,
    PUBLISHER,
    RevelioPaper,
    RevelioStudy,
    RevelioWorld,
    defended,
    upright,
)
from ficgan.lab.readers import Reader
from ficgan.lab.run import Run, Store
from ficgan.lab.sets import Split, written

SIDE, EACH = 32, 3
NONE = np.zeros(0, np.int64)


class Coarse:
    """Reads a coarse copy of the crop."""

    name, metric, match_threshold = "coarse", "euclidean", 0.6

    def embed_each(self, images: np.ndarray, landmarks: np.ndarray) -> np.ndarray:
        return images.reshape(len(images), 8, 4, 8, 4, 3).mean((2, 4)).reshape(len(images), -1).astype(np.float32)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Made people: the first eight are learnt from, the others' first two photos are enrolled."""
    monkeypatch.setattr(
        lab_bench, "find_judges", lambda _: Judges(missing={"lpips": "not here", "inception": "not here"})
    )
    faces = people(12, EACH, SIDE, 50, blocks=SIDE)
    rows, tested = np.arange(8 * EACH), np.arange(8 * EACH, 12 * EACH)
    made = Split(NONE, rows, tested[tested % EACH < 2], tested[tested % EACH == 2], NONE)
    parts = written(made, faces.people, {}, faces.names)  # type: ignore[arg-type]
    reader = Reader(Coarse(), "coarse", "coarse-1")  # type: ignore[arg-type]
    return Bench(prepared(faces), parts, [reader], None, Store(tmp_path), resamples=50)


def test_figures_are_those_of_a_slow_loop(bench: Bench) -> None:
    rows = bench.split.probe
    seen = treated(bench, ANONYMIZERS.make("gaussian-noise", sigma=90), rows)
    (trial,) = read_trials(bench, seen, rows, "noise", "nobody")
    enrolled, reader = bench.prepared.faces.take(bench.split.gallery), bench.readers[0]
    assert enrolled.people is not None
    codes, gallery, source = (
        reader.embed(faces).astype(np.float64) for faces in (seen, enrolled, bench.prepared.faces.take(rows))
    )
    hits, angles, right = 0, [], []
    for code, clear, person in zip(codes, source, bench.people[rows], strict=True):
        away = [float(np.sqrt(((code - other) ** 2).sum())) for other in gallery]
        right.append(int(enrolled.people[int(np.argmin(away))] == person))
        hits += right[-1]
        angles.append(np.arccos(code @ clear / np.linalg.norm(code) / np.linalg.norm(clear)))
    ira = trial.figure("IRA")
    assert ira is not None and ira.value == pytest.approx(hits / len(rows))
    if 0 < hits < len(rows):  # one photo of each person here: people are drawn as photos are
        drawn = Bootstrap(bench.resamples, bench.seed).weights(len(rows)) @ right / len(rows)
        assert (ira.low, ira.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=1e-6)
    assert trial.value("IDD") == pytest.approx(np.mean(angles), rel=1e-5)
    error = (seen.images.astype(float) - bench.prepared.faces.take(rows).images) ** 2
    assert trial.value("PSNR") == pytest.approx(np.mean(10 * np.log10(255**2 / error.mean((1, 2, 3)))), rel=1e-5)


def test_what_was_learnt_is_reversed_and_another_permutation_is_not(bench: Bench) -> None:
    learnt, other = (ANONYMIZERS.make("block-permutation", block=block) for block in (8, 4))
    said: list[str] = []
    trials = transfer(
        bench,
        "learn-permutation",
        {"8": learnt, "4": other},
        {"8": learnt},
        progress=lambda done, total, what: said.append(what),
    )
    assert [(one.attacker, one.method) for one in trials] == [("8", "8"), ("4", "8")]
    assert trials[0].value("IRA") == 1.0
    assert "equal" in trials[0].figure("PSNR").note  # to the bit
    assert trials[0].value("SSIM") == pytest.approx(1.0)
    assert (trials[1].value("SSIM") or 0) < 0.9
    assert len([one for one in said if "against" in one]) == 2


# Treatments


def test_the_attacker_repeats_what_is_not_drawn_and_never_what_the_publisher_drew(bench: Bench, tmp_path: Path) -> None:
    world = RevelioWorld(NONE, NONE, NONE)
    lab = RevelioStudy(RevelioPaper(data=tmp_path, size=SIDE), bench, world, Run(tmp_path))
    faces = bench.prepared.faces.take(range(12))
    blur = lab.blur("light")
    for name in DEFENCES:
        published, learnt = (defended(lab, name, key) for key in (PUBLISHER, ATTACKER))
        once, other = published(faces), learnt(faces)
        np.testing.assert_array_equal(once[5:], published(faces.take(range(5, 12))))
        same = [bool((a == b).all()) for a, b in zip(once, other, strict=True)]
        assert not any(same) if name in ("noise", "secret") else all(same), name
        if name == "none":
            np.testing.assert_array_equal(once, blur(faces))
        if name == "rotation":
            assert (once[:, ::-1, ::-1] == blur(faces)).all()
            assert (upright(lab, faces.with_images(once), np.arange(12), published).images == blur(faces)).all()
        if name == "secret":
            back = upright(lab, faces.with_images(once), np.arange(12), published).images
            assert isinstance(published, Defended)
            draws = [generator(0, PUBLISHER, "defence", "random", face) for face in faces.names]
            drawn = [published.defence.drawn(draw) for draw in draws]  # type: ignore[union-attr]
            turned = np.array([isinstance(one, Rotation) for one in drawn])
            assert turned.any() and not turned.all()
            np.testing.assert_array_equal(back[~turned], once[~turned])
            middle = (slice(None), slice(10, 22), slice(10, 22))
            away, held = (
                np.abs(one[turned][middle].astype(int) - blur(faces)[turned][middle]).mean() for one in (once, back)
            )
            assert held < away / 2
        if name == "box blur":  # 31 px of 256 are 3 of 32: a box over the clear faces, not over blurred ones
            expected = ANONYMIZERS.make("box-blur", kernel=3)(faces)
            assert np.abs(once.astype(int) - expected).max() <= 1
