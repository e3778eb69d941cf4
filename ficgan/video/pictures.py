"""Decoded pictures as RGB: colours as the film states them, upright, in the size that is wanted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import av
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

Image = NDArray[np.uint8]
# Transposed, then mirrored left to right, then top to bottom: the eight positions of a picture.
Orientation = tuple[bool, bool, bool]
IDENTITY: Orientation = (False, False, False)
# swscale's numbers of the matrices by FFmpeg's AVColorSpace: BT.709, FCC, BT.601 (two names), SMPTE 240M, BT.2020.
_MATRICES = {1: 1, 4: 4, 5: 5, 6: 5, 7: 7, 9: 9, 10: 9}
_BT709, _BT601 = 1, 5
_FULL_RANGE = 2


def matrix_of(colour_space: int, width: int, height: int) -> int:
    """swscale's number of the matrix of an AVColorSpace; where none is stated, as players choose it."""
    return _MATRICES.get(colour_space, _BT709 if width >= 1280 or height > 576 else _BT601)


def is_full_range(pixel_format: str, colour_range: int) -> bool:
    """Whether luma runs from 0 to 255 (`pc`) and not from 16 to 235 (`tv`)."""
    return colour_range == _FULL_RANGE or pixel_format.startswith("yuvj")


def exact_reformat() -> Callable[..., av.VideoFrame]:
    """A reformatter that keeps swscale's tables and rounds: by its quick ways a film gets darker by 1 of 255."""
    exact = Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT | Interpolation.FULL_CHR_H_INP
    return partial(VideoReformatter().reformat, interpolation=Interpolation.BILINEAR | exact, threads=1)


class RGBReader:
    """Turns decoded frames into upright RGB; `quick`: a little too dark, in .7 ms in place of 11 for 1920×1080."""

    def __init__(self, *, quick: bool = False) -> None:
        self._reformat = exact_reformat()
        self._options = {"interpolation": None} if quick else {}

    def __call__(self, frame: av.VideoFrame, orientation: Orientation = IDENTITY) -> Image:
        """An upright picture uint8 [H,W,3], contiguous."""
        import cv2

        full, rgb = is_full_range(frame.format.name, frame.color_range), frame.format.is_rgb
        converted = self._reformat(
            frame,
            format="rgb24",
            src_colorspace=None if rgb else matrix_of(frame.colorspace, frame.width, frame.height),
            src_color_range=2 if full or rgb else 1,
            dst_color_range=_FULL_RANGE,
            **self._options,
        )
        image: Any = converted.to_ndarray()
        transposed, mirrored, upended = orientation
        if transposed:
            image = cv2.transpose(image)
        if mirrored or upended:
            image = cv2.flip(image, -1 if mirrored and upended else int(mirrored))
        return np.ascontiguousarray(image)


def orientation_of(frame: Any) -> Orientation:
    """How a decoded frame is to be turned, in quarters. Asked once, as its side data goes.

    FFmpeg's display matrix [a b u; c d v; x y w] turns a picture so: x' = a·x + c·y, y' = b·x + d·y.
    """
    data = frame.side_data
    side = data.get("DISPLAYMATRIX") if len(data) else None
    matrix = None if side is None else np.frombuffer(bytes(side), np.int32)
    # Frame and side data hold each other, and pictures would wait for the garbage collector by the hundred.
    data.__init__(av.VideoFrame())
    if matrix is None:
        return IDENTITY
    a, b, c, d = (float(matrix[i]) for i in (0, 1, 3, 4))
    straight, crossed = min(abs(a), abs(d)), min(abs(b), abs(c))
    if crossed < 0.01 * straight:
        return False, a < 0, d < 0
    return (True, c < 0, b < 0) if straight < 0.01 * crossed else IDENTITY


def scaled(image: Image, size: tuple[int, int], *, keep_shape: bool = True) -> Image:
    """A picture in another size; where its shape is kept the rest is black."""
    import cv2

    if not keep_shape:
        return cv2.resize(image, size, interpolation=cv2.INTER_CUBIC)
    (width, height), (rows, columns) = size, image.shape[:2]
    scale = min(width / columns, height / rows)
    w, h = max(1, min(width, round(columns * scale))), max(1, min(height, round(rows * scale)))
    out = np.zeros((height, width, 3), np.uint8)
    top, left = (height - h) // 2, (width - w) // 2
    how = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    out[top : top + h, left : left + w] = cv2.resize(image, (w, h), interpolation=how)
    return out
