"""A film from file to file: times and sound, people, rules, the second look, progress, cancelling, memory.

Most films here show coloured discs for faces: the detector of this test finds them, its recogniser reads their colour.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clips import frames_of, make_clip
from numpy.typing import ArrayLike, NDArray
from stand_ins import Reader
from worlds import crop_model

from ficgan.errors import InputError, UsageError
from ficgan.faces import Alignment, Face
from ficgan.policy import Policy
from ficgan.video import Rules, VideoSettings, VideoTools
from ficgan.video.association import LOST
from ficgan.video.film import analyse_film, check_frames, process_film, render_film
from ficgan.video.project import DECISIONS_SCHEMA, Project
from ficgan.video.rendered import VideoResult
from ficgan.video.source import Frame

Image = NDArray[np.uint8]
RED, BLUE, YELLOW = (230, 20, 20), (20, 20, 230), (230, 220, 20)
SIDE = 40


def discs(places: dict[tuple[int, int, int], tuple[float, float]], width: int = 256, height: int = 144) -> Image:
    """A grey picture with discs of some colours, their middles at some places."""
    image = np.full((height, width, 3), 110, np.uint8)
    image[::8] = 140
    y, x = np.ogrid[:height, :width]
    for colour, (a, b) in places.items():
        image[np.hypot(x - a, y - b) <= SIDE / 2] = colour
    return image


@dataclass
class Discs:
    """Finds discs; blind for the colours it is told."""

    blind: Sequence[tuple[int, int, int]] = ()
    name: str = "discs"
    looks: int = 0

    def detect(self, image: Image) -> list[Face]:
        self.looks += 1
        found = []
        for colour in (RED, BLUE, YELLOW):
            near = (np.abs(image.astype(int) - colour) < 70).all(-1)
            if colour in self.blind or near.sum() < SIDE * SIDE / 4:
                continue
            y, x = (values.mean() for values in np.nonzero(near))
            corner = np.array([x, y]) - SIDE / 2
            marks = (Alignment().points(SIDE) + corner).astype(np.float32)
            found.append(Face(np.array([*corner, *(corner + SIDE)], np.float32), marks, 0.9))
        return found


@dataclass
class Colours(Reader):
    """Takes faces of one colour for one person."""

    match_threshold: float = 80.0

    def embed(self, image: Image, landmarks: ArrayLike) -> NDArray[np.float32]:
        points = np.asarray(landmarks).mean(1).round().astype(int)
        rows, columns = points[:, 1].clip(2, image.shape[0] - 3), points[:, 0].clip(2, image.shape[1] - 3)
        parts = [image[y - 2 : y + 3, x - 2 : x + 3].mean((0, 1)) for x, y in zip(columns, rows, strict=True)]
        return np.stack(parts).astype(np.float32)


def red_at(n: int) -> tuple[float, float]:
    return 50 + n, 50


def blue_at(n: int) -> tuple[float, float]:
    return 200 - n, 100


def pair(count: int, width: int = 256, height: int = 144) -> list[Image]:
    return [discs({RED: red_at(n), BLUE: blue_at(n)}, width, height) for n in range(count)]


def film(path: Path, images: Sequence[Image], **options: Any) -> Path:
    height, width = images[0].shape[:2]
    make_clip(path, options.pop("times", len(images)), size=(width, height), pictures=images, **options)
    return path


def tools(**changes: Any) -> VideoTools:
    return VideoTools(changes.pop("detector", None) or Discs(), changes.pop("recognizer", None) or Colours(), **changes)


def redact(path: Path, out: Path, *, how: VideoTools | None = None, **options: Any) -> VideoResult:
    settings = {"mode": "solid", "verify": "off", **options.pop("settings", {})}
    return process_film(how or tools(), path, out, settings=VideoSettings(**settings), **options)


def is_black(image: Image, place: tuple[float, float]) -> bool:
    x, y = (round(value) for value in place)
    return bool(image[y - 8 : y + 9, x - 8 : x + 9].max() < 60)


@pytest.mark.slow
def test_a_face_lost_in_fast_motion_is_named(tmp_path: Path) -> None:
    """Red goes 9 px a frame and is gone in mid-picture; blue leaves on the left."""
    images = [
        discs({BLUE: (150 - 9 * n, 100), **({RED: (30 + 9 * n, 50)} if n < 12 else {})} if n < 20 else {})
        for n in range(30)
    ]
    source = film(tmp_path / "film.mp4", images, time_base=Fraction(1, 25))
    result = redact(source, tmp_path / "out.mp4")
    (place,) = result.review
    assert (place["frame"], place["time"], place["reason"]) == (11, 0.44, LOST) and not result.ok
    assert np.allclose(place["box"], [109, 30, 149, 70], atol=2)
    assert result.to_dict()["review"] == [place]
    analyse_film(tools(), source, tmp_path / "project", settings=VideoSettings(mode="solid"))
    # Who has decided on the film has looked; a project that nobody touched says nothing of that.
    (tmp_path / "decisions.json").write_text(json.dumps({"schema": DECISIONS_SCHEMA}))
    files, how = (tmp_path / "project", source, tmp_path / "made.mp4"), {"settings": VideoSettings(verify="off")}
    for decisions, named in ((None, (place,)), (tmp_path / "decisions.json", ())):
        made = render_film(tools(), *files, **how, decisions=decisions, overwrite=True)
        assert tuple(made.review) == named and made.ok == (not named)


# -- rules -------------------------------------------------------------------------------------------------------------

PHOTOS = {"red": discs({RED: (128, 72)}), "blue": discs({BLUE: (128, 72)}), "yellow": discs({YELLOW: (128, 72)})}


@pytest.mark.parametrize(
    "rules",
    [
        Rules(keep={"red.png": PHOTOS["red"]}),
        pytest.param(Rules(only={"blue.png": PHOTOS["blue"]}), marks=pytest.mark.slow),
        Rules(boxes=[(10, 10, 200, 80)]),
        Rules(keep={"red.png": PHOTOS["red"], "blue.png": PHOTOS["blue"]}, only={"blue.png": PHOTOS["blue"]}),
    ],
    ids=["keep", "only", "box", "only beats keep"],
)
@pytest.mark.slow
def test_who_is_exempt_stays_and_nobody_else(rules: Rules, tmp_path: Path) -> None:
    source, out = film(tmp_path / "film.mp4", pair(30)), tmp_path / "out.mp4"
    result = redact(source, out, rules=rules)
    for n, (before, after) in enumerate(zip(frames_of(source), frames_of(out), strict=True)):
        assert is_black(after, blue_at(n))
        x, y = (round(value) for value in red_at(n))
        part = np.s_[y - 15 : y + 16, x - 15 : x + 16]
        assert np.abs(before[part].astype(int) - after[part]).mean() < 6
    assert result.exemptions and result.faces["kept"] == 30
    assert any(rule["rows"] == 30 for rule in result.exemptions)


def test_choosing_somebody_who_is_not_there_hides_nobody_and_is_an_error(tmp_path: Path) -> None:
    source = film(tmp_path / "film.mp4", pair(12))
    with pytest.raises(UsageError, match="nobody in the film"):
        redact(source, tmp_path / "out.mp4", rules=Rules(only={"yellow.png": PHOTOS["yellow"]}))
    with pytest.raises(UsageError, match="no face"):
        redact(source, tmp_path / "out.mp4", rules=Rules(keep={"grey.png": discs({})}))
    assert [path.name for path in tmp_path.iterdir()] == ["film.mp4"]


def other_detector(monkeypatch: pytest.MonkeyPatch, *blind: tuple[int, int, int]) -> None:
    monkeypatch.setattr("ficgan.video.film.independent_detector", lambda used, size: Discs(blind, "other"))


@pytest.mark.slow
@pytest.mark.parametrize("verify", [pytest.param("full", marks=pytest.mark.slow), "sampled"])
def test_the_second_look_finds_a_face_that_was_missed(
    verify: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_detector(monkeypatch)
    shown = range(20, 70)
    images = [discs({RED: (60, 60), **({BLUE: (200, 100)} if n in shown else {})}) for n in range(90)]
    source = film(tmp_path / "film.mp4", images, time_base=Fraction(1, 25))
    result = redact(source, tmp_path / "out.mp4", how=tools(detector=Discs(blind=[BLUE])), settings={"verify": verify})
    assert result.check is not None and not result.ok
    frames = [finding.frame for finding in result.check.findings]
    assert frames == (list(shown) if verify == "full" else [27, 52])  # one a second, away from the looks
    assert [finding.time for finding in result.check.findings] == pytest.approx([n / 25 for n in frames])
    assert all(150 < finding.box[0] < 200 for finding in result.check.findings)


def test_the_second_look_is_content_with_a_covered_film_and_leaves_the_kept_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_detector(monkeypatch)
    source, rules = film(tmp_path / "film.mp4", pair(10)), Rules(keep={"red.png": PHOTOS["red"]})
    result = redact(source, tmp_path / "out.mp4", rules=rules, settings={"verify": "full"})
    assert result.ok and result.check is not None and result.check.frames == result.check.exempt == 10


def test_what_is_covered_or_kept_is_no_finding_but_its_neighbours_and_a_face_inside_a_larger_box_are() -> None:
    source, result = discs({RED: (60, 60), BLUE: (200, 60)}), discs({RED: (60, 60), YELLOW: (200, 60)})
    pair = Frame(4, 4, 0.4, source), Frame(4, 4, 0.4, result)
    for kept, exempt in (([38, 42, 80, 78], 1), ([0, 0, 255, 143], 0), ([120, 40, 139, 80], 0)):
        boxes = np.array([kept], np.float32)
        report = check_frames([pair], lambda _, boxes=boxes: boxes, Discs(), Colours())  # type: ignore[misc]
        assert (report.frames, report.faces, report.exempt, len(report.findings)) == (1, 2, exempt, 1 - exempt), kept
        for found in report.to_dict()["findings"]:
            assert (found["frame"], found["time"], found["distance"]) == (4, 0.4, 0) and abs(found["box"][0] - 40) < 1


def test_less_of_the_threshold_counts_for_new_faces_of_children_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child's new face at .8 of the threshold is another child; a cover at .8 does not hide it."""
    child = np.r_[np.zeros(8), 1].astype(np.float32)
    monkeypatch.setattr("ficgan.video.film.read_kinds", lambda images, marks: [child] * len(images))

    class Near(Colours):
        def distance(self, a: Any, b: Any) -> float:
            return 0.8 * self.match_threshold

        def is_match(self, a: Any, b: Any) -> bool:
            return self.distance(a, b) < self.match_threshold

    picture = discs({RED: (60, 60)})
    one, nobody = Frame(0, 0, 0.0, picture), np.zeros((0, 4), np.float32)
    for keeps_kind, known in ((False, 1), (True, 0)):
        report = check_frames([(one, one)], lambda _: nobody, Discs(), Near(), keeps_kind=keeps_kind)
        assert (report.faces, len(report.findings)) == (1, known)


