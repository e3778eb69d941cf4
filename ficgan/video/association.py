"""What moves through a film: faces followed from sighting to sighting, and boxes that a person drew.

Source of the association: Bewley et al., "Simple online and realtime tracking", 2016 (Kalman filter, assignment).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import assignment
from ficgan.errors import UsageError
from ficgan.faces import Face
from ficgan.faces.detection import overlaps
from ficgan.video.project import Project
from ficgan.video.read import open_video
from ficgan.video.settings import Region
from ficgan.video.tracks import LOG_SIZE, PLACE, Sighting, State, Tracklet, measured, scene_bounds

__all__ = ["ONCE", "Associator", "Step", "follow_box", "half_seen"]

Floats = NDArray[np.float64]

ONCE = "seen once"
"""Note of a tracklet with one sighting."""
HALF = "half seen"
"""Note of a tracklet of weaker finds."""


# Numbers of tracking; lengths in sizes of the face.
REACH, GATE = 2.0, 4.0
"""Farthest distance from the expected place, and the same in standard deviations."""
SUDDEN, DASH, LEAP = 0.5, 10.0, 3.0
"""Seconds since the last sighting within which a face may have moved at any speed up to some sizes per second, and the
farthest such move."""
RESIZE = 0.5
"""Largest difference of the logarithm of the size."""
LIMIT = 50.0
"""Cost from which two do not belong together."""


@dataclass(frozen=True)
class Step:
    """What one frame brought."""

    ids: list[int]
    """Tracklet of each face given, in their order; 0 for a face that neither continued nor started one."""
    ended: list[Tracklet]
    """Tracklets that are over, in the order of their ids."""


@dataclass(eq=False)
class _Active:
    """A tracklet that may go on, and where it is now."""

    tracklet: Tracklet
    seen: float
    """Second of the last sighting."""
    size: float
    """At the last sighting: √(width·height)."""
    time: float
    place: State
    log_size: State

    def advance(self, now: float) -> None:
        gap, self.time = now - self.time, now
        self.place = self.place.after(PLACE, gap, self.size)
        self.log_size = self.log_size.after(LOG_SIZE, gap)


class Associator:
    """Follows faces from frame to frame, one film at a time.

    `rate` is for frames given without a time; `patience` are seconds without a sighting after which a tracklet ends.
    """

    def __init__(self, rate: float = 25.0, patience: float = 1.5):
        if not (math.isfinite(rate) and rate > 0):
            raise UsageError(f"The frame rate is {rate}: give frames per second above 0.")
        if not (math.isfinite(patience) and patience >= 0):
            raise UsageError(f"patience is {patience}; give seconds, 0 or more.")
        self._rate, self._patience = rate, patience
        self._active: list[_Active] = []
        self._ids = self._scene = 0
        self._frame, self._time = -1, -math.inf

    def step(self, frame: int, faces: Sequence[Face] | None, cut: bool = False, time: float | None = None) -> Step:
        """Take the next frame; frames may be left out, none comes twice.

        `faces` is None where the detector did not look; `cut`: a new scene begins; without a `time` in seconds the rate
        counts.
        """
        now = frame / self._rate if time is None else time
        if frame <= self._frame or not now > self._time:
            raise UsageError(f"Frame {frame} at {now} s comes after frame {self._frame} at {self._time} s.")
        self._frame, self._time = frame, now
        ended = []
        if cut:
            ended, self._active = self._active, []
            self._scene += 1
        ended += [track for track in self._active if now - track.seen > self._patience]
        self._active = [track for track in self._active if now - track.seen <= self._patience]
        ids = self._follow(frame, now, faces) if faces else []
        return Step(ids, _finished(ended))

    def finish(self) -> list[Tracklet]:
        """End the film; returns the tracklets that were still active."""
        ended, self._active = self._active, []
        return _finished(ended)

    def _follow(self, frame: int, now: float, faces: Sequence[Face]) -> list[int]:
        ids = [0] * len(faces)
        usable = [number for number, face in enumerate(faces) if _usable(face)]
        for track in self._active:
            track.advance(now)
        for sudden in (False, True):
            waiting = [t for t in self._active if t.seen < now and (not sudden or now - t.seen <= SUDDEN)]
            rest = [number for number in usable if not ids[number]]
            if not waiting or not rest:
                break
            cost = self._cost(waiting, np.stack([faces[number].box for number in rest]), now, sudden)
            # A pair at the limit is as good as none, so the assignment does not stretch one pair to save another.
            for row, column in zip(*assignment(cost), strict=True):
                if cost[row, column] < LIMIT:
                    self._see(waiting[row], frame, now, faces[rest[column]])
                    ids[rest[column]] = waiting[row].tracklet.id
        for number in usable:
            if not ids[number]:
                ids[number] = self._start(frame, now, faces[number])
        return ids

    def _cost(self, tracks: list[_Active], boxes: NDArray[np.float32], now: float, sudden: bool) -> Floats:
        """[tracks, boxes] -2 log of the likelihood of a sighting but a constant, plus 1 - IoU; at most the limit."""
        size = np.array([[track.size] for track in tracks])
        middle, logs = (np.stack([state.mean[0] for state in states]) for states in _states(tracks))
        # Variances of what the detector will say, lengths in sizes: [tracks, 1].
        loose, vague = (np.array([[state.covariance[0, 0]] for state in states]) for states in _states(tracks))
        loose = loose / size**2 + PLACE.noise**2
        vague = vague + LOG_SIZE.noise**2
        centre, log_size = measured(boxes)
        away = np.linalg.norm(middle[:, None] - centre, axis=-1) / size
        change = logs[:, None] - log_size
        other = np.abs(change.mean(-1)) > RESIZE
        if sudden:
            seen = measured(np.stack([track.tracklet.sightings[-1].face.box for track in tracks]))[0]
            away = np.minimum(away, np.linalg.norm(seen[:, None] - centre, axis=-1) / size)
            gap = np.array([[now - track.seen] for track in tracks])
            far = away > np.minimum(0.5 + DASH * gap, LEAP)
            return np.where(far | other, LIMIT, np.minimum(away, LIMIT))
        cost = away**2 / loose + (change**2).sum(-1) / vague + 2 * np.log(loose) + 2 * np.log(vague)
        # Constants moved so that a certain sighting right on its place costs about nothing.
        cost = cost - 4 * math.log(PLACE.noise) - 4 * math.log(LOG_SIZE.noise)
        half = np.exp(logs) / 2
        cost = cost + 1 - overlaps(np.concatenate([middle - half, middle + half], 1), boxes)
        far = away > np.minimum(np.maximum(GATE * np.sqrt(loose), 0.5), REACH)
        return np.where(far | other, LIMIT, np.minimum(cost, LIMIT))

    def _see(self, track: _Active, frame: int, now: float, face: Face) -> None:
        centre, log_size = measured(face.box)
        track.place = track.place.seeing(PLACE, centre, track.size)
        track.log_size = track.log_size.seeing(LOG_SIZE, log_size)
        track.seen, track.size = now, float(np.exp(track.log_size.mean[0].mean()))
        track.tracklet.sightings.append(Sighting(frame, face))

    def _start(self, frame: int, now: float, face: Face) -> int:
        self._ids += 1
        centre, log_size = measured(face.box)
        size = float(np.exp(log_size.mean()))
        place, log = State.first(PLACE, centre, size), State.first(LOG_SIZE, log_size)
        tracklet = Tracklet(self._ids, [Sighting(frame, face)], self._scene)
        self._active.append(_Active(tracklet, now, size, now, place, log))
        return self._ids


def _states(tracks: list[_Active]) -> tuple[list[State], list[State]]:
    return [track.place for track in tracks], [track.log_size for track in tracks]


def _usable(face: Face) -> bool:
    box = np.asarray(face.box)
    return bool(np.isfinite(box).all() and np.isfinite(face.landmarks).all() and (box[2:] > box[:2]).all())


def _finished(ended: Sequence[_Active]) -> list[Tracklet]:
    tracklets = sorted((track.tracklet for track in ended), key=lambda tracklet: tracklet.id)
    for tracklet in tracklets:
        if len(tracklet.sightings) == 1:
            tracklet.notes.append(ONCE)
    return tracklets


# -- weaker finds ----------------------------------------------------------------------------------------------------

BEGUN = 0.2
"""Least score of a weaker find with which a scene begins, where it begins with fewer faces than the one before had."""


def half_seen(
    faint: Sequence[Tracklet], sure: Sequence[Tracklet], cuts: Sequence[int], times: Floats, patience: float
) -> list[Tracklet]:
    """Of the weaker finds those that are likely faces: blurred by motion, half hidden, or in the first frame of a shot.

    A weaker find counts where a face was seen within `patience` seconds and within reach, which is not seen elsewhere
    in that frame; and so do those that were followed from it, until that face is seen again. So weaker finds prolong
    faces, but begin none, unless a scene begins with fewer faces than the one before ended with. A flash may look like
    two cuts: a face seen in the frame before or after counts, whatever the scene.

    Source: Zhang et al., "ByteTrack: multi-object tracking by associating every detection box", 2022.
    """
    found: list[Tracklet] = []
    seen = [_Seen.of(tracklet) for tracklet in sure]
    for tracklet in faint:
        near = [face for face in seen if face.is_near(tracklet, times, patience)]
        owners = [_owner(sighting, near, times, patience) for sighting in tracklet.sightings]
        for order in (range(len(owners)), range(len(owners) - 1, -1, -1)):
            before = None
            for n in order:
                if owners[n] is None and before is not None and tracklet.sightings[n].frame not in before.frames:
                    owners[n] = before
                before = owners[n]
        runs: list[tuple[_Seen | None, list[Sighting]]] = []
        for owner, sighting in zip(owners, tracklet.sightings, strict=True):
            if runs and runs[-1][0] is owner and not (owner and owner.between(runs[-1][1][-1].frame, sighting.frame)):
                runs[-1][1].append(sighting)
            else:
                runs.append((owner, [sighting]))
        for owner, sightings in runs:
            person = None
            if owner is not None:  # of another scene it may be another person, whom a rule may keep
                person = owner.tracklet.person if owner.tracklet.scene == tracklet.scene else 0
            elif _begins(sightings, sure, cuts):
                person = 0
            if person is not None:
                found.append(replace(tracklet, sightings=sightings, person=person, notes=[HALF]))
    return found


@dataclass(frozen=True, eq=False)
class _Seen:
    """A tracklet and where it was, to be looked up by frame."""

    tracklet: Tracklet
    frames: NDArray[np.int64]
    centres: Floats
    sizes: Floats

    @classmethod
    def of(cls, tracklet: Tracklet) -> _Seen:
        boxes = np.stack([sighting.face.box for sighting in tracklet.sightings])
        centres, sizes = measured(boxes)
        return cls(tracklet, np.array([sighting.frame for sighting in tracklet.sightings]), centres, sizes.mean(1))

    def is_near(self, tracklet: Tracklet, times: Floats, patience: float) -> bool:
        """Whether weaker finds may be this face: of their scene and about their time, or right before or after them."""
        first, last = int(self.frames[0]), int(self.frames[-1])
        if self.tracklet.scene != tracklet.scene:
            return 1 in (tracklet.first - last, first - tracklet.last)
        return bool(times[first] - patience <= times[tracklet.last] and times[tracklet.first] <= times[last] + patience)

    def between(self, first: int, last: int) -> bool:
        return bool(((first < self.frames) & (self.frames < last)).any())


def _owner(sighting: Sighting, rivals: Sequence[_Seen], times: Floats, patience: float) -> _Seen | None:
    """The seen face that a weaker find is likely to be."""
    centre, log_size = measured(sighting.face.box)
    best, nearest = None, math.inf
    for seen in rivals:
        place = int(np.searchsorted(seen.frames, sighting.frame))
        if place < len(seen.frames) and seen.frames[place] == sighting.frame:
            continue
        for n in (place - 1, place):
            if not 0 <= n < len(seen.frames):
                continue
            gap = abs(times[sighting.frame] - times[seen.frames[n]])
            away = float(np.linalg.norm(seen.centres[n] - centre)) / math.exp(seen.sizes[n])
            alike = abs(log_size.mean() - seen.sizes[n]) <= RESIZE
            if alike and gap <= patience and away <= min(0.5 + DASH * gap, LEAP):
                best, nearest = (seen, away) if away < nearest else (best, nearest)
    return best


def _begins(sightings: Sequence[Sighting], sure: Sequence[Tracklet], cuts: Sequence[int]) -> bool:
    """Whether a scene begins with these, and with fewer faces than there were before it."""
    first = sightings[0].frame
    if first not in cuts or sightings[0].face.score < BEGUN:
        return False
    here, before = (
        sum(any(sighting.frame == frame for sighting in tracklet.sightings) for tracklet in sure)
        for frame in (first, first - 1)
    )
    return here < before


# -- boxes drawn by a person -----------------------------------------------------------------------------------------

Box = NDArray[np.floating]
Grey = NDArray[np.uint8]
_SIDE = 480
"""Longest side of the frames in which points are followed, pixels."""
_POINTS, _FEWEST = 60, 6
_EVERY, _MOST = 3, 900
"""Frames between two keys, and frames to either side at most."""


def follow_box(path: Path, film: Project, frame: int, box: Box, first: int, last: int) -> Region:
    """A region that follows what is in a box: by the median motion and scale of points in it (Lucas and Kanade).

    The box float32 [4] was drawn in `frame`. It is followed from the first to the last frame within its scene, and 30 s
    at most to either side. Where the points are lost it rests.
    """
    begin, end = scene_bounds(film.cuts, len(film.pts), frame)
    first, last = max(first, begin, frame - _MOST), min(last, end, frame + _MOST)
    keys, earlier, place, before, factor = {frame: box}, [], box, None, 1.0
    half = (film.times[1] if len(film.pts) > 1 else 0.0) / 2
    with open_video(path, start=max(0.0, float(film.times[first]) - half) or None) as source:
        for picture in source.frames():
            number = int(np.searchsorted(film.pts, picture.pts))
            if number > last:
                break
            grey, factor = _reduced(picture.image)
            if number < frame:
                earlier.append((number, grey))
                continue
            if before is not None:
                place = _moved(before, grey, place * factor) / factor
                keys[number] = place
            elif earlier:
                keys |= _back([*earlier, (number, grey)], box, factor)
                earlier = []
            before = grey
    kept = [n for n in sorted(keys) if (n - frame) % _EVERY == 0 or n in (first, last)]
    return Region.model_validate({
        "first": first, "last": last, "keys": [
            {"frame": n, "box": [round(float(value), 1) for value in keys[n]]} for n in kept
        ],
    })  # fmt: skip


def _back(greys: list[tuple[int, Grey]], box: Box, factor: float) -> dict[int, Box]:
    """Places in earlier frames, from the last one of these back to the first."""
    keys, place = {}, box
    for (_, later), (number, grey) in pairwise(reversed(greys)):
        place = _moved(later, grey, place * factor) / factor
        keys[number] = place
    return keys


def _reduced(image: Grey) -> tuple[Grey, float]:
    """A frame in grey, its longer side reduced to `_SIDE`, and the factor."""
    import cv2

    height, width = image.shape[:2]
    factor = min(1.0, _SIDE / max(height, width))
    size = max(1, round(width * factor)), max(1, round(height * factor))
    grey: Any = cv2.cvtColor(cv2.resize(image, size, interpolation=cv2.INTER_AREA), cv2.COLOR_RGB2GRAY)
    return grey, factor


def _moved(before: Grey, now: Grey, box: Box) -> Box:
    """The box in the next grey frame; the same one where its points are lost."""
    import cv2

    find, flow = cv2.goodFeaturesToTrack, cv2.calcOpticalFlowPyrLK
    height, width = before.shape
    x0, y0, x1, y1 = (int(v) for v in np.rint(box).clip(0, (width, height) * 2))
    if x1 - x0 < 4 or y1 - y0 < 4:
        return box
    mask = np.zeros_like(before)
    mask[y0:y1, x0:x1] = 255
    points = find(before, _POINTS, 0.01, 2, mask=mask)
    if points is None or len(points) < _FEWEST:
        return box
    there, found, _ = flow(before, now, points, None, winSize=(15, 15), maxLevel=3)
    back, again, _ = flow(now, before, there, None, winSize=(15, 15), maxLevel=3)
    there, back, points = (array.reshape(-1, 2) for array in (there, back, points))
    good = (found.ravel() == 1) & (again.ravel() == 1) & (np.abs(points - back).max(1) < 1)  # forth and back
    if good.sum() < _FEWEST:
        return box
    old, new = points[good], there[good]
    scale = 1.0
    apart = np.linalg.norm(old - np.median(old, 0), axis=1)
    if (apart > 2).sum() >= _FEWEST:
        ratio = np.linalg.norm(new - np.median(new, 0), axis=1)[apart > 2] / apart[apart > 2]
        scale = float(np.clip(np.median(ratio), 0.95, 1.05))
    middle = (box[:2] + box[2:]) / 2
    half = (box[2:] - box[:2]) / 2 * scale
    middle = middle + np.median(new - old, 0)
    moved: Box = np.concatenate([middle - half, middle + half])
    return moved
