"""A line of the table: a figure beside its bar, the sticker's and a control, met or missed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ficgan.lab.bars.table import Bar, bar_of
from ficgan.lab.results import Figure

__all__ = ["Control", "Controls", "Figures", "Line", "Sheet", "Verdict"]

Verdict = Literal["met", "missed", "no bar", "not measured"]
Key = tuple[str, str]
"""Row and judge."""
Figures = dict[Key, Figure]


@dataclass(frozen=True)
class Control:
    """What a figure is to be read beside.

    Args:
        what: such as "strangers" or "clear".
        figure: its value.
    """

    what: str
    figure: Figure


Controls = Mapping[Key, Control]


@dataclass(frozen=True)
class Line:
    """One figure of one setting on one set.

    Args:
        set: name of the face set.
        row: key of the bar.
        setting: such as "i = 4".
        judge: who read it.
        value: the model's.
        sticker: the average-face sticker's; None where it has none.
        control: None where there is none.
        photos: of a set of photos, which some bars ask more of.
    """

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
        """What is asked."""
        return bar_of(self.row)

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """Least and most that is allowed here."""
        return self.bar.limits(self._control, self.photos)

    @property
    def asked(self) -> str:
        """The bar as a table says it."""
        return self.bar.spelled(self._control, self.photos)

    @property
    def verdict(self) -> Verdict:
        """By the value alone; whether the interval agrees says `sure`."""
        return self.judged(self.value)

    def judged(self, figure: Figure | None) -> Verdict:
        """The verdict that any figure, such as the sticker's, would have here."""
        if figure is None or figure.value is None:
            return "not measured"
        if self.limits == (None, None):
            return "no bar" if not self.bar.measured else "not measured"
        return "met" if self._within(figure.value) else "missed"

    @property
    def sure(self) -> bool:
        """Whether the whole interval lies on the verdict's side; false where there is no interval."""
        low, high = self.value.low, self.value.high
        if self.verdict not in ("met", "missed") or low is None or high is None:
            return False
        if self.verdict == "met":
            return self._within(low) and self._within(high)
        least, most = self.limits
        return bool((least is not None and high < least) or (most is not None and low > most))

    @property
    def short(self) -> float | None:
        """By how much it is missed, in the figure's own unit; None where it is not."""
        if self.verdict != "missed" or self.value.value is None:
            return None
        least, most = self.limits
        value = self.value.value
        return least - value if least is not None and value < least else value - (most or 0.0)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        least, most = self.limits
        return {
            "set": self.set,
            "row": self.row,
            "title": self.bar.title,
            "setting": self.setting,
            "judge": self.judge,
            "bar": {"least": least, "most": most, "measured": self.bar.measured, "paper": self.bar.paper},
            **_told(self.value),
            "sticker": None if self.sticker is None else {**_told(self.sticker), "verdict": self.judged(self.sticker)},
            "control": None if self.control is None else {"what": self.control.what, **_told(self.control.figure)},
            "verdict": self.verdict,
            "sure": self.sure,
            "short": self.short,
        }

    @property
    def _control(self) -> float | None:
        return None if self.control is None else self.control.figure.value

    def _within(self, value: float) -> bool:
        least, most = self.limits
        return (least is None or value >= least) and (most is None or value <= most)


@dataclass
class Sheet:
    """Lines as they are found, and what could not be had.

    Attributes:
        lines: in the order in which they came.
        left_out: what, and why; a row that is not measured for want of a judge is a line with a note instead.
        groups: flat rows of the table by group.
    """

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
        """Say what is not in the table."""
        self.left_out.append({"set": name, "what": what, "why": why})


def _told(figure: Figure) -> dict[str, Any]:
    told = asdict(figure)
    told.pop("metric")
    return told
