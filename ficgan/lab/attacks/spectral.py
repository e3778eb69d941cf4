"""Symmetric blur in the cosine domain: with edges reflected as OpenCV does, it is a product there, without padding."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers.kernels import sigma_of

__all__ = ["blur_matrix", "blur_transfer", "cosines", "filtered", "laplacian", "spectrum", "weights"]

Float = NDArray[np.float32]


@lru_cache(maxsize=8)
def cosines(size: int) -> Float:
    """The cosine transform of the first kind as a matrix [S,S]: applied twice it is 2(S − 1) times the identity.

    Its basis vectors continue over the edges as `…2 1 0 1 2…` (OpenCV's default border, NumPy's "reflect").
    As a matrix product it beats an FFT of 2(S − 1) = 254 points, whose half is prime.
    """
    angles = np.pi * np.outer(np.arange(size), np.arange(size)) / (size - 1)
    matrix = (np.cos(angles) * weights(size)).astype(np.float32)
    matrix.setflags(write=False)
    return matrix


def weights(size: int) -> NDArray[np.float64]:
    """How often a pixel or frequency occurs in one period of the reflected signal: [S], 1 at the ends, else 2."""
    found = np.full(size, 2.0)
    found[[0, -1]] = 1.0
    return found


def spectrum(planes: Float) -> Float:
    """[…,S,S] pixels → as many coefficients, the constant one first."""
    matrix = cosines(planes.shape[-1])
    return np.matmul(np.matmul(matrix, planes), matrix.T)


def filtered(images: NDArray[np.uint8], gain: NDArray[np.floating]) -> Float:
    """Images filtered by a gain per frequency.

    Args:
        images: [N,S,S,3] uint8 RGB.
        gain: [S,S], or [N,S,S] for one each.

    Returns:
        [N,S,S,3] grey levels, not clipped.
    """
    size = images.shape[1]
    gain = np.asarray(gain, np.float32)
    out = np.empty(images.shape, np.float32)
    for start in range(0, len(images), 64):
        part = slice(start, start + 64)
        planes = np.moveaxis(images[part], 3, 1).astype(np.float32)
        share = gain if gain.ndim == 2 else gain[part, None]
        back = spectrum(spectrum(planes) * share) / np.float32(4 * (size - 1) ** 2)
        out[part] = np.moveaxis(back, 1, 3)
    return out


def blur_transfer(width: int, size: int, sigma: float = 0.0) -> NDArray[np.float64]:
    """Gain per frequency of a Gaussian kernel along one axis.

    Args:
        width: odd number of taps.
        size: S.
        sigma: pixels; 0: as OpenCV chooses it.

    Returns:
        [S]; the two-dimensional gain is its outer product with itself.
    """
    offsets = np.arange(width) - width // 2
    taps = np.exp(-(offsets**2) / (2 * (sigma or sigma_of(width)) ** 2))
    return (taps / taps.sum()) @ np.cos(np.pi * np.outer(offsets, np.arange(size)) / (size - 1))


def blur_matrix(width: int, size: int, sigma: float = 0.0) -> Float:
    """The same blur as a matrix [S,S] that acts on columns of pixels."""
    matrix = cosines(size).astype(np.float64)
    return ((matrix * blur_transfer(width, size, sigma)) @ matrix / (2 * (size - 1))).astype(np.float32)


def laplacian(size: int) -> NDArray[np.float64]:
    """Gain per frequency of the five-point Laplacian: [S,S], 0 for the constant, 8 at most."""
    one = 2 - 2 * np.cos(np.pi * np.arange(size) / (size - 1))
    return one[:, None] + one[None, :]
