"""Linkability of two images by their score."""

from __future__ import annotations

import numpy as np

from ficgan.errors import UsageError
from ficgan.lab.results import Figure

from .counting import BINS, bins_of
from .identification import nobody
from .intervals import BOOTSTRAP, Bootstrap, Floats, recentred
from .scores import Scores

__all__ = ["linkability", "local_linkability"]

_NULLS = 200


def linkability(scores: Scores, *, omega: float = 1.0, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """D_sys: 0 where a score does not tell one person's images from those of two, 1 where it always does.

    Estimated from histograms it lies above 0 even where genuine and impostor scores are distributed alike; the note
    says how far, for as many scores.

    Args:
        omega: prior odds that two images show one person, above 0; the source takes 1 where nothing is known.

    Returns:
        A figure; its value is None below 20 genuine scores, which make fewer than two bins.

    Raises:
        UsageError: omega out of range.

    Source: Gomez-Barrero et al., IEEE TIFS 13(6) (2018), eq. 8 (local measure) and 10 (global measure).
    """
    if not (omega > 0 and np.isfinite(omega)):
        raise UsageError(f"prior odds of {omega} cannot be; give a number above 0")
    if not len(scores.genuine) or not scores.impostors:
        return Figure("D_sys", None, note="There are no impostor scores." if len(scores.genuine) else nobody(scores))
    bins = _bins(len(scores.genuine))
    if bins < 2:
        note = f"{len(scores.genuine)} genuine scores are too few for a histogram; 20 are needed."
        return Figure("D_sys", None, note=note)
    genuine, impostor = (_shares(_folded(one, bins)) for one in scores.resampled(bootstrap))
    every = _global(genuine, impostor, omega)
    value = float(every[0])
    every[0] = np.nanmean(every[1:])  # resampling adds noise of its own, which D_sys takes for linkability
    low, high = recentred(every, value, int(np.count_nonzero(scores.sums(scores.mated))))
    rng = np.random.default_rng(bootstrap.seed)
    expected = impostor[0] / impostor[0].sum()
    null = rng.multinomial(len(scores.genuine), expected, size=_NULLS) / len(scores.genuine)
    note = f"As many scores of strangers alone would give {_global(null, impostor[:1], omega).mean():.2g}."
    return Figure("D_sys", value, low, high, len(scores.genuine), "genuine scores", note)


def local_linkability(scores: Scores, *, omega: float = 1.0) -> list[list[float]]:
    """[score, D(score)] at the middle of each bin: how surely a pair with this score shows one person.

    Source: Gomez-Barrero et al. (2018), eq. 8.
    """
    bins = _bins(len(scores.genuine))
    if bins < 2 or not scores.impostors:
        return []
    genuine = np.bincount(bins_of(scores.genuine, scores.span), minlength=BINS)[None].astype(np.float64)
    impostor = scores.impostor_histogram.sum(0, dtype=np.float64)[None]
    values = _local(_shares(_folded(genuine, bins)), _shares(_folded(impostor, bins)), omega)[0]
    low, high = scores.span
    middles = low + (np.arange(bins) + 0.5) * (high - low) / bins
    return [[float(at), float(value)] for at, value in zip(middles, values, strict=True)]


def _bins(genuine: int) -> int:
    """As the authors' program: a tenth of the genuine scores, at most 100; rounded down to what divides BINS."""
    return max(bins for bins in range(1, 101) if BINS % bins == 0 and bins <= max(1, genuine // 10))


def _folded(histogram: Floats, bins: int) -> Floats:
    return histogram.reshape(len(histogram), bins, -1).sum(2, dtype=np.float64)


def _shares(histogram: Floats) -> Floats:
    whole = histogram.sum(1, keepdims=True)
    return histogram / np.where(whole > 0, whole, np.nan)


def _local(genuine: Floats, impostor: Floats, omega: float) -> Floats:
    """D(s) = 2·ωLR/(1 + ωLR) − 1 where ωLR > 1, else 0; with LR = p/q it is (ωp − q)/(ωp + q), 1 where q is 0."""
    both = omega * genuine + impostor
    return np.divide(omega * genuine - impostor, both, out=np.zeros(both.shape), where=both > 0).clip(0, None)


def _global(genuine: Floats, impostor: Floats, omega: float) -> Floats:
    """[R] D_sys = ∫ p(s | genuine) D(s) ds; NaN where a resample has no scores."""
    out = (genuine * _local(genuine, impostor, omega)).sum(1)
    return np.asarray(out)
