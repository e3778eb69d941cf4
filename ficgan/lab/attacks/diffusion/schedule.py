"""The noise of a diffusion: how much is added at each step, what that makes of an image, and the way back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["PREDICTIONS", "SCHEDULES", "Posterior", "Predicts", "Schedule", "clear_of", "noised", "posterior", "target"]

Predicts = Literal["noise", "clear", "velocity"]
PREDICTIONS = ("noise", "clear", "velocity")


@dataclass(frozen=True)
class Schedule:
    """Variances β_t of the noise of steps t = 1…T, linear in t; α_t = 1 − β_t and γ_t = Π_{s≤t} α_s.

    Args:
        steps: T.
        first, last: β_1 and β_T, in (0, 1).

    Raises:
        UsageError: numbers that make no schedule.

    Source:
        Revelio, eq. 2; Saharia et al., SR3, §2.
    """

    steps: int
    first: float
    last: float

    def __post_init__(self) -> None:
        if self.steps < 1 or not (0 < self.first < 1 and 0 < self.last < 1):
            raise UsageError(
                f"a schedule of {self.steps} steps from {self.first:g} to {self.last:g} is none: give at least one "
                "step, and variances between 0 and 1"
            )

    @cached_property
    def betas(self) -> NDArray[np.float64]:
        """[T], β_1…β_T."""
        return np.linspace(self.first, self.last, self.steps)

    @cached_property
    def gammas(self) -> NDArray[np.float64]:
        """[T+1], γ_0 = 1 … γ_T."""
        return np.concatenate([[1.0], np.cumprod(1 - self.betas)])

    def shrunk(self, steps: int) -> Schedule:
        """Another number of steps with the same Σβ, so that as little is left of the image at its end.

        Raises:
            UsageError: so few steps that β would reach 1.
        """
        scale = self.steps / steps if steps > 0 else float("inf")
        if self.last * scale >= 1:
            least = int(self.last * self.steps) + 1
            raise UsageError(f"{steps} steps are too few for this schedule; give at least {least}")
        return replace(self, steps=steps, first=self.first * scale, last=self.last * scale)

    def levels(self, spots: Tensor) -> Tensor:
        """Noise levels √γ for training: t uniform on 1…T, then √γ uniform between its values at t − 1 and t.

        Args:
            spots: [B] uniform on [0, 1): place among the steps, of which the remainder is the place within one.

        Source:
            SR3, §2.4, after WaveGrad: a network that has seen all levels may be sampled with another schedule.
        """
        import torch

        roots = _roots(self, spots.device)
        place = spots.double() * self.steps
        t = place.long().clamp(max=self.steps - 1)
        return torch.lerp(roots[t], roots[t + 1], place - t).to(spots)

    def times(self, count: int) -> NDArray[np.int64]:
        """A falling sub-sequence T…0 of at most `count` steps, evenly spaced (all of them where count ≥ T)."""
        return np.unique(np.linspace(0, self.steps, min(count, self.steps) + 1).round().astype(np.int64))[::-1]


@lru_cache(maxsize=16)
def _roots(schedule: Schedule, device: torch.device) -> Tensor:
    """[T+1], √γ; kept on the device, for a copy in every step of a training would wait for it."""
    import torch

    with torch.inference_mode(False):
        return torch.from_numpy(np.sqrt(schedule.gammas)).to(device)


SR3 = Schedule(2000, 1e-6, 1e-2)
SCHEDULES = {
    "sr3": SR3,
    "palette": Schedule(2000, 1e-6, 1e-2),
    "palette-test": Schedule(1000, 1e-4, 0.09),
    "small": SR3.shrunk(200),
}
"""By name: SR3's; Palette's for training and its shorter one for inference (Σβ = 45, so that nothing at all is left of
the image); SR3's in fewer steps."""


@dataclass(frozen=True)
class Posterior:
    """q(y_s | y_0, y_t) = N(clear·y_0 + noisy·y_t, variance·I)."""

    clear: float
    noisy: float
    variance: float


def posterior(gamma: float, before: float) -> Posterior:
    """Where y_s was, of which y_0 and y_t are known, s < t; with s = t − 1 the paper's eq. 3.

    Args:
        gamma: γ_t, in [0, 1).
        before: γ_s, in (γ_t, 1].

    Source:
        Revelio, eq. 3, in which the roots are mis-typeset: they stand over γ_{t−1} and α_t alone (SR3, eq. 4).
    """
    alpha = gamma / before
    return Posterior(
        before**0.5 * (1 - alpha) / (1 - gamma),
        alpha**0.5 * (1 - before) / (1 - gamma),
        (1 - before) * (1 - alpha) / (1 - gamma),
    )


def noised(clear: Tensor, root: Tensor, noise: Tensor) -> Tensor:
    """y_t = √γ·y_0 + √(1−γ)·ε.

    Args:
        clear, noise: y_0 and ε, [B,3,S,S].
        root: √γ, [B] or one number.
    """
    root = _across(root)
    return root * clear + (1 - root * root).sqrt() * noise


def target(predicts: Predicts, clear: Tensor, noise: Tensor, root: Tensor) -> Tensor:
    """What the network shall answer: ε (eq. 4), y_0, or the velocity √γ·ε − √(1−γ)·y_0 (Salimans and Ho 2022).

    Args:
        predicts: which.
        clear, noise: y_0 and ε, [B,3,S,S].
        root: √γ, [B] or one number.
    """
    if predicts == "velocity":
        root = _across(root)
        return root * noise - (1 - root * root).sqrt() * clear
    return noise if predicts == "noise" else clear


def clear_of(predicts: Predicts, answer: Tensor, noisy: Tensor, gamma: float) -> Tensor:
    """ŷ_0 from the network's answer at y_t, not clipped; γ > 0 where it predicts noise."""
    if predicts == "noise":
        return (noisy - (1 - gamma) ** 0.5 * answer) / gamma**0.5
    if predicts == "velocity":
        return gamma**0.5 * noisy - (1 - gamma) ** 0.5 * answer
    return answer


def _across(root: Tensor) -> Tensor:
    return root.reshape(-1, 1, 1, 1)
