"""What a run trains: a task brings data, V, losses and pictures, the loop brings optimisers, schedules and files."""

from __future__ import annotations

import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from ficgan.config import Config, LossConfig, SwapConfig
from ficgan.data import FaceData
from ficgan.errors import Progress, UsageError, unheard
from ficgan.faces.crops import ARCFACE_POINTS, Alignment
from ficgan.files import alone_in, atomic_write
from ficgan.training.state import TrainingState
from ficgan.verification import AlignedInput, Verifier
from ficgan.verification.sphereface import load_verifier


class Weights(NamedTuple):
    reconstruction: float
    verification: float
    adversarial: float


def weights_at(config: LossConfig, kimg: float) -> Weights:
    """λ1 to λ3 at a moment: each ramps from 0 to its value, D's from when it takes part."""

    def ramp(start: float, end: float) -> float:
        if kimg >= end:
            return 1.0
        return (kimg - start) / (end - start) if kimg > start else 0.0

    start = config.adversarial_start_kimg
    adversarial = config.adversarial * ramp(start, start + config.adversarial_ramp_kimg)
    return Weights(config.reconstruction, config.verification * ramp(*config.verification_ramp_kimg), adversarial)


class Swap(NamedTuple):
    """Plan for one batch of B images; all tensors on the CPU."""

    target: Tensor  # int64 [B]: image whose identity is taken; the batch rolled, so never the image itself
    to_mean: Tensor  # bool [B]: towards a mean of codes instead of the target
    members: Tensor  # float [B,B]: row b holds the weights of the other codes in its mean (rows sum to 1)
    pull: Tensor  # float [B]: share of the way from the running mean of all codes to that small mean
    kept: Tensor  # int64 [B]: i, the number of layers that keep the source's code (0 but for crossovers)


def plan_swap(batch: int, num_layers: int, config: SwapConfig, rng: Generator) -> Swap:
    roll = int(torch.randint(1, batch, (), generator=rng))
    target = torch.arange(batch).roll(roll)
    to_mean = torch.rand(batch, generator=rng) < config.mean_fraction
    low, high = (min(size, batch - 1) for size in config.mean_of)
    sizes = torch.randint(low, high + 1, (batch, 1), generator=rng)
    # Nobody is in the mean that replaces them: the diagonal ranks last, and at most B − 1 are taken.
    ranks = torch.rand(batch, batch, generator=rng).fill_diagonal_(2).argsort(1).argsort(1)
    members = (ranks < sizes) / sizes
    pull = torch.rand(batch, generator=rng)
    crossed = torch.rand(batch, generator=rng) < config.crossover
    kept = torch.randint(1, num_layers, (batch,), generator=rng) * crossed
    return Swap(target, to_mean, members, pull, kept)


def mixed_code(w: Tensor, w_mean: Tensor, plan: Swap, num_layers: int) -> Tensor:
    """Codes of the mixed images, as `in_layers` gives them, of codes w [B,D] and the running mean of all w_mean [D]."""
    device, dtype = w.device, w.dtype
    target = w[plan.target.to(device)]
    small_mean = plan.members.to(device, dtype) @ w
    centre = w_mean.to(dtype)
    mean = centre + plan.pull.to(device, dtype)[:, None] * (small_mean - centre)
    return in_layers(w, torch.where(plan.to_mean.to(device)[:, None], mean, target), plan, num_layers)


def in_layers(w: Tensor, new: Tensor, plan: Swap, num_layers: int) -> Tensor:
    """New codes [B,D], or [B,L,D] where some layers keep the source's code of w [B,D]."""
    if not bool(plan.kept.any()):
        return new
    keeps = torch.arange(num_layers)[None] < plan.kept[:, None]  # [B,L]
    return torch.where(keeps.to(w.device)[:, :, None], w[:, None], new[:, None])


def with_reconstructions(w: Tensor, mixed: Tensor) -> Tensor:
    """Codes of reconstructions, then of mixes, in one batch: [2B,D] or [2B,L,D], as `mixed` has it."""
    return torch.cat([w if mixed.ndim == 2 else w[:, None].expand_as(mixed), mixed])


