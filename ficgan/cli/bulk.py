"""`ficgan bulk`: many photos and films, with processes of this machine or actors of a Ray cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ficgan.cli import HELP
from ficgan.cli import _options as opts
from ficgan.cli._shared import Summary, options, reporting, share_processors
from ficgan.device import cpus
from ficgan.errors import FicganError, UsageError
from ficgan.files import file_digest

if TYPE_CHECKING:
    from ficgan.bulk import Job, Task
    from ficgan.cli._console import Progress
    from ficgan.deidentify.decided import PhotoDecisions

__all__ = ["bulk"]


@click.command(context_settings=HELP)
@click.argument("source", metavar="INPUT")
@click.option("-o", "--output", "out", metavar="OUT", required=True, help="Folder or address for the results.")
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Processes of this machine, or actors of a Ray cluster.",
)
@click.option(
    "--address", metavar="HOST:PORT", help="Of a running Ray cluster, or auto.  [default: one for this run, here]"
)
@click.option("--jobs", type=click.IntRange(min=1), help="Processes or actors.  [default: one a processor]")
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Ray: photos that an actor takes at once; films go one by one.",
)
@click.option(
    "--manifest",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="What became of each file, JSON lines.  [default: OUT/manifest.jsonl; needed where OUT is an address]",
)
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="How often a file is tried again whose worker died or whose store did not answer.",
)
@click.option(
    "--decisions",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Do what was decided in `ficgan ui` and exported there; photos that are not in it fail, films are left out.",
)
@click.option("--overwrite", is_flag=True, help="Replace results of other runs.")
@options(opts.HIDE, opts.FACE, opts.SEARCH, opts.DOUBT, opts.STILLS, opts.VIDEO_SEARCH[:2], opts.VIDEO_OUT)
@options(opts.PHOTOS_OUT, tuple(option for option in opts.MODEL if option is not opts.ENGINE))
@reporting("file")
def bulk(source: str, out: str, report: Progress, **given: Any) -> tuple[Summary, bool]:
    """Replace the faces in all photos and films below INPUT; the tree is mirrored in OUT.

    INPUT and OUT are folders, or addresses such as s3://bucket/photos (with s3fs). Every file gets one result, one
    side-car and one line in the manifest. Start the same command again after an interruption: what is done stays, what
    failed is tried again. A film is one unit of work. Exit codes: as for `ficgan-deid`.
    """
    from ficgan.bulk import Manifest, Place, Task, local_engine, plan, ray_engine, run

    if given["address"] is not None and given["engine"] != "ray":
        raise UsageError("--address is of a Ray cluster; give --engine ray, too")
    settings = opts.engine_settings({**given, "engine": "auto"}, verify=given["verify"])
    try:
        here, there = Place(source), Place(out)
    except ImportError as error:
        raise FicganError("`ficgan bulk` needs fsspec: pip install 'ficgan[bulk]'") from error
    if given["manifest"] is None and not there.is_local:
        raise UsageError(f"{out}: is no folder of this machine; say by --manifest FILE where the manifest shall be")
    manifest = given["manifest"] or Path(there.root) / "manifest.jsonl"
    decisions = _decisions(given)
    jobs, others = plan(here, there, films=decisions is None)
    if others:
        kind = "neither photos nor films" if decisions is None else "no photos"
        report.info(f"{others} file{'' if others == 1 else 's'} skipped: {kind}.")
    options = opts.recorded(given)
    if given["decisions"] is not None:
        options["decisions"] = file_digest(given["decisions"])
    # Workers may run elsewhere: paths of this machine's disks must not depend on the current folder.
    task = Task(
        source=here.root if here.is_local else source,
        target=there.root if there.is_local else out,
        engine=settings | opts.loaded(given),
        options=options,
        max_pixels=opts.max_pixels(given),
        tag=given["tag"],
        keep_metadata=given["keep_metadata"],
        require_face=given["require_face"],
        overwrite=given["overwrite"],
        decisions=decisions,
    )
    if any(job.is_film for job in jobs):
        film = {**given, "link": "file", "verify": "sampled" if given["verify"] else "off"}
        task = replace(task, video=opts.video_settings(film), encode=opts.encode_options(film))
    count = min(given["jobs"] or cpus(), len(jobs))
    share_processors(count, mode=given["mode"])  # processes inherit it
    engine = (
        ray_engine(count, address=given["address"], batch=given["batch"])
        if given["engine"] == "ray"
        else local_engine(count)
    )
    present = {name for name, is_file in there.files() if is_file} if manifest.exists() else set()
    with Manifest(manifest, {"source": source, "target": out, "options": options}, present) as settled:
        before = [job for job in jobs if job.input in settled.done]
        if before and given["seed"] is not None:
            _check_seed(task, before, out)
        report.begin(len(jobs))
        try:
            run(task, jobs, settled, engine, retries=given["retries"], progress=report)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("the same command does the rest") from None
    failed = [job.input for job in jobs if job.input not in settled.done]
    for name in failed[:20]:
        reason = settled.failed.get(name, "nobody came to it")
        report.error(reason if name in reason else f"{name}: {reason}")
    if len(failed) > 20:
        report.error(f"and {len(failed) - 20} more, in {manifest}")
    sums = settled.sums
    unread = given["verify"] is False and given["mode"] == "ficgan"
    summary = {
        "inputs": len(jobs),
        "done": len(jobs) - len(failed),
        "failed": len(failed),
        "before": len(before),
        "faces": sums["faces"],
        "masked": sums["masked"],
        "reidentified": None if unread else sums["reidentified"],
        "review": sums["review"],
        "skipped": others,
        "manifest": str(manifest),
    }
    return summary, bool(failed or sums["reidentified"] or sums["review"])


def _check_seed(task: Task, before: list[Job], out: str) -> None:
    """A UsageError where results of an earlier run were made with another seed, which no manifest may tell."""
    from ficgan.bulk import Worker
    from ficgan.records.sidecars import shows_seed

    worker = Worker(task)
    for job in before:
        record = worker.record_of(job)
        if record is not None and not worker.has_seed_of(job, record):
            raise UsageError(f"{out}: its results were made with another seed; choose another folder, or that seed")
        if record is not None and not job.is_film and shows_seed(record):
            break


def _decisions(given: dict[str, Any]) -> dict[str, PhotoDecisions] | None:
    if given["decisions"] is None:
        return None
    if given["mode"] != "ficgan":
        raise UsageError("--decisions says for each face what happens to it; leave --mode out")
    from ficgan.deidentify.decided import read_decisions

    decisions = read_decisions(given["decisions"])
    if any(photo.drawing is not None for photo in decisions.values()):
        names = ("k", "layer", "psi", "attributes")
        if twice := opts.typed({name: opts.IDENTITY[name] for name in names}):
            raise UsageError(f"--decisions says how new faces are drawn; leave {', '.join(twice)} out")
    return decisions
