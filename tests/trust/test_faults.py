"""Every write, rename, fsync and opening fails once, and runs are killed there: nothing is lost, nothing is half done.

`FICGAN_FAULTS` is the number of points of each kind that fail in each run, or `all` (`make test-faults`); default 3.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data

sys.path += [str(Path(__file__).parents[1] / room) for room in ("video", "training")]
from clips import make_clip, picture
from fault_worlds import KINDS, Fault, Outcome, Server, contents
from small import SMALL

from ficgan.config import ModelConfig
from ficgan.faces import Alignment
from ficgan.models import FICGAN, CheckpointHeader, load_tensors, save_checkpoint
from ficgan.records.sidecars import read_folder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("cc") or sys.platform != "linux", reason="needs Linux and a C compiler"),
]
ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EINTR)
POINTS = os.environ.get("FICGAN_FAULTS", "3")
KILLS = 50 if POINTS == "all" else 12
"""In all, over the four runs."""
TINY = ModelConfig(
    resolution=16, id_dim=8, w_dim=8, spatial_channels=4, channel_base=64, channel_max=8, mapping_layers=1
)


MATRIX: dict[tuple[str, str], Counter[int]] = {}
"""Run, what failed → exit codes; printed at the end (pytest -s)."""


def count(run: str, fault: str, outcome: Outcome) -> None:
    MATRIX.setdefault((run, fault), Counter())[outcome.code] += 1


@dataclass(frozen=True)
class World:
    """A run that can be repeated: what it reads, how it is called, what it leaves."""

    command: str
    inputs: Path
    arguments: Callable[[Path, Path], list[object]]
    """Of the folders with inputs and outputs."""
    read: Callable[[Path], dict[str, Any]]
    """Every result with a name of its own, in a form that repeats."""
    rerun: tuple[str, ...] = ()
    """Further options for going on after a fault."""
    share: float = 0.25
    """Of the kills."""


def film_frames(path: Path) -> bytes:
    with av.open(str(path)) as file:
        return b"".join(frame.to_ndarray(format="rgb24").tobytes() for frame in file.decode(video=0))


def last_states(manifest: Path) -> dict[str, str]:
    """Output → what the manifest says of it last; a line that a killed run cut off counts for nothing."""
    states = {}
    for line in manifest.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n") and line.strip():
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                states[record["output"]] = record["state"]
    return states


def read_media(folder: Path) -> dict[str, Any]:
    """Pictures and films as their pixels, side-cars without what depends on the moment."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name.startswith(".") or any(p.startswith(".") for p in path.parts[-2:-1]):
            continue
        name = str(path.relative_to(folder))
        if path.suffix == ".json":
            record = json.loads(path.read_text())
            found[name] = sorted(record), record.get("faces"), record.get("output"), record.get("input_sha256")
        elif path.suffix == ".jsonl":
            found[name] = last_states(path)
        elif path.suffix == ".mp4":
            found[name] = film_frames(path)
        else:
            found[name] = path.read_bytes()
    return found


def read_tensors(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name in ("network.safetensors", "bank.safetensors"):
            kind = "bank" if "bank" in path.name else "model"
            tensors, _ = load_tensors(path, kind=kind)
            found[path.name] = {name: tensor.numpy().tobytes() for name, tensor in sorted(tensors.items())}
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("server"))
    yield running
    for (run, fault), ends in sorted(MATRIX.items()):
        print(f"{run:9} {fault:16} " + ", ".join(f"exit {code}: {count}" for code, count in sorted(ends.items())))
    running.close()


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, World]:
    folder = tmp_path_factory.mktemp("inputs")
    photos, films, faces = (folder / name for name in ("photos", "films", "faces"))
    for each in (photos, films, faces):
        each.mkdir()
    Image.fromarray(data.astronaut()[:220, 120:330]).resize((105, 110)).save(photos / "face.png")
    Image.new("RGB", (40, 40), (9, 90, 9)).save(photos / "none.jpg")
    make_clip(films / "film.mp4", 6, pictures=[picture(number) for number in range(6)])
    rng = np.random.default_rng(0)
    for number in range(6):
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(faces / f"{number}.png")
    torch.manual_seed(0)
    (folder / "models").mkdir()
    header = CheckpointHeader(model=TINY, alignment=Alignment().to_dict())
    save_checkpoint(folder / "models" / "m.safetensors", FICGAN(TINY), header)
    training = [*SMALL, "schedule.total_kimg=0.012", "schedule.tick_kimg=0.004", "schedule.snapshot_kimg=0.012"]
    solid = ("--mode", "solid", "--no-verify", "--quiet")
    return {
        "photo": World(
            "deid", photos, lambda given, out: [given, "-o", out / "out", *solid], read_media, ("--overwrite",), 0.3
        ),
        "film": World(
            "deid", films, lambda given, out: [given, "-o", out / "out", *solid], read_media, ("--overwrite",), 0.3
        ),
        "bank": World(
            "bank", faces,
            lambda given, out: [
                "build", folder / "models" / "m.safetensors", "--data", given, "-o", out / "bank.safetensors"
            ],
            read_tensors, (), 0.2,
        ),
        "training": World(
            "train", faces, lambda given, out: ["tiny", "--data", given, "--out", out / "run", *training], read_tensors,
            (), 0.2,
        ),
    }  # fmt: skip


