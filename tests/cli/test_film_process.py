"""Films through the installed commands, as a user calls them: bad input, a full disk, an interrupt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from clips import ffmpeg, make_clip
from numpy.typing import NDArray
from PIL import Image
from skimage import data
from standin import interruptible

import ficgan.cli.deid as command

RUN = "import sys; from ficgan.cli.main import main; main()"


def start(*arguments: Any, before: str = "") -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(command.__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-c", before + RUN, *map(str, arguments)]
    with interruptible():
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def run(*arguments: Any, code: int = 0, before: str = "") -> tuple[dict[str, Any], list[str]]:
    """Returns the final JSON and the lines on stderr."""
    process = start(*arguments, before=before)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == code, stderr
    assert "Traceback" not in stderr
    return json.loads(stdout) if stdout else {}, stderr.splitlines()


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def frames(path: Path) -> NDArray[np.int16]:
    with av.open(str(path)) as file:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]).astype(np.int16)


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
def test_bad_films_fail_each_in_a_sentence_and_stop_nobody(clip: Path, tmp_path: Path) -> None:
    bad = tmp_path / "in"
    bad.mkdir()
    ffmpeg("-i", str(clip), "-c", "copy", str(tmp_path / "whole.mkv"))
    ffmpeg("-i", str(clip), "-vn", "-c", "copy", str(bad / "audio.mp4"))
    whole = (tmp_path / "whole.mkv").read_bytes()
    (bad / "cut.mkv").write_bytes(whole[: len(whole) * 6 // 10])
    (bad / "headless.mp4").write_bytes(clip.read_bytes()[:9000])
    (bad / "text.mp4").write_text("no film")
    (bad / "empty.mp4").touch()
    (bad / "z-good.mp4").write_bytes(clip.read_bytes())
    before = names(bad)
    summary, said = run(
        "deid", bad, bad / "missing.mp4", "-o", tmp_path / "out", "--mode", "solid", "--verify", "off", code=3
    )
    assert (summary["inputs"], summary["written"], summary["failed"], summary["damaged"]) == (7, 2, 5, 1)
    assert names(tmp_path / "out") == {"cut.mkv", "cut.mkv.json", "manifest.jsonl", "z-good.mp4", "z-good.mp4.json"}
    assert names(bad) == before and summary["frames"] > 45
    errors = [line for line in said if line.startswith("Error: ")]
    for name, words in {
        "audio.mp4": "no video stream",
        "headless.mp4": "no video",
        "text.mp4": "no video",
        "empty.mp4": "no video",
        "missing.mp4": "no such file",
        "cut.mkv": "cut off at",
    }.items():
        (line,) = (line for line in errors if f"{bad / name}: " in line)
        assert words in line
    assert len(errors) == 6 and len(said) == 7  # and the word on voices
    assert np.array_equal(frames(tmp_path / "out/z-good.mp4").shape, (45, 208, 288, 3))


@pytest.mark.slow
def test_a_film_from_a_pipe(clip: Path, tmp_path: Path) -> None:
    ffmpeg("-i", str(clip), "-an", "-c", "copy", str(tmp_path / "clip.mkv"))
    words = ["deid", "pipe:0", "-o", str(tmp_path / "b.mp4"), "--mode", "solid", "--verify", "off"]
    with (tmp_path / "clip.mkv").open("rb") as stdin:
        environment = {**os.environ, "PYTHONPATH": str(Path(command.__file__).parents[2])}
        done = subprocess.run([sys.executable, "-c", RUN, *words], stdin=stdin, capture_output=True, env=environment)
    assert done.returncode == 0 and json.loads(done.stdout)["frames"] == 45 and b"keep up" not in done.stderr
    assert len(frames(tmp_path / "b.mp4")) == 45


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
    out, source = frames(tmp_path / "out.mp4"), frames(clip)
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


PIECES = """import dataclasses; from ficgan.cli import _options as opts; usual = opts.video_settings
opts.video_settings = lambda given: dataclasses.replace(usual(given), segment=0.3)
"""
# Runs before the command: an interrupted film is done again from its last whole part, of 0.3 s here.


@pytest.fixture(scope="module")
def whole(clip: Path) -> Path:
    """What an uninterrupted run makes of the clip."""
    out = clip.parent / "whole.mp4"
    run("deid", clip, "-o", out, "--seed", 3, before=PIECES)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_films_go_on(clip: Path, whole: Path, tmp_path: Path, sent: signal.Signals) -> None:
    folder = tmp_path / "out"
    line = ("deid", clip, "-o", folder / "clip.mp4", "--seed", 3, "--progress", "jsonl")
    process = start(*line, before=PIECES)
    assert process.stderr is not None
    for text in process.stderr:
        event = json.loads(text)
        if event.get("stage", "").endswith("checking"):
            process.send_signal(sent)
            break
    stdout, _ = process.communicate(timeout=240)
    if sent != signal.SIGKILL:
        assert process.returncode == 130 and json.loads(stdout)["interrupted"] is True
    assert names(folder) >= {".clip.mp4.ficgan-work"} and "clip.mp4" not in names(folder)
    _, said = run(*line, before=PIECES)
    events = [json.loads(text) for text in said]
    assert not any("analysing" in event.get("stage", "") for event in events)
    assert names(folder) == {"clip.mp4", "clip.mp4.json"}
    one, other = (json.loads(path.read_text()) for path in (folder / "clip.mp4.json", Path(f"{whole}.json")))
    assert one["faces_by_action"] == other["faces_by_action"] == {"generated": 45}
    assert one["draws"] == other["draws"]
    # Detectors and encoders use several threads: two whole runs differ by as much.
    assert np.abs(frames(folder / "clip.mp4") - frames(whole)).mean() < 0.5
