"""Faces in the frames of a film: covered, or as the model reads them, smoothed over the frames around."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ficgan.anonymizers import Images
from ficgan.anonymizers.modes import Methods, aligned_crop, cover, paste_aligned, placement
from ficgan.errors import InputError, UsageError
from ficgan.face_model import FaceModel, FaceReading, Floats
from ficgan.faces import Face, Paste, colour_beside, cover_face
from ficgan.faces.covers import Colour
from ficgan.options import HIDING
from ficgan.policy import covered
from ficgan.video import VideoSettings
from ficgan.video.decided import Appearance, FrameJob
from ficgan.video.source import Frame

# Share of a track's box that is the face. It holds the smoothed and the seen place and a margin: in three films it was
# 1.07 to 1.2 times the detector's own. Judged by its whole size, good faces turned black for a few frames.
LEAST_FACE = 0.9
# Standard deviation of the blur as a fraction of the face's longer side.
BLUR = 0.15
# Area of a detector's box over the square of its landmarks' larger extent.
BOX_OVER_LANDMARKS = 5.0


class Covers:
    """Covers faces of frames.

    All that is drawn for a person is drawn once: fresh noise would average out over the film. A plain cover has one
    colour in all of a track. `coverage` is the least weight of a method's mask at the landmarks and in the middle.
    """

    def __init__(self, methods: Methods, settings: VideoSettings, coverage: float) -> None:
        self._methods, self._settings, self._coverage = methods, settings, coverage
        self._scale = max(1.0, settings.mask_scale)
        # Mode and person → the crop that stands for the person.
        self.stills: dict[tuple[str, str], Images] = {}
        # Track → colour of its plain covers; −1 − n for the n-th of the boxes that a person added.
        self.colours: dict[int, Colour] = {}

    def __call__(
        self,
        out: Images,
        face: Face,
        mode: str,
        track: int,
        person: str = "",
        views: Callable[[], Iterable[tuple[Images, Face]]] = tuple,
    ) -> str:
        """Cover a face in a frame [H,W,3], in place, by any mode but "ficgan" and "keep"; returns the mode used.

        `views` gives frames with the face, to find its colour in.
        """
        if mode in HIDING:
            if mode == "plain" and track not in self.colours:
                self.colours[track] = colour_beside(views() or [(out, face)])
            colour = self.colours.get(track)
            cover_face(out, face, mode, colour=colour, blur=BLUR, mask_scale=self._scale).onto(out)
            return mode
        method = self._methods(mode)
        try:
            paste = self._applied(out, face, mode, person)
        except (InputError, UsageError):
            if method.traits.family == "external":
                raise
            paste = None
        if paste is None or not hides(paste.mask, face, self._coverage):
            return self(out, face, self._settings.fallback, track, views=views)
        paste.onto(out)
        return method.name

    def _applied(self, out: Images, face: Face, mode: str, person: str) -> Paste:
        method = self._methods(mode)
        name = self._methods.name(person)
        if placement(method) != "aligned":
            return cover(method, out, face, name=name, mask_scale=self._scale, stepped=True)
        if (mode, person) not in self.stills:
            self.stills[mode, person] = aligned_crop(method, out, face, name=name)
        return paste_aligned(out, self.stills[mode, person], face, mask_scale=self._settings.mask_scale)


# Weight of a new face from which on nothing of the source is left.
_WHOLE = 0.99


def bring_back(out: Images, paste: Paste, before: Images, other: Face | None) -> None:
    """Take a cover off a new face that it was drawn over, in place, where the new face leaves nothing of the source.

    Args:
        before: [h,w,3] of the paste's region, without the cover.
        other: the face that the cover hides; the ellipse of its box stays covered. None: nothing stays.
    """
    clear = paste.weight >= _WHOLE
    if other is not None:
        (x0, y0), (x1, y1) = other.box[:2], other.box[2:]
        y, x = np.ogrid[: clear.shape[0], : clear.shape[1]]
        across = (2 * (x + paste.x0) - x0 - x1) / (x1 - x0)
        down = (2 * (y + paste.y0) - y0 - y1) / (y1 - y0)
        clear &= across**2 + down**2 > 1
    paste.region(out)[clear] = before[clear]


def hides(mask: Floats, face: Face, coverage: float, outline: Floats | None = None) -> bool:
    """Whether a mask [H,W] hides a face of a track; `outline` [n,2] is that of the face's mesh in this frame."""
    centre = np.tile((face.box[:2] + face.box[2:]) / 2, 2)
    box = centre + LEAST_FACE * (face.box - centre)
    return covered(mask, face.landmarks, box, coverage, outline)


