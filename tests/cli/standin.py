"""A stand-in for the model, and calls of the command around it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from stand_ins import invoke

import ficgan.cli.deid as command
from ficgan.errors import InputError
from ficgan.video.project import Project, Source
from ficgan.video.rendered import VideoResult

ROOT = Path(__file__).resolve().parents[2]
KEYS = {
    *("inputs", "written", "failed", "faces", "uncovered", "reidentified", "seconds", "skipped", "no_face", "frames"),
    *("damaged", "review"),
}
BLUE, GREEN = (30, 60, 200), (20, 120, 40)


@dataclass
class Face:
    action: str = "generated"


@dataclass
class Result:
    image: np.ndarray
    faces: list[Face]
    audit: dict[str, Any] = field(default_factory=dict)
    uncovered: int = 0
    reidentified: int = 0


class StandIn:
    """Finds one face, a 12×12 box, in every photo that has a blue pixel at its top left, and paints it red."""

    def __init__(self, change: Callable[[Result], None] = lambda result: None) -> None:
        self.settings: dict[str, Any] = {}
        self.keys: list[str] = []
        self.loaded = 0
        self.films: list[dict[str, Any]] = []
        """Calls of the three ways with films."""
        self.film = VideoResult(Path("film"), frames=25, seconds=1.0, tracks=2, people=2, faces={"generated": 40})
        """What is said of every film."""
        self._change = change

    def load(self, **settings: Any) -> StandIn:
        self.settings = settings
        self.loaded += 1
        return self

    def __call__(self, image: np.ndarray, *, key: str = "") -> Result:
        self.keys.append(key)
        print("a library that talks on stdout")
        has_face = tuple(image[0, 0] // 64) == tuple(np.array(BLUE) // 64)
        result = Result(image.copy(), [Face()] if has_face else [], {"k": self.settings["k"], "faces": []})
        if has_face:
            result.image[8:20, 8:20] = (255, 0, 0)
        self._change(result)
        return result

    def process_video(self, source: Any, output: Path, *, progress: Any, **options: Any) -> VideoResult:
        self.films.append({"source": source, "output": output, **options})
        print("a library that talks on stdout")
        if Path(source).is_file() and Path(source).read_bytes() == b"broken":
            raise InputError(f"{source}: is no video")
        for done in range(1, 26):
            progress(done, 25, "rendering")
        Path(output).write_bytes(b"a film")
        return replace(self.film, output=Path(output))

    def render_video(self, folder: str, source: Any, output: Path, **options: Any) -> VideoResult:
        return self.process_video(source, output, folder=folder, **options)

    def analyse_video(self, source: Any, folder: str, *, progress: Any, **options: Any) -> Project:
        self.films.append({"source": source, "folder": folder, **options})
        progress(1, None, "analysing")
        return Project(Source(name="film.mp4", width=8, height=8, time_base="1/25"), np.arange(25), [])


def photo(path: Path, colour: tuple[int, int, int] = BLUE, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (48, 32), colour).save(path, **options)
    return path


def film(path: Path, content: bytes = b"a film's bytes") -> Path:
    """A file that only a stand-in takes for a film."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def call(*arguments: Any, code: int = 0, of: Any = command.deid, silent: bool = False) -> tuple[dict[str, Any], str]:
    """Run a command; returns its final JSON, which it must not print if `silent`, and what it said on stderr."""
    found, said, err = invoke(of, *arguments)
    assert found == code, err
    if code in (1, 2) or silent:
        assert said == ""
        return {}, err
    summary = json.loads(said)
    assert said.count("\n") == 1 and (of is not command.deid or set(summary) >= KEYS)
    return summary, err


def started(*words: object) -> subprocess.Popen[str]:
    """A Python that hears Ctrl-C, though a shell that runs the tests in the background forbade it."""
    heard = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        line = [sys.executable, *map(str, words)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    finally:
        signal.signal(signal.SIGINT, heard)


def files(folder: Path) -> set[str]:
    """All files below a folder but the manifest of a run, which tests/cli/test_manifest.py looks at."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.jsonl")
    return {str(path.relative_to(folder)) for path in found}
