"""Worker processes that hold an engine and do whole files; with `Limits`, what a hostile file can do there is bounded.

A worker is a fresh interpreter. This process pickles its setup and its tasks. Answers are JSON, and nothing of them is
unpickled: a worker that a file has taken over cannot take over this process.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import queue
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from ficgan.errors import FicganError, InputError, TakenError, UsageError, memory_ran_out, reason

Setup = Callable[[], Callable[[Any], Any]]
# Beginnings of the variables that a worker with limits is given: no keys, no tokens.
_KEPT: tuple[str, ...] = ("PATH", "HOME", "LANG", "LC_", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR", "XDG_")
_KEPT += ("FICGAN_MODELS", "INSIGHTFACE_HOME", "OMP_", "OPENBLAS_", "MKL_", "OPENCV_", "ORT_", "CUDA_", "NVIDIA_")
# What a task may raise; anything else becomes a RuntimeError.
_ERRORS = {kind.__name__: kind for kind in (TakenError, InputError, UsageError, FicganError, MemoryError)}
# Bytes of an answer.
_MOST = 1 << 30


@dataclass(frozen=True)
class Limits:
    """What a worker may use.

    Where Linux has Landlock (5.13; 6.7 for TCP), it executes no program, writes no file outside of `folders` but to
    devices, and opens no TCP connection. The size of its memory and its time are limited once its engine is loaded.

    Args:
        memory: bytes beyond what the loaded engine has.
        seconds: for one task, or between two reports of it.
        folders: where it may write; they must be there.
        network: whether it may open TCP connections, for films at an address.
    """

    memory: int = 8 << 30
    seconds: float = 180.0
    folders: Sequence[str | os.PathLike[str]] = ()
    network: bool = False


def in_threads(
    work: Callable[[Any], Any], tasks: Iterable[Any], count: int, *, patience: float = 0.0
) -> Generator[tuple[Any, Any], None, None]:
    """Every task and its result, or the error it raised, in the order of completion.

    With one thread, it is the caller's. Few tasks more than there are threads are taken from the iterable ahead.

    Args:
        patience: seconds that closing the iterator waits for tasks at work; their threads die with the process.
    """

    def outcome(task: Any) -> tuple[Any, Any]:
        try:
            return task, work(task)
        except BaseException as error:
            return task, error

    if count <= 1:
        yield from map(outcome, tasks)
        return
    waiting, done, closed = queue.SimpleQueue[Any](), queue.SimpleQueue[Any](), threading.Event()
    source, left = iter(tasks), 0

    def serve() -> None:
        while (some := waiting.get()) is not None and not closed.is_set():
            done.put(outcome(*some))

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        while True:
            for task in islice(source, 2 * count - left):
                waiting.put((task,))
                left += 1
            if not left:
                return
            yield done.get()
            left -= 1
    finally:
        closed.set()  # no task is begun any more
        until = time.monotonic() + patience
        for _ in threads:
            waiting.put(None)
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))


class Workers(AbstractContextManager["Workers"]):
    """Worker processes for tasks on whole files.

    Args:
        setup: called in each worker; makes the function from a task to its result. Picklable, as tasks are. A result is
            what JSON holds, and bytes; tuples come back as lists.
        count: number of processes.
        limits: None: none, and the whole environment. A UsageError where this system knows none.
    """

    def __init__(self, setup: Setup, count: int = 1, limits: Limits | None = None) -> None:
        if limits is not None and sys.platform not in ("linux", "darwin"):
            raise UsageError("this system cannot limit a worker process; give --no-sandbox")
        self._setup, self._count, self._limits, self._closed = setup, count, limits, False
        self._free: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        self._children = {_Child(setup, limits) for _ in range(count)}
        for child in self._children:
            self._free.put(child)

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self) -> None:
        """Return when a worker is ready; an error of its setup is raised here."""
        next(iter(self._children)).wait()

    def do(self, task: Any, progress: Callable[..., object] | None = None) -> Any:
        """The result of one task, by the next free worker; several threads may call this.

        An error of the task or of `setup` is raised here: those of ficgan, OSError and MemoryError keep their class,
        others become RuntimeError. An InputError: the worker crashed, took too long or answered nonsense; another one
        takes its place.

        Args:
            progress: called with the arguments of each `report`.
        """
        child = self._living(self._free.get())
        try:
            return child.do(task, progress)
        finally:
            self._free.put(self._living(child))

    def _living(self, child: _Child) -> _Child:
        """The worker, or another one in its place where it is lost."""
        if child.is_lost and not self._closed:
            self._children.discard(child)
            child = _Child(self._setup, self._limits)
            self._children.add(child)
        return child

    def run(self, tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Every task and its result, or the error it raised, in the order of completion."""
        self.wait()
        return in_threads(self.do, tasks, self._count)

    def cancel(self) -> None:
        """Make `is_cancelled` true for the running tasks."""
        for child in tuple(self._children):
            child.send(b"")

    def close(self) -> None:
        """End all workers at once, also busy ones."""
        self._closed = True
        for child in tuple(self._children):
            child.end()


