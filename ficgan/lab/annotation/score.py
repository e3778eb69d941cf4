"""False positives and negatives of face boxes before and after people corrected them (Yang et al. 2022, Table 1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from ficgan.errors import InputError, UsageError
from ficgan.lab.annotation.boxes import OVERLAP, errors
from ficgan.lab.annotation.published import PUBLISHED_ERRORS, PUBLISHED_PER_50
from ficgan.lab.annotation.records import Records
from ficgan.lab.metrics.intervals import wilson

__all__ = ["score_annotations", "score_text"]

NOTE = "Intervals take faces and boxes for independent, which those of a photo are not: they are too narrow for crowds."


def score_annotations(
    truth: Records, lists: Mapping[str, Records], *, overlap: float = OVERLAP, names: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Count errors against verified faces.

    A box and a face count as right once, in as many pairs with an IoU of at least `overlap` as there can be.

    Args:
        truth: verified faces; its images are judged, in groups of their category (label, else folder).
        lists: "before" and "after" → boxes; others may be added. Images besides those of the truth are not judged.
        overlap: least IoU, above 0 and at most 1.
        names: category → name in the paper's table, such as "n02100877" → "irish setter"; categories of the paper's own
            names need none.

    Returns:
        {"overlap", "note", "categories": [row, …], "all": row}, where a row is {"category", "images", "faces",
        "published", NAME: {"boxes", "fp", "fn", "fp_per_50", "fn_per_50", "fp_rate", "fn_rate"}}. A rate is
        {"value", "low", "high", "n"} or None: false positives among boxes, false negatives among faces.

    Raises:
        UsageError: no image, or an overlap that cannot be.
        InputError: a list lacks an image of the truth.
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
    everything = _row("all", [one for group in groups.values() for one in group], PUBLISHED_PER_50)
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
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    text = ["  ".join(v.ljust(w) if k == 0 else v.rjust(w) for k, (v, w) in enumerate(zip(line, widths, strict=True)))
            for line in lines]  # fmt: skip
    for name in names:
        one = score["all"][name]
        text.append(
            f"{name}: {one['fp_per_50']:.2f} false positives and {one['fn_per_50']:.2f} false negatives per 50 images; "
            f"{_rate(one['fp_rate'])} of boxes are no face, {_rate(one['fn_rate'])} of faces have no box"
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
