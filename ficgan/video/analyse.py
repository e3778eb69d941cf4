"""The first pass over a film: where the faces are in every frame, and which of them are one person."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.faces import DetectAt, Face, FaceDetector, Recognizer
from ficgan.video.association import AssociationConfig, Associator
from ficgan.video.fill import fill_tracks
from ficgan.video.look import look
from ficgan.video.media import Frame
from ficgan.video.modes import frontality
from ficgan.video.people import People, link_tracklets
from ficgan.video.read import VideoSource
from ficgan.video.settings import VideoSettings
from ficgan.video.tracks import Track, Tracklet

__all__ = ["Analysis", "DetectionLog", "analyse", "look_up"]

READ_AT = (1, 3, 8, 20, 50)
"""Sightings of a tracklet at which its face is read, as far as `VideoSettings.embeddings` goes."""
LEAST = 20.0
"""Side in pixels under which a face is not read: its embedding says nothing."""


@dataclass
class Analysis:
    """What the first pass found."""

    pts: NDArray[np.int64]
    tracks: list[Track]
    cuts: tuple[int, ...]
    likeness: dict[str, dict[int, tuple[float, float]]] = field(default_factory=dict)
    """Name of a reference photo → person → mean and smallest distance of that person's readings from it."""
    searched: int = 0
    """Frames the detector looked at."""


class DetectionLog:
    """What the detector found so far, on disk, so that an interrupted analysis need not look again.

    Args:
        path: JSON lines; what an interrupted run left is read, a line cut short is dropped.
    """

    def __init__(self, path: Path) -> None:
        self._found: dict[int, list[Face]] = {}
        self._file: TextIO | None = None
        good = 0
        if path.is_file():
            for line in path.read_bytes().splitlines(keepends=True):
                try:
                    number, rows = json.loads(line)
                    self._found[int(number)] = [_face(row) for row in rows]
                except (ValueError, TypeError, IndexError):
                    break
                if not line.endswith(b"\n"):
                    break
                good += len(line)
        path.touch(mode=0o600)
        self._file = path.open("r+", encoding="ascii")
        self._file.truncate(good)
        self._file.seek(good)

    def faces(self, frame: Frame, detector: FaceDetector) -> list[Face]:
        """The faces of a frame, from the log or found now."""
        if frame.index in self._found:
            return self._found.pop(frame.index)
        faces = [_face(_row(face)) for face in detector.detect(frame.image)]  # as a later run would read them
        assert self._file is not None
        self._file.write(json.dumps([frame.index, [_row(face) for face in faces]]) + "\n")
        self._file.flush()
        return faces

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _row(face: Face) -> list[float]:
    values = [*face.box.ravel(), *face.landmarks.ravel()]
    return [*(round(float(value), 2) for value in values), round(float(face.score), 4)]


def _face(row: list[float]) -> Face:
    values = np.asarray(row, np.float32)
    if values.shape != (15,) or not np.isfinite(values).all():
        raise ValueError("no face")
    return Face(values[:4], values[4:14].reshape(5, 2), float(values[14]))


