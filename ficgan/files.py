"""Files of any kind: written whole or not at all, and their digest."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ficgan.errors import FicganError, InputError

__all__ = ["atomic_write", "file_digest", "partial_file"]


def file_digest(path: str | os.PathLike[str]) -> str:
    """sha256 of a file, hexadecimal.

    Raises:
        FicganError: it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FicganError(f"{path} cannot be read: {error.strerror or error}") from None


@contextmanager
def partial_file(path: str | os.PathLike[str], *, overwrite: bool = False, mode: int = 0o666) -> Iterator[Path]:
    """An empty temporary file in the same folder, for a library to write to; it takes its name if the block ends well.

    It is synchronised to disk and then renamed. On any error, Ctrl-C included, it is removed and `path` is as it was.

    Args:
        path: the file to write; its folder must exist.
        overwrite: replace an existing file. Otherwise that is an error, also when it appears while the block runs.
        mode: permissions, less the umask.

    Raises:
        InputError: `path` exists already, or cannot be written.
    """
    path = Path(path)
    if not overwrite and os.path.lexists(path):
        raise _exists(path)
    temporary = path.with_name(f".ficgan-{secrets.token_hex(8)}.tmp")
    try:
        try:
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror}); choose another output folder") from error
        yield temporary
        try:
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror})") from error
        _rename(temporary, path, overwrite)
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def atomic_write(path: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[BinaryIO]:
    """Open a file that takes its name only when the block ends without an error; see `partial_file`."""
    with partial_file(path, overwrite=overwrite) as temporary, open(temporary, "wb") as file:
        yield file
        try:
            file.flush()
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror})") from error


def _rename(temporary: Path, path: Path, overwrite: bool) -> None:
    try:
        if not overwrite:
            try:
                os.link(temporary, path)  # unlike a rename, fails when the name was taken meanwhile
                return
            except FileExistsError:
                raise _exists(path) from None
            except (OSError, NotImplementedError, AttributeError):  # no hard links here: check, then rename
                if os.path.lexists(path):
                    raise _exists(path) from None
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error


def _exists(path: Path) -> InputError:
    return InputError(f"{path}: exists already; use --overwrite to replace it, or choose another output")
