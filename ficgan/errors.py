"""The errors a user may meet, each one sentence that says what was wrong, where and what to do; Ctrl-C and SIGTERM.

A value that cannot work is a UsageError, an input that cannot be used an InputError. Docstrings name errors only where
there is more to say.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = [
    "INTERRUPTED",
    "FicganError",
    "InputError",
    "TakenError",
    "UsageError",
    "last_resort",
    "memory_ran_out",
    "noticing",
    "stop_asked",
]


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


def memory_ran_out(error: BaseException) -> bool:
    """Whether an error, or one behind it, says that memory is short; each library says it its own way."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError) or (isinstance(seen, OSError) and seen.errno == errno.ENOMEM):
            return True
        if not isinstance(seen, FicganError) and _NO_MEMORY.search(str(seen)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


_NO_MEMORY = re.compile(
    "bad[_ ]alloc|[Cc]an(no|')t allocate memory|[Ff]ailed to allocate memory|[Ii]nsufficient memory|out of memory|"
    "can't start new thread|failed to map segment from shared object$|could not create a primitive$|"  # oneDNN's
    r"^\[enforce fail a$"  # torch's, where memory is short for its own sentence, too
)


INTERRUPTED = 130
"""Exit code."""
PATIENCE = 30.0
"""Seconds that a call out of Python, such as a network that loops, may go on after a signal."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Handler = Callable[[int, FrameType | None], object]
_noticed = 0.0
"""When a handler last ran."""


def noticing(handler: Handler) -> Handler:
    """A handler of signals whose runs `last_resort` sees."""

    def noted(number: int, frame: FrameType | None) -> None:
        global _noticed
        _noticed = time.monotonic()
        handler(number, frame)

    noted.notices = True  # type: ignore[attr-defined]
    return noted


@contextmanager
def stop_asked() -> Iterator[threading.Event]:
    """An event that is set by SIGINT or SIGTERM; a second one raises KeyboardInterrupt at once.

    In another thread than the main one nothing is changed, and the event is never set.
    """
    asked = threading.Event()

    def heard(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    main = threading.current_thread() is threading.main_thread()  # handlers can be set only there
    previous = {number: signal.signal(number, noticing(heard)) for number in _SIGNALS} if main else {}
    try:
        yield asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def last_resort() -> Iterator[None]:
    """End the process with 130 where its handler of SIGINT or SIGTERM did not run within `PATIENCE` seconds.

    Python runs handlers between two of its own steps; a network that loops in C lets it wait for ever. Only handlers
    made by `noticing` are watched. In another thread than the main one nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ear, mouth = os.pipe()
    os.set_blocking(mouth, False)
    before = signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)  # written to at once, from C
    threading.Thread(target=_watch, args=(ear,), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(mouth)


def _watch(ear: int) -> None:
    with os.fdopen(ear, "rb", buffering=0) as signals:
        while number := signals.read(1):
            if number[0] not in _SIGNALS or not getattr(signal.getsignal(number[0]), "notices", False):
                continue
            arrived = time.monotonic()
            while _noticed < arrived - 1:
                if time.monotonic() - arrived > PATIENCE:
                    os.write(2, b"Interrupted: a step that could not be stopped was ended.\n")
                    os._exit(INTERRUPTED)
                time.sleep(0.1)
