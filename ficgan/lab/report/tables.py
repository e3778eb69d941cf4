"""Results as flat tables: the strongest attacker on each method, whether the controls hold, every figure in a row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ficgan.lab.metrics import METRICS
from ficgan.lab.metrics.privacy import WITHIN_KIND
from ficgan.lab.results import Figure, Results, Trial, Utility

Row = dict[str, Any]  # Column → number or text, or a tuple of lines

IDENTIFIES = "rank-1"  # The metric by which attackers and methods are ranked
# Trials that do not attempt a name: controls, what needs the key, other risks.
LEFT_OUT = frozenset({"right-key", "background-only", "clear", "constant", "attribute-inference", "linkability"})
CONTROL = "mean-face"  # An attacker that is itself a control
# The three risks of WP216 → the metric that measures each, or what its name begins with
RISKS = {"singling out": "singling-out", "linkability": "D_sys", "inference": "inference of"}
SHOWN = ("detected", "attributes-balanced", "smile-r")  # Utility figures beside the ranking; the utility table has all


@dataclass(frozen=True)
class Headline:
    """A method on a set, judged by its strongest attackers; figures are rank-1, and AUC within kind.

    What the replaced region gives away comes first. An attacker counts for it that sees nothing else (parrot-inside),
    or whose figure on the whole picture is clearly above what the surroundings alone give its judge. Where nobody
    looked at the region alone, the whole picture's figure is its bound from above.
    """

    set: str
    method: str
    trial: Trial | None  # The strongest attacker's on the whole picture; None where every attempt was refused
    region_trial: Trial | None  # The strongest attacker's on the region
    bound: bool  # The region's figure is that of the whole picture
    surroundings: Figure | None  # background-only, by the judge of the region's figure
    within_kind: Trial | None  # naive, by the judge of the highest AUC within kind
    utility: Utility | None  # None where it was not measured
    rank: int | None = None  # Methods that the intervals do not tell from the first of a rank share it

    @property
    def figure(self) -> Figure | None:
        return rank_of(self.trial)

    @property
    def region(self) -> Figure | None:
        return rank_of(self.region_trial)

    @property
    def within_kind_figure(self) -> Figure | None:
        return None if self.within_kind is None else self.within_kind.figure(WITHIN_KIND)


class Control(NamedTuple):
    """A trial whose outcome is known beforehand: the rank-1 found, the expected one in words, whether it holds."""

    set: str
    judge: str
    name: str
    value: float
    expected: str
    holds: bool


def headlines(results: Results) -> list[Headline]:
    """Of every method on every set, the best protected first."""
    return [head for name in results.sets for head in _ranked([_headline(results, name, m) for m in results.methods])]


def _headline(results: Results, name: str, method: str) -> Headline:
    surroundings = {t.recogniser: t for t in results.trials if (t.set, t.scenario) == (name, "background-only")}
    # Crops without surroundings
    whole = bool(surroundings) and all(trial.value(IDENTIFIES) is None for trial in surroundings.values())
    mine = [trial for trial in results.trials if (trial.set, trial.method) == (name, method)]
    attempts = [trial for trial in mine if _attempts(trial)]
    seeing = [trial for trial in mine if _sees_region(trial, surroundings.get(trial.recogniser))]
    region = strongest(seeing or attempts)
    return Headline(
        name,
        method,
        strongest(attempts),
        region,
        not seeing and not whole,
        None if region is None else rank_of(surroundings.get(region.recogniser)),
        strongest([trial for trial in mine if trial.scenario == "naive"], WITHIN_KIND),
        next((use for use in results.utilities if (use.set, use.method) == (name, method)), None),
    )


def _ranked(heads: Sequence[Headline]) -> list[Headline]:
    """Methods on one set with their ranks, the best first; who overlaps the first of a rank shares it."""
    rank, reach, out = 0, -1.0, list[Headline]()  # The present rank, and up to where its first one's interval goes
    for place, head in enumerate(sorted(heads, key=lambda head: (_known(head.region), _known(head.figure))), 1):
        found = head.region
        if found is not None and found.value is not None:
            if (found.value if found.low is None else found.low) > reach:
                rank, reach = place, found.value if found.high is None else found.high
            head = replace(head, rank=rank)
        out.append(head)
    # Within a rank by the AUC within kind; where it is not known, a method comes last.
    return sorted(out, key=lambda head: (head.rank or len(out) + 1, _known(head.within_kind_figure)))


def rank_of(trial: Trial | None) -> Figure | None:
    """Its rank-1."""
    return None if trial is None else trial.figure(IDENTIFIES)


def _known(found: Figure | None) -> float:
    """What methods are sorted by; unknown is not safe."""
    return float("inf") if found is None else found.value or 0.0


def strongest(trials: Iterable[Trial], metric: str = IDENTIFIES) -> Trial | None:
    """The trial whose figure is the highest; None where none has one."""
    return max((t for t in trials if t.value(metric) is not None), key=lambda t: t.value(metric) or 0.0, default=None)


def _attempts(trial: Trial) -> bool:
    open_world = trial.scenario not in LEFT_OUT and trial.attacker != "right key" and trial.control != "codes"
    return open_world and trial.value(IDENTIFIES) is not None


def _sees_region(trial: Trial, surroundings: Trial | None) -> bool:
    """Whether it looks at nothing but the region, or finds clearly more than the surroundings give its judge."""
    if trial.scenario == "parrot-inside":
        return trial.value(IDENTIFIES) is not None
    return _attempts(trial) and bool(above(rank_of(trial), rank_of(surroundings)))


def above(a: Figure | None, b: Figure | None) -> bool | None:
    """Whether the whole interval of a lies above b's; None where one has none."""
    return None if a is None or b is None or a.low is None or b.high is None else a.low > b.high


