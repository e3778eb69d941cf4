"""One run over files: what earlier runs left, what became of each file, and the counts at its end.

Worker processes and actors of Ray are at the end.
"""

from __future__ import annotations

import contextlib
import json
import queue
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ficgan.cli._files import VOICES, FileJob, FilePlan, FileSetup, NewFile, make_folder, obstacle, with_name
from ficgan.cli.main import EXIT_SOME_FAILED, Console, sentence
from ficgan.errors import FicganError, InputError, Progress, TakenError, memory_ran_out
from ficgan.files import Place, alone_in, file_digest, unreadable, write_file
from ficgan.images import disguised
from ficgan.records import RunManifest, as_json, own_sidecar, sidecar_path

if TYPE_CHECKING:
    from ficgan.records.exports import Credentials
    from ficgan.workers import Limits

# A file, and its result or the error that it raised.
Done = tuple[FileJob, NewFile | BaseException]
# Counts that a run ends with.
SUMMARY = (
    *("inputs", "written", "failed", "faces", "masked", "uncovered"),
    *("reidentified", "skipped", "no_face", "frames", "damaged", "review"),
)
# Counts above 0 that make the exit code 3.
CHECKS = ("failed", "uncovered", "reidentified", "damaged", "review")


@dataclass(eq=False)
class DeidRun:
    """One call of the command: what earlier runs left, what becomes of each file, and the counts."""

    report: Console  # progress and messages
    manifest: RunManifest  # of the output folder
    sidecar: bool = True  # whether results have side-cars
    overwrite: bool = False  # whether results are made again
    skip_existing: bool = False  # whether finished ones are left, and are no failures
    recorded: Mapping[str, Any] = field(default_factory=dict)  # options as side-cars hold them
    credentials: Credentials | None = None  # sign results, which not every kind of file can hold
    # By the names of `SUMMARY`; "unread" are faces that no recogniser has read again.
    counts: Counter[str] = field(default_factory=Counter)
    # What is no face and was covered, by name: finds in photos, tracks of films.
    objects: Counter[str] = field(default_factory=Counter)
    _unlisted: list[FileJob] = field(default_factory=list)
    _photos_left: int = 0
    _warned_of_voices: bool = False

    # -- before the work ----------------------------------------------------------------------------------------------

    def begin(self, plan: FilePlan) -> list[FileJob]:
        """The files that need work; what cannot begin is a failure, what is finished counts as skipped."""
        self.counts.update(inputs=len(plan.jobs) + len(plan.errors), skipped=plan.left_out.total())
        for name, output, message in plan.errors:
            self._refuse(name, output, message)
        for reason, number in plan.left_out.items():
            if number:
                self.report.info(f"{number} skipped: {reason}.")
        if self.manifest.foreign:
            self.report.info("The file manifest.jsonl in the output folder is another program's; it stays as it is.")
        if not self.counts["inputs"]:
            self.report.info("Nothing to do: neither photo nor film among the inputs.")
        self.report.begin(len(plan.jobs))  # before the inputs are looked at: there may be a million
        ready = [job for job in plan.jobs if self._is_ready(job)]
        self._photos_left = sum(not job.film for job in ready)
        self.report.begin(len(ready))
        return ready

    def _is_ready(self, job: FileJob) -> bool:
        try:
            if why := self._misfit(job):
                raise InputError(why)
            if self.skip_existing and self._is_made(job):
                self.counts["skipped"] += 1
                if not self.manifest.tells_of(job.output):
                    self._unlisted.append(job)
                return False
            self.check_free(job)
            if (found := obstacle(job.output.parent)) is not None:
                raise InputError(f"{found}: cannot be written to; choose another output folder")
        except (InputError, OSError) as error:
            self._refuse(job.name, job.output, with_name(job.name, sentence(error)))
            return False
        return True

    def _misfit(self, job: FileJob) -> str:
        """Why a file cannot become its result, by its name and first bytes; "" where it may."""
        if job.address or not isinstance(job.source, Path):
            return ""
        if why := unreadable(job.source):
            return f"{job.source}: {why}"
        if self.credentials is not None and not self.credentials.takes(job.output.suffix):
            return f"{job.output}: this kind of file holds no content credentials; choose another, or leave --sign out"
        with job.source.open("rb") as file:
            return disguised(job.name, file, film=job.film)

    def check_free(self, job: FileJob) -> None:
        """An InputError where a file is in the way of a result."""
        places = [job.output]
        if self.sidecar and not (self.skip_existing and own_sidecar(job.output) is not None):
            places.append(sidecar_path(job.output))
        for place in () if self.overwrite else places:
            if place.is_symlink() or place.exists():
                advice = "use --skip-existing to do the rest, --overwrite to replace it"
                raise TakenError(f"{job.name}: {place} exists already; {advice}")

    def _is_made(self, job: FileJob) -> bool:
        """Whether an earlier run made this result, of this very input where its side-car tells."""
        if not job.output.is_file():
            return False
        with alone_in(job.output.parent):
            why = self._other(job)
        if why:
            raise InputError(f"{job.name}: {job.output} {why}; use --overwrite to replace it")
        return True

    def _other(self, job: FileJob) -> str:
        """What is wrong with a result that is there; "" where it is this run's."""
        if self.manifest.is_of_other_options(job.output):
            return "was made with other options"
        if not self.sidecar:
            return ""
        record = own_sidecar(job.output)
        if record is None:
            return "exists and its side-car does not"
        here = isinstance(job.output, Path) or not self.manifest.tells_of(job.output)  # reading a store takes its time
        if here and record.get("sha256") not in (None, file_digest(job.output)):
            return "is not the file that its side-car tells of"
        if here and not job.address and record.get("input_sha256") not in (None, file_digest(job.source)):
            return "was made of another file"
        mine, before = json.loads(as_json(self.recorded)), record.get("options")
        before = before if isinstance(before, dict) else {}
        if not mine.get("seed"):
            before.pop("seed", None)  # any seed will do
        other = sorted(name for name in mine.keys() & before.keys() - {"device"} if mine[name] != before[name])
        return f"was made with other options ({', '.join(other)})" if other else ""

    # -- what became of a file ----------------------------------------------------------------------------------------

    def take(self, results: Iterable[Done], total: int) -> None:
        """Write results as they come."""
        for done, (job, made) in enumerate(results, 1):
            self._settle(job, made)
            self._photos_left -= not job.film
            self.report(done, total, job.name)

    def _settle(self, job: FileJob, made: NewFile | BaseException) -> None:
        """Write one result and its line in the manifest. One input must not end the others."""
        before, message = self.counts.copy(), None
        try:
            if isinstance(made, BaseException):
                raise made
            self.write(job, made)
        except TakenError as error:  # another run made it meanwhile, and says so in the manifest
            self.counts = before
            if self.skip_existing and job.output.is_file():
                self.counts["skipped"] += 1
            else:
                self._refuse(job.name, job.output, str(error))
            return
        except Exception as error:
            own = isinstance(error, FicganError) and not memory_ran_out(error)
            message = with_name(job.name, str(error) if own else sentence(error))
            if not own:
                self._tell_what_stays(job)
        except BaseException:
            self._tell_what_stays(job)
            raise
        record: dict[str, Any] = {"seconds": None}
        if isinstance(made, NewFile):
            record = {"seconds": round(made.seconds, 3), "input_sha256": made.input_sha256}
        elif not job.address and isinstance(job.source, Path):
            with suppress(FicganError):
                record["input_sha256"] = file_digest(job.source) if job.source.is_file() else None
        if record.get("input_sha256") is None:  # cameras and streams have none
            record.pop("input_sha256", None)
        counts = {name: self.counts[name] - before[name] for name in ("faces", "masked", "reidentified")}
        state = "failed" if message else "written"
        self.manifest.add(job.output, input=job.name, **record, state=state, **counts, error=message)
        if message:
            self._fail(message)

    def _refuse(self, name: str, output: Place | None, message: str) -> None:
        """An input that no work began on; where the result of an earlier run is there, it stays the last word."""
        self._fail(message)
        if output is None or not output.is_file():
            self.manifest.add(output, input=name, state="failed", error=message)

    def _fail(self, message: str) -> None:
        self.counts["failed"] += 1
        self.report.error(message)

    def write(self, job: FileJob, made: NewFile) -> None:
        """Count a result and write what is not yet written: a photo and its side-car, or a film's side-car."""
        self.counts.update(made.counts)
        for note in made.notes:
            if note != VOICES or not self._warned_of_voices:
                self.report.info(note)
            self._warned_of_voices |= note == VOICES
        if made.failure:
            raise InputError(made.failure)
        for problem in made.problems:
            self.report.error(problem)
        self.objects.update(made.objects)
        if made.data is None:
            self._add_sidecar(job, made)
        else:
            make_folder(job.output.parent)
            self._save(job, made, made.data)
        self.counts["written"] += 1

    def _save(self, job: FileJob, made: NewFile, data: bytes) -> None:
        """Write the side-car and the photo, or neither. A killed run leaves a side-car alone at most."""
        with alone_in(job.output.parent):
            if made.record is not None:
                record = as_json(made.record, indent=1)
                write_file(sidecar_path(job.output), record, overwrite=self._replaces_sidecar(job))
            try:
                write_file(job.output, data, overwrite=self.overwrite)
            except BaseException:
                if made.record is not None:
                    sidecar_path(job.output).unlink(missing_ok=True)
                raise
            if made.record is None:
                _remove_stale(job.output)

    def _add_sidecar(self, job: FileJob, made: NewFile) -> None:
        if made.record is None:
            return _remove_stale(job.output)
        side = sidecar_path(job.output)
        try:
            write_file(side, as_json(made.record, indent=1), overwrite=self._replaces_sidecar(job))
        except (OSError, FicganError) as error:  # hours of work stay
            _remove_stale(job.output)
            raise InputError(f"{job.output}: is made, but {side.name} beside it is not: {sentence(error)}") from error

    def _replaces_sidecar(self, job: FileJob) -> bool:
        """Whether a side-car may be written over: who goes on replaces that of a result which is gone."""
        gone = job.film or not job.output.exists()  # a film itself is written by now
        return self.overwrite or (self.skip_existing and gone and own_sidecar(job.output) is not None)

    def _tell_what_stays(self, job: FileJob) -> None:
        """Say what an interrupted film leaves, and how to go on or to be rid of it."""
        if job.film and isinstance(job.output, Path):
            from ficgan.folders import work_folder

            work = work_folder(job.output)
            if work.is_dir():
                how = f"the same command goes on from what is in {work}; `ficgan purge {work}` removes it."
                self.report.info(f"{job.name}: {how}")

    def frames(self, job: FileJob) -> Progress:
        return lambda done, total, stage: self.report.frames(done, total, job.name, stage)

    # -- the end ------------------------------------------------------------------------------------------------------

    def finish(self, work: Callable[[], None], started: float, **more: Any) -> None:
        """Do the work and print the final JSON, also when interrupted; SystemExit where something failed."""

        def print_summary(**extra: Any) -> None:
            click.echo(json.dumps({**self._summary(), "seconds": round(time.monotonic() - started, 3), **extra}))

        try:
            with contextlib.redirect_stdout(sys.stderr):  # what libraries print must not mix with the final JSON
                work()
        except KeyboardInterrupt:
            print_summary(interrupted=True)
            if self._photos_left:
                raise KeyboardInterrupt("the same command with --skip-existing does the rest") from None
            raise
        print_summary(**more)
        if any(self.counts[name] for name in CHECKS):
            raise SystemExit(EXIT_SOME_FAILED)

    def list_finished(self) -> None:
        """Lines for results of runs that were killed before they could write one."""
        if any(isinstance(job.output, Path) for job in self._unlisted):
            self.manifest.refresh()  # another run may have written them meanwhile
        for job in self._unlisted:
            if not self.manifest.tells_of(job.output):
                record = own_sidecar(job.output) if self.sidecar else None
                digest = {"input_sha256": record["input_sha256"]} if record and record.get("input_sha256") else {}
                self.manifest.add(job.output, input=job.name, seconds=None, **digest, state="written", error=None)

    def _summary(self) -> dict[str, Any]:
        """The counts; `reidentified` is None where faces were not read again (--verify off), or nothing was written."""
        counts: dict[str, Any] = {name: self.counts[name] for name in SUMMARY}
        if self.recorded.get("cover_also") or self.objects:
            counts["objects"] = dict(self.objects)
        nothing = not self.counts["written"] and self.counts["failed"] > 0
        return {**counts, "reidentified": None} if self.counts["unread"] or nothing else counts