@pytest.mark.slow
def test_a_check_that_sees_no_face_among_generated_ones_is_no_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_detector(monkeypatch, RED, BLUE, YELLOW)
    source = film(tmp_path / "film.mp4", pair(8))
    how = tools(face_model=crop_model(), policy=Policy(verify=False), layer=2)
    result = redact(source, tmp_path / "new.mp4", how=how, settings={"mode": "ficgan", "verify": "sampled"})
    tree = result.to_dict()["check"]
    assert result.faces["generated"] and tree["frames"] == 2 and tree["findings"] == []
    assert tree["checked"] is False and "other found no face" in tree["reason"]
    assert result.reidentified is None and any("was not checked" in note for note in result.notes)
    covered = redact(source, tmp_path / "black.mp4", settings={"verify": "sampled"})
    assert covered.reidentified is None and "not even in the source" in covered.to_dict()["check"]["reason"]
    other_detector(monkeypatch)  # that sees the faces of the source, so that none in the result is what is wanted
    covered = redact(source, tmp_path / "black.mp4", settings={"verify": "sampled"}, overwrite=True)
    assert covered.reidentified == 0 and covered.to_dict()["check"]["checked"] is True


@pytest.mark.slow
def test_frames_that_nobody_searched_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Project, "check_source", lambda *_: None)  # as if both began and ended alike
    short, long = film(tmp_path / "short.mp4", pair(12)), film(tmp_path / "long.mp4", pair(14))
    settings = VideoSettings(mode="solid", verify="off")
    analyse_film(tools(), short, tmp_path / "project", settings=settings)
    with pytest.raises(InputError, match="is not as it was analysed, from frame 12"):
        render_film(tools(), tmp_path / "project", long, tmp_path / "out.mp4", settings=settings)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["long.mp4", "project", "short.mp4"]
    left_out = film(tmp_path / "left_out.mp4", pair(12), times=[n + 2 * (n > 5) for n in range(12)])
    with pytest.raises(InputError, match="from frame 6 on"):  # its later faces are elsewhere
        render_film(tools(), tmp_path / "project", left_out, tmp_path / "out.mp4", settings=settings)
    assert not (tmp_path / "out.mp4").exists()


