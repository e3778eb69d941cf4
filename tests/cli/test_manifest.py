"""`--files-from`, `manifest.jsonl`, and `--skip-existing` by both."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from PIL import Image
from standin import GREEN, Result, StandIn, call, files, film, photo

import ficgan.cli.deid as command
from ficgan.cli.review import report
from ficgan.records.sidecars import MANIFEST, RunManifest


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / MANIFEST).read_text().splitlines()]


def test_the_manifest_tells_what_became_of_each_file(tmp_path: Path, engine: StandIn) -> None:
    source = photo(tmp_path / "in/a.png")
    photo(tmp_path / "in/deep/none.png", GREEN)
    film(tmp_path / "in/f.mp4")
    (tmp_path / "in/damaged.jpg").write_bytes(b"no photo")
    summary, _ = call(tmp_path / "in", "-o", tmp_path / "out", "--seed", 3, code=3)
    assert (summary["written"], summary["failed"], summary["skipped"]) == (3, 1, 0)
    told = {line["output"]: line for line in lines(tmp_path / "out")}
    assert set(told) == {"a.png", "deep/none.png", "f.mp4", "damaged.jpg"}
    line = told["a.png"]
    assert line["input"] == str(source) and line["input_sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    assert (line["state"], line["faces"], line["masked"], line["error"]) == ("written", 1, 0, None)
    assert line["seconds"] >= 0 and (line["tool"], line["schema"]) == ("ficgan-deid", 1)
    assert told["deep/none.png"]["faces"] == 0 and told["f.mp4"]["faces"] == 2
    assert told["damaged.jpg"]["state"] == "failed" and "damaged.jpg" in told["damaged.jpg"]["error"]
    assert len({line["options"] for line in told.values()}) == 1 and line["options"] != "3"


def test_an_equal_run_goes_on_and_another_does_not(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "in/a.png")
    call(tmp_path / "in", "-o", tmp_path / "out", "--seed", 3)
    photo(tmp_path / "in/b.png")
    summary, _ = call(tmp_path / "in", "-o", tmp_path / "out", "--skip-existing", "--jobs", 1, "--seed", 4)
    assert (summary["written"], summary["skipped"], summary["failed"]) == (1, 1, 0)
    assert [line["output"] for line in lines(tmp_path / "out")] == ["a.png", "b.png"]
    loaded = engine.loaded
    summary, _ = call(tmp_path / "in", "-o", tmp_path / "out", "--skip-existing")
    assert (summary["written"], summary["skipped"]) == (0, 2) and engine.loaded == loaded
    summary, said = call(tmp_path / "in", "-o", tmp_path / "out", "--skip-existing", "--mode", "blur", code=3)
    assert summary["failed"] == 2 and "other options" in said and "--overwrite" in said
    # Also where nothing else tells: a result without a side-car of its own.
    (tmp_path / "out/a.png.json").unlink()
    _, said = call(tmp_path / "in", "-o", tmp_path / "out", "--skip-existing", "--layer", 2, "--no-sidecar")
    assert "other options" not in said, "without side-cars there is no manifest to go by"


def draws(engine: StandIn) -> None:
    """The engine's new faces tell its seed, as those of the bank do."""

    def tell(result: Result) -> None:
        face = {"action": "generated", "members_digest": f"of {engine.settings['seed']}"}
        result.audit["faces"] = [face for _ in result.faces]

    engine._change = tell


