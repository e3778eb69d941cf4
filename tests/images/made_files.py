"""Pictures of every format, colour space, depth, turn and kind of metadata, written apart from what is tested."""

from __future__ import annotations

import importlib.util
import io
import itertools
import lzma
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from stills import ORIENTED, PROFILES, SPACES, icc, png

SECRET, KEPT = b"SECRET of Ann", b"Camera 5"
"""What must not pass; what passes where metadata are kept."""
HEIF = importlib.util.find_spec("pillow_heif") is not None
TIFFS = {"raw": 1, "lzw": 5, "deflate": 8, "packbits": 32773, "lzma": 34925}
PROFILED = ("sRGB", "P3", "Adobe", "ProPhoto", "grey")
NAMED = {"P3 by name": (12, 13), "PQ": (9, 16), "HLG": (9, 18), "BT.709": (1, 1)}
"""Spaces named by code points: primaries, transfer."""


@dataclass(frozen=True)
class Case:
    """A file to make."""

    format: str
    space: str
    depth: int
    orientation: int
    metadata: str

    @property
    def mode(self) -> str:
        return {"grey": "L", "CMYK": "CMYK"}.get(self.space, "RGB")

    @property
    def lossless(self) -> bool:
        return self.format not in ("JPEG", "WebP", "AVIF", "HEIC")


def cases() -> Iterator[Case]:
    """All that there can be."""
    formats = ["JPEG", "PNG", "WebP", "WebP lossless", *(f"TIFF {name}" for name in TIFFS), "BMP", "GIF", "AVIF"]
    kinds = ("none", "EXIF", "XMP", "IPTC", "ICC", "comments", "trailing", "MPF")
    for format in formats + ["HEIC"] * HEIF:
        family = format.split()[0]
        spaces = ["none"] if family in ("BMP", "GIF") else ["none", *PROFILED, "EXIF Adobe"]
        spaces += ["CMYK"] * (family in ("JPEG", "TIFF")) + list(NAMED) * (family in ("AVIF", "HEIC"))
        spaces = [space for space in spaces if space != "grey" or family in ("JPEG", "PNG", "TIFF")]
        spaces = [space for space in spaces if space != "EXIF Adobe" or family in ("JPEG", "PNG", "WebP", "TIFF")]
        depths = {"PNG": (8, 16), "TIFF": (8, 16), "AVIF": (8, 10), "HEIC": (8, 10)}.get(family, (8,))
        turns = (1,) if family in ("BMP", "GIF") else tuple(ORIENTED)
        for space, depth, turn, kind in itertools.product(spaces, depths, turns, kinds):
            bare = family in ("BMP", "GIF") or (format, depth) == ("AVIF", 10)  # whose writer knows no metadata
            if (
                (kind == "MPF" and family != "JPEG")
                or (kind == "ICC" and space not in PROFILED)
                or (kind == "IPTC" and family not in ("JPEG", "TIFF", "PNG"))
                or (bare and kind not in ("none", "trailing", *["comments"] * (family != "BMP")))
                or ((format, depth) == ("AVIF", 10) and (turn > 1 or space not in NAMED))
                or (space == "CMYK" and depth == 16)
                or (kind == "comments" and family == "HEIC" and depth == 10)
            ):
                continue
            yield Case(format, space, depth, turn, kind)


def picture(case: Case) -> np.ndarray:
    """The stored numbers [48,64(,C)], smooth, so that every codec keeps them: uint8 or uint16."""
    y, x = np.mgrid[:48, :64]
    channels = {"L": 1, "RGB": 3, "CMYK": 4}[case.mode]
    parts = [40 + 2.5 * x + y, 210 - 1.5 * x - y, 60 + 2.5 * y + x, 20 + 0.5 * x + y][:channels]
    values = np.stack(parts, axis=2) if channels > 1 else parts[0]
    if case.format == "GIF":  # which holds few colours
        values = values // 32 * 32
    if case.depth == 8:
        return values.astype(np.uint8)
    return (values * 257 + 13).astype(np.uint16) & (0xFFC0 if case.depth == 10 else 0xFFFF)


