"""Damaged files of every kind are read or refused in a sentence; see tools/fuzz.py.

`FICGAN_FUZZ` is the number of files, `FICGAN_FUZZ_SEED` says which.
"""

from __future__ import annotations

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
def crash(path, out): os.abort()
def odd(path, out): raise KeyError("x")
def inside(path, out): (out / "a").write_text("x")
for reader in (spin, eat, write, crash, odd, inside):
    print(fuzz.run_case(reader, "a.bin", b"x", Path({work!r})))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_damaged_files_are_read_or_refused() -> None:
    count, seed = os.environ.get("FICGAN_FUZZ", "300"), os.environ.get("FICGAN_FUZZ_SEED", "0")
    done = subprocess.run(
        [sys.executable, str(TOOL), "--count", count, "--seed", seed], capture_output=True, text=True, check=False,
        env=ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_driver_sees_every_fault(tmp_path: Path) -> None:
    code = PROBE.format(folder=str(TOOL.parent), work=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=ENVIRONMENT
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "took more than 2 s", "needed more than 256 MB", "wrote ['in/else']", "died of signal 6",
        "raised KeyError: 'x'", "read",
    ], done.stderr  # fmt: skip
