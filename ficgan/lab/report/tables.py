"""Results as flat tables: one dictionary per row, which CSV files and pages show alike."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from ficgan.lab.report.headline import figure, headlines
from ficgan.lab.results import Figure, Results
from ficgan.lab.reversal import RETRIEVAL, REVERSAL

__all__ = [
    "Row", "given_back", "groups", "privacy", "ranking", "retrieved", "risks", "spelled", "to_csv", "to_markdown",
    "utility",
]  # fmt: skip

Row = dict[str, Any]
RISKS = {"singling out": "singling-out", "linkability": "D_sys", "inference": "inference of"}
"""The three risks of WP216 → the metric that measures each, or what its name begins with."""


def ranking(results: Results) -> list[Row]:
    """Methods by their strongest attacker, with what they leave to work with."""
    rows = []
    for one in headlines(results):
        trial = one.trial
        row: Row = {
            "set": one.set,
            "method": one.method,
            "strongest attacker": "" if trial is None else _attacker(trial.scenario, trial.attacker),
            "judge": "" if trial is None else trial.recogniser,
            "rank-1": spelled(one.figure),
            "clear": _short(one.ceiling),
            "surroundings": _short(one.surroundings),
            "square alone": _short(one.inside),
            "chance": _short(one.chance),
        }
        for name in SHOWN:
            found = None if one.utility is None else figure(one.utility.figures, name)
            if found is not None:
                row[name] = spelled(found, interval=False)
        rows.append(row)
    return rows


def _worst(found: Sequence[Figure], risk: str) -> str:
    if not found:
        return "not measured"
    if risk != "inference":
        return spelled(max(found, key=lambda one: one.value or 0.0))
    one = max(found, key=lambda one: abs((one.value or 0.5) - 0.5))  # below ½ tells as much
    return f"{spelled(one)} ({one.metric.removeprefix('inference of ')})"


SHOWN = ("detected", "attributes-balanced", "gender-kept", "smile-r", "landmarks", "ssim", "sharpness")
"""Utility figures of the first table; all are in the utility table."""


def privacy(results: Results) -> list[Row]:
    """Every privacy figure, one row each."""
    return [
        {
            "set": trial.set, "method": trial.method, "scenario": trial.scenario, "attacker": trial.attacker,
            "judge": trial.recogniser, "control": trial.control, **_columns(one),
        }
        for trial in results.trials
        for one in trial.figures
    ]  # fmt: skip


def utility(results: Results) -> list[Row]:
    """Every utility figure, one row each."""
    return [{"set": use.set, "method": use.method, **_columns(one)} for use in results.utilities for one in use.figures]


def given_back(results: Results) -> list[Row]:
    """How far what attackers give back resembles the clear faces, one row for each attacker and judge; what is
    anonymised and not attacked comes before.
    """
    return _by_attacker(results, [metric.name for metric in REVERSAL])


def retrieved(results: Results) -> list[Row]:
    """Names by vote of several guesses, and strangers told from enrolled people: a row for each attacker and judge."""
    return _by_attacker(results, ["chance", *(metric.name for metric in RETRIEVAL)], "IRA")


def _by_attacker(results: Results, metrics: Sequence[str], needed: str = "") -> list[Row]:
    """A row for each trial that has such figures (besides chance), a column for each metric that any trial has."""
    rows = []
    for trial in results.trials:
        found = {one.metric: one for one in trial.figures if one.metric in metrics}
        if not (needed in found if needed else found):
            continue
        row: Row = {
            "set": trial.set, "method": trial.method, "scenario": trial.scenario, "attacker": trial.attacker,
            "judge": trial.recogniser,
        }  # fmt: skip
        rows.append({**row, **{name: spelled(found[name]) for name in metrics if name in found}})
    return rows


def groups(results: Results) -> list[Row]:
    """Every figure of a group of people, one row each: privacy and utility."""
    rows = [
        {
            "set": trial.set, "method": trial.method, "scenario": trial.scenario, "attacker": trial.attacker,
            "judge": trial.recogniser, "group": group, **_columns(one),
        }
        for trial in results.trials
        for group, figures in trial.groups.items()
        for one in figures
    ]  # fmt: skip
    blank = {"scenario": "utility", "attacker": "", "judge": ""}
    rows += [
        {"set": use.set, "method": use.method, **blank, "group": group, **_columns(one)}
        for use in results.utilities
        for group, figures in use.groups.items()
        for one in figures
    ]
    return rows


def risks(results: Results) -> list[Row]:
    """The three risks of WP216 by method, the worst over attackers and judges; clear images on top."""
    rows = []
    for name in results.sets:
        for method in ("clear", *results.methods):
            here = [t for t in results.trials if t.set == name and t.method == method]
            row: Row = {"set": name, "method": method}
            for risk, metric in RISKS.items():
                # What needs the key is no risk of the method; of the clear images the ceiling is what there is.
                wanted = [t for t in here if t.scenario == "linkability"] if risk == "linkability" else here
                wanted = [
                    t
                    for t in wanted
                    if t.attacker != "right key" and (not t.control or (method == "clear" and t.control == "ceiling"))
                ]
                found = [
                    one
                    for trial in wanted
                    for one in trial.figures
                    if one.value is not None and (one.metric == metric or one.metric.startswith(f"{metric} "))
                ]
                row[risk] = _worst(found, risk)
            rows.append(row)
    return rows


def spelled(one: Figure | None, *, interval: bool = True) -> str:
    """A figure as a table says it: value and 95 % interval, or why there is none."""
    if one is None:
        return ""
    if one.value is None:
        return f"refused: {one.note}" if one.note else "refused"
    text = _short(one.value)
    if interval and one.low is not None and one.high is not None:
        text += f" [{_short(one.low)}, {_short(one.high)}]"
    return text


def to_csv(rows: Sequence[Row]) -> str:
    """Rows as CSV; columns in the order in which they first appear."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def to_markdown(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "-|" * len(columns)]
    cells = [[str(row.get(column, "")).replace("|", "/") for column in columns] for row in rows]
    lines += ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join(lines) + "\n"


def _columns(one: Figure) -> Row:
    return {
        "metric": one.metric, "value": one.value, "low": one.low, "high": one.high, "n": one.n, "unit": one.unit,
        "note": one.note,
    }  # fmt: skip


def _attacker(scenario: str, attacker: str) -> str:
    return f"{scenario}: {attacker}" if attacker else scenario


def _short(value: float | None) -> str:
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.3f}"


def one_per(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows by the values of some columns."""
    out: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        out.setdefault(tuple(row[name] for name in names), []).append(row)
    return out
