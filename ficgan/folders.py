"""Private folders that hold source faces, marked as ours, and the JSON files in them that people edit.

Removing is not secure erasure: on solid-state disks, copy-on-write file systems, in snapshots and backups the bytes of
a deleted file may stay readable. Use an encrypted disk.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from ficgan.config import check
from ficgan.errors import FicganError, InputError
from ficgan.files import TEMPORARY, alone_in, atomic_write

Kind = Literal["project", "work", "external", "ui"]
# File that says that a folder is ours, and of which kind.
MARKER = ".ficgan-folder"
_NAMES: dict[Kind, str] = {"project": "video-project", "work": "video-work", "external": "external", "ui": "ui-project"}
# Names of our files in a folder of ours.
_OURS = (
    rf"project\.json|tracks\.(safetensors|jsonl)|review\.html|ficgan-[\w.-]+|program\.log|{TEMPORARY.pattern}"
    r"|(ui|people)\.json|(item|source|before|after|result|draw|thumb|exemplar)-[0-9a-f]{10,}[\w.-]*"
    r"|track-\d{4,}(-after)?\.jpg"
)


def work_folder(output: str | os.PathLike[str]) -> Path:
    """Where the parts of an unfinished film are, beside the output; their names begin with `ficgan-`."""
    path = Path(output)
    return path.with_name(f".{path.name}.ficgan-work")


def make_private_folder(folder: Path, kind: Kind) -> bool:
    """Make a folder that only its owner can open, or use one of ours; returns whether it is new."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        if folder.is_symlink() or not folder.is_dir():
            raise InputError(f"{folder}: exists and is no folder; choose another name")
        found = kind_of(folder)
        # A run that was killed while it marked the folder leaves a temporary file.
        if found is None and any(not TEMPORARY.fullmatch(path.name) for path in folder.iterdir()):
            raise InputError(f"{folder}: exists and was not made by ficgan; choose another folder")
        if found not in (None, kind):
            raise InputError(f"{folder}: is a ficgan folder for something else ({found}); choose another folder")
        folder.chmod(0o700)  # the umask may have taken bits, or somebody given them
        if found is None:
            with atomic_write(folder / MARKER, mode=0o600) as file:
                about = {"schema": f"ficgan-{_NAMES[kind]}/1", "remove": "ficgan purge"}
                file.write(json.dumps(about).encode() + b"\n")
    except OSError as error:
        raise InputError(f"{folder}: cannot be made ({error.strerror}); choose another folder") from error
    return found is None


