"""The bars of a default model: the whole table for any model, beside the average-face sticker and controls."""

from ficgan.lab.bars.config import BarsConfig, Clip
from ficgan.lab.bars.lines import Control, Line, Sheet
from ficgan.lab.bars.page import counts, missed, to_json, to_page, write_bars
from ficgan.lab.bars.run import Report, run_bars
from ficgan.lab.bars.table import BARS, Bar

__all__ = [
    "BARS", "Bar", "BarsConfig", "Clip", "Control", "Line", "Report", "Sheet", "counts", "missed", "run_bars",
    "to_json", "to_page", "write_bars",
]  # fmt: skip
