"""The diffusion of Revelio with U-Net and schedulers of diffusers: training, and the way from noise to faces."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ficgan.errors import UsageError
from ficgan.lab.attacks.schedules import Kind, Predicts, Schedule
from ficgan.lab.attacks.training import Learner

# (y_t [B,3,S,S], x [B,3,S,S] or None, √γ_t [1]) → what it predicts, [B,3,S,S]
Denoise = Callable[[Tensor, Tensor | None, Tensor], Tensor]
_FREQUENCY = 5000.0  # The noise level √γ in [0, 1] is told by sines of 5000 times it (WaveGrad, §3.2; SR3, §2.4)
_PREDICTION = {"noise": "epsilon", "clear": "sample", "velocity": "v_prediction"}
_VARIANCE = {"ancestral": "fixed_small", "ancestral-beta": "fixed_large"}


@dataclass(frozen=True)
class Architecture:
    """Numbers of a U-Net: `mults` of `base` channels by level; `head` 0 is one head; `patch` 1 is SR3."""

    base: int = 64
    mults: tuple[int, ...] = (1, 2, 4, 8, 8)
    blocks: int = 2
    attention: tuple[int, ...] = (16,)
    head: int = 0
    dropout: float = 0.0
    patch: int = 1

    def sides(self, size: int) -> list[int]:
        """Sides of the levels for images of `size`, falling; UsageError where it cannot be halved so often."""
        factor = self.patch * 2 ** (len(self.mults) - 1)
        if size % factor or size < factor:
            raise UsageError(
                f"a U-Net of {len(self.mults)} levels needs a size that is a multiple of {factor}: not {size}"
            )
        return [size // self.patch // 2**level for level in range(len(self.mults))]


# By name: the bases of the paper, for a GPU; and two for a CPU, at 64 pixels.
PRESETS = {
    "sr3": Architecture(64, (1, 2, 4, 8, 8), dropout=0.2),
    "palette": Architecture(64, (1, 2, 4, 8), head=32, dropout=0.2),
    "small": Architecture(32, (1, 2, 2, 4)),
    "patched": Architecture(48, (1, 2, 2), patch=2),
}


class UNet(nn.Module):
    """f(x, y_t, √γ): noise, clear image or velocity; its training decides which. Untrained it answers zero.

    Args:
        architecture: its numbers.
        size: side of the images, pixels; attention lies where the architecture says for this side.
    """

    def __init__(self, architecture: Architecture, size: int) -> None:
        from diffusers import UNet2DModel

        super().__init__()
        a = self.architecture = architecture
        attends = [side in a.attention for side in a.sides(size)]
        self.unet: Any = UNet2DModel(
            in_channels=6 * a.patch**2,
            out_channels=3 * a.patch**2,
            block_out_channels=tuple(a.base * mult for mult in a.mults),
            down_block_types=tuple("AttnDownBlock2D" if attend else "DownBlock2D" for attend in attends),
            up_block_types=tuple("AttnUpBlock2D" if attend else "UpBlock2D" for attend in reversed(attends)),
            layers_per_block=a.blocks,
            attention_head_dim=a.head or None,
            dropout=a.dropout,
            norm_num_groups=math.gcd(a.base, min(32, max(a.base // 4, 1))),
            resnet_time_scale_shift="scale_shift",
            flip_sin_to_cos=False,
        )
        for name, module in self.named_modules():
            if name.endswith(("conv2", "to_out.0", "conv_out")):
                nn.init.zeros_(module.weight)
                nn.init.zeros_(module.bias)
        self.to(memory_format=torch.channels_last)

    def attention(self) -> list[nn.Module]:
        """Its attention blocks."""
        from diffusers.models.attention_processor import Attention

        return [module for module in self.modules() if isinstance(module, Attention)]

    def forward(self, noisy: Tensor, seen: Tensor | None, root: Tensor) -> Tensor:
        """One answer [B,3,S,S] for each image.

        Args:
            noisy: y_t, [B,3,S,S], variance about 1.
            seen: the anonymised face x, [B,3,S,S] in [−1, 1]; None: unknown, which is zeros.
            root: √γ_t in [0, 1], [B], or [1] where it is the same for all.
        """
        h = torch.cat([torch.zeros_like(noisy) if seen is None else seen, noisy], 1)
        if self.architecture.patch > 1:
            h = F.pixel_unshuffle(h, self.architecture.patch)
        h = h.to(self.unet.dtype, memory_format=torch.channels_last)
        answer: Tensor = self.unet(h, _FREQUENCY * root.float(), return_dict=False)[0]
        return F.pixel_shuffle(answer, self.architecture.patch) if self.architecture.patch > 1 else answer


def noised(clear: Tensor, root: Tensor, noise: Tensor) -> Tensor:
    """y_t = √γ·y_0 + √(1−γ)·ε; clear and noise [B,3,S,S], root √γ [B]."""
    root = root.reshape(-1, 1, 1, 1)
    return root * clear + (1 - root * root).sqrt() * noise


def target(predicts: Predicts, clear: Tensor, noise: Tensor, root: Tensor) -> Tensor:
    """What the network shall answer: ε (eq. 4), y_0, or the velocity √γ·ε − √(1−γ)·y_0 (Salimans and Ho 2022)."""
    if predicts == "velocity":
        root = root.reshape(-1, 1, 1, 1)
        return root * noise - (1 - root * root).sqrt() * clear
    return noise if predicts == "noise" else clear


def levels(schedule: Schedule, spots: Tensor) -> Tensor:
    """Noise levels √γ for training: t uniform on 1…T, then √γ uniform within the step (SR3, §2.4).

    `spots` [B], uniform on [0, 1), are places among the steps; the remainder is the place within one.
    """
    roots = _roots(schedule, spots.device)
    place = spots.double() * schedule.steps
    t = place.long().clamp(max=schedule.steps - 1)
    return torch.lerp(roots[t], roots[t + 1], place - t).to(spots)


@lru_cache(maxsize=16)
def _roots(schedule: Schedule, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.from_numpy(np.sqrt(schedule.gammas)).to(device)


class DiffusionLearner(Learner):
    """E‖f(x, y_t, √γ) − ε‖² under Adam; the running average of the weights is used (Revelio, eq. 4; Palette, §3).

    Args:
        keep: share of the average that a step keeps, less at first.
        dropped: probability that a face is shown no condition, for guidance.
        flip: pairs are mirrored half of the time.
        dtype: of convolutions and products; weights and sums stay float32.
    """

    def __init__(
        self,
        network: nn.Module,
        lr: float,
        schedule: Schedule,
        predicts: Predicts,
        *,
        keep: float = 0.9999,
        dropped: float = 0.0,
        flip: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.network, self.average = network, copy.deepcopy(network).eval().requires_grad_(False)
        averages = dict(self.average.named_parameters())
        learnt = {name: weights for name, weights in network.named_parameters() if weights.requires_grad}
        self._now = [weights.detach() for weights in learnt.values()]
        self._averages: list[Tensor] = [averages[name] for name in learnt]
        adam = torch.optim.Adam(learnt.values(), lr, fused=True)
        super().__init__({"network": network, "average": self.average}, {"adam": adam})
        self.schedule, self.predicts, self.keep, self.dropped, self.flip = schedule, predicts, keep, dropped, flip
        self.precision = str(dtype).removeprefix("torch.")

    @property
    def result(self) -> nn.Module:
        return self.average

    def step(self, seen: Tensor, clear: Tensor, images: int) -> dict[str, Tensor]:
        self.network.train()
        batch = len(seen)
        if self.flip:
            turned = (torch.rand(batch, device=seen.device) < 0.5)[:, None, None, None]
            seen, clear = (torch.where(turned, x.flip(3), x) for x in (seen, clear))
        if self.dropped:
            # In [0, 1] the middle is what zero is to the network.
            hidden = (torch.rand(batch, device=seen.device) < self.dropped)[:, None, None, None]
            seen = seen.masked_fill(hidden, 0.5)
        loss = self._loss(self.network, seen, clear)
        self.descend("adam", loss)
        # The weights as they are into their average, of which the beginning is forgotten faster.
        steps = images // batch
        with torch.no_grad():
            torch._foreach_lerp_(self._averages, self._now, 1 - min(self.keep, (1 + steps) / (10 + steps)))
        return {"loss": loss.detach()}

    def loss(self, seen: Tensor, clear: Tensor) -> Tensor:
        """Of the average."""
        return self._loss(self.average, seen, clear)

    def _loss(self, network: nn.Module, seen: Tensor, clear: Tensor) -> Tensor:
        # One spot in each of as many equal parts: each is uniform, their mean varies less.
        count = len(seen)
        spots = (torch.arange(count, device=seen.device) + torch.rand(count, device=seen.device)) / count
        seen, clear = 2 * seen - 1, 2 * clear - 1
        noise, root = torch.randn_like(clear), levels(self.schedule, spots)
        noisy = noised(clear, root, noise)
        dtype = getattr(torch, self.precision)
        with torch.autocast(seen.device.type, dtype, enabled=dtype != torch.float32):
            answer = network(noisy, seen, root)
        return F.mse_loss(answer.float(), target(self.predicts, clear, noise, root))


# -- from noise to faces -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sampler:
    """How noise becomes an image.

    Args:
        kind: "ancestral": y_s is drawn from q(y_s | ŷ_0, y_t), Revelio's eq. 3, whose roots are misprinted (SR3,
            eq. 4); "ancestral-beta": with the larger variance 1 − α of eq. 5; "ddim": Song et al. 2021, eq. 12.
        count: steps, an evenly spaced sub-sequence of the schedule's.
        eta: of DDIM: 0 draws no noise on the way; 1 is "ancestral".
        guidance: 1: the conditional answer; above it further away from the unconditional one (two passes).
        clip: ŷ_0 is kept in [−1, 1].
    """

    schedule: Schedule
    kind: Kind = "ddim"
    count: int = 20
    eta: float = 0.0
    predicts: Predicts = "noise"
    guidance: float = 1.0
    clip: bool = True

    def scheduler(self) -> tuple[Any, dict[str, Any]]:
        """A scheduler of diffusers whose steps are those of the sub-sequence, and arguments of its `step`."""
        from diffusers import DDIMScheduler, DDPMScheduler

        gammas = self.schedule.gammas[self.schedule.times(self.count)][::-1]
        given: dict[str, Any] = {
            "num_train_timesteps": len(gammas) - 1,
            "trained_betas": 1 - gammas[1:] / gammas[:-1],
            "prediction_type": _PREDICTION[self.predicts],
            "clip_sample": self.clip,
        }
        made: Any
        more: dict[str, Any] = {}
        if self.kind == "ddim":
            made, more = DDIMScheduler(**given), {"eta": self.eta, "use_clipped_model_output": True}
        else:
            made = DDPMScheduler(**given, variance_type=_VARIANCE[self.kind])
        made.set_timesteps(len(gammas) - 1)
        return made, more


@torch.no_grad()
def sample(
    denoise: Denoise, seen: Tensor, sampler: Sampler, *, n: int = 1, seeds: Sequence[int], batch: int = 64
) -> Tensor:
    """n candidates for each anonymised face: [B,n,3,S,S] in [−1, 1].

    Args:
        seen: [B,3,S,S] in [−1, 1], on the network's device.
        seeds: [B·n], candidate by candidate of the first face, then of the second; each determines its candidate.
        batch: most images in one pass of the network; guidance doubles them.
    """
    if len(seeds) != len(seen) * n:
        raise UsageError(f"{len(seen) * n} candidates were asked for with {len(seeds)} seeds; give one for each")
    out = torch.empty(len(seeds), *seen.shape[1:], device=seen.device)
    for start in range(0, len(seeds), max(batch, 1)):
        part = seeds[start : start + max(batch, 1)]
        rows = [index // n for index in range(start, start + len(part))]
        streams = [torch.Generator(seen.device).manual_seed(seed) for seed in part]
        condition = seen[rows].contiguous(memory_format=torch.channels_last)
        out[start : start + len(part)] = _walk(denoise, condition, sampler, streams)
    return out.view(len(seen), n, *seen.shape[1:])


def _walk(denoise: Denoise, seen: Tensor, sampler: Sampler, streams: list[torch.Generator]) -> Tensor:
    from diffusers.utils.torch_utils import randn_tensor

    scheduler, more = sampler.scheduler()
    y = randn_tensor(seen.shape, generator=streams, device=seen.device).contiguous(memory_format=torch.channels_last)
    roots = scheduler.alphas_cumprod.sqrt().to(seen.device)  # at once: each copy would wait
    for t in scheduler.timesteps.tolist():
        answer = _guided(denoise, y, seen, roots[t : t + 1], sampler.guidance)
        y = scheduler.step(answer, t, y, generator=streams, **more).prev_sample
    return y


def _guided(denoise: Denoise, y: Tensor, seen: Tensor, root: Tensor, guidance: float) -> Tensor:
    """Classifier-free guidance (Ho and Salimans 2022, eq. 6, of which the weight is one less)."""
    if guidance == 1:
        return denoise(y, seen, root).float()
    both = torch.cat([seen, torch.zeros_like(seen)])
    known, unknown = denoise(torch.cat([y, y]), both, root).float().chunk(2)
    return unknown.lerp(known, guidance)
