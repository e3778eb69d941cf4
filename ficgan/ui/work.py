"""What the photos and films of a review share: queues, worker processes, side-cars, and jobs that fail."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from ficgan import errors
from ficgan.deidentify import Deidentifier
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.records import RunManifest, as_json, sidecar_path
from ficgan.ui import Item, Review
from ficgan.ui.tasks import PictureTasks, model_setup, write_new
from ficgan.workers import Workers

# Priorities of jobs, the most urgent first.
FIRST, NOW, SOON, LATER = -1, 0, 5, 10


class Queue:
    """Jobs of one thread, the most urgent first."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.PriorityQueue[tuple[int, int, Callable[[], Any] | None, Future[Any]]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._run, name=f"ficgan-{name}", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], Any] | None, priority: int = LATER) -> Future[Any]:
        """Do a job in its turn; its result or error is in the future. None ends the thread."""
        future: Future[Any] = Future()
        self._jobs.put((priority, next(self._numbers), job, future))
        return future

    def stop(self, seconds: float) -> None:
        """End after the job at hand."""
        self.put(None, FIRST)
        self._thread.join(seconds)

    def _run(self) -> None:
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
        self.is_closing = False
        self._start, self._setup = start, partial(model_setup, make_engine, review.settings.seed)
        self._workers = {"pictures": start(PictureTasks)}

    def do(self, where: str, task: str, progress: Callable[..., object] | None = None, **given: Any) -> Any:
        """A task of `ficgan.ui.tasks` in the worker for "pictures", "photos" or "films", which starts when needed."""
        if where not in self._workers:
            if self.is_closing:
                raise InputError("the review is being closed; start it again")
            self._workers[where] = self._start(self._setup)
        return self._workers[where].do((task, given), progress)

    def cancel(self, where: str) -> None:
        """Cancel what a worker does."""
        if where in self._workers:
            self._workers[where].cancel()

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
            self.fail(number, error)
            raise

    def fail(self, number: str, error: Exception) -> None:
        """Note why the work on a file failed."""
        with suppress(KeyError):
            if self.is_closing:
                return
            item = self.review[number]
            text = sentence(error)
            with suppress(FicganError):
                text = hide_path(text, self.review.source(item), item.name)
            self.review.change(number, quiet=True, state="failed", error=text)
            with suppress(InputError, OSError):  # the disk is full: tried again at the next start
                self.review.change(number)

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
        except (FicganError, OSError):
            path.unlink(missing_ok=True)
            raise
        self.note(item, path, "written")

    def note(self, item: Item, output: Path, state: str, why: str | None = None) -> None:
        """A line of the manifest in the output folder."""
        with suppress(OSError, UsageError):
            RunManifest(self.review.output).add(output, input=item.name, state=state, error=why)


def sentence(error: BaseException) -> str:
    """What went wrong, in one line that names no file of the review."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}; free space or look at the disk, and try again"
    return errors.sentence(error)


def hide_path(text: str, path: Path, name: str) -> str:
    """A message with the name the user knows in place of the path of a private copy."""
    return text.replace(str(path), name).replace(path.name, name)
