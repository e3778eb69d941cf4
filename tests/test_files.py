"""Temporary files: a living process keeps its own, those of a killed one go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ficgan import files

pytest.importorskip("fcntl")
WRITES = """
import sys, time
from ficgan.files import atomic_write
with atomic_write(sys.argv[1]) as file:
    file.write(b"x")
    print("writing", flush=True)
    time.sleep(60)
"""


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITES, str(tmp_path / "a")], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline()
    (left,) = os.listdir(tmp_path)
    os.utime(tmp_path / left, (0, 0))
    with files.atomic_write(tmp_path / "b") as file:
        file.write(b"b")
    assert set(os.listdir(tmp_path)) == {"b", left}, "another process still writes it"
    process.kill()
    process.communicate()
    files._swept.clear()  # as a new process begins
    (tmp_path / ".ficgan-mine.tmp").write_bytes(b"of somebody else")
    with files.partial_file(tmp_path / "c") as temporary:
        temporary.write_bytes(b"c")
        files.remove_leftovers(tmp_path)
    assert set(os.listdir(tmp_path)) == {"b", "c", ".ficgan-mine.tmp"} and (tmp_path / "c").read_bytes() == b"c"
