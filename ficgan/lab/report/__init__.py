"""The report: one self-contained page, plots, tables."""

from ficgan.lab.report.page import merge, write_report

__all__ = ["merge", "write_report"]
