"""The first stage of a film, *found*: every face of it as tracks, and which of them are one person.

A track none of whose finds is confirmed (leaves, hands, cloth), and which no motion joins to one that is, is dropped.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import brightest
from ficgan.errors import InputError, UsageError
from ficgan.faces import DetectAt, Face, FaceDetector, Recognizer, detector_missing, get_detector
from ficgan.faces.detection import detect_and_doubt, overlaps
from ficgan.faces.mesh import MediaPipeMesh, find_meshes
from ficgan.faces.recognition import embed_largest
from ficgan.video import FilmTask, Rules
from ficgan.video.association import Associator, abrupt_ends, chains, with_weak
from ficgan.video.decisions import BoxRule, Decision, Decisions, SpanRule
from ficgan.video.people import EmbeddingReader, People, link_tracklets
from ficgan.video.project import Project, Source
from ficgan.video.source import Frame, with_cuts
from ficgan.video.tracks import Sighting, Track, Tracklet, fill_tracks, fill_weak, measured, without_double_pads


def find_faces(task: FilmTask, rules: Rules, people: People | None = None, log: Path | None = None) -> Project:
    """Find every face of a film, and who is one person; `log` is a file of detections, to resume from."""
    source, settings, recognizer = task.source, task.settings, task.tools.recognizer
    search = FieldSearch(DetectAt(task.tools.detector, (settings.detect_size,) * 2, enlarge=False))
    references: dict[str, NDArray[np.float32]] = {}
    for name, photo in {**rules.keep, **rules.only}.items():
        if recognizer is None:
            raise UsageError(f"{name}: people are recognised by photos only with a recogniser; leave --verify off out")
        references[name] = embed_largest(photo, name, search, recognizer)
    reads = recognizer if references or settings.link != "none" else None
    seen, step = _SeenFilm(task, reads), task.step("analysing", source.info.frames)

    def find(frame: Frame) -> Finds:
        faces, weak = search.detect_and_doubt(frame.image)
        return {FACES: faces, WEAK: weak, **{one.name: one.detect(frame.image) for one in task.tools.objects}}

    with logged(find, log) as known_or_found:
        for frame, found, cut in look(source.frames(quick=True), known_or_found, seen.pace.stride):
            seen.take(frame, found, cut)
            step(frame.index)
    if not seen.pts:
        raise InputError(f"{source.name}: holds no frame that can be decoded")
    tracklets, tracks, places = seen.joined(people or People(recognizer, settings.link))
    facts = {**asdict(settings), "detector": task.tools.detector.name, "start": source.start, "end": source.end}
    if task.tools.objects:
        facts["objects"] = {detector.name: detector.cover for detector in task.tools.objects}
    return Project(
        Source.of(task.path, source.info),
        np.array(seen.pts, np.int64),
        tracks,
        {**facts, **places},
        tuple(seen.cuts),
        _decisions(task, rules, references, tracklets),
    )


# What is found, by kind; the other kinds are the names of the user's detectors of objects, which have no space.
Finds = Mapping[str, list[Face]]
FACES, WEAK = "sure faces", "weak faces"


class _SeenFilm:
    """The frames of a film as they were searched, and the faces and objects in them, followed."""

    def __init__(self, task: FilmTask, recognizer: Recognizer | None) -> None:
        info, tools = task.source.info, task.tools
        self.pace, self._size = task.settings.at(info.rate), (info.width, info.height)
        self.pts, self.times = list[int](), list[float]()
        # Frames that begin scenes, and frames in which the detector looked.
        self.cuts, self.looks = list[int](), list[int]()
        self._read = None if recognizer is None else EmbeddingReader(recognizer)
        # Tracklets of which a find is confirmed. A detector that has no `sure` score is believed.
        self._confirmed, self._sure = set[int](), float(getattr(tools.detector, "sure", 0.0))
        self._mesh, self._other = MediaPipeMesh(), None
        if self._sure:
            self._other = independent_detector(tools.detector.name, task.settings.detect_size)
        kinds = (FACES, WEAK, *(detector.name for detector in tools.objects))
        self._follow = {kind: Associator(self.pace.patience) for kind in kinds}
        self._ended: dict[str, list[Tracklet]] = {kind: [] for kind in kinds}

    def take(self, frame: Frame, found: Finds | None, cut: bool) -> None:
        """Take the next frame and its finds (None: nobody looked); `cut`: a scene begins with it."""
        self.pts.append(frame.pts)
        self.times.append(frame.time)
        self.cuts += [frame.index] if cut else []
        self.looks += [] if found is None else [frame.index]
        for kind, follow in self._follow.items():
            faces = None if found is None else found[kind]
            ids, ended = follow.step(frame.index, frame.time, faces, cut)
            self._ended[kind] += ended
            if kind == FACES and faces is not None:
                self._confirm(frame.image, faces, ids)
                if self._read is not None:
                    self._read(frame.index, frame.image, faces, ids)

    def _confirm(self, image: NDArray[np.uint8], faces: Sequence[Face], ids: Sequence[int]) -> None:
        """Look a second time at the weak finds of a frame, until one of their tracklet (`ids`) is confirmed."""
        found = list(zip(faces, ids, strict=True))
        self._confirmed |= {number for face, number in found if face.score >= self._sure or not _is_large(face)}
        weak = [(face, number) for face, number in found if number not in self._confirmed]
        if not weak or self._other is None:
            return
        meshes = find_meshes(self._mesh, image, [face.landmarks for face, _ in weak])
        self._confirmed |= {number for (_, number), mesh in zip(weak, meshes, strict=True) if mesh.presence >= PRESENCE}
        rest = [(face, number) for face, number in weak if number not in self._confirmed]
        boxes = np.array([face.box for face in self._other.detect(image)] if rest else []).reshape(-1, 4)
        self._confirmed |= {number for face, number in rest if overlaps(face.box, boxes).max(initial=0.0) >= SAME}

    def joined(self, people: People) -> tuple[list[Tracklet], list[Track], dict[str, list[dict[str, Any]]]]:
        """The end of the film: tracklets of faces joined by person and by motion, all filled to tracks, and places: to
        `review`, and `dropped` as nothing confirms them."""
        tracklets = {kind: [*self._ended[kind], *follow.finish()] for kind, follow in self._follow.items()}
        faces, weak, clock, pad = tracklets.pop(FACES), tracklets.pop(WEAK), np.array(self.times), self.pace.pad
        for tracklet in faces:
            tracklet.confirmed = tracklet.id in self._confirmed
        if self._read is not None:
            faces = self._read.hand_over(faces)
        faces = link_tracklets(faces, people, clock)
        found = chains(faces, weak, self.looks, clock, self.pace.patience)
        confirmed = [chain for chain in found if chain.is_confirmed]
        stay = {id(owner) for chain in confirmed for owner in chain.owners}
        dropped = []
        for tracklet in (tracklet for tracklet in faces if id(tracklet) not in stay):
            best = max(tracklet.sightings, key=lambda sighting: sighting.face.score)
            span = {"first": tracklet.first, "last": tracklet.last}
            dropped.append({**span, **self._place(best), "score": round(float(best.face.score), 3)})
        faces = [tracklet for tracklet in faces if id(tracklet) in stay]
        tracks = without_double_pads(fill_tracks(faces, self.cuts, clock, pad))
        likely = [chain.tracklet() for chain in with_weak(confirmed, faces, self.cuts, clock)]
        tracks += fill_weak(likely, tracks, self.cuts, clock, pad)
        for kind, others in tracklets.items():
            lines = fill_tracks(others, self.cuts, clock, pad)
            tracks += [replace(track, id=len(tracks) + track.id, kind=kind) for track in lines]
        ends = abrupt_ends(confirmed, self.cuts, self.looks, clock, pad, self._size)
        review = [{"frame": seen.frame, "reason": reason, **self._place(seen)} for seen, reason in ends]
        return faces, tracks, {"review": review, "dropped": dropped}

    def _place(self, sighting: Sighting) -> dict[str, Any]:
        box = [round(float(value), 1) for value in sighting.face.box]
        return {"time": round(self.times[sighting.frame], 3), "box": box}


def _decisions(
    task: FilmTask, rules: Rules, references: Mapping[str, NDArray[np.float32]], tracklets: Sequence[Tracklet]
) -> Decisions:
    """Doubt hides: a person is kept if their readings match on average, and hidden if a single one does."""
    recognizer = task.tools.recognizer
    limit = recognizer.match_threshold if recognizer is not None else 0.0

    def distances(name: str) -> dict[int, list[float]]:
        """Of each person's readings from a photo."""
        assert recognizer is not None
        found: dict[int, list[float]] = {}
        for person, reading in ((one.person, reading) for one in tracklets if one.person for reading in one.readings):
            found.setdefault(person, []).append(float(recognizer.distance(references[name], reading.embedding)))
        return found

    chosen = {person for name in rules.only for person, away in distances(name).items() if min(away) < limit}
    if rules.only and not chosen:  # hiding nobody is not what was meant
        raise UsageError("nobody in the film matches the photos of --only; give a clearer photo, or leave it out")
    kept = {
        person: Decision(mode="keep", reason=f"matches {Path(name).name}")
        for name in rules.keep
        for person, away in distances(name).items()
        if np.mean(away) < limit and person not in chosen
    }
    return Decisions(
        default=task.settings.mode,
        only=tuple(sorted(chosen)) or None,
        people=kept,
        boxes=tuple(BoxRule(box=box, reason="given box") for box in rules.boxes),
        spans=tuple(SpanRule(start=start, end=end, mode="keep", reason="given time") for start, end in rules.spans),
    )


