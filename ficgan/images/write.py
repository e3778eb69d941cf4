"""Writing still images the way they were coded, with nothing in them that was not asked for."""

from __future__ import annotations

import io
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin, TiffImagePlugin, TiffTags

from ficgan.errors import InputError, UsageError
from ficgan.images.colour import Pixels, to_uint8
from ficgan.images.deep import encode16_png, encode16_tiff
from ficgan.images.files import atomic_write
from ficgan.images.metadata import tag_xmp
from ficgan.images.photo import Photo

__all__ = ["WRITABLE_SUFFIXES", "encode_image", "output_suffix", "write_image"]

_FORMAT_OF = {
    ".jpg": "JPEG", ".jpeg": "JPEG", ".jpe": "JPEG", ".jfif": "JPEG", ".mpo": "JPEG",
    ".png": "PNG", ".apng": "PNG", ".webp": "WEBP", ".tif": "TIFF", ".tiff": "TIFF",
}  # fmt: skip
WRITABLE_SUFFIXES = frozenset(_FORMAT_OF)

_LOSSLESS_TIFF = {"raw", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate", "packbits", "lzma", "zstd"}
_MAX_JPEG_XMP = 65_000  # bytes that fit one marker segment
_XMP_TAG, _ICC_TAG = 700, 34675


def output_suffix(path: str | os.PathLike[str]) -> str:
    """The suffix a result takes: the source's own, `.png` where its format is only read (BMP, GIF, HEIC, AVIF)."""
    suffix = Path(path).suffix
    known_only_to_read = suffix.lower() in {".bmp", ".dib", ".gif", ".heic", ".heif", ".hif", ".avif"}
    return ".png" if known_only_to_read or not suffix else suffix


def write_image(
    path: str | os.PathLike[str],
    photo: Photo,
    pixels: NDArray[np.uint8] | None = None,
    *,
    mask: NDArray[np.bool_] | None = None,
    synthetic: bool = False,
    keep_metadata: bool = False,
    overwrite: bool = False,
) -> bytes:
    """Write a photo with changed pixels, coded as its source was: whole, or not at all.

    The format is the source's where the suffixes agree, otherwise that of the suffix.

    Args:
        path: The file to make.
        photo: Where everything but the changed pixels comes from.
        pixels: uint8 [H,W,3] RGB result; None writes the photo unchanged.
        mask: bool [H,W], where `pixels` counts; by default wherever it differs from `photo.rgb`.
        synthetic: A face was generated: add the XMP tag `Iptc4xmpExt:DigitalSourceType`.
        keep_metadata: Write the photo's cleaned EXIF and XMP.
        overwrite: Replace an existing file.

    Returns:
        The bytes written.

    Raises:
        InputError: The file exists, cannot be written, or its format cannot hold the photo.
        UsageError: The suffix names no format that can be written.
    """
    path = Path(path)
    merged = photo.pixels if pixels is None else photo.merge(pixels, mask)
    data = encode_image(photo, merged, _format(path, photo), synthetic=synthetic, keep_metadata=keep_metadata)
    with atomic_write(path, overwrite=overwrite) as file:
        file.write(data)
    return data


def encode_image(
    photo: Photo, pixels: Pixels, format: str, *, synthetic: bool = False, keep_metadata: bool = False
) -> bytes:
    """The bytes of an image file; `pixels` in the photo's own terms, the rest as in `write_image`."""
    xmp = photo.xmp if keep_metadata else None
    if synthetic:
        xmp = tag_xmp(xmp)
        if format == "JPEG" and len(xmp) > _MAX_JPEG_XMP:
            xmp = tag_xmp()
    elif format == "JPEG" and xmp and len(xmp) > _MAX_JPEG_XMP:
        xmp = None
    exif = photo.exif if keep_metadata else None
    options = dict(photo.options) if format == photo.format else {}
    pixels, mode, icc = _fit(photo, pixels, format)
    try:
        match format:
            case "JPEG":
                return _jpeg(pixels, mode, options, icc, exif, xmp)
            case "PNG":
                chunks = photo.chunks if photo.format == "PNG" else ()
                return _png(pixels, mode, options, icc, exif, xmp, chunks)
            case "WEBP":
                return _webp(pixels, mode, options, icc, exif, xmp)
            case "TIFF":
                return _tiff(pixels, mode, options, icc, exif, xmp)
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(f"{photo.path}: cannot be written as {format} ({error})") from error
    raise UsageError(f"{format} is not written; choose a name that ends in .jpg, .png, .webp or .tif")


def _format(path: Path, photo: Photo) -> str:
    suffix = path.suffix.lower()
    writable = photo.format in _FORMAT_OF.values()
    named = _FORMAT_OF.get(suffix)
    if writable and (suffix == photo.path.suffix.lower() or (named is None and suffix == output_suffix(photo.path))):
        return photo.format
    if named is None:
        raise UsageError(f"{path}: images are written as {', '.join(sorted(WRITABLE_SUFFIXES))}; choose one of these")
    return named


def _fit(photo: Photo, pixels: Pixels, format: str) -> tuple[Pixels, str, bytes | None]:
    """What a format cannot hold is converted: CMYK, and 16 bits."""
    mode, icc = photo.mode, photo.icc
    if format in ("PNG", "WEBP") and mode == "CMYK":
        pixels, mode, icc = Photo(photo.path, photo.format, mode, pixels, icc=icc).rgb, "RGB", None
    if format in ("JPEG", "WEBP"):
        pixels = to_uint8(pixels)
    if format == "JPEG" and mode in ("LA", "RGBA"):
        raise InputError(f"{photo.path}: JPEG has no transparency; choose a name that ends in .png, .webp or .tif")
    return pixels, mode, icc


def _image(pixels: Pixels, mode: str) -> Image.Image:
    if pixels.dtype == np.uint16:
        return Image.fromarray(np.ascontiguousarray(pixels))  # I;16
    height, width = pixels.shape[:2]
    return Image.frombuffer(mode, (width, height), pixels.tobytes(), "raw", mode, 0, 1)


def _deep_colour(pixels: Pixels, mode: str) -> NDArray[np.uint16] | None:
    """The 16-bit RGB or RGBA that Pillow cannot write (grey with alpha is written as RGBA), None for all else."""
    if pixels.dtype != np.uint16 or mode == "L":
        return None
    return (pixels[..., [0, 0, 0, 1]] if mode == "LA" else pixels).astype(np.uint16, copy=False)


def _save(image: Image.Image, format: str, options: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **{name: value for name, value in options.items() if value is not None})
    return buffer.getvalue()


def _jpeg(
    pixels: Pixels, mode: str, options: dict[str, Any], icc: bytes | None, exif: bytes | None, xmp: bytes | None
) -> bytes:
    if "qtables" not in options:
        options = {"quality": 95, "subsampling": 0}
    options = {**options, "icc_profile": icc, "exif": exif, "xmp": xmp}
    image = _image(pixels, mode)
    try:
        return _save(image, "JPEG", {**options, "optimize": True})
    except OSError:  # both buffer the whole image, in less than pure noise of the best quality takes
        return _save(image, "JPEG", {**options, "progressive": False})


def _png(
    pixels: Pixels,
    mode: str,
    options: dict[str, Any],
    icc: bytes | None,
    exif: bytes | None,
    xmp: bytes | None,
    chunks: tuple[tuple[bytes, bytes], ...],
) -> bytes:
    deep = _deep_colour(pixels, mode)
    if deep is not None:
        extra = list(chunks)
        if icc:
            extra.append((b"iCCP", b"ICC Profile\0\0" + zlib.compress(icc)))
        if "dpi" in options:
            per_metre = (round(value / 0.0254).to_bytes(4, "big") for value in options["dpi"])
            extra.append((b"pHYs", b"".join(per_metre) + b"\1"))
        if exif:
            extra.append((b"eXIf", exif.removeprefix(b"Exif\0\0")))
        if xmp:
            extra.append((b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp))
        return encode16_png(deep, extra)
    info = PngImagePlugin.PngInfo()
    for name, content in chunks:
        info.add(name, content)
    if xmp:
        info.add_itxt("XML:com.adobe.xmp", xmp.decode())
    return _save(_image(pixels, mode), "PNG", {**options, "icc_profile": icc, "exif": exif, "pnginfo": info})


def _webp(
    pixels: Pixels, mode: str, options: dict[str, Any], icc: bytes | None, exif: bytes | None, xmp: bytes | None
) -> bytes:
    lossless = options.get("lossless", False)
    image = _image(pixels, mode)
    if mode in ("L", "LA"):
        image = image.convert("RGB" if mode == "L" else "RGBA")
    # a lossy file does not tell its quality: 90 adds little of its own; `exact` keeps colours below full transparency
    coding = {"lossless": True, "exact": True, "quality": 75} if lossless else {"quality": 90, "exact": True}
    return _save(image, "WEBP", {**coding, "icc_profile": icc, "exif": exif, "xmp": xmp})


def _tiff(
    pixels: Pixels, mode: str, options: dict[str, Any], icc: bytes | None, exif: bytes | None, xmp: bytes | None
) -> bytes:
    compression = options.get("compression", "tiff_adobe_deflate")
    if compression not in _LOSSLESS_TIFF:  # JPEG would change the untouched pixels, fax codes hold one bit
        compression = "tiff_adobe_deflate"
    tags: dict[int, tuple[int, Any]] = {}
    if xmp:
        tags[_XMP_TAG] = (TiffTags.BYTE, xmp)
    if exif:
        block = Image.Exif()
        block.load(exif)
        for tag, value in block.items():
            if tag in (0x8769, 0x8825):
                continue
            tags[tag] = (TiffTags.lookup(tag).type or TiffTags.UNDEFINED, value)
        for group in (0x8769, 0x8825):
            if entries := block.get_ifd(group):
                tags[group] = (TiffTags.LONG, dict(entries))
    deep = _deep_colour(pixels, mode)
    if deep is not None:
        if icc:
            tags[_ICC_TAG] = (TiffTags.UNDEFINED, icc)
        if "dpi" in options:
            tags[282], tags[283] = ((TiffTags.RATIONAL, value) for value in options["dpi"])
            tags[296] = (TiffTags.SHORT, 2)
        return encode16_tiff(deep, compression, tags)
    directory = TiffImagePlugin.ImageFileDirectory_v2()
    for tag, (kind, value) in tags.items():
        directory.tagtype[tag] = kind
        directory[tag] = value
    settings = {"compression": compression, "icc_profile": icc, "tiffinfo": directory, "dpi": options.get("dpi")}
    return _save(_image(pixels, mode), "TIFF", settings)
