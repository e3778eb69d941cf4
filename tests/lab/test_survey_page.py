"""The page of a survey: it says nothing, stands alone, and works under a browser of our own."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from page_reader import Page, run
from PIL import Image
from survey_world import SIDE, hand_in

from ficgan.lab.pages import page_script, page_template
from ficgan.lab.survey import Survey, page_html
from ficgan.lab.survey.score import collect

SCRIPT = page_script(page_template("ficgan.lab.survey"))

BROWSER = (Path(__file__).parent / "survey_browser.js").read_text(encoding="utf-8")


EVIL = "</script><script>alert(1)</script>\"><img src=x onerror=alert(1)>&amp;' <!-- "


def test_pages_and_pictures_say_nothing_of_method_or_person(folder: Path, survey: Survey) -> None:
    secrets = {"zaphod", "pixelation", "ridge", "clear", "identical", "genders", "Female", "Male", "labels.csv"}
    pages = sorted((folder / "pages").iterdir())
    assert len(pages) == 3 and (folder.stat().st_mode & 0o777) == 0o700
    for page in pages:
        text = page.read_text()
        visible = re.sub(r"data:image/png;base64,[\w+/=]+", "", text)
        assert not [word for word in secrets if word.lower() in visible.replace(SCRIPT, "").lower()]
        assert set(Page(text).data["items"][0]) == {"id", "left", "right"}
    files = sorted((folder / "images").iterdir())
    assert {file.stem for file in files} == set(survey.pixels)
    for file in files:
        data = file.read_bytes()
        assert re.fullmatch(r"[0-9a-f]{16}\.png", file.name)
        assert not [word for word in secrets if word.lower().encode() in data.lower()]
        chunks = re.findall(rb"IHDR|IDAT|IEND|tEXt|zTXt|iTXt|eXIf|tIME|gAMA|iCCP|pHYs|sRGB", data)
        assert {b"IHDR", b"IDAT", b"IEND"} >= set(chunks)
        with Image.open(io.BytesIO(data)) as picture:
            assert (picture.format, picture.mode, picture.size, picture.info) == ("PNG", "RGB", (SIDE, SIDE), {})


def page_of(survey: Survey, number: int = 0) -> str:
    asked = survey.key.questionnaires[number]
    return page_html(asked, {token: b"x" for item in asked.items for token in (item.left, item.right)})


def test_the_page_stands_alone(folder: Path, survey: Survey) -> None:
    asked = survey.key.questionnaires[0]
    text = (folder / "pages" / f"{asked.token}.html").read_text()
    page = Page(text)
    assert not {"link", "iframe", "a", "form", "video"} & {tag for tag, _ in page.elements}
    assert "//" not in re.sub(r"base64,[\w+/=]+|^ *// .*$", "", text, flags=re.M)
    assert "Storage" not in text and "cookie" not in text and "fetch" not in text
    (policy,) = (one["content"] for one in page.all("meta") if one.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert str(policy).startswith("default-src 'none'; ") and f"script-src 'sha256-{digest}'" in str(policy)
    assert f"<script>{SCRIPT}</script>" in text
    data = page.data
    assert {one["id"] for one in data["items"]} == {item.id for item in asked.items}
    for token, address in data["pictures"].items():
        file = base64.b64decode(address.removeprefix("data:image/png;base64,"))
        assert (np.asarray(Image.open(io.BytesIO(file))) == survey.pixels[token]).all()
    assert {one["alt"] for one in page.all("img")} == {"picture on the left", "picture on the right"}
    assert {"yes", "no", "unsure", "back", "start", "save"} <= {one["id"] for one in page.all("button")}
    assert "PLACEHOLDER" in page.text["consent"]


def test_no_text_can_be_injected(survey: Survey) -> None:
    asked = replace(survey.key.questionnaires[0], token=EVIL)
    asked = replace(asked, items=tuple(replace(item, left=EVIL, right=EVIL) for item in asked.items))
    page = Page(page_html(asked, {EVIL: b"x"}, consent=EVIL))
    assert page.text["consent"].rstrip("\n") == EVIL
    assert page.data["questionnaire"] == EVIL and EVIL in page.data["pictures"]
    assert len(page.all("img")) == 2 and len(page.all("script")) == 2
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert "</" not in SCRIPT and "<!--" not in SCRIPT


def browse(node: str, text: str, actions: str) -> Any:
    page = Page(text)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    head = f"const IDS = {json.dumps(ids)}, DATA = {json.dumps(page.text['data'])};\n"
    return run(node, f"{head}{BROWSER}\n{{{SCRIPT}}}\nlet out;\n{actions}\nconsole.log(JSON.stringify(out));")


def shuffled(count: int, text: str) -> list[int]:
    """The page's order, in Python: FNV-1a, mulberry32, Fisher–Yates."""
    state = 0x811C9DC5
    for byte in text.encode():
        state = (state ^ byte) * 0x01000193 % 2**32
    out = list(range(count))
    for k in range(count - 1, 0, -1):
        state = (state + 0x6D2B79F5) % 2**32
        t = (state ^ state >> 15) * (state | 1) % 2**32
        t = (t + (t ^ t >> 7) * (t | 61)) % 2**32 ^ t
        other = (t ^ t >> 14) * (k + 1) // 2**32
        out[k], out[other] = out[other], out[k]
    return out


