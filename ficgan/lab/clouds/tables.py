"""Tables of a study of clouds, made of its results alone, and the sentences that must be read with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ficgan.lab.clouds.figures import value_of
from ficgan.lab.clouds.reading import DISTORTION, Record
from ficgan.lab.clouds.treatments import INVERSES, Guesses, inverses
from ficgan.lab.results import Figure, Results, Trial

if TYPE_CHECKING:
    from ficgan.lab.clouds.study import CloudStudy

__all__ = [
    "CLEAR", "CLOUD", "CONSTANT", "IN_SPACE", "SURROUNDINGS", "attackers", "caveats", "controls", "every_figure",
    "geometry", "label", "needs_cloud", "parrot_of", "points", "short", "strongest", "summary", "tried_whole",
]  # fmt: skip

Row = dict[str, Any]
CLEAR, CONSTANT, SURROUNDINGS = "clear", "constant", "what lies around the face"
IN_SPACE = " (3D)"  # What the names of recognisers of shape end with, who need the cloud itself
CLOUD = " (cloud)"
"""What the names of figures end with that hold where the cloud itself is given away, not its projection alone."""
TRIED = 20
"""People on whom an attacker must have been tried to be anybody's strongest, where the study has more: so many has the
thesis' auto-encoder. The most of a few lucky guesses says nothing."""
_WHOLE = 20
"""Degree up to which an exact inverse brings everything back: at higher ones tapering flattens parts of the face, and
merged colours are rounded away."""
_NEAR = 0.05  # By which rank-1 may fall below that of clear faces
_AIM = 0.8  # Mean privacy at which methods are compared: the thesis' own reading of its trade-off (§5.3.3.1).
_FEW = 30  # People below which an AUC says nothing of the world
_THESIS_PEOPLE = 200
_SAME = 0.995  # Cosine above which two embeddings are of one picture


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
            "method": facts["name"], "degree": facts["settings"]["degree"], "parameter": facts["parameter"],
            "attacker": "" if worst is None else attacker_of(worst),
        }  # fmt: skip
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
        reached = {} if at is None else {
            f"at μ_privacy ≥ {_AIM:g}: degree": at["degree"],
            **{key: short(at[key]) for key in ("mu-privacy", "mu-utility", "AUC", "rank-1")},
        }  # fmt: skip
        out.append({
            "method": method, **reached, "most μ_privacy": short(best["mu-privacy"] if best else None),
            "against": "" if best is None else best["attacker"],
            "most μ_privacy of the cloud": short(max(_known(mine, "mu-privacy" + CLOUD), default=None)),
            "inverse tried": ", ".join(n for n, i in INVERSES.items() if i.method == method and n in tried) or "none",
            "seconds": short(float(np.mean(times)) if (times := _known(mine, "seconds")) else None),
        })  # fmt: skip
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
            out.append({
                "method": facts["name"], "degree": facts["settings"]["degree"], "set": trial.set,
                "attacker": attacker_of(trial), "needs": "the cloud" if needs_cloud(trial) else "its picture",
                **{name: _spelt(_figure(trial, name)) for name in ("rank-1", "AUC", "mu-privacy")},
            })  # fmt: skip
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
        out.append({
            "set": trial.set, "control": trial.method, "judge": attacker_of(trial), "AUC": short(area),
            "rank-1": short(first), "must be": expected, "holds": holds, "note": _figure(trial, "rank-1").note,
        })  # fmt: skip
    return out


def _inverse_trials(results: Results) -> list[Trial]:
    tried = [t for t in results.trials if t.scenario == "inverse" and INVERSES[t.attacker].exact]
    return [t for t in tried if results.methods[t.method]["settings"]["degree"] <= _WHOLE]


