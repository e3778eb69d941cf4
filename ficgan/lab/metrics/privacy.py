"""Privacy metrics of one score matrix: whom an attacker names, which pairs match, how far a score links two images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import roc_curve

from ficgan.errors import InputError
from ficgan.lab.metrics import BOOTSTRAP, Bootstrap, Floats, Interval, Sample, percentiles, proportion, ratios
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
            apart = score[own][:, None] - score[strangers]
            areas[row] = (apart > 0).mean() + (apart == 0).mean() / 2
    found = int(np.isfinite(areas).sum())
    if not found:
        note = f"no output has {LEAST_STRANGERS} strangers of its kind and a photo of its own person"
        return Figure(WITHIN_KIND, None, unit="images", note=note)
    own_is = "another photo of the person" if itself < found else "the source itself"
    note = f"own: {own_is}" + f" (of {itself} the source itself)" * (0 < itself < found)
    if left := len(who) - found:
        note += f"; {left} of {len(who)} left out, fewer than {LEAST_STRANGERS} strangers of their kind"
    return Sample(who, bootstrap).share(WITHIN_KIND, areas, note)


def hits(scores: Scores, k: int) -> NDArray[np.float64]:
    """[P] probability that a probe's person is among the k most similar people (best image each); ties by lot."""
    better, tied = scores.rivals
    return np.where(scores.mated, np.clip((k - better) / (tied + 1), 0.0, 1.0), 0.0)


def chance(scores: Scores, k: int = 1) -> float:
    return min(1.0, k / scores.enrolled) if scores.enrolled else 0.0


