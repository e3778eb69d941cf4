"""What the photos and films of a review share: queues, worker processes, side-cars, and jobs that fail."""

from __future__ import annotations

import hashlib
import itertools
import json
import queue
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    """Jobs of one thread, the most urgent first.

    Args:
        name: of the thread.
        done: called after each job.
        prepare: called in the thread before the first job.
    """

    def __init__(self, name: str, done: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> None:
        self._jobs: queue.PriorityQueue[tuple[float, int, Callable[[], Any] | None, Future[Any]]] = (
            queue.PriorityQueue()
        )
        self._numbers, self._prepare, self._done = itertools.count(), prepare, done
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
                result = job()
            except BaseException as error:
                self._done()
                future.set_exception(error)
            else:
                self._done()
                future.set_result(result)


class Workplace:
    """The review on disk, its worker processes, and what becomes of a job that fails.

    Args:
        review: what is on disk.
        make_engine: makes a `Deidentifier` of mode ficgan for a seed; it can be pickled.
        start: makes `Workers` of a setup.
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
        self._start, self._setup = start, partial(model_setup, make_engine, review.seed)
        self._manifest: RunManifest | None = None
        self._workers = {"pictures": start(PictureTasks)}

    def changed(self) -> None:
        """Something changed that is no entry of a file: the page is to ask for it."""
        self.review.revision += 1

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
        self.changed()
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

    def run(self, number: str, job: Callable[[str], Any]) -> Any:
        """A job on a file; what goes wrong becomes the state of the file."""
        try:
            looking = self.review[number].state == "waiting"
            self.progress.setdefault(number, (0, None, "looking for faces" if looking else "drawing"))
            return job(number)
        except KeyError:
            return None  # removed meanwhile
        except Exception as error:
            if not self.stopping.is_set():
                self.fail(number, error)
            raise
        finally:
            self.progress.pop(number, None)
            self.review.touch(number)  # the page must hear that it is no longer at work

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
    """What went wrong, in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, FicganError) and text:
        return text
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}; free space or look at the disk, and try again"
    return f"{type(error).__name__}: {text}"


def hide_path(text: str, path: Path, name: str) -> str:
    """A message with the name the user knows in place of the path of a private copy."""
    return text.replace(str(path), name).replace(path.name, name)


# -- people over a review ----------------------------------------------------------------------------------------------

# How their new faces were drawn, with identity codes of the sources.
FILE = "people.json"


class DeskPeople:
    """The people of the photos of a review.

    Args:
        meet: who the faces of a photo are among those of all photos since the first, which the flag says.
        redraw: draws a photo again.
    """

    def __init__(
        self,
        work: Workplace,
        queue: Queue,
        meet: Callable[[Item, bool], list[int]],
        redraw: Callable[[str, float], object],
    ) -> None:
        self.work, self.review, self._queue, self._meet, self._redraw = work, work.review, queue, meet, redraw
        self.identities: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            self.identities = dict(json.loads((self.review.folder / FILE).read_text()))

    def keep(self, new: Mapping[str, Any]) -> None:
        """Remember how people were drawn, for their other photos."""
        if any(name not in self.identities for name in new):
            self.identities = {**new, **self.identities}
            self.review.write_file(FILE, json.dumps(self.identities).encode())

    def photos_of(self, people: Collection[int]) -> list[Item]:
        """The photos that people are in."""
        return [
            item
            for item in (self.review.items() if people else ())
            if item.kind == "photo" and any(face.person in people for face in item.faces)
        ]

    def rows(self) -> list[dict[str, Any]]:
        """All people, with the photos and numbers of their faces."""
        found: dict[int, list[dict[str, Any]]] = {}
        for item in self.review.items():
            for n, face in enumerate(item.faces):
                if face.person:
                    one = {"id": item.id, "name": item.name, "face": n, "mode": face.mode, "draw": face.draw}
                    found.setdefault(face.person, []).append({**one, "draws": face.draws, "action": face.action})
        return [{"person": person, "faces": faces} for person, faces in sorted(found.items())]

    def link(self) -> Future[Any]:
        """Compare the faces of all photos that were looked at; who is in several gets a number. It is one step."""
        items = [item for item in self.review.items() if item.kind == "photo" and item.state == "ready" and item.faces]
        if not items:
            raise InputError("no photo with a face was looked at yet; wait for it")
        work = self.work
        for item in items:
            work.progress[item.id] = (0, None, "comparing faces")

        def compare() -> int:
            try:
                met: dict[str, list[int]] = {}
                for n, item in enumerate(items):
                    met[item.id] = self._meet(self.review[item.id], n == 0)
                    work.progress.pop(item.id, None)
                    self.review.touch(item.id)
            finally:
                for item in items:
                    work.progress.pop(item.id, None)
                    self.review.touch(item.id)
            return self._number(met)

        return self._queue.put(compare, SOON)

    def _number(self, met: Mapping[str, list[int]]) -> int:
        """Give the people who were met the numbers that they have; returns how many are in several photos."""
        with self.review.lock:
            known = {number: self.review[number].faces for number in met}
            groups: dict[int, list[int]] = {}
            for number, people in met.items():
                for person, face in zip(people, known[number], strict=False):
                    groups.setdefault(person, []).append(face.person)
            groups = {person: faces for person, faces in groups.items() if person and len(faces) > 1}
            names: dict[int, int] = {}
            for person, faces in groups.items():
                had = [number for number, _ in Counter(faces).most_common() if number and number not in names.values()]
                names[person] = had[0] if had else 0
            fresh = max([0, *names.values(), *(face.person for faces in known.values() for face in faces)])
            for person, name in names.items():
                if not name:
                    fresh += 1
                    names[person] = fresh
            step = self.review.next_step()
            leaders: dict[int, Any] = {}
            for number, people in met.items():
                entries = list(known[number])
                for n, (person, face) in enumerate(zip(people, entries, strict=False)):
                    name = names.get(person, 0)
                    # One new face; whether it is shown is decided on each as before.
                    lead = leaders.setdefault(name, face) if name else face
                    same = {field: getattr(lead, field) for field in ("draw", "drawing", "draws")}
                    entries[n] = face.model_copy(update={"person": name, **same})
                if entries != list(known[number]):
                    self.review.decide(number, step, faces=tuple(entries))
                    self._redraw(number, SOON)
            return len(groups)
