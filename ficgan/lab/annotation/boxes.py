"""Which boxes of two lists mean the same face: the question behind gold images, logs, agreement and error counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["OVERLAP", "Boxes", "Change", "changes", "distinct", "errors", "merge", "overlaps", "pairs"]

Boxes = NDArray[np.float64]
"""[M,4]: x0, y0, x1, y1 in pixels, edges continuous from 0."""

OVERLAP = 0.5
"""Least IoU at which two boxes are of one face."""
SAME = 0.9
"""IoU from which a second box in one list only repeats the first."""
_TOUCH = 0.1
"""Least IoU at which a box was moved, not removed and another added."""


@dataclass(frozen=True)
class Change:
    """What became of one box: "added", "removed" or "moved"; `before` and `after` are x0, y0, x1, y1 or None."""

    kind: str
    before: tuple[float, ...] | None
    after: tuple[float, ...] | None


def overlaps(a: Boxes, b: Boxes) -> NDArray[np.float64]:
    """Intersection over union of every box of a [M,4] with every one of b [N,4]: [M,N]."""
    sides = np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2])
    common = sides.clip(0).prod(2)
    union = (a[:, 2:] - a[:, :2]).prod(1)[:, None] + (b[:, 2:] - b[:, :2]).prod(1)[None] - common
    return np.divide(common, union, out=np.zeros_like(common), where=union > 0)


def pairs(a: Boxes, b: Boxes, least: float = OVERLAP) -> list[tuple[int, int]]:
    """One-to-one pairs of boxes with an IoU of at least `least`: as many as there can be, then the largest sum of IoU.

    Args:
        a: [M,4].
        b: [N,4].
        least: above 0, at most 1.

    Returns:
        (row of a, row of b), by the row of a.
    """
    from scipy.optimize import linear_sum_assignment

    if not len(a) or not len(b):
        return []
    shared = overlaps(a, b)
    fits = shared >= least
    # A pair more outweighs whatever overlap the others lose by it.
    rows, columns = linear_sum_assignment(np.where(fits, min(shared.shape) + shared, 0.0), maximize=True)
    return [(int(row), int(column)) for row, column in zip(rows, columns, strict=True) if fits[row, column]]


def errors(boxes: Boxes, truth: Boxes, least: float = OVERLAP) -> tuple[int, int]:
    """False positives (boxes without a face) and false negatives (faces without a box)."""
    right = len(pairs(boxes, truth, least))
    return len(boxes) - right, len(truth) - right


def changes(before: Boxes, after: Boxes) -> list[Change]:
    """What a correction did; boxes that stayed as they were are left out."""
    kept = pairs(before, after, 1.0)
    old = [row for row in range(len(before)) if row not in {i for i, _ in kept}]
    new = [row for row in range(len(after)) if row not in {j for _, j in kept}]
    moved = [(old[i], new[j]) for i, j in pairs(before[old], after[new], _TOUCH)]
    gone, come = set(old) - {i for i, _ in moved}, set(new) - {j for _, j in moved}
    return [
        *(Change("moved", _plain(before[i]), _plain(after[j])) for i, j in moved),
        *(Change("removed", _plain(before[i]), None) for i in sorted(gone)),
        *(Change("added", None, _plain(after[j])) for j in sorted(come)),
    ]


def distinct(boxes: Boxes) -> Boxes:
    """The boxes without those that repeat an earlier one (IoU of .9 or more)."""
    kept: list[int] = []
    for row in range(len(boxes)):
        if not kept or overlaps(boxes[row : row + 1], boxes[kept]).max() < SAME:
            kept.append(row)
    return boxes[kept]


def merge(drawn: Sequence[Boxes], least: float = OVERLAP, *, union: bool = False) -> tuple[Boxes, list[int]]:
    """Several people's boxes of one image as one list.

    Boxes that overlap are of one face, which takes the median of its edges. A face stays when at least half of the
    people drew it: where they are divided it is covered, since a face that is missed costs more than a box too many.

    Args:
        drawn: one list of boxes a person.
        least: IoU at which boxes are of one face.
        union: keep what anybody drew.

    Returns:
        Boxes [M,4], and how many drew each.
    """
    groups: list[list[NDArray[Any]]] = []
    for boxes in drawn:
        middles = np.array([np.median(group, axis=0) for group in groups]).reshape(-1, 4)
        matched = {row: group for group, row in pairs(middles, boxes, least)}
        for row, box in enumerate(boxes):
            if row in matched:
                groups[matched[row]].append(box)
            else:
                groups.append([box])
    kept = [group for group in groups if union or 2 * len(group) >= len(drawn)]
    return np.array([np.median(group, axis=0) for group in kept]).reshape(-1, 4), [len(group) for group in kept]


def _plain(box: NDArray[Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in box)
