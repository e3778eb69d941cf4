"""Kinds of option values that click does not have."""

from __future__ import annotations

import math
from typing import Any

import click

from ficgan.errors import UsageError

__all__ = ["Box", "Direction", "Diversity", "Finite", "Mode", "Pair", "Seconds"]


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


class Mode(click.ParamType):
    """What takes a face's place, see `ficgan.anonymizers.modes.check_mode`."""

    name = "MODE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from ficgan.cli._options import chosen_method

        try:
            chosen_method(str(value))
            return str(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


class Seconds(click.ParamType):
    """A time in seconds or [H:]M:S, or with `span` two of them with a hyphen between."""

    def __init__(self, *, span: bool = False) -> None:
        self._span = span
        self.name = "FROM-TO" if span else "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if not self._span:
            return self._one(value, param, ctx)
        first, hyphen, last = value.partition("-")
        if not hyphen or not (first or last):
            self.fail(f"{value!r} is not of the form FROM-TO, such as 1:30-2:00", param, ctx)
        start = self._one(first, param, ctx) if first else None
        end = self._one(last, param, ctx) if last else None
        if start is not None and end is not None and start >= end:
            self.fail(f"{value!r} ends before it begins", param, ctx)
        return start, end

    def _one(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        parts = text.split(":")
        try:
            numbers = [float(part) for part in parts]
        except ValueError:
            numbers = [math.nan]
        if len(parts) > 3 or not all(math.isfinite(number) and number >= 0 for number in numbers):
            self.fail(f"{text!r} is not a time; write seconds or [H:]M:S, such as 90 or 1:30", param, ctx)
        seconds = 0.0
        for number in numbers:
            seconds = seconds * 60 + number
        return seconds


class Box(click.ParamType):
    """A box of the picture, X0,Y0,X1,Y1 in pixels."""

    name = "X0,Y0,X1,Y1"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            numbers = [float(part) for part in value.split(",")]
        except ValueError:
            numbers = []
        if len(numbers) != 4 or not all(map(math.isfinite, numbers)):
            self.fail(f"{value!r} is not of the form X0,Y0,X1,Y1", param, ctx)
        if numbers[0] >= numbers[2] or numbers[1] >= numbers[3]:
            self.fail(f"{value!r} is empty: X0 < X1 and Y0 < Y1 are needed", param, ctx)
        return tuple(numbers)