def make(case: Case) -> tuple[bytes, str]:
    """The file, and its suffix."""
    pixels, profile = picture(case), PROFILES.get(case.space)
    if profile is not None and case.metadata == "ICC":
        name = b"desc" + struct.pack(">LL", 0, len(SECRET) + 1) + SECRET + bytes(79)
        private = {b"mmod": b"text" + bytes(4) + SECRET, b"desc": name}
        profile = icc(SPACES[case.space][0], SPACES[case.space][1] | private)
    format, _, kind = case.format.partition(" ")
    made = {"JPEG": _jpeg, "PNG": _png, "WebP": _webp, "TIFF": _tiff, "AVIF": _avif, "HEIC": _heic}
    if format in made:
        data = made[format](case, pixels, profile, kind)
    else:
        buffer = io.BytesIO()
        more: dict[str, Any] = {"comment": SECRET} if case.metadata == "comments" else {}
        Image.fromarray(pixels).save(buffer, format, **more)
        data = buffer.getvalue()
    suffix = {"JPEG": ".jpg", "TIFF": ".tif"}.get(format, f".{format.lower()}")
    return data + (SECRET + _small() if case.metadata == "trailing" else b""), suffix


def _small() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (16, 12), "red").save(buffer, "JPEG")
    return buffer.getvalue()


# -- EXIF is a TIFF without a picture

Tags = dict[int, tuple[int, Any]]
_TEXT, _SHORT, _LONG, _RATIONAL, _ANY = 2, 3, 4, 5, 7


def directories(
    main: Tags, exif: Tags | None = None, gps: Tags | None = None, thumbnail: bytes = b"", strip: bytes = b""
) -> bytes:
    """A TIFF of these directories, by its specification; one strip of pixels."""
    out = b"II*\0" + struct.pack("<L", 8)

    def directory(tags: Tags, at: int, after: int = 0) -> bytes:
        entries, body = b"", b""
        for tag, (kind, value) in sorted(tags.items()):
            values = value if isinstance(value, tuple) else (value,)
            if kind in (_TEXT, _ANY, 1):
                raw = value + b"\0" * (kind == _TEXT)
                count = len(raw)
            elif kind == _RATIONAL:
                raw, count = b"".join(struct.pack("<LL", number, 1) for number in values), len(values)
            else:
                raw, count = struct.pack(f"<{len(values)}{'H' if kind == _SHORT else 'L'}", *values), len(values)
            if len(raw) > 4:
                place = at + 2 + 12 * len(tags) + 4 + len(body)
                body += raw + b"\0" * (len(raw) % 2)
                raw = struct.pack("<L", place)
            entries += struct.pack("<HHL4s", tag, kind, count, raw)
        return struct.pack("<H", len(tags)) + entries + struct.pack("<L", after) + body

    inner = {0x8769: exif, 0x8825: gps}
    index = exif and exif.pop(0xA005, None)  # an own directory: R03 is Adobe RGB
    for tag, tags in inner.items():
        main = main | ({tag: (_LONG, 0)} if tags else {})
    if strip:
        main = main | {273: (_LONG, 0), 279: (_LONG, len(strip))}
    at = 8 + len(directory(main, 8))
    more = b""
    if index:
        assert exif is not None
        exif = exif | {0xA005: (_LONG, at)}
        inner[0x8769] = exif
        more += directory({1: (_TEXT, b"R03")}, at)
    for tag, tags in inner.items():
        if tags:
            main[tag] = (_LONG, at + len(more))
            more += directory(tags, at + len(more))
    after = 0
    if thumbnail:
        after = at + len(more)
        tags = {0x0103: (_SHORT, 6), 0x0201: (_LONG, after + 2 + 36 + 4), 0x0202: (_LONG, len(thumbnail))}
        more += directory(tags, after) + thumbnail
    if strip:
        main[273] = (_LONG, at + len(more))
    return out + directory(main, 8, after) + more + strip