def make_verify(config: Config, alignment: Alignment, device: torch.device, resolution: int) -> Verifier:
    """The frozen V of a configuration on crops of a resolution; "untrained" has random weights, for tests alone."""
    if config.verifier.spec != "untrained":
        return load_verifier(config.verifier.spec, alignment=alignment, resolution=resolution, device=str(device))
    warnings.warn("verifier.spec=untrained: V has random weights; the model will not learn identity", stacklevel=2)
    size = 32
    points = (ARCFACE_POINTS + 0.5) * (size / 112) - 0.5
    aligned = AlignedInput(alignment, resolution, points, (size, size))
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


Paths = Sequence[Path | str]


class Judged(NamedTuple):
    """What D judges, without graphs: pictures [B,3,R,R], or lists of V's maps of them."""

    real: Any
    rec: Any
    mix: Any


class TrainingTask(ABC):
    """One kind of training: its networks, its data and V, its losses, and what it shows.

    Its methods take its own networks (`model`, or those of a run's `state`), and what its generator step made for D.
    """

    faces: FaceData
    rows: NDArray[np.int64]  # of the faces that are trained on
    verify: Verifier | None = None

    def __init__(
        self, config: Config, data: Paths, labels: Path | str | None, split: str | None, device: torch.device
    ) -> None:
        self.config, self.device = config, device
        self.open(data, labels, split)

    @abstractmethod
    def open(self, data: Paths, labels: Path | str | None, split: str | None) -> None:
        """Open models, V and `faces`, so that a mistake is found at once; no file is written."""

    @staticmethod
    @abstractmethod
    def networks(config: Config) -> tuple[nn.Module, nn.Module]:
        """What is trained, and its discriminator."""

    def __len__(self) -> int:
        return len(self.rows)

    @abstractmethod
    def prepare(self, out: Path, models: Sequence[Any], progress: Progress = unheard) -> None:
        """Read the faces, or take what an earlier run in `out` has read; `models` are trained and averaged one."""

    @abstractmethod
    def generator_loss(
        self, state: TrainingState, indices: Tensor, weights: Weights, rng: Generator
    ) -> tuple[Any, dict[str, Tensor]]:
        """What D will judge of faces (int64 [B]), without graphs; batch means of all terms, `total` too; `rng`: CPU."""

    @abstractmethod
    def discriminator_loss(self, state: TrainingState, made: Any) -> dict[str, Tensor]:
        """Batch means, of them the loss `d`, and r_t = mean sign of real."""

    def real_logits(self, state: TrainingState, made: Any) -> tuple[Tensor, Tensor] | None:
        """What R1 is of: real pictures [B,…] that require gradients, and the plain D's logits [B] of them."""
        return None

    @abstractmethod
    def save(self, path: Path, model: Any, training: dict[str, Any]) -> None:
        """Write the averaged model for use, with its training record."""

    @abstractmethod
    def snapshot(self, model: Any, path: Path) -> None:
        """Write a sheet of what the averaged model makes of some faces."""

    @abstractmethod
    def first(self, count: int) -> Tensor:
        """The first faces of the set, [B,3,S,S] in [−1, 1]."""

    def judge(self, model: Any) -> dict[str, float]:
        """Figures of the averaged model on held-out faces, where there are some."""
        return {}

    def require_batch(self, count: int) -> None:
        if count < self.config.optimizer.batch:
            raise UsageError(f"{count} clear faces are fewer than one batch of {self.config.optimizer.batch}")


def read_once(folder: Path, digest: str, read: Callable[[], None]) -> dict[str, NDArray[Any]]:
    """The arrays that `read` writes into a folder, or that an earlier call left there; pictures stay on disk."""
    record = folder / "faces.json"
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        if not record.exists() or json.loads(record.read_text()).get("digest") != digest:
            record.unlink(missing_ok=True)  # from here on the arrays belong to no record
            for array in folder.glob("*.npy"):
                array.unlink()  # they may be links to those of another run
            read()
            with atomic_write(record) as file:
                file.write(json.dumps({"digest": digest}).encode())
    found = {path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")}
    return {name: array if array.dtype == np.uint8 else np.array(array) for name, array in found.items()}


def pictures(path: Path, shape: tuple[int, ...]) -> Any:
    """A new array of bytes on disk."""
    return np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
