"""Work on many items in a few threads, with results in order and a bounded number of them in memory."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

__all__ = ["cpus", "in_order"]

_PATIENCE = 2.0
"""Seconds that an interruption waits for the items in work; their threads die with the process."""

T = TypeVar("T")
R = TypeVar("R")


def cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def in_order(work: Callable[[T], R], items: Iterable[T], jobs: int) -> Generator[tuple[T, Callable[[], R]], None, None]:
    """Every item with a function that gives its result or raises its error, in the order of the items.

    At most `2 · jobs` items are begun and not yet handed over. Close the iterator to stop: what is not begun is left.
    With one job, `work` is called in the caller's thread.
    """
    if jobs <= 1:
        for item in items:
            yield item, partial(work, item)
        return
    tasks: queue.SimpleQueue[tuple[T, Future[R]] | None] = queue.SimpleQueue()
    stopped = threading.Event()

    def serve() -> None:
        while (task := tasks.get()) is not None and not stopped.is_set():
            item, future = task
            try:
                result = work(item)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            del task, item, future

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    begun: deque[tuple[T, Future[R]]] = deque()
    try:
        for item in items:
            future: Future[R] = Future()
            begun.append((item, future))
            tasks.put((item, future))
            if len(begun) == 2 * jobs:
                yield _next(begun)
        while begun:
            yield _next(begun)
    finally:
        stopped.set()
        for _ in threads:
            tasks.put(None)
        until = time.monotonic() + _PATIENCE
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))


def _next(begun: deque[tuple[T, Future[R]]]) -> tuple[T, Callable[[], R]]:
    """The oldest item once it is done. It is awaited here, so that Ctrl-C ends the wait."""
    item, future = begun.popleft()
    future.exception()
    return item, future.result
