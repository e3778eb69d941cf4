"""Progress and messages, all of it on stderr: a bar on a terminal, lines of text or of JSON where asked for."""

from __future__ import annotations

import json
import sys
from types import TracebackType
from typing import Any, Literal, Self

import click
from tqdm import tqdm

__all__ = ["MODES", "Mode", "Progress"]

Mode = Literal["auto", "text", "jsonl", "none"]
MODES: tuple[Mode, ...] = ("auto", "text", "jsonl", "none")


class Progress:
    """Says how far a command is; call it as `progress(done, total, stage)`.

    Args:
        mode: `auto`: a bar on a terminal, else nothing; `text`: a bar on a terminal, else a line per step; `jsonl`: a
            JSON object per step and per message; `none`: messages only.
        unit: What is counted, in the singular.
        quiet: No progress and no messages but errors.
    """

    def __init__(self, mode: Mode = "auto", *, unit: str = "image", quiet: bool = False) -> None:
        self._json = mode == "jsonl" and not quiet
        terminal = sys.stderr.isatty()
        self._wants_bar = mode in ("auto", "text") and terminal and not quiet
        self._lines = mode == "text" and not terminal and not quiet
        self._quiet = quiet
        self._unit = unit
        self._bar: tqdm[Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __call__(self, done: int, total: int, stage: str = "") -> None:
        """Step `done` of `total` is reached; `stage` says what was worked on."""
        if self._json:
            self._say_json({"done": done, "total": total, "stage": stage})
        elif self._lines:
            click.echo(f"{done}/{total} {stage}".rstrip(), err=True)
        elif self._wants_bar:
            if self._bar is None:
                self._bar = tqdm(total=total, unit=self._unit, file=sys.stderr, dynamic_ncols=True)
            self._bar.total = total
            self._bar.update(done - self._bar.n)

    def info(self, message: str) -> None:
        """Something worth knowing; left out when quiet."""
        if not self._quiet:
            self._say("info", message)

    def error(self, message: str) -> None:
        """Something went wrong; always said."""
        self._say("error", message)

    def _say(self, level: str, message: str) -> None:
        if self._json:
            self._say_json({"level": level, "message": message})
            return
        text = f"Error: {message}" if level == "error" else message
        if self._bar is not None:
            self._bar.clear()  # or the line and the bar write over each other
        click.echo(text, err=True)
        if self._bar is not None:
            self._bar.refresh()

    @staticmethod
    def _say_json(event: dict[str, Any]) -> None:
        click.echo(json.dumps(event, ensure_ascii=False), err=True)
