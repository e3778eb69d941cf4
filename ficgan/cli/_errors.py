"""What a command does with an error: one sentence on stderr and the right exit code, never a traceback."""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn, ParamSpec, TypeVar

import click

from ficgan.errors import FicganError
from ficgan.interrupts import INTERRUPTED, last_resort, noticing

__all__ = [
    "EXIT_FAILED", "EXIT_INTERRUPTED", "EXIT_SOME_FAILED", "Terminated", "handle_errors", "printable",
    "sentence",
]  # fmt: skip

EXIT_FAILED = 1
EXIT_SOME_FAILED = 3
EXIT_INTERRUPTED = INTERRUPTED

P = ParamSpec("P")
R = TypeVar("R")


_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, marks that turn the direction of text, and bytes of names that are not UTF-8."""


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
            _fail(f"Error: {sentence(error)}", error.exit_code)
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
    if isinstance(error, FicganError) and text:
        return text
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

    own = {signal.SIGTERM: noticing(on_sigterm)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        own[signal.SIGINT] = noticing(signal.default_int_handler)
    previous = {number: signal.signal(number, handler) for number, handler in own.items()}
    try:
        with last_resort():
            yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _fail(message: str, code: int) -> NoReturn:
    with suppress(OSError):  # stderr itself may be gone
        click.echo(printable(message), err=True)
    raise SystemExit(code) from None


def _silence_stdout() -> None:
    """Point stdout at the null device, or the interpreter's flush at exit complains about the closed pipe once more."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
