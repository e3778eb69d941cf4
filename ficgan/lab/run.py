"""The runner of every evaluation: tasks with keys, one store, one resume, one pool of processes, one progress.

Everything lies in `out/store`, in files named after the digest of `VERSION` and the key; they are whole or absent.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from ficgan.device import first_process
from ficgan.errors import FicganError, InputError, Progress
from ficgan.files import atomic_write, file_digest, lock
from ficgan.registry import Parametrised
from ficgan.workers import Workers, in_threads, ray_cluster, report

VERSION = 3  # Raised where code that makes what is kept changes its results
Say = Callable[[str], object]  # Called with the text alone, by a task that does not know of the others
_POLL = 0.5  # Seconds between two looks at the messages of a cluster
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # Of each process


@dataclasses.dataclass(frozen=True)
class Task:
    """A function with a key."""

    title: str  # In messages
    key: Any  # JSON-ready, all that the result depends on; None: the result is not kept
    # A function of a module, called as `do(*arguments, say)`; it returns JSON, or an array or arrays by name to be kept
    do: Callable[..., Any]
    arguments: tuple[Any, ...] = ()  # Picklable, as the task may run in another process


class Store:
    """A folder of arrays (.npy, .npz) and JSON, and of folders in which attackers are trained; None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def kept(self, key: Any, make: Callable[[], Any]) -> Any:
        """JSON, an array, or a dictionary of arrays of a JSON-ready key; made where it is missing or damaged."""
        found = self.find(key)
        return self.keep(key, make()) if found is None else found

    def find(self, key: Any) -> Any:
        """What is kept under a key; None where there is nothing."""
        if self.folder is None:
            return None
        name = digest([VERSION, key])
        for suffix in (".npy", ".json", ".npz"):
            try:
                with (self.folder / (name + suffix)).open("rb") as file:
                    if suffix == ".json":
                        return json.load(file)
                    found = np.load(file, allow_pickle=False)
                    return found if suffix == ".npy" else {part: found[part] for part in found.files}
            except (OSError, ValueError, EOFError, RecursionError, LookupError, zipfile.BadZipFile):
                continue
        return None

    def keep(self, key: Any, made: Any) -> Any:
        """Write a result under its key; returns it as `find` would."""
        content, suffix = io.BytesIO(), ".npz"
        if isinstance(made, np.ndarray):
            np.save(content, made, allow_pickle=False)
            suffix = ".npy"
        elif isinstance(made, dict) and made and all(isinstance(part, np.ndarray) for part in made.values()):
            np.savez(content, **made)
        else:
            content.write(json.dumps(made, allow_nan=False).encode())
            suffix, made = ".json", json.loads(content.getvalue())
        if self.folder is not None:
            write_file(self.folder / (digest([VERSION, key]) + suffix), content.getvalue())
        return made

    @contextmanager
    def workspace(self, key: Any) -> Iterator[Path | None]:
        """The folder of a key, locked to one process; None without a store."""
        if self.folder is None:
            yield None
            return
        folder = self.folder / "attackers" / digest([VERSION, key])
        folder.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".lock").open("a") as file:
            if first_process():  # of torchrun: they train together
                lock(file)
            yield folder


