"""Tracks: where one face is in each frame, whose it is, and what shall happen to it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.faces import Face

__all__ = ["FILLED", "PADDED", "SEEN", "Sighting", "Track", "TrackSet", "Tracklet"]

SEEN, FILLED, PADDED = 0, 1, 2
"""How a track knows its place in a frame: the detector saw it; interpolated between two sightings; extended before the
first or after the last."""


@dataclass(frozen=True, eq=False)
class Sighting:
    """One face found by the detector in one frame."""

    frame: int
    face: Face


@dataclass(eq=False)
class Tracklet:
    """Sightings of one face that were followed without a break: what a track is made of."""

    id: int
    """From 1, in the order of appearance."""
    sightings: list[Sighting]
    """In the order of frames, at least one."""
    scene: int = 0
    """How many scene cuts came before."""
    embeddings: NDArray[np.float32] | None = None
    """[m,d] of some of the sightings."""
    quality: NDArray[np.float32] | None = None
    """[m], how much each embedding is worth, 0 or more; None where all are worth the same."""
    person: int = 0
    """As of a track."""
    notes: list[str] = field(default_factory=list)

    @property
    def first(self) -> int:
        """Frame of the first sighting."""
        return self.sightings[0].frame

    @property
    def last(self) -> int:
        """Frame of the last sighting."""
        return self.sightings[-1].frame


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

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; places in tenths of a pixel, scores in thousandths, as whole numbers.

        Raises:
            InputError: A number is NaN or infinite.
        """
        columns = {"boxes": (self.boxes, 10), "landmarks": (self.landmarks, 10), "scores": (self.scores, 1000)}
        if not all(np.isfinite(values).all() for values, _ in columns.values()):
            raise InputError(f"Track {self.id} holds a number that is NaN or infinite: analyse the film again.")
        whole = {name: np.rint(np.asarray(v, np.float64) * u).astype(int).tolist() for name, (v, u) in columns.items()}
        return {
            "id": self.id, "first": self.first, "person": self.person, "notes": list(self.notes),
            **whole, "origin": self.origin.tolist(),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, tree: dict[str, Any]) -> Track:
        """The track of `to_dict`; the way there and back again changes nothing more.

        Raises:
            InputError: Something is missing or has another length.
        """
        try:
            boxes, landmarks = (np.array(tree[name], np.float64) / 10 for name in ("boxes", "landmarks"))
            scores, origin = np.array(tree["scores"], np.float64) / 1000, np.array(tree["origin"], np.uint8)
            track = cls(
                int(tree["id"]), int(tree["first"]), boxes.astype(np.float32), landmarks.astype(np.float32),
                scores.astype(np.float32), origin, int(tree["person"]), [str(note) for note in tree["notes"]],
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"A track is damaged ({type(error).__name__}: {error}): analyse the film again.") from None
        n = len(track.boxes)
        shapes = (track.boxes.shape, track.landmarks.shape, track.scores.shape, track.origin.shape)
        if n == 0 or shapes != ((n, 4), (n, 5, 2), (n,), (n,)):
            raise InputError(f"Track {track.id} is damaged: its columns have the shapes {shapes}.")
        return track


class TrackSet:
    """The tracks of a film, looked up by frame.

    Args:
        tracks: in any order; they stand in the order of their first frames.
    """

    def __init__(self, tracks: Iterable[Track]):
        self.tracks = sorted(tracks, key=lambda track: (track.first, track.id))
        # The sets of tracks present change only at these frames.
        edges = sorted({edge for track in self.tracks for edge in (track.first, track.last + 1)})
        self._edges, self._present = edges, [[] for _ in edges]  # type: list[int], list[list[Track]]
        place = {edge: number for number, edge in enumerate(edges)}
        for track in self.tracks:
            for number in range(place[track.first], place[track.last + 1]):
                self._present[number].append(track)

    def __iter__(self) -> Iterator[Track]:
        return iter(self.tracks)

    def __len__(self) -> int:
        return len(self.tracks)

    def at(self, frame: int) -> list[tuple[Track, int]]:
        """The tracks that are in a frame, each with its row, in the order of their first frames."""
        place = bisect_right(self._edges, frame) - 1
        return [(track, frame - track.first) for track in self._present[place]] if place >= 0 else []
