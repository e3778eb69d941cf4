"""Tracks: where one face is in each frame, whose it is, and what shall happen to it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ficgan.faces import Face

__all__ = ["FILLED", "PADDED", "SEEN", "Sighting", "Track"]

SEEN, FILLED, PADDED = 0, 1, 2
"""How a track knows its place in a frame: the detector saw it; interpolated between two sightings; extended before the
first or after the last."""


@dataclass(frozen=True, eq=False)
class Sighting:
    """One face found by the detector in one frame."""

    frame: int
    face: Face


@dataclass(eq=False)
class Track:
    """One face over a run of consecutive frames.

    After filling there is one row for every frame from `first` on, without gaps.
    """

    id: int
    """From 1, in the order of appearance."""
    first: int
    """Number of the first frame with a row."""
    boxes: NDArray[np.float32]
    """[n,4] x0, y0, x1, y1."""
    landmarks: NDArray[np.float32]
    """[n,5,2]."""
    scores: NDArray[np.float32]
    """[n] of the detector; 0 where it did not see the face."""
    origin: NDArray[np.uint8]
    """[n] SEEN, FILLED or PADDED."""
    person: int = 0
    """Number of the person this track shows, from 1; 0 while unknown. Tracks of one person get one identity."""
    notes: list[str] = field(default_factory=list)

    @property
    def last(self) -> int:
        """Number of the last frame with a row."""
        return self.first + len(self.boxes) - 1

    def __len__(self) -> int:
        return len(self.boxes)

    def row(self, frame: int) -> int | None:
        """Index of the row of a frame, None where the track is not there."""
        return frame - self.first if self.first <= frame <= self.last else None

    def face(self, frame: int) -> Face:
        """The face as it is known in a frame of the track."""
        row = frame - self.first
        return Face(self.boxes[row], self.landmarks[row], float(self.scores[row]))
