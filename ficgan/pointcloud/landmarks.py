"""Landmarks of a face in space, and the files they come in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud

__all__ = ["FaceLandmarks", "landmark_file_beside", "need_on_cloud", "read_landmarks"]

Floats = NDArray[np.float64]

_ENDINGS = ("_landmarks_mm.txt", ".landmarks.txt", ".landmarks.json")
_UNITS = {"m": 1.0, "mm": 0.001}
_EYES_APART = (0.03, 0.2)
"""Metres between the outer points of the eyes that a face may have."""
_FARTHEST = 0.02
"""Metres from the cloud, in the median, beyond which landmarks are another cloud's."""

# Of the 68 points: outer and inner corners of the eye on the viewer's left, then right; nose tip; corners of the mouth.
_EYE_CORNERS = ((36, 39), (45, 42))
_NOSE_TIP = 30
_MOUTH_CORNERS = (48, 54)
_PAIRS_68 = np.array(
    [(i, 16 - i) for i in range(8)]
    + [(i, 43 - i) for i in range(17, 22)]
    + [(31, 35), (32, 34)]
    + [(36, 45), (37, 44), (38, 43), (39, 42), (40, 47), (41, 46)]
    + [(48, 54), (49, 53), (50, 52), (59, 55), (58, 56), (60, 64), (61, 63), (67, 65)]
)


@dataclass(frozen=True)
class FaceLandmarks:
    """Points of a face that have names.

    Args:
        five: [5,3], metres: eye on the viewer's left, eye on the viewer's right, nose tip, mouth corners likewise.
        right: [P,3], metres: points of the person's right half.
        left: [P,3]: their mirror points.
        points: [M,3], metres: all that were given.
    """

    five: Floats
    right: Floats
    left: Floats
    points: Floats

    @classmethod
    def of_points(cls, points: Floats, what: str = "the landmarks") -> FaceLandmarks:
        """Of 5, 68 or 70 points in metres or millimetres; the distance of the eyes says which.

        Args:
            points: 5 as in `five`; or 68 in the usual order (jaw, brows, nose, eyes, mouth). Two more, as some tools
                add, count as points alone.
            what: for messages.

        Raises:
            InputError: another number of points, none of a face's size, or not finite.
        """
        points = np.asarray(points, np.float64)
        if points.ndim != 2 or points.shape[1] != 3 or len(points) not in (5, 68, 70):
            raise InputError(f"{what} are {list(points.shape)} numbers; give 5 or 68 points of 3 coordinates")
        if not np.isfinite(points).all():
            raise InputError(f"{what} have coordinates that are not finite; give every point")
        eyes = (0, 1) if len(points) == 5 else (_EYE_CORNERS[0][0], _EYE_CORNERS[1][0])
        apart = float(np.linalg.norm(points[eyes[0]] - points[eyes[1]]))
        unit = next((unit for unit in _UNITS.values() if _EYES_APART[0] <= apart * unit <= _EYES_APART[1]), None)
        if unit is None:
            raise InputError(
                f"{what} set the eyes {apart:.4g} apart, which is a face neither in metres nor in millimetres; check "
                "their order and unit"
            )
        points = points * unit
        if len(points) == 5:
            return cls(points, points[[0, 3]], points[[1, 4]], points)
        eye_centres = [points[list(corners)].mean(axis=0) for corners in _EYE_CORNERS]
        five = np.stack([*eye_centres, points[_NOSE_TIP], points[_MOUTH_CORNERS[0]], points[_MOUTH_CORNERS[1]]])
        return cls(five, points[_PAIRS_68[:, 0]], points[_PAIRS_68[:, 1]], points)


def read_landmarks(path: Path | str) -> FaceLandmarks:
    """Landmarks of a file: a point a line, coordinates parted by spaces or commas; or a JSON list, or one as "points".

    Args:
        path: text, or a name that ends in .json.

    Raises:
        InputError: a file that cannot be read or holds something else.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: the landmarks cannot be read ({error})") from None
    points = _of_json(text, path) if path.suffix == ".json" else _of_lines(text, path)
    return FaceLandmarks.of_points(points, f"{path}: the landmarks")


def landmark_file_beside(cloud: Path | str) -> Path | None:
    """The file of a cloud's landmarks: NAME_landmarks_mm.txt, NAME.landmarks.txt or NAME.landmarks.json.

    Args:
        cloud: path of the cloud.

    Returns:
        the first that exists, or None.
    """
    cloud = Path(cloud)
    candidates = (cloud.with_name(cloud.stem + ending) for ending in _ENDINGS)
    return next((path for path in candidates if path.is_file()), None)


def need_on_cloud(landmarks: FaceLandmarks, cloud: Cloud) -> None:
    """Refuse landmarks that are another cloud's.

    Args:
        landmarks: of the cloud, they say.
        cloud: in the same frame, metres.

    Raises:
        InputError: half of them are farther than 2 cm from the cloud.
    """
    from ficgan.pointcloud.neighbours import nearest

    apart = float(np.median(nearest(cloud.points, landmarks.points, 1)[0]))
    if apart > _FARTHEST:
        raise InputError(
            f"the landmarks lie {apart:.3g} m from the cloud in the median; give those of this cloud, in its frame"
        )


def _of_lines(text: str, path: Path) -> Floats:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.partition("#")[0].replace(",", " ").split()
        if not fields:
            continue
        try:
            x, y, z = map(float, fields)
        except ValueError:
            raise InputError(f"{path}, line {number}: expected three numbers, not {line.strip()[:60]!r}") from None
        rows.append((x, y, z))
    return np.array(rows, np.float64).reshape(-1, 3)


def _of_json(text: str, path: Path) -> Floats:
    try:
        found = json.loads(text)
        return np.array(found["points"] if isinstance(found, dict) else found, np.float64)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f'{path}: expected a JSON list of points [x, y, z], or one as "points" ({error})') from None
