"""The record beside a result of `ficgan pointcloud anonymise`: written, found again, and compared."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ficgan import __version__
from ficgan.errors import InputError

if TYPE_CHECKING:
    from ficgan.pointcloud.cloud import Cloud

__all__ = ["Asked", "Task", "record_beside", "write_result"]

TOOL = "ficgan pointcloud"


@dataclass(frozen=True)
class Task:
    """One scan and the file it becomes.

    Args:
        source: the scan.
        output: the file.
        place: of the scan in its tree; in one run no two are alike.
    """

    source: Path
    output: Path
    place: str

    @property
    def record(self) -> Path:
        """Where the account of the output lies."""
        return self.output.with_name(self.output.name + ".json")

    @property
    def picture(self) -> Path:
        """Where its front view lies."""
        return self.output.with_name(self.output.name + ".png")


def record_beside(path: Path) -> dict[str, Any] | None:
    """The record of ours beside a scan, which then is a result; or None."""
    try:
        record = json.loads(Task(path, path, "").record.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and record.get("tool") == TOOL else None


@dataclass(frozen=True)
class Asked:
    """What results of one run have in common, and by which a result of another is known.

    Args:
        method: name.
        degree: None where settings say it; not compared, as settings are.
        settings: of the method.
        unit, rest: as the options say.
        wanted: points of the face.
        seed: None: chance.
        target: and its landmarks; None where there are none.
    """

    method: str
    degree: int | None
    settings: dict[str, Any]
    unit: str
    rest: str
    wanted: int
    seed: int | None
    target: tuple[Path | None, Path | None] = (None, None)

    def record(self, source: Path, marks: Path | None) -> dict[str, Any]:
        """What a record says of it, JSON-ready; with the digests of the files that were read.

        Args:
            source: the scan.
            marks: its landmarks, or None.
        """
        files = {"source": source, "landmarks": marks, "target": self.target[0], "target landmarks": self.target[1]}
        said: dict[str, Any] = {
            "method": self.method,
            "degree": self.degree,
            "settings": self.settings,
            "unit": self.unit,
            "rest": self.rest,
            "wanted": self.wanted,
            **({} if self.seed is None else {"seed": self.seed}),
            "sha256": {name: _digest(path) for name, path in files.items() if path is not None},
        }
        return said

    def record_of_same(self, task: Task, marks: Path | None, *, refuse: bool) -> dict[str, Any] | None:
        """The record of a result that is there, if it is what this run would make; else None.

        Args:
            task: whose result it is.
            marks: landmarks of its scan, or None.
            refuse: an error in place of None.

        Raises:
            InputError: it is another, and the message names what differs.
        """
        record = record_beside(task.output)
        wrong = self._differs(record, json.loads(json.dumps(self.record(task.source, marks))))
        if wrong and refuse:
            raise InputError(
                f"{task.output} is there, {wrong}; choose another output, or add --overwrite to have it replaced"
            )
        return None if wrong else record

    @staticmethod
    def _differs(record: dict[str, Any] | None, wanted: dict[str, Any]) -> str:
        """In what a record is another, for a message; "": in nothing."""
        if record is None:
            return "without a record that says how it was made"
        had, files = record.get("sha256"), wanted["sha256"]
        had = had if isinstance(had, dict) else {}
        names = [name for name in _COMPARED if record.get(name) != wanted.get(name)]
        names += [name for name in sorted({*had, *files}) if had.get(name) != files.get(name)]
        said = " and another ".join(_COMPARED.get(name, name) for name in names)
        return f"and by its record of another {said}" if said else ""


_COMPARED = {
    "method": "method",
    "settings": "degree or setting",
    "unit": "unit",
    "rest": "rest",
    "wanted": "number of points",
    "seed": "seed",
}
"""Keys of a record, and what a message calls them."""


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None


def write_result(task: Task, cloud: Cloud, record: dict[str, Any], *, unit: str, overwrite: bool) -> None:
    """A scan and the account of it, both or none.

    Args:
        task: where.
        cloud: metres.
        record: JSON-ready.
        unit: of the coordinates in the file.
        overwrite: replace what is there.
    """
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
