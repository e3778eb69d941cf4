"""The faces of a film that get new ones, as the model reads them, smoothed over the frames around."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.face_model import FaceModel, FaceReading
from ficgan.faces import Paste
from ficgan.video.decided import Appearance, FrameJob
from ficgan.video.source import Frame

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
    known: NDArray[np.float32] | None = None

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
    def landmarks(self) -> NDArray[np.float32]:
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
        kept = {key: self.model.of_row(a.found) for key, (_, a) in shown.items() if a.found is not None}
        new = [key for key in faces if key not in self._found and key not in bridged and key not in kept]
        self._found |= zip(new, self.model.find([faces[key] for key in new]), strict=True)
        self._found |= kept | bridged
        new = [key for key in faces if key not in self._readings and first - reach <= key[1] <= last + reach]
        smoothed = [self.model.smoothed(*self._window(self._found, key)) for key in new]
        for key, reading, found in zip(
            new, self.model.see([faces[key] for key in new], smoothed), smoothed, strict=True
        ):
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
        end = max(frame for _, frame in faces) if faces else last  # a film that is drawn again begins anew
        self._found = {key: mesh for key, mesh in self._found.items() if last - 2 * reach < key[1] <= end}
        self._readings = {key: reading for key, reading in self._readings.items() if last - reach < key[1] <= end}
        return wanted

    def recall(self, job: FrameJob, around: Sequence[FrameJob]) -> None:
        """Read the faces before a bridge that the next frames continue; `around` are the frames within the reach."""
        self.read([job], around)
        self._found, self._readings = {}, {}

    def restart(self) -> None:
        """Forget the faces of a film that is drawn again."""
        self._found, self._readings, self._last = {}, {}, {}

    def _window(self, rows: dict[FaceKey, Any], key: FaceKey) -> tuple[list[Any], int]:
        """What is known of a track without a gap around a frame, and the place of the frame in it."""
        track, frame = key
        first = last = frame
        while frame - first < self.reach and (track, first - 1) in rows:
            first -= 1
        while last - frame < self.reach and (track, last + 1) in rows:
            last += 1
        return [rows[track, n] for n in range(first, last + 1)], frame - first
