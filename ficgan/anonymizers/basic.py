"""The basic anonymisers: a bar over the eyes, noise, blurs, pixelation, one colour.

`as_described` is what the paper's text says, `as_released` what its published program computes; their results differ.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers.base import ANONYMIZERS, Images, PerImage, Traits
from ficgan.anonymizers.kernels import SIGMA_RULES, sigma_of
from ficgan.errors import InputError, UsageError
from ficgan.registry import param

__all__ = ["COLOURS", "BoxBlur", "EyeMask", "GaussianBlur", "GaussianNoise", "Pixelation", "Solid", "rgb", "variant"]

COLOURS: dict[str, tuple[int, int, int]] = {
    "black": (0, 0, 0),
    "white": (255, 255, 255),
    "grey": (127, 127, 127),
    "mean": (124, 116, 104),  # ImageNet's, (.485, .456, .406)
    "red": (255, 0, 0),
    "green": (0, 255, 0),
    "blue": (0, 0, 255),
}
"""RGB of the colours that have a name."""

_BAR = (2.0, 0.8)
"""Length and height of the bar over the eyes in eye distances: from temple to temple, brows included."""
_BAND = (15, 156)
"""Rows of 224 that the released program blackens, the end excluded."""
_TOUCH = 0.71
"""Half a pixel's diagonal: a bar at least this thick on either side covers a pixel wherever it lies."""


def variant() -> Any:
    """The parameter that chooses between the text of the Fantômas paper and its program."""
    return param("as_described", "the paper's text or its program", choices=("as_described", "as_released"))


def rgb(text: str) -> tuple[int, int, int]:
    """A colour from its name in `COLOURS` or from "#rrggbb".

    Raises:
        UsageError: it is neither.
    """
    if text in COLOURS:
        return COLOURS[text]
    if not re.fullmatch(r"#[0-9a-fA-F]{6}", text):
        raise UsageError(f"the colour is {text!r}; give one of {', '.join(COLOURS)}, or #rrggbb")
    return int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16)


@ANONYMIZERS.add
@dataclass(frozen=True)
class EyeMask(PerImage):
    """A black bar: along the line of the eyes (as_described), or rows 15–155 of 224 (as_released, no landmarks).

    Source: Fantômas, §6.1.1; the text gives no size of the bar, `scale` 1 is 2.0 × 0.8 eye distances.
    """

    variant: str = variant()
    scale: float = param(1.0, "size of the bar, 1 the usual one", low=0.1, high=5.0)

    name: ClassVar[str] = "eye-mask"
    traits: ClassVar[Traits] = Traits("Eye mask", "basic", "Fantômas, §6.1.1", strength="scale")

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        """See `PerImage`.

        Raises:
            InputError: as_described, and the eyes are no two points, or their bar misses the crop.
        """
        out = image.copy()
        if self.variant == "as_released":
            out[self._rows(len(image))] = 0
            return out
        left, right = landmarks[:2].astype(np.float64)
        distance = float(np.hypot(*(right - left)))
        if not (np.isfinite(distance) and distance > 0):
            raise InputError("eye-mask: the landmarks of the eyes are no two points; find the face's landmarks again")
        (x0, y0), (ux, uy) = (left + right) / 2, (right - left) / distance
        y, x = np.ogrid[: len(image), : len(image)]
        along, across = (x - x0) * ux + (y - y0) * uy, (y - y0) * ux - (x - x0) * uy
        half_length, half_height = (max(part * self.scale * distance / 2, _TOUCH) for part in _BAR)
        bar = (np.abs(along) <= half_length) & (np.abs(across) <= half_height)
        if not bar.any():
            raise InputError("eye-mask: both eyes lie outside the crop; find the face's landmarks again")
        out[bar] = 0
        return out

    def _rows(self, side: int) -> NDArray[np.bool_]:
        """[side] rows whose centre lies in the band, that of 224 px brought to this side."""
        middle, reach = sum(_BAND) / 2, (_BAND[1] - _BAND[0]) / 2 * self.scale
        return np.abs((np.arange(side) + 0.5) * 224 / side - middle) <= reach


@ANONYMIZERS.add
@dataclass(frozen=True)
class GaussianNoise(PerImage):
    """Noise on every channel of every pixel.

    as_released keeps the noise in bytes before it is added: negative draws become 0, so half of the values stay as
    they are, and draws above 255 become 255.

    Source: Fantômas, §6.1.1.
    """

    variant: str = variant()
    sigma: float = param(200.0, "standard deviation, grey levels", low=1.0, high=10000.0)

    name: ClassVar[str] = "gaussian-noise"
    traits: ClassVar[Traits] = Traits("Gaussian noise", "basic", "Fantômas, §6.1.1", strength="sigma", stochastic=True)

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        """See `PerImage`."""
        noise = rng.standard_normal(image.shape, np.float32) * np.float32(self.sigma)
        if self.variant == "as_released":
            noise = _bytes(noise).astype(np.float32)
        return _bytes(image + noise)


