"""Face boxes: matching, merging, annotation files as of the ImageNet study, and what a detector finds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.data.dataset import Blob, decode_rgb, list_blobs
from ficgan.errors import InputError
from ficgan.faces import FaceDetector
from ficgan.faces.detection import overlaps
from ficgan.lab.pages import read_json, write_file
from ficgan.lab.run import Progress

Boxes = NDArray[np.float64]  # [M,4]: x0, y0, x1, y1 in pixels, edges continuous from 0
OVERLAP = 0.5  # Least IoU at which two boxes are of one face


def pairs(a: Boxes, b: Boxes, least: float = OVERLAP) -> list[tuple[int, int]]:
    """Pairs (row of a, row of b) with an IoU of at least `least`: the most pairs, then the largest sum of IoU."""
    from scipy.optimize import linear_sum_assignment

    if not len(a) or not len(b):
        return []
    shared = overlaps(a, b)
    fits = shared >= least
    # One more pair outweighs whatever overlap the others lose by it.
    rows, columns = linear_sum_assignment(np.where(fits, min(shared.shape) + shared, 0.0), maximize=True)
    return [(int(row), int(column)) for row, column in zip(rows, columns, strict=True) if fits[row, column]]


def errors(boxes: Boxes, truth: Boxes, least: float = OVERLAP) -> tuple[int, int]:
    """False positives (boxes without a face) and false negatives (faces without a box)."""
    right = len(pairs(boxes, truth, least))
    return len(boxes) - right, len(truth) - right


def merge(drawn: Sequence[Boxes]) -> Boxes:
    """Several people's boxes of an image as one list [M,4] of medians; a face stays when at least half drew it."""
    groups: list[list[NDArray[Any]]] = []
    for boxes in drawn:
        matched = {row: group for group, row in pairs(_medians(groups), boxes)}
        for row, box in enumerate(boxes):
            if row in matched:
                groups[matched[row]].append(box)
            else:
                groups.append([box])
    return _medians([group for group in groups if 2 * len(group) >= len(drawn)])


def _medians(groups: Sequence[Sequence[NDArray[Any]]]) -> Boxes:
    return np.array([np.median(group, axis=0) for group in groups]).reshape(-1, 4)


# -- records -----------------------------------------------------------------------------------------------------------

_EDGES = ("x0", "y0", "x1", "y1")


@dataclass(frozen=True, eq=False)
class ImageRecord:
    """The faces of an image, in pixels of the upright image; `name` is relative to its folder or archive.

    `more` are further fields of the file: "label", "split", "width", "height", "detector", …
    """

    name: str
    boxes: Boxes
    more: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A record of the file; coordinates to a hundredth of a pixel."""
        boxes = [dict(zip(_EDGES, (round(float(v), 2) for v in box), strict=True)) for box in self.boxes]
        return {"file": self.name, **self.more, "bboxes": boxes}

    @property
    def category(self) -> str:
        """The class: as labelled, else the image's folder; "" where there is neither."""
        return str(self.more.get("label") or PurePosixPath(self.name).parent.name)


class ImageRecords(dict[str, ImageRecord]):
    """Records by the name of their image; found also where a record's name lacks the suffix or the class folder."""

    def __init__(self, records: Iterable[ImageRecord]) -> None:
        super().__init__()
        self._bare: dict[str, str] = {}
        for record in records:
            if record.name in self:
                raise InputError(f"{record.name} has two records in the annotations; leave one")
            self[record.name] = record
            self._bare.setdefault(str(PurePosixPath(record.name).with_suffix("")), record.name)

    def find(self, name: str) -> ImageRecord | None:
        """The record of an image, or None; "val/x" stands for "val/n01440764/x.JPEG" as in the released file."""
        bare = PurePosixPath(name).with_suffix("")
        keys = (str(bare), f"{bare.parts[0]}/{bare.name}") if len(bare.parts) > 2 else (str(bare),)
        known = name if name in self else next((self._bare[key] for key in keys if key in self._bare), None)
        return None if known is None else self[known]


def read_records(path: Path) -> ImageRecords:
    """Annotations from a JSON list of records with `file` or `url`, and `bboxes`; boxes without area are left out."""
    raw = read_json(path)
    if not isinstance(raw, list):
        raise InputError(f"{path} holds no list of records; each needs the name of an image and its boxes")
    return ImageRecords(_record(row, f"record {number} of {path}") for number, row in enumerate(raw, 1))


