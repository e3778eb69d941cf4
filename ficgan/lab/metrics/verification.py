"""Whether two images show one person: ROC, AUC, EER, DET, TAR at a FAR, and the recogniser's own threshold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import UsageError
from ficgan.lab.results import Figure

from .identification import FAILURES, NO_THRESHOLD, nobody
from .intervals import BOOTSTRAP, Bootstrap, Floats, percentiles, proportion, ratios, recentred, rule_of_three
from .scores import Scores

__all__ = [
    "auc",
    "det",
    "eer",
    "false_match_rate",
    "genuine_similarity",
    "leak",
    "match_rate",
    "roc",
    "tar_at_far",
    "vertices",
]

_NO_STRANGERS = "There are no impostor scores."


def vertices(scores: Scores) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The corners of the exact ROC: impostor and genuine scores accepted, both [2T+2], from none to all.

    With a falling threshold the curve goes right over impostors alone, up at a genuine score, and aslant where a
    genuine and an impostor score are equal.
    """
    above, at_least = scores.genuine_counts
    x, y = (np.zeros(2 * len(scores.thresholds) + 2, np.int64) for _ in range(2))
    x[1:-1:2], x[2:-1:2], x[-1] = scores.impostors_above[::-1], scores.impostors_at_least[::-1], scores.impostors
    y[1:-1:2], y[2:-1:2], y[-1] = above[::-1], at_least[::-1], len(scores.genuine)
    return x, y


