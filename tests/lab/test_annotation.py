"""Annotation: pairing of boxes, records, detection, gold images, batches, collecting, counting, the commands."""

from __future__ import annotations

import io
import json
import stat
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotation_world import (
    FACES,
    Broken,
    Told,
    detected_of,
    faces_of,
    hand_in,
    make,
    right,
    rows,
    truth_of,
    write_images,
)
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching
from scipy.stats import binomtest

from ficgan.cli.evaluate import evaluate
from ficgan.cli.people import annotate
from ficgan.errors import InputError, UsageError
from ficgan.lab.annotation import (
    PUBLISHED_ERRORS,
    PUBLISHED_PER_50,
    SPOILS,
    Rules,
    collect,
    compose,
    read_key,
    score_annotations,
    score_text,
    spoil,
    write_pages,
)
from ficgan.lab.annotation.boxes import (
    Record,
    Records,
    changes,
    detect_set,
    distinct,
    errors,
    listed,
    merge,
    overlaps,
    pairs,
    read_records,
    write_records,
)
from ficgan.lab.study import open_scenes

Box = tuple[int, int, int, int]


@st.composite
def boxes(draw: st.DrawFn, most: int = 4) -> NDArray[np.float64]:
    corners = st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(1, 8), st.integers(1, 8))
    return rows(*((x, y, x + w, y + h) for x, y, w, h in draw(st.lists(corners, max_size=most))))


@given(boxes(), boxes())
def test_overlaps_are_what_masks_count(a: NDArray[Any], b: NDArray[Any]) -> None:
    def mask(box: NDArray[Any]) -> NDArray[np.bool_]:
        out = np.zeros((24, 24), bool)
        x0, y0, x1, y1 = box.astype(int)
        out[y0:y1, x0:x1] = True
        return out

    expected = [[(mask(p) & mask(q)).sum() / (mask(p) | mask(q)).sum() for q in b] for p in a]
    np.testing.assert_allclose(overlaps(a, b), np.array(expected).reshape(len(a), len(b)), atol=1e-12)


@given(boxes(), boxes(), st.sampled_from([0.1, 0.3, 0.5, 1.0]))
def test_pairs_are_the_best_of_all_assignments(a: NDArray[Any], b: NDArray[Any], least: float) -> None:
    shared = overlaps(a, b)
    padded = np.zeros((max(len(a), len(b), 1),) * 2)
    padded[: len(a), : len(b)] = shared
    every = [
        [(i, j) for i, j in enumerate(order) if padded[i, j] >= least] for order in permutations(range(len(padded)))
    ]
    best = max((len(some), sum(padded[i, j] for i, j in some)) for some in every)
    found = pairs(a, b, least)
    assert len({i for i, _ in found}) == len({j for _, j in found}) == len(found) == best[0]
    assert sum(shared[i, j] for i, j in found) == pytest.approx(best[1])


@given(boxes(most=12), boxes(most=12))
def test_errors_are_what_a_maximum_matching_leaves(a: NDArray[Any], b: NDArray[Any]) -> None:
    graph = csr_matrix(overlaps(a, b) >= 0.3)
    right = int((maximum_bipartite_matching(graph) >= 0).sum()) if len(a) and len(b) else 0
    assert errors(a, b, 0.3) == (len(a) - right, len(b) - right)


def test_changes_name_what_was_done() -> None:
    before = rows([0, 0, 10, 10], [20, 20, 30, 30], [50, 50, 60, 60])
    after = rows([2, 0, 12, 10], [80, 80, 90, 90], [50, 50, 60, 60])
    assert [tuple(change.values()) for change in changes(before, after)] == [
        ("moved", [0, 0, 10, 10], [2, 0, 12, 10]),
        ("removed", [20, 20, 30, 30], None),
        ("added", None, [80, 80, 90, 90]),
    ]
    assert changes(before, before[::-1]) == []


