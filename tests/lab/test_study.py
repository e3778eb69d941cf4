"""The study of obfuscation: its sets and pictures, training and measures against oracles, resumption, the whole."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file
from scene_world import FACE, tiny, write_scenes
from sklearn.metrics import average_precision_score, top_k_accuracy_score
from torch import nn

from ficgan.anonymizers.basic import obfuscate_blur, obfuscate_overlay
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.lab.attacks import training as loop
from ficgan.lab.study import Row, Side, correlation, lost, paired, pearson, run_obfuscation, study_tables, training
from ficgan.lab.study.scenes import Boxes, StudyConfig, StudyTask, covered_share, obfuscated, open_scenes
from ficgan.lab.study.training import (
    Cell,
    Recipe,
    average_precisions,
    evaluation,
    fit,
    hits,
    load_weights,
    make_network,
    spread,
)

Scene = tuple[Path, Path]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def face_scenes(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return write_scenes(tmp_path_factory.mktemp("face"), in_face=True)


def study(config: StudyConfig, out: Path, progress: Any = None) -> Row:
    """What a run left in its file."""
    run_obfuscation(config, out, progress)
    kept: Row = json.loads((out / "study.json").read_text(encoding="utf-8"))
    return kept


# -- sets and pictures -------------------------------------------------------------------------------------------------

box = st.tuples(*[st.integers(-5, 25)] * 4)


@given(st.lists(box, max_size=6), st.tuples(*[st.integers(0, 8)] * 2, *[st.integers(9, 20)] * 2))
def test_covered_share_is_what_a_mask_counts(boxes: list[tuple[int, ...]], within: tuple[int, ...]) -> None:
    boxes = [b for b in boxes if b[0] < b[2] and b[1] < b[3]]
    mask = np.zeros((40, 40), bool)
    for x0, y0, x1, y1 in boxes:
        mask[y0 + 10 : y1 + 10, x0 + 10 : x1 + 10] = True
    x0, y0, x1, y1 = within
    expected = mask[y0 + 10 : y1 + 10, x0 + 10 : x1 + 10].mean()
    found: Boxes = np.array(boxes, np.float32).reshape(-1, 4)
    assert covered_share(found, within) == pytest.approx(expected)


def test_imagenet_is_read_as_it_was_released(tmp_path: Path) -> None:
    for number, name in enumerate(["train/n01/a.JPEG", "train/n02/b.JPEG", "val/n01/v1.JPEG", "val/n02/v2.JPEG"]):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (number, 0, 0)).save(path, "JPEG")
    face, empty = {"x0": 4, "y0": 5, "x1": 9.5, "y1": 20}, {"x0": 4, "y0": 5, "x1": 4, "y1": 20}
    rows = [
        {"url": "train/n01/a.JPEG", "bboxes": [face, empty]},
        {"url": "train/n02/b.JPEG", "bboxes": []},
        {"url": "val/v2.JPEG", "bboxes": [face]},  # "val" has no class in its names
    ]
    table, voc = tmp_path / "faces.json", tmp_path / "xml" / "n02" / "v2.xml"
    table.write_text(json.dumps(rows))
    voc.parent.mkdir(parents=True)
    bounds = "<bndbox><xmin>0</xmin><ymin>5</ymin><xmax>11</xmax><ymax>20</ymax></bndbox>"
    voc.write_text(f"<annotation><object><name>n02</name>{bounds}</object></annotation>")
    scenes = open_scenes(tmp_path / "images", table, tmp_path / "xml")
    assert scenes.classes == ("n01", "n02")
    assert [(s.name, s.label, s.split, len(s.boxes)) for s in scenes.items] == [
        ("train/n01/a.JPEG", 0, "train", 1),
        ("train/n02/b.JPEG", 1, "train", 0),
        ("val/n01/v1.JPEG", 0, "val", 0),
        ("val/n02/v2.JPEG", 1, "val", 1),
    ]
    last = scenes.items[-1]
    assert last.boxes.tolist() == [[4, 5, 9.5, 20]]
    assert last.objects is not None and covered_share(last.boxes, last.objects[0]) == pytest.approx(5.5 / 11)
    assert [len(half) for half in scenes.halves(StudyTask(images=tmp_path))] == [2, 2]
    with pytest.raises(UsageError, match="there are train, val"):
        scenes.halves(StudyTask(images=tmp_path, eval_split="test"))
    table.write_text(json.dumps([{"url": "train/x/none.JPEG", "bboxes": []}]))
    with pytest.raises(InputError, match="no record"):
        open_scenes(tmp_path / "images", table)


def test_holdout_takes_its_share_of_every_class_and_repeats(face_scenes: Scene) -> None:
    scenes, quarter = open_scenes(*face_scenes), StudyTask(images=face_scenes[0], holdout=0.25)
    train, held = scenes.halves(quarter)
    assert {s.name for s in train.items} | {s.name for s in held.items} == {s.name for s in scenes.items}
    assert not {s.name for s in train.items} & {s.name for s in held.items}
    assert np.bincount(held.labels).tolist() == [9, 9]
    assert scenes.halves(quarter)[1].fingerprint == held.fingerprint != train.fingerprint
    with pytest.raises(UsageError, match="'b' has one image only"):
        scenes.take([*np.flatnonzero(scenes.labels == 0), 1]).halves(quarter)


def test_pictures_are_obfuscated_at_full_resolution_and_kept_within_their_room(face_scenes: Scene) -> None:
    scenes = open_scenes(*face_scenes)
    image, boxes = scenes.items[3].load(), np.array([FACE])
    wanted = {
        "original": image,
        "blurred": obfuscate_blur(image, boxes),
        "green": obfuscate_overlay(image, boxes, "green"),
        "overlaid": obfuscate_overlay(image, boxes, "mean"),
    }
    for variant, picture in wanted.items():
        assert np.array_equal(obfuscated(scenes, variant)[3], picture)  # type: ignore[arg-type]
    released = obfuscate_blur(image, boxes, "released")
    assert np.array_equal(obfuscated(scenes, "blurred", "released")[3], released)
    tight = obfuscated(scenes, "red", room=2.5 * image.nbytes)
    tight.fill()
    assert len(tight._kept) == 2
    assert np.array_equal(tight[40], obfuscated(scenes, "red")[40])


# -- training ----------------------------------------------------------------------------------------------------------


class Repeated:
    """One batch an epoch, always the same."""

    steps = batch = 1

    def __init__(self, pair: Any) -> None:
        self.pair = pair

    def epoch(self, number: int, first: int) -> Any:
        return iter([self.pair])

    def held(self) -> Any:
        return iter(())


def test_fit_lowers_the_rate_and_equals_plain_sgd() -> None:
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    ours, plain = nn.Linear(3, 1), nn.Linear(3, 1)
    plain.load_state_dict(ours.state_dict())
    fit(ours, Repeated((x, y)), lambda n, a, b: ((n(a) - b) ** 2).mean(), Recipe(5, 2, 0.1), seed=0)
    velocity = [torch.zeros_like(p) for p in plain.parameters()]
    for step in range(5):
        gradients = torch.autograd.grad(((plain(x) - y) ** 2).mean(), list(plain.parameters()))
        with torch.no_grad():
            for p, v, g in zip(plain.parameters(), velocity, gradients, strict=True):
                v.mul_(0.9).add_(g + 1e-4 * p)
                p.sub_(0.1 * 0.1 ** (step // 2) * v)
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    with pytest.raises(FicganError, match="not finite"):
        fit(ours, Repeated((1.0, 1.0)), lambda n, *_: n.weight.sum() * np.inf, Recipe(1, 1, 0.1), seed=0)


@pytest.mark.parametrize(
    "name", ["narrow-resnet", "squeezenet1_1", pytest.param("shufflenet_v2_x0_5", marks=pytest.mark.slow)]
)
def test_weights_are_carried_over_but_for_the_head(name: str) -> None:
    source, target, same = make_network(name, 7, seed=1), make_network(name, 3, seed=2), make_network(name, 7, seed=3)
    drawn = same.state_dict()
    load_weights(target, source.state_dict(), where="here")
    load_weights(same, source.state_dict(), where="here", head=False)
    first = next(iter(dict(source.named_parameters())))
    for network in (target, same):
        assert torch.equal(network.get_parameter(first), source.get_parameter(first))
    kept = [key for key, value in same.named_parameters() if torch.equal(value, drawn[key])]
    weights = [key for key in kept if not torch.equal(drawn[key], source.state_dict()[key])]
    assert len(weights) in (1, 2) and drawn[weights[0]].shape[0] == 7  # squeezenet draws no biases
    with pytest.raises(InputError, match="of another network"):
        load_weights(make_network("resnet18", 3, seed=0), target.state_dict(), where="here")


# -- measures ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=40))
def test_average_precision_is_the_sum_of_its_steps(pairs: list[tuple[int, bool]]) -> None:
    scores, positive = np.array([p[0] for p in pairs]) / 7, np.array([p[1] for p in pairs])
    (found,) = average_precisions(scores[:, None], positive[:, None])
    area = recalled = 0.0
    for threshold in np.unique(scores)[::-1]:
        taken = scores >= threshold
        recall = positive[taken].sum() / max(1, positive.sum())
        area, recalled = area + (recall - recalled) * positive[taken].mean(), recall
    assert found == pytest.approx(area) if positive.any() else np.isnan(found)


def test_measures_are_those_of_scikit_learn_and_scipy(rng: np.random.Generator) -> None:
    logits, labels = rng.normal(size=(300, 12)).astype(np.float32) * 3, rng.integers(0, 11, 300)
    found = evaluation(logits, labels)
    for k in (1, 5):
        wanted = top_k_accuracy_score(labels, logits, k=k, labels=range(12))
        assert hits(logits, labels, k).mean() == found[f"top{k}"].mean() == pytest.approx(wanted)
    chance = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum(1, keepdims=True)
    wanted = [average_precision_score(labels == c, chance[:, c]) for c in range(11)]
    assert found["ap"][:11] == pytest.approx(wanted) and np.isnan(found["ap"][11])
    values = rng.normal(size=3)
    assert spread(values) == pytest.approx({"mean": values.mean(), "sem": scipy.stats.sem(values), "n": 3})
    # What the published table prints of three seeds is √2 times that.
    assert scipy.stats.sem(values, ddof=2) == pytest.approx(math.sqrt(2) * scipy.stats.sem(values))
    assert spread([0.5])["sem"] is None
    assert pearson(np.full(10, 0.1), np.arange(10.0)) is None
    assert pearson(values, 2 * values[::-1]) == pytest.approx(scipy.stats.pearsonr(values, values[::-1])[0])


def test_drops_are_paired_by_seed(rng: np.random.Generator, face_scenes: Scene) -> None:
    variants = ("original", "blurred")

    def judged() -> training.Evaluation:
        return {"top1": rng.random(24) < 0.6, "ap": np.append(rng.random(3), np.nan)}

    cells = [
        Cell("net", variant, seed, Path("x"), {one: judged() for one in variants})
        for variant in variants
        for seed in (2, 0, 1)
    ]
    pairs = paired(cells, "net", Side("original", "original"), Side("blurred", "blurred"))
    apart = [
        np.mean(a.evaluations["original"]["top1"]) - np.mean(b.evaluations["blurred"]["top1"])
        for a in cells[:3]
        for b in cells[3:]
        if b.seed == a.seed
    ]
    row = lost(pairs, "top1")
    assert row is not None and row["mean"] == pytest.approx(np.mean(apart))
    assert row["sem"] == pytest.approx(np.std(apart, ddof=1) / np.sqrt(3))
    assert lost(pairs, "top5") is None and lost(pairs, "ap", 3) is None
    shares, scenes = rng.uniform(0, 0.3, 24), open_scenes(*face_scenes).take(range(24))
    by_image = np.mean([a["top1"].astype(float) - b["top1"] for a, b in pairs], axis=0)
    a, b = (by_image[scenes.labels == label].mean() for label in (0, 1))
    c, d = (shares[scenes.labels == label].mean() for label in (0, 1))
    assert correlation(pairs, scenes, shares) == pytest.approx({"top1": np.sign((a - b) * (c - d))})


# -- the whole ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_class_that_is_only_in_the_face_is_lost_with_it_and_one_beside_it_is_not(
    tmp_path: Path, face_scenes: Scene
) -> None:
    figures = {}
    for place, scenes in (("face", face_scenes), ("beside", write_scenes(tmp_path, in_face=False))):
        config = tiny(*scenes, train_on=["original"], evaluate_on=["original", "overlaid"], seeds=[0], epochs=6)
        rows = study(config, tmp_path / f"out-{place}")["grid"]
        figures[place] = {row["evaluate"]: row["top1"]["mean"] for row in rows}
    assert figures["face"]["original"] > 0.95
    assert 0.3 <= figures["face"]["overlaid"] <= 0.7  # chance
    assert figures["beside"]["original"] > 0.95
    assert figures["beside"]["overlaid"] > 0.85


def test_a_study_resumed_after_an_interrupt_is_one_that_was_not_interrupted(
    tmp_path: Path, face_scenes: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "REPORT_EVERY", 0.0)
    config = tiny(*face_scenes, evaluate_on=["original"], train_on=["original", "blurred"], seeds=[0])
    whole = study(config, tmp_path / "whole")

    def impatient(done: int, total: int, what: str) -> None:
        if done == 1 and "epoch 2" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study(config, tmp_path / "parts", impatient)
    assert len(list(tmp_path.rglob(training.STATE))) == 1
    resumed: list[tuple[int, str]] = []
    assert whole == study(config, tmp_path / "parts", lambda done, _, what: resumed.append((done, what)))
    assert not [what for done, what in resumed if "epoch" in what and (done == 0 or "epoch 1" in what)]
    assert not list(tmp_path.rglob(training.STATE))
    cells = [sorted((tmp_path / name).rglob(training.WEIGHTS)) for name in ("whole", "parts")]
    for one, other in zip(*(map(load_file, some) for some in cells), strict=True):
        assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_the_whole_study_and_what_must_be_read_with_it(tmp_path: Path, face_scenes: Scene) -> None:
    tar, table = face_scenes
    rows = [{**row, "bboxes": row["bboxes"] if row["label"] == "a" else []} for row in json.loads(table.read_text())]
    one_sided = tmp_path / "one.json"
    one_sided.write_text(json.dumps(rows))
    variants = {"train_on": ["original", "blurred"], "evaluate_on": ["original", "blurred", "red"]}
    config = tiny(tar, one_sided, epochs=1, seeds=[0], **variants)
    results, tables = run_obfuscation(config, tmp_path / "out")
    kept = json.loads((tmp_path / "out" / "study.json").read_text(encoding="utf-8"))
    assert len(kept["grid"]) == 2 * 3
    assert [(d["kind"], d["train"], d["evaluate"]) for d in kept["drops"]] == [
        ("matched", "blurred", "blurred"),
        ("shifted", "original", "blurred"),
        ("shifted", "original", "red"),
        ("deployed", "blurred", "original"),
    ]
    classes = kept["drops"][0]["classes"]
    assert [(c["class"], c["images"], c["with_faces"]) for c in classes] == [("a", 12, 1.0), ("b", 12, 0.0)]
    assert classes[0]["area"] == pytest.approx(144 / 1024)
    assert any("faces occur in a only" in caveat for caveat in results.caveats)
    assert tables[0]["rows"][0]["with faces (%)"] == 100.0
    assert [table["title"][:8] for table in tables] == [
        "Images w",
        "Accuracy",
        *["Drop, tr"] * 2,
        "Average ",
        "Drop aga",
    ]
    assert str(tmp_path) not in results.to_json()


def test_tables_put_losses_beside_losses() -> None:
    def row(kind: str, train: str, evaluate: str, top1: float, top5: float | None) -> dict[str, Any]:
        figures = {"top1": spread([top1]), "top5": None if top5 is None else spread([top5]), "ap": None}
        return {"kind": kind, "network": "n", "train": train, "evaluate": evaluate, **figures}

    drops = [
        row("matched", "blurred", "blurred", 0.02, None),
        row("matched", "blurred", "blurred", 0.04, 0.01),
        row("shifted", "original", "red", 0.3, 0.1),
        row("deployed", "blurred", "original", -0.005, 0.0),
    ]
    found = {"grid": [], "drops": drops, "correlations": {"area": {"top1": 0.25}}, "transfer": {}}
    shifted, _, averages, correlations = study_tables(found)
    assert shifted["rows"] == [{"network": "n", "top1 Δ red": "+30.0", "top5 Δ red": "+10.0", "ap Δ red": "–"}]
    here = {(one["drop"].split()[0], one["of"]): (one["here"], one["paper"]) for one in averages["rows"]}
    assert here["matched", "top1, blurred"] == ("3.0", "0.7")
    assert here["matched", "top5, blurred"] == ("1.0", "0.4")
    assert here["matched", "top1, overlaid"] == ("–", "0.9")
    assert here["shifted", "top5, red"] == ("10.0", "1.4")
    assert here["deployed", "top1, blurred"] == ("-0.5", "0.9")
    assert [one["here"] for one in correlations["rows"]] == ["0.25", "–", "–", "–"]
