"""How sure a figure is: bootstrap over identities, Wilson's interval, the rule of three."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import UsageError

__all__ = [
    "BOOTSTRAP", "LEVEL", "Bootstrap", "Floats", "Interval", "percentiles", "proportion", "ratios", "recentred",
    "rule_of_three", "wilson",
]  # fmt: skip

Floats = NDArray[np.floating[Any]]
Interval = tuple[float | None, float | None]
"""Low and high; None where there is none."""

LEVEL = 0.95
"""Coverage of every interval that is reported."""


@dataclass(frozen=True)
class Bootstrap:
    """Resampling of identities: at least 1 resample, a seed of 0 or more."""

    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.resamples < 1 or self.seed < 0:
            raise UsageError(f"{self.resamples} resamples with seed {self.seed} cannot be drawn; give ≥ 1 and ≥ 0")

    def weights(self, identities: int) -> NDArray[np.float32]:
        """How often each identity is in each resample: float32 [resamples, identities], read-only.

        All images of an identity are drawn together, since they are no independent trials. The same number of
        identities has the same draws. So figures of two trials on the same people can be subtracted resample by
        resample.
        """
        return _weights(max(1, identities), self.resamples, self.seed)[:, :identities]


BOOTSTRAP = Bootstrap()


def wilson(successes: float, trials: int, *, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's score interval of a proportion; it has width also where nobody, or everybody, succeeded.

    Args:
        successes: from 0 to trials; fractions are allowed (an expected count).
        trials: independent ones, at least 1.
        level: coverage, between 0 and 1.

    Source: Wilson, J. Am. Stat. Assoc. 22 (1927), without correction for continuity.
    """
    if not (trials >= 1 and 0 <= successes <= trials and 0 < level < 1):
        raise UsageError(f"{successes:g} successes in {trials} trials at level {level:g} have no interval")
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = successes / trials
    scale = 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    low = 0.0 if successes == 0 else max(0.0, middle - half)
    return low, 1.0 if successes == trials else min(1.0, middle + half)


def rule_of_three(trials: int) -> float:
    """Upper 95 % bound of a rate where none of `trials` independent ones went wrong: 3/n, at most 1.

    Source: Hanley and Lippman-Hand, JAMA 249 (1983); 1 − .05^(1/n) is the exact bound.
    """
    if trials < 1:
        raise UsageError(f"{trials} trials bound nothing; give at least 1")
    return min(1.0, 3 / trials)


def ratios(drawn: Floats, sums: Floats, counts: Floats) -> Floats:
    """Σ sums / Σ counts in every resample [R] of `drawn` [R,I]; NaN where a resample has nothing to count.

    Args:
        drawn: of `Bootstrap.weights`.
        sums, counts: [I], what each identity adds to the numerator and to the denominator.
    """
    both = drawn @ np.stack([sums, counts], 1).astype(np.float32)  # seven digits are enough for an interval
    above, below = both.astype(np.float64).T
    return np.divide(above, below, out=np.full(len(below), np.nan), where=below > 0)


def percentiles(
    values: Floats | Sequence[float], *, shift: float = 0.0, within: tuple[float, float] = (-math.inf, math.inf)
) -> Interval:
    """The middle 95 % of the finite resampled values, moved by `shift` and cut to a range; None if there are none.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), ch. 13.
    """
    values = np.asarray(values, np.float64)
    values = values[np.isfinite(values)]
    if not len(values):
        return None, None
    low, high = np.clip(np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) + shift, *within)
    return float(low), float(high)


def proportion(drawn: Floats, sums: Floats, counts: Floats) -> Interval:
    """Interval of Σ sums / Σ counts in [0, 1], arguments as of `ratios`.

    If everybody, or nobody, succeeded, all resamples are alike and the bootstrap would claim certainty. Wilson's
    interval is then given, with each identity that has a count as one trial.
    """
    total, whole = float(np.sum(sums)), float(np.sum(counts))
    trials = int(np.count_nonzero(counts))
    if not trials:
        return None, None
    if total <= 0 or total >= whole:
        return wilson(0 if total <= 0 else trials, trials)
    if trials < 2:
        return None, None
    return percentiles(ratios(drawn, sums, counts), within=(0.0, 1.0))


def recentred(binned: Floats, value: float, trials: int) -> Interval:
    """Interval of an exact `value` in [0, 1] whose resamples are computed from histograms.

    Args:
        binned: [1+R], the binned value of the whole first, then of the resamples.
        value: where it is 0 or 1, the interval is Wilson's.
        trials: identities.
    """
    if value <= 0 or value >= 1:
        return wilson(0 if value <= 0 else trials, trials)
    if trials < 2:
        return None, None
    return percentiles(binned[1:], shift=value - float(binned[0]), within=(0.0, 1.0))


@lru_cache(maxsize=2)
def _weights(identities: int, resamples: int, seed: int) -> NDArray[np.float32]:
    out = np.empty((resamples, identities), np.float32)
    rng = np.random.default_rng(seed)
    step = max(1, 2**20 // identities)  # bounds the memory of the draws
    for begin in range(0, resamples, step):
        rows = min(step, resamples - begin)
        drawn = rng.integers(identities, size=(rows, identities)) + identities * np.arange(rows)[:, None]
        out[begin : begin + rows] = np.bincount(drawn.ravel(), minlength=rows * identities).reshape(rows, identities)
    out.flags.writeable = False
    return out
