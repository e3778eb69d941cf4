"""From pictures to tracklets: scene cuts, the frames in which the detector looks, and which faces are the same.

Source of the association: Bewley et al., "Simple online and realtime tracking", 2016 (Kalman filter, assignment).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import assignment
from ficgan.errors import UsageError
from ficgan.faces import Face
from ficgan.faces.detection import check_image
from ficgan.video.media import Frame
from ficgan.video.tracks import LOG_SIZE, PLACE, Motion, Sighting, State, Tracklet, measured

__all__ = ["ONCE", "AssociationConfig", "Associator", "CutConfig", "CutDetector", "Step", "look"]

Floats32 = NDArray[np.float32]


@dataclass(frozen=True)
class CutConfig:
    """Thresholds of cut detection, rather high: a missed cut only prolongs a cover.

    Args:
        change: mean absolute difference of two thumbnails, in standard deviations, without brightness, contrast and
        shift.
        ratio: least factor by which it exceeds the usual change of the frames before.
        colours: distance of the colour histograms, 0 to 1.
        memory: frames before from which the usual change is taken.
    """

    change: float = 0.6
    ratio: float = 2.5
    colours: float = 0.12
    memory: int = 8


class CutDetector:
    """Whether a scene cut lies before a frame: new structure, new colours, an unusual change.

    Flashes, fades and fast pans are no cuts. Dissolves, wipes, and cuts between alike or dark pictures are missed.
    """

    def __init__(self, config: CutConfig | None = None):
        self._config = config or CutConfig()
        self._changes: deque[float] = deque(maxlen=self._config.memory)
        self._before: tuple[Floats32, Floats32] | None = None
        self.thumbnail: NDArray[np.uint8] = np.zeros((_HEIGHT, _WIDTH, 3), np.uint8)
        """Of the last frame, 36×64×3."""

    def step(self, image: NDArray[np.uint8]) -> bool:
        """Whether a new scene begins with this H×W×3 uint8 RGB picture, of any size; never with the first."""
        self.thumbnail = thumbnail = _thumbnail(check_image(image))
        luma, colours = _normalised(thumbnail), _histogram(thumbnail)
        before, self._before = self._before, (luma, colours)
        if before is None:
            return False
        change = float(np.abs(luma - before[0]).mean())
        if change > _CALM:
            change = min(change, _change_after_shift(luma, before[0]))
        usual = float(np.median(self._changes)) if self._changes else 0.0
        config = self._config
        cut = (
            change > config.change
            and change > config.ratio * usual
            and float(np.abs(colours - before[1]).sum()) / 2 > config.colours
        )
        if cut:
            self._changes.clear()
        else:
            self._changes.append(change)
        return cut


_WIDTH, _HEIGHT = 64, 36
_BINS = 4
_CALM = 0.2  # changes below need no look at whether the picture moved
_REACH = 20  # columns, of 64, that a pan may move between two frames


def _thumbnail(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    import cv2

    # Every few pixels are enough, and many times faster to average than all.
    step = max(1, min(image.shape[1] // (4 * _WIDTH), image.shape[0] // (4 * _HEIGHT)))
    small: Any = cv2.resize(
        np.ascontiguousarray(image[::step, ::step]), (_WIDTH, _HEIGHT), interpolation=cv2.INTER_AREA
    )
    return small


def _normalised(thumbnail: NDArray[np.uint8]) -> Floats32:
    """Luma of mean 0 and deviation 1 [36,64]; a picture of one colour is 0."""
    luma = thumbnail.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
    luma -= luma.mean()
    return luma / max(float(luma.std()), 4.0)  # below 4 of 255 it would be noise that is compared


def _histogram(thumbnail: NDArray[np.uint8]) -> Floats32:
    """Shares of 4×4×4 colours [64]."""
    cell = (thumbnail // (256 // _BINS)).astype(np.int64) @ np.array([_BINS**2, _BINS, 1])
    return np.bincount(cell.ravel(), minlength=_BINS**3).astype(np.float32) / cell.size


def _change_after_shift(a: Floats32, b: Floats32) -> float:
    """Mean absolute difference over the common part, with the second thumbnail moved to where it fits best."""
    spectrum = np.fft.rfft2(a) * np.conj(np.fft.rfft2(b))
    fit = np.fft.irfft2(spectrum / np.maximum(np.abs(spectrum), 1e-6), s=a.shape)
    y, x = np.unravel_index(int(np.argmax(fit)), fit.shape)
    dy = int(y) - a.shape[0] if y > a.shape[0] // 2 else int(y)
    dx = int(x) - a.shape[1] if x > a.shape[1] // 2 else int(x)
    if abs(dx) > _REACH or abs(dy) > _REACH // 2:
        return float(np.abs(a - b).mean())
    rows, columns = slice(max(dy, 0), a.shape[0] + min(dy, 0)), slice(max(dx, 0), a.shape[1] + min(dx, 0))
    from_rows, from_columns = slice(rows.start - dy, rows.stop - dy), slice(columns.start - dx, columns.stop - dx)
    return float(np.abs(a[rows, columns] - b[from_rows, from_columns]).mean())


Seen = tuple[Frame, list[Face] | None, bool]
"""A frame, the faces found in it (None where nobody looked), whether a new scene begins with it."""

MOVED = 0.75
"""Sizes by which a face may have moved from one look to the next and still count as the same, calm one."""
RESIZED = 0.4
"""The same for the logarithm of its size."""
LEAST = 24.0
"""Pixels: smaller faces come and go with the detector's mood and cause no look of their own."""
DIFFERENT = 24
"""Grey levels of one colour by which a cell of a thumbnail (1/64 of the width) differs."""
HELD = 32
"""Frames kept at most until it is known whether to look at them."""


