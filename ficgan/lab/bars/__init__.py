"""The bars of a default model: the whole table for any model, beside the average-face sticker and controls."""

from ficgan.lab.bars.run import BarsConfig, Clip, run_bars
from ficgan.lab.bars.table import BARS, Bar, Control, Line, Report, Sheet, write_bars

__all__ = ["BARS", "Bar", "BarsConfig", "Clip", "Control", "Line", "Report", "Sheet", "run_bars", "write_bars"]
