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


class _Parsed(click.ParamType):
    """A text that `read` turns into a value; the message of its ValueError follows the text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)

    def read(self, text: str) -> Any:
        raise NotImplementedError


def _number(text: str) -> float:
    """A number, or NaN where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


class Pair(_Parsed):
    """Two whole numbers with a separator between them, such as 5-8 or 1280x720."""

    def __init__(self, name: str, separator: str) -> None:
        self.name, self._separator = name, separator

    def read(self, text: str) -> tuple[int, int]:
        first, _, second = text.lower().partition(self._separator)
        if not (first.isascii() and first.isdigit() and second.isascii() and second.isdigit()):
            raise ValueError(f"is not of the form {self.name}")
        return int(first), int(second)


class Diversity(_Parsed):
    """`auto`, or ψ."""

    name = "auto|PSI"

    def read(self, text: str) -> str | float:
        if text == "auto":
            return text
        if not 0 <= _number(text) <= 1:
            raise ValueError("is neither 'auto' nor a number between 0 and 1")
        return float(text)


class Direction(_Parsed):
    """An attribute and how much of it to add, such as Female=0.7."""

    name = "NAME=AMOUNT"

    def read(self, text: str) -> str:
        name, _, amount = text.partition("=")
        if not name or not math.isfinite(_number(amount)):
            raise ValueError("is not of the form NAME=AMOUNT, such as Female=0.7")
        return text


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


class Seconds(_Parsed):
    """A time in seconds or [H:]M:S, or with `span` two of them with a hyphen between."""

    def __init__(self, *, span: bool = False) -> None:
        self._span = span
        self.name = "FROM-TO" if span else "TIME"

    def read(self, text: str) -> float | tuple[float | None, float | None]:
        if not self._span:
            return _seconds(text)
        first, hyphen, last = text.partition("-")
        if not hyphen or not (first or last):
            raise ValueError("is not of the form FROM-TO, such as 1:30-2:00")
        start, end = (_seconds(part) if part else None for part in (first, last))
        if start is not None and end is not None and start >= end:
            raise ValueError("ends before it begins")
        return start, end


def _seconds(text: str) -> float:
    numbers = [_number(part) for part in text.split(":")]
    if len(numbers) > 3 or not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise ValueError("is not a time; write seconds or [H:]M:S, such as 90 or 1:30")
    return sum(number * 60**place for place, number in enumerate(reversed(numbers)))


class Box(_Parsed):
    """A box of the picture, X0,Y0,X1,Y1 in pixels."""

    name = "X0,Y0,X1,Y1"

    def read(self, text: str) -> tuple[float, ...]:
        numbers = tuple(map(_number, text.split(",")))
        if len(numbers) != 4 or not all(map(math.isfinite, numbers)):
            raise ValueError("is not of the form X0,Y0,X1,Y1")
        if numbers[0] >= numbers[2] or numbers[1] >= numbers[3]:
            raise ValueError("is empty: X0 < X1 and Y0 < Y1 are needed")
        return numbers
