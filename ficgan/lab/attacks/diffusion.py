"""The diffusion of Revelio: its U-Net after SR3, how it is trained, and the way from noise to faces."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ficgan.errors import UsageError
from ficgan.lab.attacks.revelio import Kind, Predicts, Schedule
from ficgan.lab.attacks.training import Learner

L = TypeVar("L", nn.Conv2d, nn.Linear)
Denoise = Callable[[Tensor, Tensor | None, Tensor], Tensor]
"""(y_t [B,3,S,S], x [B,3,S,S] or None, √γ_t [1]) → what it predicts, [B,3,S,S]."""


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


PRESETS = {
    "sr3": Architecture(64, (1, 2, 4, 8, 8), dropout=0.2),
    "palette": Architecture(64, (1, 2, 4, 8), head=32, dropout=0.2),
    "small": Architecture(32, (1, 2, 2, 4)),
    "patched": Architecture(48, (1, 2, 2), patch=2),
}
"""By name: the bases of the paper, for a GPU; and two for a CPU, at 64 pixels."""


class UNet(nn.Module):
    """f(x, y_t, √γ): noise, clear image or velocity; its training decides which.

    Args:
        architecture: its numbers.
        size: side of the images, pixels; attention lies where the architecture says for this side.
    """

    def __init__(self, architecture: Architecture, size: int) -> None:
        super().__init__()
        a = self.architecture = architecture
        levels = list(zip(a.sides(size), [a.base * mult for mult in a.mults], strict=True))
        self.level = NoiseLevel(a.base)
        self.first = nn.Conv2d(6 * a.patch**2, a.base, 3, padding=1)

        def block(inner: int, outer: int, side: int) -> Block:
            return Block(inner, outer, 4 * a.base, a.dropout, a.head if side in a.attention else None)

        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        channels, kept = a.base, [a.base]
        for level, (side, width) in enumerate(levels):
            if level:
                self.down.append(nn.Conv2d(channels, channels, 3, stride=2, padding=1))
                kept.append(channels)
            for _ in range(a.blocks):
                self.down.append(block(channels, width, side))
                channels = width
                kept.append(channels)
        self.middle = nn.ModuleList(Block(channels, channels, 4 * a.base, a.dropout, head) for head in (a.head, None))
        for level, (side, width) in reversed(list(enumerate(levels))):
            for _ in range(a.blocks + 1):
                self.up.append(block(channels + kept.pop(), width, side))
                channels = width
            if level:
                self.up.append(Up(channels))
        self.norm = Norm(channels)
        self.last = _zero(nn.Conv2d(channels, 3 * a.patch**2, 3, padding=1))
        self.to(memory_format=torch.channels_last)

    def forward(self, noisy: Tensor, seen: Tensor | None, root: Tensor) -> Tensor:
        """One answer [B,3,S,S] for each image.

        Args:
            noisy: y_t, [B,3,S,S], variance about 1.
            seen: the anonymised face x, [B,3,S,S] in [−1, 1]; None: unknown, which is zeros.
            root: √γ_t in [0, 1], [B], or [1] where it is the same for all.
        """
        level = self.level(root)
        h = torch.cat([torch.zeros_like(noisy) if seen is None else seen, noisy], 1)
        if self.architecture.patch > 1:
            h = F.pixel_unshuffle(h, self.architecture.patch)
        h = self.first(h.to(self.first.weight.dtype, memory_format=torch.channels_last))
        kept = [h]
        for part in self.down:
            h = part(h, level) if isinstance(part, Block) else part(h)
            kept.append(h)
        for part in self.middle:
            h = part(h, level)
        for part in self.up:
            h = part(torch.cat([h, kept.pop()], 1), level) if isinstance(part, Block) else part(h)
        h = self.last(_silu(self.norm(h)))
        return F.pixel_shuffle(h, self.architecture.patch) if self.architecture.patch > 1 else h


class NoiseLevel(nn.Module):
    """√γ → [B, 4·width]: sines and cosines of the continuous level, then two layers (WaveGrad, §3.2; SR3, §2.4)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.waves = width // 2
        self.enter, self.leave = nn.Linear(2 * self.waves, 4 * width), nn.Linear(4 * width, 4 * width)

    def forward(self, root: Tensor) -> Tensor:
        # Made here and no buffer: in half precision it would be another function.
        frequencies = torch.exp(torch.arange(self.waves, device=root.device) * (-math.log(1e4) / self.waves))
        angles = 5000 * root[:, None].float() * frequencies
        waves = torch.cat([angles.sin(), angles.cos()], 1).to(self.enter.weight.dtype)
        return F.silu(self.leave(F.silu(self.enter(waves))))


