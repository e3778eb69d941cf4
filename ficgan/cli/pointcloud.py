"""`ficgan pointcloud`: faces in 3D scans, anonymised, drawn, compared and evaluated."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import click

from ficgan.cli._errors import EXIT_SOME_FAILED, handle_errors
from ficgan.cli._options import TALK, options
from ficgan.cli._params import Finite
from ficgan.cli._progress import Progress

__all__ = ["pointcloud"]

_HELP = {"help_option_names": ["-h", "--help"]}
_PATH = click.Path(path_type=Path)
_READ: tuple[Any, ...] = (
    click.option("--unit", type=click.Choice(["m", "cm", "mm"]), default="m", show_default=True, help="Of the scans."),
    click.option(
        "--landmarks", type=_PATH,
        help="5 or 68 points of the only INPUT, in m or mm.  [default: NAME_landmarks_mm.txt, NAME.landmarks.txt or "
        "NAME.landmarks.json beside a scan; else the face is looked for]",
    ),
)  # fmt: skip
_OUT: tuple[Any, ...] = (
    click.option("-o", "--output", "out", required=True, type=_PATH, help="Folder; or a file, for one INPUT."),
    click.option("--overwrite", is_flag=True, help="Replace files that are there; what is read never."),
    click.option("--skip-existing", "skip", is_flag=True, help="Leave out scans whose results are there, to go on."),
)
_INPUTS = click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=_PATH)


@click.group("pointcloud", context_settings=_HELP)
def pointcloud() -> None:
    """Anonymise faces in 3D scans, draw them, and measure what was achieved.

    Scans are PLY, OBJ, PCD, tables of points (XYZ, ASC, TXT, PTS, CSV) and NumPy files.
    """


@pointcloud.command("list", context_settings=_HELP)
@handle_errors
def list_() -> None:
    """Say what methods there are, a line each: name, tab, what degrees 1 and 35 set."""
    from ficgan.pointcloud import CLOUD_ANONYMIZERS

    for name in CLOUD_ANONYMIZERS:
        traits = CLOUD_ANONYMIZERS[name].traits
        says = f"{traits.title}: {traits.strength} {traits.of_degree(1):g} to {traits.of_degree(35):g}"
        click.echo(f"{name}\t{says}{f' (taken back by {traits.reversible_by})' if traits.reversible_by else ''}")


@pointcloud.command(context_settings=_HELP)
@_INPUTS
@options(_OUT)
@click.option("--method", required=True, help="See `ficgan pointcloud list`.")
@click.option("--degree", type=click.IntRange(1, 35), help="Strength: 1 changes least, 35 most.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="PARAMETER=VALUE",
    help="In place of a degree, such as k=280; repeatable.",
)
@click.option(
    "--target", type=_PATH,
    help="Face to merge with, for merge-2-faces: a made head (make-head), or a scan of a person who consents, for high "
    "degrees show it nearly as it is.",
)  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(min=0),
    help="Same seed and file name, same result; who finds it takes noise back, and small ones are found by trying.  "
    "[default: chance, for every scan anew]",
)  # fmt: skip
@click.option(
    "--rest", type=click.Choice(["head", "keep", "drop"]), default="head", show_default=True,
    help="Of the scan outside the face: what is near the head, all, or nothing.",
)  # fmt: skip
@click.option(
    "--points", type=click.IntRange(500), default=10_352, show_default=True,
    help="Of the face; the degrees were chosen for the default.",
)  # fmt: skip
@click.option("--pictures", is_flag=True, help="Also FILE.png beside every result FILE: its front view.")
@options(_READ)
@options(TALK)
@handle_errors
def anonymise(
    inputs: tuple[Path, ...], out: Path, overwrite: bool, skip: bool, method: str, degree: int | None,
    settings: tuple[str, ...], target: Path | None, seed: int | None, rest: Any, points: int, pictures: bool, unit: str,
    landmarks: Path | None, progress: Any, quiet: bool,
) -> None:  # fmt: skip
    """Replace the face of every scan: what lies within 14 cm of the nose tip.

    INPUT: scans, folders of them. The results lie in the scans' own frame and unit; FILE.json beside each result FILE,
    such as head.ply.json, says what was done, and is not to be published with it. Ears, hair and the outline of the
    head are not touched (--rest drop leaves them out), nor are colours by uniform-noise and tapering. Prints one line
    of JSON; exits with 3 where a scan failed, its face is doubtful, or it is hardly changed. With --skip-existing a
    result that is not what this command would make is refused, or replaced if --overwrite is given, too.
    """
    from ficgan.cli.pointcloud_run import Outputs, Reading, Request, method_of, naming, over_all, plan, write_result
    from ficgan.pointcloud.files import FORMATS
    from ficgan.pointcloud.scan import PreparationConfig, anonymise_scan, cautions, prepare

    started = time.monotonic()
    _one_if(landmarks, inputs)
    config = PreparationConfig(last=points, first=max(points, PreparationConfig.first))
    reading = Reading(unit, landmarks)
    outputs = Outputs(
        out, [suffix for suffix, form in FORMATS.items() if form.write], overwrite=overwrite, skip=skip,
        beside=lambda task: (task.record, *((task.picture,) if pictures else ())),
    )  # fmt: skip
    with Progress(progress, unit="scan", quiet=quiet) as told:
        beside = Reading(unit)
        aimed = (target, target and beside.marks_of(target))
        planned = plan(inputs, outputs, reading, told, *aimed)
        face = None
        if target is not None:
            with naming(target):
                face = prepare(beside.cloud(target, told), beside.marks(target), config).inner
        made = method_of(method, degree, settings, seed, face)
        request = Request(method, degree, made.settings(), unit, rest, points, seed, aimed)

        def work(task: Any) -> dict[str, Any]:
            marks = reading.marks_of(task.source)
            if task in planned.there and (there := request.record_of_same(task, marks, refuse=not overwrite)):
                return {"skipped": True, **{key: there.get(key) for key in _COUNTED}}
            notes: list[str] = []
            cloud = reading.cloud(task.source, told, notes)
            record = request.record(task.source, marks)
            done = anonymise_scan(
                cloud, made, landmarks=reading.marks(task.source), config=config, rest=rest, name=task.place
            )
            for warning in done.warnings:
                told.info(f"{task.source}: {warning}.")
            if pictures:  # first, so that a result without its picture is none of an interrupted run
                from ficgan.pointcloud.projection import project as draw

                again = overwrite or (skip and not task.output.exists())
                _write_png(task.picture, draw(done.canonical, **made.drawn_with()), again)
            write_result(task, done.cloud, {**record, "notes": notes, **done.record}, unit=unit, overwrite=overwrite)
            return {"notes": notes, **done.record}

        done = over_all(planned.tasks, work, told)
        _tell_skipped(done, told)
        if any("notes" in one for one in done):
            for caution in cautions(made):
                told.info(f"{caution}.")
    _say(done, started, method=method, degree=degree, same_file=planned.same)


@pointcloud.command(context_settings=_HELP)
@_INPUTS
@options(_OUT)
@click.option("--view", type=click.Choice(["orthographic", "perspective"]), default="orthographic", show_default=True)
@click.option("--yaw", type=Finite(), default=0.0, show_default=True, help="Degrees the head is turned.")
@click.option("--pitch", type=Finite(), default=0.0, show_default=True, help="Degrees the head is raised.")
@click.option("--views", is_flag=True, help="Eleven pictures of a scan, −10 to 10 degrees of yaw, side by side.")
@click.option(
    "--order", type=click.Choice(["y", "x", "depth"]), default="y", show_default=True,
    help="What is drawn last: the highest points, as in the thesis, or the nearest.",
)  # fmt: skip
@click.option("--point-size", type=Finite(min=0, min_open=True), default=25.0, show_default=True, help="Points².")
@click.option("--canonical", is_flag=True, help="The scans are in the canonical frame already.")
@options(_READ)
@options(TALK)
@handle_errors
def project(
    inputs: tuple[Path, ...], out: Path, overwrite: bool, skip: bool, view: str, yaw: float, pitch: float, views: bool,
    order: Any, point_size: float, canonical: bool, unit: str, landmarks: Path | None, progress: Any, quiet: bool,
) -> None:  # fmt: skip
    """Draw scans: PNG pictures of 389×515 pixels, without a display.

    INPUT: scans, folders of them. Scans without colours are lit from their shape. Prints one line of JSON.
    """
    from ficgan.cli.pointcloud_run import Outputs, Reading, over_all, plan
    from ficgan.errors import UsageError
    from ficgan.pointcloud.frame import canonical as to_canonical
    from ficgan.pointcloud.projection import perspective as camera
    from ficgan.pointcloud.projection import project as draw
    from ficgan.pointcloud.projection import strip
    from ficgan.pointcloud.projection import views as turned

    started = time.monotonic()
    _one_if(landmarks, inputs)
    if view == "perspective" and (views or order != "y"):
        raise UsageError("--view perspective has one view and its own order; leave out --views and --order")
    if views and yaw:
        raise UsageError("--views are turned from −10 to 10 degrees; leave out --yaw")
    reading = Reading(unit, landmarks)
    with Progress(progress, unit="scan", quiet=quiet) as told:
        planned = plan(inputs, Outputs(out, [".png"], ".png", overwrite, skip), reading, told)

        def work(task: Any) -> dict[str, Any]:
            if task in planned.there:
                return {"skipped": True}
            cloud = reading.cloud(task.source, told)
            found = None if canonical else to_canonical(cloud, reading.marks(task.source))
            placed = cloud if found is None else found.cloud
            for doubt in () if found is None else found.doubts:
                told.info(f"{task.source}: {doubt}.")
            common: dict[str, Any] = {"pitch": pitch, "point_size": point_size}
            if view == "perspective":
                picture = camera(placed, yaw=yaw, **common)
            elif views:
                picture = strip(turned(placed, order=order, **common))
            else:
                picture = draw(placed, yaw=yaw, order=order, **common)
            _write_png(task.output, picture, overwrite)
            return {"points": len(cloud), "doubtful": found is not None and found.doubtful}

        done = over_all(planned.tasks, work, told)
        _tell_skipped(done, told)
    _say(done, started, same_file=planned.same)


@pointcloud.command(context_settings=_HELP)
@click.argument("clear", type=_PATH)
@click.argument("anonymised", type=_PATH)
@options(_READ)
@options(TALK)
@handle_errors
def compare(clear: Path, anonymised: Path, unit: str, landmarks: Path | None, progress: Any, quiet: bool) -> None:
    """Say how far an anonymised scan is from the clear one, in 3D; one line of JSON.

    Both must lie in one frame, as `anonymise` leaves them. Only the face is compared, with all points that it became
    (by the record beside the second, where there is one).
    """
    from ficgan.cli.pointcloud_run import Reading, naming, record_beside
    from ficgan.pointcloud.scan import compare_scans

    with Progress(progress, unit="scan", quiet=quiet) as told:
        reading = Reading(unit, landmarks)
        first, second = reading.cloud(clear, told), Reading(unit).cloud(anonymised, told)
        counts = (record_beside(anonymised) or {}).get("points", {})
        face = counts.get("anonymised") if counts.get("written") == len(second) else None
        with naming(clear):
            found = compare_scans(first, second, reading.marks(clear), face=face)
        if record_beside(clear):
            found["warnings"].insert(0, f"{clear} is a result, by the record beside it: give the clear scan first")
        for warning in found["warnings"]:
            told.info(f"{anonymised}: {warning}.")
        click.echo(json.dumps(found))


@pointcloud.command(context_settings=_HELP)
@click.argument("config", metavar="[CONFIG]", default="pointcloud-small")
@click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1)
@click.option(
    "-o", "--output", "out", required=True, type=click.Path(path_type=Path, file_okay=False),
    help="Folder for results.json, the report and what is kept; an interrupted run goes on from it.",
)  # fmt: skip
@click.option("--scans", type=_PATH, help="Folder of scans named PERSON_EXPRESSION.ext.  [default: CONFIG's]")
@click.option("--morphs", type=click.IntRange(2), help="So many synthetic people, made of --scans.")
@click.option("--photos", type=_PATH, help="Folder with a folder of photos for each person: who the attacker knows.")
@click.option("--judge", "judges", multiple=True, help="For CONFIG's recognisers: dlib, insightface, onnx:PATH.")
@click.option("--jobs", type=click.IntRange(1), help="Processes.  [default: as many as there are cores, at most 8]")
@click.option("--dry-run", is_flag=True, help="Check and print the configuration; read no scan.")
@options(TALK)
@handle_errors
def evaluate(
    config: str, overrides: tuple[str, ...], out: Path, scans: Path | None, morphs: int | None, photos: Path | None,
    judges: tuple[str, ...], jobs: int | None, dry_run: bool, progress: Any, quiet: bool,
) -> None:  # fmt: skip
    """Measure what the six methods hide and what they leave, at all degrees, in pictures and in 3D.

    CONFIG: a YAML file, or pointcloud (200 people × 6 methods × 35 degrees, hours) or pointcloud-small (minutes);
    KEY=VALUE changes it, such as degrees=[10,20,30]. Without --scans the people are made heads. Prints a line of JSON.
    """
    from ficgan.lab.clouds import run_cloud_study, write_cloud_report

    started = time.monotonic()
    study = _study(config, overrides, scans, morphs, photos, judges)
    if dry_run:
        click.echo(json.dumps({**study.to_dict(), "dry_run": True}))
        return
    jobs = jobs or min(8, os.cpu_count() or 1)
    with Progress(progress, unit="task", quiet=quiet) as told:
        results = run_cloud_study(study, out, jobs=jobs, progress=told)
        files = write_cloud_report(results, out)
    summary = {
        "results": "results.json", "report": [str(path.relative_to(out)) for path in files],
        "trials": len(results.trials), "seconds": round(time.monotonic() - started, 1),
    }  # fmt: skip
    click.echo(json.dumps(summary))


def _study(
    config: str, overrides: tuple[str, ...], scans: Path | None, morphs: int | None, photos: Path | None,
    judges: tuple[str, ...],
) -> Any:  # fmt: skip
    """The configuration as options and overrides want it."""
    from ficgan.errors import UsageError
    from ficgan.lab.clouds import CloudStudyConfig

    if "=" in config:
        config, overrides = "pointcloud-small", (config, *overrides)
    study = CloudStudyConfig.read(config, overrides)
    tree = study.model_dump(mode="json")
    if morphs is not None and scans is None:
        raise UsageError("--morphs are made of scans; give --scans")
    if scans is not None:
        seed = study.synthetic.seed if study.synthetic else 0
        people = None if morphs is None else {"scans": str(scans), "people": morphs, "seed": seed}
        tree |= {"clouds": None if morphs else str(scans), "synthetic": people}
    if photos is not None:
        tree["photos"] = str(photos)
    if judges:
        tree["recognisers"] = list(judges)
    return CloudStudyConfig.parse(tree, where=config)


@pointcloud.command("make-head", context_settings=_HELP)
@click.option("-o", "--output", "out", required=True, type=click.Path(path_type=Path, dir_okay=False), help="A file.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Who it is.")
@click.option(
    "--expression", default="neutral", show_default=True,
    help="neutral, smiling, angry, surprised, eyes-closed or pouting.",
)  # fmt: skip
@click.option("--points", type=click.IntRange(100), default=45_000, show_default=True, help="As a scanner would see.")
@click.option("--overwrite", is_flag=True, help="Replace a file that is there.")
@handle_errors
def make_head(out: Path, seed: int, expression: str, points: int, overwrite: bool) -> None:
    """Write a head made of formulas, to try the other commands on: nobody's face.

    Its landmarks, 68 points, lie beside it in NAME.landmarks.txt.
    """
    from ficgan.errors import UsageError
    from ficgan.images import atomic_write
    from ficgan.pointcloud.files import write_cloud
    from ficgan.pointcloud.heads import made_head

    marks = out.with_name(out.stem + ".landmarks.txt")
    for path in (out, marks):
        if path.exists() and not overwrite:
            raise UsageError(f"{path} exists; choose another output, or give --overwrite")
    head = made_head(seed, expression=expression, points=points)
    write_cloud(out, head.cloud, overwrite=overwrite)
    with atomic_write(marks, overwrite=overwrite) as file:
        file.write("".join(f"{x:.6f} {y:.6f} {z:.6f}\n" for x, y, z in head.landmarks).encode())
    click.echo(json.dumps({"output": str(out), "landmarks": str(marks), "points": len(head.cloud), "seed": seed}))


def _one_if(landmarks: Path | None, inputs: tuple[Path, ...]) -> None:
    from ficgan.errors import UsageError

    if landmarks is not None and (len(inputs) != 1 or inputs[0].is_dir()):
        raise UsageError("--landmarks are those of one scan; give one INPUT, or lay a file of them beside each scan")


def _write_png(path: Path, picture: Any, overwrite: bool) -> None:
    from PIL import Image

    from ficgan.images import atomic_write

    with atomic_write(path, overwrite=overwrite) as file:
        Image.fromarray(picture).save(file, format="PNG")


_COUNTED = ("doubtful", "hardly_changed")
"""What a result is said to be, and counted and exited with 3 for."""


def _tell_skipped(done: list[dict[str, Any]], told: Progress) -> None:
    if skipped := sum("skipped" in one for one in done):
        told.info(f"{skipped} left out: the results are there.")


def _say(done: list[dict[str, Any]], started: float, **more: Any) -> None:
    counts = {key: sum(bool(one.get(key)) for one in done) for key in ("error", *_COUNTED, "skipped")}
    said = {"scans": len(done) - counts["skipped"], "failed": counts.pop("error"), **counts}
    click.echo(json.dumps({**more, **said, "results": done, "seconds": round(time.monotonic() - started, 2)}))
    if said["failed"] or any(said[key] for key in _COUNTED):
        raise SystemExit(EXIT_SOME_FAILED)
