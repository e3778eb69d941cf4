"""Which tracklets show one person: across gaps and scene cuts, and where wanted across the films of a job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.faces import Face, Recognizer
from ficgan.options import Link
from ficgan.video.source import NEAR, CutFrame, is_cut
from ficgan.video.tracks import FOREVER, PLACE, Reading, Sighting, Tracklet, measured, share_in, smooth

Floats = NDArray[np.float64]

# Factor of the match threshold under which tracklets are linked; below 1, because many are compared with many. With
# dlib, 90 people × 3 tracklets of photos taken years apart: at 1 it links .93 of the pairs of one person and .0032 of
# those of two, at .9 .82 and .0006, at .8 .54 and .0001.
STRICTNESS = 0.9
# Tracklets that are compared all with all.
BATCH = 1000
# Seconds over which two tracklets of one person become one track; farthest distance from the expected place, in sizes
# of the face; largest difference of the logarithm of the size.
JOIN_GAP, JOIN_REACH, JOIN_RESIZE = 2.0, 2.0, 0.5


class _FaceGroup(NamedTuple):
    """Embeddings that show one person: their number (by weight), mean [d] and mean squared length."""

    weight: float
    mean: Floats
    square: float

    def joined(self, other: _FaceGroup) -> _FaceGroup:
        weight = self.weight + other.weight
        a, b = self.weight / weight, other.weight / weight
        return _FaceGroup(weight, a * self.mean + b * other.mean, a * self.square + b * other.square)


def _meet(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether spans of frames [n,2] and [m,2] have one in common: [n,m]."""
    return (a[:, None, 0] <= b[:, 1]) & (b[:, 0] <= a[:, None, 1])


