"""`ficgan-deid` around a stand-in for the model: files, options, side-cars, exit codes."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import ficgan.cli.deid as command
from ficgan.errors import FicganError, InputError, UsageError

KEYS = {"inputs", "written", "failed", "faces", "uncovered", "reidentified", "seconds", "skipped", "no_face"}
BLUE, GREEN = (30, 60, 200), (20, 120, 40)


@dataclass
class Face:
    action: str = "generated"


@dataclass
class Result:
    image: np.ndarray
    faces: list[Face]
    audit: dict[str, Any] = field(default_factory=dict)
    uncovered: int = 0
    reidentified: int = 0


class StandIn:
    """Finds one face, a 12×12 box, in every photo that has a blue pixel at its top left, and paints it red."""

    def __init__(self, change: Callable[[Result], None] = lambda result: None) -> None:
        self.settings: dict[str, Any] = {}
        self.keys: list[str] = []
        self.loaded = 0
        self._change = change

    def load(self, **settings: Any) -> StandIn:
        self.settings = settings
        self.loaded += 1
        return self

    def __call__(self, image: np.ndarray, *, key: str = "") -> Result:
        self.keys.append(key)
        print("a library that talks on stdout")
        has_face = tuple(image[0, 0] // 64) == tuple(np.array(BLUE) // 64)
        result = Result(image.copy(), [Face()] if has_face else [], {"k": self.settings["k"], "faces": []})
        if has_face:
            result.image[8:20, 8:20] = (255, 0, 0)
        self._change(result)
        return result


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setattr(command, "make_engine", stand_in.load)
    return stand_in


def photo(path: Path, colour: tuple[int, int, int] = BLUE, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (48, 32), colour).save(path, **options)
    return path


def call(*arguments: Any, code: int = 0) -> tuple[dict[str, Any], str]:
    """Run the command; returns its final JSON and what it said on stderr."""
    outcome = CliRunner().invoke(command.deid, [str(argument) for argument in arguments])
    assert outcome.exit_code == code, outcome.output
    assert "Traceback" not in outcome.stderr
    if code in (1, 2):
        assert outcome.stdout == ""
        return {}, outcome.stderr
    summary = json.loads(outcome.stdout)
    assert outcome.stdout.count("\n") == 1 and set(summary) >= KEYS
    return summary, outcome.stderr


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


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
    (tree / "clip.mp4").write_bytes(b"video")
    summary, said = call(tree, "-o", tmp_path / "out")
    assert files(tmp_path / "out") == {"a.jpg", "a.jpg.json", "deep/er/b.PNG", "deep/er/b.PNG.json"}
    assert (summary["inputs"], summary["written"], summary["skipped"]) == (2, 2, 3)
    assert "3 files skipped" in said
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
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == first
    summary, _ = call(tmp_path, "--overwrite")
    assert (summary["written"], summary["skipped"]) == (2, 2) and files(tmp_path) == set(first)


def test_results_are_known_by_sidecar_without_suffix_and_by_suffix_without_sidecar(
    tmp_path: Path, engine: StandIn
) -> None:
    photo(tmp_path / "in/a.png")
    call(tmp_path / "in", "-o", tmp_path / "done")
    summary, _ = call(tmp_path / "done/a.png", "-o", tmp_path / "again")
    assert summary["inputs"] == 0 and summary["skipped"] == 1
    photo(tmp_path / "done/a.png", GREEN)  # edited since: no longer the result that the side-car speaks of
    assert call(tmp_path / "done/a.png", "-o", tmp_path / "again")[0]["inputs"] == 1
    call(tmp_path / "in", "--no-sidecar")
    assert call(tmp_path / "in", "--no-sidecar", "--overwrite")[0]["skipped"] == 1


def test_an_output_folder_inside_the_input_is_not_an_input(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "a.png")
    for _ in range(2):
        summary, _ = call(tmp_path, "-o", tmp_path / "out", "--overwrite")
        assert summary["inputs"] == 1
    assert files(tmp_path / "out") == {"a.png", "a.png.json"}


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
    call(tmp_path / "y/a.png", tmp_path / "y/a.png", tmp_path / "y", "-o", tmp_path / "out")  # one file, thrice named
    assert len(engine.keys) == 1


def test_an_output_never_replaces_another_input(tmp_path: Path, engine: StandIn) -> None:
    first, second = photo(tmp_path / "a.png"), photo(tmp_path / "b/a.png", GREEN)
    before = second.read_bytes()
    call(first, second, "-o", tmp_path / "b", "--overwrite", code=2)
    assert second.read_bytes() == before


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


def test_an_unexpected_exception_is_one_failure(tmp_path: Path, engine: StandIn) -> None:
    for name in "abc":
        photo(tmp_path / f"{name}.png")

    def fail_once(result: Result) -> None:
        if len(engine.keys) == 2:
            raise RuntimeError("CUDA\nexploded")

    engine._change = fail_once
    summary, said = call(tmp_path, code=3)
    assert (summary["written"], summary["failed"]) == (2, 1)
    assert "b.png: RuntimeError: CUDA exploded" in said


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


def test_metadata(tmp_path: Path, engine: StandIn) -> None:
    exif = Image.Exif()
    exif[0x010F] = "SecretCamera"
    source = photo(tmp_path / "a.jpg", exif=exif)
    call(source)
    assert b"SecretCamera" not in (tmp_path / "a_anonymized.jpg").read_bytes()
    call(source, "-m", "--overwrite")
    assert b"SecretCamera" in (tmp_path / "a_anonymized.jpg").read_bytes()


def test_options_reach_the_engine(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "a.png")
    photo(tmp_path / "star.png", GREEN)
    options = (
        "--k 77 --layers 5-8 --alpha 0.3 --diversity 0.4 --seed 9 --attributes Female,-Eyeglasses --add Smiling=0.7"
    )
    options += " --add Young=-1 --mode solid -t 0.25 --mask-scale 1.2 --detector dlib --recognizer onnx:x --no-verify"
    options += " --device cuda:1 --swap --checkpoint c --bank b"
    call(tmp_path / "a.png", *options.split(), "--exemplar", tmp_path / "star.png")
    given = dict(engine.settings)
    assert given.pop("exemplar").shape == (32, 48, 3)
    assert given == {
        "k": 77, "layer": 4, "band": "5-8", "alpha": 0.3, "psi": 0.4, "seed": 9, "attributes": "Female,-Eyeglasses",
        "add": ("Smiling=0.7", "Young=-1"), "swap": True, "mode": "solid", "threshold": 0.25, "mask_scale": 1.2,
        "detector": "dlib", "recognizer": "onnx:x", "verify": False, "device": "cuda:1", "checkpoint": "c", "bank": "b",
    }  # fmt: skip


def test_the_engine_takes_what_the_command_gives(tmp_path: Path, engine: StandIn) -> None:
    from ficgan.deidentify import Deidentifier

    call(photo(tmp_path / "a.png"))

    known = set(inspect.signature(Deidentifier).parameters) | set(
        inspect.signature(Deidentifier.from_pretrained).parameters
    )
    assert set(engine.settings) <= known
    assert inspect.signature(Deidentifier.__call__).parameters["key"].kind is inspect.Parameter.KEYWORD_ONLY


def test_the_key_is_the_picture_not_its_name(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "in/a.png")
    photo(tmp_path / "in/sub/b.png")
    photo(tmp_path / "in/c.png", GREEN)
    call(tmp_path / "in", "-o", tmp_path / "out")
    first, other, same = engine.keys
    assert first == same != other


@pytest.mark.parametrize(
    "options",
    [
        "--k 1", "--k x", "--layer -1", "--layer 2 --layers 1-2", "--layers 8", "--layers 5-3", "--layers 0-3",
        "--alpha nan", "--diversity -1", "--diversity 1.5", "--diversity much", "--add Smiling", "--add Smiling=x",
        "--swap", "--mode pixelate", "-t 2", "--mask-scale 0", "--mask-scale inf", "--scale 640", "--scale 0x10",
        "--max-megapixels 0", "--max-megapixels nan", "--suffix a/b", "--exemplar missing.png", "--progress loud",
        "--unknown", "-o out.heic", "-o file",
    ],
)  # fmt: skip
def test_usage_errors(tmp_path: Path, engine: StandIn, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    photo(tmp_path / "a.png")
    (tmp_path / "file").write_text("x")
    _, said = call("a.png", *options.split(), code=2)
    assert said.splitlines()[-1].startswith("Error: ")
    assert files(tmp_path) == {"a.png", "file"}


def test_no_input_is_a_usage_error(engine: StandIn) -> None:
    call(code=2)


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


def test_output_below_a_file(tmp_path: Path, engine: StandIn) -> None:
    (tmp_path / "file").write_text("x")
    _, said = call(photo(tmp_path / "a.png"), "-o", tmp_path / "file/out", code=1)
    assert "cannot be made" in said and engine.loaded == 0


def test_output_folder_that_breaks_meanwhile_fails_per_image(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "in/sub/a.png")
    photo(tmp_path / "in/b.png")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/sub").write_text("in the way")
    summary, said = call(tmp_path / "in", "-o", tmp_path / "out", code=3)
    assert (summary["written"], summary["failed"]) == (1, 1) and "out/sub" in said


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


def test_numpy_values_in_an_audit(tmp_path: Path, engine: StandIn) -> None:
    engine._change = lambda result: result.audit.update(box=np.arange(4.0), n=np.int64(3))
    call(photo(tmp_path / "a.png"))
    record = json.loads((tmp_path / "a_anonymized.png.json").read_text())
    assert record["box"] == [0, 1, 2, 3] and record["n"] == 3


def test_dry_run(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "a.png")
    summary, said = call(tmp_path / "a.png", "-o", tmp_path / "out", "--dry-run")
    assert summary["dry_run"] and (summary["inputs"], summary["written"]) == (1, 0) and "out/a.png" in said
    assert files(tmp_path) == {"a.png"} and engine.loaded == 0
    call(tmp_path / "none.png", "--dry-run", code=3)


def test_empty_folder(tmp_path: Path, engine: StandIn) -> None:
    summary, said = call(tmp_path)
    assert summary["inputs"] == 0 and "Nothing to do" in said and engine.loaded == 0


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


def test_megapixels(tmp_path: Path, engine: StandIn) -> None:
    source = photo(tmp_path / "a.png")
    _, said = call(source, "--max-megapixels", 0.001, code=3)
    assert "megapixels" in said
    call(source, "--max-megapixels", 0.001536)


def test_scale_wraps_the_detector(tmp_path: Path, engine: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    import ficgan.faces
    from ficgan.faces import Face as Found

    class Corner:
        """Finds the one bright square there is."""

        name = "corner"
        seen: tuple[int, ...] = ()

        def detect(self, image: np.ndarray) -> list[Found]:
            self.seen = image.shape
            y, x = np.nonzero(image[..., 0] > 128)
            box = np.array([x.min(), y.min(), x.max(), y.max()], np.float32)
            return [Found(box, np.tile(box[:2], (5, 1)), 1.0)]

    inner = Corner()
    monkeypatch.setattr(ficgan.faces, "get_detector", lambda *_, **__: inner)
    call(photo(tmp_path / "a.png"), "--scale", "640x360")
    image = np.zeros((720, 1000, 3), np.uint8)
    image[200:300, 400:600] = 255
    (face,) = engine.settings["detector"].detect(image)
    assert inner.seen == (360, 500, 3)
    assert np.allclose(face.box, [400, 200, 599, 299], atol=1.01) and face.box.dtype == np.float32
    assert np.allclose(face.landmarks, [[400, 200]] * 5, atol=1.01)


# -- as a process of its own ------------------------------------------------------------------------------------------

SCRIPT = """
import sys, time
import numpy as np
import ficgan.cli.deid as command
import ficgan.images.files as files

