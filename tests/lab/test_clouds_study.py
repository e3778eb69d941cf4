"""A whole study of clouds on made people, with a detector and a recogniser made for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import clouds_world
import numpy as np
import pytest
from PIL import Image

from ficgan.errors import FicganError
from ficgan.lab.clouds import report, run_cloud_study
from ficgan.lab.clouds.report import METRICS, controls, mu_privacy, points, summary, write_cloud_report
from ficgan.lab.clouds.sets import CloudStudyConfig
from ficgan.lab.clouds.study import CloudStudy, open_study
from ficgan.lab.report.tables import value_of
from ficgan.lab.results import Results

METHODS = ["uniform-noise", "tapering", "merge-2-faces"]
ATTACK = {"epochs": 2, "strengths": [12], "views": 2, "size": 16, "device": "cpu"}


def study(folder: Path, **more: Any) -> CloudStudyConfig:
    tree = {"clouds": str(folder), "prepared": True, "methods": METHODS, "strengths": [1, 12], "timed": 1}
    return CloudStudyConfig.parse(tree | {"costly": [12], "resamples": 50, **more})


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("clouds")
    clouds_world.write_people(root / "people", 4, 1500)
    with pytest.MonkeyPatch.context() as patch:
        clouds_world.install(patch)
        said: list[tuple[int, int, str]] = []
        config = study(root / "people", attack=ATTACK)
        yield root, run_cloud_study(config, root / "out", progress=lambda *now: said.append(now)), said


def test_every_method_at_every_strength_is_judged(ran: Any) -> None:
    _, results, said = ran
    assert len(results.methods) == len(METHODS) * 2 and results.methods_without_a_figure() == {}
    for row in points(results):
        assert 0 <= row["AUC"] <= 1 and 0 <= row["rank-1"] <= 1
        assert row["mu-privacy"] == pytest.approx(mu_privacy(row["AUC"], row["rank-1"]))
    assert said[-1][0] == said[-1][1]
    assert {figure.metric for use in results.utilities for figure in use.figures} <= set(METRICS)
    assert [row["method"] for row in summary(results)] == METHODS
    noise = [row for row in points(results) if row["method"] == "uniform-noise"]
    assert noise[0]["ssim"] > noise[1]["ssim"]


def test_controls_come_out_as_they_must(ran: Any) -> None:
    rows = controls(ran[1])
    assert {row["control"] for row in rows} == {
        "clear",
        "constant",
        "what lies around the face",
        "tapering 12",
        "merge-2-faces 12",
    }
    assert all(row["holds"] for row in rows if row["judge"].endswith("thumb") and row["holds"] is not None)


@pytest.mark.parametrize("attacker", ["untaper", "unmerge"])
def test_exact_inverses_are_read_like_clear_faces(ran: Any, attacker: str) -> None:
    results = ran[1]
    ceiling = {t.recogniser: t for t in results.trials if t.control == "ceiling"}
    back = [t for t in results.trials if t.attacker == attacker]
    assert {t.method.split()[1] for t in back} == {"1", "12"}
    for trial in back:
        clear = value_of(ceiling[trial.recogniser].figures, "rank-1")
        assert value_of(trial.figures, "rank-1") == pytest.approx(clear, abs=0.02)


def test_guesses_are_tried_on_the_others_against_everybody(ran: Any) -> None:
    results = ran[1]
    found = [trial for trial in results.trials if trial.attacker == "thesis-autoencoder"]
    assert {trial.method for trial in found} == {f"{method} 12" for method in METHODS}
    record = results.provenance["thesis_autoencoder"]
    assert record["people"] == {"learnt from or watched on": 2, "tried on": 1} and record["pairs"] == 2 * 2 * 3
    assert all(any(f.metric == "ssim of the guess" for f in trial.figures) for trial in found)


def test_what_is_there_is_not_computed_again(ran: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    root, results, _ = ran
    # The guesses of the auto-encoder are not kept, but it is: clouds are read for them.
    prepared, reads = CloudStudy.prepared, []
    monkeypatch.setattr(CloudStudy, "prepared", lambda self, row: reads.append(row) or prepared(self, row))
    config = study(root / "people", attack=ATTACK)
    again = run_cloud_study(config, root / "out")
    assert again.trials == results.trials and again.utilities == results.utilities
    assert len({open_study(config).clouds.scans[row].person for row in reads}) == 2  # who is guessed at, the target
    trained = "thesis_autoencoder"
    assert again.provenance[trained]["seconds"] == results.provenance[trained]["seconds"]  # read, not trained again


@pytest.mark.slow
def test_the_page_stands_alone(ran: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, results, _ = ran
    few = {"correlations": report.PLOTS["correlations"]}
    monkeypatch.setattr(report, "PLOTS", few)  # to draw all of them takes ten seconds
    read = Results.read(root / "out" / "results.json")
    assert read.trials == results.trials
    page = write_cloud_report(read, tmp_path)[0].read_text()
    assert "http" not in page.replace("http://www.w3.org", "") and str(root) not in page
    assert page.count("data:image/png") == len(few)
    for name in ("points", "summary", "attackers", "controls"):
        assert (tmp_path / "tables" / f"{name}.csv").stat().st_size


def test_an_image_without_a_face_is_read_where_the_clear_face_is(monkeypatch: pytest.MonkeyPatch) -> None:
    judges, places = clouds_world.judges(), []
    embed, thumb = clouds_world.Thumb.embed, clouds_world.Thumb
    monkeypatch.setattr(thumb, "embed", lambda self, image, at: places.append(at) or embed(self, image, at))
    blank = np.full((515, 389, 3), 255, np.uint8)
    clear = blank.copy()
    clear[100:300, 100:300] = 0
    seen = judges.read([clear])
    record = judges.read([blank], (clear, seen))
    assert seen["found"][0] and not record["found"][0] and record["made"][0]
    np.testing.assert_allclose(places[-1][0], seen["marks"][0])
    judges.read([blank])
    assert places[-1][0][:, 1].max() > 300  # the whole image


def test_a_broken_scan_fails_the_study_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = clouds_world.write_people(tmp_path / "people", 3, 400)
    (folder / "p0_smile.ply").write_bytes(b"ply\nformat ascii 1.0\nend_header\n")
    clouds_world.install(monkeypatch)
    with pytest.raises(FicganError, match="p0"):
        run_cloud_study(study(folder, methods=["tapering"]), tmp_path / "out")


@pytest.mark.slow
def test_photos_are_enrolled_in_place_of_projections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clouds_world.install(monkeypatch)
    monkeypatch.setattr("ficgan.lab.clouds.study.get_detector", lambda name: clouds_world.Box())
    folder = clouds_world.write_people(tmp_path / "people", 3, 2500)
    config = study(folder, methods=["uniform-noise"], strengths=[1])
    drawn = open_study(config)
    ranks = []
    for number, names in enumerate((("p0", "p1", "p2"), ("p1", "p2", "p0"))):
        photos = tmp_path / str(number)
        for row, person in zip(drawn.clouds.gallery, names, strict=True):
            (photos / person).mkdir(parents=True)
            Image.fromarray(drawn.picture(row)).save(photos / person / "a.png")
        results = run_cloud_study(config.model_copy(update={"photos": photos}), tmp_path / f"out{number}")
        facts = results.sets["people"]
        assert facts["gallery_kind"] == "photos" and (facts["gallery"], facts["probes"]) == (3, 6)
        found = (t for t in results.trials if t.recogniser == "thumb" and t.scenario in ("clear", "naive"))
        ranks.append([value_of(trial.figures, "rank-1") for trial in found])
    assert min(ranks[0]) > 0.8 and max(ranks[1]) < 0.2
