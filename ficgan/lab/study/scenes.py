"""Images of a classification task with the faces in them: an ImageNet tree with the released face annotations, or any
folder or archive with a table of boxes.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import generator
from ficgan.data.dataset import Blob, decode_rgb, list_blobs
from ficgan.errors import InputError, UsageError

__all__ = ["Boxes", "Image", "Scene", "Scenes", "covered_share", "halves", "open_scenes"]

Image = NDArray[np.uint8]
"""[H,W,3] RGB."""
Boxes = NDArray[np.float32]
"""[M,4]: x0, y0, x1, y1 in pixels."""
_NAMES, _BOXES = ("file", "path", "url", "name"), ("faces", "bboxes", "boxes")


@dataclass(frozen=True, slots=True)
class Scene:
    """One image: its class, the faces in it, and, where known, the boxes of the object it is named for."""

    name: str
    blob: Blob
    label: int
    split: str
    boxes: Boxes
    objects: Boxes | None = None

    def load(self) -> Image:
        """Decoded at full resolution.

        Raises:
            InputError: damaged.
        """
        return np.array(decode_rgb(self.blob))


@dataclass(frozen=True)
class Scenes:
    """Images in the order of their names.

    Attributes:
        items: the images.
        classes: class names; `Scene.label` counts in them.
        empty_boxes: annotated boxes without area, which were left out as the authors do.
    """

    items: tuple[Scene, ...]
    classes: tuple[str, ...]
    empty_boxes: int = 0

    def __len__(self) -> int:
        return len(self.items)

    @property
    def labels(self) -> NDArray[np.int64]:
        return np.array([scene.label for scene in self.items], np.int64)

    @property
    def fingerprint(self) -> str:
        """sha256 over names, sizes in bytes, classes and boxes: 64 hex digits."""
        digest = hashlib.sha256("\0".join(self.classes).encode())
        for scene in self.items:
            digest.update(f"{scene.name}\0{scene.blob.size}\0{scene.label}\n".encode())
            digest.update(np.ascontiguousarray(scene.boxes).tobytes())
        return digest.hexdigest()

    def take(self, rows: Iterable[int]) -> Scenes:
        """The images at `rows`, in that order."""
        return replace(self, items=tuple(self.items[int(row)] for row in rows))

    def split(self, name: str) -> Scenes:
        """The images of one split.

        Raises:
            UsageError: there are none.
        """
        rows = [row for row, scene in enumerate(self.items) if scene.split == name]
        if not rows:
            known = ", ".join(sorted({scene.split for scene in self.items if scene.split})) or "none at all"
            raise UsageError(f"no image is in split {name!r}; there are {known}; or set holdout to a share")
        return self.take(rows)

    def holdout(self, share: float, seed: int = 0) -> tuple[Scenes, Scenes]:
        """Training and evaluation images: of every class a share, at least one image, goes to evaluation.

        Raises:
            UsageError: a class has one image only.
        """
        chosen: set[int] = set()
        for label, title in enumerate(self.classes):
            rows = np.flatnonzero(self.labels == label)
            if len(rows) == 0:  # a part of a set may lack a class
                continue
            if len(rows) == 1:
                raise UsageError(f"class {title!r} has one image only; a holdout needs at least 2 of every class")
            count = min(max(1, round(share * len(rows))), len(rows) - 1)
            chosen.update(generator(seed, "holdout", title).permutation(rows)[:count].tolist())
        rest = [row for row in range(len(self)) if row not in chosen]
        return self.take(rest), self.take(sorted(chosen))


def open_scenes(path: Path | str, annotations: Path | str | None = None, objects: Path | str | None = None) -> Scenes:
    """Open a classification set with its faces.

    Annotations are a JSON list of records. The name of an image stands under `url`, `path` or `file`; its faces under
    `bboxes` or `faces` as {"x0", "y0", "x1", "y1"} or [x0, y0, x1, y1] in pixels; `label`, `split` and `objects` (boxes
    of the object) may be there too. The released ImageNet file has `url` (such as "train/n01440764/x.JPEG" or
    "val/x.JPEG") and `bboxes`. A CSV with columns file, label and, if wanted, split will do where there are no boxes.

    Args:
        path: folder, tar or zip. Where a record names no class it is the image's folder, and the split the one above.
        annotations: JSON or CSV; None where no faces are needed. Images without a record have no faces.
        objects: folder of PASCAL-VOC XML files, one for an image, as ILSVRC's localisation task has them.

    Raises:
        InputError: unreadable, no record fits an image, or an image has no class.
    """
    records = _by_key(_read(Path(annotations))) if annotations is not None else {}
    xml = {file.stem: file for file in Path(objects).rglob("*.xml")} if objects is not None else {}
    blobs = sorted(list_blobs(Path(path)), key=lambda blob: blob.name)
    found, matched, empty = [], 0, 0
    for blob in blobs:
        record = next((records[key] for key in _keys(blob.name) if key in records), None)
        matched += record is not None
        record = record or {}
        folders = PurePosixPath(blob.name).parts[:-1]
        label = record.get("label") or (folders[-1] if folders else None)
        if label is None:
            raise InputError(f"{blob.where} has no class; put it in a folder named by its class or name it a label")
        boxes, lost = _boxes(next((record[key] for key in _BOXES if key in record), []), blob.where)
        empty += lost
        if blob_xml := xml.get(PurePosixPath(blob.name).stem):
            inside: Boxes | None = _xml_boxes(blob_xml)
        else:
            inside = _boxes(record["objects"], blob.where)[0] if record.get("objects") else None
        split = str(record.get("split") or (folders[-2] if len(folders) > 1 else ""))
        found.append((blob, str(label), split, boxes, inside))
    if records and not matched:
        raise InputError(f"no record of {annotations} names an image of {path}; are they of the same set?")
    classes = tuple(sorted({label for _, label, *_ in found}))
    index = {label: number for number, label in enumerate(classes)}
    items = (Scene(blob.name, blob, index[label], split, faces, inside) for blob, label, split, faces, inside in found)
    return Scenes(tuple(items), classes, empty)


def halves(scenes: Scenes, holdout: float, train: str, evaluation: str) -> tuple[Scenes, Scenes]:
    """Training and evaluation images: by a share where one is given, else by the set's own splits."""
    return scenes.holdout(holdout) if holdout else (scenes.split(train), scenes.split(evaluation))


