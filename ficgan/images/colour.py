"""ICC profiles, cleaned of all but what colours need, or made for colours that a file names by numbers."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

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
    texts = {signature: _text(text) for signature, text in ((b"desc", name), (b"cprt", "none stated"))}
    tags = texts | {b"wtpt": b"XYZ " + bytes(4) + _D50} | dict(tags)
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


def _text(text: str) -> bytes:
    wide = text.encode("utf-16-be")
    return b"mluc" + struct.pack(">LLL4sLL", 0, 1, 12, b"enUS", len(wide), 28) + wide


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
    """An ICC profile that says the same as code points; None for sRGB.

    Raises:
        ValueError: colours of a kind that is not known, or HDR.
    """
    primaries, transfer = points
    if primaries not in _PRIMARIES or transfer not in _LIKE_SRGB:
        raise ValueError(f"colours of primaries {primaries}, transfer {transfer} of H.273")
    if _PRIMARIES[primaries] == _BT709:
        return None
    curve = b"para" + struct.pack(">LHH", 0, 3, 0) + _fixed(2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)
    return _make_icc("Display P3" if primaries == 12 else "RGB", _PRIMARIES[primaries], curve)
