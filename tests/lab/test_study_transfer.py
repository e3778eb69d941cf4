"""Fine-tuning on other tasks, and the average precision of boxes against a slow oracle."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scene_world import BESIDE, scene, tiny, write_scenes

from ficgan.data import open_faces
from ficgan.errors import InputError, UsageError
from ficgan.lab.run import Store
from ficgan.lab.study import run_obfuscation, transfer
from ficgan.lab.study.scenes import StudyConfig, TransferConfig, open_scenes
from ficgan.lab.study.transfer import DetectionBatches, detection_precision, open_voc


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    w, h = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(w, 0) * max(h, 0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def slow_precision(
    found: list[tuple[np.ndarray, np.ndarray]], truths: list[np.ndarray], hard: list[np.ndarray]
) -> float:
    """At every number of kept boxes, match anew and take precision and recall; then the best beyond eleven recalls."""
    every = [(score, image, k) for image, (_, scores) in enumerate(found) for k, score in enumerate(scores)]
    every.sort(key=lambda one: -one[0])
    wanted, points = sum(int((~h).sum()) for h in hard), []
    for kept in range(1, len(every) + 1):
        taken, right, left_out = set(), 0, 0
        for _, image, k in every[:kept]:
            values = [overlap(found[image][0][k], one) for one in truths[image]]
            best = int(np.argmax(values)) if values else -1
            if best >= 0 and values[best] >= 0.5:
                if hard[image][best]:
                    left_out += 1
                elif (image, best) not in taken:
                    taken.add((image, best))
                    right += 1
        if kept > left_out:
            points.append((right / wanted, right / (kept - left_out)))
    return float(np.mean([max([p for r, p in points if r >= t / 10 - 1e-12], default=0) for t in range(11)]))


corner = st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(2, 5), st.integers(2, 5))


@given(
    st.lists(st.tuples(st.lists(corner, max_size=4), st.lists(corner, max_size=5)), min_size=1, max_size=4),
    st.integers(0, 99),
)
def test_precision_of_boxes_is_the_slow_oracles(images: list[tuple[list, list]], seed: int) -> None:
    boxes = [
        [np.array([(x, y, x + w, y + h) for x, y, w, h in side], float).reshape(-1, 4) for side in one]
        for one in images
    ]
    scores = np.random.default_rng(seed).permutation(sum(len(b) for _, b in boxes)) / 100 + 0.1
    found, begin = [], 0
    for _, guessed in boxes:
        found.append((guessed, scores[begin : begin + len(guessed)]))
        begin += len(guessed)
    truths = [truth for truth, _ in boxes]
    hard = [np.random.default_rng(seed).random(len(truth)) < 0.3 for truth in truths]
    value = detection_precision(found, truths, hard)
    if any((~some).any() for some in hard):
        assert value == pytest.approx(slow_precision(found, truths, hard))
    else:
        assert np.isnan(value)


def test_boxes_are_mirrored_with_their_images(tmp_path: Path) -> None:
    """The boxes are those of coloured patches at the left edge."""
    scenes = open_scenes(*write_scenes(tmp_path, in_face=False)).take(range(48, 72))
    whole: dict[str, Any] = {"kinds": np.zeros(1, np.int64), "difficult": np.zeros(1, bool)}
    items = [replace(one, boxes=np.array([BESIDE], np.float32), **whole) for one in scenes.items]
    seen = set()
    for images, targets in DetectionBatches(items, batch=4, seed=0, device="cpu").epoch(0, 0):
        for image, target in zip(images, targets, strict=True):
            x0, y0, x1, y1 = target["boxes"][0].int().tolist()
            inside, outside = image[:, y0:y1, x0:x1], image.clone()
            outside[:, y0:y1, x0:x1] = 0.5
            assert float((inside[0] - inside[2]).abs().min()) > 0.5 > float((outside[0] - outside[2]).abs().max())
            seen.add(x0)
    assert seen == {1, 24}


def transferred(config: StudyConfig, out: Path) -> dict[str, list[dict[str, Any]]]:
    run_obfuscation(config, out)
    found: dict[str, list[dict[str, Any]]] = json.loads((out / "study.json").read_text())["transfer"]
    return found


def write_attributes(folder: Path, count: int = 48) -> tuple[Path, Path]:
    """Crops of 12 people whose attribute "Red" is the patch's colour; "Rare" is true of nobody."""
    rng = np.random.default_rng(3)
    (folder / "crops").mkdir(parents=True)
    with (folder / "crops.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file", "identity", "Red", "Rare"])
        for number in range(count):
            Image.fromarray(scene(rng, number % 2, in_face=True)).save(folder / "crops" / f"{number}.png")
            table.writerow([f"{number}.png", number // 4, 1 - number % 2, 0])
    return folder / "crops", folder / "crops.csv"


@pytest.mark.slow
def test_tasks_begin_from_what_was_learnt_and_are_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tar, table = write_scenes(tmp_path, in_face=True)
    crops, labels = write_attributes(tmp_path)
    recipe = {"epochs": 3, "drop_every": 2, "batch": 16, "lr": 0.05, "pretrained": ["none", "original"]}
    tasks = {
        "same": {"kind": "classification", "images": tar, "labels": table, "train_images": 24, **recipe},
        "crops": {"kind": "attributes", "images": crops, "labels": labels, "holdout": 0.25, **recipe},
        "elsewhere": {"kind": "detection", **recipe},  # without images it is left out
    }
    config = tiny(tar, table, train_on=["original"], evaluate_on=["original"], seeds=[0], epochs=6, transfer=tasks)
    found = transferred(config, tmp_path / "out")
    assert found.pop("elsewhere") == []
    assert [row["metric"] for rows in found.values() for row in rows] == ["top1"] * 2 + ["mAP"] * 2
    assert all(0.0 <= row["mean"] <= 1.0 for rows in found.values() for row in rows)
    assert found["same"][1]["mean"] > 0.95  # begins from weights that know the task
    assert found["crops"][1]["mean"] > 0.9
    assert found["crops"][0]["evaluated"] == 12
    monkeypatch.setattr(transfer, "fit", lambda *_, **__: pytest.fail("trained again"))
    assert transferred(config, tmp_path / "out") == found | {"elsewhere": []}


def test_people_are_in_one_half_only(tmp_path: Path) -> None:
    crops, labels = write_attributes(tmp_path)
    task = TransferConfig(kind="attributes", images=crops, labels=labels, holdout=0.25)
    study = tiny(*write_scenes(tmp_path / "s", in_face=True))
    one = transfer.Transfer("x", task, study, Store(None), "cpu")
    assert (len(one.train.pictures), len(one.judged.targets)) == (36, 12)
    data = open_faces([crops], resolution=study.resize, labels=labels)
    row_of = {data.load(row).permute(1, 2, 0).numpy().tobytes(): row for row in range(48)}
    numbers = sorted(map(str, range(48)))  # of the files, in the order of their names
    people = [
        {int(numbers[row_of[half.pictures[index].tobytes()]]) // 4 for index in range(len(half.targets))}
        for half in (one.train, one.judged)
    ]
    assert len(people[1]) == 3 and not people[0] & people[1]
    with pytest.raises(UsageError, match="label file"):
        transfer.Transfer("x", task.model_copy(update={"labels": None}), study, Store(None), "cpu")


def write_voc(folder: Path, *, count: int = 12, held: int = 8) -> Path:
    """VOC2007 with 12 train and 8 test images, and VOC2012 with one more: red persons, blue dogs, a difficult box."""
    rng = np.random.default_rng(7)
    for year, split, number in (("VOC2007", "trainval", count), ("VOC2007", "test", held), ("VOC2012", "trainval", 1)):
        for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
            (folder / year / part).mkdir(parents=True, exist_ok=True)
        names = [f"{split}{row}" for row in range(number)]
        (folder / year / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(names))
        for row, name in enumerate(names):
            Image.fromarray(scene(rng, row % 2, in_face=True)).save(
                folder / year / "JPEGImages" / f"{name}.jpg", quality=95
            )
            kind, hard = ("person", "dog")[row % 2], "<difficult>1</difficult>"
            box = "<bndbox><xmin>11</xmin><ymin>11</ymin><xmax>22</xmax><ymax>22</ymax></bndbox>"
            far = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>6</xmax><ymax>6</ymax></bndbox>"
            part = f"<part><name>head</name>{far}</part>"
            objects = f"<object><name>{kind}</name>{box}{part}</object><object><name>dog</name>{hard}{far}</object>"
            (folder / year / "Annotations" / f"{name}.xml").write_text(f"<annotation>{objects}</annotation>")
    return folder


def test_voc_is_read_by_its_lists(tmp_path: Path) -> None:
    root = write_voc(tmp_path / "VOCdevkit")
    scenes = open_voc(root, ("trainval", "test"))
    assert scenes.classes == ("dog", "person") and [s.split for s in scenes.items] == ["trainval"] * 13 + ["test"] * 8
    first = scenes.items[0]
    assert first.kinds.tolist() == [1, 0]
    assert first.boxes.tolist() == [[10, 10, 22, 22], [0, 0, 6, 6]]
    assert first.difficult.tolist() == [False, True]
    for _, targets in DetectionBatches(scenes.items[:13], batch=16, seed=0, device="cpu").epoch(0, 0):
        assert sorted(t["labels"].tolist() for t in targets) == [[1]] * 6 + [[2]] * 7
    (root / "VOC2007" / "JPEGImages" / "test3.jpg").unlink()
    with pytest.raises(InputError, match=r"test3\.jpg is missing"):
        open_voc(root, ("trainval", "test"))
    with pytest.raises(InputError, match=r"Main/val\.txt"):
        open_voc(root, ("val",))


@pytest.mark.slow
def test_a_detector_learns_the_categories_of_voc(tmp_path: Path) -> None:
    tar, table = write_scenes(tmp_path, in_face=True, count=16, held=8)
    root = write_voc(tmp_path / "VOCdevkit")
    recipe = {"epochs": 20, "drop_every": 16, "batch": 4, "lr": {"narrow-resnet": 0.02}, "pretrained": ["original"]}
    sizes = {"size": 64, "anchors": [24, 48, 96, 192, 384], "proposals": 50}
    splits = {"train_split": "trainval", "eval_split": "test"}
    task = {"kind": "detection", "images": root, **recipe, **sizes, **splits}
    config = tiny(tar, table, train_on=["original"], evaluate_on=["original"], seeds=[0], transfer={"voc": task})
    rows = {row["metric"]: row for row in transferred(config, tmp_path / "out")["voc"]}
    assert rows.keys() == {"mAP", "person AP"} and rows["mAP"]["evaluated"] == 8
    assert rows["mAP"]["mean"] > 0.6 and rows["person AP"]["mean"] > 0.6
