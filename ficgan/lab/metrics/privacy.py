"""Privacy metrics of one score matrix: whom an attacker names, which pairs match, how far a score links two images."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.errors import InputError
from ficgan.lab.metrics import (
    BOOTSTRAP,
    Bootstrap,
    Floats,
    Interval,
    Sample,
    from_half,
    percentiles,
    proportion,
    ratios,
)
from ficgan.lab.metrics.scores import Scores
from ficgan.lab.results import Figure

# What the name of a figure ends with in which a probe without a found face counts as a miss
FAILURES = " (failures as misses)"
NO_THRESHOLD = "No threshold was given."
NO_STRANGERS = "There are no impostor scores."
KS = (1, 5, 10)
FARS = (1e-1, 1e-2, 1e-3, 1e-4)
WITHIN_KIND = "within-kind"
LEAST_STRANGERS = 3  # People of an output's kind without whom it has no AUC within its kind
_NULLS = 200  # draws for what D_sys would be of strangers alone

# -- within kind: what an output says of the person beyond the kind of person ------------------------------------------


def nearer(own: Floats, strangers: Floats) -> float:
    """Share of pairs of an own similarity [A] and a stranger's [B] in which the own one is higher; ties count half."""
    return float((own[:, None] > strangers).mean() + (own[:, None] == strangers).mean() / 2)