def auc(scores: Scores, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Probability that a genuine score is higher than an impostor score, half of it where they are equal.

    Below .5 images of one person are less alike than those of strangers, which leaks as well: see `leak`.

    Source: Hanley and McNeil, Radiology 143 (1982).
    """
    if missing := _missing(scores):
        return Figure("AUC", None, note=missing)
    x, y = vertices(scores)
    value = float(np.sum(np.diff(x) * (y[1:] + y[:-1]).astype(np.float64)) / (2.0 * x[-1] * y[-1]))
    low, high = recentred(_binned_auc(*scores.resampled(bootstrap)), value, _trials(scores))
    return Figure("AUC", value, low, high, len(scores.genuine), "genuine scores")


def leak(scores: Scores, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """2·|AUC − ½|: 0 where scores say nothing of who is who, 1 where a threshold tells, on whichever side."""
    area = auc(scores, bootstrap=bootstrap)
    if area.value is None:
        return Figure("leak", None, note=area.note)
    low, high = area.low, area.high
    if low is not None and high is not None:
        ends = sorted((2 * abs(low - 0.5), 2 * abs(high - 0.5)))
        low, high = 0.0 if low <= 0.5 <= high else ends[0], ends[1]
    note = "Strangers are more alike than images of one person." if area.value < 0.5 else ""
    return Figure("leak", 2 * abs(area.value - 0.5), low, high, area.n, area.unit, note)


def eer(scores: Scores, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Error rate where as many impostors are accepted as genuine ones rejected; ½ is chance.

    Source: ISO/IEC 19795-1:2021; between two corners of the exact ROC, by the line that joins them.
    """
    if missing := _missing(scores):
        return Figure("EER", None, note=missing)
    x, y = vertices(scores)
    far, tar = x / x[-1], y / y[-1]
    value = float(_crossing(far[None], tar[None])[0])
    low, high = recentred(_crossing(*scores.resampled_roc(bootstrap)), value, _trials(scores))
    return Figure("EER", value, low, high, len(scores.genuine), "genuine scores")


def tar_at_far(scores: Scores, far: float, *, failures: bool = False, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Largest share of genuine scores that a threshold accepts while it accepts at most a share `far` of impostors.

    Args:
        far: between 0 and 1.
        failures: genuine pairs of probes that were not acquired count as rejected.

    Returns:
        A figure; its value is None where there are fewer than 30/far pairs of strangers.

    Raises:
        UsageError: far out of range.

    Source: ISO/IEC 19795-1:2021; the "rule of 30" of Doddington et al., Speech Communication 31 (2000).
    """
    if not 0 < far < 1:
        raise UsageError(f"a false accept rate of {far:g} is none; give one between 0 and 1")
    name = f"TAR@FAR={far:g}" + FAILURES * failures
    if missing := _missing(scores):
        return Figure(name, None, note=missing)
    if scores.distinct_impostors * far < 30 - 1e-9:
        needed = f"{30 / far:.0f} are needed to know this rate"
        return Figure(name, None, note=f"There are {scores.distinct_impostors} pairs of strangers, and {needed}.")
    x, y = vertices(scores)
    accepted = float(y[x <= far * x[-1] * (1 + 1e-12)].max())
    pairs = int(scores.genuine_pairs.sum()) if failures else len(scores.genuine)
    share = len(scores.genuine) / pairs
    binned = _at(far, *scores.resampled_roc(bootstrap)) * share
    low, high = recentred(binned, accepted / pairs, _trials(scores))
    return Figure(name, accepted / pairs, low, high, pairs, "genuine scores")


def match_rate(
    scores: Scores, threshold: float | None, *, failures: bool = False, bootstrap: Bootstrap = BOOTSTRAP
) -> Figure:
    """Share of genuine pairs that the recogniser calls one person, at its own threshold.

    Args:
        threshold: a similarity; above it is a match. None: no figure.
        failures: genuine pairs of probes that were not acquired count as missed.
    """
    name = "match rate" + FAILURES * failures
    pairs = scores.sums(scores.genuine_pairs * (scores.acquired | failures))
    if threshold is None or not pairs.any():
        return Figure(name, None, note=NO_THRESHOLD if threshold is None else nobody(scores))
    matched = scores.genuine_over(threshold)
    low, high = proportion(bootstrap.weights(len(pairs)), matched, pairs)
    return Figure(name, float(matched.sum() / pairs.sum()), low, high, int(pairs.sum()), "genuine scores")


def false_match_rate(scores: Scores, threshold: float | None, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Share of impostor pairs that the recogniser calls one person, at the same threshold as the match rate.

    A match rate means nothing where strangers match as often.
    """
    name = "false match rate"
    pairs = scores.impostor_counts()
    if threshold is None or not pairs.any():
        return Figure(name, None, note=NO_THRESHOLD if threshold is None else _NO_STRANGERS)
    matched = scores.sums(scores.impostors_over(threshold))
    low, high = proportion(bootstrap.weights(len(pairs)), matched, pairs)
    note = ""
    if not matched.any():
        bound = rule_of_three(int(np.count_nonzero(pairs)))
        note = f"No pair matched; taking each person as one trial, at most {bound:.3g} do (3/n)."
    return Figure(name, float(matched.sum() / pairs.sum()), low, high, scores.impostors, "impostor scores", note)


def genuine_similarity(scores: Scores, *, bootstrap: Bootstrap = BOOTSTRAP) -> Figure:
    """Mean similarity of genuine pairs: cosine, or Euclidean distance, to be read beside the match rate.

    Source: Jeong et al., FICGAN, Table 1 "ID similarity".
    """
    name = "ID cosine" if scores.metric == "cosine" else "ID distance"
    if not len(scores.genuine):
        return Figure(name, None, note=nobody(scores))
    who = scores.identity[scores.genuine_probe]
    sign = 1.0 if scores.metric == "cosine" else -1.0
    people = len(scores.identities)
    sums = np.bincount(who, weights=sign * scores.genuine.astype(np.float64), minlength=people).astype(np.float64)
    pairs = np.bincount(who, minlength=people).astype(np.float64)
    low: float | None = None
    high: float | None = None
    if np.count_nonzero(pairs) > 1:
        low, high = percentiles(ratios(bootstrap.weights(people), sums, pairs))
    return Figure(name, float(sums.sum() / pairs.sum()), low, high, len(scores.genuine), "genuine scores")


def roc(scores: Scores, points: int = 200) -> list[list[float]]:
    """[false accept rate, true accept rate], both rising from 0 to 1, at most `points` corners of the exact curve."""
    if _missing(scores):
        return []
    x, y = vertices(scores)
    chosen = _chosen(x, y, points)
    return [[float(a), float(b)] for a, b in zip(x[chosen] / x[-1], y[chosen] / y[-1], strict=True)]


def det(scores: Scores, points: int = 200) -> list[list[float]]:
    """[false accept rate, false reject rate]: the first rises, the second falls.

    Source: Martin et al., Eurospeech (1997), who draw both on axes of normal deviates.
    """
    return [[x, 1 - y] for x, y in roc(scores, points)]


def _missing(scores: Scores) -> str:
    if not len(scores.genuine):
        return nobody(scores)
    return "" if scores.impostors else _NO_STRANGERS


def _chosen(x: NDArray[np.int64], y: NDArray[np.int64], points: int) -> NDArray[np.intp]:
    """Corners to draw: half of them even in the logarithm of the FAR, for its low end, half along the curve."""
    if len(x) <= points:
        return np.arange(len(x))
    half = points // 2 - 1
    low = x.searchsorted(np.geomspace(1, x[-1], half), "right") - 1
    length = x / x[-1] + y / y[-1]
    along = length.searchsorted(np.linspace(0, 2, half))
    return np.unique(np.concatenate([[0], low, along.clip(0, len(x) - 1), [len(x) - 1]]))


def _trials(scores: Scores) -> int:
    return int(np.count_nonzero(scores.sums(scores.mated)))


def _binned_auc(genuine: Floats, impostor: Floats) -> Floats:
    below = np.cumsum(impostor, axis=1, dtype=np.float64) - impostor / 2
    whole = genuine.sum(1, dtype=np.float64) * impostor.sum(1, dtype=np.float64)
    return np.divide((genuine * below).sum(1), whole, out=np.full(len(whole), np.nan), where=whole > 0)


def _crossing(far: Floats, tar: Floats) -> Floats:
    """[R] where FAR = 1 − TAR on the lines between corners [R,V] of rising curves."""
    excess = far + tar - 1
    after = np.maximum(1, np.argmax(excess >= 0, axis=1))
    row = np.arange(len(far))
    before = after - 1
    step = excess[row, after] - excess[row, before]
    part = np.divide(-excess[row, before], step, out=np.zeros(len(far)), where=step > 0)
    return far[row, before] + part * (far[row, after] - far[row, before])


def _at(far: float, fars: Floats, tars: Floats) -> Floats:
    """[R] TAR on the lines between corners [R,V] where the FAR reaches `far`."""
    after = np.maximum(1, np.argmax(fars > far, axis=1))
    row = np.arange(len(fars))
    before = after - 1
    step = fars[row, after] - fars[row, before]
    part = np.divide(far - fars[row, before], step, out=np.zeros(len(fars)), where=step > 0)
    return tars[row, before] + part * (tars[row, after] - tars[row, before])