@ANONYMIZERS.add
@dataclass(frozen=True)
class GaussianBlur(PerImage):
    """Gaussian blur; the standard deviation follows from the kernel K: 0.3·((K − 1)/2 − 1) + 0.8, OpenCV's rule.

    as_described takes the kernel literally, as Revelio does (37 and 81 at 256 px); the deviation may then follow
    another rule or be given, and columns may have a kernel of their own. as_released takes it for 100 px of the crop's
    width w, 2⌊w·kernel/200⌋ + 1, and is OpenCV's blur to the byte: its weights are whole 256ths, and below 11 its own.

    Source: Fantômas, §6.1.1; Revelio, §2.1 and Appendix C.
    """

    variant: str = variant()
    kernel: int = param(29, "side of the kernel, pixels; as_released: in a crop of 100 px", low=3, high=1001)
    rule: str = param("opencv", "how the deviation follows from the kernel", choices=tuple(SIGMA_RULES))
    sigma: float | None = param(None, "deviation in pixels, in place of the rule's", low=0.1, high=1000)
    kernel_y: int | None = param(None, "height of the kernel where it is no square, pixels", low=1, high=1001)
    sigma_y: float | None = param(None, "deviation along columns, pixels", low=0.1, high=1000)

    name: ClassVar[str] = "gaussian-blur"
    traits: ClassVar[Traits] = Traits("Gaussian blur", "basic", "Fantômas, §6.1.1", strength="kernel")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant == "as_described":
            _check_odd(self.name, self.kernel)
            _check_odd(self.name, self.kernel_y or 1, "kernel_y")
        elif self.rule != "opencv" or (self.sigma, self.kernel_y, self.sigma_y) != (None, None, None):
            raise UsageError(f"{self.name}: as_released has one kernel and its rule; leave out variant or the others")

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        """See `PerImage`."""
        import cv2

        if self.variant == "as_released":
            side = self.side(image.shape[1])
            return cast(Images, cv2.GaussianBlur(image, (side, side), 0))
        return cast(Images, cv2.sepFilter2D(image, -1, *(cv2.getGaussianKernel(*axis) for axis in self.axes())))

    def side(self, width: int) -> int:
        """Side of the kernel for a crop that many pixels wide."""
        return self.kernel if self.variant == "as_described" else 2 * (width * self.kernel // 200) + 1

    def axes(self) -> tuple[tuple[int, float], tuple[int, float]]:
        """Width and deviation along rows, then along columns, pixels; as_described."""
        across = self.kernel, self.sigma or sigma_of(self.kernel, self.rule)
        if self.kernel_y is None:
            return across, (self.kernel, self.sigma_y or across[1])
        return across, (self.kernel_y, self.sigma_y or sigma_of(self.kernel_y, self.rule))


@ANONYMIZERS.add
@dataclass(frozen=True)
class BoxBlur(PerImage):
    """The mean of a square around every pixel; at the border the image is mirrored.

    Source: Revelio, defences (OpenCV's box blur of 31 px).
    """

    kernel: int = param(31, "side of the square, pixels; odd", low=3, high=1001)

    name: ClassVar[str] = "box-blur"
    traits: ClassVar[Traits] = Traits("Box blur", "basic", "Revelio, defences", strength="kernel")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_odd(self.name, self.kernel)

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        """See `PerImage`."""
        import cv2

        return cast(Images, cv2.blur(image, (self.kernel, self.kernel)))


@ANONYMIZERS.add
@dataclass(frozen=True)
class Pixelation(PerImage):
    """Fewer pixels: the mean of each block (as_described), or almost points of it (as_released).

    as_released resizes bilinearly without a filter, so a block shows four pixels about its middle, not its mean.

    Source: Fantômas, §6.1.1.
    """

    variant: str = variant()
    size: int = param(16, "pixels that remain on either axis", low=1, high=4096)

    name: ClassVar[str] = "pixelation"
    traits: ClassVar[Traits] = Traits("Pixelation", "basic", "Fantômas, §6.1.1", strength="size", stronger="down")

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        """See `PerImage`.

        Raises:
            UsageError: the crop has no more pixels than should remain, so nothing would be hidden.
        """
        side = len(image)
        if side <= self.size:
            raise UsageError(f"pixelation: size is {self.size}, and the crop has only {side} px; give a smaller size")
        if self.variant == "as_released":
            import cv2

            small = cv2.resize(image, (self.size, self.size), interpolation=cv2.INTER_LINEAR)
            return cast(Images, cv2.resize(small, (side, side), interpolation=cv2.INTER_NEAREST))
        starts = -(-np.arange(self.size) * side // self.size)  # blocks differ by a pixel where size does not divide
        sums = np.add.reduceat(np.add.reduceat(image, starts, 0, np.int64), starts, 1)
        widths = np.diff(starts, append=side)
        counts = (widths[:, None] * widths)[..., None]
        means = ((2 * sums + counts) // (2 * counts)).astype(np.uint8)
        return means.repeat(widths, 0).repeat(widths, 1)


@ANONYMIZERS.add
@dataclass(frozen=True)
class Solid(PerImage):
    """One colour everywhere: nothing is left, the end of every scale."""

    colour: str = param("black", f"{', '.join(COLOURS)}, or #rrggbb")

    name: ClassVar[str] = "solid"
    traits: ClassVar[Traits] = Traits("Solid mask", "basic", "the trivial method")

    def __post_init__(self) -> None:
        super().__post_init__()
        rgb(self.colour)

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        """See `PerImage`."""
        return np.full_like(image, rgb(self.colour))


def _bytes(values: NDArray[np.float32]) -> Images:
    """Rounded (a half to the even number, as OpenCV does) and limited to 0…255."""
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def _check_odd(name: str, kernel: int, field: str = "kernel") -> None:
    if kernel % 2 == 0:
        raise UsageError(f"{name}: {field} is {kernel}, and a kernel has a middle; give {kernel - 1} or {kernel + 1}")
