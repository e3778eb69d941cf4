"""The work behind the page: three queues for pictures, photos and films, so that nothing waits for a long film.

Nothing is held in memory but the last few photos: 500 files are 500 entries in a queue.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import queue
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan import __version__
from ficgan.errors import FicganError, InputError
from ficgan.images import Photo, encode_image, output_suffix, read_image
from ficgan.ui.project import Controls, FaceEntry, Item, Kind, Review, free_name, sidecar_of, write_result

if TYPE_CHECKING:
    from ficgan.deidentify import Deidentifier, Retouch
    from ficgan.video import Project, VideoSource

__all__ = ["FileKinds", "Session"]

Image = NDArray[np.uint8]
PREVIEW, THUMBNAIL = 1600, 320
"""Longest sides in pixels of the pictures for the page."""
PHOTOS_KEPT = 3
FIRST_LOOK = 12
"""Thumbnails that are made before the model is loaded."""
STEPS = 48
"""Frames that are decoded rather than jumped over."""
NOW, SOON, LATER = 0, 5, 10
"""Priorities."""


@dataclass(frozen=True)
class FileKinds:
    """How files are told apart; the command line knows.

    Args:
        is_film: whether a file is a film.
        film_suffix: what a film's result ends in.
        suffixes: of all files that may be photos or films, in small letters.
    """

    is_film: Callable[[Path], bool]
    film_suffix: Callable[[Path], str]
    suffixes: frozenset[str]

    def files(self, root: Path) -> list[tuple[Path, Kind]]:
        """The photos and films below a folder; hidden ones, links that lead out of it and projects are left out."""
        found: list[tuple[Path, Kind]] = []
        top = root.resolve()
        for path in sorted(root.rglob("*")):
            inner = path.relative_to(root)
            if path.suffix.lower() not in self.suffixes or any(part.startswith(".") for part in inner.parts):
                continue
            if any((root / parent / ".ficgan-folder").exists() for parent in inner.parents if parent.parts):
                continue
            if path.is_file() and path.resolve().is_relative_to(top):
                found.append((path, "film" if self.is_film(path) else "photo"))
        return found


class _Stopped(BaseException):
    """The program ends: an unfinished film keeps its work folder."""


class _Queue:
    """Jobs of one thread, the most urgent first."""

    def __init__(self, name: str, prepare: Callable[[], object] = lambda: None) -> None:
        self._jobs: queue.PriorityQueue[tuple[float, int, Callable[[], Any] | None, Future[Any]]] = (
            queue.PriorityQueue()
        )
        self._numbers, self._prepare = itertools.count(), prepare
        self._thread = threading.Thread(target=self._run, name=f"ficgan-{name}", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], Any], priority: float = LATER) -> Future[Any]:
        """Do a job in its turn; its result or error is in the future."""
        future: Future[Any] = Future()
        self._jobs.put((priority, next(self._numbers), job, future))
        return future

    def stop(self, seconds: float) -> None:
        """End after the job at hand."""
        self._jobs.put((-1, next(self._numbers), None, Future()))
        self._thread.join(seconds)

    def _run(self) -> None:
        self._prepare()
        while True:
            _, _, job, future = self._jobs.get()
            if job is None:
                return
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(job())
            except _Stopped:
                return
            except BaseException as error:
                future.set_exception(error)


class Session:
    """A review at work.

    Args:
        review: what is on disk.
        kinds: how files are told apart.
        make_engine: makes a `Deidentifier` of mode ficgan for a seed; called in the background, once.
    """

    def __init__(self, review: Review, kinds: FileKinds, make_engine: Callable[[int], Deidentifier]) -> None:
        self.review, self.kinds = review, kinds
        self.model = "loading"
        """"loading", "ready", or why there is none."""
        self.progress: dict[str, tuple[int, int | None, str]] = {}
        """Of films at work: frames done, frames in all, stage."""
        self._make_engine = make_engine
        self._engine: Deidentifier | None = None
        self._engines: OrderedDict[Controls, Deidentifier] = OrderedDict()
        self._photos: OrderedDict[str, tuple[str, Photo, Retouch]] = OrderedDict()
        self._readers: OrderedDict[str, _FrameReader] = OrderedDict()
        self._frames = threading.Lock()
        self._stopping, self._loaded, self._first = threading.Event(), threading.Event(), threading.Event()
        self._cancelled: set[str] = set()
        self._pending: dict[str, Future[Any]] = {}
        self.pictures = _Queue("pictures")
        self.photos = _Queue("photos", self._load)
        self.films = _Queue("films", self._loaded.wait)
        for item in review.items():
            self._begin(item)
        self.pictures.put(self._first.set, LATER)

    def open_folder(self) -> None:
        """List the files of the opened folder, in the background."""

        def listing() -> None:
            assert self.review.root is not None
            known = {item.id for item in self.review.items()}
            self.review.add_folder(self.kinds.files(self.review.root))
            for item in self.review.items():
                if item.id not in known:
                    self._begin(item)
            self.pictures.put(self._first.set, LATER)

        self._first.clear()
        self.pictures.put(listing, NOW)

    def close(self) -> None:
        """Stop the work and let go of the folder. What was decided is on disk already."""
        self._stopping.set()
        self._first.set()
        for one in (self.pictures, self.photos, self.films):
            one.stop(10)
        for reader in self._readers.values():
            reader.close()
        self.review.close()

    def _load(self) -> None:
        self._first.wait(5)
        try:
            if not self._stopping.is_set():
                self._engine = self._make_engine(self.review.seed)
                self.model = "ready"
        except Exception as error:
            self.model = _sentence(error)
        self.review.revision += 1
        self._loaded.set()

    @property
    def engine(self) -> Deidentifier:
        """The model's; an InputError where it could not be loaded."""
        if self._engine is None:
            raise InputError("the model is still being loaded" if self.model == "loading" else self.model)
        return self._engine

    def _engine_of(self, controls: Controls) -> Deidentifier:
        """The engine with these controls."""
        engine, drawing = self.engine, controls.model_copy(update={"mode": "ficgan"})
        if drawing not in self._engines:
            made = engine.with_controls(
                k=controls.k, layer=controls.layer, psi=controls.psi, attributes=controls.attributes or None,
                fallback=controls.fallback,
            )
            self._engines[drawing] = made
            while len(self._engines) > 8:
                self._engines.popitem(last=False)
        return self._engines[drawing]

    # -- files --------------------------------------------------------------------------------------------------------

    def _begin(self, item: Item) -> None:
        """Put a file into the queues it needs."""
        count = sum(1 for _ in self._pending)
        self.pictures.put(lambda: self._picture(item.id), SOON if count < FIRST_LOOK else LATER)
        if count == FIRST_LOOK:
            self.pictures.put(self._first.set, SOON)
        changed = item.kind == "photo" and item.state == "ready" and item.stamp != self._stamp(item)
        if changed:
            self.review.change(item.id, quiet=True, state="waiting", notes=("The file has changed.",))
        if item.state == "waiting" or changed:
            self.look(item.id)
        else:
            self._pending.setdefault(item.id, Future())

    def look(self, number: str) -> None:
        """Look for faces in a file when its turn comes."""
        film = self.review[number].kind == "film"
        job = self._analyse if film else self._draw
        self._pending[number] = (self.films if film else self.photos).put(lambda: self._guarded(number, job))

    def add_upload(self, name: str, upload: str, number: str) -> Item:
        """Take a file that was written into the private folder.

        Raises:
            InputError: it is neither a photo nor a film, or broken; the file is removed again.
        """
        path = self.review.folder / upload
        try:
            kind: Kind = "film" if self.kinds.is_film(path) else "photo"
            image = self._first_picture(path, kind)
            self._write_pictures(number, image)
            item = self.review.add_upload(number, kind, name, upload)
            item = self.review.change(number, quiet=True, width=image.shape[1], height=image.shape[0])
        except BaseException as error:
            for left in (path, *self.review.folder.glob(f"*-{number}.jpg")):
                left.unlink(missing_ok=True)
            if isinstance(error, FicganError):
                raise InputError(_without_path(str(error), path, name)) from None
            raise
        self.look(number)
        return item

    @staticmethod
    def _first_picture(path: Path, kind: Kind) -> Image:
        if kind == "photo":
            return read_image(path).rgb
        from ficgan.video import open_video

        with open_video(path) as source:
            for frame in source.frames():
                return frame.image
        raise InputError(f"{path}: holds no frame that can be decoded")

    def _picture(self, number: str) -> None:
        """Thumbnail and preview of a file as it is."""
        item = self.review[number]
        if self.review.picture("before", number).exists() and (item.upload or item.stamp == self._stamp(item)):
            return
        try:
            image = self._first_picture(self.review.source(item), item.kind)
            self._write_pictures(number, image)
            self.review.change(number, quiet=True, width=image.shape[1], height=image.shape[0])
        except (FicganError, OSError) as error:
            self._failed(number, error)

    def _write_pictures(self, number: str, image: Image) -> None:
        self.review.write_file(f"before-{number}.jpg", _jpeg(image, PREVIEW))
        self.review.write_file(f"thumb-{number}.jpg", _jpeg(image, THUMBNAIL, 80))

    def _stamp(self, item: Item) -> str:
        with suppress(OSError, FicganError):
            status = self.review.source(item).stat()
            return f"{status.st_size}:{status.st_mtime_ns}"
        return ""

    def _guarded(self, number: str, job: Callable[[str], Any]) -> Any:
        """A job on a file; what goes wrong becomes the state of the file."""
        try:
            return job(number)
        except KeyError:
            return None  # removed meanwhile
        except Exception as error:
            self._failed(number, error)
            raise
        finally:
            self.progress.pop(number, None)
            self.review.revision += 1

    def _failed(self, number: str, error: Exception) -> None:
        with suppress(KeyError):
            item = self.review[number]
            text = _sentence(error)
            with suppress(FicganError):
                text = _without_path(text, self.review.source(item), item.name)
            try:
                self.review.change(number, state="failed", error=text)
            except InputError:  # the disk is full: told all the same, and tried again at the next start
                self.review.change(number, quiet=True, state="failed", error=text)

    # -- photos -------------------------------------------------------------------------------------------------------

    def _retouch(self, number: str) -> tuple[Photo, Retouch]:
        """A photo with its faces, from memory where it is one of the last few."""
        from ficgan.deidentify import Retouch
        from ficgan.faces import Face

        item = self.review[number]
        stamp = self._stamp(item)
        if number in self._photos and self._photos[number][0] == stamp:
            self._photos.move_to_end(number)
            return self._photos[number][1:]
        photo = read_image(self.review.source(item))
        known = item.stamp == stamp and item.state != "waiting"
        faces = [
            Face(np.array(face.box, np.float32), np.array(face.landmarks, np.float32), face.score)
            for face in item.faces
        ]
        retouch = Retouch(self.engine, photo.rgb, faces=faces if known else None)
        if not known:
            found = tuple(_entry(face) for face in retouch.faces)
            height, width = photo.rgb.shape[:2]
            self.review.change(number, quiet=True, faces=found, stamp=stamp, width=width, height=height)
        for face in item.faces if known else ():
            if face.exemplar is not None:
                retouch.add_exemplar(face.exemplar, read_image(self.review.folder / face.exemplar).rgb)
        self._photos[number] = (stamp, photo, retouch)
        while len(self._photos) > PHOTOS_KEPT:
            self._photos.popitem(last=False)
        return photo, retouch

    def _draw(self, number: str) -> Item:
        """The faces of a photo as decided, and the preview of it."""
        self._render(number)
        return self.review[number]

    def _render(self, number: str) -> tuple[Photo, Any]:
        from ficgan.deidentify import Choice

        photo, retouch = self._retouch(number)
        item = self.review[number]
        controls = item.controls or self.review.controls
        choices = [Choice(face.mode or controls.mode, face.draw, face.exemplar) for face in item.faces]
        result = retouch.render(choices, self._engine_of(controls))
        self.review.write_file(f"after-{number}.jpg", _jpeg(result.image, PREVIEW))
        faces = tuple(
            face.model_copy(
                update={"action": done.action, "note": done.note, "doubt": done.doubt, "matched": done.matched}
            )
            for face, done in zip(item.faces, result.faces, strict=True)
        )
        # Something else may have been decided meanwhile; then the next drawing follows at once.
        if [_decided(face) for face in self.review[number].faces] == [_decided(face) for face in item.faces]:
            self.review.change(number, state="ready", error="", faces=faces)
        return photo, result

    def redraw(self, number: str, priority: float = NOW) -> Future[Any]:
        """Draw a photo again."""
        return self.photos.put(lambda: self._guarded(number, self._draw), priority)

    def decide(self, number: str, face: int, **values: Any) -> Future[Any]:
        """Change what was decided on a face: mode, draw, exemplar.

        Raises:
            InputError: no such face, a wrong value, or the disk is full; nothing has changed then.
        """
        self._decide(number, face, **values)
        return self.redraw(number)

    def _decide(self, number: str, face: int, **values: Any) -> None:
        with self.review.lock:
            item = self._photo(number)
            if not 0 <= face < len(item.faces):
                raise InputError(f"{item.name}: has no face number {face + 1}")
            faces = list(item.faces)
            faces[face] = faces[face].model_copy(update=values)
            self.review.change(number, faces=tuple(one.model_dump() for one in faces), changed=True)

    def decide_all(self, number: str, mode: str) -> Future[Any]:
        """One mode for all faces of a photo."""
        with self.review.lock:
            item = self._photo(number)
            faces = tuple({**face.model_dump(), "mode": mode} for face in item.faces)
            self.review.change(number, faces=faces, changed=True)
        return self.redraw(number)

    def add_face(self, number: str, box: tuple[float, float, float, float]) -> Future[Any]:
        """Take a box that was drawn over a face that the detector missed."""

        def add(number: str) -> Item:
            _, retouch = self._retouch(number)
            with self.review.lock:
                at = retouch.add(box)
                entry = _entry(retouch.faces[at], drawn=True)
                try:
                    faces = (*self.review[number].faces, entry)
                    self.review.change(number, faces=faces, changed=True)
                except BaseException:
                    del retouch.faces[at]
                    raise
            return self._draw(number)

        self._photo(number)
        return self.photos.put(lambda: self._telling(number, add), NOW)

    def remove_face(self, number: str, face: int) -> Future[Any]:
        """Take back a box that was drawn."""

        def remove(number: str) -> Item:
            item = self._photo(number)
            if not 0 <= face < len(item.faces) or not item.faces[face].drawn:
                raise InputError(f"{item.name}: only a box that was drawn can be removed; choose Keep for the others")
            faces = item.faces[:face] + item.faces[face + 1 :]
            self.review.change(number, faces=faces, changed=True)
            self._photos.pop(number, None)
            return self._draw(number)

        return self.photos.put(lambda: self._telling(number, remove), NOW)

    def add_exemplar(self, number: str, face: int, photo: Image) -> Future[Any]:
        """Draw a face towards the one of another photo."""

        def add(number: str) -> Item:
            _, retouch = self._retouch(number)
            item = self._photo(number)
            if not 0 <= face < len(item.faces):
                raise InputError(f"{item.name}: has no face number {face + 1}")
            name = f"exemplar-{secrets.token_hex(5)}.jpg"
            retouch.add_exemplar(name, photo)
            self.review.write_file(name, _jpeg(photo, PREVIEW, 95))
            self._decide(number, face, exemplar=name, mode="ficgan")
            return self._draw(number)

        self._photo(number)
        return self.photos.put(lambda: self._telling(number, add), NOW)

    def _telling(self, number: str, job: Callable[[str], Any]) -> Any:
        """A job whose error is told to whoever asked; the file's state is not touched."""
        try:
            return job(number)
        finally:
            self.review.revision += 1

    def set_controls(self, controls: Controls, number: str | None = None) -> Future[Any] | None:
        """New controls for a photo, or (None) for all files. Every photo is drawn again.

        Raises:
            UsageError: a value that cannot work with the model.
        """
        if self._engine is not None:
            self._engine_of(controls)
        if number is not None:
            self.review.change(number, controls=controls.model_dump(), changed=True)
            return self.redraw(number) if self.review[number].kind == "photo" else None
        self.review.set_controls(controls)
        for item in self.review.items():
            if item.kind == "photo" and item.state == "ready":
                self.review.change(item.id, quiet=True, changed=True)
                self.redraw(item.id, LATER)
            elif item.kind == "film" and item.state == "ready":
                self.edit_film(item.id, default=controls.mode)
        return None

    def _photo(self, number: str) -> Item:
        item = self.review[number]
        if item.kind != "photo":
            raise InputError(f"{item.name}: is a film; decide on its people")
        if item.state == "waiting" or (item.state == "failed" and not item.faces and not item.stamp):
            raise InputError(f"{item.name}: was not looked at yet; wait for it, or look at what failed")
        return item

    # -- results ------------------------------------------------------------------------------------------------------

    def save(self, number: str) -> Future[Any]:
        """Write the result of a file into the output folder, under a name that is free."""
        item = self.review[number]
        if item.state == "waiting" or item.state == "working":
            raise InputError(f"{item.name}: was not looked at yet; wait for it")
        if item.kind == "film":
            self._cancelled.discard(number)
            self.review.change(number, quiet=True, state="working", error="")
            self.progress[number] = (0, None, "waiting")
            return self.films.put(lambda: self._guarded(number, self._render_film), NOW)
        return self.photos.put(lambda: self._telling(number, self._save_photo), SOON)

    def _save_photo(self, number: str) -> Item:
        photo, result = self._render(number)
        item = self.review[number]
        if result.uncovered:
            raise InputError(f"{item.name}: {result.uncovered} of its faces are left uncovered, so nothing was written")
        source = self.review.source(item)
        suffix = output_suffix(source)
        path = free_name(self.review.output, item.name, suffix)
        drawn = any(face.action in ("generated", "retried") for face in result.faces)
        data = encode_image(path, photo, result.image, synthetic=drawn)
        account = {
            **result.audit, "synthetic_tag": drawn, "metadata": "stripped", "width": item.width, "height": item.height,
            "sha256": hashlib.sha256(data).hexdigest(), "notes": [*photo.notes, *result.audit.get("notes", ())],
        }  # fmt: skip
        self._write_result(path, data, item, source, account)
        name = path.relative_to(self.review.output).as_posix()
        return self.review.change(number, saved=name, changed=False)

    def _write_result(
        self, path: Path, data: bytes | None, item: Item, source: Path, account: Mapping[str, Any]
    ) -> None:
        """A result and its side-car, or neither."""
        from ficgan.files import file_digest

        record = {
            **account, "tool": "ficgan ui", "ficgan": __version__, "output": path.name,
            "input": Path(item.name).name, "input_sha256": file_digest(source),
            "reviewed": datetime.now(UTC).isoformat(timespec="seconds"),
        }  # fmt: skip
        text = json.dumps(record, indent=1, ensure_ascii=False, default=str).encode(errors="replace") + b"\n"
        try:
            if data is not None:
                write_result(path, data)
            write_result(sidecar_of(path), text)
        except OSError as error:
            if data is not None:
                path.unlink(missing_ok=True)
            raise InputError(f"{path}: cannot be written ({error.strerror}); free space and save again") from error
        except InputError:
            if data is not None and not sidecar_of(path).exists():
                path.unlink(missing_ok=True)
            raise

    # -- films --------------------------------------------------------------------------------------------------------

    def _analyse(self, number: str) -> Item:
        """Find the faces and people of a film."""
        from ficgan.video import analyse_film

        folder, item = self.review.film_folder(number), self.review[number]
        if not (folder / "project.json").exists():
            self._cancelled.discard(number)
            self.review.change(number, quiet=True, state="working", error="")
            settings = self.engine.video_settings(mode=self.review.controls.mode)
            analyse_film(
                self.engine.video_tools(settings, generate=False), self.review.source(item), folder, settings=settings,
                overwrite=True, progress=self._following(number), is_cancelled=lambda: self._is_cancelled(number),
            )  # fmt: skip
        film = self.film(number)
        people = len([person for person in film.people if person])
        return self.review.change(
            number, state="ready", error="", people=people, width=film.source.width, height=film.source.height,
            stamp=self._stamp(item), notes=film.source.notes,
        )  # fmt: skip

    def _following(self, number: str) -> Callable[[int, int | None, str], None]:
        def follow(done: int, total: int | None, stage: str) -> None:
            self.progress[number] = (done, total, stage)

        return follow

    def _is_cancelled(self, number: str) -> bool:
        if self._stopping.is_set():
            raise _Stopped
        return number in self._cancelled

    def cancel(self, number: str) -> None:
        """Stop the work on a film."""
        if number in self.progress:
            self._cancelled.add(number)

    def film(self, number: str) -> Project:
        """The project of a film.

        Raises:
            InputError: it was not analysed yet, or its files are damaged.
        """
        from ficgan.video import Project

        item, folder = self.review[number], self.review.film_folder(number)
        if not (folder / "project.json").exists():
            raise InputError(f"{item.name}: was not analysed yet; wait for it")
        return Project.load(folder)

    def edit_film(
        self, number: str, *, default: str | None = None, people: Mapping[int, str | None] | None = None,
        tracks: Mapping[int, str | None] | None = None, link: Mapping[int, int] | None = None,
    ) -> Project:  # fmt: skip
        """Change the decisions on a film: "" or None removes one.

        Raises:
            InputError: a person, track or mode that is not there; nothing has changed then.
        """
        from ficgan.video.settings import Decisions

        with self.review.lock:
            film = self.film(number)
            tree = film.decisions.model_dump(mode="json", by_alias=True)
            for key, given in (("people", people), ("tracks", tracks)):
                for who, mode in (given or {}).items():
                    tree[key].pop(str(who), None)
                    if mode:
                        tree[key][str(who)] = {"mode": mode, "reason": "chosen in the review"}
            if default is not None:
                tree["default"] = default
            linked = [replace(track, person=(link or {}).get(track.id, track.person)) for track in film.tracks]
            return self._keep_film(number, replace(film, tracks=linked, decisions=_checked(Decisions, tree)))

    def _keep_film(self, number: str, film: Project) -> Project:
        film.save_document(self.review.film_folder(number))
        self.review.change(number, changed=True)
        return film

    def add_region(
        self, number: str, frame: int, box: Iterable[float], start: float, end: float, mode: str, *, follow: bool
    ) -> Future[Any]:
        """Cover a box that was drawn in a frame, from one second to another; it follows what is in it where asked.

        Raises:
            InputError: a box, frame or time that cannot be; from the future, a mode that is no cover.
        """
        from ficgan.video.association import follow_box
        from ficgan.video.settings import Region

        film, corners = self.film(number), np.asarray(list(box), np.float32)
        size = np.array([film.source.width, film.source.height] * 2, np.float32)
        corners = np.clip(corners, 0, size) if corners.shape == (4,) else np.zeros(4, np.float32)
        if not (corners[2:] - corners[:2] >= 4).all():
            raise InputError("the box lies outside of the picture or is smaller than 4 pixels; draw a larger one")
        if not 0 <= frame < len(film.pts):
            raise InputError(f"there is no frame {frame}; the film has {len(film.pts)}")
        first, last = (int(np.searchsorted(film.times, time)) for time in (start, end))
        first, last = min(first, frame), min(max(last, frame), len(film.pts) - 1)

        def add(number: str) -> Project:
            if follow:
                source = self.review.source(self.review[number])
                tree = follow_box(source, film, frame, corners, first, last).model_dump(mode="json")
            else:
                tree = {"first": first, "last": last, "box": [round(float(value), 1) for value in corners]}
            region = _checked(Region, {**tree, "mode": mode, "reason": "drawn in the review"})
            with self.review.lock:
                now = self.film(number)
                return self._keep_film(number, replace(now, regions=(*now.regions, region)))

        return self.pictures.put(lambda: self._telling(number, add), NOW)

    def remove_region(self, number: str, region: int) -> Project:
        """Take back a box."""
        with self.review.lock:
            film = self.film(number)
            if not 0 <= region < len(film.regions):
                raise InputError(f"there is no box number {region + 1}")
            regions = film.regions[:region] + film.regions[region + 1 :]
            return self._keep_film(number, replace(film, regions=regions))

    def _render_film(self, number: str) -> Item:
        """The film as decided, into the output folder."""
        from ficgan.video import EncodeOptions, VideoSettings, render_film
        from ficgan.video.folders import work_folder

        item, film = self.review[number], self.film(number)
        source = self.review.source(item)
        controls = item.controls or self.review.controls
        engine = self._engine_of(controls)
        named = ("stride", "pad", "link", "fallback")
        settings = VideoSettings(**{name: film.settings[name] for name in named if name in film.settings})
        path = free_name(self.review.output, item.name, self.kinds.film_suffix(source))
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            result = render_film(
                engine.video_tools(settings), self.review.film_folder(number), source, path, settings=settings,
                encode=EncodeOptions(audio=controls.audio), progress=self._following(number),
                is_cancelled=lambda: self._is_cancelled(number),
            )  # fmt: skip
        except FicganError as error:
            if number in self._cancelled:
                return self.review.change(number, state="ready", error="Rendering was cancelled.")
            with suppress(OSError):
                work_folder(path).rmdir()
            # What was decided stays; only this result is missing.
            return self.review.change(number, state="ready", error=_without_path(str(error), source, item.name))
        account = {**result.to_dict(), "metadata": "stripped", "sha256": _digest(path)}
        self._write_result(path, None, item, source, account)
        notes = [*result.notes, *result.damage]
        if result.reidentified:
            notes.insert(0, "A source face is still recognised; look at the result before you publish it.")
        name = path.relative_to(self.review.output).as_posix()
        return self.review.change(number, state="ready", error="", saved=name, changed=False, notes=tuple(notes))

    # -- frames of films ----------------------------------------------------------------------------------------------

    def frame(self, number: str, at: int) -> Image:
        """One frame of a film as it is."""
        film, item = self.film(number), self.review[number]
        with self._frames:
            if number not in self._readers:
                self._readers[number] = _FrameReader(self.review.source(item), film)
                while len(self._readers) > 2:
                    self._readers.popitem(last=False)[1].close()
            return self._readers[number](at)

    def frame_after(self, number: str, at: int) -> Future[Any]:
        """One frame with its faces as decided; in the film a person's new face may be another one."""
        from ficgan.deidentify import Choice, Retouch
        from ficgan.ui.project import MODES
        from ficgan.video.tracks import TrackSet

        film, item = self.film(number), self.review[number]
        image = self.frame(number, at)

        def draw() -> Image:
            engine, decider = self._engine_of(item.controls or self.review.controls), film.decider()
            present = [track for track, _ in TrackSet(film.tracks).at(at)]
            retouch = Retouch(engine, image, key=number, faces=[track.face(at) for track in present])
            retouch.names = {n: f"person {track.person or -track.id}" for n, track in enumerate(present)}
            modes = [str(decider.mode_of(track, at)) for track in present]
            for box, mode in film.regions_at(at):
                with suppress(InputError):  # it has left the picture
                    retouch.add(tuple(float(v) for v in box), search=False)  # type: ignore[arg-type]
                    modes.append(mode)
            choices = [Choice(mode if mode in MODES else "solid") for mode in modes]
            drawn: Image = retouch.render(choices).image
            return drawn

        return self.photos.put(draw, NOW)


