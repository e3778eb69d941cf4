"""Names of still images: which are read, which are written, and what a result is called. Loads nothing heavy."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

__all__ = ["FORMAT_OF", "MAX_PIXELS", "READABLE_SUFFIXES", "WRITABLE_SUFFIXES", "output_suffix"]

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


def output_suffix(path: str | os.PathLike[str]) -> str:
    """The suffix a result takes: the source's own, `.png` where its format cannot be written (BMP, GIF …)."""
    suffix = Path(path).suffix
    return ".png" if not suffix or suffix.lower() in READABLE_SUFFIXES - WRITABLE_SUFFIXES else suffix
