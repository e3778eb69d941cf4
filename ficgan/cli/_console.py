"""What a command says on stderr, and how it ends: progress, messages, errors as one sentence, exit codes."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, ParamSpec, Self, TypeVar

import click

from ficgan.errors import INTERRUPTED, FicganError, memory_ran_out

if TYPE_CHECKING:
    from tqdm import tqdm


EXIT_FAILED = 1
EXIT_SOME_FAILED = 3
EXIT_INTERRUPTED = INTERRUPTED

P = ParamSpec("P")
R = TypeVar("R")


# Control characters, marks that turn the direction of text, and bytes of names that are not UTF-8.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """A text for a terminal: names of files may hold line ends and escape sequences, which could forge a message."""
    return _UNPRINTABLE.sub(lambda found: _escaped(ord(found[0])), text)


def _escaped(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:  # a byte that Python kept in a name (surrogateescape)
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived; treated exactly like Ctrl-C, so that the same clean-up runs."""


def handle_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Turn whatever a command raises into a sentence on stderr and an exit code; goes below `@click.command()`.

    `FicganError` exits with its own code (1, 2 or 3), Ctrl-C and SIGTERM with 130, a closed output pipe quietly with 1,
    anything unforeseen with 1 and its type. `FICGAN_DEBUG=1` shows the traceback of the last kind.
    """

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        _keep_no_core()
        try:
            with _sigterm_interrupts():
                return command(*args, **kwargs)
        except (click.ClickException, click.exceptions.Exit):
            raise  # click's own: it prints them and knows their exit codes
        except FicganError as error:
            _fail(f"Error: {sentence(error)}", EXIT_FAILED if memory_ran_out(error) else error.exit_code)
        except (KeyboardInterrupt, click.Abort) as error:
            said = " ".join(str(error).split())  # what training says of its state; Ctrl-C itself says nothing
            _fail(f"Interrupted: {said}" if said else "Interrupted.", EXIT_INTERRUPTED)
        except BrokenPipeError:
            _silence_stdout()
            raise SystemExit(EXIT_FAILED) from None
        except Exception as error:
            if os.environ.get("FICGAN_DEBUG"):
                raise
            _fail(f"Error: {sentence(error)}", EXIT_FAILED)

    return wrapped


def _keep_no_core() -> None:
    """A crash leaves no image of the memory, which holds source faces; `FICGAN_DEBUG=1` allows it."""
    if not os.environ.get("FICGAN_DEBUG"):
        with suppress(ImportError, OSError, ValueError):  # Windows has no such limit
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def sentence(error: BaseException) -> str:
    """One line that names an error: its message where it is ours, its type as well where it is not."""
    text = " ".join(str(error).split())
    if isinstance(error, FicganError) and text and ("memory" in text or not memory_ran_out(error)):
        return text
    if memory_ran_out(error):
        return "not enough memory: allow more, run less at once (--jobs, --batch), or take smaller files"
    if isinstance(error, OSError) and error.strerror:
        where = f": {os.fspath(error.filename)!s}" if error.filename is not None else ""
        return f"{error.strerror}{where}"
    named = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if not isinstance(error, ImportError):
        return named
    from ficgan.diagnosis import import_remedy

    return f"{named} ({import_remedy(error)})"


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # Python allows handlers only there
        yield
        return

    def on_sigterm(signum: int, frame: object) -> NoReturn:
        raise Terminated

    previous = signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous if previous is not None else signal.SIG_DFL)


def _fail(message: str, code: int) -> NoReturn:
    with suppress(OSError):  # stderr itself may be gone
        click.echo(printable(message), err=True)
    raise SystemExit(code) from None


def _silence_stdout() -> None:
    """Point stdout at the null device, or the interpreter's flush at exit complains about the closed pipe once more."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# Seconds between two lines about the frames of a film.
_EVERY = 0.5
# Seconds between two lines where nobody watches a terminal.
_SELDOM = 60.0

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
        self._status = ""
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        if self._seldom:  # from a thread of its own, since a step may take hours
            threading.Thread(target=self._line_a_minute, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._close_film()
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __call__(self, done: int, total: int, stage: str = "") -> None:
        """Step `done` of `total` is reached; `stage` says what was worked on."""
        self._close_film()
        self._status = f"{done} of {total} done{f', {stage}' if stage else ''}" if done < total else ""
        if self._json:
            self._say_json({"done": done, "total": total, "unit": self._unit, "stage": stage})
        elif self._lines:
            click.echo(printable(f"{done}/{total} {stage}".rstrip()), err=True)
        else:
            self._show(done, total)

    def begin(self, total: int) -> None:
        """Show the bar before the first step: loading may take a while."""
        self._status = f"0 of {total} done"
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

    def _line_a_minute(self) -> None:
        while not self._ended.wait(_SELDOM):
            if self._status:
                click.echo(printable(self._status), err=True)

    def frames(self, done: int, total: int | None, name: str, stage: str) -> None:
        """Frame `done` of a film's `total` (None: nobody knows) is reached; lines come about twice a second."""
        label = f"{name}: {stage}" if self._json else printable(f"{name}: {stage}")
        self._status = f"{label}, frame {done}{'' if total is None else f' of {total}'}"
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
                    total=total,
                    initial=done - 1,
                    desc=label,
                    unit="frame",
                    file=sys.stderr,
                    dynamic_ncols=True,
                    leave=False,
                    position=0 if self._bar is None else 1,
                )
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
