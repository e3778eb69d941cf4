"""Encoder E: image → identity code z_id and spatial code z_non."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ficgan.config import ModelConfig
from ficgan.models.layers import Conv2d, DownBlock, Linear, normalise_rms

__all__ = ["Encoder"]


class Encoder(nn.Module):
    """Residual trunk from R×R to 4×4; the spatial code is read from the trunk, the identity code from a pooled branch.

    Pooling takes the positions out of the identity code, so that pose can only go through the spatial code.

    Args:
        config: sizes.

    Source: FICGAN, "Encoder"; the exact shape is not in the paper, the nearest is the Swapping Autoencoder's.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        blocks: list[nn.Module] = []
        resolution = config.resolution
        while resolution > 4:
            blocks.append(DownBlock(config.channels(resolution), config.channels(resolution // 2)))
            resolution //= 2
        channels = config.channels(4)
        self.from_rgb = Conv2d(3, config.channels(config.resolution), 1)
        self.trunk = nn.Sequential(*blocks)
        self.identity_conv = Conv2d(channels, 2 * channels, 3)
        self.identity_head = Linear(2 * channels, config.id_dim)
        if config.spatial_code == "encoded":
            self.spatial_conv: nn.Module | None = Conv2d(channels, channels, 3)
            self.spatial_head: nn.Module | None = Conv2d(channels, config.spatial_channels, 1, activation="linear")
            self.register_parameter("spatial_constant", None)
        else:
            self.spatial_conv = self.spatial_head = None
            self.spatial_constant = nn.Parameter(torch.randn(1, config.spatial_channels, 4, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Encode images.

        Args:
            x: images [B,3,R,R] in [−1, 1].

        Returns:
            z_id [B,id_dim] and z_non [B,C,4,4].
        """
        trunk = self.trunk(self.from_rgb(x))  # [B,C4,4,4]
        z_id = self.identity_head(self.identity_conv(trunk).mean((2, 3)))
        if self.spatial_conv is None or self.spatial_head is None:
            assert self.spatial_constant is not None
            z_non = self.spatial_constant.to(trunk.dtype).expand(x.shape[0], -1, -1, -1)
        else:
            z_non = self.spatial_head(self.spatial_conv(trunk))
        if self.config.spatial_norm:
            z_non = normalise_rms(z_non)
        return z_id, z_non