@pytest.mark.slow
def test_a_film_that_changes_meanwhile_has_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other_detector(monkeypatch)
    source, out = film(tmp_path / "film.mp4", pair(12)), tmp_path / "out.mp4"
    other = film(tmp_path / "other.mp4", pair(12)[::-1])

    def progress(done: int, total: int | None, at: str) -> None:
        if (at, done) == ("checking", 12):
            other.replace(source)

    with pytest.raises(InputError, match="has changed while it was processed"):
        redact(source, out, progress=progress, settings={"verify": "full"})
    assert [path.name for path in tmp_path.iterdir()] == ["film.mp4"]


@pytest.mark.parametrize(
    ("stage", "existing"),
    [*(pytest.param(stage, True, marks=pytest.mark.slow) for stage in ("analysing", "checking")), ("rendering", False)],
)
def test_cancelling_leaves_nothing_behind(
    stage: str, existing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_detector(monkeypatch)
    source, out = film(tmp_path / "film.mp4", pair(30)), tmp_path / "out.mp4"
    if existing:
        out.write_bytes(b"of old")

    def progress(done: int, total: int | None, at: str) -> None:
        if (at, done) == (stage, 12):
            raise InputError("cancelled")

    with pytest.raises(InputError, match="cancelled"):
        redact(source, out, overwrite=existing, progress=progress, settings={"verify": "full"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["film.mp4", *(["out.mp4"] if existing else [])]
    assert not existing or out.read_bytes() == b"of old"
