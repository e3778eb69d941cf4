"""Face sets for evaluations: opened as downloaded, faces cut once, people divided so that nobody is in two parts."""

from __future__ import annotations

from ficgan.lab.sets.faceset import FaceSet, Split, open_set, split, without_repeats
from ficgan.lab.sets.prepare import Prepared, Quick, default_detector, prepare

__all__ = [
    "FaceSet", "Prepared", "Quick", "Split", "default_detector", "open_set", "prepare", "split", "without_repeats",
]  # fmt: skip
