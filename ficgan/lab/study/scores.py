"""What a classifier is worth, what obfuscation costs it, and how sure both are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.lab.study.scenes import Scenes, covered_share

Row = dict[str, Any]
TOP = 5  # Top-5 is given where there are more classes than this
_CONSTANT = 1e-12  # Relative range below which values differ by rounding alone: their correlation would be noise


def hits(logits: NDArray[np.float32], labels: NDArray[np.int64], k: int = 1) -> NDArray[np.bool_]:
    """[N] whether the class of an image is among the k highest of its outputs [N,C]; ties count against it."""
    if not np.isfinite(logits).all():
        raise InputError("a network's output is not finite; its training has diverged, or its weights are damaged")
    return (logits >= np.take_along_axis(logits, labels[:, None], 1)).sum(1) <= k


def average_precision(scores: NDArray[Any], positive: NDArray[Any]) -> float | None:
    """Area under the precision–recall steps of scores [N], see scikit-learn; None where nothing is positive."""
    from sklearn.metrics import average_precision_score

    if not np.isfinite(scores).all():
        raise InputError("average precision needs finite scores")
    return float(average_precision_score(positive, scores)) if np.any(positive) else None


def class_precisions(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> list[float | None]:
    """Average precision of every class against all others, by softmax: C values, None for a class without images."""
    from scipy.special import softmax

    chance = softmax(logits.astype(np.float64), axis=1)
    return [average_precision(chance[:, c], labels == c) for c in range(logits.shape[1])]


def spread(values: Sequence[float] | NDArray[Any]) -> Row:
    """Mean over seeds and its standard error as {"mean", "sem", "n"}; the authors' errors are √2 times these."""
    x = np.asarray(values, np.float64)
    if not len(x) or not np.isfinite(x).all():
        raise InputError(f"a mean over seeds needs finite values, not {x.tolist()}")
    sem = float(x.std(ddof=1) / math.sqrt(len(x))) if len(x) > 1 else None
    return {"mean": float(x.mean()), "sem": sem, "n": len(x)}


def pearson(x: Sequence[float] | NDArray[Any], y: Sequence[float] | NDArray[Any]) -> Row:
    """Pearson's r with 95 % interval and p-value as {"r", "low", "high", "p", "n"}; None where undefined."""
    from scipy.stats import pearsonr

    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    out: Row = {"r": None, "low": None, "high": None, "p": None, "n": len(a)}
    if len(a) < 2 or any(np.ptp(v) <= _CONSTANT * max(1.0, float(np.abs(v).max())) for v in (a, b)):
        return out
    found = pearsonr(a, b)
    out["r"] = float(found.statistic)
    if len(a) >= 4:
        with np.errstate(divide="ignore"):  # r = ±1: atanh is infinite, and the interval a point
            interval = found.confidence_interval(0.95)
        out |= {"low": float(interval.low), "high": float(interval.high), "p": float(found.pvalue)}
    return out


@dataclass(frozen=True)
class Evaluation:
    """One trained network on N evaluation images of a variant: hits [N], no top-5 of few classes; AP by class."""

    top1: NDArray[np.bool_]
    top5: NDArray[np.bool_] | None
    precisions: tuple[float | None, ...]

    @classmethod
    def of(cls, logits: NDArray[np.float32], labels: NDArray[np.int64]) -> Evaluation:
        top5 = hits(logits, labels, TOP) if logits.shape[1] > TOP else None
        return cls(hits(logits, labels), top5, tuple(class_precisions(logits, labels)))

    def hits(self, metric: str) -> NDArray[np.bool_] | None:
        return self.top1 if metric == "top1" else self.top5


METRICS: dict[str, Callable[[Evaluation], float | None]] = {
    "top1": lambda one: float(one.top1.mean()),
    "top5": lambda one: None if one.top5 is None else float(one.top5.mean()),
    "ap": lambda one: float(np.mean([value for value in one.precisions if value is not None])),
}
"""Name → the figure of an evaluation; "ap" is the mean over the classes that have images."""


class Cell(NamedTuple):
    """One trained network: the file it is kept in, and what it was worth on each variant."""

    network: str
    variant: str
    seed: int
    path: Path
    evaluations: dict[str, Evaluation]


class Side(NamedTuple):
    """One side of a comparison: trained on one variant, evaluated on one."""

    train: str
    evaluate: str


Pairs = list[tuple[Evaluation, Evaluation]]  # Before and after, seed by seed


def grid_rows(cells: Sequence[Cell]) -> list[Row]:
    """A row for each network, training and evaluation variant: figures with standard errors over the seeds."""
    found: dict[tuple[str, str, str], list[Evaluation]] = {}
    for cell in cells:
        for variant, one in cell.evaluations.items():
            found.setdefault((cell.network, cell.variant, variant), []).append(one)
    rows = []
    for (network, train, evaluate), ones in found.items():
        figures = {name: [value for one in ones if (value := of(one)) is not None] for name, of in METRICS.items()}
        row = {"network": network, "train": train, "evaluate": evaluate}
        rows.append(row | {name: spread(values) if values else None for name, values in figures.items()})
    return rows


