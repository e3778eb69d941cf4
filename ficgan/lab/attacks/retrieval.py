"""Who is it? The person behind several guesses at a face, strangers told apart, and originals confirmed by guessing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.anonymizers import Images
from ficgan.errors import InputError, UsageError

Float = NDArray[np.floating]
Metric = Literal["euclidean", "cosine"]
Rule = Literal["vote", "shortest", "mean"]

RULES: tuple[Rule, ...] = ("vote", "shortest", "mean")
"""vote: each candidate names the person of its nearest gallery image, the most frequent one wins, of several the one at
the smallest distance (Revelio, §4.3). shortest: the person of the one nearest pair. mean: the person whose gallery
images are on average nearest to all candidates, the naive rule the paper argues against."""

_BLOCK = 1 << 24  # Distances that are in memory at once


@dataclass(frozen=True)
class Retrieved:
    """What `retrieve` found; −1 and infinite where no candidate was read.

    Args:
        winners: [N,n] int64, person of the gallery image nearest to each candidate.
        distances: [N,n] float64, to that image.
        found: [N] int64, the person by the rule.
    """

    winners: NDArray[np.int64]
    distances: NDArray[np.float64]
    found: NDArray[np.int64]

    @property
    def lowest(self) -> NDArray[np.float64]:
        """[N], smallest distance of any candidate to any gallery image; ld_x in Revelio, §4.3."""
        return self.distances.min(axis=1)


def retrieve(
    candidates: Float, gallery: Float, people: NDArray[np.integer], metric: Metric = "euclidean", rule: Rule = "vote"
) -> Retrieved:
    """The person behind each probe (Revelio, §4.3).

    Args:
        candidates: [N,n,D] embeddings of n guesses at each probe, or [N,D]; rows of NaN have no vote.
        gallery, people: [M,D] embeddings of images of known people, and [M] whose they are, not negative.
        metric: "euclidean", or "cosine": 1 − cosine similarity.
    """
    from scipy.spatial.distance import cdist

    candidates = candidates[:, None] if candidates.ndim == 2 else candidates
    whose = np.asarray(people, np.int64)
    _check(candidates, gallery, whose)
    for what, name, known in (("metric", metric, ("euclidean", "cosine")), ("rule", rule, RULES)):
        if name not in known:
            raise UsageError(f"there is no {what} {name!r}; there are {', '.join(known)}")
    read: NDArray[np.bool_] = np.all(np.isfinite(candidates), axis=2)
    rows = np.where(read[..., None], candidates, 0).astype(np.float64)
    if metric == "cosine":  # half the squared distance of unit vectors
        rows, gallery = (one / np.linalg.norm(one, axis=-1, keepdims=True).clip(1e-30) for one in (rows, gallery))
    names, index, counts = np.unique(whose, return_inverse=True, return_counts=True)
    share = (index[:, None] == np.arange(len(names))) / counts  # [M, people], to average over a person's images
    winners, distances = np.empty(read.shape, np.int64), np.empty(read.shape)
    average = np.empty(len(read), np.int64)
    step = max(1, _BLOCK // (read.shape[1] * len(gallery)))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        flat = rows[part].reshape(-1, rows.shape[2])
        table = cdist(flat, gallery) if metric == "euclidean" else cdist(flat, gallery, "sqeuclidean") / 2
        table = table.reshape(-1, read.shape[1], len(gallery))
        winners[part], distances[part] = whose[table.argmin(axis=2)], table.min(axis=2)
        if rule == "mean":
            average[part] = names[((table * read[part, :, None]).sum(axis=1) @ share).argmin(axis=1)]
    winners, distances = np.where(read, winners, -1), np.where(read, distances, np.inf)
    if rule == "mean":
        found = np.where(read.any(axis=1), average, -1)
    elif rule == "shortest":
        found = winners[np.arange(len(winners)), distances.argmin(axis=1)]
    else:
        found = _vote(winners, distances)
    return Retrieved(winners, distances, found)


def _check(candidates: Float, gallery: Float, people: NDArray[np.int64]) -> None:
    if candidates.ndim != 3 or candidates.shape[1] == 0 or gallery.ndim != 2 or candidates.shape[2] != gallery.shape[1]:
        shapes = f"{list(candidates.shape)} and {list(gallery.shape)}"
        raise InputError(f"candidates and gallery must be embeddings [N,n,D] and [M,D], not {shapes}")
    if not len(gallery) or people.shape != (len(gallery),) or people.min() < 0:
        raise InputError(
            f"a gallery of {len(gallery)} images came with people {list(people.shape)}; give one number from 0 for each"
        )
    if not np.isfinite(gallery).all():
        raise InputError("an embedding of the gallery is not finite; leave out images that could not be read")


def _vote(winners: NDArray[np.int64], distances: NDArray[np.float64]) -> NDArray[np.int64]:
    """The most frequent winner of each row [N,n]; of several, the one at the smallest distance; −1: nobody was read."""
    counts = (winners[:, :, None] == winners[:, None, :]).sum(axis=2) * (winners >= 0)
    gaps = np.where(counts == counts.max(axis=1, keepdims=True), distances, np.inf)
    first = np.lexsort((winners, gaps), axis=1)[:, 0]  # of equal distances, the lower number
    return np.where(counts.max(axis=1) > 0, winners[np.arange(len(winners)), first], -1)


# -- strangers ("out of distribution") ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class OodCurve:
    """How well the lowest distance separates unknown people ("OOD", positive) from known ones.

    Args:
        thresholds: [T] float64 rising; a probe is flagged where ld_x > d.
        tpr, fpr: [T].
        auc: chance that an unknown person's ld_x is the larger of two, ties count half.
    """

    thresholds: NDArray[np.float64]
    tpr: NDArray[np.float64]
    fpr: NDArray[np.float64]
    auc: float


def ood_curve(known: Float, unknown: Float) -> OodCurve:
    """The detector at every threshold, from ld_x of known [A] and unknown [B] probes (Revelio, §4.3, §5.5)."""
    known, unknown = (np.sort(np.asarray(one, np.float64)) for one in (known, unknown))
    if not len(known) or not len(unknown) or np.isnan(known).any() or np.isnan(unknown).any():
        raise InputError("an OOD curve needs the lowest distances of known and of unknown people, none of them NaN")
    at = np.concatenate([[-np.inf], np.unique(np.concatenate([known, unknown]))])
    tpr, fpr = (1 - np.searchsorted(one, at, side="right") / len(one) for one in (unknown, known))
    below, upto = (np.searchsorted(known, unknown, side=side) for side in ("left", "right"))
    return OodCurve(at, tpr, fpr, float(np.mean((below + upto) / 2) / len(known)))


def choose_threshold(known: Float, unknown: Float) -> float:
    """The threshold d of the best TPR − FPR, halfway to the next distance; choose it on other people."""
    curve = ood_curve(known, unknown)
    best = int(np.argmax(curve.tpr - curve.fpr))
    here, after = curve.thresholds[best], curve.thresholds[min(best + 1, len(curve.thresholds) - 1)]
    if not np.isfinite(here):
        return float(np.nextafter(after, -np.inf))
    return float((here + after) / 2 if np.isfinite(after) else here)


# -- the guessing attack: does a published picture confirm a guess at its original? ------------------------------------
# The attacker has the program, the public model and bank, and photos of some candidates. The seed is unknown. Each
# score says how well a candidate fits a published face; higher is better. Nothing here restores a face.

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
        weight: [S,S], where the face is replaced; elsewhere a picture confirms itself.

    Returns:
        Less the weighted mean square of the difference of colours less their means, [N,M].
    """
    from scipy.spatial.distance import cdist

    if not seeds:
        raise UsageError("the guessing attack needs at least one seed of its own")
    mean = np.mean([program(candidates, seed) for seed in seeds], axis=0)
    share = (weight / weight.sum()).ravel()

    def colour_free(images: NDArray[np.generic]) -> NDArray[np.float64]:
        flat = images.reshape(len(images), -1, 3)[:, share > 0].astype(np.float64) / 255
        counted = share[share > 0][None, :, None]
        return ((flat - (flat * counted).sum(1, keepdims=True)) * np.sqrt(counted / 3)).reshape(len(images), -1)

    return -cdist(colour_free(published), colour_free(mean), "sqeuclidean")