class _Child:
    """One worker process, seen from the process that started it."""

    def __init__(self, setup: Setup, limits: Limits | None) -> None:
        self._limits, self._sending = limits, threading.Lock()
        self._ready = Future[None]()
        self._answers: queue.Queue[Any] = queue.Queue(100)
        self._pipe, theirs = Pipe()
        kept = ("",) if limits is None else _KEPT
        # The modules of this process, but after Python's own: no file of the caller's may replace one of those.
        begin = f"import sys; sys.dont_write_bytecode = {sys.dont_write_bytecode}; sys.path += sys.argv[2:]; "
        begin += "from ficgan.workers import main; main(int(sys.argv[1]))"
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-X", "utf8", "-c", begin, str(theirs.fileno()), *filter(None, sys.path)],
            stdin=subprocess.DEVNULL,
            stdout=2 if limits is None else subprocess.DEVNULL,
            stderr=None if limits is None else subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={name: value for name, value in os.environ.items() if name.startswith(kept)},
            process_group=0,  # Ctrl-C is for this process alone
        )
        theirs.close()
        threading.Thread(target=self._listen, daemon=True).start()
        self.send(ForkingPickler.dumps((limits, bytes(ForkingPickler.dumps(setup)))))

    @property
    def is_lost(self) -> bool:
        """Whether it worked once and is gone."""
        return self._ready.done() and not self._ready.exception() and self._process.poll() is not None

    def _listen(self) -> None:
        with suppress(Exception):  # it ended, or what it says is no answer
            while True:
                kind, value = json.loads(self._pipe.recv_bytes(_MOST), object_hook=_unpacked)
                value = _error(*value) if kind == "error" else value
                if self._ready.done():
                    self._answers.put((kind, value))
                elif kind == "error":
                    self._ready.set_exception(value)
                else:
                    self._ready.set_result(None)
        self.end()
        with self._sending:
            self._pipe.close()
        if not self._ready.done():
            self._ready.set_exception(FicganError("the worker process ended before its engine was loaded"))
        self._answers.put(("gone", None))

    def send(self, message: Any) -> None:
        with self._sending, suppress(OSError):  # it has died: that is heard by who waits for its answer
            self._pipe.send_bytes(message)

    def wait(self) -> None:
        self._ready.result()

    def do(self, task: Any, progress: Callable[..., object] | None) -> Any:
        self.wait()
        self.send(ForkingPickler.dumps(task))
        seconds = None if self._limits is None else self._limits.seconds
        while True:
            try:
                kind, value = self._answers.get(timeout=seconds)
            except queue.Empty:
                self.end()
                raise InputError(f"takes more than {seconds:g} s and was given up") from None
            if kind == "result":
                return value
            if kind == "error":
                raise value
            if kind != "report" or not isinstance(value, list):
                self.end()
                self._answers.put(("gone", None))  # for the next task, too
                raise InputError("the worker process crashed on this file; it is damaged, or made to do harm")
            if progress is not None:
                progress(*value)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def _error(name: str, text: str, number: int | None, trace: str) -> Exception:
    error = OSError(number, text) if number else _ERRORS.get(name, RuntimeError)(text)
    error.add_note(trace)
    return error


# -- the worker


_cancelled = threading.Event()
_answers: Connection | None = None


def report(*values: Any) -> None:
    """Tell the process that waits for this task how far it is; nothing happens outside of a worker."""
    _answer("report", values)


def is_cancelled() -> bool:
    """Whether `Workers.cancel` was called since this task began."""
    return _cancelled.is_set()


def _answer(kind: str, value: Any = None) -> None:
    if _answers is not None:
        _answers.send_bytes(json.dumps([kind, value], default=_packed).encode())


