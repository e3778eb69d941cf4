"""Still images in and out: orientation applied, depth, alpha, ICC and quality kept, metadata left behind.

What needs NumPy or Pillow is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ficgan.images.formats import (
    FILM_SUFFIXES,
    FORMAT_OF,
    MAX_PIXELS,
    READABLE_SUFFIXES,
    UNREAD_SUFFIXES,
    WRITABLE_FILMS,
    WRITABLE_SUFFIXES,
    disguised,
    film_suffix,
    is_animated,
    output_suffix,
    unread,
)

if TYPE_CHECKING:
    from ficgan.files import atomic_write
    from ficgan.images.photo import DIGITAL_SOURCE_TYPE, Photo
    from ficgan.images.read import read_image
    from ficgan.images.write import encode_image, write_image

__all__ = [
    "DIGITAL_SOURCE_TYPE",
    "FILM_SUFFIXES",
    "FORMAT_OF",
    "MAX_PIXELS",
    "READABLE_SUFFIXES",
    "UNREAD_SUFFIXES",
    "WRITABLE_FILMS",
    "WRITABLE_SUFFIXES",
    "Photo",
    "atomic_write",
    "disguised",
    "encode_image",
    "film_suffix",
    "is_animated",
    "output_suffix",
    "read_image",
    "unread",
    "write_image",
]

_MODULES = {
    "DIGITAL_SOURCE_TYPE": "ficgan.images.photo",
    "Photo": "ficgan.images.photo",
    "atomic_write": "ficgan.files",
    "encode_image": "ficgan.images.write",
    "read_image": "ficgan.images.read",
    "write_image": "ficgan.images.write",
}


def __getattr__(name: str) -> object:
    """Import the public name `name` from its module and keep it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