@given(boxes(), boxes())
def test_changes_make_the_one_list_of_the_other(a: NDArray[Any], b: NDArray[Any]) -> None:
    now = a.tolist()
    for change in changes(a, b):
        if change["before"] is not None:
            now.remove(change["before"])
        if change["after"] is not None:
            now.append(change["after"])
    assert sorted(now) == sorted(b.tolist())


def test_merging_takes_medians_and_covers_what_is_divided() -> None:
    face, other, third = [0, 0, 10, 10], [30, 30, 40, 40], [60, 0, 70, 10]
    drawn = [rows(face, other), rows([1, 0, 11, 10], third), rows([3, 0, 13, 10])]
    kept, votes = merge(drawn)
    assert kept.tolist() == [[1, 0, 11, 10]] and votes == [3]
    assert merge(drawn, union=True)[1] == [3, 1, 1]
    assert merge(drawn[:2])[1] == [2, 1, 1]  # one of two: covered
    assert merge([rows(), rows()])[0].shape == (0, 4)
    assert distinct(rows(face, other, [0, 0, 10, 10.1], face)).tolist() == [face, other]


def test_records_go_through_a_file_and_into_the_study(tmp_path: Path) -> None:
    images = write_images(tmp_path, 4)
    record = Record("lynx/01.png", rows(FACES[0], FACES[1]), (0.9, 0.25), {"width": 120, "label": 'ly"nx'})
    path = tmp_path / "a.json"
    write_records(path, [record, Record("maypole/02.png", rows())])
    read = read_records(path)
    assert list(read) == ["lynx/01.png", "maypole/02.png"] and read["lynx/01.png"].scores == (0.9, 0.25)
    np.testing.assert_array_equal(read["lynx/01.png"].boxes, record.boxes)
    assert read["lynx/01.png"].more == record.more and read["maypole/02.png"].category == "maypole"
    scenes = {scene.name: scene for scene in open_scenes(images, path).items}
    np.testing.assert_array_equal(scenes["lynx/01.png"].boxes, record.boxes.astype(np.float32))
    assert len(scenes["maypole/02.png"].boxes) == 0


def test_records_are_read_as_released_and_as_a_table_of_boxes(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(
        json.dumps(
            [
                {
                    "url": "val/x.JPEG",
                    "bboxes": [{"x0": 1, "y0": 2, "x1": 3, "y1": 4}, {"x0": 1, "y0": 2, "x1": 1, "y1": 4}],
                }
            ]
        )
    )
    found = read_records(tmp_path / "r.json").find("val/n01440764/x.JPEG")
    assert found is not None and found.boxes.tolist() == [[1, 2, 3, 4]] and found.scores is None
    assert read_records(tmp_path / "r.json").find("val/n01440764/y.JPEG") is None
    (tmp_path / "d.json").write_text(json.dumps({"a/b.jpg": [[1, 2, 3, 4]]}))
    assert read_records(tmp_path / "d.json")["a/b.jpg"].boxes.tolist() == [[1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read as JSON"),
        ("3", "no list of records"),
        ('[{"bboxes": []}]', "record 1 of .* names no image"),
        ('[{"file": "a.png"}, {"file": "./a.png"}]', "a.png has two records"),
        ('[{"file": "a.png", "bboxes": [{"x0": 1}]}]', "boxes of a.png in .* are not x0"),
        ('[{"file": "a.png", "bboxes": [[1, 2, 3, "4"]]}]', "an edge is no number"),
        ('[{"file": "a.png", "bboxes": [[1, 2, 3, NaN]]}]', "not finite"),
    ],
)
def test_bad_records_are_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError, match=said):
        read_records(tmp_path / "a.json")


