"""Decoded pictures to upright RGB and back, by the matrix and range that the film states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import av

__all__ = ["IDENTITY", "Orientation", "RGBReader", "fit", "is_full_range", "matrix_of", "orientation_of", "turn"]

Image = NDArray[np.uint8]
Orientation = tuple[bool, bool, bool]
"""Transposed, then mirrored left to right, then top to bottom: the eight positions of a picture."""

IDENTITY: Orientation = (False, False, False)
_ROTATIONS = {IDENTITY: 0, (True, True, False): 90, (False, True, True): 180, (True, False, True): 270}

# swscale's numbers of the matrices by FFmpeg's AVColorSpace: BT.709, FCC, BT.601 (two names), SMPTE 240M, BT.2020.
_MATRICES = {1: 1, 4: 4, 5: 5, 6: 5, 7: 7, 9: 9, 10: 9}
_BT709, _BT601 = 1, 5
_FULL_RANGE = 2


def matrix_of(colour_space: int, width: int, height: int) -> int:
    """swscale's number of the luma and chroma matrix.

    Args:
        colour_space: FFmpeg's AVColorSpace.
        width: Of the stored picture, pixels.
        height: Likewise.

    Returns:
        The stated matrix; where none is stated BT.709 for pictures of 1280 columns or of more than 576 lines, otherwise
        BT.601, as players guess.
    """
    return _MATRICES.get(colour_space, _BT709 if width >= 1280 or height > 576 else _BT601)


def is_full_range(pixel_format: str, colour_range: int) -> bool:
    """Whether luma runs from 0 to 255 (`pc`) and not from 16 to 235 (`tv`)."""
    return colour_range == _FULL_RANGE or pixel_format.startswith("yuvj")


def orientation_of(matrix: NDArray[np.int32] | None) -> Orientation | None:
    """How a picture is to be turned.

    Args:
        matrix: FFmpeg's display matrix, nine numbers [a b u; c d v; x y w]: x' = a·x + c·y, y' = b·x + d·y.

    Returns:
        The orientation; None where the matrix turns by anything but quarters.
    """
    if matrix is None:
        return IDENTITY
    a, b, c, d = (float(matrix[i]) for i in (0, 1, 3, 4))
    straight, crossed = min(abs(a), abs(d)), min(abs(b), abs(c))
    if crossed < 0.01 * straight:
        return False, a < 0, d < 0
    if straight < 0.01 * crossed:
        return True, c < 0, b < 0
    return None


def rotation_of(orientation: Orientation) -> int | None:
    """Clockwise degrees; None for mirrored pictures."""
    return _ROTATIONS.get(orientation)


def turn(image: Image, orientation: Orientation) -> Image:
    """Turn a picture upright."""
    transposed, mirrored, upended = orientation
    if transposed:
        image = cv2.transpose(image)
    if mirrored or upended:
        image = cv2.flip(image, -1 if mirrored and upended else int(mirrored))
    return image


def fit(image: Image, width: int, height: int) -> Image:
    """Scale a picture into another size, its shape kept, the rest black.

    Args:
        image: uint8 [H,W,3].
        width: Wanted, pixels.
        height: Likewise.

    Returns:
        uint8 [height,width,3].
    """
    rows, columns = image.shape[:2]
    scale = min(width / columns, height / rows)
    w, h = max(1, min(width, round(columns * scale))), max(1, min(height, round(rows * scale)))
    inside = cv2.resize(image, (w, h), interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    out = np.zeros((height, width, 3), np.uint8)
    top, left = (height - h) // 2, (width - w) // 2
    out[top : top + h, left : left + w] = inside
    return out


class RGBReader:
    """Turns decoded frames into upright RGB; keeps swscale's tables from frame to frame."""

    def __init__(self) -> None:
        from av.video.reformatter import VideoReformatter

        self._reformatter = VideoReformatter()

    def __call__(self, frame: av.VideoFrame, orientation: Orientation = IDENTITY) -> Image:
        """Convert one frame.

        Args:
            frame: As decoded.
            orientation: How to turn it.

        Returns:
            uint8 [H,W,3], contiguous; the memory is the converted frame's own where no row is padded.
        """
        full = is_full_range(frame.format.name, frame.color_range)
        converted = self._reformatter.reformat(
            frame,
            format="rgb24",
            src_colorspace=None if frame.format.is_rgb else matrix_of(frame.colorspace, frame.width, frame.height),
            src_color_range=2 if full or frame.format.is_rgb else 1,
            dst_color_range=_FULL_RANGE,
            threads=1,
        )
        image: NDArray[Any] = converted.to_ndarray()
        return np.ascontiguousarray(turn(image, orientation))
