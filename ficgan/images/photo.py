"""A photo in memory: its own pixels, an sRGB view to work on, and the metadata that may stay.

Everything looks at pictures in 8-bit sRGB. What was changed there goes back into the file's own space and depth.
"""

from __future__ import annotations

import io
import re
import struct
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageCms

Pixels = NDArray[np.uint8] | NDArray[np.uint16]


@dataclass(frozen=True, eq=False)
class Photo:
    """One still image, upright."""

    path: Path  # where it came from
    format: str  # JPEG, PNG, WEBP, TIFF, AVIF, HEIF, or one that is only read (BMP, GIF)
    mode: str  # L, LA, RGB or RGBA
    pixels: Pixels  # the file's own values, [H,W] for L, otherwise [H,W,C]; uint8 or uint16; read-only
    options: Mapping[str, Any] = field(default_factory=dict)  # how it was coded: Pillow's options of `save`
    icc: bytes | None = None  # colour profile, as far as colours need it
    exif: bytes | None = None  # what may stay, see `clean_exif`; written on request only
    xmp: Mapping[str, str] = field(default_factory=dict)  # the same, see `clean_xmp`
    notes: tuple[str, ...] = ()  # what could not be carried over, one sentence each

    @property
    def depth(self) -> int:
        """Bits per channel, 8 or 16."""
        return 8 * self.pixels.dtype.itemsize

    @cached_property
    def rgb(self) -> NDArray[np.uint8]:
        """The photo as uint8 [H,W,3] sRGB, alpha ignored; read-only."""
        view = to_rgb(self.pixels, self.mode, space_of(self.icc))
        view.flags.writeable = False
        return view

    def merge(self, result: NDArray[np.uint8]) -> Pixels:
        """The file's own pixels, with those of a changed sRGB image [H,W,3] where it differs from `rgb`.

        They are converted as the file needs. Elsewhere the values are the very same, and alpha is never touched.
        """
        space = space_of(self.icc)
        if self.mode == "RGB" and self.depth == 8 and space is None:
            return result
        mask = np.zeros(result.shape[:2], bool)
        for channel in range(3):  # channel by channel: a third of the memory of one big comparison
            mask |= result[..., channel] != self.rgb[..., channel]
        if not mask.any():
            return self.pixels
        values = from_rgb(result[mask], self.mode, self.depth, space)
        merged = self.pixels.copy()
        _colours_of(merged, self.mode)[mask] = values
        return merged


def _colours_of(pixels: Any, mode: str) -> Any:
    """A view [H,W] of grey or [H,W,3] without alpha."""
    return pixels if mode == "L" else pixels[..., 0] if mode == "LA" else pixels[..., :3]


# -- a file's own numbers, by LittleCMS


