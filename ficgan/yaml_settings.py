"""Settings in YAML: read from a file, overridden by `dotted.key=value`, checked; every problem is one sentence."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from ficgan.errors import FicganError, UsageError

__all__ = ["Tree", "check", "hint", "override", "read_tree"]

Tree = dict[str, Any]
M = TypeVar("M", bound=BaseModel)

# PyYAML's own errors, and what it lets through: ValueError for 2024-99-01, AttributeError for !!timestamp x, …
_UNREADABLE = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError)


def read_tree(source: str | Path, *, kind: str | None = None, prefix: str = "", see: str = "") -> Tree:
    """The sections of a YAML file; an empty file has none.

    `source` is a path, or with `kind` (see `ficgan.configs.names`) the name, which begins with `prefix`, of a
    configuration that comes with the package. `see` names a page of the documentation.
    """
    from ficgan import configs

    place = str(source)
    names = [] if kind is None else [name for name in configs.names(kind) if name.startswith(prefix)]
    if place in names:
        text = configs.read(place, kind or "")
    elif kind is None or "/" in place or place.endswith((".yaml", ".yml")) or Path(source).is_file():
        text = _text(Path(source))
    else:
        raise UsageError(f"there is no configuration named {place!r}, and no such file; {hint(place, names)}")
    try:
        tree = yaml.safe_load(text)
    except _UNREADABLE as error:
        raise UsageError(f"{place} is not valid YAML ({_reason(error)}); mend it") from None
    if not isinstance(tree, dict | None):
        raise UsageError(f"{place} holds no key: value pairs; {f'see {see}' if see else 'write some'}")
    return tree or {}


def override(
    tree: Tree,
    overrides: Iterable[str],
    *,
    example: str,
    opened: Callable[[str, Any], Any] = lambda place, value: value,
) -> Tree:
    """A copy of the tree with other values; sections that are not there are made.

    Args:
        overrides: "dotted.key=value" texts, values as in YAML; a later one wins.
        example: such a text, for the error message, which shows no value: it may be a key of an anonymiser.
        opened: called with the dotted place and the value of each section on the way; gives what stands there in place
            of a short form.
    """
    for text in overrides:
        key, equals, value = text.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            raise UsageError(f"override {text!r} is not of the form key=value, such as {example}")
        try:
            given = yaml.safe_load(value)
        except _UNREADABLE as error:
            raise UsageError(
                f"override {key!r}: the value is not valid YAML ({_reason(error)}); close its brackets or quote it"
            ) from None
        tree = _with(tree, parts, given, 0, opened)
    return tree


def check(model: type[M], tree: Any, *, where: str, see: str = "", error: type[FicganError] = UsageError) -> M:
    """A tree as a model; of several problems a misspelt key is told before the one that is missing because of it.

    The model forbids unknown keys; it may hold models, optional ones, lists and dictionaries of them. `where` is what
    the message calls the tree, `see` a page of the documentation.
    """
    try:
        return model.model_validate(tree)
    except ValidationError as failed:
        first = min(failed.errors(), key=lambda one: one["type"] != "extra_forbidden")
    place = [part for part in first["loc"] if part != "[key]"]
    path = ".".join(map(str, place))
    if first["type"] == "extra_forbidden":
        raise error(f"{where}: unknown key {path!r}; {_meant(model, place, see)}")
    if first["type"] == "missing":
        raise error(f"{where}: {path} is missing; {f'see {see}' if see else 'add it'}")
    said = first["msg"].removeprefix("Value error, ") + _given(first["type"], first["input"])
    raise error(f"{where}: {path}: {said}" if path else f"{where}: {said}")


def hint(wrong: str, known: Collection[str]) -> str:
    """What to do about an unknown name: "did you mean X?", or "there are A, B, C"."""
    near = difflib.get_close_matches(wrong, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "not UTF-8 text"
        raise UsageError(f"{path} cannot be read ({reason}); name a YAML file") from None


def _reason(error: Exception) -> str:
    """What is wrong in a YAML text, on one line and without the text itself."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, yaml.reader.ReaderError):
        return f"character {error.position + 1}: {error.reason}"
    return "a date, number or tag that cannot be"


def _with(node: Tree, parts: Sequence[str], value: Any, depth: int, opened: Callable[[str, Any], Any]) -> Tree:
    part = parts[depth]
    if depth == len(parts) - 1:
        return {**node, part: value}
    below = opened(".".join(parts[: depth + 1]), node.get(part))
    if not isinstance(below, dict | None):
        raise UsageError(
            f"override {'.'.join(parts)!r}: {part!r} is a value, not a section; write {'.'.join(parts[: depth + 1])}=…"
        )
    return {**node, part: _with(below or {}, parts, value, depth + 1, opened)}


def _given(kind: str, value: Any) -> str:
    """What stood there, unless it is a text that was not meant as a number or a choice: it may hold a key."""
    plain = value is None or isinstance(value, bool | int | float)
    if not (plain or (isinstance(value, str) and kind.endswith(("_parsing", "literal_error")))):
        return ""
    text = repr(value)
    return f" (got {text if len(text) <= 60 else text[:57] + '...'})"


def _meant(model: type[BaseModel], place: Sequence[int | str], see: str) -> str:
    """What to write in place of an unknown key: the nearest one, in its section before others."""
    *section, wrong = map(str, place)
    general = ["N" if part.isdigit() else part for part in section]
    keys = list(_all_keys(model))
    here = [leaf for *above, leaf in (key.split(".") for key in keys) if above == general]
    for known in ({leaf: ".".join([*section, leaf]) for leaf in here}, {key.split(".")[-1]: key for key in keys[::-1]}):
        if near := difflib.get_close_matches(wrong, known, n=1):
            return f"did you mean {known[near[0]]!r}?"
    return f"see {see}" if see else f"there are {', '.join(here or keys)}"


def _all_keys(
    model: type[BaseModel], prefix: str = "", above: frozenset[type[BaseModel]] = frozenset()
) -> Iterator[str]:
    """The dotted keys of all sections, N for any number in a list or key of a dictionary."""
    for attribute, field in model.model_fields.items():
        name = field.alias or attribute
        yield prefix + name
        for inner, many in _within(field.annotation):
            if inner not in above | {model}:
                yield from _all_keys(inner, f"{prefix}{name}." + "N." * many, above | {model})


def _within(annotation: Any, many: bool = False) -> Iterator[tuple[type[BaseModel], bool]]:
    """The models an annotation speaks of, and whether there may be several, in a list or dictionary."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, many
    one = typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated)
    for inner in typing.get_args(annotation):
        yield from _within(inner, many or not one)
