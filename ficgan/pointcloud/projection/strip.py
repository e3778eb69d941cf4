"""Pictures side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError

__all__ = ["strip"]


def strip(pictures: Sequence[NDArray[np.uint8]], *, gap: int = 0, background: int = 255) -> NDArray[np.uint8]:
    """One picture of several, from left to right; lower ones stand at the upper edge.

    Args:
        pictures: each [H,W,3] uint8; at least one.
        gap: pixels between two, 0 to 1000.
        background: grey of gaps and of what is left under lower pictures.

    Returns:
        [highest H, sum of W and gaps, 3].

    Raises:
        InputError: there is none, or one is no RGB picture.
        UsageError: another gap.
    """
    if not 0 <= gap <= 1000:
        raise UsageError(f"the gap between two pictures is {gap} pixels; give 0 to 1000")
    if not pictures or any(one.ndim != 3 or one.shape[2] != 3 or one.dtype != np.uint8 for one in pictures):
        raise InputError("a strip needs at least one picture, each [H,W,3] uint8")
    width = sum(one.shape[1] for one in pictures) + gap * (len(pictures) - 1)
    whole = np.full((max(one.shape[0] for one in pictures), width, 3), background, np.uint8)
    left = 0
    for one in pictures:
        whole[: one.shape[0], left : left + one.shape[1]] = one
        left += one.shape[1] + gap
    return whole
