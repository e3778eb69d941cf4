"""Mapping network: identity code z_id → intermediate latent w, where k-same codes are averaged."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from ficgan.config import ModelConfig
from ficgan.models.layers import Linear, normalise_rms

__all__ = ["MappingNetwork"]


class MappingNetwork(nn.Module):
    """MLP on the normalised identity code, with a running mean of its outputs.

    Args:
        config: sizes, depth and learning-rate multiplier.

    Source: FICGAN, "Generator": "a series of multi-layer perceptrons".
    """

    w_mean: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        sizes = [config.id_dim] + [config.w_dim] * config.mapping_layers
        self.layers = nn.Sequential(
            *(
                Linear(a, b, activation="lrelu", lr_multiplier=config.mapping_lr_multiplier)
                for a, b in itertools.pairwise(sizes)
            )
        )
        self.register_buffer("w_mean", torch.zeros(config.w_dim))

    def forward(self, z_id: Tensor) -> Tensor:  # [B,id_dim] → [B,w_dim]
        return self.layers(normalise_rms(z_id))

    @torch.no_grad()
    def track_mean(self, w: Tensor, momentum: float = 0.995) -> None:
        """Move the running mean towards the mean of a batch of w [B,w_dim]."""
        self.w_mean.lerp_(w.detach().float().mean(0), 1 - momentum)
