"""Bars: verdicts, the page and its JSON, and a whole run around a small untrained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ficgan.lab.bars import Control, Sheet
from ficgan.lab.bars.table import Line
from ficgan.lab.results import Figure


def _line(row: str, value: float | None, low: float | None = None, high: float | None = None, **more: Any) -> Line:
    return Line("set", row, "i = 0", "judge", Figure(row, value, low, high, 9, "images", "why"), **more)


@pytest.mark.parametrize(
    ("row", "value", "low", "high", "verdict", "sure", "short"),
    [
        ("id-cosine", 0.13, 0.1, 0.13, "met", True, None),
        ("id-cosine", 0.12, 0.1, 0.2, "met", False, None),
        ("id-cosine", 0.23, 0.2, 0.3, "missed", True, 0.1),
        ("id-cosine", 0.14, 0.12, 0.2, "missed", False, 0.01),
        ("detected", 0.9, 0.8, 0.95, "missed", True, 0.09),
        ("detected", 1.0, None, None, "met", False, None),
        ("sharpness-kept", 0.4, 0.3, 0.5, "missed", True, 0.2),
        ("sharpness-kept", 1.9, 1.6, 2.4, "missed", True, 0.5),
        ("sharpness-kept", 1.0, 0.4, 1.2, "met", False, None),
        ("sharpness", 0.1, 0.0, 0.2, "no bar", False, None),
        ("age-band", 0.4, 0.3, 0.5, "no bar", False, None),
        ("smile-r", None, None, None, "not measured", False, None),
        ("match", 0.1, 0.05, 0.2, "not measured", False, None),
    ],
)
def test_verdicts(
    row: str, value: float | None, low: float | None, high: float | None, verdict: str, sure: bool, short: float | None
) -> None:
    line = _line(row, value, low, high)
    assert (line.verdict, line.sure) == (verdict, sure)
    assert line.short == (None if short is None else pytest.approx(short))


def test_a_measured_bar_is_the_controls() -> None:
    control = Control("same-group strangers", Figure("strangers", 0.06))
    assert _line("match", 0.05, 0.01, 0.055, control=control).verdict == "met"
    missed = _line("match", 0.1, 0.07, 0.2, control=control, sticker=Figure("match", 0.02))
    assert (missed.verdict, missed.sure, missed.asked) == ("missed", True, "≤ 0.06 (same-group strangers)")
    assert missed.to_dict()["sticker"]["verdict"] == "met" and missed.short == pytest.approx(0.04)


def test_the_page_hides_nothing(tmp_path: Path) -> None:
    sheet = Sheet(
        [
            _line("smile-r", None),
            _line("id-cosine", 0.25, 0.2, 0.3, sticker=Figure("", 0.1), control=Control("strangers", Figure("", 0.05))),
        ],
        [{"set": "set", "what": "parrot", "why": "nobody has two images"}],
        [{"set": "set", "group": "gender=Female", "n": 30, "cosine judge": [0.5, 0.4, 0.6]}],
    )
    sheet.facts = {"judges": {"judge": "had no part"}, "sets": {"set": {"faces": 9, "people": 8, "licence": "CC0"}}}
    assert [path.name for path in sheet.write(tmp_path / "new")] == ["bars.json", "bars.md"]
    page = (tmp_path / "new" / "bars.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| ID similarity"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:9] == [
        "≤ 0.13",
        ".14",
        "i = 0",
        "judge",
        "0.250 [0.200, 0.300]",
        "0.100 (met)",
        "0.050, strangers",
        "missed by 0.12",
    ]
    assert "not measured: why" in page and "set, parrot: nobody has two images" in page
    assert "9 faces of 8 people; CC0." in page and "| 0.500 |" in page
    assert page.index("ID similarity") < page.index("smile of output")
    told = json.loads((tmp_path / "new" / "bars.json").read_text(encoding="utf-8"))
    assert told["verdicts"] == {"not measured": 1, "missed": 1} and told["left_out"][0]["what"] == "parrot"
    assert [line["row"] for line in told["lines"]] == ["id-cosine", "smile-r"]
