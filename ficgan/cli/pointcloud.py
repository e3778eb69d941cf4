"""`ficgan pointcloud`: faces in 3D scans, anonymised, drawn and evaluated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ficgan import __version__
from ficgan.cli import main as shared
from ficgan.cli._files import make_folder, mirrored, with_name
from ficgan.cli.main import Console, Finite, Outcome, Summary, count, handle_errors, many, named, path
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.files import atomic_write, file_digest, write_file
from ficgan.records import own_sidecar, sidecar_path
from ficgan.registry import parse_spec

if TYPE_CHECKING:
    from ficgan.pointcloud import Cloud, CloudAnonymizer
    from ficgan.pointcloud.face import FaceLandmarks

TOOL = "ficgan pointcloud"
COUNTED = ("doubtful", "hardly_changed")  # What a result may be said to be; both are counted, and make the exit code 3
_INPUTS = click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=shared.PATH)
_READ = (
    named("--unit", "Of the scans.", type=click.Choice(["m", "cm", "mm"]), default="m"),
    path("--landmarks", "5 or 68 points of the only INPUT.  [default: NAME.landmarks.txt beside it; else it is found]"),
)
_OUT = shared.output("Folder; or a file, for one INPUT. Scans are written as PLY.", kind=shared.PATH)
_WRITE = (_OUT, shared.OVERWRITE, shared.SKIP_EXISTING)


@click.group("pointcloud")
def pointcloud() -> None:
    """Anonymise, draw and measure faces in 3D scans (PLY, OBJ, STL, OFF, GLB; tables XYZ, TXT, CSV)."""


@pointcloud.command("list")
@handle_errors
def list_() -> None:
    """List the methods, a line each: name, tab, what strengths 1 and 35 set."""
    from ficgan.pointcloud import CLOUD_ANONYMIZERS

    for name in CLOUD_ANONYMIZERS:
        traits, undone = CLOUD_ANONYMIZERS[name].traits, CLOUD_ANONYMIZERS[name].reversible_by
        says = f"{traits.title}: {traits.parameter} {traits.of_strength(1):g} to {traits.of_strength(35):g}"
        click.echo(f"{name}\t{says}{f' (undone by {undone})' if undone else ''}")


@pointcloud.command()
@_INPUTS
@shared.options(_WRITE)
@named("--method", "See `ficgan pointcloud list`.", required=True)
@named("--strength", "Strength: 1 changes least, 35 most.", type=click.IntRange(1, 35))
@many("--set", "In place of a strength, such as k=280", "settings", metavar="PARAMETER=VALUE")
@path("--target", "For merge-2-faces: a made head (make-head), or somebody who consents: high strengths show it.")
@count("--seed", None, "Same seed and file name, same result; who finds it takes noise back.  [default: chance]", low=0)
@named("--rest", "Of the scan outside the face.", type=click.Choice(["head", "keep", "drop"]), default="head")
@count("--points", 10_352, "Of the face; the strengths were chosen for the default.", low=500)
@shared.options(_READ)
@shared.reporting("scan")
def anonymise(inputs: tuple[Path, ...], target: Path | None, report: Console, **given: Any) -> Outcome:
    """Replace the face of every scan: what lies within 14 cm of the nose tip.

    INPUT: scans, folders of them. The results lie in the scans' own frame and unit; FILE.json beside each result FILE,
    such as head.ply.json, says what was done, and is not to be published with it. Ears, hair and the outline of the
    head are not touched (--rest drop leaves them out), nor are colours by uniform-noise and tapering. Prints one line
    of JSON; exits with 3 where a scan failed, its face is doubtful, or it is hardly changed.
    """
    from ficgan.pointcloud import anonymise_scan, cautions, prepare, write_cloud
    from ficgan.pointcloud.face import landmark_file_beside
    from ficgan.pointcloud.frame import canonical

    unit, points, rest = given["unit"], given["points"], given["rest"]
    used = {"target": target, "target landmarks": None if target is None else landmark_file_beside(target)}
    tasks = _plan(inputs, ".ply", given, also_read=used.values(), recorded=True)
    face = None
    if target is not None:
        try:
            face = prepare(canonical(_read(target, unit, report)[0], _marks(used["target landmarks"])), points).inner
        except InputError as error:
            raise InputError(f"the target {target} cannot be used: {error}") from error
    made = _method(given, face)
    asked = {"method": given["method"], "strength": given["strength"]}
    request = {**asked, "settings": made.settings(), "unit": unit, "rest": rest, "wanted": points}
    request |= {} if given["seed"] is None else {"seed": given["seed"]}

    def work(task: ScanTask) -> dict[str, Any]:
        cloud, notes = _read(task.source, unit, report)
        files = {"source": task.source, "landmarks": task.landmarks, **used}
        digests = {name: file_digest(file) for name, file in files.items() if file is not None}
        done = anonymise_scan(cloud, made, landmarks=_marks(task.landmarks), points=points, rest=rest, name=task.place)
        for warning in done.warnings:
            report.info(f"{task.source}: {warning}.")
        about = {"tool": TOOL, "version": __version__, "source": task.source.name, **request, "sha256": digests}
        text = json.dumps({**about, "notes": notes, **done.record}, indent=1)
        write_cloud(task.output, done.cloud, unit=unit, overwrite=given["overwrite"])
        try:  # the scan and the account of it are written, or none
            write_file(sidecar_path(task.output), text.encode() + b"\n", overwrite=given["overwrite"])
        except BaseException:
            task.output.unlink(missing_ok=True)
            raise
        return done.record

    summary, failed = _over_all(tasks, work, report)
    if any("points" in result for result in summary["results"]):
        for caution in cautions(made):
            report.info(f"{caution}.")
    return {**asked, **summary}, failed


@pointcloud.command()
@_INPUTS
@shared.options(_WRITE)
@named("--yaw", "Degrees the head is turned.", type=Finite(), default=0.0)
@shared.options(_READ)
@shared.reporting("scan")
def project(inputs: tuple[Path, ...], yaw: float, unit: str, report: Console, **given: Any) -> Outcome:
    """Draw scans, or folders of them: PNG pictures of 389×515 px. Without colours they are lit from their shape."""
    from PIL import Image

    from ficgan.pointcloud.frame import canonical
    from ficgan.pointcloud.geometry import project as draw

    tasks = _plan(inputs, ".png", given)

    def work(task: ScanTask) -> dict[str, Any]:
        cloud = _read(task.source, unit, report)[0]
        placed = canonical(cloud, _marks(task.landmarks))
        for doubt in placed.doubts:
            report.info(f"{task.source}: {doubt}.")
        with atomic_write(task.output, overwrite=given["overwrite"]) as file:
            Image.fromarray(draw(placed.cloud, yaw=yaw)).save(file, format="PNG")
        return {"points": len(cloud), "doubtful": bool(placed.doubts)}

    return _over_all(tasks, work, report)


@pointcloud.command()
@click.argument("config", metavar="[CONFIG]", default="pointcloud-small")
@shared.KEY_VALUES
@shared.output("Folder for results.json, the report and the state of the run; an interrupted run is resumed from it.")
@path("--scans", "Folder of scans named PERSON_EXPRESSION.ext.  [default: CONFIG's]")
@path("--photos", "Folder with a folder of photos for each person the attacker knows.")
@shared.options(shared.OTHER_JUDGES, shared.JOBS, shared.DRY_RUN)
@shared.reporting("task")
def evaluate(config: str, overrides: tuple[str, ...], out: Path, jobs: int, report: Console, **given: Any) -> Summary:
    """Measure what the six methods hide and what they leave, at all strengths, in pictures and in 3D.

    CONFIG: a YAML file, or pointcloud (200 people × 6 methods × 35 strengths, a day) or pointcloud-small (minutes);
    KEY=VALUE changes it, such as strengths=[10,20]. Without --scans the people are made heads. Prints a line of JSON.
    """
    from ficgan.lab.clouds import run_cloud_study
    from ficgan.lab.clouds.report import write_cloud_report
    from ficgan.lab.clouds.sets import CloudStudyConfig
    from ficgan.lab.results import without_folder

    if "=" in config:
        config, overrides = "pointcloud-small", (config, *overrides)
    asked = {"clouds": given["scans"], "photos": given["photos"], "recognisers": given["judges"] or None}
    chosen = {name: value for name, value in asked.items() if value is not None}
    study = CloudStudyConfig.read(config, overrides, **chosen, **({"synthetic": None} if "clouds" in chosen else {}))
    if given["dry_run"]:
        return {**without_folder(study.model_dump()), "dry_run": True}
    results = run_cloud_study(study, out, jobs=jobs, progress=report)
    files = [str(file.relative_to(out)) for file in write_cloud_report(results, out)]
    return {"results": "results.json", "report": files, "trials": len(results.trials)}


@pointcloud.command("make-head")
@shared.options(shared.output("A file.", kind=shared.NEW_FILE), shared.SEED)
@count("--points", 45_000, "As a scanner would see.", low=100)
@shared.OVERWRITE
@handle_errors
def make_head(out: Path, seed: int, points: int, overwrite: bool) -> None:
    """Write a made head, nobody's face, to try the other commands on; its landmarks lie in NAME.landmarks.txt."""
    from ficgan.pointcloud.cloud import write_cloud
    from ficgan.pointcloud.face import made_head

    marks = out.with_name(out.stem + ".landmarks.txt")
    shared.refuse_existing(out, marks, overwrite=overwrite)
    head = made_head(seed, points=points)
    write_cloud(out, head.cloud, overwrite=overwrite)
    text = "".join(f"{x:.6f} {y:.6f} {z:.6f}\n" for x, y, z in head.landmarks)
    write_file(marks, text.encode(), overwrite=overwrite)
    click.echo(json.dumps({"output": str(out), "landmarks": str(marks), "points": len(head.cloud), "seed": seed}))


