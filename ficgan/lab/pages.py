"""JSON files and self-contained pages, as runs, surveys and annotations read and write them."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from ficgan.errors import InputError
from ficgan.lab.run import write_file


def read_json(path: Path) -> Any:
    """A JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); name another") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON ({error}); check the file") from error


Model = TypeVar("Model")


def read_checked(path: Path, kind: type[Model], schemas: tuple[str | int, ...], otherwise: str) -> Model:
    """A JSON object of one of the schemas as a dataclass, checked by pydantic; `otherwise` says what else to do."""
    raw = read_json(path)
    if not isinstance(raw, dict) or raw.pop("schema", None) not in schemas:
        raise InputError(f"{path} is not of the schema {schemas[0]}; {otherwise}")
    try:
        return TypeAdapter(kind).validate_python(raw)
    except (ValidationError, LookupError, TypeError, AttributeError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": repr(error)}
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise InputError(f"{path} is damaged ({problem}); {otherwise}") from None


def write_json(path: Path, tree: Any) -> None:
    write_file(path, json.dumps(tree, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def png(pixels: NDArray[np.uint8]) -> bytes:
    """[H,W,3] uint8 RGB as PNG, nothing in it but pixels."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG")
    return buffer.getvalue()


def new_folder(folder: Path, *inside: str) -> None:
    """Make a folder for source faces and right answers, which only its owner can open, with folders inside."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise InputError(f"{folder} is not empty; the files of two runs must not mix: choose a new folder")
        folder.chmod(0o700)
        for name in inside:
            (folder / name).mkdir()
    except OSError as error:
        raise InputError(f"{folder} cannot be made ({error.strerror}); choose another folder") from error


def data_url(kind: str, file: bytes) -> str:
    """A file as an address within the page, such as of kind "image/png"."""
    return f"data:{kind};base64,{base64.b64encode(file).decode()}"


def page_template(package: str) -> str:
    """The `page.html` of a package."""
    return files(package).joinpath("page.html").read_text(encoding="utf-8")


def page_script(template: str) -> str:
    """The script of a page. What stands in it above `if (typeof document …)` is pure."""
    return template.partition("<script>")[2].partition("</script>")[0]


def fill_page(template: str, data: Any, **texts: str) -> str:
    """A page with its texts escaped, a digest of its only allowed script, and data in which "<" is an escape."""
    digest = base64.b64encode(hashlib.sha256(page_script(template).encode()).digest()).decode()
    plain = json.dumps(data).replace("<", "\\u003c")
    values = {name: escape(text) for name, text in texts.items()}
    values["script"] = f"sha256-{digest}"
    values["data"] = f'<script id="data" type="application/json">{plain}</script>'
    return re.sub(r"\{\{ (\w+) \}\}", lambda match: values[match[1]], template)


def text_table(lines: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines of text, the first column to the left and the others to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return [
        "  ".join(v.rjust(w) if k else v.ljust(w) for k, (v, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    ]