def _remove_stale(output: Place) -> None:
    """An earlier run's side-car speaks of a picture that is no longer there; a stranger's file stays."""
    if own_sidecar(output) is not None:
        with suppress(OSError):
            sidecar_path(output).unlink()


# -- who works --------------------------------------------------------------------------------------------------------


def by_workers(setup: FileSetup, jobs: Sequence[FileJob], count: int, limits: Limits | None) -> Iterator[Done]:
    """Results of worker processes, as they come. A file whose worker dies fails; another worker takes its place."""
    from ficgan.workers import Workers

    with Workers(setup.plain, min(count, len(jobs)), limits) as workers:
        for job, result in workers.run(jobs):
            yield job, NewFile(**result) if isinstance(result, dict) else result


class _Actor:
    """A worker on a Ray cluster."""

    def __init__(self, setup: FileSetup) -> None:
        self._work = setup()

    def ready(self) -> None:
        """Answers when the model is loaded."""

    def work(self, job: FileJob) -> NewFile | Exception:
        try:
            return self._work(job)
        except Exception as error:
            return error


def by_cluster(setup: FileSetup, jobs: Sequence[FileJob], count: int, address: str) -> Iterator[Done]:
    """Results of `count` actors of a Ray cluster (see `ficgan.workers.ray_cluster`), as they come.

    A file whose actor dies fails; the actor starts anew.
    """
    from ficgan.workers import in_threads, ray_cluster

    with ray_cluster(address, count) as ray:
        kind = ray.remote(num_cpus=1, max_restarts=-1)(_Actor)
        actors = [kind.remote(setup) for _ in range(min(count, len(jobs)))]
        ray.get([actor.ready.remote() for actor in actors])
        free = queue.SimpleQueue[Any]()
        for actor in actors:
            free.put(actor)

        def work(job: FileJob) -> Any:
            actor = free.get()
            try:
                return ray.get(actor.work.remote(job))
            except ray.exceptions.RayError:
                return InputError("the worker process crashed on this file")
            finally:
                free.put(actor)

        yield from in_threads(work, jobs, len(actors))