def test_detection_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    images, out, part = write_images(tmp_path, 6), tmp_path / "b.json", tmp_path / "b.json.part"
    whole = tmp_path / "whole.json"
    detect_set(images, whole, Told())
    with pytest.raises(KeyboardInterrupt):
        detect_set(images, out, Told(stop_at=4))
    assert not out.exists() and part.exists()
    part.write_bytes(part.read_bytes()[:-20])  # the last line was not written to its end
    again = Told()
    done = detect_set(images, out, again)
    assert (done.resumed, again.seen, part.exists()) == (3, 3, False)
    assert out.read_bytes() == whole.read_bytes()
    first = json.loads(out.read_text())[1]
    assert first["file"] == "lynx/03.png" and (first["detector"], first["threshold"]) == ("told", 0.5)
    assert first["bboxes"][0] == {"x0": 10.12, "y0": 10.12, "x1": 30.12, "y1": 35.12, "score": 0.875}


def test_damaged_images_are_named_and_left_out(tmp_path: Path) -> None:
    images = write_images(tmp_path, 3)
    (images / "lynx" / "01.png").write_bytes(b"\x89PNG\r\n\x1a\nand no more")
    done = detect_set(images, tmp_path / "b.json", Told())
    assert list(read_records(tmp_path / "b.json")) == ["maypole/00.png", "maypole/02.png"]
    assert len(done.failed) == 1 and "01.png" in done.failed[0]
    with pytest.raises(InputError, match="none of 3 images"):
        detect_set(images, tmp_path / "c.json", Broken())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.json", "images"]


def test_another_detectors_half_is_not_gone_on_with(tmp_path: Path) -> None:
    images = write_images(tmp_path, 3)
    with pytest.raises(KeyboardInterrupt):
        detect_set(images, tmp_path / "b.json", Told(stop_at=1))
    other = Told()
    other.threshold = 0.7
    with pytest.raises(InputError, match="begun with other settings"):
        detect_set(images, tmp_path / "b.json", other)
    (tmp_path / "b.json.part").write_text('{"detector": "told", "threshold": 0.5}\n{"file": 3}\n')
    with pytest.raises(InputError, match="damaged"):
        detect_set(images, tmp_path / "b.json", Told())


@given(st.integers(0, 3), st.integers(0, 10**6))
def test_gold_boxes_are_wrong_in_one_place(count: int, seed: int) -> None:
    truth = faces_of(count)
    shown, kind = spoil(truth, 120, 90, np.random.default_rng(seed), overlap=0.5)
    expected = {"removed": (0, 1), "shifted": (1, 1), "added": (1, 0)}[kind]
    assert errors(shown, truth, 0.5) == expected
    assert (shown[:, :2] >= 0).all() and (shown[:, 2:] <= [120, 90]).all() and (shown[:, :2] < shown[:, 2:]).all()
    assert len(changes(truth, shown)) in ((1, 2) if kind == "shifted" else (1,))


def test_every_kind_of_gold_error_comes_up_and_none_where_it_cannot() -> None:
    kinds = {spoil(faces_of(3), 120, 90, np.random.default_rng(n), overlap=0.5)[1] for n in range(40)}
    assert kinds == set(SPOILS)
    whole = rows([0, 0, 120, 90])  # no room to shift it or to add another
    assert {spoil(whole, 120, 90, np.random.default_rng(n), overlap=0.5)[1] for n in range(10)} == {"removed"}
    assert spoil(rows(), 120, 90, np.random.default_rng(0), overlap=0.5)[1] == "added"


