"""What a metric is, and how sure a figure is: bootstrap over identities, and Wilson's interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binomtest

from ficgan.lab.results import Figure


@dataclass(frozen=True)
class Metric:
    """How to read a metric; `better`, for the anonymiser: "low", "high", or "near" the value of the clear images."""

    name: str
    title: str
    better: Literal["low", "high", "near"]
    source: str = ""
    judges: tuple[str, ...] = ()  # which networks read it, of `utility.Judges`


_TEXT = files("ficgan.lab.metrics").joinpath("metrics.yaml").read_text("utf-8")
# Kind (privacy, reversal, utility) → name → metric, in the order of tables
METRICS: dict[str, dict[str, Metric]] = {
    kind: {name: Metric(name, **{**given, "judges": tuple(given.get("judges", ()))}) for name, given in some.items()}
    for kind, some in yaml.safe_load(_TEXT).items()
}

Floats = NDArray[np.floating[Any]]
Interval = tuple[float | None, float | None]  # Low and high; None where there is none

LEVEL = 0.95  # Coverage of every interval that is reported


@dataclass(frozen=True)
class Bootstrap:
    """Resampling of identities: at least 1 resample, a seed of 0 or more."""

    resamples: int = 1000
    seed: int = 0

    def weights(self, identities: int) -> NDArray[np.float32]:
        """How often each identity is in each resample: float32 [resamples, identities], read-only.

        Images of an identity are drawn together. As many identities have the same draws, so trials on the same people
        can be subtracted resample by resample.
        """
        return _weights(max(1, identities), self.resamples, self.seed)[:, :identities]


BOOTSTRAP = Bootstrap()


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's score interval of a proportion (1927)."""
    interval = binomtest(successes, trials).proportion_ci(LEVEL, "wilson")
    return float(interval.low), float(interval.high)


def ratios(drawn: Floats, sums: Floats, counts: Floats) -> Floats:
    """Σ sums / Σ counts of [I] in every resample [R] of `drawn` [R,I]; NaN where a resample has nothing to count."""
    both = drawn @ np.stack([sums, counts], 1).astype(np.float32)  # seven digits are enough for an interval
    above, below = both.astype(np.float64).T
    return np.divide(above, below, out=np.full(len(below), np.nan), where=below > 0)


def percentiles(
    values: Floats | Sequence[float], *, shift: float = 0.0, within: tuple[float, float] = (-math.inf, math.inf)
) -> Interval:
    """The middle 95 % of the finite resampled values, moved by `shift` and cut to a range; None if there are none."""
    values = np.asarray(values, np.float64)
    values = values[np.isfinite(values)]
    if not len(values):
        return None, None
    low, high = np.clip(np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) + shift, *within)
    return float(low), float(high)


def proportion(drawn: Floats, sums: Floats, counts: Floats) -> Interval:
    """Interval of Σ sums / Σ counts in [0, 1]; Wilson's over identities where all or none succeeded."""
    trials = int(np.count_nonzero(counts))
    if not trials:
        return None, None
    value = float(np.sum(sums)) / float(np.sum(counts))
    return recentred(np.append(value, ratios(drawn, sums, counts)), value, trials)


def recentred(binned: Floats, value: float, trials: int) -> Interval:
    """Interval of an exact `value` in [0, 1] from histograms: `binned` [1+R] is the whole, then the resamples."""
    if value <= 0 or value >= 1:
        return wilson(0 if value <= 0 else trials, trials)
    if trials < 2:
        return None, None
    return percentiles(binned[1:], shift=value - float(binned[0]), within=(0.0, 1.0))


@dataclass(frozen=True)
class Sample:
    """Figures of N images (or clouds) of people, with intervals by resampling the people."""

    people: NDArray[np.int64]  # [N] whose each image is
    bootstrap: Bootstrap = BOOTSTRAP
    unit: str = "images"

    @cached_property
    def person(self) -> NDArray[np.intp]:
        """[N] the people, numbered from 0."""
        return np.unique(self.people, return_inverse=True)[1].ravel()

    @cached_property
    def drawn(self) -> NDArray[np.float32]:
        return self.bootstrap.weights(int(self.person.max(initial=-1)) + 1)

    def total(self, values: ArrayLike) -> NDArray[np.float64]:
        """Values [N] added up for each person."""
        return np.bincount(self.person, np.asarray(values, np.float64)).astype(np.float64)

    def none(self, metric: str, why: str) -> Figure:
        return Figure(metric, None, unit=self.unit, note=why)

    def mean(self, metric: str, values: ArrayLike, note: str = "", *, share: bool = False) -> Figure:
        """Mean of the finite values [N]; shares have the interval of a proportion."""
        x = np.asarray(values)
        used = np.isfinite(x)
        return self.ratio(metric, np.where(used, x, 0.0), used, note, share=share or x.dtype == bool)

    def ratio(self, metric: str, above: ArrayLike, below: ArrayLike, note: str = "", *, share: bool = True) -> Figure:
        """Σ above / Σ below of the images [N] and its interval; otherwise as `mean`."""
        sums, counts = self.total(above), self.total(below)
        if not counts.any():
            return self.none(metric, note or f"no {self.unit.removesuffix('s')} has it")
        ends: Interval = (None, None)
        if share:
            ends = proportion(self.drawn, sums, counts)
        elif np.count_nonzero(counts) > 1:
            ends = percentiles(ratios(self.drawn, sums, counts))
        return Figure(metric, float(sums.sum() / counts.sum()), *ends, int(counts.sum()), self.unit, note)

    def share(self, metric: str, hits: ArrayLike, note: str = "") -> Figure:
        """Mean of hits [N], 0 to 1."""
        return self.mean(metric, hits, note, share=True)

    def median(self, metric: str, values: ArrayLike, note: str = "") -> Figure:
        """Median of the finite values [N]; of an even number the mean of the middle two."""
        x = np.asarray(values, np.float64)
        used = np.flatnonzero(np.isfinite(x))
        if not len(used):
            return self.none(metric, note or f"no {self.unit.removesuffix('s')} has it")
        low, high = None, None
        if len(np.unique(self.person[used])) > 1:
            order = used[np.argsort(x[used])]
            heaped = np.cumsum(self.drawn[:, self.person[order]], axis=1, dtype=np.float64)
            whole = heaped[:, -1:]
            picked = [x[order][np.argmax(heaped >= edge, axis=1)] for edge in (whole / 2, whole / 2 + 0.5)]
            low, high = percentiles(np.where(whole[:, 0] > 0, (picked[0] + picked[1]) / 2, np.nan))
        return Figure(metric, float(np.median(x[used])), low, high, len(used), self.unit, note)


@lru_cache(maxsize=2)
def _weights(identities: int, resamples: int, seed: int) -> NDArray[np.float32]:
    out = np.empty((resamples, identities), np.float32)
    rng = np.random.default_rng(seed)
    for row in out:
        row[:] = np.bincount(rng.integers(identities, size=identities), minlength=identities)
    out.flags.writeable = False
    return out