@dataclass(frozen=True, eq=False)
class Space:
    """How a file's colours mean light; `back` is None where its profile works one way only."""

    mode: str
    there: ImageCms.ImageCmsTransform
    back: ImageCms.ImageCmsTransform | None

    def to_srgb(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Pixels [H,W] or [H,W,C] as sRGB [H,W,3]."""
        image = Image.frombuffer(self.mode, pixels.shape[1::-1], np.ascontiguousarray(pixels), "raw", self.mode, 0, 1)
        return np.asarray(ImageCms.applyTransform(image, self.there))

    def from_srgb(self, values: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Values of sRGB [N,3] as the file's own, [N] or [N,C]."""
        assert self.back is not None
        return np.asarray(ImageCms.applyTransform(Image.fromarray(np.ascontiguousarray(values)[None]), self.back))[0]


@lru_cache(maxsize=16)
def space_of(icc: bytes | None) -> Space | None:
    """The space of a profile; None where its numbers are those of sRGB; a ValueError where LittleCMS cannot use it."""
    if icc is None:
        return None
    mode = {b"CMYK": "CMYK", b"GRAY": "L"}.get(icc[16:20], "RGB")
    srgb = ImageCms.createProfile("sRGB")
    try:
        own = ImageCms.ImageCmsProfile(io.BytesIO(icc))
        there = ImageCms.buildTransform(own, srgb, mode, "RGB")
    except (OSError, ImageCms.PyCMSError) as error:
        raise ValueError("a damaged colour profile") from error
    try:
        space = Space(mode, there, ImageCms.buildTransform(srgb, own, "RGB", mode))
    except ImageCms.PyCMSError:
        return Space(mode, there, None)
    if mode != "RGB":
        return space
    steps = np.linspace(0, 255, 16).astype(np.uint8)
    every = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(64, 64, 3)
    return space if np.abs(space.to_srgb(every).astype(int) - every).max() > 1 else None


def to_uint8(pixels: Pixels) -> NDArray[np.uint8]:
    """16 bits to 8: round(v / 257), exactly; 8 bits pass through."""
    if pixels.dtype == np.uint8:
        return pixels.astype(np.uint8, copy=False)
    wide = pixels.astype(np.uint32)  # large: changed in place
    wide *= 255
    wide += 32895  # (255 v + 32895) >> 16 equals round(v / 257) for every v in 0…65535
    wide >>= 16
    return wide.astype(np.uint8)


def to_rgb(pixels: Pixels, mode: str, space: Space | None) -> NDArray[np.uint8]:
    """The 8-bit sRGB view [H,W,3] of a file's pixels, alpha ignored."""
    colours = to_uint8(_colours_of(pixels, mode))
    if space is not None:
        return space.to_srgb(colours)
    return np.repeat(colours[..., None], 3, axis=2) if colours.ndim == 2 else colours


def from_rgb(values: NDArray[np.uint8], mode: str, depth: int, space: Space | None) -> Pixels:
    """sRGB values uint8 [N,3] as a file of this mode, depth (8 or 16 bits) and space holds them, alpha left out.

    That is [N] of grey (ITU-R BT.601 where there is no profile) or [N,3], uint8 or uint16.
    """
    if space is not None:
        values = space.from_srgb(values)
    elif mode in ("L", "LA"):
        weights = np.array([19595, 38470, 7471], np.uint32)  # 0.299, 0.587, 0.114 in 1/65536
        values = ((values.astype(np.uint32) @ weights + 32768) >> 16).astype(np.uint8)
    return values.astype(np.uint16) * np.uint16(257) if depth == 16 else values


# -- metadata: the synthetic-media tag, and what may stay on request

# IPTC's term for a photo edited with a generative model, such as by inpainting. `compositeSynthetic` is its term for a
# collage with synthetic elements, `trainedAlgorithmicMedia` the one for a picture that is synthetic as a whole.
DIGITAL_SOURCE_TYPE = "http://cv.iptc.org/newscodes/digitalsourcetype/compositeWithTrainedAlgorithmicMedia"

_X = "adobe:ns:meta/"
_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_IPTC_EXT = "http://iptc.org/std/Iptc4xmpExt/2008-02-29/"
_SOURCE_TYPE = f"{{{_IPTC_EXT}}}DigitalSourceType"
# What of XMP is kept: prefix, namespace and names, "" for all. Any other property may be a preview, a name or a path.
_KEPT_XMP = (
    ("dc", "http://purl.org/dc/elements/1.1/", "title description rights"),
    ("xmp", "http://ns.adobe.com/xap/1.0/", "CreateDate ModifyDate Rating Label"),
    ("xmpRights", "http://ns.adobe.com/xap/1.0/rights/", "Marked UsageTerms"),
    ("photoshop", "http://ns.adobe.com/photoshop/1.0/", "DateCreated City State Country"),
    ("Iptc4xmpCore", "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/", "Location CountryCode"),
    ("GPano", "http://ns.google.com/photos/1.0/panorama/", ""),
)
_IN_LANGUAGES = ("title", "description", "rights", "UsageTerms")
_MAX_VALUE = 4096  # characters or bytes; descriptions are shorter, embedded pictures longer

# A TIFF's technical tags are not here, and neither are Artist, HostComputer ("Ann's phone"), XPAuthor, XPKeywords.
_KEPT_TAGS = {0x010E, 0x010F, 0x0110, 0x0131, 0x0132, 0x4746, 0x4749, 0x8298, 0x9C9B, 0x9C9C, 0x9C9F}
# Nor, of its directory for cameras: maker note, sound file, unique id, owner, serial numbers, photographer, editor.
_KEPT_EXIF = {
    int(tag, 16)
    for tag in re.findall(
        r"\w+",
        "829A 829D 8822 8824 8827 8830 8831 8832 8833 8834 8835 9000 9003 9004 9010 9011 9012 9101 9102 9201 9202 9203 "
        "9204 9205 9206 9207 9208 9209 920A 9214 9286 9290 9291 9292 9400 9401 9402 9403 9404 9405 A000 A001 A002 A003 "
        "A20B A20E A20F A210 A214 A215 A217 A300 A301 A302 A401 A402 A403 A404 A405 A406 A407 A408 A409 A40A A40B A40C "
        "A432 A433 A434 A460 A461 A462 A500",
    )
}
_SIZE_TAGS = {ExifTags.Base.ExifImageWidth: 0, ExifTags.Base.ExifImageHeight: 1}


def clean_exif(image: Image.Image, size: tuple[int, int]) -> bytes | None:
    """EXIF that may be kept, as a block for Pillow's writers; None where there is nothing, or nothing readable.

    Left out are the orientation (it is applied), thumbnail, maker note, author, owner, serial numbers, keywords, large
    values, and every tag that is not in the list of those that may stay.
    `size` is the upright image's width and height in px.
    """
    try:
        source, kept = image.getexif(), Image.Exif()
        kept.update({tag: value for tag, value in source.items() if tag in _KEPT_TAGS and _small(value)})
        camera = {tag: value for tag, value in source.get_ifd(0x8769).items() if tag in _KEPT_EXIF and _small(value)}
        camera.update({tag: size[axis] for tag, axis in _SIZE_TAGS.items() if tag in camera})
        place = {tag: value for tag, value in source.get_ifd(0x8825).items() if _small(value)}
        for group, entries in ((0x8769, camera), (0x8825, place)):
            if entries:
                kept.get_ifd(group).update(entries)
        return kept.tobytes() if len(kept) or camera or place else None
    except Exception:  # Pillow's EXIF parser meets damaged blocks with any of a dozen types
        return None


def _small(value: Any) -> bool:
    return not hasattr(value, "__len__") or len(value) <= _MAX_VALUE


def clean_xmp(packet: bytes | str | None) -> dict[str, str]:
    """The properties of an XMP packet that may be kept; none where it is not well-formed.

    Kept are title, description, rights, dates, place, and what makes a panorama. All else is left out: thumbnails,
    embedded pictures, maps of depth and gain, face regions, names, keywords, paths, history, serial numbers, and the
    marks of motion photos, whose film is gone.
    """
    raw = packet.encode() if isinstance(packet, str) else bytes(packet or b"")
    raw = re.sub(rb"<\?xpacket[^>]*\?>", b"", raw).strip(b"\0 \t\r\n")
    if b"<!DOCTYPE" in raw or b"<!ENTITY" in raw:  # XMP has neither; entity bombs do
        return {}
    try:
        descriptions = ET.fromstring(raw).iter(f"{{{_RDF}}}Description")
    except (ET.ParseError, ValueError, LookupError):
        return {}
    kept: dict[str, str] = {}
    for description in descriptions:
        texts = {child.tag: _text(child) for child in description}
        kept |= {tag: text for tag, text in {**description.attrib, **texts}.items() if text and _is_kept(tag, text)}
    return kept


def make_xmp(properties: Mapping[str, str] | None, *, synthetic: bool) -> bytes:
    """An XMP packet of properties of `clean_xmp`; b"" where there are none.

    Where it is synthetic it has `Iptc4xmpExt:DigitalSourceType`, too: edited with a generative model.

    Source: IPTC Photo Metadata Standard, Digital Source Type; IPTC NewsCodes, digitalsourcetype.
    """
    properties = {**(properties or {}), **({_SOURCE_TYPE: DIGITAL_SOURCE_TYPE} if synthetic else {})}
    if not properties:
        return b""
    for prefix, namespace, _ in (*_KEPT_XMP, ("x", _X, ""), ("rdf", _RDF, ""), ("Iptc4xmpExt", _IPTC_EXT, "")):
        ET.register_namespace(prefix, namespace)  # or ElementTree writes ns0:, which naive readers do not find
    root = ET.Element(f"{{{_X}}}xmpmeta")
    rdf = ET.SubElement(root, f"{{{_RDF}}}RDF")
    description = ET.SubElement(rdf, f"{{{_RDF}}}Description", {f"{{{_RDF}}}about": ""})
    for tag, text in properties.items():
        entry = ET.SubElement(description, tag)
        if tag.partition("}")[2] in _IN_LANGUAGES:
            entry = ET.SubElement(ET.SubElement(entry, f"{{{_RDF}}}Alt"), f"{{{_RDF}}}li")
            entry.set("{http://www.w3.org/XML/1998/namespace}lang", "x-default")
        entry.text = text
    body = ET.tostring(root, encoding="utf-8", xml_declaration=False)
    return b'<?xpacket begin="\xef\xbb\xbf" id="W5M0MpCehiHzreSzNTczkc9d"?>\n' + body + b'\n<?xpacket end="w"?>'


def _text(element: ET.Element) -> str:
    """A property's value, or that of its first language."""
    entry = element.find(f".//{{{_RDF}}}li")
    return ((element if entry is None else entry).text or "").strip()


def _is_kept(tag: str, text: str) -> bool:
    namespace, _, name = tag[1:].partition("}")
    names = next((names for _, kept, names in _KEPT_XMP if kept == namespace), "-")
    return len(text) <= _MAX_VALUE and (not names or name in names.split())


# Primaries and transfer characteristics, numbered as in ITU-T H.273.
CodePoints = tuple[int, int]

_D65 = (0.3127, 0.329)
_BT709 = ((0.64, 0.33), (0.3, 0.6), (0.15, 0.06))
_NTSC = ((0.63, 0.34), (0.31, 0.595), (0.155, 0.07))
_PRIMARIES = {
    **dict.fromkeys((0, 1, 2), _BT709),  # 2: not stated
    5: ((0.64, 0.33), (0.29, 0.6), (0.15, 0.06)),
    6: _NTSC,
    7: _NTSC,
    9: ((0.708, 0.292), (0.17, 0.797), (0.131, 0.046)),
    12: ((0.68, 0.32), (0.265, 0.69), (0.15, 0.06)),
}
# Transfers of still pictures and of video cameras, which are shown alike: with the curve of sRGB.
_LIKE_SRGB = (0, 1, 2, 6, 13, 14, 15)

# -- ICC profiles (ICC.1:2022)

# What a profile of three curves and a matrix, or of grey, needs. Everything else is text, measurements or private: the
# name of a display, its serial number, its owner.
_RGB_TAGS = (b"rXYZ", b"gXYZ", b"bXYZ", b"rTRC", b"gTRC", b"bTRC")
# How many numbers a parametric curve of each type has.
_PARAMETERS = (1, 3, 4, 5, 7)
# Names by which programs know a profile again; one with another name, such as a display's, gets none.
_NAMES = ("Display P3", "Adobe RGB (1998)", "ProPhoto RGB", "sRGB IEC61966-2.1")
_D50 = bytes.fromhex("0000f6d6000100000000d32d")  # X, Y, Z of its white, 1/65536
_BRADFORD = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])


