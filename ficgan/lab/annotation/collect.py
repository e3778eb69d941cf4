"""Exported batches brought together: checked, judged again by their gold images, compared, merged, changes logged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from ficgan.errors import InputError
from ficgan.lab.annotation.batches import Batch, Item, Key
from ficgan.lab.annotation.boxes import Boxes, changes, distinct, errors, merge, overlaps, pairs
from ficgan.lab.annotation.page import EXPORT_SCHEMA
from ficgan.lab.annotation.records import Record, box_rows, read_json

__all__ = ["Collected", "Export", "collect", "read_export", "summary"]


@dataclass(frozen=True)
class Export:
    """One person's work on a batch.

    Args:
        file: where it was read.
        batch: of the key.
        worker: who did it, by their own word.
        attempt: 1, and one more for every start from scratch; by the page's word.
        boxes: one [M,4] an image, in the order of the batch.
        mistakes: gold images that are not right.
    """

    file: str
    batch: Batch
    worker: str
    attempt: int
    boxes: tuple[Boxes, ...]
    mistakes: int


@dataclass
class Collected:
    """What came of all exports.

    Attributes:
        records: final annotations in the order of their names. "workers" says how many looked at an image: at 0 the
            boxes are the detector's; "verified" ones are the gold images of the set.
        accepted: the work that counts.
        refused: (file, sentence).
        log: {"file", "batch", "worker", "change", "before", "after"} for every box that somebody changed; the worker is
            "merged" for what the final boxes changed of the detector's.
        agreement: of each batch that several people did: {"batch", "workers", "images", "matched", "unmatched", "iou"}.
        unseen: names of images that nobody looked at.
    """

    records: list[Record] = field(default_factory=list)
    accepted: list[Export] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)
    agreement: list[dict[str, Any]] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)


def collect(key: Key, files: Sequence[Path], *, union: bool = False) -> Collected:
    """Bring exported batches together.

    Args:
        key: of the pages.
        files: exports, in the order in which they came in: of two by one worker on one batch the first counts.
        union: where several people did a batch, keep every box that anybody drew, instead of those of at least half.
    """
    out = Collected()
    done: dict[tuple[str, str], str] = {}
    for file in files:
        try:
            export = read_export(key, file)
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


def read_export(key: Key, file: Path) -> Export:
    """One exported batch, checked against the key.

    Raises:
        InputError: it cannot be read, is of another batch, lacks or repeats images, or has boxes that are none or lie
            outside of their image.
    """
    raw = read_json(file)
    if not isinstance(raw, dict) or raw.get("schema") != EXPORT_SCHEMA:
        raise InputError(f"{file} is no export of a review page ({EXPORT_SCHEMA}); hand in what the page saved")
    batch = next((one for one in key.batches if one.id == raw.get("batch")), None)
    if batch is None:
        raise InputError(f"{file} is of batch {raw.get('batch')!r}, which the key does not have; are the pages older?")
    worker, attempt, images = raw.get("worker"), raw.get("attempt", 1), raw.get("images")
    if not isinstance(worker, str) or not worker.strip():
        raise InputError(f"{file} does not say who did it; have it exported with a name")
    if not isinstance(attempt, int) or not isinstance(images, list) or not all(isinstance(i, dict) for i in images):
        raise InputError(f"{file} is damaged: attempt or images are not what the page writes; have it exported again")
    drawn: dict[str, Boxes] = {}
    known = {item.id: item for item in batch.items}
    for image in images:
        id = image.get("id")
        if not isinstance(id, str) or id not in known or id in drawn:
            word = "twice" if isinstance(id, str) and id in drawn else "which is not of its batch"
            raise InputError(f"{file} has image {id!r}, {word}; have it exported again")
        drawn[id] = _inside(image.get("boxes"), known[id], f"image {id} in {file}")
    missing = [id for id in known if id not in drawn]
    if missing:
        raise InputError(f"{file} lacks {len(missing)} of {len(known)} images ({missing[0]}, …); have it exported anew")
    # Judged as drawn, as the page does; only then are boxes that repeat another one dropped.
    wrong = sum(
        item.truth is not None and any(errors(drawn[item.id], item.truth, key.rules.overlap)) for item in batch.items
    )
    boxes = tuple(distinct(drawn[item.id]) for item in batch.items)
    return Export(str(file), batch, worker.strip(), attempt, boxes, wrong)


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
                said = {"change": change.kind, "before": change.before, "after": change.after}
                out.log.append({"file": item.name, "batch": batch.id, "worker": who, **said})
        if not drawn:
            out.unseen.append(item.name)
        size = {"width": item.width, "height": item.height}
        told = {"votes": votes} if len(drawn) > 1 else {}
        out.records.append(Record(item.name, boxes, None, {**item.more, **size, "workers": len(drawn), **told}))


def _agreement(batch: Batch, exports: Sequence[Export], least: float) -> dict[str, Any]:
    """Over all pairs of people and images but the gold ones: boxes that both drew, their mean IoU, and others."""
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


def _inside(raw: Any, item: Item, where: str) -> Boxes:
    boxes = box_rows(raw if isinstance(raw, list) else [None], where)
    if not (
        (boxes[:, :2] >= 0).all()
        and (boxes[:, :2] < boxes[:, 2:]).all()
        and (boxes[:, 2:] <= [item.width, item.height]).all()
    ):
        raise InputError(f"a box of {where} is empty or reaches outside of {item.width}×{item.height} px; export again")
    return boxes


def summary(done: Collected) -> dict[str, Any]:
    """What to say of it in a line of JSON."""
    kinds = [change["change"] for change in done.log if change["worker"] != "merged"]
    return {
        "images": len(done.records),
        "unseen": len(done.unseen),
        "accepted": [
            {"file": e.file, "batch": e.batch.id, "worker": e.worker, "attempt": e.attempt, "gold_mistakes": e.mistakes}
            for e in done.accepted
        ],
        "refused": [{"file": file, "reason": reason} for file, reason in done.refused],
        "changes": {kind: kinds.count(kind) for kind in ("added", "removed", "moved")},
        "agreement": done.agreement,
    }
