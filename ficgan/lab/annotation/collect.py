"""Exported batches merged, and errors before and after correction (Yang et al. 2022, appendix A, Table 1)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import StrictInt, StringConstraints

from ficgan.errors import InputError, UsageError
from ficgan.lab.annotation.boxes import (
    OVERLAP,
    Boxes,
    Record,
    Records,
    box_rows,
    changes,
    distinct,
    errors,
    merge,
    pairs,
)  # fmt: skip
from ficgan.lab.annotation.make import EXPORT_SCHEMA, Batch, Item, Key
from ficgan.lab.metrics.geometry import overlaps
from ficgan.lab.metrics.intervals import wilson
from ficgan.lab.stored import read_checked, text_table

PUBLISHED_ERRORS: dict[str, tuple[int, int, int, int]] = {
    "irish setter": (12, 3, 0, 0), "gorilla": (32, 7, 0, 0), "cheetah": (3, 1, 0, 0), "basset": (10, 0, 0, 0),
    "lynx": (9, 1, 0, 0), "rottweiler": (11, 4, 0, 0), "sorrel": (2, 1, 0, 0), "impala": (1, 0, 0, 0),
    "bernese mt. dog": (20, 3, 0, 0), "silky terrier": (4, 0, 0, 0), "maypole": (0, 0, 7, 5),
    "basketball": (0, 0, 7, 2), "volleyball": (0, 0, 10, 5), "balance beam": (0, 0, 9, 5), "unicycle": (0, 1, 6, 1),
    "stage": (0, 0, 0, 0), "torch": (2, 1, 1, 1), "baseball player": (0, 0, 0, 0), "military uniform": (3, 2, 2, 0),
    "steel drum": (1, 1, 1, 0),
}  # fmt: skip
"""False positives before and after, false negatives before and after, in 50 validation images of each category; before:
Amazon Rekognition, after: crowdsourcing."""

PUBLISHED_PER_50 = (5.50, 1.25, 2.15, 0.95)  # The table's last row
NOTE = "Intervals take faces and boxes for independent, which those of a photo are not: they are too narrow for crowds."


@dataclass(frozen=True)
class Export:
    file: str
    batch: Batch
    worker: str  # by their own word
    attempt: int  # 1, and one more for every start from scratch; by the page's word
    boxes: tuple[Boxes, ...]  # one [M,4] an image, in the order of the batch
    mistakes: int  # gold images that are not right


@dataclass
class Collected:
    records: list[Record] = field(default_factory=list)
    """Final annotations in the order of their names. "workers" says how many looked at an image: at 0 the boxes are the
    detector's; "verified" ones are the gold images of the set."""
    accepted: list[Export] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)  # File and sentence
    log: list[dict[str, Any]] = field(default_factory=list)
    """{"file", "batch", "worker", "change", "before", "after"} for every box that somebody changed; the worker is
    "merged" for what the final boxes changed of the detector's."""
    agreement: list[dict[str, Any]] = field(default_factory=list)
    """{"batch", "workers", "images", "matched", "unmatched", "iou"} of each batch that several people did."""
    unseen: list[str] = field(default_factory=list)  # Names of images that nobody looked at


def collect(key: Key, files: Sequence[Path], *, union: bool = False) -> Collected:
    """Merge exported batches in the order they came in; `union` keeps every box that anybody drew."""
    out = Collected()
    done: dict[tuple[str, str], str] = {}
    for file in files:
        try:
            export = _read_export(key, file)
            who = export.batch.id, export.worker
            if who in done:
                raise InputError(f"{file} is by {export.worker}, who handed in {done[who]} for the same batch")
            if export.mistakes >= key.rules.lives:
                raise InputError(
                    f"{file} by {export.worker}: {export.mistakes} of {key.rules.gold} gold images are wrong, and "
                    f"{key.rules.lives} end the game; have the batch done again"
                )
        except InputError as error:
            out.refused.append((str(file), str(error)))
        else:
            done[who] = str(file)
            out.accepted.append(export)
    by_batch: dict[str, list[Export]] = defaultdict(list)
    for export in out.accepted:
        by_batch[export.batch.id].append(export)
    for batch in key.batches:
        _finish(out, batch, by_batch[batch.id], key, union)
    for record in key.verified:
        out.records.append(Record(record.name, record.boxes, None, {**record.more, "verified": True}))
    out.records.sort(key=lambda record: record.name)
    return out


@dataclass(frozen=True)
class _Image:
    id: str
    boxes: list[Any]


@dataclass(frozen=True)
class _ExportFile:
    batch: str
    worker: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    images: list[_Image]
    attempt: StrictInt = 1


