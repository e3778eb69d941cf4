"""Face boxes of many images as JSON: the list of records that the authors of the ImageNet study released, with a score
of each box and the detector where there was one. `study.open_scenes` reads what is written here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ficgan.errors import InputError
from ficgan.images import atomic_write
from ficgan.lab.annotation.boxes import Boxes

__all__ = ["Record", "Records", "box_rows", "read_json", "read_records", "write_json", "write_records"]

_NAMES, _BOXES, _EDGES = ("file", "url", "path", "name"), ("bboxes", "faces", "boxes"), ("x0", "y0", "x1", "y1")


@dataclass(frozen=True, eq=False)
class Record:
    """The faces of one image.

    Args:
        name: of the image, relative to its folder or archive.
        boxes: [M,4] pixels of the upright image.
        scores: the detector's, one a box; None where nobody gave any.
        more: whatever else is known of the image: "label", "split", "width", "height", "detector", "threshold", …
    """

    name: str
    boxes: Boxes
    scores: tuple[float, ...] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As a record of the file; coordinates to a hundredth of a pixel."""
        boxes = [dict(zip(_EDGES, (round(float(v), 2) for v in box), strict=True)) for box in self.boxes]
        for box, score in zip(boxes, self.scores or (), strict=self.scores is not None):
            box["score"] = round(score, 4)
        return {"file": self.name, **self.more, "bboxes": boxes}

    @property
    def category(self) -> str:
        """The class: as labelled, else the image's folder; "" where there is neither."""
        return str(self.more.get("label") or PurePosixPath(self.name).parent.name)


class Records(dict[str, Record]):
    """Records by the name of their image; found also where a record's name lacks the suffix or the class folder."""

    def __init__(self, records: Iterable[Record]) -> None:
        super().__init__()
        self._bare: dict[str, str] = {}
        for record in records:
            if record.name in self:
                raise InputError(f"{record.name} has two records in the annotations; leave one")
            self[record.name] = record
            self._bare.setdefault(str(PurePosixPath(record.name).with_suffix("")), record.name)

    def find(self, name: str) -> Record | None:
        """The record of an image, or None; "val/x" stands for "val/n01440764/x.JPEG" as in the released file."""
        bare = PurePosixPath(name).with_suffix("")
        keys = (str(bare), f"{bare.parts[0]}/{bare.name}") if len(bare.parts) > 2 else (str(bare),)
        known = name if name in self else next((self._bare[key] for key in keys if key in self._bare), None)
        return None if known is None else self[known]


def read_records(path: Path) -> Records:
    """Annotations from a file: a list of records, or an object of image names and lists of boxes.

    Raises:
        InputError: unreadable, or a record that names no image, is there twice, or has boxes that are none.
    """
    raw = read_json(path)
    if isinstance(raw, dict):
        raw = [{"file": name, "bboxes": boxes} for name, boxes in raw.items()]
    if not isinstance(raw, list) or not all(isinstance(row, dict) for row in raw):
        raise InputError(f"{path} holds no list of records; each needs the name of an image and its boxes")
    return Records(_record(row, number, path) for number, row in enumerate(raw, 1))


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write annotations, whole or not at all; a file of this name is replaced.

    Raises:
        InputError: it cannot be written.
    """
    rows = ",\n".join(json.dumps(record.to_json(), ensure_ascii=False, allow_nan=False) for record in records)
    with atomic_write(path, overwrite=True) as file:
        file.write(f"[\n{rows}\n]\n".encode())


def read_json(path: Path) -> Any:
    """A JSON file.

    Raises:
        InputError: missing or damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON ({error}); check the file") from error


def write_json(path: Path, tree: Any) -> None:
    """Write JSON, whole or not at all; a file of this name is replaced."""
    with atomic_write(path, overwrite=True) as file:
        file.write((json.dumps(tree, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def box_rows(raw: Any, where: str) -> Boxes:
    """Boxes [M,4] from a list of {"x0", "y0", "x1", "y1"} or [x0, y0, x1, y1].

    Raises:
        InputError: something else, or numbers that are not finite.
    """
    try:
        rows = [[box[edge] for edge in _EDGES] if isinstance(box, dict) else list(box) for box in raw]
        if any(isinstance(value, bool | str) for row in rows for value in row):
            raise ValueError("an edge is no number")
        boxes = np.array(rows, np.float64).reshape(len(rows), 4)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the boxes of {where} are not x0, y0, x1, y1 each ({error!r}); correct its record") from None
    if not np.isfinite(boxes).all():
        raise InputError(f"a box of {where} is not finite; correct its record")
    return boxes


def _record(row: dict[str, Any], number: int, path: Path) -> Record:
    key = next((key for key in _NAMES if isinstance(row.get(key), str) and row[key]), None)
    if key is None:
        raise InputError(f"record {number} of {path} names no image; it needs one of {', '.join(_NAMES)}")
    name, faces = row[key].removeprefix("./"), next((one for one in _BOXES if one in row), None)
    raw = row[faces] if faces else []
    boxes = box_rows(raw, f"{name} in {path}")
    full = (boxes[:, 0] < boxes[:, 2]) & (boxes[:, 1] < boxes[:, 3])  # as the authors, leave out what has no area
    scored = bool(len(raw)) and all(isinstance(box, dict) and isinstance(box.get("score"), int | float) for box in raw)
    scores = tuple(float(box["score"]) for box, whole in zip(raw, full, strict=True) if whole) if scored else None
    return Record(name, boxes[full], scores, {k: v for k, v in row.items() if k not in (key, faces)})
