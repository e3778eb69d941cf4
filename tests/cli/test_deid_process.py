"""Commands as processes of their own: exit codes, signals, pipes; films reviewed, rendered and interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clips import ffmpeg, frames_of, make_clip
from PIL import Image
from skimage import data
from standin import ROOT, files, photo, started

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
    return started(script, *arguments)


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


RUN = "import sys; from ficgan.cli.main import main; main()"


def run(*arguments: Any) -> tuple[dict[str, Any], list[str]]:
    """Returns the final JSON and the lines on stderr."""
    process = started("-c", RUN, *arguments)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert "Traceback" not in stderr
    return json.loads(stdout) if stdout else {}, stderr.splitlines()


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """45 frames of a face that moves to the right, with sound."""
    face = np.asarray(Image.fromarray(data.astronaut()[:220, 120:330]).resize((150, 158)))
    pictures = []
    for n in range(45):
        picture = np.full((208, 288, 3), 110, np.uint8)
        picture[40:198, 20 + 2 * n : 170 + 2 * n] = face
        pictures.append(picture)
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    make_clip(path, 45, size=(288, 208), pictures=pictures, audio="aac", audio_seconds=1.5)
    return path


@pytest.mark.slow
def test_a_film_from_a_pipe(clip: Path, tmp_path: Path) -> None:
    ffmpeg("-i", str(clip), "-an", "-c", "copy", str(tmp_path / "clip.mkv"))
    words = ["deid", "pipe:0", "-o", str(tmp_path / "b.mp4"), "--mode", "solid", "--verify", "off"]
    with (tmp_path / "clip.mkv").open("rb") as stdin:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", RUN, *words], stdin=stdin, capture_output=True, env=environment)
    assert done.returncode == 0 and json.loads(done.stdout)["frames"] == 45 and b"keep up" not in done.stderr
    assert len(frames_of(tmp_path / "b.mp4")) == 45


@pytest.mark.slow
def test_review_and_render(clip: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    summary, _ = run("analyse", clip, "-o", project)
    assert (summary["tracks"], summary["people"]) == (1, 1)
    tree = json.loads((project / "project.json").read_text())
    tree["decisions"]["people"] = {"1": {"mode": "keep", "reason": "consent"}}
    tree["decisions"]["spans"] = [
        {"mode": "solid", "from": 1.0, "to": 1.2},
        {"mode": "solid", "from": 0.5, "person": 1},
    ]
    tree["regions"] = [{"first": 3, "last": 5, "mode": "solid", "box": [200, 4, 280, 30]}]
    (project / "project.json").write_text(json.dumps(tree))
    summary, _ = run("render", project, clip, "-o", tmp_path / "out.mp4", "--verify", "full")
    record = json.loads((tmp_path / "out.mp4.json").read_text())
    assert record["faces_by_action"] == {"kept": 15, "solid": 30, "region": 3} and summary["reidentified"] == 0
    assert [exemption["reason"] for exemption in record["exemptions"]] == ["consent"]
    out, source = (np.stack(frames_of(path)).astype(int) for path in (tmp_path / "out.mp4", clip))
    middle = [(slice(100, 125), slice(85 + 2 * n, 105 + 2 * n)) for n in range(45)]  # of the face, frame by frame
    dark = np.array([(out[n][place] < 40).mean() for n, place in enumerate(middle)])
    change = np.array([np.abs(out[n][place] - source[n][place]).max() for n, place in enumerate(middle)])
    assert (dark[15:] > 0.9).all() and (change[:15] < 60).all()
    assert (out[3:6, 10:24, 210:270] < 40).all() and (out[[2, 6], 10:24, 210:270] > 80).all()
    (tmp_path / "decisions.json").write_text('{"schema": "ficgan-video-decisions/1", "people": {"1": "mosaic"}}')
    run("render", project, clip, "-o", tmp_path / "2.mp4", "--decisions", tmp_path / "decisions.json")
    record = json.loads((tmp_path / "2.mp4.json").read_text())
    assert record["faces_by_action"] == {"mosaic": 15, "solid": 30, "region": 3} and record["exemptions"] == []
    run("purge", project)
    assert names(tmp_path) == {"out.mp4", "out.mp4.json", "2.mp4", "2.mp4.json", "decisions.json"}


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_films_go_on(clip: Path, tmp_path: Path, sent: signal.Signals) -> None:
    """That they become what they would have been is tested with the job; where they are killed, among the faults."""
    line = ("deid", clip, "-o", tmp_path / "clip.mp4", "--seed", 3, "--progress", "jsonl")
    process = started("-c", RUN, *line)
    assert process.stderr is not None
    for text in process.stderr:
        if json.loads(text).get("stage", "").endswith("checking"):
            process.send_signal(sent)
            break
    stdout, _ = process.communicate(timeout=240)
    assert process.returncode == 130 and json.loads(stdout)["interrupted"] is True
    assert names(tmp_path) >= {".clip.mp4.ficgan-work"} and "clip.mp4" not in names(tmp_path)
    _, said = run(*line)
    assert not any("analysing" in json.loads(text).get("stage", "") for text in said)
    assert names(tmp_path) == {"clip.mp4", "clip.mp4.json"}
    assert json.loads((tmp_path / "clip.mp4.json").read_text())["faces_by_action"] == {"generated": 45}
