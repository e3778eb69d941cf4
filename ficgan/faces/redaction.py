"""Covering a face without a new one: solid, blurred or in blocks. Blur and blocks can be reversed; solid cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ficgan.errors import UsageError
from ficgan.faces.blend import Paste, mix, nothing
from ficgan.faces.detection import Face, Image, check_image

# Detectors' boxes end at the brow and the chin; this brings hairline and ears under the mask.
_MARGIN = 1.3
_SIGMA = 4.0
"""Widest Gaussian in pixels that is computed at full size."""


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

    def fill(region: Image, side: float) -> Image:
        return _blurred(region, max(strength * side, 0.5))

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
    if x1 <= x0 or y1 <= y0:
        return nothing(image)
    rows, columns = np.ogrid[y0:y1, x0:x1]
    y, x = (rows + 0.5).astype(np.float32), (columns + 0.5).astype(np.float32)
    # A rounded rectangle: the super-ellipse of exponent 4 around the cover, 1 on its edge.
    radius = np.sqrt(np.sqrt((((x - centre[0]) / half[0]) ** 4 + ((y - centre[1]) / half[1]) ** 4).astype(np.float32)))
    edge = max(feather, 1.0 / float(half.min()))
    ramp = ((1 + edge - radius) / edge).clip(0, 1)
    weight = ramp * ramp * (3 - 2 * ramp)
    return mix(image, x0, y0, fill(image[y0:y1, x0:x1], float(sides.max())), weight)


def _blurred(region: Image, sigma: float) -> Image:
    """Gaussian blur; a wide one on a reduced copy, which looks the same and costs a fraction."""
    import cv2

    height, width = region.shape[:2]
    factor = max(1.0, sigma / _SIGMA)
    small = max(1, round(width / factor)), max(1, round(height / factor))
    reduced = region if small == (width, height) else cv2.resize(region, small, interpolation=cv2.INTER_AREA)
    sigmas = sigma * small[0] / width, sigma * small[1] / height
    blurred: Any = cv2.GaussianBlur(reduced, (0, 0), sigmas[0], sigmaY=sigmas[1], borderType=cv2.BORDER_REPLICATE)
    if small != (width, height):
        blurred = cv2.resize(blurred, (width, height), interpolation=cv2.INTER_LINEAR)
    return blurred