def _read_export(key: Key, file: Path) -> Export:
    """One exported batch, checked against the key; InputError where the page cannot have written it for this key."""
    found = read_checked(file, _ExportFile, (EXPORT_SCHEMA,), "hand in what the review page saved")
    batch = next((one for one in key.batches if one.id == found.batch), None)
    if batch is None:
        raise InputError(f"{file} is of batch {found.batch!r}, which the key does not have; are the pages older?")
    known = {item.id: item for item in batch.items}
    drawn: dict[str, Boxes] = {}
    for image in found.images:
        if image.id not in known or image.id in drawn:
            word = "twice" if image.id in drawn else "which is not of its batch"
            raise InputError(f"{file} has image {image.id!r}, {word}; have it exported again")
        drawn[image.id] = _inside(image.boxes, known[image.id], f"image {image.id} in {file}")
    missing = [id for id in known if id not in drawn]
    if missing:
        raise InputError(f"{file} lacks {len(missing)} of {len(known)} images ({missing[0]}, …); have it exported anew")
    # Judged as drawn, as the page does; only then are boxes that repeat another one dropped.
    wrong = sum(
        item.truth is not None and any(errors(drawn[item.id], item.truth, key.rules.overlap)) for item in batch.items
    )
    boxes = tuple(distinct(drawn[item.id]) for item in batch.items)
    return Export(str(file), batch, found.worker, found.attempt, boxes, wrong)


def _finish(out: Collected, batch: Batch, exports: Sequence[Export], key: Key, union: bool) -> None:
    least = key.rules.overlap
    if len(exports) > 1:
        out.agreement.append(_agreement(batch, exports, least))
    for row, item in enumerate(batch.items):
        if item.truth is not None:  # gold images judge people, and their faces are known
            continue
        drawn = [export.boxes[row] for export in exports]
        boxes, votes = merge(drawn, least, union=union) if drawn else (item.shown, [])
        for who, mine in [*((e.worker, e.boxes[row]) for e in exports), *([("merged", boxes)] if exports[1:] else [])]:
            for change in changes(item.shown, mine):
                entry = {"file": item.name, "batch": batch.id, "worker": who, "change": change.kind}
                out.log.append({**entry, "before": change.before, "after": change.after})
        if not drawn:
            out.unseen.append(item.name)
        size = {"width": item.width, "height": item.height}
        voted = {"votes": votes} if len(drawn) > 1 else {}
        out.records.append(Record(item.name, boxes, None, {**item.more, **size, "workers": len(drawn), **voted}))


def _agreement(batch: Batch, exports: Sequence[Export], least: float) -> dict[str, Any]:
    matched, others, shared = 0, 0, list[float]()
    rows = [row for row, item in enumerate(batch.items) if item.truth is None]
    for first, second in combinations(exports, 2):
        for row in rows:
            a, b = first.boxes[row], second.boxes[row]
            both = pairs(a, b, least)
            matched += len(both)
            others += len(a) + len(b) - 2 * len(both)
            shared += [float(overlaps(a, b)[i, j]) for i, j in both]
    return {
        "batch": batch.id, "workers": [export.worker for export in exports], "images": len(rows), "matched": matched,
        "unmatched": others, "iou": float(np.mean(shared)) if shared else None,
    }  # fmt: skip


def _inside(raw: list[Any], item: Item, where: str) -> Boxes:
    boxes = box_rows(raw, where)
    if not (
        (boxes[:, :2] >= 0).all()
        and (boxes[:, :2] < boxes[:, 2:]).all()
        and (boxes[:, 2:] <= [item.width, item.height]).all()
    ):
        raise InputError(f"a box of {where} is empty or reaches outside of {item.width}×{item.height} px; export again")
    return boxes


def summary(done: Collected) -> dict[str, Any]:
    """All that can be said in a line of JSON."""
    kinds = Counter(change["change"] for change in done.log if change["worker"] != "merged")
    return {
        "images": len(done.records),
        "unseen": len(done.unseen),
        "accepted": [
            {"file": e.file, "batch": e.batch.id, "worker": e.worker, "attempt": e.attempt, "gold_mistakes": e.mistakes}
            for e in done.accepted
        ],
        "refused": [{"file": file, "reason": reason} for file, reason in done.refused],
        "changes": {kind: kinds[kind] for kind in ("added", "removed", "moved")},
        "agreement": done.agreement,
    }


