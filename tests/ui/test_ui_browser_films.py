"""A film in a real browser, from the time line to the result."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clips import frames_of
from desks import PHOTO, make_film
from tabs import Program, card, draw, drop, settled, until

from ficgan.faces import Face, cover_face
from ficgan.options import COVERS

pytestmark = pytest.mark.slow

FRAMES = 24


def at_frame(page: Any, number: int) -> None:
    until(page, f"document.querySelector('#editor').dataset.frame === '{number}'")
    settled(page)


def middle(box: dict[str, float]) -> tuple[float, float]:
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def drag(page: Any, box: dict[str, float], by: tuple[float, float]) -> None:
    x, y = middle(box)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + by[0], y + by[1], steps=4)
    page.mouse.up()


# The file of axe-core, which looks for what people with impairments cannot use.
AXE = os.environ.get("FICGAN_AXE", "")


@pytest.mark.skipif(not AXE, reason="needs axe.min.js of axe-core; name it in FICGAN_AXE")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1366), ("dark", 390)])
def test_axe_finds_nothing_on_any_page(page: Any, tmp_path: Any, scheme: str, width: int) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 768})

    def clean(where: str) -> None:
        page.evaluate(Path(AXE).read_text())
        found = page.evaluate("axe.run(document).then(told => told.violations.map(one => [one.id, one.nodes[0].html]))")
        assert not found, where

    if not page.locator(".card").count():
        drop(page, PHOTO, "me.jpg")
        drop(page, PHOTO, "again.jpg")
        drop(page, make_film(tmp_path / "film.mp4", 6), "short.mp4")
    until(page, "document.querySelectorAll('.card[data-state=ready]').length >= 3")
    page.get_by_role("button", name="Link people").click()
    page.locator(".team li").first.wait_for()
    page.get_by_text("Settings for all files").click()
    clean("all files")
    card(page, "me.jpg").click()
    page.wait_for_selector(".face canvas")
    settled(page)
    page.keyboard.press("j")
    page.get_by_text("How new faces are drawn").click()
    clean("a photo")
    page.keyboard.press("f")
    clean("faces side by side")
    page.keyboard.press("f")
    page.keyboard.press("?")
    clean("keys")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="All files", exact=True).click()
    card(page, "short.mp4").click()
    page.wait_for_selector(".lane .bar")
    settled(page)
    page.keyboard.press("j")
    page.keyboard.press("d")
    clean("a box that is drawn")
    page.keyboard.press("Enter")
    page.locator(".box.region").first.wait_for()
    settled(page)
    page.get_by_text("How Person 1 is drawn").click()
    page.get_by_text("How new faces of this film are drawn").click()
    clean("a film")


FACE = [[60, 70], [90, 70], [75, 90], [62, 105], [88, 105]]


def inside(points: Sequence[Sequence[float]], size: int) -> np.ndarray:
    """Which pixels have their centre in a polygon."""
    corners = np.array(points)
    x, y = np.meshgrid(np.arange(size) + 0.5, np.arange(size) + 0.5)
    odd = np.zeros((size, size), bool)
    for (x0, y0), (x1, y1) in zip(corners, np.roll(corners, -1, 0), strict=True):
        crosses = (y0 > y) != (y1 > y)
        with np.errstate(divide="ignore", invalid="ignore"):
            odd ^= crosses & (x < (x1 - x0) * (y - y0) / (y1 - y0) + x0)
    return odd


def test_the_page_draws_what_a_cover_really_covers(page: Any) -> None:
    image = np.random.default_rng(5).integers(0, 255, (200, 200, 3), np.uint8)
    for mode in COVERS:
        for box, marks in (
            ([50, 50, 100, 120], []),
            ([50, 50, 100, 120], FACE),
            ([150, 150, 190, 199], [[10, 10]] * 5),
            ([70, 20, 80, 100], [[66, 40], [84, 40], [75, 60], [67, 80], [83, 80]]),
            ([99, 99, 104, 103], []),
        ):
            full, reach = page.evaluate(
                "async ([box, mode, marks]) => { const {coverOf, outline} = await import('/extent.js'); "
                "const cover = coverOf(box, mode, marks); "
                "return [cover.full, cover.reach].map(half => outline(cover, half, 4000)); }",
                [box, mode, marks],
            )
            points = np.array(marks or [[np.nan, np.nan]] * 5, np.float32)
            mask = cover_face(image, Face(np.array(box, np.float32), points, 0.0), mode).mask
            changed, whole = mask > 1e-4, mask > 1 - 1e-4
            for mine, theirs in ((inside(full, 200), whole), (inside(reach, 200), changed)):
                # A pixel on the line itself may fall on either side.
                assert (mine ^ theirs).sum() <= 0.02 * theirs.sum() + 4, (mode, box, marks)
                assert theirs.any() and mine.any()


def test_a_film_is_decided_on_and_rendered(page: Any, program: Program, tmp_path: Any) -> None:
    drop(page, make_film(tmp_path / "film.mp4", FRAMES), "film.mp4")
    page.wait_for_selector(".card[data-state=ready]")
    card(page, "film.mp4").click()
    page.wait_for_selector(".lane .bar")
    at_frame(page, 0)
    number = page.evaluate("location.hash.slice(1)")

    def told(path: str = "film") -> Any:
        return page.evaluate(f"fetch('/api/items/{number}/{path}').then(answer => answer.json())")

    # The time line is in view, and its rows are aligned with the place in the film.
    later = FRAMES // 2
    ruler, rail = (page.locator(".lane .rail").nth(n).bounding_box() for n in (0, 1))
    line = page.locator(".timeline").bounding_box()
    assert line["y"] + line["height"] <= 768 and (ruler["x"], ruler["width"]) == (rail["x"], rail["width"])
    page.mouse.click(*middle(rail))
    at_frame(page, later)
    head = page.locator(".playhead").bounding_box()
    assert head["x"] + 1 == pytest.approx(middle(rail)[0], abs=2)
    page.keyboard.press("ArrowRight")
    at_frame(page, later + 1)
    page.keyboard.press("Home")
    at_frame(page, 0)

    # Keys decide on the person who is chosen, and take it back.
    page.keyboard.press("j")
    page.locator(".box.lit").wait_for()
    page.keyboard.press("2")
    page.get_by_role("button", name="Person 1, kept").wait_for()
    settled(page)
    page.keyboard.press("Control+z")
    page.get_by_role("button", name="Person 1, replaced").wait_for()
    settled(page)
    page.keyboard.press("n")
    page.locator("#editor .draws button:nth-child(2)[aria-pressed=true]").wait_for()
    settled(page)
    page.locator("#editor .draws button").first.click()
    page.locator("#editor .draws button:first-child[aria-pressed=true]").wait_for()
    settled(page)

    # A box is drawn, with its cover in sight; dragged in another frame it moves between the two.
    draw(page, (150, 190, 200, 230), (256, 256))
    page.get_by_role("heading", name="Box 1").wait_for()
    settled(page)
    first = told()["regions"][0]
    page.mouse.click(*middle(rail))
    at_frame(page, later)
    drag(page, page.locator(".box.region").bounding_box(), (0, -60))
    until(page, "document.querySelectorAll('.lane .key').length === 2")
    settled(page)
    region = told()["regions"][0]
    places = {key["frame"]: key["box"][1] for key in region["keys"]}
    assert set(places) == {0, later} and places[later] < places[0] == first["box"][1]
    assert places[later] < told(f"at?frame={later // 2}")["regions"][0]["box"][1] < places[0]
    # A handle changes the size of a track's box; the keyboard moves it, too.
    page.keyboard.press("k")
    page.locator(".box.lit:not(.region)").wait_for()
    drag(page, page.locator(".box.lit .handle.se").bounding_box(), (20, 20))
    until(page, "document.querySelectorAll('.box.keyed').length === 1")
    settled(page)
    left = told(f"at?frame={later}")["boxes"][0]["box"][0]
    page.keyboard.press("m")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    there = f"fetch('/api/items/{number}/at?frame={later}').then(answer => answer.json())"
    until(page, f"{there}.then(told => told.boxes[0].box[0] < {left})")
    settled(page)

    page.keyboard.press("s")
    page.get_by_text("Last saved as").wait_for()
    settled(page)
    assert page.get_by_label("What is shown").input_value() == "after"
    page.keyboard.press("o")
    settled(page)
    assert page.get_by_label("What is shown").input_value() == "before"
    page.keyboard.press("o")
    page.keyboard.press("Space")
    until(page, "document.querySelector('.player .state').textContent > '0:00.3'")
    page.keyboard.press("Space")
    frames = frames_of(program.out / "film.mp4")
    assert len(frames) == FRAMES