def kind_of(folder: Path) -> Kind | None:
    """What a folder of ours is for, None where it is not ours."""
    marker = folder / MARKER
    if marker.is_symlink() or not marker.is_file() or marker.stat().st_size > 4096:
        return None
    name = _schema_in(marker).partition("/")[0]
    return next((kind for kind, schema in _NAMES.items() if f"ficgan-{schema}" == name), None)


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Lock a folder of ours against use and removal by others; an InputError where it is not ours or already locked."""
    if kind_of(folder) is None:
        raise InputError(f"{folder}: was not made by ficgan (no {MARKER} in it)")
    with alone_in(folder, wait=False):
        yield


@dataclass
class Removal:
    """What was removed of a folder, or would be; `left` was not made by ficgan or could not be removed, and stays."""

    files: int = 0
    bytes: int = 0
    left: list[Path] = field(default_factory=list)


def remove_folder(folder: Path, *, dry_run: bool = False) -> Removal:
    """Remove what ficgan made in a folder of ours; where anything else is left, the marker stays too."""
    if folder.is_symlink():
        raise InputError(f"{folder}: is a link; give the folder itself")
    if not folder.is_dir():
        raise InputError(f"{folder}: {'is no folder' if folder.exists() else 'no such folder'}")
    removal = Removal()
    with hold(folder):
        _empty(folder, kind_of(folder), removal, dry_run)
        if not removal.left:
            _remove(folder / MARKER, removal, dry_run)
    if not removal.left and not dry_run:
        try:
            folder.rmdir()
        except OSError as error:  # something appeared meanwhile
            raise InputError(f"{folder}: is emptied but cannot be removed ({error.strerror})") from error
    return removal


def _empty(folder: Path, kind: Kind | None, removal: Removal, dry_run: bool, whole: bool = False) -> None:
    """Remove what ficgan made in a folder; or the whole of it. Links are never followed."""
    try:
        inside = sorted(path for path in folder.iterdir() if whole or path.name != MARKER)
    except OSError as error:
        raise InputError(f"{folder}: cannot be listed ({error.strerror})") from error
    for path in inside:
        is_folder = path.is_dir() and not path.is_symlink()
        # Made for one run of a program: faces, and what it wrote.
        exchanged = kind == "external" and path.name in ("input", "output")
        if is_folder and kind_of(path):  # of a film, in the folder of a review
            inner = remove_folder(path, dry_run=dry_run)
            removal.files, removal.bytes = removal.files + inner.files, removal.bytes + inner.bytes
            removal.left += inner.left
        elif is_folder and (whole or exchanged or path.name == "thumbs"):
            _empty(path, kind, removal, dry_run, whole or exchanged)
            with suppress(OSError):  # not empty: what is left in it is listed
                if not dry_run:
                    path.rmdir()
        elif whole or _is_ours(path):
            _remove(path, removal, dry_run)
        else:
            removal.left.append(path)


def _is_ours(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    if path.name == "decisions.json":  # as `ficgan ui` exports it
        return _schema_in(path).startswith("ficgan-video-decisions/")
    return bool(re.fullmatch(_OURS, path.name))


def _schema_in(path: Path) -> str:
    """What a JSON file says that it is; "" where it is none."""
    try:
        return str(json.loads(path.read_bytes())["schema"])
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        return ""


def _remove(path: Path, removal: Removal, dry_run: bool) -> None:
    try:
        status = path.lstat()
        if not dry_run:
            path.unlink()
    except OSError:
        removal.left.append(path)
        return
    if stat.S_ISREG(status.st_mode):
        removal.files += 1
        removal.bytes += status.st_size


@contextmanager
def working(output: Path) -> Iterator[Path]:
    """The locked private folder of an unfinished film; it stays after an interrupt or a crash, to resume from."""
    work = work_folder(output)
    make_private_folder(work, "work")
    failed: Exception | None = None
    with hold(work):
        try:
            yield work
        except BrokenPipeError:  # nobody reads the output any more: an interrupt
            raise
        except (FicganError, OSError) as error:
            failed = error
    remove_folder(work)
    if isinstance(failed, OSError):
        raise InputError(f"{output}: cannot be written ({failed.strerror or failed})") from failed
    if failed is not None:
        raise failed


# -- files that people edit -------------------------------------------------------------------------------------------


class Strict(BaseModel):
    """A part of such a file: frozen, no unknown keys, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_by_name=True)


M = TypeVar("M", bound=Strict)


# Text that UTF-8 can hold; names of files may be made of any bytes.
Text = Annotated[str, BeforeValidator(lambda it: it.encode("utf-8", "replace").decode() if isinstance(it, str) else it)]


def _corners_in_order(box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    if not (box[0] < box[2] and box[1] < box[3]):
        raise ValueError("a box is [x0, y0, x1, y1] with x0 < x1 and y0 < y1")
    return box


Box = Annotated[tuple[float, float, float, float], AfterValidator(_corners_in_order)]  # x0, y0, x1, y1 in pixels


def read_json(path: Path) -> Any:
    """What a JSON file holds; an InputError where it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: is not valid JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not valid JSON ({error})") from None


def check_schema(tree: Any, schema: str, where: str) -> dict[str, Any]:
    """The tree as a dictionary of the schema `NAME/VERSION`; an InputError for anything else."""
    found = tree.get("schema") if isinstance(tree, dict) else None
    if found != schema:
        alike = isinstance(found, str) and found.partition("/")[0] == schema.partition("/")[0]
        what = "was written by a newer ficgan" if alike else "is another kind of file"
        raise InputError(f'{where}: {what} ("schema" should be "{schema}", and is {found!r})')
    return dict(tree)


def checked(model: type[M], tree: Any, where: str) -> M:
    """A tree as a model; an InputError for an unknown key, with the nearest known one, or a wrong value."""
    return check(model, tree, where=where, error=InputError)


def to_text(value: Any, indent: str = "", *, width: int = 118) -> str:
    """JSON for people: what fits a line stands on one, the rest is indented."""
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not isinstance(value, dict | list) or not value or (indent and len(indent) + len(line) <= width):
        return line
    inner, (begin, end) = indent + " ", "{}" if isinstance(value, dict) else "[]"
    if isinstance(value, dict):
        parts = [f"{json.dumps(str(key), ensure_ascii=False)}: {to_text(item, inner)}" for key, item in value.items()]
    else:
        parts = [to_text(item, inner) for item in value]
    return begin + "\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}{end}" + ("" if indent else "\n")
