"""Revelio: a conditional diffusion that restores blurred faces, in as many different ways as one asks for."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, cast

from ficgan.device import PRECISIONS, resolve_precision
from ficgan.errors import UsageError
from ficgan.lab.attacks.base import REVERSERS, ReverserTraits
from ficgan.lab.attacks.diffusion.schedule import PREDICTIONS, SCHEDULES, Predicts, Schedule
from ficgan.lab.attacks.learned.base import Learned
from ficgan.registry import param

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from ficgan.lab.attacks.diffusion.learner import DiffusionLearner
    from ficgan.lab.attacks.diffusion.sampling import Kind, Sampler
    from ficgan.lab.attacks.diffusion.unet import Architecture

__all__ = ["Revelio"]


@REVERSERS.add
@dataclass(frozen=True)
class Revelio(Learned):
    """A U-Net learns to take noise away from a guess at the clear face, with the anonymised face beside it.

    Candidates differ where the anonymised face leaves the face open; the identity most of them have is what the attack
    is after (`ficgan.lab.attacks.retrieval`).

    The paper's attacker, `preset=sr3,schedule=sr3,predicts=noise,sampler=ancestral-beta,samples=2000,lr=5e-5,size=256`,
    wants a GPU for days. The defaults are for a CPU. At the noisiest levels an error in `noise` is one 150 times as
    large in the face, and small only after a long training: after 400 steps at 16 pixels `clear` came to 32.0 dB,
    `velocity` to 28.2 and `noise` to 18.4, the blurred faces being at 25.3. Candidates of `clear` differ least: on
    64 faces learnt at 16 pixels by 0.2 levels of 255, of `velocity` by 7, whatever eta is.

    Source:
        Revelio, §4.2; its bases SR3 (Saharia et al. 2021) and Palette (Saharia et al. 2022).
    """

    name: ClassVar[str] = "revelio"
    deterministic: ClassVar[bool] = False
    traits: ClassVar[ReverserTraits] = ReverserTraits(
        title="Conditional diffusion (Revelio)", source="Revelio, §4.2", knowledge=frozenset({"pairs"}), several=True
    )

    # The paper wants the training set remembered: nobody is held out, and the last weights are kept.
    held: float = param(0.0, "share of the people held out to watch the training on", low=0, high=0.5)
    patience: int = param(0, "epochs without a better loss on the people held out before it ends; 0: never", low=0)
    batch: int = param(16, "pairs in a step", low=1)
    lr: float = param(5e-4, "learning rate; Palette: 5e-5", low=0)

    preset: str = param("small", "numbers of the U-Net", choices=("sr3", "palette", "small", "patched"))
    base: int = param(0, "channels at full size; 0: the preset's", low=0)
    mults: str = param("", "channels of the levels as multiples, such as 1-2-4-8; empty: the preset's")
    blocks: int = param(0, "residual blocks per level; 0: the preset's", low=0)
    dropout: float = param(-1.0, "within residual blocks; negative: the preset's", high=0.9)
    schedule: str = param("small", "noise of the training", choices=tuple(SCHEDULES))
    steps: int = param(0, "T of that schedule, with the same noise in all; 0: its own", low=0)
    test_schedule: str = param("same", "noise at use", choices=("same", *SCHEDULES))
    predicts: str = param("clear", "what the network answers; the paper: noise", choices=PREDICTIONS)
    dropped: float = param(0.0, "share of the training without the anonymised face, for guidance", low=0, high=0.9)
    keep: float = param(0.9999, "share of the average of the weights that a step keeps", low=0, high=1)
    flip: bool = param(False, "pairs are mirrored half of the time; only where the method treats both sides alike")

    sampler: str = param(
        "ddim", "way from noise to a face; the paper: ancestral-beta", choices=("ddim", "ancestral", "ancestral-beta")
    )
    samples: int = param(20, "steps of that way, at most T; the paper: all", low=1)
    eta: float = param(1.0, "noise that ddim draws on the way; 0: none; 1: as ancestral", low=0, high=1)
    guidance: float = param(1.0, "weight of the anonymised face; above 1 only after a training with dropped > 0", low=0)
    at_once: int = param(0, "candidates in one pass of the network; 0: as the device and the size suggest", low=0)
    precision: str = param("auto", "floating type of the network; auto: what it was trained in", choices=PRECISIONS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.guidance != 1 and not self.dropped:
            raise UsageError(f"{self.name}: guidance is {self.guidance:g}, which needs a training with dropped > 0")
        if self.mults and not all(part.isdigit() and int(part) for part in self.mults.split("-")):
            raise UsageError(f"{self.name}: mults is {self.mults!r}; give whole numbers, such as 1-2-4-8")
        _ = self.noise  # raises where T is too small

    @property
    def noise(self) -> Schedule:
        """Of the training."""
        whole = SCHEDULES[self.schedule]
        return whole.shrunk(self.steps) if self.steps else whole

    @property
    def way(self) -> Sampler:
        """From noise to a face."""
        from ficgan.lab.attacks.diffusion.sampling import Sampler

        schedule = self.noise if self.test_schedule == "same" else SCHEDULES[self.test_schedule]
        kind, predicts = cast("Kind", self.sampler), cast(Predicts, self.predicts)
        return Sampler(schedule, kind, self.samples, self.eta, predicts, self.guidance)

    @property
    def architecture(self) -> Architecture:
        from ficgan.lab.attacks.diffusion.unet import PRESETS

        numbers = PRESETS[self.preset]
        if self.base:
            numbers = replace(numbers, base=self.base)
        if self.mults:
            numbers = replace(numbers, mults=tuple(int(part) for part in self.mults.split("-")))
        if self.blocks:
            numbers = replace(numbers, blocks=self.blocks)
        return replace(numbers, dropout=self.dropout) if self.dropout >= 0 else numbers

    def network(self) -> nn.Module:
        from ficgan.lab.attacks.diffusion.unet import UNet

        return UNet(self.architecture, self.size)

    def learner(self, network: nn.Module, device: torch.device) -> DiffusionLearner:
        from ficgan.lab.attacks.diffusion.learner import DiffusionLearner

        dtype = self._dtype(device)
        return DiffusionLearner(
            network, self.lr, self.noise, cast(Predicts, self.predicts),
            keep=self.keep, dropped=self.dropped, flip=self.flip, dtype=dtype,
        )  # fmt: skip

    def in_use(self, network: nn.Module) -> nn.Module:
        weights = next(network.parameters())
        dtype = self._dtype(weights.device)
        return network if dtype == weights.dtype else copy.deepcopy(network).to(dtype)

    def _dtype(self, device: torch.device) -> torch.dtype:
        """`auto` is decided by a short trial, whose outcome may differ: once, before the training."""
        name = self.precision if self.precision != "auto" else self.record.get("precision", "auto")
        return resolve_precision(name, device.type)

    def pass_size(self, device: torch.device) -> int:
        if self.at_once:
            return self.at_once
        return min(256, max(16, 2**20 // self.size**2)) if device.type == "cuda" else 16

    def restore(self, network: nn.Module, seen: Tensor, seeds: list[int]) -> Tensor:
        from ficgan.lab.attacks.diffusion.sampling import sample

        guesses = sample(network, seen * 2 - 1, self.way, seeds=seeds, batch=len(seeds))
        return guesses[:, 0].add(1).div_(2)
