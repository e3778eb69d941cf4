"""Faces in photos: detection, recognition, alignment, and pasting crops back."""

from __future__ import annotations

from ficgan.faces.alignment import ARCFACE_POINTS, Alignment, invert, similarity, transform_points
from ficgan.faces.detection import DETECTORS, Face, FaceDetector, detector_missing, get_detector

__all__ = [
    "ARCFACE_POINTS",
    "DETECTORS",
    "Alignment",
    "Face",
    "FaceDetector",
    "detector_missing",
    "get_detector",
    "invert",
    "similarity",
    "transform_points",
]
