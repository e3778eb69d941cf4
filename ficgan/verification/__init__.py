"""Face-verification networks V: frozen, differentiable in their input, fed through the checkpoint's own alignment."""

from __future__ import annotations

from ficgan.verification.sphereface import SPHEREFACE_POINTS, AngularMarginHead, SphereFace20, angular_margin_loss
from ficgan.verification.verifier import AlignedInput, VAugment, Verifier, load_verifier

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
