"""Settings in YAML: read from a file, overridden by `dotted.key=value`, checked; every problem is one sentence."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from ficgan.errors import FicganError, UsageError, hint

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
    """A tree as a model; of several problems a misspelt key is named before the one that is missing because of it.

    The model forbids unknown keys; it may hold models, optional ones, lists and dictionaries of them. `where` is what
    the message calls the tree, `see` a page of the documentation.
    """
    try:
        return model.model_validate(tree)
    except ValidationError as failed:
        first = min(failed.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    place = [part for part in first["loc"] if part != "[key]"]
    path = ".".join(map(str, place))
    if first["type"] == "extra_forbidden":
        raise error(f"{where}: unknown key {path!r}; {_meant(model, place, see)}")
    if first["type"] == "missing":
        raise error(f"{where}: {path} is missing; {f'see {see}' if see else 'add it'}")
    problem = first["msg"].removeprefix("Value error, ") + _given(first["type"], first["input"])
    raise error(f"{where}: {path}: {problem}" if path else f"{where}: {problem}")


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
    return "a character, date, number or tag that cannot be"


def _with(node: Tree, parts: Sequence[str], value: Any, depth: int, opened: Callable[[str, Any], Any]) -> Tree:
    part = parts[depth]
    if depth == len(parts) - 1:
        return {**node, part: value}
    place = ".".join(parts[: depth + 1])
    below = opened(place, node.get(part))
    if not isinstance(below, dict | None):
        raise UsageError(f"override {'.'.join(parts)!r}: {part!r} is a value, not a section; write {place}=…")
    return {**node, part: _with(below or {}, parts, value, depth + 1, opened)}


def _given(kind: str, value: Any) -> str:
    """What stood there, unless it is a text that was not meant as a number or a choice: it may hold a key."""
    plain = value is None or isinstance(value, bool | int | float)
    if not (plain or (isinstance(value, str) and kind.endswith(("_parsing", "literal_error")))):
        return ""
    return f" (got {repr(value)[:60]})"


def _meant(model: type[BaseModel], place: Sequence[int | str], see: str) -> str:
    """What to write in place of an unknown key: a near one of its section, the same of another, what is less near."""
    *section, wrong = map(str, place)
    keys, here = list(_keys(model)), tuple(part for part in section if not part.isdigit())
    near_by = {key[-1]: ".".join([*section, key[-1]]) for key in keys if key[:-1] == here}
    anywhere = {key[-1]: ".".join(key) for key in reversed(keys)}
    for known, likeness in ((near_by, 0.8), (anywhere, 1.0), (near_by, 0.6), (anywhere, 0.6)):
        if near := difflib.get_close_matches(wrong, known, n=1, cutoff=likeness):
            return f"did you mean {known[near[0]]!r}?"
    return f"see {see}" if see else f"there are {', '.join(near_by)}"


def _keys(
    model: type[BaseModel], above: tuple[str, ...] = (), outer: tuple[Any, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """The keys of all sections, each with those above it; numbers of lists and keys of dictionaries are left out."""
    for attribute, field in model.model_fields.items():
        key = (*above, field.alias or attribute)
        yield key
        for inner in _models(field.annotation):
            if inner not in (*outer, model):
                yield from _keys(inner, key, (*outer, model))


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The models that an annotation holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in typing.get_args(annotation) for model in _models(inner)]
