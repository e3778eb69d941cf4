"""`ficgan-deid`: replace the faces in photos and films by k-anonymous ones."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ficgan import __version__
from ficgan.cli import HELP
from ficgan.cli import _options as opts
from ficgan.cli._console import Progress, handle_errors
from ficgan.cli._deid_run import Run, RunOptions, finish
from ficgan.cli._plan import DEFAULT_SUFFIX, make_plan
from ficgan.cli._shared import TALK, options, share_processors
from ficgan.device import cpus
from ficgan.errors import UsageError
from ficgan.records.sidecars import Manifest

__all__ = ["deid", "make_engine"]

MOST_JOBS = 4
"""Threads at most where the user names no number: each holds a photo and what its networks need."""
FOR_THE_RUN = frozenset(
    {"files_from", "seed", "sidecar", "recursive", "suffix", "overwrite", "skip_existing", "jobs", "dry_run", "project"}
    | {"progress", "quiet", "device", "engine", "max_megapixels", "require_face", "segment"}
)
"""Options that do not change what a result looks like, or that nobody may learn."""
FOR_FILES = ("require_face", "keep_metadata", "tag", "sidecar", "overwrite", "skip_existing", "dry_run")
"""Options that `RunOptions` takes as they are."""
FOR_FILMS = ("keep_spans", "start", "end")
"""Options that would be missed where they have no effect."""


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
    help="Folder for the results (trees are mirrored, names stay), or a file for a single input.  "
    f"[default: <stem>{DEFAULT_SUFFIX}<ext> beside each input]",
)
@options(
    opts.HIDE,
    opts.FACE,
    opts.SEARCH,
    opts.DOUBT,
    opts.film_check(
        "Re-read each new face; one that still matches its source is retried, then masked. A finished film is looked "
        "through by another detector, where one is installed: all of it, or about one frame a second."
    ),
    opts.PHOTOS_OUT,
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
    help="Leave results of an earlier run with the same options alone, and do the rest; this goes on where Ctrl-C "
    "ended a run.",
)
@click.option(
    "--jobs",
    metavar="N",
    type=click.IntRange(min=1),
    help=f"Photos worked on at once.  [default: one a processor, at most {MOST_JOBS}]",
)
@click.option("--dry-run", is_flag=True, help="Say what would be written; load no model, write nothing.")
@options(opts.VIDEO_SEARCH, opts.VIDEO_PEOPLE, opts.VIDEO_OUT)
@click.option(
    "--project",
    metavar="FOLDER",
    type=click.Path(),
    help="Films: keep the analysis here, for review and `ficgan render`; it holds source faces.",
)
@options(opts.MODEL, TALK)
@click.version_option(__version__, prog_name="ficgan-deid")
@handle_errors
def deid(inputs: tuple[str, ...], out: str | None, **given: Any) -> None:
    """Replace the faces in photos and films by k-anonymous ones.

    INPUT: photos (JPEG, PNG, WebP, TIFF, BMP; HEIC and AVIF where readable), films (whatever FFmpeg reads, animated GIF
    and WebP), folders of them; camera:0, an address such as rtsp://…, or numbered images (frames/%05d.png).
    A face that the detector does not find stays as it is.

    Prints one line of JSON when done. Exit codes: 0 done, 1 failed, 2 usage, 3 some input failed or a check is unmet,
    130 interrupted.
    """
    started = time.monotonic()
    mode = given["mode"]
    if given["overwrite"] and given["skip_existing"]:
        raise UsageError("--overwrite and --skip-existing exclude each other; give one of the two")
    settings = opts.engine_settings(given, verify=given["verify"] != "off")
    inputs = (*inputs, *_listed(given["files_from"]))
    if not inputs:
        raise UsageError("nothing to work on; name photos, films or folders, or give --files-from FILE")
    for name in inputs:
        if name.isdecimal() and not Path(name).exists():
            raise UsageError(f"{name}: no such file; the number of people is --k {name}, and -k keeps a film's sound")
    linked = given["link"] == "job" and mode.partition(":")[0] == "ficgan"
    if linked and given["skip_existing"] and (given["seed"] is None or not given["sidecar"]):
        raise UsageError(
            "--link job goes on with --skip-existing only with the --seed of the run before, and with side-cars"
        )
    credentials = None
    if given["sign"]:
        from ficgan.records.credentials import Credentials

        credentials = Credentials(*map(Path, given["sign"]))
    plan = make_plan(inputs, out, suffix=given["suffix"], recursive=given["recursive"], overwrite=given["overwrite"])
    films = [job for job in plan.jobs if job.film]
    if given["project"] is not None and len(films) != 1:
        raise UsageError(f"--project {given['project']}: takes the analysis of one film, and there are {len(films)}")

    photos = sum(not job.film for job in plan.jobs)
    jobs = _jobs(given, mode, photos)
    share_processors(1 if films else jobs, mode=mode)
    rules = opts.video_rules(given)
    if films:
        from ficgan.video.read import check_span

        check_span(given["start"], given["end"])

    def engine() -> Any:
        if photos:
            settings.update(keep=rules.keep, only=rules.only, boxes=rules.boxes)
            settings["link"] = "job" if given["link"] == "job" else "file"
        return make_engine(**{**settings, **opts.loaded(given)})

    film_options = (
        {}
        if not films
        else {
            "settings": opts.video_settings(given),
            "rules": rules,
            "encode": opts.encode_options(given),
            "start": given["start"],
            "end": given["end"],
            "project": None if given["project"] is None else Path(given["project"]),
        }
    )
    run_options = RunOptions(
        max_pixels=opts.max_pixels(given),
        jobs=jobs,
        recorded=opts.recorded(given),
        film=film_options,
        linked=linked,
        credentials=credentials,
        **{name: given[name] for name in FOR_FILES},
    )
    with Progress(given["progress"], unit="file" if films else "image", quiet=given["quiet"]) as report:
        if plan.jobs and not films and any(given[name] for name in FOR_FILMS):
            report.info("There is no film among the inputs: what concerns films changes nothing; photos are redacted.")
        if warning := opts.caution(mode):
            report.info(f"Warning: {warning}")
        folder = plan.folder if given["sidecar"] and not given["dry_run"] else None
        run = Run(run_options, report, Manifest(folder, _digest(given)))
        finish(run, lambda: run(plan, engine), started)


def _listed(source: str | None) -> list[str]:
    if source is None:
        return []
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise UsageError(f"--files-from {source}: cannot be read ({error.strerror})") from error
    lines = data.removeprefix(b"\xef\xbb\xbf").splitlines()
    return [os.fsdecode(line) for line in lines if line.strip()]


def _digest(given: Mapping[str, Any]) -> str:
    """What tells runs apart whose results differ; without the seed and a method's key, which a hash would betray."""
    told = {name: value for name, value in given.items() if name not in FOR_THE_RUN}
    told["sign"] = given["sign"] is not None  # not with what
    if (method := opts.chosen_method(given["mode"])) is not None:
        from ficgan.anonymizers.modes import shown

        told["mode"] = shown(given["mode"], method)
    return hashlib.sha256(json.dumps(told, default=str, sort_keys=True).encode()).hexdigest()[:16]


def _jobs(given: Mapping[str, Any], mode: str, photos: int) -> int:
    # The first two are not made for several threads, and who is linked depends on the order.
    alone = given["compile_"] or mode.startswith("external") or given["link"] == "job"
    usual = min(cpus(), MOST_JOBS) if given["device"] == "cpu" else 2
    return 1 if alone else max(1, min(given["jobs"] or usual, photos))


if __name__ == "__main__":
    deid()
