"""Figures of the study of point clouds, and the tables made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.lab.clouds.sets import CloudStudyConfig
from ficgan.lab.clouds.study import DISTORTION, INVERSES, Record, inverses
from ficgan.lab.metrics import Bootstrap, Sample
from ficgan.lab.metrics.pictures import box_iou, frechet_distance, frechet_floor, landmark_distance
from ficgan.lab.metrics.privacy import auc, eer, leak, rank
from ficgan.lab.metrics.scores import Scores
from ficgan.lab.report.tables import value_of
from ficgan.lab.results import Figure, Results, Trial, Utility, note_texts, notes

if TYPE_CHECKING:
    from ficgan.lab.clouds.autoencoder import CloudGuesses
    from ficgan.lab.clouds.study import CloudStudy

METRICS: dict[str, str] = note_texts("cloud figures")
UNITS: dict[str, str] = {
    "landmark-distance": "px",
    "seconds": "s",
    "seconds-sd": "s",
    "chamfer": "mm",
    "normal-error": "°",
    "curvature-error": "1/m",
}


def mu_privacy(area: float, first: float) -> float:
    """Mean privacy of an AUC (at least ½) and a rank-1; 1 is best (point-cloud thesis, eq. 5.1)."""
    return 1 - (max(0.0, 2 * (area - 0.5)) + first) / 2


def mu_utility(detected: float, likeness: float) -> float:
    """Mean utility of a delta detection and an SSIM; 1 is best (point-cloud thesis, eq. 5.2)."""
    return (detected + likeness) / 2


def privacy(scores: Scores, found: NDArray[np.bool_] | None, bootstrap: Bootstrap) -> tuple[Figure, ...]:
    """AUC, EER, leak, rank-1 and their mean of eq. 5.1, with and without failures as misses.

    `found` [P] is whether the detector found a face; None: none was looked for.
    """
    area, first = auc(scores, bootstrap=bootstrap), rank(scores, 1, bootstrap=bootstrap)
    out = [area, eer(scores, bootstrap=bootstrap), leak(scores, bootstrap=bootstrap), first]
    if not scores.acquired.all():
        out.append(rank(scores, 1, failures=True, bootstrap=bootstrap))
    mean = Figure("mu-privacy", None, unit="clouds", note=area.note or first.note)
    if area.value is not None and first.value is not None:
        mean = Figure("mu-privacy", mu_privacy(area.value, first.value), n=first.n, unit=first.unit)
        if area.low is not None and area.high is not None and first.low is not None and first.high is not None:
            mean = replace(mean, low=mu_privacy(area.high, first.high), high=mu_privacy(area.low, first.low))
    missed = () if found is None else (Sample(scores.people, bootstrap, "clouds").share("failures to acquire", ~found),)
    return (*out, mean, *missed)


def utility(
    clear: Record,
    made: Record,
    seconds: NDArray[np.float64],
    sample: Sample,
    config: CloudStudyConfig,
    *,
    name: str,
    method: str,
) -> Utility:
    """What a method left at one degree, of records [P] of clear and anonymised projections and times [P]."""
    overlap = np.nan_to_num(box_iou(clear["box"], made["box"]), nan=0.0)
    known, count = clear["found"], len(made)
    base, lost = float(known.mean()), int((~made["made"]).sum())
    note = f"{base:.3f} of the clear projections"
    if lost:
        note += f"; of {lost} clouds nothing could be made, and the outer part alone was projected"
    detected = sample.share("delta-detection", known & made["found"] & (overlap >= config.iou), note)
    ssim, miss = sample.mean("ssim", made["ssim"]), config.miss
    figures = [
        detected,
        Figure("detection-drop", base - (detected.value or 0.0), n=count, unit="clouds"),
        sample.mean("box-iou", np.where(known, overlap, np.nan)),
        sample.median("landmark-distance", landmark_distances(clear, made, miss), f"{miss:g} px where no face is"),
        ssim,
        _frechet(clear, made, sample),
        sample.mean("seconds", seconds),
    ]
    if np.isfinite(seconds).any():
        timed = int(np.isfinite(seconds).sum())
        figures.append(Figure("seconds-sd", float(np.nanstd(seconds)), n=timed, unit="clouds"))
    if ssim.value is None or detected.value is None:
        figures.append(sample.none("mu-utility", "there is no SSIM"))
    else:
        figures.append(Figure("mu-utility", mu_utility(detected.value, ssim.value), n=count, unit="clouds"))
    return Utility(name, method, tuple(figures))


def distortion(record: Record, sample: Sample) -> tuple[Figure, ...]:
    """Mean distortion in space of the clouds of which something could be made."""
    return tuple(sample.mean(name, np.where(record["made"], record[name], np.nan)) for name in DISTORTION)


def landmark_distances(clear: Record, made: Record, miss: float) -> NDArray[np.float64]:
    """[P] mean distance of five landmarks, pixels; `miss` where a face is not found, NaN where the clear one is not."""
    apart = landmark_distance(clear["marks"], made["marks"])
    return np.where(clear["found"], np.where(made["found"], apart, miss), np.nan)


def _frechet(clear: Record, made: Record, sample: Sample) -> Figure:
    name = "fd-squeezenet"
    if "features" not in (made.dtype.names or ()):
        return sample.none(name, "squeezenet11_features.onnx is in none of the model folders ($FICGAN_MODELS)")
    if len(made) < 4:
        return sample.none(name, f"{len(made)} projections are too few")
    x, y = (np.asarray(record["features"], np.float64) for record in (clear, made))
    note = f"two halves of the clear projections are {frechet_floor(x):.3g} apart"
    return Figure(name, frechet_distance(x, y), n=len(made), unit="clouds", note=note)


Row = dict[str, Any]
CLEAR, CONSTANT, SURROUNDINGS = "clear", "constant", "what lies around the face"
IN_SPACE = " (3D)"  # what the names of recognisers of shape end with, who need the cloud itself
CLOUD = " (cloud)"  # what the names of figures end with that hold where the cloud itself is given away
TRIED = 20  # people on whom an attacker must have been tried to be anybody's strongest, where the study has more
_WHOLE = 20  # degree up to which an exact inverse brings everything back
_NEAR = 0.05  # by which rank-1 may fall below that of clear faces
_AIM = 0.8  # mean privacy at which methods are compared (thesis, §5.3.3.1)
_FEW = 30  # people below which an AUC says nothing of the world
_THESIS_PEOPLE = 200


def label(method: str, degree: int) -> str:
    return f"{method} {degree}"


def parrot_of(attacker: str) -> str:
    """Attacker of a trial in which the gallery was anonymised, and treated as the probes were."""
    return f"parrot, {attacker}" if attacker else "parrot"


def needs_cloud(trial: Trial) -> bool:
    """Whether an attacker must have the cloud itself, and not its projection alone."""
    return trial.recogniser.endswith(IN_SPACE) or trial.attacker.rpartition(", ")[2] in INVERSES


def strongest(results: Results, method: str, *, cloud: bool = False) -> Trial | None:
    """Of the trials of a method at a degree, on all people, the one that leaves the least mean privacy.

    `cloud` True: the cloud itself is published, so recognisers of shape and inverses attack too; else projections
    alone.
    """
    main = next(iter(results.sets), "")
    least = min(TRIED, results.sets[main].get("probe_people", 0)) if main else 0
    tried = [t for t in results.trials if t.method == method and t.set == main and not t.control]
    tried = [t for t in tried if t.scenario != "reversed" or _figure(t, "rank-1").n >= least]
    if cloud and not any(map(needs_cloud, tried)):
        return None
    known = [(value, t) for t in tried if cloud or not needs_cloud(t) for value in [value_of(t.figures, "mu-privacy")]]
    return min(((value, t) for value, t in known if value is not None), key=lambda pair: pair[0], default=(0, None))[1]


def points(results: Results) -> list[Row]:
    """A row for each method at each degree: its strongest attacker's figures, and what is left."""
    left = {use.method: use.figures for use in results.utilities}
    rows = []
    for name, facts in results.methods.items():
        worst, known = strongest(results, name), strongest(results, name, cloud=True)
        row: Row = {
            "method": facts["name"],
            "degree": facts["settings"]["degree"],
            "parameter": facts["parameter"],
            "attacker": "" if worst is None else attacker_of(worst),
        }
        for metric in ("AUC", "rank-1", "EER", "leak", "mu-privacy"):
            row |= _spread(Figure(metric, None) if worst is None else _figure(worst, metric))
        if known is not None:
            row["attacker" + CLOUD] = attacker_of(known)
            row |= {metric + CLOUD: value_of(known.figures, metric) for metric in ("AUC", "rank-1", "mu-privacy")}
        for figure in left.get(name, ()):
            row |= _spread(figure)
        rows.append(row)
    return rows