def controls(results: Results) -> list[Control]:
    """Ceilings, negative controls and right keys, and whether they came out as they must."""
    out = []
    ceilings = {(t.set, t.recogniser): t.value(IDENTIFIES) for t in results.trials if t.scenario == "clear"}
    for trial in results.trials:
        found, chance = rank_of(trial), trial.value("chance")
        if found is None or found.value is None:
            continue
        value, low = found.value, found.low
        name = trial.scenario if trial.method == "clear" else f"{trial.scenario}: {trial.method}"
        ceiling = ceilings.get((trial.set, trial.recogniser))
        expected, holds = "the ceiling", ceiling is not None and value >= 0.95 * ceiling
        if trial.control == "ceiling":
            expected = "at least ½, above chance"
            holds = value >= 0.5 and (low is None or chance is None or low > chance)
        elif trial.control == "negative":
            expected = "chance"
            holds = chance is None or abs(value - chance) < 1e-9 or (low is not None and low <= chance)
        elif trial.control != "positive":
            # An attacker that cannot undo a permutation was not competent to show that anything is irreversible.
            permutes = results.methods.get(trial.method, {}).get("name") == "block-permutation"
            reverses = trial.scenario in ("reversed-general", "reversed-specialised")
            if not (permutes and reverses) or trial.attacker.partition(":")[0] == CONTROL:
                continue
            name = f"{trial.attacker} on {trial.method}"
        out.append(Control(trial.set, trial.recogniser, name, value, expected, holds))
    return out


def ranking(heads: Sequence[Headline]) -> list[Row]:
    """Methods by what the replaced region gives away, of one rank by the AUC within kind, with what they leave."""
    useful = [m for m in SHOWN if any(head.utility and head.utility.value(m) is not None for head in heads)]
    rows = []
    for head in heads:
        region, kin = head.region_trial, head.within_kind
        if region is None and kin is None and head.trial is None:  # nobody attacked it
            continue
        row: Row = {"set": head.set, "rank": str(head.rank or ""), "method": head.method}
        if kin is not None and (found := head.within_kind_figure) is not None:
            naive = f"naive rank-1: {spelled(rank_of(kin))}".replace(" ", "\N{NO-BREAK SPACE}")
            row["within kind"] = (spelled(found), f"{kin.recogniser}, n = {found.n} images", naive)
        value = ("≤ " if head.bound and head.region else "") + spelled(head.region)
        row["replaced region"] = (value, _by(region), "" if head.region is None else f"n = {head.region.n}")
        row["surroundings alone"] = spelled(head.surroundings)
        row["whole picture"] = (spelled(head.figure), _by(head.trial))
        left = {} if head.utility is None else {metric: head.utility.figure(metric) for metric in useful}
        rows.append(row | {metric: spelled(each, interval=False) for metric, each in left.items() if each})
    return rows


