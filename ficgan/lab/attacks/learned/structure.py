"""Structural similarity that gradients go through."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

__all__ = ["ssim"]

_C1, _C2 = 0.01**2, 0.03**2


def ssim(x: Tensor, y: Tensor, window: int = 11, sigma: float = 1.5) -> Tensor:
    """Mean structural similarity of two batches, over channels and over all whole windows.

    Args:
        x, y: [B,C,S,S] in [0, 1].
        window: side of the Gaussian window; odd; made smaller where the images are.
        sigma: of the window, pixels.

    Returns:
        [B] in −1 … 1.

    Source:
        Wang et al. 2004, eq. 13.
    """
    x, y = x.float(), y.float()
    rows = _windows(x.shape[-1], window, sigma).to(x.device)
    # A product with a band of weights: single-channel convolutions are an order of magnitude slower on a CPU.
    means = torch.matmul(torch.matmul(rows, torch.stack([x, y, x * x, y * y, x * y])), rows.T)
    mx, my, mxx, myy, mxy = means
    vx, vy, vxy = mxx - mx * mx, myy - my * my, mxy - mx * my
    top = (2 * mx * my + _C1) * (2 * vxy + _C2)
    return (top / ((mx * mx + my * my + _C1) * (vx + vy + _C2))).mean((1, 2, 3))


@functools.lru_cache(maxsize=8)
def _windows(side: int, window: int, sigma: float) -> Tensor:
    """[S − window + 1, S]: each row the weights of one whole window."""
    window = min(window, side - 1 + side % 2)
    places = torch.arange(window, dtype=torch.float32) - window // 2
    weights = torch.exp(-(places**2) / (2 * sigma**2))
    out = torch.zeros(side - window + 1, side)
    for start in range(len(out)):
        out[start, start : start + window] = weights / weights.sum()
    return out
