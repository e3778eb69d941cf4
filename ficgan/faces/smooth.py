"""Landmarks without jitter and without lag.

A parabola is fitted to a window of frames around each frame (Savitzky and Golay 1964), so that steady and evenly
accelerated motion is left as it is. A point never leaves its measured place by more than a bound: sudden motion stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["SmoothConfig", "jitter", "smooth_landmarks", "smooth_middle"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SmoothConfig:
    """Numbers of smoothing.

    Args:
        reach: seconds of the window on either side.
        bound: how far a point may be moved, in eye distances.
    """

    reach: float = 0.16
    bound: float = 0.1

    def frames(self, rate: float) -> int:
        """Frames of the window on either side, at least 2."""
        return max(2, round(self.reach * rate))


def jitter(landmarks: ArrayLike) -> float:
    """How much landmarks tremble: root mean square of the second differences [n-2,5,2], in eye distances.

    Args:
        landmarks: [n,5,2]; below three frames there is no jitter.
    """
    marks = np.asarray(landmarks, np.float64)
    if len(marks) < 3:
        return 0.0
    bends = np.linalg.norm(np.diff(marks, 2, axis=0), axis=-1) / _eyes(marks)[1:-1, None]
    return float(np.sqrt((bends**2).mean()))


def smooth_landmarks(landmarks: ArrayLike, rate: float, config: SmoothConfig | None = None) -> Floats:
    """Smoothed landmarks of consecutive frames; nothing is delayed.

    Args:
        landmarks: [n,5,2] pixels.
        rate: frames per second.
        config: numbers.

    Returns:
        float64 [n,5,2].
    """
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
    """One row of a window of consecutive frames, smoothed.

    Args:
        window: [m,...,D] places, or [m,D] numbers, of m frames.
        at: the row.
        limit: how far a place may be moved, in its own unit.

    Returns:
        float64 [...,D].
    """
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
    """What each row contributes to the fitted value at row `at`: [count]."""
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
