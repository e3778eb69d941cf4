"""The whole matrix on made people, whose identity is a texture: controls, attackers, resuming, refusals."""

from __future__ import annotations

import csv
import html
import json
from pathlib import Path

import pytest
from network_world import write_network
from texture_world import judged_by_textures, write_people

import ficgan.lab
from ficgan.errors import FicganError, UsageError
from ficgan.files import file_digest
from ficgan.lab import matrix
from ficgan.lab.matrix_config import MatrixConfig
from ficgan.lab.report import write_report
from ficgan.lab.report.tables import controls, figure, headlines, ranking
from ficgan.lab.results import Results

assert ficgan.lab
PEOPLE, EACH, SIDE = 56, 4, 64
UTILITY = {"utility": True}


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_people(tmp_path_factory.mktemp("people"), PEOPLE, EACH, cells=16, light=10, genders=True)


@pytest.fixture(autouse=True)
def _judge(monkeypatch: pytest.MonkeyPatch) -> None:
    judged_by_textures(monkeypatch, 16)


def config(folder: Path, **more: object) -> MatrixConfig:
    tree = {
        "title": "made people",
        "sets": [
            {
                "name": "made",
                "path": str(folder),
                "labels": str(folder / "labels.csv"),
                "size": SIDE,
                "aligned": True,
                "split": {"background": 10, "attacker": 26, "test": 20, "enrolment": 0.5},
            }
        ],
        "methods": ["solid", "block-permutation:block=8,key=a", "gaussian-noise:sigma=100", "k-same-pixel:k=5"],
        "scenarios": ["all"],
        "recognisers": ["dlib"],
        "resamples": 30,
        "utility": False,
        "reversal_metrics": False,
        **more,
    }
    return MatrixConfig.model_validate(tree)


def rank1(results: Results, method: str, scenario: str, attacker: str = "") -> float | None:
    trial = next(
        t for t in results.trials if (t.method, t.scenario) == (method, scenario) and attacker in (t.attacker, "")
    )
    return figure(trial.figures, "rank-1").value  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def run(people: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Path]:
    with pytest.MonkeyPatch.context() as patch:
        judged_by_textures(patch, 16)
        out = tmp_path_factory.mktemp("out")
        return matrix.run_matrix(config(people, **UTILITY), out), out


def test_controls_come_out_as_they_must(run: tuple[Results, Path]) -> None:
    results, _ = run
    assert rank1(results, "clear", "clear") == 1.0
    assert rank1(results, "clear", "constant") == pytest.approx(1 / 20)
    names = {control.name: control.holds for control in controls(results)}
    assert names == {
        "clear": True,
        "constant": True,
        "right-key: block-permutation (block 8)": True,
        "learn-permutation on block-permutation (block 8)": True,
        "ridge on block-permutation (block 8)": True,
    }


def test_within_kind_comes_first_where_the_gallery_is_clear(run: tuple[Results, Path]) -> None:
    results, _ = run
    first = {(t.method, t.scenario): t.figures[0] for t in results.trials if t.figures[0].metric == "within-kind"}
    assert {scenario for _, scenario in first} == {"clear", "constant", "naive"}
    assert first["clear", "clear"].value == 1 and first["clear", "clear"].n == 40
    assert first["solid", "naive"].value == pytest.approx(0.5)  # all outputs are alike
    assert first["clear", "constant"].value == pytest.approx(0.5)
    assert "within kind" in results.caveats[0].lower()
    assert all("within kind" in row for row in ranking(headlines(results)))