def exif_tags(case: Case) -> tuple[Tags, Tags, Tags, bytes]:
    """Main, EXIF and GPS tags and a thumbnail, as the case has them."""
    main: Tags = {0x0112: (_SHORT, case.orientation)} if case.orientation > 1 else {}
    exif: Tags = {0xA001: (_SHORT, 65535), 0xA005: (_LONG, 0)} if case.space == "EXIF Adobe" else {}
    if case.metadata != "EXIF":
        return main, exif, {}, b""
    main |= {0x010F: (_TEXT, KEPT), 0x013B: (_TEXT, SECRET), 0x013C: (_TEXT, SECRET), 0x9C9E: (1, SECRET)}
    exif |= {
        0x9003: (_TEXT, b"2026:01:02 03:04:05"),
        0x927C: (_ANY, SECRET + _small()),
        0xA430: (_TEXT, SECRET),
        0xA431: (_TEXT, SECRET),
        0xA420: (_TEXT, SECRET),
        0xA004: (_TEXT, SECRET[:12]),
    }
    gps: Tags = {1: (_TEXT, b"N"), 2: (_RATIONAL, (48, 51, 29)), 3: (_TEXT, b"E"), 4: (_RATIONAL, (2, 17, 40))}
    return main, exif, gps, _small() + SECRET


def exif_block(case: Case) -> bytes:
    """EXIF as a TIFF; b"" where the case has none."""
    main, exif, gps, thumbnail = exif_tags(case)
    return directories(main, exif, gps, thumbnail) if main or exif or gps else b""


def xmp_packet(case: Case) -> bytes:
    """Names, keywords and paths, and a camera; b"" where the case has none."""
    if case.metadata != "XMP":
        return b""
    secret, kept = SECRET.decode(), KEPT.decode()
    return f"""<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description rdf:about="{secret}" xmlns:dc="http://purl.org/dc/elements/1.1/"
 xmlns:tiff="http://ns.adobe.com/tiff/1.0/" xmlns:p="http://iptc.org/std/Iptc4xmpExt/2008-02-29/"
 xmlns:m="http://ns.adobe.com/xap/1.0/mm/" xmlns:r="http://www.metadataworkinggroup.com/schemas/regions/"
 xmlns:u="http://example.org/unknown/" tiff:Make="{kept}" tiff:Artist="{secret}" u:any="{secret}">
<dc:subject><rdf:Bag><rdf:li>{secret}</rdf:li></rdf:Bag></dc:subject>
<p:PersonInImage><rdf:Bag><rdf:li>{secret}</rdf:li></rdf:Bag></p:PersonInImage>
<m:DerivedFrom rdf:parseType="Resource"><m:filePath>/home/{secret}</m:filePath></m:DerivedFrom>
<r:Regions rdf:parseType="Resource"><r:Name>{secret}</r:Name></r:Regions>
</rdf:Description></rdf:RDF></x:xmpmeta>""".encode()


def iptc() -> bytes:
    """A record of IPTC with a name and a keyword."""
    return b"".join(b"\x1c\x02" + struct.pack(">BH", kind, len(SECRET)) + SECRET for kind in (25, 80, 120))


def _parts(case: Case) -> dict[str, bytes]:
    """EXIF and XMP as Pillow's writers take them."""
    parts = {"exif": exif_block(case) and b"Exif\0\0" + exif_block(case), "xmp": xmp_packet(case)}
    return {name: part for name, part in parts.items() if part}


# -- formats


