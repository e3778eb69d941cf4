"""The table of bars: what is asked of each figure, what was found, as JSON and as a page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from ficgan.lab.pages import write_file
from ficgan.lab.report.tables import spelled, to_markdown
from ficgan.lab.results import Figure

SCHEMA = 1
STRANGERS = "same-group strangers"  # A measured bar is the figure of these
Verdict = Literal["met", "missed", "no bar", "not measured"]
Key = tuple[str, str]  # Row and judge
Figures = dict[Key, Figure]


@dataclass(frozen=True)
class Bar:
    """One row of `bars.yaml`."""

    title: str
    least: float | None = None
    most: float | None = None
    least_photos: float | None = None
    most_photos: float | None = None
    measured: bool = False
    paper: str = ""

    def limits(self, control: float | None, photos: bool = False) -> tuple[float | None, float | None]:
        """Least and most; a measured bar whose control was not measured allows anything."""
        if self.measured:
            return None, control
        least = self.least_photos if photos and self.least_photos is not None else self.least
        return least, self.most_photos if photos and self.most_photos is not None else self.most


_TEXT = files("ficgan.lab.bars").joinpath("bars.yaml").read_text("utf-8")
BARS: dict[str, Bar] = {row: Bar(**limits) for row, limits in yaml.safe_load(_TEXT).items()}


@dataclass(frozen=True)
class Control:
    """A figure that another one is to be read beside, and what it is of."""

    what: str
    figure: Figure


Controls = Mapping[Key, Control]


@dataclass(frozen=True)
class Line:
    """One figure of one setting on one set, with the average-face sticker's and a control."""

    set: str
    row: str
    setting: str
    judge: str
    value: Figure
    sticker: Figure | None = None
    control: Control | None = None
    photos: bool = False

    @property
    def bar(self) -> Bar:
        return BARS[self.row]

    @property
    def limits(self) -> tuple[float | None, float | None]:
        return self.bar.limits(None if self.control is None else self.control.figure.value, self.photos)

    @property
    def asked(self) -> str:
        least, most = self.limits
        if self.bar.measured:
            return f"≤ {STRANGERS}" if most is None else f"≤ {most:.3g} ({STRANGERS})"
        if least is not None and most is not None:
            return f"{least:g}–{most:g}"
        return f"≥ {least:g}" if least is not None else "" if most is None else f"≤ {most:.3g}"

    @property
    def verdict(self) -> Verdict:
        """By the value alone; `sure` looks at the interval."""
        return self.judged(self.value)

    def judged(self, figure: Figure | None) -> Verdict:
        """The verdict that any figure, such as the sticker's, would have here."""
        if figure is None or figure.value is None:
            return "not measured"
        if self.limits == (None, None):
            return "not measured" if self.bar.measured else "no bar"
        return "missed" if self._excess(figure.value) else "met"

    @property
    def sure(self) -> bool:
        """Whether the whole interval lies on the verdict's side; false where there is no interval."""
        low, high = self.value.low, self.value.high
        if self.verdict not in ("met", "missed") or low is None or high is None:
            return False
        sides = {np.sign(self._excess(value)) for value in (low, high)}
        return sides == {0.0} if self.verdict == "met" else sides in ({1.0}, {-1.0})

    @property
    def short(self) -> float | None:
        """By how much the bar is missed, in the figure's own unit; None where it is not."""
        return abs(self._excess(self.value.value or 0.0)) if self.verdict == "missed" else None

    def to_dict(self) -> dict[str, Any]:
        least, most = self.limits
        sticker, control = self.sticker, self.control
        return {
            "set": self.set,
            "row": self.row,
            "title": self.bar.title,
            "setting": self.setting,
            "judge": self.judge,
            "bar": {"least": least, "most": most, "measured": self.bar.measured, "paper": self.bar.paper},
            **_plain(self.value),
            "sticker": None if sticker is None else {**_plain(sticker), "verdict": self.judged(sticker)},
            "control": None if control is None else {"what": control.what, **_plain(control.figure)},
            "verdict": self.verdict,
            "sure": self.sure,
            "short": self.short,
        }

    def cells(self) -> dict[str, Any]:
        """The line of a page."""
        control, measured, sticker = self.control, self.value.value is not None, self.judged(self.sticker)
        doubt = "" if self.sure or self.verdict in ("no bar", "not measured") else "?"
        short = "" if self.short is None else f" by {self.short:.3g}"
        beside = control is not None and measured
        return {
            "row": self.bar.title,
            "bar": self.asked,
            "paper": self.bar.paper,
            "setting": self.setting,
            "judge": self.judge,
            "value": spelled(self.value) if measured else f"not measured: {self.value.note}",
            "sticker": _value(self.sticker) + (f" ({sticker})" if sticker in ("met", "missed") else ""),
            "control": f"{_value(control.figure)}, {control.what}" if control is not None and beside else "",
            "verdict": "" if self.verdict == "no bar" else f"{self.verdict}{short}{doubt}",
            "note": self.value.note if measured else "",
        }

    def _excess(self, value: float) -> float:
        least, most = self.limits
        if least is not None and value < least:
            return value - least
        return max(0.0, value - most) if most is not None else 0.0


