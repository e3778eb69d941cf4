"""A file's own numbers to 8-bit sRGB and back: grey, 16 bits, CMYK, ICC profiles, and code points as videos have them.

Everything looks at pictures in sRGB. What was changed there goes back into the file's own space; nothing else does.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

from ficgan.errors import InputError
from ficgan.images.icc import SRGB_CURVE, clean_icc, gamma, light_of, make_icc, read_tags, to_d50

__all__ = ["HDR", "Pixels", "Space", "as_rgb", "colours_of", "from_rgb", "is_known", "space_of", "to_rgb", "to_uint8"]

Pixels = NDArray[np.uint8] | NDArray[np.uint16]
# Primaries and transfer characteristics, numbered as in ITU-T H.273.
CodePoints = tuple[int, int]

D65 = (0.3127, 0.329)
_BT709 = ((0.64, 0.33), (0.3, 0.6), (0.15, 0.06))
_DCI = ((0.68, 0.32), (0.265, 0.69), (0.15, 0.06))
_NTSC = ((0.63, 0.34), (0.31, 0.595), (0.155, 0.07))
_PRIMARIES = {
    **dict.fromkeys((0, 1, 2), (_BT709, D65)),  # 2: not stated
    4: (((0.67, 0.33), (0.21, 0.71), (0.14, 0.08)), (0.31, 0.316)),
    5: (((0.64, 0.33), (0.29, 0.6), (0.15, 0.06)), D65),
    **dict.fromkeys((6, 7), (_NTSC, D65)),
    9: (((0.708, 0.292), (0.17, 0.797), (0.131, 0.046)), D65),
    11: (_DCI, (0.314, 0.351)),
    12: (_DCI, D65),
    22: (((0.63, 0.34), (0.295, 0.605), (0.155, 0.077)), D65),
}
# Still pictures with the curves of video cameras are shown with that of sRGB.
_CURVES = dict.fromkeys((0, 1, 2, 6, 7, 11, 12, 13, 14, 15), SRGB_CURVE) | {
    4: gamma(2.2),
    5: gamma(2.8),
    8: gamma(1.0),
    17: gamma(2.6),
}
# Transfers beyond white: PQ and HLG (ITU-R BT.2100).
HDR = {16, 18}
# Light of white in an HDR picture, cd/m² (ITU-R BT.2408).
_WHITE = 203.0
ADOBE_RGB = make_icc(
    "Compatible with Adobe RGB (1998)", ((0.64, 0.33), (0.21, 0.71), (0.15, 0.06)), D65, gamma(563 / 256)
)


_DAMAGED, _ONE_WAY = (KeyError, ValueError, struct.error), (OSError, ImageCms.PyCMSError)


class Space(Protocol):
    """How a file's three or four colours mean light."""

    def to_srgb(self, pixels: Pixels) -> NDArray[np.uint8]:
        """Pixels [H,W,C] as 8-bit sRGB [H,W,3]."""

    def from_srgb(self, values: NDArray[np.uint8], depth: int) -> Pixels:
        """Values of sRGB [N,3] as the file's own [N,C], with 8 or 16 bits."""


def is_known(points: CodePoints) -> bool:
    """Whether the colours of these code points can be shown."""
    return points[0] in _PRIMARIES and (points[1] in _CURVES or points[1] in HDR)


def profile_of(points: CodePoints) -> bytes | None:
    """An ICC profile that says the same as code points; None for sRGB, and for HDR, which profiles cannot say."""
    if points[1] in HDR or (points[0] in (0, 1, 2) and _CURVES[points[1]] == SRGB_CURVE):
        return None
    return make_icc("Display P3" if points[0] == 12 else "RGB", *_PRIMARIES[points[0]], _CURVES[points[1]])


def as_rgb(icc: bytes | None, mode: str) -> bytes | None:
    """The profile that a picture of this mode can carry: one of grey is made one of RGB, of other kinds dropped."""
    if icc is None or (icc[16:20] == b"CMYK") != (mode == "CMYK"):
        return None
    if icc[16:20] == b"GRAY" and mode in ("RGB", "RGBA"):
        curve = read_tags(icc).get(b"kTRC")
        return make_icc("RGB", _BT709, D65, curve) if curve else None
    return icc


