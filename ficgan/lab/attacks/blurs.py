"""The blurs of Revelio's experiments as methods: other rules and rectangles, other sides; and which look alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ficgan.anonymizers import Faces, GaussianBlur, Images
from ficgan.anonymizers.kernels import scaled_kernel, sigma_of, spread

__all__ = ["TRANSFERS", "blurred", "equivalent_kernel", "scaled_blur", "transfers"]

TRANSFERS: dict[str, GaussianBlur] = {
    "same rule": GaussianBlur(kernel=37),
    "K/6": GaussianBlur(kernel=37, rule="sixth"),
    "fixed deviation": GaussianBlur(kernel=27, sigma=6.0),
    "rectangle": GaussianBlur(kernel=37, sigma=5.9, kernel_y=31, sigma_y=5.0),
}
"""Blurs at 256 px that look like K = 37: Revelio, Figure 16 a–d. Its text names the numbers of c and d, not of b, for
which K/6 stands here."""


def transfers(side: int) -> dict[str, GaussianBlur]:
    """`TRANSFERS` for crops of another side: the same blurs relative to the face."""
    return {label: scaled_blur(blur, side) for label, blur in TRANSFERS.items()}


def scaled_blur(blur: GaussianBlur, side: int, of: int = 256) -> GaussianBlur:
    """The same blur relative to the face in crops of another side: the nearest odd kernels, deviations exactly.

    Args:
        blur: as_described.
        side, of: pixels.
    """
    (width, across), (height, along) = blur.axes()
    share = side / of
    kernel, kernel_y = (max(3, scaled_kernel(k, side, of)) for k in (width, height))
    if (width, across) == (height, along):
        return GaussianBlur(kernel=kernel, sigma=across * share, seed=blur.seed)
    return GaussianBlur(kernel=kernel, sigma=across * share, kernel_y=kernel_y, sigma_y=along * share, seed=blur.seed)


def blurred(images: Images, kernel: int, rule: str = "opencv") -> Images:
    """Images under a literal Gaussian kernel; of width 1 they stay as they are.

    Args:
        images: [N,S,S,3] uint8 RGB.
        kernel: odd, pixels.
        rule: of `ficgan.anonymizers.kernels.SIGMA_RULES`.
    """
    if kernel == 1:
        return images
    return GaussianBlur(kernel=kernel, rule=rule)(Faces(images, tuple(str(row) for row in range(len(images)))))


def equivalent_kernel(blur: GaussianBlur, widths: Sequence[int] = tuple(range(1, 1002, 2))) -> int:
    """Width K whose blur by OpenCV's rule is nearest: what a perfect kernel estimator says of a blur by another rule.

    Nearest is what spreads a point equally far: the deviations of the taps are compared, of a rectangle their root mean
    square.

    Args:
        blur: as_described.
        widths: to choose from, odd, pixels.
    """
    wanted = np.sqrt(np.mean([spread(*axis) ** 2 for axis in blur.axes()]))
    return min(widths, key=lambda width: abs(spread(width, sigma_of(width)) - wanted))
