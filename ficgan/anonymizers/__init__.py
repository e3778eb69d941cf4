"""Anonymisers: everything that turns a face crop into another one, by name, with declared properties."""

from ficgan.anonymizers.average_face import AverageFace
from ficgan.anonymizers.base import ANONYMIZERS, Anonymizer, Faces, Images, PerImage, Traits, generator

__all__ = ["ANONYMIZERS", "Anonymizer", "AverageFace", "Faces", "Images", "PerImage", "Traits", "generator"]
