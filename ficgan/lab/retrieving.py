"""Several guesses at each probe vote for a name, or say that it is nobody's who is enrolled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import generator
from ficgan.lab.attackers import opponents
from ficgan.lab.attacks.retrieval import RULES, Rule, choose_threshold, ood_curve, retrieve
from ficgan.lab.bench import Bench, Subject
from ficgan.lab.learning import halves
from ficgan.lab.metrics import Metric
from ficgan.lab.metrics.intervals import Bootstrap, proportion, wilson
from ficgan.lab.readers import Embeddings
from ficgan.lab.results import Figure, Trial
from ficgan.lab.reversal import per_person
from ficgan.lab.scenarios import Scenario

__all__ = ["RETRIEVAL", "Read", "retrieval_figures", "run_retrieval", "spread", "stranger_figures"]

_REVELIO = "Revelio, §4.3"
_NAMES: dict[Rule, str] = {"vote": "IRA", "mean": "IRA (mean distance)", "shortest": "IRA (shortest distance)"}
_LEAST = 2
"""People in each half, enrolled and not, by whom a threshold is chosen."""
_POINTS = 200
"""Of a curve."""

RETRIEVAL: tuple[Metric, ...] = (
    Metric("IRA", "probes whose right name most of the guesses are nearest to", "privacy", "low", _REVELIO),
    Metric("IRA (by people)", "the same, its interval by people", "privacy", "low", _REVELIO),
    Metric("IRA (one guess)", "the same of the first guess alone", "privacy", "low", _REVELIO),
    Metric("IRA (mean distance)", "by the name whose mean distance is least", "privacy", "low", _REVELIO),
    Metric("IRA (shortest distance)", "by the name whose shortest distance is least", "privacy", "low", _REVELIO),
    Metric("stranger TPR", "probes of people who are not enrolled that are told to be so", "privacy", "low", _REVELIO),
    Metric("stranger FPR", "probes of enrolled people that are told not to be", "privacy", "high", _REVELIO),
    Metric("stranger accuracy", "probes told rightly to be of enrolled people or not", "privacy", "low", _REVELIO),
    Metric("stranger AUC", "area under the curve of the two rates", "privacy", "near", _REVELIO),
    Metric("stranger threshold", "distance above which a probe is a stranger's", "privacy", "near", _REVELIO),
)
"""Metrics of `retrieval_figures` and `stranger_figures`."""


@dataclass(frozen=True)
class Read:
    """What a judge reads in the candidates of P probes and in the gallery.

    Args:
        candidates: [P,n,D].
        people: int64 [P].
        gallery: [G,D].
        enrolled: int64 [G].
        metric: the judge's.
    """

    candidates: Embeddings
    people: NDArray[np.int64]
    gallery: Embeddings
    enrolled: NDArray[np.int64]
    metric: Any

    def of(self, who: NDArray[np.int64]) -> Read:
        """The probes of these people, before the whole gallery."""
        mine = np.isin(self.people, who)
        return Read(self.candidates[mine], self.people[mine], self.gallery, self.enrolled, self.metric)

    def names(self, rule: Rule = "vote", guesses: int | None = None) -> NDArray[np.int64]:
        """[P] the people found."""
        return retrieve(self.candidates[:, :guesses], self.gallery, self.enrolled, self.metric, rule).found


def run_retrieval(bench: Bench, subject: Subject, label: str, scenario: Scenario) -> list[Trial]:
    """A trial for each attacker that gives several candidates, and each judge; closed-world attackers have two.

    Raises:
        NotApplicable: no attacker gives several.
        Refused: the split leaves them nothing to learn from.
    """
    method, trials = subject.anonymizer, []
    assert method is not None
    rows = spread(bench)
    part, gallery = bench.part(rows, subject.anonymised(rows).images), bench.split.gallery
    for opponent in opponents(bench, subject, method, scenario.attacker):
        guesses = opponent.candidates(part.regions(), bench.candidates).swapaxes(0, 1)
        for reader in bench.readers:
            seen = [bench.embed(reader, part.with_regions(np.ascontiguousarray(one))) for one in guesses]
            enrolled = bench.embed(reader, bench.prepared.faces.take(gallery))
            read = Read(np.stack(seen, 1), bench.people[rows], enrolled, bench.people[gallery], reader.metric)
            trials += [
                Trial(bench.name, label, scenario.name, reader.name, attacker, figures, curves)
                for attacker, figures, curves in _told(bench, read, opponent.title, "closed" in scenario.attacker)
            ]
    return trials


def spread(bench: Bench) -> NDArray[np.int64]:
    """Probes to guess at several times: at most `bench.retrieval_probes`, one of each person in turn, ascending."""
    rows = generator(bench.seed, "retrieval").permutation(bench.split.probe)
    people = bench.people[rows]
    turn = np.zeros(len(rows), np.int64)
    for person in np.unique(people):
        mine = np.flatnonzero(people == person)
        turn[mine] = np.arange(len(mine))
    return np.sort(rows[np.argsort(turn, kind="stable")][: bench.retrieval_probes])


def retrieval_figures(read: Read, bootstrap: Bootstrap) -> tuple[Figure, ...]:
    """rank-1 of the vote, as in every trial; IRA by vote, by other rules and of one guess; chance.

    Source: Revelio, §4.3 and Table 1.
    """
    count = read.candidates.shape[1]
    voted = read.names() == read.people
    hits, images = per_person(voted, read.people)
    who, drawn = len(hits), bootstrap.weights(len(hits))
    note = f"{count} guesses at each probe, by vote"
    low, high = proportion(drawn, hits / images, np.ones(who))
    out = [Figure("rank-1", float((hits / images).mean()), low, high, who, note=note), _share("IRA", voted, note)]
    low, high = proportion(drawn, hits, images)
    out.append(Figure("IRA (by people)", float(voted.mean()), low, high, who, note=note))
    out.append(_share("IRA (one guess)", read.names(guesses=1) == read.people, "the first guess at each probe"))
    for rule in (rule for rule in RULES if rule != "vote"):
        out.append(_share(_NAMES[rule], read.names(rule) == read.people, f"{count} guesses at each probe"))
    return (*out, Figure("chance", 1 / len(np.unique(read.enrolled)), n=len(np.unique(read.enrolled))))


def stranger_figures(
    read: Read, known: NDArray[np.int64], bootstrap: Bootstrap
) -> tuple[tuple[Figure, ...], list[list[float]]]:
    """Whether the least distance tells people who are not enrolled (positive) from those who are.

    Only `known` people are left in the gallery. The probes' people are halved, and the threshold that each half is
    told by is the one of the best balanced accuracy on the other half.

    Args:
        read: with all people in the gallery.
        known: people who stay in it.
        bootstrap: its seed draws the halves.

    Returns:
        TPR, FPR, accuracy, AUC and threshold, and the curve as [FPR, TPR] points.

    Source: Revelio, §4.3 and §5.5.
    """
    kept, stranger = np.isin(read.enrolled, known), ~np.isin(read.people, known)
    halves_ = _both_halves(read.people, stranger, bootstrap.seed)
    if halves_ is None or not kept.any():
        why = f"fewer than {2 * _LEAST} people are enrolled, or strangers, and no threshold can be chosen"
        return tuple(Figure(f"stranger {what}", None, note=why) for what in ("TPR", "FPR", "accuracy", "AUC")), []
    least = retrieve(read.candidates, read.gallery[kept], read.enrolled[kept], read.metric).lowest.astype(np.float64)
    flagged, thresholds = np.zeros(len(least), bool), []
    for half in (halves_, ~halves_):  # told by the threshold of the other half
        thresholds.append(choose_threshold(least[~half & ~stranger], least[~half & stranger]))
        flagged[half] = least[half] > thresholds[-1]
    curve = ood_curve(least[~stranger], least[stranger])
    note = "thresholds are chosen on the other half of the people"
    figures = (
        _by_people("stranger TPR", flagged, stranger, read.people, bootstrap, note),
        _by_people("stranger FPR", flagged, ~stranger, read.people, bootstrap, note),
        _by_people("stranger accuracy", flagged == stranger, np.ones_like(stranger), read.people, bootstrap, note),
        Figure("stranger AUC", curve.auc, n=len(least), unit="images"),
        Figure("stranger threshold", float(np.mean(thresholds)), n=len(least), unit="images",
               note=f"the mean of {min(thresholds):.4g} and {max(thresholds):.4g}"),
    )  # fmt: skip
    points = [[float(f"{x:.5g}"), float(f"{y:.5g}")] for x, y in zip(curve.fpr[::-1], curve.tpr[::-1], strict=True)]
    step = max(1, -(-len(points) // _POINTS))
    return figures, [*points[:-1:step], points[-1]]


def _told(
    bench: Bench, read: Read, title: str, closed: bool
) -> list[tuple[str, tuple[Figure, ...], dict[str, list[list[float]]]]]:
    """(attacker, figures, curves) of one attacker's candidates: in a closed world, known and unknown people apart."""
    bootstrap = Bootstrap(bench.resamples, bench.seed)
    known, unknown = halves(bench)
    figures, points = stranger_figures(read, known, bootstrap)
    curves = {"strangers": points} if points else {}
    if not closed:
        return [(title, (*retrieval_figures(read, bootstrap), *figures), curves)]
    parts = [(f"{title} (known)", read.of(known)), (f"{title} (unknown)", read.of(unknown))]
    told = [(name, retrieval_figures(part, bootstrap)) for name, part in parts if len(part.people)]
    return [
        (name, (*own, *figures) if first else own, curves if first else {})
        for first, (name, own) in zip((True, False), told, strict=False)
    ]


def _both_halves(people: NDArray[np.int64], stranger: NDArray[np.bool_], seed: int) -> NDArray[np.bool_] | None:
    """[P] probes of one half of the people; both halves hold strangers and others. None: there are too few."""
    chosen: list[NDArray[np.int64]] = []
    for mask in (stranger, ~stranger):
        who = generator(seed, "threshold").permutation(np.unique(people[mask]))
        if len(who) < 2 * _LEAST:
            return None
        chosen.append(who[: len(who) // 2])
    return np.isin(people, np.concatenate(chosen))


def _share(metric: str, hits: NDArray[np.bool_], note: str) -> Figure:
    low, high = wilson(int(hits.sum()), len(hits))
    return Figure(metric, float(hits.mean()), low, high, len(hits), "images", note)


def _by_people(
    metric: str, hits: NDArray[np.bool_], among: NDArray[np.bool_], people: NDArray[np.int64], bootstrap: Bootstrap,
    note: str,
) -> Figure:  # fmt: skip
    """The share of hits among some images, its interval by people."""
    sums, counts = per_person(hits[among], people[among])
    low, high = proportion(bootstrap.weights(len(sums)), sums, counts)
    return Figure(metric, float(hits[among].mean()), low, high, int(among.sum()), "images", note)
