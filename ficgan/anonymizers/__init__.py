"""Anonymisers: everything that turns a face crop into another one, by name, with declared properties."""

from ficgan.anonymizers.base import ANONYMIZERS, Anonymizer, Faces, Images, PerImage, Traits, generator
from ficgan.anonymizers.basic import (
    BoxBlur,
    EyeMask,
    GaussianBlur,
    GaussianNoise,
    ObfuscationBlur,
    ObfuscationOverlay,
    Pixelation,
    Solid,
    obfuscate_blur,
    obfuscate_overlay,
)
from ficgan.anonymizers.cloak import Fawkes
from ficgan.anonymizers.defended import DEFENCES, Defence, Defended
from ficgan.anonymizers.dp import DPPix, DPSamp, DPSnow
from ficgan.anonymizers.external import External
from ficgan.anonymizers.k_same import AverageFace, KSameEigen, KSamePixel
from ficgan.anonymizers.keyed import BlockPermutation, KRtio, PixelRelocation

__all__ = [
    "ANONYMIZERS",
    "DEFENCES",
    "Anonymizer",
    "AverageFace",
    "BlockPermutation",
    "BoxBlur",
    "DPPix",
    "DPSamp",
    "DPSnow",
    "Defence",
    "Defended",
    "External",
    "EyeMask",
    "Faces",
    "Fawkes",
    "GaussianBlur",
    "GaussianNoise",
    "Images",
    "KRtio",
    "KSameEigen",
    "KSamePixel",
    "ObfuscationBlur",
    "ObfuscationOverlay",
    "PerImage",
    "PixelRelocation",
    "Pixelation",
    "Solid",
    "Traits",
    "generator",
    "obfuscate_blur",
    "obfuscate_overlay",
]
