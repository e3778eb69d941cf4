"""ICC profiles: what of one may pass, what it says, and one for colours that a file names otherwise (ICC.1:2022)."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["SRGB_CURVE", "clean_icc", "gamma", "light_of", "make_icc", "read_tags", "to_d50"]

# Everything else of a profile is text, measurements or private: the name of a display, its serial number, its owner.
_COLOUR_TAGS = frozenset(
    re.findall(
        b"....",
        b"rXYZgXYZbXYZrTRCgTRCbTRCkTRCwtptbkptchadcicpgamtA2B0A2B1A2B2B2A0B2A1B2A2D2B0D2B1D2B2D2B3B2D0B2D1B2D2B2D3",
    )
)
_TABLES = (b"mft1", b"mft2", b"mAB ", b"mBA ", b"mpet")
# How many numbers a parametric curve of each type has.
_PARAMETERS = (1, 3, 4, 5, 7)
# Names by which programs know a profile again; one with another name, such as a display's, gets none.
_NAMES = (
    *("Compatible with Adobe RGB (1998)", "Adobe RGB (1998)", "sRGB IEC61966-2.1", "sRGB", "Display P3"),
    *("ProPhoto RGB", "eciRGB v2", "Dot Gain 15%", "Dot Gain 20%", "Gray Gamma 1.8", "Gray Gamma 2.2"),
    *("Coated FOGRA39", "Coated FOGRA51", "U.S. Web Coated (SWOP) v2", "Japan Color 2001 Coated"),
)
_D50 = b"".join(round(value * 65536).to_bytes(4, "big") for value in (0.9642, 1.0, 0.8249))
_BRADFORD = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])
_POINTS = 4096


def read_tags(icc: bytes) -> dict[bytes, bytes]:
    """The tags of a profile: signature → content.

    Raises:
        ValueError: it is none, or cut.
    """
    if len(icc) < 132 or icc[36:40] != b"acsp":
        raise ValueError("no ICC profile")
    count, tags = int.from_bytes(icc[128:132], "big"), {}
    if count > 200 or 132 + 12 * count > len(icc):
        raise ValueError("a cut ICC profile")
    for name, start, size in struct.iter_unpack(">4sLL", icc[132 : 132 + 12 * count]):
        if start + size > len(icc):
            raise ValueError("a cut ICC profile")
        tags[name] = icc[start : start + size]
    return tags


def clean_icc(icc: bytes) -> bytes | None:
    """A profile with nothing in it but what colours need; None where it is damaged, or of no picture's colours."""
    try:
        tags = read_tags(icc)
    except ValueError:
        return None
    if icc[16:20] not in (b"RGB ", b"GRAY", b"CMYK") or icc[20:24] not in (b"XYZ ", b"Lab "):
        return None
    kept = {name: value for name in _COLOUR_TAGS & tags.keys() if (value := _trimmed(tags[name]))}
    called = tags.get(b"desc", b"").replace(b"\0", b"").decode("latin-1")  # one byte or two a character
    name = next((name for name in _NAMES if name in called), "RGB" if icc[16:20] == b"RGB " else "ink")
    return _assembled(icc[8] >= 4, icc[12:24], int.from_bytes(icc[64:68], "big") & 3, kept, name)


def _trimmed(content: bytes) -> bytes:
    """A tag without what its kind leaves unread at its end; b"" for a kind that says nothing of colours."""
    kind = content[:4]
    if kind in _TABLES:
        return content
    if kind == b"curv":
        return content[: 12 + 2 * int.from_bytes(content[8:12], "big")]
    if kind == b"para" and (number := int.from_bytes(content[8:10], "big")) < len(_PARAMETERS):
        return content[: 12 + 4 * _PARAMETERS[number]]
    return content[: {b"XYZ ": 20, b"sf32": 44, b"cicp": 12}.get(kind, 0)]


