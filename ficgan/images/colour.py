"""Colours: ICC profiles cleaned, made and applied, colours named by numbers, grey, and 16 bits.

Everything looks at pictures in 8-bit sRGB. What was changed there goes back into the file's own space.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

__all__ = [
    "ADOBE_RGB",
    "CodePoints",
    "Pixels",
    "Space",
    "clean_icc",
    "flat_colours",
    "from_rgb",
    "is_hdr",
    "named_icc",
    "space_of",
    "to_rgb",
    "to_uint8",
]

Pixels = NDArray[np.uint8] | NDArray[np.uint16]
# Primaries and transfer characteristics, numbered as in ITU-T H.273.
CodePoints = tuple[int, int]

_D65 = (0.3127, 0.329)
_BT709 = ((0.64, 0.33), (0.3, 0.6), (0.15, 0.06))
_NTSC = ((0.63, 0.34), (0.31, 0.595), (0.155, 0.07))
_PRIMARIES = {
    **dict.fromkeys((0, 1, 2), _BT709),  # 2: not stated
    5: ((0.64, 0.33), (0.29, 0.6), (0.15, 0.06)),
    6: _NTSC,
    7: _NTSC,
    9: ((0.708, 0.292), (0.17, 0.797), (0.131, 0.046)),
    12: ((0.68, 0.32), (0.265, 0.69), (0.15, 0.06)),
}
# Transfers of still pictures and of video cameras, which are shown alike: with the curve of sRGB.
_LIKE_SRGB = (0, 1, 2, 6, 13, 14, 15)
# Transfers beyond white: PQ and HLG (ITU-R BT.2100).
_PQ, _HLG = 16, 18
# Light of white in an HDR picture, cd/m² (ITU-R BT.2408).
_WHITE = 203.0


# -- ICC profiles (ICC.1:2022)

# What a profile of three curves and a matrix, or of grey, needs. Everything else is text, measurements or private: the
# name of a display, its serial number, its owner.
_RGB_TAGS = (b"rXYZ", b"gXYZ", b"bXYZ", b"rTRC", b"gTRC", b"bTRC")
# How many numbers a parametric curve of each type has.
_PARAMETERS = (1, 3, 4, 5, 7)
# Names by which programs know a profile again; one with another name, such as a display's, gets none.
_NAMES = ("Display P3", "Adobe RGB (1998)", "ProPhoto RGB", "sRGB IEC61966-2.1")
_D50 = b"".join(round(value * 65536).to_bytes(4, "big") for value in (0.9642, 1.0, 0.8249))
_BRADFORD = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])


def clean_icc(icc: bytes) -> bytes | None:
    """A profile with nothing in it but what colours need; None where it is damaged, or not so simple."""
    count = int.from_bytes(icc[128:132], "big")
    if icc[36:40] != b"acsp" or count > 200 or 132 + 12 * count > len(icc) or icc[20:24] != b"XYZ ":
        return None
    places = struct.iter_unpack(">4sLL", icc[132 : 132 + 12 * count])
    tags = {name: icc[start : start + size] for name, start, size in places}
    wanted = {b"RGB ": _RGB_TAGS, b"GRAY": (b"kTRC",)}.get(icc[16:20])
    if wanted is None or b"A2B0" in tags or any(len(tags.get(name, b"")) < 12 for name in wanted):
        return None
    called = tags.get(b"desc", b"").replace(b"\0", b"").decode("latin-1")  # one byte or two a character
    name = next((name for name in _NAMES if name in called), "RGB" if icc[16:20] == b"RGB " else "grey")
    return _assembled(icc[16:20], {name: _trimmed(tags[name]) for name in wanted}, name)


def _trimmed(content: bytes) -> bytes:
    """A tag without what its kind leaves unread at its end."""
    if content[:4] == b"curv":
        return content[: 12 + 2 * int.from_bytes(content[8:12], "big")]
    if content[:4] == b"para" and (number := int.from_bytes(content[8:10], "big")) < len(_PARAMETERS):
        return content[: 12 + 4 * _PARAMETERS[number]]
    return content[: 20 if content[:4] == b"XYZ " else 0]


def _assembled(space: bytes, tags: Mapping[bytes, bytes], name: str) -> bytes:
    """A profile of version 4 with a white of D50."""
    texts = {signature: _text(text) for signature, text in ((b"desc", name), (b"cprt", "none stated"))}
    tags = texts | {b"wtpt": b"XYZ " + bytes(4) + _D50} | dict(tags)
    start = 132 + 12 * len(tags)
    table, body, places = b"", b"", dict[bytes, int]()
    for signature, content in tags.items():
        if content not in places:  # curves are often the same for all three colours
            places[content] = start + len(body)
            body += content + bytes(-len(content) % 4)
        table += struct.pack(">4sLL", signature, places[content], len(content))
    about, made = b"mntr" + space + b"XYZ ", (2000, 1, 1, 0, 0, 0)
    header = struct.pack(">L4xL12s6H4s28x", start + len(body), 0x04200000, about, *made, b"acsp")
    return (header + _D50).ljust(128, b"\0") + struct.pack(">L", len(tags)) + table + body


def _text(text: str) -> bytes:
    wide = text.encode("utf-16-be")
    return b"mluc" + struct.pack(">LLL4sLL", 0, 1, 12, b"enUS", len(wide), 28) + wide


def _fixed(*values: float) -> bytes:
    return struct.pack(f">{len(values)}l", *(round(float(value) * 65536) for value in values))


_SRGB_CURVE = b"para" + struct.pack(">LHH", 0, 3, 0) + _fixed(2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)


def _make_icc(name: str, primaries: Sequence[tuple[float, float]], curve: bytes) -> bytes:
    """A profile for RGB of these primaries (red, green, blue; CIE x and y), white of D65, and a curve's tag."""
    columns = {b"%cXYZ" % letter: _fixed(*xyz) for letter, xyz in zip(b"rgb", _to_d50(primaries).T, strict=True)}
    tags = {colour: b"XYZ " + bytes(4) + xyz for colour, xyz in columns.items()}
    return _assembled(b"RGB ", tags | dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve), name)


