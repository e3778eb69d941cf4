"""Kinds of option values that click does not have."""

from __future__ import annotations

import math
from typing import Any

import click

__all__ = ["Direction", "Diversity", "Finite", "Pair"]


class Finite(click.FloatRange):
    """A range of numbers to which NaN and infinity do not belong."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class Pair(click.ParamType):
    """Two whole numbers with a separator between them, such as 5-8 or 1280x720."""

    def __init__(self, name: str, separator: str) -> None:
        self.name = name
        self._separator = separator

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        first, _, second = str(value).lower().partition(self._separator)
        if not (first.isascii() and first.isdigit() and second.isascii() and second.isdigit()):
            self.fail(f"{value!r} is not of the form {self.name}", param, ctx)
        return int(first), int(second)


class Diversity(click.ParamType):
    """`auto`, or ψ."""

    name = "auto|PSI"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | float:
        if value == "auto":
            return "auto"
        try:
            psi = float(value)
        except ValueError:
            psi = float("nan")
        if not 0 <= psi <= 1:
            self.fail(f"{value!r} is neither 'auto' nor a number between 0 and 1", param, ctx)
        return psi


class Direction(click.ParamType):
    """An attribute and how much of it to add, such as Female=0.7."""

    name = "NAME=AMOUNT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name, _, amount = str(value).partition("=")
        try:
            number = float(amount)
        except ValueError:
            number = float("nan")
        if not name or not math.isfinite(number):
            self.fail(f"{value!r} is not of the form NAME=AMOUNT, such as Female=0.7", param, ctx)
        return str(value)
