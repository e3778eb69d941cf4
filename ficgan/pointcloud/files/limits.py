"""How large a file may be, checked before anything is allocated."""

from __future__ import annotations

from ficgan.errors import InputError

__all__ = ["MAX_BYTES", "MAX_POINTS", "count_of", "need_all"]

MAX_POINTS = 50_000_000
MAX_BYTES = 4 << 30


def count_of(text: bytes, what: str) -> int:
    """A number of things that a header states.

    Args:
        text: the token.
        what: for the message, such as "the number of points".

    Raises:
        InputError: not a whole number.
    """
    if not text.isdigit() or len(text) > 18:
        raise InputError(f"{what} is {shown(text)}, which is no count")
    return int(text)


def need_all(says: int, holds: int | None = None) -> None:
    """Refuse a cloud that is empty, larger than `MAX_POINTS`, or of which a part is missing.

    Args:
        says: points by the header.
        holds: points that are there; None: not known yet.

    Raises:
        InputError: any of these.
    """
    if says < 1:
        raise InputError("it holds no points")
    if says > MAX_POINTS:
        raise InputError(f"its header says {says:,} points, and {MAX_POINTS:,} is the limit; thin the cloud out")
    if holds is not None and holds < says:
        raise InputError(f"it is truncated: its header says {says:,} points and it holds {holds:,}; copy it again")


def shown(token: bytes) -> str:
    """A token of a file for a message: short, printable, in quotes."""
    return repr(token[:24].decode("latin-1")) + ("…" if len(token) > 24 else "")
