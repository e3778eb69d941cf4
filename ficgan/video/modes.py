"""What really happens to each row of a track: what was decided, and where a face cannot be generated, its fallback."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import binary_closing, binary_dilation

from ficgan.video.settings import VideoSettings
from ficgan.video.tracks import PADDED, Track

__all__ = ["effective_modes", "frontality"]


def frontality(landmarks: NDArray[np.floating]) -> NDArray[np.float64]:
    """Eye distance over eye–mouth distance of faces [n,5,2]: about 1 from the front, small in profile: float64 [n]."""
    points = np.asarray(landmarks, np.float64)
    eyes = np.linalg.norm(points[:, 1] - points[:, 0], axis=-1)
    height = np.linalg.norm(points[:, 3:].mean(1) - points[:, :2].mean(1), axis=-1)
    return eyes / height.clip(1e-6)


def effective_modes(
    track: Track, decided: NDArray[np.str_], settings: VideoSettings, rate: float
) -> tuple[NDArray[np.str_], dict[str, int]]:
    """Modes of a track's rows, with fallbacks where a generated face was asked for and cannot stand.

    Args:
        track: the track.
        decided: [n] what the rules say.
        settings: limits and fallbacks.
        rate: frames per second, for times in seconds.

    Returns:
        [n] modes, and why rows fell back: reason → number of rows ("small", "turned away", "pad").
    """
    modes, reasons = decided.copy(), {}
    generated = decided == "ficgan"
    if not generated.any():
        return modes, {}
    hold = max(1, round(settings.hold * rate))

    def steady(flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Held for a while on both sides, short pauses closed: a mode that flips from frame to frame is unwatchable."""
        wide = np.ones(2 * hold + 1, bool)
        padded = np.pad(binary_dilation(flags, wide), len(wide), mode="edge")
        return binary_closing(padded, wide)[len(wide) : -len(wide)]

    sides = (track.boxes[:, 2:] - track.boxes[:, :2]).min(1)
    ratio = frontality(track.landmarks)
    turned = (ratio < settings.turned) | (ratio > 1 / max(settings.turned, 1e-6))
    for reason, rows, mode in (
        ("small", steady(sides < settings.small), settings.fallback),
        ("turned away", steady(turned), settings.fallback),
        ("pad", track.origin == PADDED, settings.pad_mode),
    ):
        rows = rows & generated & (modes == "ficgan")
        if rows.any() and mode != "ficgan":
            modes[rows] = mode
            reasons[reason] = int(rows.sum())
    return modes, reasons
