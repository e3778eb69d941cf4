"""Fidelity of pixels to those of the clear image: SSIM, MS-SSIM, PSNR, sharpness."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError

__all__ = ["SCALES", "psnr", "scales", "sharpness", "ssim", "structural_similarity"]

Images = NDArray[np.uint8]

SCALES = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
"""Weights of the scales of MS-SSIM, finest first (Wang 2003, section 3.2)."""
_WINDOW, _SIGMA = 11, 1.5
_C1, _C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2


def scales(side: int) -> int:
    """How many of the five scales an image of this side has room for: the coarsest must hold the 11-pixel window."""
    return next(count for count in range(len(SCALES), -1, -1) if count == 0 or side >> (count - 1) >= _WINDOW)


def ssim(a: Images, b: Images) -> NDArray[np.float64]:
    """SSIM of pairs, the mean of the three channels; see `structural_similarity`."""
    return structural_similarity(a, b, most=1)[0]


def structural_similarity(
    a: Images, b: Images, *, most: int = len(SCALES)
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """SSIM and MS-SSIM of pairs of images.

    Args:
        a, b: [N,S,S,3] uint8 RGB, S at least 11.
        most: largest number of scales; there are `scales(S)` at most, and the weights of those used sum to 1.

    Returns:
        Two float64 [N]: SSIM in [−1, 1], and MS-SSIM in [0, 1], which takes a negative structure term for 0. Both are
        means over the channels of the map where the 11×11 window (Gaussian, σ 1.5) lies inside the image.

    Raises:
        InputError: unequal shapes, or images smaller than the window.

    Source: Wang et al. 2004, eqs. 13–16; Wang, Simoncelli and Bovik 2003, eq. 7.
    """
    _check(a, b)
    count = min(most, scales(a.shape[1]))
    if count < 1:
        raise InputError(f"images of {a.shape[1]} pixels are too small for SSIM; give at least {_WINDOW}")
    weights = np.array(SCALES[:count]) / sum(SCALES[:count])
    single, multi = np.empty(len(a)), np.empty(len(a))
    for index, (left, right) in enumerate(zip(a, b, strict=True)):
        x, y = left.astype(np.float32) - 127.5, right.astype(np.float32) - 127.5
        product: Any = 1.0
        for level in range(count):
            if level:
                x, y = _half(x), _half(y)
            structure, whole = _maps(x, y)
            if level == 0:
                single[index] = whole.mean(dtype=np.float64)
            term = (whole if level == count - 1 else structure).mean((0, 1), dtype=np.float64)  # [3]
            product = product * np.maximum(term, 0) ** weights[level]
        multi[index] = np.mean(product)
    return single, multi


def psnr(a: Images, b: Images) -> NDArray[np.float64]:
    """Peak signal-to-noise ratio of pairs, dB.

    Args:
        a, b: [N,S,S,3] uint8 RGB.

    Returns:
        float64 [N]; infinite where the pixels are equal.
    """
    _check(a, b)
    error = np.empty(len(a))
    for index, (x, y) in enumerate(zip(a, b, strict=True)):
        error[index] = np.mean(np.square(x.astype(np.float32) - y), dtype=np.float64)
    with np.errstate(divide="ignore"):
        return 10 * np.log10(255.0**2 / error)


def sharpness(images: Images, landmarks: NDArray[np.floating]) -> NDArray[np.float64]:
    """Variance of the Laplacian of the grey image within the face, in grey levels squared.

    Args:
        images: [N,S,S,3] uint8 RGB.
        landmarks: [N,5,2], pixels; the face is the square of twice the eye distance about their middle.

    Returns:
        float64 [N].

    Source: Pech-Pacheco et al. 2000 (the measure LAPV).
    """
    import cv2

    side = images.shape[1]
    centres = (landmarks.min(1) + landmarks.max(1)) / 2
    reach = np.linalg.norm(landmarks[:, 1] - landmarks[:, 0], axis=1)[:, None]
    low = np.floor(centres - reach).clip(0, side - 2).astype(int)
    high = np.maximum(np.ceil(centres + reach).clip(0, side).astype(int), low + 2)
    out = np.empty(len(images))
    for index, (image, (left, top), (right, bottom)) in enumerate(zip(images, low, high, strict=True)):
        grey = cv2.cvtColor(np.ascontiguousarray(image[top:bottom, left:right]), cv2.COLOR_RGB2GRAY)
        out[index] = cv2.Laplacian(grey, cv2.CV_32F).var(dtype=np.float64)
    return out


def _check(a: Images, b: Images) -> None:
    if a.shape != b.shape:
        raise InputError(f"images of shapes {list(a.shape)} and {list(b.shape)} cannot be compared; give equal ones")


def _maps(x: NDArray[np.float32], y: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Contrast-and-structure and SSIM at each pixel; x, y are pixels less 127.5, which spares float32's digits."""
    mx, my = _window(x), _window(y)
    both = 2 * (_window(x * y) - mx * my) + _C2
    spread = _window(x * x) + _window(y * y) - mx * mx - my * my + _C2
    structure = both / spread
    mx += 127.5
    my += 127.5
    return structure, structure * (2 * mx * my + _C1) / (mx * mx + my * my + _C1)


def _window(image: NDArray[np.float32]) -> NDArray[np.float32]:
    import cv2

    edge = _WINDOW // 2
    blurred: Any = cv2.GaussianBlur(image, (_WINDOW, _WINDOW), _SIGMA)
    return blurred[edge:-edge, edge:-edge]


def _half(image: NDArray[np.float32]) -> NDArray[np.float32]:
    """Means of 2×2 pixels; an odd last row and column is dropped."""
    import cv2

    height, width = image.shape[0] // 2 * 2, image.shape[1] // 2 * 2
    half: Any = cv2.resize(image[:height, :width], (width // 2, height // 2), interpolation=cv2.INTER_AREA)
    return half
