"""Tasks in processes that share the cores, with words from within them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

__all__ = ["Say", "run_tasks"]

Say = Callable[[str], object]
"""Called with what is at work."""

_LISTEN = 0.5
"""Seconds between two looks at what the processes have to say."""
_queue: Any = None
"""In a process of the pool: what is said there goes through it."""


def run_tasks(
    task: Callable[..., str], group: Sequence[tuple[int, tuple[Any, ...]]], *, jobs: int, say: Say
) -> Iterator[tuple[int, str]]:
    """(number of the task, what it returned) as each ends.

    Args:
        task: called as task(*arguments, say); it, its arguments and its result can be pickled.
        group: numbers and arguments.
        jobs: processes; each computes with an equal share of the cores.
        say: called in this process with what the tasks say.
    """
    if jobs <= 1 or len(group) <= 1:
        for index, arguments in group:
            yield index, task(*arguments, say)
        return
    context = multiprocessing.get_context("spawn")
    queue: Any = context.SimpleQueue()  # what is put is in the pipe before the task ends
    with _threads(max(1, (os.cpu_count() or 1) // jobs)):
        pool = ProcessPoolExecutor(min(jobs, len(group)), mp_context=context, initializer=_listen, initargs=(queue,))
        try:
            running: dict[Future[str], int] = {
                pool.submit(_in_process, task, arguments): index for index, arguments in group
            }
            while running:
                finished, _ = wait(running, timeout=_LISTEN, return_when=FIRST_COMPLETED)
                while not queue.empty():
                    say(queue.get())
                for future in finished:
                    yield running.pop(future), future.result()
        except BaseException:
            for process in list((pool._processes or {}).values()):
                process.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _listen(queue: Any) -> None:
    global _queue
    _queue = queue


def _in_process(task: Callable[..., str], arguments: tuple[Any, ...]) -> str:
    return task(*arguments, _queue.put)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Processes started meanwhile compute with so many threads."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: str(count) for name in names})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
