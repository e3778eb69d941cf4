"""Many photos, on one machine or many: processes or Ray actors that hold the model, and one manifest that says what
became of every file."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, BinaryIO, Self

from ficgan.errors import FicganError, InputError, UsageError
from ficgan.images.formats import READABLE_SUFFIXES, output_suffix

__all__ = ["Job", "Manifest", "Place", "Task", "Worker", "local_engine", "plan", "ray_engine", "run"]

log = logging.getLogger("ficgan.bulk")
SCHEMA = "ficgan-manifest/1"
DIED = "the worker that had it died"


class Place:
    """A folder on this machine or in a store: whatever fsspec knows, such as `s3://bucket/photos`.

    Args:
        url: path or address; `kwargs` of the store come from its own environment variables and files.

    Raises:
        UsageError: no such kind of store, or its package is missing.
    """

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        try:
            self.fs, root = url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise UsageError(f"{url.partition('?')[0]}: cannot be opened ({' '.join(str(error).split())})") from error
        self.url, self.root = url, root.rstrip("/") or "/"
        self.is_local = type(self.fs).__name__ == "LocalFileSystem"

    def files(self) -> Iterator[tuple[str, int]]:
        """Names below the folder, and their sizes; hidden ones and what links lead to elsewhere are left out."""
        for path, about in sorted(self.fs.find(self.root, detail=True).items()):
            name = path[len(self.root) :].lstrip("/")
            hidden = any(part.startswith(".") for part in name.split("/"))
            if about.get("type") == "file" and not about.get("islink") and not hidden and name:
                yield name, int(about.get("size") or 0)

    def path(self, name: str) -> str:
        """Of a file below the folder."""
        return f"{self.root.rstrip('/')}/{name}"

    def read(self, name: str) -> bytes:
        """A file's bytes.

        Raises:
            FileNotFoundError: there is no such file.
        """
        return bytes(self.fs.cat_file(self.path(name)))

    def write(self, name: str, data: bytes) -> None:
        """A file, whole or not at all: renamed on a disk; in a store an object appears when it is complete."""
        path = self.path(name)
        if self.is_local:
            from ficgan.files import atomic_write

            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path, overwrite=True) as file:
                file.write(data)
        else:
            self.fs.pipe_file(path, data)

    def exists(self, name: str) -> bool:
        """Whether a file is there."""
        return bool(self.fs.isfile(self.path(name)))


@dataclass(frozen=True)
class Job:
    """One photo: names below the two folders."""

    input: str
    output: str


@dataclass(frozen=True)
class Task:
    """What all workers of a run share.

    Args:
        source, target: folders or addresses.
        engine: of `Deidentifier.from_pretrained`.
        scale: size to detect at, px; None: several.
        options: as side-cars tell them.
        max_pixels, tag, keep_metadata, require_face: see `ficgan.records.photo.new_photo`.
        overwrite: replace results that another run made.
    """

    source: str
    target: str
    engine: Mapping[str, Any] = field(default_factory=dict)
    scale: tuple[int, int] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    max_pixels: int = 100_000_000
    tag: bool = True
    keep_metadata: bool = False
    require_face: bool = False
    overwrite: bool = False


def plan(source: Place, target: Place) -> tuple[list[Job], int]:
    """What becomes what, and the number of files that are no photos.

    Raises:
        UsageError: there is no photo, or two would become one file.
    """
    if source.is_local and target.is_local:
        inside, outside = os.path.realpath(target.root), os.path.realpath(source.root)
        if inside == outside or inside.startswith(outside + os.sep):
            raise UsageError(f"{target.url}: lies in the folder of the photos; choose another one")
    jobs: list[Job] = []
    taken: dict[str, str] = {}
    others = 0
    for name, _ in source.files():
        stem, dot, suffix = name.rpartition(".")
        if not dot or f".{suffix.lower()}" not in READABLE_SUFFIXES:
            others += 1
            continue
        output = f"{stem}{output_suffix(name)}"
        if rival := taken.setdefault(output, name) if taken.get(output, name) != name else None:
            raise UsageError(f"{rival} and {name} would both become {output}; rename one")
        taken[output] = name
        jobs.append(Job(name, output))
    if not jobs:
        raise UsageError(f"{source.url}: holds no photo")
    return jobs, others


# -- the manifest ----------------------------------------------------------------------------------------------------


class Manifest:
    """JSON lines, one for each file that is settled; the first says of which run. One process writes it at a time.

    A line that an interruption cut is dropped. Nothing is ever rewritten.

    Args:
        path: file on this machine.
        run: what must be the same in all parts of a run.
        present: results that are there; what is done and no longer there counts as not done. None: all are.

    Raises:
        UsageError: it is of another run, or another process writes it.
    """

    def __init__(self, path: Path, run: Mapping[str, Any], present: Container[str] | None = None) -> None:
        self.path, self._present = path, present
        self._run = json.loads(json.dumps(run))
        self.done: set[str] = set()
        """Inputs that have their result."""
        self.failed: dict[str, str] = {}
        """Inputs that failed at last, and why; the next run tries them again."""
        self.sums: Counter[str] = Counter()
        """Faces, masked and reidentified of what is done."""
        self._file: BinaryIO

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+b")
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UsageError(f"{self.path}: another run writes it; wait for its end") from None
            self._read()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _read(self) -> None:
        self._file.seek(0)
        whole = 0
        for number, line in enumerate(self._file):
            try:
                entry = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                entry = None
            if entry is None:
                if line.endswith(b"\n"):
                    raise UsageError(f"{self.path}: line {number + 1} is damaged; name another manifest")
                break
            if number == 0 and (entry.get("schema"), entry.get("run")) != (SCHEMA, self._run):
                raise UsageError(
                    f"{self.path}: belongs to a run with other options or folders; choose another output folder"
                )
            if "input" in entry and (self._present is None or entry["state"] != "done"
                                     or entry["output"] in self._present):  # fmt: skip
                self._settle(entry)
            whole += len(line)
        self._file.truncate(whole)
        if whole == 0:
            self._line({"schema": SCHEMA, "run": self._run})

    def add(self, entry: Mapping[str, Any]) -> None:
        """Settle an input."""
        self._settle(entry)
        self._line(entry)

    def _settle(self, entry: Mapping[str, Any]) -> None:
        name = str(entry["input"])
        if entry["state"] == "done":
            self.failed.pop(name, None)
            self.done.add(name)
            self.sums.update({key: entry.get(key, 0) for key in ("faces", "masked", "reidentified")})
        else:
            self.failed[name] = str(entry.get("error", ""))

    def _line(self, entry: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


# -- the work on one photo -------------------------------------------------------------------------------------------


class Worker:
    """Holds the model; turns one photo after the other."""

    def __init__(self, task: Task, engine: Callable[..., Any] | None = None) -> None:
        self._task = task
        self._source, self._target = Place(task.source), Place(task.target)
        if engine is None:
            from ficgan.deidentify import Deidentifier

            given = dict(task.engine)
            if task.scale is not None:
                from ficgan.faces import DetectAt, get_detector

                detector = get_detector(
                    given.get("detector", "auto"), threshold=given.get("threshold"), scale=1.0,
                    device=given.get("device", "cpu"),
                )  # fmt: skip
                given["detector"] = DetectAt(detector, task.scale)
            engine = Deidentifier.from_pretrained(**given)
        self._engine = engine

    def __call__(self, job: Job) -> dict[str, Any]:
        """A manifest's line. `retry` in it says that the failure may pass: a store that did not answer, no memory."""
        began = time.monotonic()
        line: dict[str, Any] = {"input": job.input, "output": job.output, "state": "done"}
        try:
            line |= self._done(job)
        except InputError as error:
            line |= {"state": "failed", "error": str(error)}
        except FileNotFoundError:
            line |= {"state": "failed", "error": f"{job.input}: no such file"}
        except Exception as error:
            text = " ".join(str(error).split())
            line |= {"state": "failed", "error": f"{type(error).__name__}: {text}", "retry": True}
        return {**line, "seconds": round(time.monotonic() - began, 3)}

    def _done(self, job: Job) -> dict[str, Any]:
        """The photo's result and side-car are there when this returns. The side-car comes last: it proves the result.

        A worker may have died between that and its answer; then the result is taken as it is.
        """
        from ficgan.records.photo import as_json, new_photo

        task, side = self._task, f"{job.output}.json"
        data = self._source.read(job.input)
        digest = hashlib.sha256(data).hexdigest()
        if (before := self._recorded(side)) is not None and self._target.exists(job.output):
            if before.get("input_sha256") == digest and before.get("options") == json.loads(as_json(task.options)):
                return {"input_sha256": digest, **_counts(before)}
            if not task.overwrite:
                raise InputError(f"{job.output} exists and is of another file or run; use --overwrite to replace it")
        elif not task.overwrite and before is None and self._target.exists(side):
            raise InputError(f"{side} exists and is no side-car; use --overwrite to replace it")
        made = new_photo(
            self._engine, data, job.input, output=job.output, max_pixels=task.max_pixels, tag=task.tag,
            keep_metadata=task.keep_metadata, require_face=task.require_face,
        )  # fmt: skip
        record = json.loads(as_json(made.sidecar(job.output, task.options)))
        self._target.write(job.output, made.data)
        self._target.write(side, as_json(record, indent=1))
        return {"input_sha256": digest, **_counts(record)}

    def _recorded(self, side: str) -> dict[str, Any] | None:
        try:
            record = json.loads(self._target.read(side))
        except (FileNotFoundError, ValueError):
            return None
        return record if isinstance(record, dict) and record.get("tool") == "ficgan-deid" else None


