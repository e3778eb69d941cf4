"""Still images in and out: orientation applied, depth, alpha, ICC and quality kept, metadata left behind."""

from __future__ import annotations

from ficgan.files import atomic_write
from ficgan.images.photo import DIGITAL_SOURCE_TYPE, Photo
from ficgan.images.read import MAX_PIXELS, READABLE_SUFFIXES, read_image
from ficgan.images.write import WRITABLE_SUFFIXES, output_suffix, write_image

__all__ = [
    "DIGITAL_SOURCE_TYPE",
    "MAX_PIXELS",
    "READABLE_SUFFIXES",
    "WRITABLE_SUFFIXES",
    "Photo",
    "atomic_write",
    "output_suffix",
    "read_image",
    "write_image",
]
