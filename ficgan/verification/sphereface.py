"""SphereFace-20: the twenty-layer residual network of the angular-margin paper."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

# Where SphereFace's 112×96 (height × width) crops hold the five landmarks, pixels (x, y).
SPHEREFACE_POINTS: NDArray[np.float64] = np.array(
    [[30.2946, 51.6963], [65.5318, 51.5014], [48.0252, 71.7366], [33.5493, 92.3655], [62.7299, 92.2041]]
)
SPHEREFACE_POINTS.setflags(write=False)
SPHEREFACE_SIZE = (112, 96)


class ResidualUnit(nn.Module):
    """Two 3×3 convolutions with PReLU around an identity: [N,C,H,W] → [N,C,H,W]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.PReLU(channels),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.PReLU(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class SphereFace20(nn.Module):
    """Face embedding network of 20 convolutions: four stages, a stride-2 one and 1, 2, 4, 1 residual units each.

    Args:
        channels: of the four stages.
        units: residual units of the four stages.
        dimensions: D of the embedding.
    Source: Liu et al. 2017, SphereFace: Deep Hypersphere Embedding for Face Recognition, Table 2 (20-layer CNN).
    """

    def __init__(
        self,
        channels: tuple[int, ...] = (64, 128, 256, 512),
        units: tuple[int, ...] = (1, 2, 4, 1),
        dimensions: int = 512,
    ) -> None:
        super().__init__()
        self.channels, self.units, self.dimensions = tuple(channels), tuple(units), dimensions
        stages, width = [], 3
        for wide, count in zip(channels, units, strict=True):
            head = [nn.Conv2d(width, wide, 3, stride=2, padding=1), nn.PReLU(wide)]
            stages.append(nn.Sequential(*head, *(ResidualUnit(wide) for _ in range(count))))
            width = wide
        self.stages = nn.ModuleList(stages)
        height, breadth = (-(-side // 2 ** len(stages)) for side in SPHEREFACE_SIZE)
        self.embed = nn.Linear(width * height * breadth, dimensions)
        self._initialise()

    def _initialise(self) -> None:
        # As published: Gaussian .01 inside the residual units (they start near the identity), Xavier elsewhere.
        for name, module in self.named_modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                if ".body." in name:
                    nn.init.normal_(module.weight, std=0.01)
                else:
                    nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Embeddings and early feature maps.

        Args:
            x: [B, 3, 112, 96], RGB, (grey level − 127.5) / 128.
        Returns:
            float [B, D], not normalised, and the maps after the first three stages (strides 2, 4, 8).
        """
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return self.embed(x.flatten(1)), maps[:3]
