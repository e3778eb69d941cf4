"""Still images in and out: orientation applied, depth, alpha, ICC and quality kept, metadata left behind.

The names of formats stand here and load neither NumPy nor Pillow; what does is imported when it is first used.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ficgan.files import atomic_write
    from ficgan.images.photo import DIGITAL_SOURCE_TYPE, Photo
    from ficgan.images.read import read_image
    from ficgan.images.write import encode_image, write_image

__all__ = [
    "DIGITAL_SOURCE_TYPE", "FILM_SUFFIXES", "FORMAT_OF", "MAX_PIXELS", "READABLE_SUFFIXES", "WRITABLE_FILMS",
    "WRITABLE_SUFFIXES", "Photo", "atomic_write", "encode_image", "film_suffix", "output_suffix", "read_image",
    "write_image",
]  # fmt: skip

_MODULES = {
    "DIGITAL_SOURCE_TYPE": "ficgan.images.photo", "Photo": "ficgan.images.photo", "atomic_write": "ficgan.files",
    "encode_image": "ficgan.images.write", "read_image": "ficgan.images.read", "write_image": "ficgan.images.write",
}  # fmt: skip

MAX_PIXELS = 100_000_000

_AVIF, _HEIF = frozenset({".avif"}), frozenset({".heic", ".heif", ".hif"})
READABLE_SUFFIXES = (
    frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".tif", ".tiff"})
    | {".bmp", ".dib", ".gif"}
    | _AVIF
    | _HEIF
)
"""What in a folder counts as a still image; files named one by one are judged by their content."""

FORMAT_OF = {
    ".jpg": "JPEG", ".jpeg": "JPEG", ".jpe": "JPEG", ".jfif": "JPEG", ".mpo": "JPEG",
    ".png": "PNG", ".apng": "PNG", ".webp": "WEBP", ".tif": "TIFF", ".tiff": "TIFF",
}  # fmt: skip
"""Suffix → format that can be written here."""
if find_spec("PIL._avif"):
    FORMAT_OF |= dict.fromkeys(_AVIF, "AVIF")
if find_spec("pillow_heif"):
    FORMAT_OF |= dict.fromkeys(_HEIF, "HEIF")
WRITABLE_SUFFIXES = frozenset(FORMAT_OF)

WRITABLE_FILMS = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".gif", ".webp"})
FILM_SUFFIXES = WRITABLE_FILMS - {".gif", ".webp"} | {
    ".3g2", ".3gp", ".asf", ".dv", ".flv", ".h264", ".hevc", ".m2ts", ".mjpeg", ".mpe", ".mpeg", ".mpg", ".mts", ".mxf",
    ".ogv", ".qt", ".ts", ".vob", ".wmv", ".y4m", ".apng",
}  # fmt: skip
"""What in a folder counts as a film; GIF, WebP and PNG do where they are animated."""


def output_suffix(path: str | os.PathLike[str]) -> str:
    """The suffix a result takes: the source's own, `.png` where its format cannot be written (BMP, GIF …)."""
    suffix = Path(path).suffix
    return ".png" if not suffix or suffix.lower() in READABLE_SUFFIXES - WRITABLE_SUFFIXES else suffix


def film_suffix(source: Path) -> str:
    """The suffix a film's result takes: its own where that can be written, otherwise `.mp4`."""
    suffix = source.suffix.lower()
    return source.suffix if suffix in WRITABLE_FILMS else ".webp" if suffix in (".png", ".apng") else ".mp4"


def __getattr__(name: str) -> object:
    """Import the public name `name` from its module and keep it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
