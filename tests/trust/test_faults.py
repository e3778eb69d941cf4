"""Every write, rename, fsync and opening fails once, and runs are killed there: nothing is lost, nothing is half done.

`FICGAN_FAULTS` is the number of points of each kind that fail in each run, or `all` (`make test-faults`); default 3.
`FICGAN_KILLS` is the number of kills of each run (`make test-faults KILLS=50`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import sys
import time
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
KILLS = int(os.environ.get("FICGAN_KILLS", "50" if POINTS == "all" else "3"))
"""Of each run."""
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
            "deid", photos, lambda given, out: [given, "-o", out / "out", *solid], read_media, ("--overwrite",)
        ),
        "film": World(
            "deid", films, lambda given, out: [given, "-o", out / "out", *solid], read_media, ("--overwrite",)
        ),
        "bank": World(
            "bank",
            faces,
            lambda given, out: [
                "build",
                folder / "models" / "m.safetensors",
                "--data",
                given,
                "-o",
                out / "bank.safetensors",
            ],
            read_tensors,
        ),
        "training": World(
            "train", faces, lambda given, out: ["tiny", "--data", given, "--out", out / "run", *training], read_tensors
        ),
    }


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
    if world.command == "bank" and world.read(folder) == wanted:
        return  # it is there, and another run would refuse to replace it
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
    """Half of the kills at a call that changes a file, where most can go wrong; half at any moment."""
    world, (counts, wanted) = worlds[name], undisturbed[name]
    before, rng, failures = contents(world.inputs), random.Random(name), []
    lengths, kills = [], 0
    for turn in range(2):
        (tmp_path / f"whole-{turn}").mkdir()
        began = time.monotonic()
        whole = server(world.command, world.arguments(world.inputs, tmp_path / f"whole-{turn}"), tmp_path)
        assert whole.code == 0, whole.err
        lengths.append(time.monotonic() - began)
    for turn in range(3 * KILLS):
        if kills == KILLS:
            break
        kind = rng.choice([kind for kind in KINDS for _ in range(min(counts[kind], 5))])
        fault, moment = Fault(kind, rng.randint(1, counts[kind]), 0), rng.uniform(0.01, min(lengths))
        folder = tmp_path / str(turn)
        folder.mkdir()
        how = {"fault": fault} if turn % 2 else {"kill_after": moment}
        outcome = server(world.command, world.arguments(world.inputs, folder), folder, **how)  # type: ignore[arg-type]
        kills += outcome.code < 0
        said = f"killed at {kind} {fault.number}" if turn % 2 else f"killed after {moment:.3f} s"
        count(name, f"killed at {kind}" if turn % 2 else "killed at a moment", outcome)
        try:
            check_end(outcome, killed=turn % 2 == 1 or outcome.code < 0)  # it may have ended before its moment
            check_left(world, before, folder, wanted, outcome)
            check_rerun(server, world, folder, wanted)
        except AssertionError as failed:
            failures.append(f"{said}: {failed}")
        shutil.rmtree(folder)
    assert not failures and kills == KILLS, "\n\n".join(failures)


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


def inputs_too_large(name: str, folder: Path, given: Path) -> Path:
    """The inputs of a run, and a photo of 81 megapixels or a film of 8 megapixels among them."""
    inputs = Path(shutil.copytree(given, folder / "large"))
    if name == "film":
        make_clip(inputs / "film.mp4", 3, size=(3840, 2160), pictures=[np.full((2160, 3840, 3), 90, np.uint8)] * 3)
    else:
        Image.new("RGB", (9000, 9000), (90, 120, 90)).save(inputs / "large.png")
    return inputs


@pytest.mark.parametrize("name", NAMES)
def test_memory_runs_out(
    name: str, server: Server, worlds: dict[str, World], undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    """Little memory for small inputs: torch itself may crash then. And enough for those, but not for a large one."""
    world, (_, wanted), stopped = worlds[name], undisturbed[name], 0
    before, limits = contents(world.inputs), (1, 8, 16, 24, 32, 40, 48, 64) if POINTS == "all" else (8, 24, 48)
    for limit in limits:
        folder = tmp_path / str(limit)
        folder.mkdir()
        outcome = server(world.command, world.arguments(world.inputs, folder), folder, memory=limit << 20)
        count(name, "little memory", outcome)
        assert outcome.code in (0, 1, 3) or (name == "training" and outcome.code in (-6, -11)), outcome
        assert outcome.code <= 0 or "not enough memory" in outcome.err, outcome.err
        assert "Traceback" not in outcome.err
        check_left(world, before, folder, wanted, outcome)
        check_rerun(server, world, folder, wanted)
        stopped += outcome.code > 0
    assert stopped
    inputs, folder = inputs_too_large(name, tmp_path, world.inputs), tmp_path / "of-large"
    folder.mkdir()
    before = contents(inputs)
    limit = (256 if name == "film" else 128) << 20
    outcome = server(world.command, world.arguments(inputs, folder), folder, memory=limit)
    count(name, "large input", outcome)
    check_end(outcome, killed=False)
    assert outcome.code == (3 if world.command == "deid" else 1), outcome
    assert "not enough memory" in outcome.err and contents(inputs) == before
    made = {path.name for path in folder.rglob("*") if path.is_file() and ".film.mp4.ficgan-work" not in str(path)}
    small = {"face.png", "face.png.json", "none.jpg", "none.jpg.json"} if name == "photo" else set[str]()
    assert made - {"manifest.jsonl"} == small
