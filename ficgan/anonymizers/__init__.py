"""Anonymisers: everything that turns a face crop into another one, by name, with declared properties."""

from ficgan.anonymizers.average_face import AverageFace
from ficgan.anonymizers.base import ANONYMIZERS, Anonymizer, Faces, Images, PerImage, Traits, generator
from ficgan.anonymizers.k_same import KSameEigen, KSamePixel

__all__ = [
    "ANONYMIZERS",
    "Anonymizer",
    "AverageFace",
    "Faces",
    "Images",
    "KSameEigen",
    "KSamePixel",
    "PerImage",
    "Traits",
    "generator",
]
