"""Figures of a study of clouds, tables and plots made of them, and a page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.lab.clouds.study import IN_SPACE, INVERSES, SQUEEZED, Record
from ficgan.lab.metrics import Bootstrap, Sample
from ficgan.lab.metrics.pictures import box_iou, landmark_distance
from ficgan.lab.metrics.privacy import Scores, auc, eer, leak, rank
from ficgan.lab.metrics.utility import frechet_figure
from ficgan.lab.report import write_tables
from ficgan.lab.results import Figure, Results, Trial, note_texts, notes

if TYPE_CHECKING:
    from ficgan.lab.clouds.study import CloudGuesses, CloudStudy

Row = dict[str, Any]

METRICS: dict[str, str] = note_texts("cloud figures")
CLEAR, CONSTANT, SURROUNDINGS = "clear", "constant", "what lies around the face"
CLOUD = " (cloud)"  # what the names of figures end with that hold where the cloud itself is given away
TRIED = 20  # people on whom an attacker must have been tried to be anybody's strongest, where the study has more
_OVERLAP = 0.5  # least overlap with the box in the clear projection that counts as detected
_MISS = 40.0  # landmark distance of a face that is not found, pixels
_PRIVACY = ("AUC", "rank-1", "EER", "leak", "mu-privacy")
_AIM = 0.8  # mean privacy at which methods are compared (thesis, §5.3.3.1)
_FEW, _THESIS_PEOPLE = 30, 200  # people below which an AUC says nothing of the world; people of the thesis


# -- figures ----------------------------------------------------------------------------------------------------------


def mu_privacy(area: float, first: float) -> float:
    """Mean privacy of an AUC (at least ½) and a rank-1; 1 is best (point-cloud thesis, eq. 5.1)."""
    return 1 - (max(0.0, 2 * (area - 0.5)) + first) / 2


def privacy(scores: Scores, found: NDArray[np.bool_] | None, bootstrap: Bootstrap) -> tuple[Figure, ...]:
    """AUC, EER, leak, rank-1 and their mean of eq. 5.1, with and without failures as misses.

    `found` [P] is whether the detector found a face; None: none was looked for.
    """
    area, first = auc(scores, bootstrap=bootstrap), rank(scores, 1, bootstrap=bootstrap)
    out = [area, eer(scores), leak(scores, bootstrap=bootstrap), first]
    if not scores.acquired.all():
        out.append(rank(scores, 1, failures=True, bootstrap=bootstrap))
    mean = Figure("mu-privacy", None, unit="clouds", note=area.note or first.note)
    if area.value is not None and first.value is not None:
        ends = ((area.high, first.high), (area.low, first.low))
        low, high = (None if one is None or other is None else mu_privacy(one, other) for one, other in ends)
        mean = Figure("mu-privacy", mu_privacy(area.value, first.value), low, high, first.n, first.unit)
    missed = () if found is None else (Sample(scores.people, bootstrap, "clouds").share("failures to acquire", ~found),)
    return (*out, mean, *missed)


def utility(clear: Record, made: Record, seconds: NDArray[np.float64], sample: Sample) -> tuple[Figure, ...]:
    """What a method left at one strength, of records [P] of clear and anonymised projections and times [P]."""
    overlap = np.nan_to_num(box_iou(clear["box"], made["box"]), nan=0.0)
    known, base, lost = clear["found"], float(clear["found"].mean()), int((~made["made"]).sum())
    note = f"{base:.3f} of the clear projections"
    if lost:
        note += f"; of {lost} clouds nothing could be made, and the outer part alone was projected"
    detected = sample.share("delta-detection", known & made["found"] & (overlap >= _OVERLAP), note)
    ssim = sample.mean("ssim", made["ssim"])
    fid = sample.none("fid", "torch-fidelity's Inception is not in torch's cache of weights")
    if "features" in (made.dtype.names or ()):
        name = "fd-squeezenet" if made.dtype["features"].shape == (SQUEEZED,) else "fid"
        fid = replace(frechet_figure(name, clear["features"], made["features"]), unit=sample.unit)
    mean = sample.none("mu-utility", "there is no SSIM")
    if ssim.value is not None and detected.value is not None:
        mean = Figure("mu-utility", (detected.value + ssim.value) / 2, n=len(made), unit=sample.unit)  # eq. 5.2
    apart = np.where(made["found"], landmark_distance(clear["marks"], made["marks"]), _MISS)
    timed = int(np.isfinite(seconds).sum())
    deviation = [Figure("seconds-sd", float(np.nanstd(seconds)), n=timed, unit=sample.unit)] if timed else []
    return (
        detected,
        Figure("detection-drop", base - (detected.value or 0.0), n=len(made), unit=sample.unit),
        sample.mean("box-iou", np.where(known, overlap, np.nan)),
        sample.median("landmark-distance", np.where(known, apart, np.nan), f"{_MISS:g} px where no face is"),
        ssim,
        fid,
        sample.mean("seconds", seconds),
        *deviation,
        mean,
    )


# -- tables -----------------------------------------------------------------------------------------------------------


def needs_cloud(trial: Trial) -> bool:
    """Whether an attacker must have the cloud itself, and not its projection alone."""
    return trial.recogniser.endswith(IN_SPACE) or trial.attacker in INVERSES


def strongest(results: Results, method: str, *, cloud: bool = False) -> Trial | None:
    """Of the trials of a method at a strength, on all people, the one that leaves the least mean privacy.

    `cloud`: the cloud itself is published, so recognisers of shape and inverses attack too; else projections alone.
    """
    (facts,) = results.sets.values()
    least = min(TRIED, facts["probe_people"])
    tried = [t for t in results.trials if t.method == method and not t.control and _people(t) >= least]
    if cloud and not any(map(needs_cloud, tried)):
        return None
    known = [t for t in tried if (cloud or not needs_cloud(t)) and t.value("mu-privacy") is not None]
    return min(known, key=lambda t: t.value("mu-privacy") or 0.0, default=None)


def _people(trial: Trial) -> float:
    """On how many people an attacker that learns was tried; all others are tried on everybody."""
    found = trial.figure("rank-1")
    return np.inf if trial.scenario != "reversed" else found.n if found else 0


def points(results: Results) -> list[Row]:
    """A row for each method at each strength: its strongest attacker's figures, and what is left."""
    left = {use.method: use.figures for use in results.utilities}
    rows = []
    for name, facts in results.methods.items():
        worst, known = strongest(results, name), strongest(results, name, cloud=True)
        figures = [None if worst is None else worst.figure(metric) for metric in _PRIVACY]
        row: Row = {
            "method": facts["name"],
            "strength": facts["settings"]["strength"],
            "parameter": facts["parameter"],
            "attacker": "" if worst is None else attacker_of(worst),
            **dict.fromkeys(_PRIVACY),
        }
        if known is not None:
            row["attacker" + CLOUD] = attacker_of(known)
            row |= {metric + CLOUD: known.value(metric) for metric in ("AUC", "rank-1", "mu-privacy")}
        for found in (*filter(None, figures), *left.get(name, ())):
            row[found.metric] = found.value
            if found.low is not None:
                row |= {f"{found.metric} low": found.low, f"{found.metric} high": found.high}
        rows.append(row)
    return rows


