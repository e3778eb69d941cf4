"""What people hand in of annotation pages: checked, counted before and after (Yang et al. 2022, Table 1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import yaml
from pydantic import StringConstraints

from ficgan.errors import InputError, UsageError
from ficgan.lab.annotation import (
    EXPORT_SCHEMA,
    LIVES,
    AnnotationKey,
    Boxes,
    BoxRows,
    ImageRecord,
    ImageRecords,
    box_rows,
    errors,
    have_area,
)
from ficgan.lab.results import read_checked

PUBLISHED = yaml.safe_load(files("ficgan.lab.annotation").joinpath("published.yaml").read_text("utf-8"))


class Collected(NamedTuple):
    """What came of all exports."""

    # Final annotations by name: "reviewed" says whether somebody looked at an image, or its boxes are the detector's;
    # "verified" ones are the gold images of the set
    records: list[ImageRecord]
    accepted: list[str]  # Ids of the batches
    refused: list[str]  # A sentence for each file
    unseen: list[str]  # Names of images that nobody looked at


def collect(key: AnnotationKey, paths: Sequence[Path]) -> Collected:
    """The annotations after one finished batch of each, the first that came in."""
    done: dict[str, dict[str, Boxes]] = {}
    refused, records, unseen = list[str](), list[ImageRecord](), list[str]()
    for path in paths:
        try:
            name, found = _read_export(key, path)
            if name in done:
                raise InputError(f"{path} is of a batch that was handed in before; leave one of the two")
            done[name] = found
        except InputError as error:
            refused.append(str(error))
    for batch in key.batches:
        for image in batch.images:
            if image.truth is not None:
                continue  # gold images judge people, and their faces are known
            reviewed = batch.id in done
            boxes = done[batch.id][image.id] if reviewed else _rows(image.shown)
            unseen += [] if reviewed else [image.name]
            more = {**image.more, "width": image.width, "height": image.height, "reviewed": reviewed}
            records.append(ImageRecord(image.name, boxes, more))
    for row in key.verified:
        more = {name: value for name, value in row.items() if name not in ("file", "bboxes")}
        records.append(ImageRecord(row["file"], box_rows(row["bboxes"], "the key"), {**more, "verified": True}))
    return Collected(sorted(records, key=lambda record: record.name), list(done), refused, unseen)


@dataclass(frozen=True)
class _ExportedImage:
    id: str
    boxes: list[Any]


@dataclass(frozen=True)
class _ExportFile:
    batch: str
    worker: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    images: list[_ExportedImage]


def _read_export(key: AnnotationKey, path: Path) -> tuple[str, dict[str, Boxes]]:
    """Id of the batch that somebody handed in, and the boxes [M,4] of its images by their ids."""
    found = read_checked(path, _ExportFile, (EXPORT_SCHEMA,), "hand in what the review page saved")
    batch = next((batch for batch in key.batches if batch.id == found.batch), None)
    if batch is None:
        raise InputError(f"{path} is of batch {found.batch!r}, which the key does not have; are the pages older?")
    if sorted(image.id for image in found.images) != sorted(image.id for image in batch.images):
        raise InputError(f"{path} does not have every image of its batch once; have it exported again")
    boxes = {image.id: box_rows(image.boxes, f"image {image.id} in {path}") for image in found.images}
    mistakes = 0
    for image in batch.images:
        some = boxes[image.id]
        if not have_area(some).all() or (some < 0).any() or (some[:, 2:] > [image.width, image.height]).any():
            raise InputError(f"a box of image {image.id} in {path} is empty or reaches outside; have it exported again")
        mistakes += image.truth is not None and any(errors(some, _rows(image.truth)))
    if mistakes >= LIVES:
        raise InputError(
            f"{path} by {found.worker}: {mistakes} gold images are wrong, and {LIVES} end the game; have it done again"
        )
    return batch.id, boxes


def _rows(boxes: BoxRows) -> Boxes:
    return np.array(boxes, np.float64).reshape(-1, 4)


# -- errors before and after (Table 1) ---------------------------------------------------------------------------------


def score_annotations(truth: ImageRecords, lists: Mapping[str, ImageRecords]) -> dict[str, Any]:
    """Count errors against verified faces, by category (label, else folder); `lists`: boxes "before" and "after".

    Returns {"categories": [row, …], "all": row}, where a row is {"category", "images", "faces", "published", NAME:
    {"boxes", "fp", "fn", "fp_per_50", "fn_per_50"}}.
    """
    if not truth:
        raise UsageError("scoring needs verified images")
    groups: dict[str, list[ImageRecord]] = defaultdict(list)
    for record in truth.values():
        groups[record.category].append(record)

    def row(category: str, records: Sequence[ImageRecord], published: Sequence[float] | None) -> dict[str, Any]:
        faces = sum(len(record.boxes) for record in records)
        out: dict[str, Any] = {"category": category or "–", "images": len(records), "faces": faces}
        out["published"] = dict(zip(("fp_a", "fp_h", "fn_a", "fn_h"), published, strict=True)) if published else None
        for name, some in lists.items():
            boxes = more = less = 0
            for record in records:
                if (judged := some.find(record.name)) is None:
                    raise InputError(f"the boxes {name} correction lack {record.name}; give its record, be it empty")
                fp, fn = errors(judged.boxes, record.boxes)
                boxes, more, less = boxes + len(judged.boxes), more + fp, less + fn
            per_50 = {"fp_per_50": more * 50 / len(records), "fn_per_50": less * 50 / len(records)}
            out[name] = {"boxes": boxes, "fp": more, "fn": less, **per_50}
        return out

    categories = [row(category, groups[category], PUBLISHED["errors"].get(category)) for category in sorted(groups)]
    return {"categories": categories, "all": row("all", list(truth.values()), PUBLISHED["per_50"])}
