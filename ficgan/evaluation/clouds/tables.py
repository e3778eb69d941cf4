"""Tables of a study of clouds, made of its results alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ficgan.evaluation.clouds.figures import value_of
from ficgan.evaluation.clouds.labels import CLOUD, IN_SPACE
from ficgan.evaluation.results import Figure, Results, Trial

__all__ = ["MAIN", "TRIED", "attackers", "controls", "every_figure", "geometry", "points", "strongest", "summary"]

Row = dict[str, Any]
MAIN = (
    "AUC", "rank-1", "mu-privacy", "mu-privacy" + CLOUD, "delta-detection", "landmark-distance", "ssim",
    "fd-squeezenet", "mu-utility",
)  # fmt: skip
"""Figures of the plots by degree."""
TRIED = 20
"""People on whom an attacker must have been tried to be anybody's strongest, where the study has more: so many has the
thesis' auto-encoder. The most of a few lucky guesses says nothing."""
_AIM = 0.8
"""Mean privacy at which methods are compared: the thesis' own reading of its trade-off (§5.3.3.1)."""


def strongest(results: Results, method: str, *, cloud: bool = False) -> Trial | None:
    """Of the trials of a method at a degree, on all people, the one that leaves the least mean privacy.

    Args:
        results: of a study.
        method: label of a method at a degree.
        cloud: where the cloud itself is given away: recognisers of shape attack too; None where none of them was tried.
            Else projections alone are given away, as in the thesis.
    """
    main = next(iter(results.sets), "")
    least = min(TRIED, results.sets[main].get("probe_people", 0)) if main else 0
    tried = [t for t in results.trials if t.method == method and t.set == main and not t.control]
    tried = [t for t in tried if _people(t) >= least]
    shapes = [t for t in tried if t.recogniser.endswith(IN_SPACE)]
    if cloud and not shapes:
        return None
    tried = tried if cloud else [t for t in tried if not t.recogniser.endswith(IN_SPACE)]
    known = [(value, t) for t in tried if (value := value_of(t.figures, "mu-privacy")) is not None]
    return min(known, key=lambda one: one[0])[1] if known else None


def points(results: Results) -> list[Row]:
    """A row for each method at each degree: its strongest attacker's figures, and what is left."""
    left = {use.method: use.figures for use in results.utilities}
    rows = []
    for label, facts in results.methods.items():
        worst = strongest(results, label)
        row: Row = {
            "method": facts["name"], "degree": facts["settings"]["degree"], "parameter": facts["parameter"],
            "attacker": "" if worst is None else attacker_of(worst),
        }  # fmt: skip
        for metric in ("AUC", "rank-1", "EER", "leak", "mu-privacy"):
            row |= _spread(worst.figures if worst else (), metric)
        known = strongest(results, label, cloud=True)
        if known is not None:
            row["attacker" + CLOUD] = attacker_of(known)
            for metric in ("AUC", "rank-1", "mu-privacy"):
                row[metric + CLOUD] = value_of(known.figures, metric)
        for one in left.get(label, ()):
            row |= _spread(left[label], one.metric)
        rows.append(row)
    return rows


def summary(results: Results) -> list[Row]:
    """A row for each method: the least degree at which mean privacy passes .8, and what is left there."""
    out = []
    rows = points(results)
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method and row["mu-privacy"] is not None]
        hidden = [row for row in mine if row["mu-privacy"] >= _AIM and row.get("mu-utility") is not None]
        best = max(mine, key=lambda row: row["mu-privacy"], default=None)
        at = max(hidden, key=lambda row: row["mu-utility"], default=None)
        shown = {"degree": "none", "mu-privacy": "", "mu-utility": "", "AUC": "", "rank-1": ""}
        if at is not None:
            shown = {key: at[key] for key in shown}
        name = f"at μ_privacy ≥ {_AIM:g}: "
        out.append({
            "method": method,
            **{name + key if key == "degree" else key: _short(value) for key, value in shown.items()},
            "most μ_privacy": _short(best["mu-privacy"] if best else None),
            "most μ_privacy of the cloud": _short(_most(row.get("mu-privacy" + CLOUD) for row in mine)),
            "seconds": _short(_mean(row.get("seconds") for row in mine)),
        })  # fmt: skip
    return out


def attackers(results: Results) -> list[Row]:
    """A row for each method and degree, a column for each attacker: rank-1 and AUC."""
    out: dict[tuple[str, int, str], Row] = {}
    for one in results.trials:
        facts = results.methods.get(one.method)
        if facts is None or one.control:
            continue
        key = (facts["name"], facts["settings"]["degree"], one.set)
        row = out.setdefault(key, {"method": key[0], "degree": key[1], "set": one.set})
        name = attacker_of(one)
        row[f"{name}: rank-1"] = _spelt(one.figures, "rank-1")
        row[f"{name}: AUC"] = _spelt(one.figures, "AUC")
    return list(out.values())


def geometry(results: Results) -> list[Row]:
    """Distortion in space, by method and degree."""
    names = ("chamfer", "normal-error", "curvature-error")
    rows = [row for row in points(results) if row.get(names[0]) is not None]
    return [
        {"method": row["method"], "degree": row["degree"], **{name: _short(row.get(name)) for name in names}}
        for row in rows
    ]


def controls(results: Results) -> list[Row]:
    """Trials whose outcome is known beforehand."""
    out = []
    for one in results.trials:
        if not one.control:
            continue
        area, first = value_of(one.figures, "AUC"), value_of(one.figures, "rank-1")
        note = next((f.note for f in one.figures if f.metric == "rank-1"), "")
        if one.control == "ceiling":
            expected, holds = "AUC above .9", area is not None and area > 0.9
        else:
            people = results.sets[one.set]["probe_people"]
            expected, holds = "one name for everybody", first is not None and first <= 1 / people + 1e-9
        out.append({
            "set": one.set, "control": one.method, "judge": attacker_of(one), "AUC": _short(area),
            "rank-1": _short(first), "must be": expected, "holds": holds, "note": note,
        })  # fmt: skip
    return out


def every_figure(results: Results) -> list[Row]:
    """Every figure of every trial and of what is left, one a row."""
    rows = [
        {"method": t.method, "set": t.set, "attacker": attacker_of(t), **_figure(f)}
        for t in results.trials for f in t.figures
    ]  # fmt: skip
    return rows + [{"method": u.method, "set": u.set, "attacker": "", **_figure(f)} for u in results.utilities
                   for f in u.figures]  # fmt: skip


def attacker_of(one: Trial) -> str:
    """Who attacks: what is done first, and who reads."""
    return f"{one.attacker} + {one.recogniser}" if one.attacker else one.recogniser


def _people(one: Trial) -> int:
    return next((figure.n for figure in one.figures if figure.metric == "rank-1"), 0)


def _figure(one: Figure) -> Row:
    return {
        "metric": one.metric, "value": one.value, "low": one.low, "high": one.high, "n": one.n, "unit": one.unit,
        "note": one.note,
    }  # fmt: skip


def _spread(figures: Sequence[Figure], metric: str) -> Row:
    one = next((one for one in figures if one.metric == metric), None)
    row = {metric: None if one is None else one.value}
    if one is not None and one.low is not None:
        row |= {f"{metric} low": one.low, f"{metric} high": one.high}
    return row


def _spelt(figures: Sequence[Figure], metric: str) -> str:
    one = next((one for one in figures if one.metric == metric), None)
    if one is None or one.value is None:
        return "–"
    return _short(one.value) + ("" if one.low is None else f" [{_short(one.low)}, {_short(one.high)}]")


def _short(value: Any) -> str:
    return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
