"""The work of `ficgan-deid`: photos in several threads, films one by one; no input may stop the others."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from ficgan.cli._console import EXIT_SOME_FAILED, Progress, sentence
from ficgan.cli._plan import Job, Plan, obstacle
from ficgan.errors import FicganError, InputError, TakenError, memory_ran_out
from ficgan.files import alone_in, atomic_write, file_digest, unreadable
from ficgan.images import disguised
from ficgan.records.sidecars import (
    Manifest,
    NewPhoto,
    as_json,
    film_record,
    long_name,
    new_photo,
    own_sidecar,
    photo_record,
    same_draws,
    shows_seed,
    sidecar_path,
)

if TYPE_CHECKING:
    from ficgan.records.credentials import Credentials

__all__ = ["Run", "RunOptions", "finish"]

T = TypeVar("T")
R = TypeVar("R")
PATIENCE = 2.0
"""Seconds that an interruption waits for the photos in work; their threads die with the process."""


@dataclass(frozen=True)
class RunOptions:
    """What concerns files rather than faces."""

    max_pixels: int = 1
    require_face: bool = False
    keep_metadata: bool = False
    tag: bool = True
    sidecar: bool = True
    overwrite: bool = False
    skip_existing: bool = False
    """Results that are there already are left alone and are no failures."""
    jobs: int = 1
    """Photos that are worked on at once."""
    dry_run: bool = False
    recorded: Mapping[str, Any] = field(default_factory=dict)
    """Options as the side-cars tell them."""
    film: Mapping[str, Any] = field(default_factory=dict)
    """Of `Deidentifier.process_video` or `render_video`."""
    linked: bool = False
    """Whether a person keeps one new face in all photos: finished ones are looked at again, for who is in them."""
    credentials: Credentials | None = None
    """Signs what has new faces or covers."""


SUMMARY = (
    "inputs",
    "written",
    "failed",
    "faces",
    "masked",
    "uncovered",
    "reidentified",
    "skipped",
    "no_face",
    "frames",
    "damaged",
    "review",
)


class Run:
    """One call of the command: goes through a plan and counts."""

    def __init__(self, options: RunOptions, report: Progress, manifest: Manifest | None = None) -> None:
        self.options, self.manifest, self._report = options, manifest or Manifest(), report
        self.counts: Counter[str] = Counter()
        """By the names of `SUMMARY`; "unread" are faces that no recogniser has read again."""
        self.photos_left = 0
        self._warned_of_voices = False
        self._finished: set[Job] = set()
        """Photos that are looked at again, for who is in them."""
        self._seeded: list[tuple[Job, Mapping[str, Any]]] = []
        """Finished results of earlier runs, and their side-cars, where this run has a seed."""

    @property
    def ok(self) -> bool:
        """Every input was written and every check met."""
        return not any(self.counts[name] for name in ("failed", "uncovered", "reidentified", "damaged", "review"))

    def summary(self) -> dict[str, int | None]:
        """The counts; `reidentified` is None where faces were not read again (--no-verify), or nothing was written."""
        counts: dict[str, int | None] = {name: self.counts[name] for name in SUMMARY}
        nothing = not self.counts["written"] and self.counts["failed"] > 0
        return {**counts, "reidentified": None} if self.counts["unread"] or nothing else counts

    def __call__(self, plan: Plan, make_engine: Callable[[], Any]) -> None:
        """Process every job.

        Args:
            plan: What becomes what.
            make_engine: Loads the model; called once, when there is something to do.

        Raises:
            FicganError: The model cannot be set up, so nothing can be done.
        """
        self.counts.update(inputs=len(plan.jobs) + len(plan.errors), skipped=plan.left_out.total())
        for name, output, message in plan.errors:
            self._fail_unbegun(name, output, message)
        for note in plan.notes:
            self._report.info(note)
        if self.manifest.foreign:
            self._report.info("The file manifest.jsonl in the output folder is another program's; it stays as it is.")
        if not self.counts["inputs"]:
            self._report.info("Nothing to do: neither photo nor film among the inputs.")
        if self.options.dry_run:
            for job in filter(self._is_ready, plan.jobs):
                self._report.info(f"{job.name} -> {job.output}")
            return
        self._report.begin(len(plan.jobs))  # before the inputs are looked at: there may be a million
        ready = [job for job in plan.jobs if self._is_ready(job)]
        self.photos_left = sum(not job.film for job in ready)
        if not ready and not self._seeded:
            return
        if self.options.linked:
            wanted = {*ready, *self._finished}
            ready = [job for job in plan.jobs if job in wanted]
        self._report.begin(len(ready))
        engine, done = make_engine(), 0
        if self._is_of_another_seed(engine, ready) and self.options.linked:
            for job in ready:
                if job not in self._finished:
                    message = f"{job.name}: is left, since the photos that are finished were made with another seed"
                    self._fail_unbegun(job.name, job.output, message)
            return
        if self.options.linked and self._seeded:
            engine = make_engine()  # the other has met people
        for film, group in groupby(ready, lambda job: job.film):
            for job in (self._films if film else self._photos)(list(group), engine):
                done += 1
                self.photos_left -= not film
                self._report(done, len(ready), job.name)

    def _is_ready(self, job: Job) -> bool:
        """Whether a job can begin: its input is there, its output is free and can be written. Loads nothing."""
        try:
            if not job.address and (why := self._misfit(job)):
                raise InputError(why)
            if self.options.skip_existing and self._is_finished(job):
                self.counts["skipped"] += 1
                if self.options.linked and not job.film:
                    self._finished.add(job)
                return False
            self._check_free(job)
            if (found := obstacle(job.output.parent)) is not None:
                raise InputError(f"{found}: cannot be written to; choose another output folder")
        except InputError as error:
            self._fail_unbegun(job.name, job.output, str(error))
            return False
        return True

    def _misfit(self, job: Job) -> str:
        """Why a file cannot become its result, by its name and first bytes; "" where it may."""
        if why := unreadable(job.source):
            return f"{job.source}: {why}"
        if self.options.credentials is not None and not self.options.credentials.takes(job.output.suffix):
            return f"{job.output}: this kind of file holds no content credentials; choose another, or leave --sign out"
        with job.source.open("rb") as file:
            return disguised(job.name, file, film=job.film) or long_name(
                job.name, job.output, film=job.film, sidecar=self.options.sidecar
            )

    def _is_finished(self, job: Job) -> bool:
        """Whether an earlier run made this result, of this very input where its side-car tells."""
        if not job.output.is_file():
            return False
        with alone_in(job.output.parent):  # not between a result and its side-car
            return self._is_made_of(job)

    def _is_made_of(self, job: Job) -> bool:
        if self.manifest.is_of_other_options(job.output):
            raise InputError(f"{job.name}: {job.output} was made with other options; use --overwrite to replace it")
        if not self.options.sidecar:
            return True
        record = own_sidecar(job.output)
        if record is None:
            raise InputError(
                f"{job.name}: {job.output} exists and its side-car does not; use --overwrite to replace it"
            )
        if record.get("sha256") not in (None, file_digest(job.output)):
            raise InputError(
                f"{job.name}: {job.output} is not the file that its side-car tells of; use --overwrite to replace it"
            )
        if not job.address and record.get("input_sha256") not in (None, file_digest(job.source)):
            raise InputError(f"{job.name}: {job.output} was made of another file; use --overwrite to replace it")
        told, before = json.loads(as_json(self.options.recorded)), record.get("options")
        before = before if isinstance(before, dict) else {}
        if other := [name for name in told.keys() & before.keys() - {"seed", "device"} if told[name] != before[name]]:
            why = f"{job.output} was made with other options ({', '.join(sorted(other))})"
            raise InputError(f"{job.name}: {why}; use --overwrite to replace it")
        if told.get("seed"):
            if before.get("seed") is False:
                raise InputError(f"{job.name}: {job.output} was made without a seed; use --overwrite to replace it")
            self._seeded.append((job, record))
        return True

    def _is_of_another_seed(self, engine: Any, jobs: list[Job]) -> bool:
        """Results of another seed are failures. A short seed is recorded nowhere, so one photo is drawn again.

        Where people are linked, those before it are drawn, too: whose face it is depends on them.
        """
        photo = next((one for one in self._seeded if not one[0].film and shows_seed(one[1])), None)
        if photo is not None and self.options.linked:
            for job in jobs[: jobs.index(photo[0])]:
                with suppress(Exception):
                    self._photo(job, engine)
        other = photo is not None and not same_draws(self._photo(photo[0], engine)[0], photo[1])
        for job, record in self._seeded:
            promise = record.get("seed_commitment") if job.film else None
            if other or (promise is not None and promise != engine.seed_commitment):
                self.counts["skipped"] -= 1
                self._fail(f"{job.name}: {job.output} was made with another seed; use --overwrite to replace it")
            elif job.film and promise is None:
                self._report.info(f"{job.name}: {job.output} stays; whether this seed made it is not recorded.")
        return other

    def _check_free(self, job: Job) -> None:
        if self.options.overwrite:
            return
        side = sidecar_path(job.output)
        if self.options.sidecar and not job.output.exists() and own_sidecar(job.output) is not None:
            raise TakenError(f"{job.name}: {side} is there without its result; remove it, or use --overwrite")
        for path in (job.output, side) if self.options.sidecar else (job.output,):
            if path.exists() or path.is_symlink():
                raise TakenError(
                    f"{job.name}: {path} exists already; use --skip-existing to do the rest, --overwrite to replace it"
                )

    def _fail_unbegun(self, name: str, output: Path | None, message: str) -> None:
        """An input that no work began on; where the result of an earlier run is there, it stays the last word."""
        self._fail(message)
        if output is None or not output.is_file():
            self.manifest.add(output, input=name, state="failed", error=message)

    def _fail(self, message: str) -> None:
        self.counts["failed"] += 1
        self._report.error(message)

    @contextmanager
    def _settling(self, job: Job) -> Iterator[dict[str, Any]]:
        """One input must not end the others; what became of it goes into the manifest, with what the block knows."""
        before, message = self.counts.copy(), None
        known: dict[str, Any] = {"seconds": None}
        try:
            yield known
        except TakenError as error:  # another run made it meanwhile, and says so in the manifest
            self.counts = before
            self._leave(job, str(error))
            return
        except Exception as error:
            own = isinstance(error, FicganError) and not memory_ran_out(error)
            message = str(error) if own else f"{job.name}: {sentence(error)}"
        with suppress(FicganError):
            known = known if "input_sha256" in known else {**_input(job), **known}
        here = {name: self.counts[name] - before[name] for name in ("faces", "masked", "reidentified")}
        state = "failed" if message else "written"
        self.manifest.add(job.output, input=job.name, **known, state=state, **here, error=message)
        if message:
            self._fail(message)

    def _leave(self, job: Job, message: str) -> None:
        """A result that another run makes: with --skip-existing it counts as one that was there."""
        try:
            self.manifest.refresh()
            if self.options.skip_existing and self._is_finished(job):
                self.counts["skipped"] += 1
                return
        except InputError as error:
            message = str(error)
        self._fail(message)

    # -- photos ------------------------------------------------------------------------------------------------------

    def _photos(self, jobs: list[Job], engine: Callable[..., Any]) -> Iterator[Job]:
        """Photos are read, changed and encoded in threads; this one writes them, in the order of the plan."""
        with closing(in_order(lambda job: self._photo(job, engine), jobs, self.options.jobs)) as results:
            for job, outcome in results:
                if job in self._finished:
                    with suppress(Exception):  # its result is there; it failed to show people only
                        outcome()
                    yield job
                    continue
                with self._settling(job) as known:
                    made, seconds = outcome()
                    known |= {"input_sha256": made.input_sha256, "seconds": round(seconds, 3)}
                    self._finish(job, made)
                yield job

    def _photo(self, job: Job, engine: Callable[..., Any]) -> tuple[NewPhoto, float]:
        """A photo with new faces, encoded, and the seconds it took. Runs in any thread and changes nothing here."""
        options, began = self.options, time.monotonic()
        try:
            made = new_photo(
                engine,
                None,
                str(job.source),
                output=str(job.output),
                max_pixels=options.max_pixels,
                tag=options.tag,
                keep_metadata=options.keep_metadata,
                require_face=options.require_face,
                refuse=False,
            )
        except FicganError as error:  # such as a program of the user's that failed
            raise InputError(_named(str(job.source), str(error))) from error
        return made, time.monotonic() - began

    def _finish(self, job: Job, made: NewPhoto) -> None:
        self.counts.update(faces=len(made.actions), masked=made.actions.count("masked"), uncovered=made.uncovered)
        for note in made.notes:
            self._report.info(f"{job.source}: {note}")
        if made.problem:
            raise InputError(made.problem)
        for note in made.audit.get("notes", ()):
            self._report.info(_named(str(job.source), note))
        _make_folder(job.output.parent)
        if self.options.credentials is not None and set(made.actions) - {"kept"}:
            made = replace(made, data=self.options.credentials.photo(made.data, job.output.suffix, made.actions))
        self._save(job, made)
        self.counts.update(written=1, reidentified=made.reidentified, no_face=not made.actions)
        if made.audit.get("gate", "") is None:
            self.counts["unread"] += len(made.actions)
        if made.reidentified:
            faces = f"{made.reidentified} face{'' if made.reidentified == 1 else 's'}"
            self._report.error(f"{job.output}: {faces} still recognised; do not publish it")
        if not made.actions:
            self._report.info(f"{job.source}: no face found; written without a change to {job.output}")

    def _save(self, job: Job, made: NewPhoto) -> None:
        """Write the result and its side-car, or neither."""
        with alone_in(job.output.parent):
            self._save_both(job, made)

    def _save_both(self, job: Job, made: NewPhoto) -> None:
        overwrite, written = self.options.overwrite, False
        side: AbstractContextManager[BinaryIO | None] = nullcontext()
        if self.options.sidecar:
            side = atomic_write(sidecar_path(job.output), overwrite=overwrite)
        try:
            with side as record:  # takes its name after the result
                if record is not None:
                    record.write(as_json(photo_record(made, job.place, self.options.recorded), indent=1))
                with atomic_write(job.output, overwrite=overwrite) as result:
                    result.write(made.data)
                written = True
        except BaseException:
            if written and not overwrite:  # the side-car failed after its picture had taken its name
                job.output.unlink(missing_ok=True)
            elif written:
                _remove_stale(job.output)
            raise
        if not self.options.sidecar:
            _remove_stale(job.output)

    # -- films -------------------------------------------------------------------------------------------------------

    def _films(self, jobs: list[Job], engine: Any) -> Iterator[Job]:
        for job in jobs:
            with self._settling(job) as known:
                known |= self.film(job, engine.process_video)
            yield job

    def film(self, job: Job, process: Callable[..., Any]) -> dict[str, Any]:
        """Process one film by a method of the engine; returns its hash and seconds for the manifest."""
        self._check_free(job)
        options, began = self.options, time.monotonic()
        source = _input(job) if options.sidecar else {}
        with _folder_for(job.output), self._telling_what_stays(job):
            result = process(
                job.address or job.source,
                job.output,
                overwrite=options.overwrite,
                progress=lambda done, total, stage: self._report.frames(done, total, job.name, stage),
                **options.film,
            )
        seconds = time.monotonic() - began
        unread = result.reidentified is None
        self.counts.update(
            faces=result.tracks,
            masked=result.masked_people,
            frames=result.frames,
            no_face=not result.tracks,
            damaged=bool(result.damage),
            unread=result.tracks if unread else 0,
            reidentified=result.reidentified or 0,
            review=len(result.review),
        )
        encode = options.film.get("encode")
        if not self._warned_of_voices and encode is not None and encode.audio == "copy" and result.has_audio:
            self._warned_of_voices = True
            self._report.info("The sound is copied, and a voice identifies, too; --audio drop leaves it out.")
        for note in result.notes:
            self._report.info(_named(job.name, note))
        for note in result.damage:
            self._report.error(_named(job.name, note))
        if result.reidentified:
            times = ", ".join(dict.fromkeys(_clock(finding.time) for finding in result.check.findings))
            self._report.error(f"{job.output}: a source face is still recognised at {times}; do not publish it")
        for reason in dict.fromkeys(place["reason"] for place in result.review):
            times = ", ".join(
                dict.fromkeys(_clock(place["time"]) for place in result.review if place["reason"] == reason)
            )
            self._report.error(f"{job.output}: look whether all faces are covered around {times}: {reason}")
        if options.credentials is not None and result.tracks:
            options.credentials.film(job.output, result.faces)
        if options.sidecar:
            self._save_record(job, result, source)
        else:
            _remove_stale(job.output)
        self.counts["written"] += 1
        return {**source, "seconds": round(seconds, 3)}

    @contextmanager
    def _telling_what_stays(self, job: Job) -> Iterator[None]:
        """Say what an interrupted film leaves, and how to go on or to be rid of it."""
        try:
            yield
        except FicganError:
            raise  # nothing stays
        except BaseException:
            from ficgan.video.folders import work_folder

            work = work_folder(job.output)
            if work.is_dir():
                self._report.info(
                    f"{job.name}: the same command goes on from what is in {work}; `ficgan purge {work}` removes it."
                )
            raise

    def _save_record(self, job: Job, result: Any, source: Mapping[str, str]) -> None:
        """The side-car of a film, which has taken its name already."""
        record = film_record(result, job.output, job.place, self.options.recorded, **source)
        side = sidecar_path(job.output)
        try:
            with atomic_write(side, overwrite=self.options.overwrite) as file:
                file.write(as_json(record, indent=1))
        except (OSError, FicganError) as error:  # hours of work stay
            _remove_stale(job.output)
            raise InputError(f"{job.output}: is made, but {side.name} beside it is not: {sentence(error)}") from error


def finish(run: Run, work: Callable[[], None], started: float) -> None:
    """Do the work and print the final JSON, also when interrupted; SystemExit where something failed."""

    def print_summary(**extra: Any) -> None:
        click.echo(json.dumps({**run.summary(), "seconds": round(time.monotonic() - started, 3), **extra}))

    try:
        with contextlib.redirect_stdout(sys.stderr):  # what libraries print must not mix with the final JSON
            work()
    except KeyboardInterrupt:
        print_summary(interrupted=True)
        if run.photos_left:
            raise KeyboardInterrupt("the same command with --skip-existing does the rest") from None
        raise
    print_summary(**({"dry_run": True} if run.options.dry_run else {}))
    if not run.ok:
        raise SystemExit(EXIT_SOME_FAILED)


def in_order(work: Callable[[T], R], items: Iterable[T], jobs: int) -> Generator[tuple[T, Callable[[], R]], None, None]:
    """Every item with a function that gives its result or raises its error, in the order of the items.

    At most `2 · jobs` items are begun and not yet handed over. Close the iterator to stop: what is not begun is left.
    With one job, `work` is called in the caller's thread.
    """
    if jobs <= 1:
        for item in items:
            yield item, partial(work, item)
        return
    tasks: queue.SimpleQueue[tuple[T, Future[R]] | None] = queue.SimpleQueue()
    stopped = threading.Event()

    def serve() -> None:
        while (task := tasks.get()) is not None and not stopped.is_set():
            item, future = task
            try:
                result = work(item)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            del task, item, future

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    begun: deque[tuple[T, Future[R]]] = deque()
    try:
        for item in items:
            future: Future[R] = Future()
            begun.append((item, future))
            tasks.put((item, future))
            if len(begun) == 2 * jobs:
                yield _next(begun)
        while begun:
            yield _next(begun)
    finally:
        stopped.set()
        for _ in threads:
            tasks.put(None)
        until = time.monotonic() + PATIENCE
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))


def _next(begun: deque[tuple[T, Future[R]]]) -> tuple[T, Callable[[], R]]:
    """The oldest item once it is done. It is awaited here, so that Ctrl-C ends the wait."""
    item, future = begun.popleft()
    future.exception()
    return item, future.result


def _input(job: Job) -> dict[str, str]:
    """The hash of an input that is one file; cameras, streams and numbered images have none."""
    return {"input_sha256": file_digest(job.source)} if not job.address and job.source.is_file() else {}


def _remove_stale(output: Path) -> None:
    """An earlier run's side-car speaks of a picture that is no longer there; a stranger's file stays."""
    if own_sidecar(output) is not None:
        with suppress(OSError):
            sidecar_path(output).unlink()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made ({error.strerror}); choose another output folder") from error


@contextmanager
def _folder_for(output: Path) -> Iterator[None]:
    """Make the folder of an output; folders that are new go again if the block fails and nothing is in them."""
    new = [folder for folder in output.parents if not os.path.lexists(folder)]
    _make_folder(output.parent)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for folder in new:
                folder.rmdir()
        raise


def _clock(seconds: float) -> str:
    """75.25 → 1:15.25"""
    hundredths = round(seconds * 100)
    return f"{hundredths // 6000}:{hundredths % 6000 / 100:05.2f}"


def _named(name: str, note: str) -> str:
    return note if note.startswith(f"{name}: ") else f"{name}: {note}"
