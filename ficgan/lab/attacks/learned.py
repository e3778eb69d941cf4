"""Attackers that train a network on pairs of anonymised and clear faces, and their files."""

from __future__ import annotations

import copy
import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from ficgan.anonymizers import Faces
from ficgan.anonymizers.cloak import ssim
from ficgan.device import keep_freed_memory, resolve_device
from ficgan.errors import FicganError, Progress, UsageError
from ficgan.lab.attacks import base, networks
from ficgan.lab.attacks.training import STATE, Learner, LossLearner, PairBatches, TrainingLoop
from ficgan.models import load_tensors, save_tensors
from ficgan.registry import param
from ficgan.training import Team

SCHEMA = 1  # Of the layout of a file; raised when a reader of the old one would misread the new one
_KIND = "attacker"
WEIGHTS = "attacker.safetensors"  # In an attacker's workspace: what its training came to


@dataclass(frozen=True)
class Learned(base.Reverser):
    """A reverser whose `fit` trains a network; subclasses give `network` and `learner`."""

    multiple: ClassVar[int] = 1  # What `size` must be divisible by

    size: int = param(64, "side at which the network works, pixels", low=16, high=1024)
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
        if self.size % self.multiple:
            raise UsageError(f"{self.name}: size is {self.size}; give a multiple of {self.multiple}")

    @abstractmethod
    def network(self) -> nn.Module:
        """Untrained; a function of the parameters alone, so that a weights file can be read back."""

    @abstractmethod
    def learner(self, network: nn.Module, device: torch.device) -> Learner:
        """Losses and optimisers around the network, which is already on the device."""

    def restore(self, network: nn.Module, seen: Tensor, seeds: list[int]) -> Tensor:
        """One candidate [B,3,size,size] in [0, 1] for each face `seen` of that shape, drawn by `seeds` [B]."""
        return network(seen)

    def in_use(self, network: nn.Module) -> nn.Module:
        """The trained network as `restore` takes it, such as in another floating type; made once for many faces."""
        return network

    def pass_size(self, device: torch.device) -> int:
        """Most candidates in one call of `restore`."""
        return 64

    def fit(self, pairs: base.Pairs, *, workspace: Path | None = None, progress: Progress | None = None) -> Self:
        """The same attacker, trained; `workspace` keeps the state, from which an interrupted training resumes."""
        key = digest_of(self, pairs)
        if workspace is not None and (workspace / WEIGHTS).exists():
            found = load_attacker(workspace / WEIGHTS, device=self.device)
            if not isinstance(found, type(self)) or found.record.get("plan") != key:
                raise FicganError(f"{workspace} is of a training on other pairs or settings; use another folder")
            return found
        team = Team(self.device)  # of the processes of torchrun, where there are several
        if (device := team.device).type == "cpu":
            keep_freed_memory()
        torch.manual_seed(self.seed)
        network = self.network().to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        learner, batches = self.learner(network, device), PairBatches(pairs, self, team)
        learner.team = team
        team.share(learner.modules.values())
        state, stats = None if workspace is None else workspace / STATE, workspace if team.first else None
        settings = self.epochs, state, stats, self.seed, self.minutes, self.patience
        loop = TrainingLoop(learner, batches, self.name, key, *settings)
        loop.run(progress if team.first else None)
        network = copy.deepcopy(learner.result)
        if loop.kept is not None:
            network.load_state_dict(loop.kept)
        with torch.no_grad():  # rounded as the file keeps them: a network just trained and one read back are the same
            for tensor in (*network.parameters(), *network.buffers()):
                if tensor.is_floating_point():
                    tensor.copy_(tensor.half())
        record = {
            "plan": key,
            "pairs": len(pairs.clear),
            "pairs_held": len(batches.held_rows),
            "epochs": loop.epoch,
            "images": loop.images,
            "best_epoch": loop.at.best_epoch,
            "seconds": round(loop.at.seconds, 1),
            "held_out_loss": loop.at.best,
            "ended": loop.ended or "all epochs",
            "device": device.type,
            "precision": learner.precision,
        }
        trained = self.with_network(network, record)
        if workspace is not None and team.first:
            trained.save(workspace / WEIGHTS)
            (workspace / STATE).unlink(missing_ok=True)
        return trained

    def with_network(self, network: nn.Module, record: dict[str, Any]) -> Self:
        """The same attacker with a trained network, in evaluation mode."""
        return replace(self, _network=network.eval().requires_grad_(False), record=record)

    def trained_network(self) -> nn.Module:
        """The network; UsageError where nothing has been learnt yet."""
        return base.fitted(self._network, self.name)

    def save(self, path: str | Path, about: Mapping[str, Any] | None = None) -> None:
        """Write a safetensors file with a JSON header; weights in half precision; no keys, no folders."""
        state = self.trained_network().state_dict()
        weights = {key: value.half() if value.is_floating_point() else value for key, value in state.items()}
        made = {"attacker": self.name, "settings": self.settings(), "training": self.record}
        save_tensors(path, weights, {"schema_version": SCHEMA, **made, "about": dict(about or {})}, kind=_KIND)

    def reverse(self, faces: Faces, n: int = 1) -> NDArray[np.uint8]:
        if n > 1 and not self.traits.several:
            return np.repeat(self.reverse(faces), n, axis=1)
        network = self.trained_network()
        device, side = next(network.parameters()).device, faces.images.shape[1]
        out, small = np.empty((len(faces) * n, side, side, 3), np.uint8), base.resized(faces.images, self.size)
        with torch.inference_mode():
            network, step = self.in_use(network), self.pass_size(device)
            for start in range(0, len(out), step):
                some = np.arange(start, min(start + step, len(out)))
                seeds = [base.seed_of(self.seed, faces.names[row // n], row % n) for row in some.tolist()]
                guesses = self.restore(network, base.to_tensor(small[some // n], device), seeds)
                out[some] = base.resized(base.to_images(guesses), side)
        return out.reshape(len(faces), n, side, side, 3)


@base.REVERSERS.add
class AutoEncoder(Learned):
    """Two convolutions down, one linear layer over everything, two up (Fantômas, §5, figure 3, appendix B)."""

    name = "autoencoder"
    multiple = 4
    traits = base.ReverserTraits("Auto-encoder (Fantômas)", "Fantômas, §5", base.FROM_PAIRS)

    features: int = param(9, "channels of the convolutions", low=1)
    linear: str = param("full", "the linear layer", choices=("full", "none"))

    def network(self) -> nn.Module:
        return networks.AutoEncoderNetwork(self.size, self.features, self.linear == "full")

    def learner(self, network: nn.Module, device: torch.device) -> Learner:
        def loss(network: nn.Module, seen: Tensor, clear: Tensor) -> Tensor:
            return 100 * (1 - ssim(network(seen).float(), clear.float()).mean())

        return LossLearner(network, loss, self.lr, rate=networks.plateau)


@base.REVERSERS.add
class ThesisAutoEncoder(Learned):
    """Three convolutions down to 8 channels, three transposed ones up (point-cloud thesis, §4.3.5)."""

    name = "thesis-autoencoder"
    multiple = 8
    traits = base.ReverserTraits("Auto-encoder (point-cloud thesis)", "point-cloud thesis, §4.3.5", base.FROM_PAIRS)

    size: int = param(128, "side at which the network works, pixels", low=16, high=1024)
    epochs: int = param(250, "most passes over the pairs", low=1)
    batch: int = param(8, "pairs in a step", low=1)
    lr: float = param(1e-3, "learning rate", low=0)

    def network(self) -> nn.Module:
        return networks.ThesisAutoEncoderNetwork()

    def learner(self, network: nn.Module, device: torch.device) -> Learner:
        return LossLearner(network, lambda network, seen, clear: mse_loss(network(seen), clear), self.lr)


@base.REVERSERS.add
class Pix2Pix(Learned):
    """Conditional GAN: a PatchGAN's adversarial loss plus 100·L1 (Isola et al. 2017, §3, §6.1; Fantômas, §6.2.2)."""

    name = "pix2pix"
    traits = base.ReverserTraits("Pix2Pix", "Isola et al. 2017; Fantômas, §6.2.2", base.FROM_PAIRS, several=True)

    batch: int = param(1, "pairs in a step", low=1)
    lr: float = param(2e-4, "learning rate of the first half; it then falls to 0", low=0)
    held: float = param(0.0, "share of the people held out to choose the epoch on; 0: the last", low=0, high=0.5)
    patience: int = param(0, "epochs without a better loss on the people held out before it ends; 0: never", low=0)
    base: int = param(64, "filters of the first layer; up to eight times as many below", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size & (self.size - 1):
            raise UsageError(f"{self.name}: size is {self.size}; give a power of 2")

    def network(self) -> nn.Module:
        return networks.Pix2PixUNet(self.size, self.base)

    def learner(self, network: nn.Module, device: torch.device) -> Learner:
        # As many as leave more than one patch in an image: 3 from 128 pixels on (70×70).
        halvings = 3 if self.size >= 128 else 2 if self.size >= 64 else 1
        return networks.Pix2PixLearner(network, networks.PatchGAN(self.base, halvings).to(device), self.lr, self.epochs)

    def restore(self, network: nn.Module, seen: Tensor, seeds: list[int]) -> Tensor:
        return network(seen, seeds)


@base.REVERSERS.add
class Trained(base.Reverser):
    """An attacker that was trained before, by its file; it learns nothing more."""

    name = "trained"
    traits = base.ReverserTraits("Trained attacker, from a file", "its file")

    file: str = param("", "attacker.safetensors of a training")
    device: str = param("auto", "where it computes: auto, cpu, cuda or cuda:N")
    attacker: Learned | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.file:
            raise UsageError(f"{self.name} needs the file of an attacker; write trained:file=PATH")
        attacker = load_attacker(self.file, device=self.device)
        object.__setattr__(self, "attacker", attacker)
        traits = attacker.traits
        object.__setattr__(self, "traits", replace(traits, knowledge=traits.knowledge - {"pairs"}))

    def reverse(self, faces: Faces, n: int = 1) -> NDArray[np.uint8]:
        assert self.attacker is not None
        return self.attacker.reverse(faces, n)


def load_attacker(path: str | Path, *, device: str = "auto") -> Learned:
    """A trained attacker from its file."""
    tensors, header = load_tensors(path, kind=_KIND)
    if header.get("schema_version", 0) > SCHEMA:
        raise FicganError(f"{path} was written by a later version of ficgan; update it")
    try:
        attacker = base.REVERSERS.make(header["attacker"], **header["settings"])
        assert isinstance(attacker, Learned)
        attacker = replace(attacker, device=device)
        with torch.device("meta"):
            network = attacker.network()
        network = network.to_empty(device=resolve_device(device))
        weights = {key: part.float() if part.is_floating_point() else part for key, part in tensors.items()}
        network.load_state_dict(weights)
    except (KeyError, UsageError, RuntimeError) as error:
        raise FicganError(f"{path} holds an attacker that cannot be made here ({error}); train it again") from None
    return attacker.with_network(network, header["training"])


def read_header(path: str | Path) -> dict[str, Any]:
    """What a file has beside the weights: attacker, settings, training, about; FicganError if it is no attacker's."""
    return load_tensors(path, kind=_KIND)[1]


def digest_of(attacker: Learned, pairs: base.Pairs) -> str:
    """Of everything that a training's outcome depends on: settings, pixels of the pairs, who is who."""
    state = hashlib.sha256(repr((attacker.name, sorted(attacker.settings().items()))).encode())
    for faces in (pairs.anonymised, pairs.clear):
        state.update(repr(faces.images.shape).encode())
        state.update(np.ascontiguousarray(faces.images).data)
    people = pairs.clear.people
    state.update(b"" if people is None else np.ascontiguousarray(people).data)
    return state.hexdigest()[:32]
