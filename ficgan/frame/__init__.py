"""Faces in a canonical frame: geometry, linear appearance model, and the way onto a photo and back."""

from ficgan.frame.appearance import AppearanceModel, Moment, frame_mask
from ficgan.frame.compose import (
    Look,
    detail_of,
    fine_detail,
    hair_over,
    matched_border,
    no_sharper,
    paste_texture,
    read_look,
    read_texture,
    sharpened,
    stretched,
)
from ficgan.frame.drawn import read_gaze, read_teeth, with_eyes, with_teeth
from ficgan.frame.geometry import NUMBERS, FaceShape, Pose, Readings, Warp, expression_numbers, rigid_fit

__all__ = [
    "NUMBERS",
    "AppearanceModel",
    "FaceShape",
    "Look",
    "Moment",
    "Pose",
    "Readings",
    "Warp",
    "detail_of",
    "expression_numbers",
    "fine_detail",
    "frame_mask",
    "hair_over",
    "matched_border",
    "no_sharper",
    "paste_texture",
    "read_gaze",
    "read_look",
    "read_teeth",
    "read_texture",
    "rigid_fit",
    "sharpened",
    "stretched",
    "with_eyes",
    "with_teeth",
]
