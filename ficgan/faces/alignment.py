"""Five landmarks: where they lie in a crop, the similarity that brings them there, and how they are smoothed over time.

Alignment is a property of a checkpoint: a model sees every face through the `Alignment` it was trained with. Only NumPy
is needed here, so that training may import this file without OpenCV.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.errors import InputError, UsageError

Points = NDArray[np.float64]  # [N, 2] of (x, y), pixel centres at integers
Matrix = NDArray[np.float64]  # [2, 3] similarity, photo -> crop

AlignmentKind = Literal["template", "ffhq", "canonical"]

# The public template of ArcFace-style recognisers, in a crop of 112 x 112 pixels.
ARCFACE_POINTS: Points = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]]
)
ARCFACE_POINTS.setflags(write=False)

# A generic frontal face in units of its eye distance, origin between the eyes.
_FACE: Points = np.array([[-0.5, 0.0], [0.5, 0.0], [0.0, 0.56], [-0.415, 1.02], [0.415, 1.02]])


@dataclass(frozen=True)
class Alignment:
    """Placement of faces in the square crops of a model; eyes as fractions of the crop's side (template only).

    "template" is a least-squares similarity to five points; "ffhq" the oriented square of FFHQ (Karras et al.);
    "canonical" the frame of `ficgan.frame`: its crops are the default template's, and a mesh does the rest.
    """

    kind: AlignmentKind = "template"
    eye_distance: float = 0.37
    eye_y: float = 0.31

    def __post_init__(self) -> None:
        if self.kind not in get_args(AlignmentKind):
            raise UsageError(f"Unknown alignment kind {self.kind!r}: use one of {', '.join(get_args(AlignmentKind))}.")
        if not 0.0 < min(self.eye_distance, self.eye_y) <= max(self.eye_distance, self.eye_y) < 1.0:
            raise UsageError("An alignment's eye_distance and eye_y are fractions of the crop's side between 0 and 1.")

    def points(self, size: int) -> Points:
        """Landmarks of an ordinary frontal face in a crop of this side: float64 [5, 2], pixels."""
        if self.kind == "ffhq":
            return transform_points(self.matrix(_FACE, size), _FACE)
        return (_FACE * self.eye_distance + (0.5, self.eye_y)) * size - 0.5

    def matrix(self, landmarks: ArrayLike, size: int) -> Matrix:
        """The similarity float64 [2, 3] that brings landmarks [5, 2] of a photo into a crop of this side."""
        points = _as_points(landmarks)
        if points.shape != (5, 2):
            raise InputError(f"Alignment needs five landmarks, got an array of shape {points.shape}: pass [5, 2].")
        if self.kind == "ffhq":
            return _ffhq_matrix(points, size)
        return similarity(points, self.points(size))

    def fits(self, landmarks: ArrayLike) -> bool:
        """Whether landmarks [5, 2] span a face: False where they lie in one point or on a line."""
        try:
            self.matrix(landmarks, 64)
        except InputError:
            return False
        return True

    def face_square(self, size: int) -> Matrix:
        """The similarity [2, 3] from a crop to the square, hairline to chin, that the default template would cut."""
        return similarity(self.points(size), Alignment().points(size))

    def to_dict(self) -> dict[str, Any]:
        """The alignment as plain JSON values, read back by `from_dict`."""
        if self.kind != "template":
            return {"kind": self.kind}
        return {"kind": self.kind, "eye_distance": self.eye_distance, "eye_y": self.eye_y}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Alignment:
        """The alignment described by `to_dict`."""
        try:
            return cls(values["kind"], **{name: value for name, value in values.items() if name != "kind"})
        except (KeyError, TypeError) as error:
            raise UsageError(f"An alignment has kind, eye_distance and eye_y ({error}).") from None


def similarity(src: ArrayLike, dst: ArrayLike) -> Matrix:
    """The least-squares similarity float64 [2, 3] (no reflection) of points [N, 2], N ≥ 2, to others (Umeyama 1991).

    In the plane it is z → a z + b over the complex numbers, where a reflection cannot arise. An InputError where points
    are not finite, coincide, or fit only mirrored.
    """
    p, q = _as_points(src), _as_points(dst)
    if p.shape != q.shape or len(p) < 2:
        raise InputError(f"A similarity needs two equal lists of at least two points, got {p.shape} and {q.shape}.")
    zp, zq = p[:, 0] + 1j * p[:, 1], q[:, 0] + 1j * q[:, 1]
    mean_p, mean_q = zp.mean(), zq.mean()
    zp, zq = zp - mean_p, zq - mean_q
    variance = float(np.vdot(zp, zp).real)
    # Relative bounds: coincident points far from the origin differ by rounding only.
    if variance <= (1e-9 * (1.0 + abs(mean_p))) ** 2 * len(p):
        raise InputError("The points to align coincide: a face needs distinct landmarks.")
    a = np.vdot(zp, zq) / variance
    if abs(a) ** 2 * variance <= 1e-12 * float(np.vdot(zq, zq).real) or a == 0:
        raise InputError("No similarity fits the points: they are mirrored or the target points coincide.")
    return _from_complex(a, mean_q - a * mean_p)


def invert(matrix: ArrayLike) -> Matrix:
    """The inverse of an affine matrix [2, 3]; an InputError where it has none."""
    m = np.asarray(matrix, dtype=np.float64)
    if m.shape != (2, 3) or not np.isfinite(m).all():
        raise InputError(f"An alignment matrix must be 2 x 3 and finite, got shape {m.shape}.")
    linear = m[:, :2]
    if abs(np.linalg.det(linear)) <= 1e-12 * np.abs(linear).max() ** 2:
        raise InputError("The alignment matrix is singular: it cannot be inverted.")
    inverse = np.linalg.inv(linear)
    return np.column_stack([inverse, -inverse @ m[:, 2]])


def transform_points(matrix: ArrayLike, points: ArrayLike) -> Points:
    """Points [..., 2] carried by a 2 x 3 matrix, as float64 [..., 2]."""
    m = np.asarray(matrix, dtype=np.float64)
    return np.asarray(points, dtype=np.float64) @ m[:, :2].T + m[:, 2]


def _ffhq_matrix(landmarks: Points, size: int) -> Matrix:
    """The FFHQ square: oriented by eyes and mouth together, centred a tenth of the way from the eyes to the mouth."""
    left, right, _, mouth_left, mouth_right = landmarks
    eyes = (left + right) / 2
    e2e = right - left
    e2m = (mouth_left + mouth_right) / 2 - eyes
    # rot90(e2m) points to the viewer's left on an upright face, so the difference averages both estimates of "right".
    x = e2e - np.array([-e2m[1], e2m[0]])
    norm = math.hypot(*x)
    half = max(2.0 * math.hypot(*e2e), 1.8 * math.hypot(*e2m))
    if norm <= 1e-9 * max(1.0, half) or half <= 1e-9 * (1.0 + float(np.abs(eyes).max())):
        raise InputError("The landmarks span no face: eyes and mouth coincide or cancel.")
    axis = complex(*x) / norm
    centre = complex(*(eyes + 0.1 * e2m))
    # photo -> [-1, 1]^2 is (z - centre) / (half * axis); the crop's range 0..size sits at pixels -.5..size-.5.
    a = size / (2.0 * half * axis)
    return _from_complex(a, complex(size / 2 - 0.5, size / 2 - 0.5) - a * centre)


def _from_complex(a: complex, b: complex) -> Matrix:
    return np.array([[a.real, -a.imag, b.real], [a.imag, a.real, b.imag]], dtype=np.float64)


def _as_points(points: ArrayLike) -> Points:
    array = np.asarray(points, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != 2:
        raise InputError(f"Points must have shape [N, 2], got {array.shape}.")
    if not np.isfinite(array).all():
        raise InputError("Points must be finite numbers: drop the faces whose landmarks are not.")
    return array


# -- smoothing: a parabola is fitted to a window of frames around each frame (Savitzky and Golay 1964), so steady and
# evenly accelerated motion stays. A point leaves its measured place by no more than a bound: sudden motion stays, too.

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SmoothConfig:
    """Seconds of the window on either side, and how far a point may be moved, in eye distances."""

    reach: float = 0.16
    bound: float = 0.1

    def frames(self, rate: float) -> int:
        """Frames of the window on either side, at least 2."""
        return max(2, round(self.reach * rate))


def jitter(landmarks: ArrayLike) -> float:
    """Tremble of landmarks [n,5,2]: root mean square of their second differences, in eye distances."""
    marks = np.asarray(landmarks, np.float64)
    if len(marks) < 3:
        return 0.0
    bends = np.linalg.norm(np.diff(marks, 2, axis=0), axis=-1) / _eyes(marks)[1:-1, None]
    return float(np.sqrt((bends**2).mean()))


def smooth_landmarks(landmarks: ArrayLike, rate: float, config: SmoothConfig | None = None) -> Floats:
    """Smoothed landmarks float64 [n,5,2] of consecutive frames at `rate` a second; nothing is delayed."""
    config = config or SmoothConfig()
    marks = np.asarray(landmarks, np.float64)
    reach = config.frames(rate)
    fitted = marks.copy()
    for row in range(min(reach, len(marks))):  # near the ends the window is cut off
        for at in {row, len(marks) - 1 - row}:
            window = marks[max(0, at - reach) : at + reach + 1]
            fitted[at] = _fit(window, at - max(0, at - reach))
    if len(marks) > 2 * reach:
        weights = _weights(2 * reach + 1, reach)
        windows = np.lib.stride_tricks.sliding_window_view(marks, 2 * reach + 1, axis=0)  # [n-2r,5,2,2r+1]
        fitted[reach:-reach] = windows @ weights
    return _bounded(fitted, marks, config.bound)


def smooth_middle(window: ArrayLike, at: int, limit: float) -> Floats:
    """Row `at` of a window [m,...,D] of consecutive frames, smoothed and moved by `limit` at most, in its own unit."""
    rows = np.asarray(window, np.float64)
    move = _fit(rows, at) - rows[at]
    far = np.linalg.norm(move, axis=-1, keepdims=True)
    moved: Floats = rows[at] + move * np.minimum(1.0, limit / np.maximum(far, 1e-12))
    return moved


def _fit(window: Floats, at: int) -> Floats:
    """The parabola through a window [m,...], at one of its rows; a line where only few rows are there."""
    return np.tensordot(_weights(len(window), at), window, 1)


@lru_cache(maxsize=256)
def _weights(count: int, at: int) -> Floats:
    """Weights [count] of the rows in the fitted value at row `at`."""
    # A parabola at the end of a short window follows the noise.
    edge = min(at, count - 1 - at)
    degree = min(2 if edge >= 2 else 1, count - 1)
    powers = np.vander(np.arange(count) - at, degree + 1, increasing=True).astype(np.float64)
    return np.linalg.pinv(powers)[0]


def _bounded(fitted: Floats, marks: Floats, bound: float) -> Floats:
    """No point farther from where it was measured than `bound` eye distances: [n,5,2]."""
    move = fitted - marks
    far = np.linalg.norm(move, axis=-1, keepdims=True)
    limit = bound * _eyes(marks)[:, None, None]
    return marks + move * np.minimum(1.0, limit / np.maximum(far, 1e-12))


def _eyes(marks: Floats) -> Floats:
    """Eye distances [n], of a turned face at least half its eye-mouth distance."""
    eyes = np.linalg.norm(marks[:, 1] - marks[:, 0], axis=-1)
    height = np.linalg.norm(marks[:, 3:].mean(1) - marks[:, :2].mean(1), axis=-1)
    return np.maximum(np.maximum(eyes, height / 2), 1e-6)
