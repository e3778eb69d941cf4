"""Metrics: what an attacker achieved (privacy) and what is left to work with (utility)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Better", "Metric"]

Better = Literal["low", "high", "near"]


@dataclass(frozen=True)
class Metric:
    """How to read a metric; `better`, for the anonymiser: "low", "high", or "near" the value of the clear images."""

    name: str
    title: str
    kind: Literal["privacy", "utility"]
    better: Better
    source: str = ""
    judges: tuple[str, ...] = ()  # which networks read it, of `utility.Judges`
