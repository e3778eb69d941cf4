"""Morphs: synthetic people from a few scans, for evaluations that need hundreds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.frame import landmark_frame
from ficgan.pointcloud.landmarks import FaceLandmarks, landmark_file_beside, need_on_cloud, read_landmarks
from ficgan.pointcloud.morphs.correspondence import Fitting, Sheet, fitted
from ficgan.pointcloud.morphs.model import NEUTRAL, MorphModel, MorphScan, Variety
from ficgan.pointcloud.morphs.paint import regions
from ficgan.pointcloud.neighbours import search

__all__ = ["NEUTRAL", "Fitting", "MorphModel", "MorphScan", "Variety", "build_morphs", "morphs_of_folder"]

MARKS = 68
STILL = [0, 1, 15, 16, 27, 28, 29, 36, 39, 42, 45]
"""Landmarks that expressions hardly move: before the ears, the bridge of the nose, corners of the eyes."""
REACH = 0.028
"""Metres from the landmarks in which expressions move a face."""


def build_morphs(
    clouds: Sequence[Cloud],
    landmarks: Sequence[FaceLandmarks | NDArray[np.floating[Any]]],
    people: Sequence[str],
    expressions: Sequence[str],
    *,
    template: int | None = None,
    variety: Variety | None = None,
    fitting: Fitting | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> MorphModel:
    """A model of synthetic people from scans of a few.

    Args:
        clouds: the scans, each in any frame, metres.
        landmarks: 68 points (or more, which are left out) of each scan, in its frame; metres or millimetres.
        people: who each scan shows.
        expressions: what each shows; "neutral" is rest. Whoever has no neutral scan is taken to rest in their first.
        template: number of the scan whose points are laid on the others; None: the first neutral one.
        variety: how different the synthetic people are.
        fitting: how the template is laid on scans.
        progress: called with scans done and scans in all.

    Returns:
        The model. Colours are mixed from the scans' if all have some.

    Raises:
        UsageError: lists of different lengths, fewer than two people, or no such template.
        InputError: landmarks that are too few or another cloud's.
    """
    if not len(clouds) == len(landmarks) == len(people) == len(expressions):
        raise UsageError("clouds, landmarks, people and expressions must be lists of one length")
    if len(set(people)) < 2:
        raise UsageError("morphs need scans of two people or more")
    if template is not None and not 0 <= template < len(clouds):
        raise UsageError(f"the template is {template}; give 0 to {len(clouds) - 1}")
    placed = [_placed(cloud, marks) for cloud, marks in zip(clouds, landmarks, strict=True)]
    first = template if template is not None else _first_neutral(expressions)
    base = Sheet.of(placed[first][0])
    shapes = []
    for number, (points, marks) in enumerate(placed):
        own = number == first
        how = fitting or Fitting()
        shapes.append(base.points if own else fitted(base, placed[first][1], Sheet.of(points), marks, how))
        if progress:
            progress(number + 1, len(placed))
    tones = [_tones(shape, points, cloud) for shape, (points, _), cloud in zip(shapes, placed, clouds, strict=True)]
    return _model(base.points, placed[first][1], shapes, tones, people, expressions, variety or Variety())


def morphs_of_folder(folder: Path | str, **settings: Any) -> MorphModel:
    """A model from a folder of scans PERSON_EXPRESSION.ply (or another kind), each with a file of landmarks beside it.

    Args:
        folder: of the scans.
        settings: as of `build_morphs`.

    Raises:
        InputError: there are no such scans, or one cannot be read.
    """
    from ficgan.pointcloud.files import read_cloud

    found = [path for path in sorted(Path(folder).iterdir()) if landmark_file_beside(path) and "_" in path.stem]
    scans = [path for path in found if path.suffix.lower() in (".ply", ".obj", ".xyz", ".asc", ".pcd")]
    if not scans:
        raise InputError(f"{folder} has no scans PERSON_EXPRESSION.ply with a file of landmarks beside them")
    names = [path.stem.partition("_") for path in scans]
    marks = [read_landmarks(str(landmark_file_beside(path))) for path in scans]
    return build_morphs(
        [read_cloud(path) for path in scans], marks, [one[0] for one in names], [one[2] for one in names], **settings
    )


def _placed(cloud: Cloud, given: FaceLandmarks | NDArray[np.floating[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Points and 68 landmarks in the canonical frame."""
    marks = given if isinstance(given, FaceLandmarks) else FaceLandmarks.of_points(np.asarray(given))
    if len(marks.points) < MARKS:
        raise InputError(f"morphs need {MARKS} landmarks of each scan, not {len(marks.points)}")
    need_on_cloud(marks, cloud)
    frame = landmark_frame(marks)
    points = marks.points[:MARKS] @ frame[:3, :3].T + frame[:3, 3]
    return cloud.moved(frame).points, points


def _first_neutral(expressions: Sequence[str]) -> int:
    return list(expressions).index(NEUTRAL) if NEUTRAL in expressions else 0


def _tones(shape: NDArray[Any], points: NDArray[Any], cloud: Cloud) -> NDArray[np.uint8] | None:
    return None if cloud.colors is None else cloud.colors[search(points, shape)[1][:, 0]]


def _model(
    points: NDArray[Any],
    marks: NDArray[Any],
    shapes: list[NDArray[Any]],
    tones: list[NDArray[np.uint8] | None],
    people: Sequence[str],
    expressions: Sequence[str],
    variety: Variety,
) -> MorphModel:
    rest = {}
    for person in dict.fromkeys(people):
        own = [number for number, name in enumerate(people) if name == person]
        rest[person] = next((number for number in own if expressions[number] == NEUTRAL), own[0])
    moods = [number for number in range(len(shapes)) if number != rest[people[number]]]
    at = np.asarray(search(points, marks)[1][:, 0], np.int64)
    moving = _moving(points, marks)
    differences = [moving * _difference(shapes[number], shapes[rest[people[number]]], at) for number in moods]
    coloured = [tone for tone in (tones[number] for number in rest.values()) if tone is not None]
    return MorphModel(
        np.stack([shapes[number] for number in rest.values()]).astype(np.float32),
        np.array(differences, np.float32).reshape(len(moods), len(points), 3),
        tuple(expressions[number] for number in moods),
        at,
        regions(points, marks),
        np.stack(coloured) if len(coloured) == len(rest) else None,
        variety,
    )


def _difference(shown: NDArray[Any], rest: NDArray[Any], at: NDArray[np.int64]) -> NDArray[Any]:
    """What an expression moves [N,3], after the landmarks that hardly move have been laid on each other."""
    still = at[STILL]
    middle, goal = shown[still].mean(axis=0), rest[still].mean(axis=0)
    turn, _ = Rotation.align_vectors(rest[still] - goal, shown[still] - middle)
    return np.asarray(turn.apply(shown - middle) + goal - rest)


def _moving(points: NDArray[Any], marks: NDArray[Any]) -> NDArray[Any]:
    """1 where expressions move a face, 0 far from brows, eyes, nose, mouth and chin [N,1]: there, what two scans of a
    person differ by is the scanner's and the fitting's."""
    away = search(marks[[*range(5, 12), *range(17, MARKS)]], points)[0][:, 0]
    return np.asarray(0.5 - 0.5 * np.tanh((away - REACH) / (0.3 * REACH)))[:, None]
