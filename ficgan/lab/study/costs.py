"""What obfuscation costs: paired drops, in which categories they are, and where networks look on what is lost."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from torch import Tensor, nn

from ficgan.lab.study.scenes import Image, Scenes, Variant, central_view, covered_share
from ficgan.lab.study.training import (
    METRICS,
    Cell,
    Evaluation,
    Row,
    Study,
    load_weights,
    make_network,
    spread,
    to_input,
)

PUBLISHED: Row = yaml.safe_load(files("ficgan.lab.study").joinpath("published.yaml").read_text("utf-8"))
# Least shares of the five groups of categories in Figures 3 and 4. The text names 0 to 1 %, 4 % and 8 % of Figure 3.
EDGES = (0.0, 0.01, 0.02, 0.04, 0.08)


# The sides of a comparison: trained on one variant, evaluated on one.
Side = tuple[str, str]
CLEAR: Side = ("original", "original")
BLURRED: Side = ("blurred", "blurred")


def grid_rows(cells: Sequence[Cell]) -> list[Row]:
    """A row for each network, training and evaluation variant: each metric with its standard error over the seeds.

    "drop" is what was lost against training and evaluation on original images, paired by seed, where these are there.
    """
    found: dict[tuple[str, Side], dict[int, Evaluation]] = {}
    for cell in cells:
        for variant, judged in cell.evaluations.items():
            found.setdefault((cell.network, (cell.variant, variant)), {})[cell.seed] = judged
    rows = []
    for (network, side), some in found.items():
        row: Row = {"network": network, "train": side[0], "evaluate": side[1], "drop": {}}
        base = found.get((network, CLEAR)) if side != CLEAR else None
        for name in METRICS:
            known = {seed: float(np.nanmean(judged[name])) for seed, judged in sorted(some.items()) if name in judged}
            row[name] = spread([*known.values()]) if known else None
            if base and known:
                row["drop"][name] = spread([float(np.nanmean(base[seed][name])) - mean for seed, mean in known.items()])
        rows.append(row)
    return rows


def by_category(cells: Sequence[Cell], judged: Scenes) -> Row:
    """What blurring costs each category, mean over the networks; empty where nothing was blurred or left original.

    Returns:
        "correlations" of a category's drop with the "area" that faces cover of its images and with what they cover of
        its "object", "groups" of categories by these (Figures 3 and 4), "pairs" of categories (Table 4), and all.
    """
    found: Row = {"correlations": {}, "groups": {}, "pairs": [], "categories": []}
    clear, blurred = (category_scores(cells, side, judged) for side in (CLEAR, BLURRED))
    if not (clear and blurred):
        return found
    lack = {metric: (clear[metric] - blurred[metric]).mean(0) for metric in clear}
    shares = {name: by_label(some, judged) for name, some in measure_areas(judged).items()}
    for name, share in shares.items():
        found["correlations"][name] = {metric: correlation(share, lack[metric]) for metric in lack}
        found["groups"][name] = area_groups(share, lack)

    def row(label: int) -> Row:
        known = [metric for metric, some in clear.items() if np.isfinite(some[:, label]).all()]
        figures = {metric: [spread(side[metric][:, label]) for side in (clear, blurred)] for metric in known}
        covered = {name: float(share[label]) for name, share in shares.items() if np.isfinite(share[label])}
        return {"category": judged.classes[label], **covered, **figures}

    found["pairs"] = [row(judged.classes.index(name)) for name in PUBLISHED["pairs"] if name in judged.classes]
    return found | {"categories": [row(label) for label in np.unique(judged.labels).tolist()]}


def measure_areas(scenes: Scenes) -> dict[str, NDArray[np.float64]]:
    """Shares [N] of the image's "area", and of its "object" boxes' (mean; NaN: unknown) that face boxes cover."""
    area, objects = np.zeros(len(scenes)), np.full(len(scenes), np.nan)
    for row, scene in enumerate(scenes.items):
        if len(scene.boxes):
            height, width = scene.load().shape[:2]
            area[row] = covered_share(scene.boxes, (0, 0, width, height))
        if scene.objects is not None and len(scene.objects):
            objects[row] = float(np.mean([covered_share(scene.boxes, box) for box in scene.objects]))
    return {"area": area} | ({"object": objects} if np.isfinite(objects).any() else {})


# -- categories --------------------------------------------------------------------------------------------------------


def by_label(values: NDArray[Any], scenes: Scenes) -> NDArray[np.float64]:
    """Mean of values [N] over the images of each category [C], without those that are NaN; NaN where there is none."""
    known = np.isfinite(values.astype(float))
    labels, count = scenes.labels[known], len(scenes.classes)
    with np.errstate(invalid="ignore"):
        return np.bincount(labels, values[known], count) / np.bincount(labels, minlength=count)


def category_scores(cells: Sequence[Cell], side: Side, scenes: Scenes) -> dict[str, NDArray[np.float64]]:
    """By metric, what each category scored with each seed [S,C], mean over the networks (section 4)."""
    train, evaluate = side
    mine = [(cell.seed, cell.evaluations.get(evaluate, {})) for cell in cells if cell.variant == train]
    out = {}
    for metric in METRICS:
        found: dict[int, list[NDArray[np.float64]]] = {}
        for seed, judged in mine:
            if metric in judged:
                values = judged[metric] if metric == "ap" else by_label(judged[metric], scenes)
                found.setdefault(seed, []).append(values)
        if found:
            out[metric] = np.array([np.mean(found[seed], 0) for seed in sorted(found)])
    return out


def correlation(shares: NDArray[np.float64], drop: NDArray[np.float64]) -> Row | None:
    """Pearson's r of shares and drops of categories [C] and its "p"; None where one does not vary but by rounding."""
    from scipy.stats import pearsonr

    known = np.isfinite(shares) & np.isfinite(drop)
    x, y = shares[known], drop[known]
    if len(x) < 2 or any(np.ptp(v) <= 1e-12 * max(1.0, float(np.abs(v).max())) for v in (x, y)):
        return None
    found = pearsonr(x, y)
    return {"r": float(found.statistic), "p": float(found.pvalue), "n": len(x)}


