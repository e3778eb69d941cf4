"""Which file becomes which, settled before any work; and the work: each becomes its result."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from ficgan import images, workers
from ficgan.errors import FicganError, InputError, Progress, UsageError, unheard
from ficgan.files import Place, StorePath, file_digest, is_store, local_file, place_of
from ficgan.images import FILM_SUFFIXES, READABLE_SUFFIXES, WRITABLE_FILMS, WRITABLE_SUFFIXES, display_name
from ficgan.records import MANIFEST, film_record, new_photo, photo_record, vouches_for

if TYPE_CHECKING:
    from ficgan.deidentify.review import PhotoDecisions
    from ficgan.records.exports import Credentials
    from ficgan.video.rendered import VideoResult

DEFAULT_SUFFIX = "_anonymized"
MEDIA = READABLE_SUFFIXES | FILM_SUFFIXES
# Why files are left out.
NOT_MEDIA = "neither photos nor films"
HIDDEN = "hidden; name them to have them taken"
OWN_OUTPUT = "results of an earlier run"
TWICE = "named twice"
FOLDER = "folders that are links, hidden, or projects of films; name them to have them searched"


def mirrored(
    inputs: Sequence[Path], suffixes: Collection[str], *, what: str, but: tuple[str, ...] = ()
) -> list[tuple[Path, Path]]:
    """Every file with its place below an output folder, in order; a file counts once, hidden ones are left out.

    Of `inputs`, files are taken whatever their name; in folders `suffixes` (in small letters) count, but for names that
    end as in `but`. `what` is the kind of file, for messages, such as "image".
    """
    found: dict[Path, tuple[Path, Path]] = {}
    for given in inputs:
        inside = {given: Path(given.name)}
        if given.is_dir():
            every = [file for file in sorted(given.rglob("*")) if file.suffix.lower() in suffixes and file.is_file()]
            inside = {file: file.relative_to(given) for file in every if not file.name.endswith(but)}
            inside = {file: place for file, place in inside.items() if "/." not in f"/{place.as_posix()}"}
        if not inside or not given.exists():
            raise UsageError(f"{given} {'holds no ' + what if given.exists() else 'does not exist'}; name a {what}")
        for file, place in inside.items():
            found.setdefault(file.resolve(), (file, place))
    return list(found.values())


@dataclass(frozen=True)
class FileJob:
    """One input and the file it becomes."""

    source: Place
    output: Place
    film: bool = False
    address: str = ""  # of a camera, a stream or a sequence of images; empty for a file
    place: str = ""  # of the output below the output folder, for the side-car

    @property
    def name(self) -> str:
        """What was given; of an address without password."""
        return display_name(self.address) if self.address else str(self.source)


@dataclass
class FilePlan:
    """What is to be done, what is left alone, and which inputs cannot even be listed."""

    folder: Place | None = None  # of the outputs; None where they lie beside their inputs or there is one
    jobs: list[FileJob] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)  # how many files, by reason
    # What has no job: input, output where it would have one, and why.
    errors: list[tuple[str, Place | None, str]] = field(default_factory=list)
    films: int = 0  # how many there are
    photos: int = 0


def make_plan(inputs: Sequence[str], out: str | None, *, overwrite: bool = False) -> FilePlan:
    """Pair every input file with its output.

    Args:
        inputs: files and folders, of this machine or of stores; `camera:0` and addresses of streams. In folders only
            photos and films count, and links to folders, hidden folders, projects of films and results are left out; a
            file named here is taken, unless its side-car proves that it is a result.
        out: a folder, in which the trees are mirrored; a file, when there is one input and the name ends like an
            image's or a film's; None: beside the inputs, with `_anonymized` added to their names.
        overwrite: an output may replace its own input.

    Inputs that would become one file, or overwrite another input, are errors of their own; the others go on.
    """
    file = None if out is None or not _is_file_name(inputs, out) else place_of(out)
    plan = FilePlan(None if out is None or file is not None else place_of(out))
    if isinstance(plan.folder, Path) and (found := obstacle(plan.folder)) is not None:
        kind = UsageError if plan.folder.is_file() else FicganError
        raise kind(f"{plan.folder}: cannot be made or written to, because of {found}; choose another folder")
    addresses = [name for name in inputs if _is_address(name)]
    paths = [name for name in inputs if name not in addresses]
    lost = [name for name in paths if not is_store(name) and not os.path.lexists(name)]
    if lost and len(lost) == len(inputs):
        raise UsageError(f"{lost[0]}: no such file; check the name")
    for address in addresses:
        if file is None or file.suffix.lower() not in WRITABLE_FILMS:
            name = display_name(address)
            raise UsageError(f"{name}: a camera, stream or sequence of images needs -o FILE, such as -o result.mp4")
        plan.jobs.append(FileJob(Path(address), file, film=True, address=address, place=file.name))
    named, seen = {_real(place_of(name)) for name in paths}, set[str]()
    for source, relative in _sources(paths, plan):
        real = _real(source)
        if real in seen:  # named twice, or named and in a folder as well
            plan.left_out[TWICE] += 1
        elif isinstance(source, Path) and (
            vouches_for(source) or (real not in named and _is_named_like_output(source))
        ):
            plan.left_out[OWN_OUTPUT] += 1
        else:
            film = images.is_film(source) if isinstance(source, Path) else source.suffix.lower() in FILM_SUFFIXES
            plan.jobs.append(_job(source, relative, film, file, plan.folder))
        seen.add(real)
    if not (plan.jobs or plan.errors or plan.left_out[OWN_OUTPUT] or plan.left_out[TWICE]):
        raise UsageError(f"{', '.join(paths)}: no photo or film is in there")
    _check_outputs(plan, overwrite)
    return plan


def _is_address(name: str) -> bool:
    """Whether an input is a camera or a stream: nothing beside which a result fits."""
    address = images.CAMERA.fullmatch(name) or (images.is_url(name) and not Path(name).exists())
    return bool(address) and not is_store(name)


def _job(source: Place, relative: PurePath, film: bool, file: Place | None, folder: Place | None) -> FileJob:
    if file is not None:
        writable = WRITABLE_FILMS if film else WRITABLE_SUFFIXES
        if file.suffix.lower() not in writable:
            kind = "film" if film else "photo"
            raise UsageError(f"{file}: a {kind} becomes no {file.suffix}; use {', '.join(sorted(writable))}")
        return FileJob(source, file, film, place=file.name)
    ending = images.film_suffix(Path(source.name)) if film else images.output_suffix(source.name)
    name = source.stem + (DEFAULT_SUFFIX if folder is None else "") + ending
    parent = source.parent if folder is None else folder / relative.parent
    return FileJob(source, parent / name, film, place=(relative.parent / name).as_posix())


def _real(place: Place) -> str:
    """What is equal for two names of one file."""
    return os.path.realpath(place) if isinstance(place, Path) else str(place)


def _is_file_name(inputs: Sequence[str], out: str) -> bool:
    """Whether -o names a file, not a folder."""
    suffix = Path(out).suffix.lower()
    if out.endswith(("/", os.sep)) or suffix not in MEDIA or place_of(out).is_dir():
        return False
    if len(inputs) != 1 or (not _is_address(inputs[0]) and place_of(inputs[0]).is_dir()):
        raise UsageError(f"-o {out}: is the name of one file, but there may be several inputs; name a folder")
    if suffix not in WRITABLE_SUFFIXES | WRITABLE_FILMS:
        names = WRITABLE_FILMS if suffix in FILM_SUFFIXES else WRITABLE_SUFFIXES
        raise UsageError(f"{out}: {suffix} is only read; choose a name that ends in {', '.join(sorted(names))}")
    return True


def obstacle(folder: Path) -> Path | None:
    """What keeps a folder from being made or written to; None: nothing does."""
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    return None if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK) else folder


def _sources(inputs: Sequence[str], plan: FilePlan) -> Iterator[tuple[Place, PurePath]]:
    """The files among and below the inputs, each with its place below its input."""
    for name in inputs:
        path = place_of(name)
        inside: Iterable[tuple[Place, PurePath]] | None = None
        if isinstance(path, StorePath):
            if plan.folder is None:
                raise UsageError(f"{path}: is in a store; name a folder or an address for the results by -o")
            inside = [(file, file.relative_to(path)) for file in path.files() if file != path]
        elif path.is_dir():
            inside = _in_folder(path, plan)
        yield from _media(inside, plan) if inside else [(path, PurePath(path.name))]


def _in_folder(path: Path, plan: FilePlan) -> Iterator[tuple[Place, PurePath]]:
    """All files below a folder, but for what lies in the results and in folders that are left out."""
    from ficgan.folders import kind_of

    results = {_real(plan.folder)} - {_real(path)} if plan.folder is not None else set()

    def cannot_list(error: OSError) -> None:
        plan.errors.append((str(error.filename), None, f"{error.filename}: cannot be listed ({error.strerror})"))

    for parent, folders, files in os.walk(path, onerror=cannot_list):
        below = [Path(parent, name) for name in sorted(folders)]
        taken = [f for f in below if not (f.name.startswith(".") or f.is_symlink() or kind_of(f) is not None)]
        plan.left_out[FOLDER] += len(below) - len(taken)
        folders[:] = [folder.name for folder in taken if _real(folder) not in results]
        yield from ((file, file.relative_to(path)) for file in (Path(parent, name) for name in sorted(files)))


def _media(files: Iterable[tuple[Place, PurePath]], plan: FilePlan) -> Iterator[tuple[Place, PurePath]]:
    """The photos and films among files of a folder; what else is there is counted, or is an error."""
    for file, place in files:
        is_media = file.suffix.lower() in MEDIA
        if file.name.startswith("."):
            # `._x.jpg` beside `x.jpg` is what macOS leaves on foreign disks: no image, in spite of its name
            plan.left_out[HIDDEN if is_media and not file.name.startswith("._") else NOT_MEDIA] += 1
        elif why := images.unread(str(file)):
            plan.errors.append((str(file), None, why))
        elif is_media:
            yield file, place
        elif place.name != MANIFEST and not (place.suffix == ".json" and Path(place.stem).suffix.lower() in MEDIA):
            plan.left_out[NOT_MEDIA] += 1


def _is_named_like_output(path: Path) -> bool:
    """Likely a result without side-car: its name says so, and its source lies beside it."""
    stem = path.stem.removesuffix(DEFAULT_SUFFIX)
    beside = map(Path, os.listdir(path.parent)) if stem != path.stem else ()
    return any(other.stem == stem and other.suffix.lower() in MEDIA for other in beside)


def _check_outputs(plan: FilePlan, overwrite: bool) -> None:
    """Take jobs that are in each other's way out of the plan; each becomes an error."""
    rivals: dict[str, list[FileJob]] = {}
    for job in plan.jobs:
        rivals.setdefault(_real(job.output), []).append(job)
    sources = {_real(job.source): job.source for job in plan.jobs if not job.address}
    jobs, plan.jobs = plan.jobs, []
    for job in jobs:
        place = _real(job.output)
        rival = next((other for other in rivals[place] if other is not job), None)
        if rival is not None:
            why = f"{job.name} and {rival.name} would both become {job.output}; give each a run or a folder of its own"
        elif sources.get(place, job.source) != job.source:
            why = f"{job.name} would overwrite the input {sources[place]}; choose another output folder"
        elif place in sources and not overwrite:
            raise UsageError(f"{job.source}: output and input are one file; use --overwrite or another folder")
        else:
            plan.jobs.append(job)
            continue
        plan.errors.append((job.name, job.output, why))
    if jobs and not plan.jobs:
        raise UsageError("; ".join(why for *_, why in plan.errors))
    plan.films = sum(job.film for job in plan.jobs)
    plan.photos = len(plan.jobs) - plan.films