def summary(results: Results) -> list[Row]:
    """A row for each method: the degree that passes a mean privacy of .8 and leaves most utility, and the extremes."""
    out = []
    whole, tried = tried_whole(results), {t.attacker for t in results.trials if t.scenario == "inverse"}
    rows = [row for row in points(results) if row["degree"] in whole]
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method and row["mu-privacy"] is not None]
        hidden = [row for row in mine if row["mu-privacy"] >= _AIM and row.get("mu-utility") is not None]
        best = max(mine, key=lambda row: row["mu-privacy"], default=None)
        at = max(hidden, key=lambda row: row["mu-utility"], default=None)
        reached = (
            {}
            if at is None
            else {
                f"at μ_privacy ≥ {_AIM:g}: degree": at["degree"],
                **{key: short(at[key]) for key in ("mu-privacy", "mu-utility", "AUC", "rank-1")},
            }
        )
        out.append(
            {
                "method": method,
                **reached,
                "most μ_privacy": short(best["mu-privacy"] if best else None),
                "against": "" if best is None else best["attacker"],
                "most μ_privacy of the cloud": short(max(_known(mine, "mu-privacy" + CLOUD), default=None)),
                "inverse tried": ", ".join(n for n, i in INVERSES.items() if i.method == method and n in tried)
                or "none",
                "seconds": short(float(np.mean(times)) if (times := _known(mine, "seconds")) else None),
            }
        )
    return out


