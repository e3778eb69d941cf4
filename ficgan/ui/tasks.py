"""What the worker processes of a review do: each photo and film is read, searched, drawn and written there.

A task is the name of a method and its arguments. Results are plain data; pictures for the page are JPEG.
"""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.files import atomic_write, content_key
from ficgan.images import FILM_SUFFIXES, MAX_PIXELS, READABLE_SUFFIXES, is_film
from ficgan.images.read import read_image
from ficgan.workers import is_cancelled, report

if TYPE_CHECKING:
    from ficgan.deidentify import Deidentifier, Result
    from ficgan.deidentify.found import Linked, NewIdentity
    from ficgan.deidentify.review import Retouch
    from ficgan.video.preview import Preview
    from ficgan.video.read import VideoSource

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
        self._reader: _FrameReader | None = None

    def __call__(self, task: tuple[str, Mapping[str, Any]]) -> Any:
        name, given = task
        return getattr(self, name)(**given)

    def files(self, root: Path) -> list[tuple[str, bool]]:
        """Photos and films below a folder, and whether each is a film.

        Hidden files, links that lead out of the folder and projects are left out.
        """
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
        pictures = {"before": jpeg(image, PREVIEW), "thumb": jpeg(image, THUMBNAIL, 80)}
        return {**pictures, "film": film, "width": image.shape[1], "height": image.shape[0]}

    def whole_source(self, path: Path) -> bytes:
        """A photo as it is, in its full size."""
        image = read_image(path).rgb
        return jpeg(image, max(image.shape))

    def key(self, path: Path) -> str:
        """Hash of a photo's pixels."""
        return content_key(read_image(path).rgb)

    def frame(self, path: Path, at: int, pts: int | None, start: float | None) -> bytes:
        """A frame of a film by its number, its time stamp (None: the first), and the second from which to read."""
        return jpeg(self._frame(path, at, pts, start), PREVIEW, 85)

    def _frame(self, path: Path, at: int, pts: int | None, start: float | None) -> Image:
        if self._reader is None or self._reader.path != path:
            if self._reader is not None:
                self._reader.close()
            self._reader = _FrameReader(path)
        return self._reader(at, pts, start)


@dataclass
class _OpenPhoto:
    """A photo in memory; `result` and what it was drawn from: the last one."""

    stamp: str
    places: list[Any]
    retouch: Retouch
    basis: Any = None
    result: Result | None = None


@dataclass
class _OpenFilm:
    """A film whose frames are drawn, what it is drawn from, and the stamp of its decisions."""

    basis: Any
    preview: Preview
    stamp: Any = None


