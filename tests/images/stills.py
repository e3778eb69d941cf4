"""Pictures to test with, and what is done to them."""

from __future__ import annotations

import io
import struct
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageCms

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


def icc(space: bytes, tags: dict[bytes, bytes], connection: bytes = b"XYZ ") -> bytes:
    """A profile of version 2 written by hand from its specification."""
    text = b"a profile's name"
    white = b"XYZ " + bytes(4) + struct.pack(">3l", 63190, 65536, 54061)
    tags = {b"desc": b"desc" + struct.pack(">LL", 0, len(text) + 1) + text + bytes(79), b"wtpt": white, **tags}
    body, entries, at = b"", b"", 128 + 4 + 12 * len(tags)
    for name, content in tags.items():
        content += bytes(-len(content) % 4)
        entries += name + struct.pack(">LL", at + len(body), len(content))
        body += content
    head = struct.pack(">L4sL4s4s4s", at + len(body), b"", 0x02400000, b"mntr", space, connection) + bytes(12) + b"acsp"
    head = head.ljust(68, b"\0") + struct.pack(">3l", 63190, 65536, 54061)
    return head.ljust(128, b"\0") + struct.pack(">L", len(tags)) + entries + body


def curve(*values: float) -> bytes:
    """A curve's tag: an exponent, or a table of light."""
    numbers = [round(values[0] * 256)] if len(values) == 1 else [round(value * 65535) for value in values]
    return b"curv" + struct.pack(f">LL{len(numbers)}H", 0, len(numbers), *numbers)


def rgb(columns: str, light: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """The tags of a space: X, Y and Z (D50) of red, green and blue, and the curve of all three."""
    numbers = [round(float(number) * 65536) for number in columns.split()]
    tags = {
        f"{colour}XYZ".encode(): b"XYZ " + bytes(4) + struct.pack(">3l", *numbers[3 * at : 3 * at + 3])
        for at, colour in enumerate("rgb")
    }
    return b"RGB ", tags | {f"{colour}TRC".encode(): light for colour in "rgb"}


_SRGB_LIGHT = curve(*(v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in np.linspace(0, 1, 1024)))
_BT709 = ".43607 .22249 .01392 .38515 .71687 .09708 .14307 .06061 .7141"
SPACES = {
    "sRGB": rgb(_BT709, _SRGB_LIGHT),
    "P3": rgb(".51512 .2412 -.00105 .29198 .69225 .04189 .1571 .06657 .78407", _SRGB_LIGHT),
    "Adobe": rgb(".60974 .31111 .01947 .20528 .62567 .06087 .14919 .06322 .74457", curve(563 / 256)),
    "ProPhoto": rgb(".79767 .28804 0 .13519 .71188 0 .03134 .00009 .82491", curve(1.8)),
    "linear": rgb(_BT709, curve(1.0)),
    "grey": (b"GRAY", {b"kTRC": curve(1.8)}),
}
"""Colour spaces, by published numbers: what a profile calls them, and its tags."""
PROFILES = {name: icc(*space) for name, space in SPACES.items()}


@cache
def _viewer(mode: str, profile: bytes) -> Any:
    own = ImageCms.ImageCmsProfile(io.BytesIO(profile))
    return ImageCms.buildTransform(own, srgb(), mode, "RGB")


def seen(pixels: np.ndarray, mode: str, profile: bytes | None) -> np.ndarray:
    """What a viewer that heeds profiles shows of uint8 pixels, by LittleCMS."""
    image = Image.frombytes(mode, pixels.shape[1::-1], np.ascontiguousarray(pixels).tobytes())
    return np.asarray(ImageCms.applyTransform(image, _viewer(mode, profile)) if profile else image.convert("RGB"))


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


def mpo(size: tuple[int, int], kind: int, *, whole: bool = True) -> bytes:
    """A JPEG of 60×40 px whose MPF index names a second picture of this size and kind, and which it may lack."""
    buffer = io.BytesIO()
    first, second = Image.new("RGB", (60, 40), "red"), Image.new("RGB", size, "blue")
    first.save(buffer, "MPO", save_all=True, append_images=[second])
    data = buffer.getvalue()
    with Image.open(io.BytesIO(data)) as image:
        entry = image.mpinfo[0xB002][1]  # type: ignore[attr-defined]
    old = b"".join(v.to_bytes(4, "little") for v in (0, entry["Size"], entry["DataOffset"]))
    assert data.count(old) == 1  # Pillow calls every further picture "undefined"; cameras say what it is
    return data.replace(old, kind.to_bytes(4, "little") + old[4:])[: None if whole else data.rindex(b"\xff\xd8\xff")]