def clean_icc(icc: bytes) -> bytes | None:
    """A profile with nothing in it but what colours need; None where it is damaged, or not so simple."""
    count = int.from_bytes(icc[128:132], "big")
    if icc[36:40] != b"acsp" or count > 200 or 132 + 12 * count > len(icc) or icc[20:24] != b"XYZ ":
        return None
    places = struct.iter_unpack(">4sLL", icc[132 : 132 + 12 * count])
    tags = {name: icc[start : start + size] for name, start, size in places}
    wanted = {b"RGB ": _RGB_TAGS, b"GRAY": (b"kTRC",)}.get(icc[16:20])
    if wanted is None or b"A2B0" in tags or any(len(tags.get(name, b"")) < 12 for name in wanted):
        return None
    called = tags.get(b"desc", b"").replace(b"\0", b"").decode("latin-1")  # one byte or two a character
    name = next((name for name in _NAMES if name in called), "RGB" if icc[16:20] == b"RGB " else "grey")
    return _assembled(icc[16:20], {name: _trimmed(tags[name]) for name in wanted}, name)


def _trimmed(content: bytes) -> bytes:
    """A tag without what its kind leaves unread at its end."""
    if content[:4] == b"curv":
        return content[: 12 + 2 * int.from_bytes(content[8:12], "big")]
    if content[:4] == b"para" and (number := int.from_bytes(content[8:10], "big")) < len(_PARAMETERS):
        return content[: 12 + 4 * _PARAMETERS[number]]
    return content[: 20 if content[:4] == b"XYZ " else 0]


