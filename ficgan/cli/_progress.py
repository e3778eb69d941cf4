"""Progress and messages, all of it on stderr: a bar on a terminal, lines of text or of JSON where asked for."""

from __future__ import annotations

import json
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import click

from ficgan.cli._errors import printable

if TYPE_CHECKING:
    from tqdm import tqdm

__all__ = ["MODES", "Mode", "Progress"]

_EVERY = 0.5
"""Seconds between two lines about the frames of a film."""
_SELDOM = 60.0
"""Seconds between two lines where nobody watches a terminal."""

Mode = Literal["auto", "text", "jsonl", "none"]
MODES: tuple[Mode, ...] = ("auto", "text", "jsonl", "none")


class Progress:
    """Reports how far a command is; call it as `progress(done, total, stage)`, and `frames` within a film.

    Args:
        mode: `auto`: a bar on a terminal, else a line a minute; `text`: a bar on a terminal, else a line per step;
            `jsonl`: a JSON object per step and per message; `none`: messages only.
        unit: what is counted, in the singular.
        quiet: no progress and no messages but errors.
    """

    def __init__(self, mode: Mode = "auto", *, unit: str = "image", quiet: bool = False) -> None:
        self._json = mode == "jsonl" and not quiet
        terminal = sys.stderr.isatty()
        self._wants_bar = mode in ("auto", "text") and terminal and not quiet
        self._lines = mode == "text" and not terminal and not quiet
        self._seldom = mode == "auto" and not terminal and not quiet
        self._quiet = quiet
        self._unit = unit
        self._bar: tqdm[Any] | None = None
        self._film_bar: tqdm[Any] | None = None
        self._film: tuple[str, str] | None = None
        self._said = 0.0
        self._minute = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_film()
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __call__(self, done: int, total: int, stage: str = "") -> None:
        """Step `done` of `total` is reached; `stage` says what was worked on."""
        self._close_film()
        if done < total:
            self._line_a_minute(f"{done} of {total} done")
        if self._json:
            self._say_json({"done": done, "total": total, "unit": self._unit, "stage": stage})
        elif self._lines:
            click.echo(printable(f"{done}/{total} {stage}".rstrip()), err=True)
        else:
            self._show(done, total)

    def begin(self, total: int) -> None:
        """Show the bar before the first step: loading may take a while."""
        self._minute = time.monotonic()
        self._show(0, total)

    def _show(self, done: int, total: int) -> None:
        if not self._wants_bar:
            return
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(total=total, unit=self._unit, file=sys.stderr, dynamic_ncols=True)
        self._bar.total = total
        self._bar.update(done - self._bar.n)
        self._bar.refresh()

    def _line_a_minute(self, text: str) -> None:
        if self._seldom and time.monotonic() - self._minute >= _SELDOM:
            self._minute = time.monotonic()
            click.echo(text, err=True)

    def frames(self, done: int, total: int | None, name: str, stage: str) -> None:
        """Frame `done` of a film's `total` (None: nobody knows) is reached; lines come about twice a second."""
        label = f"{name}: {stage}" if self._json else printable(f"{name}: {stage}")
        self._line_a_minute(f"{label}, frame {done}{'' if total is None else f' of {total}'}")
        new = self._film != (name, stage)
        if self._json or self._lines:
            if not (new or done == total or time.monotonic() - self._said >= _EVERY):
                return
            self._film, self._said = (name, stage), time.monotonic()
            if self._json:
                self._say_json({"done": done, "total": total, "unit": "frame", "stage": label})
            else:
                click.echo(f"{label}: frame {done}{'' if total is None else f' of {total}'}", err=True)
        elif self._wants_bar:
            if new or self._film_bar is None:
                from tqdm import tqdm

                self._close_film()
                self._film = (name, stage)
                self._film_bar = tqdm(
                    total=total, initial=done - 1, desc=label, unit="frame", file=sys.stderr, dynamic_ncols=True,
                    leave=False, position=0 if self._bar is None else 1,
                )  # fmt: skip
            self._film_bar.total = total
            self._film_bar.update(done - self._film_bar.n)

    def _close_film(self) -> None:
        self._film = None
        if self._film_bar is not None:
            self._film_bar.close()
            self._film_bar = None

    def info(self, message: str) -> None:
        if not self._quiet:
            self._say("info", message)

    def error(self, message: str) -> None:
        self._say("error", message)

    def _say(self, level: str, message: str) -> None:
        if self._json:
            self._say_json({"level": level, "message": message})
            return
        text = printable(f"Error: {message}" if level == "error" else message)
        bars = [bar for bar in (self._film_bar, self._bar) if bar is not None]
        for bar in bars:
            bar.clear()  # or the line and the bar write over each other
        click.echo(text, err=True)
        for bar in reversed(bars):
            bar.refresh()

    @staticmethod
    def _say_json(event: dict[str, Any]) -> None:
        click.echo(json.dumps(event, ensure_ascii=False), err=True)