def tried_whole(results: Results) -> list[int]:
    """Degrees at which the costly attackers were tried too; all, where there are none."""
    degree = {name: facts["settings"]["degree"] for name, facts in results.methods.items()}
    costly = [t for t in results.trials if t.scenario == "parrot" or t.recogniser.endswith(IN_SPACE)]
    return sorted({degree[t.method] for t in costly if t.method in degree} or set(degree.values()))


def attackers(results: Results) -> list[Row]:
    """A row for each attacker of a method at a degree."""
    out = []
    for trial in results.trials:
        facts = results.methods.get(trial.method)
        if facts is not None and not trial.control:
            out.append(
                {
                    "method": facts["name"],
                    "degree": facts["settings"]["degree"],
                    "set": trial.set,
                    "attacker": attacker_of(trial),
                    "needs": "the cloud" if needs_cloud(trial) else "its picture",
                    **{name: _spelt(_figure(trial, name)) for name in ("rank-1", "AUC", "mu-privacy")},
                }
            )
    return sorted(out, key=lambda row: (row["method"], row["degree"]))


def geometry(results: Results) -> list[Row]:
    names = ("method", "degree", *DISTORTION)
    return [{n: short(row.get(n)) for n in names} for row in points(results) if row.get(DISTORTION[0]) is not None]


def controls(results: Results) -> list[Row]:
    """Trials whose outcome is known beforehand: exact inverses up to the degree at which nothing is lost."""
    exact: dict[Any, Trial] = {}
    for trial in sorted(_inverse_trials(results), key=lambda t: results.methods[t.method]["settings"]["degree"]):
        exact[trial.set, trial.attacker, trial.recogniser] = trial
    out = []
    for trial in [*(t for t in results.trials if t.control), *exact.values()]:
        area, first = value_of(trial.figures, "AUC"), value_of(trial.figures, "rank-1")
        expected, holds = "no bar: every method leaves it clear", None
        if trial.control == "ceiling":
            expected, holds = "AUC above .9", area is not None and area > 0.9
        elif trial.control == "negative":
            people = results.sets[trial.set]["probe_people"]
            expected, holds = "one name for everybody", first is not None and first <= 1 / people + 1e-9
        elif not trial.control:
            like = (t for t in results.trials if (t.set, t.recogniser) == (trial.set, trial.recogniser))
            clear = next((value_of(t.figures, "rank-1") for t in like if t.control == "ceiling"), None)
            expected = f"as of clear faces, rank-1 {short(clear)}"
            holds = clear is not None and first is not None and first >= clear - _NEAR
        out.append(
            {
                "set": trial.set,
                "control": trial.method,
                "judge": attacker_of(trial),
                "AUC": short(area),
                "rank-1": short(first),
                "must be": expected,
                "holds": holds,
                "note": _figure(trial, "rank-1").note,
            }
        )
    return out


