"""What a user may meet: errors, each a sentence (what was wrong, where, what to do), progress, Ctrl-C and SIGTERM.

Docstrings name errors only where there is more to say.
"""

from __future__ import annotations

import difflib
import errno
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType


class FicganError(Exception):
    """Base of every error ficgan raises on purpose; the command line prints it and exits with `exit_code`."""

    exit_code = 1


class UsageError(FicganError, ValueError):
    """An option or argument has a value that cannot work (exit code 2)."""

    exit_code = 2


class InputError(FicganError):
    """One input could not be used, others may go on (exit code 3)."""

    exit_code = 3


class TakenError(InputError):
    """The output exists already, or another run is making it; it is left alone."""


def hint(wrong: str, known: Iterable[str]) -> str:
    """What to do about an unknown name: "did you mean X?", or "there are A, B, C"."""
    names = list(known)
    near = difflib.get_close_matches(wrong, names, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names) or 'none'}"


def reason(error: BaseException) -> str:
    """What a library or the system says went wrong, in one line, without number and file name."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split()).rstrip(".")


def memory_ran_out(error: BaseException) -> bool:
    """Whether an error, or one behind it, says that memory is short; each library says it its own way."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    if not isinstance(error, FicganError) and _NO_MEMORY.search(str(error)):
        return True
    behind = error.__cause__ or error.__context__
    return behind is not None and memory_ran_out(behind)


_NO_MEMORY = re.compile(
    "bad[_ ]alloc|[Cc]an(no|')t allocate memory|[Ff]ailed to allocate memory|[Ii]nsufficient memory|out of memory|"
    "can't start new thread|failed to map segment from shared object$|could not create a primitive$|"  # oneDNN's
    r"^\[enforce fail a$"  # torch's, where memory is short for its own sentence, too
)


def sentence(error: BaseException) -> str:
    """One line that names an error: its message where it is ours, its type as well where it is not."""
    text = " ".join(str(error).split())
    if isinstance(error, FicganError) and text and ("memory" in text or not memory_ran_out(error)):
        return text
    if memory_ran_out(error):
        return "not enough memory: allow more, run less at once (--jobs, --batch), or take smaller files"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


INTERRUPTED = 130  # exit code


@contextmanager
def on_signals(handler: Callable[[int, FrameType | None], object], *numbers: signal.Signals) -> Iterator[None]:
    """Handle signals so meanwhile; nothing happens outside of the main thread, where handlers cannot be set."""
    main = threading.current_thread() is threading.main_thread()
    previous = {number: signal.signal(number, handler) for number in numbers if main}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before or signal.SIG_DFL)


@contextmanager
def stop_asked() -> Iterator[threading.Event]:
    """An event that is set by SIGINT or SIGTERM in the main thread; a second one raises KeyboardInterrupt at once."""
    asked = threading.Event()

    def heard(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    with on_signals(heard, signal.SIGINT, signal.SIGTERM):
        yield asked


# Told what is done of a long work, how much there is (None: unknown), and what is being done. What it raises ends it.
Progress = Callable[[int, int | None, str], None]


def unheard(done: int, total: int | None, stage: str) -> None:
    """Progress that nobody listens to."""
