"""Revelio: printed numbers, who is in which world, its parts on made people, attackers on what they have not learnt."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_world import Means, prepared, reader
from made_world import people as made_people
from PIL import Image
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from stand_ins import random_network
from texture_world import Textures, write_people

from ficgan.anonymizers import ANONYMIZERS, Defended, Faces, generator
from ficgan.anonymizers.defended import Rotation
from ficgan.errors import FicganError, UsageError
from ficgan.faces import get_recognizer
from ficgan.lab import bench as lab_bench
from ficgan.lab import matrix, readers
from ficgan.lab.attacks.revelio import ood_curve
from ficgan.lab.bench import Bench, Subject
from ficgan.lab.metrics import Bootstrap
from ficgan.lab.metrics.utility import Judges
from ficgan.lab.papers import TITLE, read_trials, revelio, revelio_tables, transfer, treated
from ficgan.lab.papers.revelio import (
    ATTACKER,
    DEFENCES,
    PUBLISHER,
    RevelioPaper,
    RevelioStudy,
    RevelioWorld,
    attacker,
    defended,
    divide,
    thresholds_apart,
    upright,
)
from ficgan.lab.papers.revelio_tables import RevelioRun, counted, draw_revelio, run_revelio
from ficgan.lab.readers import Reader
from ficgan.lab.report import controls
from ficgan.lab.run import Run, Store
from ficgan.lab.sets import Prepared, Split, written

SIDE, PEOPLE = 32, 16


# -- what is printed, and who is in which world ------------------------------------------------------------------------


def test_printed_shares_as_counts() -> None:
    assert counted(0.959) == "0.959 [0.899, 0.984]"  # 93 of 97
    assert counted(0.08).endswith(" ~")  # 7 of 97 are 7.2 %, 8 are 8.2 %


def _made(counts: list[int]) -> Prepared:
    people = np.repeat(np.arange(len(counts)), counts)
    images = np.random.default_rng(1).integers(0, 255, (len(people), 8, 8, 3)).astype(np.uint8)
    names = tuple(map(str, range(len(people))))
    return Prepared(Faces(images, names, people=people), (0, 0, 8, 8))


@given(st.lists(st.integers(1, 6), min_size=8, max_size=30), st.integers(1, 30), st.integers(0, 3))
def test_nobody_is_on_both_sides(counts: list[int], probes: int, seed: int) -> None:
    counts = [2, 2, 2, 2, *counts]
    prepared = _made(counts)
    people = prepared.faces.people
    assert people is not None
    world = divide(prepared, probes=probes, identities=5, outside=7, outsiders=4, seed=seed)
    parts = [set(rows.tolist()) for rows in (world.reference, world.closed, world.outside)]
    assert not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])
    known = set(people[world.reference])
    assert set(people[world.closed]) <= known
    assert not set(people[world.outside]) & known
    assert 1 <= len(world.closed) <= probes
    assert len(world.outside) <= 7
    assert len(set(people[world.closed])) <= 5
    for person in set(people[world.closed]):  # half of the photos stay with the attacker
        assert (people[world.closed] == person).sum() <= max(1, counts[person] // 2)


def test_thresholds_do_not_flatter_where_there_is_nothing_to_tell() -> None:
    """Distances that say nothing: whoever chooses the threshold on the tested people themselves tells some apart."""
    balanced, flattered = [], []
    people, stranger = np.arange(32), np.arange(32) >= 16
    for seed in range(40):
        least = np.random.default_rng(seed).normal(size=32)
        thresholds, note = thresholds_apart(least, stranger, people, 0)
        flagged = least > thresholds
        balanced.append((flagged[stranger].mean() - flagged[~stranger].mean() + 1) / 2)
        curve = ood_curve(least[~stranger], least[stranger])
        flattered.append(((curve.tpr - curve.fpr).max() + 1) / 2)
        assert "other half" in note and len(np.unique(thresholds)) <= 2
    assert np.mean(balanced) == pytest.approx(0.5, abs=0.04) and np.mean(flattered) > 0.56
    assert "too good" in thresholds_apart(least[13:19], stranger[13:19], people[13:19], 0)[1]


# -- settings ----------------------------------------------------------------------------------------------------------


def test_attackers_work_at_the_size_of_the_crops() -> None:
    assert attacker("autoencoder:epochs=3", 256) == ("Fantômas", "autoencoder:epochs=3,size=224")
    assert attacker("Mine=autoencoder:size=32", 64) == ("Mine", "autoencoder:size=32")
    assert attacker("GFP-GAN=ridge", 64) == ("GFP-GAN", "ridge")
    assert RevelioPaper(data=Path("x"), attackers=("ridge", "Revelio=ridge", "bicubic")).restorer == (
        "Revelio",
        "ridge",
    )
    assert RevelioPaper(data=Path("x"), attackers=("ridge", "bicubic")).restorer == ("bicubic", "bicubic")
    asked = RevelioPaper.of("revelio", ["sweep=7", "adapted=[jpeg]"], data="x", candidates=3)
    assert (asked.sweep, asked.adapted, asked.candidates, asked.probes) == (7, ("jpeg",), 3, 97)


@pytest.mark.parametrize(
    "text", ["parts=[bases]", "candidates=0", "adapted=[box]", "candidate=3", "adapted=[jpeg", "sweep=many"]
)
def test_what_cannot_work_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        RevelioPaper.of("revelio", [text], data="x")


# -- the parts ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_people(tmp_path_factory.mktemp("revelio") / "people", PEOPLE, 4, 3, noise=8)


def judged_by(patch: pytest.MonkeyPatch, name: str) -> None:
    judge = Reader(Textures(4, metric="euclidean", match_threshold=0.6), name, "textures-4")  # type: ignore[arg-type]
    patch.setattr(revelio, "get_readers", lambda names: [judge])
    patch.setattr(readers, "get_readers", lambda names, device="cpu": [judge])


@pytest.fixture(scope="module")
def _judge() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        judged_by(patch, "textures")
        patch.setattr(
            lab_bench, "find_judges", lambda _: Judges(missing={"lpips": "not here", "inception": "not here"})
        )
        yield


SMALL: dict[str, Any] = {
    "size": SIDE,
    "aligned": True,
    "attackers": ("bicubic", "Revelio=ridge"),
    "probes": 6,
    "identities": 4,
    "outside": 4,
    "outsiders": 3,
    "candidates": 2,
    "sweep": 3,
    "resamples": 30,
    "estimator": (8, 4, 4),
    "estimator_network": "perceptron",
    "pictures": 2,
}
DONE = ("base", "retrieval", "sweep", "defences", "ood")
ASKED: dict[str, Any] = {
    **SMALL,
    "parts": DONE,
    "adapted": ("jpeg", "rotation"),
    "attackers": ("bicubic", "autoencoder:size=32,linear=none,epochs=1", "Revelio=ridge"),
}


@pytest.fixture(scope="module")
def run(people: Path, tmp_path_factory: pytest.TempPathFactory, _judge: None) -> RevelioRun:
    return run_revelio(RevelioPaper(data=people, **ASKED), tmp_path_factory.mktemp("out"))


def _rows(run: RevelioRun, title: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Rows of a table by its first two cells."""
    rows = next(table["rows"] for table in run.tables if title in table["title"])
    return {tuple(list(row.values())[:2]): row for row in rows}


