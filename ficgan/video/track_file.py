"""Rows of tracks on disk: JSON lines of differences, about 50 bytes a row, read and written a piece at a time.

The first line says what the file is and when each frame is shown; every other line is a track or a piece of a long one.
Numbers are whole: tenths of a pixel, thousandths of a score. A column begins with its first value, then come the
differences from row to row; equal neighbours of `origin` and of the differences of `pts` are [value, how often].
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.errors import InputError
from ficgan.video.schema import check_schema
from ficgan.video.tracks import PADDED, Track

__all__ = ["MAX_FRAMES", "read_tracks", "rounded", "write_tracks"]

SCHEMA = "ficgan-video-tracks/1"
MAX_FRAMES = 50_000_000
"""Nineteen days at 30 frames per second: more is a damaged file."""
PER_PIXEL, PER_SCORE = 10, 1000
_FURTHEST = 1_000_000
"""Pixels from the origin; farther is no place of a face."""
_ROWS_PER_LINE = 20_000
"""So that a face that is there for hours does not become one line of 50 MB."""
_KEYS = {"id", "first", "boxes", "landmarks", "scores", "origin"}


def rounded(track: Track) -> Track:
    """A track with the numbers it has after it was written and read: 0.1 px, 0.001 of a score.

    Raises:
        InputError: The track is damaged: NaN, a box without area, columns of different lengths.
    """
    where = f"track {track.id}"
    boxes = _whole(track.boxes, PER_PIXEL, where)
    landmarks = _whole(track.landmarks, PER_PIXEL, where)
    scores = _whole(track.scores, PER_SCORE, where)
    if boxes.ndim == 2 and boxes.shape[1] == 4:
        boxes[:, 2:] += boxes[:, 2:] == boxes[:, :2]  # clipped at the edge of the picture: a tenth of a pixel is left
    origin, notes = np.asarray(track.origin), list(track.notes)
    return _track(track.id, track.first, boxes, landmarks, scores, origin, track.person, notes, where)


def write_tracks(file: BinaryIO, tracks: Iterable[Track], pts: NDArray[np.int64], analysis: str) -> None:
    """Write rows; the tracks' people and notes are not among them.

    Args:
        file: Open for binary writing.
        tracks: As `rounded` gives them.
        pts: int64 [frames], time of showing of each frame in ticks.
        analysis: Which analysis the rows are of; stands in the project too.
    """
    begin = [int(pts[0])] if len(pts) else []
    _line(file, {"schema": SCHEMA, "analysis": analysis, "pts": [begin, _runs(np.diff(pts))]})
    for track in tracks:
        for start in range(0, len(track), _ROWS_PER_LINE):
            rows = slice(start, start + _ROWS_PER_LINE)
            _line(file, {
                "id": int(track.id), "first": int(track.first) + start,
                "boxes": [_differences(column) for column in _whole(track.boxes[rows], PER_PIXEL).T],
                "landmarks": [
                    _differences(column) for column in _whole(track.landmarks[rows], PER_PIXEL).reshape(-1, 10).T
                ],
                "scores": _differences(_whole(track.scores[rows], PER_SCORE)),
                "origin": _runs(track.origin[rows]),
            })  # fmt: skip


def read_tracks(path: Path) -> tuple[NDArray[np.int64], str, Iterator[Track]]:
    """Read a file of rows.

    Args:
        path: The file; it stays open until the tracks are read.

    Returns:
        pts int64 [frames], the name of the analysis, and the tracks one after the other, person 0 and without notes.

    Raises:
        InputError: The file is missing or damaged; from the iterator too.
    """
    lines = _lines(path)
    where, tree = next(lines, (str(path), None))
    head = check_schema(tree, SCHEMA, where)
    with _damaged(where):
        pts, analysis = _times(head["pts"], where), str(head["analysis"])
    return pts, analysis, _joined(_read(tree, where) for where, tree in lines)


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                where = f"{path}, line {number}"
                with _damaged(where):
                    tree = json.loads(line)
                yield where, tree
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


@contextmanager
def _damaged(where: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise InputError(f"{where}: is damaged ({type(error).__name__}: {error}); analyse the film again") from None


def _joined(pieces: Iterable[Track]) -> Iterator[Track]:
    """Tracks of the pieces that follow each other."""
    for _, group in groupby(pieces, key=lambda piece: piece.id):
        parts = list(group)
        for before, after in pairwise(parts):
            if after.first != before.last + 1:
                raise InputError(
                    f"track {after.id}: its frames {before.last} and {after.first} do not follow each other"
                )
        yield replace(
            parts[0],
            boxes=np.concatenate([part.boxes for part in parts]),
            landmarks=np.concatenate([part.landmarks for part in parts]),
            scores=np.concatenate([part.scores for part in parts]),
            origin=np.concatenate([part.origin for part in parts]),
        )


def _times(coded: Any, where: str) -> NDArray[np.int64]:
    begin, runs = coded
    steps = _expanded(runs, where)
    pts = np.concatenate([_integers(begin), steps]) if begin else steps[:0]
    if np.abs(pts).sum(dtype=np.float64) > 2**62:
        raise ValueError("a time is too large")
    return np.cumsum(pts, dtype=np.int64)


def _read(tree: Any, where: str) -> Track:
    if not isinstance(tree, dict) or set(tree) != _KEYS:
        raise InputError(f"{where}: a track has the keys {', '.join(sorted(_KEYS))}")
    with _damaged(where):
        boxes, landmarks = (
            _integers(tree[name], 2 * _FURTHEST * PER_PIXEL).cumsum(axis=1).T for name in ("boxes", "landmarks")
        )
        scores, origin = _integers(tree["scores"], 2**31).cumsum(), _expanded(tree["origin"], where)
        if landmarks.shape != (len(boxes), 10):
            raise ValueError("10 columns of landmarks are needed, as long as those of the boxes")
        if type(tree["id"]) is not int or type(tree["first"]) is not int:
            raise ValueError("id and first are whole numbers")
        return _track(tree["id"], tree["first"], boxes, landmarks.reshape(-1, 5, 2), scores, origin, 0, [], where)


def _track(
    id: int, first: int, boxes: NDArray[np.int64], landmarks: NDArray[np.int64], scores: NDArray[np.int64],
    origin: NDArray[Any], person: int, notes: list[str], where: str,
) -> Track:  # fmt: skip
    """A checked track of whole numbers."""
    count = len(boxes)
    shapes = (boxes.shape, landmarks.shape, scores.shape, origin.shape)
    if count == 0 or shapes != ((count, 4), (count, 5, 2), (count,), (count,)):
        raise InputError(f"{where}: the columns are empty or of different lengths {shapes}")
    furthest = max(np.abs(boxes).max(), np.abs(landmarks).max())
    if furthest > _FURTHEST * PER_PIXEL:
        raise InputError(f"{where}: a point lies more than {_FURTHEST} px away")
    if not (boxes[:, :2] < boxes[:, 2:]).all():
        row = int(np.argmin((boxes[:, :2] < boxes[:, 2:]).all(axis=1)))
        raise InputError(f"{where}: the box of frame {first + row} has no area")
    if origin.min() < 0 or origin.max() > PADDED:
        raise InputError(f"{where}: origin is 0 (seen), 1 (filled) or 2 (padded), not {origin.min()}…{origin.max()}")
    if id < 1 or first < 0 or person < 0:
        raise InputError(f"{where}: ids count from 1, frames and people from 0")
    return Track(
        id, first, (boxes / PER_PIXEL).astype(np.float32), (landmarks / PER_PIXEL).astype(np.float32),
        (scores / PER_SCORE).astype(np.float32), origin.astype(np.uint8), person, notes,
    )  # fmt: skip


def _whole(values: ArrayLike, unit: int, where: str = "a track") -> NDArray[np.int64]:
    scaled = np.asarray(values, np.float64) * unit
    if not np.isfinite(scaled).all() or (np.abs(scaled) > 1e15).any():
        raise InputError(f"{where}: a number is NaN or infinite")
    return np.rint(scaled).astype(np.int64)


def _differences(column: NDArray[np.int64]) -> list[int]:
    return np.diff(column, prepend=0).tolist()


def _runs(values: NDArray[Any]) -> list[list[int]]:
    edges = np.flatnonzero(np.diff(values)) + 1
    starts = np.concatenate([[0], edges]).astype(np.int64)[: len(values)]
    lengths = np.diff(starts, append=len(values))
    return [[int(values[start]), int(length)] for start, length in zip(starts, lengths, strict=True)]


def _expanded(runs: Any, where: str) -> NDArray[np.int64]:
    pairs = _integers(runs).reshape(-1, 2)
    if (pairs[:, 1] < 1).any() or (pairs[:, 1] > MAX_FRAMES).any() or pairs[:, 1].sum() > MAX_FRAMES:
        raise InputError(f"{where}: the lengths of the runs are not between 1 and {MAX_FRAMES} in all")
    return np.repeat(pairs[:, 0], pairs[:, 1])


def _integers(values: Any, most: int = 2**53) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind != "i":
        raise ValueError("whole numbers are wanted")
    if array.max() > most or array.min() < -most:
        raise ValueError("a number is too large")
    return array.astype(np.int64)


def _line(file: BinaryIO, tree: dict[str, Any]) -> None:
    file.write(json.dumps(tree, separators=(",", ":")).encode() + b"\n")
