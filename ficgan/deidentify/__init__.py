"""From a picture with faces to one with other faces."""

from ficgan.deidentify.pipeline import MODES, Deidentifier, Mode, load_face_model, refuse_trainer
from ficgan.options import Checking, Computing, Finding, Hiding, Identity
from ficgan.policy import FaceResult, Result

__all__ = [
    "MODES",
    "Checking",
    "Computing",
    "Deidentifier",
    "FaceResult",
    "Finding",
    "Hiding",
    "Identity",
    "Mode",
    "Result",
    "load_face_model",
    "refuse_trainer",
]
