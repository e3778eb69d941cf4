"""Grad-CAM (Selvaraju et al. 2017): where a classifier looks; and the panel of Figure 5."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import FicganError, UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["grad_cam", "panel"]


def grad_cam(network: nn.Module, images: Tensor, classes: Sequence[int] | None = None, layer: str = "") -> Tensor:
    """ReLU(Σ_k α_k·A_k) with α_k the mean gradient of the class's output with respect to feature map A_k.

    Args:
        network: a classifier.
        images: [B,3,H,W], normalised.
        classes: B classes to explain; None: the one with the highest output.
        layer: name of the module whose output is A; empty: the last one that has positions left.

    Returns:
        [B,h,w] float at the layer's resolution, not normalised, without gradient.

    Raises:
        UsageError: no such layer, or it has no positions.

    Source: Eq. 1 and 2.
    """
    import torch

    kept: list[Tensor] = []

    def keep(_: Any, __: Any, out: Any) -> None:
        if isinstance(out, torch.Tensor) and out.ndim == 4 and out.shape[2] * out.shape[3] > 1 and out.requires_grad:
            kept[:] = [out]

    modules = dict(network.named_modules())
    if layer and layer not in modules:
        raise UsageError(f"the network has no layer {layer!r}; it ends in {', '.join(list(modules)[-3:])}")
    hooked = [modules[layer]] if layer else [module for name, module in modules.items() if name]
    hooks = [module.register_forward_hook(keep) for module in hooked]
    try:
        with torch.enable_grad():
            scores = network.eval()(images.detach().requires_grad_(True))
    finally:
        for hook in hooks:
            hook.remove()
    if not kept:
        raise UsageError(f"{layer or 'the network'} has no feature map with positions; name a convolutional layer")
    chosen = scores.argmax(1) if classes is None else torch.as_tensor(classes, device=scores.device)
    own = scores.gather(1, chosen[:, None]).sum()  # images do not see each other, so one sum gives each its gradient
    (gradient,) = torch.autograd.grad(own, kept[0])
    alpha = gradient.mean((2, 3), keepdim=True)
    return (alpha * kept[0]).sum(1).relu().detach()


def panel(
    columns: Sequence[tuple[str, nn.Module, Sequence[NDArray[np.uint8]]]],
    path: Path,
    *,
    classes: Sequence[int] | None = None,
    class_names: Sequence[str] = (),
) -> None:
    """A PNG: a row for each image, a pair of columns (picture, picture with its map) for each variant.

    Args:
        columns: (title, network, pictures [S,S,3] uint8 RGB of what the network sees), the same images in each.
        path: file to write.
        classes: what to explain, one for each image; None: what each network takes the picture for.
        class_names: to print the network's answer with; empty: numbers.

    Raises:
        FicganError: matplotlib is not there.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise FicganError("panels need matplotlib; install ficgan[eval]") from None
    import torch

    from ficgan.lab.study.networks import to_input

    rows = len(columns[0][2])
    figure = Figure(figsize=(3.2 * len(columns), 1.75 * rows + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, 2 * len(columns), squeeze=False)
    for place, (title, network, pictures) in enumerate(columns):
        inputs = to_input(torch.from_numpy(np.stack(pictures)))
        maps = grad_cam(network, inputs, classes)
        heat = torch.nn.functional.interpolate(maps[:, None], inputs.shape[2:], mode="bilinear", align_corners=False)
        with torch.inference_mode():
            chances = network(inputs).softmax(1)
        for row in range(rows):
            plain, mixed = axes[row, 2 * place], axes[row, 2 * place + 1]
            one = heat[row, 0].numpy()
            plain.imshow(pictures[row])
            mixed.imshow(pictures[row])
            mixed.imshow(one / max(float(one.max()), 1e-12), cmap="jet", alpha=0.45, vmin=0, vmax=1)
            best = int(chances[row].argmax())
            said = class_names[best] if class_names else str(best)
            mixed.set_title(f"{said} {float(chances[row, best]):.2f}", fontsize=7)
            if row == 0:
                plain.set_title(title, fontsize=8)
            for axis in (plain, mixed):
                axis.set_axis_off()
    figure.savefig(path, dpi=110)