# -- the work ---------------------------------------------------------------------------------------------------------

VOICES = "The sound is copied, and a voice identifies, too; --audio drop leaves it out."


@dataclass(frozen=True, eq=False)
class NewFile:
    """What became of a photo or film. Plain data: it may come from another process."""

    data: bytes | None  # of a photo, which is still to be written; None: a film, which is
    input_sha256: str | None
    record: dict[str, Any] | None  # for the side-car; None: there is none
    counts: dict[str, int]
    notes: Sequence[str]
    problems: Sequence[str] = ()  # what somebody must look at before the result is published
    objects: Mapping[str, int] = field(default_factory=dict)  # covers of what is no face (of films, tracks), by name
    failure: str = ""  # why a photo has no result; "" where it has one
    seconds: float = 0.0


@dataclass(frozen=True)
class FileSetup:
    """What all files of a run share; called, it loads the model, and gives what makes one file after the other."""

    make_engine: Callable[..., Any]
    engine: Mapping[str, Any]  # what it is made of
    photo: Mapping[str, Any] = field(default_factory=dict)  # of `new_photo`
    film: Mapping[str, Any] = field(default_factory=dict)  # of `process_video` or `render_video`
    project: str | None = None  # folder of a reviewed film, which is rendered
    recorded: Mapping[str, Any] | None = None  # options as side-cars hold them; None: there are no side-cars
    decisions: Mapping[str, PhotoDecisions] | None = None  # on photos, by their hash; None: all are drawn alike
    credentials: Credentials | None = None  # signs what has new faces or covers

    def __call__(self) -> Callable[..., NewFile]:
        """`work(job, progress)`: a film is written, a photo handed over."""
        engine = draw = self.make_engine(**self.engine)
        if self.decisions is not None:
            from ficgan.deidentify.review import deciding

            draw = deciding(engine, self.decisions)

        def work(job: FileJob, progress: Progress = unheard) -> NewFile:
            began = time.monotonic()
            made = self._film(engine, job, progress) if job.film else self._photo(draw, job)
            return replace(made, seconds=time.monotonic() - began)

        return work

    def plain(self) -> Callable[[FileJob], dict[str, Any]]:
        """The same for a worker process, whose results are plain data."""
        work = self()
        return lambda job: vars(work(job, workers.report))

    def _photo(self, draw: Any, job: FileJob) -> NewFile:
        name = str(job.source)
        data = job.source.read_bytes() if isinstance(job.source, StorePath) else None
        made = new_photo(draw, data, name, output=str(job.output), refuse=False, **self.photo)
        counts = {"faces": len(made.actions), "masked": made.actions.count("masked"), "uncovered": made.uncovered}
        notes, digest = [with_name(name, note) for note in made.record["notes"]], made.known["input_sha256"]
        if made.problem:
            return NewFile(b"", digest, None, counts, notes, failure=made.problem)
        objects = Counter(entry["name"] for entry in made.record.get("objects", ()) if entry["action"] != "kept")
        if self.credentials is not None and (set(made.actions) - {"kept"} or objects):
            made = replace(made, data=self.credentials.photo(made.data, job.output.suffix, made.actions))
        if not made.actions and not objects:
            notes.append(f"{name}: no face found; {job.output} is the same picture")
        faces = f"{made.reidentified} face{'' if made.reidentified == 1 else 's'}"
        problems = [f"{job.output}: {faces} still recognised; do not publish it"] if made.reidentified else []
        counts |= {"reidentified": made.reidentified, "no_face": int(not made.actions)}
        counts["unread"] = len(made.actions) if made.record.get("gate", "") is None else 0
        record = None if self.recorded is None else photo_record(made, job.place, self.recorded)
        return NewFile(made.data, digest, record, counts, notes, problems, objects)

    def _film(self, engine: Any, job: FileJob, progress: Progress) -> NewFile:
        process = engine.process_video if self.project is None else partial(engine.render_video, self.project)
        with _folder_for(job.output), local_file(job.output, new=True) as output, local_file(job.source) as source:
            digest = file_digest(source) if not job.address and source.is_file() else None
            result = process(job.address or source, output, progress=progress, **self.film)
            if self.credentials is not None and (result.tracks or result.objects):
                self.credentials.film(output, result.faces)
            known = {} if digest is None else {"input_sha256": digest}
            record = None if self.recorded is None else film_record(result, output, job.place, self.recorded, **known)
        counts = {"faces": result.tracks, "masked": result.masked_people, "frames": result.frames}
        counts |= {"no_face": int(not result.tracks), "damaged": int(bool(result.damage)), "review": len(result.review)}
        counts["reidentified"] = result.reidentified or 0
        counts["unread"] = result.tracks if result.reidentified is None else 0
        notes = [VOICES] * bool(result.has_audio) + [with_name(job.name, note) for note in result.notes]
        objects = {name: found["tracks"] for name, found in result.objects.items()}
        return NewFile(None, digest, record, counts, notes, list(_problems(job, result)), objects)


