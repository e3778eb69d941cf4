"""An attacker that trains a network on pairs: anonymised face in, guess at the clear one out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces, Images
from ficgan.errors import InputError, UsageError
from ficgan.lab.attacks.base import Pairs, Reverser
from ficgan.registry import param

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from ficgan.lab.attacks.learned.trainer import Learner

__all__ = ["Learned", "Told", "resized"]

Told = Callable[[int, int, str], None]
"""Progress: (steps done, steps in all, what is being done)."""


@dataclass(frozen=True)
class Learned(Reverser):
    """A reverser whose `fit` trains a network; subclasses give `network`, `learner` and `restore`.

    Attributes:
        record: of the training: epochs, images seen, losses, seconds, digests of the pairs.
    """

    deterministic: ClassVar[bool] = True
    """Whether an input has one guess; then several candidates are that one repeated."""

    size: int = param(
        64, "side at which the network works, pixels; faces are resized to it and back", low=16, high=1024
    )
    epochs: int = param(200, "most passes over the pairs", low=1)
    minutes: float = param(0.0, "training ends after so many minutes, at the latest; 0: no limit", low=0)
    batch: int = param(64, "pairs in a step", low=1)
    lr: float = param(1e-4, "initial learning rate", low=0)
    held: float = param(0.1, "share of the people held out to watch the training on", low=0, high=0.5)
    patience: int = param(20, "epochs without a better loss on the people held out before it ends; 0: never", low=0)
    seed: int = param(0, "of weights, order and noise")

    device: str = field(default="auto", compare=False)
    record: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    _network: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lr <= 0:  # the bound of a parameter would be allowed itself
            raise UsageError(f"{self.name}: lr is {self.lr:g}, at which nothing is learnt; give a rate above 0")

    def network(self) -> nn.Module:
        """Untrained; a function of the parameters alone, so that a weights file can be read back."""
        raise NotImplementedError

    def learner(self, network: nn.Module, device: torch.device) -> Learner:
        """Losses and optimisers around the network, which is already on the device."""
        raise NotImplementedError

    def restore(self, network: nn.Module, seen: Tensor, seeds: list[int]) -> Tensor:
        """One candidate for each face; a face of which several are wanted stands there several times.

        Args:
            network: what `in_use` gave, on the device of `seen`.
            seen: [B,3,size,size] in [0, 1].
            seeds: [B] of what is drawn for each.

        Returns:
            [B,3,size,size] in [0, 1].
        """
        raise NotImplementedError

    def in_use(self, network: nn.Module) -> nn.Module:
        """The trained network as `restore` takes it, such as in another floating type; made once for many faces."""
        return network

    def pass_size(self, device: torch.device) -> int:
        """Most candidates in one call of `restore`."""
        return 64

    @property
    def trained(self) -> bool:
        return self._network is not None

    def fit(self, pairs: Pairs, *, workspace: Path | None = None, told: Told | None = None) -> Self:
        """The same attacker, trained.

        Args:
            pairs: of people who are in no gallery and no probe, unless the attacker is granted them.
            workspace: folder that keeps the state of the training; an interrupted training goes on from it, and a
                finished one is read. None: nothing is kept.
            told: progress.

        Raises:
            InputError: no pairs.
            FicganError: the workspace is of another training, or the training ran into numbers that are not finite.
        """
        from ficgan.lab.attacks.learned.trainer import train

        return train(self, pairs, workspace=workspace, told=told)

    def with_network(self, network: nn.Module, record: dict[str, Any]) -> Self:
        """The same attacker with a trained network, in evaluation mode."""
        return replace(self, _network=network.eval().requires_grad_(False), record=record)

    def trained_network(self) -> nn.Module:
        """
        Raises:
            UsageError: nothing has been learnt yet.
        """
        if self._network is None:
            raise UsageError(f"{self.name} has learnt nothing yet; fit it on pairs")
        network: nn.Module = self._network
        return network

    def save(self, path: str | Path, about: Mapping[str, Any] | None = None) -> None:
        """Write it to a file; see `save_attacker`."""
        from ficgan.lab.attacks.learned.files import save_attacker

        save_attacker(self, path, about)

    def guess(self, faces: Faces) -> Images:
        return self._reversed(faces, 1)[:, 0]

    def reverse(self, faces: Faces, n: int = 1) -> NDArray[np.uint8]:
        if n < 1:
            raise UsageError(f"{n} candidates were asked for; ask for at least one")
        found = self._reversed(faces, 1 if self.deterministic else n)
        return np.repeat(found, n, axis=1) if self.deterministic else found

    def _reversed(self, faces: Faces, n: int) -> NDArray[np.uint8]:
        import torch

        network = self.trained_network()
        device = next(network.parameters()).device
        side = faces.images.shape[1]
        out = np.empty((len(faces) * n, side, side, 3), np.uint8)
        step = self.pass_size(device)
        with torch.inference_mode():
            network = self.in_use(network)
            for start in range(0, len(out), step):  # of all candidates of all faces, so that passes are full
                face, candidate = np.divmod(np.arange(start, min(start + step, len(out))), n)
                some, first = slice(face[0], face[-1] + 1), int(face[0])
                seen = to_tensor(resized(faces.images[some], self.size), device)
                seen = seen[torch.from_numpy(face - first).to(device)].contiguous(memory_format=torch.channels_last)
                seeds = [seed_of(self.seed, faces.names[f], int(c)) for f, c in zip(face, candidate, strict=True)]
                out[start : start + step] = resized(to_images(self.restore(network, seen, seeds)), side)
        return out.reshape(len(faces), n, side, side, 3)


def seed_of(seed: int, name: str, candidate: int) -> int:
    """Of what is drawn for one candidate of one face, whatever stands beside it in a batch."""
    text = f"{seed}\0{name}\0{candidate}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1  # torch's seeds are signed


def resized(images: Images, side: int) -> Images:
    """Square images [N,S,S,3] uint8 at another side: averaged down, bicubic up."""
    if images.shape[1] == side:
        return images
    import cv2

    how = cv2.INTER_AREA if side < images.shape[1] else cv2.INTER_CUBIC
    out = np.empty((len(images), side, side, 3), np.uint8)
    for index, image in enumerate(images):
        cv2.resize(image, (side, side), dst=out[index], interpolation=how)
    return out


def to_tensor(images: Images, device: torch.device | None = None) -> Tensor:
    """[N,S,S,3] uint8 → [N,3,S,S] float32 in [0, 1], channels last."""
    import torch

    x = torch.from_numpy(np.ascontiguousarray(images)).to(device).permute(0, 3, 1, 2)
    return x.to(torch.float32).div_(255)


def to_images(x: Tensor) -> Images:
    """[N,3,S,S] in [0, 1] → [N,S,S,3] uint8, rounded and clipped."""
    import torch

    levels = x.float().mul(255).round_().clamp_(0, 255).to(torch.uint8)
    return levels.permute(0, 2, 3, 1).contiguous().cpu().numpy()


def held_out(
    people: NDArray[np.int64] | None, count: int, share: float, seed: int, enrolled: NDArray[np.int64] | None = None
) -> NDArray[np.bool_]:
    """[count] rows of the people a training is watched on: whole people, at least one of two; none at a share of 0.

    Args:
        people: [count] who is who; negative: nobody knows.
        count: rows.
        share: of the people who may be held out.
        seed: of who is.
        enrolled: people who are never held out.
    """
    people = np.arange(count) if people is None else np.where(people < 0, -1 - np.arange(count), people)
    known = np.unique(people)
    free = known if enrolled is None else np.setdiff1d(known, enrolled)
    if not share or len(known) < 2 or not len(free):
        return np.zeros(count, bool)
    some = min(max(1, math.floor(share * len(free))), len(known) - 1)
    return np.isin(people, np.random.default_rng(seed).permutation(free)[:some])


def check_pairs(pairs: Pairs, name: str) -> None:
    """
    Raises:
        InputError: none, or sides that do not fit.
    """
    if not len(pairs.clear):
        raise InputError(f"{name} was given no pairs to learn from; give at least one")
    if pairs.clear.images.shape != pairs.anonymised.images.shape:
        raise InputError(
            f"{name} was given {len(pairs.anonymised)} anonymised and {len(pairs.clear)} clear faces of "
            f"{pairs.anonymised.images.shape[1]} and {pairs.clear.images.shape[1]} pixels; give pairs of one size"
        )
