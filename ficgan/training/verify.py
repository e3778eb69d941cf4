"""V for training: from a file, or untrained for tests of the software."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ficgan.config import Config
from ficgan.faces.alignment import ARCFACE_POINTS, Alignment
from ficgan.verification import AlignedInput, VAugment, Verifier, load_verifier

__all__ = ["make_verify"]


def make_verify(config: Config, alignment: Alignment, device: torch.device) -> Verifier:
    """The frozen verification network of a configuration.

    Args:
        config: `verifier.spec` and `verifier.augment`; "untrained" makes a small network with random weights, which
            tests the software and disentangles nothing.
        alignment: of the training crops.
        device: where V computes.

    Returns:
        V, on images of the configuration's resolution.
    """
    resolution = config.model.resolution
    augment = VAugment() if config.verifier.augment else None
    if config.verifier.spec != "untrained":
        return load_verifier(
            config.verifier.spec, alignment=alignment, resolution=resolution, augment=augment, device=str(device)
        )
    warnings.warn("verifier.spec=untrained: V has random weights; the model will not learn identity", stacklevel=2)
    size = 32
    points = (ARCFACE_POINTS + 0.5) * (size / 112) - 0.5
    aligned = AlignedInput(alignment, resolution, points, (size, size), augment)
    return Verifier(_Untrained(), aligned, mean=127.5, scale=128.0, name="untrained").to(device)


class _Untrained(nn.Module):
    """Three strided convolutions and a projection with fixed random weights: [B,3,32,32] → [B,64] and its maps."""

    def __init__(self) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(0)
        shapes = [(16, 3, 3, 3), (32, 16, 3, 3), (64, 32, 3, 3)]
        self.kernels = nn.ParameterList(
            nn.Parameter(torch.randn(shape, generator=rng) / (shape[1] * 9) ** 0.5) for shape in shapes
        )

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        maps = []
        for kernel in self.kernels:
            x = F.leaky_relu(F.conv2d(x, kernel, stride=2, padding=1), 0.2)
            maps.append(x)
        return x.mean((2, 3)), maps
