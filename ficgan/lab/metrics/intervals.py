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
    "BOOTSTRAP",
    "LEVEL",
    "Bootstrap",
    "Floats",
    "Interval",
    "percentiles",
    "proportion",
    "ratios",
    "recentred",
    "rule_of_three",
    "wilson",
]

Floats = NDArray[np.floating[Any]]

Interval = tuple[float, float] | tuple[None, None]

LEVEL = 0.95
"""Coverage of every interval that is reported."""


@dataclass(frozen=True)
class Bootstrap:
    """Resampling of identities.

    Args:
        resamples: how many, at least 1.
        seed: 0 or more.

    Raises:
        UsageError: numbers out of these ranges.
    """

    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.resamples < 1 or self.seed < 0:
            raise UsageError(f"{self.resamples} resamples with seed {self.seed} cannot be drawn; give ≥ 1 and ≥ 0")

    def weights(self, identities: int) -> NDArray[np.float32]:
        """How often each identity is in each resample: float32 [resamples, identities], read-only.

        Identities are drawn with replacement, as many as there are; all images of one come together, since images of
        one person are no independent trials. The same number of identities has the same draws, so figures of two
        trials on the same people can be subtracted resample by resample.
        """
        return _weights(max(1, identities), self.resamples, self.seed)[:, :identities]


BOOTSTRAP = Bootstrap()


def wilson(successes: float, trials: int, *, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's score interval of a proportion; it has width where nobody, or everybody, succeeded.

    Args:
        successes: from 0 to trials; parts of one are allowed (an expected count).
        trials: independent ones, at least 1.
        level: coverage, between 0 and 1.

    Returns:
        Low and high, in [0, 1].

    Raises:
        UsageError: numbers that cannot be.

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
    """The rate that can be excluded with 95 % where none of `trials` independent ones went wrong: 3/n, at most 1.

    Raises:
        UsageError: no trials.

    Source: Hanley and Lippman-Hand, JAMA 249 (1983); 1 − .05^(1/n) is the exact bound.
    """
    if trials < 1:
        raise UsageError(f"{trials} trials bound nothing; give at least 1")
    return min(1.0, 3 / trials)


def ratios(drawn: Floats, sums: Floats, counts: Floats) -> Floats:
    """Σ sums / Σ counts in every resample [R]; NaN where a resample holds nothing to count.

    Args:
        drawn: [R,I], as of `Bootstrap.weights`.
        sums: [I], what an identity adds to the numerator.
        counts: [I], and to the denominator.
    """
    both = drawn @ np.stack([sums, counts], 1).astype(np.float32)  # seven digits are enough for an interval
    above, below = both.astype(np.float64).T
    return np.divide(above, below, out=np.full(len(below), np.nan), where=below > 0)


def percentiles(
    values: Floats | Sequence[float], *, shift: float = 0.0, within: tuple[float, float] = (-math.inf, math.inf)
) -> Interval:
    """The middle 95 % of resampled values, moved by `shift` and cut to the range that is possible.

    Args:
        values: [R]; those that are NaN are left out.
        shift: exact value less the one that the resampling computes on the whole.
        within: lowest and highest value that is possible.

    Returns:
        Low and high; None where nothing is left.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), ch. 13.
    """
    values = np.asarray(values, np.float64)
    values = values[np.isfinite(values)]
    if not len(values):
        return None, None
    low, high = np.clip(np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) + shift, *within)
    return float(low), float(high)


def proportion(drawn: Floats, sums: Floats, counts: Floats) -> Interval:
    """Interval of Σ sums / Σ counts in [0, 1]: by bootstrap, or Wilson's where no resample can differ.

    If everybody, or nobody, succeeded, every resample is alike and the bootstrap would claim certainty; Wilson's
    interval then takes each identity as one trial.

    Args:
        drawn: [R,I], as of `Bootstrap.weights`.
        sums, counts: [I], as of `ratios`; identities with a count of 0 are no trials.
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
    """Interval of a figure in [0, 1] whose resamples are computed from histograms, and the figure itself exactly.

    Where the figure is 0 or 1 no resample can differ: Wilson's interval, with each identity as one trial.

    Args:
        binned: [1+R], of the whole first, then of the resamples.
        value: exact.
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
