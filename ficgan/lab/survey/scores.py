"""Figures of answers, with intervals by resampling participants and what they were shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.lab.metrics import Bootstrap, percentiles, recentred
from ficgan.lab.results import Figure

METRICS = ("F1", "F1 (pairs of one person)", "accuracy", "sensitivity", "specificity")
Booleans = NDArray[np.bool_]


def plain(found: Mapping[str, Figure]) -> dict[str, Any]:
    return {name: asdict(figure) for name, figure in found.items()}


def figures(right: Booleans, same: Booleans, bootstrap: Bootstrap) -> dict[str, Figure]:
    """`METRICS` of right and wrong answers [P,M] to pairs [M] of the same person or not."""
    by_person = bootstrap.weights(len(right)).astype(np.float64)
    totals = np.zeros((1 + bootstrap.resamples, 4))  # the whole, then the resamples: TP, FN, TN, FP
    for kind, column in ((True, 0), (False, 2)):
        chosen = same == kind
        # Another seed, or as many pairs as people would be drawn alike.
        by_pair = Bootstrap(bootstrap.resamples, bootstrap.seed + 1 + kind).weights(int(chosen.sum()))
        for place, cells in enumerate((right, ~right)):
            some = cells[:, chosen].astype(np.float64)
            totals[0, column + place] = some.sum()
            totals[1:, column + place] = ((by_person @ some) * by_pair).sum(1)
    tp, fn, tn, fp = totals.T
    everything, same_person = tp + fn + tn + fp, tp + fn
    values = (
        (2 * tp, 2 * tp + fp + fn, everything),
        (2 * tp, 2 * tp + fn, same_person),
        (tp + tn, everything, everything),
        (tp, same_person, same_person),
        (tn, tn + fp, tn + fp),
    )
    out = {}
    for name, (above, below, counts) in zip(METRICS, values, strict=True):
        drawn, n = np.divide(above, below, out=np.full(len(below), np.nan), where=below > 0), int(counts[0])
        value = float(drawn[0]) if n else None
        bounds = (None, None) if value is None else recentred(drawn, value, min(right.shape))
        out[name] = Figure(name, value, *bounds, n, "answers", "" if n else "There are no answers to count.")
    return out


def agreement(name: str, values: NDArray[np.float64], bootstrap: Bootstrap) -> Figure:
    """Mean of ratings [P,M] of photos under a condition, NaN where a participant did not see it (Fantômas, §8)."""
    seen = np.isfinite(values)
    if not seen.any():
        return Figure(name, None, unit="votes", note="There are no answers to count.")
    by_person = bootstrap.weights(len(values)).astype(np.float64)
    by_photo = Bootstrap(bootstrap.resamples, bootstrap.seed + 1).weights(values.shape[1])  # drawn apart from people
    above, below = (((by_person @ part) * by_photo).sum(1) for part in (np.where(seen, values, 0), seen.astype(float)))
    drawn = np.divide(above, below, out=np.full(len(below), np.nan), where=below > 0)
    ends = percentiles(drawn) if min(seen.any(1).sum(), seen.any(0).sum()) > 1 else (None, None)
    return Figure(name, float(values[seen].mean()), *ends, int(seen.sum()), "votes")


def draw_agreement(conditions: Sequence[Mapping[str, Any]], statements: Sequence[str], canvas: Any) -> None:
    """Bars of the agreement with each statement by condition, with 95 % intervals (Fantômas, Figure 13)."""
    axes, places = canvas.subplots(), np.arange(len(conditions))
    width = 0.8 / len(statements)
    for number, name in enumerate(statements):
        # Where there is no interval, its ends are the value.
        rows = [[row[name][end] for end in ("value", "low", "high")] for row in conditions]
        value, low, high = np.array([[np.nan if x is None else x for x in row] for row in rows]).T
        away = np.nan_to_num(np.abs([value - low, high - value]))
        axes.bar(places + (number - (len(statements) - 1) / 2) * width, value, width, yerr=away, capsize=2, label=name)
    axes.set_xticks(places, [row["label"] for row in conditions], rotation=35, ha="right")
    axes.set(ylabel="agreement: 0 strongly disagree, 1 strongly agree", ylim=(0, 1))
    axes.legend(ncols=len(statements), loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    axes.grid(axis="y", alpha=0.3)
