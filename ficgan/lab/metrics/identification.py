"""Whom an attacker names: rank-k and CMC, singling out, open-set identification."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import UsageError
from ficgan.lab.results import Figure

from .intervals import BOOTSTRAP, Bootstrap, proportion
from .scores import Scores

__all__ = [
    "FAILURES",
    "NO_THRESHOLD",
    "chance",
    "cmc",
    "failures_to_acquire",
    "false_identification",
    "hits",
    "identification",
    "nobody",
    "people_found",
    "per_identity",
    "rank",
    "rank_per_probe",
    "singling_out",
]

FAILURES = " (failures as misses)"
"""What the name of a figure ends with in which a probe without a found face counts as a miss."""
NO_THRESHOLD = "No threshold was given."


def hits(scores: Scores, k: int) -> NDArray[np.float64]:
    """[P] probability that a probe's person is among the k most similar people; equal scores fall by lot.

    People are ranked by their most similar enrolled image. 0 for probes without a genuine score.

    Raises:
        UsageError: k below 1.
    """
    if k < 1:
        raise UsageError(f"rank {k} does not exist; give 1 or more")
    chances = np.clip((k - scores.better) / (scores.tied + 1), 0.0, 1.0)
    return np.where(scores.mated, chances, 0.0)


def chance(scores: Scores, k: int = 1) -> float:
    """Rank-k of whoever guesses: k of the enrolled people."""
    return min(1.0, k / scores.enrolled) if scores.enrolled else 0.0


def rank(scores: Scores, k: int = 1, *, failures: bool = False, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Mean over identities of the share of their probes whose person is among the k most similar.

    Args:
        k: 1 or more.
        failures: count probes that were not acquired, as misses.

    Source: Todt et al., Fantômas (PETS 2024), §7 "Metrics": accuracies per identity, their mean and interval.
    """
    name = f"rank-{k}" + FAILURES * failures
    images = scores.sums(scores.enrolled_probes if failures else scores.mated)
    present = images > 0
    if not present.any():
        return Figure(name, None, note=nobody(scores))
    share = np.divide(scores.sums(hits(scores, k)), images, out=np.zeros(len(images)), where=present)
    low, high = proportion(bootstrap.weights(len(images)), share, present.astype(np.float64))
    note = f"Chance is {chance(scores, k):.3g}."
    if scores.twins:
        note = f"Chance is {chance(scores, k):.3g}; {scores.twins} gallery images equal another person's."
    return Figure(name, float(share[present].mean()), low, high, int(present.sum()), "identities", note)


