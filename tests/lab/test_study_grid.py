"""The grid: controls, resumption, pairing, and the study as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scene_world import tiny, write_scenes
from torch import nn

from ficgan.errors import FicganError, InputError, UsageError
from ficgan.lab.attacks import training as loop
from ficgan.lab.study import Side, StudyConfig, by_area, correlations, drop, open_scenes, run_study, training
from ficgan.lab.study.scenes import Pictures
from ficgan.lab.study.training import (
    Cell,
    Evaluation,
    Recipe,
    ViewBatches,
    fit,
    load_weights,
    make_network,
    replace_head,
)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def face_scenes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_scenes(tmp_path_factory.mktemp("face"), in_face=True)


def test_a_class_that_is_only_in_the_face_is_lost_with_it_and_one_beside_it_is_not(
    tmp_path: Path, face_scenes: tuple[Path, Path]
) -> None:
    figures = {}
    for place, scenes in (("face", face_scenes), ("beside", write_scenes(tmp_path, in_face=False))):
        config = tiny(*scenes, train_on=["original"], evaluate_on=["original", "overlaid"], seeds=[0], epochs=6)
        result = run_study(config, tmp_path / f"out-{place}")
        figures[place] = {row["evaluate"]: row["top1"]["mean"] for row in result.grid}
    assert figures["face"]["original"] > 0.95
    assert 0.3 <= figures["face"]["overlaid"] <= 0.7  # chance
    assert figures["beside"]["original"] > 0.95
    assert figures["beside"]["overlaid"] > 0.85


def test_a_study_resumed_after_an_interrupt_is_one_that_was_not_interrupted(
    tmp_path: Path, face_scenes: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "REPORT_EVERY", 0.0)
    config = tiny(*face_scenes, evaluate_on=["original"], train_on=["original", "blurred"], seeds=[0])
    whole = run_study(config, tmp_path / "whole").to_dict()
    shares: list[float] = []

    def impatient(done: int, total: int, what: str) -> None:
        shares.append(done / total)
        if done > 55:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(config, tmp_path / "parts", impatient)
    assert shares == sorted(shares)
    assert len(list(tmp_path.rglob(training.STATE))) == 1
    again: list[float] = []
    resumed = run_study(config, tmp_path / "parts", lambda done, total, _: again.append(done / total)).to_dict()
    assert again[1] == pytest.approx(0.5)  # what was whole was read, not trained
    assert not list(tmp_path.rglob(training.STATE))
    assert {**whole, "seconds": 0} == {**resumed, "seconds": 0}
    cells = [sorted((tmp_path / name).rglob(training.WEIGHTS)) for name in ("whole", "parts")]
    for one, other in zip(*(map(load_file, some) for some in cells), strict=True):
        assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_cells_are_kept_and_more_is_added(
    tmp_path: Path, face_scenes: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = tiny(*face_scenes, train_on=["original"], evaluate_on=["original"], seeds=[0], epochs=1)
    first, asked = run_study(few, tmp_path), []
    monkeypatch.setattr(training, "fit", lambda *given, **more: asked.append(given))
    more = run_study(few.model_copy(update={"evaluate_on": ("original", "red")}), tmp_path)
    assert more.grid[0] == first.grid[0] and not asked
    assert [row["evaluate"] for row in more.grid] == ["original", "red"]
    run_study(few.model_copy(update={"weight_decay": 0.1}), tmp_path)
    assert len(asked) == 1


def test_order_and_crops_are_the_same_for_all_variants_and_any_number_of_workers(
    face_scenes: tuple[Path, Path],
) -> None:
    scenes = open_scenes(*face_scenes).split("val")
    made = []
    for variant, workers in (("original", 0), ("original", 2), ("overlaid", 0)):
        batches = ViewBatches(
            Pictures.of(scenes, variant),
            scenes.labels,
            crop=32,
            min_scale=0.3,
            batch=5,
            seed=3,
            device="cpu",
            workers=workers,
        )
        assert len(list(batches.epoch(0, 0))) == batches.steps == 5
        assert torch.equal(next(batches.epoch(0, 3))[0], list(batches.epoch(0, 0))[3][0])
        made.append([list(batches.epoch(0, 0)), list(batches.epoch(1, 0))])
    for plain, forked in zip(made[0], made[1], strict=True):
        assert all(torch.equal(a[0], b[0]) for a, b in zip(plain, forked, strict=True))
    assert not torch.equal(made[0][0][0][0], made[0][1][0][0])
    assert all(torch.equal(a[1], b[1]) for a, b in zip(made[0][0], made[2][0], strict=True))
    same = [(a[0] == b[0]).float().mean() for a, b in zip(made[0][0], made[2][0], strict=True)]
    assert all(0.5 < share < 1.0 for share in same)  # the faces differ, what is around them does not


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
    torch.manual_seed(0)
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


def test_a_training_that_diverges_is_refused() -> None:
    network = nn.Linear(1, 1)
    with pytest.raises(FicganError, match="not finite"):
        fit(network, Repeated((1.0, 1.0)), lambda n, *_: n.weight.sum() * np.inf, Recipe(1, 1, 0.1), seed=0)


@pytest.mark.parametrize("name", ["narrow-resnet", "squeezenet1_1", "mobilenet_v3_small", "shufflenet_v2_x0_5"])
def test_heads_are_replaced_and_weights_carried_over(name: str) -> None:
    source, target = make_network(name, 7, seed=1), make_network(name, 3, seed=2)
    load_weights(target, source.state_dict(), where="here")
    first = next(iter(dict(source.named_parameters())))
    assert torch.equal(target.get_parameter(first), source.get_parameter(first))
    with torch.no_grad():
        assert target.eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 3)
        assert replace_head(source, 11, seed=0).eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 11)
    with pytest.raises(InputError, match="of another network"):
        load_weights(make_network("resnet18", 3, seed=0), target.state_dict(), where="here")


def cells(rng: np.random.Generator, images: int, seeds: int = 3, top5: bool = True) -> list[Cell]:
    made = []
    for variant in ("original", "blurred"):
        for seed in range(seeds):
            ones = {
                v: Evaluation(
                    rng.random(images) < 0.6, rng.random(images) < 0.9 if top5 else None, tuple(rng.random(4))
                )
                for v in ("original", "blurred")
            }
            made.append(Cell("net", variant, seed, Path("x"), ones))  # type: ignore[arg-type]
    return made


def test_drops_are_paired_by_seed(rng: np.random.Generator) -> None:
    made = cells(rng, 50)
    row = drop(made, "net", Side("original", "original"), Side("blurred", "blurred"))
    pairs = [
        np.mean(a.evaluations["original"].top1) - np.mean(b.evaluations["blurred"].top1)
        for a in made
        if a.variant == "original"
        for b in made
        if b.variant == "blurred" and b.seed == a.seed
    ]
    assert row["top1"]["mean"] == pytest.approx(np.mean(pairs))
    assert row["top1"]["sem"] == pytest.approx(np.std(pairs, ddof=1) / np.sqrt(3))
    assert row["top5"] is not None
    with pytest.raises(UsageError, match="same seeds"):
        drop(made[:-1], "net", Side("original", "original"), Side("blurred", "blurred"))


def test_drops_by_area_group_every_image_once(rng: np.random.Generator, face_scenes: tuple[Path, Path]) -> None:
    made, shares = cells(rng, 24, top5=False), np.r_[np.zeros(6), rng.uniform(0.001, 0.3, 16), np.nan, 0.08]
    sides = Side("original", "original"), Side("original", "blurred")
    rows = by_area(made, shares, (0.0, 0.01, 0.02, 0.04, 0.08), "net", *sides)
    assert [row["share"] for row in rows][:2] == ["none", "0–1 %"]
    assert sum(row["images"] for row in rows) == 23
    lost = np.mean(
        [c.evaluations["original"].top1.astype(float) - c.evaluations["blurred"].top1 for c in made[:3]], axis=0
    )
    last = shares >= 0.08
    assert rows[-1]["images"] == last.sum()
    assert rows[-1]["top1"]["mean"] == pytest.approx(lost[last].mean())
    scenes = open_scenes(*face_scenes).split("val")
    told = correlations(made, scenes, shares, ["net"], *sides)
    known = np.isfinite(shares)
    assert told["images"]["top1"]["r"] == pytest.approx(np.corrcoef(shares[known], lost[known])[0, 1])
    assert told["images_with_faces"]["top1"]["n"] == 17
    assert told["images"]["top5"] is None


def test_the_whole_study_is_json_and_says_what_must_be_read_with_it(
    tmp_path: Path, face_scenes: tuple[Path, Path]
) -> None:
    tar, table = face_scenes
    rows = json.loads(table.read_text())
    for row in rows:
        row["faces"] = row["faces"] if row["label"] == "a" else []
        row["objects"] = [[10, 10, 22, 34]]
    one_sided = tmp_path / "one.json"
    one_sided.write_text(json.dumps(rows))
    config = tiny(tar, one_sided, epochs=1, seeds=[0])
    result = run_study(config, tmp_path / "out")
    kept = json.loads((tmp_path / "out" / "study.json").read_text(encoding="utf-8"))
    assert kept == json.loads(json.dumps(result.to_dict()))
    assert len(result.grid) == 3 * 7
    assert [(d["kind"], d["after"]["train"], d["after"]["evaluate"]) for d in result.drops][:3] == [
        ("matched", "blurred", "blurred"),
        ("matched", "overlaid", "overlaid"),
        ("shifted", "original", "blurred"),
    ]
    shifted = next(d for d in result.drops if d["kind"] == "shifted" and d["after"]["evaluate"] == "red")
    assert shifted["areas"][0] == {**shifted["areas"][0], "share": "none", "images": 12}
    assert shifted["areas"][0]["top1"]["mean"] == 0.0  # nothing was changed in images without faces
    assert {c["class"]: c["with_faces"] for c in shifted["classes"]} == {"a": 1.0, "b": 0.0}
    assert shifted["classes"][0]["area"] == pytest.approx(144 / 1024)
    assert shifted["classes"][0]["object_covered"] == pytest.approx(144 / 288)
    assert any("faces occur in a only" in caveat for caveat in result.caveats)
    assert result.tables[0]["rows"][0]["with faces (%)"] == 100.0
    few = {"train_on": ("original",), "evaluate_on": ("original",), "decoys": True}
    decoyed = run_study(config.model_copy(update=few), tmp_path / "decoyed")
    assert not any("occur in a only" in caveat for caveat in decoyed.caveats)
    assert decoyed.set["images_with_faces"] == result.set["images_with_faces"]  # of what was annotated


def test_configurations_are_read_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("images: i\nannotations: a.json\nnetworks: [resnet50, vgg11]\n")
    config = StudyConfig.read(path, ["seeds=[5]"])
    assert (config.epochs, config.drop_every, config.batch, config.weight_decay, config.seeds) == (
        90,
        30,
        256,
        1e-4,
        (5,),
    )
    assert (config.learning_rate("resnet50"), config.learning_rate("vgg11")) == (0.1, 0.01)
    assert StudyConfig.parse(json.loads(json.dumps(config.to_dict()))) == config
    for override, message in [
        ("epoch=3", "did you mean 'epochs'"),
        ("crop=300", "smaller than crop"),
        ("seeds=[1,1]", "twice"),
        ("train_on=[pixelated]", "train_on"),
        ("area_edges=[0.1]", "begin with 0"),
        ("epochs", "key=value"),
        ("seeds=[1", "not valid YAML"),
    ]:
        with pytest.raises(UsageError, match=message):
            StudyConfig.read(path, [override])
    with pytest.raises(UsageError, match="cannot be read"):
        StudyConfig.read(tmp_path / "none.yaml")
