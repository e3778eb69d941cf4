"""Reading of scenes, areas, and what of them a network sees."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scene_world import FACE, write_scenes

from ficgan.anonymizers import generator
from ficgan.anonymizers.basic import obfuscate_blur, obfuscate_overlay
from ficgan.errors import InputError, UsageError
from ficgan.lab.study import open_scenes
from ficgan.lab.study.scenes import Pictures, central_view, covered_share, random_view, with_decoys

box = st.tuples(*[st.integers(-5, 25)] * 4)


@given(st.lists(box, max_size=6), st.tuples(*[st.integers(0, 8)] * 2, *[st.integers(9, 20)] * 2))
def test_covered_share_is_what_a_mask_counts(boxes: list[tuple[int, ...]], within: tuple[int, ...]) -> None:
    boxes = [b for b in boxes if b[0] < b[2] and b[1] < b[3]]
    mask = np.zeros((40, 40), bool)
    for x0, y0, x1, y1 in boxes:
        mask[y0 + 10 : y1 + 10, x0 + 10 : x1 + 10] = True
    x0, y0, x1, y1 = within
    expected = mask[y0 + 10 : y1 + 10, x0 + 10 : x1 + 10].mean()
    assert covered_share(np.array(boxes, np.float32).reshape(-1, 4), within) == pytest.approx(expected)


def imagenet(folder: Path) -> Path:
    """A tree as ImageNet's, with the annotations as they were released: "val" has no class in its names."""
    for number, name in enumerate(["train/n01/a.JPEG", "train/n02/b.JPEG", "val/n01/v1.JPEG", "val/n02/v2.JPEG"]):
        path = folder / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (number, 0, 0)).save(path, "JPEG")
    face, empty = {"x0": 4, "y0": 5, "x1": 9.5, "y1": 20}, {"x0": 4, "y0": 5, "x1": 4, "y1": 20}
    rows = [
        {"url": "train/n01/a.JPEG", "bboxes": [face, empty]},
        {"url": "train/n02/b.JPEG", "bboxes": []},
        {"url": "val/v2.JPEG", "bboxes": [face]},
    ]
    (folder / "faces.json").write_text(json.dumps(rows))
    return folder


def test_imagenet_is_read_as_it_was_released(tmp_path: Path) -> None:
    folder = imagenet(tmp_path)
    voc = tmp_path / "xml" / "n02" / "v2.xml"
    voc.parent.mkdir(parents=True)
    bounds = "<bndbox><xmin>0</xmin><ymin>5</ymin><xmax>11</xmax><ymax>20</ymax></bndbox>"
    voc.write_text(f"<annotation><object><name>n02</name>{bounds}</object></annotation>")
    scenes = open_scenes(folder / "images", folder / "faces.json", tmp_path / "xml")
    assert scenes.classes == ("n01", "n02")
    assert [(s.name, s.label, s.split, len(s.boxes)) for s in scenes.items] == [
        ("train/n01/a.JPEG", 0, "train", 1),
        ("train/n02/b.JPEG", 1, "train", 0),
        ("val/n01/v1.JPEG", 0, "val", 0),
        ("val/n02/v2.JPEG", 1, "val", 1),
    ]
    assert scenes.empty_boxes == 1
    last = scenes.items[-1]
    assert last.boxes.tolist() == [[4, 5, 9.5, 20]]
    assert last.objects is not None and covered_share(last.boxes, last.objects[0]) == pytest.approx(5.5 / 11)
    assert len(scenes.split("val")) == 2
    with pytest.raises(UsageError, match="there are train, val"):
        scenes.split("test")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"url": "train/x/none.JPEG", "bboxes": []}], "no record"),
        ([{"url": "val/v2.JPEG", "bboxes": [{"x0": 1}]}], "not x0, y0, x1, y1"),
        ([{"url": "val/v2.JPEG", "bboxes": [[1, 2, float("nan"), 4]]}], "not finite"),
        ([{"url": "val/v2.JPEG"}, {"url": "val/v2.JPEG"}], "two records"),
        ([{"bboxes": []}], "names no image"),
        (3, "no list of records"),
    ],
)
def test_bad_annotations_are_refused(tmp_path: Path, rows: object, message: str) -> None:
    folder = imagenet(tmp_path)
    (folder / "faces.json").write_text(json.dumps(rows))
    with pytest.raises(InputError, match=message):
        open_scenes(folder / "images", folder / "faces.json")


