"""`ficgan analyse` and `ficgan render`: a film in two steps, with a review between them; `ficgan purge`."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from ficgan.cli import HELP
from ficgan.cli import _options as opts
from ficgan.cli import deid as _deid
from ficgan.cli._deid_run import Run, RunOptions, finish
from ficgan.cli._errors import EXIT_SOME_FAILED, handle_errors, printable
from ficgan.cli._plan import Job
from ficgan.cli._progress import Progress
from ficgan.errors import InputError

__all__ = ["analyse", "purge", "render"]

_VERIFY = (
    click.option(
        "--verify", type=click.Choice(["full", "sampled", "off"]), default="sampled", show_default=True,
        help="Look through the finished film with another detector: all of it, or about one frame a second.",
    ),
    click.option("--no-verify", "verify", flag_value="off", help="The same as --verify off."),
)  # fmt: skip


@click.command(context_settings=HELP)
@click.argument("film", type=click.Path())
@click.option("-o", "--output", "folder", metavar="FOLDER", required=True, type=click.Path(), help="Of the project.")
@opts.options(opts.HIDE[:1], opts.SEARCH, opts.VIDEO_SEARCH, opts.VIDEO_PEOPLE, opts.MODEL)
@click.option("--overwrite", is_flag=True, help="Replace a project in the folder.")
@opts.options(opts.TALK)
@handle_errors
def analyse(film: str, folder: str, mode: str, overwrite: bool, **given: Any) -> None:
    """Find the faces of a film and write a project: tracks, people, thumbnails, and a page to review them.

    FOLDER gets project.json, tracks.jsonl, thumbs/ and review.html. It holds source faces and is private; `ficgan
    purge` removes it. Edit project.json or export decisions from the page, then `ficgan render FOLDER FILM -o OUT`.
    """
    from ficgan.anonymizers.modes import caution

    started = time.monotonic()
    unused = click.command("face")(opts.options(opts.FACE)(lambda **_: None)).make_context("face", []).params
    given = {**unused, **given, "mode": mode, "verify": "sampled"}
    settings, rules = opts.video_settings(given), opts.video_rules(given)
    with Progress(given["progress"], quiet=given["quiet"]) as report:
        with contextlib.redirect_stdout(sys.stderr):
            # Nothing is generated yet, whatever the mode.
            engine: Any = _deid.make_engine(**opts.engine_settings(given, mode="solid", verify=True))
            project = engine.analyse_video(
                film, folder, settings=settings, rules=rules, start=given["start"], end=given["end"],
                overwrite=overwrite, progress=lambda done, total, stage: report.frames(done, total, film, stage),
            )  # fmt: skip
        if warning := caution(mode):
            report.info(f"Warning: {warning}")
        report.info(f"{folder} holds source faces; `ficgan purge {folder}` removes it when it is no longer needed.")
    summary = {
        "project": str(folder), "frames": len(project.pts), "tracks": len(project.tracks),
        "people": len({track.person for track in project.tracks if track.person}), "cuts": len(project.cuts),
        "exemptions": len(project.decider().exemptions(project.tracks)),
        "seconds": round(time.monotonic() - started, 3),
    }  # fmt: skip
    click.echo(json.dumps(summary))


@click.command(context_settings=HELP)
@click.argument("project", type=click.Path())
@click.argument("film", type=click.Path())
@click.option("-o", "--output", "out", metavar="OUT", required=True, type=click.Path(), help="The film to make.")
@click.option("--decisions", metavar="FILE", type=click.Path(), help="What the review page exported.")
@click.option("--force", is_flag=True, help="Render a film that is not the one analysed.")
@opts.options(opts.HIDE[1:], opts.FACE, opts.SEARCH, _VERIFY, opts.VIDEO_OUT)
@click.option(
    "--fallback", type=click.Choice(["solid", "blur", "mosaic"]),
    help="What covers a face too small, turned away, or still recognised.  [default: as analysed]",
)  # fmt: skip
@click.option("--sidecar/--no-sidecar", default=True, show_default=True, help="Write <result>.json with the audit.")
@click.option("--overwrite", is_flag=True, help="Replace an existing result.")
@opts.options(opts.MODEL, opts.TALK)
@handle_errors
def render(
    project: str, film: str, out: str, decisions: str | None, force: bool, sidecar: bool, overwrite: bool, **given: Any
) -> None:
    """Apply a reviewed project to its film, exactly as it stands.

    PROJECT is the folder that `ficgan analyse` made, FILM the film it was made of.
    """
    started = time.monotonic()
    given |= _as_analysed(project, given["fallback"])
    exemplar = [given["exemplar"]] if given["exemplar"] is not None else []
    settings = opts.engine_settings(
        given, mode="ficgan", verify=given["verify"] != "off",
        exemplar=next(iter(opts.photos(exemplar, "--exemplar", given)), None),
        **opts.background(given),
    )  # fmt: skip
    film_options = {"settings": opts.video_settings(given), "encode": opts.encode_options(given)}
    with Progress(given["progress"], quiet=given["quiet"]) as report:
        run = Run(RunOptions(
            sidecar=sidecar, overwrite=overwrite, film=film_options, recorded=opts.recorded(given)
        ), report)
        run.counts["inputs"] = 1

        def work() -> None:
            engine: Any = _deid.make_engine(**settings)

            def process(source: Any, output: Any, *, settings: Any, encode: Any, progress: Any, **_: Any) -> Any:
                return engine.render_video(
                    project, source, output, settings=settings, encode=encode, decisions=decisions, force=force,
                    overwrite=overwrite, progress=progress,
                )  # fmt: skip

            run.film(Job(Path(film), Path(out), film=True), SimpleNamespace(process_video=process))

        finish(run, work, started)


def _as_analysed(folder: str, fallback: str | None) -> dict[str, Any]:
    from ficgan.video.project import Project
    from ficgan.video.settings import VideoSettings

    analysed, usual = Project.load(folder).settings, VideoSettings()
    given = {name: analysed.get(name, getattr(usual, name)) for name in ("stride", "pad", "link", "mode", "fallback")}
    try:
        VideoSettings(**given)
    except TypeError:
        raise InputError(f"{folder}: the settings in its project.json are damaged; analyse the film again") from None
    return given if fallback is None else {**given, "fallback": fallback}


@click.command(context_settings=HELP)
@click.argument("folders", metavar="FOLDER...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--temporary", is_flag=True, help="Also what a killed --mode external left in the temporary folder.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed; remove nothing.")
@click.option("--quiet", is_flag=True, help="Nothing on stderr but errors.")
@handle_errors
def purge(folders: tuple[Path, ...], temporary: bool, dry_run: bool, quiet: bool) -> None:
    """Remove project folders, remains of interrupted films (.NAME.ficgan-work) and of killed external modes.

    Only folders that ficgan made, and in them only files that ficgan made: anything else stays and is named, and its
    folder stays. This is no secure erasure: disks, snapshots and backups may hold deleted bytes for a while, and
    overwriting would not help on solid-state disks and copy-on-write file systems. Keep projects on an encrypted disk.

    Prints one line of JSON when done. Exit codes: 0 done, 2 usage, 3 something was left or refused, 130 interrupted.
    """
    from ficgan.anonymizers.external import TEMPORARY_PREFIX
    from ficgan.video.folders import Removal, remove_folder

    if not folders and not temporary:
        raise click.UsageError("Name a folder, or give --temporary.")
    if temporary:
        folders = (*folders, *sorted(Path(tempfile.gettempdir()).glob(f"{TEMPORARY_PREFIX}*")))
    started = time.monotonic()
    done: list[Removal] = []
    left: list[Path] = []
    failed = 0

    def report(text: str) -> None:
        click.echo(printable(text), err=True)

    for folder in dict.fromkeys(folders):
        try:
            removal = remove_folder(folder, dry_run=dry_run)
        except InputError as error:
            failed += 1
            report(f"Error: {error}")
            continue
        done.append(removal)
        left += removal.left
        for path in removal.left:
            report(f"Error: {path}: was not made by ficgan or cannot be removed; left, with its folder")
        if not quiet:
            verb = "would remove" if dry_run else "removed"
            report(f"{folder}: {verb} {removal.files} files, {removal.bytes} bytes")
    summary = {
        "folders": len(done) + failed, "removed": 0 if dry_run else sum(not removal.left for removal in done),
        "failed": failed, "files": sum(removal.files for removal in done),
        "bytes": sum(removal.bytes for removal in done), "left": [str(path) for path in left], "dry_run": dry_run,
        "seconds": round(time.monotonic() - started, 3),
    }  # fmt: skip
    click.echo(json.dumps(summary))
    if left or failed:
        sys.exit(EXIT_SOME_FAILED)