class ModelTasks(PictureTasks):
    """Tasks that need the model.

    Args:
        engine: of mode ficgan.
    """

    def __init__(self, engine: Deidentifier) -> None:
        super().__init__()
        self.engine = engine
        self._engines = lru_cache(maxsize=ENGINES_KEPT)(lambda drawing: drawing.applied(engine))
        self._photos: OrderedDict[str, _OpenPhoto] = OrderedDict()
        self._preview: _OpenFilm | None = None
        self.people: dict[str, NewIdentity] = {}  # who are in several photos
        self._meeting: Linked | None = None

    def about(self) -> dict[str, Any]:
        """Facts about the model, for the page and for side-cars."""
        model, recognizer = self.engine.face_model, self.engine.recognizer
        return {
            "layers": model.num_layers,
            "people": len(model.bank),
            "attributes": list(model.bank.names),
            "recognizer": "none" if recognizer is None else recognizer.name,
        }

    def check(self, drawing: Mapping[str, Any]) -> None:
        """Raise a UsageError where the model cannot do what controls ask for."""
        self._engine_with(drawing)

    def _engine_with(self, drawing: Mapping[str, Any]) -> Deidentifier:
        from ficgan.deidentify.review import Drawing

        return self._engines(Drawing(**drawing))

    # -- photos -------------------------------------------------------------------------------------------------------

    def look(self, photo: Mapping[str, Any]) -> dict[str, Any]:
        """Faces of a photo and its size; photo: id, path, stamp and places of known faces, None: look for them."""
        retouch = self._open({**photo, "places": None})
        height, width = retouch.image.shape[:2]
        found = {"faces": retouch.faces, "possible": retouch.possible}
        places = {kind: [_place(face) for face in faces] for kind, faces in found.items()}
        return {**places, "width": width, "height": height}

    def _open(self, photo: Mapping[str, Any]) -> Retouch:
        """A photo from memory where it is one of the last few; boxes that were drawn since then are added."""
        from ficgan.deidentify.review import Retouch

        places, kept = photo["places"], self._photos.get(photo["id"])
        shared = 0 if kept is None or places is None else min(len(places), len(kept.places))
        if not shared or kept is None or kept.stamp != photo["stamp"] or places[:shared] != kept.places[:shared]:
            image = read_image(photo["path"]).rgb
            known = None if places is None else [_face(*place) for place in places]
            retouch = Retouch(self.engine, image, faces=known, people=self.people)
            kept = _OpenPhoto(photo["stamp"], [], retouch)
        else:
            kept.retouch.forget(shared)
            kept.retouch.faces += [_face(*place) for place in places[shared:]]
        kept.places = [_place(face) for face in kept.retouch.faces] if places is None else places
        self._photos[photo["id"]] = kept
        self._photos.move_to_end(photo["id"])
        while len(self._photos) > PHOTOS_KEPT:
            self._photos.popitem(last=False)
        return kept.retouch

    def closer(self, photo: Mapping[str, Any], box: Sequence[float]) -> Any:
        """The face in a box that a person drew: box, landmarks, score (0 where there is none)."""
        retouch = self._open(photo)
        at = retouch.add(tuple(box))  # type: ignore[arg-type]
        return _place(retouch.faces.pop(at))

    def render(self, photo: Mapping[str, Any], drawing: Mapping[str, Any]) -> dict[str, Any]:
        """A photo as decided (choices: mode and draw of each face): its preview, and what was done."""
        return self._rendered(photo, self._render(photo, drawing))

    def whole(self, photo: Mapping[str, Any], drawing: Mapping[str, Any]) -> bytes:
        """A photo as decided, in its full size."""
        image = self._render(photo, drawing).image
        return jpeg(image, max(image.shape))

    def _render(self, photo: Mapping[str, Any], drawing: Mapping[str, Any]) -> Result:
        from ficgan.deidentify.found import NewIdentity
        from ficgan.deidentify.review import Choice, Drawing

        retouch, kept = self._open(photo), self._photos[photo["id"]]
        basis = [photo["places"], photo["choices"], drawing]
        if kept.result is None or kept.basis != basis:
            choices = [
                Choice(mode, draw, None if own is None else Drawing(**own), person)
                for mode, draw, own, person in photo["choices"]
            ]
            for name, (code, kind, step) in photo["people"].items():
                kept_kind = None if kind is None else np.array(kind, np.float32)
                self.people.setdefault(name, NewIdentity(np.array(code, np.float32), kept_kind, step))
            kept.result, kept.basis = retouch.render(choices, self._engine_with(drawing)), basis
        return kept.result

    def _rendered(self, photo: Mapping[str, Any], result: Result) -> dict[str, Any]:
        from ficgan.deidentify.photos import is_replaced

        gate = self.engine.recognizer
        names = ("action", "note", "doubt", "matched")
        faces = [
            {name: getattr(face, name) for name in names}
            | {"distance": None if gate is None or face.distance is None else face.distance / gate.match_threshold}
            for face in result.faces
        ]
        pictures = {"after": jpeg(result.image, PREVIEW), "result": jpeg(result.image, THUMBNAIL, 80)}
        places = [not is_replaced(result.mask, _face(*place)) for place in photo["possible"]]
        people = {
            name: [one.code.tolist(), None if one.kind is None else one.kind.tolist(), one.step]
            for name, one in self.people.items()
            if name not in photo["people"] and name in photo["named"]
        }
        return {**pictures, "faces": faces, "open": places, "people": people}

    def meet(self, photo: Mapping[str, Any], first: bool) -> list[int]:
        """Who the faces of a photo are among those of all photos since the `first`: numbers from 1; 0: not told."""
        from ficgan.deidentify.found import FaceJob, Linked

        if first or self._meeting is None:
            films = self.engine.films.tools(self.engine.video_settings(), generate=False)  # it tells people apart
            assert films.recognizer is not None
            self._meeting = Linked(films.recognizer, None)
        retouch = self._open(photo)
        jobs = [FaceJob(face, "", 0.0) for face in retouch.faces]
        self._meeting.meet(retouch.image, jobs)
        return [int(job.key.removeprefix("person ")) if job.linked else 0 for job in jobs]

    def save(
        self, photo: Mapping[str, Any], drawing: Mapping[str, Any], name: str, output: Path, place: str, options: Any
    ) -> dict[str, Any]:
        """`render`, and write the result to `output`, with the side-car in what is returned."""
        from ficgan.records import new_photo, photo_record

        result = self._render(photo, drawing)
        data = Path(photo["path"]).read_bytes()
        made = new_photo(lambda image, key: result, data, name, output=place, max_pixels=MAX_PIXELS)
        write_new(output, made.data)
        return {**self._rendered(photo, result), "sidecar": photo_record(made, place, options)}

    # -- films --------------------------------------------------------------------------------------------------------

    def analyse(self, path: Path, folder: Path, mode: str) -> None:
        """Find the faces and people of a film, for a project in a folder."""
        from ficgan.video.film import analyse_film

        settings = self.engine.video_settings(mode=mode)
        tools = self.engine.video_tools(settings, generate=False)
        analyse_film(tools, path, folder, settings=settings, overwrite=True, progress=_report)

    def film(
        self,
        path: Path,
        folder: Path,
        output: Path,
        place: str,
        drawing: Mapping[str, Any],
        numbers: Mapping[str, Any],
        audio: Any,
        options: Any,
    ) -> dict[str, Any]:
        """Render a project to `output`; its side-car, notes, and faces that are still recognised."""
        from ficgan.files import file_digest
        from ficgan.records import film_record
        from ficgan.video.film import render_film
        from ficgan.video.settings import EncodeOptions, VideoSettings

        settings = VideoSettings(**numbers)
        result = render_film(
            self._engine_with(drawing).video_tools(settings),
            folder,
            path,
            output,
            settings=settings,
            encode=EncodeOptions(audio=audio),
            progress=_report,
        )
        record = film_record(result, output, place, options, input_sha256=file_digest(path))
        return {"sidecar": record, "notes": [*result.notes, *result.damage], "reidentified": result.reidentified}

    def preview(
        self,
        path: Path,
        folder: Path,
        stamp: Any,
        at: int,
        numbers: Mapping[str, Any],
        drawing: Mapping[str, Any],
        cuts: Sequence[int],
    ) -> dict[str, Any]:
        """A frame of a film as it will be rendered, and of some tracks the new face in it; stamp: of the project."""
        from ficgan.video.preview import Preview
        from ficgan.video.project import Project
        from ficgan.video.settings import VideoSettings

        basis = [str(path), numbers, drawing]
        if self._preview is None or self._preview.basis != basis:
            settings = VideoSettings(**numbers)
            drawn = Preview(self._engine_with(drawing).video_tools(settings), settings, path)
            self._preview = _OpenFilm(basis, drawn)
        kept = self._preview
        if kept.stamp != stamp:
            kept.preview.decide(Project.load(folder))
            kept.stamp = stamp
        image, plan = kept.preview(at, report), kept.preview.plan
        faces = {
            str(track.id): jpeg(around(image, track.boxes[row]), CUT)
            for track, row in plan.tracks.at(at)
            if track.id in cuts and plan.modes[track.id][row] == "ficgan"
        }
        return {"picture": jpeg(image, PREVIEW, 85), "cuts": faces}


