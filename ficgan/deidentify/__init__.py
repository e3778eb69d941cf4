"""From a picture with faces to one with other faces."""

from ficgan.deidentify.anonymizer import Ficgan, KSameAppearance
from ficgan.deidentify.pipeline import MODES, Deidentifier, Mode, refuse_trainer
from ficgan.results import FaceResult, Result

__all__ = [
    "MODES", "Deidentifier", "FaceResult", "Ficgan", "KSameAppearance", "Mode", "Result", "refuse_trainer",
]  # fmt: skip
