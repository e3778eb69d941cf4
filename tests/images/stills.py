"""Pictures to test with, and what is done to them."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ficgan.images.photo import Photo
from ficgan.images.read import read_image
from ficgan.images.write import encode_image

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
    target.write_bytes(encode_image(target, photo, result, **options))
    return photo, read_image(target), mask, target


def encoded(pixels: np.ndarray, format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format, **options)
    return buffer.getvalue()


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


_SRGB = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in np.linspace(0, 1, 1024)]
_BT709 = ".43607 .22249 .01392 .38515 .71687 .09708 .14307 .06061 .7141"
# Colour spaces by published numbers: X, Y and Z (D50) of red, green and blue, and an exponent or a table of light.
SPACES: dict[str, tuple[str, list[float]]] = {
    "sRGB": (_BT709, _SRGB),
    "P3": (".51512 .2412 -.00105 .29198 .69225 .04189 .1571 .06657 .78407", _SRGB),
    "Adobe": (".60974 .31111 .01947 .20528 .62567 .06087 .14919 .06322 .74457", [563 / 256]),
    "ProPhoto": (".79767 .28804 0 .13519 .71188 0 .03134 .00009 .82491", [1.8]),
}


def tags_of(name: str) -> dict[bytes, bytes]:
    """The tags of a colour space's profile."""
    columns, light = SPACES[name]
    numbers = [round(float(number) * 65536) for number in columns.split()]
    values = [round(light[0] * 256)] if len(light) == 1 else [round(value * 65535) for value in light]
    curve = b"curv" + struct.pack(f">LL{len(values)}H", 0, len(values), *values)
    xyz = {
        b"%cXYZ" % colour: b"XYZ " + bytes(4) + struct.pack(">3l", *numbers[3 * n : 3 * n + 3])
        for n, colour in enumerate(b"rgb")
    }
    return xyz | {b"%cTRC" % colour: curve for colour in b"rgb"}


PROFILES = {name: icc(b"RGB ", tags_of(name)) for name in SPACES}
GREY = icc(b"GRAY", {b"kTRC": b"curv" + struct.pack(">LLH", 0, 1, round(1.8 * 256))})


def shown(pixels: np.ndarray, name: str) -> np.ndarray:
    """What a viewer that heeds profiles shows of uint8 pixels [H,W,3], by the formulas."""
    columns, light = SPACES[name]
    table = (
        np.linspace(0, 1, 256) ** light[0]
        if len(light) == 1
        else np.interp(np.arange(256) * 1023 / 255, range(1024), light)
    )
    own, srgb = (np.array(text.split(), float).reshape(3, 3) for text in (columns, _BT709))
    linear = np.clip(table[pixels] @ own @ np.linalg.inv(srgb), 0, 1)
    return np.rint(255 * np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055))


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
