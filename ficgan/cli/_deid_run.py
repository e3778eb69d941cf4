"""The work of `ficgan-deid`: photos in several threads, films one by one; no input may stop the others."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from ficgan import __version__
from ficgan.cli._errors import sentence
from ficgan.cli._manifest import Manifest
from ficgan.cli._plan import TOOL, Job, Plan, own_sidecar, sidecar_path
from ficgan.cli._progress import Progress
from ficgan.cli._workers import in_order
from ficgan.errors import FicganError, InputError
from ficgan.files import atomic_write
from ficgan.records.sidecars import header

__all__ = ["SYNTHETIC_ACTIONS", "FilmOptions", "Run", "RunOptions"]

SYNTHETIC_ACTIONS = frozenset({"generated", "retried"})
"""What a generative model did to a face; only these earn the synthetic-media tag."""


@dataclass(frozen=True)
class FilmOptions:
    """What concerns films."""

    settings: Any = None
    rules: Any = None
    encode: Any = None
    start: float | None = None
    end: float | None = None
    project: Path | None = None


@dataclass(frozen=True)
class RunOptions:
    """What concerns files rather than faces."""

    max_pixels: int
    require_face: bool = False
    keep_metadata: bool = False
    tag: bool = True
    sidecar: bool = True
    overwrite: bool = False
    skip_existing: bool = False
    """Results that are there already are left alone and are no failures."""
    jobs: int = 1
    """Photos that are worked on at once."""
    dry_run: bool = False
    recorded: dict[str, Any] = field(default_factory=dict)
    """Options as the side-cars tell them."""
    film: FilmOptions = field(default_factory=FilmOptions)


@dataclass(frozen=True, eq=False)
class _Made:
    """A photo's result, not yet written: only this is kept of it, so that memory stays bounded."""

    data: bytes
    """Of the file to write; empty where nothing may be written."""
    faces: tuple[str, ...]
    """What was done to each."""
    audit: dict[str, Any]
    notes: tuple[str, ...]
    """About the file; those about its faces are in the audit."""
    source: dict[str, str]
    size: tuple[int, int]
    synthetic: bool
    uncovered: int
    reidentified: int
    seconds: float


