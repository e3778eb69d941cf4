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
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from scene_world import FACE, tiny, write_scenes
from sklearn.metrics import average_precision_score, top_k_accuracy_score
from torch import nn

from ficgan.anonymizers.basic import obfuscate_blur, obfuscate_overlay
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.lab.attacks import training as loop
from ficgan.lab.attacks.training import Batches
from ficgan.lab.study import (
    BLURRED,
    CLEAR,
    EDGES,
    PUBLISHED,
    area_groups,
    category_scores,
    correlation,
    grid_rows,
    run_obfuscation,
    study_tables,
    training,
    write_study,
)
from ficgan.lab.study.scenes import Boxes, StudyConfig, StudyTask, covered_share, obfuscated, open_scenes
from ficgan.lab.study.training import (
    Cell,
    Row,
    average_precisions,
    by_label,
    evaluation,
    fit,
    grad_cam,
    hits,
    load_weights,
    make_network,
    spread,
)
from ficgan.models import load_tensors

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
    table.write_text(json.dumps([{"url": "train/x/none.JPEG", "bboxes": [face]}]))
    with pytest.raises(InputError, match="no record"):
        run_obfuscation(tiny(tmp_path / "images", table), tmp_path / "out")


def test_holdout_takes_its_share_of_every_class_and_repeats(face_scenes: Scene) -> None:
    scenes, quarter = open_scenes(*face_scenes), StudyTask(images=face_scenes[0], holdout=0.25)
    train, held = scenes.halves(quarter)
    assert {s.name for s in train.items} | {s.name for s in held.items} == {s.name for s in scenes.items}
    assert not {s.name for s in train.items} & {s.name for s in held.items}
    assert np.bincount(held.labels).tolist() == [9, 9]
    assert scenes.halves(quarter)[1].fingerprint == held.fingerprint != train.fingerprint


def test_pictures_are_obfuscated_at_full_resolution_and_kept_within_their_room(face_scenes: Scene) -> None:
    scenes = open_scenes(*face_scenes)
    image, boxes = scenes.items[3].load(), np.array([FACE])
    wanted = {
        "original": image,
        "blurred": obfuscate_blur(image, boxes)[0],
        "green": obfuscate_overlay(image, boxes, "green"),
        "overlaid": obfuscate_overlay(image, boxes, "mean"),
    }
    for variant, picture in wanted.items():
        assert np.array_equal(obfuscated(scenes, variant)[3], picture)  # type: ignore[arg-type]
    released = obfuscate_blur(image, boxes, "released")[0]
    assert np.array_equal(obfuscated(scenes, "blurred", "released")[3], released)
    tight = obfuscated(scenes, "red", room=2.5 * image.nbytes)
    tight.fill()
    assert len(tight._kept) == 2
    assert np.array_equal(tight[40], obfuscated(scenes, "red")[40])


# -- training ----------------------------------------------------------------------------------------------------------


class Repeated(Batches):
    """One batch an epoch, always the same."""

    steps = batch = 1

    def __init__(self, pair: Any) -> None:
        self.pair = pair

    def epoch(self, number: int, first: int) -> Any:
        return iter([self.pair])


def test_fit_lowers_the_rate_and_equals_plain_sgd() -> None:
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    ours, plain = nn.Linear(3, 1), nn.Linear(3, 1)
    plain.load_state_dict(ours.state_dict())
    task = StudyTask(epochs=5, drop_every=2)
    fit(ours, Repeated((x, y)), lambda n, a, b: ((n(a) - b) ** 2).mean(), task, 0.1, seed=0)
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
        fit(ours, Repeated((1.0, 1.0)), lambda n, *_: n.weight.sum() * np.inf, StudyTask(epochs=1), 0.1, seed=0)


@pytest.mark.parametrize(
    "name", ["narrow-resnet", "squeezenet1_1", pytest.param("shufflenet_v2_x0_5", marks=pytest.mark.slow)]
)
def test_weights_are_carried_over_but_for_the_head(name: str, tmp_path: Path) -> None:
    source, target, same = make_network(name, 7, seed=1), make_network(name, 3, seed=2), make_network(name, 7, seed=3)
    drawn, file = same.state_dict(), tmp_path / "a.safetensors"
    save_file(source.state_dict(), file)
    load_weights(target, file)
    load_weights(same, file, head=False)
    first = next(iter(dict(source.named_parameters())))
    for network in (target, same):
        assert torch.equal(network.get_parameter(first), source.get_parameter(first))
    kept = [key for key, value in same.named_parameters() if torch.equal(value, drawn[key])]
    weights = [key for key in kept if not torch.equal(drawn[key], source.state_dict()[key])]
    assert len(weights) in (1, 2) and drawn[weights[0]].shape[0] == 7  # squeezenet draws no biases
    with pytest.raises(InputError, match="of another network"):
        load_weights(make_network("resnet18", 3, seed=0), file)


