"""Landmarks over time: their tremble goes, motion stays, nothing is delayed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