def summary(results: Results) -> list[Row]:
    """A row for each method: the strength of a mean privacy of .8 that leaves most utility, and the extremes."""
    whole, tried = tried_whole(results), {t.attacker for t in results.trials if t.scenario == "inverse"}
    rows = [row for row in points(results) if row["strength"] in whole]
    out = []
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method and row["mu-privacy"] is not None]
        hidden = [row for row in mine if row["mu-privacy"] >= _AIM and row.get("mu-utility") is not None]
        best: Row = max(mine, key=lambda row: row["mu-privacy"], default={})
        at = max(hidden, key=lambda row: row["mu-utility"], default=None)
        row: Row = {"method": method}
        if at is not None:
            row[f"at μ_privacy ≥ {_AIM:g}: strength"] = at["strength"]
            row |= {key: at[key] for key in ("mu-privacy", "mu-utility", "AUC", "rank-1")}
        given, times = ([r[key] for r in mine if r.get(key) is not None] for key in ("mu-privacy" + CLOUD, "seconds"))
        row |= {"most μ_privacy": best.get("mu-privacy"), "against": best.get("attacker", "")}
        row["most μ_privacy of the cloud"] = max(given, default=None)
        inverses = (name for name, inverse in INVERSES.items() if inverse.method == method and name in tried)
        row["inverse tried"] = ", ".join(inverses) or "none"
        out.append(row | {"seconds": float(np.mean(times)) if times else None})
    return out


