"""Films through the installed commands, as a user calls them: from a pipe, reviewed and rendered, interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clips import ffmpeg, frames_of, make_clip
from PIL import Image
from skimage import data
from standin import interruptible

import ficgan.cli.deid as command

RUN = "import sys; from ficgan.cli.main import main; main()"


def start(*arguments: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(command.__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-c", RUN, *map(str, arguments)]
    with interruptible():
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def run(*arguments: Any) -> tuple[dict[str, Any], list[str]]:
    """Returns the final JSON and the lines on stderr."""
    process = start(*arguments)
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
        environment = {**os.environ, "PYTHONPATH": str(Path(command.__file__).parents[2])}
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
    process = start(*line)
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
