"""What obfuscation costs: paired drops with their standard error, by class, by obfuscated area, by covered object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import UsageError
from ficgan.lab.study.grid import Cell, Evaluation
from ficgan.lab.study.scenes import Scenes, covered_share
from ficgan.lab.study.scores import pearson, spread

__all__ = ["Areas", "Side", "Table", "by_area", "by_class", "correlations", "drop", "grid_rows", "measure_areas"]

Table = list[dict[str, Any]]
Metric = Callable[[Evaluation], float | None]
METRICS: dict[str, Metric] = {
    "top1": lambda one: float(one.top1.mean()),
    "top5": lambda one: None if one.top5 is None else float(one.top5.mean()),
    "ap": lambda one: one.mean_precision,
}


@dataclass(frozen=True)
class Side:
    """One side of a comparison: trained on one variant, evaluated on one."""

    train: str
    evaluate: str


@dataclass(frozen=True)
class Areas:
    """Of N images, shares in [0, 1].

    Attributes:
        image: of the image's area that face boxes cover.
        objects: of the object boxes' areas that face boxes cover, mean over an image's objects; NaN where unknown.
    """

    image: NDArray[np.float64]
    objects: NDArray[np.float64]


def measure_areas(scenes: Scenes) -> Areas:
    """How much of each image, and of the object in it, the annotated face boxes cover.

    The boxes as annotated: blurring reaches a tenth of a box's diagonal further on every side.
    """
    image, objects = np.zeros(len(scenes)), np.full(len(scenes), np.nan)
    for row, scene in enumerate(scenes.items):
        if len(scene.boxes):
            height, width = scene.load().shape[:2]
            image[row] = covered_share(scene.boxes, (0, 0, width, height))
        if scene.objects is not None and len(scene.objects):
            objects[row] = float(np.mean([covered_share(scene.boxes, one) for one in scene.objects]))
    return Areas(image, objects)


def grid_rows(cells: Iterable[Cell]) -> Table:
    """A row for each network, training and evaluation variant: figures with standard errors over the seeds."""
    found = _by_side(cells)
    rows = []
    for (network, side), ones in found.items():
        row: dict[str, Any] = {"network": network, "train": side.train, "evaluate": side.evaluate}
        rows.append({**row, **{name: _spread(ones.values(), metric) for name, metric in METRICS.items()}})
    return rows


def drop(cells: Sequence[Cell], network: str, before: Side, after: Side) -> dict[str, Any]:
    """Paired drop `before` − `after` of one network: for every seed the difference, then mean and standard error.

    Args:
        cells: of the grid.
        network: which.
        before, after: sides; their seeds are paired.

    Returns:
        The sides and, for top1, top5 and ap, {"mean", "sem", "n"} as shares (not per cent); top5 may be None.

    Raises:
        UsageError: a side was not measured, or not with the same seeds.
    """
    pairs = _paired(cells, network, before, after)
    row: dict[str, Any] = {"network": network, "before": vars(before), "after": vars(after)}
    for name, metric in METRICS.items():
        values = [(metric(a), metric(b)) for a, b in pairs]
        known = [a - b for a, b in values if a is not None and b is not None]
        row[name] = spread(known).to_dict() if known else None
    return row


def by_class(cells: Sequence[Cell], scenes: Scenes, areas: Areas, network: str, before: Side, after: Side) -> Table:
    """A row for each class: images, share with faces, obfuscated area, and the paired drops (Table 4)."""
    pairs = _paired(cells, network, before, after)
    labels = scenes.labels
    faces = np.array([len(scene.boxes) > 0 for scene in scenes.items])
    rows = []
    for label, title in enumerate(scenes.classes):
        mine = labels == label
        if not mine.any():
            continue
        row: dict[str, Any] = {"class": title, "images": int(mine.sum()), "with_faces": float(faces[mine].mean())}
        row["area"] = float(areas.image[mine].mean())
        covered = areas.objects[mine]
        row["object_covered"] = float(np.nanmean(covered)) if np.isfinite(covered).any() else None
        row["top1"] = spread([a.top1[mine].mean() - b.top1[mine].mean() for a, b in pairs]).to_dict()
        fives = [(a.top5, b.top5) for a, b in pairs if a.top5 is not None and b.top5 is not None]
        row["top5"] = spread([a[mine].mean() - b[mine].mean() for a, b in fives]).to_dict() if fives else None
        aps = [(a.precisions[label], b.precisions[label]) for a, b in pairs]
        row["ap"] = spread([a - b for a, b in aps if a is not None and b is not None]).to_dict()
        rows.append(row)
    return rows


def by_area(
    cells: Sequence[Cell], shares: NDArray[np.float64], edges: Sequence[float], network: str, before: Side, after: Side
) -> Table:
    """Drops of images grouped by a share, such as of the obfuscated area (Figure 3, but of images, not of classes).

    Args:
        cells, network, before, after: as `drop`.
        shares: [N]; NaN leaves an image out.
        edges: left edges of the groups, the first 0; images without a face (share 0) are a group of their own.
    """
    pairs = _paired(cells, network, before, after)
    groups: list[tuple[str, NDArray[np.bool_]]] = [("none", shares == 0)]
    for low, high in pairwise((*edges, np.inf)):
        title = f"{100 * low:g}–{100 * high:g} %" if np.isfinite(high) else f"≥ {100 * low:g} %"
        groups.append((title, (shares > 0) & (shares >= low) & (shares < high)))
    rows: Table = []
    for title, mine in groups:
        row: dict[str, Any] = {"share": title, "images": int(mine.sum()), "top1": None, "top5": None}
        if mine.any():
            row["top1"] = spread([a.top1[mine].mean() - b.top1[mine].mean() for a, b in pairs]).to_dict()
            fives = [(a.top5, b.top5) for a, b in pairs if a.top5 is not None and b.top5 is not None]
            row["top5"] = spread([a[mine].mean() - b[mine].mean() for a, b in fives]).to_dict() if fives else None
        rows.append(row)
    return rows


def correlations(
    cells: Sequence[Cell],
    scenes: Scenes,
    shares: NDArray[np.float64],
    networks: Sequence[str],
    before: Side,
    after: Side,
) -> dict[str, Any]:
    """Pearson's r of share and top-1 (top-5) drop, the drop averaged over networks and seeds first.

    Args:
        shares: [N], as `by_area`.

    Returns:
        "classes" (as the paper; r means little for a handful), "images" (all), "images_with_faces": each
        {"top1": correlation, "top5": correlation or None}.
    """
    pairs = [pair for network in networks for pair in _paired(cells, network, before, after)]
    known = np.isfinite(shares)
    labels = scenes.labels
    out: dict[str, Any] = {"classes": {}, "images": {}, "images_with_faces": {}}
    for name in ("top1", "top5"):
        if getattr(pairs[0][0], name) is None:
            for part in out.values():
                part[name] = None
            continue
        lost = np.mean([getattr(a, name).astype(float) - getattr(b, name) for a, b in pairs], axis=0)
        rows = [known & (labels == label) for label in range(len(scenes.classes))]
        rows = [mine for mine in rows if mine.any()]
        means = [shares[mine].mean() for mine in rows], [lost[mine].mean() for mine in rows]
        out["classes"][name] = pearson(*means).to_dict()
        out["images"][name] = pearson(shares[known], lost[known]).to_dict()
        faces = known & (shares > 0)
        out["images_with_faces"][name] = pearson(shares[faces], lost[faces]).to_dict()
    return out


def _by_side(cells: Iterable[Cell]) -> dict[tuple[str, Side], dict[int, Evaluation]]:
    found: dict[tuple[str, Side], dict[int, Evaluation]] = {}
    for cell in cells:
        for variant, one in cell.evaluations.items():
            found.setdefault((cell.network, Side(cell.variant, variant)), {})[cell.seed] = one
    return found


def _paired(cells: Sequence[Cell], network: str, before: Side, after: Side) -> list[tuple[Evaluation, Evaluation]]:
    found = _by_side(cells)
    a, b = found.get((network, before)), found.get((network, after))
    if not a or not b or set(a) != set(b):
        raise UsageError(
            f"{network} trained on {before.train} and {after.train} was not evaluated on {before.evaluate} and "
            f"{after.evaluate} with the same seeds; drops are of pairs"
        )
    return [(a[seed], b[seed]) for seed in sorted(a)]


def _spread(ones: Iterable[Evaluation], metric: Metric) -> dict[str, Any] | None:
    values = [value for one in ones if (value := metric(one)) is not None]
    return spread(values).to_dict() if values else None
