"""`ficgan-deid`: replace the faces in photos and films by k-anonymous ones. No input may stop the others."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from ficgan import __version__
from ficgan.cli import _files as files
from ficgan.cli import _options as opts
from ficgan.cli import main as shared
from ficgan.cli._files import FileJob, FilePlan, FileSetup, NewFile
from ficgan.cli.main import Console, handle_errors, named, path, sentence
from ficgan.device import cpus
from ficgan.errors import FicganError, InputError, TakenError, UsageError
from ficgan.files import Place, StorePath, alone_in, file_digest, unreadable, write_file
from ficgan.images import disguised
from ficgan.options import Identity
from ficgan.records import RunManifest, as_json, own_sidecar, sidecar_path
from ficgan.workers import Limits, Workers, in_threads, ray_cluster

if TYPE_CHECKING:
    from ficgan.records.exports import Credentials

MOST_THREADS = 4  # Photos worked on at once where the user names no number: each holds what its networks need
PATIENCE = 2.0  # Seconds that an interruption waits for the photos in work
Done = tuple[FileJob, NewFile | BaseException]  # A file, and its result or the error that it raised
# Counts that a run ends with; those above 0 that make the exit code 3.
SUMMARY = (
    *("inputs", "written", "failed", "faces", "masked", "uncovered"),
    *("reidentified", "skipped", "no_face", "frames", "damaged", "review"),
)
CHECKS = ("failed", "uncovered", "reidentified", "damaged", "review")


def make_engine(seed: int | None = None, **settings: Any) -> Any:
    """The one place where the command meets the model; everything heavy is imported here."""
    from ficgan.deidentify import Deidentifier

    return Deidentifier.from_pretrained(seed=seed, **settings)


@dataclass(eq=False)
class DeidRun:
    """One call of the command: what earlier runs left, what becomes of each file, and the counts."""

    report: Console
    manifest: RunManifest  # of the output folder
    sidecar: bool = True  # whether results have side-cars
    overwrite: bool = False  # whether results are made again
    skip_existing: bool = False  # whether finished ones are left, and are no failures
    recorded: Mapping[str, Any] = field(default_factory=dict)  # options as side-cars hold them
    credentials: Credentials | None = None  # sign results, which not every kind of file can hold
    counts: Counter[str] = field(default_factory=Counter)  # `SUMMARY`; "unread" are faces that nobody read again
    objects: Counter[str] = field(default_factory=Counter)  # covers of what is no face (of films, tracks), by name
    _photos_left: int = 0
    _unlisted: list[FileJob] = field(default_factory=list)
    _warned_of_voices: bool = False

    def begin(self, plan: FilePlan) -> list[FileJob]:
        """The files that need work; what cannot begin is a failure, what is finished counts as skipped."""
        self.counts.update(inputs=len(plan.jobs) + len(plan.errors), skipped=plan.left_out.total())
        for name, output, message in plan.errors:
            self._refuse(name, output, message)
        for reason, number in (+plan.left_out).items():  # those above 0
            self.report.info(f"{number} skipped: {reason}.")
        if self.manifest.foreign:
            self.report.info("The file manifest.jsonl in the output folder is another program's; it stays as it is.")
        self.report.begin(len(plan.jobs))  # before the inputs are looked at: there may be a million
        ready = [job for job in plan.jobs if self._is_ready(job)]
        self._photos_left = sum(not job.film for job in ready)
        self.report.begin(len(ready))
        return ready

    def _is_ready(self, job: FileJob) -> bool:
        try:
            if why := self._misfit(job):
                raise InputError(why)
            if self.skip_existing and job.output.is_file():
                with alone_in(job.output.parent):
                    why = self._difference(job)
                if why:
                    raise InputError(f"{job.name}: {job.output} {why}; use --overwrite to replace it")
                self.counts["skipped"] += 1
                if not self.manifest.tells_of(job.output):
                    self._unlisted.append(job)
                return False
            self.check_free(job)
            if isinstance(job.output, Path) and (found := files.obstacle(job.output.parent)) is not None:
                raise InputError(f"{found}: cannot be written to; choose another output folder")
        except (InputError, OSError) as error:
            self._refuse(job.name, job.output, files.with_name(job.name, sentence(error)))
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
        resumed = self.skip_existing and own_sidecar(job.output) is not None
        places = [job.output, sidecar_path(job.output)] if self.sidecar and not resumed else [job.output]
        for place in () if self.overwrite else places:
            if place.is_symlink() or place.exists():
                advice = "use --skip-existing to do the rest, --overwrite to replace it"
                raise TakenError(f"{job.name}: {place} exists already; {advice}")

    def _difference(self, job: FileJob) -> str:
        """Why a result that is there is not this run's, of this very input where its side-car tells; "" where it is."""
        if self.manifest.is_of_other_options(job.output):
            return "was made with other options"
        if not self.sidecar:
            return ""
        record = own_sidecar(job.output)
        if record is None:
            return "exists and its side-car does not"
        if isinstance(job.output, Path) or not self.manifest.tells_of(job.output):  # reading a store takes its time
            if record.get("sha256") != file_digest(job.output):
                return "is not the file that its side-car tells of"
            if not job.address and record.get("input_sha256") != file_digest(job.source):
                return "was made of another file"
        mine, before = json.loads(as_json(self.recorded)), record.get("options")
        before = before if isinstance(before, dict) else {}
        ignored = {"device"} if mine.get("seed") else {"device", "seed"}  # without a seed any will do
        other = sorted(name for name in (mine.keys() & before.keys()) - ignored if mine[name] != before[name])
        return f"was made with other options ({', '.join(other)})" if other else ""

    def list_finished(self) -> None:
        """Lines for results of runs that were killed before they could write one."""
        if self._unlisted:
            self.manifest.refresh()  # another run may have written them meanwhile
        for job in self._unlisted:
            if not self.manifest.tells_of(job.output):
                digest = (own_sidecar(job.output) or {}).get("input_sha256") if self.sidecar else None
                known = {"input_sha256": digest} if digest else {}
                self.manifest.add(job.output, input=job.name, seconds=None, **known, state="written", error=None)

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
        except BaseException as error:
            if job.film and isinstance(job.output, Path):
                from ficgan.folders import work_folder

                if (work := work_folder(job.output)).is_dir():
                    how = f"the same command goes on from what is in {work}; `ficgan purge {work}` removes it."
                    self.report.info(f"{job.name}: {how}")
            if not isinstance(error, Exception):
                raise
            message = files.with_name(job.name, sentence(error))
            self._fail(message)
        known: dict[str, Any] = {"seconds": round(made.seconds, 3) if isinstance(made, NewFile) else None}
        if isinstance(made, NewFile) and made.input_sha256:  # cameras and streams have none
            known["input_sha256"] = made.input_sha256
        counts = {name: self.counts[name] - before[name] for name in ("faces", "masked", "reidentified")}
        state = "failed" if message else "written"
        self.manifest.add(job.output, input=job.name, **known, state=state, **counts, error=message)

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
            if note != files.VOICES or not self._warned_of_voices:
                self.report.info(note)
            self._warned_of_voices |= note == files.VOICES
        if made.failure:
            raise InputError(made.failure)
        for problem in made.problems:
            self.report.error(problem)
        self.objects.update(made.objects)
        files.make_folder(job.output.parent)
        with alone_in(job.output.parent):
            self._save(job, made)
        self.counts["written"] += 1

    def _save(self, job: FileJob, made: NewFile) -> None:
        """Write the side-car, then the photo, or neither. A killed run leaves a side-car alone at most."""
        side = sidecar_path(job.output)
        try:
            if made.record is not None:
                # Who goes on replaces the side-car of a result that is gone; a film itself is written by now.
                gone = self.skip_existing and (job.film or not job.output.exists())
                replace = self.overwrite or (gone and own_sidecar(job.output) is not None)
                write_file(side, as_json(made.record, indent=1), overwrite=replace)
        except (OSError, FicganError) as error:
            if not job.film:
                raise
            _remove_stale(job.output)  # hours of work stay
            raise InputError(f"{job.output}: is made, but {side.name} beside it is not: {sentence(error)}") from error
        try:
            if made.data is not None:
                write_file(job.output, made.data, overwrite=self.overwrite)
        except BaseException:
            if made.record is not None:
                side.unlink(missing_ok=True)
            raise
        if made.record is None:
            _remove_stale(job.output)

    def finish(self, work: Callable[[], None], started: float, **more: Any) -> None:
        """Do the work and print the final JSON, also when interrupted; SystemExit where something failed."""

        def print_summary(**extra: Any) -> None:
            counts: dict[str, Any] = {name: self.counts[name] for name in SUMMARY}
            if self.recorded.get("cover_also") or self.objects:
                counts["objects"] = dict(self.objects)
            if self.counts["unread"] or (self.counts["failed"] and not self.counts["written"]):
                counts["reidentified"] = None  # faces were not read again (--verify off), or nothing was written
            click.echo(json.dumps({**counts, "seconds": round(time.monotonic() - started, 3), **extra}))

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
            raise SystemExit(shared.EXIT_SOME_FAILED)


