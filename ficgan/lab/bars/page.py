"""The table as JSON and as a page of Markdown."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from ficgan.images import atomic_write
from ficgan.lab.bars.lines import Line
from ficgan.lab.bars.run import Report
from ficgan.lab.bars.table import BARS
from ficgan.lab.report.tables import spelled, to_markdown
from ficgan.lab.results import Figure

__all__ = ["SCHEMA", "counts", "missed", "to_json", "to_page", "write_bars"]

SCHEMA = 1
_ORDER = {bar.row: place for place, bar in enumerate(BARS)}
_READ = (
    "A figure is met or missed by its value; `?` says its 95 % interval (over people) reaches to the other side, or "
    "that it has none. *Sticker* is one colour-matched mean face pasted on everybody: it hides people and keeps "
    "nothing, so a model must beat it below the identity rows. *Control* says what the figure is to be read beside. "
    "Outputs are finished crops with the face blended in; recognisers read them at the source's landmarks. They are "
    "first attempts, but where a setting says that the policy was on: those are what leaves the program. Small sets: "
    "this says how software and model behave, and is no measure of privacy in the world."
)


def counts(report: Report) -> dict[str, int]:
    """Verdict → lines that have it."""
    return dict(Counter(line.verdict for line in report.sheet.lines))


def missed(report: Report) -> list[str]:
    """Every missed bar in a phrase, in the order of the table."""
    lines = [line for line in ordered(report.sheet.lines) if line.verdict == "missed"]
    return [", ".join(filter(None, (line.set, line.setting, line.row, line.judge))) for line in lines]


def to_json(report: Report) -> str:
    """Everything, for machines; numbers that are not finite are refused."""
    tree = {
        "schema": SCHEMA,
        **report.facts,
        "verdicts": counts(report),
        "lines": [line.to_dict() for line in ordered(report.sheet.lines)],
        "groups": report.sheet.groups,
        "left_out": report.sheet.left_out,
    }
    return json.dumps(tree, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def to_page(report: Report) -> str:
    """Tables for readers: one for each set, groups, and what was left out."""
    facts = report.facts
    told = ", ".join(f"{name} {number}" for name, number in sorted(counts(report).items()))
    out = ["# The model against its bars", "", _READ, "", f"Lines: {told}.", ""]
    out += [f"- {name}: {role}" for name, role in facts.get("judges", {}).items()]
    lines = ordered(report.sheet.lines)
    for name in dict.fromkeys(line.set for line in lines):
        out += ["", f"## {name}", "", *_about(facts.get("sets", {}).get(name)), ""]
        out.append(to_markdown([_row(line) for line in lines if line.set == name]))
    if report.sheet.groups:
        out += ["## By group", "", to_markdown([_group(row) for row in report.sheet.groups])]
    if report.sheet.left_out:
        out += ["## Left out", ""]
        out += [f"- {one['set'] or 'everywhere'}, {one['what']}: {one['why']}" for one in report.sheet.left_out]
    return "\n".join(out).rstrip() + "\n"


def write_bars(report: Report, folder: Path) -> list[Path]:
    """Write bars.json and bars.md, whole or not at all; what is there is replaced.

    Raises:
        InputError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in (("bars.json", to_json(report)), ("bars.md", to_page(report))):
        with atomic_write(folder / name, overwrite=True) as file:
            file.write(text.encode())
        paths.append(folder / name)
    return paths


def ordered(lines: list[Line]) -> list[Line]:
    """By set, then in the order of the bars, then as they came."""
    sets = {name: place for place, name in enumerate(dict.fromkeys(line.set for line in lines))}
    return sorted(lines, key=lambda line: (sets[line.set], _ORDER[line.row]))


def _row(line: Line) -> dict[str, Any]:
    control, had = line.control, line.value.value is not None
    doubt = "" if line.sure or line.verdict in ("no bar", "not measured") else "?"
    short = "" if line.short is None else f" by {line.short:.3g}"
    beside = line.judged(line.sticker)
    return {
        "row": line.bar.title,
        "bar": line.asked,
        "paper": line.bar.paper,
        "setting": line.setting,
        "judge": line.judge,
        "value": spelled(line.value) if had else f"not measured: {line.value.note}",
        "sticker": _short(line.sticker) + (f" ({beside})" if beside in ("met", "missed") else ""),
        "control": "" if control is None or not had else f"{_short(control.figure)}, {control.what}",
        "verdict": "" if line.verdict == "no bar" else f"{line.verdict}{short}{doubt}",
        "note": line.value.note if had else "",
    }


def _short(figure: Figure | None) -> str:
    return "" if figure is None or figure.value is None else spelled(figure, interval=False)


def _about(facts: dict[str, Any] | None) -> list[str]:
    if facts is None:
        return []
    licence = facts.get("licence") or "no licence is stated beside it"
    return [f"{facts['faces']} faces of {facts['people']} people; {licence}."]


def _group(row: dict[str, Any]) -> dict[str, Any]:
    return {key: f"{value[0]:.3f}" if isinstance(value, list) and value[0] is not None else value
            for key, value in row.items()}  # fmt: skip
