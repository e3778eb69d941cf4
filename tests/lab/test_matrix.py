"""The whole matrix on made people, whose identity is a texture: controls, attackers, resuming, refusals."""

from __future__ import annotations

import csv
import html
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pytest
from network_world import write_network
from PIL import Image
from scipy.spatial.distance import cdist
from texture_world import judged_by_textures, write_people

import ficgan.lab
from ficgan.anonymizers import ANONYMIZERS, Faces
from ficgan.errors import FicganError, UsageError
from ficgan.files import file_digest
from ficgan.lab import bench as lab_bench
from ficgan.lab import matrix
from ficgan.lab.attackers import titles
from ficgan.lab.attacks import REVERSERS, Pairs, ReverserTraits
from ficgan.lab.attacks.learned import Learned
from ficgan.lab.matrix_config import MatrixConfig
from ficgan.lab.report import write_report
from ficgan.lab.report.tables import controls, headlines, ranking
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


def placed(folder: Path) -> dict[str, object]:
    return {"name": folder.name, "path": str(folder), "labels": str(folder / "labels.csv"), "aligned": True}


def config(folder: Path, source: Mapping[str, object] = MappingProxyType({}), **more: object) -> MatrixConfig:
    split = {"background": 10, "attacker": 26, "test": 20, "enrolment": 0.5}
    tree = {
        "title": "made people",
        "sets": [{**placed(folder), "size": SIDE, "split": split, **source}],
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
    trials = [t for t in results.trials if (t.method, t.scenario) == (method, scenario)]
    return next(trial for trial in trials if attacker in (trial.attacker, "")).value("rank-1")


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
    judge = tmp_path / "v.onnx"
    judge.write_bytes(b"v")
    files = write_network(tmp_path / "model", training={"verifier_sha256": file_digest(judge)})
    (tmp_path / "labels.csv").write_text("file,person\n")
    tree = config(tmp_path, methods=[{"method": "ficgan", **files}], recognisers=[f"onnx:{judge}"])
    with pytest.raises(UsageError, match="trained"):
        matrix.run_matrix(tree, tmp_path / "out")


# -- attackers that learn ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ByHeart(Learned):
    """Learns its pairs by heart, and gives back the clear faces of the nearest anonymised ones."""

    name: ClassVar[str] = "by-heart"
    traits: ClassVar[ReverserTraits] = ReverserTraits("By heart", "a test", frozenset({"pairs"}))
    pairs: Any = field(default=None, repr=False, compare=False)
    taught: ClassVar[list[Pairs]] = []

    def fit(self, pairs: Pairs, **_: Any) -> ByHeart:
        self.taught.append(pairs)
        return ByHeart(pairs=pairs)

    def guess(self, faces: Faces) -> np.ndarray:
        known, seen = (one.images.reshape(len(one), -1).astype(np.float32) for one in (self.pairs.anonymised, faces))
        return self.pairs.clear.images[cdist(seen, known).argmin(1)]


@pytest.fixture
def learning(people: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Results]:
    """Runs a matrix of one method in which attackers learn."""
    monkeypatch.setitem(REVERSERS._classes, "by-heart", ByHeart)
    monkeypatch.setattr(ByHeart, "taught", [])
    some = {"methods": ["block-permutation:block=8,key=a"], "scenarios": ["clear", "naive", "reversed-general"]}

    def run(**more: object) -> Results:
        lab_bench._cached_bench.cache_clear()
        return matrix.run_matrix(config(people, **some, general=["by-heart", "ridge"], **more), tmp_path)

    return run


def test_one_training_serves_scenarios_and_runs(learning: Callable[..., Results]) -> None:
    method = "block-permutation (block 8)"
    first = rank1(learning(), method, "reversed-general", "by-heart")
    results = learning(specialised=["by-heart"], resamples=31)
    assert len(ByHeart.taught) == 1 and rank1(results, method, "reversed-general", "by-heart") == first


def test_another_set_to_learn_from(learning: Callable[..., Results], people: Path, tmp_path: Path) -> None:
    other = write_people(tmp_path / "other", people=6, seed=9, cells=16)
    for index, path in enumerate(sorted(people.glob("*.png"))[:3]):  # the same pictures under other names
        (other / f"000-{index}.png").write_bytes(path.read_bytes())
    results = learning(source={"learn_from": {**placed(other), "licence": "CC0"}})
    found = {trial.attacker for trial in results.trials if trial.scenario == "reversed-general"}
    assert found == {"by-heart: learnt on other", "ridge: learnt on other"}
    mine = np.stack([np.asarray(Image.open(path)) for path in people.glob("*.png")])
    shown = ANONYMIZERS.make("block-permutation", block=8, key="a")(Faces(mine, tuple(map(str, range(len(mine))))))
    (pairs,) = ByHeart.taught
    seen = {image.tobytes() for side in (pairs.anonymised, pairs.clear) for image in side.images}
    assert not seen & {image.tobytes() for image in (*mine, *shown)}
    facts = results.sets[people.name]["learn_from"]
    assert facts["licence"] == "CC0" and facts["faces"] == 21 and facts["people"] == 6
    assert str(tmp_path) not in results.to_json()


def test_titles_are_short_and_tell_apart() -> None:
    specs = [
        "ridge:penalty=3",
        "autoencoder:size=64,linear=none,epochs=400,batch=64,patience=30",
        "autoencoder:size=64,linear=full,epochs=400,batch=64,patience=30",
        "trained:file=/home/somebody/trained/attacker.safetensors",
        "trained:file=/home/another/trained/attacker.safetensors",
    ]
    found = list(titles(specs).values())
    assert found[0] == "ridge:penalty=3" and "linear=none" in found[1]
    assert len(set(found)) == len(specs) and max(map(len, found)) <= 80 and "/" not in "".join(found)