_HOW_TO_READ = (
    "A figure is met or missed by its value; `?` says its 95 % interval (over people) reaches to the other side, or "
    "that it has none. *Sticker* is one colour-matched mean face pasted on everybody: it hides people and keeps "
    "nothing, so a model must beat it below the identity rows. *Control* says what the figure is to be read beside. "
    "Outputs are finished crops with the face blended in; recognisers read them at the source's landmarks. They are "
    "first attempts, but where a setting says that the policy was on: those are what leaves the program. Small sets: "
    "this says how software and model behave, and is no measure of privacy in the world."
)


@dataclass
class Sheet:
    """What was found: lines as they came, flat rows by group, what was left out and why, and facts."""

    found: list[Line] = field(default_factory=list)
    left_out: list[dict[str, str]] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def put(
        self,
        name: str,
        setting: str,
        figures: Figures,
        sticker: Mapping[Key, Figure] | None = None,
        controls: Controls | None = None,
        photos: bool = False,
    ) -> None:
        """Add a line for each figure, with the sticker's and the control of the same row and judge."""
        for (row, judge), value in figures.items():
            beside, control = (sticker or {}).get((row, judge)), (controls or {}).get((row, judge))
            self.found.append(Line(name, row, setting, judge, value, beside, control, photos))

    def leave_out(self, name: str, what: str, why: str) -> None:
        self.left_out.append({"set": name, "what": what, "why": why})

    @property
    def lines(self) -> list[Line]:
        """By set and in the order of the rows."""
        sets, rows = list(dict.fromkeys(line.set for line in self.found)), list(BARS)
        return sorted(self.found, key=lambda line: (sets.index(line.set), rows.index(line.row)))

    @property
    def verdicts(self) -> dict[str, int]:
        """Verdict → lines that have it."""
        return dict(Counter(line.verdict for line in self.found))

    @property
    def missed(self) -> list[str]:
        lines = [line for line in self.lines if line.verdict == "missed"]
        return [", ".join(filter(None, (line.set, line.setting, line.row, line.judge))) for line in lines]

    def to_json(self) -> str:
        """Everything, for machines; numbers that are not finite are refused."""
        tree = {
            "schema": SCHEMA,
            **self.facts,
            "verdicts": self.verdicts,
            "lines": [line.to_dict() for line in self.lines],
            "groups": self.groups,
            "left_out": self.left_out,
        }
        return json.dumps(tree, indent=1, allow_nan=False, ensure_ascii=False) + "\n"

    def to_page(self) -> str:
        """Tables for readers: one for each set, groups, and what was left out."""
        lines = self.lines
        counted = ", ".join(f"{name} {number}" for name, number in sorted(self.verdicts.items()))
        out = ["# The model against its bars", "", _HOW_TO_READ, "", f"Lines: {counted}.", ""]
        out += [f"- {name}: {role}" for name, role in self.facts.get("judges", {}).items()]
        for name in dict.fromkeys(line.set for line in lines):
            out += ["", f"## {name}", ""]
            if (about := self.facts.get("sets", {}).get(name)) is not None:
                licence = about.get("licence") or "no licence is stated beside it"
                out.append(f"{about['faces']} faces of {about['people']} people; {licence}.")
            out += ["", to_markdown([line.cells() for line in lines if line.set == name])]
        if self.groups:
            out += ["## By group", "", to_markdown([_group(row) for row in self.groups])]
        if self.left_out:
            out += ["## Left out", ""]
            out += [f"- {one['set'] or 'everywhere'}, {one['what']}: {one['why']}" for one in self.left_out]
        return "\n".join(out).rstrip() + "\n"

    def write(self, folder: Path) -> list[Path]:
        texts = {"bars.json": self.to_json(), "bars.md": self.to_page()}
        return [write_file(folder / name, text) for name, text in texts.items()]


def _value(figure: Figure | None) -> str:
    return "" if figure is None or figure.value is None else spelled(figure, interval=False)


def _group(row: dict[str, Any]) -> dict[str, Any]:
    shown = {key: value[0] if isinstance(value, list) else value for key, value in row.items()}
    return {key: f"{value:.3f}" if isinstance(value, float) else value for key, value in shown.items()}


def _plain(figure: Figure) -> dict[str, Any]:
    return {key: value for key, value in asdict(figure).items() if key != "metric"}
