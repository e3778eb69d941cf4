"""8-bit colours from means."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["rounded_colors"]


def rounded_colors(levels: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Levels 0…255 that need not be whole → uint8, the nearest, halves up.

    A mean of whole levels that is a half is one in floating point too, so nothing is lost to rounding.
    """
    return np.floor(levels + 0.5).clip(0, 255).astype(np.uint8)