def score_annotations(
    truth: Records, lists: Mapping[str, Records], *, overlap: float = OVERLAP, names: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Count errors against verified faces, in groups of their category (label, else folder).

    Args:
        lists: "before" and "after" → boxes; others may be added.
        overlap: least IoU of a right box, above 0 and at most 1.
        names: category → name in the paper's table.

    Returns:
        {"overlap", "note", "categories": [row, …], "all": row}, where a row is {"category", "images", "faces",
        "published", NAME: {"boxes", "fp", "fn", "fp_per_50", "fn_per_50", "fp_rate", "fn_rate"}}. A rate is
        {"value", "low", "high", "n"} or None: false positives among boxes, false negatives among faces.
    """
    if not truth or not lists or not 0 < overlap <= 1:
        raise UsageError("scoring needs verified images, boxes to judge, and an overlap above 0 and at most 1")
    groups: dict[str, list[tuple[int, dict[str, tuple[int, int, int]]]]] = defaultdict(list)
    for record in truth.values():
        counts = {}
        for name, some in lists.items():
            judged = some.find(record.name)
            if judged is None:
                raise InputError(f"the boxes {name} correction lack {record.name}; give its record, empty if need be")
            counts[name] = (len(judged.boxes), *errors(judged.boxes, record.boxes, overlap))
        groups[record.category].append((len(record.boxes), counts))
    published = {category: PUBLISHED_ERRORS.get((names or {}).get(category, category)) for category in groups}
    rows = [_row(category or "–", groups[category], published[category]) for category in sorted(groups)]
    everything = _row("all", [image for group in groups.values() for image in group], PUBLISHED_PER_50)
    return {"overlap": overlap, "note": NOTE, "categories": rows, "all": everything}


def score_text(score: Mapping[str, Any]) -> str:
    """The table to read: counts, and for all images errors per 50 images and rates; the paper's figures beside them."""
    names = [name for name in score["all"] if name not in ("category", "images", "faces", "published")]
    head = ["category", "images", "faces", *(f"{kind} {name}" for kind in ("FP", "FN") for name in names)]
    shown = [*score["categories"], score["all"]] if len(score["categories"]) > 1 else [score["all"]]
    beside = any(row["published"] for row in score["categories"])
    lines = [[*head, "paper: FP A, H; FN A, H"] if beside else head]
    for row in shown:
        counts = [row[name][kind] for kind in ("fp", "fn") for name in names]
        lines.append([str(value) for value in (row["category"], row["images"], row["faces"], *counts)])
        if beside:
            lines[-1].append(_published(row["published"]) if row["category"] != "all" else "–")
    text = text_table(lines)
    for name in names:
        all_images = score["all"][name]
        text.append(
            f"{name}: {all_images['fp_per_50']:.2f} false positives and {all_images['fn_per_50']:.2f} false negatives "
            "per 50 images; "
            f"{_rate(all_images['fp_rate'])} of boxes are no face, {_rate(all_images['fn_rate'])} of faces have no box"
        )
    a, h, less_a, less_h = PUBLISHED_PER_50
    text.append(f"paper, other images (Table 1, per 50): FP {a:.2f} → {h:.2f}, FN {less_a:.2f} → {less_h:.2f}")
    return "\n".join([*text, f"IoU ≥ {score['overlap']:g}. {score['note']}"])


def _row(
    category: str, group: list[tuple[int, dict[str, tuple[int, int, int]]]], published: tuple[float, ...] | None
) -> dict[str, Any]:
    faces = sum(count for count, _ in group)
    row: dict[str, Any] = {"category": category, "images": len(group), "faces": faces}
    row["published"] = dict(zip(("fp_a", "fp_h", "fn_a", "fn_h"), published, strict=True)) if published else None
    for name in group[0][1]:
        boxes, more, less = (sum(counts[name][k] for _, counts in group) for k in range(3))
        per = 50 / len(group)
        row[name] = {
            "boxes": boxes, "fp": more, "fn": less, "fp_per_50": more * per, "fn_per_50": less * per,
            "fp_rate": _share(more, boxes), "fn_rate": _share(less, faces),
        }  # fmt: skip
    return row


def _share(errors: int, n: int) -> dict[str, float] | None:
    if not n:
        return None
    low, high = wilson(errors, n)
    return {"value": errors / n, "low": low, "high": high, "n": n}


def _rate(share: Mapping[str, float] | None) -> str:
    if share is None:
        return "– (none)"
    return f"{100 * share['value']:.1f} % ({100 * share['low']:.1f}–{100 * share['high']:.1f}, n = {share['n']})"


def _published(row: Mapping[str, float] | None) -> str:
    return f"{row['fp_a']}, {row['fp_h']}; {row['fn_a']}, {row['fn_h']}" if row else "–"
