"""`ficgan analyse` and `ficgan render` around a stand-in; what films say while they run."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from standin import StandIn, call, files, film, photo

from ficgan.cli._console import Progress
from ficgan.cli.review import analyse, render
from ficgan.video.decisions import Decisions
from ficgan.video.project import Project, Source


def project(folder: Path, settings: dict[str, Any] | None = None, mode: Any = "blur") -> Path:
    source = Source(name="film.mp4", width=8, height=8, time_base="1/25")
    Project(source, np.arange(5), [], settings or {}, (), Decisions(default=mode)).save(folder)
    return folder


def test_analyse(tmp_path: Path, engine: StandIn) -> None:
    source, face = film(tmp_path / "a.mp4"), photo(tmp_path / "star.png")
    words = "--mode mosaic --stride 7 --pad 0.2 --link none --start 2 --end 9 --keep-box 1,2,3,4 --fallback blur"
    summary, said = call(source, "-o", tmp_path / "p", *words.split(), "--only", face, of=analyse)
    assert (summary["frames"], summary["tracks"], summary["exemptions"]) == (25, 0, 0)
    assert "holds source faces" in said and f"ficgan purge {tmp_path / 'p'}" in said
    (given,) = engine.films
    settings = given["settings"]
    assert (settings.stride, settings.pad, settings.link, settings.fallback) == (7, 0.2, "none", "blur")
    assert settings.mode == "mosaic" and engine.settings["mode"] == "solid"  # no model is needed to look for faces
    assert (given["start"], given["end"], given["overwrite"]) == (2, 9, False)
    assert given["rules"].boxes == ((1, 2, 3, 4),) and list(given["rules"].only) == [str(face)]


def test_analyse_needs_a_folder(tmp_path: Path, engine: StandIn) -> None:
    call(film(tmp_path / "a.mp4"), of=analyse, code=2)
    call(film(tmp_path / "a.mp4"), "-o", tmp_path / "p", "--keep", tmp_path / "none.jpg", of=analyse, code=2)
    still = photo(tmp_path / "a.jpg").rename(tmp_path / "still.mp4")
    assert CliRunner().invoke(analyse, [str(still), "-o", str(tmp_path / "p")]).exit_code == 3
    assert engine.loaded == 0


def test_render_takes_what_was_analysed(tmp_path: Path, engine: StandIn) -> None:
    told = {"stride": 9, "pad": 1.5, "link": "none", "mode": "blur", "fallback": "mosaic", "detector": "x"}
    place, source = project(tmp_path / "p", told), film(tmp_path / "film.mp4")
    summary, _ = call(place, source, "-o", tmp_path / "out.mp4", "--verify", "full", of=render)
    assert (summary["inputs"], summary["written"], summary["frames"]) == (1, 1, 25)
    assert files(tmp_path) >= {"out.mp4", "out.mp4.json"}
    (given,) = engine.films
    settings = given["settings"]
    assert (settings.stride, settings.pad, settings.link, settings.fallback) == (9, 1.5, "none", "mosaic")
    assert settings.verify == "full" and given["folder"] == str(place) and given["decisions"] is None
    assert engine.settings["mode"] == "ficgan"  # an edited project may ask for it
    call(place, source, "-o", tmp_path / "2.mp4", "--fallback", "solid", "--decisions", "d", "--force", of=render)
    assert engine.films[1]["settings"].fallback == "black"  # the older word
    assert (engine.films[1]["decisions"], engine.films[1]["force"]) == ("d", True)
    call(place, source, "-o", tmp_path / "3.mp4", "--no-tag", of=render)
    assert [film["encode"].tag for film in engine.films] == [True, True, False]


def test_render_refuses_a_damaged_project(tmp_path: Path, engine: StandIn) -> None:
    source = film(tmp_path / "film.mp4")
    _, said = call(tmp_path / "none", source, "-o", tmp_path / "out.mp4", of=render, code=3, silent=True)
    assert "project.json: cannot be read" in said
    place = project(tmp_path / "p", {"stride": "x"})
    _, said = call(place, source, "-o", tmp_path / "out.mp4", of=render, code=3, silent=True)
    assert "are damaged" in said
    place = project(tmp_path / "q", {"stride": 0})
    call(place, source, "-o", tmp_path / "out.mp4", of=render, code=2)
    assert not (tmp_path / "out.mp4").exists() and engine.loaded == 0


def test_render_overwrites_only_when_told(tmp_path: Path, engine: StandIn) -> None:
    place, source, out = project(tmp_path / "p"), film(tmp_path / "film.mp4"), film(tmp_path / "out.mp4")
    _, said = call(place, source, "-o", out, of=render, code=3, silent=True)
    assert "exists already" in said and engine.films == []
    call(place, source, "-o", out, "--overwrite", "--no-sidecar", of=render)
    assert out.read_bytes() == b"a film" and "out.mp4.json" not in files(tmp_path)


# -- progress ----------------------------------------------------------------------------------------------------------


def test_jsonl_lines(tmp_path: Path, engine: StandIn) -> None:
    source = film(tmp_path / "a.mp4")
    _, said = call(source, "--progress", "jsonl")
    events = [json.loads(line) for line in said.replace("a library that talks on stdout\n", "").splitlines()]
    frames = [event for event in events if event.get("unit") == "frame"]
    assert frames[0] == {"done": 1, "total": 25, "unit": "frame", "stage": f"{source}: rendering"}
    assert frames[-1]["done"] == 25 and len(frames) < 10  # about two a second, and the last
    assert events[-1] == {"done": 1, "total": 1, "unit": "file", "stage": str(source)}


@pytest.mark.parametrize("mode", ["auto", "none"])
def test_nothing_when_piped(tmp_path: Path, engine: StandIn, mode: str) -> None:
    _, said = call(film(tmp_path / "a.mp4"), "--progress", mode)
    assert said == "a library that talks on stdout\n"


def test_text_lines(tmp_path: Path, engine: StandIn) -> None:
    source = film(tmp_path / "a.mp4")
    lines = call(source, "--progress", "text")[1].splitlines()
    assert f"{source}: rendering: frame 25 of 25" in lines and lines[-1] == f"1/1 {source}" and len(lines) < 10
    assert "frame 1\n" in call(source, "-o", tmp_path / "p", "--progress", "text", of=analyse)[1]  # of nobody knows


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_for_the_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)
    with Progress(unit="file") as report:
        report.frames(51, 100, "a.mp4", "rendering")  # goes on from frame 50
        report.frames(100, 100, "a.mp4", "rendering")
        report.frames(1, None, "a.mp4", "checking")
        report.info("a note")
        report(1, 2, "a.mp4")
        report.frames(1, 10, "b.mp4", "analysing")
    said = screen.getvalue()
    assert "a.mp4: rendering:" in said and "/100" in said and "frame/s" in said
    assert "a.mp4: checking:" in said and "a note\n" in said and "1/2" in said
    assert "b.mp4: analysing:" in said and "/10 [" in said


def test_a_line_a_minute_also_while_one_step_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stderr", pipe)
    monkeypatch.setattr("ficgan.cli._console._SELDOM", 0.02)
    with Progress() as report:
        report(3, 8, "preparing faces")
        deadline = time.monotonic() + 10
        while pipe.getvalue().count("3 of 8 done, preparing faces\n") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        report(8, 8, "the last")
    said = pipe.getvalue()
    assert said.count("3 of 8 done, preparing faces\n") >= 2 and "the last" not in said
    time.sleep(0.1)
    assert pipe.getvalue() == said