def _remove_stale(output: Place) -> None:
    """An earlier run's side-car speaks of a picture that is no longer there; a stranger's file stays."""
    if own_sidecar(output) is not None:
        with suppress(OSError):
            sidecar_path(output).unlink()


@click.command(context_settings=shared.HELP)
@click.argument("inputs", metavar="INPUT...", nargs=-1, type=click.Path())
@path("--files-from", "More inputs, one path a line; - reads them from stdin.", type=click.File("rb"))
@path(
    "-o",
    "Folder for the results (trees are mirrored, names stay), or a file for a single input; also an address in a "
    f"store, such as s3://bucket/folder.  [default: <stem>{files.DEFAULT_SUFFIX}<ext> beside each input]",
    "--output",
    "out",
    type=click.Path(),
)
@shared.options(opts.HIDE, opts.FACE, opts.SEARCH, opts.OBJECTS, opts.DOUBT, opts.VERIFY, opts.PHOTOS_OUT)
@path("--decisions", "Photos: do what was decided in `ficgan ui` and exported there; others fail.", type=shared.FILE)
@named("--sidecar/--no-sidecar", "Write the audit <result>.json, and manifest.jsonl in the folder.", default=True)
@path("--sign", "Sign changed results (C2PA) with this certificate and key, PEM.", metavar="CERT KEY", nargs=2)
@shared.options(shared.OVERWRITE, shared.SKIP_EXISTING)
@shared.count("--jobs", None, "Worker processes, each with a model of its own.  [default: this process, with threads]")
@shared.CLUSTER
@shared.DRY_RUN
@shared.options(opts.VIDEO_SEARCH, opts.PEOPLE, opts.VIDEO_SPANS, opts.FALLBACK, opts.VIDEO_OUT)
@shared.options(opts.sandbox(False), opts.MODEL, shared.TALK)
@click.version_option(__version__, prog_name="ficgan-deid")
@handle_errors
def deid(inputs: tuple[str, ...], files_from: IO[bytes] | None, out: str | None, **given: Any) -> None:
    """Replace the faces in photos and films by k-anonymous ones.

    INPUT: photos (JPEG, PNG, WebP, TIFF, BMP; HEIC and AVIF where readable), films (whatever FFmpeg reads, animated GIF
    and PNG), folders of them, also in stores (s3://…, with s3fs); camera:0, pipe:0 (a film from stdin), or an
    address such as rtsp://… A face that the detector does not find stays as it is.

    Exit codes: 0 done, 1 failed, 2 usage, 3 some input failed or a check is unmet, 130 interrupted.
    """
    started, dry_run, cluster, sandbox = time.monotonic(), given["dry_run"], given["cluster"], given["sandbox"]
    overwrite, skip_existing = given["overwrite"], given["skip_existing"]
    settings = opts.engine_settings(given, verify=given["verify"] != "off")
    external, linked = given["mode"].startswith("external"), given["link"] == "job"
    if overwrite and skip_existing:
        raise UsageError("--overwrite and --skip-existing exclude each other; give one of the two")
    if sandbox and external:
        raise UsageError("--mode external runs a program of yours, which --sandbox forbids; leave one of the two out")
    if cluster and (external or linked):
        raise UsageError("--link job and --mode external work on one file after the other; leave --cluster out")
    if files_from is not None:
        lines = files_from.read().removeprefix(b"\xef\xbb\xbf").splitlines()
        inputs = (*inputs, *(os.fsdecode(line) for line in lines if line.strip()))
    if not inputs:
        raise UsageError("nothing to work on; name photos, films or folders, or give --files-from FILE")
    opts.share_processors(mode=given["mode"])  # before NumPy is loaded, by what follows
    decided = credentials = None
    if (decisions := given["decisions"]) is not None:
        decided = _decided(decisions, given)
    if given["sign"]:
        from ficgan.records.exports import Credentials

        credentials = Credentials(*given["sign"])
    plan = files.make_plan(inputs, out, overwrite=overwrite)
    if skip_existing and plan.photos and linked and given["mode"] == "ficgan":
        raise UsageError("--link job looks at all photos of a run; give --overwrite in place of --skip-existing")
    jobs = 1 if linked or external else given["jobs"]
    threads = _shared_out(given, plan, jobs)
    recorded = opts.recorded(given) | ({"decisions": file_digest(decisions)} if decisions else {})
    with Console(given["progress"], unit="file" if plan.films else "image", quiet=given["quiet"]) as report:
        opts.warn_of(given["mode"], report)
        key = opts.digest(given, sign=credentials is not None, decisions=recorded.get("decisions"))
        with RunManifest(plan.folder if given["sidecar"] and not dry_run else None, key) as manifest:
            run = DeidRun(report, manifest, given["sidecar"], overwrite, skip_existing, recorded, credentials)

            def work() -> None:
                ready = run.begin(plan)
                if dry_run:
                    for job in ready:
                        report.info(f"{job.name} -> {job.output}")
                    return
                if ready:
                    setup, workers = _setup(run, plan, settings, given, decided), jobs or (cpus() if cluster else 1)
                    films_first = sorted(ready, key=lambda job: workers > 1 and not job.film)  # they take longest
                    if cluster:
                        results = _by_cluster(setup, films_first, workers, cluster)
                    elif sandbox or workers > 1:
                        results = _by_workers(setup, films_first, workers, _limits(ready) if sandbox else None)
                    else:
                        results = _here(run, ready, setup, threads)
                    run.take(results, len(ready))
                run.list_finished()

            run.finish(work, started, **{"dry_run": True} if dry_run else {})


