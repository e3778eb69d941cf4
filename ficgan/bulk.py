"""Many photos and films, on one machine or many: processes or Ray actors that hold the model, and one manifest that
says what became of every file."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from ficgan.errors import FicganError, InputError, UsageError
from ficgan.files import atomic_write, file_digest, lock, remove_leftovers, unreadable
from ficgan.images import (
    FILM_SUFFIXES,
    READABLE_SUFFIXES,
    UNREAD_SUFFIXES,
    disguised,
    film_suffix,
    output_suffix,
    unread,
)
from ficgan.records.sidecars import (
    TOOL,
    NewPhoto,
    as_json,
    film_record,
    long_name,
    new_photo,
    photo_record,
    same_draws,
    shows_seed,
)

if TYPE_CHECKING:
    from ficgan.deidentify import Result
    from ficgan.deidentify.decided import PhotoDecisions
    from ficgan.video import EncodeOptions, VideoSettings

__all__ = ["Job", "Manifest", "Place", "Task", "Worker", "local_engine", "plan", "ray_engine", "run"]

log = logging.getLogger("ficgan.bulk")
SCHEMA = "ficgan-manifest/1"
DIED = "the worker that had it died"


class Place:
    """A folder on this machine or in a store: whatever fsspec knows, such as `s3://bucket/photos`.

    Args:
        url: path or address; `kwargs` of the store come from its own environment variables and files.
    """

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        try:
            self.fs, root = url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise UsageError(f"{url.partition('?')[0]}: cannot be opened ({' '.join(str(error).split())})") from error
        self.url, self.root = url, root.rstrip("/") or "/"
        self.is_local = type(self.fs).__name__ == "LocalFileSystem"

    def files(self) -> Iterator[tuple[str, bool]]:
        """Names below the folder, and whether each is an ordinary file, no link; hidden ones are left out."""
        for path, about in sorted(self.fs.find(self.root, detail=True).items()):
            name = path[len(self.root) :].lstrip("/")
            hidden = any(part.startswith(".") for part in name.split("/"))
            if not hidden and name:
                yield name, about.get("type") == "file" and not about.get("islink")

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
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path, overwrite=True) as file:
                file.write(data)
        else:
            self.fs.pipe_file(path, data)

    @contextmanager
    def as_file(self, name: str, *, new: bool = False) -> Iterator[Path]:
        """A file on this machine's disk; of a store it is a copy, which is sent back when it is `new`."""
        if self.is_local:
            path = Path(self.path(name))
            if new:
                path.parent.mkdir(parents=True, exist_ok=True)
            yield path
            return
        with tempfile.TemporaryDirectory(prefix="ficgan-bulk-") as folder:  # of mode 0700
            path = Path(folder, name.rpartition("/")[2])
            if not new:
                self.fs.get_file(self.path(name), str(path))
            yield path
            if new:
                self.fs.put_file(str(path), self.path(name))

    def exists(self, name: str) -> bool:
        """Whether a file is there."""
        return bool(self.fs.isfile(self.path(name)))


@dataclass(frozen=True)
class Job:
    """One photo or film: names below the two folders."""

    input: str
    output: str

    @property
    def is_film(self) -> bool:
        """Whether it is a film, by its name; an animated GIF, WebP or PNG counts as a photo."""
        return PurePosixPath(self.input).suffix.lower() in FILM_SUFFIXES


@dataclass(frozen=True)
class Task:
    """What all workers of a run share; see `new_photo` for what concerns photos, `Deidentifier.from_pretrained` for
    `engine`.

    `options` are told in side-cars; `decisions` on photos go by their hash, see `ficgan.deidentify.decided`.
    """

    source: str
    target: str
    engine: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    max_pixels: int = 100_000_000
    tag: bool = True
    keep_metadata: bool = False
    require_face: bool = False
    overwrite: bool = False
    video: VideoSettings | None = None
    encode: EncodeOptions | None = None
    decisions: Mapping[str, PhotoDecisions] | None = None


