"""How noise is added step by step in a diffusion: schedules of variances, and what its network may predict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import UsageError

Predicts = Literal["noise", "clear", "velocity"]
PREDICTIONS = ("noise", "clear", "velocity")
Kind = Literal["ddim", "ancestral", "ancestral-beta"]
SAMPLERS = ("ddim", "ancestral", "ancestral-beta")


@dataclass(frozen=True)
class Schedule:
    """Variances β_t of steps 1…T, linear in t; α_t = 1 − β_t, γ_t = Π α_s (Revelio, eq. 2; SR3, §2)."""

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
        """Another number of steps with the same Σβ, so that as little is left of the image at its end."""
        scale = self.steps / steps if steps > 0 else float("inf")
        if self.last * scale >= 1:
            least = int(self.last * self.steps) + 1
            raise UsageError(f"{steps} steps are too few for this schedule; give at least {least}")
        return replace(self, steps=steps, first=self.first * scale, last=self.last * scale)

    def times(self, count: int) -> NDArray[np.int64]:
        """A falling sub-sequence T…0 of at most `count` steps, evenly spaced (all of them where count ≥ T)."""
        return np.unique(np.linspace(0, self.steps, min(count, self.steps) + 1).round().astype(np.int64))[::-1]


SR3 = Schedule(2000, 1e-6, 1e-2)
SCHEDULES = {
    "sr3": SR3,
    "palette": Schedule(2000, 1e-6, 1e-2),
    "palette-test": Schedule(1000, 1e-4, 0.09),
    "small": SR3.shrunk(200),
}
"""By name: SR3's; Palette's for training and its shorter one for inference (Σβ = 45, so that nothing at all is left of
the image); SR3's in fewer steps."""
