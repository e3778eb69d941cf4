"""Discriminator D: residual, with the standard deviation over the batch as an extra channel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ficgan.config import DiscriminatorConfig
from ficgan.models.layers import Conv2d, DownBlock, Linear

__all__ = ["Discriminator", "minibatch_std"]


def minibatch_std(x: Tensor, group: int) -> Tensor:
    """Append to features [B,C,H,W] a channel: their standard deviation over groups of images, one mean for each group.

    `group` images; the largest divisor of B that is not above it is used.

    Source: Karras et al. 2018, section 3.
    """
    batch, _, height, width = x.shape
    size = next(size for size in range(min(group, batch), 0, -1) if batch % size == 0)
    grouped = x.float().reshape(size, batch // size, -1)  # images i, i + B/size, … make a group
    spread = (grouped.var(0, unbiased=False) + 1e-8).sqrt().mean(1)  # [B/size]
    channel = spread.repeat(size).to(x.dtype)[:, None, None, None].expand(-1, 1, height, width)
    return torch.cat([x, channel], 1)


class Discriminator(nn.Module):
    """Residual StyleGAN2 discriminator for images of side R."""

    def __init__(self, config: DiscriminatorConfig, resolution: int) -> None:
        super().__init__()
        self.group = config.minibatch_std_group
        blocks = []
        self.from_rgb = Conv2d(3, config.channels(resolution), 1)
        while resolution > 4:
            blocks.append(DownBlock(config.channels(resolution), config.channels(resolution // 2)))
            resolution //= 2
        channels = config.channels(4)
        self.blocks = nn.ModuleList(blocks)
        self.conv = Conv2d(channels + (1 if self.group else 0), channels, 3)
        self.hidden = Linear(channels * 16, channels, activation="lrelu")
        self.head = Linear(channels, 1)

    def forward(self, x: Tensor, *, features: bool = False, parts: int = 1) -> Tensor | tuple[Tensor, list[Tensor]]:
        """Score images [B,3,R,R] in [−1, 1].

        Args:
            features: also return the output of each down-block, for feature matching.
            parts: equal parts of the batch (real, reconstructed, mixed) whose deviations are taken apart: a group that
                holds several kinds would hide the collapse of one.

        Returns:
            Logits [B], higher for real; with `features` a pair of logits and maps.
        """
        maps = []
        x = self.from_rgb(x)
        for block in self.blocks:
            x = block(x)
            maps.append(x)
        if self.group:
            x = torch.cat([minibatch_std(part, self.group) for part in x.chunk(parts)])
        logits = self.head(self.hidden(self.conv(x).flatten(1))).squeeze(1)
        return (logits, maps) if features else logits
