"""Face obfuscation as in the ImageNet study: a blur whose edge is feathered, and overlays of one colour.

Boxes follow PIL, as the paper says: (0, 0) is the corner of the first pixel, and a rectangle covers every pixel from
the one its first corner lies in to the one its last corner lies in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.anonymizers.base import ANONYMIZERS, Images, PerImage, Traits
from ficgan.anonymizers.basic import rgb
from ficgan.errors import InputError, UsageError
from ficgan.faces.alignment import Alignment, similarity, transform_points
from ficgan.faces.detection import check_image
from ficgan.registry import param

__all__ = ["ObfuscationBlur", "ObfuscationOverlay", "blur_weight", "face_box", "obfuscate_blur", "obfuscate_overlay"]

Boxes = NDArray[np.float64]
Span = NDArray[np.int64]  # [M,4] x0, y0, x1, y1 in whole pixels, the ends excluded

_MARGIN = 0.1
"""By how much of d a box grows on every side."""
_FACE_CENTRE, _FACE_SIZE = 0.31, (2.1, 2.9)
"""A face's box in eye distances: its centre below the middle of the eyes, width and height. Medians of what YuNet finds
on 250 faces of the London and CelebA crops; its boxes reach from the hairline to the chin."""


def obfuscate_blur(
    image: Images, boxes: ArrayLike, variant: Literal["paper", "released"] = "paper", radius: float = 0.1
) -> Images:
    """A photo with its faces blurred, fading into what is around them.

    The blur is PIL's, three box blurs that resemble a Gaussian of standard deviation `radius`·d, because the study's
    images were made with it; it also takes the same time for every radius. Only the rectangles that the blurred mask
    reaches are computed, to the same bytes as on the whole photo.

    Args:
        image: [H,W,3] uint8 RGB; not changed.
        boxes: [M,4] x0, y0, x1, y1 in pixels; they may reach beyond the photo; boxes without area are passed over.
        variant: what d is of a box: "paper" its diagonal, "released" its longer side, as in the published program.
        radius: of the blur, as a fraction of the largest d; the paper has 0.1.

    Returns:
        [H,W,3] uint8 RGB; bit-identical to the input beyond about 3·`radius`·d from the enlarged boxes.

    Raises:
        InputError: no uint8 RGB image, or no boxes of finite numbers.
        UsageError: an unknown variant or a radius that is not above 0.

    Source: Yang et al., A Study of Face Obfuscation in ImageNet, appendix B, eqs. 1–5.
    """
    if variant not in ("paper", "released"):
        raise UsageError(f"the variant is {variant!r}; use paper or released")
    if not (math.isfinite(radius) and radius > 0):
        raise UsageError(f"the radius of the blur is {radius}; give a fraction of the box above 0")
    image = check_image(image)
    spans, sizes = _enlarged(_checked(boxes), variant, image.shape[:2])
    out = image.copy()
    if not len(spans):
        return out
    sigma = radius * float(sizes.max())
    reach = _reach(sigma)
    for x0, y0, x1, y1 in _merged(_grown(spans, reach, image.shape[:2])):
        # What is around the rectangle is needed to blur inside of it.
        left, top, right, bottom = _grown(np.array([[x0, y0, x1, y1]]), reach, image.shape[:2])[0]
        region, mask = image[top:bottom, left:right], np.zeros((bottom - top, right - left), np.uint8)
        for a, b, c, d in (spans - (left, top, left, top)).clip(0):
            mask[b:d, a:c] = 255
        inner = np.s_[y0 - top : y1 - top, x0 - left : x1 - left]
        weight = _gaussian(mask, sigma)[inner][..., None].astype(np.uint16)  # eq. 3
        blurred = _gaussian(region, sigma)[inner]  # eq. 4
        out[y0:y1, x0:x1] = (weight * blurred + (255 - weight) * region[inner] + 127) // 255  # eq. 5
    return out


def blur_weight(
    shape: tuple[int, int], boxes: ArrayLike, variant: Literal["paper", "released"] = "paper", radius: float = 0.1
) -> NDArray[np.float32]:
    """How much of each pixel `obfuscate_blur` takes from the blurred photo: its feathered mask.

    Args:
        shape: height and width of the photo.
        boxes, variant, radius: as of `obfuscate_blur`.

    Returns:
        [H,W] from 0 to 1.
    """
    mask = np.zeros(shape, np.uint8)
    spans, sizes = _enlarged(_checked(boxes), variant, shape)
    for x0, y0, x1, y1 in spans:
        mask[y0:y1, x0:x1] = 255
    blurred = _gaussian(mask, radius * float(sizes.max())) if len(spans) else mask
    return np.divide(blurred, 255, dtype=np.float32)


def obfuscate_overlay(image: Images, boxes: ArrayLike, colour: str = "mean") -> Images:
    """A photo with its faces covered by one colour.

    The boxes are covered as they are: the paper enlarges them for the blur only, whose edge lets half of the face
    through; an overlay "removes all information in a face bounding box".

    Args:
        image: [H,W,3] uint8 RGB; not changed.
        boxes: [M,4] x0, y0, x1, y1 in pixels; they may reach beyond the photo; boxes without area are passed over.
        colour: "mean", "red", "green", "blue" as in the paper, or another that `ficgan.anonymizers.basic.rgb` reads.

    Returns:
        [H,W,3] uint8 RGB; bit-identical to the input outside of the boxes.

    Raises:
        InputError: no uint8 RGB image, or no boxes of finite numbers.
        UsageError: no such colour.

    Source: Yang et al., A Study of Face Obfuscation in ImageNet, §4 and appendix C.
    """
    image, fill = check_image(image), rgb(colour)
    out = image.copy()
    for x0, y0, x1, y1 in _pixels(_checked(boxes), image.shape[:2]):
        out[y0:y1, x0:x1] = fill
    return out


def face_box(landmarks: NDArray[np.floating]) -> Boxes:
    """The box that a detector would give to a face, from its five landmarks.

    The default alignment's landmarks are laid on these by a similarity, and with them a box of 2.1 × 2.9 eye distances,
    which stays upright: in an aligned crop the eyes are level.

    Args:
        landmarks: [5,2], pixels, centres at integers, in the order of `ficgan.faces.Face`.

    Returns:
        float64 [4] x0, y0, x1, y1 in PIL's coordinates; it may reach beyond the crop.

    Raises:
        InputError: the landmarks are not five finite, distinct points.
    """
    usual = Alignment().points(1)
    matrix = similarity(usual, landmarks)
    apart = float(usual[1, 0] - usual[0, 0])
    middle = usual[:2].mean(0) + np.array([0.0, _FACE_CENTRE * apart])
    centre = transform_points(matrix, middle) + 0.5
    half = np.hypot(*matrix[:, 0]) * apart / 2 * np.array(_FACE_SIZE)
    return np.concatenate([centre - half, centre + half])


@ANONYMIZERS.add
@dataclass(frozen=True)
class ObfuscationBlur(PerImage):
    """The feathered blur of `obfuscate_blur`; the box of a crop is `face_box` of its landmarks.

    Source: Yang et al., A Study of Face Obfuscation in ImageNet, appendix B.
    """

    variant: Literal["paper", "released"] = param(
        "paper", "d is the box's diagonal (paper) or longer side (released)", choices=("paper", "released")
    )
    radius: float = param(0.1, "radius of the blur as a fraction of d", low=0.01, high=1.0)

    name: ClassVar[str] = "obfuscation-blur"
    traits: ClassVar[Traits] = Traits(
        "Obfuscation blur", "obfuscation", "Face obfuscation in ImageNet, app. B", strength="radius", domain="scene"
    )

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        """See `PerImage`."""
        return obfuscate_blur(image, face_box(landmarks)[None], self.variant, self.radius)


@ANONYMIZERS.add
@dataclass(frozen=True)
class ObfuscationOverlay(PerImage):
    """The overlay of `obfuscate_overlay`; the box of a crop is `face_box` of its landmarks.

    Source: Yang et al., A Study of Face Obfuscation in ImageNet, §4 and appendix C.
    """

    colour: str = param("mean", "of the overlay", choices=("mean", "red", "green", "blue"))

    name: ClassVar[str] = "obfuscation-overlay"
    traits: ClassVar[Traits] = Traits(
        "Obfuscation overlay", "obfuscation", "Face obfuscation in ImageNet, §4 and app. C", domain="scene"
    )

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        """See `PerImage`."""
        return obfuscate_overlay(image, face_box(landmarks)[None], self.colour)


def _checked(boxes: ArrayLike) -> Boxes:
    array = np.asarray(boxes, np.float64)
    array = array.reshape(0, 4) if not array.size else array
    if array.ndim != 2 or array.shape[1] != 4 or not np.isfinite(array).all():
        raise InputError(f"face boxes must be [M,4] finite numbers x0, y0, x1, y1, not of shape {list(array.shape)}")
    return array[(array[:, 2:] > array[:, :2]).all(1)]


def _enlarged(boxes: Boxes, variant: str, shape: tuple[int, ...]) -> tuple[Span, Boxes]:
    """Eq. 2: the enlarged boxes in the photo, and d of each."""
    sides = boxes[:, 2:] - boxes[:, :2]
    sizes = np.hypot(*sides.T) if variant == "paper" else sides.max(1, initial=0.0)
    margin = _MARGIN * sizes[:, None]
    grown = np.hstack([boxes[:, :2] - margin, boxes[:, 2:] + margin])
    seen = _meets(grown, shape)
    # A box far larger than the photo blurs as one that covers it: what is seen of both is one grey.
    return _pixels(grown, shape), sizes[seen].clip(max=20 * math.hypot(*shape))


def _meets(boxes: Boxes, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    starts, ends = boxes[:, :2] < (shape[1], shape[0]), boxes[:, 2:] > 0
    return np.logical_and(starts.all(axis=1), ends.all(axis=1), dtype=np.bool_)


def _pixels(boxes: Boxes, shape: tuple[int, ...]) -> Span:
    """The pixels that PIL's rectangle covers, of the boxes that meet the photo."""
    boxes = boxes[_meets(boxes, shape)]
    last = np.array([shape[1], shape[0]] * 2) - 1
    inside = boxes.clip(0, last).astype(np.int64)
    inside[:, 2:] += 1
    return inside


