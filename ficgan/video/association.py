"""Detections become tracklets: which face of this frame is which face of the frames before.

Source: Bewley et al., "Simple online and realtime tracking", 2016 (Kalman filter, assignment); Zhang et al.,
"ByteTrack", 2022, section 3 (weak detections continue tracks and start none).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from ficgan.errors import UsageError
from ficgan.faces import Face
from ficgan.video.motion import LOG_SIZE, PLACE, Motion, State, measured
from ficgan.video.tracks import Sighting, Tracklet

__all__ = ["ONCE", "AssociationConfig", "Associator", "Step"]

Floats = NDArray[np.float64]

ONCE = "seen once"
"""Note of a tracklet with one sighting."""


@dataclass(frozen=True)
class AssociationConfig:
    """Numbers of following.

    Args:
        high: score from which a detection may start a tracklet. Scores are comparable within one detector only; 0 lets
            every detection start one.
        low: score from which a detection may continue one.
        patience: seconds without a sighting after which a tracklet ends.
        reach: the farthest a face may be from where it was expected, in sizes.
        gate: the same in standard deviations.
        sudden: seconds; a face seen no longer ago that nothing else explains may have moved at any speed up to `dash`.
        dash: sizes per second.
        leap: sizes, the farthest it may then be.
        resize: the largest difference of the logarithm of the size.
        limit: cost from which two do not belong together.
        growth, most: how much the box of `Associator.expected` grows: standard deviations, and at most sizes a side.
        place, log_size: motion, lengths in sizes of the face.
    """

    high: float = 0.0
    low: float = 0.0
    patience: float = 1.5
    reach: float = 2.0
    gate: float = 4.0
    sudden: float = 0.5
    dash: float = 10.0
    leap: float = 3.0
    resize: float = 0.5
    limit: float = 50.0
    growth: float = 1.5
    most: float = 0.5
    place: Motion = PLACE
    log_size: Motion = LOG_SIZE

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise UsageError(f"low is {self.low} and high {self.high}: weak detections cannot score above strong ones.")
        if not (math.isfinite(self.patience) and self.patience >= 0):
            raise UsageError(f"patience is {self.patience}; give seconds, 0 or more.")


@dataclass(frozen=True)
class Step:
    """What one frame brought."""

    ids: list[int]
    """Tracklet of each face given, in their order; 0 for a face that neither continued nor started one."""
    ended: list[Tracklet]
    """Tracklets that are over, in the order of their ids."""


@dataclass(eq=False)
class _Active:
    """A tracklet that may go on."""

    tracklet: Tracklet
    time: float
    place: State
    log_size: State

    @property
    def size(self) -> float:
        return float(np.exp(self.log_size.mean[0].mean()))


class Associator:
    """Follows faces from frame to frame, one film at a time.

    Args:
        rate: frames per second, for frames given without a time.
        config: numbers.
    """

    def __init__(self, rate: float = 25.0, config: AssociationConfig | None = None):
        if not (math.isfinite(rate) and rate > 0):
            raise UsageError(f"The frame rate is {rate}: give frames per second above 0.")
        self._rate, self._config = rate, config or AssociationConfig()
        self._active: list[_Active] = []
        self._ids = self._scene = 0
        self._frame, self._time = -1, -math.inf

    def step(self, frame: int, faces: Sequence[Face] | None, cut: bool = False, time: float | None = None) -> Step:
        """Take the next frame.

        Args:
            frame: its number; frames may be left out, none comes twice.
            faces: what the detector found, None where it did not look.
            cut: a new scene begins with this frame.
            time: seconds at which it is shown; None: by the rate.

        Returns:
            The tracklet of each face, and the tracklets that ended.

        Raises:
            UsageError: The frame, or its time, is not later than the last one's.
        """
        now = frame / self._rate if time is None else time
        if frame <= self._frame or not now > self._time:
            raise UsageError(f"Frame {frame} at {now} s comes after frame {self._frame} at {self._time} s.")
        self._frame, self._time = frame, now
        ended = []
        if cut:
            ended, self._active = self._active, []
            self._scene += 1
        ended += [one for one in self._active if now - one.time > self._config.patience]
        self._active = [one for one in self._active if now - one.time <= self._config.patience]
        ids = self._follow(frame, now, faces) if faces else []
        return Step(ids, _finished(ended))

    def finish(self) -> list[Tracklet]:
        """The film is over: the tracklets that were still going on."""
        ended, self._active = self._active, []
        return _finished(ended)

    def expected(self, time: float | None = None) -> list[tuple[int, Face]]:
        """The faces as they are expected, for frames in which the detector did not look.

        The box grows with the uncertainty and holds the place of the last sighting.

        Args:
            time: seconds, not before the last step; None: of the last step.

        Returns:
            Tracklet and face of every tracklet that has not ended; score 0 where the face was not seen at that time.
        """
        now, config = self._time if time is None else time, self._config
        found = []
        for one in self._active:
            last = one.tracklet.sightings[-1].face
            if now <= one.time:
                found.append((one.tracklet.id, last))
                continue
            size = one.size
            place = one.place.after(config.place, now - one.time, size)
            logs = one.log_size.after(config.log_size, now - one.time)
            half = np.exp(logs.mean[0]) / 2
            spread = math.sqrt(place.covariance[0, 0]) + math.sqrt(logs.covariance[0, 0]) * size / 2
            grown = half + min(config.growth * spread, config.most * size)
            box = np.concatenate([
                np.minimum(place.mean[0] - grown, last.box[:2]), np.maximum(place.mean[0] + grown, last.box[2:])
            ])  # fmt: skip
            centre, log_size = measured(last.box)
            landmarks = place.mean[0] + (last.landmarks - centre) * 2 * half / np.exp(log_size)
            found.append((one.tracklet.id, Face(box.astype(np.float32), landmarks.astype(np.float32), 0.0)))
        return found

    def _follow(self, frame: int, now: float, faces: Sequence[Face]) -> list[int]:
        config, ids = self._config, [0] * len(faces)
        usable = [number for number, face in enumerate(faces) if _usable(face)]
        strong = [number for number in usable if faces[number].score >= config.high]
        weak = [number for number in usable if config.low <= faces[number].score < config.high]
        waiting = list(self._active)
        for numbers, sudden in ((strong, False), (strong, True), (weak, False)):
            rest = [number for number in numbers if not ids[number]]
            for one, number in self._pairs(waiting, rest, faces, now, sudden):
                self._see(one, frame, now, faces[number])
                ids[number] = one.tracklet.id
            waiting = [one for one in waiting if one.time < now]
        for number in strong:
            if not ids[number]:
                ids[number] = self._start(frame, now, faces[number])
        return ids

    def _pairs(
        self, tracks: list[_Active], numbers: list[int], faces: Sequence[Face], now: float, sudden: bool
    ) -> list[tuple[_Active, int]]:
        """The cheapest assignment of detections to tracks, without those that do not belong together."""
        if sudden:
            tracks = [one for one in tracks if now - one.time <= self._config.sudden]
        if not tracks or not numbers:
            return []
        cost = self._cost(tracks, np.stack([faces[number].box for number in numbers]), now, sudden)
        # A pair at the limit is as good as none, so the assignment does not stretch one pair to save another.
        rows, columns = linear_sum_assignment(cost)
        return [
            (tracks[row], numbers[column])
            for row, column in zip(rows, columns, strict=True)
            if cost[row, column] < self._config.limit
        ]

    def _cost(self, tracks: list[_Active], boxes: NDArray[np.float32], now: float, sudden: bool) -> Floats:
        """[tracks, boxes] -2 log of the likelihood of a sighting but a constant, plus 1 - IoU; at most the limit."""
        config = self._config
        size = np.array([one.size for one in tracks])
        places = [one.place.after(config.place, now - one.time, s) for one, s in zip(tracks, size, strict=True)]
        sizes = [one.log_size.after(config.log_size, now - one.time) for one in tracks]
        # Variances of what the detector will say, lengths in sizes: [tracks, 1].
        loose = np.array([one.covariance[0, 0] for one in places])[:, None] / size[:, None] ** 2 + config.place.noise**2
        vague = np.array([one.covariance[0, 0] for one in sizes])[:, None] + config.log_size.noise**2
        middle, logs = np.stack([one.mean[0] for one in places]), np.stack([one.mean[0] for one in sizes])
        centre, log_size = measured(boxes)
        away = np.linalg.norm(middle[:, None] - centre, axis=-1) / size[:, None]
        change = logs[:, None] - log_size
        cost = away**2 / loose + (change**2).sum(-1) / vague + 2 * np.log(loose) + 2 * np.log(vague)
        # Constants moved so that a certain sighting right on its place costs about nothing.
        cost = cost - 4 * math.log(config.place.noise) - 4 * math.log(config.log_size.noise)
        half = np.exp(logs) / 2
        cost = cost + 1 - _iou(np.concatenate([middle - half, middle + half], 1), boxes.astype(np.float64))
        other = np.abs(change.mean(-1)) > config.resize
        if sudden:
            away = np.minimum(away, np.linalg.norm(_centres(tracks)[:, None] - centre, axis=-1) / size[:, None])
            gap = np.array([now - one.time for one in tracks])[:, None]
            far = away > np.minimum(0.5 + config.dash * gap, config.leap)
            return np.where(far | other, config.limit, np.minimum(away, config.limit))
        far = away > np.minimum(np.maximum(config.gate * np.sqrt(loose), 0.5), config.reach)
        return np.where(far | other, config.limit, np.minimum(cost, config.limit))

    def _see(self, one: _Active, frame: int, now: float, face: Face) -> None:
        config = self._config
        centre, log_size = measured(face.box)
        gap, size = now - one.time, one.size
        one.place = one.place.after(config.place, gap, size).seeing(config.place, centre, size)
        one.log_size = one.log_size.after(config.log_size, gap).seeing(config.log_size, log_size)
        one.time = now
        one.tracklet.sightings.append(Sighting(frame, face))

    def _start(self, frame: int, now: float, face: Face) -> int:
        self._ids += 1
        centre, log_size = measured(face.box)
        size = float(np.exp(log_size.mean()))
        self._active.append(
            _Active(
                Tracklet(self._ids, [Sighting(frame, face)], self._scene), now,
                State.first(self._config.place, centre, size), State.first(self._config.log_size, log_size),
            )
        )  # fmt: skip
        return self._ids


def _centres(tracks: list[_Active]) -> Floats:
    """Where they were last seen [n,2]."""
    return measured(np.stack([one.tracklet.sightings[-1].face.box for one in tracks]))[0]


def _usable(face: Face) -> bool:
    box = np.asarray(face.box)
    return bool(np.isfinite(box).all() and np.isfinite(face.landmarks).all() and (box[2:] > box[:2]).all())


def _finished(ended: Sequence[_Active]) -> list[Tracklet]:
    tracklets = sorted((one.tracklet for one in ended), key=lambda one: one.id)
    for one in tracklets:
        if len(one.sightings) == 1:
            one.notes.append(ONCE)
    return tracklets


def _iou(a: Floats, b: Floats) -> Floats:
    """Intersection over union of boxes [n,4] and [m,4]: [n,m]."""
    low, high = np.maximum(a[:, None, :2], b[:, :2]), np.minimum(a[:, None, 2:], b[:, 2:])
    shared = np.prod(np.clip(high - low, 0, None), -1)
    area = [np.prod(one[:, 2:] - one[:, :2], -1) for one in (a, b)]
    return shared / (area[0][:, None] + area[1] - shared)