def colour_views(jobs: Sequence[FrameJob], frame: int, track: int) -> list[tuple[Images, Face]]:
    """A track's face in a frame and the later ones at hand; of earlier ones an interrupted film has others at hand."""
    return [
        (job.frame.image, appearance.face)
        for job in jobs
        if job.frame.index >= frame
        for appearance in job.appearances
        if appearance.track == track
    ]


def without_landmarks(box: Floats) -> Face:
    return Face(box, np.full((5, 2), np.nan, np.float32), 0.0)


def face_area(face: Face) -> float:
    """Of a face by its landmarks: a box between two finds is larger than the face. Of one without landmarks its box."""
    extent = float(np.ptp(face.landmarks, axis=0).max())
    return BOX_OVER_LANDMARKS * extent**2 if np.isfinite(extent) else float(np.prod(face.box[2:] - face.box[:2]))


# Track and frame.
FaceKey = tuple[int, int]


@dataclass(eq=False)
class FilmFace:
    """A face that shall be generated.

    Args:
        paste, made: the new face on the source's frame, and as the model has drawn it.
        known: what the gate reads of the source, at each of `landmarks`.
    """

    frame: Frame
    appearance: Appearance
    reading: FaceReading
    paste: Paste | None = None
    made: Any = None
    known: Floats | None = None

    @property
    def track(self) -> int:
        return self.appearance.track

    @property
    def person(self) -> str:
        return self.appearance.person

    @property
    def key(self) -> FaceKey:
        return self.track, self.frame.index

    @property
    def landmarks(self) -> Floats:
        """[1 or 2,5,2], where the gate reads: at the track's, which may lie beside a face that is tilted or moves fast,
        and at those that the model found on it in this frame. Who looks at the film may place them as well or badly."""
        own, found = self.appearance.face.landmarks, self.reading.landmarks
        return own[None] if found is None else np.stack([own, found])


class FaceReader:
    """Source faces of a film as the model sees them, smoothed over `reach` frames on either side."""

    def __init__(self, model: FaceModel, reach: int) -> None:
        self.model, self.reach = model, reach
        self._found: dict[FaceKey, Any] = {}
        self._readings: dict[FaceKey, FaceReading] = {}
        # Track → the last reading of the face itself, which stands in where the face cannot be read.
        self._last: dict[int, FaceReading] = {}

    def read(self, jobs: Sequence[FrameJob], around: Sequence[FrameJob] = ()) -> list[FilmFace]:
        """The faces of the jobs that shall be generated."""
        first, last, reach = jobs[0].frame.index, jobs[-1].frame.index, self.reach
        shown = {
            (appearance.track, job.frame.index): (job.frame, appearance)
            for job in sorted([*jobs, *around], key=lambda job: job.frame.index)
            for appearance in job.appearances
            if appearance.mode == "ficgan"
        }
        faces = {key: (frame.image, appearance.face) for key, (frame, appearance) in shown.items()}
        bridged = {key: appearance.bridged for key, (_, appearance) in shown.items() if appearance.bridged is not None}
        self._found |= {key: self.model.of_row(a.found) for key, (_, a) in shown.items() if a.found is not None}
        self._found |= bridged
        new = [key for key in faces if key not in self._found]
        self._found |= zip(new, self.model.find([faces[key] for key in new]), strict=True)
        new = [key for key in faces if key not in self._readings and first - reach <= key[1] <= last + reach]
        smoothed = [self.model.smoothed(*self._window(self._found, key)) for key in new]
        readings = self.model.see([faces[key] for key in new], smoothed)
        for key, reading, found in zip(new, readings, smoothed, strict=True):
            known = self._last.get(key[0])
            if known is not None and key in bridged:
                reading = self.model.bridged(known, found)
            elif not reading.problem:
                self._last[key[0]] = reading
            self._readings[key] = reading
        wanted = [
            FilmFace(frame, appearance, self.model.steadied(*self._window(self._readings, key)))
            for key, (frame, appearance) in shown.items()
            if first <= key[1] <= last
        ]
        self._found = {key: mesh for key, mesh in self._found.items() if last - 2 * reach < key[1]}
        self._readings = {key: reading for key, reading in self._readings.items() if last - reach < key[1]}
        return wanted

    def _window(self, rows: dict[FaceKey, Any], key: FaceKey) -> tuple[list[Any], int]:
        """What is known of a track without a gap around a frame, and the place of the frame in it."""
        track, frame = key
        first = last = frame
        while frame - first < self.reach and (track, first - 1) in rows:
            first -= 1
        while last - frame < self.reach and (track, last + 1) in rows:
            last += 1
        return [rows[track, n] for n in range(first, last + 1)], frame - first
