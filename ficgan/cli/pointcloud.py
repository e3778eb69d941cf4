"""`ficgan pointcloud`: faces in 3D scans, anonymised, drawn, compared and evaluated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ficgan.cli import HELP
from ficgan.cli import _shared as shared
from ficgan.cli._console import Progress, handle_errors
from ficgan.cli._shared import Finite

__all__ = ["pointcloud"]

_READ: tuple[Any, ...] = (
    click.option("--unit", type=click.Choice(["m", "cm", "mm"]), default="m", show_default=True, help="Of the scans."),
    click.option(
        "--landmarks",
        type=shared.PATH,
        help="5 or 68 points of the only INPUT, in m or mm.  [default: NAME_landmarks_mm.txt or NAME.landmarks.txt "
        "beside a scan; else the face is looked for]",
    ),
)
_OUT: tuple[Any, ...] = (
    shared.output("Folder; or a file, for one INPUT.", kind=shared.PATH),
    click.option("--overwrite", is_flag=True, help="Replace existing files; those that are read never."),
    click.option("--skip-existing", "skip", is_flag=True, help="Skip scans whose results exist, to resume."),
)
_INPUTS = click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=shared.PATH)


@click.group("pointcloud", context_settings=HELP)
def pointcloud() -> None:
    """Anonymise faces in 3D scans, draw them, and measure what was achieved.

    Scans are meshes and clouds (PLY, OBJ, STL, OFF, GLB), tables (XYZ, TXT, CSV) and NumPy files (NPY).
    """


@pointcloud.command("list")
@handle_errors
def list_() -> None:
    """List the methods, a line each: name, tab, what degrees 1 and 35 set."""
    from ficgan.pointcloud import CLOUD_ANONYMIZERS

    for name in CLOUD_ANONYMIZERS:
        traits = CLOUD_ANONYMIZERS[name].traits
        says = f"{traits.title}: {traits.strength} {traits.of_degree(1):g} to {traits.of_degree(35):g}"
        click.echo(f"{name}\t{says}{f' (undone by {traits.reversible_by})' if traits.reversible_by else ''}")


@pointcloud.command()
@_INPUTS
@shared.options(*_OUT)
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
    "--target",
    type=shared.PATH,
    help="Face to merge with, for merge-2-faces: a made head (make-head), or a scan of a person who consents, for high "
    "degrees show it nearly as it is.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Same seed and file name, same result; who finds it takes noise back, and small ones are found by trying.  "
    "[default: chance, for every scan anew]",
)
@click.option(
    "--rest",
    type=click.Choice(["head", "keep", "drop"]),
    default="head",
    show_default=True,
    help="Of the scan outside the face: what is near the head, all, or nothing.",
)
@click.option(
    "--points",
    type=click.IntRange(500),
    default=10_352,
    show_default=True,
    help="Of the face; the degrees were chosen for the default.",
)
@click.option("--pictures", is_flag=True, help="Also FILE.png beside every result FILE: its front view.")
@shared.options(*_READ)
@shared.reporting("scan")
def anonymise(
    inputs: tuple[Path, ...],
    out: Path,
    overwrite: bool,
    skip: bool,
    method: str,
    degree: int | None,
    settings: tuple[str, ...],
    target: Path | None,
    seed: int | None,
    rest: Any,
    points: int,
    pictures: bool,
    unit: str,
    landmarks: Path | None,
    report: Progress,
) -> tuple[shared.Summary, bool]:
    """Replace the face of every scan: what lies within 14 cm of the nose tip.

    INPUT: scans, folders of them. The results lie in the scans' own frame and unit; FILE.json beside each result FILE,
    such as head.ply.json, says what was done, and is not to be published with it. Ears, hair and the outline of the
    head are not touched (--rest drop leaves them out), nor are colours by uniform-noise and tapering. Prints one line
    of JSON; exits with 3 where a scan failed, its face is doubtful, or it is hardly changed. With --skip-existing a
    result that is not what this command would make is refused, or replaced if --overwrite is given, too.
    """
    from ficgan.cli import pointcloud_run as run
    from ficgan.errors import InputError
    from ficgan.pointcloud.face import landmark_file_beside
    from ficgan.pointcloud.frame import canonical
    from ficgan.pointcloud.projection import project as draw
    from ficgan.pointcloud.scan import anonymise_scan, cautions, prepare

    target_marks = target and landmark_file_beside(target)
    tasks, same = run.plan(
        inputs,
        out,
        run.WRITABLE,
        report,
        beside=(run.RECORD, *((".png",) if pictures else ())),
        landmarks=landmarks,
        overwrite=overwrite,
        skip=skip,
        also_read=(target, target_marks),
    )
    face = None
    if target is not None:
        try:
            face = prepare(canonical(run.read_scan(target, unit, report), run.marks_of(target_marks)), points).inner
        except InputError as error:
            raise InputError(f"the target {target} cannot be used: {error}") from error
    made = run.method_of(method, degree, settings, seed, face)
    request: dict[str, Any] = {
        "method": method,
        "degree": degree,
        "settings": made.settings(),
        "unit": unit,
        "rest": rest,
    }
    request |= {"wanted": points, "seed": seed}

    def work(task: Any) -> dict[str, Any]:
        record = run.record_of(request, task, target)
        if task.there and (there := run.same_as_wanted(task, record, refuse=not overwrite)):
            return {"skipped": True, **{key: there.get(key) for key in run.COUNTED}}
        notes: list[str] = []
        cloud, marks = run.read_scan(task.source, unit, report, notes), run.marks_of(task.landmarks)
        done = anonymise_scan(cloud, made, landmarks=marks, points=points, rest=rest, name=task.place)
        for warning in done.warnings:
            report.info(f"{task.source}: {warning}.")
        if pictures:  # first, so that a result without its picture is none of an interrupted run
            again = overwrite or (skip and not task.output.exists())
            run.write_png(task.beside(".png"), draw(done.canonical, **made.drawn_with()), again)
        run.write_result(task, done.cloud, {**record, "notes": notes, **done.record}, unit=unit, overwrite=overwrite)
        return {"notes": notes, **done.record}

    summary, failed = run.over_all(tasks, work, report, method=method, degree=degree, same_file=same)
    if any("notes" in result for result in summary["results"]):
        for caution in cautions(made):
            report.info(f"{caution}.")
    return summary, failed


@pointcloud.command()
@_INPUTS
@shared.options(*_OUT)
@click.option("--yaw", type=Finite(), default=0.0, show_default=True, help="Degrees the head is turned.")
@click.option(
    "--order",
    type=click.Choice(["y", "x"]),
    default="y",
    show_default=True,
    help="What is drawn last: the highest points, as in the thesis, or the nearest.",
)
@click.option("--point-size", type=Finite(min=0, min_open=True), default=25.0, show_default=True, help="Points².")
@shared.options(*_READ)
@shared.reporting("scan")
def project(
    inputs: tuple[Path, ...],
    out: Path,
    overwrite: bool,
    skip: bool,
    yaw: float,
    order: Any,
    point_size: float,
    unit: str,
    landmarks: Path | None,
    report: Progress,
) -> tuple[shared.Summary, bool]:
    """Draw scans: PNG pictures of 389×515 pixels, without a display.

    INPUT: scans, folders of them. Scans without colours are lit from their shape. Prints one line of JSON.
    """
    from ficgan.cli import pointcloud_run as run
    from ficgan.pointcloud.frame import canonical
    from ficgan.pointcloud.projection import project as draw

    tasks, same = run.plan(
        inputs, out, [".png"], report, ending=".png", landmarks=landmarks, overwrite=overwrite, skip=skip
    )

    def work(task: Any) -> dict[str, Any]:
        if task.there:
            return {"skipped": True}
        cloud = run.read_scan(task.source, unit, report)
        placed = canonical(cloud, run.marks_of(task.landmarks))
        for doubt in placed.doubts:
            report.info(f"{task.source}: {doubt}.")
        picture = draw(placed.cloud, yaw=yaw, order=order, point_size=point_size)
        run.write_png(task.output, picture, overwrite)
        return {"points": len(cloud), "doubtful": bool(placed.doubts)}

    return run.over_all(tasks, work, report, same_file=same)


@pointcloud.command()
@click.argument("clear", type=shared.PATH)
@click.argument("anonymised", type=shared.PATH)
@shared.options(*_READ)
@shared.reporting("scan")
def compare(clear: Path, anonymised: Path, unit: str, landmarks: Path | None, report: Progress) -> shared.Summary:
    """Say how far an anonymised scan is from the clear one, in 3D; one line of JSON.

    Both must lie in one frame, as `anonymise` leaves them. Only the face is compared, with all points that it became
    (by the record beside the second, where there is one).
    """
    from ficgan.cli import pointcloud_run as run
    from ficgan.pointcloud.face import landmark_file_beside
    from ficgan.pointcloud.scan import compare_scans

    first, second = (run.read_scan(path, unit, report) for path in (clear, anonymised))
    counts = (run.record_beside(anonymised) or {}).get("points", {})
    face = counts.get("anonymised") if counts.get("written") == len(second) else None
    found = compare_scans(first, second, run.marks_of(landmarks or landmark_file_beside(clear)), face=face)
    if run.record_beside(clear):
        found["warnings"].insert(0, f"{clear} is a result, by the record beside it: give the clear scan first")
    for warning in found["warnings"]:
        report.info(f"{anonymised}: {warning}.")
    return found


@pointcloud.command()
@click.argument("config", metavar="[CONFIG]", default="pointcloud-small")
@shared.KEY_VALUES
@shared.output("Folder for results.json, the report and the state of the run; an interrupted run is resumed from it.")
@click.option("--scans", type=shared.PATH, help="Folder of scans named PERSON_EXPRESSION.ext.  [default: CONFIG's]")
@click.option("--photos", type=shared.PATH, help="Folder with a folder of photos for each person the attacker knows.")
@shared.judges_instead("dlib, insightface, onnx:PATH")
@shared.options(shared.JOBS, shared.dry_run("Check and print the configuration; read no scan."))
@shared.reporting("task")
def evaluate(out: Path, jobs: int, dry_run: bool, report: Progress, **chosen: Any) -> shared.Summary:
    """Measure what the six methods hide and what they leave, at all degrees, in pictures and in 3D.

    CONFIG: a YAML file, or pointcloud (200 people × 6 methods × 35 degrees, hours) or pointcloud-small (minutes);
    KEY=VALUE changes it, such as degrees=[10,20,30]. Without --scans the people are made heads. Prints a line of JSON.
    """
    from ficgan.lab.clouds import run_cloud_study
    from ficgan.lab.clouds.report import write_cloud_report

    study = _study(**chosen)
    if dry_run:
        return {**study.to_dict(), "dry_run": True}
    results = run_cloud_study(study, out, jobs=jobs, progress=report)
    files = [str(path.relative_to(out)) for path in write_cloud_report(results, out)]
    return {"results": "results.json", "report": files, "trials": len(results.trials)}


def _study(
    config: str, overrides: tuple[str, ...], scans: Path | None, photos: Path | None, judges: tuple[str, ...]
) -> Any:
    from ficgan.lab.clouds.sets import CloudStudyConfig

    if "=" in config:
        config, overrides = "pointcloud-small", (config, *overrides)
    tree = CloudStudyConfig.read(config, overrides).model_dump(mode="json")
    if scans is not None:
        tree |= {"clouds": str(scans), "synthetic": None}
    if photos is not None:
        tree["photos"] = str(photos)
    if judges:
        tree["recognisers"] = list(judges)
    return CloudStudyConfig.parse(tree, where=config)


@pointcloud.command("make-head")
@shared.output("A file.", kind=shared.NEW_FILE)
@shared.seed("Who it is.")
@click.option("--points", type=click.IntRange(100), default=45_000, show_default=True, help="As a scanner would see.")
@shared.OVERWRITE
@handle_errors
def make_head(out: Path, seed: int, points: int, overwrite: bool) -> None:
    """Write a made head, to try the other commands on: nobody's face.

    Its landmarks, five points, lie beside it in NAME.landmarks.txt.
    """
    from ficgan.files import atomic_write
    from ficgan.pointcloud.cloud import write_cloud
    from ficgan.pointcloud.face import made_head

    marks = out.with_name(out.stem + ".landmarks.txt")
    shared.refuse_existing(out, marks, overwrite=overwrite)
    head = made_head(seed, points=points)
    write_cloud(out, head.cloud, overwrite=overwrite)
    with atomic_write(marks, overwrite=overwrite) as file:
        file.write("".join(f"{x:.6f} {y:.6f} {z:.6f}\n" for x, y, z in head.landmarks).encode())
    click.echo(json.dumps({"output": str(out), "landmarks": str(marks), "points": len(head.cloud), "seed": seed}))
