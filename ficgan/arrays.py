"""Images as arrays and as tensors: conversions that several rooms share."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

__all__ = ["content_key", "resize", "to_pixels", "to_tensor"]

Image = NDArray[np.uint8]


def content_key(image: Image) -> str:
    """Key of an image in the keyed draw: a hash of its pixels, so that its name does not matter."""
    return hashlib.blake2b(np.ascontiguousarray(image).tobytes(), digest_size=16).hexdigest()


def to_tensor(crops: NDArray[np.uint8], device: str) -> torch.Tensor:
    """[B,S,S,3] uint8 RGB → float32 [B,3,S,S] in [−1, 1], channels last, on `device`."""
    import torch

    pixels = torch.from_numpy(crops)
    if device.startswith("cuda"):  # bytes travel, a quarter of floats; from pinned memory beside the GPU's other work
        pixels = pixels.pin_memory().to(device, non_blocking=True)
    x = pixels.permute(0, 3, 1, 2).float().div_(127.5).sub_(1)
    return x.contiguous(memory_format=torch.channels_last)


def to_pixels(images: torch.Tensor) -> NDArray[np.uint8]:
    """[B,3,S,S] in [−1, 1], clipped → [B,S,S,3] uint8 RGB."""
    import torch

    scaled = images.float().clamp(-1, 1).add(1).mul(127.5).round().to(torch.uint8)
    return scaled.permute(0, 2, 3, 1).contiguous().cpu().numpy()


def resize(image: Image, size: int) -> Image:
    """A square image [S,S,3] at size×size: bicubic up, area average down."""
    import cv2

    if image.shape[0] == size:
        return image
    how = cv2.INTER_CUBIC if size > image.shape[0] else cv2.INTER_AREA
    return cast(Image, cv2.resize(image, (size, size), interpolation=how))
