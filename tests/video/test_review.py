"""The review page: well-formed, nothing injected, nothing from the network; its script says what the controls say."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import stat
import subprocess
from fractions import Fraction
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from ficgan.errors import UsageError
from ficgan.video.media import VideoInfo
from ficgan.video.project import Project, Source
from ficgan.video.review import SCRIPT, remarks, review_page, save_thumbnails, write_review
from ficgan.video.settings import BoxRule, Decision, Decisions, Region, SpanRule
from ficgan.video.tracks import FILLED, PADDED, SEEN, Track

VOID = {"meta", "img", "input", "br", "link", "hr"}
EVIL = "<script>alert(1)</script>\"><img src=x onerror=alert(1)>&amp;'.mp4"


class Page(HTMLParser):
    """Reads a page strictly: every element closed in order, no attribute twice."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self._owner = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), attrs
        tag = f"svg {tag}" if "svg" in self.open else tag
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self._owner = dict(attrs).get("id") or tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert "svg" in self.open, f"<{tag}/> outside of SVG"
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop().removeprefix("svg ") == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.text[self._owner] = self.text.get(self._owner, "") + data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def controls(self) -> list[dict[str, Any]]:
        """What the script would collect."""
        found: list[dict[str, Any]] = []
        for tag, attributes in self.elements:
            if tag == "option" and found and ("selected" in attributes or found[-1]["value"] is None):
                found[-1]["value"] = attributes["value"]
            if "data-field" in attributes:
                found.append({
                    "kind": attributes["data-kind"], "number": attributes.get("data-number"),
                    "field": attributes["data-field"], "had": attributes.get("data-had") == "1",
                    "initial": attributes.get("data-initial"), "value": attributes.get("value"),
                    "checked": "checked" in attributes,
                })  # fmt: skip
        return found


def a_track(id: int, first: int, origin: list[int], person: int = 1, side: float = 50, score: float = 0.9) -> Track:
    count = len(origin)
    seen = np.array(origin) == SEEN
    return Track(
        id, first, np.tile([10, 10, 10 + side, 10 + side], (count, 1)).astype(np.float32),
        np.zeros((count, 5, 2), np.float32), (seen * score).astype(np.float32), np.array(origin, np.uint8), person,
    )  # fmt: skip


def a_project(name: str = "film.mp4", **changes: Any) -> Project:
    parts: dict[str, Any] = {
        "source": Source.of(name, VideoInfo(640, 360, Fraction(1, 25), Fraction(25), 100, 4.0, notes=(name,))),
        "pts": np.arange(100),
        "tracks": [
            a_track(1, 0, [SEEN] * 20 + [FILLED] * 10 + [SEEN] * 10 + [PADDED] * 10),
            a_track(2, 60, [PADDED, SEEN, PADDED]),
            a_track(3, 30, [SEEN] * 60, person=2),
            a_track(4, 90, [SEEN] * 5, person=0),
        ],
        "settings": {"threshold": 0.5},
        "cuts": (30, 60),
        "regions": (Region(first=0, last=5, box=(0, 0, 5, 5), reason=name),),
        "decisions": Decisions(
            default="mosaic",
            only=(1,),
            people={1: Decision(mode="keep", reason=name)},
            tracks={2: Decision(mode="solid"), 3: Decision(mode="blur", reason="</textarea>")},
            spans=(SpanRule(mode="keep", start=1, end=2, track=3, reason=f"</textarea>{name}"),),
            boxes=(BoxRule(box=(0, 0, 9, 9)),),
        ),
    }
    return Project(**{**parts, **changes})


PICTURES = {1: [("thumbs/track-0001.jpg", "before"), ("thumbs/track-0001-after.jpg", "after")]}


@pytest.mark.parametrize("name", ["film.mp4", EVIL, "a\x00b\nü𝄞.mp4", "a\udce9.mp4"])
def test_the_page_is_well_formed_and_ids_are_unique(name: str) -> None:
    page = Page(review_page(a_project(name), PICTURES))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids) > 20
    for tag in ("html", "head", "title", "body", "h1", "svg", "script", "style"):
        assert len(page.all(tag)) == 1