def _counts(record: Mapping[str, Any]) -> dict[str, int]:
    faces = record.get("faces", [])
    return {
        "faces": len(faces), "masked": sum(face.get("action") == "masked" for face in faces),
        "reidentified": sum(bool(face.get("matched")) for face in faces),
    }  # fmt: skip


# -- engines: many workers -------------------------------------------------------------------------------------------

Engine = Callable[[Task, Sequence[Job]], Iterable[dict[str, Any]]]
"""Gives a line for each job, in any order; a job whose worker died may be missing."""


def local_engine(jobs: int) -> Engine:
    """Processes of this machine. One that dies loses its photo only, and another takes its place."""

    def lines(task: Task, todo: Sequence[Job]) -> Iterator[dict[str, Any]]:
        waiting = deque(todo)
        context = multiprocessing.get_context("spawn")
        busy: dict[Connection, tuple[Any, Job | None]] = {}

        def start() -> None:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, task), daemon=True)
            process.start()
            theirs.close()
            busy[ours] = process, None

        try:
            for _ in range(min(jobs, len(waiting))):
                start()
            while busy:
                for ready in wait(list(busy)):
                    assert isinstance(ready, Connection)
                    process, job = busy[ready]
                    try:
                        answer = json.loads(ready.recv_bytes())
                    except (EOFError, OSError):
                        busy.pop(ready)
                        ready.close()
                        process.join()
                        if job is None:
                            raise FicganError(
                                f"a worker died while it loaded the model (exit code {process.exitcode}); look above"
                            ) from None
                        log.warning("a worker died (exit code %s) at %s", process.exitcode, job.input)
                        if waiting:
                            start()
                        continue
                    if "fatal" in answer:
                        raise FicganError(str(answer["fatal"]))
                    if job is not None:
                        yield answer
                    if waiting:
                        job = waiting.popleft()
                        busy[ready] = process, job
                        with suppress(OSError):  # it died: the next turn finds out
                            ready.send_bytes(json.dumps([job.input, job.output]).encode())
                    else:
                        busy.pop(ready)
                        ready.close()
                        process.join()
        finally:
            for connection, (process, _) in busy.items():
                connection.close()
                process.terminate()
                process.join(5)

    return lines


