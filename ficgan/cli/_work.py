"""The work on files: each becomes its result, by threads, worker processes or actors of Ray."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ficgan.cli._files import FileJob
from ficgan.errors import FicganError, InputError, Progress, TakenError, unheard
from ficgan.files import Place, StorePath, file_digest, local_file, new_local_file
from ficgan.records.sidecars import film_record

if TYPE_CHECKING:
    from ficgan.deidentify.publish import NewPhoto
    from ficgan.deidentify.review import PhotoDecisions
    from ficgan.records.credentials import Credentials
    from ficgan.video.rendered import VideoResult
    from ficgan.workers import Limits

# Seconds that an interruption waits for the photos in work; their threads die with the process.
PATIENCE = 2.0
# A file, and a function that gives its result (`NewPhoto` or `NewFilm`) and seconds, or raises its error.
Done = tuple[FileJob, Callable[[], Any]]


@dataclass(frozen=True)
class FileSetup:
    """What all files of a run share. It can be pickled; called in a worker, it loads the model.

    Args:
        make_engine, engine: makes a `Deidentifier`, and of what.
        photo: of `new_photo`.
        film: of `Deidentifier.process_video`, or of `render_video` where there is a project.
        project: folder of a reviewed film.
        recorded: options as side-cars hold them; None: there are no side-cars.
        decisions: what was decided on photos, by their hash; None: all are drawn alike.
        credentials: signs what has new faces or covers.
    """

    make_engine: Callable[..., Any]
    engine: Mapping[str, Any]
    photo: Mapping[str, Any] = field(default_factory=dict)
    film: Mapping[str, Any] = field(default_factory=dict)
    project: str | None = None
    recorded: Mapping[str, Any] | None = None
    decisions: Mapping[str, PhotoDecisions] | None = None
    credentials: Credentials | None = None

    def __call__(self) -> Callable[[FileJob], dict[str, Any]]:
        """Load the model; for a worker, whose results are plain data."""
        from ficgan.workers import report

        work = FileWork(self)
        _ = work.draw

        def plain(job: FileJob) -> dict[str, Any]:
            made, seconds = work(job, report)
            return {"film": job.film, "made": vars(made), "seconds": seconds}

        return plain


@dataclass(frozen=True, eq=False)
class NewFilm:
    """What became of a film, which is written. Plain data: it may come from another process.

    Args:
        record: for the side-car.
        problems: what somebody must look at before the film is published.
        objects: tracks of what is no face and was covered, by name.
    """

    input_sha256: str | None
    record: dict[str, Any] | None
    counts: dict[str, int]
    notes: Sequence[str]
    problems: Sequence[str]
    has_audio: bool
    objects: Mapping[str, int] = field(default_factory=dict)


class FileWork:
    """Turns one file after the other into its result: a film is written, a photo handed over."""

    def __init__(self, setup: FileSetup) -> None:
        self._setup, self._engine = setup, setup.make_engine(**setup.engine)

    @cached_property
    def draw(self) -> Any:
        """What makes photos: the engine, or what does as was decided."""
        if self._setup.decisions is None:
            return self._engine
        from ficgan.deidentify.review import deciding

        return deciding(self._engine, self._setup.decisions)

    def __call__(self, job: FileJob, progress: Progress = unheard) -> tuple[NewPhoto | NewFilm, float]:
        """The result, and the seconds it took."""
        began = time.monotonic()
        made = self._film(job, progress) if job.film else self._photo(job)
        return made, time.monotonic() - began

    def _photo(self, job: FileJob) -> NewPhoto:
        from ficgan.deidentify.publish import new_photo

        data = job.source.read_bytes() if isinstance(job.source, StorePath) else None
        signs, name = self._setup.credentials, str(job.source)
        try:
            made = new_photo(self.draw, data, name, output=str(job.output), refuse=False, **self._setup.photo)
        except FicganError as error:  # such as a program of the user's that failed
            raise InputError(with_name(name, str(error))) from error
        if signs is not None and made.data and (set(made.actions) - {"kept"} or made.objects):
            made = replace(made, data=signs.photo(made.data, job.output.suffix, made.actions))
        return made

    def _film(self, job: FileJob, progress: Progress) -> NewFilm:
        setup, process = self._setup, self._engine.process_video
        if setup.project is not None:
            process = partial(self._engine.render_video, setup.project)
        with _folder_for(job.output), new_local_file(job.output) as output, local_file(job.source) as source:
            digest = file_digest(source) if not job.address and source.is_file() else None
            result = process(job.address or source, output, progress=progress, **setup.film)
            if setup.credentials is not None and (result.tracks or result.objects):
                setup.credentials.film(output, result.faces)
            record = None
            if setup.recorded is not None:
                known = {} if digest is None else {"input_sha256": digest}
                record = film_record(result, output, job.place, setup.recorded, **known)
        counts = {
            "faces": result.tracks,
            "masked": result.masked_people,
            "frames": result.frames,
            "no_face": int(not result.tracks),
            "damaged": int(bool(result.damage)),
            "unread": result.tracks if result.reidentified is None else 0,
            "reidentified": result.reidentified or 0,
            "review": len(result.review),
        }
        notes = [with_name(job.name, note) for note in result.notes]
        objects = {name: found["tracks"] for name, found in result.objects.items()}
        return NewFilm(digest, record, counts, notes, list(_problems(job, result)), result.has_audio, objects)


def _problems(job: FileJob, result: VideoResult) -> Iterator[str]:
    for note in result.damage:
        yield with_name(job.name, note)
    if result.check is not None and result.check.findings:
        times = _times(finding.time for finding in result.check.findings)
        yield f"{job.output}: a source face is still recognised at {times}; do not publish it"
    for reason in dict.fromkeys(place["reason"] for place in result.review):
        times = _times(place["time"] for place in result.review if place["reason"] == reason)
        yield f"{job.output}: look whether all faces are covered around {times}: {reason}"


def _times(seconds: Iterable[float]) -> str:
    """75.25 → 1:15.25; each once."""
    hundredths = [round(second * 100) for second in seconds]
    return ", ".join(dict.fromkeys(f"{time // 6000}:{time % 6000 / 100:05.2f}" for time in hundredths))


def with_name(name: str, note: str) -> str:
    """A note that begins with a name."""
    return note if note.startswith(f"{name}: ") else f"{name}: {note}"


def make_folder(folder: Place) -> None:
    """A folder of this machine; stores have none."""
    if isinstance(folder, Path):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: cannot be made ({error.strerror}); choose another output folder") from error


@contextmanager
def _folder_for(output: Place) -> Iterator[None]:
    """Make the folder of an output; folders that are new go again if the block fails and nothing is in them."""
    new = [] if isinstance(output, StorePath) else [path for path in output.parents if not os.path.lexists(path)]
    make_folder(output.parent)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for folder in new:
                folder.rmdir()
        raise


# -- who works --------------------------------------------------------------------------------------------------------


def by_threads(work: Callable[[FileJob], Any], jobs: Iterable[FileJob], threads: int) -> Generator[Done, None, None]:
    """Results in the order of the files. At most `2 · threads` files are begun and not yet handed over.

    Close the iterator to stop: what is not begun is left. With one thread, it is the caller's.
    """
    if threads <= 1:
        yield from ((job, partial(work, job)) for job in jobs)
        return
    tasks, begun = queue.SimpleQueue[tuple[FileJob, Future[Any]] | None](), deque[tuple[FileJob, Future[Any]]]()

    def serve() -> None:
        while (task := tasks.get()) is not None:
            job, future = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work(job))
                except BaseException as error:
                    future.set_exception(error)

    def oldest() -> Done:
        """It is awaited here, so that Ctrl-C ends the wait."""
        job, future = begun.popleft()
        future.exception()
        return job, future.result

    pool = [threading.Thread(target=serve, daemon=True) for _ in range(threads)]
    for thread in pool:
        thread.start()
    try:
        for job in jobs:
            begun.append((job, Future()))
            tasks.put(begun[-1])
            if len(begun) == 2 * threads:
                yield oldest()
        while begun:
            yield oldest()
    finally:
        for _, future in begun:
            future.cancel()
        until = time.monotonic() + PATIENCE
        for _ in pool:
            tasks.put(None)
        for thread in pool:
            thread.join(max(0.0, until - time.monotonic()))


def by_workers(setup: FileSetup, jobs: Sequence[FileJob], count: int, limits: Limits | None) -> Iterator[Done]:
    """Results of worker processes, as they come. A file whose worker dies fails; another worker takes its place."""
    from ficgan.workers import Workers

    with Workers(setup, min(count, len(jobs)), limits) as workers:
        for job, result in workers.run(jobs):
            yield job, partial(_given, job, result)


def _given(job: FileJob, result: Any) -> Any:
    """What another process answered: a result, or an error that is raised."""
    from ficgan.deidentify.publish import NewPhoto

    if isinstance(result, FicganError) and not isinstance(result, TakenError):
        raise InputError(with_name(job.name, str(result))) from result
    if isinstance(result, BaseException):
        raise result
    made = NewFilm(**result["made"]) if result["film"] else NewPhoto(**result["made"])
    return made, result["seconds"]


class _Actor:
    """A worker on a Ray cluster."""

    def __init__(self, setup: FileSetup) -> None:
        self._work = setup()

    def ready(self) -> None:
        """Answers when the model is loaded."""

    def work(self, job: FileJob) -> Any:
        try:
            return self._work(job)
        except Exception as error:
            return error


def by_cluster(setup: FileSetup, jobs: Sequence[FileJob], count: int, address: str) -> Iterator[Done]:
    """Results of actors of a Ray cluster, as they come. A file whose actor dies fails; the actor starts anew.

    Args:
        count: actors.
        address: as of `ficgan.workers.ray_cluster`.
    """
    from ficgan.workers import ray_cluster

    with ray_cluster(address, count) as ray:
        kind = ray.remote(num_cpus=1, max_restarts=-1)(_Actor)
        free = [kind.remote(setup) for _ in range(min(count, len(jobs)))]
        ray.get([actor.ready.remote() for actor in free])
        waiting, busy = deque(jobs), dict[Any, Any]()
        while waiting or busy:
            while waiting and free:
                actor, job = free.pop(), waiting.popleft()
                busy[actor.work.remote(job)] = actor, job
            done = ray.wait(list(busy))[0][0]
            actor, job = busy.pop(done)
            free.append(actor)
            try:
                result = ray.get(done)
            except ray.exceptions.RayError:
                result = InputError("the worker process crashed on this file")
            yield job, partial(_given, job, result)