def test_batches_have_gold_in_seeded_places_and_no_image_twice(tmp_path: Path) -> None:
    folder, key = make(tmp_path)
    assert [len(batch.items) for batch in key.batches] == [5, 5, 5]
    work = [item.name for batch in key.batches for item in batch.items if item.truth is None]
    assert sorted(work) == sorted(set(truth_of(tmp_path / "images")) - {record.name for record in key.verified})
    for batch in key.batches:
        gold = [item for item in batch.items if item.truth is not None]
        assert len({item.name for item in gold}) == len(gold) == 2
        for item in gold:
            assert sum(errors(item.shown, right(item), 0.5)) and item.error in SPOILS
    places = {tuple(k for k, item in enumerate(batch.items) if item.truth is not None) for batch in key.batches}
    assert len(places) > 1
    read = read_key(folder / "key.json")
    assert [b.id for b in read.batches] == [b.id for b in key.batches] and read.rules == key.rules
    np.testing.assert_array_equal(read.batches[0].items[0].shown, key.batches[0].items[0].shown)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_batch_is_known_by_what_is_in_it(tmp_path: Path) -> None:
    images = write_images(tmp_path)
    truth, detected, blobs = truth_of(images), detected_of(images), listed(images)
    gold = [(blob, truth[blob.name]) for blob in blobs[:3]]

    def ids(found: Records, **rules: Any) -> list[str]:
        made = compose(blobs, found, gold, Rules(**{"size": 5, "gold": 2, **rules}), own_gold=True, failed=[])
        return [batch.id for batch, _ in made]

    first = ids(detected)
    assert ids(detected) == first and len(set(first)) == 3
    assert not set(ids(detected, seed=1)) & set(first)
    assert not set(ids(detected, overlap=0.6)) & set(first)
    assert ids(truth) != first


