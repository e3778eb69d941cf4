"""Attackers tried on what they have not learnt, how far guesses resemble clear faces: against loops and libraries."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_world import people, prepared, reader
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from ficgan.anonymizers import ANONYMIZERS, Defended, generator
from ficgan.anonymizers.defended import Rotation
from ficgan.lab import bench as lab_bench
from ficgan.lab import matrix
from ficgan.lab.bench import Bench, Subject
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
from ficgan.lab.run import Run, Store
from ficgan.lab.sets import Split, written

SIDE, EACH = 32, 3
NONE = np.zeros(0, np.int64)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Made people: the first eight are learnt from, the others' first two photos are enrolled."""
    judges = Judges(missing={"lpips": "not here", "inception": "not here"})
    monkeypatch.setattr(lab_bench, "find_judges", lambda _: judges)
    faces = people(12, EACH, SIDE, 50, blocks=SIDE)
    rows, tested = np.arange(8 * EACH), np.arange(8 * EACH, 12 * EACH)
    made = Split(NONE, rows, tested[tested % EACH < 2], tested[tested % EACH == 2], NONE)
    parts = written(made, faces.people, {}, faces.names)  # type: ignore[arg-type]
    judge = reader(metric="euclidean", match_threshold=0.6)
    return Bench(prepared(faces), parts, [judge], None, Store(tmp_path), resamples=50)


def test_overlays_are_the_background_s_faces_where_there_is_one(bench: Bench) -> None:
    assert Subject(bench, ANONYMIZERS.make("k-rtio")).anonymizer.overlays is None  # type: ignore[union-attr]
    with_background = replace(bench.split, background=bench.split.attacker)
    bench = Bench(bench.prepared, with_background, bench.readers, None, bench.store, resamples=50)
    fitted = Subject(bench, ANONYMIZERS.make("k-rtio")).anonymizer
    np.testing.assert_array_equal(fitted.overlays, bench.background.images)  # type: ignore[union-attr]


def test_figures_are_those_of_a_slow_loop(bench: Bench) -> None:
    rows = bench.split.probe
    seen = treated(bench, ANONYMIZERS.make("gaussian-noise", sigma=90), rows)
    (trial,) = read_trials(bench, seen, rows, "noise", "nobody")
    enrolled, reader = bench.clear(bench.split.gallery), bench.readers[0]
    assert enrolled.people is not None
    codes, gallery, source = (reader.embed(faces).astype(np.float64) for faces in (seen, enrolled, bench.clear(rows)))
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
    error = (seen.images.astype(float) - bench.clear(rows).images) ** 2
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
    faces = bench.clear(range(12))
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


# How far guesses resemble clear faces


class Means:
    """A stand-in for LPIPS and Inception: features are channel means, the distance is a mean difference."""

    network = "means"

    def distance(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.abs(a.astype(float) - b).mean((1, 2, 3))

    def features(self, images: np.ndarray) -> np.ndarray:
        return images.mean((1, 2)).astype(np.float32)


def test_means_are_of_the_replaced_square(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise is on everything: what lies outside of the square must not count."""
    monkeypatch.setattr(lab_bench, "find_judges", lambda _: Judges(lpips=Means(), inception=Means()))  # type: ignore[arg-type]
    bench = replace(bench, prepared=replace(bench.prepared, region=(4, 4, 28, 28)))
    rows = np.array([0, 1, 2, 4, 5, 7, 9])
    clear = bench.clear(rows)
    noise = np.random.default_rng(1).normal(size=clear.images.shape) * 30
    faces = clear.with_images((clear.images + noise).clip(0, 255).astype(np.uint8))
    found = {one.metric: one for one in matrix.fidelity_figures(bench, rows, faces)}
    pairs = [(a[4:28, 4:28], b[4:28, 4:28]) for a, b in zip(clear.images, faces.images, strict=True)]
    assert found["PSNR"].value == pytest.approx(np.mean([peak_signal_noise_ratio(a, b) for a, b in pairs]))
    how = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "data_range": 255, "channel_axis": 2}
    ssims = [structural_similarity(a, b, **how) for a, b in pairs]
    assert found["SSIM"].value == pytest.approx(np.mean(ssims), abs=2e-3)
    differences = [np.abs(a.astype(float) - b).mean() for a, b in pairs]
    assert found["LPIPS"].value == pytest.approx(np.mean(differences), rel=1e-5)
    means = [np.array([image.mean((0, 1)) for image in side]) for side in zip(*pairs, strict=True)]
    shift = means[0].mean(0) - means[1].mean(0)
    assert found["FID"].value >= float(shift @ shift) * 0.999  # type: ignore[operator]
    assert {(one.n, one.unit) for one in found.values()} == {(7, "images")}
    assert found["PSNR"].low < found["PSNR"].value < found["PSNR"].high  # type: ignore[operator]


@given(st.integers(2, 6), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_angles_are_angles(size: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, count, size))
    found = matrix.angles(a.astype(np.float32), b.astype(np.float32) * 7)
    slow = [math.acos(max(-1, min(1, x @ y / math.sqrt((x @ x) * (y @ y))))) for x, y in zip(a, b, strict=True)]
    assert found == pytest.approx(slow, abs=1e-4)
    assert matrix.angles(a, a * 3) == pytest.approx(np.zeros(count), abs=1e-7)
    assert matrix.angles(a, -a) == pytest.approx(np.full(count, np.pi), abs=1e-7)
