"""Face boxes: matching, merging, annotation files as of the ImageNet study, and what a detector finds."""

from __future__ import annotations

import csv
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
SAME = 0.9  # IoU from which a second box in one list only repeats the first
_TOUCH = 0.1  # Least IoU at which a box was moved, not removed and another added


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


def changes(before: Boxes, after: Boxes) -> list[dict[str, Any]]:
    """What a correction did: {"change": "added", "removed" or "moved", "before", "after"} of each box that changed."""
    kept = pairs(before, after, 1.0)
    old = [row for row in range(len(before)) if row not in {i for i, _ in kept}]
    new = [row for row in range(len(after)) if row not in {j for _, j in kept}]
    moved = [(old[i], new[j]) for i, j in pairs(before[old], after[new], _TOUCH)]
    gone, come = set(old) - {i for i, _ in moved}, set(new) - {j for _, j in moved}
    return [
        *({"change": "moved", "before": before[i].tolist(), "after": after[j].tolist()} for i, j in moved),
        *({"change": "removed", "before": before[i].tolist(), "after": None} for i in sorted(gone)),
        *({"change": "added", "before": None, "after": after[j].tolist()} for j in sorted(come)),
    ]


def distinct(boxes: Boxes) -> Boxes:
    """The boxes without those that repeat an earlier one (IoU of .9 or more)."""
    kept: list[int] = []
    for row in range(len(boxes)):
        if not kept or overlaps(boxes[row : row + 1], boxes[kept]).max() < SAME:
            kept.append(row)
    return boxes[kept]


def merge(drawn: Sequence[Boxes], least: float = OVERLAP, *, union: bool = False) -> tuple[Boxes, list[int]]:
    """Several people's boxes of one image as one list: boxes [M,4] (medians), and how many drew each.

    A face stays when at least half of the people drew it, or anybody (`union`): a missed face costs more than a box too
    many.
    """
    groups: list[list[NDArray[Any]]] = []
    for boxes in drawn:
        middles = np.array([np.median(group, axis=0) for group in groups]).reshape(-1, 4)
        matched = {row: group for group, row in pairs(middles, boxes, least)}
        for row, box in enumerate(boxes):
            if row in matched:
                groups[matched[row]].append(box)
            else:
                groups.append([box])
    kept = [group for group in groups if union or 2 * len(group) >= len(drawn)]
    return np.array([np.median(group, axis=0) for group in kept]).reshape(-1, 4), [len(group) for group in kept]


_NAMES, _BOXES, _EDGES = ("file", "url", "path", "name"), ("bboxes", "faces", "boxes"), ("x0", "y0", "x1", "y1")


