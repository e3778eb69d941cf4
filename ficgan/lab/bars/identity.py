"""Is the source still known in the output: cosine, match rates, AUC, each beside strangers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.lab.bars.lab import Lab, mean_of
from ficgan.lab.bars.lines import Control, Controls, Figures
from ficgan.lab.metrics.intervals import wilson
from ficgan.lab.readers import Embeddings, Reader
from ficgan.lab.results import Figure

__all__ = [
    "FAR", "Strangers", "cosines", "identity", "identity_controls", "similarities", "strangers", "strangers_beside",
    "threshold_of",
]  # fmt: skip

FAR = 1e-3
ENOUGH, LEAST = 30, 10
"""Pairs of strangers that should lie above a threshold, and that must."""
MOST = 3000
"""Clear faces whose pairs stand for strangers; more take memory and change nothing."""
_ROWS = 512
_GROUPS = ("gender", "race")


@dataclass(frozen=True)
class Strangers:
    """What one recogniser says of different people's clear photos.

    Args:
        cosine, own, far: mean cosine of a face with its same-group strangers; share of these above the recogniser's
            own threshold; and above that of FAR 1e-3.
        everybody: mean cosine with all strangers.
        threshold: similarity that a share `FAR` of all pairs of strangers passes; None where there are too few.
        doubt: what is to be said of the threshold; "" where it stands on enough pairs.
    """

    cosine: Figure
    own: Figure
    far: Figure
    everybody: Figure
    threshold: float | None
    doubt: str = ""


def cosines(a: Embeddings, b: Embeddings) -> NDArray[np.float64]:
    """Of pairs [N,D], one by one: float64 [N]."""
    return (_unit(a) * _unit(b)).sum(1)


def similarities(a: Embeddings, b: Embeddings, metric: str) -> NDArray[np.float64]:
    """Of all pairs [N,D] × [M,D]: float64 [N,M], a cosine or minus the distance."""
    if metric == "cosine":
        return _unit(a) @ _unit(b).T
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    squares = (x * x).sum(1)[:, None] + (y * y).sum(1) - 2 * x @ y.T
    return -np.sqrt(squares.clip(0))


def threshold_of(scores: NDArray[np.floating[Any]], far: float = FAR) -> float | None:
    """The score of strangers [P] above which a share `far` of them lies; None of fewer than 10/far.

    Of 30/far or more it is one of the scores, and at most that share lies above it. Of fewer every step between two
    scores counts, and it is interpolated between them.
    """
    above = far * len(scores)
    if above < LEAST - 1e-9:
        return None
    place = int(np.floor(above + 1e-9))
    first, second = len(scores) - 1 - place, len(scores) - 2 - place
    if above >= ENOUGH - 1e-9 or second < 0:
        return float(np.partition(scores, first)[first])
    ends = np.partition(scores, [second, first])[[first, second]].astype(np.float64)
    return float(ends[0] + max(above - place, 0.0) * (ends[1] - ends[0]))


def strangers(lab: Lab, reader: Reader) -> Strangers:
    """Each clear face against the clear faces of other people.

    The threshold is taken here, on clear strangers: outputs have no part in it.
    """
    rows = np.arange(min(len(lab.faces), MOST))
    seen = lab.clear.embeddings[reader.name][rows]
    people, group = lab.people[rows], groups_of(lab)[rows]
    score, cosine = similarities(seen, seen, reader.metric), similarities(seen, seen, "cosine")
    others = people[:, None] != people
    alike = others & (group[:, None] == group)
    pool = score[np.triu(others, 1)]
    threshold = threshold_of(pool)
    part = lab.take(rows)
    doubt = "" if threshold is None else _doubt(pool)
    pairs = f"{int(alike.sum()) // 2} pairs" + ("" if len(np.unique(group)) > 1 else "; groups are not known here")

    def mean(values: NDArray[Any], where: NDArray[np.bool_], note: str) -> Figure:
        counts = where.sum(1)
        shares = np.where(where, values, 0).sum(1) / np.where(counts, counts, np.nan)
        return mean_of(part, "strangers", shares, note)

    nobody = Figure("strangers", None, note=_too_few(others))
    return Strangers(
        mean(cosine, alike, pairs),
        mean(score > reader.threshold, alike, pairs),
        nobody if threshold is None else mean(score > threshold, alike, f"{pairs}; threshold {threshold:.3f}"),
        mean(cosine, others, "all strangers"),
        threshold,
        doubt,
    )


def identity(lab: Lab, seen: Mapping[str, Embeddings], known: dict[str, Strangers]) -> Figures:
    """Rows id-cosine, match, tar and auc-gap, by each recogniser.

    Faces are read at the source's landmarks whether or not a detector would find them: a lost face is no privacy.

    Args:
        lab: the set.
        seen: name of a recogniser → embeddings [N,D] of the outputs.
        known: name of a recogniser → what it says of strangers.
    """
    out: Figures = {}
    for reader in lab.eyes.readers:
        name, here = reader.name, known[reader.name]
        clear, made = lab.clear.embeddings[name], seen[name]
        cosine = cosines(clear, made)
        score = cosine if reader.metric == "cosine" else -np.linalg.norm(clear.astype(np.float64) - made, axis=1)
        note = "" if reader.metric == "cosine" else "cosine of embeddings that are compared by distance"
        out["id-cosine", name] = mean_of(lab, "id-cosine", cosine, note)
        out["match", name] = mean_of(lab, "match", score > reader.threshold, f"threshold {reader.threshold:.3f}")
        if here.threshold is None:
            out["tar", name] = Figure("tar", None, note=here.far.note)
        else:
            note = f"threshold {here.threshold:.3f}{here.doubt}"
            out["tar", name] = mean_of(lab, "tar", score > here.threshold, note)
        out["auc-gap", name] = _gap(mean_of(lab, "auc-gap", _ranks(lab, reader, made)))
    return out


def identity_controls(lab: Lab, known: dict[str, Strangers]) -> Controls:
    """Strangers beside each row; the match rates and the AUC are measured against those of the same group.

    The bar of |AUC − .5| is the rate at which the recogniser takes same-group strangers for one person, at its own
    threshold.
    """
    out = {}
    for reader in lab.eyes.readers:
        name, here = reader.name, known[reader.name]
        told = here.everybody.value
        all_of_them = "" if told is None else f" (all strangers {told:.3f})"
        out["id-cosine", name] = Control(f"same-group strangers{all_of_them}", here.cosine)
        out["match", name] = Control("same-group strangers", here.own)
        out["tar", name] = Control("same-group strangers", here.far)
        out["auc-gap", name] = Control("match rate of same-group strangers", here.own)
    return out


def strangers_beside(known: dict[str, Strangers], *rows: str) -> Controls:
    """The cosine of all strangers beside these rows of each recogniser."""
    return {(row, name): Control("all strangers", one.everybody) for row in rows for name, one in known.items()}


def groups_of(lab: Lab) -> NDArray[np.int64]:
    """int64 [N]: who shares gender and race, as far as these are known; all one group where nothing is."""
    told = [lab.prepared.groups[name] for name in _GROUPS if name in lab.prepared.groups]
    if not told:
        return np.zeros(len(lab.faces), np.int64)
    _, number = np.unique(["/".join(values) for values in zip(*told, strict=True)], return_inverse=True)
    return number.reshape(-1).astype(np.int64)


def _ranks(lab: Lab, reader: Reader, made: Embeddings) -> NDArray[np.float64]:
    """[N]: share of a face's same-group strangers to whom its output is less alike than to its source, ties half."""
    clear = lab.clear.embeddings[reader.name]
    people, group = lab.people, groups_of(lab)
    column = np.arange(min(len(lab.faces), MOST))
    out = np.empty(len(lab.faces))
    for begin in range(0, len(out), _ROWS):
        rows = np.arange(begin, min(begin + _ROWS, len(out)))
        score = similarities(made[rows], clear[column], reader.metric)
        own = np.einsum("nn->n", similarities(made[rows], clear[rows], reader.metric))[:, None]
        alike = (people[rows][:, None] != people[column]) & (group[rows][:, None] == group[column])
        below = np.where(alike, (score < own) + 0.5 * (score == own), 0).sum(1)
        counts = alike.sum(1)
        out[rows] = below / np.where(counts, counts, np.nan)
    return out


