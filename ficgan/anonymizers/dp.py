"""DP-Pix and DP-Snow: noise on block means, and pixels replaced by grey.

Both are differentially private for *pixels*: images are neighbours where they differ in at most m pixels (DP-Pix) or in
one (DP-Snow). Two photos of one person, or of two people, differ in nearly all pixels, so nothing is promised of
identities.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers.base import ANONYMIZERS, Images, PerImage, Traits
from ficgan.registry import param

__all__ = ["DPPix", "DPSnow"]

_GREY = 127


@ANONYMIZERS.add
@dataclass(frozen=True)
class DPPix(PerImage):
    """The mean of each block plus Laplace noise, each channel by itself.

    Neighbours are images that differ, by whatever amount, in at most m pixels. A block of a pixels then moves by
    255·m/a at most, and Laplace noise of scale 255·m/(a·ε) gives ε-differential privacy per channel; the three channels
    of RGB compose to 3ε (`budget`).

    Where the side of the crop is not divisible by `block`, the last row and column of blocks are smaller.
    `as_described`: their noise is wider, with their own a, so that ε holds. `as_released`: noise of scale 255·m/(b²·ε)
    everywhere, so it does not hold there (2.25ε per channel for 224 px and b = 12); and grey levels are cut, not
    rounded.

    Source:
        Fan, Image Pixelization with Differential Privacy, DBSec 2018; Fantômas section 6.1.4.
    """

    name = "dp-pix"
    traits = Traits(
        title="DP-Pix",
        family="differential privacy",
        source="Fan 2018; Fantômas §6.1.4",
        strength="eps",
        stronger="down",
        stochastic=True,
    )
    eps: float = param(5.0, "privacy budget ε of one channel; RGB costs three", low=1e-6)
    block: int = param(12, "side of a block in pixels", low=1)
    m: int = param(16, "pixels in which neighbouring images differ", low=1)
    variant: str = param("as_described", "whose rules", choices=("as_described", "as_released"))

    def budget(self, size: int = 224) -> float:
        """ε of the three channels together for crops of `size` pixels, neighbours differing in at most m pixels."""
        if self.variant == "as_described":
            return 3 * self.eps
        # The worst neighbour has its m pixels where one of them moves a mean most: in the smallest blocks.
        left, total = self.m, 0.0
        for area in np.sort(_areas(size, self.block), axis=None).tolist():
            share = min(area, left)
            total += share / area
            left -= share
            if not left:
                break
        return 3 * self.eps * total * self.block**2 / self.m

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        size = image.shape[0]
        starts = np.arange(0, size, self.block)
        sums = np.add.reduceat(np.add.reduceat(image.astype(np.int64), starts, axis=0), starts, axis=1)
        areas = _areas(size, self.block)[..., None]
        spread = areas if self.variant == "as_described" else self.block**2
        noisy = sums / areas + rng.laplace(0.0, 255 * self.m / (spread * self.eps), sums.shape)
        levels = noisy.clip(0, 255)
        if self.variant == "as_described":
            levels = np.rint(levels)
        cell = np.arange(size) // self.block
        return levels.astype(np.uint8)[cell[:, None], cell]


def _areas(size: int, block: int) -> NDArray[np.int64]:
    """Pixels [g,g] of each block of a square crop."""
    sides = np.diff(np.append(np.arange(0, size, block), size))
    return np.outer(sides, sides).astype(np.int64)


@ANONYMIZERS.add
@dataclass(frozen=True)
class DPSnow(PerImage):
    """Pixels drawn without replacement, an exact fraction of them, become grey (127, 127, 127).

    Neighbours are images that differ in one pixel. They are told apart where that pixel is kept, so the fraction kept
    is the δ of (0, δ)-differential privacy (`budget`).

    `as_described` (Fantômas): `delta` is the fraction replaced, rounded to whole pixels. `as_released`: the fraction
    kept, and the number replaced is cut to whole pixels. At .5 they agree.

    Source:
        John et al., Let It Snow: Adding Pixel Noise to Protect the User's Identity, ETRA 2020; Fantômas section 6.1.4.
    """

    name = "dp-snow"
    traits = Traits(
        title="DP-Snow",
        family="differential privacy",
        source="John et al. 2020; Fantômas §6.1.4",
        strength="delta",
        stochastic=True,
    )
    delta: float = param(0.5, "fraction of pixels replaced (as_described) or kept (as_released)", low=0.0, high=1.0)
    variant: str = param("as_described", "whose delta", choices=("as_described", "as_released"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant == "as_released":  # a larger fraction kept hides less
            object.__setattr__(self, "traits", replace(type(self).traits, stronger="down"))

    def replaced(self, size: int) -> int:
        """How many pixels of a crop of `size` pixels become grey."""
        total = size * size
        return round(self.delta * total) if self.variant == "as_described" else int((1 - self.delta) * total)

    def budget(self, size: int = 224) -> float:
        """δ of (0, δ)-differential privacy for crops of `size` pixels, neighbours differing in one pixel."""
        return 1 - self.replaced(size) / size**2

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        out = image.copy()
        total = image.shape[0] ** 2
        out.reshape(total, 3)[rng.choice(total, self.replaced(image.shape[0]), replace=False, shuffle=False)] = _GREY
        return out
