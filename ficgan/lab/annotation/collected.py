"""What people hand in of annotation pages: checked, merged, counted before and after (Yang et al. 2022, Table 1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import yaml
from pydantic import StringConstraints

from ficgan.errors import InputError, UsageError
from ficgan.lab.annotation import (
    EXPORT_SCHEMA,
    LIVES,
    OVERLAP,
    AnnotationKey,
    Batch,
    Boxes,
    BoxRows,
    ImageRecord,
    ImageRecords,
    box_rows,
    errors,
    have_area,
    merge,
)
from ficgan.lab.metrics import wilson
from ficgan.lab.results import read_checked, text_table

PUBLISHED = yaml.safe_load(files("ficgan.lab.annotation").joinpath("published.yaml").read_text("utf-8"))
NOTE = "Intervals take faces and boxes for independent, which those of a photo are not: they are too narrow for crowds."


@dataclass(frozen=True)
class BatchExport:
    """What one person handed in: boxes [M,4] of each image of the batch, and how many gold images are wrong."""

    file: str
    batch: Batch
    worker: str
    boxes: tuple[Boxes, ...]
    mistakes: int


@dataclass
class Collected:
    """What came of all exports."""

    # Final annotations by name. "workers" says how many looked at an image: at 0 the boxes are the detector's;
    # "verified" ones are the gold images of the set
    records: list[ImageRecord] = field(default_factory=list)
    accepted: list[BatchExport] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # A sentence for each file
    # {"file", "batch", "worker", "before", "after"} for every image whose boxes somebody changed
    log: list[dict[str, Any]] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)  # Names of images that nobody looked at


def collect(key: AnnotationKey, paths: Sequence[Path]) -> Collected:
    """Merge exported batches in the order they came in."""
    out = Collected()
    done: dict[tuple[str, str], Path] = {}
    for path in paths:
        try:
            export = _read_export(key, path)
            who = export.batch.id, export.worker
            if who in done:
                raise InputError(f"{path} is by {export.worker}, who handed in {done[who]} for the same batch")
            if export.mistakes >= LIVES:
                raise InputError(
                    f"{path} by {export.worker}: {export.mistakes} gold images are wrong, and {LIVES} end the game; "
                    "have the batch done again"
                )
        except InputError as error:
            out.refused.append(str(error))
        else:
            done[who] = path
            out.accepted.append(export)
    for batch in key.batches:
        _finish(out, batch, [export for export in out.accepted if export.batch is batch])
    for row in key.verified:
        more = {name: value for name, value in row.items() if name not in ("file", "bboxes")}
        out.records.append(ImageRecord(row["file"], box_rows(row["bboxes"], "the key"), {**more, "verified": True}))
    out.records.sort(key=lambda record: record.name)
    return out


@dataclass(frozen=True)
class _ExportedImage:
    id: str
    boxes: list[Any]


@dataclass(frozen=True)
class _ExportFile:
    batch: str
    worker: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    images: list[_ExportedImage]


def _read_export(key: AnnotationKey, path: Path) -> BatchExport:
    found = read_checked(path, _ExportFile, (EXPORT_SCHEMA,), "hand in what the review page saved")
    batch = next((batch for batch in key.batches if batch.id == found.batch), None)
    if batch is None:
        raise InputError(f"{path} is of batch {found.batch!r}, which the key does not have; are the pages older?")
    if sorted(image.id for image in found.images) != sorted(image.id for image in batch.images):
        raise InputError(f"{path} does not have every image of its batch once; have it exported again")
    drawn, boxes, wrong = {image.id: image.boxes for image in found.images}, [], 0
    for image in batch.images:
        some = box_rows(drawn[image.id], f"image {image.id} in {path}")
        if not have_area(some).all() or (some < 0).any() or (some[:, 2:] > [image.width, image.height]).any():
            raise InputError(f"a box of image {image.id} in {path} is empty or reaches outside; have it exported again")
        wrong += image.truth is not None and any(errors(some, _rows(image.truth)))
        boxes.append(some)
    return BatchExport(str(path), batch, found.worker, tuple(boxes), wrong)


def _rows(boxes: BoxRows) -> Boxes:
    return np.array(boxes, np.float64).reshape(-1, 4)


def _finish(out: Collected, batch: Batch, exports: Sequence[BatchExport]) -> None:
    for row, image in enumerate(batch.images):
        if image.truth is not None:
            continue  # gold images judge people, and their faces are known
        for export in exports:
            if (after := export.boxes[row].tolist()) != image.shown:
                change = {"file": image.name, "batch": batch.id, "worker": export.worker}
                out.log.append({**change, "before": image.shown, "after": after})
        boxes = merge([export.boxes[row] for export in exports]) if exports else _rows(image.shown)
        if not exports:
            out.unseen.append(image.name)
        more = {**image.more, "width": image.width, "height": image.height, "workers": len(exports)}
        out.records.append(ImageRecord(image.name, boxes, more))


# -- errors before and after (Table 1) ---------------------------------------------------------------------------------


def score_annotations(
    truth: ImageRecords, lists: Mapping[str, ImageRecords], names: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Count errors against verified faces, by category (label, else folder); `lists`: boxes "before" and "after".

    Returns {"note", "categories": [row, …], "all": row}, where a row is {"category", "images", "faces", "published",
    NAME: {"boxes", "fp", "fn", "fp_per_50", "fn_per_50", "fp_rate", "fn_rate"}}. A rate is {"value", "low", "high",
    "n"} or None: false positives among boxes, false negatives among faces.
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
            rates = {"fp_rate": _rate(more, boxes), "fn_rate": _rate(less, faces)}
            out[name] = {"boxes": boxes, "fp": more, "fn": less, **per_50, **rates}
        return out

    printed = {category: PUBLISHED["errors"].get((names or {}).get(category, category)) for category in groups}
    categories = [row(category, groups[category], printed[category]) for category in sorted(groups)]
    return {"note": NOTE, "categories": categories, "all": row("all", list(truth.values()), PUBLISHED["per_50"])}


def _rate(count: int, n: int) -> dict[str, float] | None:
    if not n:
        return None
    low, high = wilson(count, n)
    return {"value": count / n, "low": low, "high": high, "n": n}


def score_text(score: Mapping[str, Any]) -> str:
    """The table to read: counts, and for all images errors per 50 images and rates; the paper's figures beside them."""
    names = [name for name in score["all"] if name not in ("category", "images", "faces", "published")]
    head = ["category", "images", "faces", *(f"{kind} {name}" for kind in ("FP", "FN") for name in names)]
    lines = [[*head, "paper: FP A, H; FN A, H"]]
    for row in [*score["categories"], score["all"]]:
        counts = [row[name][kind] for kind in ("fp", "fn") for name in names]
        printed = row["published"] if row["category"] != "all" else None
        beside = "{fp_a}, {fp_h}; {fn_a}, {fn_h}".format(**printed) if printed else "–"
        lines.append([*map(str, (row["category"], row["images"], row["faces"], *counts)), beside])
    text = text_table(lines)
    for name in names:
        found = score["all"][name]
        rates = [_percent(found["fp_rate"]), _percent(found["fn_rate"])]
        text.append(
            f"{name}: {found['fp_per_50']:.2f} false positives and {found['fn_per_50']:.2f} false negatives per 50 "
            f"images; {rates[0]} of boxes are no face, {rates[1]} of faces have no box"
        )
    text.append(
        "paper, other images (Table 1, per 50): FP {:.2f} → {:.2f}, FN {:.2f} → {:.2f}".format(*PUBLISHED["per_50"])
    )
    return "\n".join([*text, f"IoU ≥ {OVERLAP:g}. {score['note']}"])


def _percent(rate: Mapping[str, float] | None) -> str:
    if rate is None:
        return "none"
    return f"{100 * rate['value']:.1f} % ({100 * rate['low']:.1f}–{100 * rate['high']:.1f})"
