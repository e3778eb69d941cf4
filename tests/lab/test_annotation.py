"""Annotation: pairing of boxes, records, detection, gold images, batches, collecting, counting, commands, the page."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from page_reader import EVIL, Page, browse, run, stands_alone
from PIL import Image
from stand_ins import invoke

from ficgan.cli.evaluate import annotate
from ficgan.errors import FicganError, InputError
from ficgan.faces import Face
from ficgan.lab.annotation import (
    EXPORT_SCHEMA,
    AnnotationKey,
    Batch,
    BatchImage,
    ImageRecord,
    ImageRecords,
    collect,
    detect_set,
    errors,
    listed,
    overlaps,
    page_html,
    read_key,
    read_records,
    score_annotations,
    spoil,
    write_pages,
    write_records,
)
from ficgan.lab.results import page_script, page_template
from ficgan.lab.study.scenes import open_scenes

SIZE = (120, 90)
FACES = [[10, 10, 30, 35], [50, 20, 70, 45], [85, 50, 110, 80]]


def rows(*boxes: Any) -> NDArray[np.float64]:
    return np.array(boxes, np.float64).reshape(-1, 4)


def faces_of(name: str) -> NDArray[np.float64]:
    """The faces of image NN: 0, 1, 2, 3, 0, …"""
    return rows(*FACES[: int(Path(name).stem) % 4])


def write_images(folder: Path, count: int = 12) -> Path:
    for number in range(count):
        path = folder / "images" / ("lynx" if number % 2 else "maypole") / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", SIZE, (number, 40, 80)).save(path)
    return folder / "images"


def truth_of(images: Path) -> ImageRecords:
    return ImageRecords(ImageRecord(blob.name, faces_of(blob.name)) for blob in listed(images))


def detected_of(images: Path) -> ImageRecords:
    """As the truth, but the first face is missed and there is a box too many in the images after the eighth."""
    records = []
    for name, record in truth_of(images).items():
        boxes = record.boxes[1:]
        records.append(ImageRecord(name, np.vstack([boxes, [[0, 60, 20, 80]]]) if Path(name).stem > "08" else boxes))
    return ImageRecords(records)


class RedDetector:
    """Finds in a picture what the red of its first pixel says."""

    name = "red"

    def __init__(self, stop_at: int | None = None, threshold: float = 0.5) -> None:
        self.seen, self.stop_at, self.threshold = 0, stop_at, threshold

    def detect(self, image: NDArray[np.uint8]) -> list[Face]:
        if self.seen == self.stop_at:
            raise KeyboardInterrupt
        self.seen += 1
        boxes = faces_of(str(image[0, 0, 0])).astype(np.float32) + 0.125
        return [Face(box, np.zeros((5, 2), np.float32), 0.875) for box in boxes]


def make(tmp_path: Path, **rules: int) -> tuple[Path, AnnotationKey]:
    """Pages of twelve images, three of which are gold, in batches of five."""
    images = write_images(tmp_path)
    verified = ImageRecords(list(truth_of(images).values())[:3])
    given = {"size": 5, "gold": 2, **rules}
    key, failed = write_pages(tmp_path / "out", listed(images), detected_of(images), verified, **given)
    assert failed == []
    return tmp_path / "out", key


def right(image: BatchImage) -> NDArray[np.float64]:
    return faces_of(image.name)


def hand_in(path: Path, batch: Batch, draw: Callable[[BatchImage], Any] = right, worker: str = "ada") -> Path:
    """An export as the page writes it."""
    images = [{"id": image.id, "boxes": np.asarray(draw(image)).tolist()} for image in batch.images]
    head = {"schema": EXPORT_SCHEMA, "batch": batch.id, "worker": worker, "attempt": 1, "lives": 2}
    path.write_text(json.dumps({**head, "images": images}))
    return path


# -- boxes -------------------------------------------------------------------------------------------------------------


@st.composite
def boxes(draw: st.DrawFn, most: int = 4) -> NDArray[np.float64]:
    corners = st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(1, 8), st.integers(1, 8))
    return rows(*((x, y, x + w, y + h) for x, y, w, h in draw(st.lists(corners, max_size=most))))


@given(boxes(), boxes(), st.sampled_from([0.1, 0.3, 0.5, 1.0]))
def test_errors_are_those_of_the_best_of_all_assignments(a: NDArray[Any], b: NDArray[Any], least: float) -> None:
    shared = overlaps(a, b)
    padded = np.zeros((max(len(a), len(b), 1),) * 2)
    padded[: len(a), : len(b)] = shared
    best = max((padded[range(len(padded)), order] >= least).sum() for order in permutations(range(len(padded))))
    assert errors(a, b, least) == (len(a) - best, len(b) - best)


def test_records_go_through_a_file_and_into_the_study(tmp_path: Path) -> None:
    images, path = write_images(tmp_path, 4), tmp_path / "a.json"
    record = ImageRecord("lynx/01.png", rows(FACES[0], FACES[1]), {"width": 120, "label": 'ly"nx'})
    write_records(path, [record, ImageRecord("maypole/02.png", rows())])
    read = read_records(path)
    assert list(read) == ["lynx/01.png", "maypole/02.png"] and read["maypole/02.png"].category == "maypole"
    np.testing.assert_array_equal(read["lynx/01.png"].boxes, record.boxes)
    assert read["lynx/01.png"].more == record.more
    scenes = {scene.name: scene for scene in open_scenes(images, path).items}
    np.testing.assert_array_equal(scenes["lynx/01.png"].boxes, record.boxes.astype(np.float32))
    box = {"x0": 1, "y0": 2, "x1": 3, "y1": 4}  # as released
    path.write_text(json.dumps([{"url": "val/x.JPEG", "bboxes": [box, {**box, "x1": 1}]}]))
    found = read_records(path).find("val/n01440764/x.JPEG")
    assert found is not None and found.boxes.tolist() == [[1, 2, 3, 4]]
    assert read_records(path).find("val/n01440764/y.JPEG") is None


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "3",
        '[{"bboxes": []}]',
        '[{"file": "a.png"}, {"file": "./a.png"}]',
        '[{"file": "a.png", "bboxes": [{"x0": 1}]}]',
        '[{"file": "a.png", "bboxes": [[1, 2, 3]]}]',
        '[{"file": "a.png", "bboxes": [[1, 2, 3, NaN]]}]',
    ],
)
def test_bad_records_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError):
        read_records(tmp_path / "a.json")


def test_detection_goes_on_where_it_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ficgan.lab.annotation._KEPT_TOGETHER", 2)
    images, out, part = write_images(tmp_path, 6), tmp_path / "b.json", tmp_path / "b.json.part"
    whole = tmp_path / "whole.json"
    detect_set(images, whole, RedDetector())
    with pytest.raises(KeyboardInterrupt):
        detect_set(images, out, RedDetector(stop_at=5))
    assert not out.exists() and len(list(part.iterdir())) == 2
    next(part.iterdir()).write_text("{")  # damaged: these two are detected again
    again = RedDetector()
    assert detect_set(images, out, again)[1] == []
    assert (again.seen, part.exists()) == (4, False)
    assert out.read_bytes() == whole.read_bytes()
    first = json.loads(out.read_text())[1]
    assert first["file"] == "lynx/03.png" and (first["detector"], first["threshold"]) == ("red", 0.5)
    assert first["bboxes"][0] == {"x0": 10.12, "y0": 10.12, "x1": 30.12, "y1": 35.12}


# -- pages -------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 3), st.integers(0, 10**6))
def test_gold_boxes_are_wrong_in_one_place(count: int, seed: int) -> None:
    truth = faces_of(str(count))
    shown = spoil(truth, 120, 90, np.random.default_rng(seed))
    assert sorted(errors(shown, truth)) == [0, 1]
    assert (shown[:, :2] >= 0).all() and (shown[:, 2:] <= [120, 90]).all() and (shown[:, :2] < shown[:, 2:]).all()


def test_batches_have_gold_in_seeded_places_and_no_image_twice(tmp_path: Path) -> None:
    folder, key = make(tmp_path)
    assert [len(batch.images) for batch in key.batches] == [5, 5, 5]
    work = [image.name for batch in key.batches for image in batch.images if image.truth is None]
    assert sorted(work) == sorted(set(truth_of(tmp_path / "images")) - {row["file"] for row in key.verified})
    for batch in key.batches:
        gold = [image for image in batch.images if image.truth is not None]
        assert len({image.name for image in gold}) == len(gold) == 2
        assert all(sum(errors(rows(*image.shown), right(image))) for image in gold)
    places = {tuple(k for k, image in enumerate(batch.images) if image.truth is not None) for batch in key.batches}
    assert len(places) > 1 and read_key(folder / "key.json") == key
    assert (folder.stat().st_mode & 0o777) == 0o700
    (tmp_path / "again").mkdir()
    again, other = make(tmp_path / "again")[1], make(tmp_path / "again" / "other", seed=1)[1]
    assert again == key and not {batch.id for batch in other.batches} & {batch.id for batch in key.batches}


def test_too_little_gold_and_mixed_folders_are_refused(tmp_path: Path) -> None:
    images = write_images(tmp_path, 4)
    truth, blobs = truth_of(images), listed(images)
    for folder, rules in (("o", {"size": 3}), ("p", {"gold": 5}), ("q", {}), ("images", {"gold": 0})):
        with pytest.raises(FicganError):
            write_pages(tmp_path / folder, blobs, truth, truth, **rules)


def test_pictures_carry_no_metadata_are_upright_and_damaged_ones_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "secret place"
    Image.new("RGB", (60, 40)).save(folder / "a.jpg", exif=exif, comment=b"secret name")
    (folder / "b.png").write_bytes(b"no picture")
    key, failed = write_pages(tmp_path / "o", listed(folder), ImageRecords([]), ImageRecords([]), gold=0)
    (image,) = key.batches[0].images
    assert (image.width, image.height) == (40, 60) and len(failed) == 1 and key.verified == ()
    page = Page((tmp_path / "o" / "pages" / "batch-0001.html").read_text())
    data = base64.b64decode(page.data["images"][0]["src"].partition(",")[2])
    with Image.open(io.BytesIO(data)) as shown:
        assert shown.size == (40, 60) and not shown.getexif() and b"secret" not in data


# -- what comes back ---------------------------------------------------------------------------------------------------


def test_careful_work_becomes_the_truth(tmp_path: Path) -> None:
    _, key = make(tmp_path)
    done = collect(key, [hand_in(tmp_path / f"{n}.json", batch) for n, batch in enumerate(key.batches)])
    assert (done.refused, done.unseen, len(done.accepted)) == ([], [], 3)
    truth = truth_of(tmp_path / "images")
    assert [record.name for record in done.records] == list(truth)
    assert all(np.array_equal(record.boxes, truth[record.name].boxes) for record in done.records)
    assert sum(record.more.get("verified", False) for record in done.records) == 3


def test_careless_work_is_refused_by_its_gold_images(tmp_path: Path) -> None:
    _, key = make(tmp_path)
    files = [hand_in(tmp_path / f"{n}.json", batch) for n, batch in enumerate(key.batches)]
    hand_in(files[1], key.batches[1], lambda image: image.shown, worker="bob")
    first = next(image for image in key.batches[2].images if image.truth is not None)
    hand_in(files[2], key.batches[2], lambda image: image.shown if image is first else right(image))
    done = collect(key, files)
    (reason,) = done.refused
    assert str(files[1]) in reason and "bob" in reason and done.accepted == [key.batches[0].id, key.batches[2].id]
    assert done.unseen == [image.name for image in key.batches[1].images if image.truth is None]
    by_name = {record.name: record for record in done.records}
    for image in key.batches[1].images:
        if image.truth is None:
            assert by_name[image.name].more["reviewed"] is False
            assert by_name[image.name].boxes.tolist() == image.shown
    assert len(collect(key, [files[0], files[0]]).refused) == 1


def put(**values: Any) -> Any:
    return lambda raw: raw["images"][0].update(values)


@pytest.mark.parametrize(
    "spoiled",
    [
        lambda raw: raw["images"].pop(),
        lambda raw: raw["images"].append(raw["images"][0]),
        put(id="000000-001"),
        put(id=[1]),
        put(boxes=[[0, 0, 121, 5]]),
        put(boxes=[[-1, 0, 10, 5]]),
        put(boxes=[[5, 5, 5, 9]]),
        put(boxes=[[0, 0, 5]]),
        put(boxes=None),
        put(boxes=[[0, 0, float("nan"), 5]]),
        lambda raw: raw.update(batch="0" * 16),
        lambda raw: raw.update(batch=["x"]),
        lambda raw: raw.update(worker=" "),
        lambda raw: raw.update(images={}),
        lambda raw: raw.update(schema="other"),
    ],
)
def test_bad_exports_are_refused_by_name(spoiled: Any, tmp_path: Path) -> None:
    _, key = make(tmp_path)
    file = hand_in(tmp_path / "a.json", key.batches[0])
    raw = json.loads(file.read_text())
    spoiled(raw)
    file.write_text(json.dumps(raw))
    (reason,) = collect(key, [file]).refused
    assert str(file) in reason


def test_counts_before_and_after_are_those_of_table_1() -> None:
    face, far = [0, 0, 10, 10], [50, 50, 60, 60]

    def records(**found: Any) -> ImageRecords:
        return ImageRecords(
            ImageRecord(f"{'maypole' if name == 'c' else 'lynx'}/{name}.jpg", one) for name, one in found.items()
        )

    truth = records(a=rows(), b=rows(face), c=rows(face, far))
    before = records(a=rows(far), b=rows(face, far), c=rows(far), d=rows(face))
    after = records(a=rows(), b=rows([0, 0, 10, 5]), c=rows(far))
    score = score_annotations(truth, {"before": before, "after": after})
    counts = {
        row["category"]: [row[name][kind] for kind in ("fp", "fn") for name in ("before", "after")]
        for row in [*score["categories"], score["all"]]
    }
    assert counts == {"lynx": [2, 0, 0, 0], "maypole": [0, 0, 1, 1], "all": [2, 0, 1, 1]}
    assert score["categories"][0]["published"] == {"fp_a": 9, "fp_h": 1, "fn_a": 0, "fn_h": 0}
    assert score["all"]["before"]["fp_per_50"] == pytest.approx(100 / 3)
    for bad in ((truth, {"before": ImageRecords([])}), (ImageRecords([]), {"before": before})):
        with pytest.raises(FicganError):
            score_annotations(*bad)


# -- commands ----------------------------------------------------------------------------------------------------------


call = partial(invoke, annotate)


def test_the_commands_from_detection_to_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = write_images(tmp_path)
    monkeypatch.setattr("ficgan.faces.get_detector", lambda *args, **kwargs: RedDetector())
    truth, boxes = tmp_path / "truth.json", tmp_path / "boxes.json"
    write_records(truth, truth_of(images).values())
    code, out, _ = call("detect", images, "-o", boxes, "--quiet")
    assert code == 0 and json.loads(out)["images"] == 12
    write_records(boxes, detected_of(images).values())
    gold, pages, final = tmp_path / "gold.json", tmp_path / "pages", tmp_path / "final.json"
    write_records(gold, list(truth_of(images).values())[:3])
    code, out, _ = call("page", images, boxes, "-o", pages, "--gold", gold, "--batch", 5, "--gold-count", 2)
    assert code == 0 and json.loads(out)["images"] == 9
    files = [hand_in(tmp_path / f"e{n}.json", one) for n, one in enumerate(read_key(pages / "key.json").batches)]
    code, out, err = call("collect", pages / "key.json", *files[:2], "-o", final)
    assert code == 3 and err.count("nobody looked at") == 3 == json.loads(out)["unseen"]
    code, out, _ = call("collect", pages / "key.json", *files, "-o", final)
    assert code == 0 and json.loads(out)["refused"] == 0
    code, out, _ = call("score", truth, "--before", boxes, "--after", final, "-o", tmp_path / "score.json")
    counted = json.loads(out)["all"]
    assert code == 0 and json.loads((tmp_path / "score.json").read_text())["all"] == counted
    assert (counted["before"]["fn"], counted["after"]["fn"], counted["after"]["fp"]) == (9, 0, 0)
    assert len(open_scenes(images, final)) == 12


# -- the page ----------------------------------------------------------------------------------------------------------


SCRIPT = page_script(page_template("ficgan.lab.annotation"))


def a_page(tmp_path: Path, **rules: Any) -> tuple[str, AnnotationKey, Batch]:
    """The first page of `make`, and what the key says of it."""
    folder, key = make(tmp_path, **rules)
    return (folder / "pages" / "batch-0001.html").read_text(), key, key.batches[0]


def test_the_page_stands_alone_names_no_file_and_nothing_can_be_injected(tmp_path: Path) -> None:
    text, _, batch = a_page(tmp_path)
    page = stands_alone(text, {"http://www.w3.org"})
    for shown, image in zip(page.data["images"], batch.images, strict=True):
        assert image.name not in text and Path(image.name).name not in text
        assert shown["src"].startswith("data:image/jpeg;base64,") and shown["boxes"] == image.shown
        assert set(shown) == {"id", "width", "height", "boxes", "src"}  # gold or not: they look alike
    gold = {str(n): image.truth for n, image in enumerate(batch.images) if image.truth is not None}
    assert json.loads(base64.b64decode(page.data["checks"])) == gold
    evil = replace(batch, title=EVIL, images=tuple(replace(image, name=EVIL) for image in batch.images))
    page = stands_alone(page_html(evil, [EVIL] * 5), {"http://www.w3.org"})
    assert page.text["title"].rstrip("\n") == f"Faces: {EVIL}"
    assert [image["src"] for image in page.data["images"]] == [EVIL] * 5


def pure(node: str, expression: str) -> Any:
    return run(node, f"{SCRIPT}\nconsole.log(JSON.stringify({expression}));")


def test_the_page_counts_errors_as_collecting_does(node: str, rng: np.random.Generator) -> None:
    """Crowded boxes in tenths of a pixel, many of which overlap several others."""
    cases = []
    for _ in range(300):
        lists = []
        for _ in range(2):
            corner = rng.uniform(0, 12, (rng.integers(0, 9), 2)).round(1)
            lists.append(np.hstack([corner, corner + rng.uniform(2, 9, corner.shape).round(1)]).round(1))
        cases.append((lists[0], lists[1], float(rng.choice([0.2, 0.5, 0.7]))))
    told = json.dumps([[a.tolist(), b.tolist(), least] for a, b, least in cases])
    found = pure(node, f"{told}.map(([a, b, least]) => errors(a, b, least))")
    assert [tuple(one) for one in found] == [errors(a.reshape(-1, 4), b.reshape(-1, 4), least) for a, b, least in cases]


def test_a_careful_person_with_a_mouse_makes_the_truth(node: str, tmp_path: Path) -> None:
    """Boxes are deleted by key and drawn anew by dragging; what is exported passes and is the truth."""
    text, key, batch = a_page(tmp_path)
    answers = json.dumps([right(image).tolist() for image in batch.images])
    saved, blobs, lives = browse(
        node,
        text,
        f"for (const answer of {answers}) {{ for (const _ of drawn('box')) {{ press('c'); press('Delete'); }}"
        "answer.forEach(b => drag(b[0], b[1], b[2], b[3])); click('next'); }"
        "click('export'); elements.worker.value = ' ada ';"
        "click('export'); out = [saved, blobs, elements.lives.textContent];",
    )
    assert saved == [f"boxes-{batch.id}.json"] and lives == "lives: 2"
    file = tmp_path / "e.json"
    file.write_text(blobs[0])
    assert collect(key, [file]).accepted == [batch.id]
    # The page writes what the tests elsewhere take for its export.
    assert json.loads(hand_in(tmp_path / "h.json", batch).read_text()) == json.loads(file.read_text())


def test_a_careless_person_sees_the_truth_loses_lives_and_starts_again(node: str, tmp_path: Path) -> None:
    text, _, batch = a_page(tmp_path)
    gold = [place for place, image in enumerate(batch.images) if image.truth is not None]
    out = browse(
        node,
        text,
        "out = []; const tell = () => out.push([elements.place.textContent, elements.lives.textContent,"
        " drawn('truth'), elements.add.disabled, elements.export.disabled]);"
        "for (let n = 0; n < 8; n++) { press('Enter'); tell(); }",
    )
    expected = []
    place, lives, attempt, showing = 0, 2, 1, False
    for _ in range(8):
        if lives == 0:
            place, lives, attempt, showing = 0, 2, attempt + 1, False
        elif showing or place not in gold:
            place, showing = place + 1, False
        else:
            lives, showing = lives - 1, True
        again = f", attempt {attempt}" if attempt > 1 else ""
        truth = right(batch.images[place]).tolist() if showing else []
        expected.append([f"Image {place + 1} of 5", f"lives: {lives}{again}", truth, showing or lives == 0, True])
    assert out == expected and any("attempt 2" in row[1] for row in out)