def drop(cells: Sequence[Cell], network: str, before: Side, after: Side) -> Row:
    """Paired drop `before` − `after` of one network over the same seeds: mean and standard error, as shares."""
    row: Row = {"network": network, "before": before._asdict(), "after": after._asdict()}
    pairs = _paired(cells, network, before, after)
    for name, of in METRICS.items():
        values = [(of(a), of(b)) for a, b in pairs]
        known = [a - b for a, b in values if a is not None and b is not None]
        row[name] = spread(known) if known else None
    return row


class Areas(NamedTuple):
    """Shares [N] of the image's area, and of its object boxes' areas (mean), that face boxes cover; NaN: unknown."""

    image: NDArray[np.float64]
    objects: NDArray[np.float64]


def measure_areas(scenes: Scenes) -> Areas:
    """The boxes as annotated: blurring reaches a tenth of a box's diagonal further on every side."""
    image, objects = np.zeros(len(scenes)), np.full(len(scenes), np.nan)
    for row, scene in enumerate(scenes.items):
        if len(scene.boxes):
            height, width = scene.load().shape[:2]
            image[row] = covered_share(scene.boxes, (0, 0, width, height))
        if scene.objects is not None and len(scene.objects):
            objects[row] = float(np.mean([covered_share(scene.boxes, one) for one in scene.objects]))
    return Areas(image, objects)


def by_class(
    cells: Sequence[Cell], scenes: Scenes, areas: Areas, network: str, before: Side, after: Side
) -> list[Row]:
    """A row for each class: images, share with faces, obfuscated area, and the paired drops (Table 4)."""
    pairs = _paired(cells, network, before, after)
    labels, faced, rows = scenes.labels, scenes.faced, []
    for label, title in enumerate(scenes.classes):
        mine = labels == label
        if not mine.any():
            continue
        row: Row = {"class": title, "images": int(mine.sum()), "with_faces": float(faced[mine].mean())}
        row["area"], covered = float(areas.image[mine].mean()), areas.objects[mine]
        row["object_covered"] = float(np.nanmean(covered)) if np.isfinite(covered).any() else None
        aps = [(a.precisions[label], b.precisions[label]) for a, b in pairs]
        row |= _lost(pairs, mine) | {"ap": spread([a - b for a, b in aps if a is not None and b is not None])}
        rows.append(row)
    return rows


def by_area(
    cells: Sequence[Cell], shares: NDArray[np.float64], edges: Sequence[float], network: str, before: Side, after: Side
) -> list[Row]:
    """Drops of images grouped by a share [N] (Figure 3, of images); NaN leaves out, 0 is a group of its own."""
    pairs = _paired(cells, network, before, after)
    groups: list[tuple[str, NDArray[np.bool_]]] = [("none", shares == 0)]
    for low, high in pairwise((*edges, np.inf)):
        title = f"{100 * low:g}–{100 * high:g} %" if np.isfinite(high) else f"≥ {100 * low:g} %"
        groups.append((title, (shares > 0) & (shares >= low) & (shares < high)))
    return [{"share": title, "images": int(mine.sum()), **_lost(pairs, mine)} for title, mine in groups]


def correlations(
    cells: Sequence[Cell], scenes: Scenes, shares: NDArray[np.float64], networks: Sequence[str], before: Side,
    after: Side,
) -> Row:  # fmt: skip
    """Pearson's r of share [N] and mean drop over "classes" (as the paper), "images" and "images_with_faces"."""
    pairs = [pair for network in networks for pair in _paired(cells, network, before, after)]
    known, labels = np.isfinite(shares), scenes.labels
    out: Row = {"classes": {}, "images": {}, "images_with_faces": {}}
    for name in ("top1", "top5"):
        if not (both := _hits(pairs, name)):
            out = {part: found | {name: None} for part, found in out.items()}
            continue
        lost = np.mean([a.astype(float) - b for a, b in both], axis=0)
        classes = [mine for label in range(len(scenes.classes)) if (mine := known & (labels == label)).any()]
        means = [shares[mine].mean() for mine in classes], [lost[mine].mean() for mine in classes]
        faces = known & (shares > 0)
        out["classes"][name] = pearson(*means)
        out["images"][name] = pearson(shares[known], lost[known])
        out["images_with_faces"][name] = pearson(shares[faces], lost[faces])
    return out


def _lost(pairs: Pairs, mine: NDArray[np.bool_]) -> Row:
    out: Row = {"top1": None, "top5": None}
    for name in out:
        if mine.any() and (both := _hits(pairs, name)):
            out[name] = spread([a[mine].mean() - b[mine].mean() for a, b in both])
    return out


def _hits(pairs: Pairs, metric: str) -> list[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """Before and after, [N] each; none where there is no top-5."""
    both = [(a.hits(metric), b.hits(metric)) for a, b in pairs]
    return [(a, b) for a, b in both if a is not None and b is not None]


def _paired(cells: Sequence[Cell], network: str, before: Side, after: Side) -> Pairs:
    a, b = (
        {
            cell.seed: cell.evaluations[side.evaluate]
            for cell in cells
            if (cell.network, cell.variant) == (network, side.train) and side.evaluate in cell.evaluations
        }
        for side in (before, after)
    )
    if not a or set(a) != set(b):
        raise UsageError(
            f"{network} trained on {before.train} and {after.train} was not evaluated on {before.evaluate} and "
            f"{after.evaluate} with the same seeds; drops are of pairs"
        )
    return [(a[seed], b[seed]) for seed in sorted(a)]