class ScanTask(NamedTuple):
    """One scan and the file it becomes."""

    source: Path
    output: Path
    place: str  # of the scan in its tree; in one run no two are alike
    landmarks: Path | None  # the file of them, where there is one
    there: bool  # the result exists, and such are to be skipped


def _plan(
    inputs: Sequence[Path], ending: str, given: Mapping[str, Any], recorded: bool = False, also_read: Iterable[Any] = ()
) -> list[ScanTask]:
    """Which scan becomes which file with this ending; conflicts are found before any work.

    Results that are `recorded` have a record beside them. `also_read` are further files that must not be replaced.
    """
    from ficgan.pointcloud.cloud import READERS
    from ficgan.pointcloud.face import LANDMARK_ENDINGS, landmark_file_beside

    out, landmarks, alone = given["out"], given["landmarks"], len(inputs) == 1 and not inputs[0].is_dir()
    overwrite, skip_existing = given["overwrite"], given["skip_existing"]
    if landmarks is not None and not alone:
        raise UsageError("--landmarks are those of one scan; give one INPUT, or lay a file of them beside each scan")
    single = not out.is_dir() and out.suffix.lower() == ending
    if (single and not alone) or (not single and (out.is_file() or (alone and out.suffix and not out.is_dir()))):
        raise UsageError(f"-o {out}: name a folder, or for one scan a file that ends in {ending}")
    found = mirrored(inputs, READERS.keys(), what="scan", but=tuple(LANDMARK_ENDINGS))
    # Results of an earlier run in a folder are no scans; one that is named is taken.
    files = [(file, place) for file, place in found if file in inputs or not own_sidecar(file, TOOL)]
    if not files:
        raise UsageError("there are no scans but results of an earlier run; name one to have it taken")
    marks = {file: landmarks or landmark_file_beside(file) for file, _ in files}
    kept = {file.resolve() for file in (*marks, *marks.values(), *also_read) if file is not None}
    origin: dict[Path, Path] = {}
    tasks = []
    for source, place in files:
        output = out if single else out / place.with_suffix(ending)
        written = [output, sidecar_path(output)] if recorded else [output]
        for file in written:
            if (first := origin.setdefault(file.resolve(), source)) != source:
                raise UsageError(f"{first} and {source} would both become {file}; use two commands")
            if file.resolve() in kept:
                raise UsageError(f"{source} would overwrite an input, {file}; choose another output")
            if file.exists() and not (overwrite or skip_existing):
                raise UsageError(f"{file} exists; give --overwrite, --skip-existing to do the others, or another -o")
        there = skip_existing and not overwrite and all(file.exists() for file in written)
        tasks.append(ScanTask(source, output, str(place), marks[source], there))
    return tasks