def _gap(area: Figure) -> Figure:
    """|AUC − .5| of an AUC; its interval reaches to 0 where that of the AUC holds .5."""
    if area.value is None:
        return replace(area, note="no face has a stranger of its group")
    low, high = area.low, area.high
    if area.value in (0.0, 1.0):  # every resample is alike: the bootstrap would claim certainty
        low, high = wilson(area.value * area.n, area.n)
    if low is not None and high is not None:
        ends = sorted((abs(low - 0.5), abs(high - 0.5)))
        low, high = (0.0 if low <= 0.5 <= high else ends[0]), ends[1]
    return replace(area, value=abs(area.value - 0.5), low=low, high=high, note=f"AUC {area.value:.3f}")


def _too_few(others: NDArray[np.bool_]) -> str:
    pairs = int(others.sum()) // 2
    return f"{pairs} pairs of strangers are too few for a FAR of {FAR:g}; {LEAST / FAR:.0f} are needed"


def _doubt(scores: NDArray[np.floating[Any]]) -> str:
    """How far a threshold that few pairs lie above could be off: Poisson's 95 % of their number."""
    above = FAR * len(scores)
    if above >= ENOUGH - 1e-9:
        return ""
    from scipy.stats import chi2

    count = int(np.floor(above + 1e-9))
    least, most = chi2.ppf(0.025, 2 * count) / 2, chi2.ppf(0.975, 2 * count + 2) / 2
    low, high = (float(np.quantile(scores, 1 - one / len(scores))) for one in (most, least))
    return f" ({low:.3f} to {high:.3f}), interpolated: {count} of {len(scores)} pairs of strangers lie above it"


def _unit(x: Embeddings) -> NDArray[np.float64]:
    wide = np.asarray(x, np.float64)
    return wide / np.linalg.norm(wide, axis=1, keepdims=True).clip(1e-12)
