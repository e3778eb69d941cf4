"""Things that are chosen by name and set by parameters: anonymisers, reversers. A class is a frozen dataclass whose
fields, made with `param`, are its parameters; a registry makes it from a name and texts or numbers.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from ficgan.errors import UsageError

__all__ = ["Parametrised", "Registry", "param", "parse_spec"]

C = TypeVar("C", bound="Parametrised")


def param(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """A dataclass field that is a parameter.

    Args:
        default: value where none is given.
        help: one phrase, with the unit.
        low, high: bounds, both allowed.
        choices: allowed texts.
        secret: never shown by `settings`; a key.
    """
    limits = {"help": help, "low": low, "high": high, "choices": choices, "secret": secret}
    return dataclasses.field(default=default, metadata=limits, repr=not secret)


@dataclass(frozen=True)
class Parametrised:
    """A frozen dataclass whose `param` fields are checked when it is made."""

    name: ClassVar[str]
    """By which it is asked for; small letters and hyphens."""

    def __post_init__(self) -> None:
        for field, limits in self.parameters():
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                low, high = limits["low"], limits["high"]
                bad = not math.isfinite(value)
                if bad or (low is not None and value < low) or (high is not None and value > high):
                    span = f"at least {low}" if high is None else f"from {low} to {high}"
                    raise UsageError(f"{self.name}: {field.name} is {value}; give {span}")
            if limits["choices"] and value not in limits["choices"]:
                raise UsageError(f"{self.name}: {field.name} is {value!r}; use one of {', '.join(limits['choices'])}")

    @classmethod
    def parameters(cls) -> list[tuple[dataclasses.Field[Any], Mapping[str, Any]]]:
        """The fields made with `param`, and their limits."""
        return [(field, field.metadata) for field in dataclasses.fields(cls) if "help" in field.metadata]

    def settings(self) -> dict[str, Any]:
        """JSON-ready parameters, without secrets."""
        return {field.name: getattr(self, field.name) for field, limits in self.parameters() if not limits["secret"]}


class Registry(Generic[C]):
    """Classes by name.

    Args:
        what: what they are, in the singular, for messages.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._classes: dict[str, type[C]] = {}

    def add(self, cls: type[C]) -> type[C]:
        """Class decorator; the class has a `name` that is not taken."""
        if cls.name in self._classes and self._classes[cls.name].__qualname__ != cls.__qualname__:
            raise ValueError(f"two {self._what}s are called {cls.name}")
        self._classes[cls.name] = cls
        return cls

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._classes))

    def __contains__(self, name: object) -> bool:
        return name in self._classes

    def __getitem__(self, name: str) -> type[C]:
        """The class of that name.

        Raises:
            UsageError: there is none; the message names the nearest.
        """
        if name not in self._classes:
            near = difflib.get_close_matches(name, self._classes, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(self)}"
            raise UsageError(f"there is no {self._what} {name!r}; {hint}")
        return self._classes[name]

    def make(self, name: str, **given: Any) -> C:
        """An instance; texts are converted to the parameters' types.

        Raises:
            UsageError: an unknown name or parameter, or a value that cannot work.
        """
        cls = self[name]
        hints = typing.get_type_hints(cls)
        known = {field.name for field in dataclasses.fields(cls) if field.init}
        values = {}
        for key, value in given.items():
            key = key.replace("-", "_")
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(known)) or 'none'}"
                raise UsageError(f"{name} has no parameter {key!r}; {hint}")
            values[key] = _converted(name, key, value, hints[key])
        return cls(**values)


def parse_spec(text: str) -> tuple[str, dict[str, str]]:
    """ "gaussian-blur:kernel=29,seed=1" → its name and parameters.

    Raises:
        UsageError: not of that form.
    """
    name, _, rest = text.partition(":")
    given: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in rest.split(","))):
        key, equals, value = part.partition("=")
        if not (equals and key.strip() and value.strip()):
            raise UsageError(f"{text!r} is not of the form NAME:PARAMETER=VALUE,…")
        given[key.strip()] = value.strip()
    return name.strip(), given


_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _converted(name: str, key: str, value: Any, kind: Any) -> Any:
    if not isinstance(value, str):
        wants_whole = kind is int and not isinstance(value, bool)
        if wants_whole and isinstance(value, float) and value.is_integer():
            return int(value)
        plain: dict[Any, tuple[type, ...]] = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}
        allowed = plain.get(kind)
        if allowed and (not isinstance(value, allowed) or (kind is not bool and isinstance(value, bool))):
            raise UsageError(f"{name}: {key} is {value!r}, and must be {_said(kind)}")
        return float(value) if kind is float else value
    kinds = [k for k in typing.get_args(kind) or (kind,) if k is not types.NoneType]
    if typing.get_origin(kind) is typing.Literal:
        return value
    readers: dict[Any, Callable[[str], Any]] = {int: int, float: float, bool: lambda t: _WORDS[t.lower()]}
    for one in kinds:
        try:
            return readers[one](value) if one in readers else value
        except (ValueError, KeyError):
            continue
    raise UsageError(f"{name}: {key} is {value!r}, and must be {_said(kinds[0])}")


def _said(kind: Any) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}.get(kind, str(kind))
