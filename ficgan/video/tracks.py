"""Tracks: how faces move, where a face is in each frame, and the gaps between its sightings filled.

A coordinate's velocity is an Ornstein-Uhlenbeck process. Source: Uhlenbeck and Ornstein 1930; Fraser and Potter, "The
optimum linear smoother as a combination of two optimum linear filters", 1969.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import NonNegativeInt

from ficgan.arrays import windows
from ficgan.faces import Face
from ficgan.faces.mesh import smooth_landmarks
from ficgan.folders import Box, Strict

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Motion:
    """Of one coordinate: deviation of a sighting, of the velocity (units a second), and its time constant in seconds;
    lengths are in units that a `scale` turns into the data's own."""

    noise: float
    speed: float
    memory: float

    def step(self, seconds: ArrayLike) -> tuple[Floats, Floats]:
        """Transition and covariance of (x, v) over times [...] ≥ 0: two float64 [...,2,2], for a scale of 1."""
        t, tau = np.asarray(seconds, np.float64), self.memory
        left, lost = np.exp(-t / tau), -np.expm1(-t / tau)
        gone = -np.expm1(-2 * t / tau)
        transition = np.stack([np.stack([np.ones_like(t), tau * lost], -1), np.stack([0 * t, left], -1)], -2)
        cross = tau * lost**2
        place = np.maximum(2 * tau * t - 4 * tau**2 * lost + tau**2 * gone, 0.0)
        return transition, self.speed**2 * np.stack([np.stack([place, cross], -1), np.stack([cross, gone], -1)], -2)


# Of a place, in sizes of the face (√(width·height)), and of the logarithms of width and height.
PLACE, LOG_SIZE = Motion(noise=0.03, speed=3.0, memory=0.5), Motion(noise=0.04, speed=0.4, memory=0.5)


@dataclass(eq=False)
class KalmanState:
    """What is known of D coordinates that move alike: mean [...,2,D] of (x, v), their common covariance [...,2,2]."""

    mean: Floats
    covariance: Floats

    @classmethod
    def first(cls, motion: Motion, seen: ArrayLike, scale: float = 1.0) -> KalmanState:
        """After the first sighting [D]: at that place, with any usual velocity."""
        x = np.asarray(seen, np.float64)
        return cls(np.stack([x, 0 * x]), np.diag([(motion.noise * scale) ** 2, (motion.speed * scale) ** 2]))

    def after(self, motion: Motion, seconds: ArrayLike, scale: ArrayLike = 1.0) -> KalmanState:
        transition, drift = motion.step(seconds)
        drift = drift * (np.asarray(scale) ** 2)[..., None, None]
        return KalmanState(transition @ self.mean, transition @ self.covariance @ transition.swapaxes(-1, -2) + drift)

    def seeing(self, motion: Motion, seen: ArrayLike, scale: float = 1.0) -> KalmanState:
        """Update by a sighting [D]."""
        gain = self.covariance[:, :1] / (self.covariance[0, 0] + (motion.noise * scale) ** 2)  # [2,1]
        keep = np.eye(2) - gain @ np.array([[1.0, 0.0]])
        # Joseph's form: stays symmetric and positive.
        covariance = keep @ self.covariance @ keep.T + gain @ gain.T * (motion.noise * scale) ** 2
        return KalmanState(self.mean + gain * (np.asarray(seen, np.float64) - self.mean[0]), covariance)


def measured(boxes: ArrayLike) -> tuple[Floats, Floats]:
    """Centres [...,2] and logarithms of width and height [...,2] of boxes [...,4]."""
    box = np.asarray(boxes, np.float64)
    return (box[..., :2] + box[..., 2:]) / 2, np.log(np.maximum(box[..., 2:] - box[..., :2], 1e-3))


