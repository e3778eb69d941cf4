"""Face meshes: 468 points on a face and ten on its irises, with depth, and how far there is a face at all.

A network reads the mesh from an upright square crop. `find_meshes` cuts these crops by five landmarks, puts the points
back into the photo, and looks a second time where the first look shows that the landmarks were bad. Over time landmarks
and meshes are smoothed: their tremble goes, motion stays, nothing is delayed.

Source: Kartynnik et al., Real-time Facial Surface Geometry from Monocular Video on Mobile GPUs, 2019. The points are
those of MediaPipe's face mesh, in its order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.arrays import blocks
from ficgan.device import embedded_file, onnx_session
from ficgan.errors import InputError
from ficgan.faces.crops import Alignment, Matrix, crop, invert, similarity, transform_points
from ficgan.faces.detection import Face, Image

Indices = NDArray[np.intp]

MESH_SIDE = 256  # of the crops that a mesh is read from
MESH_POINTS = 468  # of the face; ten more lie on the irises
# Faces that look at the camera have 10 to 30, what is no face -36 to 6 (one dog's portrait 13). Points differ, at 15,
# from those of the mirrored photo by .02 of the eye distance, at 6 by .04, below 0 by .1 and more.
GOOD_PRESENCE = 8.0


# Closed contours, each clockwise around its part from the viewer's left; the oval from the top.
FACE_OVAL: Indices = np.array(
    [
        *(10, 338, 297, 332, 284, 251, 389, 356, 454, 323, 361, 288, 397, 365, 379, 378, 400, 377),
        *(152, 148, 176, 149, 150, 136, 172, 58, 132, 93, 234, 127, 162, 21, 54, 103, 67, 109),
    ]
)
LEFT_BROW: Indices = np.array([70, 63, 105, 66, 107, 55, 65, 52, 53, 46])
RIGHT_BROW: Indices = np.array([300, 293, 334, 296, 336, 285, 295, 282, 283, 276])
LIPS_INNER: Indices = np.array(
    [78, 191, 80, 81, 82, 13, 312, 311, 310, 415, 308, 324, 318, 402, 317, 14, 87, 178, 88, 95]
)
# Left and right are the viewer's, as in `Face.landmarks`.
LEFT_EYE: Indices = np.array([33, 246, 161, 160, 159, 158, 157, 173, 133, 155, 154, 153, 145, 144, 163, 7])
RIGHT_EYE: Indices = np.array([362, 398, 384, 385, 386, 387, 388, 466, 263, 249, 390, 373, 374, 380, 381, 382])
# The middle of the iris, then four points on its rim.
LEFT_IRIS: Indices = np.array([468, 469, 470, 471, 472])
RIGHT_IRIS: Indices = np.array([473, 474, 475, 476, 477])
NOSE_TIP = 1
MOUTH_CORNERS: Indices = np.array([61, 291])

# The network wants the square of the default template with 22 of its 128 pixels more on every side.
_BORDER = 22 / 128
_TEMPLATE = ((Alignment().points(MESH_SIDE) + 0.5) / MESH_SIDE + _BORDER) / (1 + 2 * _BORDER) * MESH_SIDE - 0.5
_BATCH = 8  # faces; 16 take a quarter longer each, whose activations fit no cache
# Beyond these the first crop was not the one that the network knows, and a second is cut.
_ROLL, _SCALE = math.radians(10.0), math.log(1.2)


@dataclass(frozen=True, eq=False)
class Mesh:
    """The mesh of one face of a photo."""

    # [478, 3], x and y in pixels of the photo, z in the same unit with 0 at the middle of the head; smaller is nearer.
    # The first 468 are the face, the others the irises.
    points: NDArray[np.float32]
    presence: float  # how sure it is that this is a face, and how accurate the points are, see `GOOD_PRESENCE`


class MediaPipeMesh:
    """MediaPipe's face mesh, embedded; it is opened when it is first needed."""

    name = "mediapipe"

    def __init__(self, device: str = "cpu"):
        self.device = device

    @cached_property
    def _session(self) -> Any:
        return onnx_session(embedded_file("face_mesh.onnx"), self.device)

    def read(self, crops: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Points float32 [B, 478, 3] in crop pixels and presence [B] of RGB crops uint8 [B, 256, 256, 3]."""
        if not len(crops):
            return np.zeros((0, MESH_POINTS + 10, 3), np.float32), np.zeros(0, np.float32)
        points, presence = self._session.run(["landmarks", "presence"], {"image": np.ascontiguousarray(crops)})
        # Its pixels reach from 0 to 1, ours from -.5 to .5: on mirrored faces x + x' is 255.8, not 255.
        points[..., :2] -= 0.5
        return points, presence


_EMBEDDED = MediaPipeMesh()


def find_meshes(mesh: MediaPipeMesh, photo: Image, landmarks: Iterable[ArrayLike]) -> list[Mesh]:
    """The meshes of the faces of a photo [H, W, 3] with these landmarks [N, 5, 2], in order."""
    matrices = [similarity(face, _TEMPLATE) for face in landmarks]
    points, presence = _read(mesh, photo, matrices)
    steps = [_correction(*found) for found in zip(points, presence, strict=True)]
    pairs = enumerate(zip(steps, matrices, strict=True))
    second = {n: step @ np.vstack([matrix, [0.0, 0.0, 1.0]]) for n, (step, matrix) in pairs if step is not None}
    new_points, new_presence = _read(mesh, photo, list(second.values()))
    for row, (index, matrix) in enumerate(second.items()):
        # Above a good presence a higher one only says that the crop is tighter; then the better placed crop counts.
        if min(new_presence[row], GOOD_PRESENCE) >= min(presence[index], GOOD_PRESENCE):
            matrices[index], points[index], presence[index] = matrix, new_points[row], new_presence[row]
    meshes = []
    for matrix, marks, sure in zip(matrices, points, presence, strict=True):
        size = 1.0 / math.hypot(matrix[0, 0], matrix[1, 0])  # photo pixels of a crop pixel
        placed = np.column_stack([transform_points(invert(matrix), marks[:, :2]), marks[:, 2] * size])
        meshes.append(Mesh(placed.astype(np.float32), float(sure)))
    return meshes


def read_landmarks(photo: Image, faces: Sequence[Face]) -> NDArray[np.float32]:
    """Landmarks [N,5,2] to recognise faces of a photo [H,W,3] by: the mesh's, or the detector's where there is none.

    YuNet's are nearly upright on a head that is tilted by 40 degrees. With them recogniser A takes 40 % of the pairs of
    245 strangers for one person, with the mesh's .1 %: a crop beside the face holds what all such crops hold.
    """
    meshes = find_meshes(_EMBEDDED, photo, [face.landmarks for face in faces])
    pairs = zip(meshes, faces, strict=True)
    marks = [five_points(mesh.points) if mesh.presence >= GOOD_PRESENCE else face.landmarks for mesh, face in pairs]
    return np.stack(marks).astype(np.float32)


def five_points(points: ArrayLike) -> NDArray[Any]:
    """The five landmarks [..., 5, 2] of meshes [..., ≥468, ≥2], as in `Face.landmarks`; eyes by their lids."""
    points = np.asarray(points)
    eyes = [points[..., eye, :2].mean(-2) for eye in (LEFT_EYE, RIGHT_EYE)]
    return np.stack([*eyes, points[..., NOSE_TIP, :2], *(points[..., corner, :2] for corner in MOUTH_CORNERS)], axis=-2)


def _read(mesh: MediaPipeMesh, photo: Image, matrices: list[Matrix]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Points in crop pixels and presence, the crops cut and read some at a time."""
    points, presence = [np.zeros((0, MESH_POINTS + 10, 3), np.float32)], [np.zeros(0, np.float32)]
    for rows in blocks(len(matrices), _BATCH):
        crops = np.stack([crop(photo, matrix, MESH_SIDE) for matrix in matrices[rows]])
        some = mesh.read(crops)
        points.append(some[0])
        presence.append(some[1])
    return np.concatenate(points), np.concatenate(presence)


def _correction(points: NDArray[Any], presence: np.float32) -> Matrix | None:
    """From a crop to the crop that its mesh asks for; None where the first one was good, or there is no better one."""
    try:
        step = similarity(five_points(points), _TEMPLATE)
    except InputError:  # the points coincide or are not finite
        return None
    roll, scale = math.atan2(step[1, 0], step[0, 0]), math.log(math.hypot(step[0, 0], step[1, 0]))
    return step if presence < GOOD_PRESENCE or abs(roll) > _ROLL or abs(scale) > _SCALE else None


# -- over time ---------------------------------------------------------------------------------------------------------

# A parabola is fitted to a window of frames around each frame (Savitzky and Golay 1964), so steady and evenly
# accelerated motion stays. A point leaves its measured place by no more than a bound: sudden motion stays, too.
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SmoothConfig:
    """Seconds of the window on either side, and how far a point may be moved, in eye distances."""

    reach: float = 0.16
    bound: float = 0.1

    def frames(self, rate: float) -> int:
        """Frames of the window on either side, at least 2."""
        return max(2, round(self.reach * rate))


def smooth_landmarks(landmarks: ArrayLike, rate: float, config: SmoothConfig | None = None) -> Floats:
    """Smoothed landmarks float64 [n,5,2] of consecutive frames at `rate` a second; nothing is delayed."""
    config, marks = config or SmoothConfig(), np.asarray(landmarks, np.float64)
    reach, limits = config.frames(rate), config.bound * _eyes(marks)
    fitted = marks.copy()
    for row, limit in enumerate(limits):  # near the ends the window is cut off
        fitted[row] = smooth_middle(marks[max(0, row - reach) : row + reach + 1], min(row, reach), float(limit))
    return fitted


def smooth_middle(window: ArrayLike, at: int, limit: float) -> Floats:
    """Row `at` of a window [m,...,D] of consecutive frames, smoothed and moved by `limit` at most, in its own unit."""
    rows = np.asarray(window, np.float64)
    move = np.tensordot(_weights(len(rows), at), rows, 1) - rows[at]
    far = np.linalg.norm(move, axis=-1, keepdims=True)
    moved: Floats = rows[at] + move * np.minimum(1.0, limit / np.maximum(far, 1e-12))
    return moved


@lru_cache(maxsize=256)
def _weights(count: int, at: int) -> Floats:
    """Weights [count] of the rows in the value of a fitted parabola at row `at`; of a line where few rows are there."""
    # A parabola at the end of a short window follows the noise.
    edge = min(at, count - 1 - at)
    degree = min(2 if edge >= 2 else 1, count - 1)
    powers = np.vander(np.arange(count) - at, degree + 1, increasing=True).astype(np.float64)
    return np.linalg.pinv(powers)[0]


def _eyes(marks: Floats) -> Floats:
    """Eye distances [n], of a turned face at least half its eye-mouth distance."""
    eyes = np.linalg.norm(marks[:, 1] - marks[:, 0], axis=-1)
    height = np.linalg.norm(marks[:, 3:].mean(1) - marks[:, :2].mean(1), axis=-1)
    return np.maximum(np.maximum(eyes, height / 2), 1e-6)


# Change of the lids' opening by smoothing, in widths of the eye, that is a blink; at twice that it is all kept.
BLINK = 0.03
# Middle of the upper and of the lower lid and the corners of each eye.
_LIDS = (159, 145, 33, 133), (386, 374, 263, 362)


def with_blinks(points: NDArray[Any], smooth: NDArray[np.float64]) -> NDArray[np.float64]:
    """Smoothed points of a mesh [N,3], but for lids that are on their way: a blink takes as few frames as a tremble."""
    blinking = smooth.copy()
    for eye, (top, bottom, outer, inner) in zip((LEFT_EYE, RIGHT_EYE), _LIDS, strict=True):
        measured, smoothed = (
            float(np.linalg.norm(p[top, :2] - p[bottom, :2]) / np.linalg.norm(p[outer, :2] - p[inner, :2]))
            for p in (points, smooth)
        )
        share = np.clip(abs(measured - smoothed) / BLINK - 1, 0, 1)
        apart = (points[eye] - points[eye].mean(0)) - (smooth[eye] - smooth[eye].mean(0))
        blinking[eye] += share * apart
    return blinking
