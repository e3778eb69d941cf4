"""The basic anonymisers: a bar, noise, blurs, pixelation, one colour; and the obfuscation of the ImageNet study.

`as_described` is what the paper's text says, `as_released` what its published program computes; their results differ.
Boxes follow PIL, as the study says: (0, 0) is the corner of the first pixel, and a rectangle covers every pixel from
the one its first corner lies in to the one its last corner lies in.
"""

from __future__ import annotations

import math
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.anonymizers.base import ANONYMIZERS, Images, PerImage, Traits, nearest_grey
from ficgan.errors import InputError, UsageError
from ficgan.faces.crops import Alignment, similarity, transform_points
from ficgan.faces.detection import check_image
from ficgan.registry import param

Boxes = NDArray[np.float64]


def sigma_of(kernel: int) -> float:
    """Deviation in pixels of a Gaussian kernel so many pixels wide: OpenCV's and PyTorch's rule (Revelio, §2.1)."""
    return 0.3 * ((kernel - 1) * 0.5 - 1) + 0.8


def scaled_kernel(kernel: int, side: int, of: int = 256) -> int:
    """Odd width that covers as much of a face in a crop of side `side` as `kernel` in one of side `of`."""
    return max(1, 2 * math.floor(kernel * side / of / 2) + 1)


def spread(kernel: int, sigma: float) -> float:
    """Deviation of the taps themselves, pixels: below σ where the kernel cuts the Gaussian short."""
    offsets = np.arange(kernel) - (kernel - 1) / 2
    taps = np.exp(-(offsets**2) / (2 * sigma**2))
    return float(np.sqrt(np.sum(taps * offsets**2) / np.sum(taps)))


# RGB of the colours that have a name.
COLOURS: dict[str, tuple[int, int, int]] = {
    "black": (0, 0, 0),
    "white": (255, 255, 255),
    "grey": (127, 127, 127),
    "mean": (124, 116, 104),  # ImageNet's, (.485, .456, .406)
    "red": (255, 0, 0),
    "green": (0, 255, 0),
    "blue": (0, 0, 255),
}

_BAR = (2.0, 0.8)  # Length and height of the bar over the eyes in eye distances: from temple to temple, brows included
_BAND = (15, 156)  # Rows of 224 that the released program blackens, the end excluded
_TOUCH = 0.71  # Half a pixel's diagonal: a bar at least this thick on either side covers a pixel wherever it lies


def variant() -> Any:
    """The parameter that chooses between the text of the Fantômas paper and its program."""
    return param("as_described", "the paper's text or its program", choices=("as_described", "as_released"))


@ANONYMIZERS.add
class EyeMask(PerImage):
    """A black bar along the eyes (as_described; its size is ours), or rows 15–155 of 224 (Fantômas, §6.1.1)."""

    variant: str = variant()
    scale: float = param(1.0, "size of the bar, 1 the usual one", low=0.1, high=5.0)

    name = "eye-mask"
    traits = Traits("Eye mask", "basic", "Fantômas, §6.1.1", strength="scale")

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        """InputError where, as_described, the eyes are no two points or their bar misses the crop."""
        out = image.copy()
        if self.variant == "as_released":
            middle, reach = sum(_BAND) / 2, (_BAND[1] - _BAND[0]) / 2 * self.scale
            out[np.abs((np.arange(len(image)) + 0.5) * 224 / len(image) - middle) <= reach] = 0
            return out
        left, right = landmarks[:2].astype(np.float64)
        distance = float(np.hypot(*(right - left)))
        if not 0 < distance < math.inf:
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


@ANONYMIZERS.add
class GaussianNoise(PerImage):
    """Noise on every channel of every pixel; as_released cuts the noise to 0…255 before it is added."""

    variant: str = variant()
    sigma: float = param(200.0, "standard deviation, grey levels", low=1.0, high=10000.0)

    name = "gaussian-noise"
    traits = Traits("Gaussian noise", "basic", "Fantômas, §6.1.1", strength="sigma", stochastic=True)

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        noise = rng.standard_normal(image.shape, np.float32) * np.float32(self.sigma)
        if self.variant == "as_released":
            noise = nearest_grey(noise).astype(np.float32)
        return nearest_grey(image + noise)