def _to_d50(primaries: Sequence[tuple[float, float]]) -> NDArray[np.float64]:
    """The matrix [3,3] from linear RGB to XYZ as profiles hold it: the white becomes D50 (Bradford)."""

    def xyz(x: float, y: float) -> NDArray[np.float64]:
        return np.array([x / y, 1, (1 - x - y) / y])

    columns = np.stack([xyz(*point) for point in primaries], axis=1)
    columns = columns * np.linalg.solve(columns, xyz(*_D65))
    cones = _BRADFORD @ np.array([0.9642, 1.0, 0.8249]) / (_BRADFORD @ xyz(*_D65))
    return np.linalg.inv(_BRADFORD) @ np.diag(cones) @ _BRADFORD @ columns


ADOBE_RGB = _make_icc(
    "Adobe RGB (1998)", ((0.64, 0.33), (0.21, 0.71), (0.15, 0.06)), b"para" + bytes(8) + _fixed(563 / 256)
)


# -- colours named by code points (AVIF, HEIC, PNG)


def named_icc(points: CodePoints) -> bytes | None:
    """An ICC profile that says the same as code points; None for sRGB.

    Raises:
        ValueError: colours of a kind that is not known, or HDR.
    """
    primaries, transfer = points
    if primaries not in _PRIMARIES or transfer not in _LIKE_SRGB:
        raise ValueError(f"colours of primaries {primaries}, transfer {transfer} of H.273")
    if _PRIMARIES[primaries] == _BT709:
        return None
    return _make_icc("Display P3" if primaries == 12 else "RGB", _PRIMARIES[primaries], _SRGB_CURVE)


def is_hdr(points: CodePoints) -> bool:
    """Whether colours of these code points are brighter than white, and can be read."""
    return points[0] in _PRIMARIES and points[1] in (_PQ, _HLG)


def flat_colours(pixels: NDArray[np.uint8], points: CodePoints) -> NDArray[np.uint8]:
    """HDR pixels [H,W,3] as sRGB: what is brighter than white (203 cd/m²) becomes white."""
    v = np.arange(256) / 255
    if points[1] == _PQ:
        root = v ** (1 / 78.84375)
        light = (np.maximum(root - 0.8359375, 0) / (18.8515625 - 18.6875 * root)) ** (1 / 0.1593017578125)
        light *= 10000 / _WHITE
    else:
        scene = np.where(v <= 0.5, v**2 / 3, (np.exp((v - 0.55991073) / 0.17883277) + 0.28466892) / 12)
        light = (scene / np.interp(0.75, v, scene)) ** 1.2  # white is at three quarters
    to_srgb = (np.linalg.inv(_to_d50(_BT709)) @ _to_d50(_PRIMARIES[points[0]])).T
    out = np.empty(pixels.shape, np.uint8)
    for row, made in zip(pixels, out, strict=True):  # a whole photo of floats is large
        linear = np.clip(light[row] @ to_srgb, 0, 1)
        gamma = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
        made[:] = np.rint(255 * gamma)
    return out


