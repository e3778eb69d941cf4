"""What a run leaves: new photos, and beside results their side-cars (docs/sidecar.schema.json) and the manifest.

`new_photo` is the core verb: a photo's file is read, its faces are replaced, and a new file is encoded.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ficgan import __version__
from ficgan.errors import FicganError, InputError, UsageError, reason
from ficgan.files import Place, StorePath, content_key, file_digest
from ficgan.images import READABLE_SUFFIXES, WRITABLE_FILMS

if TYPE_CHECKING:
    from ficgan.policy import Result
    from ficgan.video.rendered import VideoResult

__all__ = ["SCHEMA", "Folder", "Record", "read_folder"]  # what docs/api.md shows

# What a generative model did to a face; only these earn the synthetic-media tag.
SYNTHETIC_ACTIONS = frozenset({"generated", "retried"})
_SUFFIXES = {"JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp", "TIFF": ".tif", "AVIF": ".avif", "HEIF": ".heic"}


@dataclass(frozen=True, eq=False)
class NewPhoto:
    """The outcome for a photo."""

    data: bytes  # the new file; empty where there is a problem
    suffix: str  # of a file of its format
    record: dict[str, Any]  # the account of the engine, with the size, and notes about the file and its faces
    known: dict[str, Any]  # what a side-car states besides
    actions: tuple[str, ...]  # of each face, as in its record
    uncovered: int
    reidentified: int
    problem: str = ""  # why there is no new file; "" where there is one


def new_photo(
    engine: Callable[..., Result],
    data: bytes | None,
    name: str = "photo",
    *,
    output: str = "",
    max_pixels: int,
    tag: bool = True,
    keep_metadata: bool = False,
    require_face: bool = False,
    refuse: bool = True,
) -> NewPhoto:
    """De-identify a photo's file.

    Args:
        engine: a `Deidentifier`, or a function with its signature.
        data: the file; None: it is read from `name`.
        output: name of the result, whose suffix may ask for another format; "": as the source was coded.
        max_pixels: larger photos are refused from their header.
        tag: mark generated photos as synthetic media.
        refuse: raise an error for what must not be published; False: state it in `problem`.

    Raises:
        InputError: the file is no photo, a face could not be covered, or there is none and one was required.
    """
    import numpy as np

    from ficgan.images.read import read_image
    from ficgan.images.write import conversions, encode_image

    photo = read_image(name, max_pixels=max_pixels, data=data)
    digest = file_digest(name) if data is None else hashlib.sha256(data).hexdigest()  # now: it may be replaced
    # The key is the picture itself: the same photo gets the same faces under any name.
    result = engine(photo.rgb, key=content_key(photo.rgb))
    actions = tuple(face.action for face in result.faces)
    synthetic = tag and not SYNTHETIC_ACTIONS.isdisjoint(actions)
    path = Path(output or "photo" + _SUFFIXES.get(photo.format, ".png"))
    problem, made, notes = "", b"", [*photo.notes]
    if result.uncovered:
        problem = f"{name}: {result.uncovered} of {len(actions)} faces left uncovered, so there is no result"
    elif require_face and not actions:
        problem = f"{name}: no face found, so there is no result (a face is required)"
    else:
        made = encode_image(path, photo, result.image, synthetic=synthetic, keep_metadata=keep_metadata)
        notes += conversions(path, photo, unchanged=np.array_equal(result.image, photo.rgb))
        notes += result.audit.get("notes", ())
    if problem and refuse:
        raise InputError(problem)
    record = {**result.audit, "size": [result.image.shape[1], result.image.shape[0]], "notes": notes}
    known = {"synthetic_tag": synthetic, "metadata": "kept" if keep_metadata else "stripped", "input_sha256": digest}
    return NewPhoto(made, path.suffix, record, known, actions, result.uncovered, result.reidentified, problem)


# -- side-cars ---------------------------------------------------------------------------------------------------------

TOOL = "ficgan-deid"
SCHEMA = "ficgan-sidecar/2"
MANIFEST = "manifest.jsonl"
P = TypeVar("P", bound=Path | StorePath)
# Seconds between two versions of a manifest in a store.
SENT_EVERY = 10.0


def sidecar_path(output: P) -> P:
    """Where the side-car of a result lies: `<name>.json` beside it."""
    return output.with_name(output.name + ".json")  # type: ignore[return-value]


def _record_of(kind: str, known: Mapping[str, Any], path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    about = {"schema": SCHEMA, "kind": kind, "path": path, "output": path.rpartition("/")[2], "tool": TOOL}
    return {**known, **about, "ficgan": __version__, "options": dict(options)}


def film_record(result: VideoResult, file: Path, path: str, options: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The side-car of a film that was made as `file`.

    Args:
        path: of the result below the output folder, with "/" between the folders.
        options: of the run, without secrets and folders.
        more: known besides, such as the sha256 of the input.
    """
    from ficgan.video.read import open_video

    size = None
    with suppress(FicganError), open_video(file) as film:
        size = [film.info.width, film.info.height]
    known = {**result.to_dict(), "size": size, "metadata": "stripped", "sha256": file_digest(file), **more}
    return _record_of("film", known, path, options)