def _over_all(
    tasks: Sequence[ScanTask], work: Callable[[ScanTask], dict[str, Any]], report: Console
) -> tuple[Summary, bool]:
    """A summary of what `work` returned, and whether the exit code is 3. A scan that cannot be used stops no other."""
    done: list[dict[str, Any]] = []
    for number, task in enumerate(tasks):
        report(number, len(tasks), str(task.source))
        about = {"input": str(task.source), "output": str(task.output)}
        if task.there:
            before = own_sidecar(task.output, TOOL) or {}
            done.append({**about, "skipped": True, **{key: before.get(key) for key in COUNTED}})
            continue
        try:
            make_folder(task.output.parent)
            done.append({**about, **work(task)})
        except FicganError as error:
            text = with_name(str(task.source), str(error))
            report.error(text)
            done.append({"input": str(task.source), "error": text})
    counts = {key: sum(bool(result.get(key)) for result in done) for key in ("error", *COUNTED, "skipped")}
    if counts["skipped"]:
        report.info(f"{counts['skipped']} skipped: the results exist.")
    summary = {"scans": len(done) - counts["skipped"], "failed": counts.pop("error"), **counts}
    return {**summary, "results": done}, any(summary[key] for key in ("failed", *COUNTED))


def _read(file: Path, unit: str, report: Console) -> tuple[Cloud, list[str]]:
    """A scan, and what could not be kept of it, which is printed, too."""
    from ficgan.pointcloud.cloud import read_cloud

    notes: list[str] = []
    cloud = read_cloud(file, unit=unit, notes=notes)
    for note in notes:
        report.info(f"{file}: {note}.")
    return cloud, notes


