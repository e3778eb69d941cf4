"""What the options of `ficgan-deid` do, and which values they refuse."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from stand_ins import certificate
from standin import GREEN, StandIn, call, files, photo

import ficgan.cli.deid as command
from ficgan.deidentify import Deidentifier
from ficgan.errors import FicganError, UsageError
from ficgan.files import file_digest
from ficgan.options import GROUPS
from ficgan.policy import Policy


@pytest.mark.parametrize(
    ("action", "tagged"), [("generated", True), ("retried", True), ("masked", False), ("blurred", False)]
)
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
        " --keep-kind gender,age"
    )
    options += " --add Young=-1 -t 0.25 --mask-scale 1.2 --detector yunet --recognizer onnx:x --no-verify"
    options += " --device cuda:1 --precision float16 --checkpoint c --bank b"
    options += " --thorough --fallback solid --min-score 0.3 --strict --keep-box 0,0,9,9"
    photo(tmp_path / "friends/1.png")
    photo(tmp_path / "friends/2.jpg")
    (tmp_path / "friends/list.txt").write_text("x")
    call(tmp_path / "a.png", *options.split(), "--exemplar", tmp_path / "star.png", "--keep", tmp_path / "friends")
    given = dict(engine.settings)
    assert given.pop("exemplar").shape == (32, 48, 3)
    assert [Path(name).name for name in given.pop("keep")] == ["1.png", "2.jpg"] and given.pop("only") == {}
    assert given == {
        "k": 77,
        "layer": 0,
        "band": "5-8",
        "alpha": 0.3,
        "psi": 0.4,
        "seed": 9,
        "attributes": "Female,-Eyeglasses",
        "add": ("Smiling=0.7", "Young=-1"),
        "mode": "ficgan",
        "threshold": 0.25,
        "mask_scale": 1.2,
        "detector": "yunet",
        "recognizer": ("onnx:x",),
        "verify": False,
        "device": "cuda:1",
        "checkpoint": "c",
        "bank": "b",
        "precision": "float16",
        "fallback": "black",
        "min_score": 0.3,
        "strict": True,
        "boxes": ((0, 0, 9, 9),),
        "thorough": True,
        "scale": None,
        "keep_kind": "gender,age",
        "link": "file",
    }


def test_the_engine_takes_what_the_command_gives(tmp_path: Path, engine: StandIn) -> None:
    call(photo(tmp_path / "a.png"))
    known = {field.name for group in (*GROUPS, Policy) for field in dataclasses.fields(group)}
    assert set(engine.settings) <= known
    assert engine.settings["layer"] == 0, "without --layer a face is hidden as well as it can be"
    with pytest.raises(UsageError, match="did you mean threshold"):
        Deidentifier.from_pretrained(treshold=0.3)


def test_the_key_is_the_picture_not_its_name(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "in/a.png")
    photo(tmp_path / "in/sub/b.png")
    photo(tmp_path / "in/c.png", GREEN)
    call(tmp_path / "in", "-o", tmp_path / "out", "--jobs", 1)
    first, other, same = engine.keys
    assert first == same != other


@pytest.mark.parametrize(
    "options",
    [
        "--k 1",
        "--k x",
        "--layer -1",
        "--layer 8-",
        "--layer 5-3",
        "--layer 0-3",
        "--alpha nan",
        "--diversity -1",
        "--diversity 1.5",
        "--diversity much",
        "--add Smiling",
        "--add Smiling=x",
        "--mode pixelate",
        "-t 2",
        "--mask-scale 0",
        "--mask-scale inf",
        "--scale 640",
        "--scale 0x10",
        "--scale 640x640 --thorough",
        "--keep-kind race",
        "--keep-kind none,age",
        "--max-megapixels 0",
        "--max-megapixels nan",
        "--suffix a/b",
        "--exemplar missing.png",
        "--progress loud",
        "--unknown",
        "-o out.bmp",
        "-o file",
        "--link job --skip-existing",
        "--sign a.png nowhere.pem",
    ],
)
def test_usage_errors(tmp_path: Path, engine: StandIn, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    photo(tmp_path / "a.png")
    (tmp_path / "file").write_text("x")
    _, said = call("a.png", *options.split(), code=2)
    assert said.splitlines()[-1].startswith("Error: ")
    assert files(tmp_path) == {"a.png", "file"}


def test_linked_photos_are_worked_on_in_order_and_finished_ones_looked_at_again(
    tmp_path: Path, engine: StandIn
) -> None:
    for number in range(4):
        photo(tmp_path / f"in/{number}.png", (number, 60, 200))
    at_work, most = threading.Semaphore(9), []

    def overlap(result: Any) -> None:
        with at_work:
            most.append(at_work._value)
            time.sleep(0.02)

    engine._change = overlap
    options = ("-o", tmp_path / "out", "--link", "job", "--seed", 9, "--jobs", 4)
    call(tmp_path / "in", *options)
    assert engine.settings["link"] == "job" and most == [8] * 4
    order, before = list(engine.keys), {path: path.read_bytes() for path in (tmp_path / "out").glob("*.png*")}
    (tmp_path / "out/2.png").unlink()
    (tmp_path / "out/2.png.json").unlink()
    engine.keys.clear()
    summary, _ = call(tmp_path / "in", *options, "--skip-existing")
    assert engine.keys == order and (summary["written"], summary["skipped"], summary["faces"]) == (1, 3, 1)
    after = {path: path.read_bytes() for path in (tmp_path / "out").glob("*.png*")}
    assert {path for path in after if before[path] != after[path]} <= {tmp_path / "out/2.png.json"}
    summary, _ = call(tmp_path / "in", *options, "--skip-existing")
    assert (summary["written"], summary["skipped"]) == (0, 4)


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


@pytest.mark.parametrize(
    ("error", "code"), [(FicganError("no model here"), 1), (UsageError("k > bank"), 2), (MemoryError(), 1)]
)
def test_engine_that_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int) -> None:
    def fail(**_: Any) -> None:
        raise error

    monkeypatch.setattr(command, "make_engine", fail)
    _, said = call(photo(tmp_path / "a.png"), code=code)
    assert said.startswith("Error: ") and said.count("\n") == 1
    assert files(tmp_path) == {"a.png"}


def test_dry_run(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "a.png")
    summary, said = call(tmp_path / "a.png", "-o", tmp_path / "out", "--dry-run")
    assert summary["dry_run"] and (summary["inputs"], summary["written"]) == (1, 0) and "out/a.png" in said
    assert files(tmp_path) == {"a.png"} and engine.loaded == 0
    call(tmp_path / "none.png", "--dry-run", code=2)


@pytest.mark.parametrize("mode", ["blur", "mosaic"])
def test_reversible_modes_warn_once(tmp_path: Path, engine: StandIn, mode: str) -> None:
    photo(tmp_path / "a.png")
    photo(tmp_path / "b.png")
    _, said = call(tmp_path, "--mode", mode)
    assert said.count("reversed") == 1
    assert "reversed" not in call(tmp_path, "-o", tmp_path / "x", "--mode", "solid")[1]


def test_progress(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "in/a.png")
    photo(tmp_path / "in/b.png", GREEN)

    def said(mode: str, *more: str) -> str:
        text = call(tmp_path / "in", "-o", tmp_path / mode / str(len(more)), "--progress", mode, *more)[1]
        return text.replace("a library that talks on stdout\n", "")

    assert "1/2" in said("text") and "1/2" not in said("auto") and "1/2" not in said("none")
    events = [json.loads(line) for line in said("jsonl").splitlines()]
    assert [event["done"] for event in events if "done" in event] == [1, 2]
    assert any("no face" in event.get("message", "") for event in events)
    assert said("text", "--quiet") == ""