def _grown(spans: Span, reach: int, shape: tuple[int, ...]) -> Span:
    limits = np.array([shape[1], shape[0]] * 2)
    return (spans + np.array([-reach, -reach, reach, reach])).clip(0, limits)


def _merged(spans: Span) -> list[tuple[int, int, int, int]]:
    """Few rectangles that together hold all that were given; one holds whatever overlaps it."""
    apart = []
    while len(spans):
        one, spans = spans[0], spans[1:]
        while (near := (spans[:, :2] < one[2:]).all(1) & (one[:2] < spans[:, 2:]).all(1)).any():
            joined = np.vstack([one[None], spans[near]])
            one, spans = np.concatenate([joined[:, :2].min(0), joined[:, 2:].max(0)]), spans[~near]
        apart.append(one)
    return [(int(a), int(b), int(c), int(d)) for a, b, c, d in apart]


def _gaussian(pixels: NDArray[np.uint8], sigma: float) -> NDArray[np.uint8]:
    """PIL's Gaussian blur of [H,W] or [H,W,3]."""
    from PIL import Image, ImageFilter

    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).filter(ImageFilter.GaussianBlur(sigma)))


def _reach(sigma: float) -> int:
    """How far PIL's blur carries a pixel: three boxes of the same variance, each with a share of one more pixel."""
    box = (math.sqrt(4 * sigma**2 + 1) - 1) / 2
    return 3 * (math.floor(box) + 1)