def _place(face: Any) -> list[Any]:
    """Box, landmarks and score as numbers."""
    return [face.box.tolist(), face.landmarks.tolist(), float(face.score)]


def _face(box: Sequence[float], landmarks: Sequence[Sequence[float]], score: float) -> Any:
    from ficgan.faces import Face

    return Face(np.array(box, np.float32), np.array(landmarks, np.float32), score)


def around(image: Image, box: Sequence[float]) -> Image:
    """The square part of a picture around a box, with a margin."""
    x0, y0, x1, y1 = (float(value) for value in box)
    side, x, y = (0.5 + MARGIN) * max(x1 - x0, y1 - y0), (x0 + x1) / 2, (y0 + y1) / 2
    left, top, right, low = (max(0, round(v)) for v in (x - side, y - side, x + side, y + side))
    return image[top:low, left:right]


class _FrameReader:
    """Frames of one film by number; the next ones are decoded, others are jumped to."""

    def __init__(self, path: Path) -> None:
        self.path, self._at = path, -1
        self._source: VideoSource | None = None
        self._frames: Any = None
        self._image: Image | None = None

    def __call__(self, at: int, pts: int | None, start: float | None) -> Image:
        from ficgan.video.read import open_video

        if self._image is not None and at == self._at:
            return self._image
        if pts is None or self._source is None or not self._at < at <= self._at + STEPS:
            self.close()
            self._source = open_video(self.path, start=start)
            self._frames = self._source.frames()
        for frame in self._frames:
            if pts is None or frame.pts >= pts:
                self._at, self._image = at, frame.image
                return frame.image
        self.close()
        raise InputError(f"{self.path}: frame {at} cannot be decoded")

    def close(self) -> None:
        """Let go of the file."""
        if self._source is not None:
            self._frames.close()
            self._source.close()
        self._source, self._image, self._at = None, None, -1


def jpeg(image: NDArray[Any], longest: int, quality: int = 90) -> bytes:
    """A picture for the page, reduced to a longest side."""
    from PIL import Image as Picture

    picture = Picture.fromarray(np.ascontiguousarray(image)).convert("RGB")
    picture.thumbnail((longest, longest), Picture.Resampling.BILINEAR)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def write_new(path: Path, data: bytes) -> None:
    """A result, whole or not at all, and never over another file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(data)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); free space and save again") from error


def _report(*values: Any) -> None:
    """Tell how far a film is; ends it where it was cancelled."""
    if is_cancelled():
        raise InputError("the film was cancelled; nothing was written")
    report(*values)
