"""What the worker processes of a review do: each photo and film is read, searched, drawn and written there.

A task is the name of a method and its arguments. Results are plain data; pictures for the page are JPEG.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Picture

from ficgan.deidentify import Deidentifier, Result
from ficgan.deidentify.found import FaceJob, Linked, NewIdentity
from ficgan.deidentify.photos import is_replaced
from ficgan.deidentify.review import Drawing, Retouch
from ficgan.errors import InputError
from ficgan.faces.detection import detect_and_doubt
from ficgan.files import content_key, file_digest, write_file
from ficgan.images import FILM_SUFFIXES, MAX_PIXELS, READABLE_SUFFIXES, is_film
from ficgan.images.read import read_image
from ficgan.records import film_record, new_photo, photo_record
from ficgan.ui import Controls, Item
from ficgan.video import EncodeOptions, VideoSettings
from ficgan.video.film import analyse_film, render_film
from ficgan.video.preview import Preview
from ficgan.video.project import Project
from ficgan.video.read import open_video
from ficgan.video.source import Frame
from ficgan.workers import is_cancelled, report

Image = NDArray[np.uint8]
# Longest side of pictures for the page and for the grid, px.
PREVIEW, THUMBNAIL = 1600, 320
# Longest side of a picture of a face that was drawn, px, and its margin in sizes of the box.
CUT, MARGIN = 112, 0.2
# Photos kept open, engines with controls of their own.
PHOTOS_KEPT, ENGINES_KEPT = 3, 8
# Frames that are decoded rather than jumped over.
STEPS = 48


def model_setup(make_engine: Callable[[int], Deidentifier], seed: int) -> ModelTasks:
    """Of a worker with the model, which leaves the processor to the page and its pictures."""
    if hasattr(os, "nice"):
        os.nice(10)
    return ModelTasks(make_engine(seed))


class PictureTasks:
    """Tasks that need no model."""

    def __init__(self) -> None:
        # The frame of a film that was shown last, and those that follow.
        self._shown: tuple[Path | None, int] = None, -1
        self._image = np.zeros((0, 0, 3), np.uint8)
        self._frames: Iterator[Frame] = iter(())

    def __call__(self, task: tuple[str, Mapping[str, Any]]) -> Any:
        name, given = task
        return getattr(self, name)(**given)

    def files(self, root: Path) -> list[tuple[str, bool]]:
        """Photos and films below a folder, and whether each is a film; none that is hidden, or outside by a link."""
        found = []
        top = root.resolve()
        for path in sorted(root.rglob("*")):
            inner = path.relative_to(root)
            known = path.suffix.lower() in READABLE_SUFFIXES | FILM_SUFFIXES
            if not known or any(part.startswith(".") for part in inner.parts):
                continue
            if any((root / parent / ".ficgan-folder").exists() for parent in inner.parents if parent.parts):
                continue
            if path.is_file() and path.resolve().is_relative_to(top):
                found.append((inner.as_posix(), is_film(path)))
        return found

    def pictures(self, path: Path) -> dict[str, Any]:
        """Preview and thumbnail of a photo or of a film's first frame, and the size of the original."""
        film = is_film(path)
        image = self._frame(path, 0, None, None) if film else read_image(path).rgb
        pictures = {"before": jpeg(image), "thumb": jpeg(image, THUMBNAIL, 80)}
        return {**pictures, "film": film, "width": image.shape[1], "height": image.shape[0]}

    def whole_source(self, path: Path) -> bytes:
        """A photo as it is, in its full size."""
        return jpeg(read_image(path).rgb, None)

    def key(self, path: Path) -> str:
        """Hash of a photo's pixels."""
        return content_key(read_image(path).rgb)

    def frame(self, path: Path, at: int, pts: int | None, start: float | None) -> bytes:
        """A frame of a film by its number, its time stamp (None: the first), and the second from which to read."""
        return jpeg(self._frame(path, at, pts, start), quality=85)

    def _frame(self, path: Path, at: int, pts: int | None, start: float | None) -> Image:
        """The next ones are decoded, others are jumped to."""
        (known, last), self._shown = self._shown, (None, -1)
        if (path, at) != (known, last):
            if pts is None or path != known or not last < at <= last + STEPS:
                self._frames = _frames_of(path, start)
            image = next((frame.image for frame in self._frames if pts is None or frame.pts >= pts), None)
            if image is None:
                raise InputError(f"{path}: frame {at} cannot be decoded")
            self._image = image
        self._shown = path, at
        return self._image


