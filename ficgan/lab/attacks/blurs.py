"""Gaussian blurs with reflected edges: in the cosine transform's domain, as matrices, in crops of any size."""

from __future__ import annotations

from collections.abc import Sequence

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


def areas(size: int) -> NDArray[np.float64]:
    """How often a pixel or frequency occurs in one period of the reflected picture: [S,S], less at the edges."""
    weights = np.full(size, 2.0)
    weights[[0, -1]] = 1.0
    return np.outer(weights, weights)


def spectrum(planes: Float) -> Float:
    """The cosine transform of the first kind, […,S,S] → as many coefficients, the constant one first.

    Its basis continues over the edges as OpenCV's default border, so a symmetric blur is a product in its domain.
    """
    from scipy import fft

    return fft.dctn(planes, type=1, axes=(-2, -1))


def multiplied(planes: Float, gain: NDArray[np.floating]) -> Float:
    """Planes […,S,S] whose spectrum is multiplied by a gain per frequency [S,S]."""
    from scipy import fft

    return fft.idctn(spectrum(planes) * gain.astype(np.float32), type=1, axes=(-2, -1))


def filtered(images: Images, gain: NDArray[np.floating]) -> Float:
    """Images [N,S,S,3] filtered by a gain per frequency [S,S]: [N,S,S,3] grey levels, not clipped."""
    out = np.empty(images.shape, np.float32)
    for start in range(0, len(images), 64):
        part = slice(start, start + 64)
        out[part] = np.moveaxis(multiplied(np.moveaxis(images[part], 3, 1).astype(np.float32), gain), 1, 3)
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
    from scipy import fft

    spectra = fft.dct(np.eye(size), type=1, axis=0) * blur_transfer(width, size)[:, None]
    return fft.idct(spectra, type=1, axis=0).astype(np.float32)


def laplacian(size: int) -> NDArray[np.float64]:
    """Gain per frequency of the five-point Laplacian: [S,S], 0 for the constant, 8 at most."""
    axis = 2 - 2 * np.cos(np.pi * np.arange(size) / (size - 1))
    return axis[:, None] + axis[None, :]