def _assembled(new: bool, about: bytes, intent: int, tags: Mapping[bytes, bytes], name: str) -> bytes:
    """A profile of version 4, or 2; `about` is its class, colour space and connection space."""
    texts = {b"desc": _text(new, b"desc", name), b"cprt": _text(new, b"text", "none stated")}  # every profile has both
    tags = texts | dict(sorted(tags.items()))
    start = 132 + 12 * len(tags)
    table, body, places = b"", b"", dict[bytes, int]()
    for signature, content in tags.items():
        if content not in places:  # curves are often the same for all three colours
            places[content] = start + len(body)
            body += content + bytes(-len(content) % 4)
        table += struct.pack(">4sLL", signature, places[content], len(content))
    version, made = 0x04200000 if new else 0x02400000, (2000, 1, 1, 0, 0, 0)
    header = struct.pack(">L4xL12s6H4s24xL", start + len(body), version, about, *made, b"acsp", intent)
    return (header + _D50).ljust(128, b"\0") + struct.pack(">L", len(tags)) + table + body


def _text(new: bool, kind: bytes, text: str) -> bytes:
    if new:
        wide = text.encode("utf-16-be")
        return b"mluc" + struct.pack(">LLL4sLL", 0, 1, 12, b"enUS", len(wide), 28) + wide
    plain = text.encode("ascii") + b"\0"
    return kind + bytes(4) + (plain if kind == b"text" else struct.pack(">L", len(plain)) + plain + bytes(78))


def make_icc(name: str, primaries: Sequence[tuple[float, float]], white: tuple[float, float], curve: bytes) -> bytes:
    """A profile for RGB of these primaries (red, green, blue) and white, CIE x and y, and a curve's tag."""
    columns = {b"%cXYZ" % letter: _fixed(*xyz) for letter, xyz in zip(b"rgb", to_d50(primaries, white).T, strict=True)}
    tags = {colour: b"XYZ " + bytes(4) + xyz for colour, xyz in (columns | {b"wtpt": _D50}).items()}
    tags |= dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve)
    return _assembled(True, b"mntrRGB XYZ ", 0, tags, name)


def to_d50(primaries: Sequence[tuple[float, float]], white: tuple[float, float]) -> NDArray[np.float64]:
    """The matrix [3,3] from linear RGB to XYZ as profiles hold it: the white becomes D50 (Bradford)."""

    def xyz(x: float, y: float) -> NDArray[np.float64]:
        return np.array([x / y, 1, (1 - x - y) / y])

    columns = np.stack([xyz(*point) for point in primaries], axis=1)
    columns = columns * np.linalg.solve(columns, xyz(*white))
    cones = _BRADFORD @ np.array([0.9642, 1.0, 0.8249]) / (_BRADFORD @ xyz(*white))
    return np.linalg.inv(_BRADFORD) @ np.diag(cones) @ _BRADFORD @ columns


def gamma(exponent: float) -> bytes:
    """The tag of a curve: light is the value to this power."""
    return b"para" + bytes(8) + _fixed(exponent)


def _fixed(*values: float) -> bytes:
    return struct.pack(f">{len(values)}l", *(round(float(value) * 65536) for value in values))


SRGB_CURVE = b"para" + struct.pack(">LHH", 0, 3, 0) + _fixed(2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)


def light_of(curve: bytes) -> NDArray[np.float64]:
    """A curve's tag as the light [4096] at equally spaced values 0…1; a ValueError where it is damaged."""
    x = np.linspace(0, 1, _POINTS)
    try:
        if curve[:4] == b"curv":
            (count,) = struct.unpack_from(">L", curve, 8)
            values = np.array(struct.unpack_from(f">{count}H", curve, 12))
            if count < 2:
                return x if count == 0 else x ** (values[0] / 256)
            return np.interp(x, np.linspace(0, 1, count), values / 65535)
        (kind,) = struct.unpack_from(">H", curve, 8)
        g, *more = (value / 65536 for value in struct.unpack_from(f">{_PARAMETERS[kind]}l", curve, 12))
    except (struct.error, IndexError):
        raise ValueError("a damaged curve") from None
    a, b, c, d, e, f = 1.0, 0.0, 0.0, 0.0, 0.0, 0.0  # light is (a x + b)^g + e from d on, and c x + f below
    if kind in (1, 2):
        a, b, e = (*more, 0.0)[:3]
        d, f = -b / a if a else 0.0, e
    elif kind > 2:
        a, b, c, d, e, f = (*more, 0.0, 0.0)[:6]
    return np.where(x >= d, np.maximum(a * x + b, 0) ** g + e, c * x + f)