def test_no_cell_is_empty_and_rows_have_the_columns_of_the_first(run: RevelioRun) -> None:
    for table in run.tables:
        for row in table["rows"]:
            assert list(row) == list(table["rows"][0]) and all(map(str, row.values())), table["title"]
    json.dumps(run.tables, allow_nan=False)


@pytest.mark.slow
def test_plots_and_strips_are_drawn(run: RevelioRun, tmp_path: Path) -> None:
    names = {path.name for path in draw_revelio(run.experiment, run.outcomes, tmp_path)}
    assert {"figure-7.svg", "figure-7.png", "figure-15.svg", "heavy.png", "light.png", "READ-FIRST.txt"} <= names
    with Image.open(tmp_path / "pictures" / "heavy.png") as strip:
        assert strip.size == (5 * 128, TITLE + 2 * 128)


def test_retrieval_is_that_of_a_slow_loop(run: RevelioRun) -> None:
    lab = run.experiment
    how, rows = lab.blur("heavy"), lab.world.closed
    guesses = lab.restorer(how).restored(lab.seen(how, rows), rows)
    codes = [
        Textures(4).embed(image, np.zeros(0))[0].astype(float) for image in lab.bench.clear(lab.world.reference).images
    ]
    hits, lowest = 0, []
    for image, person in zip(guesses.images, lab.bench.people[rows], strict=True):
        away = [float(np.linalg.norm(Textures(4).embed(image, np.zeros(0))[0] - code)) for code in codes]
        hits += int(lab.bench.people[lab.world.reference[int(np.argmin(away))]] == person)
        lowest.append(min(away))
    trial = next(one for one in run.outcomes["retrieval"].trials if one.method == "heavy")
    assert trial.figures[0].value == pytest.approx(hits / len(rows))  # one guess repeated votes as it does alone
    curve = run.outcomes["ood"].facts["curves"]["textures"]
    np.testing.assert_allclose(curve["inside"], lowest, rtol=1e-4)
    mine, theirs = np.array(curve["inside"]), np.array(curve["outside"])
    greater = np.mean([(b > a) + 0.5 * (b == a) for a in mine for b in theirs])
    assert curve["AUC"] == pytest.approx(greater) and "too good" in curve["note"]