def rank_per_probe(scores: Scores, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Share of probes that rank first: closed-set identification, in which who has more images counts for more.

    Source: ISO/IEC 19795-1:2021, true-positive identification rate at rank 1 without a threshold.
    """
    name = "rank-1 (per probe)"
    images = scores.sums(scores.mated)
    if not images.any():
        return Figure(name, None, note=nobody(scores))
    found = scores.sums(hits(scores, 1))
    low, high = proportion(bootstrap.weights(len(images)), found, images)
    return Figure(name, float(found.sum() / images.sum()), low, high, int(images.sum()), "images")


def per_identity(scores: Scores, k: int = 1) -> dict[int, float]:
    """Rank-k of each identity that has a genuine score: person → share of their acquired probes."""
    images, found = scores.sums(scores.mated), scores.sums(hits(scores, k))
    return {int(who): float(found[i] / images[i]) for i, who in enumerate(scores.identities) if images[i]}


def people_found(scores: Scores, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Share of people of whom at least one probe ranks first: one leaked image is enough for the person.

    Probes without a found face count as misses.
    """
    name = "people found"
    present = scores.sums(scores.enrolled_probes) > 0
    if not present.any():
        return Figure(name, None, note=nobody(scores))
    missed = np.ones(len(scores.identities))
    np.multiply.at(missed, scores.identity, 1 - hits(scores, 1))
    found = np.where(present, 1 - missed, 0.0)
    low, high = proportion(bootstrap.weights(len(present)), found, present.astype(np.float64))
    guess = 1 - (1 - chance(scores)) ** scores.sums(scores.mated)[present]
    note = f"Chance is {guess.mean():.3g}."
    return Figure(name, float(found[present].mean()), low, high, int(present.sum()), "identities", note)


def cmc(scores: Scores, points: int = 200) -> list[list[float]]:
    """Cumulative match characteristic: [k, rank-k] as `rank` has it, for at most `points` ranks up to all people."""
    images = scores.sums(scores.mated)
    mated = np.flatnonzero(scores.mated)
    if not len(mated):
        return []
    # A probe spreads its weight evenly over the ranks that its ties allow: differences of a step function.
    share = 1 / images[scores.identity[mated]] / np.count_nonzero(images) / (scores.tied[mated] + 1)
    steps = np.zeros(scores.enrolled + 2)
    np.add.at(steps, scores.better[mated], share)
    np.add.at(steps, scores.better[mated] + scores.tied[mated] + 1, -share)
    rates = np.cumsum(np.cumsum(steps))[: scores.enrolled].round(9).clip(0, 1)
    ranks = np.unique(np.geomspace(1, scores.enrolled, points).round().astype(np.int64))
    heights = np.maximum.accumulate(rates[ranks - 1])
    return [[float(k), float(rate)] for k, rate in zip(ranks, heights, strict=True)]


def failures_to_acquire(scores: Scores, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Share of probes without a found face; a failure is no privacy, since another detector may find it.

    Source: ISO/IEC 19795-1:2021, failure-to-acquire rate.
    """
    name = "failures to acquire"
    if not len(scores):
        return Figure(name, None, note="There are no probes.")
    images, failed = scores.sums(np.ones(len(scores))), scores.sums(~scores.acquired)
    low, high = proportion(bootstrap.weights(len(images)), failed, images)
    return Figure(name, float(failed.sum() / images.sum()), low, high, len(scores), "images")


def singling_out(
    scores: Scores, threshold: float | None, *, anyone: bool = False, bootstrap: Bootstrap = BOOTSTRAP
) -> Figure:
    """Share of probes that match exactly one enrolled person at the recogniser's threshold, and that the right one.

    A record that isolates an individual singles them out, whatever rank the others have. Right ones are counted over
    probes with a genuine score; `anyone` counts, over all acquired probes, also those that isolate a wrong person.

    Args:
        threshold: a similarity; above it is a match. None: no figure.

    Source: Article 29 Working Party, Opinion 05/2014 (WP216), §2.2 "singling out".
    """
    name = "singling-out" + " (anyone)" * anyone
    able = scores.acquired if anyone else scores.mated
    images = scores.sums(able)
    if threshold is None or not images.any():
        return Figure(name, None, note=NO_THRESHOLD if threshold is None else nobody(scores))
    right = scores.best_genuine > threshold
    stranger = scores.best_impostor > threshold
    single = right & ~stranger
    if anyone:
        single |= ~right & stranger & ~(scores.second_impostor > threshold)
    found = scores.sums(single & able)
    low, high = proportion(bootstrap.weights(len(images)), found, images)
    return Figure(name, float(found.sum() / images.sum()), low, high, int(images.sum()), "images")


def identification(scores: Scores, threshold: float | None, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Share of probes that rank first and above the threshold: what an open-set attacker names, and rightly.

    Source: ISO/IEC 19795-1:2021, true-positive identification rate (TPIR) at rank 1.
    """
    images = scores.sums(scores.mated)
    if threshold is None or not images.any():
        return Figure("TPIR", None, note=NO_THRESHOLD if threshold is None else nobody(scores))
    above = scores.best_genuine > threshold  # NaN is above nothing
    found = scores.sums(hits(scores, 1) * above)
    low, high = proportion(bootstrap.weights(len(images)), found, images)
    return Figure("TPIR", float(found.sum() / images.sum()), low, high, int(images.sum()), "images")


def false_identification(scores: Scores, threshold: float | None, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Share of probes of people who are not enrolled that match somebody all the same.

    Source: ISO/IEC 19795-1:2021, false-positive identification rate (FPIR).
    """
    images = scores.sums(scores.acquired & ~scores.enrolled_probes)
    if threshold is None or not images.any():
        note = NO_THRESHOLD if threshold is None else "Every acquired probe shows a person who is enrolled."
        return Figure("FPIR", None, note=note)
    wrong = scores.best_impostor > threshold
    found = scores.sums(wrong & scores.acquired & ~scores.enrolled_probes)
    low, high = proportion(bootstrap.weights(len(images)), found, images)
    return Figure("FPIR", float(found.sum() / images.sum()), low, high, int(images.sum()), "images")


def nobody(scores: Scores) -> str:
    """Why there is no genuine score."""
    if not len(scores):
        return "There are no probes."
    if not scores.acquired.any():
        return f"None of {len(scores)} probes was acquired."
    return "No acquired probe shows a person who is enrolled."
