"""Tables of a study of clouds, made of its results alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ficgan.lab.clouds.figures import value_of
from ficgan.lab.clouds.inverses import INVERSES
from ficgan.lab.clouds.labels import CLOUD, IN_SPACE, needs_cloud
from ficgan.lab.results import Figure, Results, Trial

__all__ = [
    "MAIN",
    "TRIED",
    "attackers",
    "controls",
    "every_figure",
    "geometry",
    "points",
    "strongest",
    "summary",
    "tried_whole",
]

Row = dict[str, Any]
MAIN = (
    "AUC", "rank-1", "mu-privacy", "mu-privacy" + CLOUD, "delta-detection", "landmark-distance", "ssim",
    "fd-squeezenet", "mu-utility",
)  # fmt: skip
"""Figures of the plots by degree."""
TRIED = 20
"""People on whom an attacker must have been tried to be anybody's strongest, where the study has more: so many has the
thesis' auto-encoder. The most of a few lucky guesses says nothing."""
_WHOLE = 20
"""Degree up to which an exact inverse brings everything back: at higher ones tapering flattens parts of the face, and
merged colours are rounded away."""
_NEAR = 0.05
"""By which rank-1 may fall below that of clear faces."""
_AIM = 0.8
"""Mean privacy at which methods are compared: the thesis' own reading of its trade-off (§5.3.3.1)."""


def strongest(results: Results, method: str, *, cloud: bool = False) -> Trial | None:
    """Of the trials of a method at a degree, on all people, the one that leaves the least mean privacy.

    Args:
        results: of a study.
        method: label of a method at a degree.
        cloud: where the cloud itself is given away: recognisers of shape and inverses attack too; None
            where none of them was tried. Else projections alone are given away, as in the thesis.
    """
    main = next(iter(results.sets), "")
    least = min(TRIED, results.sets[main].get("probe_people", 0)) if main else 0
    tried = [t for t in results.trials if t.method == method and t.set == main and not t.control]
    tried = [t for t in tried if t.scenario != "reversed" or _people(t) >= least]
    if cloud and not any(map(needs_cloud, tried)):
        return None
    tried = tried if cloud else [t for t in tried if not needs_cloud(t)]
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
    """A row for each method: of the degrees that pass a mean privacy of .8 that which leaves most, and the extremes.

    Degrees at which parrots or recognisers of shape were not tried would win by what nobody did to them: where there
    are others, they are left out.
    """
    out = []
    whole = tried_whole(results)
    rows = [row for row in points(results) if row["degree"] in whole]
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method and row["mu-privacy"] is not None]
        hidden = [row for row in mine if row["mu-privacy"] >= _AIM and row.get("mu-utility") is not None]
        best = max(mine, key=lambda row: row["mu-privacy"], default=None)
        at = max(hidden, key=lambda row: row["mu-utility"], default=None)
        shown = {"degree": "none", "mu-privacy": "", "mu-utility": "", "AUC": "", "rank-1": ""}
        if at is not None:
            shown = {key: at[key] for key in shown}
        reached = {f"at μ_privacy ≥ {_AIM:g}: degree": shown.pop("degree"), **shown} if at is not None else {}
        out.append({
            "method": method, **{key: _short(value) for key, value in reached.items()},
            "most μ_privacy": _short(best["mu-privacy"] if best else None),
            "against": "" if best is None else best["attacker"],
            "most μ_privacy of the cloud": _short(_most(row.get("mu-privacy" + CLOUD) for row in mine)),
            "inverse tried": ", ".join(_taken_back(results, method)) or "none",
            "seconds": _short(_mean(row.get("seconds") for row in mine)),
        })  # fmt: skip
    return out


def tried_whole(results: Results) -> list[int]:
    """Degrees at which the costly attackers were tried too; all, where there are none."""
    degree = {label: facts["settings"]["degree"] for label, facts in results.methods.items()}
    costly = [t for t in results.trials if t.scenario == "parrot" or t.recogniser.endswith(IN_SPACE)]
    return sorted({degree[t.method] for t in costly if t.method in degree} or set(degree.values()))


def attackers(results: Results) -> list[Row]:
    """A row for each attacker of a method at a degree."""
    out = []
    for one in results.trials:
        facts = results.methods.get(one.method)
        if facts is not None and not one.control:
            out.append({
                "method": facts["name"], "degree": facts["settings"]["degree"], "set": one.set,
                "attacker": attacker_of(one), "needs": "the cloud" if needs_cloud(one) else "its picture",
                **{name: _spelt(one.figures, name) for name in ("rank-1", "AUC", "mu-privacy")},
            })  # fmt: skip
    return sorted(out, key=lambda row: (row["method"], row["degree"]))


def geometry(results: Results) -> list[Row]:
    """Distortion in space, by method and degree."""
    names = ("chamfer", "normal-error", "curvature-error")
    rows = [row for row in points(results) if row.get(names[0]) is not None]
    return [
        {"method": row["method"], "degree": row["degree"], **{name: _short(row.get(name)) for name in names}}
        for row in rows
    ]


def controls(results: Results) -> list[Row]:
    """Trials whose outcome is known beforehand, and what is told by that which no method touches."""
    out = []
    for one in [t for t in results.trials if t.control] + _put_right(results):
        area, first = value_of(one.figures, "AUC"), value_of(one.figures, "rank-1")
        expected: str
        holds: bool | None
        if one.control == "ceiling":
            expected, holds = "AUC above .9", area is not None and area > 0.9
        elif one.control == "surroundings":
            expected, holds = "no bar: every method leaves it clear", None
        elif one.control == "negative":
            people = results.sets[one.set]["probe_people"]
            expected, holds = "one name for everybody", first is not None and first <= 1 / people + 1e-9
        else:
            clear = _ceiling(results, one)
            expected = f"as of clear faces, rank-1 {_short(clear)}"
            holds = None not in (clear, first) and first >= clear - _NEAR  # type: ignore[operator]
        out.append({
            "set": one.set, "control": one.method, "judge": attacker_of(one), "AUC": _short(area),
            "rank-1": _short(first), "must be": expected, "holds": holds,
            "note": next((f.note for f in one.figures if f.metric == "rank-1"), ""),
        })  # fmt: skip
    return out


def _put_right(results: Results) -> list[Trial]:
    """Of each exact inverse and recogniser, the trial at the highest degree up to that at which nothing is lost."""
    best: dict[tuple[str, str, str], tuple[int, Trial]] = {}
    for one in results.trials:
        if one.scenario == "inverse" and INVERSES[one.attacker].exact:
            degree = results.methods[one.method]["settings"]["degree"]
            key = (one.set, one.attacker, one.recogniser)
            if degree <= _WHOLE and degree > best.get(key, (0,))[0]:
                best[key] = (degree, one)
    return [one for _, one in best.values()]


def _ceiling(results: Results, like: Trial) -> float | None:
    """Rank-1 of the clear faces, of the same set and recogniser."""
    return next(
        (value_of(t.figures, "rank-1") for t in results.trials
         if t.control == "ceiling" and (t.set, t.recogniser) == (like.set, like.recogniser)),
        None,
    )  # fmt: skip


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


def _taken_back(results: Results, method: str) -> list[str]:
    tried = {one.attacker for one in results.trials if one.scenario == "inverse"}
    return [name for name, one in INVERSES.items() if one.method == method and name in tried]


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