class People:
    """Numbers the people of films; with link="job" it remembers them from one film to the next.

    Average linkage: the nearest two groups are joined while the root mean squared distance stays below the threshold,
    the recogniser's times `strictness`. Two in one frame are never joined. The order of the films counts.
    """

    def __init__(self, recognizer: Recognizer | None, link: Link = "file", strictness: float = STRICTNESS) -> None:
        self.recognizer, self.link, self.strictness = recognizer, link, strictness
        self._by_angle = recognizer is None or recognizer.metric == "cosine"
        limit = strictness * (0.0 if recognizer is None else recognizer.match_threshold)
        # The largest squared Euclidean distance of (for cosine: unit) vectors of one person.
        self._limit = 2 * limit if self._by_angle else limit**2
        self._known: list[_FaceGroup] = []  # person n is the (n - 1)th

    def assign(self, tracklets: Sequence[Tracklet]) -> list[int]:
        """The person of each tracklet of one film, from 1 in the order of appearance; 0: no usable embedding."""
        if self.link != "job":
            self._known = []
        order = sorted(range(len(tracklets)), key=lambda n: (tracklets[n].first, tracklets[n].id))
        if self.link == "none":
            return (np.argsort(order) + 1).tolist()
        people = [0] * len(tracklets)
        seen = [(index, group) for index in order if (group := self._group(tracklets[index].readings)) is not None]
        spans = np.array([(tracklets[index].first, tracklets[index].last) for index, _ in seen]).reshape(-1, 2)
        numbers: list[int] = []
        for start in range(0, len(seen), BATCH):
            groups = [group for _, group in seen[start : start + BATCH]]
            numbers += self._cluster(groups, spans[start : start + BATCH], spans[:start], np.array(numbers, np.int64))
        for (index, _), number in zip(seen, numbers, strict=True):
            people[index] = number
        return people

    def meet(self, embedding: NDArray[np.float32], barred: Collection[int] = ()) -> int:
        """The person of one embedding [1,d] in a stream, none of `barred`, or a new one; 0: not usable."""
        group = self._group([Reading(0, embedding[0])])
        if group is None:
            return 0
        others = np.array([number for number in barred if number], np.int64)
        spans = np.zeros((1 + len(others), 2), np.int64)  # all are in one frame
        return self._cluster([group], spans[:1], spans[1:], others)[0]

    def _group(self, readings: Sequence[Reading]) -> _FaceGroup | None:
        """Those readings of a tracklet that can be used."""
        if not readings:
            return None
        x = np.stack([reading.embedding for reading in readings]).astype(np.float64)
        weight = np.array([reading.quality for reading in readings])
        length = np.linalg.norm(x, axis=1)
        usable = np.isfinite(length) & np.isfinite(weight) & (weight > 0) & ((length > 0) | (not self._by_angle))
        if not usable.any():
            return None
        x, weight = x[usable], weight[usable]
        if self._by_angle:
            x = x / length[usable][:, None]
        share = weight / weight.sum()  # qualities rank views of one face, they do not rank faces
        return _FaceGroup(len(x), share @ x, float(share @ (x**2).sum(1)))

    def _cluster(
        self, new: list[_FaceGroup], spans: NDArray[np.int64], before: NDArray[np.int64], people: NDArray[np.int64]
    ) -> list[int]:
        """The person of each new group. `spans` [n,2] are the first and last frames of their tracklets; `before` [m,2]
        and `people` [m] the same, and the people, of the tracklets of this film so far."""
        known, groups = len(self._known), [*self._known, *new]
        # Known people stay apart, and so do tracklets that are in one frame.
        barred = np.eye(len(groups), dtype=bool)
        barred[:known, :known] = True
        barred[known:, known:] = _meet(spans, spans)
        np.logical_or.at(barred[:, known:], people - 1, _meet(before, spans))
        weights, means, squares = (np.array(column) for column in zip(*groups, strict=True))
        # Mean of the squared distances between the members of every two groups.
        apart = np.maximum(squares[:, None] + squares - 2 * means @ means.T, 0.0)
        apart, heads = np.where(barred | barred.T, np.inf, apart), np.arange(len(groups))
        while True:
            row, gone = sorted(divmod(int(np.argmin(apart)), len(groups)))  # the earlier one stays
            if not apart[row, gone] < self._limit:
                break
            # The mean distance from a joined group; infinite where one of the two was barred.
            apart[row] = np.average(apart[[row, gone]], axis=0, weights=weights[[row, gone]])
            apart[:, row], apart[gone], apart[:, gone] = apart[row], np.inf, np.inf
            weights[row] += weights[gone]
            heads[heads == gone] = row
        numbers = {head: head + 1 for head in range(known)}
        for head, group in zip(heads[known:].tolist(), new, strict=True):  # in the order of appearance
            if head in numbers:
                self._known[numbers[head] - 1] = self._known[numbers[head] - 1].joined(group)
            else:
                self._known.append(group)
                numbers[head] = len(self._known)
        return [numbers[head] for head in heads[known:].tolist()]


def link_tracklets(tracklets: Sequence[Tracklet], people: People, times: ArrayLike) -> list[Tracklet]:
    """The tracklets with `person`, in the order of appearance. Those of one person that follow each other in one scene,
    where they were expected, become one, whatever `people.link` says."""
    clock = np.asarray(times, np.float64)
    here = People(people.recognizer, "file", people.strictness).assign(tracklets)
    latest: dict[tuple[int, int], int] = {}  # person and scene → place in `joined` of the last tracklet so far
    joined: list[Tracklet] = []
    for later, person in sorted(zip(tracklets, here, strict=True), key=lambda pair: (pair[0].first, pair[0].id)):
        place = latest.get((person, later.scene)) if person else None
        if place is not None and _continues(earlier := joined[place], later, clock):
            sightings, readings = [*earlier.sightings, *later.sightings], [*earlier.readings, *later.readings]
            id, confirmed = min(earlier.id, later.id), earlier.confirmed or later.confirmed
            joined[place] = replace(earlier, id=id, sightings=sightings, readings=readings, confirmed=confirmed)
        else:
            latest[person, later.scene] = len(joined)
            joined.append(later)
    return [replace(tracklet, person=number) for tracklet, number in zip(joined, people.assign(joined), strict=True)]