# -- a file's own numbers, by LittleCMS


@dataclass(frozen=True, eq=False)
class Space:
    """How a file's colours mean light; `back` is None where its profile works one way only."""

    mode: str
    there: ImageCms.ImageCmsTransform
    back: ImageCms.ImageCmsTransform | None

    def to_srgb(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Pixels [H,W] or [H,W,C] as sRGB [H,W,3]."""
        image = Image.frombuffer(self.mode, pixels.shape[1::-1], np.ascontiguousarray(pixels), "raw", self.mode, 0, 1)
        return np.asarray(ImageCms.applyTransform(image, self.there))

    def from_srgb(self, values: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Values of sRGB [N,3] as the file's own, [N] or [N,C]."""
        assert self.back is not None
        return np.asarray(ImageCms.applyTransform(Image.fromarray(np.ascontiguousarray(values)[None]), self.back))[0]


@lru_cache(maxsize=16)
def space_of(icc: bytes | None) -> Space | None:
    """The space of a profile; None where its numbers are those of sRGB.

    Raises:
        ValueError: LittleCMS can make nothing of it.
    """
    if icc is None:
        return None
    mode = {b"CMYK": "CMYK", b"GRAY": "L"}.get(icc[16:20], "RGB")
    srgb = ImageCms.createProfile("sRGB")
    try:
        own = ImageCms.ImageCmsProfile(io.BytesIO(icc))
        there = ImageCms.buildTransform(own, srgb, mode, "RGB")
    except (OSError, ImageCms.PyCMSError) as error:
        raise ValueError("a damaged colour profile") from error
    try:
        space = Space(mode, there, ImageCms.buildTransform(srgb, own, "RGB", mode))
    except ImageCms.PyCMSError:
        return Space(mode, there, None)
    if mode != "RGB":
        return space
    steps = np.linspace(0, 255, 16).astype(np.uint8)
    every = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(64, 64, 3)
    return space if np.abs(space.to_srgb(every).astype(int) - every).max() > 1 else None


def to_uint8(pixels: Pixels) -> NDArray[np.uint8]:
    """16 bits to 8: round(v / 257), exactly; 8 bits pass through."""
    if pixels.dtype == np.uint8:
        return pixels.astype(np.uint8, copy=False)
    wide = pixels.astype(np.uint32)
    wide *= 255
    wide += 32895  # (255 v + 32895) >> 16 equals round(v / 257) for every v in 0…65535
    wide >>= 16
    return wide.astype(np.uint8)


def to_rgb(pixels: Pixels, mode: str, space: Space | None) -> NDArray[np.uint8]:
    """The 8-bit sRGB view [H,W,3] of a file's pixels, alpha ignored."""
    colours: Any = pixels if mode == "L" else pixels[..., 0] if mode == "LA" else pixels[..., :3]
    colours = to_uint8(colours)
    if space is not None:
        return space.to_srgb(colours)
    return np.repeat(colours[..., None], 3, axis=2) if colours.ndim == 2 else colours


def from_rgb(values: NDArray[np.uint8], mode: str, depth: int, space: Space | None) -> Pixels:
    """sRGB values uint8 [N,3] as a file of this mode, depth (8 or 16 bits) and space holds them, alpha left out.

    That is [N] of grey (ITU-R BT.601 where there is no profile) or [N,3], uint8 or uint16.
    """
    if space is not None:
        values = space.from_srgb(values)
    elif mode in ("L", "LA"):
        weights = np.array([19595, 38470, 7471], np.uint32)  # 0.299, 0.587, 0.114 in 1/65536
        values = ((values.astype(np.uint32) @ weights + 32768) >> 16).astype(np.uint8)
    return values.astype(np.uint16) * np.uint16(257) if depth == 16 else values