def test_what_is_done_is_kept(run: RevelioRun, people: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real, out = revelio_tables._do, run.experiment.run.out
    monkeypatch.setattr(revelio_tables, "_do", lambda study, part, say: asked.append(part) or real(study, part, say))

    def again(**more: Any) -> RevelioRun:
        return run_revelio(RevelioPaper(data=people, **{**ASKED, **more}), out)

    more = again(parts=("defences", "fine-tuning"))
    assert asked == ["fine-tuning"]
    assert {part: more.outcomes[part].trials for part in DONE} == {p: run.outcomes[p].trials for p in DONE}
    assert set(_rows(more, "Table 2")) == {("base", "paper"), ("fine-tuned", "paper")}  # of a diffusion alone
    again(parts=("retrieval",), seed=1)
    assert asked == ["fine-tuning", "retrieval"]  # other settings, another run
    with pytest.raises(FicganError, match="none"):
        again(parts=("base",), attackers=(f"Mine=external:folder={out / 'none'}", "Revelio=ridge"))


def test_defences_met_and_learnt(run: RevelioRun) -> None:
    def likeness(scenario: str, method: str) -> Any:
        found = [one for one in run.outcomes["defences"].trials if (one.scenario, one.method) == (scenario, method)]
        return next(one for one in found if one.attacker != revelio.BARE).value("PSNR")

    # What has learnt turned faces gives upright ones.
    assert likeness(revelio.ADAPTED, "rotation") > likeness(revelio.DEFENDED, "none") - 2
    (none,) = [t for t in run.outcomes["defences"].trials if (t.method, t.attacker) == ("none", "Revelio")]
    light = next(one for one in run.outcomes["retrieval"].trials if one.method == "light")
    assert none.figures[:2] == light.figures and none.figures[0].note == "majority of 2 guesses"  # the vote of Table 1
    learnt = [t for t in run.outcomes["defences"].trials if t.scenario == revelio.ADAPTED]
    assert {trial.attacker for trial in learnt} == {"Revelio, trained anew"}


@pytest.mark.slow
def test_a_parrots_network_is_trained_on(people: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a judge that is an ONNX network; its linear head stands beside it."""
    name = f"onnx:{random_network(tmp_path / 'judge.onnx')}"
    monkeypatch.setattr(revelio, "get_readers", lambda _: [Reader(get_recognizer(name), "judge", "random")])
    asked = {**SMALL, "attackers": ("Revelio=bicubic",), "parts": ("base",)}
    run = run_revelio(RevelioPaper(data=people, parrot_epochs=1, **asked), tmp_path / "out")
    found = {name: row for (name, judge), row in _rows(run, "Table 1").items() if judge == "judge"}
    assert {revelio.PARROT, f"{revelio.PARROT}, linear head"} <= set(found)
    assert all(found[revelio.PARROT][level] != "–" for level in ("light", "heavy"))


def test_controls_stand_beside_the_attackers(run: RevelioRun) -> None:
    lab, trials = run.experiment, [one for one in run.outcomes["base"].trials if one.method == "heavy"]
    found = {one.attacker: one for one in trials}
    assert found["Clear"].value("IRA") == 1.0
    enrolled, tested = (lab.bench.people[rows] for rows in (lab.world.reference, lab.world.closed))
    share = np.mean([(enrolled == person).sum() / len(enrolled) for person in tested])
    assert found["Chance"].value("IRA") == pytest.approx(share)
    checks = [one for one in controls(run.results) if one.name.startswith("closed world")]
    assert len(checks) == 4 and all(one.holds for one in checks)
    assert 0 < found["Same person, another photo"].value("IDD") < found["Strangers"].value("IDD")
    clear = lab.bench.clear(lab.world.closed).images.astype(float)
    mean = lab.bench.clear(lab.world.reference).images.astype(float).mean(0)
    ratio = 10 * np.log10(255**2 / ((clear - mean) ** 2).mean((1, 2, 3)))
    assert found["Mean face"].value("PSNR") == pytest.approx(ratio.mean(), abs=0.01)


# -- other treatments --------------------------------------------------------------------------------------------------


SIDE, EACH = 32, 3
NONE = np.zeros(0, np.int64)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Made people: the first eight are learnt from, the others' first two photos are enrolled."""
    judges = Judges(missing={"lpips": "not here", "inception": "not here"})
    monkeypatch.setattr(lab_bench, "find_judges", lambda _: judges)
    faces = made_people(12, EACH, SIDE, 50, blocks=SIDE)
    rows, tested = np.arange(8 * EACH), np.arange(8 * EACH, 12 * EACH)
    made = Split(NONE, rows, tested[tested % EACH < 2], tested[tested % EACH == 2], NONE)
    parts = written(made, faces.people, {}, faces.names)  # type: ignore[arg-type]
    judge = reader(metric="euclidean", match_threshold=0.6)
    return Bench(prepared(faces), parts, [judge], None, Store(tmp_path), resamples=50)


def test_overlays_are_the_background_s_faces(bench: Bench) -> None:
    with pytest.raises(UsageError):
        Subject(bench, ANONYMIZERS.make("k-rtio"))
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
