"""The work of `ficgan pointcloud`: which scan becomes which file, and what is said of it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ficgan import __version__
from ficgan.cli._trees import mirrored
from ficgan.errors import FicganError, InputError, UsageError

if TYPE_CHECKING:
    from ficgan.cli._progress import Progress
    from ficgan.pointcloud.base import CloudAnonymizer
    from ficgan.pointcloud.cloud import Cloud
    from ficgan.pointcloud.landmarks import FaceLandmarks

__all__ = ["Reading", "Task", "method_of", "over_all", "plan", "write_record"]

TOOL = "ficgan pointcloud"
_COMPANIONS = ("_landmarks_mm.txt", ".landmarks.txt")


@dataclass(frozen=True)
class Task:
    """One scan and the file it becomes."""

    source: Path
    output: Path

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
    """How scans are read.

    Args:
        unit: of their coordinates.
        landmarks: a file of them for the only scan; None: one beside each scan, where there is one.
    """

    unit: str = "m"
    landmarks: Path | None = None

    def cloud(self, path: Path, told: Progress) -> Cloud:
        """A scan; what could not be kept of it is told."""
        from ficgan.pointcloud.files import read_cloud

        notes: list[str] = []
        cloud = read_cloud(path, unit=self.unit, notes=notes)
        for note in notes:
            told.info(f"{path}: {note}")
        return cloud

    def marks(self, path: Path) -> FaceLandmarks | None:
        """Its landmarks, or None."""
        from ficgan.pointcloud.landmarks import landmark_file_beside, read_landmarks

        beside = self.landmarks or landmark_file_beside(path)
        return None if beside is None else read_landmarks(beside)


def plan(
    inputs: Sequence[Path], out: Path, suffixes: frozenset[str], *, ending: str = "", overwrite: bool = False,
    beside: Callable[[Task], Sequence[Path]] = lambda task: (),
) -> list[Task]:  # fmt: skip
    """Which scan becomes which file; every conflict is found before any work is done.

    Args:
        inputs: scans and folders of them.
        out: a folder, which mirrors the trees; or a file for one scan, when its name ends like one.
        suffixes: what a file's name may end in.
        ending: of the files in a folder; as the scan's own where empty.
        overwrite: replace files that are there, but never an input.
        beside: what else a task writes.

    Raises:
        UsageError: an input is not there, two would become one file, or a file is in the way.
    """
    from ficgan.pointcloud.files import FORMATS

    files = mirrored(
        inputs, FORMATS.keys(), what="point cloud", advice="give scans, or folders of them", known=_COMPANIONS
    )
    single = out.suffix.lower() in suffixes and not out.is_dir()
    if single and (len(files) != 1 or inputs[0].is_dir()):
        raise UsageError(f"-o {out} is the name of one file, and {len(files)} scans cannot become one; name a folder")
    if not single and out.exists() and not out.is_dir():
        raise UsageError(f"-o {out} is a file, and none that a scan can become; name a folder")
    tasks = [
        Task(path, out if single else out / (place.with_suffix(ending) if ending else place)) for path, place in files
    ]
    origin: dict[Path, Path] = {}
    sources = {path.resolve() for path, _ in files}
    for task in tasks:
        place = task.output.resolve()
        if place in origin:
            raise UsageError(f"{origin[place]} and {task.source} would both become {task.output}; use two commands")
        origin[place] = task.source
        if place in sources:
            raise UsageError(f"{task.source} would overwrite an input; choose another output folder")
        taken = [path for path in (task.output, *beside(task)) if not overwrite and path.exists()]
        if taken:
            raise UsageError(f"{taken[0]} exists; choose another output, or give --overwrite")
    return tasks


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
            done.append({"input": str(task.source), "output": str(task.output), **work(task)})
        except UsageError:
            raise
        except InputError as error:
            text = str(error) if str(task.source) in str(error) else f"{task.source}: {error}"
            told.error(text)
            done.append({"input": str(task.source), "error": text})
        except OSError as error:
            raise FicganError(f"{task.output} cannot be written ({error.strerror}); choose another output") from None
    told(len(tasks), len(tasks), "")
    return done


def method_of(
    name: str, degree: int | None, settings: Sequence[str], seed: int | None, target: Cloud | None
) -> CloudAnonymizer:
    """An anonymiser as the options want it.

    Without a seed one is drawn and not kept: with a known seed noise could be subtracted again.

    Args:
        name: of `CLOUD_ANONYMIZERS`.
        degree: 1…35, or None where `settings` say everything.
        settings: PARAMETER=VALUE texts.
        seed: None: a random one.
        target: prepared face for a method that needs one.

    Raises:
        UsageError: neither a degree nor settings, unknown ones, or a target that is missing or of no use.
    """
    from ficgan.pointcloud import CLOUD_ANONYMIZERS
    from ficgan.registry import parse_spec

    cls = CLOUD_ANONYMIZERS[name]
    given: dict[str, Any] = dict(parse_spec(f"{name}:{','.join(settings)}")[1]) if settings else {}
    strength = cls.traits.strength
    if degree is not None and strength in given:
        raise UsageError(f"--degree sets {strength} of {name}; leave out one of them")
    if degree is None and strength not in given:
        raise UsageError(f"{name} needs --degree, or --set {strength}=VALUE")
    if cls.traits.needs_target and target is None:
        raise UsageError(f"{name} needs --target, the face to merge with")
    if target is not None and not cls.traits.needs_target:
        raise UsageError(f"{name} has no use for --target; leave it out")
    if degree is not None:
        given[strength] = getattr(cls.of_degree(degree), strength)
    made = CLOUD_ANONYMIZERS.make(name, **given, seed=secrets.randbits(62) if seed is None else seed)
    return made if target is None else made.with_target(target)


def write_record(task: Task, record: dict[str, Any], *, overwrite: bool) -> None:
    """The account of an output, beside it."""
    from ficgan.images import atomic_write

    text = json.dumps({"tool": TOOL, "version": __version__, "source": task.source.name, **record}, indent=1)
    with atomic_write(task.record, overwrite=overwrite) as file:
        file.write(text.encode() + b"\n")