def _by(trial: Trial | None) -> str:
    """Who attacked, and who judged."""
    return "" if trial is None else f"{attacker(trial)}, {trial.recogniser}"


def attacker(trial: Trial) -> str:
    """The scenario of a trial, and who attacked in it."""
    return ": ".join(filter(None, (trial.scenario, trial.attacker)))


def every_figure(results: Results) -> dict[str, list[Row]]:
    """Tables with a row for each figure: privacy, utility, and privacy by group of people."""
    privacy: list[Row] = []
    groups: list[Row] = []
    for trial in results.trials:
        cells = _trial_cells(trial)
        privacy += [{**cells, "control": trial.control, **vars(each)} for each in trial.figures]
        groups += [{**cells, "group": name, **vars(each)} for name, some in trial.groups.items() for each in some]
    utility = [{"set": use.set, "method": use.method, **vars(one)} for use in results.utilities for one in use.figures]
    return {"privacy": privacy, "utility": utility, "groups": groups}


def given_back(results: Results) -> list[Row]:
    """How alike guesses and clear faces are, by attacker and judge; faces not attacked come first."""
    rows = []
    for trial in results.trials:
        likeness = {name: spelled(found) for name in METRICS["reversal"] if (found := trial.figure(name))}
        rows += [{**_trial_cells(trial), **likeness}] if likeness else []
    return rows


def risks(results: Results) -> list[Row]:
    """The three risks of WP216 by method, the worst over attackers and judges; clear images on top."""
    rows = []
    for name in results.sets:
        for method in ("clear", *results.methods):
            # What needs the key is no risk of the method; of the clear images the ceiling is what there is.
            allowed = ("", "ceiling") if method == "clear" else ("",)
            mine = [trial for trial in results.trials if (trial.set, trial.method) == (name, method)]
            trials = [trial for trial in mine if trial.attacker != "right key" and trial.control in allowed]
            row: Row = {"set": name, "method": method}
            for risk, metric in RISKS.items():
                found = [
                    each
                    for trial in trials
                    if risk != "linkability" or trial.scenario == "linkability"
                    for each in trial.figures
                    if each.value is not None and (each.metric == metric or each.metric.startswith(f"{metric} "))
                ]
                row[risk] = _worst(found, risk)
            rows.append(row)
    return rows


def _worst(found: Sequence[Figure], risk: str) -> str:
    if not found:
        return "not measured"
    if risk != "inference":
        return spelled(max(found, key=lambda each: each.value or 0.0))
    worst = max(found, key=lambda each: abs((each.value or 0.5) - 0.5))  # Below ½ gives away as much
    return f"{spelled(worst)} ({worst.metric.removeprefix('inference of ')})"


def _trial_cells(trial: Trial) -> Row:
    names = ("set", "method", "scenario", "attacker")
    return {**{name: getattr(trial, name) for name in names}, "judge": trial.recogniser}


def spelled(each: Figure | None, *, interval: bool = True, factor: float = 1.0, digits: int | None = None) -> str:
    """A figure in a table, times `factor`: value and 95 % interval, or why there is none."""
    if each is None:
        return ""
    if each.value is None:
        return f"refused: {each.note}" if each.note else "refused"
    text = _short(factor * each.value, digits)
    if interval and each.low is not None and each.high is not None:
        text += f" [{_short(factor * each.low, digits)}, {_short(factor * each.high, digits)}]"
    return text


def _short(value: float, digits: int | None) -> str:
    """A number of so many decimals; None: three, and fewer from 10 on."""
    few = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 3
    return f"{value:.{few if digits is None else digits}f}"


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV; columns in the order in which they first appear, lines of a cell after semicolons."""
    out = io.StringIO()
    writer = csv.DictWriter(out, _columns(rows), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = {key: "; ".join(filter(None, v)) if isinstance(v, tuple) else v for key, v in row.items()}
        writer.writerow(cells)
    return out.getvalue()


def filled(rows: Iterable[Row]) -> list[Row]:
    """Rows of one table, each with the columns of all; a dash where it has nothing."""
    rows = list(rows)
    return [{column: row.get(column, "–") for column in _columns(rows)} for row in rows]


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(column for row in rows for column in row))
