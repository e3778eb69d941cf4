"""Anonymisers: everything that turns a face crop into another one, by name, with declared properties."""

from ficgan.anonymizers import cloak, dp, external, keyed  # noqa: F401 (they register themselves)
from ficgan.anonymizers.base import ANONYMIZERS, Anonymizer, Faces, Images, PerImage, Traits, generator
from ficgan.anonymizers.basic import GaussianBlur, Solid
from ficgan.anonymizers.defended import DEFENCES, Defence, Defended
from ficgan.anonymizers.k_same import AverageFace

__all__ = ["ANONYMIZERS", "DEFENCES", "Anonymizer", "AverageFace", "Defence", "Defended", "Faces", "GaussianBlur"]
__all__ += ["Images", "PerImage", "Solid", "Traits", "generator"]
