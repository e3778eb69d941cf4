"""What the boxes of an AVIF or HEIC say of its main picture (ISO/IEC 14496-12, 23008-12, 23000-22)."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from fractions import Fraction
from math import floor

__all__ = ["clean_aperture", "properties", "renamed_colours"]


def properties(data: bytes) -> dict[bytes, list[bytes]]:
    """The properties of a file's main picture: name of the box → contents, in the file's order.

    Raises:
        ValueError: the boxes are damaged.
    """
    try:
        parts = dict(_boxes(dict(_boxes(data))[b"meta"][4:]))
        main = int.from_bytes(parts[b"pitm"][4:], "big")
        stored: list[tuple[bytes, bytes]] = []
        wanted: list[int] = []
        for name, content in _boxes(parts[b"iprp"]):
            if name == b"ipco":
                stored = list(_boxes(content))
            elif name == b"ipma":
                wanted += dict(_associations(content)).get(main, [])
    except (KeyError, IndexError, struct.error):
        raise ValueError("its boxes do not say what the picture is") from None
    found: dict[bytes, list[bytes]] = {}
    for index in wanted:
        if 0 < index <= len(stored):
            found.setdefault(stored[index - 1][0], []).append(stored[index - 1][1])
    for name, content in stored:
        if name == b"av1C":  # a grid leaves it to its tiles
            found.setdefault(name, [content])
    return found


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at + 8 <= len(data):
        size, name = struct.unpack_from(">L4s", data, at)
        start = at + (16 if size == 1 else 8)
        end = len(data) if size == 0 else at + (struct.unpack_from(">Q", data, at + 8)[0] if size == 1 else size)
        if not start <= end <= len(data):
            return  # cut, or bytes behind the last box
        yield name, data[start:end]
        at = end


def _associations(content: bytes) -> Iterator[tuple[int, list[int]]]:
    """Number of an item → its properties, counted from 1 (box `ipma`)."""
    long_ids, wide = content[0] > 0, content[3] & 1
    (count,), at = struct.unpack_from(">L", content, 4), 8
    for _ in range(count):
        item, number = struct.unpack_from(">LB" if long_ids else ">HB", content, at)
        at += 5 if long_ids else 3
        size = 2 if wide else 1
        values = (int.from_bytes(content[i : i + size], "big") for i in range(at, at + number * size, size))
        yield item, [value & (0x7FFF if wide else 0x7F) for value in values]  # the first bit: it must be understood
        at += number * size


def clean_aperture(content: bytes, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """The part of a picture of `size` (width, height, px) that is meant to be seen (box `clap`).

    Returns:
        Left, top, right and bottom, px.

    Raises:
        ValueError: it lies outside.
    """
    try:
        numbers = struct.unpack(">4LlLlL", content)
        width, height, x, y = (Fraction(*numbers[at : at + 2]) for at in range(0, 8, 2))
    except (struct.error, ZeroDivisionError):
        raise ValueError("its crop is damaged") from None
    left, top = floor((size[0] - width) / 2 + x), floor((size[1] - height) / 2 + y)
    box = left, top, left + round(width), top + round(height)
    if not (0 <= box[0] < box[2] <= size[0] and 0 <= box[1] < box[3] <= size[1]):
        raise ValueError("its crop lies outside of the picture")
    return box


def renamed_colours(data: bytes, cicp: tuple[int, int]) -> bytes:
    """An AVIF of sRGB with these primaries and transfer (H.273) in place of its own, in its box and in its stream."""
    place = data.index(b"colrnclx") + 8
    own = data[place : place + 6]  # primaries, transfer and matrix, of two bytes each; in the stream of one
    data = data[:place] + struct.pack(">HH", *cicp) + data[place + 4 :]
    old, new = (
        int.from_bytes(bytes([1, *points, own[5]]), "big") for points in (own[1:4:2], cicp)
    )  # 1: they are stated
    for match in re.finditer(rb"\x12\0\x0a([\x05-\x1f])", data):  # a stream begins: its header and the length of that
        start, size = match.end(), match[1][0]
        header = int.from_bytes(data[start : start + size], "big")
        for shift in range(8 * size - 24):
            if header >> shift & 0x1FFFFFF == old:
                header += (new - old) << shift
                data = data[:start] + header.to_bytes(size, "big") + data[start + size :]
                break
    return data
