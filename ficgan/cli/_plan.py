"""What a command is given, and which file becomes which: settled, with every conflict found, before any work."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from ficgan.errors import FicganError, UsageError
from ficgan.images import (
    FILM_SUFFIXES,
    READABLE_SUFFIXES,
    WRITABLE_FILMS,
    WRITABLE_SUFFIXES,
    film_suffix,
    is_animated,
    output_suffix,
    unread,
)
from ficgan.records.sidecars import MANIFEST, vouches_for
from ficgan.stores import Place, StorePath, is_store, place_of

_CAMERA = re.compile(r"camera:\d+|pipe:0?")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://.*")
_PATTERN = re.compile(r"%0?\d*d")
_ANIMATED = frozenset({".gif", ".webp", ".png", ".apng"})


def is_address(name: str) -> bool:
    """Whether an input is a camera, a stream, or a pattern of numbered images: nothing beside which a result fits."""
    if _CAMERA.fullmatch(name) or _ADDRESS.fullmatch(name):
        return not is_store(name)
    return bool(_PATTERN.search(Path(name).name)) and not Path(name).exists()


def is_film(path: Path) -> bool:
    """Whether a file is a film rather than a photo: by its suffix, or because it is animated."""
    suffix = path.suffix.lower()
    return suffix in FILM_SUFFIXES or (suffix in _ANIMATED and is_animated(path))


def mirrored(
    inputs: Sequence[Path],
    suffixes: Collection[str],
    *,
    what: str,
    advice: str,
    known: Collection[str] = (),
    twins: list[tuple[Path, Path]] | None = None,
) -> list[tuple[Path, Path]]:
    """Every file with its place below an output folder, in order; hidden ones are left out, one named twice counts
    once.

    Args:
        inputs: files, which are taken whatever their name, and folders, which are searched.
        suffixes: endings that count in folders, in small letters.
        what: one of them, for messages, such as "image".
        advice: end of a message about an unusable input, such as "give anonymised faces".
        known: endings of names that are other files' companions, and so are no input.
        twins: takes (file, other) for each file that is left out because a link makes it another that is taken.
    """
    found: list[tuple[Path, Path]] = []
    for given in inputs:
        if given.is_dir():
            inside = [
                (path, path.relative_to(given))
                for path in sorted(given.rglob("*"))
                if path.suffix.lower() in suffixes
                and path.is_file()
                and not any(part.startswith(".") for part in path.relative_to(given).parts)
                and not path.name.endswith(tuple(known))
            ]
            if not inside:
                raise UsageError(f"{given} holds no {what}; {advice}")
            found += inside
        elif given.exists():
            found.append((given, Path(given.name)))
        else:
            raise UsageError(f"{given} does not exist; {advice}")
    once: dict[Path, tuple[Path, Path]] = {}
    for path, place in found:
        first, _ = once.setdefault(path.resolve(), (path, place))
        if twins is not None and first.absolute() != path.absolute():
            twins.append((path, first))
    return list(once.values())


DEFAULT_SUFFIX = "_anonymized"
MEDIA = READABLE_SUFFIXES | FILM_SUFFIXES

NOT_MEDIA = ("file", "neither photos nor films")
HIDDEN = ("file", "hidden; name them to have them taken")
OWN_OUTPUT = ("file", "results of an earlier run")
TWICE = ("file", "named twice")
FOLDER = ("folder", "links, hidden, or projects of films; name them to have them searched")


@dataclass(frozen=True)
class FileJob:
    """One input and the file it becomes."""

    source: Place
    output: Place
    film: bool = False
    address: str = ""
    """Of a camera, a stream or a sequence of images; empty for a file."""
    place: str = ""
    """Of the output below the output folder, for the side-car."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", self.place or self.output.name)

    @property
    def name(self) -> str:
        """What was given; of an address without password."""
        if not self.address:
            return str(self.source)
        from ficgan.video.read import display_name

        return display_name(self.address)


