"""FICGAN: encoder, mapping network and generator as one module."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from ficgan.config import ModelConfig
from ficgan.models.encoder import Encoder
from ficgan.models.generator import Generator
from ficgan.models.mapping import MappingNetwork

__all__ = ["FICGAN", "Codes"]


class Codes(NamedTuple):
    """What the encoder reads from an image."""

    z_id: Tensor
    """Identity code [B,id_dim]."""
    z_non: Tensor
    """Spatial code [B,C,4,4]: pose, background, light."""


class FICGAN(nn.Module):
    """The controllable de-identification model.

    Args:
        config: sizes.

    Source: FICGAN, "Overall Framework", Figure 2.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.mapping = MappingNetwork(config)
        self.generator = Generator(config)

    @property
    def num_layers(self) -> int:
        """Number of style layers L."""
        return self.generator.num_layers

    @property
    def resolution(self) -> int:
        """Side R of the images, pixels."""
        return self.config.resolution

    def encode(self, x: Tensor) -> Codes:
        """Identity and spatial codes of images [B,3,R,R] in [−1, 1]."""
        return Codes(*self.encoder(x))

    def map(self, z_id: Tensor) -> Tensor:
        """Intermediate latent w [B,w_dim] of identity codes [B,id_dim]."""
        return self.mapping(z_id)

    def generate(self, w: Tensor, z_non: Tensor) -> Tensor:
        """Images [B,3,R,R] in about [−1, 1] from w [B,w_dim] or [B,L,w_dim] and z_non [B,C,4,4]."""
        return self.generator(w, z_non)

    def forward(self, x: Tensor) -> Tensor:
        """Reconstruction G(E(x)) of images [B,3,R,R]."""
        codes = self.encode(x)
        return self.generate(self.map(codes.z_id), codes.z_non)
