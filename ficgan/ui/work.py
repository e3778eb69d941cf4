"""What the photos and films of a review share: queues, worker processes, side-cars, and jobs that fail."""

from __future__ import annotations

import hashlib
import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ficgan import errors
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.records import RunManifest, as_json, sidecar_path
from ficgan.ui import Item, Review
from ficgan.ui.tasks import PictureTasks, model_setup, write_new
from ficgan.workers import Workers

if TYPE_CHECKING:
    from ficgan.deidentify import Deidentifier

# Priorities of jobs.
NOW, SOON, LATER = 0, 5, 10
# So many pictures come before the model is loaded, and it waits for them so many seconds at most.
FIRST, FIRST_SECONDS = 12, 5.0


class Queue:
    """Jobs of one thread, the most urgent first; `prepare` is called in it before the first job."""

    def __init__(self, name: str, prepare: Callable[[], object] = lambda: None) -> None:
        self._jobs: queue.PriorityQueue[tuple[float, int, Callable[[], Any] | None, Future[Any]]] = (
            queue.PriorityQueue()
        )
        self._numbers, self._prepare = itertools.count(), prepare
        self._thread = threading.Thread(target=self._run, name=f"ficgan-{name}", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], Any], priority: float = LATER) -> Future[Any]:
        """Do a job in its turn; its result or error is in the future."""
        future: Future[Any] = Future()
        self._jobs.put((priority, next(self._numbers), job, future))
        return future

    def stop(self, seconds: float) -> None:
        """End after the job at hand."""
        self._jobs.put((-1, next(self._numbers), None, Future()))
        self._thread.join(seconds)

    def _run(self) -> None:
        self._prepare()
        while True:
            _, _, job, future = self._jobs.get()
            if job is None:
                return
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)


class Workplace:
    """The review on disk, its worker processes, and what becomes of a job that fails.

    `make_engine` makes a `Deidentifier` of mode ficgan for a seed; it can be pickled. `start` makes workers of a setup.
    """

    def __init__(
        self, review: Review, make_engine: Callable[[int], Deidentifier], start: Callable[[Any], Workers] = Workers
    ) -> None:
        self.review = review
        self.model = "loading"  # "loading", "ready", or why there is none
        self.about: dict[str, Any] = {}  # of the model, once it is ready
        self.progress: dict[str, tuple[int, int | None, str]] = {}  # of files at work: frames done, in all, stage
        self.stopping, self.loaded = threading.Event(), threading.Event()
        self.pictured = threading.Event()  # the first pictures of an opened folder are there
        self._start, self._setup = start, partial(model_setup, make_engine, review.settings.seed)
        self._manifest: RunManifest | None = None
        self._workers = {"pictures": start(PictureTasks)}

    # -- worker processes ---------------------------------------------------------------------------------------------

    def do(self, where: str, task: str, progress: Callable[..., object] | None = None, **given: Any) -> Any:
        """A task of `ficgan.ui.tasks` in the worker for "pictures", "photos" or "films", which starts when needed."""
        if where not in self._workers:
            if self.stopping.is_set():
                raise InputError("the review is being closed; start it again")
            self._workers[where] = self._start(self._setup)
        return self._workers[where].do((task, given), progress)

    def cancel(self, where: str) -> None:
        """Cancel what a worker does."""
        if where in self._workers:
            self._workers[where].cancel()

    def load(self) -> None:
        """Load the model, once the first pictures had the processor to themselves; or say in `model` why not."""
        self.pictured.wait(FIRST_SECONDS)
        try:
            self.about = self.do("photos", "about")
            self.model = "ready"
        except Exception as error:
            self.model = sentence(error)
        self.loaded.set()

    def end_workers(self) -> None:
        """End all worker processes, also what they do: an unfinished film keeps its work folder."""
        self.stopping.set()
        self.pictured.set()
        for workers in tuple(self._workers.values()):
            workers.close()

    # -- files --------------------------------------------------------------------------------------------------------

    def stamp(self, item: Item) -> str:
        """Size and time of a file; "" where it is gone."""
        with suppress(OSError, FicganError):
            status = self.review.source(item).stat()
            return f"{status.st_size}:{status.st_mtime_ns}"
        return ""

    @contextmanager
    def stage(self, number: str, name: str) -> Iterator[None]:
        """The page shows at a file what is done to it while this lasts."""
        self.progress[number] = (0, None, name)
        try:
            yield
        finally:
            self.progress.pop(number, None)
            self.review.touch(number)  # the page must hear that it is no longer at work

    def run(self, number: str, stage: str, job: Callable[[str], Any]) -> Any:
        """A job on a file; what goes wrong becomes the state of the file."""
        try:
            with self.stage(number, stage):
                return job(number)
        except KeyError:
            return None  # removed meanwhile
        except Exception as error:
            if not self.stopping.is_set():
                self.fail(number, error)
            raise

    def fail(self, number: str, error: Exception) -> None:
        """Note why the work on a file failed."""
        with suppress(KeyError):
            item = self.review[number]
            text = sentence(error)
            with suppress(FicganError):
                text = hide_path(text, self.review.source(item), item.name)
            self.review.change(number, quiet=True, state="failed", error=text)
            with suppress(InputError):  # the disk is full: tried again at the next start
                self.review.change(number)

    def draw_file(self, number: str, basis: tuple[Any, ...]) -> Path:
        """Where the picture of a face as it was drawn once is, by what it was drawn from."""
        return self.review.folder / f"draw-{number}-{hashlib.sha256(repr(basis).encode()).hexdigest()[:16]}.jpg"

    def options(self, item: Item) -> dict[str, Any]:
        """What a side-car states of the controls."""
        controls = self.review.controls_of(item).model_dump()
        if item.kind == "photo":
            del controls["audio"]
        return {**controls, "attributes": controls["attributes"] or None, "recognizer": self.about.get("recognizer")}

    def write_sidecar(self, path: Path, item: Item, record: Mapping[str, Any]) -> None:
        """The record of a result; the result goes again where it cannot be written."""
        more = {"input": Path(item.name).name, "reviewed": datetime.now(UTC).isoformat(timespec="seconds")}
        try:
            write_new(sidecar_path(path), as_json({**record, **more}, indent=1))
        except FicganError:
            path.unlink(missing_ok=True)
            raise
        self.note(item, path, "written")

    def note(self, item: Item, output: Path, state: str, why: str | None = None) -> None:
        """A line of the manifest in the output folder."""
        with suppress(OSError, UsageError):
            if self._manifest is None:
                self._manifest = RunManifest(self.review.output)
            self._manifest.add(output, input=item.name, state=state, error=why)


def sentence(error: BaseException) -> str:
    """What went wrong, in one line that names no file of the review."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}; free space or look at the disk, and try again"
    return errors.sentence(error)


def hide_path(text: str, path: Path, name: str) -> str:
    """A message with the name the user knows in place of the path of a private copy."""
    return text.replace(str(path), name).replace(path.name, name)
