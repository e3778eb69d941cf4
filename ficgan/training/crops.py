"""The paper's task: aligned crops in, aligned crops out; its data, its losses and its pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import write_array_header_1_0
from numpy.typing import NDArray
from torch import Generator, Tensor

from ficgan import losses
from ficgan.arrays import blocks
from ficgan.config import Config
from ficgan.data import FaceData, check_alignment, open_faces
from ficgan.errors import Progress, unheard
from ficgan.faces.crops import Alignment
from ficgan.files import atomic_write, lock
from ficgan.models import FICGAN, CheckpointHeader, Discriminator, save_checkpoint
from ficgan.training import task
from ficgan.training.state import TrainingState, save_grid
from ficgan.training.task import Judged, Paths, Swap, TrainingTask, Weights
from ficgan.verification import Verifier

# Bytes of a decoded set that is kept in memory; a larger one is decoded to a file once and read from there.
RESIDENT = 2**28
CHUNK = 256  # images decoded at a time for that file


class CropTask(TrainingTask):
    """A run on aligned crops."""

    verify: Verifier

    def open(self, data: Paths, labels: Path | str | None, split: str | None) -> None:
        config = self.config
        self.alignment = Alignment(**config.alignment.model_dump())
        self.verify = task.make_verify(config, self.alignment, self.device, config.model.resolution)
        self.faces = open_faces(data, resolution=config.model.resolution, labels=labels, split=split)
        self.rows = np.arange(len(self.faces))
        self.require_batch(len(self.faces))
        check_alignment(self.faces, self.alignment)

    @staticmethod
    def networks(config: Config) -> tuple[FICGAN, Discriminator]:
        return FICGAN(config.model), Discriminator(config.discriminator, config.model.resolution)

    def prepare(self, out: Path, models: Sequence[FICGAN], progress: Progress = unheard) -> None:
        self.images = decoded_images(self.faces, out, progress)

    def generator_loss(
        self, state: TrainingState, indices: Tensor, weights: Weights, rng: Generator
    ) -> tuple[Judged, dict[str, Tensor]]:
        """As `TrainingTask.generator_loss` says. Source: FICGAN, "Total Loss"."""
        config, model = self.config.loss, state.model
        x = self._pictures(indices)
        if self.config.augment.flip:
            mirrored = torch.rand(len(x), generator=rng) < 0.5
            x = torch.where(mirrored.to(x.device)[:, None, None, None], x.flip(3), x)
        plan = task.plan_swap(len(x), model.num_layers, self.config.swap, rng)
        codes = model.encoder(x)
        w = model.mapping(codes.z_id)
        model.mapping.track_mean(w)
        z_non = codes.z_non
        if self.config.model.spatial_noise > 0:
            z_non = z_non + self.config.model.spatial_noise * torch.randn_like(z_non)
        w_mix = task.mixed_code(w, model.mapping.w_mean, plan, model.num_layers)
        images = model.generator(task.with_reconstructions(w, w_mix), torch.cat([z_non, z_non])).float()
        x_rec, x_mix = images.chunk(2)
        terms: dict[str, Tensor] = {}
        total = x.new_zeros(())
        if weights.reconstruction:
            terms["rec"] = losses.reconstruction(x, x_rec, config.reconstruction_norm).mean()
            total = total + weights.reconstruction * terms["rec"]
        if config.structure:
            terms["structure"] = losses.structure(x, x_mix, config.structure_size).mean()
            total = total + config.structure * terms["structure"]
        factor = weights.verification if config.positive > 0 or config.negative > 0 else 0.0
        if factor > 0 or config.perceptual:
            total = total + self._verification(x, x_rec, x_mix, plan, factor, rng, terms)
        if weights.adversarial > 0:
            logits_rec, logits_mix = state.judge(state.augment(images), parts=2).split(len(x))
            terms["adv_rec"] = losses.adversarial_generator(logits_rec).mean()
            terms["adv_mix"] = losses.adversarial_generator(logits_mix).mean()
            adversarial = config.adversarial_rec * terms["adv_rec"] + config.adversarial_mix * terms["adv_mix"]
            total = total + weights.adversarial * adversarial
        terms["total"] = total
        return Judged(x, x_rec.detach(), x_mix.detach()), terms

    def _verification(
        self, x: Tensor, x_rec: Tensor, x_mix: Tensor, plan: Swap, factor: float, rng: Generator, terms: dict[str, Any]
    ) -> Tensor:
        """What V adds to the total; its terms are added to `terms`."""
        config, total = self.config.loss, x.new_zeros(())
        with torch.no_grad():
            v_source, maps = self.verify.read((x, None))
        if factor > 0:
            # Varied, or G would learn textures that only V sees.
            v_mix = self.verify(x_mix, generator=rng if self.config.verifier.augment else None)
            v_target = v_source[plan.target.to(x.device)]
            # Layers that keep the source's code owe the target only what is left.
            owed, swapped = 1 - plan.kept.to(x.device, torch.float32) / self.config.model.num_layers, ~plan.to_mean
            if config.negative:
                if config.negative_form == "hinge":
                    margin = config.negative_margin
                    negative = losses.negative_hinge(v_source, v_target, v_mix, margin, swapped.to(x.device))
                else:
                    negative = losses.negative(v_source, v_mix)
                terms["neg"] = (negative * owed).mean()
                total = total + factor * config.negative * terms["neg"]
            if config.positive:
                aimed = owed * swapped.to(x.device, torch.float32)
                positive = losses.positive(v_target, v_mix)
                if not bool(plan.to_mean.all()):  # known on the CPU: no wait for the GPU
                    terms["pos"] = (positive * aimed).sum() / aimed.sum()
                total = total + factor * config.positive * (positive * aimed).mean()
        if config.perceptual:
            terms["perceptual"] = losses.feature_distance(maps, self.verify.read((x_rec, None))[1])
            total = total + config.perceptual * terms["perceptual"]
        return total

    def discriminator_loss(self, state: TrainingState, made: Judged) -> dict[str, Tensor]:
        real, rec, mix = state.judge(state.augment(torch.cat(made)), parts=3).chunk(3)
        means = {"d_real": real, "d_rec": rec, "d_mix": mix, "r_t": real.sign()}
        loss = losses.adversarial_discriminator(real, rec, mix)
        return {"d": loss, **{name: value.detach().mean() for name, value in means.items()}}

    def real_logits(self, state: TrainingState, made: Judged) -> tuple[Tensor, Tensor]:
        real = state.augment(made.real).detach().requires_grad_(True)
        return real, state.discriminator(real)

    def save(self, path: Path, model: FICGAN, training: dict[str, Any]) -> None:
        data = {"licence": self.config.data_licence, "fingerprint": self.faces.fingerprint, "images": len(self.faces)}
        alignment = self.alignment.to_dict()
        header = CheckpointHeader(model=self.config.model, alignment=alignment, data=data, training=training)
        save_checkpoint(path, model, header)

    @torch.no_grad()
    def snapshot(self, model: FICGAN, path: Path) -> None:
        """Write a sheet of faces, a column each.

        Rows: source, reconstruction, swap with the next face, then the mean code from layer i + 1 on, for i of 0, ¼L,
        ½L, ¾L and L − 1.
        """
        faces, num_layers = self.first(min(12, len(self))), model.num_layers
        codes = model.encoder(faces)
        w = model.mapping(codes.z_id)
        rows = [faces, model.generator(w, codes.z_non), model.generator(w.roll(-1, 0), codes.z_non)]
        mean = model.mapping.w_mean.expand_as(w)
        for kept in sorted({0, num_layers // 4, num_layers // 2, 3 * num_layers // 4, num_layers - 1}):
            per_layer = mean[:, None].repeat(1, num_layers, 1)
            per_layer[:, :kept] = w[:, None]
            rows.append(model.generator(per_layer, codes.z_non))
        save_grid(torch.stack(rows), path)

    def first(self, count: int) -> Tensor:
        return self._pictures(torch.arange(count))

    def _pictures(self, rows: Tensor) -> Tensor:  # int64 [B] → [B,3,R,R] in [−1, 1] on the device
        x = torch.from_numpy(self.images[rows.numpy()]).to(self.device).float().div_(127.5).sub_(1)
        return x.contiguous(memory_format=torch.channels_last)


def decoded_images(faces: FaceData, folder: Path, progress: Progress = unheard) -> NDArray[np.uint8]:
    """All images of a set, uint8 [N,3,R,R]: in memory, or where they are many in a file that is written once."""
    shape = (len(faces), 3, faces.resolution, faces.resolution)
    if np.prod(shape) <= RESIDENT:
        return faces.resident().numpy()
    path = folder / f"images-{faces.resolution}-{faces.fingerprint[:16]}.npy"
    with open(folder / ".images.lock", "w") as waiting:
        lock(waiting)
        if not path.exists():
            with atomic_write(path) as file:
                write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
                for part in blocks(len(faces), CHUNK):
                    file.write(faces.subset(range(part.start, part.stop)).resident().numpy().data)
                    progress(part.stop, len(faces), "decoding images")
    return np.load(path, mmap_mode="r")
