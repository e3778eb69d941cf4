"""What the papers print, as data: one YAML file each beside this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

import yaml


@dataclass(frozen=True)
class Printed:
    """A table as printed; the protocol tells how the numbers came about, and what the paper leaves open."""

    paper: str
    where: str
    protocol: str
    rows: tuple[dict[str, Any], ...]


def _read(name: str) -> SimpleNamespace:
    tree = yaml.safe_load(files("ficgan.lab.papers").joinpath(f"{name}.yaml").read_text(encoding="utf-8"))

    def value(found: Any) -> Any:
        if isinstance(found, dict) and "columns" in found:
            rows = tuple(dict(zip(found["columns"], row, strict=True)) for row in found["rows"])
            return Printed(tree["paper"], found["where"], found["protocol"], rows)
        return tuple(found) if isinstance(found, list) else found

    return SimpleNamespace(**{key: value(found) for key, found in tree.items()})


def text(paper: SimpleNamespace, template: str, **values: Any) -> str:
    """A text of a paper's file with its gaps filled, from that file and from `values`."""
    return template.format(**{**vars(paper), **values})


def table(paper: SimpleNamespace, key: str, rows: Sequence[dict[str, Any]], **values: Any) -> dict[str, Any]:
    """A table for a page, with the title and the note that the paper's file has for it."""
    head = {part: text(paper, template, **values) for part, template in paper.tables[key].items()}
    return {**head, "rows": list(rows)}


FICGAN, FANTOMAS, REVELIO = map(_read, ("ficgan", "fantomas", "revelio"))
FANTOMAS_CLAIMS: dict[str, str] = FANTOMAS.reversible | FANTOMAS.irreversible


def counted(share: float, probes: int = REVELIO.closed["images"]) -> tuple[int, bool]:
    """How many of the probes a printed share stands for, and whether they give it as printed: 0.959 of 97 are 93."""
    found = round(share * probes)
    return found, abs(found / probes - share) < 1e-3
