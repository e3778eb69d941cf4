"""`ficgan-deid` on photos, around a stand-in for the model: files, side-cars, modes, options, exit codes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from stand_ins import certificate
from standin import BLUE, GREEN, Result, StandIn, call, files, film, photo

from ficgan.cli._options import read_background
from ficgan.deidentify import Deidentifier
from ficgan.errors import UsageError
from ficgan.files import file_digest
from ficgan.options import GROUPS
from ficgan.policy import Policy

# -- which file becomes which -----------------------------------------------------------------------------------------


def test_beside_the_input_with_a_sidecar(tmp_path: Path, engine: StandIn) -> None:
    source = photo(tmp_path / "me.png")
    before = source.read_bytes()
    summary, _ = call(source, "--k", 50, "--seed", 424242)
    assert summary["inputs"] == summary["written"] == summary["faces"] == 1 and summary["failed"] == 0
    assert files(tmp_path) == {"me.png", "me_anonymized.png", "me_anonymized.png.json"}
    assert source.read_bytes() == before
    with Image.open(tmp_path / "me_anonymized.png") as image:
        pixels = np.array(image)
    assert (pixels[8:20, 8:20] == (255, 0, 0)).all()
    pixels[8:20, 8:20] = BLUE
    assert (pixels == BLUE).all()
    text = (tmp_path / "me_anonymized.png.json").read_text()
    record = json.loads(text)
    assert record["tool"] == "ficgan-deid" and record["k"] == 50 and record["synthetic_tag"] is True
    assert record["output"] == "me_anonymized.png" and "424242" not in text
    assert record["sha256"] == hashlib.sha256((tmp_path / "me_anonymized.png").read_bytes()).hexdigest()
    call(source, "-o", source, "--overwrite")
    answer = json.loads((tmp_path / "me.png.json").read_text())
    assert answer["input_sha256"] == hashlib.sha256(before).hexdigest() != answer["sha256"]


def test_tree_is_mirrored_and_what_is_left_out_is_counted(tmp_path: Path, engine: StandIn) -> None:
    tree = tmp_path / "in"
    photo(tree / "a.jpg")
    photo(tree / "deep/er/b.PNG")
    (tree / "notes.txt").write_text("x")
    (tree / "._a.jpg").write_bytes(b"resource fork")
    photo(tree / ".hidden/c.png")
    photo(tmp_path / "far/d.png")
    (tree / "link").symlink_to(tmp_path / "far")
    (tree / "same.jpg").symlink_to(tree / "a.jpg")
    summary, said = call(tree, "-o", tmp_path / "out")
    assert files(tmp_path / "out") == {"a.jpg", "a.jpg.json", "deep/er/b.PNG", "deep/er/b.PNG.json"}
    assert (summary["inputs"], summary["written"], summary["skipped"]) == (2, 2, 5)
    for reason in ("2 skipped: neither photos nor films", "2 skipped: folders", "1 skipped: named twice"):
        assert reason in said
    assert call(tree / "link", "-o", tmp_path / "out2")[0]["written"] == 1


def test_output_may_be_a_file(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "a.png")
    call(tmp_path / "a.png", "-o", tmp_path / "b.webp")
    with Image.open(tmp_path / "b.webp") as image:
        assert image.format == "WEBP"
    for folder in (f"{tmp_path}/c.png/", tmp_path / "run.v2"):
        call(tmp_path / "a.png", "-o", folder)
        assert Path(folder, "a.png").is_file()


def test_in_place_needs_overwrite(tmp_path: Path, engine: StandIn) -> None:
    source = photo(tmp_path / "a.png")
    before = source.read_bytes()
    call(tmp_path, "-o", tmp_path, code=2)
    call(source, "-o", source, code=2)
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
    assert not (tmp_path / "out").exists() and engine.loaded == 0
    photo(tmp_path / "x/other.png")  # a collision concerns its two files only
    summary, said = call(tmp_path / "x", "-o", tmp_path / "rest", code=3)
    assert (summary["written"], summary["failed"]) == (1, 2) and said.count("would both become") == 2
    assert files(tmp_path / "rest") == {"other.png", "other.png.json"}
    engine.keys.clear()
    call(tmp_path / "y/a.png", tmp_path / "y/a.png", tmp_path / "y", "-o", tmp_path / "out")  # one file, thrice named
    assert len(engine.keys) == 1
    photo(tmp_path / "in/x/b.png")
    second = photo(tmp_path / "new/x/b.png", GREEN)  # becomes new/b.png, but new/x/b.png is where the first would go
    before = second.read_bytes()
    _, said = call(tmp_path / "in", second, "-o", tmp_path / "new", "--overwrite", code=3)
    assert "would overwrite the input" in said
    assert second.read_bytes() == before and (tmp_path / "new/b.png").exists()


def test_results_are_no_inputs(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "a.png")
    call(tmp_path)
    assert call(tmp_path, "-o", tmp_path / "1")[0]["skipped"] == 1
    (tmp_path / "a_anonymized.png.json").unlink()
    assert call(tmp_path, "-o", tmp_path / "2")[0]["skipped"] == 2  # by its name, and what is in 1
    assert call(tmp_path / "a_anonymized.png", "-o", tmp_path / "3")[0]["written"] == 1
    photo(tmp_path / "x/a.png")
    for _ in range(2):  # an output folder inside the input
        summary, _ = call(tmp_path / "x", "-o", tmp_path / "x/out", "--overwrite", "--no-sidecar")
        assert (summary["inputs"], summary["skipped"]) == (1, 0)
    assert files(tmp_path / "x/out") == {"a.png"}


# -- what became of a file --------------------------------------------------------------------------------------------


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
    summary, _ = call(tmp_path, "--overwrite")
    assert (summary["written"], summary["skipped"]) == (2, 2) and files(tmp_path) == set(first)


@pytest.mark.parametrize("put", ["the source", "another byte"])
def test_a_rerun_takes_no_other_file_for_its_result(tmp_path: Path, engine: StandIn, put: str) -> None:
    source, result = photo(tmp_path / "in/a.png"), tmp_path / "out/a.png"
    run = (tmp_path / "in", "-o", tmp_path / "out")
    call(*run)
    data = source.read_bytes() if put == "the source" else result.read_bytes() + b"\0"
    result.write_bytes(data)
    summary, said = call(*run, "--skip-existing", code=3)
    assert (summary["skipped"], summary["failed"]) == (0, 1) and "out/a.png" in said
    assert result.read_bytes() == data
    result.unlink()  # a result that is gone is made again
    assert call(*run, "--skip-existing")[0]["written"] == 1


def test_a_damaged_side_car_and_a_file_in_the_way_fail_alone_and_before_the_work(
    tmp_path: Path, engine: StandIn
) -> None:
    for name in ("a.png", "b/b.png"):
        photo(tmp_path / "in" / name)
    run = (tmp_path / "in", "-o", tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/b").touch()
    for words in (["--dry-run"], []):
        assert call(*run, *words, code=3)[0]["failed"] == 1
    side = tmp_path / "out/a.png.json"
    side.write_text(json.dumps({**json.loads(side.read_text()), "options": "x"}))
    summary, _ = call(*run, "--skip-existing", code=3)
    assert (summary["skipped"], summary["failed"]) == (1, 1)


def test_failures_do_not_stop_the_others(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "in/a.png")
    (tmp_path / "in/broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 broken")
    (tmp_path / "in/empty.png").touch()
    photo(tmp_path / "in/z.png")
    (tmp_path / "text.txt").write_text("named, so it must be an image")
    summary, said = call(tmp_path / "in", tmp_path / "text.txt", tmp_path / "none.jpg", "-o", tmp_path / "out", code=3)
    assert (summary["inputs"], summary["written"], summary["failed"]) == (6, 2, 4) and said.count("Error: ") == 4
    assert files(tmp_path / "out") == {"a.png", "a.png.json", "z.png", "z.png.json"}


def test_no_face_and_unmet_checks(tmp_path: Path, engine: StandIn) -> None:
    green, source = photo(tmp_path / "green.png", GREEN), photo(tmp_path / "a.png")
    summary, said = call(green, "-o", tmp_path / "out")
    assert (summary["written"], summary["no_face"], summary["faces"]) == (1, 1, 0) and "no face" in said
    with Image.open(tmp_path / "out/green.png") as image:
        assert (np.asarray(image) == GREEN).all() and "xmp" not in image.info
    summary, _ = call(green, "-o", tmp_path / "required", "--require-face", code=3)
    assert (summary["written"], summary["failed"]) == (0, 1) and not (tmp_path / "required").exists()
    engine._change = lambda result: setattr(result, "uncovered", 1)
    summary, _ = call(source, "-o", tmp_path / "x", code=3)
    assert (summary["uncovered"], summary["written"]) == (1, 0) and not (tmp_path / "x").exists()
    engine._change = lambda result: setattr(result, "reidentified", 2)
    summary, said = call(source, "-o", tmp_path / "y", code=3)
    assert (summary["reidentified"], summary["written"]) == (2, 1) and "2 faces still recognised" in said


def test_a_result_and_its_sidecar_are_both_there_or_neither(tmp_path: Path, engine: StandIn) -> None:
    source, out = photo(tmp_path / "a.png"), tmp_path / "out"
    out.mkdir()
    (out / "a.png.json").write_text("mine")  # a stranger's
    call(source, "-o", out, code=3)
    call(source, "-o", out, "--overwrite", "--no-sidecar")
    assert (out / "a.png.json").read_text() == "mine"
    (out / "a.png.json").unlink()
    call(source, "-o", out, "--overwrite")
    before = {path: path.read_bytes() for path in out.iterdir() if path.name != "manifest.jsonl"}
    engine._change = lambda result: result.audit.update(model=object())  # cannot be written
    summary, _ = call(source, "-o", out, "--overwrite", code=3)
    assert summary["written"] == 0 and {path: path.read_bytes() for path in before} == before
    call(source, code=3)
    assert files(out) == {"a.png", "a.png.json"} and not list(tmp_path.glob("a_*"))
    engine._change = lambda result: None
    call(source, "-o", out, "--overwrite", "--no-sidecar")
    assert files(out) == {"a.png"}, "no stale side-car stays"


def test_nothing_to_do(tmp_path: Path, engine: StandIn) -> None:
    assert "no photo or film" in call(tmp_path, code=2)[1]
    (tmp_path / "notes.txt").write_text("x")
    assert "no photo or film" in call(tmp_path, "-o", tmp_path / "out", code=2)[1]
    assert "no such file" in call(tmp_path / "lost.jpg", "-o", tmp_path / "out", code=2)[1]
    assert "cannot be made" in call(photo(tmp_path / "a.png"), "-o", tmp_path / "notes.txt/out", code=1)[1]
    summary, said = call(tmp_path / "a.png", "-o", tmp_path / "out", "--dry-run")
    assert summary["dry_run"] and (summary["inputs"], summary["written"]) == (1, 0) and "out/a.png" in said
    assert engine.loaded == 0 and not (tmp_path / "out").exists()


def test_threads_give_the_same_files(tmp_path: Path, engine: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
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
        summary, said = call(tmp_path / "in", "-o", tmp_path / str(jobs), "--progress", "jsonl", code=3)
        lines = {line.replace(f"/{jobs}/", "/") for line in said.splitlines() if "level" in line}
        content = {name: (tmp_path / str(jobs) / name).read_bytes() for name in files(tmp_path / str(jobs))}
        del summary["seconds"]
        outcomes[jobs] = (summary, lines, content)
    assert outcomes[1] == outcomes[3] and outcomes[1][0]["written"] == 11


def test_linked_photos_are_worked_on_one_by_one(tmp_path: Path, engine: StandIn) -> None:
    for number in range(4):
        photo(tmp_path / f"in/{number}.png", (number, 60, 200))
    at_work, most = threading.Semaphore(9), []

    def overlap(result: Any) -> None:
        with at_work:
            most.append(at_work._value)
            time.sleep(0.02)

    engine._change = overlap
    call(tmp_path / "in", "-o", tmp_path / "out", "--link", "job", "--jobs", 4)
    assert engine.settings["link"] == "job" and most == [8] * 4


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("action", "tagged"), [("generated", True), ("retried", True), ("masked", False)])
def test_only_synthesised_faces_are_tagged(tmp_path: Path, engine: StandIn, action: str, tagged: bool) -> None:
    source = photo(tmp_path / "a.jpg")
    engine._change = lambda result: setattr(result.faces[0], "action", action)
    call(source)
    assert (b"DigitalSourceType" in (tmp_path / "a_anonymized.jpg").read_bytes()) == tagged
    call(source, "--no-tag", "--overwrite")
    assert b"DigitalSourceType" not in (tmp_path / "a_anonymized.jpg").read_bytes()


def test_options_reach_the_engine(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "a.png")
    photo(tmp_path / "star.png", GREEN)
    options = (
        "--k 77 --layer 5-8 --alpha 0.3 --diversity 0.4 --seed 9 --attributes Female,-Eyeglasses --add Smiling=0.7"
        " --keep-kind gender,age --add Young=-1 -t 0.25 --mask-scale 1.2 --detector dlib --recognizer onnx:x"
        " --verify off --device cuda:1 --precision float16 --checkpoint c --bank b --thorough --fallback black"
        " --min-score 0.3 --strict --keep-box 0,0,9,9"
    )
    photo(tmp_path / "friends/1.png")
    photo(tmp_path / "friends/2.jpg")
    (tmp_path / "friends/list.txt").write_text("x")
    call(tmp_path / "a.png", *options.split(), "--exemplar", tmp_path / "star.png", "--keep", tmp_path / "friends")
    given = dict(engine.settings)
    known = {field.name for group in (*GROUPS, Policy) for field in dataclasses.fields(group)}
    assert set(given) <= known
    assert given.pop("exemplar").shape == (32, 48, 3)
    assert [Path(name).name for name in given.pop("keep")] == ["1.png", "2.jpg"] and given.pop("only") == {}
    wanted = {"k": 77, "layer": 0, "band": "5-8", "alpha": 0.3, "psi": 0.4, "seed": 9, "mode": "ficgan"}
    wanted |= {"attributes": "Female,-Eyeglasses", "add": ("Smiling=0.7", "Young=-1"), "threshold": 0.25}
    wanted |= {"mask_scale": 1.2, "detector": "dlib", "recognizer": ("onnx:x",), "verify": False, "device": "cuda:1"}
    wanted |= {"checkpoint": "c", "bank": "b", "precision": "float16", "fallback": "black", "min_score": 0.3}
    wanted |= {"strict": True, "boxes": ((0, 0, 9, 9),), "thorough": True, "scale": None, "link": "file"}
    wanted |= {"cover_also": ()}
    assert given == wanted | {"keep_kind": "gender,age"}
    with pytest.raises(UsageError, match="did you mean threshold"):
        Deidentifier.from_pretrained(treshold=0.3)


def test_modes_go_through_with_their_parameters_and_warn(tmp_path: Path, engine: StandIn) -> None:
    sources = photo(tmp_path / "a.png"), photo(tmp_path / "b.png")
    _, said = call(*sources, "-o", tmp_path / "out", "--mode", "dp-pix:eps=1")
    assert engine.settings["mode"] == "dp-pix:eps=1" and "background" not in engine.settings
    assert said.count("Warning: faces stay recognisable under dp-pix") == 1
    assert call(*sources, "-o", tmp_path / "m", "--mode", "mosaic")[1].count("reversed") == 1
    assert "reversed" not in call(*sources, "-o", tmp_path / "s", "--mode", "solid")[1]
    call(film(tmp_path / "a.mp4"), "-o", tmp_path / "out", "--mode", "eye-mask")
    assert engine.films[0]["settings"].mode == "eye-mask"


WRONG = """--k 1|--k x|--layer -1|--layer 8-|--layer 5-3|--layer 0-3|--alpha nan|--diversity -1|--diversity much|\
--add Smiling|--add Smiling=x|-t 2|--mask-scale 0|--mask-scale inf|--scale 640|--scale 0x10|\
--scale 640x640 --thorough|--keep-kind race|--keep-kind none,age|--max-megapixels nan|--exemplar missing.png|\
--progress loud|--unknown|-o out.bmp|-o file|--link job --skip-existing|--sign a.png nowhere.pem|\
--mode dp-pxi|--mode dp-pix:esp=1|--mode k-same-pixel|--mode average-face --background /nowhere|\
--mode blur --background .|--mode solid --k 30 --attributes Female|--mode dp-pix:eps=1 --layer 0|\
--mode blur --exemplar x.png|--mode external:command=true --sandbox|--link job --cluster local"""


@pytest.mark.parametrize("options", WRONG.split("|"))
def test_usage_errors(tmp_path: Path, engine: StandIn, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    photo(tmp_path / "a.png")
    (tmp_path / "file").write_text("x")
    _, said = call("a.png", *options.split(), code=2)
    assert said.splitlines()[-1].startswith("Error: ") and engine.loaded == 0
    assert files(tmp_path) == {"a.png", "file"}


def background(folder: Path, people: int) -> Path:
    rng = np.random.default_rng(0)
    for person in range(people):
        (folder / f"p{person}").mkdir(parents=True)
        for number in range(2):
            pixels = rng.integers(0, 256, (40, 44, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"p{person}" / f"{number}.png")
    return folder


def test_the_background_is_read_as_aligned_faces(tmp_path: Path, engine: StandIn) -> None:
    place = background(tmp_path / "bg", 3)
    call(photo(tmp_path / "a.png"), "-o", tmp_path / "out", "--mode", "k-same-pixel:k=3", "--background", place)
    given = engine.settings["background"]
    assert given.images.shape == (6, 40, 40, 3) and given.people.tolist() == [0, 0, 1, 1, 2, 2]
    with Image.open(place / "p1" / "0.png") as source:
        np.testing.assert_array_equal(given.images[2], np.asarray(source.crop((2, 0, 42, 40))))
    rows = ["file,person", "p0/0.png,7", "p0/1.png,8", "p1/0.png,7", "p1/1.png,", "p2/0.png,", "p2/1.png,"]
    (place / "labels.csv").write_text("\n".join(rows) + "\n")
    labelled = read_background(str(place))
    assert len(labelled) == 3 and labelled.people is not None
    assert labelled.people[0] == labelled.people[2] != labelled.people[1]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="--background empty"):
        read_background(str(tmp_path / "empty"))


def test_sign(tmp_path: Path, engine: StandIn) -> None:
    c2pa = pytest.importorskip("c2pa")
    photo(tmp_path / "in/a.png")
    photo(tmp_path / "in/star.png", GREEN)
    (tmp_path / "in/b.mkv").write_bytes(b"\x1aE\xdf\xa3 a film")
    summary, said = call(tmp_path / "in", "-o", tmp_path / "out", "--sign", *certificate(tmp_path), code=3)
    assert (summary["written"], summary["failed"]) == (2, 1) and "b.mkv" in said
    assert c2pa.Reader(str(tmp_path / "out/a.png")).get_validation_state() == "Valid"
    assert (tmp_path / "out/star.png").read_bytes() == (tmp_path / "in/star.png").read_bytes(), "no face, no signature"
    record = json.loads((tmp_path / "out/a.png.json").read_text())
    assert record["sha256"] == file_digest(tmp_path / "out/a.png")
    assert str(tmp_path) not in (tmp_path / "out/a.png.json").read_text()
