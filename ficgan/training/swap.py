"""Which identity each image of a batch receives."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ficgan.config import SwapConfig

__all__ = ["Swap", "mixed_code", "plan_swap"]


class Swap(NamedTuple):
    """Plan for one batch of B images; all tensors on the CPU."""

    target: Tensor
    """int64 [B]: image whose identity is taken; the batch rolled, so never the image itself."""
    to_mean: Tensor
    """bool [B]: towards a mean of codes instead of the target."""
    members: Tensor
    """float [B,B]: row b holds the weights of the other codes in its mean (rows sum to 1, the diagonal is 0)."""
    pull: Tensor
    """float [B]: share of the way from the running mean of all codes to that small mean."""
    kept: Tensor
    """int64 [B]: i, the number of layers that keep the source's code (0 but for crossovers)."""


def plan_swap(batch: int, num_layers: int, config: SwapConfig, rng: torch.Generator) -> Swap:
    """Draw a plan.

    Args:
        batch: images B ≥ 2.
        num_layers: L.
        config: shares of means and crossovers.
        rng: CPU generator.

    Returns:
        The plan.
    """
    roll = int(torch.randint(1, batch, (), generator=rng))
    target = torch.arange(batch).roll(roll)
    to_mean = torch.rand(batch, generator=rng) < config.mean_fraction
    low, high = (min(size, batch - 1) for size in config.mean_of)
    sizes = torch.randint(low, high + 1, (batch, 1), generator=rng)
    # Nobody is in the mean that replaces them: the diagonal ranks last, and at most B − 1 are taken.
    ranks = torch.rand(batch, batch, generator=rng).fill_diagonal_(2).argsort(1).argsort(1)
    members = (ranks < sizes) / sizes
    pull = torch.rand(batch, generator=rng)
    crossed = torch.rand(batch, generator=rng) < config.crossover
    kept = torch.randint(1, num_layers, (batch,), generator=rng) * crossed
    return Swap(target, to_mean, members, pull, kept)


def mixed_code(w: Tensor, w_mean: Tensor, plan: Swap, num_layers: int) -> Tensor:
    """Codes of the mixed images.

    Args:
        w: codes of the batch [B,D].
        w_mean: running mean of all codes [D].
        plan: of `plan_swap`.
        num_layers: L.

    Returns:
        [B,D], or [B,L,D] when some layers keep the source's code.
    """
    device, dtype = w.device, w.dtype
    target = w[plan.target.to(device)]
    small_mean = plan.members.to(device, dtype) @ w
    centre = w_mean.to(dtype)
    mean = centre + plan.pull.to(device, dtype)[:, None] * (small_mean - centre)
    mixed = torch.where(plan.to_mean.to(device)[:, None], mean, target)
    if not bool(plan.kept.any()):
        return mixed
    keeps = torch.arange(num_layers)[None] < plan.kept[:, None]  # [B,L]
    return torch.where(keeps.to(device)[:, :, None], w[:, None], mixed[:, None])