def test_results_of_another_seed_are_no_part_of_a_run(tmp_path: Path, engine: StandIn) -> None:
    """A short seed is recorded nowhere, not even as a hash, so one finished photo is drawn again."""
    draws(engine)
    photo(tmp_path / "in/0.png", GREEN)  # no face: it tells nothing
    for name in ("a.png", "b.png"):
        photo(tmp_path / "in" / name)
    for out in ((), ("-o", tmp_path / "out")):  # without a folder there is no manifest
        run = [tmp_path / "in", *out, "--jobs", 1]
        call(*run, "--seed", 3)
        drawn = len(engine.keys)
        summary, _ = call(*run, "--skip-existing", "--seed", 3)
        assert (summary["failed"], len(engine.keys)) == (0, drawn + 1)
        summary, said = call(*run, "--skip-existing", "--seed", 4, code=3)
        assert (summary["failed"], summary["written"]) == (3, 0) and said.count("another seed; use --overwrite") == 3
        loaded = engine.loaded
        assert call(*run, "--skip-existing")[0]["failed"] == 0 and engine.loaded == loaded  # any seed will do
        _, said = call(*run, "--skip-existing", "--k", 9, code=3)
        assert said.count("other options") == 3
        assert call(*run, "--overwrite")[0]["written"] == 3
        _, said = call(*run, "--skip-existing", "--seed", 3, code=3)
        assert said.count("made without a seed") == 3


def test_films_tell_a_long_seed_only(tmp_path: Path, engine: StandIn) -> None:
    run = [film(tmp_path / "f.mp4"), "-o", tmp_path / "out"]
    engine.film, engine.seed_commitment = replace(engine.film, account={"seed_commitment": "of 3"}), "of 3"
    call(*run, "--seed", 3)
    assert call(*run, "--seed", 3, "--skip-existing")[0]["failed"] == 0
    engine.seed_commitment = "of 4"
    assert "another seed" in call(*run, "--seed", 4, "--skip-existing", code=3)[1]
    engine.film, engine.seed_commitment = replace(engine.film, account={"seed_commitment": None}), None
    call(*run, "--seed", 5, "--overwrite")
    assert "not recorded" in call(*run, "--seed", 6, "--skip-existing")[1]


def test_what_no_work_begins_on_is_told_and_written_down(tmp_path: Path, engine: StandIn) -> None:
    folder, out, long = tmp_path / "in", tmp_path / "out", "x" * 247 + ".png"
    photo(folder / "a.png")
    photo(folder / "same.bmp")
    photo(folder / "same.gif")
    photo(folder / long)
    photo(tmp_path / "some.jpg").rename(folder / "photo.mp4")
    photo(tmp_path / "some.png").rename(folder / "still.mkv")
    photo(tmp_path / "some.gif").rename(folder / "still.avi")
    photo(tmp_path / "two.gif", save_all=True, append_images=[Image.new("RGB", (48, 32))]).rename(folder / "moves.mov")
    for name, head in {
        "film.jpg": b"\0\0\0\x20ftypisom",
        "film.png": b"\x1aE\xdf\xa3",
        "film.webp": b"RIFF\0\0\0\0AVI ",
        "old.tif": b"\0\0\0\x08wide",
        "raw.NEF": b"II*\0",
        "deep/scan.pdf": b"%PDF",
        "notes.txt": b"x",
        "._raw.nef": b"",
        "stream.mjpeg": b"\xff\xd8\xff",
    }.items():
        film(folder / name, head + bytes(200))
    (folder / "link.jpg").symlink_to("nowhere")
    os.mkfifo(folder / "pipe.jpg")
    said = {
        "same.bmp": "both become",
        "same.gif": "both become",
        long: "1 bytes too long",
        "photo.mp4": "is a photo",
        "still.mkv": "is a photo",
        "still.avi": "is a photo",
        "film.jpg": "is a film",
        "film.png": "is a film",
        "film.webp": "is a film",
        "old.tif": "is a film",
        "raw.NEF": ".nef files are not read",
        "deep/scan.pdf": ".pdf files are not read",
        "link.jpg": "a link to nothing",
        "pipe.jpg": "not a file",
    }
    for words in ([], ["--skip-existing"]):
        summary, heard = call(folder, "-o", out, *words, code=3)
        assert summary["failed"] == len(said) and summary["inputs"] == len(said) + 3 and engine.loaded == 1
        told = {line["input"]: line for line in lines(out)}
        for name, why in said.items():
            line = told[str(folder / name)]
            assert line["state"] == "failed" and why in line["error"] and line["error"] in heard
    assert files(out) == {f"{name}{end}" for name in ("a.png", "moves.mov", "stream.mp4") for end in ("", ".json")}
    shown = CliRunner().invoke(report, [str(out), "--no-check"])
    assert shown.exit_code == 3 and json.loads(shown.stdout)["undone"] == len(said), shown.output
    page = unescape((out / "report.html").read_text())
    assert all(str(folder / name) in page for name in said)
    for name in ("same.bmp", "film.jpg"):  # what is mended is no longer named
        (folder / name).unlink()
    photo(folder / "film.jpg")
    call(folder, "-o", out, "--skip-existing", code=3)
    again = CliRunner().invoke(report, [str(out), "--no-check", "--overwrite"])
    assert json.loads(again.stdout)["undone"] == len(said) - 3


