"""The work of `ficgan pointcloud`: which scan becomes which file, and the record beside each result."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from ficgan import __version__
from ficgan.cli._plan import mirrored
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.files import atomic_write, file_digest
from ficgan.pointcloud.cloud import READERS, WRITERS, Cloud, read_cloud, write_cloud
from ficgan.pointcloud.face import LANDMARK_ENDINGS, FaceLandmarks, landmark_file_beside, read_landmarks
from ficgan.pointcloud.methods import CLOUD_ANONYMIZERS, CloudAnonymizer
from ficgan.pointcloud.projection import Picture
from ficgan.registry import parse_spec

if TYPE_CHECKING:
    from ficgan.cli._console import Progress

TOOL = "ficgan pointcloud"
RECORD = ".json"  # ending of the account of a result, behind the result's whole name
WRITABLE = list(WRITERS)
# Keys of a record by which two results differ; `sha256` holds the digests of the files that are read.
_COMPARED = ("method", "settings", "unit", "rest", "wanted", "seed", "sha256")
COUNTED = ("doubtful", "hardly_changed")  # what a result is said to be, and counted and exited with 3 for


@dataclass(frozen=True)
class ScanTask:
    """One scan and the file it becomes."""

    source: Path
    output: Path
    place: str  # of the scan in its tree; in one run no two are alike
    landmarks: Path | None  # the file of them, where there is one
    there: bool  # the result exists, and such are to be skipped

    def beside(self, ending: str) -> Path:
        """A file that goes with the output."""
        return self.output.with_name(self.output.name + ending)


def read_scan(path: Path, unit: str, report: Progress, notes: list[str] | None = None) -> Cloud:
    """A scan; what could not be kept of it is printed, and added to `notes`."""
    notes = [] if notes is None else notes
    cloud = read_cloud(path, unit=unit, notes=notes)
    for note in notes:
        report.info(f"{path}: {note}.")
    return cloud


def marks_of(landmarks: Path | None) -> FaceLandmarks | None:
    return None if landmarks is None else read_landmarks(landmarks)


def plan(
    inputs: Sequence[Path],
    out: Path,
    suffixes: Collection[str],
    report: Progress,
    *,
    ending: str = "",
    beside: Sequence[str] = (),
    landmarks: Path | None = None,
    overwrite: bool = False,
    skip: bool = False,
    also_read: Sequence[Path | None] = (),
) -> tuple[list[ScanTask], int]:
    """Which scan becomes which file, and how many were left out as links to others; conflicts are found before work.

    Args:
        inputs: scans and folders of them.
        out: a folder, which mirrors the trees; or a file for one scan, when its name ends like one.
        suffixes: what a file's name may end in.
        report: says what is left out.
        ending: of the files in a folder; as the scan's own where empty.
        beside: endings of what else is written for a scan.
        landmarks: of the only input.
        overwrite: replace files that are there, but never what is read: scans, landmarks and `also_read`.
        skip: leave what is there.
        also_read: further files.
    """
    alone = len(inputs) == 1 and not inputs[0].is_dir()
    if landmarks is not None and not alone:
        raise UsageError("--landmarks are those of one scan; give one INPUT, or lay a file of them beside each scan")
    twins: list[tuple[Path, Path]] = []
    advice = "give scans, or folders of them"
    files = mirrored(inputs, READERS.keys(), what="point cloud", advice=advice, known=LANDMARK_ENDINGS, twins=twins)
    if twins:
        report.info(f"{len(twins)} left out: the same file as another, such as {twins[0][0]} as {twins[0][1]}.")
    named = {path.resolve() for path in inputs}
    own = [path for path, _ in files if path.resolve() not in named and record_beside(path)]
    if own:
        report.info(f"{len(own)} results of an earlier run are left out, such as {own[0]}.")
        files = [pair for pair in files if pair[0] not in own]
    if not files:
        raise UsageError("there are no scans but results of an earlier run; name one to have it taken")
    single = not out.is_dir() and out.suffix.lower() in suffixes
    if (single and not alone) or (not single and (out.is_file() or (alone and out.suffix and not out.is_dir()))):
        raise UsageError(
            f"-o {out}: name a folder, or for one scan a file that ends in one of {', '.join(suffixes)}, "
            f"and not one file for {len(files)} scans"
        )
    marks = {path: landmarks or landmark_file_beside(path) for path, _ in files}
    kept = {path.resolve() for path in (*marks, *marks.values(), *also_read) if path is not None}
    origin: dict[Path, Path] = {}
    tasks = []
    for source, place in files:
        output = out if single else out / (place.with_suffix(ending) if ending else place)
        if output.suffix.lower() not in suffixes:
            raise UsageError(
                f"{source}: no scan is written to a file ending in {source.suffix}; give -o FILE.ply, or leave it out"
            )
        written = [output, *(output.with_name(output.name + end) for end in beside)]
        for path in written:
            if (first := origin.setdefault(path.resolve(), source)) != source:
                raise UsageError(f"{first} and {source} would both become {path}; use two commands")
            if path.resolve() in kept:
                raise UsageError(f"{source} would overwrite an input, {path}; choose another output")
            if path.exists() and not (overwrite or skip):
                raise UsageError(
                    f"{path} exists; choose another output, give --overwrite, or --skip-existing to do the others"
                )
        there = skip and all(path.exists() for path in written)
        tasks.append(ScanTask(source, output, str(place), marks[source], there))
    return tasks, len(twins)


def over_all(
    tasks: Sequence[ScanTask], work: Callable[[ScanTask], dict[str, Any]], report: Progress, **facts: Any
) -> tuple[dict[str, Any], bool]:
    """A summary of the facts and what `work` returned of each task, and whether the exit code is 3.

    A scan that cannot be used is reported, and the others go on.
    """
    done: list[dict[str, Any]] = []
    for number, task in enumerate(tasks):
        report(number, len(tasks), str(task.source))
        try:
            task.output.parent.mkdir(parents=True, exist_ok=True)
            done.append({"input": str(task.source), "output": str(task.output), **work(task)})
        except InputError as error:
            text = str(error) if str(task.source) in str(error) else f"{task.source}: {error}"
            report.error(text)
            done.append({"input": str(task.source), "error": text})
        except OSError as error:
            raise FicganError(f"{task.output} cannot be written ({error.strerror}); choose another output") from None
    report(len(tasks), len(tasks), "")
    counts = {key: sum(bool(result.get(key)) for result in done) for key in ("error", *COUNTED, "skipped")}
    if counts["skipped"]:
        report.info(f"{counts['skipped']} skipped: the results exist.")
    summary = {"scans": len(done) - counts["skipped"], "failed": counts.pop("error"), **counts}
    return {**facts, **summary, "results": done}, any(summary[key] for key in ("failed", *COUNTED))


def method_of(
    name: str, degree: int | None, settings: Sequence[str], seed: int | None, target: Cloud | None
) -> CloudAnonymizer:
    """An anonymiser from a degree or PARAMETER=VALUE texts, with a target where it needs one."""
    cls = CLOUD_ANONYMIZERS[name]
    given: dict[str, Any] = dict(parse_spec(f"{name}:{','.join(settings)}")[1]) if settings else {}
    strength = cls.traits.strength
    if "seed" in given:
        raise UsageError("the seed is no setting of a method; give --seed")
    if (degree is None) == (strength not in given):
        raise UsageError(f"{name} needs either --degree or --set {strength}=VALUE")
    if cls.traits.needs_target and target is None:
        raise UsageError(
            f"{name} needs --target, the face to merge with: a made head (`ficgan pointcloud make-head`), or a person "
            "who consents, for high degrees show it"
        )
    if target is not None and not cls.traits.needs_target:
        raise UsageError(f"{name} has no use for --target; leave it out")
    if degree is not None:
        given[strength] = getattr(cls.of_degree(degree), strength)
    made = CLOUD_ANONYMIZERS.make(name, **given, seed=seed)
    return made if target is None else made.with_target(target)


# -- records ----------------------------------------------------------------------------------------------------------


def record_beside(path: Path) -> dict[str, Any] | None:
    """The record of ours beside a scan, which then is a result; or None."""
    try:
        record = json.loads(path.with_name(path.name + RECORD).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and record.get("tool") == TOOL else None


def record_of(request: dict[str, Any], task: ScanTask, target: Path | None) -> dict[str, Any]:
    """What a result depends on, JSON-ready: the request, and digests of the files that are read for it."""
    marks = target and landmark_file_beside(target)
    files = {"source": task.source, "landmarks": task.landmarks, "target": target, "target landmarks": marks}
    try:
        digests = {name: file_digest(path) for name, path in files.items() if path is not None}
    except FicganError as error:
        raise InputError(str(error)) from None
    return {**{key: value for key, value in request.items() if (key, value) != ("seed", None)}, "sha256": digests}


def same_as_wanted(task: ScanTask, wanted: dict[str, Any], *, refuse: bool) -> dict[str, Any] | None:
    """The record of a result that is there, if it is the wanted one; else None, or with `refuse` an InputError."""
    record, wanted = record_beside(task.output), json.loads(json.dumps(wanted))
    other = [key for key in _COMPARED if (record or {}).get(key) != wanted.get(key)]
    if record is not None and not other:
        return record
    if refuse:
        why = "has no record that says how it was made" if record is None else f"was made with another {other[0]}"
        raise InputError(f"{task.output} is there and {why}; choose another output, or add --overwrite to replace it")
    return None


def write_result(task: ScanTask, cloud: Cloud, record: dict[str, Any], *, unit: str, overwrite: bool) -> None:
    """A scan, in metres, and the account of it, JSON-ready: both are written in that unit, or none."""
    text = json.dumps({"tool": TOOL, "version": __version__, "source": task.source.name, **record}, indent=1)
    write_cloud(task.output, cloud, unit=unit, overwrite=overwrite)
    try:
        with atomic_write(task.beside(RECORD), overwrite=overwrite) as file:
            file.write(text.encode() + b"\n")
    except BaseException:
        task.output.unlink(missing_ok=True)
        raise


def write_png(path: Path, picture: Picture, overwrite: bool) -> None:
    with atomic_write(path, overwrite=overwrite) as file:
        Image.fromarray(picture).save(file, format="PNG")
