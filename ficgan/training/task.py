"""What a run trains: a task brings data, V, losses and pictures, the loop brings optimisers, schedules and files."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from ficgan.config import Config
from ficgan.data import FaceData
from ficgan.errors import UsageError
from ficgan.files import atomic_write
from ficgan.training.state import D, M, TrainingState
from ficgan.training.stats import Say, unheard
from ficgan.training.step import Weights, locked
from ficgan.verification import Verifier

J = TypeVar("J")


class TrainingTask(ABC, Generic[M, D, J]):
    """One kind of training: of networks M that a discriminator D judges by what J holds.

    Args:
        config: of the run.
        data: folders, zips or tars of aligned faces.
        labels, split: only images whose row in the label file has this split are trained on.
    """

    faces: FaceData
    verify: Verifier

    def __init__(
        self,
        config: Config,
        data: Sequence[Path | str],
        labels: Path | str | None,
        split: str | None,
        device: torch.device,
    ) -> None:
        self.config, self.device = config, device
        self.open(data, labels, split)

    @abstractmethod
    def open(self, data: Sequence[Path | str], labels: Path | str | None, split: str | None) -> None:
        """Open models, V and `faces`, so that a mistake is found at once; no file is written."""

    @staticmethod
    @abstractmethod
    def networks(config: Config) -> tuple[M, D]:
        """Untrained networks."""

    @abstractmethod
    def __len__(self) -> int:
        """Faces that are trained on."""

    @abstractmethod
    def prepare(self, out: Path, models: Sequence[M], say: Say = unheard) -> None:
        """Read the faces, or take what an earlier run in `out` has read; `models` are trained and averaged one."""

    @abstractmethod
    def generator_step(
        self,
        state: TrainingState[M, D],
        judge: D,
        indices: Tensor,
        weights: Weights,
        share: float,
        rng: torch.Generator,
    ) -> tuple[J, dict[str, Tensor]]:
        """Accumulate the gradients of the total loss for one round.

        Args:
            judge: D, perhaps compiled, whose parameters do not require gradients.
            indices: int64 [B], of the faces that are trained on.
            weights: λ at this moment.
            share: factor on the loss, 1/rounds.
            rng: CPU generator of all that is random here.

        Returns:
            What D will judge, without graphs, and batch means of all terms.
        """

    @abstractmethod
    def discriminator_step(self, state: TrainingState[M, D], judge: D, made: J, share: float) -> dict[str, Tensor]:
        """Accumulate D's gradients for one round of `generator_step`; batch means, with r_t = mean sign of real."""

    @abstractmethod
    def r1_step(self, state: TrainingState[M, D], made: J, weight: float, share: float) -> dict[str, Tensor]:
        """Accumulate the gradients of R1 for one round, in float32 and outside of any compilation.

        `weight` is γ times the interval of lazy regularisation. Returns the mean penalty, unweighted.
        """

    @abstractmethod
    def save(self, path: Path, model: M, training: dict[str, Any]) -> None:
        """Write the averaged model for use, with its training record."""

    @abstractmethod
    def snapshot(self, model: M, path: Path) -> None:
        """Write a sheet of what the averaged model makes of some faces."""

    @abstractmethod
    def reals(self) -> Tensor:
        """The first faces of the set as a square grid [r,r,3,S,S] in [−1, 1]."""

    def judge(self, model: M) -> dict[str, float]:
        """Figures of the averaged model on held-out faces, where there are some."""
        return {}

    def running_means(self, model: M) -> list[Tensor]:
        """Buffers of the model that follow its batches, to be averaged over all processes."""
        return []

    def frozen(self) -> list[nn.Module]:
        """Networks beside the trained ones that may be compiled."""
        return []

    @abstractmethod
    def described(self, model: M) -> str:
        """The kind of network, for a line about the run."""

    def require_batch(self, count: int) -> None:
        """Refuse a set of fewer than one batch."""
        if count < self.config.optimizer.batch:
            raise UsageError(f"{count} clear faces are fewer than one batch of {self.config.optimizer.batch}")


def read_once(folder: Path, digest: str, read: Callable[[], None]) -> None:
    """Call `read`, which writes arrays into a folder, unless an earlier call has done so for the same digest.

    Of several processes the first one reads; the others wait and find the arrays.
    """
    record = folder / "faces.json"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock"):
        if record.exists() and json.loads(record.read_text()).get("digest") == digest:
            return
        record.unlink(missing_ok=True)  # from here on the arrays belong to no record
        for array in folder.glob("*.npy"):
            array.unlink()  # they may be links to those of another run
        read()
        with atomic_write(record) as file:
            file.write(json.dumps({"digest": digest}).encode())
