"""What a classifier is worth, and how sure that is: top-k, average precision, mean and standard error, correlation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError

__all__ = ["Correlation", "Spread", "average_precision", "class_precisions", "hits", "pearson", "spread"]


@dataclass(frozen=True)
class Spread:
    """Mean over seeds and its standard error (None for one seed: nothing is known of it)."""

    mean: float
    sem: float | None
    n: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Correlation:
    """Pearson's r, its 95 % interval by Fisher's transformation, its two-sided p-value, and of how many points.

    r is None where one side is constant; interval and p are None below four points.
    """

    r: float | None
    low: float | None
    high: float | None
    p: float | None
    n: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def spread(values: Sequence[float] | NDArray[Any]) -> Spread:
    """Mean and standard error s/√n with s over n − 1.

    The authors' released script divides by n − 2 (scipy's `ddof=2`), so with three seeds their printed errors are √2
    times these.

    Raises:
        InputError: no value, or one that is not finite.
    """
    x = np.asarray(values, np.float64)
    if not len(x) or not np.isfinite(x).all():
        raise InputError(f"a mean over seeds needs finite values, not {x.tolist()}")
    return Spread(float(x.mean()), float(x.std(ddof=1) / math.sqrt(len(x))) if len(x) > 1 else None, len(x))


def hits(logits: NDArray[np.float32], labels: NDArray[np.int64], k: int = 1) -> NDArray[np.bool_]:
    """Whether an image's class is among the k with the highest outputs; ties count against it.

    Args:
        logits: [N,C].
        labels: [N].
        k: how many guesses are allowed.

    Returns:
        [N] bool.

    Raises:
        InputError: an output is not finite.
    """
    if not np.isfinite(logits).all():
        raise InputError("a network's output is not finite; its training has diverged, or its weights are damaged")
    own = np.take_along_axis(logits, labels[:, None], 1)
    return (logits >= own).sum(1) <= k


def average_precision(scores: NDArray[Any], positive: NDArray[Any]) -> float | None:
    """Area under the precision–recall steps: Σ (R_n − R_{n−1})·P_n over the distinct scores from high to low.

    Args:
        scores: [N], higher means more likely.
        positive: [N] bool.

    Returns:
        AP in [0, 1]; None where there is no positive.

    Raises:
        InputError: a score is not finite.
    """
    scores, positive = np.asarray(scores, np.float64), np.asarray(positive, bool)
    if not np.isfinite(scores).all():
        raise InputError("average precision needs finite scores")
    if not positive.any():
        return None
    order = np.argsort(-scores, kind="stable")
    # Images of one score enter together: their order is nobody's merit.
    last = np.flatnonzero(np.diff(scores[order], append=np.nan) != 0)
    found = np.cumsum(positive[order])[last]
    return float(np.sum(np.diff(found, prepend=0) * found / (last + 1)) / positive.sum())


def class_precisions(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> list[float | None]:
    """Average precision of every class against all others, by softmax: C values, None for a class without images."""
    shifted = logits.astype(np.float64) - logits.max(1, keepdims=True)
    chance = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
    return [average_precision(chance[:, c], labels == c) for c in range(logits.shape[1])]


def pearson(x: Sequence[float] | NDArray[Any], y: Sequence[float] | NDArray[Any]) -> Correlation:
    """Pearson's correlation of two rows of numbers, with its interval."""
    from scipy.special import stdtr

    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    n = len(a)
    # Constant is what differs by no more than rounding: its r would be noise.
    if n < 2 or any(np.ptp(v) <= 1e-12 * max(1.0, float(np.abs(v).max())) for v in (a, b)):
        return Correlation(None, None, None, None, n)
    a, b = a - a.mean(), b - b.mean()
    r = float(np.clip((a @ b) / math.sqrt((a @ a) * (b @ b)), -1.0, 1.0))
    if n < 4:
        return Correlation(r, None, None, None, n)
    if abs(r) == 1.0:
        return Correlation(r, r, r, 0.0, n)
    reach = 1.959963984540054 / math.sqrt(n - 3)
    t = abs(r) * math.sqrt((n - 2) / (1 - r * r))
    return Correlation(
        r, math.tanh(math.atanh(r) - reach), math.tanh(math.atanh(r) + reach), float(2 * stdtr(n - 2, -t)), n
    )
