"""Where a network looks: Grad-CAM (Selvaraju et al. 2017) on images that blurring costs (Figure 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ficgan.lab.study.costs import by_label
from ficgan.lab.study.scenes import Image, Variant, central_view
from ficgan.lab.study.training import Cell, StudyGrid, cell_weights, load_weights, make_network, to_input

_SIDES: tuple[Variant, ...] = ("original", "blurred")


class Gaze(NamedTuple):
    """What a network saw: the picture, where it looked for the right class [h,w] in 0…1, and what it called it."""

    seen: Image
    heat: NDArray[np.float32]
    called: str


def grad_cam(network: nn.Module, images: Tensor, labels: Tensor) -> Tensor | None:
    """Where a network looks for a class: [N,h,w] in 0…1, in the last map of positions that one of its modules gives.

    Args:
        images: float [N,3,H,W], normalised.
        labels: [N] the class of each.
    Returns:
        The weighted map of Grad-CAM's eqs. 1 and 2, its maximum 1 unless it is all 0; None for a network without maps.
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


def lost_images(cells: Sequence[Cell], grid: StudyGrid) -> list[tuple[str, Gaze, Gaze]]:
    """Images with a face that the last network gets right in the original and wrong when trained on blurred ones.

    Of the categories that lose most, two images of each. Each comes with its class, and what either network saw.
    """
    config, scenes = grid.config, grid.judged
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
    looks = [_looks(mine[variant], variant, rows, grid) for variant in _SIDES] if rows else []
    titles = [scenes.classes[scenes.labels[row]] for row in rows]
    return list(zip(titles, *looks, strict=True)) if rows and all(looks) else []


def _looks(cell: Cell, variant: Variant, rows: Sequence[int], grid: StudyGrid) -> list[Gaze]:
    config, scenes = grid.config, grid.judged
    network = make_network(cell.network, len(scenes.classes), seed=0)
    load_weights(network, cell_weights(cell.path), where=str(cell.path))
    seen = np.stack([central_view(grid.pictures[variant][row], config.crop, config.resize) for row in rows])
    labels = torch.from_numpy(scenes.labels[list(rows)]).to(grid.device)
    heat = grad_cam(network.to(grid.device), to_input(torch.from_numpy(seen).to(grid.device)), labels)
    if heat is None:
        return []
    called = [scenes.classes[cell.evaluations[variant]["guess"][row]] for row in rows]
    return [Gaze(*one) for one in zip(seen, heat.cpu().numpy(), called, strict=True)]
