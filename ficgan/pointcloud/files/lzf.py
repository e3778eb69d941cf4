"""LZF, the compression of PCD's `binary_compressed`: runs of new bytes, and copies of what came before."""

from __future__ import annotations

from ficgan.errors import InputError

__all__ = ["unpack"]

_MOST_FROM_THREE = 264  # the longest copy that three bytes can ask for


def unpack(packed: bytes, size: int) -> bytes:
    """The bytes that were packed.

    Args:
        packed: a stream of LZF.
        size: how many bytes it must give.

    Raises:
        InputError: it gives fewer or more, or copies from before its beginning.
    """
    if size > len(packed) * _MOST_FROM_THREE // 3:
        raise _damaged(f"{len(packed):,} bytes cannot hold {size:,}")
    out, at, end = bytearray(), 0, len(packed)
    while at < end and len(out) <= size:
        control = packed[at]
        at += 1
        if control < 32:  # that many bytes and one more follow as they are
            out += packed[at : at + control + 1]
            at += control + 1
            continue
        length, extra = control >> 5, 1
        if length == 7 and at < end:
            length, extra = 7 + packed[at], 2
        if at + extra > end:
            break
        back = ((control & 31) << 8 | packed[at + extra - 1]) + 1
        at, length, start = at + extra, length + 2, len(out) - back
        if start < 0:
            raise _damaged("a copy from before its beginning")
        piece = out[start : start + length]
        out += (piece * (length // len(piece) + 1))[:length] if length > back else piece  # a copy may overlap itself
    if len(out) != size:
        raise _damaged(f"{len(out):,} bytes instead of {size:,}")
    return bytes(out)


def _damaged(what: str) -> InputError:
    return InputError(f"its compressed data are damaged or cut off ({what}); copy it again")
