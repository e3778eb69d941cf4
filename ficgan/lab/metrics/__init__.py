"""Metrics: what an attacker achieved (privacy) and what is left to work with (utility)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Metric"]


@dataclass(frozen=True)
class Metric:
    """How to read a metric; `better`, for the anonymiser: "low", "high", or "near" the value of the clear images."""

    name: str
    title: str
    kind: Literal["privacy", "utility"]
    better: Literal["low", "high", "near"]
    source: str = ""