# -- where the detector looks ------------------------------------------------------------------------------------------

# A frame, what was found in it (None where nobody looked), whether a new scene begins with it.
Seen = tuple[Frame, Finds | None, bool]

# Sizes by which a face may have moved from one look to the next and still count as the same, calm one; the same for
# the logarithm of its size.
MOVED, RESIZED = 0.75, 0.4
# Shorter side in pixels: smaller faces come and go with the detector's mood and cause no look of their own, and neither
# a mesh nor another detector can tell whether they are any.
LEAST = 24.0
# Grey levels of one colour by which a cell of a thumbnail (1/64 of the width) differs.
DIFFERENT = 24
# Frames kept at most until it is known whether to look at them.
PENDING = 32


@dataclass(eq=False)
class _Pending:
    """A frame of which it is not yet known whether to look at it."""

    frame: Frame
    thumbnail: NDArray[np.uint8]
    found: Finds | None = None


def look(frames: Iterable[Frame], find: Callable[[Frame], Finds], stride: int) -> Iterator[Seen]:
    """Look at every n-th frame (n is `stride`), at the first and last of each scene, in the middle of two looks between
    which a face came, went or moved far, and at the oddest frame of a picture that changed and changed back.
    """
    line: list[_Pending] = []  # the frame of the last look and those since
    since = 0
    for frame, thumbnail, cut in with_cuts(frames):
        if cut:
            yield from _settled(line, find)
            line = []
        line.append(_Pending(frame, thumbnail))
        if len(line) == 1:
            line[0].found, since = find(frame), 0
            yield frame, line[0].found, cut
            continue
        since += 1
        if since >= stride:
            yield from _settled(line, find)
            line, since = line[-1:], 0
        elif len(line) > PENDING + 1:
            yield line.pop(1).frame, None, False
    yield from _settled(line, find)


