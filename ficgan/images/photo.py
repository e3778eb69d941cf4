"""A photo in memory: its own pixels, an sRGB view to work on, and the metadata that may stay."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from ficgan.images.colour import Pixels, Space, from_rgb, space_of, to_rgb

__all__ = ["DIGITAL_SOURCE_TYPE", "Photo", "clean_exif", "clean_xmp", "tag_xmp"]


@dataclass(frozen=True, eq=False)
class Photo:
    """One still image, upright.

    Args:
        path: where it came from.
        format: `JPEG`, `PNG`, `WEBP`, `TIFF`, `AVIF`, `HEIF`, or one that is only read (`BMP`, `GIF`).
        mode: `L`, `LA`, `RGB`, `RGBA` or `CMYK`.
        pixels: the file's own values, [H,W] for `L`, otherwise [H,W,C]; uint8 or uint16; read-only.
        options: how the file was coded (Pillow's save options: tables, subsampling, compression …).
        icc: colour profile, as far as colours need it.
        cicp: primaries and transfer by their numbers in ITU-T H.273, where a file names its colours so; `icc` then says
            the same, where it can.
        exif: what of EXIF may stay (`clean_exif`); written on request only.
        xmp: what of XMP may stay (`clean_xmp`); written on request only.
        chunks: PNG chunks that say what the colours mean (gAMA, cHRM, sRGB, cICP, cLLI, mDCV).
        notes: what could not be carried over, one sentence each.
    """

    path: Path
    format: str
    mode: str
    pixels: Pixels
    options: Mapping[str, Any] = field(default_factory=dict)
    icc: bytes | None = None
    cicp: tuple[int, int] | None = None
    exif: bytes | None = None
    xmp: bytes | None = None
    chunks: tuple[tuple[bytes, bytes], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def depth(self) -> int:
        """Bits per channel, 8 or 16."""
        return 8 * self.pixels.dtype.itemsize

    @property
    def space(self) -> Space | None:
        """What its numbers mean; None: as those of sRGB."""
        return space_of(self.icc, self.cicp, self.mode)

    @cached_property
    def rgb(self) -> NDArray[np.uint8]:
        """The photo as uint8 [H,W,3] sRGB, alpha ignored; read-only."""
        view = to_rgb(self.pixels, self.mode, self.space)
        view.flags.writeable = False
        return view

    def merge(self, result: NDArray[np.uint8], mask: NDArray[np.bool_] | None = None) -> Pixels:
        """The file's own pixels, with those of a changed sRGB image [H,W,3] where it differs from `rgb`, or in a mask
        [H,W].

        They are converted as the file needs. Elsewhere the values are the very same, and alpha is never touched.
        """
        if result.shape != self.rgb.shape or result.dtype != np.uint8:
            raise ValueError(f"result is {result.dtype} {result.shape}, the photo uint8 {self.rgb.shape}")
        if mask is None and self.mode == "RGB" and self.depth == 8 and self.space is None:
            return result
        if mask is None:
            mask = np.zeros(result.shape[:2], bool)
            for channel in range(3):  # channel by channel: a third of the memory of one big comparison
                mask |= result[..., channel] != self.rgb[..., channel]
        if mask.shape != result.shape[:2] or mask.dtype != np.bool_:
            raise ValueError(f"mask is {mask.dtype} {mask.shape}, expected bool {result.shape[:2]}")
        if not mask.any():
            return self.pixels
        values = from_rgb(result[mask], self.mode, self.depth, self.space)
        merged = self.pixels.copy()
        if self.mode == "L":
            merged[mask] = values[:, 0]
        else:
            colours = merged[..., : values.shape[1]]  # a view without alpha
            colours[mask] = values
        return merged


# -- metadata: the synthetic-media tag, and what may stay on request

# IPTC's term for a photo edited with a generative model, such as by inpainting. `compositeSynthetic` is its term for a
# collage with synthetic elements, `trainedAlgorithmicMedia` the one for a picture that is synthetic as a whole.
DIGITAL_SOURCE_TYPE = "http://cv.iptc.org/newscodes/digitalsourcetype/compositeWithTrainedAlgorithmicMedia"

_X = "adobe:ns:meta/"
_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_IPTC_EXT = "http://iptc.org/std/Iptc4xmpExt/2008-02-29/"
_SOURCE_TYPE = f"{{{_IPTC_EXT}}}DigitalSourceType"

# What is kept is named, in XMP and in EXIF alike: an unknown property may be a preview, a name, a keyword or a path.
_KEPT_NAMESPACES = (
    "http://ns.adobe.com/tiff/1.0/",
    "http://ns.adobe.com/exif/1.0/",  # and aux
    "http://cipa.jp/exif/",  # it changes its address with each edition
    "http://ns.google.com/photos/1.0/panorama/",
)
_KEPT_NAMES = {
    "http://purl.org/dc/elements/1.1/": {"title", "description", "rights", "format", "date", "language", "type"},
    "http://ns.adobe.com/xap/1.0/": {"CreateDate", "ModifyDate", "MetadataDate", "CreatorTool", "Rating", "Label"},
    "http://ns.adobe.com/xap/1.0/rights/": {"Marked", "UsageTerms"},
    "http://ns.adobe.com/photoshop/1.0/": {"DateCreated", "City", "State", "Country"},
    "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/": {"Location", "CountryCode"},
    _IPTC_EXT: {"LocationCreated", "LocationShown", "Sublocation", "City", "ProvinceState"}
    | {"CountryName", "CountryCode", "WorldRegion"},
    _RDF: {"RDF", "Description", "Alt", "Bag", "Seq", "li", "value", "parseType", "resource"},
    "http://www.w3.org/XML/1998/namespace": {"lang"},
}
_DROPPED_LOCAL_NAMES = frozenset(
    re.findall(
        r"\w+",
        "Orientation Artist HostComputer CameraOwnerName OwnerName BodySerialNumber SerialNumber LensSerialNumber "
        "ImageUniqueID Photographer ImageEditor RelatedSoundFile MakerNote",
    )
)
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
        source = image.getexif()
        kept = Image.Exif()
        for tag, value in source.items():
            if tag in _KEPT_TAGS and _small(value):
                kept[tag] = value
        for group in (ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo):
            entries = {tag: value for tag, value in source.get_ifd(group).items() if _small(value)}
            if group == ExifTags.IFD.Exif:
                entries = {tag: value for tag, value in entries.items() if tag in _KEPT_EXIF}
                entries.update({tag: size[axis] for tag, axis in _SIZE_TAGS.items() if tag in entries})
            if entries:
                kept.get_ifd(group).update(entries)
        return kept.tobytes() if len(kept) or any(kept.get_ifd(group) for group in (0x8769, 0x8825)) else None
    except Exception:  # Pillow's EXIF parser meets damaged blocks with any of a dozen types
        return None


def clean_xmp(packet: bytes | str | None) -> bytes | None:
    """The XMP packet of a file as far as it may be kept; None where there is none, or it is not well-formed.

    Kept are camera, exposure, dates, place, title, description and rights. All else is left out: thumbnails, embedded
    pictures, maps of depth and gain, face regions, names, keywords, paths, history, serial numbers, and the marks of
    motion photos, whose film is gone.
    """
    root = _parse(packet)
    if root is None:
        return None
    _prune(root)
    return _serialise(root) if any(len(d) or len(d.attrib) > 1 for d in root.iter(f"{{{_RDF}}}Description")) else None


def tag_xmp(packet: bytes | None = None) -> bytes:
    """An XMP packet, new or given, with `Iptc4xmpExt:DigitalSourceType`: edited with a generative model.

    Source: IPTC Photo Metadata Standard, Digital Source Type; IPTC NewsCodes, digitalsourcetype.
    """
    root = _parse(packet)
    if root is None:
        root = ET.Element(f"{{{_X}}}xmpmeta")
        ET.SubElement(root, f"{{{_RDF}}}RDF")
    rdf = root if root.tag == f"{{{_RDF}}}RDF" else root.find(f"{{{_RDF}}}RDF")
    if rdf is None:
        rdf = ET.SubElement(root, f"{{{_RDF}}}RDF")
    description = ET.SubElement(rdf, f"{{{_RDF}}}Description", {f"{{{_RDF}}}about": ""})
    ET.SubElement(description, _SOURCE_TYPE).text = DIGITAL_SOURCE_TYPE
    return _serialise(root)


def _small(value: Any) -> bool:
    try:
        return len(value) <= _MAX_VALUE
    except TypeError:
        return True  # a number


def _parse(packet: bytes | str | None) -> ET.Element | None:
    if not packet:
        return None
    raw = packet.encode() if isinstance(packet, str) else bytes(packet)
    raw = re.sub(rb"<\?xpacket[^>]*\?>", b"", raw).strip(b"\0 \t\r\n")
    if b"<!DOCTYPE" in raw or b"<!ENTITY" in raw:  # XMP has neither; entity bombs do
        return None
    try:
        root = ET.fromstring(raw)
    except (ET.ParseError, ValueError, LookupError):
        return None
    return root if root.tag in (f"{{{_X}}}xmpmeta", f"{{{_X}}}xapmeta", f"{{{_RDF}}}RDF") else None


def _kept(name: str) -> bool:
    namespace, _, local = name[1:].partition("}")
    if local in _DROPPED_LOCAL_NAMES:
        return False
    return namespace.startswith(_KEPT_NAMESPACES) or local in _KEPT_NAMES.get(namespace, ())


def _prune(element: ET.Element) -> None:
    for name, value in list(element.attrib.items()):
        if not _kept(name) or len(value) > _MAX_VALUE:
            del element.attrib[name]
    if element.tag == f"{{{_RDF}}}Description":
        element.set(f"{{{_RDF}}}about", "")  # XMP asks for it; what stood there may be a path
    for child in list(element):
        if not _kept(child.tag) or len(child.text or "") > _MAX_VALUE:
            element.remove(child)
        else:
            child.tail = None
            _prune(child)


_PREFIXES = {
    "x": _X,
    "rdf": _RDF,
    "Iptc4xmpExt": _IPTC_EXT,
    "Iptc4xmpCore": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
    "dc": "http://purl.org/dc/elements/1.1/",
    "xmp": "http://ns.adobe.com/xap/1.0/",
    "xmpMM": "http://ns.adobe.com/xap/1.0/mm/",
    "xmpRights": "http://ns.adobe.com/xap/1.0/rights/",
    "photoshop": "http://ns.adobe.com/photoshop/1.0/",
    "tiff": "http://ns.adobe.com/tiff/1.0/",
    "exif": "http://ns.adobe.com/exif/1.0/",
    "aux": "http://ns.adobe.com/exif/1.0/aux/",
    "exifEX": "http://cipa.jp/exif/1.0/",
    "GPano": "http://ns.google.com/photos/1.0/panorama/",
}


def _serialise(root: ET.Element) -> bytes:
    for prefix, namespace in _PREFIXES.items():  # or ElementTree writes ns0:, which naive readers of XMP do not find
        ET.register_namespace(prefix, namespace)
    body = ET.tostring(root, encoding="utf-8", xml_declaration=False)
    return b'<?xpacket begin="\xef\xbb\xbf" id="W5M0MpCehiHzreSzNTczkc9d"?>\n' + body + b'\n<?xpacket end="w"?>'