def within_kind(
    similarity: Floats,
    people: ArrayLike,
    kinds: ArrayLike,
    enrolled: ArrayLike,
    enrolled_kinds: ArrayLike,
    *,
    sources: NDArray[np.integer] | None = None,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> Figure:
    """AUC of outputs: is each nearer to its own person than to strangers of the same kind? ½ is perfect, 1 is clear.

    Its own person is the other photos of that person, else the source itself; the note says which.

    Args:
        similarity: [N,M] of outputs to clear photos, higher is more alike.
        people, enrolled: [N] and [M] integers, one per person.
        kinds, enrolled_kinds: [N] and [M] texts, such as ethnicity and gender of the source; "" where unknown.
        sources: [N] which of the photos each output was made of; None: none of them.
    """
    who, kind, others, of_others = (np.asarray(each) for each in (people, kinds, enrolled, enrolled_kinds))
    areas, itself = np.full(len(who), np.nan), 0
    for row, score in enumerate(similarity):
        own = others == who[row]
        strangers = ~own & (of_others == kind[row])
        if not kind[row] or len(np.unique(others[strangers])) < LEAST_STRANGERS:
            continue
        if sources is not None:
            own[sources[row]] = False
            if not own.any():
                own[sources[row]] = True
                itself += 1
        if own.any():
            areas[row] = nearer(score[own], score[strangers])
    found = int(np.isfinite(areas).sum())
    if not found:
        note = f"no output has {LEAST_STRANGERS} strangers of its kind and a photo of its own person"
        return Figure(WITHIN_KIND, None, unit="images", note=note)
    own_is = "another photo of the person" if itself < found else "the source itself"
    note = f"own: {own_is}" + f" (of {itself} the source itself)" * (0 < itself < found)
    if left := len(who) - found:
        note += f"; {left} of {len(who)} left out, fewer than {LEAST_STRANGERS} strangers of their kind"
    return Sample(who, bootstrap).share(WITHIN_KIND, areas, note)


# -- identification: whom an attacker names ---------------------------------------------------------------------------


def hits(scores: Scores, k: int) -> NDArray[np.float64]:
    """[P] probability that a probe's person is among the k most similar people (best image each); ties by lot."""
    better, tied = scores.rivals
    return np.where(scores.mated, np.clip((k - better) / (tied + 1), 0.0, 1.0), 0.0)


def chance(scores: Scores, k: int = 1) -> float:
    return min(1.0, k / scores.enrolled) if scores.enrolled else 0.0


def rank(scores: Scores, k: int = 1, *, failures: bool = False, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Mean over identities of the share of probes whose person is among the k most similar (Fantômas, §7)."""
    name = f"rank-{k}" + FAILURES * failures
    images = scores.sums(scores.enrolled_probes if failures else scores.mated)
    if not images.any():
        return Figure(name, None, note=_nobody(scores))
    share = np.divide(scores.sums(hits(scores, k)), images, out=np.zeros(len(images)), where=images > 0)
    present = images > 0
    ends = proportion(bootstrap.weights(len(share)), share, present.astype(np.float64))
    note = f"Chance is {chance(scores, k):.3g}."
    return Figure(name, float(share[present].mean()), *ends, int(present.sum()), "identities", note)


def failures_to_acquire(scores: Scores, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Share of probes without a found face: no privacy, since another detector may find it (ISO/IEC 19795-1:2021)."""
    return _share("failures to acquire", scores, ~scores.acquired, np.ones(len(scores)), bootstrap)


def singling_out(scores: Scores, threshold: float | None, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Share of probes that match exactly one enrolled person, the right one, at the threshold (WP216, §2.2)."""
    if threshold is None:
        return Figure("singling-out", None, note=NO_THRESHOLD)
    alone = scores.strangers(np.full(len(scores), threshold))[0] == 0
    return _share("singling-out", scores, (scores.best_genuine > threshold) & alone, scores.mated, bootstrap)


# -- verification: which pairs match ----------------------------------------------------------------------------------


def vertices(scores: Scores) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The corners of the exact ROC: impostor and genuine scores accepted, both [2T+2], from none to all."""
    thresholds, times = np.unique(scores.genuine, return_counts=True)
    x, y = (np.zeros(2 * len(thresholds) + 2, np.int64) for _ in range(2))
    x[1:-1:2] = len(scores.impostors) - scores.impostors.searchsorted(thresholds[::-1], "right")
    x[2:-1:2] = len(scores.impostors) - scores.impostors.searchsorted(thresholds[::-1], "left")
    y[2:-1:2] = np.cumsum(times[::-1])
    y[3:-1:2] = y[2:-3:2]
    x[-1], y[-1] = len(scores.impostors), len(scores.genuine)
    return x, y


def auc(scores: Scores, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Probability that a genuine score is above an impostor's; ties count half (Hanley and McNeil 1982)."""
    if missing := _missing(scores):
        return Figure("AUC", None, note=missing)
    below, upto = (scores.impostors.searchsorted(scores.genuine, side) for side in ("left", "right"))
    areas = (below + upto) / (2.0 * len(scores.impostors))  # [N] of each genuine score
    who, people = scores.identity[scores.genuine_probe], len(scores.identities)
    sums, pairs = (np.bincount(who, weights, people).astype(np.float64) for weights in (areas, None))
    ends = proportion(bootstrap.weights(people), sums, pairs)
    return Figure("AUC", float(areas.mean()), *ends, len(areas), "genuine scores")


def leak(scores: Scores, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """2·|AUC − ½|: 0 where scores say nothing about identity, 1 where a threshold tells, on whichever side."""
    area = auc(scores, bootstrap=bootstrap)
    if area.value is None:
        return Figure("leak", None, note=area.note)
    low, high = (None if end is None else 2 * end for end in from_half(area.low, area.high))
    note = "Strangers are more alike than images of one person." if area.value < 0.5 else ""
    return Figure("leak", 2 * abs(area.value - 0.5), low, high, area.n, area.unit, note)


def eer(scores: Scores) -> Figure:
    """Error rate where as many impostors pass as genuine ones fail; ½ is chance (ISO/IEC 19795-1)."""
    if missing := _missing(scores):
        return Figure("EER", None, note=missing)
    x, y = vertices(scores)
    far, excess = x / x[-1], x / x[-1] + y / y[-1] - 1
    after = max(1, int(np.argmax(excess >= 0)))
    step = excess[after] - excess[after - 1]
    part = -excess[after - 1] / step if step > 0 else 0.0
    value = float(far[after - 1] + part * (far[after] - far[after - 1]))
    return Figure("EER", value, n=len(scores.genuine), unit="genuine scores")


def tar_at_far(scores: Scores, far: float) -> Figure:
    """Largest genuine acceptance with at most `far` of impostors accepted; none below 30/far pairs."""
    name = f"TAR@FAR={far:g}"
    if missing := _missing(scores):
        return Figure(name, None, note=missing)
    if scores.distinct_impostors * far < 30 - 1e-9:
        needed = f"{30 / far:.0f} are needed to know this rate"
        return Figure(name, None, note=f"There are {scores.distinct_impostors} pairs of strangers, and {needed}.")
    x, y = vertices(scores)
    accepted = float(y[x <= far * x[-1] * (1 + 1e-12)].max()) / y[-1]
    return Figure(name, accepted, n=len(scores.genuine), unit="genuine scores")


def match_rate(scores: Scores, threshold: float | None, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Share of genuine pairs above the recogniser's threshold."""
    if threshold is None:
        return Figure("match rate", None, note=NO_THRESHOLD)
    matched = np.bincount(scores.genuine_probe[scores.genuine > threshold], minlength=len(scores))
    pairs = scores.genuine_pairs * scores.acquired
    return _share("match rate", scores, matched, pairs, bootstrap, "genuine scores")


def false_match_rate(scores: Scores, threshold: float | None, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Share of impostor pairs above the same threshold: a match rate means nothing where strangers match as often."""
    name, pairs = "false match rate", scores.impostors_of
    if threshold is None or not pairs.any():
        return Figure(name, None, note=NO_THRESHOLD if threshold is None else NO_STRANGERS)
    return _share(name, scores, scores.impostors_over(threshold), pairs, bootstrap, "impostor scores")


def genuine_similarity(scores: Scores, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Mean similarity of genuine pairs, as a cosine or a Euclidean distance (FICGAN, Table 1)."""
    name, sign = ("ID cosine", 1.0) if scores.metric == "cosine" else ("ID distance", -1.0)
    if not len(scores.genuine):
        return Figure(name, None, note=_nobody(scores))
    who, people = scores.identity[scores.genuine_probe], len(scores.identities)
    sums = np.bincount(who, weights=sign * scores.genuine.astype(np.float64), minlength=people).astype(np.float64)
    pairs = np.bincount(who, minlength=people).astype(np.float64)
    ends: Interval = (None, None)
    if np.count_nonzero(pairs) > 1:
        ends = percentiles(ratios(bootstrap.weights(people), sums, pairs))
    return Figure(name, float(sums.sum() / pairs.sum()), *ends, len(scores.genuine), "genuine scores")


# -- linkability and reversibility ------------------------------------------------------------------------------------


def linkability(scores: Scores, *, seed: int = 0) -> Figure:
    """D_sys in [0, 1]: 0 where a score does not tell one person's images (Gomez-Barrero et al. 2018, eqs. 8, 10).

    Histograms put it above 0 by chance; the note says how far. Below 20 genuine scores there is no value.
    """
    if missing := _missing(scores):
        return Figure("D_sys", None, note=missing)
    count = len(scores.genuine)
    bins = min(100, count // 10)  # as the authors' program
    if bins < 2:
        return Figure("D_sys", None, note=f"{count} genuine scores are too few for a histogram; 20 are needed.")
    both = np.concatenate([scores.genuine, scores.impostors])
    edges = np.linspace(both.min(), both.max(), bins + 1)
    genuine, impostor = (np.histogram(some, edges)[0] / len(some) for some in (scores.genuine, scores.impostors))
    null = np.random.default_rng(seed).multinomial(count, impostor / impostor.sum(), size=_NULLS) / count
    expected = _global_measure(null, impostor).mean()
    note = f"As many scores of strangers alone would give {expected:.2g}."
    return Figure("D_sys", float(_global_measure(genuine, impostor)), n=count, unit="genuine scores", note=note)


def reversibility(clear: Scores, naive: Scores, reversed: Scores, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """(acc_deanon − acc_naive) / acc_clear, of rank-1 over the same resampled identities (Fantômas, §7)."""
    (people, ceiling), (others, below), (more, regained) = (_accuracies(scores) for scores in (clear, naive, reversed))
    if not (np.array_equal(people, others) and np.array_equal(people, more)):
        raise InputError("clear, anonymised and de-anonymised probes show different people; compare the same ones")
    name = "reversibility"
    if not len(people) or not ceiling.sum():
        return Figure(name, None, n=len(people), note="Not even clear faces are recognised.")
    value = float((regained.sum() - below.sum()) / ceiling.sum())
    ends: Interval = (None, None)
    if len(people) > 1:
        ends = percentiles(ratios(bootstrap.weights(len(people)), regained - below, ceiling))
    note = f"Rank-1 is {ceiling.mean():.3g} clear, {below.mean():.3g} anonymised, {regained.mean():.3g} de-anonymised."
    if ceiling.mean() < 2 * chance(clear):
        note = f"Clear faces are recognised hardly more often ({ceiling.mean():.3g}) than by guessing: not to be used."
    return Figure(name, value, *ends, len(people), "identities", note)


# -- all of them ------------------------------------------------------------------------------------------------------


def privacy_figures(
    scores: Scores, *, threshold: float | None, seed: int = 0, resamples: int = 1000
) -> tuple[Figure, ...]:
    """Every metric that one score matrix has; `threshold` is the recogniser's own."""
    draw: Any = {"bootstrap": Bootstrap(resamples, seed)}
    return (
        *(rank(scores, k, **draw) for k in KS if k <= max(1, scores.enrolled)),
        auc(scores, **draw),
        leak(scores, **draw),
        eer(scores),
        *(tar_at_far(scores, far) for far in FARS),
        genuine_similarity(scores, **draw),
        match_rate(scores, threshold, **draw),
        false_match_rate(scores, threshold, **draw),
        linkability(scores, seed=seed),
        singling_out(scores, threshold, **draw),
    )


def _share(
    name: str, scores: Scores, found: NDArray[Any], able: NDArray[Any], bootstrap: Bootstrap, unit: str = "images"
) -> Figure:
    """Σ found / Σ able over probes [P], resampled by identity; probes that are not able count nothing."""
    whole = scores.sums(able)
    if not whole.any():
        return Figure(name, None, note=_nobody(scores))
    part = scores.sums(found * (able > 0))
    ends = proportion(bootstrap.weights(len(whole)), part, whole)
    return Figure(name, float(part.sum() / whole.sum()), *ends, int(whole.sum()), unit)


def _nobody(scores: Scores) -> str:
    if not len(scores):
        return "There are no probes."
    if not scores.acquired.any():
        return f"None of {len(scores)} probes was acquired."
    return "No acquired probe shows a person who is enrolled."


def _missing(scores: Scores) -> str:
    if not len(scores.genuine):
        return _nobody(scores)
    return "" if len(scores.impostors) else NO_STRANGERS


def _global_measure(genuine: Floats, impostor: Floats) -> Floats:
    """D_sys = ∫ p(s | genuine) D(s) ds, with D = (p − q)/(p + q) where p > q, else 0, of shares […,bins]."""
    both = genuine + impostor
    local = np.divide(genuine - impostor, both, out=np.zeros(both.shape), where=both > 0).clip(0, None)
    return np.asarray((genuine * local).sum(-1))


def _accuracies(scores: Scores) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    images = scores.sums(scores.enrolled_probes)
    present = images > 0
    return scores.identities[present], scores.sums(hits(scores, 1))[present] / images[present]
