"""Gold-standard images: the faces are known, what is shown is wrong on purpose, and whoever looks puts it right.

Source: Yang et al. 2022, appendix A, stage 2.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ficgan.errors import UsageError
from ficgan.lab.annotation.boxes import Boxes, errors, overlaps

__all__ = ["SPOILS", "spoil"]

_TRIES = 100
_CLEAR = 0.1
"""A false box has no more IoU than this with any face."""


def spoil(truth: Boxes, width: int, height: int, rng: np.random.Generator, *, overlap: float) -> tuple[Boxes, str]:
    """Boxes that are wrong in one place.

    Args:
        truth: [M,4], the faces.
        width, height: of the image, pixels.
        rng: draws the kind of error among those that are possible here, and its place.
        overlap: IoU from which a box counts as right; the error lies below it.

    Returns:
        Boxes to show, and what was done: "removed", "shifted" or "added".

    Raises:
        UsageError: no error can be made, such as in an image of a few pixels.
    """
    for kind in rng.permutation(sorted(SPOILS)):
        shown = SPOILS[str(kind)](truth, width, height, rng)
        if shown is not None and any(errors(shown, truth, overlap)):
            return shown, str(kind)
    raise UsageError(f"no error can be made in a gold image of {width}×{height} px; choose another image")


def _removed(truth: Boxes, width: int, height: int, rng: np.random.Generator) -> Boxes | None:
    return np.delete(truth, rng.integers(len(truth)), axis=0) if len(truth) else None


def _shifted(truth: Boxes, width: int, height: int, rng: np.random.Generator) -> Boxes | None:
    """One box beside its face, by .5 to .9 of its diagonal in any direction, inside the image and off other faces."""
    for _ in range(_TRIES if len(truth) else 0):
        row = int(rng.integers(len(truth)))
        sides = truth[row, 2:] - truth[row, :2]
        angle, far = rng.uniform(0, 2 * np.pi), rng.uniform(0.5, 0.9) * np.hypot(*sides)
        box = truth[row] + np.tile([far * np.cos(angle), far * np.sin(angle)], 2)
        if _inside(box, width, height) and overlaps(box[None], np.delete(truth, row, axis=0)).max(initial=0) <= _CLEAR:
            shown = truth.copy()
            shown[row] = box.round(1)
            return shown
    return None


def _added(truth: Boxes, width: int, height: int, rng: np.random.Generator) -> Boxes | None:
    """A box as large as a face of the image, or as a tenth to a third of it, where no face is."""
    for _ in range(_TRIES):
        if len(truth):
            row = truth[rng.integers(len(truth))]
            sides = np.minimum((row[2:] - row[:2]) * rng.uniform(0.8, 1.25), (width, height))
        else:
            sides = np.minimum(width, height) * rng.uniform(0.1, 0.33) * np.array([1.0, 1.25])
        corner = rng.uniform((0, 0), np.maximum((width, height) - sides, 0))
        box = np.concatenate([corner, corner + sides])
        if _inside(box, width, height) and overlaps(box[None], truth).max(initial=0) <= _CLEAR:
            return np.insert(truth, rng.integers(len(truth) + 1), box.round(1), axis=0)
    return None


def _inside(box: Boxes, width: int, height: int) -> bool:
    # Half a tenth of a pixel is what rounding may add.
    return bool((box[:2] >= 0).all() and (box[2:] <= np.array([width, height]) - 0.05).all())


Spoil = Callable[[Boxes, int, int, np.random.Generator], Boxes | None]
SPOILS: dict[str, Spoil] = {"removed": _removed, "shifted": _shifted, "added": _added}
"""A face without a box, a box beside its face, a box without a face."""