class Face: action = "generated"
class Result:
    uncovered = reidentified = 0
    audit = {{}}
    def __init__(self, image):
        self.image, self.faces = image.copy(), [Face()]
        self.image[:8, :8] = 255

count = 0
def engine(image, *, key=""):
    global count
    count += 1
    if count == 2 and {where!r} == "engine":
        print("now", file=sys.stderr, flush=True)
        time.sleep(60)
    return Result(image)

if {where!r} == "write":
    def fsync(_):
        if count == 2:
            print("now", file=sys.stderr, flush=True)
            time.sleep(60)
    files.os.fsync = fsync

command.make_engine = lambda **_: engine
command.deid(prog_name="ficgan-deid")
"""


def start(folder: Path, where: str, *arguments: Any) -> subprocess.Popen[str]:
    script = folder / "run.py"
    script.write_text(textwrap.dedent(SCRIPT.format(where=where)))
    line = [sys.executable, str(script), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(command.__file__).parents[2])}
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def test_subprocess(tmp_path: Path) -> None:
    photo(tmp_path / "in/a.png")
    process = start(tmp_path, "", tmp_path / "in", "-o", tmp_path / "out")
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0 and stderr == ""
    assert json.loads(stdout)["written"] == 1
    process = start(tmp_path, "", tmp_path / "in", "-o", tmp_path / "out")
    assert process.communicate(timeout=60) and process.returncode == 3


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("where", ["engine", "write"])
def test_interrupted(tmp_path: Path, where: str, sent: signal.Signals) -> None:
    for name in "abc":
        photo(tmp_path / f"in/{name}.png")
    process = start(tmp_path, where, tmp_path / "in", "-o", tmp_path / "out")
    assert process.stderr is not None
    assert process.stderr.readline() == "now\n"
    process.send_signal(sent)
    begun = time.monotonic()
    stdout, stderr = process.communicate(timeout=30)
    assert time.monotonic() - begun < 10
    assert process.returncode == 130 and stderr == "Interrupted.\n"
    summary = json.loads(stdout)
    assert summary["interrupted"] is True and summary["written"] == 1
    assert files(tmp_path / "out") == {"a.png", "a.png.json"}


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    photo(tmp_path / "a.png")
    process = start(tmp_path, "", tmp_path / "a.png")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=60) == 1
    assert process.stderr.read() == ""
    process.stderr.close()


# -- the decorator that every command shares --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (FicganError("a"), 1, "Error: a\n"),
        (UsageError("b"), 2, "Error: b\n"),
        (InputError("c\nd"), 3, "Error: c d\n"),
        (KeyboardInterrupt(), 130, "Interrupted.\n"),
        (click.Abort(), 130, "Interrupted.\n"),
        (BrokenPipeError(), 1, ""),
        (ValueError("x\ny"), 1, "Error: ValueError: x y\n"),
        (OSError(28, "No space left on device", "/f"), 1, "Error: No space left on device: /f\n"),
    ],
)
def test_handle_errors(error: BaseException, code: int, said: str) -> None:
    from ficgan.cli._errors import handle_errors

    @click.command()
    @handle_errors
    def fails() -> None:
        raise error

    before = signal.getsignal(signal.SIGTERM)
    outcome = CliRunner().invoke(fails)
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (code, "", said)
    assert signal.getsignal(signal.SIGTERM) == before


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from ficgan.cli._errors import handle_errors

    monkeypatch.setenv("FICGAN_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        handle_errors(lambda: 1 / 0)()