@ANONYMIZERS.add
class GaussianBlur(PerImage):
    """Gaussian blur of kernel K with deviation 0.3·((K − 1)/2 − 1) + 0.8, OpenCV's rule (Fantômas, §6.1.1).

    as_described takes K in pixels, as Revelio does (§2.1, appendix C), and allows other deviations and widths of
    columns. as_released takes K for 100 px of the crop's width w, 2⌊w·K/200⌋ + 1, and equals OpenCV's blur to the byte.
    """

    variant: str = variant()
    kernel: int = param(29, "side of the kernel, pixels; as_released: in a crop of 100 px", low=3, high=1001)
    sigma: float | None = param(None, "deviation in pixels, in place of the rule's", low=0.1, high=1000)
    kernel_y: int | None = param(None, "height of the kernel where it is no square, pixels", low=1, high=1001)
    sigma_y: float | None = param(None, "deviation along columns, pixels", low=0.1, high=1000)

    name = "gaussian-blur"
    traits = Traits("Gaussian blur", "basic", "Fantômas, §6.1.1", strength="kernel")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant == "as_described":
            _check_odd(self.name, self.kernel)
            _check_odd(self.name, self.kernel_y or 1)
        elif (self.sigma, self.kernel_y, self.sigma_y) != (None, None, None):
            raise UsageError(f"{self.name}: as_released has one kernel and its rule; leave out variant or the others")

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
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
        across = self.kernel, self.sigma or sigma_of(self.kernel)
        along = across if self.kernel_y is None else (self.kernel_y, sigma_of(self.kernel_y))
        return across, (along[0], self.sigma_y or along[1])


@ANONYMIZERS.add
class BoxBlur(PerImage):
    """The mean of a square around every pixel; at the border the image is mirrored (Revelio, defences, 31 px)."""

    kernel: int = param(31, "side of the square, pixels; odd", low=3, high=1001)

    name = "box-blur"
    traits = Traits("Box blur", "basic", "Revelio, defences", strength="kernel")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_odd(self.name, self.kernel)

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        import cv2

        return cast(Images, cv2.blur(image, (self.kernel, self.kernel)))


@ANONYMIZERS.add
class Pixelation(PerImage):
    """The mean of each block (as_described), or almost a point of each (as_released; Fantômas, §6.1.1)."""

    variant: str = variant()
    size: int = param(16, "pixels that remain on either axis", low=1, high=4096)

    name = "pixelation"
    traits = Traits("Pixelation", "basic", "Fantômas, §6.1.1", strength="size")

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        """UsageError where the crop has no more pixels than should remain, so that nothing would be hidden."""
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
class Solid(PerImage):
    """One colour everywhere: nothing is left, the end of every scale."""

    colour: str = param("black", "of all pixels", choices=tuple(COLOURS))

    name = "solid"
    traits = Traits("Solid mask", "basic", "the trivial method")

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        return np.full_like(image, COLOURS[self.colour])


def _check_odd(name: str, kernel: int) -> None:
    if kernel % 2 == 0:
        raise UsageError(f"{name}: a kernel has a middle, and {kernel} is even; give {kernel - 1} or {kernel + 1}")


_MARGIN = 10.0  # a box grows by d / 10 on every side (eq. 2); .1 d rounds differently
# A face's box in eye distances: its centre below the middle of the eyes, width and height. Medians of YuNet's boxes on
# 250 faces of the London and CelebA crops; they reach from the hairline to the chin.
_FACE_CENTRE, _FACE_SIZE = 0.31, (2.1, 2.9)


def obfuscate_blur(
    image: Images, boxes: ArrayLike, variant: Literal["paper", "released"] = "paper", radius: float = 0.1
) -> tuple[Images, NDArray[np.float32]]:
    """A photo [H,W,3] uint8 RGB with its faces blurred by PIL and feathered (Yang et al., appendix B, eqs. 1–5).

    And the feathered mask [H,W]: the share of the blurred photo in each pixel, 0 to 1.

    Args:
        boxes: [M,4] x0, y0, x1, y1 in pixels; they may reach beyond the photo; empty ones are passed over.
        variant: what d is of a box: "paper" its diagonal, "released" its longer side.
        radius: of the blur, as a fraction of the largest d; the paper has 0.1.
    """
    image, boxes = check_image(image), _checked(boxes)
    shape, sides = image.shape[:2], boxes[:, 2:] - boxes[:, :2]
    out, weight, mask = image.copy(), np.zeros(shape, np.float32), np.zeros(shape, np.uint8)
    sizes = np.hypot(*sides.T) if variant == "paper" else sides.max(1, initial=0.0)
    margin = sizes[:, None] / _MARGIN
    spans, seen = _covered_pixels(np.hstack([boxes[:, :2] - margin, boxes[:, 2:] + margin]), shape)
    if not len(spans):
        return out, weight
    # A box far larger than the photo blurs as one that covers it: what is seen of both is one grey.
    sigma = radius * min(float(sizes[seen].max()), 20 * math.hypot(*shape))
    # PIL's blur reaches three box filters far: as far as the mask goes, and as far again to blur what it covers.
    reach = 6 * (math.floor((math.sqrt(4 * sigma**2 + 1) - 1) / 2) + 1)
    left, top = (spans[:, :2].min(axis=0) - reach).clip(0).tolist()
    right, bottom = (spans[:, 2:].max(axis=0) + reach).tolist()
    part = slice(top, min(bottom, shape[0])), slice(left, min(right, shape[1]))
    for x0, y0, x1, y1 in spans:
        mask[y0:y1, x0:x1] = 255
    feathered = _gaussian(mask[part], sigma)  # eq. 3
    weight[part] = np.divide(feathered, 255, dtype=np.float32)
    share = feathered[..., None].astype(np.uint16)
    blurred = _gaussian(image[part], sigma)  # eq. 4
    out[part] = (share * blurred + (255 - share) * image[part] + 127) // 255  # eq. 5
    return out, weight


