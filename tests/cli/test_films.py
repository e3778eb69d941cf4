"""Films in `ficgan-deid`, `analyse`, `render`, around a stand-in for the model: files, options, progress."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from standin import GREEN, StandIn, call, files, film, photo

from ficgan.cli._files import make_plan
from ficgan.cli.review import analyse, render
from ficgan.errors import UsageError
from ficgan.folders import make_private_folder
from ficgan.video.decided import CheckReport
from ficgan.video.decided import FilmFinding as Finding
from ficgan.video.decisions import Decisions
from ficgan.video.project import Project, Source


def animation(path: Path, frames: int) -> Path:
    colours = [Image.new("RGB", (8, 8), (40 * n, 90, 200)) for n in range(frames)]
    colours[0].save(path, save_all=frames > 1, append_images=colours[1:])
    return path


def pairs(tmp_path: Path, *names: str, out: str | None = None) -> dict[str, str]:
    plan = make_plan([str(tmp_path / name) for name in names], out and str(tmp_path / out))
    return {job.source.name: str(job.output.relative_to(tmp_path)) for job in plan.jobs}


@pytest.mark.parametrize(("suffix", "moving"), [("gif", ".gif"), ("webp", ".mp4"), ("png", ".mp4")])
def test_animations_are_films_and_stills_are_not(tmp_path: Path, suffix: str, moving: str) -> None:
    animation(tmp_path / f"a.{suffix}", 3)
    animation(tmp_path / f"b.{suffix}", 1)
    (tmp_path / f"c.{suffix}").write_bytes(b"neither")
    plan = make_plan([str(tmp_path)], str(tmp_path / "out"))
    assert [job.film for job in plan.jobs] == [True, False, False] and plan.jobs[0].output.suffix == moving


def test_trees_are_mirrored_and_results_and_projects_are_no_inputs(tmp_path: Path, engine: StandIn) -> None:
    film(tmp_path / "in/a.mp4")
    film(tmp_path / "in/deep/er/b.mov")
    photo(tmp_path / "in/c.png")
    make_private_folder(tmp_path / "in/project", "project")
    photo(tmp_path / "in/project/thumbs/track-0001.jpg")
    make_private_folder(tmp_path / "in/.b.mp4.ficgan-work", "work")
    summary, said = call(tmp_path / "in", "-o", tmp_path / "out")
    made = {"a.mp4", "deep/er/b.mov", "c.png"}
    assert files(tmp_path / "out") == made | {f"{name}.json" for name in made}
    assert (summary["inputs"], summary["written"], summary["frames"], summary["faces"]) == (3, 3, 50, 2 * 2 + 1)
    assert summary["skipped"] == 2 and "projects of films" in said
    assert call(tmp_path / "out", "-o", tmp_path / "again")[0]["skipped"] == 3
    (tmp_path / "out/a.mp4").write_bytes(b"edited since")
    assert call(tmp_path / "out", "-o", tmp_path / "again")[0]["written"] == 1


@pytest.mark.parametrize("source", ["camera:0", "rtsp://me:secret@host/x?key=secret"])
def test_what_is_no_file_needs_one_for_the_result(tmp_path: Path, engine: StandIn, source: str) -> None:
    for out in ((), ("-o", tmp_path / "out"), ("-o", tmp_path / "out.jpg")):
        _, said = call(source, *out, code=2)
        assert "-o result.mp4" in said and "secret" not in said
    summary, said = call(source, "-o", tmp_path / "out.mp4")
    assert summary["written"] == 1 and engine.films[0]["source"] == source
    _, said = call(source, "-o", tmp_path / "out.mp4", code=3)
    assert "exists already" in said and "secret" not in said


@pytest.mark.parametrize(
    ("sources", "out"),
    [
        (["a.png"], "b.mp4"),
        (["a.mp4"], "b.png"),
        (["a.mp4"], "b.mpg"),
        (["a.png"], "b.bmp"),
        (["a.mp4"], "a.mp4"),
        (["a.png", "a.mp4"], "b.mp4"),
    ],
)
def test_impossible_results(tmp_path: Path, sources: list[str], out: str) -> None:
    photo(tmp_path / "a.png")
    film(tmp_path / "a.mp4")
    with pytest.raises(UsageError):
        pairs(tmp_path, *sources, out=out)


def test_sidecar(tmp_path: Path, engine: StandIn) -> None:
    call(film(tmp_path / "a.mp4"), "--seed", 424242)
    text = (tmp_path / "a_anonymized.mp4.json").read_text()
    record = json.loads(text)
    assert record["tool"] == "ficgan-deid" and record["output"] == "a_anonymized.mp4" and "424242" not in text
    assert record["sha256"] == hashlib.sha256(b"a film").hexdigest()
    assert (record["frames"], record["tracks"], record["faces_by_action"]) == (25, 2, {"generated": 40})
    assert record["metadata"] == "stripped" and record["audio"] == "none" and record["check"] is None
    (given,) = engine.films
    assert given["settings"] == type(given["settings"])() and given["encode"] == type(given["encode"])()
    assert (given["start"], given["end"]) == (None, None) and not given["rules"].keep


@pytest.mark.parametrize("make", [film, photo])
def test_names_that_are_not_utf8_are_kept_byte_for_byte(tmp_path: Path, engine: StandIn, make: Any) -> None:
    name = os.fsdecode(b"v\xff" + (b".mp4" if make is film else b".png"))
    try:
        make(tmp_path / name)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    summary, _ = call(tmp_path, "-o", tmp_path / "out")
    assert summary["written"] == 1 and (tmp_path / "out" / name).is_file()
    record = json.loads((tmp_path / "out" / f"{name}.json").read_bytes().decode("utf-8"))
    assert record["output"] == name
    assert call(tmp_path / "out", "-o", tmp_path / "again")[0]["skipped"] == 1, "it is known as a result"


def test_a_film_that_fails_leaves_nothing_and_stops_nobody(tmp_path: Path, engine: StandIn) -> None:
    film(tmp_path / "in/a/a.mp4", b"broken")
    film(tmp_path / "in/b.mp4")
    summary, said = call(tmp_path / "in", "-o", tmp_path / "out", code=3)
    assert (summary["written"], summary["failed"]) == (1, 1) and said.count("Error: ") == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["b.mp4", "b.mp4.json", "manifest.jsonl"]
    call(tmp_path / "in/a/a.mp4", "-o", tmp_path / "x/y/z.mp4", code=3)
    assert not (tmp_path / "x").exists()
    (tmp_path / "in/b_anonymized.mp4.json").mkdir()  # a side-car that cannot be written: the film stays
    summary, said = call(tmp_path / "in/b.mp4", "--overwrite", code=3)
    assert (summary["written"], summary["failed"]) == (0, 1) and "b_anonymized.mp4: is made, but" in said
    assert (tmp_path / "in/b_anonymized.mp4").read_bytes() == b"a film"


def test_what_somebody_must_look_at_is_named_with_its_times(tmp_path: Path, engine: StandIn) -> None:
    source = film(tmp_path / "a.mp4")
    found = [Finding(n, time, (0, 0, 9, 9), 0.2) for n, time in enumerate((59.999, 59.999, 75.25, 3661.5))]
    places = [
        {"frame": n, "time": time, "box": [0, 0, 9, 9], "reason": reason}
        for n, (time, reason) in enumerate([(1.5, "lost"), (75.25, "lost"), (2.0, "found")])
    ]
    check = CheckReport("yunet", "dlib", 25, 4, 0, found)
    engine.film = replace(engine.film, check=check, review=places, damage=(f"{source}: cut off at 0.67 s",))
    summary, said = call(source, "--quiet", code=3)
    assert (summary["written"], summary["reidentified"], summary["failed"]) == (1, 4, 0)
    assert (summary["review"], summary["damaged"]) == (3, 1) and f"Error: {source}: cut off at 0.67 s\n" in said
    assert "still recognised at 1:00.00, 1:15.25, 61:01.50; do not publish it" in said
    assert "around 0:01.50, 1:15.25: lost" in said and "around 0:02.00: found" in said
    assert json.loads((tmp_path / "a_anonymized.mp4.json").read_text())["review"] == places


def test_options_reach_the_film(tmp_path: Path, engine: StandIn) -> None:
    star = photo(tmp_path / "star.png", GREEN)
    words = "--mode mosaic --stride 3 --pad 0.7 --link job --fallback blur --mask-scale 1.3 --verify full --start 1:30"
    words += " --end 0:02:00.5 --keep-box 1,2,30.5,40 --keep-span 5-1:00 --keep-span -3 --keep-span 90- --codec hevc"
    words += " --crf 30 --pix-fmt yuv420p --audio drop --scale 640x360 --overwrite"
    call(film(tmp_path / "a.mp4"), *words.split(), "--keep", star, "--only", star)
    (given,) = engine.films
    settings, rules, encode = given["settings"], given["rules"], given["encode"]
    assert (settings.stride, settings.pad, settings.link, settings.fallback) == (3, 0.7, "job", "blur")
    assert (settings.mode, settings.verify, settings.detect_size, settings.mask_scale) == ("mosaic", "full", 640, 1.3)
    assert (given["start"], given["end"], given["overwrite"]) == (90, 120.5, True)
    assert list(rules.keep) == list(rules.only) == [str(star)] and rules.keep[str(star)].shape == (32, 48, 3)
    assert rules.boxes == ((1, 2, 30.5, 40),) and rules.spans == ((5, 60), (None, 3), (90, None))
    assert (encode.codec, encode.crf, encode.pixel_format, encode.audio) == ("hevc", 30, "yuv420p", "drop")


WRONG = """--start x|--start -1|--start 1:2:3:4|--start nan|--end inf|--keep-span 5|--keep-span -|--keep-span 9-5|\
--keep-span a-b|--keep-box 1,2,3|--keep-box 1,2,3,x|--keep-box 5,5,5,9|--keep-box 0,0,inf,9|--keep none.jpg|\
--only none.jpg|--keep broken.jpg|--stride 0|--pad -1|--pad nan|--link all|--verify some|--fallback ficgan|\
--audio mute|--crf 64|--crf -1"""


@pytest.mark.parametrize("words", WRONG.split("|"))
def test_usage_errors(tmp_path: Path, engine: StandIn, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    film(tmp_path / "a.mp4")
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 broken")
    option, value = words.split()
    _, said = call("a.mp4", option, value, code=2)
    assert said.splitlines()[-1].startswith("Error: ") and option in said and engine.loaded == 0
    assert files(tmp_path) == {"a.mp4", "broken.jpg"}


def project(folder: Path, settings: dict[str, Any] | None = None) -> Path:
    source = Source(name="film.mp4", width=8, height=8, time_base="1/25")
    Project(source, np.arange(5), [], settings or {}, (), Decisions(default="blur")).save(folder)
    return folder


def test_analyse(tmp_path: Path, engine: StandIn) -> None:
    source, face = film(tmp_path / "a.mp4"), photo(tmp_path / "star.png")
    call(source, of=analyse, code=2)
    call(source, "-o", tmp_path / "p", "--keep", tmp_path / "none.jpg", of=analyse, code=2)
    still = photo(tmp_path / "a.jpg").rename(tmp_path / "still.mp4")
    assert CliRunner().invoke(analyse, [str(still), "-o", str(tmp_path / "p")]).exit_code == 3
    assert engine.loaded == 0
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


def test_render_takes_what_was_analysed(tmp_path: Path, engine: StandIn) -> None:
    analysed = {"stride": 9, "pad": 1.5, "link": "none", "mode": "blur", "fallback": "mosaic", "detector": "x"}
    place, source = project(tmp_path / "p", analysed), film(tmp_path / "film.mp4")
    summary, _ = call(place, source, "-o", tmp_path / "out.mp4", "--verify", "full", of=render)
    assert (summary["inputs"], summary["written"], summary["frames"]) == (1, 1, 25)
    assert files(tmp_path) >= {"out.mp4", "out.mp4.json"}
    (given,) = engine.films
    settings = given["settings"]
    assert (settings.stride, settings.pad, settings.link, settings.fallback) == (9, 1.5, "none", "mosaic")
    assert settings.verify == "full" and given["folder"] == str(place) and given["decisions"] is None
    assert engine.settings["mode"] == "ficgan"  # an edited project may ask for it
    call(place, source, "-o", tmp_path / "2.mp4", "--decisions", "d", "--no-tag", of=render)
    assert engine.films[1]["decisions"] == "d" and engine.films[1]["encode"].tag is False
    _, said = call(place, source, "-o", tmp_path / "2.mp4", of=render, code=3, silent=True)
    assert "exists already" in said and len(engine.films) == 2
    call(place, source, "-o", tmp_path / "2.mp4", "--overwrite", of=render)


def test_render_refuses_a_damaged_project(tmp_path: Path, engine: StandIn) -> None:
    source = film(tmp_path / "film.mp4")
    call(tmp_path / "none", source, "-o", tmp_path / "out.mp4", of=render, code=3, silent=True)
    place = project(tmp_path / "p", {"stride": "x"})
    _, said = call(place, source, "-o", tmp_path / "out.mp4", of=render, code=3, silent=True)
    assert "are damaged" in said
    call(project(tmp_path / "q", {"stride": 0}), source, "-o", tmp_path / "out.mp4", of=render, code=2)
    assert not (tmp_path / "out.mp4").exists() and engine.loaded == 0


def test_jsonl_lines(tmp_path: Path, engine: StandIn) -> None:
    source = film(tmp_path / "a.mp4")
    _, said = call(source, "--progress", "jsonl")
    events = [json.loads(line) for line in said.replace("a library that talks on stdout\n", "").splitlines()]
    frames = [event for event in events if event.get("unit") == "frame"]
    assert frames[0] == {"done": 1, "total": 25, "unit": "frame", "stage": f"{source}: rendering"}
    assert frames[-1]["done"] == 25 and len(frames) < 10  # about two a second, and the last
    assert events[-1] == {"done": 1, "total": 1, "unit": "file", "stage": str(source)}
    assert call(source, "--overwrite")[1] == "a library that talks on stdout\n"  # nobody watches
