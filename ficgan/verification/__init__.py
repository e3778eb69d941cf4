"""Face-verification networks V: frozen, differentiable in their input, fed through the checkpoint's own alignment."""

from __future__ import annotations

from ficgan.verification.angular_margin import AngularMarginHead, angular_margin_loss
from ficgan.verification.sphereface import SPHEREFACE_POINTS, SphereFace20
from ficgan.verification.transform import AlignedInput, VAugment
from ficgan.verification.verifier import Verifier, load_verifier

__all__ = [
    "SPHEREFACE_POINTS",
    "AlignedInput",
    "AngularMarginHead",
    "SphereFace20",
    "VAugment",
    "Verifier",
    "angular_margin_loss",
    "load_verifier",
]
