"""Who is shown in a survey, and how: pairs of photos (Fantômas, appendix D), or photos that are rated (section 8)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import generator
from ficgan.errors import InputError, UsageError
from ficgan.lab.metrics import Bootstrap, recentred
from ficgan.lab.results import Figure

# Attention checks in a questionnaire: the same photo twice; a woman and a man, where the set knows them.
CHECKS = 2
Pools = dict[str, list[tuple[int, int]]]  # By gender, rows of a clear and of a changed photo of each person


class SurveyPair(NamedTuple):
    """Rows of two photos: `reference` stays clear, a condition (its number; −1: attention check) changes `shown`."""

    condition: int
    reference: int
    shown: int
    same: bool


def draw(pools: Pools, *, conditions: int, pairs: int) -> tuple[list[SurveyPair], list[str]]:
    """Pairs of each condition and attention checks, nobody in two of them, and sentences on what is not balanced."""
    note = "The set knows no gender: strangers are not matched on it, and who always says yes passes attention checks."
    if pairs < 2 or pairs % (2 * len(pools)):
        raise UsageError(f"{pairs} pairs cannot be half of one person, half of each gender; give a multiple of 4")
    each = conditions * pairs // 2 // len(pools)
    needed = 3 * each + CHECKS
    if (least := min(map(len, pools.values()))) < needed:
        raise InputError(f"of {needed} people of each gender with photos on both sides there are {least}; give more")
    drawn = []
    for number in range(CHECKS):
        chosen = [pool.pop()[0] for pool in list(pools.values())[: 1 + number % 2]]
        drawn.append(SurveyPair(-1, chosen[0], chosen[-1], len(chosen) == 1))
    for pool in pools.values():
        strangers = list(zip(pool[: 2 * each : 2], pool[1 : 2 * each : 2], strict=True))
        for couples in (strangers, [(person, person) for person in pool[2 * each : 3 * each]]):
            for place, (first, second) in enumerate(couples):
                drawn.append(SurveyPair(place % conditions, first[0], second[1], first is second))
    return drawn, [note] if len(pools) == 1 else []


def pools_of(
    people: NDArray[np.int64],
    references: NDArray[np.int64],
    shown: NDArray[np.int64],
    genders: Sequence[str] | None,
    seed: int,
) -> Pools:
    """A clear and a changed photo of everybody who has both, in random order, by gender; "" where it is unknown.

    `people` [N] and `genders` [N] ("" where unknown) are of the rows of the set; `references` are rows of photos that
    stay clear, `shown` of photos that conditions change.
    """
    rows: tuple[dict[int, list[int]], dict[int, list[int]]] = defaultdict(list), defaultdict(list)
    for side, photos in zip(rows, (references, shown), strict=True):
        for row in sorted(photos.tolist()):
            side[int(people[row])].append(row)
    everybody = []
    for person in sorted(rows[0].keys() & rows[1].keys() - {-1}):
        rng = generator(seed, "survey photos", person)
        names = Counter(name for row in rows[0][person] + rows[1][person] if genders and (name := genders[row]))
        gender = max(sorted(names), key=names.__getitem__, default="")
        everybody.append((gender, (int(rng.choice(rows[0][person])), int(rng.choice(rows[1][person])))))
    counts = Counter(gender for gender, _ in everybody if gender).most_common(2)
    two = sorted(gender for gender, _ in counts) if len(counts) == 2 else [""]
    order = generator(seed, "survey people").permutation(len(everybody)).tolist()
    return {name: [everybody[row][1] for row in order if name in ("", everybody[row][0])] for name in two}


def draw_rated(pools: Pools, photos: int) -> tuple[list[int], list[int], list[str]]:
    """Rows of the photos that are rated, half of them of each gender, and of those of the attention checks; notes."""
    note = "The set knows no gender: photos are not balanced by it."
    each = photos // len(pools)
    if photos % len(pools):
        raise UsageError(f"{photos} photos cannot be half of each gender; give an even number")
    if (least := min(map(len, pools.values()))) < each + CHECKS:
        raise InputError(f"of {each + CHECKS} people of each gender there are {least}; give more faces")
    rows = [[shown for _, shown in pool] for pool in pools.values()]
    rated = [row for some in rows for row in some[:each]]
    return rated, [row for some in rows for row in some[each:]][:CHECKS], [note] if len(pools) == 1 else []


# -- figures of the answers --------------------------------------------------------------------------------------------

METRICS = ("F1", "F1 (pairs of one person)", "accuracy", "sensitivity", "specificity")
Booleans = NDArray[np.bool_]


def plain(found: Mapping[str, Figure]) -> dict[str, Any]:
    return {name: asdict(figure) for name, figure in found.items()}


def figures(right: Booleans, same: Booleans, bootstrap: Bootstrap) -> dict[str, Figure]:
    """`METRICS` of right and wrong answers [P,M] to pairs [M] of the same person or not."""
    # Pairs of one person and of two are drawn apart; by another seed, or as many pairs as people would be drawn alike.
    by_pair = np.empty((bootstrap.resamples, len(same)))
    for kind in (True, False):
        by_pair[:, same == kind] = Bootstrap(bootstrap.resamples, bootstrap.seed + 1 + kind).weights(
            (same == kind).sum()
        )
    asked = np.broadcast_to(same, right.shape)
    everything, tp, fn, tn, fp = (
        some.astype(np.float64)
        for some in (np.ones_like(right), right & asked, ~right & asked, right & ~asked, ~right & ~asked)
    )
    values = (
        (2 * tp, 2 * tp + fp + fn, everything),
        (2 * tp, 2 * tp + fn, tp + fn),
        (tp + tn, everything, everything),
        (tp, tp + fn, tp + fn),
        (tn, tn + fp, tn + fp),
    )
    return {
        name: _two_way(name, above, below, int(counted.sum()), by_pair, bootstrap, "answers")
        for name, (above, below, counted) in zip(METRICS, values, strict=True)
    }


def agreement(name: str, values: NDArray[np.float64], bootstrap: Bootstrap) -> Figure:
    """Mean of ratings [P,M] of photos under a condition, NaN where a participant did not see it (Fantômas, §8)."""
    seen = np.isfinite(values)
    by_photo = Bootstrap(bootstrap.resamples, bootstrap.seed + 1).weights(values.shape[1])  # drawn apart from people
    return _two_way(name, np.where(seen, values, 0), seen, int(seen.sum()), by_photo, bootstrap, "votes")


def _two_way(
    name: str,
    above: NDArray[Any],
    below: NDArray[Any],
    count: int,
    by_column: NDArray[np.floating],
    bootstrap: Bootstrap,
    unit: str,
) -> Figure:
    """Σ above / Σ below of [P,M], with an interval by resampling the people and, as drawn, the columns [R,M]."""
    if not count:
        return Figure(name, None, unit=unit, note="There are no answers to count.")
    by_person = bootstrap.weights(len(above)).astype(np.float64)
    tops, bottoms = (((by_person @ part.astype(np.float64)) * by_column).sum(1) for part in (above, below))
    drawn = np.divide(tops, bottoms, out=np.full(len(bottoms), np.nan), where=bottoms > 0)
    value = float(above.sum() / below.sum())
    trials = min(below.any(1).sum(), below.any(0).sum())
    return Figure(name, value, *recentred(np.append(value, drawn), value, int(trials)), count, unit)


def draw_agreement(conditions: Sequence[Mapping[str, Any]], statements: Sequence[str], canvas: Any) -> None:
    """Bars of the agreement with each statement by condition, with 95 % intervals (Fantômas, Figure 13)."""
    axes, places = canvas.subplots(), np.arange(len(conditions))
    width = 0.8 / len(statements)
    for number, name in enumerate(statements):
        # Where there is no interval, its ends are the value.
        rows = [[row[name][end] for end in ("value", "low", "high")] for row in conditions]
        value, low, high = np.array([[np.nan if x is None else x for x in row] for row in rows]).T
        away = np.nan_to_num(np.abs([value - low, high - value]))
        axes.bar(places + (number - (len(statements) - 1) / 2) * width, value, width, yerr=away, capsize=2, label=name)
    axes.set_xticks(places, [row["label"] for row in conditions], rotation=35, ha="right")
    axes.set(ylabel="agreement: 0 strongly disagree, 1 strongly agree", ylim=(0, 1))
    axes.legend(ncols=len(statements), loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    axes.grid(axis="y", alpha=0.3)