def _continues(earlier: Tracklet, later: Tracklet, clock: Floats) -> bool:
    other = earlier.until < FOREVER or later.since > 0  # another person was in its place
    if other or later.first <= earlier.last or clock[later.first] - clock[earlier.last] > JOIN_GAP:
        return False
    before, after = earlier.sightings[-1].face.box, later.sightings[0].face.box
    # The way may be foretold from either side: the one that saw more knows better.
    ahead = _away(earlier.sightings[-8:], later.first, after, clock)
    away = min(ahead, _away(later.sightings[:8], earlier.last, before, clock))
    resized = abs((measured(before)[1] - measured(after)[1]).mean())
    return bool(away <= JOIN_REACH and resized <= JOIN_RESIZE)


def _away(sightings: Sequence[Sighting], frame: int, box: NDArray[np.float32], clock: Floats) -> float:
    """Sizes between a box and where sightings foretell the face in its frame."""
    centre, log_size = measured(np.stack([sighting.face.box for sighting in sightings]))
    size = np.exp(log_size.mean(1))
    place, _ = smooth(PLACE, clock[[sighting.frame for sighting in sightings]], centre, clock[[frame]], size)
    return float(np.linalg.norm(place[0] - measured(box)[0]) / np.exp(log_size.mean()))


# -- reading faces -----------------------------------------------------------------------------------------------------

# Sightings of a tracklet at which its face is read; later every so many.
READ_AT, READ_EVERY = (1, 3, 8), 10
# Factor of the match threshold beyond which a reading is another person's, if the next reading agrees with it; and the
# one after a moment in which the face was not found, or touched another one: there people are taken for each other.
OTHER, OTHER_AFTER = 1.1, 1.0
# The same where the surroundings of a face change abruptly, as when tiles of a call change places: there even people
# whom the recogniser takes for each other are told apart. Chosen on one made call (docs/video.md has others). And the
# side of the surroundings, in sizes of the face.
OTHER_PLACE, SURROUNDINGS = 0.75, 3.0
# Share of a face's box that lies in another face's, from which on they touch.
TOUCH = 0.1
# Frontality below which a reading says too little about who it is.
CLEAR = 0.65
# Side in pixels under which a face is not read: its embedding says nothing.
LEAST_READ = 20.0


def readable(face: Face) -> bool:
    """Whether an embedding of a face can say who it is."""
    return bool(np.ptp(face.landmarks, axis=0).min() > 0 and (face.box[2:] - face.box[:2]).min() >= LEAST_READ)


def frontality(landmarks: NDArray[np.floating]) -> float:
    """Eye distance over eye–mouth distance of a face [5,2]: about 1 from the front, small in profile."""
    points = np.asarray(landmarks, np.float64)
    height = float(np.linalg.norm(points[3:].mean(0) - points[:2].mean(0)))
    return float(np.linalg.norm(points[1] - points[0])) / max(height, 1e-6)


class _Person(NamedTuple):
    """Whom a tracklet shows: last frame that surely does, and first frame of the next person."""

    readings: list[Reading]
    sure: int
    until: int


@dataclass(eq=False)
class _Followed:
    """What is known of who a tracklet shows."""

    sightings: int = 0
    look: int = 0  # at which it was found last
    readings: list[Reading] = field(default_factory=list)  # of the person it shows now
    sure: int = -1  # frame of the last clear reading of this person
    doubt: Reading | None = None  # a reading that may be the first of another person
    limit: float = OTHER  # match thresholds from which it is another one, by what happened since the last clear reading
    before: list[_Person] = field(default_factory=list)
    # What is around the face, in one place of the picture as long as the face stays there: corners and the last views.
    corners: NDArray[np.int64] | None = None
    views: list[CutFrame] = field(default_factory=list)

    def surroundings_change(self, image: NDArray[np.uint8], face: Face) -> bool:
        """Whether a scene began around the face, although none did in the whole picture."""
        middle, side = (face.box[:2] + face.box[2:]) / 2, float((face.box[2:] - face.box[:2]).max())
        if self.corners is None or np.abs(middle - self.corners.mean(0)).max() > side / 2:  # it went on
            reach = SURROUNDINGS / 2 * side
            self.corners, self.views = np.rint([middle - reach, middle + reach]).astype(int), []
        (x0, y0), (x1, y1) = self.corners.clip(0, image.shape[1::-1])
        view = CutFrame(np.ascontiguousarray(image[y0:y1, x0:x1]))
        cut = bool(self.views) and is_cut(self.views, [view])
        self.views = [view] if cut else [*self.views, view][-NEAR:]
        return cut