@pytest.mark.parametrize(
    "rules", [{"size": 3, "gold": 3}, {"lives": 0}, {"overlap": 0.0}, {"overlap": 1.5}, {"seed": -1}, {"gold": -1}]
)
def test_bad_rules_are_refused(rules: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Rules(**rules)


def test_too_little_gold_and_mixed_folders_are_refused(tmp_path: Path) -> None:
    images = write_images(tmp_path, 4)
    truth, blobs = truth_of(images), listed(images)
    gold = [(blob, truth[blob.name]) for blob in blobs]
    with pytest.raises(UsageError, match="3 gold images of at most 1 faces, and there are 2"):
        write_pages(tmp_path / "o", blobs, truth, gold, Rules(most_faces=1))
    with pytest.raises(InputError, match="nothing to review"):
        write_pages(tmp_path / "p", blobs, truth, gold, Rules())
    with pytest.raises(InputError, match="not empty"):
        write_pages(images, blobs, truth, gold, Rules())


def test_without_gold_there_is_no_control(tmp_path: Path) -> None:
    images = write_images(tmp_path, 3)
    key, _ = write_pages(tmp_path / "o", listed(images), Records([]), [], Rules(gold=0))
    assert [len(batch.items) for batch in key.batches] == [3] and key.verified == ()
    assert "lives" not in (tmp_path / "o/pages/batch-0001.html").read_text().split("<details>")[0].split("</head>")[1]


def test_an_unreadable_last_image_does_not_lose_its_batch(tmp_path: Path) -> None:
    images = write_images(tmp_path, 4)
    (images / "maypole" / "02.png").write_bytes(b"no picture")
    key, failed = write_pages(tmp_path / "o", listed(images), Records([]), [], Rules(gold=0))
    assert [len(batch.items) for batch in key.batches] == [3] and len(failed) == 1


def test_pictures_carry_no_metadata_and_are_upright(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "secret place"
    Image.new("RGB", (60, 40)).save(folder / "a.jpg", exif=exif, comment=b"secret name")
    key, _ = write_pages(tmp_path / "o", listed(folder), Records([]), [], Rules(gold=0), linked=True, side=30)
    (item,) = key.batches[0].items
    assert (item.width, item.height) == (40, 60)
    data = (tmp_path / "o" / "pages" / "images" / f"{item.id}.jpg").read_bytes()
    with Image.open(io.BytesIO(data)) as image:
        assert image.size == (20, 30) and not image.getexif() and b"secret" not in data
    assert f"images/{item.id}.jpg" in (tmp_path / "o" / "pages" / "batch-0001.html").read_text()


def test_careful_work_becomes_the_truth_and_every_change_is_logged(tmp_path: Path) -> None:
    _, key = make(tmp_path)
    files = [hand_in(tmp_path / f"{n}.json", batch) for n, batch in enumerate(key.batches)]
    done = collect(key, files)
    assert (done.refused, done.unseen, done.agreement, len(done.accepted)) == ([], [], [], 3)
    truth = truth_of(tmp_path / "images")
    assert [record.name for record in done.records] == list(truth)
    for record in done.records:
        assert errors(record.boxes, truth[record.name].boxes, 1.0) == (0, 0)
    assert sum(record.more.get("verified", False) for record in done.records) == 3
    # Of the nine reviewed images those with a face lack it, and those after the eighth have a box too many.
    numbers = [int(Path(item.name).stem) for b in key.batches for item in b.items if item.truth is None]
    kinds = [change["change"] for change in done.log]
    assert kinds.count("added") == sum(number % 4 > 0 for number in numbers)
    assert kinds.count("removed") == sum(number > 8 for number in numbers) and "moved" not in kinds


def test_what_nobody_touches_stays_as_the_detector_had_it(tmp_path: Path) -> None:
    images = write_images(tmp_path, 3)
    found = Records(Record(name, rows([1.07, 2.26, 30.34, 40.49])) for name in truth_of(images))
    key, _ = write_pages(tmp_path / "o", listed(images), found, [], Rules(gold=0))
    done = collect(key, [hand_in(tmp_path / "a.json", key.batches[0], lambda item: item.shown)])
    assert done.log == [] and [record.boxes.tolist() for record in done.records] == [[[1.07, 2.26, 30.34, 40.49]]] * 3
    assert [record.boxes.tolist() for record in collect(key, []).records] == [[[1.07, 2.26, 30.34, 40.49]]] * 3


def test_careless_work_is_refused_by_its_gold_images(tmp_path: Path) -> None:
    _, key = make(tmp_path)
    files = [hand_in(tmp_path / f"{n}.json", batch) for n, batch in enumerate(key.batches)]
    hand_in(files[1], key.batches[1], lambda item: item.shown, worker="bob")
    done = collect(key, files)
    ((file, reason),) = done.refused
    assert file == str(files[1]) and "bob" in reason and "2 of 2 gold images are wrong" in reason
    unseen = [item.name for item in key.batches[1].items if item.truth is None]
    assert done.unseen == unseen
    by_name = {record.name: record for record in done.records}
    for item in key.batches[1].items:
        if item.truth is None:
            assert by_name[item.name].more["workers"] == 0
            np.testing.assert_array_equal(by_name[item.name].boxes, item.shown)


def test_one_mistake_costs_a_life_only(tmp_path: Path) -> None:
    _, key = make(tmp_path)
    batch = key.batches[0]
    first = next(item for item in batch.items if item.truth is not None)
    file = hand_in(tmp_path / "a.json", batch, lambda item: item.shown if item is first else right(item))
    (export,) = collect(key, [file]).accepted
    assert export.mistakes == 1
    assert collect(key.__class__(Rules(5, 2, lives=1), key.batches), [file]).accepted == []


def test_several_people_are_compared_and_merged(tmp_path: Path) -> None:
    _, key = make(tmp_path, size=11)
    batch = key.batches[0]

    def wider(item: Any) -> NDArray[np.float64]:
        return right(item) + rows([0, 0, 2.5, 0]) if item.truth is None else right(item)

    files = [
        hand_in(tmp_path / "a.json", batch),
        hand_in(tmp_path / "b.json", batch, wider, worker="bob"),
        hand_in(tmp_path / "c.json", batch, worker="ada"),
    ]
    done = collect(key, files)
    assert len(done.accepted) == 2 and "who handed in" in done.refused[0][1]
    (seen,) = done.agreement
    faces = np.vstack([right(item) for item in batch.items if item.truth is None])
    sides = faces[:, 2:] - faces[:, :2]
    assert (seen["matched"], seen["unmatched"], seen["images"]) == (len(faces), 0, 9)
    assert seen["iou"] == pytest.approx(np.mean(sides[:, 0] / (sides[:, 0] + 2.5)))
    record = next(one for one in done.records if one.more.get("votes"))
    assert record.more["workers"] == 2
    np.testing.assert_allclose(record.boxes, faces_of(int(Path(record.name).stem)) + rows([0, 0, 1.25, 0]))
    assert {change["worker"] for change in done.log} == {"ada", "bob", "merged"}


def drop(raw: dict[str, Any]) -> None:
    raw["images"].pop()


def put(index: int, **values: Any) -> Any:
    return lambda raw: raw["images"][index].update(values)


@pytest.mark.parametrize(
    ("spoiled", "said"),
    [
        (drop, "lacks 1 of 5 images"),
        (lambda raw: raw["images"].append(raw["images"][0]), "twice"),
        (put(0, id="000000-001"), "not of its batch"),
        (put(0, id=[1]), "images.0.id"),
        (put(0, boxes=[[0, 0, 121, 5]]), "reaches outside of 120×90"),
        (put(0, boxes=[[-1, 0, 10, 5]]), "reaches outside"),
        (put(0, boxes=[[5, 5, 5, 9]]), "is empty"),
        (put(0, boxes=[[0, 0, 5]]), "not x0, y0, x1, y1"),
        (put(0, boxes=None), "images.0.boxes"),
        (put(0, boxes=[[0, 0, float("nan"), 5]]), "not finite"),
        (lambda raw: raw.update(batch="0" * 16), "key does not have"),
        (lambda raw: raw.update(batch=["x"]), "damaged (batch"),
        (lambda raw: raw.update(worker=" "), "damaged (worker"),
        (lambda raw: raw.update(images={}), "damaged"),
        (lambda raw: raw.update(schema="other"), "not of the schema"),
    ],
)
def test_bad_exports_are_refused_by_name(spoiled: Any, said: str, tmp_path: Path) -> None:
    _, key = make(tmp_path)
    file = hand_in(tmp_path / "a.json", key.batches[0])
    raw = json.loads(file.read_text())
    spoiled(raw)
    file.write_text(json.dumps(raw))
    ((name, reason),) = collect(key, [file]).refused
    assert name == str(file) and said in reason and str(file) in reason


def test_a_box_drawn_twice_counts_once(tmp_path: Path) -> None:
    _, key = make(tmp_path)
    file = hand_in(tmp_path / "a.json", key.batches[0], lambda i: right(i).repeat(1 + (i.truth is None), axis=0))
    done = collect(key, [file])
    seen = [record for record in done.records if record.more.get("workers")]
    assert seen and all(len(record.boxes) == len(faces_of(int(Path(record.name).stem))) for record in seen)


def test_counts_before_and_after_are_those_of_table_1() -> None:
    face, far = [0, 0, 10, 10], [50, 50, 60, 60]
    truth = Records(
        [Record("lynx/a.jpg", rows()), Record("lynx/b.jpg", rows(face)), Record("maypole/c.jpg", rows(face, far))]
    )
    before = Records(
        [
            Record("lynx/a.jpg", rows(far)),
            Record("lynx/b.jpg", rows(face, far)),
            Record("maypole/c.jpg", rows(far)),
            Record("other/d.jpg", rows(face)),
        ]
    )
    after = Records(
        [Record("lynx/a.jpg", rows()), Record("lynx/b.jpg", rows([0, 0, 10, 5])), Record("maypole/c.jpg", rows(far))]
    )
    score = score_annotations(truth, {"before": before, "after": after})
    counts = {
        row["category"]: [row[name][kind] for kind in ("fp", "fn") for name in ("before", "after")]
        for row in [*score["categories"], score["all"]]
    }
    assert counts == {"lynx": [2, 0, 0, 0], "maypole": [0, 0, 1, 1], "all": [2, 0, 1, 1]}
    assert score["categories"][0]["published"] == {"fp_a": 9, "fp_h": 1, "fn_a": 0, "fn_h": 0}
    rate = score["all"]["before"]["fp_rate"]
    exact = binomtest(2, 4).proportion_ci(method="wilson")
    assert (rate["n"], rate["value"]) == (4, 0.5) and (rate["low"], rate["high"]) == pytest.approx(tuple(exact))
    assert score["all"]["before"]["fp_per_50"] == pytest.approx(100 / 3)
    assert score["categories"][0]["after"]["fn_rate"]["n"] == 1
    strict = score_annotations(truth, {"before": before, "after": after}, overlap=0.51)
    assert strict["all"]["after"]["fp"] == 1 and strict["all"]["after"]["fn"] == 2
    text = score_text(score)
    assert (
        "9, 1; 0, 0" in text
        and "5.50 → 1.25" in text
        and text.splitlines()[1].split()[:7] == ["lynx", "2", "1", "2", "0", "0", "0"]
    )


def test_a_missing_image_is_not_taken_for_one_without_faces() -> None:
    with pytest.raises(InputError, match=r"before correction lack b\.jpg"):
        score_annotations(Records([Record("b.jpg", rows())]), {"before": Records([])})
    with pytest.raises(UsageError):
        score_annotations(Records([]), {"before": Records([])})


def test_the_papers_table_adds_up() -> None:
    table = np.array(list(PUBLISHED_ERRORS.values()))
    assert table.shape == (20, 4)
    np.testing.assert_allclose(table.mean(0), PUBLISHED_PER_50)


def run(*args: Any) -> tuple[int, str, str]:
    done = CliRunner().invoke(annotate, [str(arg) for arg in args])
    return done.exit_code, done.stdout, done.stderr


def test_the_commands_from_detection_to_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = write_images(tmp_path)
    monkeypatch.setattr("ficgan.faces.get_detector", lambda *args, **kwargs: Told())
    truth, boxes = tmp_path / "truth.json", tmp_path / "boxes.json"
    write_records(truth, truth_of(images).values())
    code, out, _ = run("detect", images, "-o", boxes, "--quiet")
    assert code == 0 and json.loads(out)["images"] == 12
    write_records(boxes, detected_of(images).values())
    gold = tmp_path / "gold.json"
    write_records(gold, list(truth_of(images).values())[:3])
    pages = tmp_path / "pages"
    code, out, _ = run("page", images, boxes, "-o", pages, "--gold", gold, "--batch", 5, "--gold-count", 2)
    assert code == 0 and json.loads(out)["images"] == 9
    key = read_key(pages / "key.json")
    files = [hand_in(tmp_path / f"e{n}.json", batch) for n, batch in enumerate(key.batches)]
    final = tmp_path / "final.json"
    code, out, err = run("collect", pages / "key.json", *files[:2], "-o", final)
    assert code == 3 and err.count("nobody looked at") == 3 == json.loads(out)["unseen"]
    code, out, _ = run("collect", pages / "key.json", *files, "-o", final)
    assert code == 0 and json.loads((tmp_path / "final.log.json").read_text())["log"]
    code, out, _ = run("score", truth, "--before", boxes, "--after", final, "-o", tmp_path / "score.json")
    assert code == 0 and "FP before" in out
    counted = json.loads((tmp_path / "score.json").read_text())["all"]
    assert (counted["before"]["fn"], counted["after"]["fn"], counted["after"]["fp"]) == (9, 0, 0)
    assert len(open_scenes(images, final)) == 12


def test_the_commands_say_what_is_wrong(tmp_path: Path) -> None:
    assert evaluate.commands["annotate"] is annotate
    images = write_images(tmp_path, 3)
    boxes, other = tmp_path / "b.json", tmp_path / "o.json"
    write_records(boxes, truth_of(images).values())
    write_records(other, [Record("somewhere/else.png", rows())])
    code, _, err = run("page", images, boxes, "-o", tmp_path / "p")
    assert code == 2 and "--gold names" in err
    code, _, err = run("page", images, other, "-o", tmp_path / "p", "--gold-count", 0)
    assert code == 3 and "of the same set" in err
    code, _, err = run("collect", boxes, boxes, "-o", tmp_path / "f.json")
    assert code == 3 and "not of the schema" in err
    code, _, err = run("detect", tmp_path / "nowhere", "-o", tmp_path / "f.json", "--detector", "centerface")
    assert code == 3 and "nowhere" in err and err.count("\n") == 1