class _FrameReader:
    """Frames of one film by number; the next ones are decoded, others are jumped to."""

    def __init__(self, path: Path, film: Project) -> None:
        self._path, self._pts, self._times = path, film.pts, film.times
        self._source: VideoSource | None = None
        self._frames: Any = None
        self._at, self._image = -1, None

    def __call__(self, at: int) -> Image:
        from ficgan.video import open_video

        if not 0 <= at < len(self._pts):
            raise InputError(f"there is no frame {at}; the film has {len(self._pts)}")
        if self._image is not None and at == self._at:
            return self._image
        if self._source is None or not self._at < at <= self._at + STEPS:
            self.close()
            gap = float(self._times[1]) / 2 if len(self._times) > 1 else 0.0
            self._source = open_video(self._path, start=max(0.0, float(self._times[at]) - gap) or None)
            self._frames = self._source.frames()
        for frame in self._frames:
            self._at, self._image = int(np.searchsorted(self._pts, frame.pts)), frame.image
            if self._at >= at:
                return frame.image
        raise InputError(f"frame {at} cannot be decoded")

    def close(self) -> None:
        """Let go of the file."""
        if self._source is not None:
            self._frames.close()
            self._source.close()
        self._source, self._image, self._at = None, None, -1


def _entry(face: Any, *, drawn: bool = False) -> FaceEntry:
    box = tuple(float(value) for value in face.box)
    marks = tuple((float(x), float(y)) for x, y in face.landmarks)
    return FaceEntry(box=box, landmarks=marks, score=float(face.score), drawn=drawn)


def _decided(face: FaceEntry) -> tuple[Any, ...]:
    return face.box, face.mode, face.draw, face.exemplar


def _jpeg(image: NDArray[Any], longest: int, quality: int = 90) -> bytes:
    """A picture for the page, reduced to a longest side."""
    from PIL import Image as Picture

    picture = Picture.fromarray(np.ascontiguousarray(image)).convert("RGB")
    picture.thumbnail((longest, longest), Picture.Resampling.BILINEAR)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def _checked(model: Any, tree: Any) -> Any:
    from ficgan.video.folders import checked

    return checked(model, tree, "the decision")


def _digest(path: Path) -> str:
    from ficgan.files import file_digest

    return file_digest(path)


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, FicganError) and text:
        return text
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}; free space or look at the disk, and try again"
    return f"{type(error).__name__}: {text}"


def _without_path(text: str, path: Path, name: str) -> str:
    """A message with the name the user knows in place of the path of a private copy."""
    return text.replace(str(path), name).replace(path.name, name)
