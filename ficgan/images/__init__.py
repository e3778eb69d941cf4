"""Still images in and out: orientation applied, depth, alpha, ICC and quality kept, metadata left behind.

Every name is imported when it is first used, so that the names of formats load neither NumPy nor Pillow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

_MODULES = {
    "DIGITAL_SOURCE_TYPE": "ficgan.images.photo",
    "MAX_PIXELS": "ficgan.images.formats",
    "READABLE_SUFFIXES": "ficgan.images.formats",
    "WRITABLE_SUFFIXES": "ficgan.images.formats",
    "Photo": "ficgan.images.photo",
    "atomic_write": "ficgan.files",
    "encode_image": "ficgan.images.write",
    "output_suffix": "ficgan.images.formats",
    "read_image": "ficgan.images.read",
    "write_image": "ficgan.images.write",
}

__all__ = [
    "DIGITAL_SOURCE_TYPE",
    "MAX_PIXELS",
    "READABLE_SUFFIXES",
    "WRITABLE_SUFFIXES",
    "Photo",
    "atomic_write",
    "encode_image",
    "output_suffix",
    "read_image",
    "write_image",
]

if TYPE_CHECKING:
    from ficgan.files import atomic_write
    from ficgan.images.formats import MAX_PIXELS, READABLE_SUFFIXES, WRITABLE_SUFFIXES, output_suffix
    from ficgan.images.photo import DIGITAL_SOURCE_TYPE, Photo
    from ficgan.images.read import read_image
    from ficgan.images.write import encode_image, write_image


def __getattr__(name: str) -> object:
    """Import the public name `name` from its module and keep it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
