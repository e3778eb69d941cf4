"""The papers' experiments on a data set in its public layout, with the published numbers beside one's own."""

from __future__ import annotations

from ficgan.lab.papers.fantomas import fantomas_matrix, fantomas_tables
from ficgan.lab.papers.ficgan import FicganPaper, run_ficgan
from ficgan.lab.papers.obfuscation import obfuscation_tables, run_obfuscation
from ficgan.lab.papers.preset import scaled, with_data
from ficgan.lab.papers.reversible import Verdict, verdicts

__all__ = [
    "FicganPaper",
    "Verdict",
    "fantomas_matrix",
    "fantomas_tables",
    "obfuscation_tables",
    "run_ficgan",
    "run_obfuscation",
    "scaled",
    "verdicts",
    "with_data",
]
