"""The paper's task: aligned crops in, aligned crops out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ficgan.config import Config
from ficgan.data import check_alignment, open_faces
from ficgan.errors import UsageError
from ficgan.faces.alignment import Alignment
from ficgan.models import FICGAN, CheckpointHeader, Discriminator, FrameFICGAN, save_checkpoint
from ficgan.training.augment import flip
from ficgan.training.snapshots import snapshot
from ficgan.training.state import TrainingState
from ficgan.training.step import Fakes, Weights, discriminator_step, generator_step, r1_step
from ficgan.training.swap import plan_swap
from ficgan.training.verify import make_verify

__all__ = ["CropTask"]


class CropTask:
    """Data, V and pictures of a run on aligned crops.

    Args:
        config: of the run.
        data: folders, zips or tars of aligned faces.
        labels, split: use only images whose row in the label file has this split.
        device: where images and V live.

    Raises:
        UsageError, InputError: with one sentence.
    """

    def __init__(
        self, config: Config, data: Sequence[Path | str], labels: Path | str | None, split: str | None,
        device: torch.device,
    ) -> None:  # fmt: skip
        self.config, self.device = config, device
        self.alignment = Alignment(**config.alignment.model_dump())
        self.verify = make_verify(config, self.alignment, device)
        self.faces = open_faces(data, resolution=config.model.resolution, labels=labels, split=split)
        if len(self.faces) < config.optimizer.batch:
            raise UsageError(f"{len(self.faces)} images are fewer than one batch of {config.optimizer.batch}")
        check_alignment(self.faces, self.alignment)

    def __len__(self) -> int:
        return len(self.faces)

    def prepare(self, out: Path, model: FICGAN | FrameFICGAN) -> None:
        """Decode all images; nothing is kept in `out`."""
        images = self.faces.resident()  # uint8 [N,3,R,R]
        self.images = images.to(self.device) if self.device.type == "cuda" else images

    def generator_step(
        self, state: TrainingState, judge: Discriminator, rows: Tensor, weights: Weights, share: float,
        rng: torch.Generator,
    ) -> tuple[tuple[Tensor, Fakes], dict[str, Tensor]]:  # fmt: skip
        """Accumulate gradients for one round; returns what D will judge, and the terms of the loss."""
        config = self.config
        x = self._to_float(self.images[rows.to(self.images.device)])
        if config.augment.flip:
            x = flip(x, rng)
        plan = plan_swap(len(x), state.model.num_layers, config.swap, rng)
        vary = rng if config.verifier.augment else None
        assert isinstance(state.model, FICGAN)
        fakes, terms = generator_step(
            state.model, judge, self.verify, x, plan, config, weights, state.augment, share, vary
        )
        return (x, fakes), terms

    def discriminator_step(
        self, state: TrainingState, judge: Discriminator, made: tuple[Tensor, Fakes], share: float
    ) -> dict[str, Tensor]:
        """Accumulate D's gradients for one round of `generator_step`."""
        return discriminator_step(judge, *made, state.augment, share)

    def r1_step(
        self, state: TrainingState, made: tuple[Tensor, Fakes], weight: float, share: float
    ) -> dict[str, Tensor]:
        """Accumulate the gradients of R1 for one round."""
        assert isinstance(state.discriminator, Discriminator)
        return r1_step(state.discriminator, made[0], state.augment, weight, share)

    def save(self, path: Path, model: FICGAN | FrameFICGAN, training: dict[str, Any]) -> None:
        """Write the averaged model for use."""
        assert isinstance(model, FICGAN)
        data = {"licence": self.config.data_licence, "fingerprint": self.faces.fingerprint, "images": len(self.faces)}
        alignment = self.alignment.to_dict()
        header = CheckpointHeader(model=self.config.model, alignment=alignment, data=data, training=training)
        save_checkpoint(path, model, header)

    def snapshot(self, model: FICGAN | FrameFICGAN, path: Path) -> None:
        """Write a sheet of what the averaged model makes of the first faces."""
        assert isinstance(model, FICGAN)
        snapshot(model, self._to_float(self.images[: min(12, len(self.images))]), path)

    def judge(self, model: FICGAN | FrameFICGAN) -> dict[str, float]:
        """No figures: `ficgan measure` has them."""
        return {}

    def reals(self) -> Tensor:
        """The first faces of the set as a square grid [r,r,3,R,R]."""
        side = min(8, int(len(self.images) ** 0.5))
        return self._to_float(self.images[: side * side]).unflatten(0, (side, side))

    def _to_float(self, images: Tensor) -> Tensor:  # uint8 → [−1, 1] on the device
        x = images.to(self.device).float().div_(127.5).sub_(1)
        return x.contiguous(memory_format=torch.channels_last)