@dataclass
class FilePlan:
    """What is to be done, what is left alone, and which inputs cannot even be listed."""

    folder: Place | None = None
    """Of the outputs; None where they lie beside their inputs or there is one."""
    jobs: list[FileJob] = field(default_factory=list)
    left_out: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many, by noun and reason."""
    errors: list[tuple[str, Place | None, str]] = field(default_factory=list)
    """What has no job: input, output where it would have one, and why."""

    @property
    def notes(self) -> list[str]:
        """A sentence for each kind of thing that is left out."""
        return [
            f"{number} {kind[0]}{'' if number == 1 else 's'} skipped: {kind[1]}."
            for kind in (NOT_MEDIA, HIDDEN, OWN_OUTPUT, TWICE, FOLDER)
            if (number := self.left_out[kind])
        ]


def make_plan(
    inputs: Sequence[str],
    out: str | None,
    *,
    suffix: str | None = None,
    recursive: bool = True,
    overwrite: bool = False,
) -> FilePlan:
    """Pair every input file with its output.

    Args:
        inputs: files and folders, of this machine or of stores; `camera:0`, addresses of streams and patterns of
            numbered images (`frames/%05d.png`). In folders only photos and films count, and links to folders, hidden
            folders and projects of films are left out; a file named here is taken whatever its name, unless its
            side-car proves that it is a result.
        out: a folder, in which the trees are mirrored; a file, when there is one input and the name ends like an
            image's or a film's; None: beside the inputs.
        suffix: added to the stem; by default `_anonymized` beside the inputs and nothing in an output folder.
        recursive: descend into subfolders.
        overwrite: an output may replace its own input.

    Inputs that would become one file, or overwrite another input, are errors of their own; the others go on. A
    UsageError where nothing can be done at all.
    """
    if suffix is not None and (os.sep in suffix or "/" in suffix):
        raise UsageError(f"--suffix {suffix!r}: holds a path separator; give only what is added to the names")
    to_file = out is not None and _is_file_name(inputs, out)
    folder = None if out is None or to_file else place_of(out)
    if isinstance(folder, Path):
        _check_folder(folder)
    lost = [name for name in inputs if not is_address(name) and not is_store(name) and not os.path.lexists(name)]
    if lost and len(lost) == len(inputs):
        raise UsageError(f"{lost[0]}: no such file; check the name")
    plan = FilePlan(folder=folder)
    added = suffix if suffix is not None else (DEFAULT_SUFFIX if out is None else "")
    for address in filter(is_address, inputs):
        if not to_file or out is None or Path(out).suffix.lower() not in WRITABLE_FILMS:
            from ficgan.video.read import display_name

            raise UsageError(
                f"{display_name(address)}: a camera, stream or sequence of images needs -o FILE, such as -o result.mp4"
            )
        plan.jobs.append(FileJob(Path(address), Path(out), film=True, address=address))
    inputs = [name for name in inputs if not is_address(name)]
    named = {_real(place_of(name)) for name in inputs if is_store(name) or not os.path.isdir(name)}
    seen: set[str] = set()
    for source, relative in _sources(inputs, folder, recursive, plan):
        real = _real(source)
        if real in seen:  # named twice, or named and in a folder as well
            plan.left_out[TWICE] += 1
            continue
        seen.add(real)
        if isinstance(source, Path) and (
            vouches_for(source) or (real not in named and _is_named_like_output(source, suffix or DEFAULT_SUFFIX))
        ):
            plan.left_out[OWN_OUTPUT] += 1
            continue
        film = is_film(source) if isinstance(source, Path) else source.suffix.lower() in FILM_SUFFIXES
        if to_file:
            assert out is not None
            output = place_of(out)
            if output.suffix.lower() not in (WRITABLE_FILMS if film else WRITABLE_SUFFIXES):
                kind, known = ("film", WRITABLE_FILMS) if film else ("photo", WRITABLE_SUFFIXES)
                raise UsageError(f"{output}: a {kind} becomes no {output.suffix}; use {', '.join(sorted(known))}")
        else:
            ending = film_suffix(Path(source.name)) if film else output_suffix(source.name)
            parent = source.parent if folder is None else folder / relative.parent
            output = parent / (source.stem + added + ending)
        place = output.name if to_file else (relative.parent / output.name).as_posix()
        plan.jobs.append(FileJob(source, output, film, place=place))
    if not (plan.jobs or plan.errors or plan.left_out[OWN_OUTPUT] or plan.left_out[TWICE]):
        raise UsageError(f"{', '.join(inputs)}: no photo or film is in there")
    found = len(plan.jobs)
    _check_outputs(plan, overwrite)
    if found and not plan.jobs:
        raise UsageError("; ".join(why for *_, why in plan.errors))
    return plan


def _real(place: Place) -> str:
    """What is equal for two names of one file."""
    return os.path.realpath(place) if isinstance(place, Path) else str(place)


def _is_file_name(inputs: Sequence[str], out: str) -> bool:
    suffix = Path(out).suffix.lower()
    if out.endswith(("/", os.sep)) or place_of(out).is_dir():
        return False
    if len(inputs) != 1 or (not is_address(inputs[0]) and place_of(inputs[0]).is_dir()):
        if suffix in MEDIA:
            many = f"{len(inputs)} inputs" if len(inputs) != 1 else "a folder"
            raise UsageError(f"-o {out}: is the name of one file, but {many} cannot become one; name a folder")
        return False
    if suffix in MEDIA - WRITABLE_SUFFIXES - WRITABLE_FILMS:
        names = ".mp4, .mov, .mkv or .webm" if suffix in FILM_SUFFIXES else ".png, .jpg, .webp or .tif"
        raise UsageError(f"{out}: {suffix} is only read; choose a name that ends in {names}")
    return suffix in WRITABLE_SUFFIXES | WRITABLE_FILMS


def _check_folder(folder: Path) -> None:
    """The folder exists or can be made; it is made only when there is something to put into it."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: is a file, but a folder is needed for these inputs")
    if (found := obstacle(folder)) is not None:
        raise FicganError(f"{folder}: cannot be made or written to, because of {found}; choose another output folder")


