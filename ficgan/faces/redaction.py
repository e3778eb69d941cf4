"""Covering a face without a new one: solid, blurred or in blocks. Blur and blocks can be reversed; solid cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ficgan.errors import UsageError
from ficgan.faces.blend import Mask, Paste
from ficgan.faces.detection import Face, Image, check_image

# Detectors' boxes end at the brow and the chin; this brings hairline and ears under the mask.
_MARGIN = 1.3


def solid_mask(
    image: Image, face: Face, *, colour: tuple[int, int, int] = (0, 0, 0), mask_scale: float = 1.0, feather: float = 0.1
) -> Paste:
    """A photo with a face covered by one colour.

    Args:
        image: uint8 [H, W, 3], RGB; not changed.
        face: The face; its box counts, its landmarks do not.
        colour: RGB, 0..255.
        mask_scale: Size of the cover; 1 is 1.3 times the box, all of it fully covered.
        feather: Width of the soft edge as a fraction of the cover's size, outside of it.

    Returns:
        A `Paste`; where its mask is 0 the image is bit-identical to the input.

    Raises:
        InputError: The image is no H×W×3 uint8 array.
        UsageError: mask_scale or feather is out of range.
    """
    return _cover(image, face, lambda region, side: np.full_like(region, colour), mask_scale, feather)


def blur_face(
    image: Image, face: Face, *, strength: float = 0.12, mask_scale: float = 1.0, feather: float = 0.1
) -> Paste:
    """A photo with a face blurred (reversible: see the warnings of the command line).

    Args:
        image, face, mask_scale, feather: As in `solid_mask`.
        strength: Standard deviation of the Gaussian as a fraction of the box's longer side.
    """
    import cv2

    def fill(region: Image, side: float) -> Image:
        blurred: Any = cv2.GaussianBlur(region, (0, 0), max(strength * side, 0.5), borderType=cv2.BORDER_REPLICATE)
        return blurred

    return _cover(image, face, fill, mask_scale, feather)


def mosaic_face(image: Image, face: Face, *, blocks: int = 8, mask_scale: float = 1.0, feather: float = 0.1) -> Paste:
    """A photo with a face in blocks of their mean colour (reversible: see the warnings of the command line).

    Args:
        image, face, mask_scale, feather: As in `solid_mask`.
        blocks: Blocks along the box's longer side.
    """
    import cv2

    def fill(region: Image, side: float) -> Image:
        height, width = region.shape[:2]
        block = max(1.0, side / max(1, blocks))
        small = cv2.resize(
            region, (max(1, round(width / block)), max(1, round(height / block))), interpolation=cv2.INTER_AREA
        )
        blocky: Any = cv2.resize(small, (width, height), interpolation=cv2.INTER_NEAREST)
        return blocky

    return _cover(image, face, fill, mask_scale, feather)


def _cover(image: Image, face: Face, fill: Callable[[Image, float], Image], mask_scale: float, feather: float) -> Paste:
    image = check_image(image)
    if not 0.0 < mask_scale <= 4.0:
        raise UsageError(f"The mask scale is {mask_scale}: give a factor above 0 and at most 4.")
    if not 0.0 <= feather <= 1.0:
        raise UsageError(f"The feather is {feather}: give a fraction of the cover's size between 0 and 1.")
    box = np.asarray(face.box, dtype=np.float64)
    centre, sides = (box[:2] + box[2:]) / 2, (box[2:] - box[:2]).clip(1)
    half = sides / 2 * _MARGIN * mask_scale
    height, width = image.shape[:2]
    reach = half * (1 + feather) + 2
    x0, y0 = (int(v) for v in np.floor(centre - reach).clip(0, (width, height)))
    x1, y1 = (int(v) for v in np.ceil(centre + reach).clip(0, (width, height)))
    mask: Mask = np.zeros((height, width), dtype=np.float32)
    result = image.copy()
    if x1 <= x0 or y1 <= y0:
        return Paste(result, mask)
    y, x = np.mgrid[y0:y1, x0:x1] + 0.5
    # A rounded rectangle: the super-ellipse of exponent 4 around the cover, 1 on its edge.
    radius = (((x - centre[0]) / half[0]) ** 4 + ((y - centre[1]) / half[1]) ** 4) ** 0.25
    edge = max(feather, 1.0 / half.min())
    ramp = ((1 + edge - radius) / edge).clip(0, 1)
    weight = (ramp * ramp * (3 - 2 * ramp)).astype(np.float32)
    region = image[y0:y1, x0:x1]
    mixed = region + weight[..., None] * (fill(region, float(sides.max())).astype(np.float32) - region)
    inside = weight > 0
    result[y0:y1, x0:x1][inside] = np.rint(mixed[inside]).clip(0, 255).astype(np.uint8)
    mask[y0:y1, x0:x1] = weight
    return Paste(result, mask)
