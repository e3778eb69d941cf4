"""Photos and films on a system without what Linux alone has; it is hidden in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

HIDING = """
import os, signal, sys
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for home, names in (
    (os, ("fchmod", "fchown", "sched_getaffinity", "killpg", "fork", "getuid", "O_NOFOLLOW", "O_DIRECTORY")),
    (signal, ("SIGKILL", "SIGXCPU", "SIGHUP", "SIGPIPE", "SIGUSR1", "SIGALRM", "pthread_sigmask", "setitimer")),
):
    for name in names:
        if hasattr(home, name):
            delattr(home, name)
from ficgan.cli.main import deid_main
sys.argv[0] = "ficgan-deid"
deid_main()
"""


@pytest.mark.slow
def test_a_photo_and_a_film_without_fcntl_resource_and_signals(tmp_path: Path, astronaut: np.ndarray) -> None:
    import av

    Image.fromarray(astronaut).save(tmp_path / "a.png")
    with av.open(str(tmp_path / "b.mp4"), "w") as file:
        stream = file.add_stream("libx264", rate=Fraction(5))
        height, width = (side // 2 * 2 for side in astronaut.shape[:2])
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for _ in range(3):
            file.mux(stream.encode(av.VideoFrame.from_ndarray(astronaut[:height, :width], format="rgb24")))
        file.mux(stream.encode(None))
    command = [sys.executable, "-c", HIDING, str(tmp_path), "-o", str(tmp_path / "out"), "--seed", "1", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout.splitlines()[-1])
    assert (record["written"], record["failed"], record["masked"]) == (2, 0, 0) and record["faces"] == 2
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"a.png", "b.mp4", "a.png.json", "b.mp4.json"}