def _decided(file: Path, given: Mapping[str, Any]) -> Any:
    """What --decisions says of each photo."""
    if given["mode"] != "ficgan":
        raise UsageError("--decisions says for each face what happens to it; leave --mode out")
    from ficgan.deidentify.review import read_decisions

    decided = read_decisions(file)
    others = opts.typed(Identity, but=("seed", "add", "keep_kind", "exemplar", "alpha"))
    if others and any(photo.drawing is not None for photo in decided.values()):
        raise UsageError(f"--decisions says how new faces are drawn; leave {', '.join(others)} out")
    return decided


def _shared_out(given: Mapping[str, Any], plan: FilePlan, jobs: int | None) -> int:
    """How many photos are worked on at once; the processors are divided among them. A span of no time is refused."""
    if plan.films:
        from ficgan.video.source import check_span

        check_span(given["start"], given["end"])
    threads = min(plan.photos, MOST_THREADS, cpus()) if given["device"] == "cpu" else 2
    threads = threads if plan.photos > 1 and not jobs else 1
    opts.share_processors(jobs or (1 if plan.films else threads), mode=given["mode"])
    return threads


def _setup(run: DeidRun, plan: FilePlan, settings: dict[str, Any], given: Mapping[str, Any], decided: Any) -> FileSetup:
    """What all files share; the files that options name are read here."""
    people = opts.people(given)
    if plan.photos:
        settings = {**settings, **people, "link": "job" if given["link"] == "job" else "file"}
    film = opts.film_options({**given, **people}, overwrite=run.overwrite) if plan.films else {}
    photo = {name: given[name] for name in ("tag", "keep_metadata", "require_face")}
    photo["max_pixels"], recorded = opts.max_pixels(given), run.recorded if run.sidecar else None
    engine = {**settings, **opts.loaded(given)}
    return FileSetup(make_engine, engine, photo, film, None, recorded, decided, run.credentials)