def _problems(job: FileJob, result: VideoResult) -> Iterator[str]:
    for note in result.damage:
        yield with_name(job.name, note)
    if result.check is not None and result.check.findings:
        times = _times(finding.time for finding in result.check.findings)
        yield f"{job.output}: a source face is still recognised at {times}; do not publish it"
    for reason in dict.fromkeys(place["reason"] for place in result.review):
        times = _times(place["time"] for place in result.review if place["reason"] == reason)
        yield f"{job.output}: look whether all faces are covered around {times}: {reason}"


def _times(seconds: Iterable[float]) -> str:
    """75.25 → 1:15.25; each once."""
    hundredths = [round(second * 100) for second in seconds]
    return ", ".join(dict.fromkeys(f"{time // 6000}:{time % 6000 / 100:05.2f}" for time in hundredths))


def with_name(name: str, note: str) -> str:
    """A note that begins with a name."""
    return note if note.startswith(f"{name}: ") else f"{name}: {note}"


def make_folder(folder: Place) -> None:
    """A folder of this machine; stores have none."""
    if isinstance(folder, Path):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: cannot be made ({error.strerror}); choose another output folder") from error


@contextmanager
def _folder_for(output: Place) -> Iterator[None]:
    """Make the folder of an output; folders that are new go again if the block fails and nothing is in them."""
    new = [] if isinstance(output, StorePath) else [path for path in output.parents if not os.path.lexists(path)]
    make_folder(output.parent)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for folder in new:
                folder.rmdir()
        raise
