"""Fantômas' own de-anonymiser: a small under-complete auto-encoder with one linear layer that sees the whole image."""

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

__all__ = ["AutoEncoder"]


@REVERSERS.add
@dataclass(frozen=True)
class AutoEncoder(Learned):
    """Two convolutions down, one linear layer over everything, two up, trained for structural similarity.

    The linear layer is what can undo a change of places; without it (`linear=none`) only what happens between
    neighbours is learnt. It has (features·size²/16)² weights: 5.3 million at 64 pixels, 50 at 112, 796.6 at 224 (3 GiB,
    and 12 GiB while Adam trains it). `linear=factorised` puts a bottleneck of `rank` in its place.

    Source:
        Fantômas, §5 and figure 3; appendix B for the loss and the schedule; layers as in its released framework.
    """

    name: ClassVar[str] = "autoencoder"
    traits: ClassVar[ReverserTraits] = ReverserTraits(
        title="Auto-encoder (Fantômas)", source="Fantômas, §5", knowledge=frozenset({"pairs"})
    )

    features: int = param(9, "channels of the convolutions", low=1)
    linear: str = param("full", "the linear layer", choices=("full", "factorised", "none"))
    rank: int = param(1024, "width of the factorised layer's bottleneck", low=1)
    plateau: int = param(5, "epochs in a row without a better loss that are borne; at one more, rate × 0.75", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size % 4:
            raise UsageError(f"{self.name}: size is {self.size}; give a multiple of 4")

    def network(self) -> nn.Module:
        from ficgan.lab.attacks.learned.autoencoder_network import AutoEncoderNetwork

        return AutoEncoderNetwork(self.size, self.features, self.linear, self.rank)

    def learner(self, network: nn.Module, device: torch.device) -> Learner:
        from ficgan.lab.attacks.learned.autoencoder_network import SsimLearner

        return SsimLearner(network, self.lr, self.plateau)

    def restore(self, network: nn.Module, seen: Tensor, seeds: list[int]) -> Tensor:
        guess: Tensor = network(seen)
        return guess
