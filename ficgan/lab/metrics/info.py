"""What is said of a metric where it is listed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Metric"]


@dataclass(frozen=True)
class Metric:
    """A metric's name and how to read it.

    Args:
        name: as in `Figure.metric`.
        title: one line for `ficgan-eval list metrics`.
        kind: privacy or utility.
        better: for whoever anonymises: "low", "high", or "near" a value that the clear images have.
        source: paper and equation or section.
    """

    name: str
    title: str
    kind: Literal["privacy", "utility"]
    better: Literal["low", "high", "near"]
    source: str = ""