def _marks(landmarks: Path | None) -> FaceLandmarks | None:
    from ficgan.pointcloud.face import read_landmarks

    return None if landmarks is None else read_landmarks(landmarks)


def _method(asked: Mapping[str, Any], target: Cloud | None) -> CloudAnonymizer:
    """An anonymiser from a strength or PARAMETER=VALUE texts, with a target where it needs one."""
    from ficgan.pointcloud import CLOUD_ANONYMIZERS

    name, strength, settings = asked["method"], asked["strength"], asked["settings"]
    cls = CLOUD_ANONYMIZERS[name]
    given: dict[str, Any] = dict(parse_spec(f"{name}:{','.join(settings)}")[1]) if settings else {}
    parameter = cls.traits.parameter
    if "seed" in given:
        raise UsageError("the seed is no setting of a method; give --seed")
    if (strength is None) == (parameter not in given):
        raise UsageError(f"{name} needs either --strength or --set {parameter}=VALUE")
    if cls.traits.needs_target != (target is not None):
        raise UsageError(f"{name} {'needs' if target is None else 'has no use for'} --target, a face to merge with")
    if strength is not None:
        given[parameter] = getattr(cls.of_strength(strength), parameter)
    made = CLOUD_ANONYMIZERS.make(name, **given, seed=asked["seed"])
    return made if target is None else made.with_target(target)