def look(frames: Iterable[Frame], find: Callable[[Frame], list[Face]], stride: int) -> Iterator[Seen]:
    """Look at every n-th frame (n is `stride`), at the first and last of each scene, and wherever two looks differ.

    Where a face came, went or moved far between two looks, the frame in the middle is looked at too, and so on: a dash
    is followed frame by frame, a face at rest costs one look in n. Where the picture changed and changed back between
    two looks, its oddest frame is looked at. What shows for less than n frames while the camera moves is missed.

    Yields:
        Every frame once, in order, at most `stride` frames late.
    """
    cuts = CutDetector()
    held: list[_Held] = []  # since the last look
    since = 0
    last: _Held | None = None
    for frame in frames:
        cut = cuts.step(frame.image)
        if cut and last is not None:
            yield from _settled(last, held, find)
            held, last = [], None
        held.append(_Held(frame, cuts.thumbnail))
        since += 1
        if last is None:
            last = held[0]
            last.faces = find(frame)
            yield frame, last.faces, cut
        elif since >= stride:
            yield from _settled(last, held, find)
            last = held[-1]
        else:
            if len(held) > HELD:
                yield held.pop(0).frame, None, False
            continue
        held, since = [], 0
    if last is not None:
        yield from _settled(last, held, find)


@dataclass(eq=False)
class _Held:
    """A frame of which it is not yet known whether to look at it."""

    frame: Frame
    thumbnail: NDArray[np.uint8]
    faces: list[Face] | None = None


def _settled(last: _Held, held: Sequence[_Held], find: Callable[[Frame], list[Face]]) -> Iterator[Seen]:
    if not held:
        return
    line = [last, *held]

    def see(number: int) -> None:
        line[number].faces = find(line[number].frame)

    def between(a: int, b: int) -> None:
        before, after = line[a].faces, line[b].faces
        if b - a < 2 or before is None or after is None or _alike(before, after):
            return
        middle = (a + b) // 2
        see(middle)
        between(a, middle)
        between(middle, b)

    see(len(held))
    between(0, len(held))
    looks = [number for number, waiting in enumerate(line) if waiting.faces is not None]
    for a, b in pairwise(looks):
        odd = [_transient(line[a].thumbnail, waiting.thumbnail, line[b].thumbnail) for waiting in line[a + 1 : b]]
        worst = max(odd, default=0)
        if worst:
            most = a + 1 + odd.index(worst)
            see(most)
            between(a, most)
            between(most, b)
    for waiting in held:
        yield waiting.frame, waiting.faces, False