# -- who works --------------------------------------------------------------------------------------------------------


def _here(run: DeidRun, jobs: Sequence[FileJob], setup: FileSetup, threads: int) -> Iterator[Done]:
    """Results of this process, photos in threads."""
    work = setup()

    def on_film(job: FileJob) -> NewFile:
        return work(job, partial(run.report, film=job.name))

    for film, group in groupby(jobs, lambda job: job.film):
        results = in_threads(on_film if film else work, group, 1 if film else threads, patience=PATIENCE)
        with closing(results):
            yield from results


def _limits(ready: list[FileJob]) -> Limits:
    """Workers write films themselves, and nothing else."""
    films = [job for job in ready if job.film]
    folders = {job.output.parent for job in films if isinstance(job.output, Path)}
    if any(isinstance(place, StorePath) for job in films for place in (job.source, job.output)):
        folders.add(Path(tempfile.gettempdir()))
    for folder in folders:
        files.make_folder(folder)
    return Limits(folders=sorted(folders), network=any(job.address for job in films))


def _by_workers(setup: FileSetup, jobs: Sequence[FileJob], count: int, limits: Limits | None) -> Iterator[Done]:
    """Results of worker processes, as they come. A file whose worker dies fails; another worker takes its place."""
    with Workers(setup.plain, min(count, len(jobs)), limits) as workers:
        for job, result in workers.run(jobs):
            yield job, NewFile(**result) if isinstance(result, dict) else result


class _Actor:
    """A worker on a Ray cluster."""

    def __init__(self, setup: FileSetup) -> None:
        self._work = setup()

    def work(self, job: FileJob) -> NewFile | Exception:
        try:
            return self._work(job)
        except Exception as error:
            return error


def _by_cluster(setup: FileSetup, jobs: Sequence[FileJob], count: int, address: str) -> Iterator[Done]:
    """Results of actors of a Ray cluster, as they come. A file whose actor dies fails; the actor starts anew."""
    with ray_cluster(address, count) as ray:
        kind, free = ray.remote(num_cpus=1, max_restarts=-1)(_Actor), queue.SimpleQueue[Any]()
        actors = [kind.remote(setup) for _ in range(min(count, len(jobs)))]
        ray.get([actor.__ray_ready__.remote() for actor in actors])  # their models are loaded
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


if __name__ == "__main__":
    from ficgan.cli.deid import deid as command  # a worker finds `make_engine` in this module, not in __main__

    command()
