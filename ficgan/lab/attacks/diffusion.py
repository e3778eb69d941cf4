"""The diffusion of Revelio with U-Net and schedulers of diffusers: noise, training, and the way from noise to faces."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ficgan.errors import UsageError
from ficgan.lab.attacks.training import Learner

# (y_t [B,3,S,S], x [B,3,S,S], √γ_t [1]) → what it predicts, [B,3,S,S]
Denoise = Callable[[Tensor, Tensor, Tensor], Tensor]
_FREQUENCY = 5000.0  # The noise level √γ in [0, 1] enters as sines of 5000 times it (WaveGrad, §3.2; SR3, §2.4)


@dataclass(frozen=True)
class Schedule:
    """Variances β_t of steps 1…T, linear in t; α_t = 1 − β_t, γ_t = Π α_s (Revelio, eq. 2; SR3, §2)."""

    steps: int
    first: float
    last: float

    @cached_property
    def gammas(self) -> NDArray[np.float64]:
        """[T+1], γ_0 = 1 … γ_T."""
        return np.cumprod([1.0, *(1 - np.linspace(self.first, self.last, self.steps))])

    def times(self, count: int) -> NDArray[np.int64]:
        """A falling sub-sequence T…0 of at most `count` steps, evenly spaced (all of them where count ≥ T)."""
        return np.unique(np.linspace(0, self.steps, min(count, self.steps) + 1).round().astype(np.int64))[::-1]


# By name: SR3's; the shorter one with which Palette is tested (Σβ = 45, so that nothing at all is left of the image);
# SR3's in fewer steps.
SCHEDULES = {
    "sr3": Schedule(2000, 1e-6, 1e-2),
    "palette-test": Schedule(1000, 1e-4, 0.09),
    "small": Schedule(200, 1e-5, 0.1),
}


@dataclass(frozen=True)
class Sampler:
    """How noise becomes an image."""

    schedule: Schedule
    # "ancestral-beta": y_s is drawn from q(y_s | ŷ_0, y_t) (Revelio's eq. 3, whose roots are misprinted; SR3, eq. 4)
    # with the variance 1 − α of eq. 5; "ddim": with its own smaller variance (Song et al. 2021, eq. 12, η = 1), which
    # suits few steps
    kind: str = "ddim"
    count: int = 20  # Steps, an evenly spaced sub-sequence of the schedule's
    predicts: str = "noise"  # "noise" or "clear"
    clip: bool = True  # Whether ŷ_0 is kept in [−1, 1]


@dataclass(frozen=True)
class Architecture:
    """Numbers of a U-Net: `mults` of `base` channels by level; `head` 0 is one head; `patch` 1 is SR3."""

    base: int
    mults: tuple[int, ...]
    blocks: int = 2
    head: int = 0
    dropout: float = 0.0
    patch: int = 1


# By name: the bases of the paper, for a GPU; two for a CPU, at 64 pixels; and one to try the software with.
PRESETS = {
    "sr3": Architecture(64, (1, 2, 4, 8, 8), dropout=0.2),
    "palette": Architecture(64, (1, 2, 4, 8), head=32, dropout=0.2),
    "small": Architecture(32, (1, 2, 2, 4)),
    "patched": Architecture(48, (1, 2, 2), patch=2),
    "tiny": Architecture(16, (1, 2), blocks=1),
}
_ATTENDS = 16  # Side of the levels that have attention


class UNet(nn.Module):
    """f(x, y_t, √γ): noise or clear image; its training decides which. Untrained it answers zero."""

    def __init__(self, architecture: Architecture, size: int) -> None:
        from diffusers import UNet2DModel

        super().__init__()
        a = self.architecture = architecture
        factor = a.patch * 2 ** (len(a.mults) - 1)
        if size % factor:
            raise UsageError(f"this U-Net of {len(a.mults)} levels needs a size that is a multiple of {factor}")
        attends = [size == _ATTENDS * a.patch * 2**level for level in range(len(a.mults))]
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

    def forward(self, noisy: Tensor, seen: Tensor, root: Tensor) -> Tensor:
        """y_t and the anonymised face x, both [B,3,S,S], and √γ_t in [0, 1], [B] or [1] → an answer [B,3,S,S]."""
        h = F.pixel_unshuffle(torch.cat([seen, noisy], 1), self.architecture.patch)
        h = h.to(self.unet.dtype, memory_format=torch.channels_last)
        answer: Tensor = self.unet(h, _FREQUENCY * root.float(), return_dict=False)[0]
        return F.pixel_shuffle(answer, self.architecture.patch)


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
    """E‖f(x, y_t, √γ) − ε‖² under Adam, or − y_0 where the clear image is predicted (Revelio, eq. 4; Palette, §3).

    The running average of the weights is used, of which a step keeps the share `keep`, less at first. `dtype` is of
    convolutions and products; weights and sums stay float32.
    """

    def __init__(
        self,
        network: nn.Module,
        lr: float,
        schedule: Schedule,
        predicts: str,
        *,
        keep: float = 0.9999,
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
        self.schedule, self.predicts, self.keep, self.flip = schedule, predicts, keep, flip
        self.precision = str(dtype).removeprefix("torch.")

    @property
    def result(self) -> nn.Module:
        return self.average

    def step(self, seen: Tensor, clear: Tensor, images: int) -> dict[str, Tensor]:
        self.network.train()
        if self.flip:
            turned = (torch.rand(len(seen), device=seen.device) < 0.5)[:, None, None, None]
            seen, clear = (torch.where(turned, x.flip(3), x) for x in (seen, clear))
        loss = self._loss(self.network, seen, clear)
        self.descend("adam", loss)
        # The weights as they are into their average, of which the beginning is forgotten faster.
        steps = images // len(seen)
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
        wide = root.reshape(-1, 1, 1, 1)
        noisy = wide * clear + (1 - wide * wide).sqrt() * noise  # y_t = √γ·y_0 + √(1−γ)·ε
        dtype = getattr(torch, self.precision)
        with torch.autocast(seen.device.type, dtype, enabled=dtype != torch.float32):
            answer = network(noisy, seen, root)
        return F.mse_loss(answer.float(), noise if self.predicts == "noise" else clear)


def scheduler_of(sampler: Sampler) -> tuple[Any, dict[str, Any]]:
    """A scheduler of diffusers whose steps are those of the sub-sequence, and arguments of its `step`."""
    from diffusers import DDIMScheduler, DDPMScheduler

    gammas = sampler.schedule.gammas[sampler.schedule.times(sampler.count)][::-1]
    given: dict[str, Any] = {
        "num_train_timesteps": len(gammas) - 1,
        "trained_betas": 1 - gammas[1:] / gammas[:-1],
        "prediction_type": "epsilon" if sampler.predicts == "noise" else "sample",
        "clip_sample": sampler.clip,
    }
    made: Any
    if sampler.kind == "ddim":
        made, more = DDIMScheduler(**given), {"eta": 1.0, "use_clipped_model_output": True}
    else:
        made, more = DDPMScheduler(**given, variance_type="fixed_large"), {}
    made.set_timesteps(len(gammas) - 1)
    return made, more


@torch.no_grad()
def sample(denoise: Denoise, seen: Tensor, sampler: Sampler, seeds: Sequence[int]) -> Tensor:
    """A candidate for each anonymised face `seen` [B,3,S,S] in [−1, 1], drawn by its seed: the same shape and range."""
    from diffusers.utils.torch_utils import randn_tensor

    scheduler, more = scheduler_of(sampler)
    streams = [torch.Generator(seen.device).manual_seed(seed) for seed in seeds]
    seen = seen.contiguous(memory_format=torch.channels_last)
    y = randn_tensor(seen.shape, generator=streams, device=seen.device).contiguous(memory_format=torch.channels_last)
    roots = scheduler.alphas_cumprod.sqrt().to(seen.device)  # at once: each copy would wait
    for t in scheduler.timesteps.tolist():
        answer = denoise(y, seen, roots[t : t + 1]).float()
        y = scheduler.step(answer, t, y, generator=streams, **more).prev_sample
    return y
