"""The guessing attack: does a published picture confirm a guess at its original?

The attacker has the program, the public model and bank, and photos of some candidates. The seed is unknown. Each score
below says how well a candidate fits a published face; higher is better. Nothing here restores a face: it tells
originals apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.anonymizers import Images
from ficgan.errors import UsageError

__all__ = ["Confirmation", "combined", "confirmation", "far_from_source", "near", "repeated"]

Scores = NDArray[np.float64]
"""[N published, M candidates]."""
Program = Callable[[Images, int], Images]
"""Aligned faces [M,S,S,3] and a seed of the attacker's → what the program makes of them."""


def repeated(
    published: Images, candidates: Images, program: Program, *, seeds: Sequence[int], weight: NDArray[np.float32]
) -> Scores:
    """Run the program on every candidate with seeds of one's own, and compare with the mean over them.

    Averaging over seeds takes the k-same code away; what remains is what the program keeps of a source: expression,
    pose, light, attributes, outline.

    Args:
        published: [N,S,S,3] uint8.
        candidates: [M,S,S,3] uint8, aligned alike.
        program: the attacker's own copy.
        seeds: one run each.
        weight: [S,S], where the face is replaced; elsewhere a picture confirms itself.

    Returns:
        Less the weighted mean square of the difference, [N,M].
    """
    if not seeds:
        raise UsageError("the guessing attack needs at least one seed of its own")
    mean = np.zeros(candidates.shape, np.float64)
    for seed in seeds:
        mean += program(candidates, seed)
    mean /= len(seeds)
    share = (weight / weight.sum()).ravel()
    rows = _colour_free(published, share), _colour_free(mean, share)
    return -np.stack([np.square(rows[1] - one).mean(1) for one in rows[0]])


def _colour_free(images: NDArray[np.generic], share: NDArray[np.floating]) -> NDArray[np.float64]:
    """[N, pixels that count], each channel less its mean and weighted by the root of its share."""
    flat = images.reshape(len(images), -1, 3).astype(np.float64) / 255
    flat -= (flat * share[None, :, None]).sum(1, keepdims=True)
    counted = share > 0
    weighted: NDArray[np.float64] = flat[:, counted] * np.sqrt(share[counted] * counted.sum())[None, :, None]
    return weighted.reshape(len(images), -1)


def far_from_source(published: ArrayLike, candidates: ArrayLike) -> Scores:
    """Less the cosine of codes [N,D] and [M,D]: of several draws the program takes the one least like its source."""
    a, b = np.asarray(published, np.float64), np.asarray(candidates, np.float64)
    lengths = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=1)[None]
    return -(a @ b.T) / np.maximum(lengths, 1e-12)


def near(published: ArrayLike, candidates: ArrayLike) -> Scores:
    """Less the distance of readings [N,D] and [M,D] (expression, pose, light), each in its standard deviations."""
    a, b = np.asarray(published, np.float64), np.asarray(candidates, np.float64)
    spread = np.maximum(b.std(0), 1e-9)
    return -np.linalg.norm((a[:, None] - b[None]) / spread, axis=2)


def combined(*scores: Scores) -> Scores:
    """The sum of several scores, each in standard deviations over the candidates of a published face."""
    total = np.zeros_like(scores[0])
    for one in scores:
        total += (one - one.mean(1, keepdims=True)) / np.maximum(one.std(1, keepdims=True), 1e-12)
    return total


@dataclass(frozen=True)
class Confirmation:
    """How well scores tell the right candidate from the others; 95 % intervals by a bootstrap over published faces.

    Args:
        rank1: share of published faces whose right candidate scores highest; low, high: its interval. A guess is 1/M.
        auc: share of pairs of a right and a wrong candidate of one published face that are in order; ½ is chance.
        confirmed: share of right candidates above the threshold that 1 of 100 wrong ones passes; chance is .01.
        n: published faces.
        candidates: M.
    """

    rank1: tuple[float, float, float]
    auc: tuple[float, float, float]
    confirmed: tuple[float, float, float]
    n: int
    candidates: int


def confirmation(scores: Scores, right: ArrayLike, *, resamples: int = 1000, seed: int = 0) -> Confirmation:
    """Judge scores [N,M] by the number of the right candidate of each published face [N].

    Raises:
        UsageError: shapes that do not belong together, or fewer than two candidates.
    """
    truth = np.asarray(right, np.int64)
    n, m = scores.shape
    if truth.shape != (n,) or m < 2 or not ((truth >= 0) & (truth < m)).all():
        raise UsageError(f"scores {list(scores.shape)} and {list(truth.shape)} right candidates do not belong together")
    own = scores[np.arange(n), truth]
    wrong = np.ones((n, m), bool)
    wrong[np.arange(n), truth] = False
    others = scores[wrong].reshape(n, m - 1)
    # Ties count half, so that scores that say nothing come out at chance.
    above, equal = (others > own[:, None]).sum(1), (others == own[:, None]).sum(1)
    hit = np.where(above == 0, 1 / (1 + equal), 0.0)
    order = ((others < own[:, None]) + 0.5 * (others == own[:, None])).mean(1)
    # One threshold for all published faces, on scores that are comparable between them.
    centre, spread = others.mean(1), np.maximum(others.std(1), 1e-12)
    level, bar = (own - centre) / spread, np.quantile((others - centre[:, None]) / spread[:, None], 0.99)
    passed = (level > bar).astype(np.float64)
    rows = np.random.default_rng(seed).integers(0, n, (resamples, n))

    def figure(values: NDArray[np.float64]) -> tuple[float, float, float]:
        low, high = np.quantile(values[rows].mean(1), [0.025, 0.975])
        return float(values.mean()), float(low), float(high)

    return Confirmation(figure(hit), figure(order), figure(passed), n, m)
