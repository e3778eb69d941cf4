"""Files that people edit: JSON read with care, every problem one sentence that names the place."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from ficgan.errors import InputError
from ficgan.yaml_settings import check

__all__ = ["Box", "Strict", "Text", "check_schema", "checked", "read_json", "to_text"]


class Strict(BaseModel):
    """A part of such a file: frozen, no unknown keys, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_by_name=True)


M = TypeVar("M", bound=Strict)


def _writable(text: Any) -> Any:
    return text.encode("utf-8", "replace").decode() if isinstance(text, str) else text


Text = Annotated[str, BeforeValidator(_writable)]
"""Text that UTF-8 can hold; names of files may be made of any bytes."""


def _corners_in_order(box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    if not (box[0] < box[2] and box[1] < box[3]):
        raise ValueError("a box is [x0, y0, x1, y1] with x0 < x1 and y0 < y1")
    return box


Box = Annotated[tuple[float, float, float, float], AfterValidator(_corners_in_order)]
"""x0, y0, x1, y1 in pixels."""


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        InputError: The file is missing, unreadable, damaged, or names one key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path}: is damaged (not UTF-8 text); restore it or analyse the film again") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: is not valid JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not valid JSON ({error})") from None


def check_schema(tree: Any, schema: str, where: str) -> dict[str, Any]:
    """The tree as a dictionary of the schema `NAME/VERSION`; anything else is an error that says what it is.

    Raises:
        InputError: Another kind of file, or one of a newer version.
    """
    name, version = schema.split("/")
    found = tree.get("schema") if isinstance(tree, dict) else None
    if not isinstance(found, str) or found.split("/")[0] != name:
        raise InputError(f'{where}: is no such file ("schema" should be "{schema}", and is {found!r})')
    number = found.partition("/")[2]
    if number.isdecimal() and int(number) > int(version):
        raise InputError(f"{where}: was written by a newer ficgan ({found}; this one knows {schema}); update ficgan")
    if number != version:
        raise InputError(f"{where}: has the unknown version {found!r}; this ficgan knows {schema}")
    return dict(tree)


def checked(model: type[M], tree: Any, where: str) -> M:
    """A tree as a model.

    Raises:
        InputError: An unknown key, with the nearest known one, or a value that does not fit.
    """
    return check(model, tree, where=where, error=InputError)


def to_text(value: Any, *, width: int = 118) -> str:
    """JSON for people: what fits a line stands on one, lists of numbers fill lines, the rest is indented."""
    return _lay_out(value, "", width) + "\n"


def _lay_out(value: Any, indent: str, width: int) -> str:
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not isinstance(value, dict | list) or not value or (indent and len(indent) + len(line) <= width):
        return line
    inner = indent + " "
    if isinstance(value, dict):
        entries = [
            f"{inner}{json.dumps(str(key), ensure_ascii=False)}: {_lay_out(item, inner, width)}"
            for key, item in value.items()
        ]
        return "{\n" + ",\n".join(entries) + f"\n{indent}}}"
    if all(isinstance(item, int | float) for item in value):
        filled = textwrap.fill(line[1:-1], width, initial_indent=inner, subsequent_indent=inner)
        return f"[\n{filled}\n{indent}]"
    return "[\n" + ",\n".join(inner + _lay_out(item, inner, width) for item in value) + f"\n{indent}]"


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} stands there twice; remove one")
    return tree