def _jpeg(case: Case, pixels: np.ndarray, profile: bytes | None, kind: str) -> bytes:
    buffer = io.BytesIO()
    image = Image.frombytes(case.mode, pixels.shape[1::-1], pixels.tobytes())
    image.save(buffer, "JPEG", quality=97, **({} if case.mode == "L" else {"subsampling": 0}), icc_profile=profile)
    segments = []
    if block := exif_block(case):
        segments.append((0xE1, b"Exif\0\0" + block))
    if packet := xmp_packet(case):
        segments.append((0xE1, b"http://ns.adobe.com/xap/1.0/\0" + packet))
    if case.metadata == "IPTC":
        record = iptc()
        resource = b"8BIM\x04\x04\0\0" + struct.pack(">L", len(record)) + record + b"\0" * (len(record) % 2)
        segments.append((0xED, b"Photoshop 3.0\0" + resource))
    if case.metadata == "comments":
        segments += [(0xFE, SECRET), (0xEB, b"private\0" + SECRET)]
    data, second = buffer.getvalue(), _small() + SECRET
    if case.metadata == "MPF":
        size = len(data) + sum(len(content) + 4 for _, content in segments)
        entries = struct.pack("<LLLHH", 0x20030000, size + 90, 0, 0, 0) + struct.pack("<LLLHH", 0, len(second), 0, 0, 0)
        index = directories({0xB000: (_ANY, b"0100"), 0xB001: (_LONG, 2), 0xB002: (_ANY, entries)})
        # The second picture counts from the index's own start, behind SOI, the other segments, and 4 + 4 bytes.
        place = size + 8 + len(index) - (2 + sum(len(content) + 4 for _, content in segments) + 8)
        index = index.replace(entries[16:], struct.pack("<LLLHH", 0, len(second), place, 0, 0))
        segments.append((0xE2, b"MPF\0" + index))
    own = b"".join(struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content for marker, content in segments)
    return data[:2] + own + data[2:] + (second if case.metadata == "MPF" else b"")


def _png(case: Case, pixels: np.ndarray, profile: bytes | None, kind: str) -> bytes:
    chunks = [] if profile is None else [(b"iCCP", b"p\0\0" + zlib.compress(profile))]
    if block := exif_block(case):
        chunks.append((b"eXIf", block))
    if packet := xmp_packet(case):
        chunks.append((b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + packet))
    if case.metadata == "IPTC":
        text = b"\niptc\n" + f"{len(iptc()):8}".encode() + b"\n" + iptc().hex().encode() + b"\n"
        chunks.append((b"zTXt", b"Raw profile type iptc\0\0" + zlib.compress(text)))
    if case.metadata == "comments":
        chunks += [(b"tEXt", b"Comment\0" + SECRET), (b"prVt", SECRET), (b"iTXt", b"Author\0\0\0\0\0" + SECRET)]
    return png(case.depth, 0 if case.mode == "L" else 2, pixels.astype(">u2" if case.depth == 16 else "u1"), *chunks)


