"""What must hold before a face may leave: covered, verified, otherwise retried, otherwise masked. Fail closed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Attempt", "Policy", "covered"]


@dataclass(frozen=True)
class Attempt:
    """One setting to try for a face."""

    layer: int
    """i: style layers 1..i keep the source's code."""
    draw: int
    """Number of the k-same draw; another one gives another face."""


@dataclass(frozen=True)
class Policy:
    """How often a face that is still recognised is tried again before it is masked.

    Args:
        verify: whether an independent recogniser reads each face again.
        retries: attempts after the first; each is stronger or another draw.
        coverage: share of the blend mask every visible landmark needs, in (0, 1].
    """

    verify: bool = True
    retries: int = 3
    coverage: float = field(default=0.95)

    def attempts(self, layer: int) -> list[Attempt]:
        """The ladder for a first setting of i = `layer`: half of it, then 0, then other draws at 0.

        Once i is 0 nothing but the draw is left to change: what still shows then comes through the spatial code.
        """
        ladder = [Attempt(layer, 0)]
        for draw in range(1, self.retries + 1):
            ladder.append(Attempt(ladder[-1].layer // 2 if draw == 1 else 0, draw))
        return ladder


def covered(mask: NDArray[np.float32], landmarks: NDArray[np.float32], least: float) -> bool:
    """Whether the blend mask hides the face: every landmark inside the image has at least `least` of it.

    Args:
        mask: [H,W], 0 (untouched) to 1 (replaced).
        landmarks: five points (x, y) in pixels.
        least: in (0, 1].
    """
    height, width = mask.shape
    points = np.rint(landmarks).astype(int)
    inside = (points >= 0).all(1) & (points[:, 0] < width) & (points[:, 1] < height)
    return bool((mask[points[inside, 1], points[inside, 0]] >= least).all())
