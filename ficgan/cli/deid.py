"""`ficgan-deid`: replace the faces in photos and films by k-anonymous ones."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ficgan import __version__
from ficgan.cli import HELP
from ficgan.cli import _options as opts
from ficgan.cli._console import Progress, handle_errors
from ficgan.cli._deid_run import DeidRun, finish
from ficgan.cli._earlier import Earlier
from ficgan.cli._plan import DEFAULT_SUFFIX, FileJob, make_plan
from ficgan.cli._shared import TALK, options, share_processors
from ficgan.cli._work import Done, FileSetup, FileWork, by_cluster, by_threads, by_workers, make_folder
from ficgan.device import cpus
from ficgan.errors import UsageError
from ficgan.files import file_digest
from ficgan.options import Identity
from ficgan.records.sidecars import RunManifest
from ficgan.stores import StorePath

if TYPE_CHECKING:
    from ficgan.workers import Limits

__all__ = ["deid", "make_engine"]

# Photos worked on at once where the user names no number: each holds what its networks need.
MOST_THREADS = 4


def make_engine(**settings: Any) -> Any:
    """The one place where the command meets the model; everything heavy is imported here."""
    from ficgan.deidentify import Deidentifier

    return Deidentifier.from_pretrained(**settings)


@click.command(context_settings=HELP)
@click.argument("inputs", metavar="INPUT...", nargs=-1, type=click.Path())
@click.option(
    "--files-from", metavar="FILE", type=click.Path(), help="More inputs, one path a line; - reads them from stdin."
)
@click.option(
    "-o",
    "--output",
    "out",
    metavar="OUT",
    type=click.Path(),
    help="Folder for the results (trees are mirrored, names stay), or a file for a single input; also an address in a "
    f"store, such as s3://bucket/folder.  [default: <stem>{DEFAULT_SUFFIX}<ext> beside each input]",
)
@options(opts.HIDE, opts.FACE, opts.SEARCH, opts.DOUBT, opts.film_check(), opts.PHOTOS_OUT)
@click.option(
    "--decisions",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Photos: do what was decided in `ficgan ui` and exported there; photos that are not in it fail.",
)
@click.option(
    "--sidecar/--no-sidecar",
    default=True,
    show_default=True,
    help="Write <result>.json with the audit beside each result, and manifest.jsonl with a line a file in the output "
    "folder.",
)
@click.option(
    "--sign",
    metavar="CERT KEY",
    nargs=2,
    type=click.Path(),
    help="Put C2PA content credentials into each result that was changed, signed with this certificate and key (PEM); "
    "needs the extra c2pa.",
)
@click.option("--recursive/--no-recursive", default=True, show_default=True, help="Descend into subfolders.")
@click.option("--suffix", help=f"Added to the stem of each result.  [default: {DEFAULT_SUFFIX}; none with -o]")
@click.option("--overwrite", is_flag=True, help="Replace existing results, or the inputs themselves.")
@click.option(
    "--skip-existing",
    is_flag=True,
    help="Leave results of an earlier run with the same options alone, and do the rest; this goes on where Ctrl-C or a "
    "crash ended a run.",
)
@click.option(
    "--jobs",
    metavar="N",
    type=click.IntRange(min=1),
    help="Worker processes, each with a model of its own: for many files.  [default: this process alone, photos in "
    f"threads, one a processor, at most {MOST_THREADS}]",
)
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Work with --jobs actors of a Ray cluster: ray://HOST:PORT, or local for one of this machine.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be written; load no model, write nothing.")
@options(opts.VIDEO_SEARCH, opts.VIDEO_PEOPLE, opts.VIDEO_OUT)
@options(opts.sandboxed(False), opts.MODEL, TALK)
@click.version_option(__version__, prog_name="ficgan-deid")
@handle_errors
def deid(
    inputs: tuple[str, ...],
    files_from: str | None,
    out: str | None,
    suffix: str | None,
    recursive: bool,
    overwrite: bool,
    skip_existing: bool,
    sidecar: bool,
    sign: tuple[str, str] | None,
    decisions: Path | None,
    jobs: int | None,
    cluster: str | None,
    dry_run: bool,
    sandbox: bool,
    progress: Any,
    quiet: bool,
    **given: Any,
) -> None:
    """Replace the faces in photos and films by k-anonymous ones.

    INPUT: photos (JPEG, PNG, WebP, TIFF, BMP; HEIC and AVIF where readable), films (whatever FFmpeg reads, animated GIF
    and WebP), folders of them, also in stores (s3://…, with s3fs); camera:0, pipe:0 (a film from stdin), an address
    such as rtsp://…, or numbered images (frames/%05d.png). A face that the detector does not find stays as it is.

    Prints one line of JSON when done. Exit codes: 0 done, 1 failed, 2 usage, 3 some input failed or a check is unmet,
    130 interrupted.
    """
    started = time.monotonic()
    if overwrite and skip_existing:
        raise UsageError("--overwrite and --skip-existing exclude each other; give one of the two")
    settings = opts.engine_settings(given, verify=given["verify"] != "off")
    inputs = (*inputs, *_listed(files_from))
    if not inputs:
        raise UsageError("nothing to work on; name photos, films or folders, or give --files-from FILE")
    linked = given["link"] == "job" and given["mode"] == "ficgan"
    if linked and skip_existing and (given["seed"] is None or not sidecar):
        raise UsageError(
            "--link job goes on with --skip-existing only with the --seed of the run before, and with side-cars"
        )
    share_processors(mode=given["mode"])  # before NumPy is loaded, by what follows
    decided, credentials = _decided(decisions, given), None
    if sign:
        from ficgan.records.credentials import Credentials

        credentials = Credentials(*map(Path, sign))
    plan = make_plan(inputs, out, suffix=suffix, recursive=recursive, overwrite=overwrite)
    films, photos = (sum(job.film is film for job in plan.jobs) for film in (True, False))
    alone = given["mode"].startswith("external") or given["link"] == "job"
    if sandbox and given["mode"].startswith("external"):
        raise UsageError("--mode external runs a program of yours, which --sandbox forbids; leave one of the two out")
    if alone and cluster:
        raise UsageError("--link job and --mode external work on one file after the other; leave --cluster out")
    jobs = 1 if alone else jobs
    usual = min(cpus(), MOST_THREADS) if given["device"] == "cpu" else 2
    threads = 1 if alone or jobs else max(1, min(usual, photos))
    share_processors(jobs or (1 if films else threads), mode=given["mode"])
    rules = opts.video_rules(given)
    recorded = opts.recorded(given) | ({"decisions": file_digest(decisions)} if decisions else {})

    def setup() -> FileSetup:
        """Reads what options name."""
        if photos:
            settings.update(keep=rules.keep, only=rules.only, boxes=rules.boxes)
            settings["link"] = "job" if given["link"] == "job" else "file"
        return FileSetup(
            make_engine,
            {**settings, **opts.loaded(given)},
            photo={
                "max_pixels": opts.max_pixels(given),
                **{name: given[name] for name in ("tag", "keep_metadata", "require_face")},
            },
            film=_film_options(given, rules, overwrite) if films else {},
            recorded=recorded if sidecar else None,
            decisions=decided,
            credentials=credentials,
        )

    if films:
        from ficgan.video.read import check_span

        check_span(given["start"], given["end"])
    with Progress(progress, unit="file" if films else "image", quiet=quiet) as report:
        if plan.jobs and not films and any(given[name] for name in ("spans", "start", "end")):
            report.info("There is no film among the inputs: what concerns films changes nothing; photos are redacted.")
        if warning := opts.caution(given["mode"]):
            report.info(f"Warning: {warning}")
        folder = plan.folder if sidecar and not dry_run else None
        key = opts.digest(given, sign=credentials is not None, decisions=recorded.get("decisions"))
        with RunManifest(folder, key) as manifest:
            earlier = Earlier(manifest, sidecar, overwrite, skip_existing, recorded, credentials)
            run = DeidRun(report, earlier, linked=linked)

            def work() -> None:
                ready = run.begin(plan)
                if dry_run:
                    for job in ready:
                        report.info(f"{job.name} -> {job.output}")
                elif ready or earlier.seeded:
                    workers = jobs or (cpus() if cluster else 1)
                    _work(run, ready, setup(), threads, workers, cluster, _limits(ready, given) if sandbox else None)

            finish(run, work, started, **({"dry_run": True} if dry_run else {}))


def _work(
    run: DeidRun,
    ready: list[FileJob],
    setup: FileSetup,
    threads: int,
    workers: int,
    cluster: str | None,
    limits: Limits | None,
) -> None:
    """Do what is ready, by whoever is asked to."""
    here = None
    if run.earlier.seeded:
        here = setup.here()
        draw = here.photo if limits is None else partial(_drawn, setup, limits)
        ready = run.leave_other_seeds(draw, here.engine.seed_commitment, ready)
    if not ready:
        return
    films_first = sorted(ready, key=lambda job: workers > 1 and not job.film)  # they take longest
    if cluster:
        results = by_cluster(setup, films_first, workers, cluster)
    elif limits is not None or workers > 1:
        results = by_workers(setup, films_first, workers, limits)
    else:
        # An engine that linked people has met some.
        results = _here(run, setup.here() if here is None or run.linked else here, ready, threads)
    run.take(results, len(ready))


def _drawn(setup: FileSetup, limits: Limits, job: FileJob) -> Any:
    for _, outcome in by_workers(setup, [job], 1, limits):
        return outcome()[0]


def _limits(ready: list[FileJob], given: Mapping[str, Any]) -> Limits:
    """Workers write films themselves, and nothing else."""
    from ficgan.workers import Limits

    films = [job for job in ready if job.film]
    folders = {job.output.parent for job in films if isinstance(job.output, Path)}
    if any(isinstance(place, StorePath) for job in films for place in (job.source, job.output)):
        folders.add(Path(tempfile.gettempdir()))
    for folder in folders:
        make_folder(folder)
    return Limits(folders=sorted(folders), network=any(job.address for job in films))


def _here(run: DeidRun, work: FileWork, ready: list[FileJob], threads: int) -> Iterator[Done]:
    """Films one by one, photos in threads."""
    for film, group in groupby(ready, lambda job: job.film):
        if film:
            yield from ((job, partial(work, job, run.frames(job))) for job in group)
        else:
            with closing(by_threads(work, group, threads)) as results:
                yield from results


def _film_options(given: Mapping[str, Any], rules: Any, overwrite: bool) -> dict[str, Any]:
    return {
        "settings": opts.video_settings(given),
        "rules": rules,
        "encode": opts.encode_options(given),
        "overwrite": overwrite,
        **{name: given[name] for name in ("start", "end")},
    }


def _decided(file: Path | None, given: Mapping[str, Any]) -> Any:
    """What was decided on photos; None where no file says so."""
    if file is None:
        return None
    if given["mode"] != "ficgan":
        raise UsageError("--decisions says for each face what happens to it; leave --mode out")
    from ficgan.deidentify.review import read_decisions

    decided = read_decisions(file)
    others = opts.typed(Identity, but=("seed", "add", "keep_kind", "exemplar", "alpha"))
    if others and any(photo.drawing is not None for photo in decided.values()):
        raise UsageError(f"--decisions says how new faces are drawn; leave {', '.join(others)} out")
    return decided


def _listed(source: str | None) -> list[str]:
    if source is None:
        return []
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise UsageError(f"--files-from {source}: cannot be read ({error.strerror})") from error
    lines = data.removeprefix(b"\xef\xbb\xbf").splitlines()
    return [os.fsdecode(line) for line in lines if line.strip()]


if __name__ == "__main__":
    from ficgan.cli.deid import deid as command  # a worker finds `make_engine` in this module, not in __main__

    command()