def plan(source: Place, target: Place, *, films: bool = True) -> tuple[list[Job], int]:
    """What becomes what, films first since they take longest; and the number of files that are left out."""
    if source.is_local and target.is_local:
        inside, outside = os.path.realpath(target.root), os.path.realpath(source.root)
        if inside == outside or inside.startswith(outside + os.sep):
            raise UsageError(f"{target.url}: lies in the folder of the photos; choose another one")
    if source.is_local and not os.path.isdir(source.root):
        raise UsageError(f"{source.url}: is no folder; name one with photos{' and films' if films else ''}")
    jobs: dict[str, Job] = {}
    others = 0
    for name, _ in source.files():
        path = PurePosixPath(name)
        suffix = path.suffix.lower()
        if suffix in FILM_SUFFIXES and films:
            ending = film_suffix(Path(name))
        elif suffix in READABLE_SUFFIXES | UNREAD_SUFFIXES:  # the latter fail, and so are told
            ending = output_suffix(name)
        else:
            others += 1
            continue
        job = Job(name, str(path.with_suffix(ending)))
        rival = jobs.setdefault(job.output, job)
        if rival is not job:
            raise UsageError(f"{rival.input} and {name} would both become {job.output}; rename one")
    if not jobs:
        raise UsageError(f"{source.url}: holds no photo{' and no film' if films else ''}")
    return sorted(jobs.values(), key=lambda job: not job.is_film), others


# -- the manifest ----------------------------------------------------------------------------------------------------


class Manifest:
    """JSON lines, one for each file that is settled; the first says of which run. One process writes it at a time.

    A line that an interruption cut is dropped. Nothing is ever rewritten. `run` must be the same in all parts of a run.
    What is done and not among `present` results counts as not done; None: all are there.
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
            if not lock(self._file, wait=False):
                raise UsageError(f"{self.path}: another run writes it; wait for its end")
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
            if "input" in entry and (
                self._present is None or entry["state"] != "done" or entry["output"] in self._present
            ):
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
            self.sums.update({key: entry.get(key, 0) for key in ("faces", "masked", "reidentified", "review")})
        else:
            self.failed[name] = str(entry.get("error", ""))

    def _line(self, entry: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


# -- the work on one file --------------------------------------------------------------------------------------------


class Worker:
    """Holds the model; turns one photo or film after the other.

    Args:
        task: of the run.
        engine: a `Deidentifier`, or what is used like one; None: made for the task.
    """

    def __init__(self, task: Task, engine: Any = None) -> None:
        self._task = task
        self._source, self._target = Place(task.source), Place(task.target)
        if engine is None:
            from ficgan.deidentify import Deidentifier

            engine = Deidentifier.from_pretrained(**task.engine)
        self._engine = engine
        self._same_seed: bool | None = None
        """Whether this seed made what was there before; None: not known."""
        self._draw: Callable[..., Result] = engine
        if task.decisions is not None:
            from ficgan.deidentify.decided import deciding

            self._draw = deciding(engine, task.decisions)

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
        why = unread(job.input)
        if not why and self._target.is_local:
            why = long_name(job.input, PurePath(job.output), film=job.is_film)
        if not why and self._source.is_local and (missing := unreadable(self._source.path(job.input))):
            why = f"{job.input}: {missing}"
        _refuse(why)
        if not job.is_film:
            data = self._source.read(job.input)
            _refuse(disguised(job.input, io.BytesIO(data), film=False))
            return self._made(job, hashlib.sha256(data).hexdigest(), lambda: self._photo(job, data))
        with self._source.as_file(job.input) as path:
            with path.open("rb") as file:
                _refuse(disguised(job.input, file, film=True))
            return self._made(job, file_digest(path), lambda: self._film(job, path))

    def _made(self, job: Job, digest: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result and its side-car are there when this returns. The side-car comes last: it proves the result.

        A worker may have died between that and its answer; then the result is taken as it is.
        """
        record = self._before(job, digest)
        if record is None:
            record = json.loads(as_json({**make(), "input_sha256": digest}))
            self._target.write(f"{job.output}.json", as_json(record, indent=1))
        return {"input_sha256": digest, **_counts(record)}

    def _before(self, job: Job, digest: str) -> dict[str, Any] | None:
        """The side-car of this very result from before; an InputError where another one is in the way."""
        task, side = self._task, f"{job.output}.json"
        before, there = self._recorded(side), self._target.exists(job.output)
        if before is not None and there:
            if before.get("input_sha256") == digest and before.get("options") == json.loads(as_json(task.options)):
                if task.overwrite and task.options.get("seed"):
                    return None  # to draw it again costs as much as to learn whether this seed made it
                if self.has_seed_of(job, before):
                    return before
                raise InputError(f"{job.output} exists and was made with another seed; use --overwrite to replace it")
            if not task.overwrite:
                raise InputError(f"{job.output} exists and is of another file or run; use --overwrite to replace it")
        elif not task.overwrite and before is None and self._target.exists(side):
            raise InputError(f"{side} exists and is no side-car; use --overwrite to replace it")
        return None

    def has_seed_of(self, job: Job, record: Mapping[str, Any]) -> bool:
        """Whether this seed made a recorded result; True where there is none, or nothing tells.

        A short seed is recorded nowhere, so a photo is drawn again, the first one that tells.
        """
        if not self._task.options.get("seed"):
            return True
        if job.is_film:
            return record.get("seed_commitment") in (None, self._engine.seed_commitment)
        if self._same_seed is None and shows_seed(record):
            self._same_seed = same_draws(self._new(job, self._source.read(job.input)), record)
        return self._same_seed is not False

    def _new(self, job: Job, data: bytes) -> NewPhoto:
        task = self._task
        return new_photo(
            self._draw,
            data,
            job.input,
            output=job.output,
            max_pixels=task.max_pixels,
            tag=task.tag,
            keep_metadata=task.keep_metadata,
            require_face=task.require_face,
        )

    def _photo(self, job: Job, data: bytes) -> dict[str, Any]:
        made = self._new(job, data)
        self._target.write(job.output, made.data)
        return photo_record(made, job.output, self._task.options)

    def _film(self, job: Job, path: Path) -> dict[str, Any]:
        """Write the new film. On a disk it goes on where a worker that died left it (`.NAME.ficgan-work`)."""
        from ficgan.video.read import open_video

        task = self._task
        with self._target.as_file(job.output, new=True) as new:
            # Without its side-car a result proves nothing: it is made again.
            result = self._engine.process_video(path, new, settings=task.video, encode=task.encode, overwrite=True)
            open_video(new).close()  # nobody looks at every film of many: what cannot be read again is an error
            return film_record(result, new, job.output, task.options)

    def record_of(self, job: Job) -> dict[str, Any] | None:
        """The side-car of a result; None where there is none of ours."""
        return self._recorded(f"{job.output}.json")

    def _recorded(self, side: str) -> dict[str, Any] | None:
        try:
            record = json.loads(self._target.read(side))
        except (FileNotFoundError, ValueError):
            return None
        return record if isinstance(record, dict) and record.get("tool") == TOOL else None


