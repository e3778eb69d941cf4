"""Face sets for evaluations: opened as downloaded, faces cut once, people divided so that nobody is in two parts."""

from __future__ import annotations

from ficgan.evaluation.sets.check import check
from ficgan.evaluation.sets.faceset import FaceSet
from ficgan.evaluation.sets.layouts import LAYOUTS
from ficgan.evaluation.sets.open import open_set
from ficgan.evaluation.sets.pairs import FacePairs, read_pairs
from ficgan.evaluation.sets.prepare import Quick, default_detector, prepare
from ficgan.evaluation.sets.prepared import Prepared
from ficgan.evaluation.sets.split import Split, split

__all__ = [
    "LAYOUTS",
    "FacePairs",
    "FaceSet",
    "Prepared",
    "Quick",
    "Split",
    "check",
    "default_detector",
    "open_set",
    "prepare",
    "read_pairs",
    "split",
]
