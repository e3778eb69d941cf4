"""Face sets for evaluations: opened as downloaded, faces cut once, people divided so that nobody is in two parts."""

from __future__ import annotations

from ficgan.lab.sets.check import check
from ficgan.lab.sets.faceset import FaceSet
from ficgan.lab.sets.layouts import LAYOUTS
from ficgan.lab.sets.open import open_set
from ficgan.lab.sets.pairs import FacePairs, read_pairs
from ficgan.lab.sets.prepare import Quick, default_detector, prepare
from ficgan.lab.sets.prepared import Prepared
from ficgan.lab.sets.split import Split, split

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