# -- measures ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=40))
def test_average_precision_of_equal_scores_is_scikit_learns(pairs: list[tuple[int, bool]]) -> None:
    scores, positive = np.array([p[0] for p in pairs]) / 7, np.array([p[1] for p in pairs])
    (found,) = average_precisions(scores[:, None], positive[:, None])
    wanted = average_precision_score(positive, scores) if positive.any() else np.nan
    assert found == pytest.approx(wanted, nan_ok=True)


def test_measures_are_those_of_scikit_learn_and_scipy(rng: np.random.Generator) -> None:
    logits, labels = rng.normal(size=(300, 12)).astype(np.float32) * 3, rng.integers(0, 11, 300)
    found = evaluation(logits, labels)
    for k in (1, 5):
        wanted = top_k_accuracy_score(labels, logits, k=k, labels=range(12))
        assert hits(logits, labels, k).mean() == found[f"top{k}"].mean() == pytest.approx(wanted)
    wanted = [average_precision_score(labels == c, logits[:, c]) for c in range(11)]
    assert found["ap"][:11] == pytest.approx(wanted) and np.isnan(found["ap"][11])
    assert np.array_equal(found["guess"] == labels, found["top1"])
    values = rng.normal(size=3)
    assert spread(values) == pytest.approx({"mean": values.mean(), "sem": scipy.stats.sem(values), "n": 3})
    # What the published table prints of three seeds is √2 times that.
    assert scipy.stats.sem(values, ddof=2) == pytest.approx(math.sqrt(2) * scipy.stats.sem(values))
    assert spread([0.5])["sem"] is None
    assert correlation(np.full(10, 0.1), np.arange(10.0)) is None
    r, p = scipy.stats.pearsonr(values, values[::-1])
    more = np.append(values, np.nan), np.append(2 * values[::-1], 1.0)  # a category without images
    assert correlation(*more) == pytest.approx({"r": r, "p": p, "n": 3})


def test_drops_are_paired_by_seed(rng: np.random.Generator, face_scenes: Scene) -> None:
    variants = ("original", "blurred")

    def judged() -> training.Evaluation:
        return {"top1": rng.random(24) < 0.6, "ap": np.append(rng.random(1), np.nan)}

    cells = [
        Cell("net", variant, seed, Path("x"), {one: judged() for one in variants})
        for variant in variants
        for seed in (2, 0, 1)
    ]
    apart = [
        np.mean(a.evaluations["original"]["top1"]) - np.mean(b.evaluations["blurred"]["top1"])
        for a in cells[:3]
        for b in cells[3:]
        if b.seed == a.seed
    ]
    rows = {(row["train"], row["evaluate"]): row for row in grid_rows(cells)}
    found = rows[BLURRED]["drop"]["top1"]
    assert found["mean"] == pytest.approx(np.mean(apart))
    assert found["sem"] == pytest.approx(np.std(apart, ddof=1) / np.sqrt(3))
    assert "top5" not in rows[BLURRED]["drop"] and rows[BLURRED]["top5"] is None and rows[CLEAR]["drop"] == {}
    scenes = open_scenes(*face_scenes).take(range(24))
    scores = category_scores(cells, BLURRED, scenes)
    by_seed = {cell.seed: cell.evaluations["blurred"]["top1"] for cell in cells[3:]}
    wanted = [[by_seed[seed][scenes.labels == label].mean() for label in (0, 1)] for seed in (0, 1, 2)]
    assert scores["top1"] == pytest.approx(np.array(wanted)) and scores["ap"].shape == (3, 2)


