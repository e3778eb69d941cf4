"""What the photos and films of a review share: queues, the model, pictures for the page, results with side-cars."""

from __future__ import annotations

import io
import itertools
import os
import queue
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import FicganError, InputError
from ficgan.files import atomic_write
from ficgan.records.sidecars import as_json
from ficgan.ui.project import Controls, Item, Kind, Review, sidecar_of

if TYPE_CHECKING:
    from ficgan.deidentify import Deidentifier
    from ficgan.deidentify.decided import Drawing

__all__ = ["LATER", "NOW", "SOON", "FileKinds", "Queue", "Stopped", "Workplace", "hide_path", "jpeg", "sentence"]

Image = NDArray[np.uint8]
NOW, SOON, LATER = 0, 5, 10
"""Priorities of jobs."""
ENGINES_KEPT = 8


@dataclass(frozen=True)
class FileKinds:
    """How files are told apart; the command line knows.

    Args:
        is_film: whether a file is a film.
        suffixes: of all files that may be photos or films, in small letters.
    """

    is_film: Callable[[Path], bool]
    suffixes: frozenset[str]

    def files(self, root: Path) -> list[tuple[Path, Kind]]:
        """The photos and films below a folder; hidden ones, links that lead out of it and projects are left out."""
        found: list[tuple[Path, Kind]] = []
        top = root.resolve()
        for path in sorted(root.rglob("*")):
            inner = path.relative_to(root)
            if path.suffix.lower() not in self.suffixes or any(part.startswith(".") for part in inner.parts):
                continue
            if any((root / parent / ".ficgan-folder").exists() for parent in inner.parents if parent.parts):
                continue
            if path.is_file() and path.resolve().is_relative_to(top):
                found.append((path, "film" if self.is_film(path) else "photo"))
        return found


class Stopped(BaseException):
    """The program ends: an unfinished film keeps its work folder."""


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
        if sys.platform == "linux":  # threads have priorities there; the page must answer while faces are made
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.nice(0) + 10)
        self._prepare()
        while True:
            _, _, job, future = self._jobs.get()
            if job is None:
                return
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = job()
            except Stopped:
                return
            except BaseException as error:
                self._done()
                future.set_exception(error)
            else:
                self._done()
                future.set_result(result)


class Workplace:
    """The review on disk, the model, and what becomes of a job that fails.

    Args:
        review: what is on disk.
        kinds: how files are told apart.
        make_engine: makes a `Deidentifier` of mode ficgan for a seed; called once, by `load`.
    """

    def __init__(self, review: Review, kinds: FileKinds, make_engine: Callable[[int], Deidentifier]) -> None:
        self.review, self.kinds = review, kinds
        self.model = "loading"
        """"loading", "ready", or why there is none."""
        self.progress: dict[str, tuple[int, int | None, str]] = {}
        """Of films at work: frames done, frames in all, stage."""
        self.stopping, self.loaded = threading.Event(), threading.Event()
        self._make_engine = make_engine
        self._engine: Deidentifier | None = None
        self._engines: OrderedDict[Drawing, Deidentifier] = OrderedDict()

    def changed(self) -> None:
        """Something changed that is no entry of a file: the page is to ask for it."""
        self.review.revision += 1

    # -- the model ----------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Load the model, or say in `model` why that is not possible."""
        try:
            if not self.stopping.is_set():
                self._engine = self._make_engine(self.review.seed)
                self.model = "ready"
        except Exception as error:
            self.model = sentence(error)
        self.changed()
        self.loaded.set()

    @property
    def engine(self) -> Deidentifier:
        """The model's; an InputError where it could not be loaded."""
        if self._engine is None:
            raise InputError("the model is still being loaded" if self.model == "loading" else self.model)
        return self._engine

    def engine_of(self, item: Item) -> Deidentifier:
        """The engine with the controls of a file."""
        return self.engine_with(self.controls_of(item))

    def engine_with(self, controls: Controls) -> Deidentifier:
        """The engine with these controls; a UsageError where the model cannot do what they ask for."""
        drawing = controls.drawing
        if drawing not in self._engines:
            self._engines[drawing] = drawing.applied(self.engine)
            while len(self._engines) > ENGINES_KEPT:
                self._engines.popitem(last=False)
        return self._engines[drawing]

    def controls_of(self, item: Item) -> Controls:
        """Those of the file, else those of the review."""
        return item.controls or self.review.controls

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
            try:
                self.review.change(number, state="failed", error=text)
            except InputError:  # the disk is full: shown all the same, and tried again at the next start
                self.review.change(number, quiet=True, state="failed", error=text)

    def options(self, item: Item) -> dict[str, Any]:
        """What a side-car tells of the controls."""
        controls, recognizer = self.controls_of(item).model_dump(), self.engine.recognizer
        if item.kind == "photo":
            del controls["audio"]
        return {
            **controls,
            "attributes": controls["attributes"] or None,
            "recognizer": "none" if recognizer is None else recognizer.name,
        }

    def write_sidecar(self, path: Path, item: Item, record: Mapping[str, Any]) -> None:
        """The record of a result; the result goes again where it cannot be written."""
        more = {"input": Path(item.name).name, "reviewed": datetime.now(UTC).isoformat(timespec="seconds")}
        try:
            write_new(sidecar_of(path), as_json({**record, **more}, indent=1))
        except FicganError:
            path.unlink(missing_ok=True)
            raise


def write_new(path: Path, data: bytes) -> None:
    """A result, whole or not at all, and never over another file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(data)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); free space and save again") from error


def jpeg(image: NDArray[Any], longest: int, quality: int = 90) -> bytes:
    """A picture for the page, reduced to a longest side."""
    from PIL import Image as Picture

    picture = Picture.fromarray(np.ascontiguousarray(image)).convert("RGB")
    picture.thumbnail((longest, longest), Picture.Resampling.BILINEAR)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


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
