"""How FFmpeg is addressed and how its errors are told, in one place."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from ficgan.errors import InputError

__all__ = ["display_name", "is_url", "locator", "partial_file", "quiet", "reason"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|pipe:")


def is_url(source: str) -> bool:
    """Whether a source or target is an address (`rtsp://…`, `pipe:`), not a file of this machine."""
    return bool(_SCHEME.match(source))


def locator(path: str | os.PathLike[str]) -> str:
    """A file's name as FFmpeg takes it literally: `a:b.mp4` is no protocol then, and `-x.mp4` no option."""
    return f"file:{Path(path).absolute()}"


def display_name(source: str) -> str:
    """A source as it may stand in a message: addresses without user, password and query."""
    if not is_url(source) or source.startswith("pipe:"):
        return source
    parts = urlsplit(source)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def reason(error: BaseException) -> str:
    """What FFmpeg or the system says went wrong, without number and file name."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split()).rstrip(".")


def quiet() -> None:
    """Keep SVT-AV1 from writing to the terminal; it reads this variable when an encoder is opened."""
    os.environ.setdefault("SVT_LOG", "0")


@contextmanager
def partial_file(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A temporary name beside `path` to write to by name; it becomes `path` when the block ends well, else it goes.

    Args:
        path: The file to make.
        overwrite: Replace an existing file; otherwise that is an error, also when it appears while the block runs.

    Yields:
        The temporary name; nothing is there yet.

    Raises:
        InputError: `path` exists already, or cannot be written.
    """
    if not overwrite and os.path.lexists(path):
        raise _exists(path)
    if not path.parent.is_dir():
        raise InputError(f"{path}: its folder does not exist; make it first")
    temporary = path.with_name(f".ficgan-{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        try:
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            if not overwrite:
                _take_name(temporary, path)
            else:
                os.replace(temporary, path)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({reason(error)})") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def _take_name(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)  # unlike a rename, fails when the name was taken meanwhile
    except FileExistsError:
        raise _exists(path) from None
    except (OSError, NotImplementedError, AttributeError):  # no hard links here: check, then rename
        if os.path.lexists(path):
            raise _exists(path) from None
        os.replace(temporary, path)


def _exists(path: Path) -> InputError:
    return InputError(f"{path}: exists already; use --overwrite to replace it, or choose another output")
