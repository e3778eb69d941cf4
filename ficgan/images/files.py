"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ficgan.errors import InputError

__all__ = ["atomic_write"]


@contextmanager
def atomic_write(path: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[BinaryIO]:
    """Open a file that takes its name only when the block ends well.

    The bytes go to a temporary file in the same folder, are synchronised to disk and then renamed. On any error, Ctrl-C
    included, the temporary file is removed and `path` is as it was.

    Args:
        path: The file to make; its folder must exist.
        overwrite: Replace an existing file; otherwise that is an error, also when it appears while the block runs.

    Yields:
        The binary file to write to.

    Raises:
        InputError: `path` exists already, or cannot be written.
    """
    path = Path(path)
    if not overwrite and os.path.lexists(path):
        raise _exists(path)
    temporary = path.with_name(f".ficgan-{secrets.token_hex(8)}.tmp")
    try:
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror}); choose another output folder") from error
        with os.fdopen(descriptor, "wb") as file:
            yield file
            try:
                file.flush()
                os.fsync(file.fileno())
            except OSError as error:
                raise InputError(f"{path}: cannot be written ({error.strerror})") from error
        _rename(temporary, path, overwrite)
    finally:
        with suppress(OSError):
            temporary.unlink()


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
