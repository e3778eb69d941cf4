"""Gaussian blurs with reflected edges: in the cosine transform's domain, as matrices, in crops of any size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces, GaussianBlur, Images
from ficgan.anonymizers.basic import scaled_kernel, sigma_of, spread

Float = NDArray[np.float32]

TRANSFERS: dict[str, GaussianBlur] = {
    "same rule": GaussianBlur(kernel=37),
    "K/6": GaussianBlur(kernel=37, rule="sixth"),
    "fixed deviation": GaussianBlur(kernel=27, sigma=6.0),
    "rectangle": GaussianBlur(kernel=37, sigma=5.9, kernel_y=31, sigma_y=5.0),
}
"""Blurs at 256 px that look like K = 37: Revelio, Figure 16 a–d. Its text gives the numbers of c and d, not of b, for
which K/6 stands here."""


def transfers(side: int) -> dict[str, GaussianBlur]:
    """`TRANSFERS` for crops of another side: the same blurs relative to the face."""
    return {label: scaled_blur(blur, side) for label, blur in TRANSFERS.items()}


def scaled_blur(blur: GaussianBlur, side: int, of: int = 256) -> GaussianBlur:
    """A blur as_described, relative to the face, in crops of another side: nearest odd kernels, exact deviations."""
    (width, across), (height, along) = blur.axes()
    share = side / of
    kernel, kernel_y = (max(3, scaled_kernel(k, side, of)) for k in (width, height))
    if (width, across) == (height, along):
        return GaussianBlur(kernel=kernel, sigma=across * share, seed=blur.seed)
    return GaussianBlur(kernel=kernel, sigma=across * share, kernel_y=kernel_y, sigma_y=along * share, seed=blur.seed)


def blurred(images: Images, kernel: int, rule: str = "opencv") -> Images:
    """Images [N,S,S,3] under a literal Gaussian kernel of odd width; of width 1 they stay as they are."""
    if kernel == 1:
        return images
    return GaussianBlur(kernel=kernel, rule=rule)(Faces(images, tuple(str(row) for row in range(len(images)))))


def equivalent_kernel(blur: GaussianBlur, widths: Sequence[int] = tuple(range(1, 1002, 2))) -> int:
    """Width K whose blur by OpenCV's rule spreads a point as far as `blur`: a perfect estimator's answer."""
    wanted = np.sqrt(np.mean([spread(*axis) ** 2 for axis in blur.axes()]))
    return min(widths, key=lambda width: abs(spread(width, sigma_of(width)) - wanted))


@lru_cache(maxsize=8)
def cosines(size: int) -> Float:
    """The cosine transform of the first kind as a matrix [S,S]: applied twice it is 2(S − 1) times the identity.

    Its basis continues over the edges as OpenCV's default border, so a symmetric blur is a product in its domain.
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


def areas(size: int) -> NDArray[np.float64]:
    """The same for both axes: [S,S]."""
    return np.outer(weights(size), weights(size))


def spectrum(planes: Float) -> Float:
    """[…,S,S] pixels → as many coefficients, the constant one first."""
    matrix = cosines(planes.shape[-1])
    return np.matmul(np.matmul(matrix, planes), matrix.T)


def filtered(images: Images, gain: NDArray[np.floating]) -> Float:
    """Images [N,S,S,3] filtered by a gain per frequency [S,S]: [N,S,S,3] grey levels, not clipped."""
    size = images.shape[1]
    scaled = (gain / (4 * (size - 1) ** 2)).astype(np.float32)
    out = np.empty(images.shape, np.float32)
    for start in range(0, len(images), 64):
        planes = np.moveaxis(images[start : start + 64], 3, 1).astype(np.float32)
        out[start : start + 64] = np.moveaxis(spectrum(spectrum(planes) * scaled), 1, 3)
    return out


def blur_transfer(width: int, size: int, sigma: float = 0.0) -> NDArray[np.float64]:
    """Gain per frequency [S] of a Gaussian kernel of so many taps along one axis; σ 0: as OpenCV chooses it."""
    offsets = np.arange(width) - width // 2
    taps = np.exp(-(offsets**2) / (2 * (sigma or sigma_of(width)) ** 2))
    return (taps / taps.sum()) @ np.cos(np.pi * np.outer(offsets, np.arange(size)) / (size - 1))


def blur_gain(width: int, size: int, sigma: float = 0.0) -> NDArray[np.float64]:
    """Gain per frequency [S,S] of a square Gaussian kernel; arguments as of `blur_transfer`."""
    axis = blur_transfer(width, size, sigma)
    return np.outer(axis, axis)


def blur_matrix(width: int, size: int) -> Float:
    """The blur as a matrix [S,S] that acts on columns of pixels."""
    matrix = cosines(size).astype(np.float64)
    return ((matrix * blur_transfer(width, size)) @ matrix / (2 * (size - 1))).astype(np.float32)


def laplacian(size: int) -> NDArray[np.float64]:
    """Gain per frequency of the five-point Laplacian: [S,S], 0 for the constant, 8 at most."""
    axis = 2 - 2 * np.cos(np.pi * np.arange(size) / (size - 1))
    return axis[:, None] + axis[None, :]
