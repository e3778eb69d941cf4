"""What a file says about itself: the synthetic-media tag, and what may stay when metadata is kept on request."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

from PIL import ExifTags, Image

__all__ = ["DIGITAL_SOURCE_TYPE", "clean_exif", "clean_xmp", "tag_xmp"]

DIGITAL_SOURCE_TYPE = "http://cv.iptc.org/newscodes/digitalsourcetype/compositeWithTrainedAlgorithmicMedia"
"""IPTC's term for a photo edited with a generative model, such as by inpainting. `compositeSynthetic` is its term for a
collage with synthetic elements, `trainedAlgorithmicMedia` the one for a picture that is synthetic as a whole."""

_X = "adobe:ns:meta/"
_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_IPTC_EXT = "http://iptc.org/std/Iptc4xmpExt/2008-02-29/"
_SOURCE_TYPE = f"{{{_IPTC_EXT}}}DigitalSourceType"
_ORIENTATION = "{http://ns.adobe.com/tiff/1.0/}Orientation"

# Namespaces whose whole purpose is to embed another picture, or to say who is where in this one.
_DROPPED_NAMESPACES = (
    "http://ns.adobe.com/xap/1.0/g/img/",
    "http://ns.google.com/photos/1.0/image/",
    "http://ns.google.com/photos/1.0/depthmap/",
    "http://ns.google.com/photos/1.0/container/",
    "http://ns.google.com/photos/dd/1.0/",
    "http://ns.adobe.com/hdr-gain-map/1.0/",
    "http://ns.adobe.com/xmp/note/",
    "http://www.metadataworkinggroup.com/schemas/regions/",
    "http://ns.microsoft.com/photo/",
    # keywords, which often are names
    "http://ns.adobe.com/lightroom/1.0/",
    "http://www.digikam.org/ns/",
    "http://ns.iview-media.com/mediapro/",
    "http://ns.acdsee.com/",
    "http://ns.useplus.org/ldf/",
)
# In whatever namespace: EXIF's have changed their addresses with each edition.
_DROPPED_LOCAL_NAMES = {
    "Artist", "HostComputer", "CameraOwnerName", "OwnerName", "BodySerialNumber", "SerialNumber", "LensSerialNumber",
    "ImageUniqueID", "Photographer", "ImageEditor",
}  # fmt: skip
_DROPPED_NAMES = {
    "{http://ns.adobe.com/xap/1.0/}Thumbnails",
    f"{{{_IPTC_EXT}}}PersonInImage",
    f"{{{_IPTC_EXT}}}PersonInImageWDetails",
    f"{{{_IPTC_EXT}}}ImageRegion",
    # who made it, and with whose device
    *(f"{{http://purl.org/dc/elements/1.1/}}{name}" for name in ("creator", "contributor", "publisher", "subject")),
    *(f"{{http://ns.adobe.com/photoshop/1.0/}}{name}" for name in ("AuthorsPosition", "CaptionWriter", "Credit")),
    *(f"{{http://ns.adobe.com/xap/1.0/rights/}}{name}" for name in ("Owner", "WebStatement")),
    "{http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/}CreatorContactInfo",
    _ORIENTATION,
    _SOURCE_TYPE,  # of the original; ours is set when a face was replaced
}
_MAX_VALUE = 4096  # characters or bytes; descriptions are shorter, embedded pictures longer

# EXIF is kept by name, not dropped by name: an unknown tag may be a preview. A TIFF's technical tags are not here.
_KEPT_TAGS = {
    0x010E, 0x010F, 0x0110, 0x0131, 0x0132, 0x4746, 0x4749, 0x8298, 0x8825, 0x9C9B, 0x9C9C, 0x9C9F,
}  # fmt: skip
# Not among them: Artist, HostComputer ("Ann's phone"), XPAuthor, XPKeywords.
_SIZE_TAGS = {ExifTags.Base.ExifImageWidth: 0, ExifTags.Base.ExifImageHeight: 1}
_DROPPED_EXIF = {
    ExifTags.Base.MakerNote, ExifTags.Base.ExifInteroperabilityOffset, ExifTags.Base.ExifOffset,
    0xA420, 0xA430, 0xA431, 0xA435, 0xA437, 0xA438,  # unique id, owner, serial numbers, photographer, editor
}  # fmt: skip


def clean_exif(image: Image.Image, size: tuple[int, int]) -> bytes | None:
    """EXIF that may be kept: no orientation (it is applied), no thumbnail, no maker note, no author, owner or serial
    number, nothing large.

    Args:
        image: The opened file.
        size: Width and height of the upright image, in px.

    Returns:
        An EXIF block for Pillow's writers, or None where there is nothing, or nothing readable.
    """
    try:
        source = image.getexif()
        kept = Image.Exif()
        for tag, value in source.items():
            if tag in _KEPT_TAGS and tag != ExifTags.IFD.GPSInfo and _small(value):
                kept[tag] = value
        for group in (ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo):
            entries = {tag: value for tag, value in source.get_ifd(group).items() if _small(value)}
            if group == ExifTags.IFD.Exif:
                entries = {tag: value for tag, value in entries.items() if tag not in _DROPPED_EXIF}
                entries.update({tag: size[axis] for tag, axis in _SIZE_TAGS.items() if tag in entries})
            if entries:
                kept.get_ifd(group).update(entries)
        return kept.tobytes() if len(kept) or any(kept.get_ifd(group) for group in (0x8769, 0x8825)) else None
    except Exception:  # Pillow's EXIF parser meets damaged blocks with any of a dozen types
        return None


def clean_xmp(packet: bytes | str | None) -> bytes | None:
    """XMP that may be kept: no thumbnails, embedded pictures, depth or gain maps, face regions, no names
    of people, authors or owners, keywords or serial numbers.

    Args:
        packet: As found in the file.

    Returns:
        A serialised packet, or None where there is none or it is not well-formed.
    """
    root = _parse(packet)
    if root is None:
        return None
    _prune(root)
    return _serialise(root) if any(len(d) or len(d.attrib) > 1 for d in root.iter(f"{{{_RDF}}}Description")) else None


def tag_xmp(packet: bytes | None = None) -> bytes:
    """An XMP packet that says the picture was edited with a generative model.

    Args:
        packet: A packet to add the property to; a new one by default.

    Returns:
        The packet, UTF-8, with `Iptc4xmpExt:DigitalSourceType`.

    Source:
        IPTC Photo Metadata Standard, Digital Source Type; IPTC NewsCodes, digitalsourcetype.
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


def _dropped(name: str) -> bool:
    local = name.rpartition("}")[2]
    return name in _DROPPED_NAMES or local in _DROPPED_LOCAL_NAMES or name[1:].startswith(_DROPPED_NAMESPACES)


def _prune(element: ET.Element) -> None:
    for name, value in list(element.attrib.items()):
        if _dropped(name) or len(value) > _MAX_VALUE:
            del element.attrib[name]
    for child in list(element):
        if _dropped(child.tag) or len(child.text or "") > _MAX_VALUE:
            element.remove(child)
        else:
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
}


def _serialise(root: ET.Element) -> bytes:
    for prefix, namespace in _PREFIXES.items():  # or ElementTree writes ns0:, which naive readers of XMP do not find
        ET.register_namespace(prefix, namespace)
    body = ET.tostring(root, encoding="utf-8", xml_declaration=False)
    return b'<?xpacket begin="\xef\xbb\xbf" id="W5M0MpCehiHzreSzNTczkc9d"?>\n' + body + b'\n<?xpacket end="w"?>'