def tried_whole(results: Results) -> list[int]:
    """Strengths at which the costly attackers were tried too; all, where there are none."""
    strength = {name: facts["settings"]["strength"] for name, facts in results.methods.items()}
    costly = [t for t in results.trials if t.scenario == "parrot" or t.recogniser.endswith(IN_SPACE)]
    return sorted({strength[t.method] for t in costly if t.method in strength} or set(strength.values()))


def attacker_of(trial: Trial) -> str:
    return f"{trial.attacker} + {trial.recogniser}" if trial.attacker else trial.recogniser


def caveats(study: CloudStudy, results: Results, made: Mapping[str, Record], guesses: CloudGuesses | None) -> list[str]:
    """Sentences that stand before every table, of records [P,strengths] by method."""
    facts = next(iter(results.sets.values()))
    people, found = facts["probe_people"], np.concatenate([record["found"].ravel() for record in made.values()])
    tried = [inverse.note for inverse in INVERSES.values() if inverse.method in study.config.methods]
    holds = {
        "few": people < _FEW,
        "fewer": _FEW <= people < _THESIS_PEOPLE,
        **{name: name in (facts["kind"], facts["gallery_kind"]) for name in ("made heads", "projections")},
        **dict.fromkeys(("lost", "headline", "cloud"), True),
        "inverses": tried,
        "parrots": study.clouds.gallery,
        "untrained": guesses is None,
        "trained": guesses is not None,
    }
    values = {
        "people": people,
        "lost": int((~found).sum()),
        "all": found.size,
        "inverses": "; ".join(tried),
        "tried_on": 0 if guesses is None else guesses.record["people"]["tried on"],
        "costly": ", ".join(map(str, study.config.costly_strengths)),
    }
    return notes("clouds", holds, facts=facts, thesis=_THESIS_PEOPLE, **values)


# -- plots and page ---------------------------------------------------------------------------------------------------

_BY_STRENGTH = (
    *("AUC", "rank-1", "mu-privacy", "mu-privacy" + CLOUD, "delta-detection", "landmark-distance", "ssim"),
    *("fid", "fd-squeezenet", "mu-utility", "seconds"),
)
# Variables of the correlation matrix (figure 5.14).
_PAIRED = ("AUC", "rank-1", "delta-detection", "landmark-distance", "ssim", "fid", "fd-squeezenet")
_UNITS = {"landmark-distance": "px", "seconds": "s"}


def write_cloud_report(results: Results, out: Path) -> list[Path]:
    """Write `report.html`, `report.json`, `figures/*.png|svg` and `tables/*.csv`; returns the files, the page first."""
    every, whole = points(results), ", ".join(map(str, tried_whole(results)))
    sets = [{"set": name, **facts, "digest": facts["digest"][:12]} for name, facts in results.sets.items()]
    figures = [{"figure": name, "what it is": said} for name, said in METRICS.items()]
    said = note_texts("cloud page")["methods"].format(whole=whole)
    tables = [
        {"title": "Scans", "note": "", "rows": sets, "plots": ()},
        {"title": "Methods", "note": said, "rows": summary(results), "plots": ()},
        {"title": "Every method at every strength", "note": "", "rows": every, "plots": tuple(PLOTS)},
        {"title": "Figures", "note": "", "rows": figures, "plots": ()},
    ]
    plots = {stem: (caption, size, partial(draw, results, every)) for stem, (caption, size, draw) in PLOTS.items()}
    return write_tables(results, out, tables, plots)


def _methods(rows: list[Row], *needed: str) -> Iterator[tuple[str, str, list[Row]]]:
    for number, name in enumerate(dict.fromkeys(row["method"] for row in rows)):
        mine = [row for row in rows if row["method"] == name and all(row.get(key) is not None for key in needed)]
        yield f"C{number}", name, sorted(mine, key=lambda row: int(row["strength"]))