def write_records(path: Path, records: Iterable[ImageRecord]) -> None:
    """Write annotations, whole or not at all; a file of this name is replaced."""
    rows = ",\n".join(json.dumps(record.to_json(), ensure_ascii=False, allow_nan=False) for record in records)
    write_file(path, f"[\n{rows}\n]\n")


def box_rows(raw: Any, where: str) -> Boxes:
    """Boxes [M,4] from a list of {"x0", "y0", "x1", "y1"} or [x0, y0, x1, y1]."""
    try:
        rows = [[box[edge] for edge in _EDGES] if isinstance(box, dict) else box for box in raw]
        boxes = np.array(rows, np.float64).reshape(len(rows), 4)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the boxes of {where} are not x0, y0, x1, y1 each ({error!r}); correct its record") from None
    if not np.isfinite(boxes).all():
        raise InputError(f"a box of {where} is not finite; correct its record")
    return boxes


def have_area(boxes: Boxes) -> NDArray[np.bool_]:
    """[M] which boxes are not empty."""
    return (boxes[:, 0] < boxes[:, 2]) & (boxes[:, 1] < boxes[:, 3])


def _record(row: Any, where: str) -> ImageRecord:
    name = (row.get("file") or row.get("url")) if isinstance(row, dict) else None
    if not isinstance(name, str):
        raise InputError(f"{where} names no image; it needs `file` or `url`")
    boxes = box_rows(row.get("bboxes", []), where)
    more = {key: value for key, value in row.items() if key not in ("file", "url", "bboxes")}
    return ImageRecord(name.removeprefix("./"), boxes[have_area(boxes)], more)


def listed(images: Path) -> list[Blob]:
    """The images of a folder, tar or zip in the order of their names."""
    blobs = sorted(list_blobs(images), key=lambda blob: blob.name)
    for first, second in pairwise(blobs):
        if first.name == second.name:
            raise InputError(f"{images} holds {first.name} twice; rename one")
    return blobs


# -- detection ---------------------------------------------------------------------------------------------------------


@dataclass
class DetectedSet:
    """Records of the images that could be read, sentences about the others, and how many were read in another run."""

    records: list[ImageRecord] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    resumed: int = 0


def detect_set(images: Path, out: Path, detector: FaceDetector, *, progress: Progress | None = None) -> DetectedSet:
    """Detect the faces of all images and write the annotations.

    Each record goes to `<out>.part` at once; the same call resumes from it. Damaged images get no record and are tried
    again.
    """
    blobs, done, part = listed(images), DetectedSet(), out.with_name(f"{out.name}.part")
    head = {"detector": detector.name, "threshold": getattr(detector, "threshold", None)}
    known = _resumed(part, head)
    # Rewritten whole, as a run that was killed may have left half a line.
    write_file(part, "".join(f"{json.dumps(row)}\n" for row in (head, *known.values())))
    with part.open("a", encoding="utf-8") as file:
        for number, blob in enumerate(blobs, 1):
            row = known.get((blob.name, blob.size))
            done.resumed += row is not None
            try:
                if row is None:
                    row = {"size": blob.size, **_detect(blob, detector, head).to_json()}
                    file.write(json.dumps(row) + "\n")
                    file.flush()
                done.records.append(_record({key: value for key, value in row.items() if key != "size"}, str(part)))
            except InputError as error:
                done.failed.append(str(error))
            if progress is not None:
                progress(number, len(blobs), blob.name)
    if not done.records:
        part.unlink()
        raise InputError(f"none of {len(blobs)} images of {images} could be used; the first: {done.failed[0]}")
    write_records(out, done.records)
    part.unlink()
    return done


def _detect(blob: Blob, detector: FaceDetector, head: dict[str, Any]) -> ImageRecord:
    image = np.array(decode_rgb(blob))
    boxes = np.array([face.box for face in detector.detect(image)], np.float64).reshape(-1, 4)
    return ImageRecord(blob.name, boxes, {"width": image.shape[1], "height": image.shape[0], **head})


def _resumed(part: Path, head: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """Rows of an interrupted run by (name, bytes) of their images."""
    if not part.exists():
        return {}
    try:
        first, *rows = [
            json.loads(line) for line in part.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")
        ]
        found = {(row["file"], row["size"]): row for row in rows}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(f"{part} is damaged ({error}); remove it to detect anew") from error
    if first != head:
        raise InputError(f"{part} was begun with other settings ({first}); remove it, or detect as before")
    return found
