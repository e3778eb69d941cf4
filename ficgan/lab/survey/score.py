"""What the answers say: how often people see who it is, how sure that is, how much they agree, and recognisers beside.

Positive is "one person". "Not sure" is counted twice over: as wrong, whatever the pair, and left out.

Intervals resample participants and pairs, each by itself, pairs of one person and of two apart, since the design fixes
how many of each there are (the pigeonhole bootstrap of Owen, Ann. Appl. Stat. 1 (2007)). Where a figure is 0 or 1 no
resample can differ; the interval is then Wilson's, with the fewer of participants and pairs as trials.

Source: Fantômas, appendix D. Its F1 "on all matching image pairs" can be read as the F1 of the class "one person" over
all pairs, or over the pairs of one person alone, where precision is 1 by definition; both are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.lab.metrics.intervals import Bootstrap, percentiles, recentred
from ficgan.lab.results import Figure
from ficgan.lab.survey.answers import ANSWERS, Collected, Votes, votes
from ficgan.lab.survey.judges import Judged
from ficgan.lab.survey.key import Item, Key

__all__ = ["METRICS", "figures", "judge_figures", "krippendorff", "not_sure", "score_survey", "score_text"]

METRICS = ("F1", "F1 (pairs of one person)", "accuracy", "sensitivity", "specificity")
NOTES = (
    "Half of the pairs show one person: who always says yes has an accuracy of .5 and an F1 of .667, who tosses a coin "
    "an F1 of .5.",
    "The F1 over pairs of one person alone knows no false alarms: who always says yes has 1.",
    "Fantômas gives its F1 scores only as a plot (Figure 15), so no published numbers stand here.",
    "A recogniser reads the very pictures that people saw, at the threshold it came with, chosen on other faces; it "
    "cannot say that it is not sure.",
)
Counts = NDArray[np.float64]
"""[…,4]: true positives, false negatives, false positives, true negatives."""


@dataclass(frozen=True)
class _Cells:
    """Counts of participants × pairs, [P,M] each, of right and of wrong answers; and which pairs show one person."""

    right: NDArray[np.float64]
    wrong: NDArray[np.float64]
    same: NDArray[np.bool_]


def score_survey(
    key: Key, done: Collected, judged: Sequence[Judged] = (), *, bootstrap: Bootstrap | None = None
) -> dict[str, Any]:
    """All figures of a survey.

    Args:
        key: of the survey.
        done: answers, of `collect`.
        judged: what recognisers say, of `judge`.
        bootstrap: of the intervals; None: 1000 resamples with the survey's seed.

    Returns:
        {"participants", "conditions": [{"label", "method", "attacker", "votes", "pairs", "not sure", "as wrong",
        "left out", "agreement", "judges"}], "agreement", "notes"}; figures are those of `results.Figure`, by name.
    """
    bootstrap = bootstrap or Bootstrap(seed=key.rules.seed)
    rows = []
    everything: list[NDArray[np.int64]] = []
    for condition in key.conditions:
        some = votes(key, done.accepted, condition.label)
        table = _ballots(some)
        everything.append(table)
        row = {
            "label": condition.label, "method": dict(condition.method), "attacker": condition.attacker,
            "votes": len(some), "pairs": len(some.items), "least_votes": min(table.sum(1).tolist(), default=0),
            "not sure": not_sure(some, bootstrap), "as wrong": figures(some, bootstrap, unsure="wrong"),
            "left out": figures(some, bootstrap, unsure="left out"), "agreement": krippendorff(table, bootstrap),
            "judges": {one.name: judge_figures(one, some.items, bootstrap) for one in judged},
        }  # fmt: skip
        rows.append(row)
    whole = np.concatenate(everything) if everything else np.zeros((0, len(ANSWERS)), np.int64)
    judges = [{"name": one.name, "threshold": one.threshold, "metric": one.metric} for one in judged]
    tree = {
        "participants": done.summary(), "conditions": rows, "agreement": krippendorff(whole, bootstrap),
        "judges": judges, "resamples": bootstrap.resamples, "notes": [*NOTES, *key.notes],
    }  # fmt: skip
    return dict(_plain(tree))


def figures(some: Votes, bootstrap: Bootstrap, *, unsure: str) -> dict[str, Figure]:
    """The figures of one condition.

    Args:
        some: answers.
        bootstrap: of the intervals.
        unsure: "wrong" or "left out".

    Returns:
        `METRICS` → figure; its value is None where nothing is to be counted.
    """
    cells = _cells(some, unsure == "wrong")
    counted = cells.right + cells.wrong
    trials = min(np.count_nonzero(counted.sum(axis)) for axis in (0, 1))
    return _figures(cells, bootstrap, int(trials))


def judge_figures(judged: Judged, items: Sequence[Item], bootstrap: Bootstrap) -> dict[str, Figure]:
    """The same figures of a recogniser, which answers each pair once; intervals resample pairs."""
    same = np.array([item.same for item in items], bool)
    right = np.array([judged.matches(item) == item.same for item in items], np.float64)[None]
    return _figures(_Cells(right, 1 - right, same), bootstrap, len(items))


def _counts(right: NDArray[np.float64], wrong: NDArray[np.float64], same: NDArray[np.bool_]) -> Counts:
    """[4] true positives, false negatives, false positives, true negatives of cells [P,M]."""
    r, w = right.sum(0), wrong.sum(0)
    return np.array([r[same].sum(), w[same].sum(), w[~same].sum(), r[~same].sum()])


def not_sure(some: Votes, bootstrap: Bootstrap) -> Figure:
    """Share of the answers that are "not sure"."""
    unsure = np.zeros((some.participants, len(some.items)))
    sure = unsure.copy()
    chosen = some.answer == ANSWERS.index("unsure")
    np.add.at(unsure, (some.participant[chosen], some.pair[chosen]), 1)
    np.add.at(sure, (some.participant[~chosen], some.pair[~chosen]), 1)
    if not len(some):
        return Figure("not sure", None, unit="answers", note="There are no answers to count.")
    # As if "not sure" were the right answer to every pair.
    drawn = _resampled(_Cells(unsure, sure, some.same), bootstrap)
    values = np.concatenate([[chosen.mean()], _share(drawn[:, 0] + drawn[:, 3], drawn.sum(1))])
    trials = min(len(np.unique(some.participant)), len(some.items))
    low, high = recentred(values, float(values[0]), trials)
    return Figure("not sure", float(values[0]), low, high, len(some), "answers")


def krippendorff(table: NDArray[np.int64], bootstrap: Bootstrap) -> Figure:
    """Krippendorff's α of nominal answers: 1 where all agree, 0 where they agree as by chance, below where less.

    Unlike Fleiss's κ it takes pairs that were answered by different numbers of people.

    Args:
        table: [M,K], how many gave each answer to a pair.
        bootstrap: over pairs.

    Returns:
        A figure; its value is None where no pair has two answers, or where all answers are one.

    Source: Krippendorff, Content Analysis (2004), ch. 11.
    """
    several = table[table.sum(1) >= 2].astype(np.float64)
    n = len(several)
    if not n:
        return Figure("α", None, unit="pairs", note="No pair was answered by two people.")
    size = several.sum(1)
    # What a pair adds to the coincidences: of unlike answers, and of each answer.
    unlike = (size**2 - (several**2).sum(1)) / (size - 1)
    draws = bootstrap.weights(n).astype(np.float64)
    value = float(_alpha(unlike.sum()[None], several.sum(0)[None])[0])
    if not np.isfinite(value):
        return Figure("α", None, n=n, unit="pairs", note="All gave one answer, and α is not defined.")
    low, high = percentiles(_alpha(draws @ unlike, draws @ several)) if n > 1 else (None, None)
    return Figure("α", value, low, high, n, "pairs")


def score_text(score: dict[str, Any]) -> str:
    """The table to read."""
    people = score["participants"]
    refused = ", ".join(f"{count} {reason}" for reason, count in people["refused"].items() if count)
    head = ["condition", "votes", "F1", "F1 one", "accuracy", "sens.", "spec.", "not sure", "α"]
    names = [one["name"] for one in score["judges"]]
    lines = [[*head, *(f"{name} F1" for name in names), *(f"{name} acc." for name in names)]]
    for row in score["conditions"]:
        own = [_said(row["as wrong"][name], name in ("F1", "accuracy")) for name in METRICS]
        told = [_said(row["judges"][name][metric]) for metric in ("F1", "accuracy") for name in names]
        lines.append([row["label"], str(row["votes"]), *own, _said(row["not sure"]), _said(row["agreement"]), *told])
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    text = [f"{people['accepted']} participants count; refused: {refused or 'none'}", ""]
    text += ["  ".join(v.ljust(w) if k == 0 else v.rjust(w) for k, (v, w) in enumerate(zip(line, widths, strict=True)))
             for line in lines]  # fmt: skip
    notes = ['"Not sure" is counted as wrong here; the file has the figures without it, too.', *score["notes"]]
    return "\n".join([*text, "", f"agreement over all conditions: α = {_said(score['agreement'])}", *notes])


def _said(figure: dict[str, Any], interval: bool = False) -> str:
    if figure["value"] is None:
        return "–"
    bounds = interval and figure["low"] is not None
    return f"{figure['value']:.2f}" + (f" ({figure['low']:.2f}–{figure['high']:.2f})" if bounds else "")


def _ballots(some: Votes) -> NDArray[np.int64]:
    """[M,K] how many gave each answer to a pair."""
    out = np.zeros((len(some.items), len(ANSWERS)), np.int64)
    np.add.at(out, (some.pair, some.answer), 1)
    return out


def _cells(some: Votes, unsure_is_wrong: bool) -> _Cells:
    truth = np.where(some.same[some.pair], ANSWERS.index("yes"), ANSWERS.index("no"))
    right = some.answer == truth
    wrong = ~right if unsure_is_wrong else ~right & (some.answer != ANSWERS.index("unsure"))
    cells = [np.zeros((some.participants, len(some.items))) for _ in range(2)]
    for cell, chosen in zip(cells, (right, wrong), strict=True):
        np.add.at(cell, (some.participant[chosen], some.pair[chosen]), 1)
    return _Cells(cells[0], cells[1], some.same)


def _resampled(cells: _Cells, bootstrap: Bootstrap) -> Counts:
    """[R,4] the counts of every resample."""
    resamples = bootstrap.resamples
    by_person = bootstrap.weights(len(cells.right)).astype(np.float64)
    out = np.zeros((resamples, 4))
    for kind, (first, second) in ((True, (0, 1)), (False, (3, 2))):
        chosen = np.flatnonzero(cells.same == kind)
        # Another seed, or as many pairs as people would be drawn alike.
        by_pair = Bootstrap(resamples, bootstrap.seed + 1 + kind).weights(len(chosen)).astype(np.float64)
        for column, cell in ((first, cells.right), (second, cells.wrong)):
            out[:, column] = ((by_person @ cell[:, chosen]) * by_pair).sum(1)
    return out


def _metrics(counted: Counts) -> dict[str, NDArray[np.float64]]:
    """`METRICS` of counts [R,4]; NaN where nothing is to be counted."""
    tp, fn, fp, tn = counted.T
    values = (
        _share(2 * tp, 2 * tp + fp + fn), _share(2 * tp, 2 * tp + fn), _share(tp + tn, counted.sum(1)),
        _share(tp, tp + fn), _share(tn, tn + fp),
    )  # fmt: skip
    return dict(zip(METRICS, values, strict=True))


def _figures(cells: _Cells, bootstrap: Bootstrap, trials: int) -> dict[str, Figure]:
    # [1+R,4]: the whole first, then the resamples.
    counted = np.concatenate([_counts(cells.right, cells.wrong, cells.same)[None], _resampled(cells, bootstrap)])
    same, other = int(counted[0, :2].sum()), int(counted[0, 2:].sum())
    of = dict(zip(METRICS, (same + other, same, same + other, same, other), strict=True))
    out = {}
    for name, values in _metrics(counted).items():
        if np.isfinite(values[0]):
            low, high = recentred(values, float(values[0]), trials)
            out[name] = Figure(name, float(values[0]), low, high, of[name], "answers")
        else:
            out[name] = Figure(name, None, n=of[name], unit="answers", note="There are no answers to count.")
    return out


def _share(above: NDArray[np.float64], below: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(above, below, out=np.full(len(below), np.nan), where=below > 0)


def _alpha(unlike: NDArray[np.float64], totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """[R] 1 − observed / expected disagreement, of sums [R] and totals of each answer [R,K]."""
    n = totals.sum(1)
    expected = (n**2 - (totals**2).sum(1)) / np.maximum(n - 1, 1)
    return 1 - _share(unlike, expected)


def _plain(tree: Any) -> Any:
    """Figures as dictionaries, for JSON."""
    if isinstance(tree, Figure):
        return asdict(tree)
    if isinstance(tree, dict):
        return {name: _plain(value) for name, value in tree.items()}
    return [_plain(value) for value in tree] if isinstance(tree, list | tuple) else tree
