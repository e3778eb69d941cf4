"""`ficgan-deid`: replace the faces in photos and films by k-anonymous ones. No input may stop the others.

And around it: a film in two steps with a review between, `purge`, and what side-cars say.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from ficgan import __version__
from ficgan.cli import _options as opts
from ficgan.cli import main as shared
from ficgan.cli._files import DEFAULT_SUFFIX, FileJob, FilePlan, FileSetup, make_folder, make_plan
from ficgan.cli._run import DeidRun, Done, by_cluster, by_workers
from ficgan.cli.main import NEW_FILE, PATH, Console, Summary, handle_errors, named, options, output, path
from ficgan.device import cpus
from ficgan.errors import InputError, UsageError
from ficgan.files import StorePath, atomic_write, file_digest
from ficgan.options import Identity, options_of
from ficgan.records import RunManifest, read_folder

if TYPE_CHECKING:
    from ficgan.workers import Limits

# Photos worked on at once where the user names no number: each holds what its networks need.
MOST_THREADS = 4
# Seconds that an interruption waits for the photos in work.
PATIENCE = 2.0


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
    and PNG), folders of them, also in stores (s3://…, with s3fs); camera:0, pipe:0 (a film from stdin), or an
    address such as rtsp://… A face that the detector does not find stays as it is.

    Prints one line of JSON when done. Exit codes: 0 done, 1 failed, 2 usage, 3 some input failed or a check is unmet,
    130 interrupted.
    """
    started = time.monotonic()
    settings = opts.engine_settings(given, verify=given["verify"] != "off")
    if overwrite and skip_existing:
        raise UsageError("--overwrite and --skip-existing exclude each other; give one of the two")
    inputs = _listed(inputs, files_from)
    _check_ways(given, sandbox=sandbox, cluster=cluster)
    opts.share_processors(mode=given["mode"])  # before NumPy is loaded, by what follows
    decided = None if decisions is None else _decided(decisions, given)
    credentials = None
    if sign:
        from ficgan.records.exports import Credentials

        credentials = Credentials(*sign)
    plan = make_plan(inputs, out, overwrite=overwrite)
    if skip_existing and plan.photos and given["link"] == "job" and given["mode"] == "ficgan":
        raise UsageError("--link job looks at all photos of a run; give --overwrite in place of --skip-existing")
    jobs = 1 if given["link"] == "job" or given["mode"].startswith("external") else jobs
    threads = _shared_out(given, plan, jobs)
    recorded = opts.recorded(given) | ({"decisions": file_digest(decisions)} if decisions else {})
    with Console(progress, unit="file" if plan.films else "image", quiet=quiet) as report:
        if warning := opts.caution(given["mode"]):
            report.info(f"Warning: {warning}")
        key = opts.digest(given, sign=credentials is not None, decisions=recorded.get("decisions"))
        with RunManifest(plan.folder if sidecar and not dry_run else None, key) as manifest:
            run = DeidRun(report, manifest, sidecar, overwrite, skip_existing, recorded, credentials)

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


def _check_ways(given: Mapping[str, Any], *, sandbox: bool, cluster: str | None) -> None:
    """Refuse what does not go together."""
    external = given["mode"].startswith("external")
    if sandbox and external:
        raise UsageError("--mode external runs a program of yours, which --sandbox forbids; leave one of the two out")
    if cluster and (external or given["link"] == "job"):
        raise UsageError("--link job and --mode external work on one file after the other; leave --cluster out")


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
        from ficgan.workers import in_threads

        work = setup()
        for film, group in groupby(ready, lambda job: job.film):
            watched = (lambda job: work(job, run.frames(job))) if film else work
            with closing(in_threads(watched, group, 1 if film else threads, patience=PATIENCE)) as results:
                yield from results


# -- films in two steps, and what is left of a run ---------------------------------------------------------------------


@click.command()
@click.argument("film", type=click.Path())
@output("Folder of the project.", kind=PATH)
@options(opts.HIDE[:1], opts.SEARCH, opts.OBJECTS, opts.VIDEO_SEARCH, opts.PEOPLE, opts.VIDEO_SPANS, opts.FALLBACK)
@options(opts.MODEL)
@shared.OVERWRITE
@shared.reporting("frame")
def analyse(film: str, out: Path, mode: str, overwrite: bool, report: Console, **given: Any) -> Summary:
    """Find the faces of a film and write a project to decide on: tracks, people, thumbnails.

    OUT gets project.json, tracks.safetensors and thumbs/. It holds source faces and is private; `ficgan purge` removes
    it. Edit project.json, then `ficgan render OUT FILM -o NEW`. `ficgan ui` does both in the browser.
    """
    opts.share_processors()
    from ficgan.images import disguised

    if Path(film).is_file():
        with open(film, "rb") as file:
            if why := disguised(film, file, film=True):
                raise InputError(why)
    usual = {field.name: field.default for field, _ in options_of(Identity)}
    given = {**usual, "mask_scale": 1.0, **given, "mode": mode, "verify": "sampled"}
    keep, only = (opts.people(given[name], f"--{name}", given) for name in ("keep", "only"))
    with contextlib.redirect_stdout(sys.stderr):
        # Nothing is generated yet, whatever the mode.
        engine: Any = make_engine(**opts.engine_settings(given, mode="solid", verify=True))
        project = engine.analyse_video(
            film,
            out,
            **opts.film_options(given, keep, only),
            start=given["start"],
            end=given["end"],
            overwrite=overwrite,
            progress=lambda done, total, stage: report.frames(done, total, film, stage),
        )
    if warning := opts.caution(mode):
        report.info(f"Warning: {warning}")
    report.info(f"{out} holds source faces; `ficgan purge {out}` removes it when it is no longer needed.")
    return {
        "project": str(out),
        "frames": len(project.pts),
        "tracks": len(project.tracks),
        "people": len({track.person for track in project.tracks if track.person}),
        "cuts": len(project.cuts),
        "exemptions": len(project.decider().exemptions(project.tracks)),
    }


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
    from ficgan.video import VideoSettings
    from ficgan.video.project import Project

    started = time.monotonic()
    analysed, usual = Project.load(project).settings, VideoSettings()
    names = ("stride", "pad", "link", "mode", "fallback")
    given |= {name: analysed.get(name, getattr(usual, name)) for name in names}
    try:
        settings = opts.video_settings(given)
    except TypeError:
        raise InputError(f"{project}: the settings in its project.json are damaged; analyse the film again") from None
    engine = opts.engine_settings(given, mode="ficgan", verify=given["verify"] != "off") | opts.loaded(given)
    film_options = {"settings": settings, "encode": opts.encode_options(given), "decisions": decisions}
    with Console(given["progress"], quiet=given["quiet"]) as report:
        run = DeidRun(report, RunManifest(), overwrite=overwrite)
        run.counts["inputs"] = 1
        job = FileJob(Path(film), out, film=True, place=out.name)

        def work() -> None:
            run.check_free(job)
            setup = FileSetup(
                make_engine,
                engine,
                film={**film_options, "overwrite": overwrite},
                project=project,
                recorded=opts.recorded(given),
            )
            run.write(job, setup()(job, run.frames(job)))

        run.finish(work, started)