def test_a_manifest_that_was_cut_off_is_continued_and_a_strangers_stays(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "in/a.png")
    call(tmp_path / "in", "-o", tmp_path / "out")
    with (tmp_path / "out" / MANIFEST).open("ab") as file:
        file.write(b'{"tool": "ficg')
    photo(tmp_path / "in/b.png")
    call(tmp_path / "in", "-o", tmp_path / "out", "--skip-existing")
    whole = (tmp_path / "out" / MANIFEST).read_bytes().splitlines()
    assert [json.loads(line)["output"] for line in (whole[0], whole[2])] == ["a.png", "b.png"] and len(whole) == 3
    (tmp_path / "other").mkdir()
    strange = tmp_path / "other" / MANIFEST
    for data in (b"a list of mine\n", b'{"tool": "mine"}\n', b"[1]\n"):
        strange.write_bytes(data)
        _, said = call(tmp_path / "in", "-o", tmp_path / "other", "--overwrite")
        assert strange.read_bytes() == data and "another program's" in said
    strange.unlink()
    strange.symlink_to(tmp_path / "elsewhere")
    call(tmp_path / "in", "-o", tmp_path / "other", "--overwrite")
    assert not (tmp_path / "elsewhere").exists()


def test_there_is_none_beside_inputs_without_side_cars_and_in_dry_runs(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "a.png")
    call(tmp_path / "a.png", "-o", tmp_path / "out", "--dry-run")
    call(tmp_path / "a.png", "-o", tmp_path / "out", "--no-sidecar")
    call(tmp_path / "a.png")
    call(tmp_path / "a.png", "-o", tmp_path / "one.png")
    assert not list(tmp_path.rglob(MANIFEST))
    RunManifest().add(tmp_path / "x.png", state="written")


def test_inputs_come_from_a_list(tmp_path: Path, engine: StandIn) -> None:
    named = [photo(tmp_path / f"in/{name}.png") for name in ("a", "b b", "ü")]
    photo(tmp_path / "in/d.png")
    (tmp_path / "list.txt").write_text("\n".join(map(str, named)) + "\n\n")
    call("--files-from", tmp_path / "list.txt", "-o", tmp_path / "out")
    assert files(tmp_path / "out") == {f"{name}.png{end}" for name in ("a", "b b", "ü") for end in ("", ".json")}
    more = [str(tmp_path / "in/d.png"), "--files-from", "-", "-o", str(tmp_path / "two")]
    done = CliRunner().invoke(command.deid, more, input=f"{named[0]}\r\n")
    assert done.exit_code == 0 and json.loads(done.stdout)["written"] == 2
    _, said = call("--files-from", tmp_path / "none.txt", "-o", tmp_path / "out", code=2)
    assert "none.txt" in said
    (tmp_path / "list.txt").write_text("\n")
    _, said = call("--files-from", tmp_path / "list.txt", "-o", tmp_path / "out", code=2)
    assert "nothing to work on" in said