def smooth(
    motion: Motion, times: ArrayLike, seen: ArrayLike, wanted: ArrayLike, scale: ArrayLike = 1.0
) -> tuple[Floats, Floats]:
    """Coordinates at wanted times [n] from sightings [m,D] at some: means [n,D] and standard deviations [n].

    A Kalman filter runs forwards, another one backwards (the process is the same with the velocity turned round); at a
    wanted time the two are joined by their precisions (Fraser and Potter 1969). `scale` is the unit of `motion`.
    """
    at, values, ask = (np.asarray(column, np.float64) for column in (times, seen, wanted))
    unit = np.broadcast_to(np.asarray(scale, np.float64), at.shape)
    past, before = _foretold(motion, at, values, unit, ask, "right")
    future, after = _foretold(motion, -at[::-1], values[::-1], unit[::-1], -ask, "left")
    turn = np.array([[1.0], [-1.0]])
    after = KalmanState(after.mean * turn, after.covariance * (turn @ turn.T))
    precision, weighted = np.zeros((len(ask), 2, 2)), np.zeros((len(ask), 2, values.shape[1]))
    for rows, state in ((past, before), (future, after)):
        inverse = np.linalg.inv(state.covariance)
        precision[rows] += inverse
        weighted[rows] += inverse @ state.mean
    precision[past & future, 1, 1] -= (motion.speed * unit.max()) ** -2  # the usual velocity, which both know
    covariance = np.linalg.inv(precision)
    return (covariance @ weighted)[:, 0], np.sqrt(covariance[:, 0, 0])


def _foretold(
    motion: Motion, at: Floats, seen: Floats, unit: Floats, ask: Floats, side: Literal["left", "right"]
) -> tuple[NDArray[np.bool_], KalmanState]:
    """Which times [n] come after a sighting (with `side` "right" or are one), and what those before foretell there."""
    states = [KalmanState.first(motion, seen[0], unit[0])]
    for k in range(1, len(at)):
        ahead = states[-1].after(motion, at[k] - at[k - 1], np.sqrt(unit[k] * unit[k - 1]))
        states.append(ahead.seeing(motion, seen[k], unit[k]))
    place = np.searchsorted(at, ask, side=side) - 1
    rows, since = place >= 0, place[place >= 0]
    units = np.concatenate([unit[:1], np.sqrt(unit[1:] * unit[:-1]), unit[-1:]])[since + 1]
    means, covariances = np.stack([one.mean for one in states]), np.stack([one.covariance for one in states])
    return rows, KalmanState(means[since], covariances[since]).after(motion, ask[rows] - at[since], units)


# A frame after all others.
FOREVER = 2**53
# Share of the box of a weaker find, or of the way to it, that lies in the box of a track and so is covered.
COVERED = 0.7
# How a track knows its place: the detector saw it; between two sightings; before the first or after the last; likely,
# or where another person may be.
SEEN, FILLED, PADDED, UNSURE = 0, 1, 2, 3
# Notes on tracks: of one sighting; of what is a face only by what joins it to others; of weaker finds or of what joins
# them to others.
ONCE, UNCONFIRMED, WEAK = "seen once", "unconfirmed", "weak find"


@dataclass(frozen=True, eq=False)
class Sighting:
    """One face found by the detector in one frame."""

    frame: int
    face: Face


class Reading(NamedTuple):
    """What a recogniser reads [d] of a face in a frame, and how much that is worth."""

    frame: int
    embedding: NDArray[np.float32]
    quality: float = 1.0


@dataclass(eq=False)
class Tracklet:
    """Sightings of one face, in the order of frames, that were followed without a break: what a track is made of.

    Args:
        scene: how many scene cuts came before.
        readings: of some of the sightings.
        weak: of finds below the detector's threshold.
        confirmed: whether anything but a weak score says that it is a face.
        since, until: where others are in its place before and after: its first frame, and the first of the next person.
        sure: last frame that surely shows this person; from there on it gets no face.
    """

    id: int
    sightings: list[Sighting]
    scene: int = 0
    readings: Sequence[Reading] = ()
    person: int = 0
    weak: bool = False
    confirmed: bool = True
    since: int = 0
    until: int = FOREVER
    sure: int = FOREVER

    @property
    def first(self) -> int:
        return self.sightings[0].frame

    @property
    def last(self) -> int:
        return self.sightings[-1].frame


class BoxKey(Strict):
    """Where a person set a box in one frame."""

    frame: NonNegativeInt
    box: Box


