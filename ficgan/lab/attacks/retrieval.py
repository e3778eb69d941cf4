"""Who is it? Restored candidates of each face against a gallery of known people; and is it anybody known at all?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError

Float = NDArray[np.floating]
Metric = Literal["euclidean", "cosine"]
Rule = Literal["vote", "shortest", "mean"]

RULES: tuple[Rule, ...] = ("vote", "shortest", "mean")
"""vote: each candidate names the person of its nearest gallery image, the most frequent one wins, of several the one at
the smallest distance (Revelio, §4.3). shortest: the person of the one nearest pair. mean: the person whose gallery
images are on average nearest to all candidates, the naive rule the paper argues against."""

_BLOCK = 1 << 24
"""Scores that are in memory at once."""


@dataclass(frozen=True)
class Retrieved:
    """What `retrieve` found; −1 and infinite where no candidate was read.

    Args:
        winners: [N,n] int64, person of the gallery image nearest to each candidate.
        distances: [N,n] float32, to that image.
        found: [N] int64, the person by the rule.
        lowest: [N] float32, smallest distance of any candidate to any gallery image, ld_x.
        votes: [N] int64, how many candidates named `found`.
    """

    winners: NDArray[np.int64]
    distances: NDArray[np.float32]
    found: NDArray[np.int64]
    lowest: NDArray[np.float32]
    votes: NDArray[np.int64]

    def unknown(self, threshold: float) -> NDArray[np.bool_]:
        """[N]: not in the gallery, for no candidate comes near anybody: ld_x > d (Revelio, §4.3)."""
        return self.lowest > threshold


def retrieve(
    candidates: Float, gallery: Float, people: NDArray[np.integer], metric: Metric = "euclidean", rule: Rule = "vote"
) -> Retrieved:
    """The person behind each probe (Revelio, §4.3).

    Args:
        candidates: [N,n,D] embeddings of n guesses at each probe, or [N,D]; rows of NaN have no vote.
        gallery, people: [M,D] embeddings of images of known people, and [M] whose they are, not negative.
        metric: "euclidean", or "cosine": 1 − cosine similarity.
    """
    candidates = candidates[:, None] if candidates.ndim == 2 else candidates
    whose: NDArray[np.int64] = np.asarray(people, np.int64)
    _check(candidates, gallery, whose)
    if metric not in ("euclidean", "cosine"):
        raise UsageError(f"there is no metric {metric!r}; there are euclidean and cosine")
    if rule not in RULES:
        raise UsageError(f"there is no rule {rule!r}; there are {', '.join(RULES)}")
    nearest, distances, average = _nearest(candidates, gallery, metric, whose if rule == "mean" else None)
    winners = np.where(nearest >= 0, whose[nearest], -1)
    found = average
    if rule == "vote":
        found = _vote(winners, distances)
    elif rule == "shortest":
        found = winners[np.arange(len(winners)), distances.argmin(axis=1)]
    votes = np.where(found >= 0, (winners == found[:, None]).sum(axis=1), 0)
    return Retrieved(winners, distances, found, distances.min(axis=1), votes)


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


def _nearest(
    candidates: Float, gallery: Float, metric: Metric, people: NDArray[np.int64] | None
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """Nearest gallery row of each candidate [N,n], its distance [N,n]; of given people, the nearest on average [N]."""
    probes, n, width = candidates.shape
    rows, gallery = candidates.reshape(-1, width).astype(np.float32), gallery.astype(np.float32)
    if metric == "cosine":
        rows, gallery = _unit(rows), _unit(gallery)
    read: NDArray[np.bool_] = np.all(np.isfinite(rows), axis=1)
    rows[~read] = 0
    squares = np.einsum("md,md->m", gallery, gallery)
    nearest, average = np.full(len(rows), -1), np.full(probes, -1)
    distances = np.full(len(rows), np.inf, np.float32)
    step = n * max(1, _BLOCK // (n * len(gallery)))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        scores = rows[part] @ gallery.T
        scores *= -2
        scores += squares  # |g|² − 2·r·g: least where the distance is
        best = scores.argmin(axis=1)
        gaps = rows[part] - gallery[best]  # by subtraction, as the product cancels where they are alike
        nearest[part] = np.where(read[part], best, -1)
        distances[part] = np.where(read[part], _distance(np.einsum("rd,rd->r", gaps, gaps), metric), np.inf)
        if people is not None:
            scores += np.einsum("rd,rd->r", rows[part], rows[part])[:, None]
            all_of = _distance(scores, metric) * read[part, None]
            average[start // n : (start + step) // n] = _on_average(all_of.reshape(-1, n, len(gallery)), people)
    nothing = ~read.reshape(probes, n).any(axis=1)
    return nearest.reshape(probes, n), distances.reshape(probes, n), np.where(nothing, -1, average)


def _on_average(distances: NDArray[np.float32], people: NDArray[np.int64]) -> NDArray[np.int64]:
    """The person of the smallest mean distance [B,n,M] → [B]."""
    names, starts, counts = np.unique(np.sort(people), return_index=True, return_counts=True)
    order = np.argsort(people, kind="stable")
    sums = np.add.reduceat(distances.sum(axis=1)[:, order], starts, axis=1)
    return names[(sums / counts).argmin(axis=1)]


def _distance(squares: NDArray[np.float32], metric: Metric) -> NDArray[np.float32]:
    positive: NDArray[np.float32] = np.maximum(squares, np.float32(0))
    return np.sqrt(positive) if metric == "euclidean" else positive * np.float32(0.5)


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    unit: NDArray[np.float32] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    return unit


def _vote(winners: NDArray[np.int64], distances: NDArray[np.float32]) -> NDArray[np.int64]:
    """The most frequent winner of each row [N,n]; of several, the one at the smallest distance; −1: nobody was read."""
    order = np.argsort(winners, axis=1, kind="stable")
    names, gaps = np.take_along_axis(winners, order, 1), np.take_along_axis(distances, order, 1)
    counts = (names[:, :, None] == names[:, None, :]).sum(axis=2) * (names >= 0)
    gaps = np.where(counts == counts.max(axis=1, keepdims=True), gaps, np.inf)
    chosen = np.where(counts.max(axis=1) > 0, gaps.argmin(axis=1), 0)
    return np.where(counts.max(axis=1) > 0, names[np.arange(len(names)), chosen], -1)


@dataclass(frozen=True)
class OodCurve:
    """How well the lowest distance separates unknown people ("OOD", positive) from known ones.

    Args:
        thresholds: [T] float64 rising; a probe is flagged where ld_x > d.
        tpr, fpr, accuracy: [T].
        auc: chance that an unknown person's ld_x is the larger of two, ties count half.
    """

    thresholds: NDArray[np.float64]
    tpr: NDArray[np.float64]
    fpr: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    auc: float


def ood_curve(known: Float, unknown: Float, thresholds: Float | None = None) -> OodCurve:
    """The detector of unknown people at every threshold (Revelio, §4.3, §5.5), from ld_x of known [A] and unknown [B]
    probes.
    """
    known, unknown = (np.sort(np.asarray(one, np.float64)) for one in (known, unknown))
    if not len(known) or not len(unknown) or np.isnan(known).any() or np.isnan(unknown).any():
        raise InputError("an OOD curve needs the lowest distances of known and of unknown people, none of them NaN")
    both = np.unique(np.concatenate([known, unknown]))
    at = np.concatenate([[-np.inf], both]) if thresholds is None else np.sort(np.asarray(thresholds, np.float64))
    tpr, fpr = (1 - np.searchsorted(one, at, side="right") / len(one) for one in (unknown, known))
    right = (tpr * len(unknown) + (1 - fpr) * len(known)) / (len(unknown) + len(known))
    below, upto = (np.searchsorted(known, unknown, side=side) for side in ("left", "right"))
    return OodCurve(at, tpr, fpr, right, float(np.mean((below + upto) / 2) / len(known)))


def choose_threshold(known: Float, unknown: Float) -> float:
    """The threshold d of the best balanced accuracy (TPR − FPR), halfway to the next distance. Choose it on other
    people than it is used on.
    """
    curve = ood_curve(known, unknown)
    best = int(np.argmax(curve.tpr - curve.fpr))
    here = curve.thresholds[best]
    after = curve.thresholds[min(best + 1, len(curve.thresholds) - 1)]
    if not np.isfinite(here):
        return float(np.nextafter(after, -np.inf))
    return float((here + after) / 2 if np.isfinite(after) else here)
