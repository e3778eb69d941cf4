"""Whom a film leaves as they are, as the user says it before anybody knows who is in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Rules"]


@dataclass(frozen=True, eq=False)
class Rules:
    """Exemptions and selections.

    Args:
        keep: photos of people who stay as they are, by name.
        only: photos of people who are hidden, and nobody else, by name.
        boxes: faces that lie inside one of these boxes stay, x0, y0, x1, y1 in pixels.
        spans: all faces stay from one second to another; None: from the beginning, to the end.
    """

    keep: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)
    only: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)
    boxes: Sequence[tuple[float, float, float, float]] = ()
    spans: Sequence[tuple[float | None, float | None]] = ()
