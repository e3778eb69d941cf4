"""PNG and TIFF with 16 bits per colour: Pillow decodes and writes only 8 of them, OpenCV all."""

from __future__ import annotations

import io
import itertools
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, TiffImagePlugin, TiffTags

from ficgan.images.colour import to_uint8

__all__ = ["decode16", "encode16_png", "encode16_tiff", "png_chunks"]

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_TIFF_CODES = {"raw": 1, "tiff_lzw": 5, "tiff_adobe_deflate": 8, "tiff_deflate": 8, "packbits": 32773}


def decode16(data: bytes, eight: NDArray[np.uint8], method: Image.Transpose | None) -> NDArray[np.uint16] | None:
    """The 16-bit values behind an 8-bit decode.

    OpenCV turns some files upright by itself, depending on version and format; the 8-bit decode tells which did happen.

    Args:
        data: The file.
        eight: uint8 [H,W,3 or 4], the upright image as Pillow decodes it (the high bytes).
        method: What turns the stored image upright, None where it is upright already.

    Returns:
        uint16 array shaped like `eight`, or None where OpenCV reads the file differently.
    """
    import cv2

    level = cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    try:
        bgr = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        return None
    finally:
        cv2.utils.logging.setLogLevel(level)
    if bgr is None or bgr.dtype != np.uint16 or bgr.ndim != 3 or bgr.shape[2] != eight.shape[2]:
        return None
    deep = np.ascontiguousarray(_swap(bgr))
    for candidate in (deep, turn(deep, method)):
        if candidate.shape == eight.shape and _agrees(candidate, eight):
            return np.ascontiguousarray(candidate)
    return None


def turn(pixels: NDArray[Any], method: Image.Transpose | None) -> NDArray[Any]:
    """Pillow's transpositions for arrays of any type."""
    match method:
        case Image.Transpose.FLIP_LEFT_RIGHT:
            return pixels[:, ::-1]
        case Image.Transpose.FLIP_TOP_BOTTOM:
            return pixels[::-1]
        case Image.Transpose.ROTATE_180:
            return pixels[::-1, ::-1]
        case Image.Transpose.ROTATE_90:
            return np.rot90(pixels, 1)
        case Image.Transpose.ROTATE_270:
            return np.rot90(pixels, 3)
        case Image.Transpose.TRANSPOSE:
            return pixels.swapaxes(0, 1)
        case Image.Transpose.TRANSVERSE:
            return pixels[::-1, ::-1].swapaxes(0, 1)
    return pixels


def encode16_png(pixels: NDArray[np.uint16], chunks: list[tuple[bytes, bytes]]) -> bytes:
    """A 16-bit RGB or RGBA PNG with the given ancillary chunks (all of them before the image data).

    Args:
        pixels: uint16 [H,W,3 or 4].
        chunks: Type and content of each, for instance `(b"eXIf", …)`.
    """
    data = _encode(".png", pixels, [])
    after_header = len(_PNG_SIGNATURE) + 25  # IHDR: 4 + 4 + 13 + 4 bytes
    own = b"".join(_chunk(name, content) for name, content in chunks)
    return data[:after_header] + own + data[after_header:]


def encode16_tiff(pixels: NDArray[np.uint16], compression: str, tags: dict[int, tuple[int, Any]]) -> bytes:
    """A 16-bit RGB or RGBA TIFF with the given tags.

    OpenCV encodes the strips, Pillow writes the directory before them.

    Args:
        pixels: uint16 [H,W,3 or 4].
        compression: Pillow's name of a lossless compression; deflate where OpenCV does not know it.
        tags: Tag number → (TIFF type, value).
    """
    import cv2

    code = _TIFF_CODES.get(compression, 8)
    data = _encode(".tiff", pixels, [cv2.IMWRITE_TIFF_COMPRESSION, code, cv2.IMWRITE_TIFF_PREDICTOR, 2])
    with Image.open(io.BytesIO(data), formats=["TIFF"]) as image:
        assert isinstance(image, TiffImagePlugin.TiffImageFile)
        source = image.tag_v2
    directory = TiffImagePlugin.ImageFileDirectory_v2(data[:8])
    for tag in source:
        directory.tagtype[tag] = source.tagtype[tag]
        directory[tag] = source[tag]
    if pixels.shape[2] == 4:
        tags = {TiffImagePlugin.EXTRASAMPLES: (TiffTags.SHORT, 2), **tags}  # 2: alpha, not premultiplied
    for tag, (kind, value) in tags.items():
        directory.tagtype[tag] = kind
        directory[tag] = value
    spans = zip(source[TiffImagePlugin.STRIPOFFSETS], source[TiffImagePlugin.STRIPBYTECOUNTS], strict=True)
    strips = [data[start : start + size] for start, size in spans]
    directory.tagtype[TiffImagePlugin.STRIPOFFSETS] = TiffTags.LONG
    starts = itertools.accumulate((len(strip) for strip in strips[:-1]), initial=0)
    directory[TiffImagePlugin.STRIPOFFSETS] = tuple(starts)  # from the end of the directory, where the strips follow
    order = "<" if data[:2] == b"II" else ">"
    return data[:4] + struct.pack(order + "L", 8) + directory.tobytes(8) + b"".join(strips)


def png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Type and content of every chunk of a PNG up to its image data; nothing for other files."""
    if not data.startswith(_PNG_SIGNATURE):
        return
    at = len(_PNG_SIGNATURE)
    while at + 8 <= len(data):
        length, name = struct.unpack_from(">L4s", data, at)
        if name == b"IDAT":
            return
        yield name, data[at + 8 : at + 8 + length]
        at += length + 12


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">L", len(content)) + name + content + struct.pack(">L", zlib.crc32(name + content))


def _swap(pixels: NDArray[Any]) -> NDArray[Any]:
    """RGB(A) to BGR(A) and back."""
    return pixels[..., [2, 1, 0, 3][: pixels.shape[2]]]


def _agrees(deep: NDArray[np.uint16], eight: NDArray[np.uint8]) -> bool:
    return np.array_equal(deep >> 8, eight) or np.array_equal(to_uint8(deep), eight)


def _encode(suffix: str, pixels: NDArray[np.uint16], parameters: list[int]) -> bytes:
    import cv2

    done, data = cv2.imencode(suffix, np.ascontiguousarray(_swap(pixels)), parameters)
    if not done:
        raise OSError(f"OpenCV could not encode {suffix}")
    return bytes(data.tobytes())