def _assembled(space: bytes, tags: Mapping[bytes, bytes], name: str) -> bytes:
    """A profile of version 4 with a white of D50."""
    texts = {}
    for signature, text in ((b"desc", name), (b"cprt", "none stated")):
        wide = text.encode("utf-16-be")
        texts[signature] = b"mluc" + struct.pack(">LLL4sLL", 0, 1, 12, b"enUS", len(wide), 28) + wide
    tags = {**texts, b"wtpt": b"XYZ " + bytes(4) + _D50, **tags}
    start = 132 + 12 * len(tags)
    table, body, places = b"", b"", dict[bytes, int]()
    for signature, content in tags.items():
        if content not in places:  # curves are often the same for all three colours
            places[content] = start + len(body)
            body += content + bytes(-len(content) % 4)
        table += struct.pack(">4sLL", signature, places[content], len(content))
    about, made = b"mntr" + space + b"XYZ ", (2000, 1, 1, 0, 0, 0)
    header = struct.pack(">L4xL12s6H4s28x", start + len(body), 0x04200000, about, *made, b"acsp")
    return (header + _D50).ljust(128, b"\0") + struct.pack(">L", len(tags)) + table + body


def _fixed(*values: float) -> bytes:
    return struct.pack(f">{len(values)}l", *(round(float(value) * 65536) for value in values))