@dataclass(frozen=True, eq=False)
class Record:
    name: str  # relative to its folder or archive
    boxes: Boxes  # pixels of the upright image
    scores: tuple[float, ...] | None = None  # the detector's, one a box; None where nobody gave any
    more: Mapping[str, Any] = field(default_factory=dict)  # "label", "split", "width", "height", "detector", …
    without_area: int = 0  # boxes that are left out, as the authors do, because they have no area

    def to_json(self) -> dict[str, Any]:
        """A record of the file; coordinates to a hundredth of a pixel."""
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
    """Annotations from a file: a list of records, an object of image names and lists of boxes, or a CSV of images."""
    raw = _csv_rows(path) if path.suffix.lower() == ".csv" else read_json(path)
    if isinstance(raw, dict):
        raw = [{"file": name, "bboxes": boxes} for name, boxes in raw.items()]
    if not isinstance(raw, list) or not all(isinstance(row, dict) for row in raw):
        raise InputError(f"{path} holds no list of records; each needs the name of an image and its boxes")
    return Records(_record(row, number, path) for number, row in enumerate(raw, 1))


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write annotations, whole or not at all; a file of this name is replaced."""
    rows = ",\n".join(json.dumps(record.to_json(), ensure_ascii=False, allow_nan=False) for record in records)
    write_file(path, f"[\n{rows}\n]\n")


def box_rows(raw: Any, where: str) -> Boxes:
    """Boxes [M,4] from a list of {"x0", "y0", "x1", "y1"} or [x0, y0, x1, y1]."""
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


def have_area(boxes: Boxes) -> NDArray[np.bool_]:
    """[M] which boxes are not empty."""
    return (boxes[:, 0] < boxes[:, 2]) & (boxes[:, 1] < boxes[:, 3])


def _record(row: dict[str, Any], number: int, path: Path) -> Record:
    key = next((key for key in _NAMES if isinstance(row.get(key), str) and row[key]), None)
    if key is None:
        raise InputError(f"record {number} of {path} names no image; it needs one of {', '.join(_NAMES)}")
    name, faces = row[key].removeprefix("./"), next((name for name in _BOXES if name in row), None)
    raw = row[faces] if faces else []
    boxes = box_rows(raw, f"{name} in {path}")
    full = have_area(boxes)
    scored = bool(len(raw)) and all(isinstance(box, dict) and isinstance(box.get("score"), int | float) for box in raw)
    scores = tuple(float(box["score"]) for box, kept in zip(raw, full, strict=True) if kept) if scored else None
    more = {k: v for k, v in row.items() if k not in (key, faces)}
    return Record(name, boxes[full], scores, more, int((~full).sum()))


def _csv_rows(path: Path) -> list[dict[str, str]]:
    try:
        return list(csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines()))
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a CSV of images ({error}); check the file") from error


def listed(images: Path) -> list[Blob]:
    """The images of a folder, tar or zip in the order of their names."""
    blobs = sorted(list_blobs(images), key=lambda blob: blob.name)
    for first, second in pairwise(blobs):
        if first.name == second.name:
            raise InputError(f"{images} holds {first.name} twice; rename one")
    return blobs


@dataclass
class DetectedSet:
    """Records of the images that could be read, sentences about the others, and how many were read in another run."""

    records: list[Record] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    resumed: int = 0


def detect_set(images: Path, out: Path, detector: FaceDetector, *, progress: Progress | None = None) -> DetectedSet:
    """Detect the faces of all images and write the annotations.

    Each record goes to `<out>.part` at once; the same call resumes from it. Damaged images get no record and are tried
    again.
    """
    blobs = listed(images)
    made_by = {"detector": detector.name, "threshold": getattr(detector, "threshold", None)}
    part, done = out.with_name(f"{out.name}.part"), DetectedSet()
    known = _resumed(part, made_by)
    try:
        # Rewritten whole, as a run that was killed may have left half a line.
        write_file(part, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in (made_by, *known.values())))
        with part.open("a", encoding="utf-8") as file:
            for number, blob in enumerate(blobs, 1):
                row = known.get((blob.name, blob.size))
                done.resumed += row is not None
                try:
                    if row is None:
                        row = {"size": blob.size, **_detect(blob, detector, made_by).to_json()}
                        file.write(json.dumps(row, ensure_ascii=False) + "\n")
                        file.flush()
                    done.records.append(_record({key: one for key, one in row.items() if key != "size"}, number, part))
                except InputError as error:
                    done.failed.append(str(error))
                if progress is not None:
                    progress(number, len(blobs), blob.name)
    except OSError as error:
        raise InputError(f"{part} cannot be written ({error.strerror}); choose another output") from error
    if not done.records:
        part.unlink(missing_ok=True)
        raise InputError(f"none of {len(blobs)} images of {images} could be used; the first: {done.failed[0]}")
    write_records(out, done.records)
    part.unlink()
    return done


def _detect(blob: Blob, detector: FaceDetector, made_by: dict[str, Any]) -> Record:
    image = np.array(decode_rgb(blob))
    faces = detector.detect(image)
    boxes = np.array([face.box for face in faces], np.float64).reshape(-1, 4)
    more = {"width": image.shape[1], "height": image.shape[0], **made_by}
    return Record(blob.name, boxes, tuple(float(face.score) for face in faces), more)


def _resumed(part: Path, made_by: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """Rows of an interrupted run by (name, bytes) of their images."""
    if not part.exists():
        return {}
    try:
        head, *rows = [json.loads(line) for line in part.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        found = {(row["file"], row["size"]): row for row in rows}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(f"{part} is damaged ({error}); remove it to detect anew") from error
    if head != made_by:
        raise InputError(f"{part} was begun with other settings ({head}); remove it, or detect as before")
    return found
