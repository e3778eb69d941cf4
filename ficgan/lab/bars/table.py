"""The bars of a default model: what is asked of each figure, what was found, and both as JSON and as a page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

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
    """One row of the table; `least` and `most` are limits of the value, both allowed."""

    row: str
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
        own = [(self.least_photos, self.least), (self.most_photos, self.most)]
        least, most = (usual if special is None or not photos else special for special, usual in own)
        return least, most


BARS: tuple[Bar, ...] = (
    Bar("within-kind", "nearer to its own person than to others of the same ethnicity and gender: AUC, .5 is perfect"),
    Bar("within-kind (region)", "the same of the replaced region alone, the rest grey"),
    Bar("naive", "named: rank-1 of outputs against a clear photo of everybody", most=0.12),
    Bar("id-cosine", "ID similarity: mean cosine of source and output", most=0.13, paper=".14"),
    Bar("id-cosine-bare", "the same of the network's crop alone, not blended in", paper=".14"),
    Bar("match", "taken for the source at the recogniser's own threshold", measured=True),
    Bar("tar", "taken for the source at FAR 1e-3 of clear strangers", most=0.02),
    Bar("shape", "named by the shape of the face alone: rank-1 against a clear photo of everybody", most=0.15),
    Bar("shape-informed", "the same, by who has learnt from other people's outputs, too"),
    Bar("auc-gap", "distance of the AUC from .5: is the source nearer than same-group strangers?", measured=True),
    Bar("detected", "detection rate of the outputs", least=0.99),
    Bar("landmarks", "drift of five landmarks, of the inter-eye distance", most=0.06, most_photos=0.05),
    Bar("smile-r", "smile of output against source, r", least=0.7),
    Bar("yaw-r", "yaw of output against source, r", least=0.85),
    Bar("gender", "gender agreement", least=0.85, least_photos=0.9, paper="85 % (all attributes)"),
    Bar("age-band", "same age band"),
    Bar("race", "same race"),
    Bar("glasses", "glasses agreement"),
    Bar("rec-mse", "reconstruction: MSE on [−1, 1]", most=0.02, paper=".02"),
    Bar("rec-cosine", "reconstruction: cosine to the source", least=0.4, paper=".30"),
    Bar("rec-lpips", "reconstruction: LPIPS-like (SqueezeNet)", most=0.2, paper=".15 (LPIPS)"),
    Bar("swap", "identity swap: cosine to the target", least=0.3),
    Bar("exemplar", "halfway to an exemplar (α = .5): cosine to it"),
    Bar("sharpness", "sharpness: Laplacian variance inside / around the mask"),
    Bar("sharpness-kept", "Laplacian variance inside the mask, of the clear image's", least=0.6, most=1.4),
    Bar("border", "gradient on the blend border, of the clear image's", most=1.1),
    Bar("fd", "FD-SqueezeNet to real faces, of real–real at the same n", most=5),
    Bar("draws", "same source, different draws (ψ = .6): pairwise cosine", most=0.6),
    Bar("parrot", "parrot: rank-1 of faces alone, a fresh draw (ψ = .6) per image", most=0.55),
    Bar("retried", "policy on: share retried, masked ones among them", most=0.1),
    Bar("masked", "policy on: share masked", most=0.01),
    Bar("memorised", "64 outputs (ψ = .6): mean cosine to the nearest training face"),
    Bar("stability", "neighbouring frames of a clip: cosine between outputs"),
)
"""In the order of the table; those without a limit are reported and not judged."""
_PLACE = {bar.row: place for place, bar in enumerate(BARS)}


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
        return BARS[_PLACE[self.row]]

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

    def _excess(self, value: float) -> float:
        least, most = self.limits
        if least is not None and value < least:
            return value - least
        return max(0.0, value - most) if most is not None else 0.0


@dataclass
class Sheet:
    """Lines in the order in which they were found, flat rows by group, and what was left out and why."""

    lines: list[Line] = field(default_factory=list)
    left_out: list[dict[str, str]] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)

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
            self.lines.append(Line(name, row, setting, judge, value, beside, control, photos))

    def leave_out(self, name: str, what: str, why: str) -> None:
        self.left_out.append({"set": name, "what": what, "why": why})


_HOW_TO_READ = (
    "A figure is met or missed by its value; `?` says its 95 % interval (over people) reaches to the other side, or "
    "that it has none. *Sticker* is one colour-matched mean face pasted on everybody: it hides people and keeps "
    "nothing, so a model must beat it below the identity rows. *Control* says what the figure is to be read beside. "
    "Outputs are finished crops with the face blended in; recognisers read them at the source's landmarks. They are "
    "first attempts, but where a setting says that the policy was on: those are what leaves the program. Small sets: "
    "this says how software and model behave, and is no measure of privacy in the world."
)


@dataclass(frozen=True)
class Report:
    """What was found."""

    sheet: Sheet
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def lines(self) -> list[Line]:
        sets = list(dict.fromkeys(line.set for line in self.sheet.lines))
        return sorted(self.sheet.lines, key=lambda line: (sets.index(line.set), _PLACE[line.row]))

    @property
    def verdicts(self) -> dict[str, int]:
        """Verdict → lines that have it."""
        return dict(Counter(line.verdict for line in self.sheet.lines))

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
            "groups": self.sheet.groups,
            "left_out": self.sheet.left_out,
        }
        return json.dumps(tree, indent=1, allow_nan=False, ensure_ascii=False) + "\n"

    def to_page(self) -> str:
        """Tables for readers: one for each set, groups, and what was left out."""
        facts, lines = self.facts, self.lines
        counted = ", ".join(f"{name} {number}" for name, number in sorted(self.verdicts.items()))
        out = ["# The model against its bars", "", _HOW_TO_READ, "", f"Lines: {counted}.", ""]
        out += [f"- {name}: {role}" for name, role in facts.get("judges", {}).items()]
        for name in dict.fromkeys(line.set for line in lines):
            out += ["", f"## {name}", ""]
            if (about := facts.get("sets", {}).get(name)) is not None:
                licence = about.get("licence") or "no licence is stated beside it"
                out.append(f"{about['faces']} faces of {about['people']} people; {licence}.")
            out += ["", to_markdown([_row(line) for line in lines if line.set == name])]
        if self.sheet.groups:
            out += ["## By group", "", to_markdown([_group(row) for row in self.sheet.groups])]
        if self.sheet.left_out:
            out += ["## Left out", ""]
            out += [f"- {one['set'] or 'everywhere'}, {one['what']}: {one['why']}" for one in self.sheet.left_out]
        return "\n".join(out).rstrip() + "\n"


def write_bars(report: Report, folder: Path) -> list[Path]:
    texts = {"bars.json": report.to_json(), "bars.md": report.to_page()}
    return [write_file(folder / name, text) for name, text in texts.items()]


def _row(line: Line) -> dict[str, Any]:
    control, measured = line.control, line.value.value is not None
    doubt = "" if line.sure or line.verdict in ("no bar", "not measured") else "?"
    short = "" if line.short is None else f" by {line.short:.3g}"
    sticker = line.judged(line.sticker)
    return {
        "row": line.bar.title,
        "bar": line.asked,
        "paper": line.bar.paper,
        "setting": line.setting,
        "judge": line.judge,
        "value": spelled(line.value) if measured else f"not measured: {line.value.note}",
        "sticker": _value(line.sticker) + (f" ({sticker})" if sticker in ("met", "missed") else ""),
        "control": "" if control is None or not measured else f"{_value(control.figure)}, {control.what}",
        "verdict": "" if line.verdict == "no bar" else f"{line.verdict}{short}{doubt}",
        "note": line.value.note if measured else "",
    }


def _value(figure: Figure | None) -> str:
    return "" if figure is None or figure.value is None else spelled(figure, interval=False)


def _group(row: dict[str, Any]) -> dict[str, Any]:
    return {
        key: f"{value[0]:.3f}" if isinstance(value, list) and value[0] is not None else value
        for key, value in row.items()
    }


def _plain(figure: Figure) -> dict[str, Any]:
    return {key: value for key, value in asdict(figure).items() if key != "metric"}