def _make_icc(name: str, primaries: Sequence[tuple[float, float]], curve: bytes) -> bytes:
    """A profile for RGB of these primaries (red, green, blue; CIE x and y), white of D65, and a curve's tag."""
    columns = {b"%cXYZ" % letter: _fixed(*xyz) for letter, xyz in zip(b"rgb", _to_d50(primaries).T, strict=True)}
    tags = {colour: b"XYZ " + bytes(4) + xyz for colour, xyz in columns.items()}
    return _assembled(b"RGB ", tags | dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve), name)


def _to_d50(primaries: Sequence[tuple[float, float]]) -> NDArray[np.float64]:
    """The matrix [3,3] from linear RGB to XYZ as profiles hold it: the white becomes D50 (Bradford)."""

    def xyz(x: float, y: float) -> NDArray[np.float64]:
        return np.array([x / y, 1, (1 - x - y) / y])

    columns = np.stack([xyz(*point) for point in primaries], axis=1)
    columns = columns * np.linalg.solve(columns, xyz(*_D65))
    cones = _BRADFORD @ np.array([0.9642, 1.0, 0.8249]) / (_BRADFORD @ xyz(*_D65))
    return np.linalg.inv(_BRADFORD) @ np.diag(cones) @ _BRADFORD @ columns


@cache
def adobe_rgb() -> bytes:
    """The profile of Adobe RGB (1998)."""
    curve = b"para" + bytes(8) + _fixed(563 / 256)
    return _make_icc("Adobe RGB (1998)", ((0.64, 0.33), (0.21, 0.71), (0.15, 0.06)), curve)


# -- colours named by code points (AVIF, HEIC, PNG)


def named_icc(points: CodePoints) -> bytes | None:
    """An ICC profile that says the same as code points; None for sRGB; a ValueError for HDR and unknown colours."""
    primaries, transfer = points
    if primaries not in _PRIMARIES or transfer not in _LIKE_SRGB:
        raise ValueError(f"colours of primaries {primaries}, transfer {transfer} of H.273")
    if _PRIMARIES[primaries] == _BT709:
        return None
    curve = b"para" + struct.pack(">LHH", 0, 3, 0) + _fixed(2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)
    return _make_icc("Display P3" if primaries == 12 else "RGB", _PRIMARIES[primaries], curve)