def _webp(case: Case, pixels: np.ndarray, profile: bytes | None, kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(
        buffer,
        "WEBP",
        lossless=bool(kind),
        quality=95,
        icc_profile=profile,
        **_parts(case),  # type: ignore[arg-type]
    )
    data = buffer.getvalue()
    if case.metadata == "comments":
        data += b"SECR" + struct.pack("<L", len(SECRET)) + SECRET + b"\0" * (len(SECRET) % 2)
        data = data[:4] + struct.pack("<L", len(data) - 8) + data[8:]
    return data


def _tiff(case: Case, pixels: np.ndarray, profile: bytes | None, kind: str) -> bytes:
    raw = pixels.astype("<u2" if case.depth == 16 else "u1").tobytes()
    strip = {"raw": bytes, "deflate": zlib.compress, "lzma": lzma.compress, "packbits": _packbits, "lzw": _lzw}[kind](
        raw
    )
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    main, exif, gps, _ = exif_tags(case)
    main |= {
        256: (_SHORT, 64),
        257: (_SHORT, 48),
        258: (_SHORT, (case.depth,) * channels),
        259: (_SHORT, TIFFS[kind]),
        262: (_SHORT, {"L": 1, "RGB": 2, "CMYK": 5}[case.mode]),
        277: (_SHORT, channels),
        278: (_SHORT, 48),
    }
    if profile is not None:
        main[34675] = (_ANY, profile)
    if packet := xmp_packet(case):
        main[700] = (1, packet)
    if case.metadata == "IPTC":
        main |= {33723: (_ANY, iptc()), 34377: (_ANY, b"8BIM\x04\x04\0\0" + struct.pack(">L", len(iptc())) + iptc())}
    if case.metadata == "comments":
        main |= {269: (_TEXT, SECRET), 285: (_TEXT, SECRET), 37724: (_ANY, SECRET), 50000: (_ANY, SECRET)}
    return directories(main, exif, gps, strip=strip)


def _packbits(raw: bytes) -> bytes:
    return b"".join(bytes([len(raw[at : at + 128]) - 1]) + raw[at : at + 128] for at in range(0, len(raw), 128))


def _lzw(raw: bytes) -> bytes:
    """Without a table: it is cleared (256) before codes get longer than 9 bits; 257 ends."""
    codes = []
    for at in range(0, len(raw), 200):
        codes += [256, *raw[at : at + 200]]
    bits = "".join(f"{code:09b}" for code in [*codes, 257])
    return int(bits.ljust(-(-len(bits) // 8) * 8, "0"), 2).to_bytes(-(-len(bits) // 8), "big")


def _avif(case: Case, pixels: np.ndarray, profile: bytes | None, kind: str) -> bytes:
    names = NAMED.get(case.space, (1, 13))
    if case.depth == 10:
        data = _av1(pixels, names)
    else:
        buffer = io.BytesIO()
        options: dict[str, Any] = {"quality": 95, "subsampling": "4:4:4", "icc_profile": profile, **_parts(case)}
        Image.fromarray(pixels).save(buffer, "AVIF", **options)
        old = b"nclx" + struct.pack(">HH", 1, 13)
        data = buffer.getvalue()
        assert data.count(old) == (profile is None)
        data = data.replace(old, b"nclx" + struct.pack(">HH", *names))
    return data + _box(case)


def _box(case: Case) -> bytes:
    content = b"free" + SECRET
    return struct.pack(">L", len(content) + 4) + content if case.metadata == "comments" else b""


def _av1(pixels: np.ndarray, names: tuple[int, int]) -> bytes:
    """10 bits, by FFmpeg."""
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="avif") as file:
        stream = file.add_stream("libsvtav1", rate=1, options={"crf": "8", "preset": "8"})
        stream.height, stream.width, stream.pix_fmt = *pixels.shape[:2], "yuv420p10le"  # type: ignore[assignment]
        matrix = 9 if names[0] == 9 else 1
        coder: Any = stream.codec_context
        coder.color_primaries, coder.color_trc, coder.colorspace, coder.color_range = *names, matrix, 2
        frame = av.VideoFrame.from_ndarray(pixels, "rgb48le")
        frame = frame.reformat(format="yuv420p10le", dst_colorspace=matrix, dst_color_range=2)
        file.mux([*stream.encode(frame), *stream.encode()])  # type: ignore[attr-defined]
    return buffer.getvalue()


def _heic(case: Case, pixels: np.ndarray, profile: bytes | None, kind: str) -> bytes:
    import pillow_heif  # type: ignore[import-not-found, unused-ignore]

    buffer, (primaries, transfer) = io.BytesIO(), NAMED.get(case.space, (1, 13))
    named = {
        "color_primaries": primaries,
        "transfer_characteristics": transfer,
        "matrix_coefficients": 9 if primaries == 9 else 6,
        "full_range_flag": 1,
    }
    options: dict[str, Any] = {
        "quality": 95,
        "chroma": 420,
        "enc_params": {"preset": "ultrafast"},
        "bit_depth": case.depth,
        "icc_profile": profile,
        "nclx_profile": named,
        **_parts(case),
    }
    pillow_heif.encode(
        "RGB;16" if case.depth == 10 else "RGB", pixels.shape[1::-1], pixels.tobytes(), buffer, **options
    )
    return buffer.getvalue() + _box(case)