def _by_strength(results: Results, rows: list[Row], canvas: Any) -> bool:
    names = [name for name in _BY_STRENGTH if any(row.get(name) is not None for row in rows)]
    if not names:
        return False
    grid = canvas.subplots(-(-len(names) // 2), 2, squeeze=False)
    styles = {"ceiling": "--", "negative": ":"}
    for axes, name in zip(grid.ravel(), names, strict=False):
        for colour, method, mine in _methods(rows, name):
            x = [row["strength"] for row in mine]
            axes.plot(x, [row[name] for row in mine], ".-", color=colour, label=method, linewidth=1, markersize=3)
            if mine and all(f"{name} low" in row for row in mine):
                low, high = ([row[f"{name} {end}"] for row in mine] for end in ("low", "high"))
                axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
        for trial in results.trials:
            value = trial.value(name)
            if trial.control in styles and value is not None:
                axes.axhline(value, color="0.4", linewidth=0.8, linestyle=styles[trial.control])
        axes.set(xlabel="strength", ylabel=f"{name}, {_UNITS[name]}" if name in _UNITS else name)
        axes.grid(alpha=0.3)
    for axes in grid.ravel()[len(names) :]:
        axes.set_axis_off()
    grid.ravel()[0].legend(fontsize=7)
    return True


def _trade_off(results: Results, rows: list[Row], canvas: Any) -> bool:
    axes, whole = canvas.subplots(), tried_whole(results)
    for colour, method, known in _methods(rows, "mu-privacy", "mu-utility"):
        tried = [row for row in known if row["strength"] in whole]
        if not tried:
            continue
        x, y = ([row[name] for row in tried] for name in ("mu-privacy", "mu-utility"))
        axes.plot(x, y, ".-", color=colour, label=method, linewidth=0.6)
        given = [row for row in tried if row.get("mu-privacy" + CLOUD) is not None]
        axes.plot(*([row[name] for row in given] for name in ("mu-privacy" + CLOUD, "mu-utility")), "x", color=colour)
        for row in (tried[0], tried[-1]):
            axes.annotate(str(row["strength"]), (row["mu-privacy"], row["mu-utility"]), fontsize=7)
    axes.plot([0, 1], [1, 0], color="0.5", linewidth=0.8, linestyle="--")
    axes.set(xlabel="mean privacy under the strongest attacker (eq. 5.1)", ylabel="mean utility (eq. 5.2)")
    axes.grid(alpha=0.3)
    if not axes.get_legend_handles_labels()[0]:
        return False
    axes.legend(fontsize=8)
    return True


def _correlations(results: Results, rows: list[Row], canvas: Any) -> bool:
    """Pearson's r over all methods and strengths between every two variables of `_PAIRED` that vary."""
    known = [name for name in _PAIRED if any(row.get(name) is not None for row in rows)]
    table = np.array([[row.get(name) for row in rows] for name in known], float).reshape(len(known), -1)
    whole = table[:, np.isfinite(table).all(0)]
    vary = np.ptp(whole, axis=1) > 1e-12 if whole.shape[1] > 2 else np.zeros(len(known), bool)
    if vary.sum() < 2:
        return False
    names, matrix = np.array(known)[vary], np.corrcoef(whole[vary])
    axes = canvas.subplots()
    image = axes.imshow(matrix, vmin=-1, vmax=1, cmap="RdBu_r")
    for (i, j), r in np.ndenumerate(matrix):
        axes.text(j, i, f"{r:.2f}", ha="center", va="center", color="white" if abs(r) > 0.6 else "black")
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_yticks(range(len(names)), names)
    canvas.colorbar(image, ax=axes, label="Pearson's r")
    return True


# File → caption, size in inches, and what draws it; False where there is nothing to draw.
PLOTS: dict[str, tuple[str, tuple[float, float], Callable[[Results, list[Row], Any], bool]]] = {
    "trade-off": (
        "Privacy against utility (as figure 5.15), at strengths at which every attacker was tried, first and last "
        "numbered; crosses: the cloud itself given away and attacked",
        (7.5, 6),
        _trade_off,
    ),
    "by-strength": (
        "Figures by strength (as 5.9 to 5.12), 95 % intervals shaded; dashed: clear projections, dotted: chance",
        (10, 18),
        _by_strength,
    ),
    "correlations": ("Correlations over all methods and strengths (as figure 5.14)", (6.5, 5.4), _correlations),
}
