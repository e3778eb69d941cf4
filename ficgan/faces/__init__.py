"""Faces in photos: detection, recognition, alignment, and pasting crops back."""

from __future__ import annotations

from ficgan.faces.alignment import ARCFACE_POINTS, Alignment, invert, similarity, transform_points

__all__ = ["ARCFACE_POINTS", "Alignment", "invert", "similarity", "transform_points"]
