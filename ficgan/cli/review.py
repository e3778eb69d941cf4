"""A film in two steps with a review between (`analyse`, `render`); what runs leave: `purge`, `report`, `export`."""

from __future__ import annotations

import contextlib
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
from ficgan.cli import _options as opts
from ficgan.cli import deid as _deid
from ficgan.cli import main as shared
from ficgan.cli._files import FileJob, FileSetup
from ficgan.cli.main import NEW_FILE, PATH, Console, Outcome, Summary, handle_errors, named, options, output
from ficgan.errors import InputError, UsageError
from ficgan.files import write_file
from ficgan.images import disguised
from ficgan.records import RunManifest, read_folder
from ficgan.records.report import page
from ficgan.records.risks import GRAVE, at_risk, verdict


@click.command()
@click.argument("film", type=click.Path())
@output("Folder of the project.", kind=PATH)
@options(opts.HIDE[:1], opts.SEARCH, opts.OBJECTS, opts.VIDEO_SEARCH, opts.PEOPLE, opts.VIDEO_SPANS, opts.FALLBACK)
@options(opts.MODEL)
@shared.OVERWRITE
@shared.reporting("frame")
def analyse(film: str, out: Path, overwrite: bool, report: Console, **given: Any) -> Summary:
    """Find the faces of a film and write a project to decide on: tracks, people, thumbnails.

    OUT holds source faces and is private; `ficgan purge` removes it. Edit its project.json, then
    `ficgan render OUT FILM -o NEW`. `ficgan ui` does both in the browser.
    """
    opts.share_processors()
    if Path(film).is_file():
        with open(film, "rb") as file:
            if why := disguised(film, file, film=True):
                raise InputError(why)
    with contextlib.redirect_stdout(sys.stderr):
        # Nothing is generated yet, whatever the mode.
        how = opts.film_options({**given, **opts.people(given)}, overwrite=overwrite)
        engine: Any = _deid.make_engine(**opts.engine_settings(given, mode="solid", verify=True))
        project = engine.analyse_video(film, out, progress=partial(report, film=film), **how)
    opts.warn_of(given["mode"], report)
    report.info(f"{out} holds source faces; `ficgan purge {out}` removes it when it is no longer needed.")
    counts = {"frames": len(project.pts), "tracks": len(project.tracks), "cuts": len(project.cuts)}
    counts["people"] = len({track.person for track in project.tracks if track.person})
    return {"project": str(out), **counts, "exemptions": len(project.decider().exemptions(project.tracks))}


@click.command()
@click.argument("project", type=click.Path())
@click.argument("film", type=click.Path())
@output("The film to make.", kind=NEW_FILE)
@shared.path("--decisions", "What the review page exported.", type=click.Path())
@options(opts.HIDE[1:], opts.FACE, opts.SEARCH, opts.VERIFY, opts.VIDEO_OUT, opts.TAG, shared.OVERWRITE)
@options(opts.MODEL, shared.TALK)
@handle_errors
def render(project: str, film: str, out: Path, decisions: str | None, overwrite: bool, **given: Any) -> None:
    """Apply a reviewed project to its film, exactly as it stands; <result>.json beside the result is the audit.

    PROJECT is the folder that `ficgan analyse` made, FILM the film it was made of.
    """
    opts.share_processors()
    from ficgan.video.project import Project

    started, analysed = time.monotonic(), Project.load(project).settings
    given |= {name: analysed[name] for name in ("stride", "pad", "link", "mode", "fallback") if name in analysed}
    try:
        how = opts.film_options(given, decisions=decisions, overwrite=overwrite)
    except TypeError:
        raise InputError(f"{project}: the settings in its project.json are damaged; analyse the film again") from None
    engine = opts.engine_settings(given, mode="ficgan", verify=given["verify"] != "off") | opts.loaded(given)
    setup = FileSetup(_deid.make_engine, engine, film=how, project=project, recorded=opts.recorded(given))
    job = FileJob(Path(film), out, film=True, place=out.name)
    with Console(given["progress"], quiet=given["quiet"]) as report:
        run = _deid.DeidRun(report, RunManifest(), overwrite=overwrite)
        run.counts["inputs"] = 1

        def work() -> None:
            run.check_free(job)
            run.write(job, setup()(job, partial(report, film=film)))

        run.finish(work, started)


