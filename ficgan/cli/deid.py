"""`ficgan-deid`: replace the faces in photos and films by k-anonymous ones. No input may stop the others."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from ficgan import __version__
from ficgan.cli import _options as opts
from ficgan.cli import main as shared
from ficgan.cli._files import DEFAULT_SUFFIX, FileJob, FilePlan, FileSetup, FileWork, make_folder, make_plan
from ficgan.cli._run import DeidRun, Done, by_cluster, by_threads, by_workers
from ficgan.cli.main import Console, handle_errors, named, path
from ficgan.device import cpus
from ficgan.errors import UsageError
from ficgan.files import StorePath, file_digest
from ficgan.options import Identity
from ficgan.records import RunManifest

if TYPE_CHECKING:
    from ficgan.records.exports import Credentials
    from ficgan.workers import Limits

# Photos worked on at once where the user names no number: each holds what its networks need.
MOST_THREADS = 4


def make_engine(**settings: Any) -> Any:
    """The one place where the command meets the model; everything heavy is imported here."""
    from ficgan.deidentify import Deidentifier

    return Deidentifier.from_pretrained(**settings)


@click.command(context_settings=shared.HELP)
@click.argument("inputs", metavar="INPUT...", nargs=-1, type=click.Path())
@path("--files-from", "More inputs, one path a line; - reads them from stdin.", type=click.File("rb"))
@path(
    "-o",
    "Folder for the results (trees are mirrored, names stay), or a file for a single input; also an address in a "
    f"store, such as s3://bucket/folder.  [default: <stem>{DEFAULT_SUFFIX}<ext> beside each input]",
    "--output",
    "out",
    type=click.Path(),
)
@shared.options(opts.HIDE, opts.FACE, opts.SEARCH, opts.OBJECTS, opts.DOUBT, opts.VERIFY, opts.PHOTOS_OUT)
@path("--decisions", "Photos: do what was decided in `ficgan ui` and exported there; others fail.", type=shared.FILE)
@named("--sidecar/--no-sidecar", "Write the audit <result>.json, and manifest.jsonl in the folder.", default=True)
@path("--sign", "Sign changed results (C2PA) with this certificate and key, PEM.", metavar="CERT KEY", nargs=2)
@shared.OVERWRITE
@shared.flag("--skip-existing", "Leave results of an earlier run with the same options alone, and do the rest.")
@shared.count("--jobs", None, "Worker processes, each with a model of its own.  [default: this process, with threads]")
@shared.CLUSTER
@shared.DRY_RUN
@shared.options(opts.VIDEO_SEARCH, opts.PEOPLE, opts.VIDEO_SPANS, opts.FALLBACK, opts.VIDEO_OUT)
@shared.options(opts.sandbox(False), opts.MODEL, shared.TALK)
@click.version_option(__version__, prog_name="ficgan-deid")
@handle_errors
def deid(
    inputs: tuple[str, ...],
    files_from: IO[bytes] | None,
    out: str | None,
    overwrite: bool,
    skip_existing: bool,
    sidecar: bool,
    sign: tuple[Path, Path] | None,
    decisions: Path | None,
    jobs: int | None,
    cluster: str | None,
    dry_run: bool,
    sandbox: bool,
    progress: str,
    quiet: bool,
    **given: Any,
) -> None:
    """Replace the faces in photos and films by k-anonymous ones.

    INPUT: photos (JPEG, PNG, WebP, TIFF, BMP; HEIC and AVIF where readable), films (whatever FFmpeg reads, animated GIF
    and PNG), folders of them, also in stores (s3://…, with s3fs); camera:0, pipe:0 (a film from stdin), an address
    such as rtsp://…, or numbered images (frames/%05d.png). A face that the detector does not find stays as it is.

    Prints one line of JSON when done. Exit codes: 0 done, 1 failed, 2 usage, 3 some input failed or a check is unmet,
    130 interrupted.
    """
    started = time.monotonic()
    settings = opts.engine_settings(given, verify=given["verify"] != "off")
    if overwrite and skip_existing:
        raise UsageError("--overwrite and --skip-existing exclude each other; give one of the two")
    inputs = _listed(inputs, files_from)
    linked = given["link"] == "job" and given["mode"] == "ficgan"
    _check_ways(given, resumed=linked and skip_existing, sidecar=sidecar, sandbox=sandbox, cluster=cluster)
    opts.share_processors(mode=given["mode"])  # before NumPy is loaded, by what follows
    decided = None if decisions is None else _decided(decisions, given)
    credentials = _credentials(*sign) if sign else None
    plan = make_plan(inputs, out, overwrite=overwrite)
    jobs = 1 if given["link"] == "job" or given["mode"].startswith("external") else jobs
    threads = _shared_out(given, plan, jobs)
    recorded = opts.recorded(given) | ({"decisions": file_digest(decisions)} if decisions else {})
    with Console(progress, unit="file" if plan.films else "image", quiet=quiet) as report:
        if warning := opts.caution(given["mode"]):
            report.info(f"Warning: {warning}")
        key = opts.digest(given, sign=credentials is not None, decisions=recorded.get("decisions"))
        with RunManifest(plan.folder if sidecar and not dry_run else None, key) as manifest:
            run = DeidRun(report, manifest, sidecar, overwrite, skip_existing, recorded, credentials, linked)

            def work() -> None:
                ready = run.begin(plan)
                if dry_run:
                    for job in ready:
                        report.info(f"{job.name} -> {job.output}")
                    return
                if ready:
                    setup, workers = _setup(run, plan, settings, given, decided), jobs or (cpus() if cluster else 1)
                    limits = _limits(ready) if sandbox else None
                    run.take(_results(run, ready, setup, threads, workers, cluster, limits), len(ready))
                run.list_finished()

            run.finish(work, started, **{"dry_run": True} if dry_run else {})


def _listed(inputs: tuple[str, ...], files_from: IO[bytes] | None) -> tuple[str, ...]:
    """What was named, and what the lines of a file name."""
    if files_from is not None:
        lines = files_from.read().removeprefix(b"\xef\xbb\xbf").splitlines()
        inputs = (*inputs, *(os.fsdecode(line) for line in lines if line.strip()))
    if not inputs:
        raise UsageError("nothing to work on; name photos, films or folders, or give --files-from FILE")
    return inputs


def _shared_out(given: Mapping[str, Any], plan: FilePlan, jobs: int | None) -> int:
    """How many photos are worked on at once; the processors are divided among them. A span of no time is refused."""
    if plan.films:
        from ficgan.video.source import check_span

        check_span(given["start"], given["end"])
    threads = 1
    if plan.photos > 1 and not jobs:
        threads = min(plan.photos, MOST_THREADS, cpus()) if given["device"] == "cpu" else 2
    opts.share_processors(jobs or (1 if plan.films else threads), mode=given["mode"])
    return threads


def _check_ways(given: Mapping[str, Any], *, resumed: bool, sidecar: bool, sandbox: bool, cluster: str | None) -> None:
    """Refuse what does not go together; `resumed`: people linked over photos, some of which an earlier run did."""
    external = given["mode"].startswith("external")
    if resumed and (given["seed"] is None or not sidecar):
        raise UsageError("--link job with --skip-existing needs the --seed of the run before, and side-cars")
    if sandbox and external:
        raise UsageError("--mode external runs a program of yours, which --sandbox forbids; leave one of the two out")
    if cluster and (external or given["link"] == "job"):
        raise UsageError("--link job and --mode external work on one file after the other; leave --cluster out")


def _credentials(certificate: Path, key: Path) -> Credentials:
    from ficgan.records.exports import Credentials

    return Credentials(certificate, key)


def _setup(run: DeidRun, plan: FilePlan, settings: dict[str, Any], given: Mapping[str, Any], decided: Any) -> FileSetup:
    """What all files share; the files that options name are read here."""
    keep, only = (opts.people(given[name], f"--{name}", given) for name in ("keep", "only"))
    if plan.photos:
        link = "job" if given["link"] == "job" else "file"
        settings = {**settings, "keep": keep, "only": only, "boxes": given["boxes"], "link": link}
    film = {"overwrite": run.overwrite, **{name: given[name] for name in ("start", "end")}}
    if plan.films:
        film |= {**opts.film_options(given, keep, only), "encode": opts.encode_options(given)}
    photo = {name: given[name] for name in ("tag", "keep_metadata", "require_face")}
    return FileSetup(
        make_engine,
        {**settings, **opts.loaded(given)},
        photo={"max_pixels": opts.max_pixels(given), **photo},
        film=film,
        recorded=run.recorded if run.sidecar else None,
        decisions=decided,
        credentials=run.credentials,
    )


def _decided(file: Path, given: Mapping[str, Any]) -> Any:
    if given["mode"] != "ficgan":
        raise UsageError("--decisions says for each face what happens to it; leave --mode out")
    from ficgan.deidentify.review import read_decisions

    decided = read_decisions(file)
    others = opts.typed(Identity, but=("seed", "add", "keep_kind", "exemplar", "alpha"))
    if others and any(photo.drawing is not None for photo in decided.values()):
        raise UsageError(f"--decisions says how new faces are drawn; leave {', '.join(others)} out")
    return decided


def _limits(ready: list[FileJob]) -> Limits:
    """Workers write films themselves, and nothing else."""
    from ficgan.workers import Limits

    films = [job for job in ready if job.film]
    folders = {job.output.parent for job in films if isinstance(job.output, Path)}
    if any(isinstance(place, StorePath) for job in films for place in (job.source, job.output)):
        folders.add(Path(tempfile.gettempdir()))
    for folder in folders:
        make_folder(folder)
    return Limits(folders=sorted(folders), network=any(job.address for job in films))


def _results(
    run: DeidRun,
    ready: list[FileJob],
    setup: FileSetup,
    threads: int,
    workers: int,
    cluster: str | None,
    limits: Limits | None,
) -> Iterator[Done]:
    """The results of all files: of actors, of worker processes, or of this process, photos in threads."""
    films_first = sorted(ready, key=lambda job: workers > 1 and not job.film)  # they take longest
    if cluster:
        yield from by_cluster(setup, films_first, workers, cluster)
    elif limits is not None or workers > 1:
        yield from by_workers(setup, films_first, workers, limits)
    else:
        work = FileWork(setup)
        for film, group in groupby(ready, lambda job: job.film):
            if film:
                yield from ((job, partial(work, job, run.frames(job))) for job in group)
            else:
                with closing(by_threads(work, group, threads)) as results:
                    yield from results


if __name__ == "__main__":
    from ficgan.cli.deid import deid as command  # a worker finds `make_engine` in this module, not in __main__

    command()