class Run:
    """One call of the command: goes through a plan and counts."""

    def __init__(self, options: RunOptions, report: Progress, manifest: Manifest | None = None) -> None:
        self.options = options
        self.manifest = manifest or Manifest()
        self._source: dict[str, str] = {}
        self._seconds: float | None = None
        self._report = report
        self.inputs = self.written = self.failed = self.skipped = self.no_face = 0
        self.faces = self.masked = self.uncovered = self.reidentified = 0
        self.unread = self.frames = self.damaged = 0
        self.photos_left = 0
        self._voice = False

    @property
    def ok(self) -> bool:
        """Every input was written and every check met."""
        return not (self.failed or self.uncovered or self.reidentified or self.damaged)

    def summary(self) -> dict[str, int | None]:
        """The counts; `reidentified` is None where faces were not read again (--no-verify), which is not 0."""
        names = (
            "inputs", "written", "failed", "faces", "masked", "uncovered", "reidentified", "skipped", "no_face",
            "frames", "damaged",
        )  # fmt: skip
        return {name: None if name == "reidentified" and self.unread else getattr(self, name) for name in names}

    def __call__(self, plan: Plan, make_engine: Callable[[], Callable[..., Any]]) -> None:
        """Process every job.

        Args:
            plan: What becomes what.
            make_engine: Loads the model; called once, when there is something to do.

        Raises:
            FicganError: The model cannot be set up, so nothing can be done.
        """
        self.inputs = len(plan.jobs) + len(plan.errors)
        self.skipped = plan.skipped
        for message in plan.errors:
            self._fail(message)
        for note in plan.notes:
            self._report.info(note)
        if self.manifest.foreign:
            self._report.info("The file manifest.jsonl in the output folder is another program's; it stays as it is.")
        if not self.inputs:
            self._report.info("Nothing to do: neither photo nor film among the inputs.")
        if self.options.dry_run:
            for job in plan.jobs:
                self._dry(job)
            return
        self._report.begin(len(plan.jobs))  # before the inputs are looked at: there may be a million
        ready = [job for job in plan.jobs if self._is_ready(job)]
        self.photos_left = sum(not job.film for job in ready)
        if not ready:
            return
        self._report.begin(len(ready))
        engine, done = make_engine(), 0
        with closing(self.manifest):
            for film, group in groupby(ready, lambda job: job.film):
                run = self._films if film else self._photos
                for job in run(list(group), engine):
                    done += 1
                    self.photos_left -= not film
                    self._report(done, len(ready), job.name)

    def _is_ready(self, job: Job) -> bool:
        """Whether a job can begin: its input is there, its output is free and can be written. Loads nothing."""
        try:
            if not job.address and not job.source.is_file():
                raise InputError(f"{job.source}: {'not a file' if job.source.exists() else 'no such file'}")
            if not job.address and not os.access(job.source, os.R_OK):
                raise InputError(f"{job.source}: cannot be read; check its permissions")
            if self.options.skip_existing and self._is_finished(job):
                self.skipped += 1
                return False
            self._check_free(job)
            _check_writable(job.output.parent)
        except InputError as error:
            self._fail(str(error))
            return False
        return True

    def _is_finished(self, job: Job) -> bool:
        """Whether an earlier run made this result, of this very input where its side-car tells."""
        if not job.output.is_file():
            return False
        if self.manifest.is_of_other_options(job.output):
            raise InputError(f"{job.name}: {job.output} was made with other options; use --overwrite to replace it")
        if not self.options.sidecar:
            return True
        record = own_sidecar(job.output)
        if record is None:
            raise InputError(
                f"{job.name}: {job.output} exists and its side-car does not; use --overwrite to replace it"
            )
        if job.address or record.get("input_sha256") in (None, _digest(job.source)):
            return True
        raise InputError(f"{job.name}: {job.output} was made of another file; use --overwrite to replace it")

    def _dry(self, job: Job) -> None:
        if self._is_ready(job):
            self._report.info(f"{job.name} -> {job.output}")

    def _films(self, jobs: list[Job], engine: Any) -> Iterator[Job]:
        for job in jobs:
            with self._failing_alone(job):
                self.film(job, engine)
            yield job

    def _photos(self, jobs: list[Job], engine: Callable[..., Any]) -> Iterator[Job]:
        """Photos are read, changed and encoded in threads; this one writes them, in the order of the plan."""
        results = in_order(lambda job: self._made(job, engine), jobs, self.options.jobs)
        with closing(results):
            for job, outcome in results:
                with self._failing_alone(job):
                    self._finish(job, outcome())
                yield job

    @contextmanager
    def _failing_alone(self, job: Job) -> Iterator[None]:
        """One input must not end the others; what became of it goes into the manifest."""
        faces, masked, bad = self.faces, self.masked, self.reidentified
        self._source, self._seconds, message = {}, None, None
        try:
            yield
        except FicganError as error:
            message = str(error)
        except Exception as error:
            message = f"{job.name}: {sentence(error)}"
        self.manifest.add(
            job.output, input=job.name, **(self._source or _input(job)), state="failed" if message else "written",
            faces=self.faces - faces, masked=self.masked - masked, reidentified=self.reidentified - bad,
            seconds=None if self._seconds is None else round(self._seconds, 3), error=message,
        )  # fmt: skip
        if message:
            self._fail(message)

    def _made(self, job: Job, engine: Callable[..., Any]) -> _Made:
        """One photo with new faces, encoded. Runs in any thread and changes nothing of this object."""
        from ficgan.arrays import content_key
        from ficgan.images import encode_image, read_image
        from ficgan.images.write import conversions

        options, began = self.options, time.monotonic()
        photo = read_image(job.source, max_pixels=options.max_pixels)
        source = _input(job)  # now: the result may take its place
        # The key is the picture itself: the same photo gets the same faces under any name and in any folder.
        try:
            result = engine(photo.rgb, key=content_key(photo.rgb))
        except FicganError as error:  # such as a program of the user's that failed
            raise InputError(_named(str(job.source), str(error))) from error
        actions = tuple(face.action for face in result.faces)
        synthetic = options.tag and not SYNTHETIC_ACTIONS.isdisjoint(actions)
        wanted = not result.uncovered and (actions or not options.require_face)
        data = (
            encode_image(job.output, photo, result.image, synthetic=synthetic, keep_metadata=options.keep_metadata)
            if wanted
            else b""
        )
        notes = (*photo.notes, *conversions(job.output, photo)) if wanted else photo.notes
        height, width = result.image.shape[:2]
        return _Made(
            data, actions, result.audit, notes, source, (width, height), synthetic, result.uncovered,
            result.reidentified, time.monotonic() - began,
        )  # fmt: skip

    def _finish(self, job: Job, made: _Made) -> None:
        """Count, say and write."""
        self._source, self._seconds = made.source, made.seconds
        self.faces += len(made.faces)
        self.masked += made.faces.count("masked")
        self.uncovered += made.uncovered
        for note in made.notes:
            self._report.info(f"{job.source}: {note}")
        if made.uncovered:
            raise InputError(f"{job.source}: {_count(made.uncovered, 'face')} left uncovered, so nothing was written")
        if not made.faces and self.options.require_face:
            raise InputError(f"{job.source}: no face found, so nothing was written (--require-face)")
        for note in made.audit.get("notes", ()):
            self._report.info(_named(str(job.source), note))
        self._save(job, made)
        self.written += 1
        self.reidentified += made.reidentified
        if made.audit.get("gate", "") is None:
            self.unread += len(made.faces)
        if made.reidentified:
            self._report.error(f"{job.output}: {_count(made.reidentified, 'face')} still recognised; do not publish it")
        if not made.faces:
            self.no_face += 1
            self._report.info(f"{job.source}: no face found; copied through to {job.output}")

    def film(self, job: Job, engine: Any) -> None:
        """Process one film; see `FilmOptions`."""
        self._check_free(job)
        film, options = self.options.film, self.options
        record, began = _input(job) if options.sidecar else {}, time.monotonic()
        self._source = record
        with _folder_for(job.output), self._telling_what_stays(job):
            result = engine.process_video(
                job.address or job.source, job.output,
                settings=film.settings, rules=film.rules, encode=film.encode, start=film.start, end=film.end,
                project=film.project, overwrite=options.overwrite,
                progress=lambda done, total, stage: self._report.frames(done, total, job.name, stage),
            )  # fmt: skip
        self._seconds = time.monotonic() - began
        self.faces += result.tracks
        self.masked += result.masked_people
        self.frames += result.frames
        self.no_face += not result.tracks
        if result.reidentified is None:
            self.unread += result.tracks
        else:
            self.reidentified += result.reidentified
        self.damaged += bool(result.damage)
        if not self._voice and film.encode is not None and film.encode.audio == "copy" and result.has_audio:
            self._voice = True
            self._report.info("The sound is copied, and a voice identifies, too; --audio drop leaves it out.")
        for note in result.notes:
            self._report.info(_named(job.name, note))
        for note in result.damage:
            self._report.error(_named(job.name, note))
        if result.reidentified:
            times = ", ".join(dict.fromkeys(_clock(finding.time) for finding in result.check.findings))
            self._report.error(f"{job.output}: a source face is still recognised at {times}; do not publish it")
        if options.sidecar:
            self._save_record(job, {**result.to_dict(), "metadata": "stripped", **record})
        else:
            _remove_stale(job.output)
        self.written += 1

    @contextmanager
    def _telling_what_stays(self, job: Job) -> Iterator[None]:
        """Say what an interrupted film leaves, and how to go on or to be rid of it."""
        try:
            yield
        except FicganError:
            raise  # nothing stays
        except BaseException:
            from ficgan.video.folders import work_folder

            work = work_folder(job.output)
            if work.is_dir():
                self._report.info(
                    f"{job.name}: the same command goes on from what is in {work}; `ficgan purge {work}` removes it."
                )
            raise

    def _save_record(self, job: Job, account: dict[str, Any]) -> None:
        """The side-car of a film, which has taken its name already."""
        digest = _digest(job.output)
        record = {
            **header("film", job.place, _film_size(job.output), self.options.recorded),
            "tool": TOOL, "ficgan": __version__, "output": job.output.name, "sha256": digest,
        }  # fmt: skip
        text = _to_json({**account, **record})
        side = sidecar_path(job.output)
        try:
            with atomic_write(side, overwrite=self.options.overwrite) as file:
                file.write(text)
        except (OSError, FicganError) as error:  # hours of work stay
            _remove_stale(job.output)
            raise InputError(f"{job.output}: is made, but {side.name} beside it is not: {sentence(error)}") from error

    def _check_free(self, job: Job) -> None:
        if self.options.overwrite:
            return
        for path in (job.output, sidecar_path(job.output)) if self.options.sidecar else (job.output,):
            if path.exists() or path.is_symlink():
                raise InputError(
                    f"{job.name}: {path} exists already; use --skip-existing to do the rest, --overwrite to replace it"
                )

    def _save(self, job: Job, made: _Made) -> None:
        """Write the result and its side-car, or neither."""
        options = self.options
        _make_folder(job.output.parent)

        def write() -> None:
            with atomic_write(job.output, overwrite=options.overwrite) as file:
                file.write(made.data)

        if not options.sidecar:
            write()
            _remove_stale(job.output)
            return
        written = False
        try:
            with atomic_write(sidecar_path(job.output), overwrite=options.overwrite) as file:
                write()
                written = True
                record = {
                    **header("photo", job.place, made.size, options.recorded),
                    "tool": TOOL,
                    "ficgan": __version__,
                    "output": job.output.name,
                    "sha256": hashlib.sha256(made.data).hexdigest(),
                    **made.source,
                    "synthetic_tag": made.synthetic,
                    "metadata": "kept" if options.keep_metadata else "stripped",
                    "notes": [*made.notes, *made.audit.get("notes", ())],
                }
                file.write(_to_json({**made.audit, **record}))
        except BaseException:
            if written and not options.overwrite:  # the side-car failed after its picture had taken its name
                job.output.unlink(missing_ok=True)
            elif written:
                _remove_stale(job.output)
            raise

    def _fail(self, message: str) -> None:
        self.failed += 1
        self._report.error(message)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _film_size(path: Path) -> tuple[int, int] | None:
    """Width and height of a film that was just made; None where it cannot be read again."""
    from ficgan.video.read import open_video

    try:
        with open_video(path) as film:
            return film.info.width, film.info.height
    except FicganError:
        return None


