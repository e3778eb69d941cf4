"""Revelio's printed numbers against its text, who is in which world, and the parts on made people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from stand_ins import random_network
from texture_world import Textures, write_people

from ficgan.anonymizers import Faces
from ficgan.errors import FicganError, UsageError
from ficgan.faces import get_recognizer
from ficgan.lab import bench, readers
from ficgan.lab.attacks.revelio import ood_curve
from ficgan.lab.metrics.utility import Judges
from ficgan.lab.papers import revelio, revelio_tables
from ficgan.lab.papers.revelio import RevelioPaper, attacker, divide, thresholds_apart
from ficgan.lab.papers.revelio_tables import RevelioRun, counted, draw_revelio, run_revelio
from ficgan.lab.readers import Reader
from ficgan.lab.report.tables import controls
from ficgan.lab.sets import Prepared

SIDE, PEOPLE = 32, 16


# -- what is printed, and who is in which world ------------------------------------------------------------------------


def test_printed_shares_as_counts() -> None:
    assert counted(0.959) == "0.959 [0.899, 0.984]"  # 93 of 97
    assert counted(0.08).endswith(" ~")  # 7 of 97 are 7.2 %, 8 are 8.2 %


def _made(counts: list[int]) -> Prepared:
    people = np.repeat(np.arange(len(counts)), counts)
    images = np.random.default_rng(1).integers(0, 255, (len(people), 8, 8, 3)).astype(np.uint8)
    names = tuple(map(str, range(len(people))))
    return Prepared(Faces(images, names, people=people), (0, 0, 8, 8), np.arange(len(people)))


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
        patch.setattr(bench, "find_judges", lambda _: Judges(missing={"lpips": "not here", "inception": "not here"}))
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
        assert strip.size == (5 * 132 - 4, 2 * 132 - 4)


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


@pytest.mark.slow
@pytest.mark.usefixtures("_judge")
def test_the_kernel_estimator_is_asked_and_its_error_counted(
    people: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ficgan.lab.attacks import networks as kernel

    class Oracle:
        """Says one size too large of the smallest kernel alone, and later always that of the light blur."""

        @classmethod
        def train(cls, images: np.ndarray, kernels: tuple[int, ...], **more: Any) -> Oracle:
            assert len(images) <= 8 and len(more["validation"]) <= 4
            cls.answers = iter([kernels[0] + 2, *kernels[1:], 5, 5])
            return cls()

        def estimate(self, images: np.ndarray) -> np.ndarray:
            return np.full(len(images), next(self.answers))

        def regress(self, images: np.ndarray) -> np.ndarray:
            return np.full(len(images), 4.625)

    monkeypatch.setattr(kernel, "KernelEstimator", Oracle)
    run = run_revelio(RevelioPaper(data=people, **{**SMALL, "parts": ("kernel",)}), tmp_path)
    facts = run.outcomes["kernel"].facts
    assert facts["kernels"] == [1, 3, 5, 7, 9, 11] and facts["error"] == pytest.approx(2 / 6)
    assert facts["chosen rightly"] == {"light": 1.0, "heavy": 0.0}
    assert "says 37.0" in facts["rows"][1]["pixels of 256"]
    assert draw_revelio(run.experiment, run.outcomes, tmp_path)[0].name == "figure-13.png"
    lab = run.experiment
    guesses = lab.restorer(lab.blur("light")).restored(lab.seen(lab.blur("heavy"), lab.world.closed), lab.world.closed)
    error = ((guesses.images.astype(float) - lab.bench.clear(lab.world.closed).images) ** 2).mean((1, 2, 3))
    heavy = run.outcomes["kernel"].trials[1]
    assert heavy.method == "heavy"
    assert heavy.value("PSNR") == pytest.approx(np.mean(10 * np.log10(255**2 / error)), rel=1e-5)
