"""Things that are chosen by name and set by parameters: anonymisers, reversers. A class is a frozen dataclass whose
fields, made with `param`, are its parameters; a registry makes objects of it from a name and texts or numbers.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import types
import typing
from abc import ABC
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from ficgan.errors import UsageError, hint

C = TypeVar("C", bound="Parametrised")


def param(
    default: Any,
    help: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    choices: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """A dataclass field that is a parameter; `help` is a phrase with the unit, a `secret` (a key) is never shown."""
    limits = {"help": help, "low": low, "high": high, "choices": choices, "secret": secret}
    return dataclasses.field(default=default, metadata=limits, repr=not secret)


@typing.dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
@dataclass(frozen=True)
class Parametrised(ABC):
    """A frozen dataclass whose `param` fields are checked when it is made."""

    name: ClassVar[str]  # by which it is asked for; small letters and hyphens

    def __post_init__(self) -> None:
        for field, limits in self.parameters():
            value, low, high, remedy = getattr(self, field.name), limits["low"], limits["high"], ""
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if number and not (-math.inf < value < math.inf and low <= value <= high):
                span = f"from {low} to {high}" if high < math.inf else f"at least {low}"
                remedy = "give a finite number" if low == -high == -math.inf else f"give {span}"
            if limits["choices"] and value not in limits["choices"]:
                remedy = f"use one of {', '.join(limits['choices'])}"
            if remedy:
                raise UsageError(f"{self.name}: {field.name} is {_shown(value, limits['secret'])}; {remedy}")

    @classmethod
    def parameters(cls) -> list[tuple[dataclasses.Field[Any], Mapping[str, Any]]]:
        """The fields made with `param`, and their limits."""
        return [(field, field.metadata) for field in dataclasses.fields(cls) if "help" in field.metadata]

    def settings(self) -> dict[str, Any]:
        """JSON-ready parameters, without secrets."""
        return {field.name: getattr(self, field.name) for field, limits in self.parameters() if not limits["secret"]}


class Registry(Generic[C]):
    """Classes by name; `what` they are, in the singular, is for messages."""

    def __init__(self, what: str) -> None:
        self._what, self._classes = what, dict[str, type[C]]()

    def add(self, cls: type[C]) -> type[C]:
        """Class decorator; the class has a `name` that is not taken, and becomes a frozen dataclass."""
        if "__dataclass_fields__" not in vars(cls):
            cls = dataclass(frozen=True)(cls)
        if cls.name in self._classes and self._classes[cls.name].__qualname__ != cls.__qualname__:
            raise ValueError(f"two {self._what}s are called {cls.name}")
        self._classes[cls.name] = cls
        return cls

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._classes))

    def __contains__(self, name: object) -> bool:
        return name in self._classes

    def __getitem__(self, name: str) -> type[C]:
        """The class of that name."""
        if name not in self._classes:
            raise UsageError(f"there is no {self._what} {name!r}; {hint(name, self)}")
        return self._classes[name]

    def make(self, name: str, **given: Any) -> C:
        """An instance; texts are converted to the parameters' types."""
        cls = self[name]
        hints, values = typing.get_type_hints(cls), dict[str, Any]()
        fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
        needed = {key for key, field in fields.items() if field.default is field.default_factory is dataclasses.MISSING}
        # What a fitted instance carries is no parameter; the seed is, though it has no limits.
        known = {key for key, field in fields.items() if "help" in field.metadata or key == "seed"} | needed
        for key, value in given.items():
            key = key.replace("-", "_")
            if key not in known:
                raise UsageError(f"{name} has no parameter {key!r}; {hint(key, sorted(known))}")
            values[key] = _converted(name, key, value, hints[key], fields[key].metadata.get("secret", False))
        for key in sorted(needed - values.keys()):
            raise UsageError(f"{name} needs {key}; give it")
        return cls(**values)


def parse_spec(text: str) -> tuple[str, dict[str, str]]:
    """ "gaussian-blur:kernel=29,seed=1" → its name and parameters. Messages show no value, for one may be a key."""
    name, _, rest = text.partition(":")
    name = name.strip()
    if not name:
        raise UsageError("a method has no name; write NAME or NAME:PARAMETER=VALUE,…")
    given: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in rest.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (equals and key and value):
            raise UsageError(f"what follows {name!r} is not of the form PARAMETER=VALUE,… (a value holds no comma)")
        if key in given:
            raise UsageError(f"{name}: {key} is given twice; give it once")
        given[key] = value
    return name, given


_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_PLAIN = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _converted(name: str, key: str, value: Any, kind: Any, secret: bool) -> Any:
    """A text or number as the field's type has it; what is of no plain type (a model, an array) goes through."""
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    plain = [each for each in kinds if each in _PLAIN]
    if not plain or (value is None and types.NoneType in kinds):
        return value  # its choices are checked by the class
    for each in plain:
        with suppress(TypeError, ValueError, KeyError, OverflowError):
            return _read(value, each)
    if set(kinds) - {*plain, types.NoneType}:
        return value
    raise UsageError(f"{name}: {key} is {_shown(value, secret)}, and must be {_PLAIN[plain[0]]}")


def _read(value: Any, kind: type) -> Any:
    """A text, or a number of any library, as a plain type; ValueError and the like where it is not of that kind."""
    if isinstance(value, str):
        return _WORDS[value.lower()] if kind is bool else kind(value)
    number = isinstance(value, numbers.Real) and isinstance(value, bool) == (kind is bool)
    if kind is str or not number or (kind is int and value % 1):
        raise ValueError
    return kind(value)


def _shown(value: Any, secret: bool) -> str:
    """A value in a message; a key is nobody's business."""
    return "(not shown)" if secret else repr(value) if isinstance(value, str) else str(value)