@pytest.mark.parametrize("name", ["<script>.mp4", EVIL])
def test_nothing_can_be_injected(name: str) -> None:
    text = review_page(a_project(name), PICTURES)
    page = Page(text)
    assert page.text["title"].strip() == f"Review of {Path(name).name}"
    assert len(page.all("img")) == 2 and not any(key.startswith("on") for _, a in page.elements for key in a)
    (policy,) = (a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    (script,) = re.findall("<script>(.*?)</script>", text, flags=re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in str(policy)
    assert "</" not in SCRIPT  # nothing in it could end it


def test_nothing_comes_from_the_network() -> None:
    text = review_page(a_project(), PICTURES)
    plain = re.sub(r"^// .*$|sha256-\S*", "", text, flags=re.M)
    assert re.findall(r"(?:https?:)?//[\w.]+", plain) == []
    page = Page(text)
    assert {a.get("src") for a in page.all("img")} == {address for address, _ in PICTURES[1]}
    assert not page.all("link") and not page.all("iframe") and not page.all("a")


def test_the_page_warns_and_tells() -> None:
    text = review_page(a_project(), PICTURES)
    for words in (
        "This folder holds source faces", "ficgan purge", "30 seen, 10 filled, 10 padded", "seen once",
        "0:00:02.4 – 0:00:02.5", "2 people, 4 tracks, 2 cuts", "frames 0–5: plain", "Nobody known", "640×360",
    ):  # fmt: skip
        assert words in text, words


def test_the_page_names_what_the_analysis_doubts() -> None:
    place = {"frame": 60, "time": 2.4, "box": [1, 2, 3, 4], "reason": f"it was {EVIL}"}
    damaged = [{**place, "time": "soon"}, {**place, "time": 1e300}, {**place, "reason": 3}, {}, 7]
    page = review_page(a_project(settings={"review": [place, *damaged]}), PICTURES)
    assert page.count("Look whether all faces are covered around") == 1
    assert f"around 0:00:02.4: it was {escape(EVIL)}." in page
    assert "are covered around" not in review_page(a_project(settings={"review": 7}), PICTURES)


def test_remarks() -> None:
    assert remarks(a_track(1, 0, [SEEN] * 9), {}) == []
    assert remarks(a_track(1, 0, [PADDED, SEEN, PADDED]), {}) == ["seen once"]
    assert remarks(a_track(1, 0, [FILLED]), {}) == ["never seen by the detector"]
    assert remarks(a_track(1, 0, [SEEN, SEEN] + [FILLED] * 38), {}) == ["seen in 5% of its frames only"]
    assert remarks(a_track(1, 0, [SEEN] * 9, score=0.55), {"threshold": 0.5}) == ["low score (0.55): perhaps no face"]
    assert remarks(a_track(1, 0, [SEEN] * 9, side=23), {}) == ["small (23 px)"]
    assert remarks(a_track(1, 0, [SEEN] * 9, side=23), {"small": 20}) == []
    assert remarks(a_track(1, 0, [SEEN] * 9, person=0), {}) == ["person unknown"]


def timeline(project: Project) -> ElementTree.Element:
    (svg,) = re.findall(r"<svg.*</svg>", review_page(project, {}), flags=re.S)
    return ElementTree.fromstring(svg)


def covered(path: str) -> set[int]:
    runs = [tuple(map(int, run)) for run in re.findall(r"M(\d+) \d+h(\d+)", path)]
    assert "".join(f"M{x}h{w}" for x, w in runs) == re.sub(r" \d+(?=h)", "", path)
    return {x + step for x, w in runs for step in range(w)}


def test_the_timeline_shows_each_frame_in_its_colour() -> None:
    """With a frame for every column: pixel 64 + n is frame n."""
    times = np.arange(921)
    origin = [SEEN] * 5 + [FILLED] * 3 + [SEEN] + [PADDED] * 2
    project = a_project(
        pts=times, cuts=(7, 900), tracks=[a_track(1, 100, origin), a_track(2, 0, [SEEN] * 3, 2)], regions=(),
        decisions=Decisions(spans=(SpanRule(mode="keep", start=103 / 25, end=105 / 25, track=1),)),
    )  # fmt: skip
    svg = timeline(project)
    groups = {group[0].text.split(",")[0]: group for group in svg.iter("g")}  # type: ignore[union-attr]
    found = {path.get("class"): covered(str(path.get("d"))) for path in groups["track 1"].iter("path")}
    start = 64 + 100
    assert found == {
        "seen": {start + n for n in (0, 1, 2, 3, 4, 8)},
        "filled": {start + n for n in (5, 6, 7)},
        "padded": {start + n for n in (9, 10)},
        "kept": {start + n for n in (3, 4)},
    }
    assert [path.get("d") for path in svg if path.get("class") == "cut"] == ["M71 0v28M964 0v28"]
    assert [text.text for text in svg.iter("text")] == ["person 1", "person 2"]


def test_the_timeline_of_a_short_film_has_no_gaps() -> None:
    """Twenty-four frames on 920 columns: every frame reaches to the next."""
    project = a_project(
        pts=np.arange(24), tracks=[a_track(1, 0, [SEEN] * 12 + [FILLED] * 12)], cuts=(), regions=(),
        decisions=Decisions(),
    )  # fmt: skip
    (group,) = timeline(project).iter("g")
    bars = {path.get("class"): str(path.get("d")) for path in group.iter("path")}
    assert bars == {"seen": "M64 8h480", "filled": "M544 8h440"}


def test_what_was_seen_is_seen_in_a_coarse_timeline() -> None:
    """Ten frames to a column: the best of them counts."""
    origin = [PADDED] * 20 + [FILLED, PADDED] * 10 + [FILLED] * 19 + [SEEN]
    project = a_project(
        pts=np.arange(9201), tracks=[a_track(1, 0, origin)], cuts=(), regions=(), decisions=Decisions()
    )  # fmt: skip
    (group,) = timeline(project).iter("g")
    found = {path.get("class"): covered(str(path.get("d"))) for path in group.iter("path")}
    assert found == {"padded": {64, 65}, "filled": {66, 67, 68}, "seen": {69}}


@pytest.mark.parametrize("pts", [[0] * 100, list(range(100, 0, -1)), [7] + [10**9] * 99])
def test_odd_times_do_not_break_the_page(pts: list[int]) -> None:
    Page(review_page(a_project(pts=pts), PICTURES))


def test_a_film_without_faces_has_a_page() -> None:
    page = Page(review_page(a_project(tracks=[], decisions=Decisions(), pts=[], cuts=(), regions=()), {}))
    assert "0 tracks" in page.text["p"]


def test_the_page_of_a_long_film_stays_small() -> None:
    """Bars are as fine as the picture, not as the film."""
    count = 200_000
    track = a_track(1, 0, [SEEN if n % 5 == 0 else FILLED for n in range(count)])
    text = review_page(a_project(tracks=[track], pts=np.arange(count), decisions=Decisions(), regions=()), {})
    assert len(text) < 20_000


def test_the_files_are_private_and_hold_the_thumbnails(tmp_path: Path, rng: np.random.Generator) -> None:
    project = a_project()
    project.save(tmp_path / "p")
    red, blue = np.zeros((50, 40, 3), np.uint8), np.zeros((96, 96, 3), np.uint8)
    red[..., 0] = blue[..., 2] = 255
    first = save_thumbnails(tmp_path / "p", 1, [red, blue])
    save_thumbnails(tmp_path / "p", 1, [blue] * 9, after=True)
    assert first == tmp_path / "p" / "thumbs" / "track-0001.jpg"
    with Image.open(first) as image:
        assert (image.format, image.size) == ("JPEG", (77 + 96, 96)) and not image.getexif()
        left, right = np.asarray(image.convert("RGB"))[48, [30, 140]].astype(int)
    assert np.abs(left - [255, 0, 0]).max() < 12 and np.abs(right - [0, 0, 255]).max() < 12
    page = write_review(tmp_path / "p", project)
    images = Page(page.read_text(encoding="utf-8")).all("img")
    assert [a["src"] for a in images] == ["thumbs/track-0001.jpg", "thumbs/track-0001-after.jpg"]
    assert [a["title"] for a in images] == ["before", "after"]
    for path in (tmp_path / "p").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize(
    "images", [[], [np.zeros((5, 5), np.uint8)], [np.zeros((5, 5, 3))], [np.zeros((0, 5, 3), np.uint8)]]
)
def test_bad_thumbnails_are_refused(images: list[Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="rack 7"):
        save_thumbnails(tmp_path, 7, images)
    assert list(tmp_path.iterdir()) == []


def run(node: str, page: Page, project: Project, rules: str | None = None) -> dict[str, Any]:
    """The page's own function on its controls."""
    text = page.text["rules"].removeprefix("\n") if rules is None else rules
    given = json.dumps([page.controls(), text, "ficgan-video-decisions/1", project.analysis])
    code = (
        f"{SCRIPT}\nconst say = thing => console.log(JSON.stringify(thing));\n"
        f"try {{ say(decisions(...{given})) }} catch (e) {{ say({{error: e.message}}) }}"
    )
    done = subprocess.run([node, "-"], input=code, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("name", ["film.mp4", EVIL])
def test_an_untouched_page_exports_what_the_project_says(node: str, name: str, tmp_path: Path) -> None:
    project = a_project(name)
    out = run(node, Page(review_page(project, PICTURES)), project)
    (tmp_path / "decisions.json").write_text(json.dumps(out))
    changed = project.apply_decisions(tmp_path / "decisions.json")
    assert changed.decisions == project.decisions
    assert [track.person for track in changed.tracks] == [track.person for track in project.tracks]


def test_what_is_clicked_is_what_is_applied(node: str, tmp_path: Path) -> None:
    project = a_project()
    page = Page(review_page(project, PICTURES))
    clicks = {
        ("film", None, "default"): {"value": "ficgan"}, ("film", None, "selecting"): {"checked": False},
        ("people", "1", "keep"): {"checked": False}, ("people", "1", "mode"): {"value": "blur"},
        ("people", "1", "reason"): {"value": ""}, ("tracks", "1", "keep"): {"checked": True},
        ("tracks", "2", "mode"): {"value": ""}, ("tracks", "4", "link"): {"value": "5"},
    }  # fmt: skip
    controls = [{**c, **clicks.pop((c["kind"], c["number"], c["field"]), {})} for c in page.controls()]
    assert not clicks
    page.controls = lambda: controls  # type: ignore[method-assign]
    out = run(node, page, project, '{"spans": [{"mode": "solid", "from": 3}]}')
    assert out["tracks"]["2"] is None and out["link"] == {"4": 5}
    (tmp_path / "decisions.json").write_text(json.dumps(out))
    changed = project.apply_decisions(tmp_path / "decisions.json")
    assert changed.decisions == Decisions(
        people={1: Decision(mode="blur")},
        tracks={1: Decision(mode="keep"), 3: Decision(mode="blur", reason="</textarea>")},
        spans=(SpanRule(mode="solid", start=3),),
    )
    assert changed.tracks[3].person == 5


def test_a_person_whose_tracks_went_to_another_is_not_decided(node: str, tmp_path: Path) -> None:
    project = a_project(decisions=Decisions(only=(1, 2), people={2: Decision(mode="solid")}))
    page = Page(review_page(project, PICTURES))
    controls = [{**c, "value": "1"} if (c["number"], c["field"]) == ("3", "link") else c for c in page.controls()]
    page.controls = lambda: controls  # type: ignore[method-assign]
    out = run(node, page, project)
    (tmp_path / "decisions.json").write_text(json.dumps(out))
    changed = project.apply_decisions(tmp_path / "decisions.json")
    assert (changed.decisions.people, changed.decisions.only, changed.tracks[2].person) == ({}, (1,), 1)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("{", "JSON"),
        ('{"span": []}', "there is no span"),
        ('{"spans": {}}', "spans is a list"),
        ("[1]", "there is no 0"),
    ],
)
def test_bad_rules_are_said_on_the_page(node: str, rules: str, said: str) -> None:
    project = a_project()
    assert said in run(node, Page(review_page(project, {})), project, rules)["error"]
