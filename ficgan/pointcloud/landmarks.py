"""Landmarks of a face: read, checked against the cloud, and the canonical frame that they define."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud, Points, closest

# What follows a cloud's name, without its suffix, in the name of the file of its landmarks.
LANDMARK_ENDINGS = ("_landmarks_mm.txt", ".landmarks.txt", ".landmarks.json")
FARTHEST = 0.01  # metres from the cloud beyond which a landmark is not on it
_UNITS = (1.0, 0.001)
_EYES_APART = (0.03, 0.2)  # metres between the outer points of the eyes that a face may have
_FIVE = (
    "eye on the viewer's left",
    "eye on the viewer's right",
    "nose tip",
    "mouth's left corner",
    "mouth's right corner",
)
# Usual metres between two of the five.
_DISTANCES = np.array(
    [
        [0.0, 0.064, 0.055, 0.067, 0.090],
        [0.064, 0.0, 0.055, 0.090, 0.067],
        [0.055, 0.055, 0.0, 0.048, 0.048],
        [0.067, 0.090, 0.048, 0.0, 0.050],
        [0.090, 0.067, 0.048, 0.050, 0.0],
    ]
)
_RATIOS = (0.5, 1.6)  # shares of the usual distance that a face may have

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
    """Named points of a face, metres."""

    five: Points  # [5,3]: eye on the viewer's left, eye on the viewer's right, nose tip, mouth corners likewise
    right: Points  # [P,3]: points of the person's right half
    left: Points  # [P,3]: their mirror points
    points: Points  # [M,3]: all that were given

    @property
    def size(self) -> float:
        """Of the face, in usual ones: the median over the pairs of the five. Twelve scans have .93 to 1.06."""
        pairs = np.triu_indices(5, 1)
        return float(np.median(_distances(self.five)[pairs] / _DISTANCES[pairs]))

    @classmethod
    def of_points(cls, points: Points, what: str = "the landmarks") -> FaceLandmarks:
        """Of 5 points as in `five`, or 68 or 70 in the usual order, in metres or millimetres."""
        points = np.asarray(points, np.float64)
        if points.ndim != 2 or points.shape[1] != 3 or len(points) not in (5, 68, 70):
            raise InputError(f"{what} are {list(points.shape)} numbers; give 5 or 68 points of 3 coordinates")
        if not np.isfinite(points).all():
            raise InputError(f"{what} have coordinates that are not finite; give every point")
        eyes = (0, 1) if len(points) == 5 else (_EYE_CORNERS[0][0], _EYE_CORNERS[1][0])
        apart = float(np.linalg.norm(points[eyes[0]] - points[eyes[1]]))
        unit = next((unit for unit in _UNITS if _EYES_APART[0] <= apart * unit <= _EYES_APART[1]), None)
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
    """Landmarks of a file: one point a line, coordinates separated by spaces or commas; or JSON, a list or "points"."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: the landmarks cannot be read ({error})") from None
    points = _of_json(text, path) if path.suffix == ".json" else _of_lines(text, path)
    return FaceLandmarks.of_points(points, f"{path}: the landmarks")


def landmark_file_beside(cloud: Path | str) -> Path | None:
    """The first existing file of a cloud's landmarks, by `LANDMARK_ENDINGS`, or None."""
    cloud = Path(cloud)
    candidates = (cloud.with_name(cloud.stem + ending) for ending in LANDMARK_ENDINGS)
    return next((path for path in candidates if path.is_file()), None)


def need_on_cloud(landmarks: FaceLandmarks, cloud: Cloud) -> None:
    """Refuse landmarks of another cloud: distances as in no face, or points too far off."""
    five = landmarks.five
    away = closest(cloud.points, five)[0]
    if np.median(away) > FARTHEST:
        raise InputError(
            f"the landmarks lie {np.median(away):.3g} m from the cloud in the median; give those of this cloud, in its "
            "frame"
        )
    _need_face(five)
    if away.max() > FARTHEST:
        raise InputError(
            f"the landmarks' {_FIVE[away.argmax()]} lies {away.max():.3g} m from the cloud; put it on the cloud, or "
            "leave the landmarks out"
        )
    apart = float(np.median(closest(cloud.points, landmarks.points)[0]))
    if apart > FARTHEST:
        raise InputError(f"half of the landmarks lie {apart:.3g} m or more from the cloud; check the points")


def _distances(five: Points) -> Points:
    return np.asarray(np.linalg.norm(five[:, None] - five, axis=2), np.float64)


def _need_face(five: Points) -> None:
    share = _distances(five) / np.where(_DISTANCES > 0, _DISTANCES, 1.0) + np.eye(5)
    wrong = (share < _RATIOS[0]) | (share > _RATIOS[1])
    if not wrong.any():
        return
    worst = int(wrong.sum(axis=1).argmax())
    other = int(wrong[worst].argmax())
    low, high = (1000 * limit * _DISTANCES[worst, other] for limit in _RATIOS)
    raise InputError(
        f"the landmarks' {_FIVE[worst]} lies {1000 * np.linalg.norm(five[worst] - five[other]):.0f} mm from the "
        f"{_FIVE[other]}, in a face {low:.0f} to {high:.0f} mm; check where the points lie, and their order"
    )


def _of_lines(text: str, path: Path) -> Points:
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


def _of_json(text: str, path: Path) -> Points:
    try:
        found = json.loads(text)
        return np.array(found["points"] if isinstance(found, dict) else found, np.float64)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f'{path}: expected a JSON list of points [x, y, z], or one as "points" ({error})') from None


def landmark_frame(landmarks: FaceLandmarks) -> Points:
    """The rigid motion [4,4] to the canonical frame that landmarks define.

    +z is the mean direction from points of the person's left half to their mirror points, +y goes from the mouth to the
    eyes, +x is the remaining axis, the nose tip the origin.
    """
    five = landmarks.five
    sideways = (landmarks.right - landmarks.left).sum(axis=0)
    upwards = five[:2].mean(axis=0) - five[3:].mean(axis=0)
    across = np.cross(upwards, sideways)
    if np.linalg.norm(across) < 1e-3 * np.linalg.norm(upwards) * np.linalg.norm(sideways) or not across.any():
        raise InputError("the landmarks' eyes and mouth lie in one line; check the points")
    z = sideways / np.linalg.norm(sideways)
    x = across / np.linalg.norm(across)
    rotation = np.stack([x, np.cross(z, x), z])
    if rotation[0] @ (five[2] - five[[0, 1, 3, 4]].mean(axis=0)) <= 0:
        raise InputError(
            "the landmarks' nose tip lies behind eyes and mouth; left and right are exchanged, or the face is mirrored"
        )
    frame = np.eye(4)
    frame[:3, :3], frame[:3, 3] = rotation, -rotation @ five[2]
    return frame