def obfuscate_overlay(image: Images, boxes: ArrayLike, colour: str = "mean") -> Images:
    """A photo [H,W,3] uint8 RGB with its boxes [M,4], not enlarged, in one colour (Yang et al., §4, appendix C)."""
    image, fill = check_image(image), COLOURS[colour]
    out = image.copy()
    for x0, y0, x1, y1 in _covered_pixels(_checked(boxes), image.shape[:2])[0]:
        out[y0:y1, x0:x1] = fill
    return out


def face_box(landmarks: NDArray[np.floating]) -> Boxes:
    """The upright box [4] of 2.1 × 2.9 eye distances about landmarks [5,2], in PIL's coordinates."""
    usual = Alignment().points(1)
    matrix = similarity(usual, landmarks)
    apart = float(usual[1, 0] - usual[0, 0])
    middle = usual[:2].mean(0) + np.array([0.0, _FACE_CENTRE * apart])
    centre = transform_points(matrix, middle) + 0.5
    half = np.hypot(*matrix[:, 0]) * apart / 2 * np.array(_FACE_SIZE)
    return np.concatenate([centre - half, centre + half])


@ANONYMIZERS.add
class ObfuscationBlur(PerImage):
    """The feathered blur of `obfuscate_blur`; a crop's box is `face_box` of its landmarks."""

    variant: Literal["paper", "released"] = param(
        "paper", "d is the box's diagonal (paper) or longer side (released)", choices=("paper", "released")
    )
    radius: float = param(0.1, "radius of the blur as a fraction of d", low=0.01, high=1.0)

    name = "obfuscation-blur"
    traits = Traits(
        "Obfuscation blur", "obfuscation", "Face obfuscation in ImageNet, app. B", strength="radius", domain="scene"
    )

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        return obfuscate_blur(image, face_box(landmarks)[None], self.variant, self.radius)[0]


@ANONYMIZERS.add
class ObfuscationOverlay(PerImage):
    """The overlay of `obfuscate_overlay`; a crop's box is `face_box` of its landmarks."""

    colour: str = param("mean", "of the overlay", choices=("mean", "red", "green", "blue"))

    name = "obfuscation-overlay"
    traits = Traits("Obfuscation overlay", "obfuscation", "Face obfuscation in ImageNet, §4 and app. C", domain="scene")

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        return obfuscate_overlay(image, face_box(landmarks)[None], self.colour)


def _checked(boxes: ArrayLike) -> Boxes:
    array = np.asarray(boxes, np.float64)
    array = array if array.size else array.reshape(0, 4)
    if array.ndim != 2 or array.shape[1] != 4 or not np.isfinite(array).all():
        raise InputError(f"face boxes must be [M,4] finite numbers x0, y0, x1, y1, not of shape {list(array.shape)}")
    return array[(array[:, 2:] > array[:, :2]).all(1)]


def _covered_pixels(boxes: Boxes, shape: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Whole pixels [M,4] that PIL's rectangle covers, the ends excluded, of the boxes that meet the photo; which do."""
    meets: NDArray[np.bool_] = np.all(np.hstack([boxes[:, :2] < (shape[1], shape[0]), boxes[:, 2:] > 0]), axis=1)
    inside = boxes[meets].clip(0, np.array([shape[1], shape[0]] * 2) - 1).astype(np.int64)
    inside[:, 2:] += 1
    return inside, meets


def _gaussian(pixels: NDArray[np.uint8], sigma: float) -> NDArray[np.uint8]:
    """PIL's Gaussian blur of [H,W] or [H,W,3]."""
    from PIL import Image, ImageFilter

    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).filter(ImageFilter.GaussianBlur(sigma)))
