"""Exponential moving average of the model's weights, with its half-life in thousands of images."""

from __future__ import annotations

import copy

import torch

from ficgan.config import EmaConfig
from ficgan.models import FICGAN, FrameFICGAN

__all__ = ["Ema", "decay"]


def decay(config: EmaConfig, batch: int, images: int) -> float:
    """Share of the old average that a step keeps.

    Args:
        config: half-life and ramp.
        batch: images of the step.
        images: seen so far.

    Returns:
        ½^(batch / half-life), the half-life being at most `ramp` × the images seen.
    """
    half_life = config.half_life_kimg * 1000
    if config.ramp > 0:
        half_life = min(half_life, images * config.ramp)
    return 0.5 ** (batch / max(half_life, 1e-8))


class Ema:
    """Averaged copy of a model, in evaluation mode."""

    def __init__(self, model: FICGAN | FrameFICGAN, config: EmaConfig) -> None:
        self.config = config
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model: FICGAN | FrameFICGAN, batch: int, images: int) -> None:
        """Fold in the weights after a step of `batch` images, `images` seen so far; buffers are copied."""
        keep = decay(self.config, batch, images)
        averaged, current = list(self.model.parameters()), [p.detach() for p in model.parameters()]
        for own, other in zip(averaged, current, strict=True):
            own.lerp_(other, 1 - keep)
        for buffer, source in zip(self.model.buffers(), model.buffers(), strict=True):
            buffer.copy_(source)