def _serve(connection: Connection, task: Task) -> None:
    """A worker's process: says that it is ready, then answers each job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the run, which ends this
    sys.stdout.flush()
    os.dup2(2, 1)  # what libraries print must not mix with the run's summary
    try:
        worker = Worker(task)
    except FicganError as error:
        connection.send_bytes(json.dumps({"fatal": str(error)}).encode())
        return
    connection.send_bytes(b"{}")
    with suppress(EOFError, OSError):
        while True:
            job = Job(*json.loads(connection.recv_bytes()))
            connection.send_bytes(json.dumps(worker(job)).encode())


class _Actor:
    """A worker for Ray Data: batches of names in, lines out."""

    def __init__(self, task: Task) -> None:
        self._worker = Worker(task)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        jobs = (Job(str(given), str(made)) for given, made in zip(batch["input"], batch["output"], strict=True))
        return {"line": [json.dumps(self._worker(job)) for job in jobs]}


def ray_engine(jobs: int, *, address: str | None = None, batch: int = 8) -> Engine:
    """Actors of a Ray cluster, fed by Ray Data.

    Args:
        jobs: actors.
        address: of a running cluster, or "auto"; None: a cluster of this machine, for this run.
        batch: photos that an actor takes at once; a batch whose actor died is done again.

    Raises:
        FicganError: Ray is missing, or there is no cluster at the address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing of a run goes anywhere
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")  # a busy machine takes longer than the usual 60
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise FicganError("--engine ray needs Ray Data: pip install 'ficgan[bulk]'; or take --engine local") from error

    def lines(task: Task, todo: Sequence[Job]) -> Iterator[dict[str, Any]]:
        _connect(ray, jobs, address)
        context = ray.data.DataContext.get_current()
        context.max_errored_blocks = -1  # what is lost is missed by `run`, and done again
        context.enable_progress_bars = False
        names = [{"input": job.input, "output": job.output} for job in todo]
        blocks = max(jobs, -(-len(names) // (4 * batch)))
        made = ray.data.from_items(names, override_num_blocks=min(blocks, len(names))).map_batches(
            _Actor, fn_constructor_args=(task,), batch_size=batch, num_cpus=1, max_restarts=-1, max_task_retries=2,
            compute=ray.data.ActorPoolStrategy(size=min(jobs, len(names))),
        )  # fmt: skip
        try:
            for row in made.iter_rows():
                yield json.loads(row["line"])
        except BaseException:
            ray.shutdown()  # in order, before the interpreter takes its threads down
            raise

    return lines


def _connect(ray: Any, jobs: int, address: str | None) -> None:
    """Join the cluster, or start one here. On a busy machine that may fail the first time: Ray waits only 30 s."""
    here = {"num_cpus": jobs + 1, "object_store_memory": 128 << 20}  # names go through it, no photos
    given: dict[str, Any] = here if address is None else {"address": address}
    attempts = 3 if address is None else 1
    for attempt in range(1, attempts + 1):
        if ray.is_initialized():
            return
        handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR", **given)
        except Exception as error:  # Ray raises all kinds of them
            ray.shutdown()
            if attempt == attempts:
                where = "cannot be started here" if address is None else f"is not to be had at {address}"
                raise FicganError(f"a Ray cluster {where}: {' '.join(str(error).split())}") from error
            log.warning("a Ray cluster could not be started; trying again")
        finally:
            if handler is not None and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)  # Ray puts its own there, which ends the process at once


# -- the run ---------------------------------------------------------------------------------------------------------


def run(
    task: Task, jobs: Sequence[Job], manifest: Manifest, engine: Engine, *, retries: int = 2,
    progress: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> None:  # fmt: skip
    """Settle every job that the manifest does not: exactly one result each, and one line "done" or "failed".

    Args:
        task: what the workers share.
        jobs: all of the run.
        manifest: open; says what is done already.
        engine: runs the workers.
        retries: how often a photo is tried again whose worker died, or whose failure may pass.
        progress: called with the number done, the number of all, and a name.
    """
    todo = [job for job in jobs if job.input not in manifest.done]
    settled = len(jobs) - len(todo)
    for attempt in range(1, retries + 2):
        left = {job.input: job for job in todo}
        again: list[Job] = []
        why: dict[str, dict[str, Any]] = {}
        for line in engine(task, todo) if todo else ():
            job = left.pop(line["input"], None)
            if job is None:
                continue  # answered twice: a batch was done again
            if line.pop("retry", False) and attempt <= retries:
                again.append(job)
                why[job.input] = line
                continue
            manifest.add({**line, "attempts": attempt})
            settled += 1
            progress(settled, len(jobs), job.input)
        todo = [*again, *left.values()]
        if not todo:
            return
        log.info("%d photos are tried again", len(todo))
    for job in todo:
        manifest.add({"input": job.input, "output": job.output, "state": "failed", "error": DIED, "attempts": attempt})
        settled += 1
        progress(settled, len(jobs), job.input)
