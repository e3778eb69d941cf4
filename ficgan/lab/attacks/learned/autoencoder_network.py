"""The auto-encoder's layers, its loss and its schedule."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ficgan.lab.attacks.learned.structure import ssim
from ficgan.lab.attacks.learned.trainer import AdamLearner

__all__ = ["AutoEncoderNetwork", "SsimLearner"]

_LESS = 0.75
"""By which the learning rate is multiplied on a plateau."""
_SCALE = 100.0


class AutoEncoderNetwork(nn.Module):
    """[B,3,S,S] in [0, 1] → the same.

    Args:
        size: S, a multiple of 4.
        features: channels.
        linear: "full", "factorised" or "none".
        rank: of the factorised layer.

    Source:
        Fantômas, figure 3.
    """

    def __init__(self, size: int, features: int = 9, linear: str = "full", rank: int = 1024) -> None:
        super().__init__()
        self.side, self.features = size // 4, features
        self.down1 = nn.Conv2d(3, features, 3, padding=1)
        self.down2 = nn.Conv2d(features, features, 3, padding=1)
        width = features * self.side**2
        self.linear: nn.Module | None = None
        if linear == "full":
            self.linear = nn.Linear(width, width)
        elif linear == "factorised":
            self.linear = nn.Sequential(
                nn.Linear(width, min(rank, width), bias=False), nn.Linear(min(rank, width), width)
            )
        self.up1 = nn.ConvTranspose2d(features, features, 2, stride=2)
        self.up2 = nn.ConvTranspose2d(features, features, 2, stride=2)
        self.out = nn.Conv2d(features, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.leaky_relu(self.down1(x)), 2)
        x = F.max_pool2d(F.leaky_relu(self.down2(x)), 2)
        if self.linear is not None:
            x = F.leaky_relu(self.linear(x.flatten(1))).view(-1, self.features, self.side, self.side)
        x = F.leaky_relu(self.up1(x))
        return torch.sigmoid(self.out(F.leaky_relu(self.up2(x))))


class SsimLearner(AdamLearner):
    """100·(1 − SSIM) under Adam, the rate lowered on plateaus.

    Source:
        Fantômas, appendix B.
    """

    def __init__(self, network: nn.Module, lr: float, plateau: int) -> None:
        super().__init__(network, lr)
        self.plateau = plateau

    def loss(self, seen: Tensor, clear: Tensor) -> Tensor:
        return _SCALE * (1 - ssim(self.network(seen), clear).mean())

    def after_epoch(self, factor: float, done: float, stale: int) -> float:
        return factor * _LESS if stale and stale % (self.plateau + 1) == 0 else factor
