"""From noise to faces: the reverse of a diffusion, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from ficgan.errors import UsageError
from ficgan.lab.attacks.diffusion.schedule import Predicts, Schedule, clear_of, posterior

__all__ = ["SAMPLERS", "Sampler", "Step", "sample"]

Kind = Literal["ddim", "ancestral", "ancestral-beta"]
SAMPLERS = ("ddim", "ancestral", "ancestral-beta")
Denoise = Callable[[Tensor, Tensor | None, Tensor], Tensor]
"""(y_t [B,3,S,S], x [B,3,S,S] or None, √γ_t [1]) → what it predicts, [B,3,S,S]."""


@dataclass(frozen=True)
class Step:
    """y_s = clear·ŷ_0 + noisy·y_t + fresh·z at a noise level, √γ_t."""

    gamma: float
    clear: float
    noisy: float
    fresh: float


@dataclass(frozen=True)
class Sampler:
    """How noise becomes an image.

    Args:
        schedule: of the noise.
        kind: "ancestral": y_s is drawn from q(y_s | ŷ_0, y_t), eq. 3 (what the released SR3 and Palette do);
            "ancestral-beta": with the larger variance 1 − α of eq. 5; "ddim": Song et al. 2021, eq. 12.
        count: steps, an evenly spaced sub-sequence of the schedule's.
        eta: of DDIM: 0 draws no noise on the way; 1 is "ancestral".
        predicts: what the network answers.
        guidance: 1: the conditional answer; above it that much further away from the unconditional one (two passes).
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
        if self.kind == "ancestral-beta":
            return Step(gamma, q.clear, q.noisy, (1 - gamma / before) ** 0.5 if before < 1 else 0.0)
        if self.kind == "ancestral":
            return Step(gamma, q.clear, q.noisy, q.variance**0.5)
        variance = self.eta**2 * q.variance
        # ε̂ = (y_t − √γ_t·ŷ_0) / √(1−γ_t), put into √γ_s·ŷ_0 + √(1−γ_s−σ²)·ε̂ + σ·z
        noisy = (max(1 - before - variance, 0.0) / (1 - gamma)) ** 0.5
        return Step(gamma, before**0.5 - noisy * gamma**0.5, noisy, variance**0.5)


@torch.no_grad()
def sample(
    denoise: Denoise, seen: Tensor, sampler: Sampler, *, n: int = 1, seeds: Sequence[int], batch: int = 64
) -> Tensor:
    """n candidates for each anonymised face.

    Args:
        denoise: the network.
        seen: [B,3,S,S] in [−1, 1], on the network's device.
        sampler: how.
        n: candidates of each.
        seeds: [B·n], candidate by candidate of the first face, then of the second: all that is drawn for a candidate
            comes from its seed, whatever stands beside it; drawn where `seen` is, and other numbers on a GPU than on
            the CPU.
        batch: most images in one pass of the network; guidance doubles them.

    Returns:
        [B,n,3,S,S] in [−1, 1] (not clipped where the sampler does not clip), float32.

    Raises:
        UsageError: another number of seeds than of candidates.
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
    levels = torch.tensor([step.gamma**0.5 for step in steps], device=seen.device)  # at once: each copy would wait
    for step, level in zip(steps, levels.split(1), strict=True):
        answer = _guided(denoise, y, seen, level, sampler.guidance)
        clear = clear_of(sampler.predicts, answer, y, step.gamma)
        if sampler.clip:
            clear = clear.clamp(-1, 1)
        y = clear.mul(step.clear).add_(y, alpha=step.noisy)
        if step.fresh > 0:
            y.add_(_draw(seen, streams), alpha=step.fresh)
    return y


def _guided(denoise: Denoise, y: Tensor, seen: Tensor, level: Tensor, guidance: float) -> Tensor:
    """Classifier-free guidance (Ho and Salimans 2022, eq. 6, of which the weight is one less)."""
    if guidance == 1:
        return denoise(y, seen, level).float()
    both = torch.cat([seen, torch.zeros_like(seen)])
    known, unknown = denoise(torch.cat([y, y]), both, level).float().chunk(2)
    return unknown.lerp(known, guidance)


def _draw(like: Tensor, streams: Sequence[torch.Generator]) -> Tensor:
    """Standard normal numbers [B,3,S,S], each image's from its own stream."""
    images = torch.empty(like.shape, device=like.device)
    for image, stream in zip(images, streams, strict=True):
        image.normal_(generator=stream)
    return images.contiguous(memory_format=torch.channels_last)