def test_categories_are_grouped_by_what_faces_cover_of_them(face_scenes: Scene) -> None:
    shares = np.array([0.0, 0.005, 0.01, 0.05, 0.079, 0.08, 0.9, np.nan])
    drop = {"top1": np.array([1.0, 3.0, 5.0, 2.0, 4.0, np.nan, 6.0, 7.0])}
    groups = area_groups(shares, drop)
    assert [group["from"] for group in groups] == list(EDGES)
    assert [(group["categories"], group["top1"]) for group in groups] == [(2, 2), (1, 5), (0, None), (2, 3), (2, 6)]
    scenes = open_scenes(*face_scenes).take([0, 1, 2])  # a, b, a
    assert by_label(np.array([0.2, np.nan, 0.4]), scenes) == pytest.approx([0.3, np.nan], nan_ok=True)


@pytest.mark.parametrize("name", ["resnet18", "squeezenet1_1", "densenet121", "vgg11"])
def test_grad_cam_is_the_class_activation_map_where_positions_are_averaged(name: str) -> None:
    """Zhou et al. 2016: with one linear layer behind a mean over positions both are the same map."""
    if name in ("densenet121", "vgg11"):
        pytest.importorskip("torchvision")
    network = make_network(name, 3, seed=0).eval()
    images, labels = torch.randn(2, 3, 96, 96), torch.tensor([2, 0])
    heat = grad_cam(network, images.clone(), labels)
    assert heat is not None and heat.ndim == 3 and float(heat.min()) >= 0 and float(heat.max()) <= 1
    if name == "resnet18":
        maps = nn.Sequential(*list(network.children())[:-2])(images)
        closed = torch.einsum("nchw,nc->nhw", maps, network.fc.weight[labels]).relu()
        closed = closed / closed.amax((1, 2), keepdim=True)
        torch.testing.assert_close(heat, closed.detach())


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
    run = run_obfuscation(config, tmp_path / "out")
    assert any("faces occur in a only" in caveat for caveat in run.results.caveats)
    assert str(tmp_path) not in run.results.to_json()
    page = write_study(run, tmp_path / "out")[0].read_text()
    assert page.count("data:image/png") >= 2 and all(table["title"] in page for table in run.tables)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [None, "local"])
def test_networks_trained_by_other_processes_are_the_same(
    tmp_path: Path, face_scenes: Scene, cluster: str | None
) -> None:
    if cluster:
        pytest.importorskip("ray")
    config = tiny(*face_scenes, train_on=["original", "blurred"], evaluate_on=["original"], seeds=[0], epochs=1)
    alone = study(config, tmp_path / "alone")
    said: list[str] = []
    run = run_obfuscation(
        config, tmp_path / "others", lambda done, total, text: said.append(text), jobs=2, cluster=cluster
    )
    assert json.loads(json.dumps(run.study)) == alone
    assert any("epoch" in text for text in said)


def test_each_network_begins_from_its_own_file(tmp_path: Path, face_scenes: Scene) -> None:
    """A folder of weights, of which nothing is trained; a network that is not there ends the run at once."""
    for seed, name in ((3, "narrow-resnet"), (4, "squeezenet1_1")):
        save_file(make_network(name, 2, seed=seed).state_dict(), str(tmp_path / f"{name}.safetensors"))
    more = {"epochs": 0, "weights": tmp_path, "seeds": [0], "train_on": ["original"], "evaluate_on": ["original"]}
    config = tiny(*face_scenes, networks=["narrow-resnet", "squeezenet1_1"], **more)
    run_obfuscation(config, tmp_path / "out")
    files = (load_tensors(path, kind=training.CELL) for path in (tmp_path / "out").rglob(training.WEIGHTS))
    kept = {header["network"]: tensors for tensors, header in files}
    for name in config.networks:
        given = load_file(tmp_path / f"{name}.safetensors")
        assert all(torch.equal(kept[name][key], value) for key, value in given.items())
    with pytest.raises(InputError, match=r"no resnet18\.safetensors"):
        run_obfuscation(tiny(*face_scenes, networks=["resnet18"], **more), tmp_path / "out")
    for wrong in ({"epochs": 0}, {"resize": 16}, {"networks": []}, {"transfer": {"a b": {"kind": "detection"}}}):
        with pytest.raises(ValidationError):
            tiny(*face_scenes, **wrong)
    task = {"kind": "classification", "images": tmp_path}
    for wrong_task in ({"pretrained": ["blurred"]}, {"networks": ["resnet18"]}):
        with pytest.raises(ValidationError, match="task x"):
            tiny(*face_scenes, train_on=["original"], transfer={"x": task | {"pretrained": ["none"]} | wrong_task})


