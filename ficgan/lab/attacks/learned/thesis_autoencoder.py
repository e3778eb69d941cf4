"""The point-cloud thesis' own de-anonymiser: a purely convolutional auto-encoder of projections."""

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

__all__ = ["ThesisAutoEncoder"]


@REVERSERS.add
@dataclass(frozen=True)
class ThesisAutoEncoder(Learned):
    """Three convolutions down to 8 channels, three transposed ones up, trained for squared error.

    The thesis gives the number of layers, the 8 channels in the middle, the loss and the schedule; kernels of 3, the
    widths before the middle and transposed kernels of 2 are ours. The thesis' own run failed for lack of data, which
    says nothing of what a network with more of it can reverse.

    Source:
        Point-cloud thesis, §4.3.5.
    """

    name: ClassVar[str] = "thesis-autoencoder"
    traits: ClassVar[ReverserTraits] = ReverserTraits(
        title="Auto-encoder (point-cloud thesis)", source="point-cloud thesis, §4.3.5", knowledge=frozenset({"pairs"})
    )

    size: int = param(
        128, "side at which the network works, pixels; images are resized to it and back", low=16, high=1024
    )
    epochs: int = param(250, "most passes over the pairs", low=1)
    batch: int = param(8, "pairs in a step", low=1)
    lr: float = param(1e-3, "learning rate", low=0)
    width: int = param(32, "channels of the first layer; the second has half of them", low=8)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size % 8:
            raise UsageError(f"{self.name}: size is {self.size}; give a multiple of 8")

    def network(self) -> nn.Module:
        from ficgan.lab.attacks.learned.thesis_autoencoder_network import ThesisAutoEncoderNetwork

        return ThesisAutoEncoderNetwork(self.width)

    def learner(self, network: nn.Module, device: torch.device) -> Learner:
        from ficgan.lab.attacks.learned.thesis_autoencoder_network import SquaredErrorLearner

        return SquaredErrorLearner(network, self.lr)

    def restore(self, network: nn.Module, seen: Tensor, seeds: list[int]) -> Tensor:
        guess: Tensor = network(seen)
        return guess
