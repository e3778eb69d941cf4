"""Films in `ficgan-deid`: what becomes which file, side-cars, counters, options; around a stand-in for the model."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from standin import GREEN, StandIn, call, files, film, photo

from ficgan.cli._plan import make_plan
from ficgan.errors import UsageError
from ficgan.folders import make_private_folder
from ficgan.video.decided import CheckReport
from ficgan.video.decided import FilmFinding as Finding


def animation(path: Path, frames: int) -> Path:
    colours = [Image.new("RGB", (8, 8), (40 * n, 90, 200)) for n in range(frames)]
    colours[0].save(path, save_all=frames > 1, append_images=colours[1:])
    return path


def pairs(tmp_path: Path, *names: str, out: str | None = None, **options: Any) -> dict[str, str]:
    plan = make_plan([str(tmp_path / name) for name in names], out and str(tmp_path / out), **options)
    return {job.source.name: str(job.output.relative_to(tmp_path)) for job in plan.jobs}


# -- what becomes which file ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("a.mp4", "a.mp4"),
        ("a.MKV", "a.MKV"),
        ("a.webm", "a.webm"),
        ("a.mpg", "a.mp4"),
        ("a.ts", "a.mp4"),
        ("a.wmv", "a.mp4"),
        ("a.mov", "a.mov"),
        ("a.avi", "a.mp4"),
        ("a.y4m", "a.mp4"),
        ("a.apng", "a.mp4"),
    ],
)
def test_suffixes(tmp_path: Path, name: str, result: str) -> None:
    film(tmp_path / "in" / name)
    assert pairs(tmp_path, "in", out="out") == {name: f"out/{result}"}
    assert pairs(tmp_path, f"in/{name}", out="out") == {name: f"out/{result}"}
    marked = f"in/{Path(result).stem}_anonymized{Path(result).suffix}"
    assert pairs(tmp_path, "in") == {name: marked}


@pytest.mark.parametrize(("suffix", "moving"), [("gif", ".gif"), ("webp", ".mp4"), ("png", ".mp4")])
def test_animations_are_films_and_stills_are_not(tmp_path: Path, suffix: str, moving: str) -> None:
    animation(tmp_path / f"a.{suffix}", 3)
    animation(tmp_path / f"b.{suffix}", 1)
    (tmp_path / f"c.{suffix}").write_bytes(b"neither")
    plan = make_plan([str(tmp_path)], str(tmp_path / "out"))
    assert [job.film for job in plan.jobs] == [True, False, False]
    assert plan.jobs[0].output.suffix == moving


def test_trees_are_mirrored_and_results_left_alone(tmp_path: Path, engine: StandIn) -> None:
    film(tmp_path / "in/a.mp4")
    film(tmp_path / "in/deep/er/b.mov")
    photo(tmp_path / "in/c.png")
    summary, _ = call(tmp_path / "in", "-o", tmp_path / "out")
    made = {"a.mp4", "deep/er/b.mov", "c.png"}
    assert files(tmp_path / "out") == made | {f"{name}.json" for name in made}
    assert (summary["inputs"], summary["written"], summary["frames"], summary["faces"]) == (3, 3, 50, 2 * 2 + 1)
    assert call(tmp_path / "out", "-o", tmp_path / "again")[0]["skipped"] == 3
    (tmp_path / "out/a.mp4").write_bytes(b"edited since")
    assert call(tmp_path / "out", "-o", tmp_path / "again")[0]["written"] == 1


def test_projects_in_a_tree_are_no_inputs(tmp_path: Path, engine: StandIn) -> None:
    film(tmp_path / "in/a.mp4")
    make_private_folder(tmp_path / "in/project", "project")
    photo(tmp_path / "in/project/thumbs/track-0001.jpg")
    make_private_folder(tmp_path / "in/.b.mp4.ficgan-work", "work")
    summary, said = call(tmp_path / "in", "-o", tmp_path / "out")
    assert (summary["inputs"], summary["skipped"]) == (1, 2) and "projects of films" in said


@pytest.mark.parametrize("source", ["camera:0", "rtsp://me:secret@host/x?key=secret", "frames/%05d.png"])
def test_what_is_no_file_needs_one_for_the_result(tmp_path: Path, engine: StandIn, source: str) -> None:
    for out in ((), ("-o", tmp_path / "out"), ("-o", tmp_path / "out.jpg")):
        _, said = call(source, *out, code=2)
        assert "-o result.mp4" in said and "secret" not in said
    summary, said = call(source, "-o", tmp_path / "out.mp4")
    assert summary["written"] == 1 and engine.films[0]["source"] == source
    _, said = call(source, "-o", tmp_path / "out.mp4", code=3)
    assert "exists already" in said and "secret" not in said


@pytest.mark.parametrize(
    ("source", "out", "said"),
    [
        ("a.png", "b.mp4", "a photo becomes no .mp4"),
        ("a.mp4", "b.png", "a film becomes no .png"),
        ("a.mp4", "b.mpg", ".mpg is only read; choose a name that ends in .mp4"),
        ("a.png", "b.bmp", "ends in .png"),
        ("a.mp4", "a.mp4", "one file"),
        ("both", "b.mp4", "name of one file"),
    ],
)
def test_impossible_results(tmp_path: Path, source: str, out: str, said: str) -> None:
    photo(tmp_path / "a.png")
    film(tmp_path / "a.mp4")
    sources = ["a.png", "a.mp4"] if source == "both" else [source]
    with pytest.raises(UsageError, match=said):
        pairs(tmp_path, *sources, out=out)


# -- one film -------------------------------------------------------------------------------------------------------


def test_sidecar(tmp_path: Path, engine: StandIn) -> None:
    call(film(tmp_path / "a.mp4"), "--seed", 424242)
    text = (tmp_path / "a_anonymized.mp4.json").read_text()
    record = json.loads(text)
    assert record["tool"] == "ficgan-deid" and record["output"] == "a_anonymized.mp4" and "424242" not in text
    assert record["sha256"] == hashlib.sha256(b"a film").hexdigest()
    assert (record["frames"], record["tracks"], record["faces_by_action"]) == (25, 2, {"generated": 40})
    assert record["metadata"] == "stripped" and record["audio"] == "none" and record["check"] is None


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


def test_a_sidecar_that_cannot_be_written_is_a_failure_and_the_film_stays(tmp_path: Path, engine: StandIn) -> None:
    source = film(tmp_path / "a.mp4")
    (tmp_path / "a_anonymized.mp4.json").mkdir()
    summary, said = call(source, "--overwrite", code=3)
    assert (summary["written"], summary["failed"]) == (0, 1) and "a_anonymized.mp4: is made, but" in said
    assert (tmp_path / "a_anonymized.mp4").read_bytes() == b"a film"


def test_findings_are_told_with_their_times(tmp_path: Path, engine: StandIn) -> None:
    found = [Finding(n, time, (0, 0, 9, 9), 0.2) for n, time in enumerate((59.999, 59.999, 75.25, 3661.5))]
    engine.film = replace(engine.film, check=CheckReport("yunet", "dlib", 25, 4, 0, found))
    summary, said = call(film(tmp_path / "a.mp4"), "--quiet", code=3)
    assert (summary["written"], summary["reidentified"], summary["failed"]) == (1, 4, 0)
    assert "still recognised at 1:00.00, 1:15.25, 61:01.50; do not publish it" in said


def test_places_to_review_are_told_with_their_times(tmp_path: Path, engine: StandIn) -> None:
    places = [
        {"frame": n, "time": time, "box": [0, 0, 9, 9], "reason": reason}
        for n, (time, reason) in enumerate([(1.5, "lost"), (75.25, "lost"), (2.0, "found")])
    ]
    engine.film = replace(engine.film, review=places)
    summary, said = call(film(tmp_path / "a.mp4"), "--quiet", code=3)
    assert (summary["written"], summary["review"], summary["failed"]) == (1, 3, 0)
    assert "look whether all faces are covered around 0:01.50, 1:15.25: lost" in said
    assert "around 0:02.00: found" in said
    assert json.loads((tmp_path / "a_anonymized.mp4.json").read_text())["review"] == places


def test_damage_is_an_error_even_when_quiet(tmp_path: Path, engine: StandIn) -> None:
    source = film(tmp_path / "a.mp4")
    engine.film = replace(engine.film, damage=(f"{source}: cut off at 0.67 s",))
    summary, said = call(source, "--quiet", code=3)
    assert (summary["written"], summary["damaged"], summary["failed"]) == (1, 1, 0)
    assert said.replace("a library that talks on stdout\n", "") == f"Error: {source}: cut off at 0.67 s\n"


def test_the_voice_is_spoken_of_once(tmp_path: Path, engine: StandIn) -> None:
    for name in "ab":
        film(tmp_path / f"in/{name}.mp4")
    engine.film = replace(engine.film, has_audio=True)
    assert call(tmp_path / "in", "-o", tmp_path / "1")[1].count("a voice identifies") == 1
    engine.film = replace(engine.film, has_audio=False)
    assert "voice" not in call(tmp_path / "in", "-o", tmp_path / "2", "--audio", "drop")[1]


# -- options --------------------------------------------------------------------------------------------------------


def test_options_reach_the_film(tmp_path: Path, engine: StandIn) -> None:
    star = photo(tmp_path / "star.png", GREEN)
    words = "--mode mosaic --stride 3 --pad 0.7 --link job --fallback blur --mask-scale 1.3 --verify full --start 1:30"
    words += " --end 0:02:00.5 --keep-box 1,2,30.5,40 --keep-span 5-1:00 --keep-span -3 --keep-span 90- --codec hevc"
    words += " --crf 30 --pix-fmt yuv420p --audio drop --scale 640x360 --overwrite"
    call(film(tmp_path / "a.mp4"), *words.split(), "--keep", star, "--only", star)
    (given,) = engine.films
    settings, rules, encode = given["settings"], given["rules"], given["encode"]
    assert (settings.stride, settings.pad, settings.link, settings.fallback, settings.mask_scale) == (
        3,
        0.7,
        "job",
        "blur",
        1.3,
    )
    assert (settings.mode, settings.verify, settings.detect_size) == ("mosaic", "full", 640)
    assert (given["start"], given["end"]) == (90, 120.5) and given["overwrite"] is True
    assert list(rules.keep) == list(rules.only) == [str(star)] and rules.keep[str(star)].shape == (32, 48, 3)
    assert rules.boxes == ((1, 2, 30.5, 40),) and rules.spans == ((5, 60), (None, 3), (90, None))
    assert (encode.codec, encode.crf, encode.pixel_format, encode.audio) == ("hevc", 30, "yuv420p", "drop")


def test_defaults_of_films(tmp_path: Path, engine: StandIn) -> None:
    call(film(tmp_path / "a.mp4"))
    (given,) = engine.films
    assert given["settings"] == type(given["settings"])() and given["encode"] == type(given["encode"])()
    assert (given["start"], given["end"]) == (None, None) and not given["rules"].keep


@pytest.mark.parametrize(
    "words",
    [
        "--start x",
        "--start -1",
        "--start 1:2:3:4",
        "--start nan",
        "--end inf",
        "--keep-span 5",
        "--keep-span -",
        "--keep-span 9-5",
        "--keep-span 5-5",
        "--keep-span a-b",
        "--keep-box 1,2,3",
        "--keep-box 1,2,3,x",
        "--keep-box 5,5,5,9",
        "--keep-box 5,5,9,1",
        "--keep-box 0,0,inf,9",
        "--keep none.jpg",
        "--only none.jpg",
        "--keep broken.jpg",
        "--stride 0",
        "--pad -1",
        "--pad nan",
        "--link all",
        "--verify some",
        "--fallback ficgan",
        "--audio mute",
        "--crf 64",
        "--crf -1",
    ],
)
def test_usage_errors(tmp_path: Path, engine: StandIn, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    film(tmp_path / "a.mp4")
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 broken")
    option, value = words.split()
    _, said = call("a.mp4", option, value, code=2)
    assert said.splitlines()[-1].startswith("Error: ") and option in said and engine.loaded == 0
    assert files(tmp_path) == {"a.mp4", "broken.jpg"}


def test_options_for_films_are_missed_where_there_is_none(tmp_path: Path, engine: StandIn) -> None:
    source = photo(tmp_path / "a.png")
    assert "no film" in call(source, "--keep-span", "1-2")[1]
    assert "no film" not in call(source, film(tmp_path / "a.mp4"), "--keep-span", "1-2", "--overwrite")[1]
    assert "no film" not in call(source, "--keep", source, "--overwrite")[1], "people are kept in photos, too"


def test_dry_run(tmp_path: Path, engine: StandIn) -> None:
    film(tmp_path / "in/a.mpg")
    summary, said = call(tmp_path / "in", "-o", tmp_path / "out", "--dry-run")
    assert "a.mpg -> " in said and "out/a.mp4" in said and summary["written"] == 0
    assert call("camera:0", "-o", tmp_path / "x.mp4", "--dry-run")[0]["inputs"] == 1
    assert files(tmp_path) == {"in/a.mpg"} and engine.loaded == 0
    film(tmp_path / "out/a.mp4")
    call(tmp_path / "in", "-o", tmp_path / "out", "--dry-run", code=3)
