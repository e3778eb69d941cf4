"""The matrix on made people, whose identity is a texture: controls, attackers, resuming; configurations."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pytest
import yaml
from network_world import write_network
from PIL import Image
from scipy.spatial.distance import cdist
from texture_world import judged_by_textures, write_people

import ficgan.deidentify
import ficgan.lab
from ficgan.anonymizers import ANONYMIZERS, Faces
from ficgan.anonymizers.k_same import AverageFace
from ficgan.errors import FicganError, UsageError
from ficgan.files import file_digest
from ficgan.lab import Ficgan, matrix
from ficgan.lab import bench as lab_bench
from ficgan.lab.attackers import titles
from ficgan.lab.attacks import REVERSERS, Pairs, ReverserTraits
from ficgan.lab.attacks.learned import Learned
from ficgan.lab.matrix_config import MatrixConfig, load_attack, load_matrix, parse_attack
from ficgan.lab.report import controls, headlines, ranking
from ficgan.lab.results import Results
from ficgan.lab.run import Store, files_digest, fingerprint

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


def test_what_is_finished_is_not_done_again(run: tuple[Results, Path], people: Path) -> None:
    """And a task that is lost is made again alike."""
    results, out = run
    assert str(people.parent) not in results.to_json()
    assert Results.read(out / "results.json").trials == results.trials
    before = {path: path.stat().st_mtime_ns for path in (out / "store").glob("*.json")}
    lost = next(path for path in before if (json.loads(path.read_text())["method"] or {}).get("name") == "solid")
    lost.unlink()
    again = matrix.run_matrix(config(people, **UTILITY), out)
    after = {path: path.stat().st_mtime_ns for path in (out / "store").glob("*.json")}
    assert {path for path in before if after[path] != before[path]} == {lost}
    assert again.trials == results.trials


def test_groups_and_utility_are_there(run: tuple[Results, Path]) -> None:
    results, _ = run
    naive = next(t for t in results.trials if t.scenario == "naive" and t.method.startswith("gaussian"))
    assert {"gender=Female", "gender=Male"} <= set(naive.groups)
    kept = {one.method: {figure.metric: figure.value for figure in one.figures} for one in results.utilities}
    assert len(kept) == 5 and kept["clear"]["ssim"] == pytest.approx(1)
    assert kept["solid"]["ssim"] < 0.2


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
    network = learner = None  # type: ignore[assignment]  # it trains none

    def fit(self, pairs: Pairs, **_: Any) -> ByHeart:
        self.taught.append(pairs)
        return ByHeart(pairs=pairs)

    def reverse(self, faces: Faces, n: int = 1) -> np.ndarray:
        known, seen = (one.images.reshape(len(one), -1).astype(np.float32) for one in (self.pairs.anonymised, faces))
        return self.pairs.clear.images[cdist(seen, known).argmin(1)][:, None]


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


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_an_array_is_made_once_and_made_again_when_damaged(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> np.ndarray:
        made.append(1)
        return np.arange(6).reshape(2, 3)

    store = Store(tmp_path / "store")
    for _ in range(3):
        assert np.array_equal(store.kept(["a", 1], make), np.arange(6).reshape(2, 3))
    assert len(made) == 1
    store.kept(["a", 2], make)
    assert len(made) == 2
    for path in (tmp_path / "store").iterdir():
        path.write_bytes(path.read_bytes()[:90])
    store.kept(["a", 1], make)
    assert len(made) == 3
    Store(None).kept(["a", 1], make)
    assert len(made) == 4


def test_files_are_known_by_what_is_in_them(tmp_path: Path) -> None:
    file = tmp_path / "v.onnx"
    file.write_bytes(b"one")
    first = files_digest(f"onnx:{file}")
    file.write_bytes(b"two, longer")
    assert len(first) == 1 and files_digest(f"onnx:{file}") != first
    assert files_digest(f"onnx:{file}+onnx:{file}") == files_digest(f"onnx:{file}") * 2
    assert files_digest("as_described") == [] and files_digest(str(tmp_path / "none.onnx")) == []
    (tmp_path / "inner.png").write_bytes(b"x")
    before = files_digest(str(tmp_path))
    (tmp_path / "inner.png").write_bytes(b"xy")
    assert files_digest(str(tmp_path)) != before


@pytest.mark.slow
def test_fingerprints_follow_parameters_seeds_and_backgrounds() -> None:
    rng = np.random.default_rng(0)
    sets = [Faces(rng.integers(0, 256, (3, 32, 32, 3), np.uint8), ("a", "b", "c")) for _ in range(2)]
    prints = {fingerprint(AverageFace().fit(faces)) for faces in sets} | {fingerprint(AverageFace())}
    assert len(prints) == 3
    assert fingerprint(AverageFace().fit(sets[0])) in prints
    weak = Ficgan(layer=7, k=10)
    assert len({fingerprint(one) for one in (weak, replace(weak, seed=1), replace(weak, layer=6))}) == 3


# -- configurations ----------------------------------------------------------------------------------------------------


assert ficgan.deidentify  # registers the generative methods

GOOD = """
title: T
sets: [{name: a, path: faces, split: {test: 10}}]
methods: [average-face, "ficgan:layer=0,k=100", {method: ficgan, label: weak, layer: 7}]
recognisers: [dlib, "onnx:models/r.onnx"]
scenarios: [clear, naive]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "m.yaml"
    path.write_text(text)
    return path