def test_attackers_do_what_they_can_and_no_more(run: tuple[Results, Path]) -> None:
    results, _ = run
    permutation = "block-permutation (block 8)"
    assert rank1(results, permutation, "naive") < 0.3
    assert rank1(results, permutation, "reversed-specialised", "learn-permutation") == 1.0
    assert rank1(results, permutation, "parrot-enrol") == 1.0
    assert rank1(results, "solid", "naive") == pytest.approx(1 / 20)
    assert rank1(results, "solid", "parrot-enrol") == pytest.approx(1 / 20)
    noise = "gaussian-noise (sigma 100)"
    assert rank1(results, noise, "averaged-draws") >= rank1(results, noise, "naive")
    worst = {one.method: one.trial.scenario for one in headlines(results) if one.trial}  # type: ignore[union-attr]
    assert worst[permutation] in ("reversed-specialised", "parrot-enrol", "parrot-train")
    order = [one.method for one in headlines(results)]
    assert order[0] == "solid"


def test_groups_of_people_have_figures_of_their_own(run: tuple[Results, Path]) -> None:
    results, _ = run
    naive = next(t for t in results.trials if t.scenario == "naive" and t.method.startswith("gaussian"))
    assert {"gender=Female", "gender=Male"} <= set(naive.groups)


def test_what_is_finished_is_not_done_again(run: tuple[Results, Path], people: Path) -> None:
    """And a task that is lost is made again alike."""
    results, out = run
    assert Results.read(out / "results.json").trials == results.trials
    before = {path: path.stat().st_mtime_ns for path in (out / "store").glob("*.json")}
    lost = next(path for path in before if (json.loads(path.read_text())["method"] or {}).get("name") == "solid")
    lost.unlink()
    again = matrix.run_matrix(config(people, **UTILITY), out)
    after = {path: path.stat().st_mtime_ns for path in (out / "store").glob("*.json")}
    assert {path for path in before if after[path] != before[path]} == {lost}
    assert again.trials == results.trials


def test_utility_is_there_for_every_method(run: tuple[Results, Path]) -> None:
    results, _ = run
    kept = {one.method: {figure.metric: figure.value for figure in one.figures} for one in results.utilities}
    assert len(kept) == 5 and kept["clear"]["ssim"] == pytest.approx(1)
    assert kept["solid"]["ssim"] < 0.2


def test_the_report_holds_the_figures_and_needs_nothing_else(
    run: tuple[Results, Path], people: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, _ = run
    monkeypatch.setattr("ficgan.lab.report.draw_all", lambda *_: {})
    assert str(people.parent) not in results.to_json()
    files = write_report(results, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert str(people.parent) not in page
    assert "http" not in page.replace("http://www.w3.org", "")
    for caveat in results.caveats:
        assert html.escape(caveat).replace("&quot;", "&#34;").replace("&#x27;", "&#39;") in page
    rows = list(csv.DictReader((tmp_path / "tables" / "privacy.csv").read_text().splitlines()))
    assert len(rows) == sum(len(trial.figures) for trial in results.trials)
    assert {path.suffix for path in files} == {".html", ".json", ".csv"}
    assert json.loads((tmp_path / "report.json").read_text())["title"] == "made people"


def test_one_failed_method_does_not_cost_the_others(people: Path, tmp_path: Path) -> None:
    bad = config(people, methods=["solid", "k-same-pixel:k=500"], scenarios=["clear", "naive"])
    with pytest.raises(FicganError, match="k-same-pixel"):
        matrix.run_matrix(bad, tmp_path)
    assert len(list((tmp_path / "store").glob("*.json"))) == 2  # clear and solid
    assert not (tmp_path / "results.json").exists()


def test_a_judge_that_trained_the_model_is_refused(tmp_path: Path) -> None:
    shared = Path(__file__).resolve().parents[3] / "shared" / "models" / "recognizer_a.onnx"
    if not shared.is_file():
        pytest.skip("no recogniser as ONNX file is here")
    (tmp_path / "labels.csv").write_text("file,person\n")
    files = write_network(tmp_path / "model", training={"verifier_sha256": file_digest(shared)})
    tree = config(tmp_path, methods=[{"method": "ficgan", **files}], recognisers=[f"onnx:{shared}"])
    with pytest.raises(UsageError, match="trained"):
        matrix.run_matrix(tree, tmp_path / "out")