def every_figure(results: Results) -> list[Row]:
    """Every figure of every trial and of what is left, one a row."""
    both = [(t, attacker_of(t)) for t in results.trials] + [(use, "") for use in results.utilities]
    return [
        {"method": one.method, "set": one.set, "attacker": attacker, "metric": figure.metric, "value": figure.value,
         "low": figure.low, "high": figure.high, "n": figure.n, "unit": figure.unit, "note": figure.note}
        for one, attacker in both for figure in one.figures
    ]  # fmt: skip


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
    study: CloudStudy, results: Results, made: Mapping[str, Record], clear: Record, known: Record,
    guesses: Guesses | None,
) -> list[str]:  # fmt: skip
    """Sentences that stand before every table, of records [P,degrees] by method, and clear ones [P], [G]."""
    config, facts = study.config, next(iter(results.sets.values()))
    people, tried = facts["probe_people"], [INVERSES[name].says for name in inverses(config)]
    out = []
    if people < _FEW:
        out.append(
            f"{people} people are looked for among {facts['people']}: an AUC of so few is a smoke test of the "
            "software; nothing follows from it for the world."
        )
    elif people < _THESIS_PEOPLE:
        out.append(f"{people} people are looked for; the thesis had {_THESIS_PEOPLE}.")
    if facts["kind"] == "made heads":
        out.append(
            "The people are made by formulas: figures show how the software behaves, not how well real faces hide."
        )
    if facts["kind"] == "morphs of scans":
        out.append(
            "The people are morphs of a few scans and vary only as these do: they are more alike, and alike in other "
            "ways, than real people."
        )
    if facts["gallery_kind"] == "projections":
        out.append(
            "The gallery is the clear projection of another scan of each person, where the thesis has photos: drawing "
            "is the same on both sides, which helps the attacker."
        )
    out.append(
        "Clouds that have no colours are shaded from their normals before they are anonymised, and the shades move "
        "with the points as a scanner's colours would; they know the clear surface." if config.shade == "before" else
        "Clouds that have no colours are shaded from what is left of the surface after anonymisation."
    )  # fmt: skip
    out += _twins(study, clear, known) + _detection(study, made, clear, known)
    out.append(
        f"The judges ({', '.join(results.provenance['recognisers'])}; the thesis: ArcFace) and the detector "
        f"({results.provenance['detector']}; the thesis: RetinaFace) had no part in any method."
    )
    if tried:
        out.append(
            f"Recognisers read what is there, and after {'; '.join(tried)}. Attackers know the degree, as who tries "
            "all 35 does."
        )
    if study.parrots:
        icp = config.geometry is not None and "icp" in config.geometry.recognisers
        out.append(
            f"Parrots enrol the gallery under the same method and degree, with noise of its own, at degrees "
            f"{', '.join(map(str, config.costly_degrees))}{' (not icp)' if icp else ''}: between them a figure may be "
            "too kind; the table of methods leaves those out."
        )
    else:
        out.append("No parrot was tried: an attacker who enrols anonymised faces too may tell more.")
    if guesses is None:
        out.append("No attacker was trained.")
    else:
        out.append(
            "The thesis' auto-encoder is tried on people it did not learn from, against the whole gallery; where it "
            "does not help, another attacker still may."
        )
        if (count := guesses.record["people"]["tried on"]) < TRIED:
            out.append(
                f"It is tried on {count} people, too few for its luck to stand in a headline; its figures are among "
                "those of every attacker."
            )
    out.append(
        "The headline of a method at a degree is its strongest attacker's figure. What nobody here reversed may still "
        "be reversed by another."
    )
    out += _about_clouds(results)
    timed = max(int(np.isfinite(record["seconds"]).any(axis=1).sum()) for record in made.values())
    if timed:
        others = results.provenance["jobs"] - 1
        out.append(
            f"Times are of one anonymisation alone on {_count(timed, 'cloud', 'clouds')}, beside "
            f"{_count(others, 'other process', 'other processes')}, in the last run; they compare methods alone."
        )
    if "pmp" in config.methods and min(config.degrees) < 3:
        out.append("The thesis leaves degrees 1 and 2 of pmp out, full of holes as they are; they are shown here.")
    return out


def _about_clouds(results: Results) -> list[str]:
    main = next(iter(results.sets), "")
    shapes = [t.set for t in results.trials if t.recogniser.endswith(IN_SPACE)]
    who = ["recognisers of shape"] if main in shapes else []
    who += ["inverses of methods"] if any(t.scenario == "inverse" for t in results.trials) else []
    out = []
    if who:
        out.append(
            f"The cloud itself is attacked by {' and '.join(who)}, some of them at some degrees only; that stands "
            "apart (“cloud”), for whoever gives clouds away. All others are of projections, as in the thesis."
        )
    if not shapes:
        out.append("No recogniser of shape attacks: what a cloud tells besides its picture is not measured here.")
    elif main not in shapes:
        out.append("Recognisers of shape know fewer people than the others: their figures are no part of any headline.")
    return out


def _count(number: int, single: str, many: str) -> str:
    return f"{number} {single if number == 1 else many}"


def _twins(study: CloudStudy, clear: Record, known: Record) -> list[str]:
    alike = 0
    for reader in study.judges.readers:
        probes, gallery = (record[f"by {reader.name}"].astype(np.float64) for record in (clear, known))
        cosines = probes @ gallery.T / np.outer(*(np.linalg.norm(x, axis=1).clip(1e-12) for x in (probes, gallery)))
        alike = max(alike, int((cosines.max(axis=1) > _SAME).sum()))
    if not alike:
        return []
    return [
        f"{_count(alike, 'clear probe is', 'clear probes are')} all but the picture that is enrolled: who knows a "
        "picture again need not know a person. Give the gallery another scan or photo."
    ]


def _detection(study: CloudStudy, made: Mapping[str, Record], clear: Record, known: Record) -> list[str]:
    found, there = (np.concatenate([record[name].ravel() for record in made.values()]) for name in ("found", "made"))
    where = "as if the whole image were a face, as in the thesis"
    if study.config.undetected == "template" and study.template is not None:
        where = "at the place where faces lie in clear projections (a miss of the detector is no privacy)"
    lost = f"In {(~found).sum()} of {found.size} anonymised projections no face was found"
    out = [f"{lost}; recognisers read them {where}."]
    missed, unread = int((~clear["found"]).sum()), int((~known["found"]).sum())
    if missed or unread:
        out.append(
            f"In {missed} of {len(clear)} clear projections and {unread} gallery images no face was found; they are "
            "read likewise, and count as not detected."
        )
    if failed := int((~there).sum()):
        out.append(f"Of {failed} clouds a method made nothing at its degree; these are not compared with anybody.")
    return out
