"""Writing still images the way they were coded, with nothing in them that was not asked for."""

from __future__ import annotations

import io
import itertools
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, TiffImagePlugin, TiffTags

from ficgan.errors import InputError, UsageError
from ficgan.files import atomic_write
from ficgan.images.colour import HDR, Pixels, as_rgb, to_uint8
from ficgan.images.formats import FORMAT_OF, WRITABLE_SUFFIXES, output_suffix
from ficgan.images.heif import renamed_colours
from ficgan.images.photo import Photo, tag_xmp
from ficgan.images.read import PNG_SIGNATURE, swap_red_and_blue

__all__ = ["conversions", "encode_image", "write_image"]

_LOSSY = ("JPEG", "WEBP", "AVIF", "HEIF")
_LOSSLESS_TIFF = {"raw", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate", "packbits", "lzma", "zstd"}
_MAX_JPEG_XMP = 65_000  # bytes that fit one marker segment
_XMP_TAG, _ICC_TAG = 700, 34675
_TIFF_CODES = {"raw": 1, "tiff_lzw": 5, "tiff_adobe_deflate": 8, "tiff_deflate": 8, "packbits": 32773}


def encode_image(
    path: str | os.PathLike[str],
    photo: Photo,
    pixels: NDArray[np.uint8] | None = None,
    *,
    mask: NDArray[np.bool_] | None = None,
    synthetic: bool = False,
    keep_metadata: bool = False,
) -> bytes:
    """A photo with changed pixels, coded as its source was.

    The format is the source's where the suffixes agree, otherwise that of the suffix.

    Args:
        path: the name it is to have; nothing is written.
        photo: where everything but the changed pixels comes from.
        pixels: uint8 [H,W,3] RGB result; None leaves the photo unchanged.
        mask: bool [H,W], where `pixels` counts; by default wherever it differs from `photo.rgb`.
        synthetic: a face was generated: add the XMP tag `Iptc4xmpExt:DigitalSourceType`.
        keep_metadata: write the photo's cleaned EXIF and XMP.
    """
    path = Path(path)
    merged = photo.pixels if pixels is None else photo.merge(pixels, mask)
    format = _format(path, photo)
    xmp = photo.xmp if keep_metadata else None
    if synthetic:
        xmp = tag_xmp(xmp)
        if format == "JPEG" and len(xmp) > _MAX_JPEG_XMP:
            xmp = tag_xmp()
    elif format == "JPEG" and xmp and len(xmp) > _MAX_JPEG_XMP:
        xmp = None
    out = _fitted(replace(photo, pixels=merged, exif=photo.exif if keep_metadata else None, xmp=xmp), format)
    encoders = {"JPEG": _jpeg, "PNG": _png, "WEBP": _webp, "TIFF": _tiff, "AVIF": _avif, "HEIF": _heif}
    try:
        return encoders[format](out)
    except (OSError, RuntimeError, ValueError, TypeError, KeyError, OverflowError) as error:  # also of a lying decoder
        raise InputError(f"{photo.path}: cannot be written as {format} ({error})") from error


def write_image(
    path: str | os.PathLike[str],
    photo: Photo,
    pixels: NDArray[np.uint8] | None = None,
    *,
    overwrite: bool = False,
    **options: Any,
) -> bytes:
    """Write what `encode_image` makes of its `options`: whole, or not at all; returns the bytes.

    Raises:
        InputError: the file exists and `overwrite` is not given, it cannot be written, or as of `encode_image`.
    """
    data = encode_image(path, photo, pixels, **options)
    with atomic_write(path, overwrite=overwrite) as file:
        file.write(data)
    return data


def conversions(path: str | os.PathLike[str], photo: Photo, *, unchanged: bool = False) -> tuple[str, ...]:
    """What a photo loses as it is written under a name, a sentence each; also where none of its pixels was changed."""
    format = _format(Path(path), photo)
    out: list[str] = []
    if unchanged and format in _LOSSY and not photo.options.get("lossless"):
        out.append(f"nothing in it was changed, but it is encoded again, and {format} loses a little each time")
    if format != photo.format:
        out.append(f"{photo.format} becomes {format}")
    bits, holds = photo.options.get("bit_depth", photo.depth), _bits(photo, format)
    if bits > holds:
        out.append(f"{bits} bits a channel become {holds}, which is what {format} holds here")
    if _is_hdr(photo) and format not in _CODE_POINTS:
        out.append(f"{format} holds no colours brighter than white: they become white")
    about_light = {"content_light_level", "mastering_display_colour_volume"} & photo.options.keys()
    if format != photo.format and (about_light or {b"cLLI", b"mDCV"} & dict(photo.chunks).keys()):
        out.append("what it says of its brightest light (HDR10) is left out")
    return tuple(out)


def _format(path: Path, photo: Photo) -> str:
    suffix = path.suffix.lower()
    writable = photo.format in FORMAT_OF.values()
    named = FORMAT_OF.get(suffix)
    if writable and (suffix == photo.path.suffix.lower() or (named is None and suffix == output_suffix(photo.path))):
        return photo.format
    if named is None:
        raise UsageError(f"{path}: images are written as {', '.join(sorted(WRITABLE_SUFFIXES))}; choose one of these")
    return named


# Formats that name colours by H.273, and so hold HDR.
_CODE_POINTS = ("PNG", "AVIF", "HEIF")


def _is_hdr(photo: Photo) -> bool:
    return photo.cicp is not None and photo.cicp[1] in HDR


def _bits(photo: Photo, format: str) -> int:
    if format == "HEIF":
        return int(photo.options.get("bit_depth", 8 if photo.depth == 8 else 10))
    return 8 if format in _LOSSY else 16


def _fitted(photo: Photo, format: str) -> Photo:
    """What a format cannot hold is converted (CMYK, HDR, 16 bits, grey); what belongs to another format is left out."""
    mode, icc, cicp = photo.mode, photo.icc, photo.cicp
    pixels: Any = photo.pixels
    if format == "JPEG" and mode in ("LA", "RGBA"):
        raise InputError(f"{photo.path}: JPEG has no transparency; choose a name that ends in .png, .webp or .tif")
    if (mode == "CMYK" and format not in ("JPEG", "TIFF")) or (_is_hdr(photo) and format not in _CODE_POINTS):
        alpha = [to_uint8(pixels[..., -1:])] if mode in ("LA", "RGBA") else []
        pixels, mode = np.concatenate([photo.rgb, *alpha], axis=2), "RGBA" if alpha else "RGB"
        icc = cicp = None
    if _bits(photo, format) == 8:
        pixels = to_uint8(pixels)
    if (mode == "L" and format in ("WEBP", "HEIF")) or (
        mode == "LA" and (format in ("WEBP", "HEIF", "AVIF") or pixels.dtype == np.uint16)
    ):
        pixels, mode = (np.dstack([pixels] * 3), "RGB") if mode == "L" else (pixels[..., [0, 0, 0, 1]], "RGBA")
    if format != photo.format:
        chunks = ((b"cICP", bytes([*cicp, 0, 1])),) if cicp and format == "PNG" else ()
        photo = replace(photo, options={}, chunks=chunks)
    return replace(photo, format=format, mode=mode, pixels=pixels, icc=as_rgb(icc, mode), cicp=cicp)


def _image(pixels: Pixels, mode: str) -> Image.Image:
    if pixels.dtype == np.uint16:
        return Image.fromarray(np.ascontiguousarray(pixels))  # I;16
    height, width = pixels.shape[:2]
    return Image.frombuffer(mode, (width, height), np.ascontiguousarray(pixels), "raw", mode, 0, 1)


def _save(image: Image.Image, format: str, options: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **{name: value for name, value in options.items() if value is not None})
    return buffer.getvalue()


def _jpeg(photo: Photo) -> bytes:
    coding = photo.options if "qtables" in photo.options else {"quality": 95, "subsampling": 0}
    options = {**coding, "icc_profile": photo.icc, "exif": photo.exif, "xmp": photo.xmp}
    image = _image(photo.pixels, photo.mode)
    try:
        return _save(image, "JPEG", {**options, "optimize": True})
    except OSError:  # both buffer the whole image, in less than pure noise of the best quality takes
        return _save(image, "JPEG", {**options, "progressive": False})


def _png(photo: Photo) -> bytes:
    """Pillow or OpenCV encodes the pixels; all other chunks go before its image data."""
    chunks = list(photo.chunks)
    if photo.icc:
        chunks = [chunk for chunk in chunks if chunk[0] != b"sRGB"]  # one of the two
        chunks.append((b"iCCP", b"ICC Profile\0\0" + zlib.compress(photo.icc)))
    if "dpi" in photo.options:
        per_metre = (round(value / 0.0254).to_bytes(4, "big") for value in photo.options["dpi"])
        chunks.append((b"pHYs", b"".join(per_metre) + b"\1"))
    if photo.exif:
        chunks.append((b"eXIf", photo.exif.removeprefix(b"Exif\0\0")))
    if photo.xmp:
        chunks.append((b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + photo.xmp))
    deep = photo.depth == 16 and photo.mode != "L"  # which Pillow does not write
    data = _encode(".png", photo.pixels, []) if deep else _save(_image(photo.pixels, photo.mode), "PNG", {})
    after_header = len(PNG_SIGNATURE) + 25  # IHDR: 4 + 4 + 13 + 4 bytes
    own = b"".join(
        struct.pack(">L", len(content)) + name + content + struct.pack(">L", zlib.crc32(name + content))
        for name, content in chunks
    )
    return data[:after_header] + own + data[after_header:]


def _webp(photo: Photo) -> bytes:
    # A lossy file does not tell its quality: 90 adds little of its own. `exact` keeps colours below full transparency.
    lossless = bool(photo.options.get("lossless", False))
    coding = {"lossless": lossless, "exact": True, "quality": 75 if lossless else 90}
    metadata = {"icc_profile": photo.icc, "exif": photo.exif, "xmp": photo.xmp}
    return _save(_image(photo.pixels, photo.mode), "WEBP", {**coding, **metadata})


def _avif(photo: Photo) -> bytes:
    """The file does not tell its quality. Pillow names all colours sRGB: those of the photo take their place."""
    subsampling = photo.options.get("subsampling", "4:4:4")
    if (photo.mode == "L") != (subsampling == "4:0:0"):
        subsampling = "4:0:0" if photo.mode == "L" else "4:2:0"
    icc = None if photo.cicp else photo.icc
    options = {"quality": 90, "subsampling": subsampling, "icc_profile": icc, "exif": photo.exif, "xmp": photo.xmp}
    data = _save(_image(photo.pixels, photo.mode), "AVIF", options)
    return data if photo.cicp is None else renamed_colours(data, photo.cicp)


def _heif(photo: Photo) -> bytes:
    """HEIC, through pillow-heif; telephones open no finer chroma than 4:2:0, so it is only written where it was."""
    import pillow_heif  # type: ignore[import-not-found, unused-ignore]

    buffer, (height, width) = io.BytesIO(), photo.pixels.shape[:2]
    primaries, transfer = photo.cicp or (1, 13)
    named = {"color_primaries": primaries, "transfer_characteristics": transfer, "full_range_flag": 1}
    named["matrix_coefficients"] = 9 if primaries == 9 else 6
    icc = None if photo.cicp else photo.icc
    options = {"chroma": 420, **photo.options, "bit_depth": _bits(photo, "HEIF"), "quality": 90}
    options |= {"exif": photo.exif, "xmp": photo.xmp, "icc_profile": icc, "nclx_profile": named}
    # "fast" takes two fifths of the time of x265's own choice, for some more bytes
    options["enc_params"] = {"preset": "fast"}
    mode, pixels = photo.mode + ";16" * (photo.depth == 16), np.ascontiguousarray(photo.pixels)
    pillow_heif.encode(mode, (width, height), pixels.tobytes(), buffer, **options)
    return buffer.getvalue()


def _tiff(photo: Photo) -> bytes:
    compression = photo.options.get("compression", "tiff_adobe_deflate")
    if compression not in _LOSSLESS_TIFF:  # JPEG would change the untouched pixels, fax codes hold one bit
        compression = "tiff_adobe_deflate"
    tags: dict[int, tuple[int, Any]] = {}
    if photo.icc:
        tags[_ICC_TAG] = (TiffTags.UNDEFINED, photo.icc)
    if dpi := photo.options.get("dpi"):
        tags[282], tags[283] = ((TiffTags.RATIONAL, value) for value in dpi)
        tags[296] = (TiffTags.SHORT, 2)
    if photo.xmp:
        tags[_XMP_TAG] = (TiffTags.BYTE, photo.xmp)
    if photo.exif:
        block = Image.Exif()
        block.load(photo.exif)
        groups = (0x8769, 0x8825)
        for tag, value in block.items():
            if tag not in groups:
                tags[tag] = (TiffTags.lookup(tag).type or TiffTags.UNDEFINED, value)
        tags |= {group: (TiffTags.LONG, dict(entries)) for group in groups if (entries := block.get_ifd(group))}
    if photo.depth == 8 or photo.mode == "L":
        return _with_tags(_save(_image(photo.pixels, photo.mode), "TIFF", {"compression": compression}), tags)
    import cv2

    if photo.mode == "RGBA":
        tags[TiffImagePlugin.EXTRASAMPLES] = (TiffTags.SHORT, 2)  # alpha, not premultiplied
    code = _TIFF_CODES.get(compression, 8)  # deflate where OpenCV lacks the compression
    parameters = [cv2.IMWRITE_TIFF_COMPRESSION, code, cv2.IMWRITE_TIFF_PREDICTOR, 2]
    return _with_tags(_encode(".tiff", photo.pixels, parameters), tags)


def _with_tags(data: bytes, tags: Mapping[int, tuple[int, Any]]) -> bytes:
    """A TIFF of one picture with more tags: libtiff, which compresses it, writes no EXIF and OpenCV none at all."""
    with Image.open(io.BytesIO(data), formats=["TIFF"]) as image:
        assert isinstance(image, TiffImagePlugin.TiffImageFile)
        source = image.tag_v2
    directory = TiffImagePlugin.ImageFileDirectory_v2(data[:8])
    _set_tags(directory, {tag: (source.tagtype[tag], source[tag]) for tag in source})
    _set_tags(directory, tags)
    spans = zip(source[TiffImagePlugin.STRIPOFFSETS], source[TiffImagePlugin.STRIPBYTECOUNTS], strict=True)
    strips = [data[start : start + size] for start, size in spans]
    directory.tagtype[TiffImagePlugin.STRIPOFFSETS] = TiffTags.LONG
    starts = itertools.accumulate((len(strip) for strip in strips[:-1]), initial=0)
    directory[TiffImagePlugin.STRIPOFFSETS] = tuple(starts)  # from the end of the directory, where the strips follow
    order = "<" if data[:2] == b"II" else ">"
    return data[:4] + struct.pack(order + "L", 8) + directory.tobytes(8) + b"".join(strips)


def _set_tags(directory: TiffImagePlugin.ImageFileDirectory_v2, tags: Mapping[int, tuple[int, Any]]) -> None:
    for tag, (kind, value) in tags.items():
        directory.tagtype[tag] = kind
        directory[tag] = value


def _encode(suffix: str, pixels: Pixels, parameters: list[int]) -> bytes:
    import cv2

    done, data = cv2.imencode(suffix, np.ascontiguousarray(swap_red_and_blue(pixels)), parameters)
    if not done:
        raise OSError(f"OpenCV could not encode {suffix}")
    return bytes(data.tobytes())