def obstacle(folder: Place) -> Path | None:
    """What keeps files from being put into a folder, or the folder from being made; None: nothing does."""
    if not isinstance(folder, Path):
        return None
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    return None if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK) else folder


def _sources(
    inputs: Sequence[str], folder: Place | None, recursive: bool, plan: FilePlan
) -> Iterator[tuple[Place, PurePath]]:
    for name in inputs:
        path = place_of(name)
        if isinstance(path, StorePath):
            yield from _in_store(path, recursive, plan)
        elif path.is_dir():
            yield from _in_folder(path, folder, recursive, plan)
        else:
            yield path, Path(path.name)


def _in_store(root: StorePath, recursive: bool, plan: FilePlan) -> Iterator[tuple[Place, PurePath]]:
    if plan.folder is None:
        raise UsageError(f"{root}: is in a store; name a folder or an address for the results by -o")
    files = root.files()
    if not files or files == [root]:
        yield root, PurePath(root.name)
        return
    for file in files:
        place = file.relative_to(root)
        if not recursive and len(place.parts) > 1:
            continue
        if why := unread(str(file)):
            plan.errors.append((str(file), None, why))
        elif file.suffix.lower() in MEDIA:
            yield file, place
        else:
            plan.left_out[NOT_MEDIA] += not _is_sidecar_name(place)


def _in_folder(path: Path, folder: Place | None, recursive: bool, plan: FilePlan) -> Iterator[tuple[Place, PurePath]]:
    outside = os.path.realpath(folder) if isinstance(folder, Path) else None
    outside = None if outside == os.path.realpath(path) else outside

    def cannot_list(error: OSError) -> None:
        plan.errors.append((str(error.filename), None, f"{error.filename}: cannot be listed ({error.strerror})"))

    for parent, folders, files in os.walk(path, onerror=cannot_list):
        if recursive:
            left_out = [child for child in folders if _is_left_out(Path(parent, child))]
            plan.left_out[FOLDER] += len(left_out)
            inside = set(folders) - set(left_out)
            folders[:] = sorted(child for child in inside if os.path.realpath(Path(parent, child)) != outside)
        else:
            folders.clear()
        for name in sorted(files):
            file = Path(parent, name)
            media = file.suffix.lower() in MEDIA
            # `._x.jpg` beside `x.jpg` is what macOS leaves on foreign disks: no image, in spite of its name
            if name.startswith("."):
                plan.left_out[HIDDEN if media and not name.startswith("._") else NOT_MEDIA] += 1
            elif why := unread(file):
                plan.errors.append((str(file), None, why))
            elif media:
                yield file, file.relative_to(path)
            else:
                plan.left_out[NOT_MEDIA] += not _is_sidecar_name(file)


def _is_left_out(folder: Path) -> bool:
    from ficgan.folders import kind_of

    return folder.name.startswith(".") or folder.is_symlink() or kind_of(folder) is not None


def _is_sidecar_name(path: PurePath) -> bool:
    return path.name == MANIFEST or (path.suffix == ".json" and Path(path.stem).suffix.lower() in MEDIA)


def _is_named_like_output(path: Path, suffix: str) -> bool:
    """Likely a result without side-car: its name says so, and its source lies beside it."""
    if not path.stem.endswith(suffix) or path.stem == suffix:
        return False
    stem = path.stem.removesuffix(suffix)
    try:
        siblings = os.listdir(path.parent)
    except OSError:
        return False
    return any(Path(name).stem == stem and Path(name).suffix.lower() in MEDIA for name in siblings)


def _check_outputs(plan: FilePlan, overwrite: bool) -> None:
    """Take jobs that are in each other's way out of the plan; each becomes an error."""
    places: dict[str, list[FileJob]] = {}
    for job in plan.jobs:
        places.setdefault(_real(job.output), []).append(job)
    sources = {_real(job.source): job.source for job in plan.jobs if not job.address}
    left: list[FileJob] = []
    for job in plan.jobs:
        place, why = _real(job.output), ""
        rivals = [other.name for other in places[place] if other is not job]
        if rivals:
            why = f"{job.name} and {rivals[0]} would both become {job.output}; give each a run or a folder of its own"
        elif place in sources and sources[place] != job.source:
            why = f"{job.name} would overwrite the input {sources[place]}; choose another output folder"
        elif place in sources and not overwrite:
            raise UsageError(
                f"{job.source}: output and input are one file; use --overwrite, --suffix or another folder"
            )
        if why:
            plan.errors.append((job.name, job.output, why))
        else:
            left.append(job)
    plan.jobs = left
