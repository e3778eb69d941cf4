"""The canonical frame of a face: from landmarks, or by searching for the face."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.landmarks import FaceLandmarks, need_on_cloud
from ficgan.pointcloud.neighbours import without_duplicates

__all__ = ["CONVINCING", "FEWEST", "SURE", "Placed", "canonical", "landmark_frame", "other_faces"]

Floats = NDArray[np.float64]

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
    """The cloud, metres, with its nose tip at the origin, looking towards +x, +y up (thesis, §4.1.4.2); repeated points
    are left out.
    """
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
