"""Landmarks without jitter and without lag.

A parabola is fitted to a window of frames around each frame (Savitzky and Golay 1964), so that steady and evenly
accelerated motion is left as it is. A point never leaves its measured place by more than a bound: sudden motion stays.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.errors import UsageError

__all__ = ["OnlineSmoother", "SmoothConfig", "jitter", "smooth_landmarks"]

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


class OnlineSmoother:
    """Landmarks of one face, frame after frame, given back `look_ahead` frames later, smoothed for its own time.

    Args:
        look_ahead: frames it may wait; 0 gives each back at once. From the window's reach on the result is that of
            `smooth_landmarks`.
        rate: frames per second.
        config: numbers.
    """

    def __init__(self, look_ahead: int, rate: float, config: SmoothConfig | None = None):
        if look_ahead < 0:
            raise UsageError(f"The look-ahead is {look_ahead} frames: give 0 or more.")
        self._config = config or SmoothConfig()
        self._ahead, self._reach = look_ahead, self._config.frames(rate)
        self._window: deque[Floats] = deque(maxlen=self._reach + look_ahead + 1)
        self._waiting = 0

    def push(self, landmarks: ArrayLike) -> Floats | None:
        """Take the landmarks [5,2] of the next frame; those of `look_ahead` frames before, or None."""
        self._window.append(np.asarray(landmarks, np.float64))
        self._waiting += 1
        return self._oldest() if self._waiting > self._ahead else None

    def flush(self) -> list[Floats]:
        """What still waits, in order; the face is gone."""
        rest = []
        while self._waiting:
            rest.append(self._oldest())
        self._window.clear()
        return rest

    def _oldest(self) -> Floats:
        at = len(self._window) - self._waiting
        self._waiting -= 1
        marks = np.stack(self._window)
        first = max(0, at - self._reach)
        window = marks[first : at + self._reach + 1]
        return _bounded(_fit(window, at - first)[None], marks[at][None], self._config.bound)[0]


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
