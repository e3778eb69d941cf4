"""Made films whose every face is known: none is left uncovered, and the second look finds what is.

See tools/stress_films.py.
`FICGAN_STRESS` is the number of frames, `FICGAN_STRESS_SEED` says which films.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "stress_films.py"


@pytest.mark.slow
def test_no_face_is_left_uncovered_and_the_second_look_finds_those_that_are() -> None:
    frames, seed = os.environ.get("FICGAN_STRESS", "200"), os.environ.get("FICGAN_STRESS_SEED", "0")
    done = subprocess.run(
        [sys.executable, str(TOOL), "--frames", frames, "--seed", seed, "--length", "25"], capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    total = json.loads(done.stdout.splitlines()[-1])
    assert total["frames"] >= int(frames) and total["faces"] > total["frames"] and total["films"] >= 8
    assert total["uncovered"] == 0 and total["opened"] > 40 and total["recall"] >= 0.95
