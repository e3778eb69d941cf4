"""From a picture with faces to one with other faces."""

from ficgan.deidentify.anonymizer import Ficgan
from ficgan.deidentify.pipeline import MODES, Deidentifier, Mode, refuse_trainer
from ficgan.results import FaceResult, Result

__all__ = ["MODES", "Deidentifier", "FaceResult", "Ficgan", "Mode", "Result", "refuse_trainer"]
