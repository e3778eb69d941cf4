"""The canonical frame of a face, and landmarks of a cloud: read, checked, and a frame made of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud, without_duplicates

Floats = NDArray[np.float64]

LANDMARK_ENDINGS = ("_landmarks_mm.txt", ".landmarks.txt", ".landmarks.json")
"""What follows a cloud's name, without its suffix, in the name of the file of its landmarks."""
FARTHEST = 0.01
"""Metres from the cloud beyond which a landmark is not on it. On twelve scans and 24 made heads the five are up to
4.3 mm away (the middle of an eye's corners lies within it), and up to 8.6 mm where 600 points of a scan are left."""
_UNITS = (1.0, 0.001)
_EYES_APART = (0.03, 0.2)  # metres between the outer points of the eyes that a face may have
_FIVE = (
    "eye on the viewer's left", "eye on the viewer's right", "nose tip", "mouth's left corner", "mouth's right corner",
)  # fmt: skip
_DISTANCES = np.array(
    [
        [0.0, 0.064, 0.055, 0.067, 0.090], [0.064, 0.0, 0.055, 0.090, 0.067], [0.055, 0.055, 0.0, 0.048, 0.048],
        [0.067, 0.090, 0.048, 0.0, 0.050], [0.090, 0.067, 0.048, 0.050, 0.0],
    ]
)  # fmt: skip
"""Usual metres between two of the five."""
_RATIOS = (0.5, 1.6)
"""Shares of the usual distance that a face may have: twelve scans and 24 made heads have .75 to 1.26, and children's
faces are smaller by a third."""

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

    five: Floats  # [5,3]: eye on the viewer's left, eye on the viewer's right, nose tip, mouth corners likewise
    right: Floats  # [P,3]: points of the person's right half
    left: Floats  # [P,3]: their mirror points
    points: Floats  # [M,3]: all that were given

    @property
    def size(self) -> float:
        """Of the face, in usual ones: the median over the pairs of the five. Twelve scans have .93 to 1.06."""
        pairs = np.triu_indices(5, 1)
        return float(np.median(_distances(self.five)[pairs] / _DISTANCES[pairs]))

    @classmethod
    def of_points(cls, points: Floats, what: str = "the landmarks") -> FaceLandmarks:
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
    from ficgan.pointcloud.cloud import closest

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


def _distances(five: Floats) -> Floats:
    return np.asarray(np.linalg.norm(five[:, None] - five, axis=2), np.float64)


def _need_face(five: Floats) -> None:
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



FEWEST = 500  # points a cloud must have to be taken for a face
CONVINCING = 0.6
"""Likeness below which no face is claimed. Of 26 random hilly surfaces one was above it (.64); of some 38 scans without
eyes and nose, or with a part of the face alone, none was."""
SURE = 0.7
"""Likeness below which a face is doubtful. Twelve scans with noise of up to 2 mm, and all those of them tried with neck
and shoulders, a wall behind, or at .7 to 1.25 of their size, were at .71 or above and placed within 8 mm. Below it were
some scans of 1,500 points (from .62, within 1 cm), half faces (.51 to .62, mostly refused), and scans whose nose tip is
missing (up to .67, 3 cm too low)."""
USUAL = (0.6, 1.35)
"""Sizes, in usual faces, beyond which a face is doubtful: twelve scans were measured at .83 to 1.10 (from landmarks at
.93 to 1.06), and children's faces are smaller by up to a third. Of these scans and eight made heads, those that were
found at 1.5 to 2.5 times their size are all beyond it or `UNCOVERED`."""
POSSIBLE = (0.4, 1.6)
"""Sizes beyond which a face that was found is refused: of one twice as large as a person's, half would stay clear."""
UNCOVERED = 0.1
"""Part of the points in front that may lie outside the sphere about the nose tip. Of twelve scans none do; where these
are half as large again, .08 to .17."""
_FRONT = np.array([[-0.06, 0.1], [-0.08, np.inf], [-0.1, 0.1]])
"""Metres along x, y and z: a face seen from the front, and what may be above it."""
_AROUND = 0.14  # metres from the nose tip within which there is no other face
_MOST = 4  # other faces after which counting stops


