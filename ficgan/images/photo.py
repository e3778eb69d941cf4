"""A photo in memory: its own pixels, an RGB view to work on, and what is needed to write it back as it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.images.colour import Pixels, from_rgb, to_rgb

__all__ = ["Photo"]


@dataclass(frozen=True, eq=False)
class Photo:
    """One still image, upright.

    Args:
        path: Where it came from.
        format: `JPEG`, `PNG`, `WEBP`, `TIFF`, or a format that is only read (`BMP`, `GIF`, `HEIF`, `AVIF`).
        mode: `L`, `LA`, `RGB`, `RGBA` or `CMYK`.
        pixels: The file's own values, [H,W] for `L`, otherwise [H,W,C]; uint8 or uint16; read-only.
        options: How the file was coded (Pillow's save options: tables, subsampling, compression …).
        icc: Colour profile.
        exif: EXIF without orientation, thumbnails and maker notes; written on request only.
        xmp: XMP without thumbnails, embedded images and names of people; written on request only.
        chunks: PNG chunks that say what the colours mean (gAMA, cHRM, sRGB, cICP).
        notes: What could not be carried over, one sentence each.
    """

    path: Path
    format: str
    mode: str
    pixels: Pixels
    options: Mapping[str, Any] = field(default_factory=dict)
    icc: bytes | None = None
    exif: bytes | None = None
    xmp: bytes | None = None
    chunks: tuple[tuple[bytes, bytes], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def depth(self) -> int:
        """Bits per channel, 8 or 16."""
        return 8 * self.pixels.dtype.itemsize

    @cached_property
    def rgb(self) -> NDArray[np.uint8]:
        """The photo as uint8 [H,W,3] RGB, alpha ignored; read-only."""
        view = to_rgb(self.pixels, self.mode, self.icc)
        view.flags.writeable = False
        return view

    def merge(self, result: NDArray[np.uint8], mask: NDArray[np.bool_] | None = None) -> Pixels:
        """Bring a changed RGB image back into the file's own pixels.

        Args:
            result: uint8 [H,W,3] RGB.
            mask: bool [H,W], true where `result` is to be taken; by default wherever it differs from `rgb`.

        Returns:
            Like `pixels`: changed values inside the mask (8 bits scaled to 16, colour to luminance, RGB to CMYK as the
            file needs), the very same values outside; alpha is never touched.

        Raises:
            ValueError: `result` or `mask` does not have the photo's size and type.
        """
        if result.shape != self.rgb.shape or result.dtype != np.uint8:
            raise ValueError(f"result is {result.dtype} {result.shape}, the photo uint8 {self.rgb.shape}")
        if mask is None:
            mask = np.zeros(result.shape[:2], bool)
            for channel in range(3):  # channel by channel: a third of the memory of one big comparison
                mask |= result[..., channel] != self.rgb[..., channel]
        if mask.shape != result.shape[:2] or mask.dtype != np.bool_:
            raise ValueError(f"mask is {mask.dtype} {mask.shape}, expected bool {result.shape[:2]}")
        if not mask.any():
            return self.pixels
        values = from_rgb(result[mask], self.mode, self.depth, self.icc)
        merged = self.pixels.copy()
        if self.mode == "L":
            merged[mask] = values[:, 0]
        else:
            colours = merged[..., : values.shape[1]]  # a view without alpha
            colours[mask] = values
        return merged