def covered_share(boxes: Boxes, within: Sequence[float] | NDArray[Any]) -> float:
    """Share of a rectangle's area that the union of boxes covers.

    Args:
        boxes: [M,4] pixels; they may overlap and reach outside.
        within: x0, y0, x1, y1; of a whole image 0, 0, W, H.
    """
    x0, y0, x1, y1 = (float(value) for value in within)
    inside = np.clip(boxes.astype(np.float64).reshape(-1, 2, 2), (x0, y0), (x1, y1)).reshape(-1, 4)
    xs, ys = np.unique(inside[:, 0::2]), np.unique(inside[:, 1::2])
    if len(xs) < 2 or len(ys) < 2 or x1 <= x0 or y1 <= y0:
        return 0.0
    grid = np.zeros((len(ys) - 1, len(xs) - 1), bool)
    for left, top, right, bottom in inside:
        rows = slice(np.searchsorted(ys, top), np.searchsorted(ys, bottom))
        grid[rows, np.searchsorted(xs, left) : np.searchsorted(xs, right)] = True
    return float(np.diff(ys) @ grid @ np.diff(xs)) / ((x1 - x0) * (y1 - y0))


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = list(csv.DictReader(text.splitlines())) if path.suffix.lower() == ".csv" else json.loads(text)
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"annotations {path} cannot be read ({error}); give a JSON list or a CSV of images") from error
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"annotations {path} are no list of records; each needs the name of an image and its boxes")
    if not any(key in rows[0] for key in _NAMES):
        raise InputError(f"the first record of {path} names no image; it needs one of {', '.join(_NAMES)}")
    return rows


def _by_key(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    records: dict[str, dict[str, Any]] = {}
    for row in rows:
        name = str(next((row[key] for key in _NAMES if row.get(key)), ""))
        key = str(PurePosixPath(name.removeprefix("./")).with_suffix("")) if name else ""
        if key in records:
            raise InputError(f"{name} has two records in the annotations; leave one")
        records[key] = row
    return records


def _keys(name: str) -> tuple[str, ...]:
    """Under what an image may stand: its whole name, or split and file, as the released ImageNet file has for "val"."""
    bare = PurePosixPath(name).with_suffix("")
    return (str(bare), f"{bare.parts[0]}/{bare.name}") if len(bare.parts) > 2 else (str(bare),)


def _boxes(raw: Any, where: str) -> tuple[Boxes, int]:
    try:
        rows = [[box[k] for k in ("x0", "y0", "x1", "y1")] if isinstance(box, dict) else list(box) for box in raw]
        boxes = np.array(rows, np.float32).reshape(len(rows), 4)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the boxes of {where} are not x0, y0, x1, y1 each ({error!r}); correct its record") from None
    if not all(math.isfinite(value) for value in boxes.ravel()):
        raise InputError(f"a box of {where} is not finite; correct its record")
    full = (boxes[:, 0] < boxes[:, 2]) & (boxes[:, 1] < boxes[:, 3])
    return boxes[full], int((~full).sum())


def _xml_boxes(path: Path) -> Boxes:
    from xml.etree import ElementTree

    try:
        found = ElementTree.parse(path).getroot().iter("bndbox")
        rows = [[float(box.findtext(k, "nan")) for k in ("xmin", "ymin", "xmax", "ymax")] for box in found]
    except (OSError, ValueError, ElementTree.ParseError) as error:
        raise InputError(f"{path} is not a readable box file ({error}); fetch it again") from error
    return _boxes(rows, str(path))[0]