def test_short_and_long_forms(tmp_path: Path) -> None:
    config = load_matrix(write(tmp_path, GOOD))
    assert [method.title for method in config.methods] == ["average-face", "ficgan (layer 0, k 100)", "weak"]
    strong = config.methods[1].make()
    assert (strong.layer, strong.k) == (0, 100)  # type: ignore[attr-defined]
    assert config.sets[0].path == str(tmp_path / "faces")
    placed = load_matrix(write(tmp_path, GOOD.replace("average-face", '"external:folder=results"')))
    assert placed.methods[0].parameters["folder"] == str(tmp_path / "results")
    assert config.recognisers == ["dlib", f"onnx:{tmp_path / 'models/r.onnx'}"]
    cloak = "{method: fawkes, verifier: 'onnx:a.onnx+onnx:/b.onnx'}"
    text = GOOD.replace("average-face", cloak).replace("title: T", "general: ['external:folder=restored']")
    config = load_matrix(write(tmp_path, text))
    assert config.methods[0].parameters["verifier"] == f"onnx:{tmp_path / 'a.onnx'}+onnx:/b.onnx"
    assert config.general == [f"external:folder={tmp_path / 'restored'}"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("title: T", "titel: T", "did you mean 'title'"),
        ("split: {test: 10}", "splt: {test: 10}", "did you mean 'sets.split'"),
        ("average-face", "average-fase", "did you mean average-face"),
        ("k=100", "k=1", "at least 2"),
        ("[clear, naive]", "[clear, naiv]", "did you mean naive"),
        ("label: weak", "label: average-face", "two methods are called"),
        ("title: T", "specialised: ['wiener:kernl=3']", "did you mean kernel"),
        ("test: 10", "test: 1", "greater than or equal to 2"),
        ('recognisers: [dlib, "onnx:models/r.onnx"]', "recognisers: []", "at least 1"),
    ],
)
def test_every_mistake_is_one_sentence(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(UsageError, match=said):
        load_matrix(write(tmp_path, GOOD.replace(old, new)))


# -- attackers --------------------------------------------------------------------------------------------------------

BASE = {"attacker": "autoencoder:size=16", "anonymizer": "gaussian-blur:kernel=9"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"atacker": "autoencoder"}, "did you mean 'attacker'"),
        ({"set": {"split": {"atacker": 4}}}, "did you mean 'set.split.attacker'"),
        ({"attacker": {"name": "autoencodr"}}, "did you mean autoencoder"),
        ({"attacker": {"name": "autoencoder", "epoch": 1}}, "did you mean epochs"),
        ({"attacker": {"size": 16}}, "attacker.name is missing"),
        ({"attacker": 3}, "there: attacker"),
        ({"attacker": "autoencoder:size=18"}, "multiple of 4"),
        ({"attacker": "ridge"}, "ficgan-attack run ridge"),
        ({"attacker": "wiener-blind"}, "ficgan-attack run wiener-blind"),
        ({"anonymizer": "gausian-blur"}, "did you mean gaussian-blur"),
        ({"anonymizer": {"method": "gaussian-blur", "kernal": 9}}, "did you mean kernel"),
        ({"set": {"size": 8}}, "set.size"),
    ],
)
def test_mistakes_name_the_key(change: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as found:
        parse_attack({**BASE, **change}, where="there")
    assert said in str(found.value) and "\n" not in str(found.value)


def test_overrides_reach_short_forms_and_sections(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(BASE))
    config = load_attack(file, ["attacker.epochs=3", "anonymizer.kernel=11", "set.split.test=4", "seed=5"])
    attacker = config.learner()
    assert (attacker.epochs, attacker.size, attacker.seed) == (3, 16, 5)
    assert config.anonymizer.parameters["kernel"] == 11 and config.set.split.test == 4
    assert load_attack(file, ["attacker.seed=9", "seed=5"]).learner().seed == 9
    for text, said in (("attacker.epochs", "key=value"), ("seed.x=1", "is a value")):
        with pytest.raises(UsageError, match=said):
            load_attack(file, [text, "seed=1"] if said == "key=value" else ["seed=1", text])


def test_what_is_shared_holds_no_key_and_no_folder() -> None:
    tree = {**BASE, "anonymizer": "block-permutation:block=8,key=hushhush", "set": {"labels": "/home/me/l.csv"}}
    shown = repr(parse_attack(tree, where="there").shareable())
    assert "hushhush" not in shown and "/home" not in shown and "block-permutation" in shown
