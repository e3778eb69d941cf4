"""Files of any kind: written whole or not at all, their digest, and the header of those of ficgan."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

from ficgan.errors import FicganError, InputError, TakenError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["ModelInfo", "alone_in", "atomic_write", "file_digest", "file_header", "lock", "partial_file", "unreadable"]

_LEFTOVER = re.compile(r"\.ficgan-[0-9a-f]{16}\.tmp")
_swept: set[Path] = set()  # folders whose leftovers this process has removed


def file_digest(path: str | os.PathLike[str]) -> str:
    """sha256 of a file, hexadecimal."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FicganError(f"{path} cannot be read: {error.strerror or error}") from None


def unreadable(path: str | os.PathLike[str]) -> str:
    """Why a path is no file that can be read, without its name; "" where it is one."""
    if os.path.isfile(path):
        return "" if os.access(path, os.R_OK) else "cannot be read; check its permissions"
    return "not a file" if os.path.exists(path) else "a link to nothing" if os.path.islink(path) else "no such file"


def file_header(path: str | Path) -> tuple[str, dict[str, Any]]:
    """Kind ("model", "appearance", "bank", …) and JSON header of a file of ficgan; its arrays stay unread."""
    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if not 0 < size < 2**26:
                raise ValueError("it has no header")
            metadata = json.loads(file.read(size)).get("__metadata__", {})
        kind, header = str(metadata.get("kind", "")), json.loads(metadata.get("header", "{}"))
    except (FileNotFoundError, IsADirectoryError):
        raise FicganError(f"{path} does not exist or is not a file; give the path of a ficgan model") from None
    except OSError as error:
        raise FicganError(f"{path} cannot be read: {error.strerror or error}; give a ficgan model") from None
    except (ValueError, AttributeError, RecursionError) as error:
        raise FicganError(f"{path} is damaged or not a safetensors file ({error}); fetch or make it again") from None
    if metadata.get("format") != "ficgan":
        raise FicganError(f"{path} was not written by ficgan; give a ficgan model")
    return kind, header


@dataclass(frozen=True)
class ModelInfo:
    """What a checkpoint's header says beside its weights: of its crops, its training data and its training."""

    alignment: dict[str, Any]
    data: dict[str, Any]
    training: dict[str, Any]

    @classmethod
    def of(cls, path: str | Path) -> ModelInfo:
        """What the header of a network or of an appearance model says."""
        kind, header = file_header(path)
        try:
            if kind in ("model", "appearance"):
                return cls(dict(header["alignment"]), dict(header["data"]), dict(header["training"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FicganError(f"the header of {path} is damaged ({error}); fetch or make it again") from None
        raise FicganError(f"{path} holds a ficgan {kind or 'file'}, not a model")


@contextmanager
def atomic_write(path: str | os.PathLike[str], *, overwrite: bool = False, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a file that takes its name only when the block ends without an error; its folder must exist.

    The bytes go to a temporary file in the same folder. It is synchronised to disk and then renamed. On any error,
    Ctrl-C included, the temporary file is removed and `path` is as it was.

    Args:
        overwrite: replace an existing file. Otherwise that is a TakenError, also when it appears while the block runs.
        mode: its permissions, less the umask; 0o600, whatever the umask, for what only its owner may read.
    """
    with _partial(Path(path), overwrite, mode) as (_, descriptor), os.fdopen(descriptor, "wb", closefd=False) as file:
        yield file
        with _reported(path):
            file.flush()


@contextmanager
def partial_file(path: str | os.PathLike[str], *, overwrite: bool = False, mode: int = 0o666) -> Iterator[Path]:
    """As `atomic_write`, for a library that opens files itself: the name of the temporary file, which is empty."""
    with _partial(Path(path), overwrite, mode) as (temporary, _):
        yield temporary


@contextmanager
def _partial(path: Path, overwrite: bool, mode: int) -> Iterator[tuple[Path, int]]:
    if not overwrite and os.path.lexists(path):
        raise _exists(path)
    if path.parent not in _swept:
        _swept.add(path.parent)
        remove_leftovers(path.parent)
    temporary = path.with_name(f".ficgan-{secrets.token_hex(8)}.tmp")
    try:
        with _reported(path, "; choose another output folder"):
            descriptor = _locked(temporary, mode)
            if mode == 0o600:
                temporary.chmod(mode)
        try:
            yield temporary, descriptor
            with _reported(path):
                os.fsync(descriptor)
                if fcntl is not None:  # under the lock: nobody takes it for a leftover
                    _rename(temporary, path, overwrite)
        finally:
            os.close(descriptor)
        if fcntl is None:  # Windows renames no open file
            with _reported(path):
                _rename(temporary, path, overwrite)
    finally:
        with suppress(OSError):
            temporary.unlink()


def _locked(temporary: Path, mode: int) -> int:
    """A new file, locked for as long as it is open."""
    while True:
        binary = getattr(os, "O_BINARY", 0)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | binary, mode)
        lock(descriptor)
        if fcntl is None or os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # another process took it for a leftover before it was locked


def lock(file: int | IO[Any], *, wait: bool = True) -> bool:
    """Lock an open file or folder until it is closed; the lock of a killed process is free again.

    False where another process has locked it, and this one shall not wait. Where nothing can be locked (Windows, some
    network drives), True.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of processes that were killed. Those that a process still writes are locked, and stay."""
    with suppress(OSError):
        for entry in os.scandir(folder) if fcntl is not None else ():
            if not _LEFTOVER.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                continue
            with suppress(OSError), open(entry.path, "rb") as file:
                if lock(file, wait=False):
                    os.unlink(entry.path)


@contextmanager
def alone_in(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Be the only process in such a block for this folder; a TakenError where another is, and this one shall not wait.

    For files that belong together. Where folders cannot be locked (Windows, some network drives) nothing is.
    """
    descriptor = None
    with suppress(OSError):
        descriptor = None if fcntl is None else os.open(folder, os.O_RDONLY)
    try:
        if descriptor is not None and not lock(descriptor, wait=wait):
            raise TakenError(f"{folder}: is in use by another ficgan; wait for it or stop it")
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def _reported(path: str | os.PathLike[str], remedy: str = "") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}){remedy}") from error


def _rename(temporary: Path, path: Path, overwrite: bool) -> None:
    if not overwrite:
        try:
            os.link(temporary, path)  # unlike a rename, fails when the name was taken meanwhile
            return
        except FileExistsError:
            raise _exists(path) from None
        except OSError:  # no hard links here: check, then rename
            if os.path.lexists(path):
                raise _exists(path) from None
    os.replace(temporary, path)


def _exists(path: Path) -> TakenError:
    return TakenError(f"{path}: exists already; use --overwrite to replace it, or choose another output")
