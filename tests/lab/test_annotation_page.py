"""The review page: well-formed, closed to what names and notes hold, and a script that counts as collecting does."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from annotation_world import hand_in, make, right, rows
from page_reader import Page, run

from ficgan.lab.annotation import EXPORT_SCHEMA, Batch, Key, Rules, collect, page_html
from ficgan.lab.annotation.boxes import errors
from ficgan.lab.pages import page_script, page_template

SCRIPT = page_script(page_template("ficgan.lab.annotation"))

EVIL = "</script><script>alert(1)</script>\"><img src=x onerror=alert(1)>&amp;' <!-- "
BROWSER = (Path(__file__).parent / "fake_browser.js").read_text(encoding="utf-8")


def a_page(tmp_path: Path, **rules: Any) -> tuple[str, Key, Batch]:
    """The first page of `make`, and what the key says of it."""
    folder, key = make(tmp_path, **rules)
    return (folder / "pages" / "batch-0001.html").read_text(), key, key.batches[0]


def test_nothing_in_a_name_or_a_note_can_be_injected(tmp_path: Path) -> None:
    _, key, batch = a_page(tmp_path)
    evil = replace(batch, title=EVIL, items=tuple(replace(item, name=EVIL) for item in batch.items))
    text = page_html(evil, [EVIL] * 5, key.rules, note=EVIL)
    page = Page(text)
    assert page.text["title"].rstrip("\n") == f"Faces: {EVIL}"
    assert len(page.all("img")) == 1 and len(page.all("script")) == 2
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert [image["src"] for image in page.data["images"]] == [EVIL] * 5
    assert "</" not in SCRIPT and "<!--" not in SCRIPT
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_the_page_stands_alone_and_names_no_file(tmp_path: Path) -> None:
    text, key, batch = a_page(tmp_path)
    page = Page(text)
    assert not page.all("link") and not page.all("iframe") and not page.all("a")
    assert re.findall(r"(?:https?:)?//[\w.]+", re.sub(r"^ *// .*$", "", text, flags=re.M)) == ["http://www.w3.org"]
    for item in batch.items:
        assert item.name not in text and Path(item.name).name not in text
    (policy,) = (a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in str(policy) and "img-src data:;" in str(policy)
    assert f"<script>{SCRIPT}</script>" in text
    for image, item in zip(page.data["images"], batch.items, strict=True):
        assert image["src"].startswith("data:image/jpeg;base64,") and image["boxes"] == item.shown.tolist()
        assert set(image) == {"id", "width", "height", "boxes", "src"}  # gold or not: they look alike
    gold = {str(n): item.truth.tolist() for n, item in enumerate(batch.items) if item.truth is not None}
    assert json.loads(base64.b64decode(page.data["checks"])) == gold
    assert "These pictures show people" in text and key.rules.gold == len(gold)


def pure(node: str, expression: str) -> Any:
    return run(node, f"{SCRIPT}\nconsole.log(JSON.stringify({expression}));")


def browse(node: str, text: str, actions: str) -> Any:
    """Load a page into as much of a browser as it touches, act, and print `out`."""
    page = Page(text)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    head = f"const IDS = {json.dumps(ids)}, DATA = {json.dumps(page.text['data'])};\n"
    return run(node, f"{head}{BROWSER}\n{{{SCRIPT}}}\nlet out;\n{actions}\nconsole.log(JSON.stringify(out));")


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


GRABBED: list[tuple[str, Any]] = [
    ("tidy([30.04, 20, 10.06, -5], 100, 50)", [10.1, 0, 30, 20]),
    ("tidy([5, 5, 5.4, 40], 100, 50)", None),
    ("tidy([-9, -9, 200, 200], 100, 50)", [0, 0, 100, 50]),
    ("pull([10, 10, 20, 20], [false, false, false, false], 95, -30, 100, 50)", [90, 0, 100, 10]),
    ("pull([10, 10, 20, 20], [true, false, false, true], 3, 4, 100, 50)", [13, 10, 20, 24]),
    ("grab([[0, 0, 50, 50], [10, 10, 20, 20]], 15, 15, 2, -1).index", 1),
    ("grab([[0, 0, 50, 50], [10, 10, 20, 20]], 15, 15, 2, -1).edges", [False] * 4),
    ("grab([[0, 0, 50, 50], [0, 0, 20, 20]], 1, 1, 2, 0)?.index", 0),
    ("grab([[0, 0, 50, 50]], 49, 25, 2, -1).edges", [False, False, True, False]),
    ("grab([[0, 0, 50, 50]], 51, 51, 2, -1).edges", [False, False, True, True]),
    ("grab([[0, 0, 4, 4]], 2, 2, 6, -1).edges", [False] * 4),
    ("grab([[0, 0, 50, 50]], 60, 25, 2, -1)", None),
]


def test_boxes_are_grabbed_pulled_and_tidied(node: str) -> None:
    found = pure(node, f"[{', '.join(expression for expression, _ in GRABBED)}]")
    assert found == [value for _, value in GRABBED]


WORK = """
const put = answer => { answer.forEach(b => drag(b[0], b[1], b[2], b[3])); };
const clear = () => { for (const _ of drawn("box")) { press("c"); press("Delete"); } };
"""


def test_a_careful_person_with_a_mouse_makes_the_truth(node: str, tmp_path: Path) -> None:
    """Boxes are deleted by key and drawn anew by dragging; what is exported passes and is the truth."""
    text, key, batch = a_page(tmp_path)
    answers = json.dumps([right(item).tolist() for item in batch.items])
    out = browse(
        node,
        text,
        f"{WORK} for (const answer of {answers}) {{ clear(); put(answer); click('next'); }}\n"
        "click('export'); const refused = elements.message.textContent; elements.worker.value = ' ada ';"
        "click('export'); out = [saved, blobs, elements.lives.textContent, refused];",
    )
    assert out[0] == [f"boxes-{batch.id}.json"] and out[2] == "lives: 2" and "say who you are" in out[3]
    file = tmp_path / "e.json"
    file.write_text(out[1][0])
    (export,) = collect(key, [file]).accepted
    assert (export.worker, export.attempt, export.mistakes) == ("ada", 1, 0)
    for item, boxes in zip(batch.items, export.boxes, strict=True):
        assert errors(boxes, right(item), 1.0) == (0, 0)
    # The page writes what the tests elsewhere take for its export.
    assert json.loads(hand_in(tmp_path / "h.json", batch).read_text()) == json.loads(file.read_text())


def test_a_careless_person_sees_the_truth_loses_lives_and_starts_again(node: str, tmp_path: Path) -> None:
    text, _, batch = a_page(tmp_path)
    gold = [place for place, item in enumerate(batch.items) if item.truth is not None]
    out = browse(
        node,
        text,
        "out = []; const tell = () => out.push([elements.place.textContent, elements.lives.textContent,"
        " elements.message.className, drawn('truth'), elements.add.disabled, elements.export.disabled]);"
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
        truth = right(batch.items[place]).tolist() if showing else []
        locked = showing or lives == 0
        expected.append(
            [f"Image {place + 1} of 5", f"lives: {lives}{again}", "bad" if showing else "", truth, locked, True]
        )
    assert [row[:2] for row in out] == [row[:2] for row in expected]
    assert out == expected and any("attempt 2" in row[1] for row in out)


def test_a_judged_gold_image_stays_as_it_was_judged(node: str, tmp_path: Path) -> None:
    """Going back after the truth was shown changes nothing: the first answer is what is exported."""
    text, key, batch = a_page(tmp_path, gold=1)
    (place,) = (n for n, item in enumerate(batch.items) if item.truth is not None)
    out = browse(
        node,
        text,
        f"for (let n = 0; n <= {place}; n++) press('n'); press('n'); press('b');"
        "const before = drawn('box'); press('a'); press('c'); press('Delete'); drag(3, 3, 40, 40); press('u');"
        "click('reset'); out = [before, drawn('box'), elements.place.textContent, elements.lives.textContent];"
        f"for (let n = {place}; n < 6; n++) press('n');"
        "elements.worker.value = 'bob'; click('export'); out.push(blobs);",
    )
    assert out[0] == out[1] == batch.items[place].shown.tolist()
    assert out[2:4] == [f"Image {place + 1} of 5", "lives: 1"]
    (tmp_path / "e.json").write_text(out[4][0])
    (export,) = collect(key, [tmp_path / "e.json"]).accepted
    assert export.mistakes == 1


def test_progress_is_kept_in_the_browser(node: str, tmp_path: Path) -> None:
    text, _, batch = a_page(tmp_path, gold=0)
    state = browse(node, text, "press('n'); press('a'); out = stored;")
    ((slot, kept),) = state.items()
    assert slot == f"ficgan-annotation-{batch.id}"
    data = json.dumps(Page(text).data)
    broken = ["", "{", "null", "[]", json.dumps({**json.loads(kept), "batch": "other"}), '{"batch": 1}']
    whole, fresh, *started = pure(
        node,
        f"(() => {{ const page = {data}; return [restore({json.dumps(kept)}, page), begin(page, 1),"
        f" ...{json.dumps(broken)}.map(text => restore(text, page))]; }})()",
    )
    assert whole == json.loads(kept) and started == [fresh] * len(broken)


def test_keys_move_resize_choose_and_undo(node: str, tmp_path: Path) -> None:
    _, key, batch = a_page(tmp_path, gold=0)
    crowd = replace(batch, items=tuple(replace(i, shown=rows([10, 10, 30, 35], [50, 20, 70, 45])) for i in batch.items))
    out = browse(
        node,
        page_html(crowd, ["data:,"] * 5, key.rules),
        "out = []; const tell = () => out.push(drawn('box'));"
        "press('ArrowLeft'); tell(); press('c'); press('c'); press('ArrowRight'); tell();"
        "press('ArrowDown', {shiftKey: true, altKey: true}); tell(); press('u'); press('u'); tell();"
        "drag(20, 20, 25, 18); tell(); drag(35, 33, 90, 80); tell(); drag(0, 0, 0.5, 0.5); tell();"
        "click('reset'); tell();"
        "press('a', {ctrlKey: true}); press('a', {target: {tagName: 'INPUT'}}); tell();",
    )
    a, b = [10, 10, 30, 35], [50, 20, 70, 45]
    moved = [15, 8, 35, 33]
    assert out == [
        [a, b],
        [a, [51, 20, 71, 45]],
        [a, [51, 20, 71, 55]],
        [a, b],
        [moved, b],
        [[15, 8, 90, 80], b],
        [[15, 8, 90, 80], b],
        [a, b],
        [a, b],
    ]


def test_pictures_fit_the_window_and_can_be_enlarged(node: str, tmp_path: Path) -> None:
    """120×90 in a window of 600 px: 444 px high at most, so 592 px wide."""
    text, _, _ = a_page(tmp_path, gold=0)
    out = browse(
        node,
        text,
        "const size = () => elements.stage.style.width; out = [size()]; press('-'); out.push(size());"
        "press('+'); out.push(size()); for (let n = 0; n < 9; n++) click('closer'); out.push(size());",
    )
    assert out == ["592px", "592px", "888px", "4736px"]


def test_a_browser_without_storage_says_so_and_works(node: str, tmp_path: Path) -> None:
    text, _, _ = a_page(tmp_path, gold=0)
    page = Page(text)
    ids = json.dumps([attributes["id"] for _, attributes in page.elements if "id" in attributes])
    out = run(
        node,
        f"const IDS = {ids}, DATA = {json.dumps(page.text['data'])};\n{BROWSER}\n"
        "globalThis.localStorage = {getItem() { throw new Error('no'); }, setItem() { throw new Error('no'); }};"
        f"{{{SCRIPT}}}\nconst first = elements.message.textContent; press('n');"
        "console.log(JSON.stringify([first, elements.message.textContent, elements.place.textContent]));",
    )
    assert "keeps no progress" in out[0] and "keeps no progress" in out[1] and out[2] == "Image 2 of 5"


def test_the_schema_is_what_collecting_reads(node: str, tmp_path: Path) -> None:
    text, _, _ = a_page(tmp_path, lives=3)
    data = Page(text).data
    assert (data["schema"], data["lives"], data["overlap"]) == (EXPORT_SCHEMA, 3, Rules().overlap)
    unfinished = pure(
        node,
        f"(() => {{ const page = {json.dumps(data)};"
        " try { return exported(begin(page, 1), page, 'ada') } catch (e) { return e.message } })()",
    )
    assert unfinished == "look through all images first"
