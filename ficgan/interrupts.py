"""Ctrl-C and a polite kill, for work that must end between two steps and not within one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["stop_asked"]


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
    previous = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}
    try:
        yield asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
