"""Still images written the way they were coded, and nothing in them that was not asked for."""

from __future__ import annotations

import io
import os
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin, TiffImagePlugin, TiffTags

from ficgan.errors import InputError, UsageError
from ficgan.images import FORMAT_OF, WRITABLE_SUFFIXES, output_suffix
from ficgan.images.photo import Photo, make_xmp, space_of, to_rgb, to_uint8
from ficgan.images.read import swap_red_and_blue

_LOSSY = ("JPEG", "WEBP", "AVIF", "HEIF")
# Characters that fit one marker segment of a JPEG, with all that stands around them.
_MAX_JPEG_XMP = 15_000


def encode_image(
    path: str | os.PathLike[str],
    photo: Photo,
    pixels: NDArray[np.uint8] | None = None,
    *,
    synthetic: bool = False,
    keep_metadata: bool = False,
) -> bytes:
    """A photo with changed pixels, coded as its source was.

    The format is the source's where the suffixes agree, otherwise that of the suffix.

    Args:
        path: the name it is to have; nothing is written.
        photo: where everything but the changed pixels comes from.
        pixels: uint8 [H,W,3] RGB result; None leaves the photo unchanged.
        synthetic: a face was generated: add the XMP tag `Iptc4xmpExt:DigitalSourceType`.
        keep_metadata: write the photo's cleaned EXIF and XMP.
    """
    merged = photo.pixels if pixels is None else photo.merge(pixels)
    format = _format(Path(path), photo)
    out = _fitted(replace(photo, pixels=merged), format)
    exif, xmp = (photo.exif, photo.xmp) if keep_metadata else (None, {})
    if format == "JPEG" and sum(map(len, xmp.values())) > _MAX_JPEG_XMP:
        xmp = {}
    metadata = {"icc_profile": out.icc, "exif": exif, "xmp": make_xmp(xmp, synthetic=synthetic)}
    encoders = {"JPEG": _jpeg, "PNG": _png, "WEBP": _webp, "TIFF": _tiff, "AVIF": _avif, "HEIF": _heif}
    try:
        return encoders[format](out, {name: value for name, value in metadata.items() if value})
    except (OSError, RuntimeError, ValueError, TypeError, KeyError, OverflowError) as error:  # also of a lying decoder
        raise InputError(f"{photo.path}: cannot be written as {format} ({error})") from error


def conversions(path: str | os.PathLike[str], photo: Photo, *, unchanged: bool = False) -> tuple[str, ...]:
    """What a photo loses as it is written under a name, a sentence each; also where none of its pixels was changed."""
    format = _format(Path(path), photo)
    out: list[str] = []
    if unchanged and format in _LOSSY and not photo.options.get("lossless"):
        out.append(f"nothing in it was changed, but it is encoded again, and {format} loses a little each time")
    if format != photo.format:
        out.append(f"{photo.format} becomes {format}")
    if photo.depth == 16 and format in _LOSSY:
        out.append(f"16 bits a channel become 8, which is what {format} holds here")
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


def _fitted(photo: Photo, format: str) -> Photo:
    """What a format cannot hold is converted (16 bits, grey); what belongs to another format is left out."""
    mode = photo.mode
    pixels: Any = photo.pixels
    if format == "JPEG" and mode in ("LA", "RGBA"):
        raise InputError(f"{photo.path}: JPEG has no transparency; choose a name that ends in .png, .webp or .tif")
    if format in _LOSSY:
        pixels = to_uint8(pixels)
    icc = photo.icc
    if (mode == "L" and format in ("WEBP", "HEIF")) or (mode == "LA" and (format in _LOSSY or photo.depth == 16)):
        if icc is not None:  # of grey
            pixels = to_uint8(pixels)
        colours = pixels if mode == "L" else pixels[..., 0]
        colours, icc = np.dstack([colours] * 3) if icc is None else to_rgb(pixels, mode, space_of(icc)), None
        pixels, mode = (colours, "RGB") if mode == "L" else (np.dstack([colours, pixels[..., 1]]), "RGBA")
    options = photo.options if format == photo.format else {}
    return replace(photo, format=format, mode=mode, pixels=pixels, icc=icc, options=options)


def _save(photo: Photo, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(photo.pixels)).save(buffer, photo.format, **options)  # L, LA, RGB, RGBA, I;16
    return buffer.getvalue()


def _jpeg(photo: Photo, metadata: dict[str, Any]) -> bytes:
    coding = photo.options if "qtables" in photo.options else {"quality": 95, "subsampling": 0}
    try:
        return _save(photo, **coding, **metadata, optimize=True)
    except OSError:  # both buffer the whole image, in less than pure noise of the best quality takes
        return _save(photo, **{**coding, "progressive": False}, **metadata)