@click.command()
@click.argument("folders", metavar="FOLDER...", nargs=-1, type=PATH)
@shared.flag("--temporary", "Also what a killed --mode external left in the temporary folder.")
@shared.DRY_RUN
@shared.reporting("folder")
def purge(folders: tuple[Path, ...], temporary: bool, dry_run: bool, report: Console) -> Outcome:
    """Remove project folders, remains of interrupted films (.NAME.ficgan-work) and of killed external modes.

    Only folders that ficgan made, and in them only files that ficgan made: anything else stays and is named, and its
    folder stays. This is no secure erasure: disks, snapshots and backups may hold deleted bytes for a while. Keep
    projects on an encrypted disk. Exit code 3: something was left or refused.
    """
    from ficgan.anonymizers.external import TEMPORARY_PREFIX
    from ficgan.folders import Removal, remove_folder

    if not folders and not temporary:
        raise UsageError("name a folder, or give --temporary")
    if temporary:
        folders = (*folders, *sorted(Path(tempfile.gettempdir()).glob(f"{TEMPORARY_PREFIX}*")))
    verb, done, refused = "would remove" if dry_run else "removed", list[Removal](), list[str]()
    for folder in dict.fromkeys(folders):
        try:
            done.append(remove_folder(folder, dry_run=dry_run))
        except InputError as error:
            refused.append(str(error))
        else:
            report.info(f"{folder}: {verb} {done[-1].files} files, {done[-1].bytes} bytes")
    rest = [str(path) for removal in done for path in removal.left]
    gone = 0 if dry_run else sum(not removal.left for removal in done)
    summary = {"folders": len(done) + len(refused), "removed": gone, "failed": len(refused), "left": rest}
    summary |= {"files": sum(removal.files for removal in done), "bytes": sum(removal.bytes for removal in done)}
    stays = [f"{path}: was not made by ficgan or cannot be removed; left, with its folder" for path in rest]
    return {**summary, "dry_run": dry_run}, [*refused, *stays]


@click.command()
@click.argument("folder", metavar="OUT", type=PATH)
@output("The page.  [default: OUT/report.html]", kind=NEW_FILE, required=False)
@named("--signed", "Make no page; say whether OUT is still what was signed: the sha256 on the page.", metavar="SHA256")
@options(shared.OVERWRITE)
@shared.reporting("file")
def report(folder: Path, out: Path | None, signed: str | None, overwrite: bool, report: Console) -> Outcome:
    """One page for a data protection officer, made from the side-cars in OUT: to read, to print and to sign.

    It shows counts, every file and what was left in it, and faces to look at. Exit code 3: something stands against
    signing it; with --signed, something changed.
    """
    if signed is not None:
        return _still_signed(folder, signed, report)
    place = folder / "report.html" if out is None else out
    found = read_folder(folder)
    shared.refuse_existing(place, overwrite=overwrite)
    html = page(found, title=folder.resolve().name, made=datetime.now().astimezone(), version=__version__)
    write_file(place, html.encode(), overwrite=overwrite)
    faces, line = at_risk(found.records), verdict(found)
    report.info(f"{place}: print it with a browser; it may show recognisable faces, so keep it with the results.")
    report.info(line.line)
    counts = {"at_risk": len(faces), "faces": sum(len(record.faces) for record in found.records)}
    counts["unsafe"] = sum(face.why in GRAVE for face in faces)
    counts["changed"] = sum(bool(record.problem) for record in found.records)
    counts |= {name: len(getattr(found, name)) for name in ("records", "unrecorded", "undone", "damaged")}
    return {"report": str(place), **counts, "fit": line.fit, "sha256": found.digest}, line.fit == "no"


def _still_signed(folder: Path, signed: str, report: Console) -> Outcome:
    """Whether the records are those of a page with this sha256, and the results those of the records."""
    wanted = "".join(signed.split()).lower()
    if not re.fullmatch("[0-9a-f]{16,64}", wanted):
        raise UsageError(f"--signed {signed}: give the sha256 that stands on the page, its first 16 digits at least")
    found = read_folder(folder)
    changed = [f"{record.file}: {record.problem}" for record in found.records if record.problem]
    same = found.digest.startswith(wanted)
    other = f"{folder}: its records are not those that were signed; their sha256 is {found.digest}"
    if same and not changed:
        report.info(f"{folder}: the records are those that were signed, and all results are as they were made.")
    summary = {"records": len(found.records), "same": same, "changed": len(changed), "sha256": found.digest}
    return summary, changed if same else [*changed, other]


@click.command()
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True, type=PATH)
@output("The file to write.", kind=NEW_FILE)
@options(shared.OVERWRITE)
@shared.reporting("file")
def export(folders: tuple[Path, ...], out: Path, overwrite: bool, report: Console) -> Outcome:
    """Boxes of faces for annotation tools, as COCO (JSON).

    FOLDER: results of `ficgan-deid` with their side-cars, or the project of a film. Photos have their five landmarks
    and what was done to each face; films a track for each person's appearance.
    """
    from ficgan.records.exports import Picture, coco, of_project, of_records
    from ficgan.video.project import PROJECT_FILE, Project

    shared.refuse_existing(out, overwrite=overwrite)
    pictures, left_out = list[Picture](), list[str]()
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
    write_file(out, coco(pictures), overwrite=overwrite)
    boxes = sum(len(picture.boxes) for picture in pictures)
    return {"file": str(out), "images": len(pictures), "boxes": boxes, "left_out": len(left_out)}, bool(left_out)
