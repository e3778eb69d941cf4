"""`make demo` without its engine: a stand-in for ficgan-deid shows what the demonstration makes of its results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
STAND_IN = """#!{python}
import json, pathlib, shutil, sys
arguments = sys.argv[1:]
inputs = [pathlib.Path(path) for path in arguments[:arguments.index("-o")]]
out = pathlib.Path(arguments[arguments.index("-o") + 1])
out.mkdir(exist_ok=True)
assert arguments[arguments.index("--k") + 1] == "3000" and arguments[arguments.index("--layer") + 1] == "0"
for path in inputs[:{written}]:
    shutil.copy(path, out / path.name)
summary = dict(inputs=len(inputs), written={written}, failed=len(inputs) - {written}, faces=4, uncovered={uncovered},
               reidentified=0, seconds=1.25)
if {json}:
    print(json.dumps(summary, indent=1))
sys.exit({code})
"""


def demo(folder: Path, **behaviour: int) -> tuple[int, list[str]]:
    """Exit code and printed lines of the demonstration with a stand-in that behaves as told."""
    told = {"written": 2, "uncovered": 0, "code": 0, "json": True, **behaviour}
    stand_in = folder / "ficgan-deid"
    stand_in.write_text(STAND_IN.format(python=sys.executable, **told))
    stand_in.chmod(0o755)
    command = [sys.executable, ROOT / "tools" / "demo.py", "-o", folder / "out", "--command", stand_in]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout.splitlines()


@pytest.fixture(autouse=True)
def _scikit_image() -> None:
    pytest.importorskip("skimage")


def test_last_line_is_the_json_and_pictures_stand_where_it_says(tmp_path: Path) -> None:
    code, lines = demo(tmp_path)
    assert code == 0
    assert json.loads(lines[-1])["faces"] == 4
    named = [Path(line.strip()) for line in lines if line.strip().endswith("before-after.png")]
    assert len(named) == 2
    for path in named:
        with Image.open(path) as picture, Image.open(tmp_path / "out" / "before" / "astronaut.png") as one:
            assert min(picture.size) >= min(one.size)
    assert any("Every face found was replaced" in line for line in lines)


def test_failures_are_not_told_as_successes(tmp_path: Path) -> None:
    code, lines = demo(tmp_path, written=1, uncovered=2, code=3)
    text = "\n".join(lines)
    assert code == 3
    assert "NOT COVERED: 2" in text and "FAILED" in text and "Every face" not in text


def test_an_earlier_result_does_not_pass_for_a_new_one(tmp_path: Path) -> None:
    demo(tmp_path)
    _, lines = demo(tmp_path, written=1, code=3)
    assert sum(line.strip().endswith("before-after.png") for line in lines) == 1


def test_without_a_result_it_fails(tmp_path: Path) -> None:
    code, lines = demo(tmp_path, written=0, code=1, json=False)
    assert code == 1
    assert not lines[-1].startswith("{")