def _transient(before: NDArray[np.uint8], now: NDArray[np.uint8], after: NDArray[np.uint8]) -> int:
    """Squares of 2×2 cells unlike both other thumbnails, which are alike there; edges that shake are thinner."""
    a, x, b = (thumbnail.astype(np.int16) for thumbnail in (before, now, after))
    away = np.minimum(np.abs(x - a).max(-1), np.abs(x - b).max(-1))
    odd = (away >= DIFFERENT) & (3 * np.abs(a - b).max(-1) <= away)
    return int((odd[1:, 1:] & odd[:-1, 1:] & odd[1:, :-1] & odd[:-1, :-1]).sum())


def _alike(before: Sequence[Face], after: Sequence[Face]) -> bool:
    rest = list(before)
    for face in after:
        near = [other for other in rest if _near(face, other)]
        if near:
            rest.remove(near[0])
        elif _counts(face):
            return False
    return not any(_counts(face) for face in rest)


def _near(a: Face, b: Face) -> bool:
    (first, size), (second, other) = measured(a.box), measured(b.box)
    scale = math.exp(float((size.mean() + other.mean()) / 2))
    far = float(np.linalg.norm(first - second)) > MOVED * scale
    return not far and abs(float((size - other).mean())) <= RESIZED


def _counts(face: Face) -> bool:
    return float((face.box[2:] - face.box[:2]).min()) >= LEAST


Floats = NDArray[np.float64]

ONCE = "seen once"
"""Note of a tracklet with one sighting."""