class EmbeddingReader:
    """Embeddings of some sightings of each tracklet; where another person goes on in the same place, it is ended."""

    def __init__(self, recognizer: Recognizer) -> None:
        self._recognizer = recognizer
        self._followed: defaultdict[int, _Followed] = defaultdict(_Followed)
        self._looks = 0

    def __call__(self, frame: int, image: NDArray[np.uint8], faces: Sequence[Face], ids: Sequence[int]) -> None:
        """Read the faces of a frame; `ids` are their tracklets."""
        self._looks += 1
        for face, number in zip(faces, ids, strict=True):
            if readable(face):
                seen = self._followed[number]
                touches = any(other is not face and share_in(face.box, other.box) >= TOUCH for other in faces)
                if touches or 0 < seen.look < self._looks - 1:
                    seen.limit = min(seen.limit, OTHER_AFTER)
                if seen.surroundings_change(image, face):
                    seen.limit = OTHER_PLACE
                seen.look = self._looks
                self._read(seen, frame, image, face, touches)

    def _read(self, seen: _Followed, frame: int, image: NDArray[np.uint8], face: Face, touches: bool) -> None:
        seen.sightings += 1
        due = seen.sightings in READ_AT or seen.sightings % READ_EVERY == 0
        front = frontality(face.landmarks)
        front = min(front, 1 / max(front, 1e-6))
        clear, in_question = front >= CLEAR, seen.doubt is not None or (seen.limit < OTHER and not touches)
        if not (due or (in_question and clear)):
            return
        quality = min(float((face.box[2:] - face.box[:2]).min()) / 100, 1.0) * front
        reading = Reading(frame, self._recognizer.embed(image, face.landmarks[None])[0], quality)
        if seen.readings and clear and self._nearest(reading, seen.readings) > seen.limit:
            if seen.doubt is None or self._nearest(reading, [seen.doubt]) > 1:
                seen.doubt = reading
            else:
                sure = max(seen.sure, seen.readings[-1].frame)
                seen.before.append(_Person(seen.readings, sure, seen.doubt.frame))
                seen.readings, seen.doubt, seen.limit = [seen.doubt, reading], None, OTHER
            return
        if due:
            seen.readings.append(reading)
        if clear:
            seen.sure, seen.doubt, seen.limit = frame, None, OTHER

    def _nearest(self, reading: Reading, known: Sequence[Reading]) -> float:
        """Least distance to known readings, in match thresholds."""
        apart = [float(self._recognizer.distance(reading.embedding, other.embedding)) for other in known]
        return min(apart) / self._recognizer.match_threshold

    def hand_over(self, tracklets: Sequence[Tracklet]) -> list[Tracklet]:
        """Tracklets with their embeddings, one for each person; what lies between two people is only covered."""
        made: list[Tracklet] = []
        free = count(1 + max((tracklet.id for tracklet in tracklets), default=0))
        for tracklet in tracklets:
            seen, begin, since = self._followed[tracklet.id], 0, 0
            for person in (*seen.before, _Person(seen.readings, FOREVER, FOREVER)):
                id = next(free) if begin else tracklet.id
                own = [sighting for sighting in tracklet.sightings if begin <= sighting.frame < person.until]
                made.append(replace(tracklet, id=id, sightings=own, since=since, **person._asdict()))
                begin, since = person.until, person.sure + 1
        return made
