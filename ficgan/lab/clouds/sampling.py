"""Figures of values that people have, with intervals by the bootstrap over people."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.lab.metrics.intervals import Bootstrap, percentiles, proportion, ratios
from ficgan.lab.results import Figure

__all__ = ["Sample", "none"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """Whose the values are.

    Args:
        people: [N] int64.
        bootstrap: over people.
    """

    people: NDArray[np.int64]
    bootstrap: Bootstrap

    @cached_property
    def _who(self) -> NDArray[np.intp]:
        found: NDArray[np.intp] = np.unique(self.people, return_inverse=True)[1].ravel()
        return found

    @cached_property
    def _drawn(self) -> NDArray[np.float32]:
        return self.bootstrap.weights(int(self._who.max(initial=-1)) + 1)

    def mean(self, metric: str, values: ArrayLike, note: str = "") -> Figure:
        """Mean of the finite values [N]."""
        x = np.asarray(values, np.float64)
        used = np.isfinite(x)
        if not used.any():
            return none(metric, note or "no cloud has it")
        sums, counts = self._sum(np.where(used, x, 0.0)), self._sum(used)
        low, high = percentiles(ratios(self._drawn, sums, counts)) if np.count_nonzero(counts) > 1 else (None, None)
        return Figure(metric, float(x[used].mean()), low, high, int(used.sum()), "clouds", note)

    def share(self, metric: str, hits: ArrayLike, note: str = "") -> Figure:
        """Share of values [N] that are true."""
        x = np.asarray(hits, bool)
        if not len(x):
            return none(metric, "there are no clouds")
        low, high = proportion(self._drawn, self._sum(x), self._sum(np.ones(len(x))))
        return Figure(metric, float(x.mean()), low, high, len(x), "clouds", note)

    def median(self, metric: str, values: ArrayLike, note: str = "") -> Figure:
        """Median of the finite values [N]; of an even number the mean of the middle two."""
        x = np.asarray(values, np.float64)
        used = np.flatnonzero(np.isfinite(x))
        if not len(used):
            return none(metric, note or "no cloud has it")
        low: float | None = None
        high: float | None = None
        if len(np.unique(self._who[used])) > 1:
            order = used[np.argsort(x[used])]
            heaped = np.cumsum(self._drawn[:, self._who[order]], axis=1, dtype=np.float64)
            whole = heaped[:, -1:]
            picked = [x[order][np.argmax(heaped >= edge, axis=1)] for edge in (whole / 2, whole / 2 + 0.5)]
            middle = np.where(whole[:, 0] > 0, (picked[0] + picked[1]) / 2, np.nan)
            low, high = percentiles(middle)
        return Figure(metric, float(np.median(x[used])), low, high, len(used), "clouds", note)

    def _sum(self, values: ArrayLike) -> Floats:
        return np.bincount(self._who, np.asarray(values, np.float64), self._drawn.shape[1]).astype(np.float64)


def none(metric: str, why: str) -> Figure:
    """No figure, and why."""
    return Figure(metric, None, unit="clouds", note=why)