def _settled(line: Sequence[_Pending], find: Callable[[Frame], Finds]) -> Iterator[Seen]:
    """The frames after the first of a line, looked at where needed; the first one was looked at before."""
    if len(line) < 2:
        return

    def look_between(a: int, b: int) -> None:
        spans = [(a, b)]  # no recursion: a function that calls itself would keep the frames until it is collected
        while spans:
            a, b = spans.pop()
            before, after = line[a].found, line[b].found
            if b - a < 2 or before is None or after is None or _alike(before[FACES], after[FACES]):
                continue
            middle = (a + b) // 2
            line[middle].found = find(line[middle].frame)
            spans += [(middle, b), (a, middle)]

    line[-1].found = find(line[-1].frame)
    look_between(0, len(line) - 1)
    looks = [number for number, one in enumerate(line) if one.found is not None]
    for a, b in pairwise(looks):
        odd = [_transient(line[a].thumbnail, one.thumbnail, line[b].thumbnail) for one in line[a + 1 : b]]
        if max(odd, default=0):
            most = a + 1 + int(np.argmax(odd))
            line[most].found = find(line[most].frame)
            look_between(a, most)
            look_between(most, b)
    yield from ((one.frame, one.found, False) for one in line[1:])


def _transient(before: NDArray[np.uint8], now: NDArray[np.uint8], after: NDArray[np.uint8]) -> int:
    """Squares of 2×2 cells unlike both other thumbnails, which are alike there; edges that shake are thinner."""
    a, x, b = (thumbnail.astype(np.int16) for thumbnail in (before, now, after))
    away = np.minimum(brightest(np.abs(x - a)), brightest(np.abs(x - b)))
    odd = (away >= DIFFERENT) & (3 * brightest(np.abs(a - b)) <= away)
    return int((odd[1:, 1:] & odd[:-1, 1:] & odd[1:, :-1] & odd[:-1, :-1]).sum())


def _alike(before: Sequence[Face], after: Sequence[Face]) -> bool:
    """Whether each large face of two looks has one near it in the other."""

    def is_near(a: Face, b: Face) -> bool:
        (first, size), (second, other) = measured(a.box), measured(b.box)
        scale = math.exp(float((size.mean() + other.mean()) / 2))
        far = float(np.linalg.norm(first - second)) > MOVED * scale
        return not far and abs(float((size - other).mean())) <= RESIZED

    rest = list(before)
    for face in after:
        near = [other for other in rest if is_near(face, other)]
        if near:
            rest.remove(near[0])
        elif _is_large(face):
            return False
    return not any(_is_large(face) for face in rest)


def _is_large(face: Face) -> bool:
    return float((face.box[2:] - face.box[:2]).min()) >= LEAST


# Grey levels by which a row of an interlaced picture differs from both its neighbours, and these from each other.
_COMB, _LIKE = 12, 8
# Side of a cell in pixels, and the number of combed ones from which a picture is searched by field.
_CELL, _COMBED = 16, 4


