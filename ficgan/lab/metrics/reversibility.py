"""How much of the recognition that anonymisation took away an attacker gets back."""

from __future__ import annotations

import numpy as np

from ficgan.errors import InputError
from ficgan.lab.results import Figure

from .identification import chance, hits
from .intervals import BOOTSTRAP, Bootstrap, Floats, percentiles
from .scores import Scores

__all__ = ["reversibility"]


def reversibility(clear: Scores, naive: Scores, reversed: Scores, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """(acc_deanon − acc_naive) / acc_clear: accuracy is the mean over identities of rank-1, failures are misses.

    0 where de-anonymising gains nothing, 1 where it restores everything and anonymised faces are never recognised,
    below 0 where it harms the attacker. The interval resamples identities, the same in all three.

    Args:
        clear: clear probes.
        naive: anonymised probes.
        reversed: anonymised probes after the attack.

    Raises:
        InputError: the three have other people among their probes.

    Source: Todt et al., Fantômas (PETS 2024), §7.
    """
    (people, ceiling), (others, below), (more, regained) = (_accuracies(one) for one in (clear, naive, reversed))
    if not (np.array_equal(people, others) and np.array_equal(people, more)):
        raise InputError("clear, anonymised and de-anonymised probes show different people; compare the same ones")
    name = "reversibility"
    if not len(people) or not ceiling.sum():
        return Figure(name, None, n=len(people), note="Not even clear faces are recognised.")
    value = float((regained.sum() - below.sum()) / ceiling.sum())
    low: float | None = None
    high: float | None = None
    if len(people) > 1:
        drawn = bootstrap.weights(len(people))
        sums = (drawn @ np.stack([ceiling, below, regained], 1).astype(np.float32)).astype(np.float64)
        gained = sums[:, 2] - sums[:, 1]
        low, high = percentiles(np.divide(gained, sums[:, 0], out=np.full(len(sums), np.nan), where=sums[:, 0] > 0))
    note = f"Rank-1 is {ceiling.mean():.3g} clear, {below.mean():.3g} anonymised, {regained.mean():.3g} de-anonymised."
    if ceiling.mean() < 2 * chance(clear):
        note = f"Clear faces are recognised hardly more often ({ceiling.mean():.3g}) than by guessing: not to be used."
    return Figure(name, value, low, high, len(people), "identities", note)


def _accuracies(scores: Scores) -> tuple[Floats, Floats]:
    """People whose probes could be found, and the share of each one's probes that was."""
    images = scores.sums(scores.enrolled_probes)
    present = images > 0
    return scores.identities[present].astype(np.float64), (scores.sums(hits(scores, 1))[present] / images[present])
