"""The review page: closed to what names and notes hold, and a script that counts as collecting does."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from annotation_world import hand_in, make, right
from page_reader import EVIL, browse, run, stands_alone

from ficgan.lab.annotation import AnnotationKey, Batch, errors, page_html
from ficgan.lab.annotation.collected import collect
from ficgan.lab.results import page_script, page_template

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
    (export,) = collect(key, [file]).accepted
    assert (export.worker, export.mistakes) == ("ada", 0)
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