@click.command()
@click.argument("folders", metavar="FOLDER...", nargs=-1, type=PATH)
@shared.flag("--temporary", "Also what a killed --mode external left in the temporary folder.")
@shared.DRY_RUN
@shared.reporting("folder")
def purge(folders: tuple[Path, ...], temporary: bool, dry_run: bool, report: Console) -> tuple[Summary, bool]:
    """Remove project folders, remains of interrupted films (.NAME.ficgan-work) and of killed external modes.

    Only folders that ficgan made, and in them only files that ficgan made: anything else stays and is named, and its
    folder stays. This is no secure erasure: disks, snapshots and backups may hold deleted bytes for a while, and
    overwriting would not help on solid-state disks and copy-on-write file systems. Keep projects on an encrypted disk.

    Prints one line of JSON when done. Exit codes: 0 done, 2 usage, 3 something was left or refused, 130 interrupted.
    """
    from ficgan.anonymizers.external import TEMPORARY_PREFIX
    from ficgan.folders import Removal, remove_folder

    if not folders and not temporary:
        raise UsageError("name a folder, or give --temporary")
    if temporary:
        folders = (*folders, *sorted(Path(tempfile.gettempdir()).glob(f"{TEMPORARY_PREFIX}*")))
    done: list[Removal] = []
    failed = 0
    for folder in dict.fromkeys(folders):
        try:
            removal = remove_folder(folder, dry_run=dry_run)
        except InputError as error:
            failed += 1
            report.error(str(error))
            continue
        done.append(removal)
        for left in removal.left:
            report.error(f"{left}: was not made by ficgan or cannot be removed; left, with its folder")
        verb = "would remove" if dry_run else "removed"
        report.info(f"{folder}: {verb} {removal.files} files, {removal.bytes} bytes")
    rest = [str(path) for removal in done for path in removal.left]
    gone = 0 if dry_run else sum(not removal.left for removal in done)
    summary = {"folders": len(done) + failed, "removed": gone, "failed": failed, "left": rest, "dry_run": dry_run}
    summary |= {"files": sum(removal.files for removal in done), "bytes": sum(removal.bytes for removal in done)}
    return summary, bool(rest or failed)


@click.command()
@click.argument("folder", metavar="OUT", type=PATH)
@output("The page.  [default: OUT/report.html]", kind=NEW_FILE, required=False)
@named("--signed", "Make no page; say whether OUT is still what was signed: the sha256 on the page.", metavar="SHA256")
@options(shared.OVERWRITE)
@shared.reporting("file")
def report(
    folder: Path, out: Path | None, signed: str | None, overwrite: bool, report: Console
) -> tuple[Summary, bool]:
    """One page for a data protection officer, made from the side-cars in OUT: to read, to print and to sign.

    It shows counts, the method in plain words, every file and what was left in it, inputs without a result, faces to
    look at with pictures of the results, and limits. It ends with one line: fit to sign, or what stands against it. The
    exit code is 3 where something does. With --signed it is 3 where something changed.
    """
    from ficgan.records.report import page
    from ficgan.records.risks import GRAVE, at_risk, verdict

    if signed is not None:
        return _still_signed(folder, signed, report)
    place = folder / "report.html" if out is None else out
    found = read_folder(folder)
    shared.refuse_existing(place, overwrite=overwrite)
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


def _still_signed(folder: Path, signed: str, report: Console) -> tuple[Summary, bool]:
    """Whether the records are those of a page with this sha256, and the results those of the records."""
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


@click.command()
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True, type=PATH)
@output("The file to write.", kind=NEW_FILE)
@options(shared.OVERWRITE)
@shared.reporting("file")
def export(folders: tuple[Path, ...], out: Path, overwrite: bool, report: Console) -> tuple[Summary, bool]:
    """Boxes of faces for annotation tools, as COCO (JSON).

    FOLDER: results of `ficgan-deid` with their side-cars, or the project of a film. Photos have their five landmarks
    and what was done to each face; films a track for each person's appearance.
    """
    from ficgan.records.exports import Picture, coco, of_project, of_records
    from ficgan.video.project import PROJECT_FILE, Project

    shared.refuse_existing(out, overwrite=overwrite)
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


if __name__ == "__main__":
    from ficgan.cli.deid import deid as command  # a worker finds `make_engine` in this module, not in __main__

    command()