def photo_record(made: NewPhoto, path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The side-car of a photo; `path` and `options` as of `film_record`."""
    sha256 = hashlib.sha256(made.data).hexdigest()
    return _record_of("photo", {**made.record, **made.known, "sha256": sha256}, path, options)


def as_json(tree: Mapping[str, Any], **options: Any) -> bytes:
    """JSON of an audit: NumPy's numbers as numbers, bytes of names that are no UTF-8 as escapes."""
    text = json.dumps(tree, default=lambda value: value.tolist(), ensure_ascii=False, **options)
    return text.encode(errors="backslashreplace") + b"\n"


def own_sidecar(output: Place, tool: str = TOOL) -> dict[str, Any] | None:
    """The side-car of a result, where there is one and it is that of a tool of ours."""
    with suppress(OSError, ValueError, RecursionError):
        record = json.loads(sidecar_path(output).read_bytes())
        if isinstance(record, dict) and record.get("tool") == tool and record.get("output", output.name) == output.name:
            return record
    return None


def vouches_for(output: Path) -> bool:
    """Whether a file is a result of ours, not edited since: proved by its side-car."""
    record = own_sidecar(output)
    with suppress(FicganError):  # read only where there is a record: a film may have many GB
        return record is not None and record.get("sha256") == file_digest(output)
    return False


class RunManifest:
    """`manifest.jsonl` in the output folder: a line of JSON for each file that a run wrote or failed at.

    A line is written at once, so that what is done stays known when a run ends early; of two lines the later counts. In
    a store, where nothing can be appended, the file is sent anew every 10 s and at the end: use it as a context.

    Args:
        folder: of the outputs; None: nothing is written.
        options: digest of the options that decide what a result looks like.
    """

    def __init__(self, folder: Place | None = None, options: str = "") -> None:
        self._path = None if folder is None else folder / MANIFEST
        self._options, self._unsent, self._sent, self._added = options, b"", time.monotonic(), False
        self._made: dict[str, str] = {}
        self.foreign = False
        """Whether a file of this name is there that is none of ours; it is left alone."""
        self.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if isinstance(self._path, StorePath) and self._added:
            self._path.write_bytes(self._unsent)

    def refresh(self) -> None:
        """Read what other runs have written meanwhile."""
        if self._path is None or not (self._path.is_symlink() or self._path.exists()):
            return
        if self._path.is_symlink() or not self._path.is_file():
            self.foreign = True
            return
        data = self._path.read_bytes()
        entries = list(_entries(data))
        self.foreign = any(entry.get("tool") != TOOL for entry in entries) or (not entries and bool(data))
        made = [entry for entry in entries if entry.get("state") == "written"]
        self._made = {str(entry.get("output")): str(entry.get("options")) for entry in made}
        cut = b"\n" if data and not data.endswith(b"\n") else b""  # an interruption cut its last line
        self._unsent = data if isinstance(self._path, StorePath) else cut

    def is_of_other_options(self, output: Place) -> bool:
        """Whether an earlier run wrote this file, with other options."""
        return self._made.get(self._name(output), self._options) != self._options

    def tells_of(self, output: Place) -> bool:
        """Whether a line says that this file was written; True where nothing is written down."""
        return self._path is None or self.foreign or self._name(output) in self._made

    def add(self, output: Place | None, **record: Any) -> None:
        """Append a line; while there is no folder, since nothing could be written, it is held back."""
        if self._path is None or self.foreign:
            return
        place = "" if output is None else self._name(output)
        if record.get("state") == "written":
            self._made[place] = self._options
        about = {"tool": TOOL, "schema": 1, "output": place, "options": self._options}
        self._unsent += json.dumps({**about, **record}, ensure_ascii=True).encode() + b"\n"
        self._added = True
        if isinstance(self._path, StorePath):
            if time.monotonic() - self._sent > SENT_EVERY:
                self._path.write_bytes(self._unsent)
                self._sent = time.monotonic()
        elif self._path.parent.is_dir():
            with self._path.open("ab", buffering=0) as file:
                file.write(self._unsent)
            self._unsent = b""

    def _name(self, output: Place) -> str:
        if self._path is None:
            return output.name
        if isinstance(output, Path):
            return os.path.relpath(output, str(self._path.parent))
        return str(output.relative_to(self._path.parent))  # type: ignore[arg-type]


def _entries(manifest: bytes) -> Iterator[dict[str, Any]]:
    """The lines of a manifest, without those that an interruption cut; what is no object becomes an empty one."""
    for line in manifest.splitlines():
        with suppress(ValueError, RecursionError):
            entry = json.loads(line)
            yield entry if isinstance(entry, dict) else {}


@dataclass(frozen=True)
class Record:
    """One side-car and the result it speaks of.

    Args:
        file: the result.
        path: the same below the folder that was read.
        data: the side-car.
        problem: why the side-car cannot vouch for the result; "" where it does.
    """

    file: Path
    path: str
    data: Mapping[str, Any]
    problem: str = ""

    @property
    def is_film(self) -> bool:
        """Whether this is the side-car of a film."""
        return self.data["kind"] == "film"

    @property
    def faces(self) -> list[Mapping[str, Any]]:
        """The faces of a photo."""
        return self.data.get("faces", [])

    @property
    def check(self) -> Mapping[str, Any]:
        """The account of the second look at a film; empty where there was none."""
        return self.data.get("check") or {}


@dataclass
class Folder:
    """What lies in a folder of results.

    Args:
        unrecorded: photos and films without a side-car of ours: nothing is known of them.
        damaged: side-cars that cannot be read, and why.
        undone: inputs that a manifest names and that have no result: name, state, reason.
    """

    root: Path
    records: list[Record] = field(default_factory=list)
    unrecorded: list[str] = field(default_factory=list)
    damaged: list[tuple[str, str]] = field(default_factory=list)
    undone: list[tuple[str, str, str]] = field(default_factory=list)
    manifests: int = 0

    @property
    def digest(self) -> str:
        """sha256 over the side-cars, which name those of the results, and what has none: what is signed."""
        lacking = [self.unrecorded, self.damaged, self.undone]
        text = json.dumps([*([record.path, record.data] for record in self.records), lacking], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def read_folder(root: Path, *, check: bool = True) -> Folder:
    """Read all side-cars below a folder. Links are not followed, hidden folders left out.

    Args:
        root: where `ficgan-deid` put its results.
        check: compare every result with the sha256 of its side-car.
    """
    if not root.is_dir():
        raise UsageError(f"{root}: no such folder; name the one that `ficgan-deid -o` wrote to")
    found = Folder(root)
    for path in _files(root):
        name = path.relative_to(root).as_posix()
        if path.name == MANIFEST:
            found.manifests += 1
            found.undone += _undone(path)
        elif path.suffix == ".json" and _is_media(path.with_suffix("")):
            _read_record(path, name, found, check)
        elif _is_media(path) and not path.with_name(path.name + ".json").is_file():
            found.unrecorded.append(name)
    if not found.records:
        raise InputError(f"{root}: holds no side-car of ficgan-deid; results made with --no-sidecar have none")
    return found


def _is_media(path: Path) -> bool:
    return path.suffix.lower() in READABLE_SUFFIXES | WRITABLE_FILMS


def _files(root: Path) -> Iterator[Path]:
    """In the order of the digest that is signed."""
    for parent, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(parent, name)
            if not name.startswith(".") and not path.is_symlink():
                yield path


def _read_record(path: Path, name: str, found: Folder, check: bool) -> None:
    from ficgan.records.form import fault_of

    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        found.damaged.append((name, reason(error)))
        return
    if not isinstance(data, dict) or data.get("tool") != TOOL:
        return  # a stranger's file
    if data.get("schema") != SCHEMA or data.get("kind") not in ("photo", "film"):
        found.damaged.append((name, f"of schema {data.get('schema')}; this version of ficgan reads {SCHEMA}"))
        return
    if why := fault_of(data):
        found.damaged.append((name, why))
        return
    result, problem = path.with_suffix(""), ""
    if not result.is_file() or result.is_symlink():
        problem = "the result is not there"
    elif data.get("output") != result.name:
        problem = "the side-car is of a file with another name"
    elif check and data.get("sha256") != file_digest(result):
        problem = "the result was changed after it was made"
    found.records.append(Record(result, result.relative_to(found.root).as_posix(), data, problem))


def _undone(path: Path) -> Iterator[tuple[str, str, str]]:
    """The last word of a manifest on each input, where that is no result. A result settles all that would become it."""
    last: dict[str, dict[str, tuple[str, str]]] = {}
    for entry in _entries(path.read_bytes()):
        if isinstance(name := entry.get("input"), str):
            state, output = str(entry.get("state", "")), str(entry.get("output") or name)
            if state == "written":
                last[output] = {}
            else:
                last.setdefault(output, {})[name] = state, str(entry.get("error") or "")
    yield from ((name, state, why) for inputs in last.values() for name, (state, why) in inputs.items())