@lru_cache(maxsize=16)
def space_of(icc: bytes | None, points: CodePoints | None, mode: str) -> Space | None:
    """The space of a picture; None where its numbers are those of sRGB, or nothing can be made of what it says."""
    if points is not None and points[1] in HDR:
        return _Shaper(np.stack([_hdr_light(points[1])] * 3), _SRGB_TO_D50_INVERSE @ to_d50(*_PRIMARIES[points[0]]))
    if icc is None or (icc[16:20] == b"CMYK") != (mode == "CMYK"):
        return None
    try:
        space = _profiled(icc)
    except (*_DAMAGED, *_ONE_WAY):
        return None
    if mode == "CMYK":
        return space
    steps = np.linspace(0, 255, 16).astype(np.uint8)
    every = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(64, 64, 3)
    return space if np.abs(space.to_srgb(every).astype(int) - every).max() > 1 else None


def _profiled(icc: bytes) -> Space:
    """The space of a profile; one of `_DAMAGED` where it says none, one of `_ONE_WAY` where LittleCMS cannot use it."""
    tags = read_tags(icc)
    return _tables(icc) if icc[16:20] == b"CMYK" or b"A2B0" in tags else _shaper(tags)


# -- what a file tells


def colours_of(
    path: Path, image: Image.Image, data: bytes, boxes: Mapping[bytes, list[bytes]], chunks: Mapping[bytes, bytes]
) -> tuple[bytes | None, tuple[int, int] | None, tuple[str, ...]]:
    """What a file tells of its colours.

    Args:
        path: for messages.
        image: opened by Pillow.
        data: the file.
        boxes: properties of an AVIF or HEIC.
        chunks: those of a PNG that are about colours.

    Returns:
        A profile; code points, in whose place the profile stands where it can; notes.

    Raises:
        InputError: they are of a kind that is not known.
    """
    given = image.info.get("icc_profile") or b""
    icc, cicp = clean_icc(given), None
    if b"cICP" in chunks:
        cicp = chunks[b"cICP"][0], chunks[b"cICP"][1]
        if chunks[b"cICP"][2:] != b"\0\1":
            raise InputError(f"{path}: a PNG of video levels, which is not read; save it with full-range RGB")
    elif boxes and not icc:
        cicp = _code_points(boxes, data)
    if cicp:
        if not is_known(cicp):
            names = f"primaries {cicp[0]}, transfer {cicp[1]} of H.273"
            raise InputError(f"{path}: its colours ({names}) are of a kind that is not read; convert it to sRGB")
        return profile_of(cicp), cicp, ()
    if given:
        try:
            _profiled(icc or b"")
        except _DAMAGED:
            return None, None, ("its colour profile is damaged and left out",)
        except _ONE_WAY:
            way = "its colour profile does not work both ways, so no new face can get its colours"
            raise InputError(f"{path}: {way}; convert it to sRGB") from None
    elif not boxes and b"sRGB" not in chunks:
        icc = _by_gamma(chunks) if b"gAMA" in chunks else ADOBE_RGB if _is_adobe_rgb(image) else None
    return icc, None, ()


def _code_points(boxes: Mapping[bytes, list[bytes]], data: bytes) -> tuple[int, int] | None:
    for content in boxes.get(b"colr", ()):
        if content[:4] == b"nclx":
            return struct.unpack_from(">HH", content, 4)
    if b"av1C" not in boxes:
        return None
    import av  # an AVIF without the box has them in its stream alone

    with av.open(io.BytesIO(data)) as file:
        stream = file.streams.video[0].codec_context
        return int(stream.color_primaries), int(stream.color_trc)


def _by_gamma(chunks: Mapping[bytes, bytes]) -> bytes | None:
    """The profile of a PNG that tells an exponent and perhaps primaries, in 1/100,000; None for sRGB, and nonsense."""
    exponent = int.from_bytes(chunks[b"gAMA"], "big") / 100_000
    white, *primaries = (D65, *_BT709)
    try:
        if b"cHRM" in chunks:
            points = [value / 100_000 for value in struct.unpack(">8L", chunks[b"cHRM"])]
            white, *primaries = zip(points[::2], points[1::2], strict=True)
        like_srgb = abs(exponent / 0.45455 - 1) < 0.05  # a picture of sRGB states this exponent for want of a curve
        icc = make_icc("RGB", primaries, white, SRGB_CURVE if like_srgb else gamma(1 / exponent))
    except (ValueError, ZeroDivisionError, OverflowError, struct.error):
        return None
    return icc if space_of(icc, None, "RGB") else None


