"""`ficgan-deid` as a process of its own: exit codes, signals, pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from standin import files, interruptible, photo

import ficgan.cli.deid as command

SCRIPT = """
import sys, time
import numpy as np
import ficgan.cli.deid as command
import ficgan.files as files

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
        time.sleep(600)
    return Result(image)

if {where!r} == "write":
    def fsync(_):
        if count >= 2:  # threads may be ahead of what is written
            print("now", file=sys.stderr, flush=True)
            time.sleep(600)
    files.os.fsync = fsync

command.cpus = lambda: {threads}
command.make_engine = lambda **_: engine
command.deid(prog_name="ficgan-deid")
"""


def start(folder: Path, where: str, *arguments: Any, threads: int = 1) -> subprocess.Popen[str]:
    script = folder / "run.py"
    script.write_text(textwrap.dedent(SCRIPT.format(where=where, threads=threads)))
    line = [sys.executable, str(script), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(command.__file__).parents[2])}
    with interruptible():
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize(
    ("where", "sent", "threads"),
    [
        ("engine", signal.SIGINT, 2),
        ("write", signal.SIGTERM, 1),
        pytest.param("engine", signal.SIGTERM, 1, marks=pytest.mark.slow),
        pytest.param("write", signal.SIGINT, 2, marks=pytest.mark.slow),
    ],
)
def test_interrupted(tmp_path: Path, where: str, sent: signal.Signals, threads: int) -> None:
    for name in "abc":
        photo(tmp_path / f"in/{name}.png")
    process = start(tmp_path, where, tmp_path / "in", "-o", tmp_path / "out", threads=threads)
    assert process.stderr is not None
    assert process.stderr.readline() == "now\n"
    process.send_signal(sent)
    stdout, stderr = process.communicate(timeout=120)  # it sleeps for 600 s
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == "Interrupted: the same command with --skip-existing does the rest"
    assert "Traceback" not in stderr
    summary = json.loads(stdout)
    assert summary["interrupted"] is True and summary["written"] < 3
    done = [name for name in files(tmp_path / "out") if name.endswith(".png")]
    assert len(done) == summary["written"] and (threads == 2 or len(done) == 1)
    assert files(tmp_path / "out") == {f"{name}{end}" for name in done for end in ("", ".json")}, "nothing half done"


@pytest.mark.slow
def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    photo(tmp_path / "a.png")
    process = start(tmp_path, "", tmp_path / "a.png")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=240) == 1
    assert process.stderr.read() == ""
    process.stderr.close()