@dataclass(frozen=True)
class Placed:
    """A cloud in the canonical frame."""

    cloud: Cloud  # there
    transform: Floats  # [4,4], from the frame it came in
    how: str  # "landmarks" or "automatic"
    likeness: float | None = None  # to a face, 0…1, see `ficgan.pointcloud.search.face_likeness`; None: not measured
    residual: float = 0.0  # root mean square distance from the made face, metres; 0: not measured
    # further faces in the cloud, as `other_faces` counts them; 0 with landmarks, where nothing is searched
    others: int = 0
    size: float | None = None  # of the face, in usual ones; None: not measured
    doubts: tuple[str, ...] = ()  # sentences, each a reason why the frame or the scale may be wrong
    duplicates: int = 0  # points of the cloud that lay exactly on others, and are no longer in it

    @property
    def doubtful(self) -> bool:
        """The face was placed, but with `doubts`."""
        return bool(self.doubts)


def canonical(cloud: Cloud, landmarks: FaceLandmarks | None = None) -> Placed:
    """The cloud, metres, nose tip at the origin, looking towards +x, +y up (thesis, §4.1.4.2)."""
    from ficgan.pointcloud.files import check_size
    from ficgan.pointcloud.search import face_likeness, face_size, find_face

    cloud, duplicates = without_duplicates(cloud)
    cloud.need(FEWEST, "a face" + (f" ({duplicates} that lie exactly on others do not count)" if duplicates else ""))
    check_size(cloud)
    if landmarks is not None:
        need_on_cloud(landmarks, cloud)
        transform = landmark_frame(landmarks)
        there = cloud.moved(transform)
        placed = Placed(there, transform, "landmarks", *face_likeness(there.points), duplicates=duplicates)
        return _with_doubts(placed, landmarks.size)
    found = find_face(cloud.points)
    if found.likeness < CONVINCING:
        raise InputError(
            f"no face was found in the cloud (likeness {found.likeness:.2f}, at least {CONVINCING} is needed); "
            "give --landmarks, or a cloud in which the nose and its surroundings can be seen"
        )
    there = cloud.moved(found.transform)
    placed = Placed(there, found.transform, "automatic", found.likeness, found.residual, duplicates=duplicates)
    placed = _with_doubts(placed, face_size(there.points))
    return replace(placed, others=other_faces(cloud, placed))


def _with_doubts(placed: Placed, size: float) -> Placed:
    """The same with its size and what makes it doubtful; InputError for a size that no person's face has."""
    if not POSSIBLE[0] <= size <= POSSIBLE[1]:
        raise InputError(
            f"the face is {size:.2g} times as large as a usual one, and no person's is; check the scan's unit and scale"
        )
    doubts = []
    if placed.how == "automatic" and placed.likeness is not None and placed.likeness < SURE:
        doubts.append("the face was found with little certainty: look at the result, or give landmarks")
    if not USUAL[0] <= size <= USUAL[1]:
        doubts.append(f"the face is {size:.2g} times as large as a usual one: check the scan's unit and scale")
    points = placed.cloud.points
    front = points[((points >= _FRONT[:, 0]) & (points <= _FRONT[:, 1])).all(axis=1)]
    uncovered = float((np.linalg.norm(front, axis=1) > _AROUND).mean()) if len(front) else 0.0
    if uncovered > UNCOVERED:
        doubts.append(
            f"{uncovered:.0%} of what is in front lies farther than 14 cm from the nose tip: look at the result"
        )
    return replace(placed, size=size, doubts=tuple(doubts))


def other_faces(cloud: Cloud, placed: Placed) -> int:
    """How many further faces, 0…4, a cloud has: places outside 14 cm from the nose tip that alone would be faces."""
    from ficgan.pointcloud.search import find_face

    rest, transform = cloud.points, placed.transform
    for count in range(_MOST):
        away = np.linalg.norm(rest @ transform[:3, :3].T + transform[:3, 3], axis=1)
        rest = rest[away > _AROUND]
        if len(rest) < FEWEST:
            return count
        try:
            found = find_face(rest, sizes=(1.0,))
        except InputError:
            return count
        if found.likeness < CONVINCING:
            return count
        transform = found.transform
    return _MOST


def landmark_frame(landmarks: FaceLandmarks) -> Floats:
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
