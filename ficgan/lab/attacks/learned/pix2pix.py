"""Pix2Pix as an attacker: a U-Net whose guesses must pass for clear faces, patch by patch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ficgan.errors import UsageError
from ficgan.lab.attacks.base import REVERSERS, ReverserTraits
from ficgan.lab.attacks.learned.base import Learned
from ficgan.registry import param

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from ficgan.lab.attacks.learned.trainer import Learner

__all__ = ["Pix2Pix"]


@REVERSERS.add
@dataclass(frozen=True)
class Pix2Pix(Learned):
    """Conditional GAN from anonymised to clear faces: adversarial loss of a PatchGAN plus λ·L1.

    The paper's settings are the defaults: one image in a step, all epochs, the last one kept. Dropout is the noise, in
    use as in training, so that candidates differ; at 0 there is one guess. Convolutions with skips see every place
    through a bottleneck, but a change of places of the whole image is beyond it (Fantômas, E2.2).

    Source:
        Isola et al., Image-to-Image Translation with Conditional Adversarial Networks (CVPR 2017), §3 and §6.1;
        Fantômas, §6.2.2; Hao et al. 2020, who used it as an attacker first.
    """

    name: ClassVar[str] = "pix2pix"
    traits: ClassVar[ReverserTraits] = ReverserTraits(
        title="Pix2Pix", source="Isola et al. 2017; Fantômas, §6.2.2", knowledge=frozenset({"pairs"}), several=True
    )
    deterministic: ClassVar[bool] = False

    batch: int = param(1, "pairs in a step", low=1)
    lr: float = param(2e-4, "learning rate of the first half; it then falls to 0", low=0)
    held: float = param(
        0.0, "share of the people held out to keep the epoch of the least L1; 0: the last", low=0, high=0.5
    )
    patience: int = param(0, "epochs without a better loss on the people held out before it ends; 0: never", low=0)
    base: int = param(64, "filters of the first layer; up to eight times as many below", low=1)
    weight: float = param(100.0, "λ of the L1 loss", low=0)
    dropout: float = param(0.5, "share dropped in the three deepest layers up", low=0, high=0.9)
    norm: str = param("instance", "normalisation: of one image, or over the batch", choices=("instance", "batch"))
    halvings: int = param(
        0, "halvings in the discriminator: 1, 2, 3 judge 16, 34, 70 pixels; 0: by size", low=0, high=3
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size & (self.size - 1):
            raise UsageError(f"{self.name}: size is {self.size}; give a power of 2")

    def network(self) -> nn.Module:
        from ficgan.lab.attacks.learned.pix2pix_networks import UNet

        return UNet(self.size, self.base, self.norm, self.dropout)

    def learner(self, network: nn.Module, device: torch.device) -> Learner:
        from ficgan.lab.attacks.learned.pix2pix_networks import PatchGAN, Pix2PixLearner, halvings_for

        judge = PatchGAN(self.base, self.halvings or halvings_for(self.size), self.norm).to(device)
        return Pix2PixLearner(network, judge, self.lr, self.weight)

    def restore(self, network: nn.Module, seen: Tensor, seeds: list[int]) -> Tensor:
        guesses: Tensor = network(seen, seeds if self.dropout else None)
        return guesses