def _inverse_trials(results: Results) -> list[Trial]:
    tried = [t for t in results.trials if t.scenario == "inverse" and INVERSES[t.attacker].exact]
    return [t for t in tried if results.methods[t.method]["settings"]["degree"] <= _WHOLE]


def every_figure(results: Results) -> list[Row]:
    """Every figure of every trial and of what is left, one a row."""
    both = [(t, attacker_of(t)) for t in results.trials] + [(use, "") for use in results.utilities]
    return [
        {
            "method": one.method,
            "set": one.set,
            "attacker": attacker,
            "metric": figure.metric,
            "value": figure.value,
            "low": figure.low,
            "high": figure.high,
            "n": figure.n,
            "unit": figure.unit,
            "note": figure.note,
        }
        for one, attacker in both
        for figure in one.figures
    ]


def attacker_of(trial: Trial) -> str:
    return f"{trial.attacker} + {trial.recogniser}" if trial.attacker else trial.recogniser


def short(value: Any) -> str:
    return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _figure(trial: Trial, metric: str) -> Figure:
    return next((figure for figure in trial.figures if figure.metric == metric), Figure(metric, None))


def _known(rows: Iterable[Row], name: str) -> list[float]:
    return [row[name] for row in rows if row.get(name) is not None]


def _spread(figure: Figure) -> Row:
    row = {figure.metric: figure.value}
    if figure.low is not None:
        row |= {f"{figure.metric} low": figure.low, f"{figure.metric} high": figure.high}
    return row


def _spelt(figure: Figure) -> str:
    interval = "" if figure.low is None else f" [{short(figure.low)}, {short(figure.high)}]"
    return short(figure.value) + interval


# -- caveats ----------------------------------------------------------------------------------------------------------


def caveats(
    study: CloudStudy,
    results: Results,
    made: Mapping[str, Record],
    clear: Record,
    known: Record,
    guesses: CloudGuesses | None,
) -> list[str]:
    """Sentences that stand before every table, of records [P,degrees] by method, and clear ones [P], [G]."""
    config, facts, provenance = study.config, next(iter(results.sets.values())), results.provenance
    people, tried = facts["probe_people"], [INVERSES[name].note for name in inverses(config)]
    found, there = (np.concatenate([record[name].ravel() for record in made.values()]) for name in ("found", "made"))
    missed, unread = (int((~record["found"]).sum()) for record in (clear, known))
    failed, parrots = int((~there).sum()), config.parrot and bool(study.clouds.gallery)
    kinds = (facts["kind"], facts["gallery_kind"], config.shade)
    holds = {"few": people < _FEW, "fewer": _FEW <= people < _THESIS_PEOPLE}
    holds |= {kind: kind in kinds for kind in ("made heads", "projections", "before", "after")}
    holds |= {
        "lost": True,
        "missed": missed + unread > 0,
        "failed": failed > 0,
        "judges": True,
        "inverses": bool(tried),
        "parrots": parrots,
        "no parrots": not parrots,
        "untrained": guesses is None,
        "trained": guesses is not None,
        "headline": True,
        "cloud": bool(tried) or config.geometry is not None,
        "times": config.timed > 0,
    }
    return notes(
        "clouds",
        holds,
        people=people,
        facts=facts,
        thesis=_THESIS_PEOPLE,
        lost=int((~found).sum()),
        all=found.size,
        missed=missed,
        unread=unread,
        clear=len(clear),
        failed=failed,
        inverses="; ".join(tried),
        recognisers=", ".join(provenance["recognisers"]),
        detector=provenance["detector"],
        tried_on=0 if guesses is None else guesses.record["people"]["tried on"],
        costly=", ".join(map(str, config.costly_degrees)),
        undetected=config.undetected,
    )