class FieldSearch:
    """A detector that also searches both fields of an interlaced picture, where faces that move are torn into rows."""

    def __init__(self, detector: FaceDetector) -> None:
        self.detector, self.name = detector, detector.name

    def detect(self, image: NDArray[np.uint8]) -> list[Face]:
        """Faces of an H×W×3 uint8 RGB picture; a box holds the face at both moments."""
        return self.detect_and_doubt(image)[0]

    def detect_and_doubt(self, image: NDArray[np.uint8]) -> tuple[list[Face], list[Face]]:
        """The same, and weaker finds elsewhere."""
        faces, weak = detect_and_doubt(self.detector, image)
        if not _is_combed(image):
            return faces, weak
        rows = np.arange(len(image)) // 2 * 2
        for first in (0, 1):
            more, weaker = detect_and_doubt(self.detector, image[np.minimum(rows + first, len(image) - 1)])
            weak += weaker
            for face in more:
                same = next((number for number, other in enumerate(faces) if _same(face, other)), None)
                if same is None:
                    faces.append(face)
                else:
                    best = max(face, faces[same], key=lambda found: found.score)
                    low, high = np.minimum(face.box[:2], faces[same].box[:2]), np.maximum(face.box, faces[same].box)[2:]
                    faces[same] = replace(best, box=np.concatenate([low, high]))
        return faces, [face for face in weak if not any(_same(face, other) for other in faces)]


def _same(a: Face, b: Face) -> bool:
    return bool(overlaps(a.box, b.box)[0, 0] >= 0.4)


def _is_combed(image: NDArray[np.uint8]) -> bool:
    green = image[:, ::4, 1].astype(np.int16)
    above, row, below = green[:-2], green[1:-1], green[2:]
    away = np.minimum(np.abs(row - above), np.abs(row - below))
    combed = (away >= _COMB) & (np.abs(below - above) <= _LIKE)
    height, width = combed.shape[0] // _CELL * _CELL, combed.shape[1] * 4 // _CELL * _CELL // 4
    cells = combed[:height, :width].reshape(height // _CELL, _CELL, -1, _CELL // 4).mean((1, 3))
    return int((cells >= 0.25).sum()) >= _COMBED


@contextmanager
def logged(find: Callable[[Frame], Finds], log: Path | None) -> Iterator[Callable[[Frame], Finds]]:
    """`find`, with what it finds as JSON lines in a file, to resume from; frames in the file are not searched again."""
    if log is not None:
        log.touch(mode=0o600)
    with open(log or os.devnull, "r+b") as file:
        known, sound = dict[int, Finds](), 0
        for line in file.read().splitlines(keepends=True):
            try:
                number, finds = _read_line(line)
            except (ValueError, TypeError, AttributeError):  # a power cut or a kill: from here on it is searched anew
                break
            if not line.endswith(b"\n"):
                break
            known[number], sound = finds, sound + len(line)
        if log is not None:
            file.truncate(sound)
            file.seek(sound)

        def row(face: Face) -> list[float]:
            places = [*face.box.ravel(), *face.landmarks.ravel()]
            return [*(round(float(place), 2) for place in places), round(float(face.score), 4)]

        def found(frame: Frame) -> Finds:
            if frame.index in known:
                return known.pop(frame.index)
            rows = {kind: [row(face) for face in faces] for kind, faces in find(frame).items()}
            line = json.dumps([frame.index, rows]).encode() + b"\n"
            file.write(line)
            file.flush()
            return _read_line(line)[1]  # as a later run reads them

        yield found


def _read_line(line: bytes) -> tuple[int, Finds]:
    number, kinds = json.loads(line)
    tables = {kind: np.array(rows, np.float32).reshape(-1, 15) for kind, rows in kinds.items()}
    if not all(np.isfinite(table).all() for table in tables.values()):
        raise ValueError("no faces")
    return number, {
        kind: [Face(row[:4], row[4:14].reshape(5, 2), float(row[14])) for row in rows] for kind, rows in tables.items()
    }


# Presence of a mesh from which on there is a face, and overlap with a find of the second detector. Of 608 finds on
# annotated faces of groups and crowds, at three sizes, 9 had less of both and a score below `CenterFace.sure`: all of
# 17 px or less.
PRESENCE, SAME = 0.0, 0.3
# Detectors for checks, the best first.
_CHECKERS = ("insightface", "yunet", "centerface")


def independent_detector(used: str, size: int) -> FaceDetector:
    """A detector of another kind than `used`, that searches at a longest side of `size` pixels; two are embedded."""
    other = next(name for name in _CHECKERS if not used.startswith(name) and detector_missing(name) is None)
    return DetectAt(get_detector(other, scale=1.0), (size, size), enlarge=False)