def test_the_order_is_drawn_from_the_code(node: str) -> None:
    codes = [f"code-{k}" for k in range(200)]
    orders = run(node, f"{SCRIPT}\nconsole.log(JSON.stringify({json.dumps(codes)}.map(c => order(9, 'qü', c))));")
    assert orders == [shuffled(9, f"qü\n{code}") for code in codes]
    places = np.array([[order.index(item) for item in range(9)] for order in orders])
    assert np.abs(places.mean(0) - 4).max() < 0.8  # four standard errors


def test_somebody_with_a_keyboard_answers_and_hands_in(node: str, survey: Survey, tmp_path: Path) -> None:
    """Right answers, one of them corrected by going back; the file is accepted with what was pressed."""
    asked = survey.key.questionnaires[0]
    sources = {item.left + item.right: "y" if item.same else "n" for item in asked.items}
    pictures = json.dumps({item.left + item.right: [item.left, item.right] for item in asked.items})
    text = page_html(asked, {t: t.encode() for item in asked.items for t in (item.left, item.right)})
    out = browse(
        node,
        text,
        f"const right = {json.dumps(sources)}, pictures = {pictures};"
        "const shown = () => elements.left.src.split(',')[1] + elements.right.src.split(',')[1];"
        "const keys = {}; for (const k in pictures) keys[pictures[k].map(t => btoa(t)).join('')] = right[k];"
        "click('start'); const refused = elements.message.textContent; elements.agree.checked = true;"
        "elements.code.value = 'not a code'; click('start'); const bad = elements.message.textContent;"
        "elements.code.value = ' ada-1 '; click('start'); const places = [];"
        "press('x'); press('y', {ctrlKey: true}); press('u'); press('b');"
        f"for (let k = 0; k < {len(asked.items)}; k++) {{"
        " places.push([elements.place.textContent, elements.progress.value]); press(keys[shown()]); }"
        "press('y'); click('save'); out = [refused, bad, places, elements.end.hidden, blobs, saved, focused];",
    )
    refused, bad, places, hidden, blobs, saved, focused = out
    assert "consent" in refused and "letters" in bad and hidden is False
    assert places == [[f"Question {k + 1} of {len(asked.items)}", k] for k in range(len(asked.items))]
    assert saved == [f"answers-{asked.token}-ada-1.json"] and focused[-1] == "thanks"
    (tmp_path / "a.json").write_text(blobs[0])
    tree = json.loads(blobs[0])
    assert [one["item"] for one in tree["answers"]] == [
        asked.items[k].id for k in shuffled(len(asked.items), f"{asked.token}\nada-1")
    ]
    assert tree["answers"][0]["seconds"] > 0
    (one,) = collect(survey.key, [tmp_path / "a.json"]).accepted
    assert one.code == "ada-1" and not one.failures
    assert json.loads(hand_in(tmp_path / "h.json", asked, "ada-1").read_text()).keys() == tree.keys()
    assert all(one.answers[item.id] == ("yes" if item.same else "no") for item in asked.items)


def test_somebody_with_a_mouse_may_stop_early(node: str, survey: Survey, tmp_path: Path) -> None:
    out = browse(
        node,
        page_of(survey),
        "elements.agree.checked = true; const code = elements.code.value; click('start');"
        "click('yes'); click('unsure'); click('no'); click('back'); const asks = []; leave(asks); click('stop');"
        "leave(asks); out = [code, blobs, asks];",
    )
    code, blobs, asks = out
    assert re.fullmatch(r"[0-9a-f]{16}", code) and asks == [True, False]
    tree = json.loads(blobs[0])
    assert tree["finished"] is False and [one["answer"] for one in tree["answers"]] == ["yes", "unsure", "no"]
    (tmp_path / "a.json").write_text(blobs[0])
    assert [one.reason for one in collect(survey.key, [tmp_path / "a.json"]).refused] in (["unfinished"], ["checks"])
