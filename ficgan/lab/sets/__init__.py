"""Face sets for evaluations: opened as downloaded, faces cut once, people divided so that nobody is in two parts."""

from __future__ import annotations

from ficgan.lab.sets.faceset import FaceSet, Split, check, open_set, split
from ficgan.lab.sets.prepare import Prepared, Quick, default_detector, prepare

__all__ = ["FaceSet", "Prepared", "Quick", "Split", "check", "default_detector", "open_set", "prepare", "split"]