def _packed(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return value.tolist() if hasattr(value, "tolist") else os.fspath(value)


def _unpacked(tree: dict[str, Any]) -> Any:
    return base64.b64decode(tree["base64"]) if [*tree] == ["base64"] else tree


def main(number: int) -> None:
    """Work until the other end of a pipe is closed, of which this end has the number."""
    global _answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe = _answers = Connection(number)
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def listen() -> None:
        with suppress(EOFError, OSError):
            while True:
                if request := pipe.recv_bytes():
                    _cancelled.clear()
                    tasks.put(request)
                else:
                    _cancelled.set()
        os._exit(0)  # the other process is done, or dead

    try:
        limits, setup = ForkingPickler.loads(pipe.recv_bytes())
    except EOFError:
        return  # the other process ended at once
    try:
        if limits is not None:
            _fence(limits)  # before there is another thread, since it holds for this one and those that it starts
        threading.Thread(target=listen, daemon=True).start()
        work = ForkingPickler.loads(setup)()
        if limits is not None:
            _limit_size(limits)
    except Exception as error:
        return _answer("error", _about(error, limits))
    _answer("ready")
    while True:
        task = tasks.get()
        try:
            _answer("result", work(ForkingPickler.loads(task)))
        except Exception as error:
            _answer("error", _about(error, limits))


def _about(error: Exception, limits: Limits | None) -> tuple[str, str, int | None, str]:
    """The arguments of `_error`."""
    trace = traceback.format_exc()
    if memory_ran_out(error):
        if limits is not None:
            return "InputError", f"needs more than {limits.memory >> 20} MB of memory", None, trace
        return "MemoryError", str(error), None, trace
    if isinstance(error, OSError) and error.errno:
        return "OSError", os.strerror(error.errno), error.errno, trace
    name = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _ERRORS), "")
    return name, str(error) if name else f"{type(error).__name__}: {error}", None, trace


def _limit_size(limits: Limits) -> None:
    import resource

    with suppress(OSError, ValueError):  # macOS knows no such size
        data = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (data + limits.memory,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not limits.folders:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _fence(limits: Limits) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(444, None, 0, 1) if sys.platform == "linux" else 0
    if version < 1:
        return
    # landlock(7): 444 makes a set of rules, 445 adds to it, 446 obeys it; 38 and 0 of prctl: no new privileges.
    write = 1 << 1 | sum(1 << bit for bit in range(4, 13))  # write, remove, make
    write |= (1 << 13 if version >= 2 else 0) | (1 << 14 if version >= 3 else 0)  # move, truncate
    ports = 0 if limits.network else 0b11  # bind, connect
    handled = struct.pack("<QQ", write | 1, ports)[: 16 if version >= 4 else 8]  # 1: execute
    rules = libc.syscall(444, handled, len(handled), 0)
    for folder, rights in (("/dev", 1 << 1), *((folder, write) for folder in limits.folders)):
        place = os.open(folder, os.O_PATH)
        libc.syscall(445, rules, 1, struct.pack("<Qi", rights, place), 0)
        os.close(place)
    libc.prctl(38, 1, 0, 0, 0)
    if libc.syscall(446, rules, 0):
        raise FicganError("this system cannot limit a worker process; give --no-sandbox")


@contextmanager
def ray_cluster(address: str, count: int) -> Iterator[Any]:
    """Ray, connected to a cluster while this lasts.

    Args:
        address: ray://HOST:PORT, HOST:PORT or auto, of a running cluster; local: one of this machine, for this run.
        count: workers that a local one has room for.
    Raises:
        FicganError: Ray is not installed, or the cluster cannot be used.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing of a run goes anywhere
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")  # a busy machine takes longer than the usual 60
    try:
        ray: Any = import_module("ray")
    except ImportError:
        raise FicganError("--cluster needs Ray: pip install 'ficgan[bulk]'; or use --jobs") from None
    handler = signal.getsignal(signal.SIGTERM)
    local = {"num_cpus": count + 1, "object_store_memory": 512 << 20}
    where = local if address == "local" else {"address": address}
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR", **where)
        signal.signal(signal.SIGTERM, handler)  # Ray puts its own there, which ends the process at once
        yield ray
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, FicganError):
            raise cause from error
        raise FicganError(f"--cluster {address}: cannot be used ({reason(error)})") from error
    finally:
        ray.shutdown()  # in order, before the interpreter takes its threads down