def area_groups(shares: NDArray[np.float64], drop: dict[str, NDArray[np.float64]]) -> list[Row]:
    """A row for each group of categories of `EDGES`: "from", "to" of its shares, "categories", mean drops (or None)."""
    rows = []
    for low, high in pairwise((*EDGES, 1.0)):
        mine = (shares >= low) & ((shares < high) | (high == 1.0))
        means = {metric: values[mine & np.isfinite(values)] for metric, values in drop.items()}
        row = {metric: float(some.mean()) if len(some) else None for metric, some in means.items()}
        rows.append({"from": low, "to": high, "categories": int(mine.sum()), **row})
    return rows


# -- where a network looks ---------------------------------------------------------------------------------------------

_SIDES: tuple[Variant, ...] = ("original", "blurred")


class Gaze(NamedTuple):
    """What a network saw: the picture, where it looked for the right class [h,w] in 0…1, and what it called it."""

    seen: Image
    heat: NDArray[np.float32]
    called: str


def grad_cam(network: nn.Module, images: Tensor, labels: Tensor) -> Tensor | None:
    """Where a network looks for a class: Grad-CAM's weighted map (eqs. 1 and 2) [N,h,w] in 0…1, None without positions.

    Of images [N,3,H,W], normalised, and the class of each [N]; the map is the last one that a module gives.
    """
    maps = list[Tensor]()

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.ndim == 4 and min(output.shape[2:]) > 1:
            maps[:] = [output]

    hooks = [module.register_forward_hook(keep) for module in network.modules()]
    try:
        scores = network.eval()(images)
    finally:
        for hook in hooks:
            hook.remove()
    if not maps:
        return None
    (slopes,) = torch.autograd.grad(scores.gather(1, labels[:, None]).sum(), maps[0])
    heat = (slopes.mean((2, 3), keepdim=True) * maps[0]).sum(1).relu().detach()
    return heat / heat.amax((1, 2), keepdim=True).clamp_min(torch.finfo(heat.dtype).tiny)


def lost_images(cells: Sequence[Cell], study: Study) -> list[tuple[str, Gaze, Gaze]]:
    """Images with a face that the last network gets right in the original and wrong when trained on blurred ones."""
    config, scenes = study.config, study.judged
    mine = {c.variant: c for c in cells if (c.network, c.seed) == (config.networks[-1], config.seeds[0])}
    if not {*_SIDES} <= mine.keys() & {*config.evaluate_on} or not config.pictures:
        return []
    clear, blurred = (mine[variant].evaluations[variant] for variant in _SIDES)
    metric = "top5" if "top5" in clear else "top1"
    drop = by_label(clear[metric].astype(float) - blurred[metric], scenes)
    wanted = clear["top1"] & ~blurred["top1"] & (scenes.counts > 0)
    rows = list[int]()
    for label in np.argsort(-np.nan_to_num(drop, nan=-1.0), kind="stable"):
        rows += np.flatnonzero(wanted & (scenes.labels == label))[:2].tolist()
    rows = rows[: config.pictures]
    looks = [_looks(mine[variant], variant, rows, study) for variant in _SIDES] if rows else []
    titles = [scenes.classes[scenes.labels[row]] for row in rows]
    return list(zip(titles, *looks, strict=True)) if rows and all(looks) else []


def _looks(cell: Cell, variant: Variant, rows: Sequence[int], study: Study) -> list[Gaze]:
    config, scenes = study.config, study.judged
    network = make_network(cell.network, len(scenes.classes), seed=0)
    load_weights(network, cell.path)
    seen = np.stack([central_view(study.pictures[variant][row], config.crop, config.resize) for row in rows])
    labels = torch.from_numpy(scenes.labels[list(rows)]).to(study.device)
    heat = grad_cam(network.to(study.device), to_input(torch.from_numpy(seen).to(study.device)), labels)
    if heat is None:
        return []
    called = [scenes.classes[cell.evaluations[variant]["guess"][row]] for row in rows]
    return [Gaze(*one) for one in zip(seen, heat.cpu().numpy(), called, strict=True)]
