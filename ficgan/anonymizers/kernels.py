"""Gaussian kernels: the rules by which programs choose the deviation, and kernels for crops of other sides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ficgan.errors import UsageError

__all__ = ["SIGMA_RULES", "nearest_odd", "scaled_kernel", "scaled_sigma", "sigma_of", "spread"]

SIGMA_RULES: dict[str, Callable[[int], float]] = {
    "opencv": lambda kernel: 0.3 * ((kernel - 1) * 0.5 - 1) + 0.8,
    "sixth": lambda kernel: kernel / 6,
    "third": lambda kernel: kernel / 3,
}
"""Deviation in pixels of a kernel K pixels wide: OpenCV's and PyTorch's rule (Revelio, §2.1); K/6, three deviations on
either side of the middle; K/3, as in the grid of the program released with Fantômas. A fixed one needs no rule."""


def sigma_of(kernel: int, rule: str = "opencv") -> float:
    """Deviation of a Gaussian kernel.

    Args:
        kernel: its width K, pixels.
        rule: of `SIGMA_RULES`.

    Raises:
        UsageError: an unknown rule.
    """
    if rule not in SIGMA_RULES:
        raise UsageError(f"there is no rule {rule!r} for the deviation of a kernel; there are {', '.join(SIGMA_RULES)}")
    return SIGMA_RULES[rule](kernel)


def nearest_odd(width: float) -> int:
    """The odd whole number nearest to a width, the wider one of two, at least 1."""
    return max(1, 2 * int(np.floor(width / 2)) + 1)


def scaled_kernel(kernel: int, side: int, of: int = 256) -> int:
    """Width that covers the same part of the face in a crop of another side: 81 in 256 px is 21 in 64 px.

    Its deviation by OpenCV's rule is a little wider than the scaled one (3.5 for 3.125), as the rule does not pass
    through the origin; `scaled_sigma` is the exact one.

    Args:
        kernel: pixels, in a crop of side `of`.
        side, of: pixels.
    """
    return nearest_odd(kernel * side / of)


def scaled_sigma(kernel: int, side: int, of: int = 256, rule: str = "opencv") -> float:
    """Deviation, in pixels of a crop of another side, of the blur that a kernel makes in a crop of side `of`."""
    return sigma_of(kernel, rule) * side / of


def spread(kernel: int, sigma: float) -> float:
    """Deviation of the taps themselves, pixels: below σ where the kernel cuts the Gaussian short."""
    offsets = np.arange(kernel) - (kernel - 1) / 2
    taps = np.exp(-(offsets**2) / (2 * sigma**2))
    return float(np.sqrt(np.sum(taps * offsets**2) / np.sum(taps)))
