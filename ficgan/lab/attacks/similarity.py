"""How alike two faces are to the eye, for attackers that choose their parameters on pairs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Images
from ficgan.lab.attacks.base import Pairs

__all__ = ["luminance", "some", "ssim", "to_uint8"]

_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)
_C1, _C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2


def luminance(images: Images) -> NDArray[np.float32]:
    """[N,S,S,3] uint8 RGB → [N,S,S] float32, 0–255."""
    return images.astype(np.float32) @ _LUMINANCE


def to_uint8(values: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Grey levels rounded and clipped to 0–255."""
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def ssim(left: NDArray[np.float32], right: NDArray[np.float32], window: int = 7) -> NDArray[np.float64]:
    """Structural similarity of images, face by face.

    Args:
        left, right: [N,S,S] luminance, 0–255; S at least `window`.
        window: side of the uniform window; odd.

    Returns:
        [N] in −1 … 1; the mean over all whole windows.

    Source:
        Wang et al. 2004, eq. 13; the uniform 7 × 7 window of scikit-image, which the Fantômas attackers are chosen by.
    """
    import cv2

    scores = np.empty(len(left))
    edge = window // 2
    unbiased = window**2 / (window**2 - 1)
    for index, (x, y) in enumerate(zip(left, right, strict=True)):
        planes = np.stack([x, y, x * x, y * y, x * y], axis=2).astype(np.float64)
        means = cv2.blur(planes, (window, window))[edge : len(x) - edge, edge : len(x) - edge]
        mx, my, mxx, myy, mxy = np.moveaxis(means, 2, 0)
        vx, vy, vxy = (unbiased * (a - b) for a, b in ((mxx, mx * mx), (myy, my * my), (mxy, mx * my)))
        top = (2 * mx * my + _C1) * (2 * vxy + _C2)
        scores[index] = np.mean(top / ((mx**2 + my**2 + _C1) * (vx + vy + _C2)))
    return scores


def some(pairs: Pairs, count: int) -> Pairs:
    """At most `count` pairs, spread evenly over all: enough to choose one or two parameters on."""
    if len(pairs.clear) <= count:
        return pairs
    rows = np.linspace(0, len(pairs.clear) - 1, count).round().astype(np.int64)
    return Pairs(pairs.anonymised.take(rows), pairs.clear.take(rows), pairs.background, pairs.same)