NAMES = ("photo", "film", "bank", "training")


@pytest.fixture(scope="module")
def undisturbed(
    server: Server, worlds: dict[str, World], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[dict[str, int], dict[str, Any]]]:
    """Of each run: how many calls of each kind it makes, and what it leaves."""
    found = {}
    for name, world in worlds.items():
        folder = tmp_path_factory.mktemp(name)
        outcome = server(world.command, world.arguments(world.inputs, folder), folder)
        assert outcome.code == 0, outcome.err
        found[name] = outcome.counts, world.read(folder)
        assert all(outcome.counts.values()) and found[name][1]
    return found


def check_end(outcome: Outcome, *, killed: bool) -> None:
    """The exit code and what was said."""
    if killed:
        assert outcome.code == -9, outcome
        return
    assert outcome.code in (0, 1, 3), outcome
    assert "Traceback" not in outcome.err and "Exception ignored" not in outcome.err, outcome.err
    if outcome.code:
        assert "Error: " in outcome.err, outcome


def check_left(world: World, before: dict[str, str], folder: Path, wanted: dict[str, Any], outcome: Outcome) -> None:
    """Originals are untouched; results are whole or absent; nothing else stays unless the run was killed."""
    assert contents(world.inputs) == before
    found = world.read(folder)  # fails where one is damaged
    for name, value in found.items():
        if name.endswith(".safetensors") and world.command == "train" and outcome.code:
            continue  # of an earlier moment
        if name.endswith(".jsonl") and outcome.code:
            assert set(value) <= set(wanted[name]) and set(value.values()) <= {"written", "failed"}, value
            continue  # says what failed
        assert value == wanted[name], f"{name} is not as in an undisturbed run"
    if outcome.code == 0:
        assert set(found) == set(wanted)
    if outcome.code > 0:
        rest = [path for path in folder.rglob(".*") if ".tmp" in path.name or ".partial" in path.name]
        assert not rest, rest


def check_rerun(server: Server, world: World, folder: Path, wanted: dict[str, Any]) -> None:
    again = server(world.command, [*world.arguments(world.inputs, folder), *world.rerun], folder)
    assert again.code == 0, again.err
    assert world.read(folder) == wanted
    assert not [path for path in folder.rglob("*") if path.name.endswith("ficgan-work")]


def points(counts: dict[str, int]) -> list[tuple[str, int]]:
    """Which calls fail: all, or some of each kind, the first and the last among them."""
    chosen: list[tuple[str, int]] = []
    for kind in KINDS:
        numbers = range(1, counts[kind] + 1)
        if POINTS != "all" and len(numbers) > int(POINTS):
            numbers = sorted({round(n) for n in np.linspace(1, counts[kind], int(POINTS))})  # type: ignore[assignment]
        chosen += [(kind, number) for number in numbers]
    return chosen