@dataclass(eq=False)
class Track:
    """One face over a run of consecutive frames: one row for every frame from `first` on, without gaps.

    Args:
        boxes: [n,4] x0, y0, x1, y1.
        landmarks: [n,5,2].
        scores: [n] of the detector; 0 where it did not see the face.
        origin: [n] SEEN, FILLED, PADDED or UNSURE.
        person: from 1; 0 while unknown. Tracks of one person get one identity.
        kind: name of what it is, such as "plates"; "": a face.
        keys: where a person moved it to, in the order of frames; `TrackSet` moves it.
    """

    id: int
    first: int
    boxes: NDArray[np.float32]
    landmarks: NDArray[np.float32]
    scores: NDArray[np.float32]
    origin: NDArray[np.uint8]
    person: int = 0
    notes: Sequence[str] = ()
    kind: str = ""
    keys: Sequence[BoxKey] = ()

    @property
    def last(self) -> int:
        """Number of the last frame with a row."""
        return self.first + len(self.boxes) - 1

    def __len__(self) -> int:
        return len(self.boxes)

    def part(self, first: int, last: int) -> Track:
        """Its rows from one to another."""
        rows = slice(first, last + 1)
        columns = {name: getattr(self, name)[rows] for name in ("boxes", "landmarks", "scores", "origin")}
        return replace(self, first=self.first + first, **columns)

    def face(self, row: int) -> Face:
        return Face(self.boxes[row], self.landmarks[row], float(self.scores[row]))


def moved(track: Track) -> Track:
    """A track as its `keys` say: there its boxes are as given. Between two of them what they changed goes over evenly;
    before the first and after the last it stays. Landmarks move with their box."""
    if not track.keys:
        return track
    frames = np.array([key.frame for key in track.keys])
    old = track.boxes.astype(np.float64)
    change = np.array([key.box for key in track.keys]) - old[frames - track.first]
    rows = np.arange(track.first, track.last + 1)
    boxes = old + np.stack([np.interp(rows, frames, side) for side in change.T], axis=1)
    boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 1)
    share = (track.landmarks - old[:, None, :2]) / (old[:, None, 2:] - old[:, None, :2])
    landmarks = boxes[:, None, :2] + share * (boxes[:, None, 2:] - boxes[:, None, :2])
    boxes, landmarks = ((10 * side).round() / 10 for side in (boxes, landmarks))  # as they lie in files
    return replace(track, boxes=boxes.astype(np.float32), landmarks=landmarks.astype(np.float32))


class TrackSet:
    """The tracks of a film where people moved them to, looked up by frame, in the order of their first frames."""

    def __init__(self, tracks: Iterable[Track]):
        self.tracks = sorted(map(moved, tracks), key=lambda track: (track.first, track.id))
        self._first = np.array([track.first for track in self.tracks], np.int64)
        self._last = np.array([track.last for track in self.tracks], np.int64)

    def __iter__(self) -> Iterator[Track]:
        return iter(self.tracks)

    def at(self, frame: int) -> list[tuple[Track, int]]:
        """The tracks that are in a frame, each with its row, in the order of their first frames."""
        present = np.flatnonzero((self._first <= frame) & (frame <= self._last))
        return [(self.tracks[number], frame - self.tracks[number].first) for number in present]

    def over(self, track: Track, row: int, share: float) -> Iterator[tuple[Track, int]]:
        """Others, with their rows, in whose boxes such a share of a track's box lies in the frame of its row."""
        for other, there in self.at(track.first + row):
            if other is not track and share_in(track.boxes[row], other.boxes[there]) >= share:
                yield other, there