def test_holdout_takes_its_share_of_every_class_and_repeats(tmp_path: Path) -> None:
    scenes = open_scenes(*write_scenes(tmp_path, in_face=True))
    train, evaluation = scenes.holdout(0.25)
    assert {s.name for s in train.items} | {s.name for s in evaluation.items} == {s.name for s in scenes.items}
    assert not {s.name for s in train.items} & {s.name for s in evaluation.items}
    assert np.bincount(evaluation.labels).tolist() == [9, 9]
    only_a = scenes.take(np.flatnonzero(scenes.labels == 0))
    assert [len(half) for half in only_a.holdout(0.25)] == [27, 9]
    with pytest.raises(UsageError, match="'b' has one image only"):
        scenes.take([*np.flatnonzero(scenes.labels == 0), 1]).holdout(0.25)
    assert scenes.holdout(0.25)[1].fingerprint == evaluation.fingerprint != scenes.holdout(0.25, seed=1)[1].fingerprint


def test_pictures_are_obfuscated_at_full_resolution_and_kept_within_their_room(tmp_path: Path) -> None:
    scenes = open_scenes(*write_scenes(tmp_path, in_face=True))
    image, boxes = scenes.items[3].load(), np.array([FACE])
    assert np.array_equal(Pictures.of(scenes, "original")[3], image)
    assert np.array_equal(Pictures.of(scenes, "blurred")[3], obfuscate_blur(image, boxes))
    assert np.array_equal(Pictures.of(scenes, "blurred", blur="released")[3], obfuscate_blur(image, boxes, "released"))
    assert np.array_equal(Pictures.of(scenes, "green")[3], obfuscate_overlay(image, boxes, "green"))
    assert np.array_equal(Pictures.of(scenes, "overlaid")[3], Pictures.of(scenes, "mean")[3])
    roomy, tight = Pictures.of(scenes, "red"), Pictures.of(scenes, "red", room=2.5 * image.nbytes)
    roomy.fill()
    tight.fill()
    assert (len(roomy._kept), len(tight._kept)) == (len(scenes), 2)
    assert np.array_equal(tight[40], roomy[40])


def test_decoys_go_to_images_without_faces_only(tmp_path: Path) -> None:
    scenes = open_scenes(imagenet(tmp_path) / "images", tmp_path / "faces.json")
    decoyed = with_decoys(scenes)
    assert all(len(scene.boxes) for scene in decoyed.items)
    assert np.array_equal(decoyed.items[0].boxes, scenes.items[0].boxes)
    assert np.array_equal(decoyed.items[1].boxes, [[4, 5, 9.5, 20]])  # all images have one size here


def test_random_views_are_mirrored_half_of_the_time_and_vary() -> None:
    picture = np.repeat(np.arange(0, 240, 4, dtype=np.uint8)[None, :, None], 60, 0).repeat(3, 2)
    views = [random_view(picture, 16, generator("view", n)).astype(int) for n in range(200)]
    rising = sum(view[0, -1, 0] > view[0, 0, 0] for view in views)
    assert 70 < rising < 130
    assert len({view.tobytes() for view in views}) > 150


def test_the_central_view_is_resize_and_crop(rng: np.random.Generator) -> None:
    smooth = Image.fromarray(rng.integers(0, 256, (6, 9, 3), dtype=np.uint8)).resize((90, 60), Image.Resampling.BICUBIC)
    small = smooth.resize((48, 32), Image.Resampling.BILINEAR).crop((12, 4, 36, 28))
    view = central_view(np.array(smooth), 24, 32)
    assert np.abs(view.astype(int) - np.array(small)).max() <= 4  # the filter ends at the crop instead of beyond it
    assert central_view(np.array(smooth), 32, 32).shape == (32, 32, 3)