@pytest.mark.parametrize("name", NAMES)
def test_each_call_fails_once(
    name: str, server: Server, worlds: dict[str, World], undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    world, (counts, wanted) = worlds[name], undisturbed[name]
    before, failures = contents(world.inputs), []
    for turn, (kind, number) in enumerate(points(counts)):
        for error in ERRORS if POINTS == "all" and name != "training" else ERRORS[turn % 4 : turn % 4 + 1]:
            folder = tmp_path / f"{kind}-{number}-{error}"
            folder.mkdir()
            outcome = server(world.command, world.arguments(world.inputs, folder), folder, Fault(kind, number, error))
            count(name, f"{kind} {errno.errorcode[error]}", outcome)
            try:
                check_end(outcome, killed=False)
                check_left(world, before, folder, wanted, outcome)
                if outcome.code:
                    check_rerun(server, world, folder, wanted)
            except AssertionError as failed:
                failures.append(f"{kind} {number} fails with {errno.errorcode[error]}: {failed}")
                count(name, "found", outcome)
            shutil.rmtree(folder)
    assert not failures, "\n\n".join(failures)
    stopped = sum(ends[code] for (run, _), ends in MATRIX.items() if run == name for code in (1, 3))
    assert stopped, "no fault was noticed"


@pytest.mark.parametrize("name", NAMES)
def test_killed_anywhere(
    name: str, server: Server, worlds: dict[str, World], undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    world, (counts, wanted) = worlds[name], undisturbed[name]
    before, rng, failures = contents(world.inputs), random.Random(name), []
    for turn in range(max(2, round(KILLS * world.share))):
        kind = rng.choice([kind for kind in KINDS for _ in range(min(counts[kind], 5))])
        fault = Fault(kind, rng.randint(1, counts[kind]), 0)
        folder = tmp_path / str(turn)
        folder.mkdir()
        outcome = server(world.command, world.arguments(world.inputs, folder), folder, fault)
        count(name, f"killed at {kind}", outcome)
        try:
            check_end(outcome, killed=True)
            check_left(world, before, folder, wanted, outcome)
            check_rerun(server, world, folder, wanted)
        except AssertionError as failed:
            failures.append(f"killed at {kind} {fault.number}: {failed}")
        shutil.rmtree(folder)
    assert not failures, "\n\n".join(failures)


@pytest.mark.parametrize("name", NAMES)
def test_the_clock_goes_back(
    name: str, server: Server, worlds: dict[str, World], undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    world, (_, wanted) = worlds[name], undisturbed[name]
    outcome = server(world.command, world.arguments(world.inputs, tmp_path), tmp_path, clock=-400 * 86400.0)
    assert outcome.code == 0 and world.read(tmp_path) == wanted, outcome


@pytest.mark.parametrize("name", NAMES)
def test_two_runs_in_one_folder(
    name: str, server: Server, worlds: dict[str, World], undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    """One of them may be refused; what stays is whole, and the manifest says what is there."""
    world, (_, wanted) = worlds[name], undisturbed[name]
    before = contents(world.inputs)
    for turn in range(5 if POINTS == "all" else 2):
        folder = tmp_path / str(turn)
        folder.mkdir()
        outcome = server(world.command, world.arguments(world.inputs, folder), folder, times=2)
        count(name, "two runs", outcome)
        check_end(outcome, killed=False)
        assert contents(world.inputs) == before and world.read(folder) == wanted, outcome
        assert not [path for path in folder.rglob(".*") if path.is_file() and ".tmp" in path.name]


@pytest.mark.parametrize("option", ["--skip-existing", "--overwrite"])
def test_two_runs_share_the_work(
    option: str, server: Server, worlds: dict[str, World], undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    """None of them fails, and each side-car is that of its picture."""
    world, (_, wanted) = worlds["photo"], undisturbed["photo"]
    for turn in range(5 if POINTS == "all" else 2):
        folder = tmp_path / str(turn)
        folder.mkdir()
        arguments = [*world.arguments(world.inputs, folder), option]
        outcome = server(world.command, arguments, folder, times=3)
        assert outcome.code == 0, outcome
        assert world.read(folder) == wanted and not read_folder(folder / "out").undone
        assert not any(record.problem for record in read_folder(folder / "out").records)


def test_memory_runs_out(server: Server, tmp_path: Path) -> None:
    photos, out = tmp_path / "in", tmp_path / "out"
    photos.mkdir()
    Image.new("RGB", (9000, 9000), (90, 120, 90)).save(photos / "large.png")
    outcome = server("deid", [photos, "-o", out, "--mode", "solid", "--no-verify"], tmp_path, memory=300 << 20)
    check_end(outcome, killed=False)
    assert outcome.code in (1, 3) and not list(out.rglob("*") if out.exists() else [])