def far_from_source(published: ArrayLike, candidates: ArrayLike) -> Scores:
    """Less the cosine of codes [N,D] and [M,D]: of several draws the program takes the one least like its source."""
    from scipy.spatial.distance import cdist

    return cdist(np.asarray(published, np.float64), np.asarray(candidates, np.float64), "cosine") - 1


def near(published: ArrayLike, candidates: ArrayLike) -> Scores:
    """Less the distance of readings [N,D] and [M,D] (expression, pose, light), each in its standard deviations."""
    from scipy.spatial.distance import cdist

    a, b = np.asarray(published, np.float64), np.asarray(candidates, np.float64)
    spread = np.maximum(b.std(0), 1e-9)
    return -cdist(a / spread, b / spread)


def combined(*scores: Scores) -> Scores:
    """The sum of several scores, each in standard deviations over the candidates of a published face."""
    parts = ((one - one.mean(1, keepdims=True)) / np.maximum(one.std(1, keepdims=True), 1e-12) for one in scores)
    return np.sum(list(parts), axis=0)


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
    """Judge scores [N,M] by the number of the right candidate of each published face [N]."""
    truth, (n, m) = np.asarray(right, np.int64), scores.shape
    if truth.shape != (n,) or m < 2 or not ((truth >= 0) & (truth < m)).all():
        raise UsageError(f"scores {list(scores.shape)} and {list(truth.shape)} right candidates do not belong together")
    own, others = scores[np.arange(n), truth], scores[np.arange(m) != truth[:, None]].reshape(n, m - 1)
    # Ties count half, so that scores that say nothing come out at chance.
    above, equal = others > own[:, None], others == own[:, None]
    hit = np.where(above.any(1), 0.0, 1 / (1 + equal.sum(1)))
    order = 1 - (above + 0.5 * equal).mean(1)
    # One threshold for all published faces, on scores that are comparable between them.
    centre, spread = others.mean(1), np.maximum(others.std(1), 1e-12)
    bar = np.quantile((others - centre[:, None]) / spread[:, None], 0.99)
    passed = ((own - centre) / spread > bar).astype(np.float64)
    rows = np.random.default_rng(seed).integers(0, n, (resamples, n))

    def figure(values: NDArray[np.float64]) -> tuple[float, float, float]:
        low, high = np.quantile(values[rows].mean(1), [0.025, 0.975])
        return float(values.mean()), float(low), float(high)

    return Confirmation(figure(hit), figure(order), figure(passed), n, m)
