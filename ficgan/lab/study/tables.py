"""The paper's tables made of a study's figures: columns and rows of text and numbers, for JSON, CSV and pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ficgan.lab.study.published import PUBLISHED
from ficgan.lab.study.scenes import Scenes

__all__ = ["accuracy_table", "drop_table", "faces_table", "per_cent"]

Rows = list[dict[str, Any]]


def per_cent(spread: dict[str, Any] | None, signed: bool = False) -> str:
    """{"mean", "sem"} as shares → "69.8 ± 0.2"; a dash where nothing was measured."""
    if spread is None:
        return "–"
    mean = f"{100 * spread['mean']:+.1f}" if signed else f"{100 * spread['mean']:.1f}"
    return mean if spread["sem"] is None else f"{mean} ± {100 * spread['sem']:.1f}"


def faces_table(scenes: Scenes) -> dict[str, Any]:
    """Classes with how many of their images show a face (Table 2), most first, and of the whole set."""
    rows: Rows = []
    for label, title in enumerate(scenes.classes):
        counts = [len(scene.boxes) for scene in scenes.items if scene.label == label]
        if counts:
            rows.append(_faces_row(title, counts))
    rows.sort(key=lambda row: -row["with faces (%)"])
    if len(scenes):
        rows.append(_faces_row("all", [len(scene.boxes) for scene in scenes.items]))
    return {"title": "Images with faces (as Table 2)", "columns": list(rows[0]) if rows else [], "rows": rows}


def accuracy_table(grid: Rows, drops: Rows) -> dict[str, Any]:
    """Trained and evaluated on the same variant (Table 3), the published accuracies beside it where there are any."""
    matched = {(row["network"], row["train"]): row for row in grid if row["train"] == row["evaluate"]}
    lost = {(row["network"], row["after"]["train"]): row for row in drops if row["kind"] == "matched"}
    rows: Rows = []
    for network in dict.fromkeys(row["network"] for row in grid):
        row: dict[str, Any] = {"network": network}
        for metric in ("top1", "top5", "ap"):
            for variant in ("original", "blurred", "overlaid"):
                if one := matched.get((network, variant)):
                    row[f"{metric} {variant}"] = per_cent(one[metric])
                if one := lost.get((network, variant)):
                    row[f"{metric} Δ {variant}"] = per_cent(one[metric], signed=True)
            if published := PUBLISHED.get(network, {}).get(metric):
                row[f"{metric} published"] = " / ".join(f"{value:.1f}" for value in published)
        rows.append(row)
    return _table("Accuracy, trained and evaluated on the same variant (as Table 3)", rows)


def drop_table(drops: Rows, kind: str, title: str) -> dict[str, Any]:
    """Drops of one kind: networks in rows, variants in columns (Tables 8 and 9)."""
    rows: Rows = []
    for network in dict.fromkeys(row["network"] for row in drops):
        row = {"network": network}
        for one in drops:
            if one["network"] == network and one["kind"] == kind:
                variant = one["after"]["train" if kind == "deployed" else "evaluate"]
                for metric in ("top1", "top5", "ap"):
                    row[f"{metric} Δ {variant}"] = per_cent(one[metric], signed=True)
        rows.append(row)
    return _table(title, rows)


def _faces_row(title: str, counts: Sequence[int]) -> dict[str, Any]:
    share = 100 * sum(count > 0 for count in counts) / len(counts)
    return {"class": title, "images": len(counts), "with faces (%)": round(share, 2), "faces": sum(counts)}


def _table(title: str, rows: Rows) -> dict[str, Any]:
    return {"title": title, "columns": list(dict.fromkeys(key for row in rows for key in row)), "rows": rows}
