"""Faces in photos: detection, recognition, meshes, alignment, and pasting crops back."""

from __future__ import annotations

# The names that other rooms use.
# ruff: noqa: F401
from ficgan.faces.covers import colour_beside, cover_face
from ficgan.faces.crops import ARCFACE_POINTS, Alignment, Paste, crop, invert, paste_back, similarity, transform_points
from ficgan.faces.detection import DETECTORS, DetectAt, Face, FaceDetector, detector_missing, get_detector
from ficgan.faces.mesh import MediaPipeMesh, Mesh, find_meshes, five_points
from ficgan.faces.recognition import (
    RECOGNIZERS,
    DlibRecognizer,
    Recognizer,
    get_recognizer,
    make_gate,
    matching,
    public_name,
    recognizer_missing,
)
