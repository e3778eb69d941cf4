"""The page in a real browser, from the command to the file that is written: slow, and skipped where there is none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from desks import PHOTO, pixels
from PIL import Image
from tabs import PATIENCE, Program, card, draw, drop, settled, start, until

pytestmark = pytest.mark.slow


def test_a_photo_is_dropped_reviewed_and_saved(page: Any, program: Program, tmp_path: Path) -> None:
    Image.open(PHOTO).save(tmp_path / "me.png")
    evil = "<img src=x onerror=document.title=1>.png"
    drop(page, tmp_path / "me.png", evil)
    opened = card(page, evil)
    page.wait_for_selector(".card[data-state=ready]")
    assert page.title() == "ficgan" and page.locator(".name img").count() == 0  # a name is text
    opened.click()
    page.wait_for_selector(".face canvas")
    settled(page)
    box = page.get_by_role("button", name=re.compile("^Face 1, replaced"))  # some draws need a second try
    box.click()
    assert box.get_attribute("aria-pressed") == "true" and page.locator(".box.kept").count() == 0  # it only chooses
    page.keyboard.press("2")
    page.get_by_role("button", name="Face 1, kept").wait_for()
    settled(page)
    page.keyboard.press("Control+z")
    box.wait_for()
    settled(page)
    page.keyboard.press("Control+y")
    page.get_by_role("button", name="Face 1, kept").wait_for()
    settled(page)
    draw(page, (300, 300, 360, 380), (512, 512))
    page.get_by_role("heading", name="Face 2").wait_for()
    settled(page)
    page.locator("#save").click()
    page.get_by_text("Last saved as").wait_for()
    settled(page)
    source, saved = pixels(tmp_path / "me.png"), pixels(program.out / evil)
    assert np.ptp(saved[302:378, 302:358].reshape(-1, 3), axis=0).max() == 0  # the drawn box, to a pixel of the screen
    assert np.array_equal(saved[58:178, 181:270], source[58:178, 181:270])  # the kept face
    assert np.array_equal(saved[:, 420:], source[:, 420:])
    page.locator("#slide").fill("50")
    assert page.locator(".stage .over").evaluate("image => image.style.clipPath").startswith("inset(0px 0px 0px 50%")


def test_keys_zoom_and_draws_on_a_photo(page: Any, program: Program) -> None:
    opened = page.locator(".card[data-state=ready]").first
    assert "/picture/result" in opened.locator("img").get_attribute("src")  # the grid shows what will be saved
    opened.click()
    page.wait_for_selector(".face canvas")
    settled(page)
    fit = page.locator(".stage").bounding_box()["width"]
    page.locator(".view").hover()
    page.mouse.wheel(0, -300)
    assert page.locator(".stage").bounding_box()["width"] > 1.2 * fit
    page.keyboard.press("z")
    assert page.locator(".stage").bounding_box()["width"] == pytest.approx(fit)
    page.locator(".view").dblclick(position={"x": 30, "y": 30})
    assert page.locator(".stage").bounding_box()["width"] >= 2 * fit - 1
    page.keyboard.press("-")
    page.get_by_role("button", name="Fit").click()
    box = page.locator(".boxes .box").first
    for visible in (False, True):
        page.keyboard.press("b")
        assert box.is_visible() == visible
    page.keyboard.press("j")
    page.keyboard.press("1")
    page.get_by_role("button", name=re.compile("^Face 1, replaced")).wait_for()
    settled(page)
    for shown in (2, 3):
        page.keyboard.press("n")
        page.locator(f".side .draws button:nth-child({shown})").wait_for()
        settled(page)
    page.locator(".side .draws button").first.click()
    page.wait_for_selector(".side .draws button:first-child[aria-pressed=true]")
    settled(page)
    page.keyboard.press("r")
    page.wait_for_selector("#editor .head button[aria-pressed=true]")
    page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Keys")
    keys.wait_for()
    page.keyboard.press("Escape")
    keys.wait_for(state="detached")
    page.keyboard.press("Escape")  # no face is chosen
    until(page, "!document.querySelector('.box.lit')")
    page.keyboard.press("Escape")
    page.locator(".card .mark").first.wait_for()
    page.locator("#filter").select_option("reviewed")
    assert page.locator("#grid > li:visible").count() == 1
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Undo").click()
    until(page, "document.querySelectorAll('#grid .mark').length === 0")


def test_closing_loses_nothing_and_the_token_is_needed(page: Any, program: Program, browser: Any) -> None:
    """Last of the file: it ends the program and starts it again."""
    stranger = browser.new_context()
    stranger.set_default_timeout(PATIENCE)
    tab = stranger.new_page()
    tab.goto(program.address.split("?")[0])
    assert "token is missing" in tab.inner_text("body")
    stranger.close()
    count = page.locator(".card").count()
    assert program.stop() == 0
    again = start(program.folder)
    try:
        page.goto(again.address)
        until(page, f"document.querySelectorAll('.card[data-state=ready]').length === {count}")
        texts = " ".join(page.locator(".card .state").all_inner_texts())
        assert "saved" in texts
        page.get_by_text("Settings for all files").click()
    finally:
        again.kill()