@dataclass(frozen=True)
class AssociationConfig:
    """Numbers of tracking; lengths in sizes of the face.

    Args:
        patience: seconds without a sighting after which a tracklet ends.
        reach: farthest distance from the expected place.
        gate: the same in standard deviations.
        sudden: seconds since the last sighting within which a face may have moved at any speed up to `dash`.
        dash: sizes per second.
        leap: farthest such move.
        resize: largest difference of the logarithm of the size.
        limit: cost from which two do not belong together.
        place, log_size: motion.
    """

    patience: float = 1.5
    reach: float = 2.0
    gate: float = 4.0
    sudden: float = 0.5
    dash: float = 10.0
    leap: float = 3.0
    resize: float = 0.5
    limit: float = 50.0
    place: Motion = PLACE
    log_size: Motion = LOG_SIZE

    def __post_init__(self) -> None:
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
    """Follows faces from frame to frame, one film at a time; `rate` is for frames given without a time."""

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
            faces: None where the detector did not look.
            cut: a new scene begins with this frame.
            time: seconds; None: by the rate.
        """
        now = frame / self._rate if time is None else time
        if frame <= self._frame or not now > self._time:
            raise UsageError(f"Frame {frame} at {now} s comes after frame {self._frame} at {self._time} s.")
        self._frame, self._time = frame, now
        ended = []
        if cut:
            ended, self._active = self._active, []
            self._scene += 1
        ended += [track for track in self._active if now - track.time > self._config.patience]
        self._active = [track for track in self._active if now - track.time <= self._config.patience]
        ids = self._follow(frame, now, faces) if faces else []
        return Step(ids, _finished(ended))

    def finish(self) -> list[Tracklet]:
        """End the film; returns the tracklets that were still active."""
        ended, self._active = self._active, []
        return _finished(ended)

    def _follow(self, frame: int, now: float, faces: Sequence[Face]) -> list[int]:
        ids = [0] * len(faces)
        usable = [number for number, face in enumerate(faces) if _usable(face)]
        waiting = list(self._active)
        for sudden in (False, True):
            rest = [number for number in usable if not ids[number]]
            for track, number in self._pairs(waiting, rest, faces, now, sudden):
                self._see(track, frame, now, faces[number])
                ids[number] = track.tracklet.id
            waiting = [track for track in waiting if track.time < now]
        for number in usable:
            if not ids[number]:
                ids[number] = self._start(frame, now, faces[number])
        return ids

    def _pairs(
        self, tracks: list[_Active], numbers: list[int], faces: Sequence[Face], now: float, sudden: bool
    ) -> list[tuple[_Active, int]]:
        if sudden:
            tracks = [track for track in tracks if now - track.time <= self._config.sudden]
        if not tracks or not numbers:
            return []
        cost = self._cost(tracks, np.stack([faces[number].box for number in numbers]), now, sudden)
        # A pair at the limit is as good as none, so the assignment does not stretch one pair to save another.
        rows, columns = assignment(cost)
        return [
            (tracks[row], numbers[column])
            for row, column in zip(rows, columns, strict=True)
            if cost[row, column] < self._config.limit
        ]

    def _cost(self, tracks: list[_Active], boxes: NDArray[np.float32], now: float, sudden: bool) -> Floats:
        """[tracks, boxes] -2 log of the likelihood of a sighting but a constant, plus 1 - IoU; at most the limit."""
        config = self._config
        size = np.array([track.size for track in tracks])
        places = [track.place.after(config.place, now - track.time, s) for track, s in zip(tracks, size, strict=True)]
        sizes = [track.log_size.after(config.log_size, now - track.time) for track in tracks]
        # Variances of what the detector will say, lengths in sizes: [tracks, 1].
        loose, vague = (np.array([[state.covariance[0, 0]] for state in states]) for states in (places, sizes))
        loose = loose / size[:, None] ** 2 + config.place.noise**2
        vague = vague + config.log_size.noise**2
        middle, logs = (np.stack([state.mean[0] for state in states]) for states in (places, sizes))
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
            gap = np.array([now - track.time for track in tracks])[:, None]
            far = away > np.minimum(0.5 + config.dash * gap, config.leap)
            return np.where(far | other, config.limit, np.minimum(away, config.limit))
        far = away > np.minimum(np.maximum(config.gate * np.sqrt(loose), 0.5), config.reach)
        return np.where(far | other, config.limit, np.minimum(cost, config.limit))

    def _see(self, track: _Active, frame: int, now: float, face: Face) -> None:
        config = self._config
        centre, log_size = measured(face.box)
        gap, size = now - track.time, track.size
        track.place = track.place.after(config.place, gap, size).seeing(config.place, centre, size)
        track.log_size = track.log_size.after(config.log_size, gap).seeing(config.log_size, log_size)
        track.time = now
        track.tracklet.sightings.append(Sighting(frame, face))

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
    return measured(np.stack([track.tracklet.sightings[-1].face.box for track in tracks]))[0]


def _usable(face: Face) -> bool:
    box = np.asarray(face.box)
    return bool(np.isfinite(box).all() and np.isfinite(face.landmarks).all() and (box[2:] > box[:2]).all())


def _finished(ended: Sequence[_Active]) -> list[Tracklet]:
    tracklets = sorted((track.tracklet for track in ended), key=lambda tracklet: tracklet.id)
    for tracklet in tracklets:
        if len(tracklet.sightings) == 1:
            tracklet.notes.append(ONCE)
    return tracklets


def _iou(a: Floats, b: Floats) -> Floats:
    """Intersection over union of boxes [n,4] and [m,4]: [n,m]."""
    low, high = np.maximum(a[:, None, :2], b[:, :2]), np.minimum(a[:, None, 2:], b[:, 2:])
    shared = np.prod(np.clip(high - low, 0, None), -1)
    area = [np.prod(boxes[:, 2:] - boxes[:, :2], -1) for boxes in (a, b)]
    return shared / (area[0][:, None] + area[1] - shared)
