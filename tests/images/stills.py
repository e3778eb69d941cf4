"""Pictures to test with, and what is done to them."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ImageCms

from ficgan.images import Photo, read_image, write_image

SIZE = (61, 40)  # width, height: odd, and not square


BOX = (slice(8, 24), slice(16, 40))


def noise(*shape: int, bits: int = 8, seed: int = 0) -> np.ndarray:
    kind = np.uint8 if bits == 8 else np.uint16
    return np.random.default_rng(seed).integers(0, 1 << bits, (SIZE[1], SIZE[0], *shape), dtype=kind)


def smooth() -> np.ndarray:
    """A picture that JPEG and WebP keep well."""
    y, x = np.mgrid[: SIZE[1], : SIZE[0]]
    return np.stack([x * 4, y * 6, 255 - x * 2 - y], axis=2).astype(np.uint8)


def redden(photo: Photo) -> tuple[np.ndarray, np.ndarray]:
    """The photo with a box of another colour in it, and the mask of that box."""
    result, mask = photo.rgb.copy(), np.zeros(photo.rgb.shape[:2], bool)
    mask[BOX] = True
    result[mask] = (200, 30, 60)
    return result, mask


def rewrite(source: Path, **options: Any) -> tuple[Photo, Photo, np.ndarray, Path]:
    photo = read_image(source)
    result, mask = redden(photo)
    target = source.with_name("out" + source.suffix)
    write_image(target, photo, result, **options)
    return photo, read_image(target), mask, target


def png(depth: int, colour: int, pixels: np.ndarray, *extra: tuple[bytes, bytes]) -> bytes:
    """A PNG written by hand from its specification, as an oracle that shares no code with what is tested."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">L", len(content)) + name + content + struct.pack(">L", zlib.crc32(name + content))

    height, width = pixels.shape[:2]
    header = struct.pack(">LLBBBBB", width, height, depth, colour, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    middle = b"".join(chunk(*pair) for pair in extra)
    image = chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + middle + image


def srgb() -> Any:
    return ImageCms.createProfile("sRGB")


ORIENTED = {  # what a viewer does with the stored array, from the EXIF specification
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: np.swapaxes(a, 0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.swapaxes(a[::-1, ::-1], 0, 1),
    8: lambda a: np.rot90(a, 1),
}
