"""Runs that are killed, that meet a full disk, or that meet each other: nothing is lost, nothing is half done.

`FICGAN_KILLS` is the number of kills of each run.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image
from skimage import data

sys.path += [str(Path(__file__).parents[1] / room) for room in ("video", "training")]
from clips import make_clip, picture
from small import SMALL

from ficgan.files import atomic_write
from ficgan.models import load_tensors

KILLS = int(os.environ.get("FICGAN_KILLS", "2"))
CODE = "from ficgan.cli.main import main; main()"


@dataclass(frozen=True)
class Case:
    """A command that can be repeated: its inputs, its arguments for an output folder, what it leaves there."""

    inputs: Path
    arguments: Callable[[Path], list[object]]
    read: Callable[[Path], dict[str, Any]]

    def start(self, out: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CODE, *map(str, self.arguments(out))]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def read_media(out: Path) -> dict[str, bytes]:
    """Results by name, as their pixels: it fails where one is damaged."""
    found = {}
    for path in sorted(out.glob("*")):
        if path.suffix == ".mp4":
            with av.open(str(path)) as film:
                found[path.name] = b"".join(f.to_ndarray(format="rgb24").tobytes() for f in film.decode(video=0))
        elif path.suffix in (".png", ".jpg"):
            with Image.open(path) as image:
                found[path.name] = np.asarray(image).tobytes()
    return found


def read_state(out: Path) -> dict[str, bytes]:
    path = out / "state.safetensors"
    if not path.exists():
        return {}
    tensors, _ = load_tensors(path, kind="training state")
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    folder = tmp_path_factory.mktemp("inputs")
    photos, films, faces = (folder / name for name in ("photos", "films", "faces"))
    for each in (photos, films, faces):
        each.mkdir()
    Image.fromarray(data.astronaut()[:220, 120:330]).save(photos / "face.png")
    Image.new("RGB", (40, 40), (9, 90, 9)).save(photos / "none.jpg")
    make_clip(films / "film.mp4", 12, pictures=[picture(number) for number in range(12)])
    rng = np.random.default_rng(0)
    for number in range(6):
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(faces / f"{number}.png")
    solid = ["--mode", "solid", "--verify", "off", "--quiet", "--overwrite"]
    training = [*SMALL, "schedule.total_kimg=0.04", "schedule.tick_kimg=0.004", "schedule.checkpoint_kimg=0.004"]
    return {
        "photo": Case(photos, lambda out: ["deid", photos, "-o", out, *solid], read_media),
        "film": Case(films, lambda out: ["deid", films, "-o", out, *solid], read_media),
        "training": Case(faces, lambda out: ["train", "tiny", "--data", faces, "--out", out, *training], read_state),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["photo", "film", "training"])
def test_killed_anywhere_it_is_made_whole_by_the_next_run(name: str, cases: dict[str, Case], tmp_path: Path) -> None:
    case, rng = cases[name], random.Random(name)
    before, began = contents(case.inputs), time.monotonic()
    process = case.start(tmp_path / "whole")
    assert process.wait(300) == 0, process.communicate()[1]
    lasted, wanted = time.monotonic() - began, case.read(tmp_path / "whole")
    for turn in range(KILLS):
        out = tmp_path / str(turn)
        process = case.start(out)
        time.sleep(rng.uniform(0.3, 1) * lasted)
        process.kill()
        process.communicate()
        time.sleep(1.1)  # a younger temporary file may be one that its process has not locked yet
        found = case.read(out)
        if name != "training":
            assert all(value == wanted[key] for key, value in found.items()), "a half result"
        process = case.start(out)
        assert process.wait(300) == 0, process.communicate()[1]
        assert case.read(out) == wanted and contents(case.inputs) == before
        assert not [path for path in out.rglob("*") if ".tmp" in path.name or path.name.endswith("ficgan-work")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["photo", "training"])
def test_two_runs_in_one_folder_lose_nothing(name: str, cases: dict[str, Case], tmp_path: Path) -> None:
    """One of them may be refused; what stays is whole."""
    case = cases[name]
    processes = [case.start(tmp_path / "out") for _ in range(2)]
    ends = [(process.communicate(timeout=300)[1], process.returncode) for process in processes]
    assert any(code == 0 for _, code in ends) and all(code in (0, 1, 3) for _, code in ends), ends
    alone = case.start(tmp_path / "alone")
    assert alone.wait(300) == 0
    assert case.read(tmp_path / "out") == case.read(tmp_path / "alone")


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["fsync", "replace", "link", "open"])
def failing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One call of the system fails, as where a disk is full."""
    real = getattr(os, request.param)

    def fail(path: Any, *given: Any, **more: Any) -> Any:
        if request.param != "open" or ".tmp" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, *given, **more)

    monkeypatch.setattr(os, request.param, fail)
    yield request.param


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_is_whole_or_absent(failing: str, overwrite: bool, tmp_path: Path) -> None:
    path = tmp_path / "a"
    if overwrite:
        path.write_bytes(b"before")
    with contextlib.suppress(Exception), atomic_write(path, overwrite=overwrite) as file:
        file.write(b"after")
    left = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert left in ({}, {"a": b"before"}, {"a": b"after"}) and (not overwrite or left)


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    from ficgan.errors import TakenError

    with pytest.raises(TakenError), atomic_write(tmp_path / "a") as file:
        file.write(b"mine")
        (tmp_path / "a").write_bytes(b"theirs")
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"theirs"]
