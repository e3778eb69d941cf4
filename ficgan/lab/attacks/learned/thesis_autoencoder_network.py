"""Layers and loss of the point-cloud thesis' auto-encoder."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ficgan.lab.attacks.learned.trainer import AdamLearner

__all__ = ["SquaredErrorLearner", "ThesisAutoEncoderNetwork"]

_MIDDLE = 8
"""Channels of the compressed representation."""


class ThesisAutoEncoderNetwork(nn.Module):
    """[B,3,S,S] in [0, 1] → the same, S a multiple of 8; the middle is [B,8,S/8,S/8].

    Args:
        width: channels of the first layer.

    Source:
        Point-cloud thesis, §4.3.5.2.
    """

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            nn.Conv2d(before, after, 3, padding=1)
            for before, after in ((3, width), (width, width // 2), (width // 2, _MIDDLE))
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(before, after, 2, stride=2)
            for before, after in ((_MIDDLE, width // 2), (width // 2, width), (width, 3))
        )

    def encode(self, x: Tensor) -> Tensor:
        """The compressed representation."""
        for layer in self.down:
            x = F.max_pool2d(F.relu(layer(x)), 2)
        return x

    def forward(self, x: Tensor) -> Tensor:
        x = self.encode(x)
        for layer in self.up[:-1]:
            x = F.relu(layer(x))
        return torch.sigmoid(self.up[-1](x))


class SquaredErrorLearner(AdamLearner):
    """Mean squared error under Adam at a constant rate.

    Source:
        Point-cloud thesis, §4.3.5.3.
    """

    def loss(self, seen: Tensor, clear: Tensor) -> Tensor:
        return F.mse_loss(self.network(seen), clear)
