"""The work of `ficgan pointcloud`: which scan becomes which file, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ficgan.cli._trees import mirrored
from ficgan.cli.pointcloud_record import Task, record_beside
from ficgan.errors import FicganError, InputError, UsageError

if TYPE_CHECKING:
    from ficgan.cli._progress import Progress
    from ficgan.pointcloud.cloud import Cloud
    from ficgan.pointcloud.landmarks import FaceLandmarks
    from ficgan.pointcloud.methods import CloudAnonymizer

__all__ = ["Outputs", "Plan", "Reading", "Task", "method_of", "naming", "over_all", "plan"]

_COMPANIONS = ("_landmarks_mm.txt", ".landmarks.txt", ".landmarks.json")


@dataclass(frozen=True)
class Reading:
    """How scans are read.

    Args:
        unit: of their coordinates.
        landmarks: a file of them for the only scan; None: one beside each scan, where there is one.
    """

    unit: str = "m"
    landmarks: Path | None = None

    def cloud(self, path: Path, told: Progress, notes: list[str] | None = None) -> Cloud:
        """A scan; what could not be kept of it is told, and added to `notes`."""
        from ficgan.pointcloud.files import read_cloud

        notes = [] if notes is None else notes
        cloud = read_cloud(path, unit=self.unit, notes=notes)
        for note in notes:
            told.info(f"{path}: {note}.")
        return cloud

    def marks_of(self, path: Path) -> Path | None:
        """The file of its landmarks, or None."""
        from ficgan.pointcloud.landmarks import landmark_file_beside

        return self.landmarks or landmark_file_beside(path)

    def marks(self, path: Path) -> FaceLandmarks | None:
        """Its landmarks, or None."""
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
    """What a command writes.

    Args:
        out: a folder, which mirrors the trees; or a file for one scan, when its name ends like one.
        suffixes: what a file's name may end in.
        ending: of the files in a folder; as the scan's own where empty.
        overwrite: replace files that are there, but never what is read.
        skip: scans whose results are all there are in the plan's `there`.
        beside: what else a task writes.
    """

    out: Path
    suffixes: Collection[str]
    ending: str = ""
    overwrite: bool = False
    skip: bool = False
    beside: Callable[[Task], Sequence[Path]] = lambda task: ()

    def is_file(self, inputs: Sequence[Path], scans: int) -> bool:
        """Whether `out` names a file, as one scan's can.

        Raises:
            UsageError: it does, and there are more scans, or it ends like no file that is written.
        """
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
    """What is to be done.

    Args:
        tasks: all of them.
        there: those whose results are there already, where such are to be skipped.
        same: how many scans were left out because they are links to others.
    """

    tasks: tuple[Task, ...]
    there: frozenset[Task]
    same: int


def plan(inputs: Sequence[Path], outputs: Outputs, reading: Reading, told: Progress, *read: Path | None) -> Plan:
    """Which scan becomes which file; every conflict is found before any work is done.

    Args:
        inputs: scans and folders of them; results of an earlier run in a folder are left out.
        outputs: what is written.
        reading: landmarks are never overwritten.
        told: is told what is left out.
        read: other files that are read.

    Raises:
        UsageError: an input is not there, two would become one file, or a file is in the way.
    """
    from ficgan.pointcloud.files import FORMATS

    twins: list[tuple[Path, Path]] = []
    files = mirrored(
        inputs,
        FORMATS.keys(),
        what="point cloud",
        advice="give scans, or folders of them",
        known=_COMPANIONS,
        twins=twins,
    )
    if twins:
        told.info(f"{len(twins)} left out: the same file as another, such as {twins[0][0]} as {twins[0][1]}.")
    named = {path.resolve() for path in inputs}
    own = [path for path, _ in files if path.resolve() not in named and record_beside(path)]
    files = [pair for pair in files if pair[0] not in own]
    if own:
        told.info(f"{len(own)} results of an earlier run are left out, such as {own[0]}.")
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


def over_all(tasks: Sequence[Task], work: Callable[[Task], dict[str, Any]], told: Progress) -> list[dict[str, Any]]:
    """Do all tasks; a scan that cannot be used is said, and the others go on.

    Args:
        tasks: of `plan`.
        work: does one, and returns what is to be said of it.
        told: progress.

    Returns:
        What `work` returned, with "error" in place of it for those that failed.
    """
    done: list[dict[str, Any]] = []
    for number, task in enumerate(tasks):
        told(number, len(tasks), str(task.source))
        try:
            task.output.parent.mkdir(parents=True, exist_ok=True)
            with naming(task.source):
                done.append({"input": str(task.source), "output": str(task.output), **work(task)})
        except InputError as error:
            told.error(str(error))
            done.append({"input": str(task.source), "error": str(error)})
        except OSError as error:
            raise FicganError(f"{task.output} cannot be written ({error.strerror}); choose another output") from None
    told(len(tasks), len(tasks), "")
    return done


def method_of(
    name: str, degree: int | None, settings: Sequence[str], seed: int | None, target: Cloud | None
) -> CloudAnonymizer:
    """An anonymiser as the options want it.

    Args:
        name: of `CLOUD_ANONYMIZERS`.
        degree: 1…35, or None where `settings` say everything.
        settings: PARAMETER=VALUE texts.
        seed: None: chance, another for every scan, so that no result helps to undo another.
        target: prepared face for a method that needs one.

    Raises:
        UsageError: neither a degree nor settings, unknown ones, or a target that is missing or of no use.
    """
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