def write_file(path: Path, content: str | bytes) -> Path:
    """Write a file whole or not at all, replacing one of this name; its folder is made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path.parent} cannot be made ({error.strerror}); choose another folder") from error
    with atomic_write(path, overwrite=True) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return path


@dataclasses.dataclass
class Run:
    """A run in the folder `out`. `total` is how many tasks there will be, `done` how many are."""

    out: Path
    jobs: int = 1
    progress: Progress | None = None
    total: int = 0
    done: int = 0
    failures: list[str] = dataclasses.field(default_factory=list)
    cluster: str | None = None  # Address of a Ray cluster on which the jobs are; its nodes reach `out`

    @cached_property
    def store(self) -> Store:
        return Store(self.out / "store")

    def say(self, text: str) -> None:
        if self.progress:
            self.progress(self.done, self.total, text)

    def results(self, tasks: Sequence[Task]) -> list[Any]:
        """The result of each task, in their order; a failure leaves the others going, and its result is None."""
        found = [None if task.key is None else self.store.find(task.key) for task in tasks]
        waiting = [number for number, result in enumerate(found) if result is None]
        if kept := len(tasks) - len(waiting):
            self.done += kept
            self.say(f"{kept} of {len(tasks)} were done before")
        count = min(self.jobs, len(waiting))
        with self._workplace(count) as do:
            for number, outcome in in_threads(lambda number: do(tasks[number]), waiting, count):
                if isinstance(outcome, FicganError):  # its process was lost
                    outcome = None, str(outcome)
                elif isinstance(outcome, BaseException):
                    raise outcome
                task, (result, problem) = tasks[number], outcome
                self.done += 1
                if problem:
                    self.failures.append(problem if problem.startswith(task.title) else f"{task.title}: {problem}")
                else:
                    found[number] = result if task.key is None else self.store.find(task.key)
                self.say(task.title)
        return found

    @contextmanager
    def _workplace(self, count: int) -> Iterator[Callable[[Task], tuple[Any, str]]]:
        """Gives what does a task, as `_attempt`: on the cluster, in `count` processes, or in this one."""
        if self.cluster and count:
            with _on_cluster(self.cluster, self.store, self.jobs, self.say) as do:
                yield do
        elif count <= 1:
            yield lambda task: _attempt(task, self.store, self.say)
        else:
            threads = str(max(1, (os.cpu_count() or 1) // self.jobs))
            with patch.dict(os.environ, dict.fromkeys(_THREADS, threads)), Workers(_worker, count) as workers:
                yield lambda task: workers.do((task, self.store), self.say)

    def check(self) -> None:
        """Raise the first failure, if there was one."""
        if self.failures:
            more = f" ({len(self.failures) - 1} more tasks failed)" if self.failures[1:] else ""
            kept = f"what is finished is kept in {self.out}, run again after mending it"
            raise FicganError(f"{self.failures[0]}{more}; {kept}")


@contextmanager
def _on_cluster(address: str, store: Store, jobs: int, say: Say) -> Iterator[Callable[[Task], tuple[Any, str]]]:
    """On a Ray cluster a task has a GPU where there are some; one whose worker dies begins again there."""
    with ray_cluster(address, jobs) as ray:
        from ray.util.queue import Empty, Queue

        texts, gpus = Queue(actor_options={"num_cpus": 0}), int("GPU" in ray.cluster_resources())
        attempt = ray.remote(num_cpus=1, num_gpus=gpus)(_attempt)
        elsewhere = Store(None)  # the folder of results may be on this machine alone

        def do(task: Task) -> tuple[Any, str]:
            done, busy = [], [attempt.remote(task, elsewhere, texts.put)]
            while busy:
                done, busy = ray.wait(busy, timeout=_POLL)
                with suppress(Empty):  # another task's thread has taken some
                    for text in texts.get_nowait_batch(texts.qsize()):
                        say(text)
            try:
                result, problem = ray.get(done[0])
            except ray.exceptions.RayError as error:
                return None, f"its worker was lost ({type(error).__name__})"
            if not problem and task.key is not None:
                store.keep(task.key, result)
            return result, problem

        yield do


def _attempt(task: Task, store: Store, say: Say) -> tuple[Any, str]:
    """Its result, where that is not kept, and why it failed or ""."""
    try:
        result = task.do(*task.arguments, say)
    except FicganError as error:
        return None, str(error)
    if task.key is None or store.folder is None:
        return result, ""
    store.keep(task.key, result)
    return None, ""


def _worker() -> Callable[[tuple[Task, Store]], tuple[Any, str]]:
    return lambda given: _attempt(*given, report)


def digest(key: Any) -> str:
    """sha256 of something JSON-ready, 32 hex digits."""
    return hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:32]


def fingerprint(method: Parametrised) -> str | None:
    """Digest of an anonymiser or attacker with its fields, fitted arrays and files; None for an external program."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        inner = fingerprint(value) if isinstance(value, Parametrised) else ""  # A method within a method
        if inner is None or (field.name == "command" and value):
            return None
        if isinstance(value, np.ndarray):
            value = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        # Anything else a fitted one carries came of its background, whose digest is in the keys it is used in.
        plain = value is None or isinstance(value, (str, int, float, bool))
        fields[field.name] = inner or (value if plain else type(value).__name__)
    files = [files_digest(value) for value in fields.values() if isinstance(value, str)]
    return digest([method.name, fields, method.settings(), files])


def _named(text: str) -> Path | None:
    for part in (text, text.partition(":")[2]):
        if ("/" in part or "." in part) and os.path.exists(path := os.path.expanduser(part)):
            return Path(path)
    return None


def files_digest(text: str) -> list[str]:
    """Digests of the files a parameter names; folders count by names, sizes and times of their files."""
    out, whole = [], _named(text)
    for path in [whole] if whole else filter(None, map(_named, text.split("+"))):
        state = path.stat()
        if path.is_file():
            out.append(_file_digest(path, state.st_size, state.st_mtime_ns))
        else:
            inner = sorted((str(p.relative_to(path)), p.stat().st_size, p.stat().st_mtime_ns) for p in path.rglob("*"))
            out.append(digest(inner))
    return out


@lru_cache(maxsize=256)
def _file_digest(path: Path, size: int, changed: int) -> str:
    return file_digest(path)
