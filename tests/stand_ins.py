"""Detectors, faces and pictures made up, for tests that need no network."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces
from ficgan.faces import Alignment, Face

Image = NDArray[np.uint8]


@dataclass
class Fixed:
    """A detector that finds what it was told."""

    faces: list[Face] = field(default_factory=list)
    name: str = "fixed"

    def detect(self, image: Image) -> list[Face]:
        return self.faces


def face(x: float, y: float, size: float) -> Face:
    """A face that fills the square of this corner and size."""
    points = Alignment().points(int(size)).astype(np.float32) + np.array([x, y], np.float32)
    return Face(np.array([x, y, x + size, y + size], np.float32), points, 0.9)


def photo(height: int = 160, width: int = 220, seed: int = 1) -> Image:
    """Noise."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def background(count: int = 12, size: int = 32) -> Faces:
    """Crops of other people: noise."""
    images = np.random.default_rng(5).integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    return Faces(images, tuple(map(str, range(count))), people=np.arange(count))