def _input(job: Job) -> dict[str, str]:
    """The hash of an input that is one file; cameras, streams and numbered images have none."""
    return {"input_sha256": _digest(job.source)} if not job.address and job.source.is_file() else {}


def _remove_stale(output: Path) -> None:
    """An earlier run's side-car speaks of a picture that is no longer there; a stranger's file stays."""
    if own_sidecar(output) is not None:
        with suppress(OSError):
            sidecar_path(output).unlink()


def _check_writable(folder: Path) -> None:
    """A result can be put into this folder, or into one that can be made there."""
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{folder}: cannot be written to; choose another output folder")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made ({error.strerror}); choose another output folder") from error


@contextmanager
def _folder_for(output: Path) -> Iterator[None]:
    """Make the folder of an output; folders that are new go again if the block fails and nothing is in them."""
    new = []
    folder = output.parent
    while not os.path.lexists(folder) and folder != folder.parent:
        new.append(folder)
        folder = folder.parent
    _make_folder(output.parent)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for folder in new:
                folder.rmdir()
        raise


def _to_json(record: dict[str, Any]) -> bytes:
    """A side-car; bytes of names that are not UTF-8 become escapes, which JSON reads back."""
    text = json.dumps(record, indent=1, default=_plain, ensure_ascii=False)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record, indent=1, default=_plain).encode() + b"\n"


def _plain(value: Any) -> Any:
    """NumPy's numbers and arrays as JSON knows them."""
    import numpy as np

    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be part of an audit")


def _clock(seconds: float) -> str:
    """75.25 → 1:15.25"""
    hundredths = round(seconds * 100)
    return f"{hundredths // 6000}:{hundredths % 6000 / 100:05.2f}"


def _named(name: str, note: str) -> str:
    return note if note.startswith(f"{name}: ") else f"{name}: {note}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
