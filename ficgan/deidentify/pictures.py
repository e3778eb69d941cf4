"""What a caller may hand over as an image: arrays, PIL images, paths."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.images import Photo, read_image

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage

__all__ = ["Picture", "as_photo"]

Picture: TypeAlias = "NDArray[Any] | PILImage | str | os.PathLike[str]"
_MODES = {(): "L", (3,): "RGB", (4,): "RGBA"}


def as_photo(image: Any, *, bgr: bool = False) -> Photo:
    """A photo of what was given; its pixels are those of the array, not a copy.

    Args:
        image: array [H,W], [H,W,3] or [H,W,4], uint8 or uint16; a PIL image, turned upright; or the path of a file.
        bgr: an array's channels are in the order of OpenCV.

    Raises:
        InputError: it is no such image.
    """
    if isinstance(image, str | os.PathLike):
        return read_image(image)
    if not isinstance(image, np.ndarray):
        image = _from_pil(image)
    mode = _MODES.get(image.shape[2:]) if image.ndim in (2, 3) else None
    if mode is None or image.dtype not in (np.uint8, np.uint16):
        raise InputError(
            "An image must be an array H×W×3 (RGB), H×W×4 (RGBA) or H×W (grey) of uint8 or uint16, a PIL image or a "
            f"path, got {image.dtype} {image.shape}: convert it first."
        )
    if image.size == 0:
        raise InputError(f"The image is empty ({image.shape[1]}×{image.shape[0]} pixels).")
    if bgr and mode != "L":
        image = np.ascontiguousarray(image[..., [2, 1, 0, 3][: image.shape[2]]])
    return Photo(Path("image"), "PNG", mode, image)


def _from_pil(image: Any) -> NDArray[Any]:
    from PIL import Image, ImageOps

    if not isinstance(image, Image.Image):
        raise InputError(f"An image must be an array, a PIL image or a path, got {type(image).__name__}.")
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I;16"):
        return np.array(upright).astype(np.uint16)
    if upright.mode in ("I", "F"):
        raise InputError(f"A PIL image of mode {upright.mode} has no fixed range: convert it to 8 or 16 bits first.")
    grey = upright.mode in ("1", "L")
    return np.array(upright.convert("RGBA" if upright.has_transparency_data else "L" if grey else "RGB"))
