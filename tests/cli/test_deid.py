"""`ficgan-deid` around a stand-in for the model: files, side-cars, exit codes."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from standin import BLUE, GREEN, Result, StandIn, call, files, photo


def test_beside_the_input(tmp_path: Path, engine: StandIn) -> None:
    source = photo(tmp_path / "me.png")
    before = source.read_bytes()
    summary, _ = call(source)
    assert summary["inputs"] == summary["written"] == summary["faces"] == 1 and summary["failed"] == 0
    assert files(tmp_path) == {"me.png", "me_anonymized.png", "me_anonymized.png.json"}
    assert source.read_bytes() == before
    with Image.open(tmp_path / "me_anonymized.png") as image:
        pixels = np.asarray(image)
    assert (pixels[8:20, 8:20] == (255, 0, 0)).all()
    pixels = pixels.copy()
    pixels[8:20, 8:20] = BLUE
    assert (pixels == BLUE).all()


def test_sidecar(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "me.png")
    call(tmp_path / "me.png", "--k", 50, "--seed", 424242)
    text = (tmp_path / "me_anonymized.png.json").read_text()
    record = json.loads(text)
    assert record["tool"] == "ficgan-deid" and record["k"] == 50 and record["synthetic_tag"] is True
    assert record["output"] == "me_anonymized.png"
    assert record["sha256"] == hashlib.sha256((tmp_path / "me_anonymized.png").read_bytes()).hexdigest()
    assert "424242" not in text
    call(tmp_path / "me.png", "-o", tmp_path / "out", "--no-sidecar")
    assert files(tmp_path / "out") == {"me.png"}


def test_tree_is_mirrored_and_other_files_are_counted(tmp_path: Path, engine: StandIn) -> None:
    tree = tmp_path / "in"
    photo(tree / "a.jpg")
    photo(tree / "deep/er/b.PNG")
    (tree / "notes.txt").write_text("x")
    (tree / "._a.jpg").write_bytes(b"resource fork")
    (tree / "song.mp3").write_bytes(b"sound")
    summary, said = call(tree, "-o", tmp_path / "out")
    assert files(tmp_path / "out") == {"a.jpg", "a.jpg.json", "deep/er/b.PNG", "deep/er/b.PNG.json"}
    assert (summary["inputs"], summary["written"], summary["skipped"]) == (2, 2, 3)
    assert "3 files skipped: neither photos nor films" in said
    summary, _ = call(tree, "-o", tmp_path / "flat", "--no-recursive")
    assert files(tmp_path / "flat") == {"a.jpg", "a.jpg.json"}


def test_output_may_be_a_file(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "a.png")
    call(tmp_path / "a.png", "-o", tmp_path / "b.webp")
    with Image.open(tmp_path / "b.webp") as image:
        assert image.format == "WEBP"
    call(tmp_path / "a.png", "-o", f"{tmp_path}/c.png/")
    assert (tmp_path / "c.png/a.png").is_file()
    call(tmp_path / "a.png", "-o", tmp_path / "run.v2")
    assert (tmp_path / "run.v2/a.png").is_file()


def test_a_rerun_leaves_results_alone(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "a.png")
    photo(tmp_path / "b.jpg")
    call(tmp_path)
    first = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    summary, said = call(tmp_path, code=3)
    assert (summary["inputs"], summary["failed"], summary["skipped"]) == (2, 2, 2) and "exists already" in said
    assert "--skip-existing" in said and engine.loaded == 1, "no model is loaded for nothing"
    photo(tmp_path / "c.png", GREEN)
    summary, said = call(tmp_path, "--skip-existing")  # what finishes a run that Ctrl-C ended
    assert (summary["written"], summary["failed"], summary["skipped"]) == (1, 0, 4) and "Error" not in said
    for name in ("c.png", "c_anonymized.png", "c_anonymized.png.json"):
        (tmp_path / name).unlink()
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == first
    photo(tmp_path / "a.png", GREEN)  # another picture under the same name: its result is not there
    (tmp_path / "b_anonymized.jpg.json").unlink()
    summary, said = call(tmp_path, "--skip-existing", code=3)
    assert summary["failed"] == 2 and "made of another file" in said and "its side-car does not" in said
    call(tmp_path, "--skip-existing", "--overwrite", code=2)
    photo(tmp_path / "a.png")
    summary, _ = call(tmp_path, "--overwrite")
    assert (summary["written"], summary["skipped"]) == (2, 2) and files(tmp_path) == set(first)


@pytest.mark.parametrize("put", ["the source", "another byte"])
def test_a_rerun_takes_no_other_file_for_its_result(tmp_path: Path, engine: StandIn, put: str) -> None:
    source, result = photo(tmp_path / "in/a.png"), tmp_path / "out/a.png"
    call(tmp_path / "in", "-o", tmp_path / "out")
    data = source.read_bytes() if put == "the source" else result.read_bytes() + b"\0"
    result.write_bytes(data)
    summary, said = call(tmp_path / "in", "-o", tmp_path / "out", "--skip-existing", code=3)
    assert (summary["skipped"], summary["failed"]) == (0, 1) and "out/a.png" in said
    assert result.read_bytes() == data
    result.unlink()  # a result that is gone is made again
    assert call(tmp_path / "in", "-o", tmp_path / "out", "--skip-existing")[0]["written"] == 1


def test_an_output_folder_inside_the_input_is_not_an_input(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "a.png")
    for _ in range(2):
        summary, _ = call(tmp_path, "-o", tmp_path / "out", "--overwrite", "--no-sidecar")
        assert (summary["inputs"], summary["skipped"]) == (1, 0)
    assert files(tmp_path / "out") == {"a.png"}


def test_in_place_needs_overwrite(tmp_path: Path, engine: StandIn) -> None:
    source = photo(tmp_path / "a.png")
    before = source.read_bytes()
    _, said = call(tmp_path, "-o", tmp_path, code=2)
    assert "--overwrite" in said and source.read_bytes() == before
    _, said = call(source, "-o", source, code=2)
    (tmp_path / "link.png").symlink_to(source)
    call(source, "-o", tmp_path / "link.png", code=2)
    assert source.read_bytes() == before
    (tmp_path / "link.png").unlink()
    call(tmp_path, "-o", tmp_path, "--overwrite")
    assert source.read_bytes() != before
    assert call(tmp_path, "-o", tmp_path, "--overwrite")[0]["skipped"] == 1


def test_collisions_are_found_before_any_work(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "x/a.png")
    photo(tmp_path / "y/a.png")
    _, said = call(tmp_path / "x/a.png", tmp_path / "y/a.png", "-o", tmp_path / "out", code=2)
    assert "x/a.png" in said and "y/a.png" in said
    photo(tmp_path / "x/a.bmp")
    call(tmp_path / "x", "-o", tmp_path / "out", code=2)  # both would be a.png
    call(tmp_path / "x/a.png", tmp_path / "x/a.bmp", "-o", tmp_path / "one.png", code=2)
    assert not (tmp_path / "out").exists() and engine.loaded == 0
    photo(tmp_path / "x/other.png")  # a collision concerns its two files only
    summary, said = call(tmp_path / "x", "-o", tmp_path / "rest", code=3)
    assert (summary["written"], summary["failed"]) == (1, 2) and files(tmp_path / "rest") == {
        "other.png",
        "other.png.json",
    }
    assert said.count("would both become") == 2
    engine.keys.clear()
    call(tmp_path / "y/a.png", tmp_path / "y/a.png", tmp_path / "y", "-o", tmp_path / "out")  # one file, thrice named
    assert len(engine.keys) == 1


def test_an_output_never_replaces_another_input(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "in/x/a.png")
    second = photo(tmp_path / "out/x/a.png", GREEN)  # becomes out/a.png, but out/x/a.png is where the first would go
    before = second.read_bytes()
    _, said = call(tmp_path / "in", second, "-o", tmp_path / "out", "--overwrite", code=3)
    assert "would overwrite the input" in said
    assert second.read_bytes() == before and (tmp_path / "out/a.png").exists()


def test_failures_do_not_stop_the_others(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "in/a.png")
    (tmp_path / "in/broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 broken")
    (tmp_path / "in/empty.png").touch()
    photo(tmp_path / "in/z.png")
    (tmp_path / "text.txt").write_text("named, so it must be an image")
    summary, said = call(tmp_path / "in", tmp_path / "text.txt", tmp_path / "none.jpg", "-o", tmp_path / "out", code=3)
    assert (summary["inputs"], summary["written"], summary["failed"]) == (6, 2, 4)
    assert said.count("Error: ") == 4
    assert files(tmp_path / "out") == {"a.png", "a.png.json", "z.png", "z.png.json"}


def test_no_face(tmp_path: Path, engine: StandIn) -> None:
    source = photo(tmp_path / "green.png", GREEN)
    summary, said = call(source, "-o", tmp_path / "out")
    assert (summary["written"], summary["no_face"], summary["faces"]) == (1, 1, 0) and "no face" in said
    with Image.open(tmp_path / "out/green.png") as image:
        assert (np.asarray(image) == GREEN).all() and "xmp" not in image.info
    summary, said = call(source, "-o", tmp_path / "required", "--require-face", code=3)
    assert (summary["written"], summary["failed"]) == (0, 1) and not (tmp_path / "required").exists()


def test_unmet_checks(tmp_path: Path, engine: StandIn) -> None:
    source = photo(tmp_path / "a.png")
    engine._change = lambda result: setattr(result, "uncovered", 1)
    summary, said = call(source, "-o", tmp_path / "x", code=3)
    assert (summary["uncovered"], summary["written"]) == (1, 0) and not (tmp_path / "x").exists()
    engine._change = lambda result: setattr(result, "reidentified", 2)
    summary, said = call(source, "-o", tmp_path / "y", code=3)
    assert (summary["reidentified"], summary["written"]) == (2, 1) and "2 faces still recognised" in said


def test_output_below_a_file(tmp_path: Path, engine: StandIn) -> None:
    (tmp_path / "file").write_text("x")
    _, said = call(photo(tmp_path / "a.png"), "-o", tmp_path / "file/out", code=1)
    assert "cannot be made" in said and engine.loaded == 0


def test_a_strangers_sidecar_is_not_overwritten(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "a.png")
    (tmp_path / "a_anonymized.png.json").write_text("mine")
    call(tmp_path / "a.png", code=3)
    assert (tmp_path / "a_anonymized.png.json").read_text() == "mine"
    assert files(tmp_path) == {"a.png", "a_anonymized.png.json"}


def test_an_audit_that_cannot_be_written_takes_its_picture_back(tmp_path: Path, engine: StandIn) -> None:
    engine._change = lambda result: result.audit.update(model=object())
    summary, _ = call(photo(tmp_path / "a.png"), code=3)
    assert summary["written"] == 0 and files(tmp_path) == {"a.png"}


def test_a_named_file_is_never_skipped_for_its_name(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "in/a.png")
    mine = photo(tmp_path / "in/a_anonymized.png", GREEN)
    assert call(tmp_path / "in", "-o", tmp_path / "1")[0]["skipped"] == 1
    summary, _ = call(mine, "-o", tmp_path / "2")
    assert (summary["written"], summary["skipped"]) == (1, 0) and files(tmp_path / "2") >= {"a_anonymized.png"}
    call(tmp_path / "in", mine, "-o", tmp_path / "3")  # named and in a folder as well: named
    assert files(tmp_path / "3") >= {"a.png", "a_anonymized.png"}


def test_what_is_left_out_is_said(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "far/b.png")
    photo(tmp_path / "in/a.png")
    photo(tmp_path / "in/.hidden/c.png")
    (tmp_path / "in/link").symlink_to(tmp_path / "far")
    (tmp_path / "in/same.png").symlink_to(tmp_path / "in/a.png")
    summary, said = call(tmp_path / "in", "-o", tmp_path / "out")
    assert (summary["inputs"], summary["skipped"]) == (1, 3)
    assert "2 folders skipped" in said and "1 file skipped: named twice" in said
    assert call(tmp_path / "in/link", "-o", tmp_path / "out2")[0]["written"] == 1


def test_no_stale_sidecar_stays(tmp_path: Path, engine: StandIn) -> None:
    source = photo(tmp_path / "a.png")
    call(source, "-o", tmp_path / "out")
    call(source, "-o", tmp_path / "out", "--overwrite", "--no-sidecar")
    assert files(tmp_path / "out") == {"a.png"}
    (tmp_path / "out/a.png.json").write_text("mine")
    call(source, "-o", tmp_path / "out", "--overwrite", "--no-sidecar")
    assert (tmp_path / "out/a.png.json").read_text() == "mine"
    (tmp_path / "out/a.png.json").unlink()
    call(source, "-o", tmp_path / "out", "--overwrite")
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    engine._change = lambda result: result.audit.update(model=object())  # cannot be written
    call(source, "-o", tmp_path / "out", "--overwrite", code=3)
    assert {path: path.read_bytes() for path in before if path.name != "manifest.jsonl"} == {
        path: data for path, data in before.items() if path.name != "manifest.jsonl"
    }, "neither the result nor its side-car is replaced"
    assert files(tmp_path / "out") == {"a.png", "a.png.json"}


def test_empty_folder(tmp_path: Path, engine: StandIn) -> None:
    assert "no photo or film" in call(tmp_path, code=2)[1]
    (tmp_path / "notes.txt").write_text("x")
    assert "no photo or film" in call(tmp_path, "-o", tmp_path / "out", code=2)[1]
    assert "no such file" in call(tmp_path / "lost.jpg", "-o", tmp_path / "out", code=2)[1]
    assert engine.loaded == 0 and not (tmp_path / "out").exists()


def test_threads_give_the_same_files_in_the_same_order(
    tmp_path: Path, engine: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        photo(tmp_path / f"in/{number:02}.png", (number * 5, 60, 200 if number % 3 else 40))
    (tmp_path / "in/05.png").write_bytes(b"\x89PNG broken")
    outcomes = {}
    for jobs in (1, 3):
        together = threading.Barrier(jobs)  # passed once the first `jobs` photos are at work at the same time

        def overlap(result: Result, together: threading.Barrier = together, jobs: int = jobs) -> None:
            if len(engine.keys) <= jobs:
                together.wait(60)

        engine._change = overlap
        engine.keys.clear()
        monkeypatch.setattr("ficgan.cli.deid.cpus", lambda jobs=jobs: jobs)
        summary, said = call(tmp_path / "in", "-o", tmp_path / str(jobs), "--progress", "text", code=3)
        lines = [line for line in said.splitlines() if "library" not in line]
        content = {name: (tmp_path / str(jobs) / name).read_bytes() for name in files(tmp_path / str(jobs))}
        del summary["seconds"]
        outcomes[jobs] = (summary, [line.replace(f"/{jobs}/", "/") for line in lines], content)
    assert outcomes[1] == outcomes[3] and outcomes[1][0]["written"] == 11
