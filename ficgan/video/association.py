"""Faces followed from sighting to sighting, and joined once more over gaps between the detector's looks.

Source of the association: Bewley et al., "Simple online and realtime tracking", 2016 (Kalman filter, assignment).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import assignment
from ficgan.faces import Face
from ficgan.faces.detection import overlaps
from ficgan.video.tracks import LOG_SIZE, PLACE, KalmanState, Sighting, Tracklet, measured

Floats = NDArray[np.float64]

# Reasons for a person to look at a place of the result.
CAME, LOST = "a face in fast motion was not seen before", "a face in fast motion was not seen afterwards"


# Numbers of tracking; lengths in sizes of the face.
# Farthest distance from the expected place, and the same in standard deviations.
REACH, GATE = 2.0, 4.0
# Seconds since the last sighting within which a face may have moved at any speed up to some sizes per second, and the
# farthest such move.
SUDDEN, DASH, LEAP = 0.5, 10.0, 3.0
# Largest difference of the logarithm of the size.
RESIZE = 0.5
# Cost from which two do not belong together.
LIMIT = 50.0


@dataclass(eq=False)
class _Active:
    """An open tracklet and its Kalman states; second and size, √(width·height), of the last sighting."""

    tracklet: Tracklet
    seen: float
    size: float
    time: float
    place: KalmanState
    log_size: KalmanState

    def advance(self, now: float) -> None:
        gap, self.time = now - self.time, now
        self.place = self.place.after(PLACE, gap, self.size)
        self.log_size = self.log_size.after(LOG_SIZE, gap)


class Associator:
    """Follows faces from frame to frame, one film at a time; a tracklet ends `patience` seconds after its last."""

    def __init__(self, patience: float = 1.5):
        self._patience = patience
        self._active: list[_Active] = []
        self._ids = self._scene = 0

    def step(
        self, frame: int, time: float, faces: Sequence[Face] | None, cut: bool = False
    ) -> tuple[list[int], list[Tracklet]]:
        """Take the next frame, shown at a second; `faces` is None where nobody looked, `cut`: a new scene begins.

        Returns the tracklet of each face, 0 for none, and the tracklets that are over, in the order of their ids.
        """
        ended = []
        if cut:
            ended, self._active = self._active, []
            self._scene += 1
        ended += [track for track in self._active if time - track.seen > self._patience]
        self._active = [track for track in self._active if time - track.seen <= self._patience]
        ids = self._follow(frame, time, faces) if faces else []
        return ids, _finished(ended)

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
        middle = np.stack([track.place.mean[0] for track in tracks])
        logs = np.stack([track.log_size.mean[0] for track in tracks])
        # Variances of what the detector will say, lengths in sizes: [tracks, 1].
        loose = np.array([[track.place.covariance[0, 0]] for track in tracks]) / size**2 + PLACE.noise**2
        vague = np.array([[track.log_size.covariance[0, 0]] for track in tracks]) + LOG_SIZE.noise**2
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
        place, log = KalmanState.first(PLACE, centre, size), KalmanState.first(LOG_SIZE, log_size)
        tracklet = Tracklet(self._ids, [Sighting(frame, face)], self._scene)
        self._active.append(_Active(tracklet, now, size, now, place, log))
        return self._ids


def _usable(face: Face) -> bool:
    box = np.asarray(face.box)
    return bool(np.isfinite(box).all() and np.isfinite(face.landmarks).all() and (box[2:] > box[:2]).all())


def _finished(ended: Sequence[_Active]) -> list[Tracklet]:
    return sorted((track.tracklet for track in ended), key=lambda tracklet: tracklet.id)


# -- weaker finds ----------------------------------------------------------------------------------------------------

# Least score of a weaker find with which a scene begins, where it begins with fewer faces than the one before had.
BEGUN = 0.2
# How much faster than it was seen to be a face may be where it is not seen.
FASTER = 1.5
# Standard deviation of a place after a gap: sizes, and a share of how far the face usually gets.
VAGUE, STRAY = 0.5, 0.3
# Standard deviation of the logarithm of the size after it. Of a face that is half hidden the detector may see the
# free half as a face, with one side as long as it was: then that side counts, and both together may differ by so
# much.
ALIKE, HIDDEN = 0.25, 1.0
# Bonus of a link between two sightings of one tracklet, in the units of `NEAR` and `FAR`.
OWN = 2.0
# Greatest cost of a link from one look to the next or next but one, and of others: -2 log of its likelihood.
NEAR, FAR = 8.0, 16.0
# How often chains are joined over longer gaps: so many weaker finds may lie apart between two sightings.
PASSES = 3


@dataclass(eq=False)
class Chain:
    """Sightings and weaker finds in increasing frames that are likely of one face, each with its tracklet."""

    sightings: list[Sighting]
    owners: list[Tracklet]
    times: Floats
    centres: Floats
    log_sizes: Floats

    @classmethod
    def of(cls, sightings: list[Sighting], owners: list[Tracklet], times: Floats) -> Chain:
        centres, sizes = measured(np.stack([sighting.face.box for sighting in sightings]))
        clock = times[[sighting.frame for sighting in sightings]]
        return cls(sightings, owners, clock, centres, sizes)

    @cached_property
    def velocities(self) -> Floats:
        """[n,2] pixels per second over three sightings that follow each other; 0 of a single one."""
        reach = min(2, len(self.times) - 1)
        if not reach:
            return np.zeros((1, 2))
        return (self.centres[reach:] - self.centres[:-reach]) / (self.times[reach:] - self.times[:-reach])[:, None]

    @cached_property
    def speed(self) -> float:
        """The greatest one, pixels per second."""
        return float(np.linalg.norm(self.velocities, axis=1).max())

    @cached_property
    def is_face(self) -> bool:
        """Whether it holds a sighting."""
        return not all(owner.weak for owner in self.owners)

    @property
    def is_confirmed(self) -> bool:
        """Whether one of its faces is confirmed; of weaker finds alone nothing is asked."""
        return not self.is_face or any(owner.confirmed for owner in self.owners if not owner.weak)

    def tracklet(self) -> Tracklet:
        """Of the person who was seen, if it was one and in one scene, where a rule may keep that person."""
        first = self.owners[0]
        people = {owner.person for owner in self.owners if not owner.weak}
        return Tracklet(0, self.sightings, first.scene, person=people.pop() if len(people) == 1 else 0, weak=True)


def chains(
    sure: Sequence[Tracklet], weak: Sequence[Tracklet], looks: Sequence[int], times: Floats, patience: float
) -> list[Chain]:
    """Sightings and weaker finds, joined from look to look and then over gaps of up to `patience`.

    Over the longer gaps a weaker find may follow a face, but not another weaker find. `looks` are frames.

    Source: Huang, Wu and Nevatia, "Robust object tracking by hierarchical association of detection responses", 2008,
    with the likeliest pair first in place of the best assignment.
    """
    for tracklet in weak:
        tracklet.weak = True
    found = [
        Chain.of(list(part), [tracklet] * len(part), times)
        for tracklet in (*sure, *weak)
        for part in _unbroken(tracklet.sightings, looks)
    ]
    between = float(np.diff(times[np.asarray(looks, np.int64)]).max(initial=0.0))
    found = _joined(found, min(2 * between, patience), NEAR, times)
    for _ in range(PASSES):
        found = _joined(found, patience, FAR, times, faces=True)
    return found


def _unbroken(sightings: Sequence[Sighting], looks: Sequence[int]) -> list[Sequence[Sighting]]:
    """Parts of a tracklet without a look in vain."""
    numbers = np.searchsorted(np.asarray(looks), [sighting.frame for sighting in sightings])
    bounds = [0, *(np.flatnonzero(np.diff(numbers) > 1) + 1).tolist(), len(sightings)]
    return [sightings[first:last] for first, last in pairwise(bounds)]


def _joined(parts: Sequence[Chain], reach: float, most: float, times: Floats, *, faces: bool = False) -> list[Chain]:
    """Chains and those that go on with them within `reach` seconds at a cost below `most`; `faces`: one is a face."""
    if not parts:
        return []
    parts = sorted(parts, key=lambda chain: float(chain.times[0]))
    starts = _ChainStarts(parts)
    links: list[tuple[float, int, int]] = []
    for a, chain in enumerate(parts):
        end = chain.times[-1]
        first, last = (int(n) for n in np.searchsorted(starts.times, [end, end + reach + 1e-6], side="right"))
        if first < last:
            costs = starts.costs(chain, first, last)
            if faces and not chain.is_face:
                costs[~starts.faces[first:last]] = np.inf
            links += [(float(costs[n]), a, first + int(n)) for n in np.flatnonzero(costs < most)]
    after: dict[int, int] = {}
    before: dict[int, int] = {}
    for _, a, b in sorted(links):
        if a not in after and b not in before:
            after[a], before[b] = b, a
    joined = []
    for number in range(len(parts)):
        if number in before:
            continue
        line = [number]
        while line[-1] in after:
            line.append(after[line[-1]])
        sightings = [sighting for n in line for sighting in parts[n].sightings]
        owners = [owner for n in line for owner in parts[n].owners]
        joined.append(Chain.of(sightings, owners, times) if len(line) > 1 else parts[number])
    return joined


class _ChainStarts:
    """Where chains begin, in the order of time."""

    def __init__(self, found: Sequence[Chain]) -> None:
        self.owners = [chain.owners[0] for chain in found]
        self.times = np.array([chain.times[0] for chain in found])
        self.centres = np.array([chain.centres[0] for chain in found])
        self.log_sizes = np.array([chain.log_sizes[0] for chain in found])
        self.velocities = np.array([chain.velocities[0] for chain in found])
        self.speeds = np.array([chain.speed for chain in found])
        self.scenes = np.array([owner.scene for owner in self.owners])
        self.weak = np.array([owner.weak for owner in self.owners])
        """Whether it is a weaker find."""
        self.faces = np.array([chain.is_face for chain in found])

    def costs(self, a: Chain, first: int, last: int) -> Floats:
        """Of a face going from the end of a chain to these beginnings [n]: -2 log likelihood but a constant."""
        rows, owner = slice(first, last), a.owners[-1]
        sides = np.abs(self.log_sizes[rows] - a.log_sizes[-1])
        weak = self.weak[rows] | owner.weak
        change = np.where(weak, sides.min(1), sides.mean(1))
        gap, size = self.times[rows] - a.times[-1], np.exp((self.log_sizes[rows] + a.log_sizes[-1]).mean(1) / 2)
        path = self.centres[rows] - a.centres[-1]
        usual = np.maximum(np.maximum(self.speeds[rows], a.speed), PLACE.speed * size) * gap
        away = np.stack([path, path - a.velocities[-1] * gap[:, None], path - self.velocities[rows] * gap[:, None]])
        off = np.linalg.norm(away, axis=-1)  # from the place itself, and from where either motion leads
        loose = VAGUE + STRAY * usual / size
        owned = np.array([other is owner for other in self.owners[rows]]) & ~weak
        cost = (off.min(0) / size / loose) ** 2 + 4 * np.log(loose / VAGUE) + (change / ALIKE) ** 2 - OWN * owned
        never = (self.scenes[rows] != owner.scene) | (off[0] > _dash(gap) * size + FASTER * usual)
        never |= (change > RESIZE) | (sides.mean(1) > np.where(weak, HIDDEN, RESIZE))
        return np.where(never, np.inf, cost)


def with_weak(found: Sequence[Chain], sure: Sequence[Tracklet], cuts: Sequence[int], times: Floats) -> list[Chain]:
    """Of the chains those with weaker finds that are likely faces, blurred by motion, half hidden or in a flash.

    Weaker finds prolong faces and lead from one sighting to the next, but begin none, unless a scene begins with fewer
    faces than the one before ended with, or in a flash, which may look like two cuts.

    Source: Zhang et al., "ByteTrack: multi-object tracking by associating every detection box", 2022.
    """
    ends: dict[int, list[Sighting]] = {}
    for tracklet in sure:
        for sighting in {id(one): one for one in (tracklet.sightings[0], tracklet.sightings[-1])}.values():
            ends.setdefault(sighting.frame, []).append(sighting)
    return [
        chain
        for chain in found
        if (
            any(owner is not chain.owners[0] for owner in chain.owners)
            if chain.is_face
            else _begins(chain.sightings, sure, cuts) or _flashes(chain, cuts, ends, times)
        )
    ]


def _dash(gap: Floats) -> Floats:
    """Sizes that any face may have moved in some seconds; in less than 1/25 s as far as in 1/25 s."""
    return np.minimum(0.5 + DASH * np.maximum(gap, 0.04), LEAP)


def _flashes(chain: Chain, cuts: Sequence[int], ends: Mapping[int, Sequence[Sighting]], times: Floats) -> bool:
    """Whether a face was seen about here in the frame before the scene of a chain, or in the one after it."""
    for sighting, step, cut in ((chain.sightings[0], -1, 0), (chain.sightings[-1], 1, 1)):
        if sighting.frame + cut not in cuts:
            continue
        centre, log_size = measured(sighting.face.box)
        for seen in ends.get(sighting.frame + step, ()):
            place, log = measured(seen.face.box)
            away = float(np.linalg.norm(place - centre)) / math.exp(log.mean())
            gap = abs(times[seen.frame] - times[sighting.frame])
            if abs(float((log - log_size).mean())) <= RESIZE and away <= _dash(gap):
                return True
    return False


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


def abrupt_ends(
    found: Sequence[Chain], cuts: Sequence[int], looks: Sequence[int], times: Floats, pad: float, size: tuple[int, int]
) -> list[tuple[Sighting, str]]:
    """Sightings with which a track of a fast face begins or ends in mid-picture, with the reason.

    As it moved, it would have left its cover before the pad ends, and it was not seen in the next look.
    """
    doubts = []
    scenes = np.searchsorted(cuts, looks, side="right")
    for chain in found:
        if not chain.is_face:
            continue
        for side, end, why in ((-1, 0, CAME), (1, -1, LOST)):
            sighting, velocity = chain.sightings[end], chain.velocities[end]
            n = int(np.searchsorted(looks, sighting.frame)) + side
            if not 0 <= n < len(looks) or scenes[n] != scenes[n - side]:
                continue
            place = chain.centres[end] + velocity * (times[looks[n]] - times[sighting.frame])
            if (
                float(np.linalg.norm(velocity)) * pad > math.exp(chain.log_sizes[end].mean())
                and ((place >= 0) & (place <= size)).all()
            ):
                doubts.append((sighting, why))
    return sorted(doubts, key=lambda doubt: doubt[0].frame)
