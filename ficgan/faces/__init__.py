"""Faces in photos: detection, recognition, meshes, alignment, and pasting crops back."""

from __future__ import annotations

from ficgan.faces.alignment import ARCFACE_POINTS, Alignment, invert, similarity, transform_points
from ficgan.faces.blend import Paste, blur_face, colour_beside, crop, mosaic_face, paste_back, plain_mask, solid_mask
from ficgan.faces.detection import DetectAt, Face, FaceDetector
from ficgan.faces.detectors import DETECTORS, detector_missing, get_detector
from ficgan.faces.mesh import (
    FACE_OVAL,
    GOOD_PRESENCE,
    LEFT_BROW,
    LEFT_EYE,
    LEFT_IRIS,
    LIPS_INNER,
    LIPS_OUTER,
    MESH_POINTS,
    RIGHT_BROW,
    RIGHT_EYE,
    RIGHT_IRIS,
    FaceMesh,
    MediaPipeMesh,
    Mesh,
    find_meshes,
    five_points,
)
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

__all__ = [
    "ARCFACE_POINTS", "DETECTORS", "FACE_OVAL", "GOOD_PRESENCE", "LEFT_BROW", "LEFT_EYE", "LEFT_IRIS", "LIPS_INNER",
    "LIPS_OUTER", "MESH_POINTS", "RECOGNIZERS", "RIGHT_BROW", "RIGHT_EYE", "RIGHT_IRIS", "Alignment", "DetectAt",
    "DlibRecognizer", "Face", "FaceDetector", "FaceMesh", "MediaPipeMesh", "Mesh", "Paste", "Recognizer", "blur_face",
    "colour_beside", "crop", "detector_missing", "find_meshes", "five_points", "get_detector", "get_recognizer",
    "invert", "make_gate", "matching", "mosaic_face", "paste_back", "plain_mask", "public_name", "recognizer_missing",
    "similarity", "solid_mask", "transform_points",
]  # fmt: skip