def runs(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and last of each run of true ones."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return [(int(first), int(last) - 1) for first, last in edges.reshape(-1, 2)]


# Standard deviations of the interpolated place by which a box grows on each side.
GROWTH = 1.5
# The most it grows, in sizes of the face, between two sightings and beyond them.
MOST, MOST_PADDED = 0.5, 0.2
# Seconds on either side over which the growth is the largest one, so that boxes do not pulsate.
STEADY = 0.16
# Share of the growth that is left for a face whose sightings lie on a straight, even way; but in gaps of more seconds
# it is whole.
CALM, CERTAIN = 0.3, 0.7


def fill_tracks(tracklets: Sequence[Tracklet], cuts: Sequence[int], times: ArrayLike, pad: float) -> list[Track]:
    """Tracks numbered from 1 by first sighting, within scenes, `pad` seconds longer; `times` [frames] in seconds."""
    clock = np.asarray(times, np.float64)
    bounds = [0, *cuts, len(clock)]
    tracks = []
    for number, tracklet in enumerate(sorted(tracklets, key=lambda tracklet: (tracklet.first, tracklet.id)), start=1):
        # A pad that falls short by rounding is a frame short.
        first = int(np.searchsorted(clock, clock[tracklet.first] - pad - 1e-6))
        end = int(np.searchsorted(clock, clock[tracklet.last] + pad + 1e-6, side="right"))
        scene = int(np.searchsorted(bounds, tracklet.first, side="right"))
        first = max(first, bounds[scene - 1], tracklet.since)
        end = min(end, bounds[scene], tracklet.until)
        track = fill_track(tracklet.sightings, first, clock[first:end], id=number)
        track.person = tracklet.person
        once, unsure = len(tracklet.sightings) == 1, not tracklet.confirmed
        track.notes = (WEAK,) if tracklet.weak else (ONCE,) * once + (UNCONFIRMED,) * unsure
        track.origin[tracklet.sure + 1 - first :] = UNSURE
        tracks.append(track)
    return tracks


def without_double_pads(tracks: Sequence[Track]) -> list[Track]:
    """Tracks without the outer rows of pads that lie in another track's box, which covers that head already."""
    known = TrackSet(tracks)

    def doubled(track: Track, row: int, end: int) -> bool:
        # The last box before a pad has grown to twice its area, by what is not known of the place then.
        box = track.boxes[np.flatnonzero(track.origin != PADDED)[end]]
        return bool(track.origin[row] == PADDED) and any(
            other.id != track.id
            and other.origin[n] <= FILLED
            and share_in(other.boxes[n], box) >= COVERED
            and share_in(box, other.boxes[n]) >= COVERED / 2
            for other, n in known.at(track.first + row)
        )

    trimmed = []
    for track in tracks:
        first, last = 0, len(track) - 1
        while first < last and doubled(track, first, 0):
            first += 1
        while last > first and doubled(track, last, -1):
            last -= 1
        trimmed.append(track.part(first, last))
    return trimmed


def fill_weak(
    tracklets: Sequence[Tracklet], tracks: Sequence[Track], cuts: Sequence[int], times: ArrayLike, pad: float
) -> list[Track]:
    """Tracks of tracklets with weaker finds, where `tracks` do not cover them; all their rows are unsure."""
    known = TrackSet(tracks)
    found: list[Track] = []
    for track in fill_tracks(tracklets, cuts, times, pad):
        bare = np.array([not any(known.over(track, row, COVERED)) for row in range(len(track))])
        for first, last in runs(bare):
            part = track.part(first, last)
            nothing, origin = np.zeros(len(part), np.float32), np.full(len(part), UNSURE, np.uint8)
            found.append(replace(part, id=len(tracks) + len(found) + 1, scores=nothing, origin=origin))
    return found


def share_in(box: NDArray[np.floating], of: NDArray[np.floating]) -> float:
    """Share of a box that lies in another."""
    common = (np.minimum(box[2:], of[2:]) - np.maximum(box[:2], of[:2])).clip(0)
    return float(common.prod() / max(float((box[2:] - box[:2]).prod()), 1e-6))


def fill_track(sightings: Sequence[Sighting], first: int, clock: Floats, *, id: int = 1) -> Track:
    """A track with a row for every frame, from sightings of one face within one scene.

    Between sightings the centre follows the smoothed motion and the box holds the straight way too; it grows with the
    uncertainty. A seen box is never made smaller. Boxes may reach beyond the picture, as faces do. `clock` [n] are the
    seconds at which the frames from `first` on are shown.
    """
    rows = np.array([sighting.frame for sighting in sightings], np.int64) - first
    at = clock[rows]
    boxes = np.stack([sighting.face.box for sighting in sightings]).astype(np.float64)
    centre, log_size = measured(boxes)
    size = np.exp(log_size.mean(1))
    middle, loose = smooth(PLACE, at, centre, clock, size)
    logs, vague = smooth(LOG_SIZE, at, log_size, clock)
    # The smoothed size never falls below what was seen on both sides.
    half = np.exp(np.maximum(logs, _interpolated(clock, at, log_size))) / 2
    straight = _interpolated(clock, at, centre)

    origin = np.full(len(clock), FILLED, np.uint8)
    origin[: rows[0]] = origin[rows[-1] :] = PADDED
    origin[rows] = SEEN
    unit = np.exp(_interpolated(clock, at, np.log(size)[:, None]))[:, 0]
    cap = np.where(origin == PADDED, MOST_PADDED, MOST) * unit
    spread = (loose + vague * unit / 2) * _liveliness(clock, at, centre, size)
    margin = np.minimum(GROWTH * spread, cap)
    margin[rows] = 0.0
    if len(clock) > 2:  # the largest margin around each frame, without corners; nowhere below what it was
        reach = round(STEADY / float(np.median(np.diff(clock))))
        margin = np.maximum(margin, windows(windows(margin, reach).max(1), reach).mean(1))
    grown = half + margin[:, None]
    # In a seen frame the straight way is the sighting itself: the box holds it and the smoothed one.
    filled = np.concatenate([np.minimum(middle, straight) - grown, np.maximum(middle, straight) + grown], 1)
    # Between sightings landmarks keep their places inside the boxes, linear from one to the next.
    marks = np.stack([sighting.face.landmarks for sighting in sightings]).astype(np.float64)
    inside = (marks - centre[:, None]) / np.exp(log_size)[:, None]
    inside = _interpolated(clock, at, inside.reshape(len(at), 10)).reshape(-1, 5, 2)
    landmarks = middle[:, None] + inside * np.exp(logs)[:, None]
    landmarks[rows] = marks
    landmarks = smooth_landmarks(landmarks, (len(clock) - 1) / (clock[-1] - clock[0]) if len(clock) > 1 else 25.0)
    scores = np.zeros(len(clock), np.float32)
    scores[rows] = [sighting.face.score for sighting in sightings]
    return Track(id, first, filled.astype(np.float32), landmarks.astype(np.float32), scores, origin)


def _interpolated(clock: Floats, at: Floats, values: Floats) -> Floats:
    return np.stack([np.interp(clock, at, column) for column in values.T], 1)


def _liveliness(clock: Floats, at: Floats, centre: Floats, size: Floats) -> Floats:
    """Share of the growth that each frame needs [n], from how far the sightings around it lie off an even way.

    Under `PLACE` a sighting lies off the chord of its neighbours, h and H seconds away, with the variance
    2·speed²/memory·h²·H²/(3·(h + H)), besides the detector's own errors.
    """
    if len(at) < 4:
        return np.ones(len(clock))
    before, after = np.diff(at)[:-1], np.diff(at)[1:]
    share = (before / (before + after))[:, None]
    off = (centre[1:-1] - centre[:-2] * (1 - share) - centre[2:] * share) / size[1:-1, None]
    usual = 2 * PLACE.speed**2 / PLACE.memory * (before * after) ** 2 / (3 * (before + after))
    error = PLACE.noise**2 * (1 + share[:, 0] ** 2 + (1 - share[:, 0]) ** 2)
    ratio = np.sqrt(np.maximum((off**2).mean(1) - error, 0) / usual)  # [m-2]
    # A gap asks the two sightings at its ends and one more on each side.
    padded = np.pad(ratio, 2, mode="edge")  # of the sightings -1 … m
    gaps = np.lib.stride_tricks.sliding_window_view(padded, 4).max(1)  # [m-1]
    gaps = np.clip(gaps, CALM, 1.0)
    gaps[np.diff(at) > min(CERTAIN, 2.5 * float(np.median(np.diff(at))))] = 1.0
    place = np.searchsorted(at, clock, side="right") - 1
    return np.where((place < 0) | (place >= len(gaps)), 1.0, gaps[np.clip(place, 0, len(gaps) - 1)])