class Block(nn.Module):
    """Two convolutions beside the identity; the noise level scales and shifts between them; attention at its end."""

    def __init__(self, inner: int, outer: int, level: int, dropout: float, head: int | None) -> None:
        super().__init__()
        self.norm, self.conv = Norm(inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.affine = nn.Linear(level, 2 * outer)
        self.second_norm, self.second_conv = Norm(outer), _zero(nn.Conv2d(outer, outer, 3, padding=1))
        self.skip = Pointwise(inner, outer) if inner != outer else nn.Identity()
        self.dropout = dropout
        self.attention = Attention(outer, head) if head is not None else None

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        h = self.conv(_silu(self.norm(x)))
        h = _silu(self.second_norm(h, self.affine(level)))
        if self.training and self.dropout:
            h = F.dropout(h, self.dropout)
        h = self.skip(x) + self.second_conv(h)
        return h if self.attention is None else self.attention(h)


class Norm(nn.GroupNorm):
    """Group normalisation in at most 32 groups of four channels or more; its affine part may come from outside too."""

    def __init__(self, channels: int) -> None:
        super().__init__(math.gcd(channels, min(32, max(channels // 4, 1))), channels)

    def forward(self, x: Tensor, affine: Tensor | None = None) -> Tensor:
        """x·(1 + scale) + shift of the normalised x [B,C,H,W], affine [B,2C] = (scale, shift)."""
        if x.dtype == torch.bfloat16 and x.device.type == "cpu" and torch.is_grad_enabled():
            # torch's derivative in bfloat16 takes up to four times as long as there and back in float32.
            normed = F.group_norm(x.float(), self.num_groups, self.weight, self.bias, self.eps).to(x.dtype)
        else:
            normed = F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
        if affine is None:
            return normed
        scale, shift = affine[:, :, None, None].chunk(2, 1)
        return torch.addcmul(shift, normed, scale + 1)


class Attention(nn.Module):
    """Every position looks at every other one, beside the identity."""

    def __init__(self, channels: int, head: int = 0) -> None:
        super().__init__()
        self.heads = channels // math.gcd(channels, head) if head else 1
        self.norm = Norm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = _zero(nn.Linear(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        # Channels last: positions are rows already, and these are views.
        rows = self.norm(x).permute(0, 2, 3, 1).reshape(batch, height * width, channels)
        q, k, v = self.qkv(rows).view(batch, height * width, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, height, width, channels)
        return x + self.out(mixed).permute(0, 3, 1, 2)


class Pointwise(nn.Linear):
    """A 1×1 convolution as one matrix product, for channels last; torch's own is far slower on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Up(nn.Module):
    """Twice the side: nearest neighbour, then a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2, mode="nearest"))


def _silu(x: Tensor) -> Tensor:
    return F.silu(x, inplace=not torch.is_grad_enabled())


def _zero(layer: L) -> L:
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def noised(clear: Tensor, root: Tensor, noise: Tensor) -> Tensor:
    """y_t = √γ·y_0 + √(1−γ)·ε; clear and noise [B,3,S,S], root √γ [B] or one number."""
    root = root.reshape(-1, 1, 1, 1)
    return root * clear + (1 - root * root).sqrt() * noise


def target(predicts: Predicts, clear: Tensor, noise: Tensor, root: Tensor) -> Tensor:
    """What the network shall answer: ε (eq. 4), y_0, or the velocity √γ·ε − √(1−γ)·y_0 (Salimans and Ho 2022)."""
    if predicts == "velocity":
        root = root.reshape(-1, 1, 1, 1)
        return root * noise - (1 - root * root).sqrt() * clear
    return noise if predicts == "noise" else clear


def clear_of(predicts: Predicts, answer: Tensor, noisy: Tensor, gamma: float) -> Tensor:
    """ŷ_0 from the network's answer at y_t, not clipped; γ > 0 where it predicts noise."""
    if predicts == "noise":
        return (noisy - (1 - gamma) ** 0.5 * answer) / gamma**0.5
    if predicts == "velocity":
        return gamma**0.5 * noisy - (1 - gamma) ** 0.5 * answer
    return answer


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


class Posterior(NamedTuple):
    """q(y_s | y_0, y_t) = N(clear·y_0 + noisy·y_t, variance·I)."""

    clear: float
    noisy: float
    variance: float


def posterior(gamma: float, before: float) -> Posterior:
    """Mean and variance of y_s given y_0 and y_t, s < t, γ_t in [0, 1) and γ_s (`before`) in (γ_t, 1].

    With s = t − 1 it is Revelio's eq. 3, whose roots are misprinted (SR3, eq. 4).
    """
    alpha = gamma / before
    return Posterior(
        before**0.5 * (1 - alpha) / (1 - gamma),
        alpha**0.5 * (1 - before) / (1 - gamma),
        (1 - before) * (1 - alpha) / (1 - gamma),
    )


class Step(NamedTuple):
    """y_s = clear·ŷ_0 + noisy·y_t + fresh·z at a noise level, √γ_t."""

    gamma: float
    clear: float
    noisy: float
    fresh: float


@dataclass(frozen=True)
class Sampler:
    """How noise becomes an image.

    Args:
        kind: "ancestral": y_s is drawn from q(y_s | ŷ_0, y_t), eq. 3; "ancestral-beta": with the larger variance 1 − α
            of eq. 5; "ddim": Song et al. 2021, eq. 12.
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

    def steps(self) -> list[Step]:
        """The numbers of all steps, the noisiest first. The last adds no noise."""
        gammas = self.schedule.gammas[self.schedule.times(self.count)].tolist()
        return [self._step(gamma, before) for gamma, before in pairwise(gammas)]

    def _step(self, gamma: float, before: float) -> Step:
        q = posterior(gamma, before)
        if self.kind != "ddim":
            fresh = q.variance if self.kind == "ancestral" else (1 - gamma / before) * (before < 1)
            return Step(gamma, q.clear, q.noisy, fresh**0.5)
        variance = self.eta**2 * q.variance
        # ε̂ = (y_t − √γ_t·ŷ_0) / √(1−γ_t), put into √γ_s·ŷ_0 + √(1−γ_s−σ²)·ε̂ + σ·z
        noisy = (max(1 - before - variance, 0.0) / (1 - gamma)) ** 0.5
        return Step(gamma, before**0.5 - noisy * gamma**0.5, noisy, variance**0.5)


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


def _walk(denoise: Denoise, seen: Tensor, sampler: Sampler, streams: Sequence[torch.Generator]) -> Tensor:
    y, steps = _draw(seen, streams), sampler.steps()
    roots = torch.tensor([step.gamma**0.5 for step in steps], device=seen.device)  # at once: each copy would wait
    for step, root in zip(steps, roots.split(1), strict=True):
        answer = _guided(denoise, y, seen, root, sampler.guidance)
        clear = clear_of(sampler.predicts, answer, y, step.gamma)
        if sampler.clip:
            clear = clear.clamp(-1, 1)
        y = clear.mul(step.clear).add_(y, alpha=step.noisy)
        if step.fresh > 0:
            y.add_(_draw(seen, streams), alpha=step.fresh)
    return y


def _guided(denoise: Denoise, y: Tensor, seen: Tensor, root: Tensor, guidance: float) -> Tensor:
    """Classifier-free guidance (Ho and Salimans 2022, eq. 6, of which the weight is one less)."""
    if guidance == 1:
        return denoise(y, seen, root).float()
    both = torch.cat([seen, torch.zeros_like(seen)])
    known, unknown = denoise(torch.cat([y, y]), both, root).float().chunk(2)
    return unknown.lerp(known, guidance)


def _draw(like: Tensor, streams: Sequence[torch.Generator]) -> Tensor:
    """Standard normal numbers [B,3,S,S], each image's from its own stream."""
    images = torch.empty(like.shape, device=like.device)
    for image, stream in zip(images, streams, strict=True):
        image.normal_(generator=stream)
    return images.contiguous(memory_format=torch.channels_last)