def _png(photo: Photo, metadata: dict[str, Any]) -> bytes:
    if photo.depth == 8 or photo.mode == "L":
        data = _save(photo)
    else:  # which Pillow does not write
        data = cv2.imencode(".png", swap_red_and_blue(photo.pixels))[1].tobytes()
    chunks = io.BytesIO()
    if "icc_profile" in metadata:
        PngImagePlugin.putchunk(chunks, b"iCCP", b"ICC Profile\0\0", zlib.compress(metadata["icc_profile"]))
    if "dpi" in photo.options:
        per_metre = (round(value / 0.0254).to_bytes(4, "big") for value in photo.options["dpi"])
        PngImagePlugin.putchunk(chunks, b"pHYs", *per_metre, b"\1")
    if "exif" in metadata:
        PngImagePlugin.putchunk(chunks, b"eXIf", metadata["exif"].removeprefix(b"Exif\0\0"))
    if "xmp" in metadata:
        PngImagePlugin.putchunk(chunks, b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0", metadata["xmp"])
    after_header = 33  # signature and IHDR: 8 + 4 + 4 + 13 + 4 bytes
    return data[:after_header] + chunks.getvalue() + data[after_header:]


def _webp(photo: Photo, metadata: dict[str, Any]) -> bytes:
    # A lossy file does not tell its quality: 90 adds little of its own. `exact` keeps colours below full transparency.
    lossless = bool(photo.options.get("lossless", False))
    return _save(photo, lossless=lossless, exact=True, quality=75 if lossless else 90, **metadata)


def _avif(photo: Photo, metadata: dict[str, Any]) -> bytes:
    subsampling = "4:0:0" if photo.mode == "L" else photo.options.get("subsampling", "4:4:4")
    return _save(photo, quality=90, subsampling=subsampling, **metadata)  # the file does not tell its quality


def _heif(photo: Photo, metadata: dict[str, Any]) -> bytes:
    """HEIC, through pillow-heif; telephones open no finer chroma than 4:2:0, so it is only written where it was."""
    import pillow_heif  # type: ignore[import-not-found, unused-ignore]

    buffer, pixels = io.BytesIO(), np.ascontiguousarray(photo.pixels)
    named = {"color_primaries": 1, "transfer_characteristics": 13, "matrix_coefficients": 6, "full_range_flag": 1}
    options = {"quality": 90, "chroma": photo.options.get("chroma", 420), "bit_depth": 8, "nclx_profile": named}
    # "fast" takes two fifths of the time of x265's own choice, for some more bytes
    options["enc_params"] = {"preset": "fast"}
    pillow_heif.encode(photo.mode, pixels.shape[1::-1], pixels.tobytes(), buffer, **options, **metadata)
    return buffer.getvalue()


def _tiff(photo: Photo, metadata: dict[str, Any]) -> bytes:
    """One strip, deflated by rows of differences: Pillow writes no colours of 16 bits, libtiff no EXIF, OpenCV none."""
    height, width, channels = (*photo.pixels.shape, 1)[:3]
    pixels: Any = photo.pixels.reshape(height, width, channels)
    rows = pixels.copy()
    rows[:, 1:] -= pixels[:, :-1]  # modulo 2ⁿ
    strip = zlib.compress(rows.astype(pixels.dtype.newbyteorder("<"), copy=False).tobytes(), 6)
    short, long = TiffTags.SHORT, TiffTags.LONG
    tags: dict[int, tuple[int, Any]] = {
        TiffImagePlugin.IMAGEWIDTH: (long, width),
        TiffImagePlugin.IMAGELENGTH: (long, height),
        TiffImagePlugin.BITSPERSAMPLE: (short, (photo.depth,) * channels),
        TiffImagePlugin.COMPRESSION: (short, 8),
        TiffImagePlugin.PHOTOMETRIC_INTERPRETATION: (short, 1 if channels < 3 else 2),
        TiffImagePlugin.STRIPOFFSETS: (long, 0),  # from the end of the directory, where the strip follows
        TiffImagePlugin.SAMPLESPERPIXEL: (short, channels),
        TiffImagePlugin.ROWSPERSTRIP: (long, height),
        TiffImagePlugin.STRIPBYTECOUNTS: (long, len(strip)),
        TiffImagePlugin.PREDICTOR: (short, 2),
    }
    if channels in (2, 4):
        tags[TiffImagePlugin.EXTRASAMPLES] = (short, 2)  # alpha, not premultiplied
    if dpi := photo.options.get("dpi"):
        tags[TiffImagePlugin.X_RESOLUTION] = (TiffTags.RATIONAL, dpi[0])
        tags[TiffImagePlugin.Y_RESOLUTION] = (TiffTags.RATIONAL, dpi[1])
        tags[TiffImagePlugin.RESOLUTION_UNIT] = (short, 2)
    if "icc_profile" in metadata:
        tags[TiffImagePlugin.ICCPROFILE] = (TiffTags.UNDEFINED, metadata["icc_profile"])
    if "xmp" in metadata:
        tags[700] = (TiffTags.BYTE, metadata["xmp"])
    if "exif" in metadata:
        block = Image.Exif()
        block.load(metadata["exif"])
        groups = {group: dict(entries) for group in (0x8769, 0x8825) if (entries := block.get_ifd(group))}
        named = {tag: value for tag, value in block.items() if tag not in (0x8769, 0x8825)}
        tags |= {tag: (TiffTags.lookup(tag).type or TiffTags.UNDEFINED, value) for tag, value in named.items()}
        tags |= {group: (long, entries) for group, entries in groups.items()}
    head = b"II*\0\x08\0\0\0"
    directory = TiffImagePlugin.ImageFileDirectory_v2(head)
    for tag, (kind, value) in tags.items():
        directory.tagtype[tag] = kind
        directory[tag] = value
    return head + directory.tobytes(8) + strip
