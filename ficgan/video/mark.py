"""Results marked as made with a generative model: IPTC's Digital Source Type, where a container has a place for it."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from ficgan.images.photo import DIGITAL_SOURCE_TYPE, tag_xmp

__all__ = ["add_mark", "tags", "unmarked"]

_UUID = bytes.fromhex("BE7ACFCB97A942E89C71999491E3AFAC")
"""Of a box with XMP. Source: XMP Specification Part 3, Storage in Files, 2020, MPEG-4."""
_TAG = "DIGITAL_SOURCE_TYPE"
_TAGGED = ("matroska", "webm", "flv", "nut")
"""Containers whose own tags take any name; FFmpeg writes them at the beginning."""


def tags(container: str) -> Mapping[str, str]:
    """Tags to write into a container; none where it takes none."""
    return {_TAG: DIGITAL_SOURCE_TYPE} if container in _TAGGED else {}


def unmarked(container: str) -> str:
    """What to say where nothing says what the film is."""
    return f"The result is not marked as synthetic media: {container} has no place for it."


def add_mark(path: str | os.PathLike[str], container: str) -> bool:
    """Add XMP to a finished file, in place; False where the container has no place for it (see `tags`, too)."""
    write = {"mp4": _box, "mov": _box, "gif": _extension, "webp": _chunk}.get(container)
    if write is None:
        return False
    with Path(path).open("r+b") as file:
        write(file, tag_xmp())
    return True


def _box(file: BinaryIO, xmp: bytes) -> None:
    file.seek(0, os.SEEK_END)
    file.write(struct.pack(">I", 8 + len(_UUID) + len(xmp)) + b"uuid" + _UUID + xmp)


def _extension(file: BinaryIO, xmp: bytes) -> None:
    """Before a GIF's trailer. Readers without XMP skip it: whatever byte they take for a length leads to its end."""
    file.seek(-1, os.SEEK_END)
    file.write(b"\x21\xff\x0bXMP DataXMP" + xmp + b"\x01" + bytes(range(255, -1, -1)) + b"\x00;")


def _chunk(file: BinaryIO, xmp: bytes) -> None:
    """At the end of a WebP, whose first chunk, VP8X, says that it is there."""
    file.seek(0, os.SEEK_END)
    file.write(b"XMP " + struct.pack("<I", len(xmp)) + xmp + bytes(len(xmp) % 2))
    size = file.tell()
    file.seek(4)
    file.write(struct.pack("<I", size - 8))
    file.seek(20)
    flags = file.read(1)[0]
    file.seek(20)
    file.write(bytes([flags | 4]))
