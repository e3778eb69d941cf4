"""Pictures that stand in for faces: smooth, coloured, each another, made from a seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from ficgan.anonymizers import Faces


def random_faces(n: int, size: int = 32, seed: int = 0, smooth: float = 2.0, per_person: int = 1) -> Faces:
    """n pictures: one common pattern, one of each its own, both band-limited by a Gaussian of `smooth` pixels."""
    rng = np.random.default_rng(seed)
    fields = rng.normal(size=(n + 1, size, size, 3))
    fields = gaussian_filter(fields, (0, smooth, smooth, 0), mode="mirror")
    fields /= fields.std(axis=(1, 2, 3), keepdims=True)
    images = np.clip(np.rint(128 + 30 * fields[1:] + 20 * fields[:1]), 0, 255).astype(np.uint8)
    return faces_of(images, per_person)


def faces_of(images: NDArray[np.uint8], per_person: int = 1) -> Faces:
    """Pictures with names and people."""
    return Faces(images, tuple(f"{i}.png" for i in range(len(images))), people=np.arange(len(images)) // per_person)


def constant_faces(n: int, size: int, grey: int = 90) -> Faces:
    """n pictures in which nothing is left."""
    return faces_of(np.full((n, size, size, 3), grey, np.uint8))


def psnr(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> float:
    """Peak signal to noise ratio in dB over all pictures together."""
    return float(10 * np.log10(255**2 / max(float(np.mean((left.astype(float) - right) ** 2)), 1e-9)))
