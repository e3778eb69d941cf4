"""The work of `ficgan pointcloud`: which scan becomes which file, and the record beside each result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ficgan import __version__
from ficgan.cli._inputs import mirrored
from ficgan.errors import FicganError, InputError, UsageError

if TYPE_CHECKING:
    from ficgan.cli._progress import Progress
    from ficgan.pointcloud.cloud import Cloud
    from ficgan.pointcloud.landmarks import FaceLandmarks
    from ficgan.pointcloud.methods import CloudAnonymizer

__all__ = [
    "Outputs", "Plan", "Reading", "Request", "Task", "method_of", "naming", "over_all", "plan", "record_beside",
    "write_result",
]  # fmt: skip

TOOL = "ficgan pointcloud"
_COMPARED = {
    "method": "method", "settings": "degree or setting", "unit": "unit", "rest": "rest", "wanted": "number of points",
    "seed": "seed",
}  # fmt: skip
"""Keys of a record by which two results differ, and what a message calls them."""


@dataclass(frozen=True)
class Task:
    """One scan and the file it becomes."""

    source: Path
    output: Path
    place: str  # of the scan in its tree; in one run no two are alike

    @property
    def record(self) -> Path:
        """Where the account of the output lies."""
        return self.output.with_name(self.output.name + ".json")

    @property
    def picture(self) -> Path:
        """Where its front view lies."""
        return self.output.with_name(self.output.name + ".png")


@dataclass(frozen=True)
class Reading:
    """How scans are read."""

    unit: str = "m"
    landmarks: Path | None = None  # a file of them for the only scan; None: one beside each scan, where there is one

    def cloud(self, path: Path, report: Progress, notes: list[str] | None = None) -> Cloud:
        """A scan; what could not be kept of it is printed, and added to `notes`."""
        from ficgan.pointcloud.files import read_cloud

        notes = [] if notes is None else notes
        cloud = read_cloud(path, unit=self.unit, notes=notes)
        for note in notes:
            report.info(f"{path}: {note}.")
        return cloud

    def marks_of(self, path: Path) -> Path | None:
        """The file of a scan's landmarks, or None."""
        from ficgan.pointcloud.landmarks import landmark_file_beside

        return self.landmarks or landmark_file_beside(path)

    def marks(self, path: Path) -> FaceLandmarks | None:
        """A scan's landmarks, or None."""
        from ficgan.pointcloud.landmarks import read_landmarks

        beside = self.marks_of(path)
        return None if beside is None else read_landmarks(beside)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors about a scan begin with its name."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error) if str(path) in str(error) else f"{path}: {error}") from error


@dataclass(frozen=True)
class Outputs:
    """What a command writes."""

    out: Path  # a folder, which mirrors the trees; or a file for one scan, when its name ends like one
    suffixes: Collection[str]  # what a file's name may end in
    ending: str = ""  # of the files in a folder; as the scan's own where empty
    overwrite: bool = False  # replace files that are there, but never what is read
    skip: bool = False  # scans whose results are all there are in the plan's `there`
    beside: Callable[[Task], Sequence[Path]] = lambda task: ()  # what else a task writes

    def is_file(self, inputs: Sequence[Path], scans: int) -> bool:
        """Whether `out` names a file, as one scan's can; UsageError where it cannot be one."""
        out, alone = self.out, len(inputs) == 1 and not inputs[0].is_dir()
        if out.is_dir():
            return False
        if out.suffix.lower() in self.suffixes:
            if not alone:
                raise UsageError(
                    f"-o {out} is the name of one file, and {scans} scans cannot become one; name a folder"
                )
            return True
        if out.exists():
            raise UsageError(f"-o {out} is a file, and none that a scan can become; name a folder")
        if alone and out.suffix:
            raise UsageError(
                f"-o {out}: no scan becomes a file that ends in {out.suffix}; use one of {', '.join(self.suffixes)}, "
                "or make the folder first"
            )
        return False


@dataclass(frozen=True)
class Plan:
    """What is to be done."""

    tasks: tuple[Task, ...]
    there: frozenset[Task]  # those whose results are there already, where such are to be skipped
    same: int  # scans left out because they are links to others


def plan(inputs: Sequence[Path], outputs: Outputs, reading: Reading, report: Progress, *read: Path | None) -> Plan:
    """Which scan becomes which file; every conflict is found before any work. Landmarks and other `read` files are
    never overwritten.
    """
    from ficgan.pointcloud.files import FORMATS
    from ficgan.pointcloud.landmarks import LANDMARK_ENDINGS

    twins: list[tuple[Path, Path]] = []
    advice = "give scans, or folders of them"
    files = mirrored(inputs, FORMATS.keys(), what="point cloud", advice=advice, known=LANDMARK_ENDINGS, twins=twins)
    if twins:
        report.info(f"{len(twins)} left out: the same file as another, such as {twins[0][0]} as {twins[0][1]}.")
    named = {path.resolve() for path in inputs}
    own = [path for path, _ in files if path.resolve() not in named and record_beside(path)]
    files = [pair for pair in files if pair[0] not in own]
    if own:
        report.info(f"{len(own)} results of an earlier run are left out, such as {own[0]}.")
    if not files:
        raise UsageError("there are no scans but results of an earlier run; name one to have it taken")
    single = outputs.is_file(inputs, len(files))
    tasks = []
    for path, place in files:
        name = place.with_suffix(outputs.ending) if outputs.ending else place
        task = Task(path, outputs.out if single else outputs.out / name, str(place))
        if task.output.suffix.lower() not in outputs.suffixes:
            raise UsageError(f"{path}: files that end in {path.suffix} are only read; give -o FILE, or leave it out")
        tasks.append(task)
    _refuse_conflicts(tasks, outputs, {*(marks for path, _ in files if (marks := reading.marks_of(path))), *read})
    there = [task for task in tasks if all(path.exists() for path in (task.output, *outputs.beside(task)))]
    return Plan(tuple(tasks), frozenset(there if outputs.skip else ()), len(twins))