def rank(scores: Scores, k: int = 1, *, failures: bool = False, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Mean over identities of the share of probes whose person is among the k most similar (Fantômas, §7)."""
    name = f"rank-{k}" + FAILURES * failures
    sample = Sample(scores.people, bootstrap)
    images = sample.total(scores.enrolled_probes if failures else scores.mated)
    if not images.any():
        return Figure(name, None, note=_nobody(scores))
    present = images > 0
    share = np.divide(sample.total(hits(scores, k)), images, out=np.zeros(len(images)), where=present)
    ends = proportion(sample.drawn, share, present.astype(np.float64))
    note = f"Chance is {chance(scores, k):.3g}."
    return Figure(name, float(share[present].mean()), *ends, int(present.sum()), "identities", note)


def failures_to_acquire(scores: Scores, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Share of probes without a found face: no privacy, since another detector may find it (ISO/IEC 19795-1:2021)."""
    return _ratio("failures to acquire", scores, ~scores.acquired, np.ones(len(scores)), bootstrap)


def singling_out(scores: Scores, threshold: float | None, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Share of probes that match exactly one enrolled person, the right one, at the threshold (WP216, §2.2)."""
    if threshold is None:
        return Figure("singling-out", None, note=NO_THRESHOLD)
    alone = scores.strangers(np.full(len(scores), threshold))[0] == 0
    return _ratio("singling-out", scores, (scores.best_genuine > threshold) & alone, scores.mated, bootstrap)


def auc(scores: Scores, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Probability that a genuine score is above an impostor's; ties count half (Hanley and McNeil 1982)."""
    if missing := _missing(scores):
        return Figure("AUC", None, note=missing)
    below, upto = (scores.impostors.searchsorted(scores.genuine, side) for side in ("left", "right"))
    pairs = 2.0 * len(scores.impostors)
    figure = _of_genuine("AUC", scores, (below + upto) / pairs, bootstrap)
    # A sum of whole numbers, so that constant scores have exactly ½.
    return replace(figure, value=float(np.sum(below + upto)) / (pairs * len(below)))


def leak(scores: Scores, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """2·|AUC − ½|: 0 where scores say nothing about identity, 1 where a threshold tells, on whichever side."""
    area = auc(scores, bootstrap=bootstrap)
    if area.value is None:
        return Figure("leak", None, note=area.note)
    low, high = area.low, area.high
    if low is not None and high is not None:
        ends = sorted((2 * abs(low - 0.5), 2 * abs(high - 0.5)))
        low, high = (0.0 if low <= 0.5 <= high else ends[0]), ends[1]
    note = "Strangers are more alike than images of one person." if area.value < 0.5 else ""
    return Figure("leak", 2 * abs(area.value - 0.5), low, high, area.n, area.unit, note)


def eer(scores: Scores) -> Figure:
    """Error rate where as many impostors pass as genuine ones fail; ½ is chance (ISO/IEC 19795-1)."""
    if missing := _missing(scores):
        return Figure("EER", None, note=missing)
    far, tar = scores.roc
    return Figure("EER", float(np.interp(0, far + tar - 1, far)), n=len(scores.genuine), unit="genuine scores")


def tar_at_far(scores: Scores, far: float) -> Figure:
    """Largest genuine acceptance with at most `far` of impostors accepted; none below 30/far pairs."""
    name = f"TAR@FAR={far:g}"
    if missing := _missing(scores):
        return Figure(name, None, note=missing)
    pairs = len(scores.impostors) // (2 if scores.same else 1)
    if pairs * far < 30 - 1e-9:
        needed = f"{30 / far:.0f} are needed to know this rate"
        return Figure(name, None, note=f"There are {pairs} pairs of strangers, and {needed}.")
    rates, accepted = scores.roc
    value = float(accepted[rates <= far * (1 + 1e-12)].max())
    return Figure(name, value, n=len(scores.genuine), unit="genuine scores")


def match_rate(scores: Scores, threshold: float | None, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Share of genuine pairs above the recogniser's threshold."""
    if threshold is None:
        return Figure("match rate", None, note=NO_THRESHOLD)
    return _of_genuine("match rate", scores, scores.genuine > threshold, bootstrap)


def false_match_rate(scores: Scores, threshold: float | None, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Share of impostor pairs above the same threshold: a match rate means nothing where strangers match as often."""
    name, pairs = "false match rate", scores.impostor_pairs
    if threshold is None or not pairs.any():
        return Figure(name, None, note=NO_THRESHOLD if threshold is None else NO_STRANGERS)
    over = ((scores.similarity > threshold) & pairs).sum(1)
    return _ratio(name, scores, over, pairs.sum(1), bootstrap, "impostor scores")


def genuine_similarity(scores: Scores, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Mean similarity of genuine pairs, as a cosine or a Euclidean distance (FICGAN, Table 1)."""
    name, sign = ("ID cosine", 1.0) if scores.metric == "cosine" else ("ID distance", -1.0)
    return _of_genuine(name, scores, sign * scores.genuine, bootstrap, share=False)


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
    ceiling, below, regained = (_accuracies(scores) for scores in (clear, naive, reversed))
    name = "reversibility"
    if not ceiling.sum():
        return Figure(name, None, n=len(ceiling), note="Not even clear faces are recognised.")
    value = float((regained.sum() - below.sum()) / ceiling.sum())
    ends: Interval = (None, None)
    if len(ceiling) > 1:
        ends = percentiles(ratios(bootstrap.weights(len(ceiling)), regained - below, ceiling))
    note = f"Rank-1 is {ceiling.mean():.3g} clear, {below.mean():.3g} anonymised, {regained.mean():.3g} de-anonymised."
    if ceiling.mean() < 2 * chance(clear):
        note = f"Clear faces are recognised hardly more often ({ceiling.mean():.3g}) than by guessing: not to be used."
    return Figure(name, value, *ends, len(ceiling), "identities", note)


def privacy_figures(scores: Scores, threshold: float | None, bootstrap: Bootstrap = BOOTSTRAP) -> tuple[Figure, ...]:
    """Every metric that one score matrix has; `threshold` is the recogniser's own."""
    draw: Any = {"bootstrap": bootstrap}
    return (
        *(rank(scores, k, **draw) for k in KS if k <= max(1, scores.enrolled)),
        auc(scores, **draw),
        leak(scores, **draw),
        eer(scores),
        *(tar_at_far(scores, far) for far in FARS),
        genuine_similarity(scores, **draw),
        match_rate(scores, threshold, **draw),
        false_match_rate(scores, threshold, **draw),
        linkability(scores, seed=bootstrap.seed),
        singling_out(scores, threshold, **draw),
    )


def _of_genuine(name: str, scores: Scores, values: NDArray[Any], bootstrap: Bootstrap, *, share: bool = True) -> Figure:
    """Mean of values [N] of the genuine scores."""
    above = np.bincount(np.nonzero(scores.genuine_at)[0], values, len(scores))
    pairs = scores.genuine_pairs * scores.acquired
    return _ratio(name, scores, above, pairs, bootstrap, "genuine scores", share=share)


def _ratio(
    name: str, scores: Scores, above: Any, below: Any, bootstrap: Bootstrap, unit: str = "images", *, share: bool = True
) -> Figure:
    """Σ above / Σ below over probes [P], resampled by identity."""
    if not below.any():
        return Figure(name, None, note=_nobody(scores))
    return Sample(scores.people, bootstrap, unit).ratio(name, above, below, share=share)


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


def _accuracies(scores: Scores) -> NDArray[np.float64]:
    """Rank-1 of each person who is enrolled, in the order of their numbers."""
    sample = Sample(scores.people)
    images = sample.total(scores.enrolled_probes)
    present = images > 0
    return sample.total(hits(scores, 1))[present] / images[present]


Booleans = NDArray[np.bool_]
Metric = Literal["cosine", "euclidean"]


@dataclass(frozen=True, eq=False)
class Scores:
    """Probes against a gallery; made by `compare`, `from_matrix` or `take`.

    A *genuine* score compares two images of one person, an *impostor* score two people.
    """

    similarity: Floats  # [P,G], higher is more alike; NaN where an image is not compared with another
    people: NDArray[np.int64]  # [P], who is in each probe
    gallery: NDArray[np.int64]  # [G] ascending, who is in each enrolled image
    acquired: Booleans  # [P]; a probe that was not acquired (no face found) has no scores
    metric: Metric  # "euclidean": negative distances
    same: bool = False  # the probes were compared with themselves; every pair counts twice

    @classmethod
    def compare(
        cls, probe: Floats, gallery: Floats, probe_people: ArrayLike, gallery_people: ArrayLike, **more: Any
    ) -> Scores:
        """Embeddings [P,D] against [G,D] by the `metric`; the rest as in `from_matrix`."""
        return cls.from_matrix(similarities(probe, gallery, more["metric"]), probe_people, gallery_people, **more)

    @classmethod
    def from_matrix(
        cls,
        matrix: ArrayLike,
        probe_people: ArrayLike,
        gallery_people: ArrayLike,
        *,
        metric: Metric = "cosine",
        acquired: ArrayLike | None = None,
        exclude_same: bool = False,
    ) -> Scores:
        """From similarities [P,G], higher is more alike.

        Args:
            probe_people, gallery_people: [P] and [G] integers ≥ 0.
            acquired: [P] bool, which probes have an embedding; None: all.
            exclude_same: image i of the probes is image i of the gallery and is not compared with itself (linkability).
        """
        given = np.asarray(matrix)
        scores: Floats = given.astype(np.float32 if given.dtype == np.float32 else np.float64)
        seen = np.ones(len(scores), bool) if acquired is None else np.asarray(acquired)
        scores[~seen] = np.nan
        people, enrolled = np.asarray(probe_people, np.int64), np.asarray(gallery_people, np.int64)
        who, images = np.unique(enrolled, return_counts=True)
        if len(who) < 2:
            raise InputError(f"the gallery holds {len(who)} person; with fewer than two, every guess is right")
        if not np.isin(people, who[images > exclude_same]).any():
            reason = "no person has two images" if exclude_same else "none of the probes' people is in the gallery"
            raise InputError(f"{reason}, so there is nothing to find; check the split")
        kept = np.flatnonzero(seen) if exclude_same else np.arange(len(enrolled))
        if not np.isfinite(scores[np.ix_(seen, kept)]).all():
            raise InputError("some embeddings are not finite; leave out faces that the recogniser cannot read")
        if exclude_same:
            np.fill_diagonal(scores, np.nan)
        order = kept[np.argsort(enrolled[kept], kind="stable")]
        return cls(scores[:, order], people, enrolled[order], seen, metric, exclude_same)

    def take(self, mask: Booleans) -> Scores:
        """The scores of the probes where `mask` [P] is true, against the whole gallery."""
        return replace(self, similarity=self.similarity[mask], people=self.people[mask], acquired=self.acquired[mask])

    def __len__(self) -> int:
        return len(self.people)

    @cached_property
    def _first(self) -> NDArray[np.intp]:
        """[E] the first column of each enrolled person."""
        return np.flatnonzero(np.diff(self.gallery, prepend=-1))

    @property
    def enrolled(self) -> int:
        return len(self._first)

    @cached_property
    def genuine_pairs(self) -> NDArray[np.int64]:
        """[P] enrolled images of the probe's person, its own image left out; also of probes not acquired."""
        first, last = (np.searchsorted(self.gallery, self.people, side) for side in ("left", "right"))
        return np.asarray(last - first - (self.acquired & self.same), np.int64)

    @property
    def enrolled_probes(self) -> Booleans:
        """[P] probes whose person is in the gallery, acquired or not."""
        return self.genuine_pairs > 0

    @property
    def mated(self) -> Booleans:
        """[P] probes that have a genuine score."""
        return self.acquired & self.enrolled_probes

    @cached_property
    def genuine_at(self) -> Booleans:
        """[P,G] where the genuine scores are."""
        return (self.people[:, None] == self.gallery) & ~np.isnan(self.similarity)

    @property
    def impostor_pairs(self) -> Booleans:
        """[P,G] where the impostor scores are."""
        return (self.people[:, None] != self.gallery) & ~np.isnan(self.similarity)

    @cached_property
    def genuine(self) -> Floats:
        """[N] all genuine scores, probe by probe."""
        return self.similarity[self.genuine_at]

    @cached_property
    def impostors(self) -> Floats:
        """[M] all impostor scores, ascending."""
        return np.sort(self.similarity[self.impostor_pairs])

    @cached_property
    def roc(self) -> tuple[Floats, Floats]:
        """Shares of the impostor and of the genuine scores that are accepted, from none to all."""
        scores = np.concatenate([self.genuine, self.impostors])
        far, tar, _ = roc_curve(np.arange(len(scores)) < len(self.genuine), scores, drop_intermediate=False)
        return far, tar

    @cached_property
    def best_genuine(self) -> Floats:
        """[P] the most similar enrolled image of the probe's person; NaN without a genuine score."""
        return np.fmax.reduce(np.where(self.genuine_at, self.similarity, np.nan), axis=1, initial=np.nan)

    def strangers(self, limit: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[P] how many other people have their best image above, and how many at, a limit [P]; none at NaN."""
        best = np.fmax.reduceat(self.similarity, self._first, axis=1)  # [P,E]
        best[self.people[:, None] == self.gallery[self._first]] = np.nan
        return np.count_nonzero(best > limit[:, None], axis=1), np.count_nonzero(best == limit[:, None], axis=1)

    @cached_property
    def rivals(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[P] how many other people lie above the best genuine score, and how many at it."""
        return self.strangers(self.best_genuine)


def similarities(probe: ArrayLike, gallery: ArrayLike, metric: Metric) -> NDArray[np.float32]:
    """[P,G] of embeddings [P,D] and [G,D], a cosine or minus the distance; of equal ones they are equal, to the bit."""
    given = np.asarray(gallery, np.float64)
    (x, x_of), (y, y_of) = _distinct(np.asarray(probe)), _distinct(given)
    with np.errstate(over="ignore", invalid="ignore"):  # all zeros have no cosine; `from_matrix` refuses them
        if metric == "cosine":
            x, y = (rows / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True) for rows in (x, y))
        else:  # about the gallery's mean, where float32 cancels least
            x, y = x - given.mean(0), y - given.mean(0)
        x, y = x.astype(np.float32), y.astype(np.float32)
        scores = x @ y.T
        if metric == "euclidean":
            squares = np.einsum("nd,nd->n", x, x)[:, None] - 2 * scores + np.einsum("nd,nd->n", y, y)
            scores = -np.sqrt(np.maximum(squares, 0))
    scores = scores if len(x) == len(x_of) else scores[x_of]
    return scores if len(y) == len(y_of) else scores[:, y_of]


def _distinct(rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Each row once, and which of them every row is; as they are where none is twice."""
    rows = np.ascontiguousarray(rows + 0.0)  # −0 becomes 0, so that equal rows have equal bytes
    raw = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
    _, first, of = np.unique(raw, return_index=True, return_inverse=True)
    return (rows, np.arange(len(rows))) if len(first) == len(rows) else (rows[first], of.ravel())
