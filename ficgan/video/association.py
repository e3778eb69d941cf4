"""Faces followed from sighting to sighting, and joined once more over gaps between the detector's looks.

Source of the association: Bewley et al., "Simple online and realtime tracking", 2016 (Kalman filter, assignment).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import count

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


class _Active:
    """An open tracklet with its Kalman states; `seen` and `size`, √(width·height), are of the last sighting."""

    def __init__(self, tracklet: Tracklet, now: float) -> None:
        centre, log_size = measured(tracklet.sightings[0].face.box)
        self.tracklet, self.seen, self._time = tracklet, now, now
        self.size = float(np.exp(log_size.mean()))
        self.place = KalmanState.first(PLACE, centre, self.size)
        self.log_size = KalmanState.first(LOG_SIZE, log_size)

    def advance(self, now: float) -> None:
        gap, self._time = now - self._time, now
        self.place, self.log_size = self.place.after(PLACE, gap, self.size), self.log_size.after(LOG_SIZE, gap)

    def see(self, sighting: Sighting, now: float) -> None:
        centre, log_size = measured(sighting.face.box)
        self.place = self.place.seeing(PLACE, centre, self.size)
        self.log_size = self.log_size.seeing(LOG_SIZE, log_size)
        self.seen, self.size = now, float(np.exp(self.log_size.mean[0].mean()))
        self.tracklet.sightings.append(sighting)


class Associator:
    """Follows faces from frame to frame, one film at a time; a tracklet, with an id of `ids`, ends `patience` seconds
    after its last sighting."""

    def __init__(self, patience: float = 1.5, ids: Iterator[int] | None = None):
        self._patience, self._ids, self._scene = patience, ids or count(1), 0
        self._active: list[_Active] = []

    def step(
        self, frame: int, time: float, faces: Sequence[Face] | None, cut: bool = False
    ) -> tuple[list[int], list[Tracklet]]:
        """Take the next frame, shown at a second; `faces` is None where nobody looked, `cut`: a new scene begins.

        Returns the tracklet of each face and the tracklets that are over, in the order of their ids.
        """
        ended = [track for track in self._active if cut or time - track.seen > self._patience]
        self._active = [track for track in self._active if track not in ended]
        self._scene += cut
        ids = self._follow(frame, time, faces) if faces else []
        return ids, [track.tracklet for track in ended]

    def finish(self) -> list[Tracklet]:
        """End the film; returns the tracklets that were still active."""
        ended, self._active = self._active, []
        return [track.tracklet for track in ended]

    def _follow(self, frame: int, now: float, faces: Sequence[Face]) -> list[int]:
        ids = [0] * len(faces)
        for track in self._active:
            track.advance(now)
        for sudden in (False, True):
            waiting = [t for t in self._active if t.seen < now and (not sudden or now - t.seen <= SUDDEN)]
            rest = [number for number, id in enumerate(ids) if not id]
            if not waiting or not rest:
                break
            cost = self._cost(waiting, np.stack([faces[number].box for number in rest]), now, sudden)
            # A pair at the limit is as good as none, so the assignment does not stretch one pair to save another.
            for row, column in zip(*assignment(cost), strict=True):
                if cost[row, column] < LIMIT:
                    waiting[row].see(Sighting(frame, faces[rest[column]]), now)
                    ids[rest[column]] = waiting[row].tracklet.id
        for number, face in enumerate(faces):
            if not ids[number]:
                ids[number] = next(self._ids)
                self._active.append(_Active(Tracklet(ids[number], [Sighting(frame, face)], self._scene), now))
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


class Chain:
    """Sightings and weaker finds in increasing frames that are likely of one face, each with its tracklet."""

    def __init__(self, sightings: list[Sighting], owners: list[Tracklet], times: Floats) -> None:
        self.sightings, self.owners = sightings, owners
        # The film's `times` are seconds of all frames.
        self.times = times[[sighting.frame for sighting in sightings]]
        self.centres, self.log_sizes = measured(np.stack([sighting.face.box for sighting in sightings]))
        # [n,2] pixels per second over three sightings that follow each other; 0 of a single one.
        self.velocities, reach = np.zeros((1, 2)), min(2, len(sightings) - 1)
        if reach:
            away = self.centres[reach:] - self.centres[:-reach]
            self.velocities = away / (self.times[reach:] - self.times[:-reach])[:, None]
        self.speed = float(np.linalg.norm(self.velocities, axis=1).max())
        # Whether it holds a sighting.
        self.is_face = not all(owner.weak for owner in owners)
        # Whether one of its faces is confirmed; of weaker finds alone nothing is asked.
        self.is_confirmed = not self.is_face or any(owner.confirmed for owner in owners if not owner.weak)

    def tracklet(self) -> Tracklet:
        """Of the person who was seen, if it was one and in one scene, where a rule may keep that person."""
        people = {owner.person for owner in self.owners if not owner.weak}
        person = people.pop() if len(people) == 1 else 0
        return Tracklet(0, self.sightings, self.owners[0].scene, person=person, weak=True)


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
    searched, found = np.asarray(looks, np.int64), list[Chain]()
    for tracklet in (*sure, *weak):  # parted by every look in vain
        numbers = np.searchsorted(searched, [sighting.frame for sighting in tracklet.sightings])
        for rows in np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(numbers) > 1) + 1):
            part = [tracklet.sightings[row] for row in rows]
            found.append(Chain(part, [tracklet] * len(part), times))
    between = float(np.diff(times[searched]).max(initial=0.0))
    found = _joined(found, min(2 * between, patience), NEAR, times)
    for _ in range(PASSES):
        found = _joined(found, patience, FAR, times, faces=True)
    return found


def _joined(parts: Sequence[Chain], reach: float, most: float, times: Floats, *, faces: bool = False) -> list[Chain]:
    """Chains and those that go on with them within `reach` seconds at a cost below `most`; `faces`: one is a face."""
    parts = sorted(parts, key=lambda chain: float(chain.times[0]))
    starts = np.array([chain.times[0] for chain in parts])
    links: list[tuple[float, int, int]] = []
    for a, chain in enumerate(parts):
        end = chain.times[-1]
        window = range(*np.searchsorted(starts, [end, end + reach + 1e-6], side="right").tolist())
        near = [b for b in window if not faces or chain.is_face or parts[b].is_face]
        if near:
            costs = _link_costs(chain, [parts[b] for b in near]).tolist()
            links += [(cost, a, b) for cost, b in zip(costs, near, strict=True) if cost < most]
    after, followers = dict[int, int](), set[int]()
    for _, a, b in sorted(links):
        if a not in after and b not in followers:
            after[a] = b
            followers.add(b)
    joined = []
    for number in sorted(set(range(len(parts))) - followers):
        line = [number]
        while line[-1] in after:
            line.append(after[line[-1]])
        sightings = [sighting for n in line for sighting in parts[n].sightings]
        owners = [owner for n in line for owner in parts[n].owners]
        joined.append(Chain(sightings, owners, times) if len(line) > 1 else parts[number])
    return joined


def _link_costs(chain: Chain, others: Sequence[Chain]) -> Floats:
    """Of a face going from the end of a chain to the beginnings of others [n]: -2 log likelihood but a constant."""
    owner, owners = chain.owners[-1], [other.owners[0] for other in others]
    weak = np.array([owner.weak or other.weak for other in owners])
    log_sizes = np.stack([other.log_sizes[0] for other in others])
    sides = np.abs(log_sizes - chain.log_sizes[-1])
    change = np.where(weak, sides.min(1), sides.mean(1))
    size = np.exp((log_sizes + chain.log_sizes[-1]).mean(1) / 2)
    gap = np.array([other.times[0] for other in others]) - chain.times[-1]
    usual = np.maximum([max(other.speed, chain.speed) for other in others], PLACE.speed * size) * gap
    path = np.stack([other.centres[0] for other in others]) - chain.centres[-1]
    before = path - np.stack([other.velocities[0] for other in others]) * gap[:, None]
    # From the place itself, and from where either motion leads.
    off = np.linalg.norm([path, path - chain.velocities[-1] * gap[:, None], before], axis=-1)
    loose = VAGUE + STRAY * usual / size
    owned = np.array([other is owner for other in owners]) & ~weak
    cost = (off.min(0) / size / loose) ** 2 + 4 * np.log(loose / VAGUE) + (change / ALIKE) ** 2 - OWN * owned
    never = np.array([other.scene != owner.scene for other in owners])
    never |= (off[0] > _dash(gap) * size + FASTER * usual) | (change > RESIZE)
    never |= sides.mean(1) > np.where(weak, HIDDEN, RESIZE)
    return np.where(never, np.inf, cost)


def with_weak(found: Sequence[Chain], sure: Sequence[Tracklet], cuts: Sequence[int], times: Floats) -> list[Chain]:
    """Of the chains those with weaker finds that are likely faces, blurred by motion, half hidden or in a flash.

    Weaker finds prolong faces and lead from one sighting to the next, but begin none, unless a scene begins with fewer
    faces than the one before ended with, or in a flash, which may look like two cuts.

    Source: Zhang et al., "ByteTrack: multi-object tracking by associating every detection box", 2022.
    """
    faces_in = Counter(sighting.frame for tracklet in sure for sighting in tracklet.sightings)
    ends: defaultdict[int, list[Sighting]] = defaultdict(list)
    for tracklet in sure:
        for sighting in (tracklet.sightings[0], tracklet.sightings[-1]):
            ends[sighting.frame].append(sighting)

    def is_near(weak: Sighting, seen: Sighting) -> bool:
        (centre, log_size), (place, log) = measured(weak.face.box), measured(seen.face.box)
        away = float(np.linalg.norm(place - centre)) / math.exp(log.mean())
        gap = abs(times[seen.frame] - times[weak.frame])
        return abs(float((log - log_size).mean())) <= RESIZE and bool(away <= _dash(gap))

    def is_likely(chain: Chain) -> bool:
        if chain.is_face:
            return any(owner is not chain.owners[0] for owner in chain.owners)
        first, last = chain.sightings[0], chain.sightings[-1]
        fewer = first.frame in cuts and faces_in[first.frame] < faces_in[first.frame - 1]
        # In a flash a face was seen about here in the frame before its scene, or in the one after it.
        sides = [(first, first.frame - 1)] * (first.frame in cuts) + [(last, last.frame + 1)] * (last.frame + 1 in cuts)
        flashes = any(is_near(weak, seen) for weak, frame in sides for seen in ends[frame])
        return flashes or (fewer and first.face.score >= BEGUN)

    return [chain for chain in found if is_likely(chain)]


def _dash(gap: Floats) -> Floats:
    """Sizes that any face may have moved in some seconds; in less than 1/25 s as far as in 1/25 s."""
    return np.minimum(0.5 + DASH * np.maximum(gap, 0.04), LEAP)


def abrupt_ends(
    found: Sequence[Chain], cuts: Sequence[int], looks: Sequence[int], times: Floats, pad: float, size: tuple[int, int]
) -> list[tuple[Sighting, str]]:
    """Sightings with which a track of a fast face begins or ends in mid-picture, with the reason: as it moved, it would
    have left its cover before the pad ends, and it was not seen in the next look."""
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
            fast = float(np.linalg.norm(velocity)) * pad > math.exp(chain.log_sizes[end].mean())
            if fast and ((place >= 0) & (place <= size)).all():
                doubts.append((sighting, why))
    return sorted(doubts, key=lambda doubt: doubt[0].frame)
