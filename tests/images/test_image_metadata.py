"""Nothing a file says about people or places goes out, unless it was asked for; previews never do."""

from __future__ import annotations

import base64
import io
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from ficgan.images.photo import DIGITAL_SOURCE_TYPE, clean_xmp, make_xmp
from ficgan.images.read import read_image
from ficgan.images.write import encode_image

SUFFIXES = [".jpg", ".png", ".webp", ".tif"]
SECRETS = [b"Canon-Secret", b"ArtistSecret", b"CommentSecret", b"TitleSecret", b"MakerSecret", b"PersonSecret"]
SECRETS.append(b"OwnerSecret")
RDF = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}"
DC = "{http://purl.org/dc/elements/1.1/}"
EXT = "{http://iptc.org/std/Iptc4xmpExt/2008-02-29/}"


def thumbnail() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (32, 24), (1, 2, 3)).save(buffer, "JPEG")
    return buffer.getvalue()


XMP = f"""<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="OwnerSecret"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description rdf:about="/home/OwnerSecret/a.jpg" xmlns:dc="http://purl.org/dc/elements/1.1/"
  xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmlns:xmpGImg="http://ns.adobe.com/xap/1.0/g/img/"
  xmlns:tiff="http://ns.adobe.com/tiff/1.0/" xmlns:Iptc4xmpExt="http://iptc.org/std/Iptc4xmpExt/2008-02-29/"
  xmlns:GImage="http://ns.google.com/photos/1.0/image/" xmlns:photoshop="http://ns.adobe.com/photoshop/1.0/"
  xmlns:GCamera="http://ns.google.com/photos/1.0/camera/" xmlns:own="http://example.org/OwnerSecret/"
  GCamera:MotionPhoto="1" GCamera:MicroVideoOffset="12345" photoshop:CaptionWriter="OwnerSecret" own:P="OwnerSecret"
  tiff:Artist="OwnerSecret" tiff:Orientation="6" GImage:Data="{base64.b64encode(thumbnail()).decode()}">
 <dc:title><rdf:Alt><rdf:li xml:lang="x-default">TitleSecret</rdf:li></rdf:Alt></dc:title>
 <dc:creator><rdf:Seq><rdf:li>OwnerSecret</rdf:li></rdf:Seq></dc:creator>
 <xmp:Thumbnails><rdf:Alt><rdf:li rdf:parseType="Resource"><xmpGImg:image>{base64.b64encode(thumbnail()).decode()}
 </xmpGImg:image></rdf:li></rdf:Alt></xmp:Thumbnails>
 <Iptc4xmpExt:PersonInImage><rdf:Bag><rdf:li>PersonSecret</rdf:li></rdf:Bag></Iptc4xmpExt:PersonInImage>
 <xmp:Label>{"A" * 9000}</xmp:Label>
</rdf:Description></rdf:RDF></x:xmpmeta><?xpacket end="w"?>"""


def exif_with_everything() -> bytes:
    """EXIF with a camera, an artist, a place, a maker note and a second directory that holds a thumbnail."""
    exif = Image.Exif()
    exif[0x010F], exif[0x013B], exif[0x0112] = "Canon-Secret", "ArtistSecret", 6
    exif.get_ifd(0x8769).update({0x927C: b"MakerSecret" + thumbnail(), 0x9003: "2026:01:02 03:04:05", 0xA002: 40})
    exif[0x013C] = "OwnerSecret's phone"
    exif[0x9C9D] = exif[0x9C9E] = b"OwnerSecret"
    exif.get_ifd(0x8769).update(dict.fromkeys((0xA004, 0xA420, 0xA430, 0xA431, 0xA435, 0x9999), "OwnerSecret"))
    exif.get_ifd(0x8825).update({1: "N", 2: (48.0, 51.0, 29.0), 3: "E", 4: (2.0, 17.0, 40.0)})
    block = exif.tobytes().removeprefix(b"Exif\0\0")
    order = "little" if block[:2] == b"II" else "big"
    small = thumbnail()
    # append IFD1 by hand: JPEGInterchangeFormat (0x0201) and its length (0x0202)
    start = int.from_bytes(block[4:8], order)
    count = int.from_bytes(block[start : start + 2], order)
    link = start + 2 + 12 * count
    at = len(block)
    entries = [(0x0201, 4, 1, at + 2 + 24 + 4), (0x0202, 4, 1, len(small))]
    directory = len(entries).to_bytes(2, order)
    for tag, kind, number, value in entries:
        directory += b"".join(v.to_bytes(n, order) for v, n in ((tag, 2), (kind, 2), (number, 4), (value, 4)))
    block = block[:link] + at.to_bytes(4, order) + block[link + 4 :] + directory + bytes(4) + small
    return b"Exif\0\0" + block