def _refuse(why: str) -> None:
    if why:
        raise InputError(why)


def _counts(record: Mapping[str, Any]) -> dict[str, int]:
    """Of a manifest's line; a film's faces are its tracks."""
    if record.get("kind") == "film":
        check = record.get("check") or {}
        return {
            "faces": record["tracks"],
            "masked": record["masked_people"],
            "reidentified": len(check.get("findings", ())),
            "review": len(record.get("review", ())),
            "frames": record["frames"],
        }
    faces = record.get("faces", [])
    return {
        "faces": len(faces),
        "masked": sum(face.get("action") == "masked" for face in faces),
        "reidentified": sum(bool(face.get("matched")) for face in faces),
    }


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
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing of a run goes anywhere
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")  # a busy machine takes longer than the usual 60
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise FicganError("--engine ray needs Ray Data: pip install 'ficgan[bulk]'; or take --engine local") from error

    def lines(task: Task, todo: Sequence[Job]) -> Iterator[dict[str, Any]]:
        """Films go one by one: a batch whose actor died is done again."""
        _connect(ray, jobs, address)
        for size, part in ((1, [job for job in todo if job.is_film]), (batch, [j for j in todo if not j.is_film])):
            if part:
                yield from mapped(task, part, size)

    def mapped(task: Task, todo: Sequence[Job], batch: int) -> Iterator[dict[str, Any]]:
        context = ray.data.DataContext.get_current()
        context.max_errored_blocks = -1  # what is lost is missed by `run`, and done again
        context.enable_progress_bars = False
        names = [{"input": job.input, "output": job.output} for job in todo]
        blocks = max(jobs, -(-len(names) // (4 * batch)))
        made = ray.data.from_items(names, override_num_blocks=min(blocks, len(names))).map_batches(
            _Actor,
            fn_constructor_args=(task,),
            batch_size=batch,
            num_cpus=1,
            max_restarts=-1,
            max_task_retries=2,
            compute=ray.data.ActorPoolStrategy(size=min(jobs, len(names))),
        )
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
    task: Task,
    jobs: Sequence[Job],
    manifest: Manifest,
    engine: Engine,
    *,
    retries: int = 2,
    progress: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> None:
    """Settle every job that the manifest does not: exactly one result each, and one line "done" or "failed".

    A file whose worker died, or whose failure may pass, is tried again `retries` times.
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
            break
        log.info("%d photos are tried again", len(todo))
    for job in todo:
        manifest.add({"input": job.input, "output": job.output, "state": "failed", "error": DIED, "attempts": attempt})
        settled += 1
        progress(settled, len(jobs), job.input)
    if (target := Place(task.target)).is_local:  # what workers that died had begun to write
        for folder in {Path(target.path(job.output)).parent for job in jobs}:
            remove_leftovers(folder)
