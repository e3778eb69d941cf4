"""Results as flat tables: the strongest attacker on each method, whether the controls hold, every figure in a row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ficgan.lab.metrics import METRICS
from ficgan.lab.metrics.privacy import WITHIN_KIND
from ficgan.lab.results import Figure, Results, Trial, Utility

Row = dict[str, Any]

IDENTIFIES = "rank-1"  # The metric by which attackers and methods are ranked
LEFT_OUT = frozenset(
    {"right-key", "background-only", "clear", "constant", "attribute-inference", "linkability"} | {"reversed-closed"}
)
"""Trials that do not attempt a name (controls, what needs the key, other risks), and closed worlds, whose attackers
have learnt from other photos of the victims: their figures stand apart."""
CONTROLS = ("mean-face", "identity")  # Attackers that are themselves controls
RISKS = {"singling out": "singling-out", "linkability": "D_sys", "inference": "inference of"}
"""The three risks of WP216 → the metric that measures each, or what its name begins with."""
SHOWN = ("detected", "attributes-balanced", "gender-kept", "smile-r", "landmarks", "ssim", "sharpness")
"""Utility figures of the first table; all are in the utility table."""
SHOWN_ON_PAGE = ("detected", "attributes-balanced", "smile-r")
"""Those of them that fit the page beside the ranking."""


def figure(figures: Iterable[Figure], metric: str) -> Figure | None:
    """The figure of that name, or None."""
    return next((each for each in figures if each.metric == metric), None)


def value_of(figures: Iterable[Figure], metric: str) -> float | None:
    """The value of the figure of that name, or None."""
    found = figure(figures, metric)
    return None if found is None else found.value


# -- headlines and controls -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Headline:
    """A method on a set, judged by its strongest attackers; figures are rank-1, and AUC within kind.

    What the replaced region gives away comes first. An attacker counts for it that sees nothing else (parrot-inside),
    or whose figure on the whole picture is clearly above what the surroundings alone give its judge. Where nobody
    looked at the region alone, the whole picture's figure is its bound from above.
    """

    set: str
    method: str
    trial: Trial | None  # the strongest attacker's on the whole picture; None where every attempt was refused
    region_trial: Trial | None  # the strongest attacker's on the region
    bound: bool  # the region's figure is that of the whole picture
    clear: Trial | None  # of clear probes, by the judge of the region's figure
    surroundings_trial: Trial | None  # background-only, by the judge of the region's figure
    utility: Utility | None  # None where it was not measured
    by_judge: tuple[Trial, ...] = ()  # the region's strongest attacker of each judge, the strongest first
    surroundings_by: tuple[Trial, ...] = ()  # background-only of each judge, the strongest first
    within_kind: tuple[Trial, ...] = ()  # naive of each judge that has the AUC within kind, the highest first
    rank: int | None = None  # methods that the intervals do not tell from the first of a rank share it

    @property
    def figure(self) -> Figure | None:
        return _of(self.trial)

    @property
    def region(self) -> Figure | None:
        return _of(self.region_trial)

    @property
    def surroundings(self) -> Figure | None:
        return _of(self.surroundings_trial)

    @property
    def ceiling(self) -> float | None:
        return None if self.clear is None else _rank(self.clear)

    @property
    def chance(self) -> float | None:
        return None if self.region_trial is None else value_of(self.region_trial.figures, "chance")


@dataclass(frozen=True)
class Control:
    """A trial whose outcome is known beforehand: the rank-1 found, the expected one in words, whether it holds."""

    set: str
    judge: str
    name: str
    value: float
    expected: str
    holds: bool


def headlines(results: Results) -> list[Headline]:
    """Of every method on every set, the best protected first."""
    out = []
    utilities = {(use.set, use.method): use for use in results.utilities}
    for name in results.sets:
        here = [trial for trial in results.trials if trial.set == name]
        alone = _strongest_first(trial for trial in here if trial.scenario == "background-only")
        for method in results.methods:
            mine = [trial for trial in here if trial.method == method]
            if not mine:
                continue  # a method of another evaluation that stands beside this one
            trial, region = _strongest(filter(_attempts, mine)), _of_region(mine, here)
            nowhere = region is None
            region = trial if nowhere else region
            judges = [[one for one in mine if one.recogniser == j] for j in dict.fromkeys(t.recogniser for t in mine)]
            seen = [_strongest(filter(_attempts, some)) if nowhere else _of_region(some, here) for some in judges]
            same = {one.scenario: one for one in reversed(here) if region and one.recogniser == region.recogniser}
            head = Headline(
                name,
                method,
                trial,
                region,
                nowhere and not _replaces_all(here),
                same.get("clear"),
                same.get("background-only"),
                utilities.get((name, method)),
                tuple(_strongest_first(one for one in seen if one is not None)),
                tuple(alone),
                _within_kind(mine),
            )
            out.append(head)
    order = list(results.sets)
    unknown = float("inf")  # not safe
    shown = ((head, [unknown if f is None else f.value or 0.0 for f in (head.region, head.figure)]) for head in out)
    out = [head for head, values in sorted(shown, key=lambda pair: (order.index(pair[0].set), pair[1]))]
    out = [replace(head, rank=rank) for head, rank in zip(out, _ranks(out), strict=True)]
    return sorted(out, key=lambda head: (order.index(head.set), head.rank or len(out) + 1, _kin(head)))


def _of(trial: Trial | None) -> Figure | None:
    return None if trial is None else figure(trial.figures, IDENTIFIES)


def _strongest_first(trials: Iterable[Trial]) -> list[Trial]:
    known = [trial for trial in trials if _rank(trial) is not None]
    return sorted(known, key=lambda trial: -(_rank(trial) or 0.0))


def _within_kind(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    naive = [(value_of(each.figures, WITHIN_KIND), each) for each in trials if each.scenario == "naive"]
    known = [(value, each) for value, each in naive if value is not None]
    return tuple(each for _, each in sorted(known, key=lambda pair: -pair[0]))


def _kin(head: Headline) -> float:
    """What orders methods of one rank: the AUC within kind; where it is not known, a method comes last."""
    value = value_of(head.within_kind[0].figures, WITHIN_KIND) if head.within_kind else None
    return float("inf") if value is None else value


def _strongest(trials: Iterable[Trial]) -> Trial | None:
    return max(trials, key=lambda each: _rank(each) or 0.0, default=None)


def _of_region(trials: Sequence[Trial], here: Sequence[Trial]) -> Trial | None:
    """The strongest of these that tells of the replaced region; None where nobody looked at it alone."""
    above = [each for each in trials if _attempts(each) and _above_surroundings(each, here)]
    return _strongest([*above, *filter(_sees_region, trials)])


def _sees_region(trial: Trial) -> bool:
    return trial.scenario == "parrot-inside" and _rank(trial) is not None


def _replaces_all(here: Iterable[Trial]) -> bool:
    """Whether the crops of a set have no surroundings: then the whole picture is the region."""
    alone = [_rank(trial) for trial in here if trial.scenario == "background-only"]
    return bool(alone) and all(value is None for value in alone)


def _above_surroundings(trial: Trial, here: Iterable[Trial]) -> bool:
    """Whether it finds clearly more than what surrounds the region gives its judge: the rest is of the region."""
    found = figure(trial.figures, IDENTIFIES)
    kin = (one for one in here if one.recogniser == trial.recogniser and one.scenario == "background-only")
    alone = _of(next(kin, None))
    if found is None or found.low is None or alone is None or alone.high is None:
        return False
    return found.low > alone.high


def _ranks(heads: Sequence[Headline]) -> list[int | None]:
    """Ranks of sorted headlines within their sets; who overlaps the first of a rank shares it. None: nothing known."""
    ranks: list[int | None] = []
    place, rank, reach = 0, 0, -1.0  # within the set; the present rank, and up to where its first one's interval goes
    for number, head in enumerate(heads):
        if number == 0 or head.set != heads[number - 1].set:
            place, rank, reach = 0, 0, -1.0
        place += 1
        found = head.region
        if found is None or found.value is None:
            ranks.append(None)
            continue
        if (found.value if found.low is None else found.low) > reach:
            rank, reach = place, found.value if found.high is None else found.high
        ranks.append(rank)
    return ranks


def _attempts(trial: Trial) -> bool:
    open_world = trial.scenario not in LEFT_OUT and trial.attacker != "right key" and trial.control != "codes"
    return open_world and _rank(trial) is not None


def _rank(trial: Trial) -> float | None:
    return value_of(trial.figures, IDENTIFIES)


def controls(results: Results) -> list[Control]:
    """Ceilings, negative controls and right keys, and whether they came out as they must."""
    out = []
    ceilings = {(t.set, t.recogniser): _rank(t) for t in results.trials if t.scenario == "clear"}
    for trial in results.trials:
        found, chance = figure(trial.figures, IDENTIFIES), value_of(trial.figures, "chance")
        if found is None or found.value is None:
            continue
        value = found.value
        ceiling = ceilings.get((trial.set, trial.recogniser))
        name = trial.scenario if trial.method == "clear" else f"{trial.scenario}: {trial.method}"
        expected, holds = "the ceiling", ceiling is not None and value >= 0.95 * ceiling
        if trial.control == "ceiling":
            above = found.low is None or chance is None or found.low > chance
            expected, holds = "at least ½, above chance", value >= 0.5 and above
        elif trial.control == "negative":
            reaches = found.low is not None and chance is not None and found.low <= chance
            expected, holds = "chance", chance is None or abs(value - chance) < 1e-9 or reaches
        elif trial.control != "positive":
            # An attacker that cannot undo a permutation was not competent to show that anything is irreversible.
            permutes = results.methods.get(trial.method, {}).get("name") == "block-permutation"
            reverses = trial.scenario in ("reversed-general", "reversed-specialised")
            if not (permutes and reverses) or trial.attacker.partition(":")[0] in CONTROLS:
                continue
            name = f"{trial.attacker} on {trial.method}"
        out.append(Control(trial.set, trial.recogniser, name, value, expected, holds))
    return out


# -- tables -----------------------------------------------------------------------------------------------------------


def ranking(results: Results) -> list[Row]:
    """Methods by what the replaced region gives away, of one rank by the AUC within kind, with what they leave."""
    rows = []
    for head in headlines(results):
        kin, region, trial = head.within_kind[:1], head.region_trial, head.trial
        row: Row = {"set": head.set, "rank": "" if head.rank is None else str(head.rank), "method": head.method}
        for one in kin:
            row |= {"within kind": _cell(one, WITHIN_KIND), "naive rank-1": _cell(one)}
            row["judge within kind"] = one.recogniser
            row |= {f"within kind, by {each.recogniser}": _cell(each, WITHIN_KIND) for each in head.within_kind}
        row |= {
            "replaced region": ("≤ " if head.bound and head.region else "") + spelled(head.region),
            "its attacker": _attacker(region),
            "its judge": "" if region is None else region.recogniser,
            "n": "" if head.region is None else str(head.region.n),
            "surroundings alone": spelled(head.surroundings),
            "whole picture": spelled(head.figure),
            "attacker": _attacker(trial),
            "judge": "" if trial is None else trial.recogniser,
            "clear": short(head.ceiling),
            "chance": short(head.chance),
        }
        for one in head.by_judge:
            row[f"replaced region, by {one.recogniser}"] = _cell(one)
            row[f"its attacker, by {one.recogniser}"] = _attacker(one)
        row |= {f"surroundings alone, by {one.recogniser}": _cell(one) for one in head.surroundings_by}
        row |= _useful(head, SHOWN)
        rows.append(row)
    return rows


def _useful(head: Headline, metrics: Iterable[str]) -> Row:
    found = {name: None if head.utility is None else figure(head.utility.figures, name) for name in metrics}
    return {name: spelled(one, interval=False) for name, one in found.items() if one is not None}


def ranking_to_read(heads: Sequence[Headline]) -> list[Row]:
    """The ranking for a page: who attacked stands below each figure, so that it fits a laptop's width; below the first
    three, also what the other judges find. Figures that no method has are left out.
    """

    def unbroken(trial: Trial, metric: str = IDENTIFIES) -> str:
        return _cell(trial, metric).replace(" ", "\N{NO-BREAK SPACE}")

    useful = [m for m in SHOWN_ON_PAGE if any(h.utility and value_of(h.utility.figures, m) is not None for h in heads)]
    rows = []
    for head in heads:
        region, row = head.region_trial, Row(rank="" if head.rank is None else str(head.rank), method=head.method)
        judge, attacker = ("", "") if region is None else (region.recogniser, _attacker(region))
        if head.within_kind:
            first, *rest = head.within_kind
            n = getattr(figure(first.figures, WITHIN_KIND), "n", "")
            lines = [f"{one.recogniser}: {unbroken(one, WITHIN_KIND)}" for one in rest]
            who, naive = f"{first.recogniser}, n = {n} images", f"naive rank-1: {unbroken(first)}"
            row["within kind"] = (_cell(first, WITHIN_KIND), who, *lines, naive)
        others = [
            f"{one.recogniser}: {unbroken(one)}" + (f", {_attacker(one)}" if _attacker(one) != attacker else "")
            for one in head.by_judge
            if one.recogniser != judge
        ]
        value = ("≤ " if head.bound and head.region else "") + spelled(head.region)
        row["replaced region"] = (value, _by(region, "" if head.region is None else head.region.n), *others)
        alone = [f"{one.recogniser}: {unbroken(one)}" for one in head.surroundings_by if one.recogniser != judge]
        row["surroundings alone"] = (spelled(head.surroundings), judge if head.surroundings else "", *alone)
        row["whole picture"] = (spelled(head.figure), _by(head.trial))
        rows.append(row | _useful(head, useful))
    return rows


def _by(trial: Trial | None, n: int | str = "") -> str:
    """Who attacked, who judged, and how many."""
    judge = "" if trial is None else trial.recogniser
    return ", ".join(filter(None, (_attacker(trial), judge, "" if n == "" else f"n = {n}")))


def _cell(trial: Trial, metric: str = IDENTIFIES) -> str:
    return spelled(figure(trial.figures, metric))


def _attacker(trial: Trial | None) -> str:
    return "" if trial is None else ": ".join(filter(None, (trial.scenario, trial.attacker)))


def privacy(results: Results) -> list[Row]:
    return [
        {**_trial_cells(trial), "control": trial.control, **_figure_cells(each)}
        for trial in results.trials
        for each in trial.figures
    ]


def utility(results: Results) -> list[Row]:
    return [
        {"set": use.set, "method": use.method, **_figure_cells(each)}
        for use in results.utilities
        for each in use.figures
    ]


def groups(results: Results) -> list[Row]:
    """Every figure of a group of people, one row each: privacy and utility."""
    blank = {"scenario": "utility", "attacker": "", "judge": ""}
    parts = [(_trial_cells(trial), trial.groups) for trial in results.trials]
    parts += [({"set": use.set, "method": use.method, **blank}, use.groups) for use in results.utilities]
    return [
        {**cells, "group": group, **_figure_cells(each)}
        for cells, by_group in parts
        for group, figures in by_group.items()
        for each in figures
    ]


def given_back(results: Results) -> list[Row]:
    """How alike guesses and clear faces are, by attacker and judge; faces not attacked come first."""
    rows = []
    for trial in results.trials:
        found = {each.metric: spelled(each) for each in trial.figures if each.metric in METRICS["reversal"]}
        if found:
            rows.append({**_trial_cells(trial), **{name: found[name] for name in METRICS["reversal"] if name in found}})
    return rows


def risks(results: Results) -> list[Row]:
    """The three risks of WP216 by method, the worst over attackers and judges; clear images on top."""
    rows = []
    for name in results.sets:
        for method in ("clear", *results.methods):
            row: Row = {"set": name, "method": method}
            for risk, metric in RISKS.items():
                # What needs the key is no risk of the method; of the clear images the ceiling is what there is.
                found = [
                    each
                    for trial in results.trials
                    if (trial.set, trial.method) == (name, method)
                    and (risk != "linkability" or trial.scenario == "linkability")
                    and trial.attacker != "right key"
                    and (not trial.control or (method == "clear" and trial.control == "ceiling"))
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
    worst = max(found, key=lambda each: abs((each.value or 0.5) - 0.5))  # below ½ tells as much
    return f"{spelled(worst)} ({worst.metric.removeprefix('inference of ')})"


def _trial_cells(trial: Trial) -> Row:
    return {
        "set": trial.set,
        "method": trial.method,
        "scenario": trial.scenario,
        "attacker": trial.attacker,
        "judge": trial.recogniser,
    }


def _figure_cells(each: Figure) -> Row:
    return {
        "metric": each.metric,
        "value": each.value,
        "low": each.low,
        "high": each.high,
        "n": each.n,
        "unit": each.unit,
        "note": each.note,
    }


# -- text -------------------------------------------------------------------------------------------------------------


def spelled(each: Figure | None, *, interval: bool = True, factor: float = 1.0, digits: int | None = None) -> str:
    """A figure in a table, times `factor`: value and 95 % interval, or why there is none."""
    if each is None:
        return ""
    if each.value is None:
        return f"refused: {each.note}" if each.note else "refused"
    text = short(factor * each.value, digits)
    if interval and each.low is not None and each.high is not None:
        text += f" [{short(factor * each.low, digits)}, {short(factor * each.high, digits)}]"
    return text


def short(value: float | None, digits: int | None = None) -> str:
    """A number of so many decimals; None: three, and fewer from 10 on."""
    if value is None:
        return ""
    few = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 3
    return f"{value:.{few if digits is None else digits}f}"


def to_csv(rows: Sequence[Row]) -> str:
    """Rows as CSV; columns in the order in which they first appear."""
    out = io.StringIO()
    writer = csv.DictWriter(out, _columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def to_markdown(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table."""
    columns = _columns(rows)
    lines = ["| " + " | ".join(columns) + " |", "|" + "-|" * len(columns)]
    cells = [[str(row.get(column, "")).replace("|", "/") for column in columns] for row in rows]
    lines += ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join(lines) + "\n"


def _columns(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(column for row in rows for column in row))