def tell_all(path: Path) -> None:
    """A picture with every kind of metadata that its format and Pillow's writer allow."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))
    options: dict[str, Any] = {"exif": exif_with_everything()}
    if path.suffix == ".png":
        info = PngImagePlugin.PngInfo()
        info.add_text("Comment", "CommentSecret")
        info.add_itxt("XML:com.adobe.xmp", XMP)
        options["pnginfo"] = info
    elif path.suffix == ".tif":
        exif = Image.Exif()
        exif.load(exif_with_everything())
        exif[270] = "CommentSecret"
        exif[700] = XMP.encode()
        options = {"exif": exif}
    else:
        options["xmp"] = XMP.encode()
        if path.suffix == ".jpg":
            options["comment"] = b"CommentSecret"
    image.save(path, **options)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("synthetic", [False, True])
def test_everything_is_stripped(tmp_path: Path, suffix: str, synthetic: bool) -> None:
    tell_all(tmp_path / f"a{suffix}")
    raw = (tmp_path / f"a{suffix}").read_bytes()
    assert b"Canon-Secret" in raw and b"TitleSecret" in raw  # the test's own input is what it claims to be
    data = encode_image(f"b{suffix}", read_image(tmp_path / f"a{suffix}"), synthetic=synthetic)
    assert not [secret for secret in SECRETS if secret in data]
    with Image.open(io.BytesIO(data)) as image:
        exif = image.getexif()
        assert not exif.get_ifd(0x8825) and not exif.get_ifd(0x8769) and not exif.get_ifd(1)
        harmless = (
            "jfif jfif_version jfif_unit jfif_density dpi resolution compression loop background timestamp duration"
        )
        assert set(image.info) <= {*harmless.split(), *["xmp", "XML:com.adobe.xmp"] * synthetic}
        assert not synthetic or source_types(image.info["xmp"]) == [DIGITAL_SOURCE_TYPE]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("synthetic", [False, True])
def test_keeping_metadata_keeps_no_preview_and_no_names(tmp_path: Path, suffix: str, synthetic: bool) -> None:
    tell_all(tmp_path / f"a{suffix}")
    data = encode_image(f"b{suffix}", read_image(tmp_path / f"a{suffix}"), keep_metadata=True, synthetic=synthetic)
    assert b"Canon-Secret" in data and b"TitleSecret" in data
    gone = (b"ArtistSecret", b"MakerSecret", b"PersonSecret", b"OwnerSecret", b"MotionPhoto", b"MicroVideo")
    assert not [secret for secret in gone if secret in data]
    assert thumbnail() not in data and base64.b64encode(thumbnail())[:60] not in data and b"A" * 5000 not in data
    assert data.count(b"\xff\xd8\xff") <= 1  # one JPEG at most: the picture itself
    with Image.open(io.BytesIO(data)) as image:
        exif = image.getexif()
        assert exif[0x010F] == "Canon-Secret" and exif.get(0x0112, 1) == 1
        assert exif.get_ifd(0x8825)[2] == (48.0, 51.0, 29.0)
        assert exif.get_ifd(0x8769)[0x9003] == "2026:01:02 03:04:05"
        assert exif.get_ifd(0x8769)[0xA002] == image.width == 40  # turned by orientation 6
        assert not exif.get_ifd(1)
        assert source_types(image.info["xmp"]) == [DIGITAL_SOURCE_TYPE] * synthetic
        assert ET.fromstring(inner(image.info["xmp"])).find(f".//{DC}title/{RDF}Alt/{RDF}li").text == "TitleSecret"  # type: ignore[union-attr]


def inner(packet: bytes) -> str:
    return packet.decode().split("?>", 1)[1].rsplit("<?xpacket", 1)[0]


def source_types(packet: bytes) -> list[str | None]:
    root = ET.fromstring(inner(packet))
    assert root.tag == "{adobe:ns:meta/}xmpmeta" and root[0].tag == RDF + "RDF"
    return [element.text for element in root.findall(f"{RDF}RDF/{RDF}Description/{EXT}DigitalSourceType")]


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"<not xml",
        b"<html/>",
        "\0\0",
        b"\xff\xfe\0",
        b'<!DOCTYPE x [<!ENTITY a "aaaa">]><x>&a;</x>',
        b"<a>" * 10_000,
    ],
)
def test_damaged_xmp_is_dropped(packet: bytes) -> None:
    assert clean_xmp(packet) == {}


def test_a_panorama_stays_one_and_attributes_count() -> None:
    packet = (
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        '<rdf:Description rdf:about="" xmlns:g="http://ns.google.com/photos/1.0/panorama/" g:ProjectionType="equirect"'
        ' xmlns:p="http://ns.adobe.com/photoshop/1.0/" p:City="Oslo" p:CaptionWriter="Ann"/></rdf:RDF></x:xmpmeta>'
    )
    kept = clean_xmp(packet)
    assert sorted(tag.partition("}")[2] for tag in kept) == ["City", "ProjectionType"]
    assert clean_xmp(make_xmp(kept, synthetic=False)) == kept


def test_damaged_exif_hurts_nobody(tmp_path: Path) -> None:
    for block in (b"Exif\0\0garbage", b"Exif\0\0II*\0\xff\xff\xff\xff", exif_with_everything()[:40]):
        Image.new("RGB", (40, 30), "red").save(tmp_path / "a.jpg", exif=block)
        photo = read_image(tmp_path / "a.jpg")
        assert photo.rgb.shape == (30, 40, 3)
        encode_image("b.jpg", photo, keep_metadata=True)