def analyse(
    source: VideoSource,
    detector: FaceDetector,
    recognizer: Recognizer | None,
    settings: VideoSettings,
    *,
    people: People | None = None,
    photos: Mapping[str, NDArray[np.uint8]] | None = None,
    log: DetectionLog | None = None,
    step: Callable[[int], None] | None = None,
) -> Analysis:
    """Follow every face of a film.

    Args:
        source: the film, read once from its beginning.
        detector: finds faces.
        recognizer: tells people apart; None: every track is a person of its own.
        settings: stride, pads, linking.
        people: those known from other films of the job.
        photos: reference photos of people to recognise, by name.
        log: of detections.
        step: called with the number of each frame read; may raise to stop.

    Raises:
        InputError: the film has no frame.
        UsageError: a reference photo without a face, or nobody to recognise it.
    """
    search = DetectAt(detector, (settings.detect_size,) * 2, enlarge=False)
    known = {name: look_up(photo, name, search, recognizer) for name, photo in (photos or {}).items()}
    reader = recognizer if known or settings.link != "none" else None
    rate = float(source.info.rate) if source.info.rate else 25.0
    follow = Associator(rate, AssociationConfig(patience=settings.patience))
    readings = _Readings(reader, settings.embeddings)
    pts: list[int] = []
    times: list[float] = []
    cuts: list[int] = []
    done: list[Tracklet] = []
    searched = 0

    def find(frame: Frame) -> list[Face]:
        return search.detect(frame.image) if log is None else log.faces(frame, search)

    for frame, faces, cut in look(source.frames(), find, settings.stride):
        pts.append(frame.pts)
        times.append(frame.time)
        if cut:
            cuts.append(frame.index)
        searched += faces is not None
        found = follow.step(frame.index, faces, cut, frame.time)
        done += found.ended
        if faces:
            readings(frame.image, faces, found.ids)
        if step is not None:
            step(frame.index)
    if not pts:
        raise InputError(f"{source.name}: holds no frame that can be decoded")
    done += follow.finish()
    readings.hand_over(done)
    if people is None:
        people = People(link=settings.link) if recognizer is None else People.of(recognizer, settings.link)
    done = link_tracklets(done, people, times)
    likeness = {name: _likeness(reference, done, recognizer) for name, reference in known.items()}
    tracks = fill_tracks(done, cuts, times, settings.pad)
    return Analysis(np.array(pts, np.int64), tracks, tuple(cuts), likeness, searched)


def _likeness(
    reference: NDArray[np.float32], tracklets: list[Tracklet], recognizer: Recognizer | None
) -> dict[int, tuple[float, float]]:
    """For each person, mean and smallest distance of their readings from a reference."""
    assert recognizer is not None
    found: dict[int, list[float]] = {}
    for tracklet in tracklets:
        if tracklet.person and tracklet.embeddings is not None:
            distances = [float(recognizer.distance(reference, one)) for one in tracklet.embeddings]
            found.setdefault(tracklet.person, []).extend(distances)
    return {person: (float(np.mean(values)), min(values)) for person, values in found.items() if values}


class _Readings:
    """Embeddings of a few sightings of each tracklet."""

    def __init__(self, recognizer: Recognizer | None, most: int) -> None:
        self._recognizer, self._at = recognizer, set(READ_AT[:most])
        self._seen: dict[int, int] = {}
        self._kept: dict[int, list[tuple[NDArray[np.float32], float]]] = {}

    def __call__(self, image: NDArray[np.uint8], faces: list[Face], ids: list[int]) -> None:
        if self._recognizer is None:
            return
        for face, number in zip(faces, ids, strict=True):
            side = float((face.box[2:] - face.box[:2]).min())
            if not number or side < LEAST or np.ptp(face.landmarks, axis=0).min() <= 0:
                continue
            self._seen[number] = self._seen.get(number, 0) + 1
            if self._seen[number] in self._at:
                front = float(frontality(face.landmarks[None])[0])
                quality = min(side / 100, 1.0) * min(front, 1 / max(front, 1e-6))
                embedding = self._recognizer.embed(image, face.landmarks[None])[0]
                self._kept.setdefault(number, []).append((embedding, quality))

    def hand_over(self, tracklets: list[Tracklet]) -> None:
        """Give each tracklet its embeddings."""
        for tracklet in tracklets:
            kept = self._kept.get(tracklet.id)
            if kept:
                tracklet.embeddings = np.stack([embedding for embedding, _ in kept])
                tracklet.quality = np.array([quality for _, quality in kept], np.float32)


def look_up(
    photo: NDArray[np.uint8], name: str, detector: FaceDetector, recognizer: Recognizer | None
) -> NDArray[np.float32]:
    """Embedding of the largest face of a reference photo.

    Raises:
        UsageError: no face, or nobody to read it.
    """
    if recognizer is None:
        raise UsageError(f"{name}: people are recognised by photos only with a recogniser; leave --no-verify out")
    faces = detector.detect(photo)
    if not faces:
        raise UsageError(f"{name}: no face was found in it; give a photo with one clear face")
    largest = max(faces, key=lambda face: float(np.prod(face.box[2:] - face.box[:2])))
    return recognizer.embed(photo, largest.landmarks[None])[0]
