"""Training of the network that adds detail to large faces: the frame's textures, doubled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ficgan import losses
from ficgan.config import Config
from ficgan.data import check_alignment, check_size, open_faces
from ficgan.errors import UsageError
from ficgan.faces import Alignment, MediaPipeMesh, find_meshes
from ficgan.frame import Readings, fine_detail, frame_mask, read_texture, sharpened, stretched
from ficgan.frame.file import load_appearance, save_appearance, sharpness
from ficgan.frame.learn import images_of
from ficgan.models import DetailNetwork, FrameDiscriminator, Network
from ficgan.models.frame import above_mean, local_mean
from ficgan.models.onnx import detail_to_onnx
from ficgan.training.frame import appearance_file, sharpness_under
from ficgan.training.state import TrainingState
from ficgan.training.stats import Say, save_grid, unheard
from ficgan.training.step import Weights

__all__ = ["DetailTask"]

Floats = NDArray[np.float32]
HELD_OUT = 8
"""Every so-many-th face is never trained on: such sets are small."""
PRESENCE, MOST_YAW = 10.0, 0.3
"""Least score of a mesh that is learnt from, and its most turn, radians."""
BANDS = (3, 5, 9, 17)
"""Sides in pixels of the means between which bands of detail lie."""
_GREY = np.array([0.299, 0.587, 0.114], np.float32)


class _Batch(NamedTuple):
    """Faces [B] as the product has them before detail is added, and what is to be learnt from.

    Args:
        texture: [B,3,R,R] in [−1, 1].
        base: [B,1,2R,2R], luminance of the same, doubled, in [0, 1].
        real: [B,1,2R,2R], the tone of `base` with the detail of the photo.
        fine: [B], how much detail the photo has, the standard deviation of its `fine_detail`.
        own: [B], 1 where `real` is what `texture` would be; 0 for drawn faces.
    """

    texture: Tensor
    base: Tensor
    real: Tensor
    fine: Tensor
    own: Tensor


class _Judged(NamedTuple):
    real: Tensor
    fake: Tensor


class DetailTask:
    """Photos of at least twice the frame's size, read into the frame at both sizes."""

    verify = None

    def __init__(
        self, config: Config, data: Sequence[Path | str], labels: Path | str | None, split: str | None,
        device: torch.device,
    ) -> None:  # fmt: skip
        assert config.model.detail is not None
        self.config, self.device = config, device
        self.path = appearance_file(config.model.detail.appearance)
        self.model, self.frame, self.info, self.network = load_appearance(self.path)
        if config.model.resolution != 2 * self.model.size:
            raise UsageError(
                f"model.resolution is {config.model.resolution}, and {self.path} has textures of {self.model.size}²: "
                f"set it to {2 * self.model.size}"
            )
        self.faces = open_faces(data, resolution=config.model.resolution, labels=labels, split=split)
        check_alignment(self.faces, Alignment("canonical"))
        check_size(self.faces)

    def __len__(self) -> int:
        return len(self.rows)

    def prepare(self, out: Path, models: Sequence[Network], say: Say = unheard) -> None:
        """Read the faces; sets of such photos are small, so they stay in memory."""
        del out, models
        self.read_faces(say)

    def read_faces(self, say: Say = unheard) -> None:
        """Read the faces at both sizes; see `prepare`."""
        appearance, mesh = self.model, MediaPipeMesh(device="cpu")
        points = Alignment().points(self.faces.resolution)[None]
        reads = []
        doubles: list[NDArray[np.uint8]] = []
        smalls: list[NDArray[np.uint8]] = []
        for number, image in enumerate(images_of(self.faces)):
            say("reading faces", number + 1, len(self.faces))
            found = find_meshes(mesh, image, points)[0]
            if found.presence < PRESENCE:
                continue
            read = appearance.shape.read(found.points[None])
            if abs(float(read.pose.yaw[0])) > MOST_YAW:
                continue
            for finer, into in ((2, doubles), (1, smalls)):
                into.append(read_texture(image, read.upright[0], read.points[0], appearance.warp, finer=finer))
            reads.append(found.points)
        every = np.arange(len(reads))
        held_out = every % HELD_OUT == HELD_OUT - 1
        self.rows, self.held_out = every[~held_out], every[held_out]
        if len(self.rows) < self.config.optimizer.batch:
            raise UsageError(f"{len(self.rows)} clear faces are fewer than one batch of {self.config.optimizer.batch}")
        self.read: Readings = appearance.shape.read(np.stack(reads))
        self.doubles, self.smalls = np.stack(doubles), np.stack(smalls)
        self.codes, self.moment = appearance.encode(self.smalls, self.read)
        self.fine = np.array([fine_detail(one, appearance.fine_pixels).std() for one in self.doubles])
        mask = frame_mask(appearance.shape.front, self.config.model.resolution, inset=3.0, feather=1.0)
        self.mask = torch.from_numpy(mask)[None, None].to(self.device)

    def generator_step(
        self, state: TrainingState, judge: FrameDiscriminator, indices: Tensor, weights: Weights, share: float,
        rng: torch.Generator,
    ) -> tuple[_Judged, dict[str, Tensor]]:  # fmt: skip
        """Accumulate gradients for one round; returns what D will judge, and the terms of the loss."""
        drawn = np.random.default_rng(int(torch.randint(2**62, (), generator=rng)))
        assert self.config.model.detail is not None
        batch = self._batch(self.rows[indices.numpy()], drawn, hidden=self.config.model.detail.hidden)
        # Of two draws of noise the mean is what the texture tells: it is to be right. Their difference is random: it is
        # to be as strong as what the mean misses. Were all detail to be strong, a fixed pattern would do.
        first, second = (self._detail(state.model, batch, rng) for _ in range(2))
        fake, middle, by_chance = batch.base + first, (first + second) / 2, (first - second) / 2**0.5
        missed = batch.real - batch.base - middle
        own = batch.own / batch.own.sum().clamp_min(1)
        unit = batch.fine[:, None, None, None]
        stronger = self._energies(by_chance, unit) - self._energies(missed.detach(), unit)
        terms = {
            "rec": ((missed.abs() * self.mask / unit).mean((1, 2, 3)) * own).sum() / self.mask.mean(),
            "energy": (stronger.abs().mean((1, 2, 3)) * own).sum(),
        }
        total = weights.reconstruction * terms["rec"] + self.config.loss.energy * terms["energy"]
        seen = _Judged(self._seen(batch.real, unit), self._seen(fake, unit))
        if weights.adversarial > 0:
            terms["adv"] = self._adversarial(judge(seen.fake, self.mask), real=True)
            total = total + weights.adversarial * terms["adv"]
        terms["total"] = total
        (total * share).backward()
        return _Judged(seen.real, seen.fake.detach()), {name: term.detach() for name, term in terms.items()}

    def discriminator_step(
        self, state: TrainingState, judge: FrameDiscriminator, made: _Judged, share: float
    ) -> dict[str, Tensor]:
        """Accumulate D's gradients for one round of `generator_step`."""
        del state
        real, fake = judge(made.real, self.mask), judge(made.fake, self.mask)
        loss = self._adversarial(real, real=True) + self._adversarial(fake, real=False)
        (loss * share).backward()
        right = ((real[0] > 0).float().mean() + (fake[0] < 0).float().mean()) / 2
        return {"d": loss.detach(), "d_right": right.detach(), "r_t": real[0].detach().sign().mean()}

    def r1_step(self, state: TrainingState, made: _Judged, weight: float, share: float) -> dict[str, Tensor]:
        """Accumulate the gradients of R1 for one round."""
        with torch.autocast(self.device.type, enabled=False):
            real = made.real.detach().requires_grad_(True)
            (logits,) = state.discriminator(real, self.mask)
            penalty = losses.r1_penalty(logits.mean((1, 2, 3)), real).mean()
            (penalty * (weight * share)).backward()
        return {"r1": penalty.detach()}

    def _adversarial(self, logits: list[Tensor], *, real: bool) -> Tensor:
        weight = F.adaptive_avg_pool2d(self.mask, logits[0].shape[2:])  # type: ignore[arg-type]
        return losses.local_adversarial(logits, [weight], real=real).mean()

    def _batch(self, rows: NDArray[np.int64], rng: np.random.Generator, *, hidden: float) -> _Batch:
        """Rows of the set as the linear model has them, a share of them as somebody drawn.

        A draw is somebody whose coefficients are Gaussian, of a spread between a mean face and a person. Sharpness, the
        share of the photo itself (no network makes a face as smooth as the linear model), and the side vary.
        """
        model, shape = self.model, len(self.model.shape.basis)
        own = rng.random(len(rows)) >= hidden
        codes = self.codes[rows].copy()
        drawn = rng.random((len(rows), 1)) * rng.standard_normal(codes.shape)
        drawn[:, shape : shape + model.lights] = 0
        codes[~own, shape:] = drawn[~own, shape:]
        taken = np.repeat(~own[:, None], codes.shape[1], 1)
        textures = self.smalls[rows].astype(np.float32) / np.float32(255)
        made = textures.copy()
        made.reshape(len(rows), -1, 3)[:, model.pixels] = model.decode(codes, self.moment.take(rows), taken)
        pictures = []
        for number, row in enumerate(rows):
            gains = np.power(self.frame.gains, rng.uniform(0.2, 0.7))
            texture = sharpened(made[number], gains.tolist())
            if own[number] and rng.random() < 0.3:
                texture = texture + np.float32(rng.random()) * (textures[number] - texture)
            base = stretched(texture, 2)
            double = self.doubles[row].astype(np.float32) / np.float32(255)
            parts = [texture, base, double]
            if hidden and rng.random() < 0.5:
                parts = [one[:, ::-1] for one in parts]
            pictures.append(parts)
        stacked = (np.ascontiguousarray(np.stack(part)) for part in zip(*pictures, strict=True))
        given, doubled, photo = (torch.from_numpy(part).to(self.device) for part in stacked)
        grey = torch.from_numpy(_GREY).to(self.device)
        tone = (doubled @ grey)[:, None]
        real = tone - above_mean(tone) + above_mean((photo @ grey)[:, None])
        fine, known = (torch.from_numpy(one.astype(np.float32)).to(self.device) for one in (self.fine[rows], own))
        return _Batch(given.permute(0, 3, 1, 2) * 2 - 1, tone, real, fine, known)

    @staticmethod
    def _detail(model: Network, batch: _Batch, rng: torch.Generator) -> Tensor:
        assert isinstance(model, DetailNetwork)
        noise = torch.randn(len(batch.texture), 16, model.size // 2, model.size // 2, generator=rng).to(batch.texture)
        told = torch.from_numpy(sharpness(batch.fine.cpu().numpy())).to(batch.texture)
        detail: Tensor = model(batch.texture, told, noise)
        return batch.fine[:, None, None, None] * detail

    def _energies(self, image: Tensor, unit: Tensor) -> Tensor:
        """Logarithm of the local strength of the bands of detail [B,4,h,w], under the mask."""
        image = image / unit
        out, sharper = [], image
        for side in BANDS:
            softer = local_mean(image, side)
            out.append(F.avg_pool2d((sharper - softer).square(), 16, 8))
            sharper = softer
        return torch.cat(out, 1).add(0.01).log() * F.avg_pool2d(self.mask, 16, 8)

    def _seen(self, image: Tensor, unit: Tensor) -> Tensor:
        """What D is shown of luminance [B,1,2R,2R]: tone, and detail of even strength, [B,3,2R,2R]."""
        fine = above_mean(image)
        return torch.cat([2 * (image - fine) - 1, fine / (4 * unit), fine / (4 * unit)], 1)

    def save(self, path: Path, model: Network, training: dict[str, Any]) -> None:
        """Write the appearance model with the network, as one file."""
        assert isinstance(model, DetailNetwork)
        network = np.frombuffer(detail_to_onnx(model).SerializeToString(), np.uint8)
        record = {**training, "licence": self.config.data_licence, "fingerprint": self.faces.fingerprint}
        info = replace(self.info, training={**self.info.training, "detail": record})
        made = replace(self.model, detail_network=network)
        save_appearance(path, made, self.frame, info, overwrite=True, network=self.network)

    @torch.no_grad()
    def snapshot(self, model: Network, path: Path) -> None:
        """Write a sheet of held-out faces.

        Rows: photo; reconstruction, doubled; the same with lent detail; with the network's; a draw, in the same ways.
        """
        rows = self.held_out[:12]
        sheet = [torch.from_numpy(self.doubles[rows]).permute(0, 3, 1, 2).float() / 127.5 - 1]
        for hidden in (0.0, 1.0):
            batch, bases = self.plain(rows, hidden)
            detail = self._detail(model, batch, torch.Generator().manual_seed(0)).cpu()
            for added in (torch.zeros_like(detail), self.lent(batch, rows).cpu(), detail):
                sheet.append(2 * (bases + added) - 1)
        save_grid(torch.stack(sheet), path)

    @torch.no_grad()
    def judge(self, model: Network) -> dict[str, float]:
        """Figures of held-out faces' reconstructions, with the network's detail, with lent detail and with none.

        Returns:
            `l1`: mean difference in luminance under the mask, `energy`: difference in the logarithm of the local
            strength of detail, `sharpness`: variance of the Laplacian, of the photo's.
        """
        batch, _ = self.plain(self.held_out, 0.0)
        unit = batch.fine[:, None, None, None]
        added = {
            "": self._detail(model, batch, torch.Generator().manual_seed(0)), "_lent": self.lent(batch, self.held_out),
            "_none": torch.zeros_like(batch.base),
        }  # fmt: skip
        sharp, out = sharpness_under(batch.real, self.mask), {}
        for end, detail in added.items():
            image = batch.base + detail
            out[f"l1{end}"] = float(((image - batch.real).abs() * self.mask).mean() / self.mask.mean())
            out[f"energy{end}"] = float((self._energies(image, unit) - self._energies(batch.real, unit)).abs().mean())
            out[f"sharpness{end}"] = float((sharpness_under(image, self.mask) / sharp).log().mean().exp())
        return out

    def plain(self, rows: NDArray[np.int64], hidden: float) -> tuple[_Batch, Tensor]:
        """A batch, the same each time, and its colours doubled [B,3,2R,2R] in [0, 1]."""
        batch = self._batch(rows, np.random.default_rng(0), hidden=hidden)
        small = ((batch.texture + 1) / 2).permute(0, 2, 3, 1).cpu().numpy()
        bases = np.stack([stretched(np.ascontiguousarray(one), 2) for one in small])
        return batch, torch.from_numpy(bases).permute(0, 3, 1, 2)

    def lent(self, batch: _Batch, rows: NDArray[np.int64]) -> Tensor:
        """Detail of other faces [B,1,2R,2R], as it was lent before there was a network."""
        if not len(self.model.details):
            return torch.zeros_like(batch.base)
        looks, kept = self.model.lenders, self.moment.kept[rows]
        near = [int(np.argsort(np.square(looks - one).sum(1))[number % 6]) for number, one in enumerate(kept)]
        lent = torch.from_numpy(np.stack([self.model.detail(one) for one in near]))[:, None].to(self.device)
        return lent * (batch.fine / self.model.detail_sd)[:, None, None, None]

    def reals(self) -> Tensor:
        """The first faces of the set as a square grid [r,r,3,2R,2R]."""
        side = min(6, int(len(self.doubles) ** 0.5))
        pictures = torch.from_numpy(self.doubles[: side * side]).permute(0, 3, 1, 2).float() / 127.5 - 1
        return pictures.unflatten(0, (side, side))


