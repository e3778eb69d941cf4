"""Damaged files of every kind are read or refused in a sentence; see tools/fuzz.py.

`FICGAN_FUZZ` is the number of files, `FICGAN_FUZZ_SEED` says which.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "fuzz.py"
PATHS = [str(TOOL.parents[1]), os.environ.get("PYTHONPATH", "")]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, PATHS))}
PROBE = """
import os, sys, time
from pathlib import Path
import numpy as np
sys.path.insert(0, {folder!r})
import fuzz
fuzz.SECONDS, fuzz.MEMORY = 2, 256 << 20
def spin(path, out):
    while True: pass
def eat(path, out): np.ones(1 << 29, np.uint8)
def write(path, out): (path.parent / "else").write_text("x")
def escape(path, out): Path("../../x").write_text("x")
def crash(path, out): os.abort()
def odd(path, out): raise KeyError("x")
def inside(path, out): (out / "a").write_text("x")
readers = {{reader.__name__: reader for reader in (spin, eat, write, escape, crash, odd, inside)}}
read = fuzz.Worker(readers, Path({work!r}))
for name in readers:
    print(read(name, "a.bin", b"x"))
read.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_damaged_files_are_read_or_refused() -> None:
    count, seed = os.environ.get("FICGAN_FUZZ", "300"), os.environ.get("FICGAN_FUZZ_SEED", "0")
    done = subprocess.run(
        [sys.executable, str(TOOL), "--count", count, "--seed", seed],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_driver_sees_every_fault(tmp_path: Path) -> None:
    code = PROBE.format(folder=str(TOOL.parent), work=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.stdout.splitlines() == [
        "hang: more than 2 s",
        "memory: more than 256 MB",
        "outside: wrote ['a/b/in/else']",
        "outside: wrote ['a/x']",
        "crash: signal 6",
        "crash: KeyError: 'x'",
        "read",
    ], done.stderr


def test_counts_go_on_where_they_ended(tmp_path: Path) -> None:
    log, counts = tmp_path / "log.json", []
    for count in ("6", "12"):
        done = subprocess.run(
            [sys.executable, str(TOOL), "--count", count, "--kinds", "table,settings", "--log", str(log)],
            capture_output=True,
            text=True,
            check=False,
            env=ENVIRONMENT,
        )
        assert done.returncode == 0, done.stderr
        counts.append(json.loads(log.read_text())["formats"])
        assert json.loads(done.stdout)["files"] == int(count) == sum(sum(one.values()) for one in counts[-1].values())
    assert all(counts[1][name][what] >= number for name, one in counts[0].items() for what, number in one.items())
