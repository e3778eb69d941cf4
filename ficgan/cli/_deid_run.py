"""A run of `ficgan-deid`: writes what the work on files gives, counts, and says what became of each; no input may stop
the others.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ficgan.cli._console import EXIT_SOME_FAILED, Progress, sentence
from ficgan.cli._earlier import Earlier, together
from ficgan.cli._plan import FileJob, FilePlan
from ficgan.cli._work import Done, FileWork, NewFilm, make_folder, named
from ficgan.errors import FicganError, InputError, TakenError, memory_ran_out
from ficgan.records.sidecars import as_json, own_sidecar, photo_record, sidecar_path
from ficgan.stores import Place, digest_of, write_file

if TYPE_CHECKING:
    from ficgan.deidentify.publish import NewPhoto

__all__ = ["DeidRun", "finish"]

# Counts that a run ends with.
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
# Counts above 0 that make the exit code 3.
CHECKS = ("failed", "uncovered", "reidentified", "damaged", "review")


class DeidRun:
    """One call of the command.

    Args:
        report: progress and messages.
        earlier: what earlier runs left; its manifest is written to.
        linked: whether a person keeps one new face in all photos: finished ones are looked at again, for who is there.
    """

    def __init__(self, report: Progress, earlier: Earlier, *, linked: bool = False) -> None:
        self._report, self.earlier, self.linked = report, earlier, linked
        self.counts: Counter[str] = Counter()
        """By the names of `SUMMARY`; "unread" are faces that no recogniser has read again."""
        self.photos_left = 0
        self.finished: set[FileJob] = set()
        """Photos that are looked at again, for who is in them."""
        self._warned_of_voices = False

    @property
    def ok(self) -> bool:
        """Every input was written and every check met."""
        return not any(self.counts[name] for name in CHECKS)

    def summary(self) -> dict[str, int | None]:
        """The counts; `reidentified` is None where faces were not read again (--no-verify), or nothing was written."""
        counts: dict[str, int | None] = {name: self.counts[name] for name in SUMMARY}
        nothing = not self.counts["written"] and self.counts["failed"] > 0
        return {**counts, "reidentified": None} if self.counts["unread"] or nothing else counts

    # -- before the work ----------------------------------------------------------------------------------------------

    def begin(self, plan: FilePlan) -> list[FileJob]:
        """The files that need work; what cannot begin is a failure, what is finished counts as skipped."""
        self.counts.update(inputs=len(plan.jobs) + len(plan.errors), skipped=plan.left_out.total())
        for name, output, message in plan.errors:
            self.fail(name, output, message)
        for note in plan.notes:
            self._report.info(note)
        if self.earlier.manifest.foreign:
            self._report.info("The file manifest.jsonl in the output folder is another program's; it stays as it is.")
        if not self.counts["inputs"]:
            self._report.info("Nothing to do: neither photo nor film among the inputs.")
        self._report.begin(len(plan.jobs))  # before the inputs are looked at: there may be a million
        ready = [job for job in plan.jobs if self._is_ready(job)]
        if self.linked and ready:
            ready = [job for job in plan.jobs if job in {*ready, *self.finished}]
        self.photos_left = sum(not job.film for job in ready)
        self._report.begin(len(ready))
        return ready

    def _is_ready(self, job: FileJob) -> bool:
        try:
            if not self.earlier.is_finished(job):
                return True
            self.counts["skipped"] += 1
            if self.linked and not job.film:
                self.finished.add(job)
            if not self.earlier.manifest.tells_of(job.output):  # the run that made it was killed
                self._note_finished(job)
        except InputError as error:
            self.fail(job.name, job.output, str(error))
        return False

    def _note_finished(self, job: FileJob) -> None:
        record = own_sidecar(job.output) or {}
        actions = [face.get("action") for face in record.get("faces", ())]
        known = {key: record[key] for key in ("input_sha256",) if key in record}
        counts = {
            "faces": record.get("tracks", len(actions)),
            "masked": record.get("masked_people", actions.count("masked")),
            "reidentified": sum(bool(face.get("matched")) for face in record.get("faces", ()))
            + len((record.get("check") or {}).get("findings", ())),
        }
        known |= {"seconds": None, "state": "written", **counts, "error": None}
        self.earlier.manifest.add(job.output, input=job.name, **known)

    def leave_other_seeds(
        self, draw: Callable[[FileJob], NewPhoto], seed: str | None, ready: list[FileJob]
    ) -> list[FileJob]:
        """Results of another seed are failures; of linked photos the rest is left then. Returns what is to be done."""
        others = self.earlier.of_another_seed(draw, ready if self.linked else [], seed)
        for job, record in self.earlier.seeded:
            if job in others:
                self.counts["skipped"] -= 1
                self._fail(f"{job.name}: {job.output} was made with another seed; use --overwrite to replace it")
            elif job.film and record.get("seed_commitment") is None:
                self._report.info(f"{job.name}: {job.output} stays; whether this seed made it is not recorded.")
        if not (self.linked and any(not job.film for job in others)):
            return ready
        for job in ready:
            if job not in self.finished:
                why = f"{job.name}: is left, since the photos that are finished were made with another seed"
                self.fail(job.name, job.output, why)
        return []

    # -- what became of a file ----------------------------------------------------------------------------------------

    def take(self, results: Iterable[Done], total: int) -> None:
        """Write results as they come."""
        for done, (job, outcome) in enumerate(results, 1):
            if job in self.finished:
                with suppress(Exception):  # its result is there; it failed to show people only
                    outcome()
            else:
                self.settle(job, outcome)
            self.photos_left -= not job.film
            self._report(done, total, job.name)

    def settle(self, job: FileJob, outcome: Callable[[], tuple[NewPhoto | NewFilm, float]]) -> None:
        """Write one result and its line in the manifest. One input must not end the others."""
        before, message = self.counts.copy(), None
        known: dict[str, Any] = {"seconds": None}
        try:
            with self._told_what_stays(job):
                made, seconds = outcome()
            known |= {"seconds": round(seconds, 3), **_hash(made.input_sha256)}
            self._film(job, made) if isinstance(made, NewFilm) else self._photo(job, made)
        except TakenError as error:  # another run made it meanwhile, and says so in the manifest
            self.counts = before
            self._leave(job, str(error))
            return
        except Exception as error:
            own = isinstance(error, FicganError) and not memory_ran_out(error)
            message = str(error) if own else f"{job.name}: {sentence(error)}"
        if "input_sha256" not in known and not job.address and isinstance(job.source, Path):
            with suppress(FicganError):
                known |= _hash(digest_of(job.source)) if job.source.is_file() else {}
        here = {name: self.counts[name] - before[name] for name in ("faces", "masked", "reidentified")}
        state = "failed" if message else "written"
        self.earlier.manifest.add(job.output, input=job.name, **known, state=state, **here, error=message)
        if message:
            self._fail(message)

    def one(self, job: FileJob, work: FileWork) -> None:
        """Make a single film; what goes wrong is raised."""
        self._film(job, work(job, self.frames(job))[0])  # type: ignore[arg-type]

    def fail(self, name: str, output: Place | None, message: str) -> None:
        """An input that no work began on; where the result of an earlier run is there, it stays the last word."""
        self._fail(message)
        if output is None or not output.is_file():
            self.earlier.manifest.add(output, input=name, state="failed", error=message)

    def _fail(self, message: str) -> None:
        self.counts["failed"] += 1
        self._report.error(message)

    def _leave(self, job: FileJob, message: str) -> None:
        """A result that another run makes: with --skip-existing it counts as one that was there."""
        try:
            self.earlier.manifest.refresh()
            if self.earlier.skip_existing and self.earlier.is_made(job):
                self.counts["skipped"] += 1
                return
        except InputError as error:
            message = str(error)
        self._fail(message)

    def _photo(self, job: FileJob, made: NewPhoto) -> None:
        self.counts.update(faces=len(made.actions), masked=made.actions.count("masked"), uncovered=made.uncovered)
        for note in made.notes:
            self._report.info(f"{job.source}: {note}")
        if made.problem:
            raise InputError(made.problem)
        for note in made.audit.get("notes", ()):
            self._report.info(named(str(job.source), note))
        make_folder(job.output.parent)
        self._save(job, made)
        unread = len(made.actions) if made.audit.get("gate", "") is None else 0
        self.counts.update(written=1, reidentified=made.reidentified, no_face=not made.actions, unread=unread)
        if made.reidentified:
            faces = f"{made.reidentified} face{'' if made.reidentified == 1 else 's'}"
            self._report.error(f"{job.output}: {faces} still recognised; do not publish it")
        if not made.actions:
            self._report.info(f"{job.source}: no face found; written without a change to {job.output}")

    def _save(self, job: FileJob, made: NewPhoto) -> None:
        """Write the side-car and the result, or neither. A killed run leaves a side-car alone at most."""
        earlier = self.earlier
        with together(job.output.parent):
            if earlier.sidecar:
                record = as_json(photo_record(made, job.place, earlier.recorded), indent=1)
                write_file(sidecar_path(job.output), record, overwrite=earlier.replaces_sidecar(job))
            try:
                write_file(job.output, made.data, overwrite=earlier.overwrite)
            except BaseException:
                if earlier.sidecar:
                    sidecar_path(job.output).unlink(missing_ok=True)
                raise
            if not earlier.sidecar:
                _remove_stale(job.output)

    def _film(self, job: FileJob, made: NewFilm) -> None:
        self.counts.update(made.counts)
        if not self._warned_of_voices and made.has_audio:
            self._warned_of_voices = True
            self._report.info("The sound is copied, and a voice identifies, too; --audio drop leaves it out.")
        for note in made.notes:
            self._report.info(note)
        for problem in made.problems:
            self._report.error(problem)
        if made.record is None:
            _remove_stale(job.output)
        else:
            self._save_record(job, made.record)
        self.counts["written"] += 1

    def _save_record(self, job: FileJob, record: Mapping[str, Any]) -> None:
        """The side-car of a film, which has taken its name already."""
        side = sidecar_path(job.output)
        try:
            write_file(side, as_json(record, indent=1), overwrite=self.earlier.replaces_sidecar(job))
        except (OSError, FicganError) as error:  # hours of work stay
            _remove_stale(job.output)
            raise InputError(f"{job.output}: is made, but {side.name} beside it is not: {sentence(error)}") from error

    @contextmanager
    def _told_what_stays(self, job: FileJob) -> Iterator[None]:
        """Say what an interrupted film leaves, and how to go on or to be rid of it."""
        if not job.film or not isinstance(job.output, Path):
            yield
            return
        try:
            yield
        except FicganError:
            raise  # nothing stays
        except BaseException:
            from ficgan.folders import work_folder

            work = work_folder(job.output)
            if work.is_dir():
                self._report.info(
                    f"{job.name}: the same command goes on from what is in {work}; `ficgan purge {work}` removes it."
                )
            raise

    def frames(self, job: FileJob) -> Callable[[int, int | None, str], None]:
        """What tells of the progress of a film."""
        return lambda done, total, stage: self._report.frames(done, total, job.name, stage)


def finish(run: DeidRun, work: Callable[[], None], started: float, **more: Any) -> None:
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
    print_summary(**more)
    if not run.ok:
        raise SystemExit(EXIT_SOME_FAILED)


def _hash(digest: str | None) -> dict[str, str]:
    """Of an input that is one file; cameras, streams and numbered images have none."""
    return {} if digest is None else {"input_sha256": digest}


def _remove_stale(output: Place) -> None:
    """An earlier run's side-car speaks of a picture that is no longer there; a stranger's file stays."""
    if own_sidecar(output) is not None:
        with suppress(OSError):
            sidecar_path(output).unlink()
