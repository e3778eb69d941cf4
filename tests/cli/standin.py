"""A stand-in for the model, and calls of the command around it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner
from PIL import Image

import ficgan.cli.deid as command

KEYS = {"inputs", "written", "failed", "faces", "uncovered", "reidentified", "seconds", "skipped", "no_face"}


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


def photo(path: Path, colour: tuple[int, int, int] = BLUE, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (48, 32), colour).save(path, **options)
    return path


def call(*arguments: Any, code: int = 0) -> tuple[dict[str, Any], str]:
    """Run the command; returns its final JSON and what it said on stderr."""
    outcome = CliRunner().invoke(command.deid, [str(argument) for argument in arguments])
    assert outcome.exit_code == code, outcome.output
    assert "Traceback" not in outcome.stderr
    if code in (1, 2):
        assert outcome.stdout == ""
        return {}, outcome.stderr
    summary = json.loads(outcome.stdout)
    assert outcome.stdout.count("\n") == 1 and set(summary) >= KEYS
    return summary, outcome.stderr


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
