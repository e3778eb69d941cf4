"""Around `ficgan deid`: a film in two steps with a review between, `purge`, and what side-cars say."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from ficgan import __version__
from ficgan.cli import HELP
from ficgan.cli import _options as opts
from ficgan.cli import deid as _deid
from ficgan.cli._console import EXIT_SOME_FAILED, Progress, handle_errors, printable
from ficgan.cli._deid_run import DeidRun, finish
from ficgan.cli._earlier import Earlier
from ficgan.cli._plan import FileJob
from ficgan.cli._shared import (
    NEW_FILE,
    OVERWRITE,
    TALK,
    Summary,
    options,
    output,
    refuse_existing,
    reporting,
    share_processors,
)
from ficgan.cli._work import FileSetup, FileWork
from ficgan.errors import InputError
from ficgan.records.sidecars import RunManifest

__all__ = ["analyse", "export", "purge", "render", "report"]


@click.command(context_settings=HELP)
@click.argument("film", type=click.Path())
@click.option("-o", "--output", "folder", metavar="FOLDER", required=True, type=click.Path(), help="Of the project.")
@options(opts.HIDE[:1], opts.SEARCH, opts.VIDEO_SEARCH, opts.VIDEO_PEOPLE, opts.MODEL)
@click.option("--overwrite", is_flag=True, help="Replace a project in the folder.")
@options(TALK)
@handle_errors
def analyse(film: str, folder: str, mode: str, overwrite: bool, **given: Any) -> None:
    """Find the faces of a film and write a project to decide on: tracks, people, thumbnails.

    FOLDER gets project.json, tracks.safetensors and thumbs/. It holds source faces and is private; `ficgan purge`
    removes it. Edit project.json, then `ficgan render FOLDER FILM -o OUT`. `ficgan ui` does both in the browser.
    """
    share_processors()
    from ficgan.anonymizers.modes import caution
    from ficgan.images import disguised

    if Path(film).is_file():
        with open(film, "rb") as file:
            if why := disguised(film, file, film=True):
                raise InputError(why)

    started = time.monotonic()
    unused = click.command("face")(options(opts.FACE)(lambda **_: None)).make_context("face", []).params
    given = {**unused, **given, "mode": mode, "verify": "sampled"}
    settings, rules = opts.video_settings(given), opts.video_rules(given)
    with Progress(given["progress"], quiet=given["quiet"]) as report:
        with contextlib.redirect_stdout(sys.stderr):
            # Nothing is generated yet, whatever the mode.
            engine: Any = _deid.make_engine(**opts.engine_settings(given, mode="solid", verify=True))
            project = engine.analyse_video(
                film,
                folder,
                settings=settings,
                rules=rules,
                start=given["start"],
                end=given["end"],
                overwrite=overwrite,
                progress=lambda done, total, stage: report.frames(done, total, film, stage),
            )
        if warning := caution(mode):
            report.info(f"Warning: {warning}")
        report.info(f"{folder} holds source faces; `ficgan purge {folder}` removes it when it is no longer needed.")
    summary = {
        "project": str(folder),
        "frames": len(project.pts),
        "tracks": len(project.tracks),
        "people": len({track.person for track in project.tracks if track.person}),
        "cuts": len(project.cuts),
        "exemptions": len(project.decider().exemptions(project.tracks)),
        "seconds": round(time.monotonic() - started, 3),
    }
    click.echo(json.dumps(summary))


@click.command(context_settings=HELP)
@click.argument("project", type=click.Path())
@click.argument("film", type=click.Path())
@click.option("-o", "--output", "out", metavar="OUT", required=True, type=click.Path(), help="The film to make.")
@click.option("--decisions", metavar="FILE", type=click.Path(), help="What the review page exported.")
@click.option("--force", is_flag=True, help="Render a film that is not the one analysed.")
@options(
    opts.HIDE[1:],
    opts.FACE,
    opts.SEARCH,
    opts.film_check("Look through the finished film with another detector: all of it, or about one frame a second."),
    opts.VIDEO_OUT,
    (opts.TAG,),
    opts.fallback(default=None),
)
@click.option("--sidecar/--no-sidecar", default=True, show_default=True, help="Write <result>.json with the audit.")
@click.option("--overwrite", is_flag=True, help="Replace an existing result.")
@options(opts.MODEL, TALK)
@handle_errors
def render(
    project: str, film: str, out: str, decisions: str | None, force: bool, sidecar: bool, overwrite: bool, **given: Any
) -> None:
    """Apply a reviewed project to its film, exactly as it stands.

    PROJECT is the folder that `ficgan analyse` made, FILM the film it was made of.
    """
    share_processors()
    started = time.monotonic()
    given |= _as_analysed(project, given["fallback"])
    settings = opts.engine_settings(given, mode="ficgan", verify=given["verify"] != "off") | opts.loaded(given)
    film_options = {
        "settings": opts.video_settings(given),
        "encode": opts.encode_options(given),
        "decisions": decisions,
        "force": force,
        "overwrite": overwrite,
    }
    with Progress(given["progress"], quiet=given["quiet"]) as report:
        recorded = opts.recorded(given)
        run = DeidRun(report, Earlier(RunManifest(), sidecar, overwrite))
        run.counts["inputs"] = 1
        job = FileJob(Path(film), Path(out), film=True)

        def work() -> None:
            run.earlier.check_free(job)
            setup = FileSetup(_deid.make_engine, settings, film=film_options, recorded=recorded if sidecar else None)
            engine: Any = _deid.make_engine(**settings)
            once = FileWork(setup, engine, partial(engine.render_video, project))
            run.one(job, once)

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
@options(TALK[1])
@handle_errors
def purge(folders: tuple[Path, ...], temporary: bool, dry_run: bool, quiet: bool) -> None:
    """Remove project folders, remains of interrupted films (.NAME.ficgan-work) and of killed external modes.

    Only folders that ficgan made, and in them only files that ficgan made: anything else stays and is named, and its
    folder stays. This is no secure erasure: disks, snapshots and backups may hold deleted bytes for a while, and
    overwriting would not help on solid-state disks and copy-on-write file systems. Keep projects on an encrypted disk.

    Prints one line of JSON when done. Exit codes: 0 done, 2 usage, 3 something was left or refused, 130 interrupted.
    """
    from ficgan.anonymizers.external import TEMPORARY_PREFIX
    from ficgan.folders import Removal, remove_folder

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
        "folders": len(done) + failed,
        "removed": 0 if dry_run else sum(not removal.left for removal in done),
        "failed": failed,
        "files": sum(removal.files for removal in done),
        "bytes": sum(removal.bytes for removal in done),
        "left": [str(path) for path in left],
        "dry_run": dry_run,
        "seconds": round(time.monotonic() - started, 3),
    }
    click.echo(json.dumps(summary))
    if left or failed:
        sys.exit(EXIT_SOME_FAILED)


@click.command(context_settings=HELP)
@click.argument("folder", metavar="OUT", type=click.Path(path_type=Path))
@click.option("-o", "--output", "out", type=NEW_FILE, help="The page.  [default: OUT/report.html]")
@click.option(
    "--check/--no-check", default=True, show_default=True, help="Compare each result with the sha256 of its side-car."
)
@click.option(
    "--signed", metavar="SHA256", help="Make no page; say whether OUT is still what was signed: the sha256 on the page."
)
@options(OVERWRITE)
@reporting("file")
def report(
    folder: Path, out: Path | None, check: bool, signed: str | None, overwrite: bool, report: Progress
) -> tuple[Summary, bool]:
    """One page for a data protection officer, made from the side-cars in OUT: to read, to print and to sign.

    It shows counts, the method in plain words, every file and what was left in it, inputs without a result, faces to
    look at with pictures of the results, and limits. It ends with one line: fit to sign, or what stands against it. The
    exit code is 3 where something does. With --signed it is 3 where something changed.
    """
    from ficgan.files import atomic_write
    from ficgan.records import read_folder
    from ficgan.records.report import page
    from ficgan.records.risks import GRAVE, at_risk, verdict

    if signed is not None:
        return _still_signed(folder, signed, report)
    place = folder / "report.html" if out is None else out
    found = read_folder(folder, check=check)
    refuse_existing(place, overwrite=overwrite)
    html = page(found, title=folder.resolve().name, made=datetime.now().astimezone(), version=__version__)
    with atomic_write(place, overwrite=overwrite) as file:
        file.write(html.encode())
    faces, line = at_risk(found.records), verdict(found)
    report.info(f"{place}: print it with a browser; it may show recognisable faces, so keep it with the results.")
    report.info(line.line)
    summary: dict[str, Any] = {
        "report": str(place),
        "records": len(found.records),
        "faces": sum(len(record.faces) for record in found.records),
        "at_risk": len(faces),
        "unsafe": sum(face.why in GRAVE for face in faces),
        "changed": sum(bool(record.problem) for record in found.records),
        "unrecorded": len(found.unrecorded),
        "undone": len(found.undone),
        "damaged": len(found.damaged),
        "fit": line.fit,
        "sha256": found.digest,
    }
    return summary, line.fit == "no"


def _still_signed(folder: Path, signed: str, report: Progress) -> tuple[Summary, bool]:
    """Whether the records are those of a page with this sha256, and the results those of the records."""
    from ficgan.errors import UsageError
    from ficgan.records import read_folder

    wanted = "".join(signed.split()).lower()
    if not re.fullmatch("[0-9a-f]{16,64}", wanted):
        raise UsageError(f"--signed {signed}: give the sha256 that stands on the page, its first 16 digits at least")
    found = read_folder(folder)
    changed = [record for record in found.records if record.problem]
    for record in changed:
        report.error(f"{record.file}: {record.problem}")
    same = found.digest.startswith(wanted)
    if not same:
        report.error(f"{folder}: its records are not those that were signed; their sha256 is {found.digest}")
    elif not changed:
        report.info(f"{folder}: the records are those that were signed, and all results are as they were made.")
    summary = {"records": len(found.records), "same": same, "changed": len(changed), "sha256": found.digest}
    return summary, bool(changed) or not same


@click.command(context_settings=HELP)
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True, type=click.Path(path_type=Path))
@output("The file to write.", kind=NEW_FILE)
@options(OVERWRITE)
@reporting("file")
def export(folders: tuple[Path, ...], out: Path, overwrite: bool, report: Progress) -> tuple[Summary, bool]:
    """Boxes of faces for annotation tools, as COCO (JSON).

    FOLDER: results of `ficgan-deid` with their side-cars, or the project of a film. Photos have their five landmarks
    and what was done to each face; films a track for each person's appearance.
    """
    from ficgan.errors import UsageError
    from ficgan.files import atomic_write
    from ficgan.records import read_folder
    from ficgan.records.boxes import Picture, coco, of_project, of_records
    from ficgan.video.project import PROJECT_FILE, Project

    refuse_existing(out, overwrite=overwrite)
    pictures: list[Picture] = []
    left_out: list[str] = []
    for folder in folders:
        if (folder / PROJECT_FILE).is_file():
            pictures += of_project(Project.load(folder))
            continue
        read = read_folder(folder, check=False)
        photos, notes = of_records(read.records)
        pictures += photos
        left_out += [*notes, *(f"{name}: cannot be read ({why})" for name, why in read.damaged)]
    for note in left_out:
        report.info(note)
    if not pictures:
        raise UsageError(f"{', '.join(map(str, folders))}: holds no photo's side-car and no project of a film")
    with atomic_write(out, overwrite=overwrite) as file:
        file.write(coco(pictures))
    boxes = sum(len(picture.boxes) for picture in pictures)
    return {"file": str(out), "images": len(pictures), "boxes": boxes, "left_out": len(left_out)}, bool(left_out)
