"""Films under review: decided on and undone, shown frame by frame as they are rendered, rendered."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from clips import frames_of
from desks import ROOT, Desk, make_film
from PIL import Image

from ficgan.deidentify import Deidentifier
from ficgan.errors import InputError
from ficgan.video.film import analyse_film, render_film
from ficgan.video.preview import Preview
from ficgan.video.write import SegmentWriter

REGION = {"first": 0, "last": 11, "box": [150, 190, 210, 240], "mode": "black"}


def picture(desk: Desk, path: str) -> np.ndarray:
    answer = desk.web.get(f"/api/{path}")
    assert answer.status_code == 200, answer.text
    return np.asarray(Image.open(io.BytesIO(answer.content))).astype(int)


def decided(film: dict[str, Any]) -> Any:
    return (
        film["default"],
        [(one["person"], one["mode"], one["draw"], one["drawing"]) for one in film["people"]],
        [track["keys"] for one in film["people"] for track in one["tracks"]],
        [
            {name: region[name] for name in ("first", "last", "mode", "box", "keys") if name in region}
            for region in film["regions"]
        ],
    )


@pytest.mark.slow
def test_a_film_from_drop_to_result(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_film(tmp_path / "film.mp4")
    number = desk.upload(source.read_bytes(), "film.mp4")["id"]
    item, one = desk.wait(number), f"items/{number}"
    assert (item["state"], item["kind"], item["people"]) == ("ready", "film", 1), item["error"]
    film = desk.ask("GET", f"{one}/film")
    assert film["frames"] == 12 and len(film["people"]) == 1 and film["duration"] == pytest.approx(1.2)
    person = film["people"][0]
    assert (person["tracks"][0]["first"], person["tracks"][0]["last"]) == (0, 11)  # one bar, no gaps
    assert person["spans"][0][0] == 0 and person["spans"][-1][1] == pytest.approx(1.2)
    place = desk.ask("GET", f"{one}/at?time=0.55")
    assert place["frame"] == 5 and len(place["boxes"]) == 1
    assert desk.ask("GET", f"{one}/at?frame=99")["frame"] == 11
    before = [frame.astype(int) for frame in frames_of(source)]
    shown = picture(desk, f"{one}/frame/5")
    assert np.abs(shown - before[5]).mean() < 4 < np.abs(shown - before[0]).mean()
    part = desk.web.get(f"/api/{one}/video", headers={"range": "bytes=0-9"})
    assert part.status_code == 206 and part.content == source.read_bytes()[:10]
    assert desk.web.get(f"/api/{one}/video?after").status_code == 404

    # Everything is undone and done again, after a restart, too.
    changes: list[dict[str, Any]] = [
        {"people": {"1": {"draw": 1}}},
        {"people": {"1": {"draw": 1, "drawing": {"k": 50, "keep_kind": "none"}}}},
        {"people": {"1": "keep"}},
        {"regions": [REGION]},
        {"keys": {"1": [{"frame": 4, "box": [60, 30, 160, 170]}]}},
        {"link": {"1": 2}},
        {"default": "black"},
    ]
    states = [film]
    for change in changes:
        states.append(desk.ask("PATCH", f"{one}/film", change))
    assert [person["mode"] for person in states[5]["people"]] == ["keep"]
    assert states[6]["people"][0]["mode"] == ""  # person 1 is nobody now, and so is what was decided on them
    desk.session.close()
    desk = Desk(tmp_path, desk.make)
    for state in states[-2::-1]:
        desk.ask("POST", f"{one}/undo")
        assert decided(desk.ask("GET", f"{one}/film")) == decided(state)
    assert desk.ask("GET", f"{one}/film")["people"][0]["draws"] == [0, 1]  # what was drawn stays at hand
    assert desk.ask("POST", f"{one}/undo", code=422)["error"]
    for state in states[1:6]:
        desk.ask("POST", f"{one}/undo?redo")
        assert decided(desk.ask("GET", f"{one}/film")) == decided(state)
    box = desk.ask("GET", f"{one}/at?frame=4")["boxes"][0]
    assert box["box"] == [60, 30, 160, 170] and box["key"]
    desk.ask("POST", f"{one}/undo")
    wrong: tuple[dict[str, Any], ...] = (
        {"people": {"7": "keep"}},
        {"people": {"1": "vanish"}},
        {"people": {"x": "keep"}},
        {"people": {"1": {"drawing": {"k": 0}}}},
        {"people": "all"},
        {"speed": 2},
        {"keys": {"1": [{"frame": 99, "box": [0, 0, 50, 50]}]}},
        {"regions": [{**REGION, "mode": "keep"}]},
        {"regions": [7]},
    )
    for bad in wrong:
        assert desk.ask("PATCH", f"{one}/film", bad, code=422)["error"], bad
    assert decided(desk.ask("GET", f"{one}/film")) == decided(states[4])

    # The export is what `ficgan render --decisions` takes.
    (tmp_path / "decisions.json").write_bytes(desk.web.get(f"/api/{one}/decisions.json").content)
    project = desk.session.films.load(number)
    assert project.apply_decisions(tmp_path / "decisions.json").decisions == project.decisions

    # The disk is full: a decision that cannot be written leaves no step of undo.
    def unwritten(*_: Any) -> None:
        raise InputError("project.json: cannot be written (No space left on device)")

    steps = desk.ask("GET", one)["undo"]
    with monkeypatch.context() as patch:
        patch.setattr("ficgan.video.project.Project.save_document", unwritten)
        desk.ask("PATCH", f"{one}/film", {"people": {"1": {"draw": 7}}}, code=422)
    assert desk.ask("GET", one)["undo"] == steps and decided(desk.ask("GET", f"{one}/film")) == decided(states[4])

    # The disk is full: the decisions stay, and it can be rendered again.
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("ficgan.ui.tasks.render_film", full)
        desk.ask("POST", f"{one}/save")
        missed = desk.wait(number)
    assert missed["state"] == "ready" and "No space left on device; free space" in missed["error"]
    assert not missed["saved"] and not list(desk.review.output.iterdir())

    assert desk.ask("POST", f"{one}/save")["state"] == "working"
    done = desk.wait(number)
    assert done["saved"] == "film.mp4" and not done["changed"], done["error"]
    after = [frame.astype(int) for frame in frames_of(desk.review.output / "film.mp4")]
    x0, y0, x1, y1 = (int(value) for value in place["boxes"][0]["box"])
    assert len(after) == 12
    for n, (old, new) in enumerate(zip(before, after, strict=True)):
        assert new[195:235, 155:205].max() < 60, n
        assert np.abs(old - new)[y0:y1, x0:x1].mean() < 6, n  # the face is as it was
    for n in (0, 5, 11):
        assert np.abs(picture(desk, f"{one}/frame/{n}?result") - after[n]).mean() < 3, n  # of the file, not a preview
    side = json.loads((desk.review.output / "film.mp4.json").read_text())
    jsonschema.validate(side, json.loads((ROOT / "docs" / "sidecar.schema.json").read_text()))
    assert side["edits"]
    side["check"] = {"findings": [{}, "x", {"time": None}, {"time": 0.5}]}  # damaged, all but one
    (desk.review.output / "film.mp4.json").write_text(json.dumps(side))
    assert [found["time"] for found in desk.ask("GET", f"{one}/film")["findings"]] == [0.5]
    assert desk.web.get(f"/api/{one}/video?after").status_code == 200

    # That a preview is the rendered frame is the next test.
    desk.ask("PATCH", f"{one}/film", {"people": {"1": {"draw": 1}}})
    assert np.abs(picture(desk, f"{one}/frame/5?after") - before[5])[y0:y1, x0:x1].mean() > 8
    assert desk.web.get(f"/api/{one}/people/1/1").headers["content-type"] == "image/jpeg"
    assert desk.web.get(f"/api/{one}/people/1/0").status_code == 404  # was never shown
    desk.session.close()


@pytest.mark.slow
def test_a_preview_is_the_rendered_frame_to_the_pixel(
    tmp_path: Path, engine: Deidentifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, drawn = make_film(tmp_path / "film.mp4", 70), dict[int, np.ndarray]()
    settings = engine.video_settings()
    film = analyse_film(engine.video_tools(settings, generate=False), source, tmp_path / "film", settings=settings)
    region = {"first": 5, "last": 68, "mode": "plain", "keys": [{"frame": 5, "box": [9, 9, 50, 50]}]}
    own = {"draw": 2, "drawing": {"k": 100, "keep_kind": "none"}}
    film = film.changed({"people": {"1": own}, "regions": [region]}, "the test")
    film.save_document(tmp_path / "film")
    write = SegmentWriter.write

    def note(self: SegmentWriter, frame: Any, image: np.ndarray) -> Any:
        drawn[frame.index] = image.copy()
        return write(self, frame, image)

    monkeypatch.setattr(SegmentWriter, "write", note)
    tools = engine.video_tools(settings)
    result = render_film(tools, tmp_path / "film", source, tmp_path / "new.mp4", settings=settings)
    assert result.faces["generated"] and result.faces["region"]
    preview = Preview(engine.video_tools(settings), settings, source)
    preview.decide(film)
    for n in (60, 61, 3, 20, 69):
        assert np.array_equal(preview(n), drawn[n]), n