def test_bfloat16_is_of_the_products_and_not_of_the_weights() -> None:
    seen: list[torch.dtype] = []

    def loss(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        made = net(x)
        seen.append(made.dtype)
        return ((made.float() - y) ** 2).mean()

    net = nn.Linear(3, 1)
    before = net.weight.detach().clone()
    batch = torch.randn(8, 3), torch.randn(8, 1)
    fit(net, Repeated(batch), loss, StudyTask(epochs=1), 0.1, seed=0, dtype=torch.bfloat16)
    assert seen == [torch.bfloat16] and net.weight.dtype == torch.float32 and not torch.equal(net.weight, before)


def test_the_configurations_are_the_papers_tables() -> None:
    """What comes with ficgan names the networks whose figures are printed."""
    given = {"images": "x", "annotations": "y"}
    whole = StudyConfig.read("obfuscation", **given)
    assert [*whole.networks, "average"] == [*PUBLISHED["accuracy"]] and whole.seeds == (0, 1, 2)
    assert (whole.epochs, whole.drop_every, whole.batch, whole.weight_decay, whole.crop) == (90, 30, 256, 1e-4, 224)
    rates = {name: whole.learning_rate(name) for name in whole.networks}
    assert {name for name, rate in rates.items() if rate == 0.01} == {
        *("alexnet", "squeezenet1_0", "vgg11", "vgg13", "vgg16", "vgg19")
    }
    assert not whole.tasks and whole.transfer.keys() == PUBLISHED["transfer"].keys()
    for name, task in whole.transfer.items():
        assert all(list(task.networks) == list(printed) for printed in PUBLISHED["transfer"][name].values())
    assert whole.supercategories.keys() == PUBLISHED["supercategories"].keys()
    shifted = StudyConfig.read("obfuscation-pretrained", ["weights=z"], **given)
    assert [*shifted.networks, "average"] == [*PUBLISHED["shifted"]] and len(shifted.networks) == 24
    for network in (*whole.networks, *shifted.networks):
        training.check_network(network)
    with pytest.raises(UsageError, match="weights"):
        StudyConfig.read("obfuscation-pretrained", **given)


def test_supercategories_are_what_stands_below_them(tmp_path: Path, face_scenes: Scene) -> None:
    scenes = open_scenes(*face_scenes)
    tree = tmp_path / "is_a.txt"
    tree.write_text("thing beast\nbeast a\nthing tool\ntool b\nbeast b\n")
    groups = {"beasts": ("beast",), "tools": ("tool",), "a": ("a",), "none": ("c",)}
    assert scenes.below(groups, tree) == {"beasts": [0, 1], "tools": [1], "a": [0], "none": []}
    assert scenes.below(groups, None) == {"beasts": [], "tools": [], "a": [0], "none": []}
    tree.write_text("one\n")
    with pytest.raises(InputError, match="a parent and a child"):
        scenes.below(groups, tree)


def test_tables_put_printed_figures_beside_the_same_figures() -> None:
    """Of networks that the paper has; golden has the tables of another one."""

    def row(variant: str, top5: float, lost: dict[str, Any]) -> dict[str, Any]:
        found = {"top1": spread([0.5]), "top5": spread([top5]), "drop": lost}
        return {"network": "resnet18", "train": variant, "evaluate": variant, **found}

    faces = {"images": {0: 8, 7: 1}, "all": {"images": 9, "with_faces": 1 / 9, "faces": 7}}
    found = {
        "grid": [row("original", 0.892, {}), row("blurred", 0.88, dict.fromkeys(("top1", "top5"), spread([0.012])))],
        "faces": faces | {"classes": {}, "supercategories": {"bird": None}},
        "transfer": {"voc": [{"network": "resnet50", "pretrained": "blurred", "metric": "mAP", **spread([0.7929])}]},
    }
    tables = {
        table["title"]: table["rows"] for table in study_tables(found | {"pairs": [], "groups": {}, "correlations": {}})
    }
    alike = tables["Top-5 accuracy, trained and evaluated alike (Table 3)"][0]
    assert (alike["original"], alike["Δ blurred"], alike["paper"]) == ("89.2", "+1.2", "89.2 / 88.7 / 88.7")
    begun = tables["Transfer to voc (section 5)"]
    assert [one["begun blurred"] for one in begun] == ["79.3", "–"] and begun[1]["paper"] == "– / 84.4 / 84.8 / 84.5"
