"""From a file's own pixels to 8-bit RGB and back again: grey, 16 bits and CMYK."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

__all__ = ["from_rgb", "to_rgb", "to_uint8", "to_uint16"]

Pixels = NDArray[np.uint8] | NDArray[np.uint16]


def to_uint8(pixels: Pixels) -> NDArray[np.uint8]:
    """16 bits to 8: round(v / 257), exactly; 8 bits pass through."""
    if pixels.dtype == np.uint8:
        return pixels.astype(np.uint8, copy=False)
    wide = pixels.astype(np.uint32)
    wide *= 255
    wide += 32895  # (255 v + 32895) >> 16 equals round(v / 257) for every v in 0…65535
    wide >>= 16
    return wide.astype(np.uint8)


def to_uint16(values: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """8 bits to 16: 257 v, so that 0 and 255 meet 0 and 65535; the right inverse of `to_uint8`."""
    return values.astype(np.uint16) * np.uint16(257)


def to_rgb(pixels: Pixels, mode: str, icc: bytes | None) -> NDArray[np.uint8]:
    """The 8-bit RGB view of native pixels, alpha ignored.

    Args:
        pixels: [H,W] or [H,W,C], uint8 or uint16.
        mode: `L`, `LA`, `RGB`, `RGBA` or `CMYK`.
        icc: Embedded profile; used for CMYK only, where numbers without it mean little.

    Returns:
        uint8 [H,W,3].
    """
    if mode == "CMYK":
        return _cmyk_to_rgb(to_uint8(pixels), icc)
    if mode in ("RGB", "RGBA"):
        return to_uint8(pixels[..., :3])
    grey = to_uint8(pixels if mode == "L" else pixels[..., 0])
    return np.repeat(grey[..., None], 3, axis=2)


def from_rgb(values: NDArray[np.uint8], mode: str, depth: int, icc: bytes | None) -> Pixels:
    """Colours written back into a file's own terms, alpha left out.

    Args:
        values: uint8 [N,3].
        mode: As in `to_rgb`.
        depth: 8 or 16 bits.
        icc: Embedded profile, for CMYK.

    Returns:
        [N,1] luminance (ITU-R BT.601), [N,3] RGB or [N,4] CMYK, uint8 or uint16.
    """
    if mode == "CMYK":
        return _rgb_to_cmyk(values, icc)
    if mode in ("L", "LA"):
        weights = np.array([19595, 38470, 7471], np.uint32)  # 0.299, 0.587, 0.114 in 1/65536
        values = ((values.astype(np.uint32) @ weights + 32768) >> 16).astype(np.uint8)[:, None]
    return to_uint16(values) if depth == 16 else values


def _cmyk_to_rgb(pixels: NDArray[np.uint8], icc: bytes | None) -> NDArray[np.uint8]:
    profile = _profile(icc)
    if profile is not None:
        image = Image.fromarray(pixels, "CMYK")
        converted = ImageCms.profileToProfile(image, profile, ImageCms.createProfile("sRGB"), outputMode="RGB")
        assert converted is not None
        return np.asarray(converted)
    ink = 255 - pixels.astype(np.uint16)  # no profile: R = (1 − C)(1 − K)
    return ((ink[..., :3] * ink[..., 3:] + 127) // 255).astype(np.uint8)


def _rgb_to_cmyk(values: NDArray[np.uint8], icc: bytes | None) -> NDArray[np.uint8]:
    profile = _profile(icc)
    if profile is not None:
        image = Image.fromarray(np.ascontiguousarray(values)[None])
        converted = ImageCms.profileToProfile(image, ImageCms.createProfile("sRGB"), profile, outputMode="CMYK")
        assert converted is not None
        return np.asarray(converted)[0]
    light = values.max(axis=1, keepdims=True).astype(np.uint16)  # all common darkness goes into K
    scaled = (values.astype(np.uint16) * 255 + light // 2) // np.maximum(light, 1)
    return np.concatenate([255 - np.where(light == 0, 255, scaled), 255 - light], axis=1).astype(np.uint8)


def _profile(icc: bytes | None) -> ImageCms.ImageCmsProfile | None:
    if not icc:
        return None
    try:
        profile = ImageCms.ImageCmsProfile(io.BytesIO(icc))
        return profile if profile.profile.xcolor_space.strip() == "CMYK" else None
    except (OSError, ImageCms.PyCMSError):
        return None