def _frames_of(path: Path, start: float | None) -> Iterator[Frame]:
    with open_video(path, start=start) as source:
        yield from source.frames()


@dataclass(frozen=True)
class PhotoTask:
    """A photo as it was decided."""

    item: Item  # its entry, with the controls and the stamp that count
    path: Path
    people: Mapping[str, Any]  # how the people in it were drawn in other photos


@dataclass(frozen=True)
class DecidedFilm:
    """A film as it was decided: its project is in `folder`."""

    path: Path
    folder: Path
    settings: VideoSettings
    controls: Controls


class ModelTasks(PictureTasks):
    """Tasks that need the model, of an engine of mode ficgan."""

    def __init__(self, engine: Deidentifier) -> None:
        super().__init__()
        self.engine = engine
        self.people: dict[str, NewIdentity] = {}  # who are in several photos
        self._engine_with = lru_cache(maxsize=ENGINES_KEPT)(lambda drawing: drawing.applied(engine))
        self._photo = lru_cache(maxsize=PHOTOS_KEPT)(self._read)
        self._film = lru_cache(maxsize=1)(self._watch)
        self._decided: Any = None  # the film that is watched, and the stamp of its decisions

    def about(self) -> dict[str, Any]:
        """Facts about the model, for the page and for side-cars."""
        model, recognizer = self.engine.face_model, self.engine.recognizer
        return {
            "layers": model.num_layers,
            "people": len(model.bank),
            "attributes": list(model.bank.names),
            "recognizer": "none" if recognizer is None else recognizer.name,
        }

    def check(self, drawing: Drawing) -> None:
        """Raise a UsageError where the model cannot do what controls ask for."""
        self._engine_with(drawing)

    # -- photos -------------------------------------------------------------------------------------------------------

    def _read(self, path: Path, stamp: str) -> Retouch:
        return Retouch(self.engine, read_image(path).rgb, people=self.people)

    def _open(self, photo: PhotoTask) -> Retouch:
        return self._photo(photo.path, photo.item.stamp)

    def look(self, photo: PhotoTask) -> dict[str, Any]:
        """Size of a photo, its faces, and finds that are too weak for one."""
        image = self._open(photo).image
        faces, possible = ([vars(face) for face in found] for found in detect_and_doubt(self.engine.detector, image))
        return {"faces": faces, "possible": possible, "width": image.shape[1], "height": image.shape[0]}

    def closer(self, photo: PhotoTask, box: Sequence[float]) -> dict[str, Any]:
        """The face in a box that a person drew; its score is 0 where there is none."""
        return vars(self._open(photo).closer(box))

    def render(self, photo: PhotoTask) -> dict[str, Any]:
        """A photo as decided: its preview, and what was done to each face."""
        return self._rendered(photo, self._render(photo))

    def whole(self, photo: PhotoTask) -> bytes:
        """A photo as decided, in its full size."""
        return jpeg(self._render(photo).image, None)

    def _render(self, photo: PhotoTask) -> Result:
        controls = photo.item.controls
        assert controls is not None
        for name, (code, kind, step) in photo.people.items():
            kept_kind = None if kind is None else np.array(kind, np.float32)
            self.people.setdefault(name, NewIdentity(np.array(code, np.float32), kept_kind, step))
        return self._open(photo).render(photo.item.faces, self._engine_with(controls.drawing), controls.mode)

    def _rendered(self, photo: PhotoTask, result: Result) -> dict[str, Any]:
        gate, faces = self.engine.recognizer, []
        for face in result.faces:
            distance = None if gate is None or face.distance is None else face.distance / gate.match_threshold
            told = {name: getattr(face, name) for name in ("action", "note", "doubt", "matched")}
            faces.append({**told, "distance": distance})
        pictures = {"after": jpeg(result.image), "result": jpeg(result.image, THUMBNAIL, 80)}
        places = [not is_replaced(result.mask, place.face) for place in photo.item.possible]
        named = {face.identity for face in photo.item.faces if face.person} - set(photo.people)
        people = {name: self.people[name] for name in named if name in self.people}
        return {**pictures, "faces": faces, "open": places, "people": people}

    def meet(self, photos: Sequence[PhotoTask]) -> list[list[int]]:
        """Who the faces of each photo are among those of all: numbers from 1; 0: not told."""
        recognizer = self.engine.video_tools(self.engine.video_settings(), generate=False).recognizer
        assert recognizer is not None  # that of films, which tells people apart
        linked, met = Linked(recognizer, None), []
        for photo in photos:
            jobs = [FaceJob(face.face, "", 0.0) for face in photo.item.faces]
            linked.meet(self._open(photo).image, jobs)
            met.append([int(job.key.removeprefix("person ")) if job.linked else 0 for job in jobs])
        return met

    def save(self, photo: PhotoTask, output: Path, place: str, options: Any) -> dict[str, Any]:
        """`render`, and write the result to `output`, with the side-car in what is returned."""
        result = self._render(photo)
        data = photo.path.read_bytes()
        made = new_photo(lambda image, key: result, data, photo.item.name, output=place, max_pixels=MAX_PIXELS)
        write_new(output, made.data)
        return {**self._rendered(photo, result), "sidecar": photo_record(made, place, options)}

    # -- films --------------------------------------------------------------------------------------------------------

    def analyse(self, path: Path, folder: Path, mode: str) -> None:
        """Find the faces and people of a film, for a project in a folder."""
        settings = self.engine.video_settings(mode=mode)
        tools = self.engine.video_tools(settings, generate=False)
        analyse_film(tools, path, folder, settings=settings, overwrite=True, progress=_report)

    def film(self, film: DecidedFilm, output: Path, place: str, options: Any) -> dict[str, Any]:
        """Render a film to `output`; its side-car, notes, and faces that are still recognised."""
        tools = self._engine_with(film.controls.drawing).video_tools(film.settings)
        encode = EncodeOptions(audio=film.controls.audio)
        result = render_film(
            tools, film.folder, film.path, output, settings=film.settings, encode=encode, progress=_report
        )
        record = film_record(result, output, place, options, input_sha256=file_digest(film.path))
        return {"sidecar": record, "notes": [*result.notes, *result.damage], "reidentified": result.reidentified}

    def _watch(self, path: Path, settings: VideoSettings, drawing: Drawing) -> Preview:
        return Preview(self._engine_with(drawing).video_tools(settings), settings, path)

    def preview(self, film: DecidedFilm, stamp: Any, at: int, cuts: Sequence[int]) -> dict[str, Any]:
        """A frame of a film as it will be rendered, and of some tracks the new face in it; stamp: of the project."""
        shown = self._film(film.path, film.settings, film.controls.drawing)
        if self._decided != (shown, stamp):
            shown.decide(Project.load(film.folder))
            self._decided = shown, stamp
        image, plan = shown(at, report), shown.plan
        faces = {
            str(track.id): jpeg(around(image, track.boxes[row]), CUT)
            for track, row in plan.tracks.at(at)
            if track.id in cuts and plan.modes[track.id][row] == "ficgan"
        }
        return {"picture": jpeg(image, quality=85), "cuts": faces}


def around(image: Image, box: Sequence[float]) -> Image:
    """The square part of a picture around a box, with a margin."""
    x0, y0, x1, y1 = (float(value) for value in box)
    side, x, y = (0.5 + MARGIN) * max(x1 - x0, y1 - y0), (x0 + x1) / 2, (y0 + y1) / 2
    left, top, right, low = (max(0, round(v)) for v in (x - side, y - side, x + side, y + side))
    return image[top:low, left:right]


def jpeg(image: NDArray[Any], longest: int | None = PREVIEW, quality: int = 90) -> bytes:
    """A picture for the page, reduced to a longest side; None: in its full size."""
    picture = Picture.fromarray(np.ascontiguousarray(image)).convert("RGB")
    if longest is not None:
        picture.thumbnail((longest, longest), Picture.Resampling.BILINEAR)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def write_new(path: Path, data: bytes) -> None:
    """A result, whole or not at all, and never over another file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, data, overwrite=False)


def _report(*values: Any) -> None:
    """Tell how far a film is; ends it where it was cancelled."""
    if is_cancelled():
        raise InputError("the film was cancelled; nothing was written")
    report(*values)