def _refuse_conflicts(tasks: Sequence[Task], outputs: Outputs, read: set[Path | None]) -> None:
    origin: dict[Path, Path] = {}
    kept = {path.resolve() for path in (*(task.source for task in tasks), *read) if path is not None}
    for task in tasks:
        for path in (task.output, *outputs.beside(task)):
            place = path.resolve()
            if place in origin:
                raise UsageError(f"{origin[place]} and {task.source} would both become {path}; use two commands")
            origin[place] = task.source
            if place in kept:
                raise UsageError(f"{task.source} would overwrite an input, {path}; choose another output")
            if path.exists() and not (outputs.overwrite or outputs.skip):
                raise UsageError(
                    f"{path} exists; choose another output, give --overwrite, or --skip-existing to do the others"
                )


def over_all(tasks: Sequence[Task], work: Callable[[Task], dict[str, Any]], report: Progress) -> list[dict[str, Any]]:
    """What `work` returned of each task, or "error"; a scan that cannot be used is reported, and the others go on."""
    done: list[dict[str, Any]] = []
    for number, task in enumerate(tasks):
        report(number, len(tasks), str(task.source))
        try:
            task.output.parent.mkdir(parents=True, exist_ok=True)
            with naming(task.source):
                done.append({"input": str(task.source), "output": str(task.output), **work(task)})
        except InputError as error:
            report.error(str(error))
            done.append({"input": str(task.source), "error": str(error)})
        except OSError as error:
            raise FicganError(f"{task.output} cannot be written ({error.strerror}); choose another output") from None
    report(len(tasks), len(tasks), "")
    return done


def method_of(
    name: str, degree: int | None, settings: Sequence[str], seed: int | None, target: Cloud | None
) -> CloudAnonymizer:
    """An anonymiser from a degree or PARAMETER=VALUE texts, with a target where it needs one."""
    from ficgan.pointcloud import CLOUD_ANONYMIZERS
    from ficgan.registry import parse_spec

    cls = CLOUD_ANONYMIZERS[name]
    given: dict[str, Any] = dict(parse_spec(f"{name}:{','.join(settings)}")[1]) if settings else {}
    if "seed" in given:
        raise UsageError("the seed is no setting of a method; give --seed")
    strength = cls.traits.strength
    if degree is not None and strength in given:
        raise UsageError(f"--degree sets {strength} of {name}; leave out one of them")
    if degree is None and strength not in given:
        raise UsageError(f"{name} needs --degree, or --set {strength}=VALUE")
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


def record_beside(path: Path) -> dict[str, Any] | None:
    """The record of ours beside a scan, which then is a result; or None."""
    try:
        record = json.loads(Task(path, path, "").record.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and record.get("tool") == TOOL else None


@dataclass(frozen=True)
class Request:
    """What the results of one run have in common."""

    method: str
    degree: int | None  # None where settings give it; not compared, as settings are
    settings: dict[str, Any]
    unit: str
    rest: str
    wanted: int  # points of the face
    seed: int | None  # None: chance
    target: tuple[Path | None, Path | None] = (None, None)  # and its landmarks

    def record(self, source: Path, marks: Path | None) -> dict[str, Any]:
        """JSON-ready, with the digests of the files that were read: the scan, its landmarks, the target and its."""
        files = {"source": source, "landmarks": marks, "target": self.target[0], "target landmarks": self.target[1]}
        record = asdict(self)
        del record["target"]
        if self.seed is None:
            del record["seed"]
        return {**record, "sha256": {name: _digest(path) for name, path in files.items() if path is not None}}

    def record_of_same(self, task: Task, marks: Path | None, *, refuse: bool) -> dict[str, Any] | None:
        """The record of a result that is there, if this run would make the same; else None, or with `refuse` an
        InputError.
        """
        record, wanted = record_beside(task.output), json.loads(json.dumps(self.record(task.source, marks)))
        if record is None:
            wrong = "without a record that says how it was made"
        else:
            had = record.get("sha256")
            had = had if isinstance(had, dict) else {}
            names = [text for name, text in _COMPARED.items() if record.get(name) != wanted.get(name)]
            names += [name for name in sorted({*had, *wanted["sha256"]}) if had.get(name) != wanted["sha256"].get(name)]
            if not names:
                return record
            wrong = f"and by its record of another {' and another '.join(names)}"
        if refuse:
            raise InputError(
                f"{task.output} is there, {wrong}; choose another output, or add --overwrite to have it replaced"
            )
        return None


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None


def write_result(task: Task, cloud: Cloud, record: dict[str, Any], *, unit: str, overwrite: bool) -> None:
    """A scan, in metres, and the account of it, JSON-ready: both are written in that unit, or none."""
    from ficgan.images import atomic_write
    from ficgan.pointcloud.files import write_cloud

    text = json.dumps({"tool": TOOL, "version": __version__, "source": task.source.name, **record}, indent=1)
    write_cloud(task.output, cloud, unit=unit, overwrite=overwrite)
    try:
        with atomic_write(task.record, overwrite=overwrite) as file:
            file.write(text.encode() + b"\n")
    except BaseException:
        task.output.unlink(missing_ok=True)
        raise