def _is_adobe_rgb(image: Image.Image) -> bool:
    """Whether EXIF says so, by the rule for cameras (DCF 2.0, optional file) or as some do."""
    try:
        exif = image.getexif()
        return exif.get_ifd(0xA005).get(1) == "R03" or exif.get_ifd(0x8769).get(0xA001) == 2
    except Exception:  # a damaged EXIF block says nothing
        return False


# -- three curves and a matrix

_SRGB_TO_D50_INVERSE = np.linalg.inv(to_d50(_BT709, D65))
_SRGB_LIGHT = light_of(SRGB_CURVE)
_GRID = np.linspace(0, 1, len(_SRGB_LIGHT))
_DECODED = np.interp(np.arange(256) / 255, _GRID, _SRGB_LIGHT)
_ENCODED = np.rint(np.interp(np.arange(65536) / 65535, _SRGB_LIGHT, _GRID) * 255).astype(np.uint8)


@dataclass(frozen=True, eq=False)
class _Shaper:
    """A space of RGB.

    Args:
        curves: light [3,4096] at equally spaced values, white at 1.
        matrix: [3,3], from that light to the light of sRGB.
    """

    curves: NDArray[np.float64]
    matrix: NDArray[np.float64]

    def to_srgb(self, pixels: Pixels) -> NDArray[np.uint8]:
        levels = int(np.iinfo(pixels.dtype).max) + 1
        table = np.concatenate([np.interp(np.linspace(0, 1, levels), _GRID, curve) for curve in self.curves])
        table, matrix = table.astype(np.float32), (self.matrix.T * 65535).astype(np.float32)
        out, rows = np.empty(pixels.shape, np.uint8), max(1, (1 << 18) // max(1, pixels.shape[1]))
        for top in range(0, len(pixels), rows):  # a whole photo of floats is large
            light = table[pixels[top : top + rows] + np.arange(3) * levels] @ matrix
            np.clip(light, 0, 65535, out=light)
            out[top : top + rows] = _ENCODED[light.astype(np.uint16)]
        return out

    def from_srgb(self, values: NDArray[np.uint8], depth: int) -> Pixels:
        out, back = np.empty(values.shape, np.uint8 if depth == 8 else np.uint16), np.linalg.inv(self.matrix).T
        for start in range(0, len(values), 1 << 18):
            part = slice(start, start + (1 << 18))
            light = _DECODED[values[part]] @ back
            for at, curve in enumerate(self.curves):
                out[part, at] = np.rint(np.interp(light[:, at], curve, _GRID) * ((1 << depth) - 1))
        return out


def _shaper(tags: dict[bytes, bytes]) -> _Shaper:
    if b"kTRC" in tags:
        return _Shaper(_rising([tags[b"kTRC"]] * 3), np.eye(3))
    columns = np.array([struct.unpack_from(">3l", tags[b"%cXYZ" % colour], 8) for colour in b"rgb"]).T / 65536
    matrix = _SRGB_TO_D50_INVERSE @ columns
    if abs(np.linalg.det(matrix)) < 1e-6:
        raise ValueError("three colours that are none")
    return _Shaper(_rising([tags[b"%cTRC" % colour] for colour in b"rgb"]), matrix)


def _rising(curves: Sequence[bytes]) -> NDArray[np.float64]:
    light = np.stack([light_of(curve) for curve in curves])
    if not np.isfinite(light).all() or (light[:, -1] <= light[:, 0]).any():
        raise ValueError("a curve that leads nowhere")
    return np.maximum.accumulate(light, axis=1)


def _hdr_light(transfer: int) -> NDArray[np.float64]:
    if transfer == 16:  # PQ: of 10,000 cd/m²
        root = _GRID ** (1 / 78.84375)
        return (
            10000 / _WHITE * (np.maximum(root - 0.8359375, 0) / (18.8515625 - 18.6875 * root)) ** (1 / 0.1593017578125)
        )
    scene = np.where(_GRID <= 0.5, _GRID**2 / 3, (np.exp((_GRID - 0.55991073) / 0.17883277) + 0.28466892) / 12)
    return (scene / np.interp(0.75, _GRID, scene)) ** 1.2  # HLG: white is at three quarters


# -- tables, by LittleCMS


@dataclass(frozen=True, eq=False)
class _Tables:
    """A space that no three curves describe, such as inks."""

    there: ImageCms.ImageCmsTransform
    back: ImageCms.ImageCmsTransform
    mode: str

    def to_srgb(self, pixels: Pixels) -> NDArray[np.uint8]:
        image = Image.fromarray(np.ascontiguousarray(to_uint8(pixels)), self.mode)
        return np.asarray(ImageCms.applyTransform(image, self.there))

    def from_srgb(self, values: NDArray[np.uint8], depth: int) -> Pixels:
        image = Image.fromarray(np.ascontiguousarray(values)[None])
        return _deepened(np.asarray(ImageCms.applyTransform(image, self.back))[0], depth)


def _tables(icc: bytes) -> _Tables:
    own, srgb = ImageCms.ImageCmsProfile(io.BytesIO(icc)), ImageCms.createProfile("sRGB")
    mode = "CMYK" if icc[16:20] == b"CMYK" else "RGB"
    there = ImageCms.buildTransform(own, srgb, mode, "RGB")
    return _Tables(there, ImageCms.buildTransform(srgb, own, "RGB", mode), mode)


# -- modes and depths


def to_uint8(pixels: Pixels) -> NDArray[np.uint8]:
    """16 bits to 8: round(v / 257), exactly; 8 bits pass through."""
    if pixels.dtype == np.uint8:
        return pixels.astype(np.uint8, copy=False)
    wide = pixels.astype(np.uint32)
    wide *= 255
    wide += 32895  # (255 v + 32895) >> 16 equals round(v / 257) for every v in 0…65535
    wide >>= 16
    return wide.astype(np.uint8)


def _deepened(values: NDArray[np.uint8], depth: int) -> Pixels:
    """8 bits to 16: 0 and 255 become 0 and 65535; `to_uint8` gives the same values back."""
    return values.astype(np.uint16) * np.uint16(257) if depth == 16 else values


def to_rgb(pixels: Pixels, mode: str, space: Space | None) -> NDArray[np.uint8]:
    """The 8-bit sRGB view [H,W,3] of native pixels, alpha ignored."""
    if mode == "CMYK" and space is None:  # no profile: R = (1 − C)(1 − K)
        ink = 255 - to_uint8(pixels).astype(np.uint16)
        return ((ink[..., :3] * ink[..., 3:] + 127) // 255).astype(np.uint8)
    colours: Any = pixels if mode == "CMYK" else pixels[..., :3]
    if mode in ("L", "LA"):
        grey = pixels if mode == "L" else pixels[..., 0]
        colours = np.repeat((to_uint8(grey) if space is None else grey)[..., None], 3, axis=2)
    return to_uint8(colours) if space is None else space.to_srgb(colours)


def from_rgb(values: NDArray[np.uint8], mode: str, depth: int, space: Space | None) -> Pixels:
    """sRGB values uint8 [N,3] as a file of this mode, depth (8 or 16 bits) and space holds them, alpha left out.

    That is [N,1] luminance (ITU-R BT.601), [N,3] RGB or [N,4] CMYK, uint8 or uint16.
    """
    if mode in ("L", "LA"):
        weights = np.array([19595, 38470, 7471], np.uint32)  # 0.299, 0.587, 0.114 in 1/65536
        values = ((values.astype(np.uint32) @ weights + 32768) >> 16).astype(np.uint8)[:, None]
        return _deepened(values, depth) if space is None else space.from_srgb(values.repeat(3, axis=1), depth)[:, 1:2]
    if space is not None:
        return space.from_srgb(values, depth)
    if mode != "CMYK":
        return _deepened(values, depth)
    light = values.max(axis=1, keepdims=True).astype(np.uint16)  # all common darkness goes into K
    scaled = (values.astype(np.uint16) * 255 + light // 2) // np.maximum(light, 1)
    return np.concatenate([255 - np.where(light == 0, 255, scaled), 255 - light], axis=1).astype(np.uint8)
