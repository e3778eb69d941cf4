"""Files of any kind, here or in a store: written whole or not at all; their digest."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, Any, BinaryIO

from ficgan.errors import FicganError, InputError, TakenError, UsageError, reason

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Names of temporary files.
TEMPORARY = re.compile(r"\.ficgan-[0-9a-f]{16}\.tmp")
# Seconds within which a new temporary file is locked by the process that writes it.
_NEW = 1.0
_swept: set[Path] = set()  # folders whose leftovers this process has removed


def file_digest(path: str | os.PathLike[str] | StorePath) -> str:
    """sha256 of a file, hexadecimal."""
    try:
        with path.open() if isinstance(path, StorePath) else open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FicganError(f"{path} cannot be read: {error.strerror or error}") from None


def content_key(image: Any) -> str:
    """Key of an image, an array, in the keyed draw: a hash of its pixels, so that its name does not matter."""
    return hashlib.blake2b(image.tobytes(), digest_size=16).hexdigest()


def unreadable(path: str | os.PathLike[str]) -> str:
    """Why a path is no file that can be read, without its name; "" where it is one."""
    if os.path.isfile(path):
        return "" if os.access(path, os.R_OK) else "cannot be read; check its permissions"
    return "not a file" if os.path.exists(path) else "a link to nothing" if os.path.islink(path) else "no such file"


# -- whole or not at all ----------------------------------------------------------------------------------------------


@contextmanager
def atomic_write(path: str | os.PathLike[str], *, overwrite: bool = False, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a file that takes its name only when the block ends without an error; its folder must exist.

    The bytes go to a temporary file in the same folder. It is synchronised to disk and then renamed. On any error,
    Ctrl-C included, the temporary file is removed and `path` is as it was.

    Args:
        overwrite: replace an existing file. Otherwise that is a TakenError, also when it appears while the block runs.
        mode: its permissions, less the umask; 0o600, whatever the umask, for what only its owner may read.
    """
    with partial_file(path, overwrite=overwrite, mode=mode) as temporary, open(temporary, "wb") as file:
        yield file
        with _reported(path):
            file.flush()


@contextmanager
def partial_file(path: str | os.PathLike[str], *, overwrite: bool = False, mode: int = 0o666) -> Iterator[Path]:
    """As `atomic_write`, for a library that opens files itself: the name of the temporary file, which is empty."""
    path = Path(path)
    if not overwrite and os.path.lexists(path):
        raise taken(path)
    if path.parent not in _swept:
        _swept.add(path.parent)
        remove_leftovers(path.parent)
    temporary = path.with_name(f".ficgan-{secrets.token_hex(8)}.tmp")
    try:
        with _reported(path, "; choose another output folder"):
            held = open(temporary, "xb", opener=partial(os.open, mode=mode))  # noqa: SIM115
        with held:
            lock(held)
            if mode == 0o600:
                temporary.chmod(mode)
            yield temporary
            with _reported(path):
                os.fsync(held.fileno())
                if fcntl is not None:  # under the lock: nobody takes it for a leftover
                    _rename(temporary, path, overwrite)
        if fcntl is None:  # Windows renames no open file
            with _reported(path):
                _rename(temporary, path, overwrite)
    finally:
        with suppress(OSError):
            temporary.unlink()


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of processes that were killed. Those that a process still writes are locked, and stay."""
    with suppress(OSError):
        for entry in os.scandir(folder) if fcntl is not None else ():
            if not TEMPORARY.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                continue
            with suppress(OSError), open(entry.path, "rb") as file:
                if time.time() - entry.stat().st_mtime > _NEW and lock(file, wait=False):
                    os.unlink(entry.path)


@contextmanager
def _reported(path: str | os.PathLike[str] | StorePath, remedy: str = "") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({reason(error)}){remedy}") from error


def _rename(temporary: Path, path: Path, overwrite: bool) -> None:
    if not overwrite:
        try:
            os.link(temporary, path)  # unlike a rename, fails when the name was taken meanwhile
            return
        except FileExistsError:
            raise taken(path) from None
        except OSError:  # no hard links here: check, then rename
            if os.path.lexists(path):
                raise taken(path) from None
    os.replace(temporary, path)


def taken(path: Place) -> TakenError:
    return TakenError(f"{path}: exists already; use --overwrite to replace it, or choose another output")


# -- locks ------------------------------------------------------------------------------------------------------------


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


@contextmanager
def alone_in(folder: Place, *, wait: bool = True) -> Iterator[None]:
    """Be the only process in such a block for this folder; a TakenError where another is, and this one shall not wait.

    For files that belong together. In stores, and where folders cannot be locked, nothing is.
    """
    descriptor = None
    if fcntl is not None and isinstance(folder, Path):
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
    try:
        if descriptor is not None and not lock(descriptor, wait=wait):
            raise TakenError(f"{folder}: is in use by another ficgan; wait for it or stop it")
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


# -- stores that fsspec knows, such as s3://bucket/photos/a.jpg --------------------------------------------------------

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://.*")
# Schemes that FFmpeg reads; all others are taken for stores.
_STREAMS = {"ftp", "http", "https", "mms", "mmsh", "mmst", "rist", "rtmp", "rtmps", "rtp", "rtsp", "rtsps", "srt"}
_STREAMS |= {"tcp", "udp"}


def is_store(name: str) -> bool:
    """Whether a name is an address in a store, rather than a file, a camera or a stream."""
    found = _SCHEME.fullmatch(name)
    return found is not None and found[1].lower() not in _STREAMS


class StorePath:
    """A file or folder of a store, named and used like a `Path`; fsspec takes keys from its own variables and files."""

    def __init__(self, fs: Any, path: str | PurePath) -> None:
        self.fs, self.pure = fs, PurePosixPath(path)
        self.name, self.stem, self.suffix = self.pure.name, self.pure.stem, self.pure.suffix

    @classmethod
    def of(cls, url: str) -> StorePath:
        """The place of an address; a UsageError where fsspec knows no such store, or cannot open it."""
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise FicganError(f"{url.partition('?')[0]}: stores need fsspec: pip install 'ficgan[bulk]'") from None
        try:
            return cls(*url_to_fs(url))
        except (ValueError, ImportError) as error:
            raise UsageError(f"{url.partition('?')[0]}: cannot be opened ({reason(error)})") from error

    def __str__(self) -> str:
        return str(self.fs.unstrip_protocol(str(self.pure)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorePath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(self.pure)

    def __truediv__(self, name: str | PurePath) -> StorePath:
        return StorePath(self.fs, self.pure / name)

    @property
    def parent(self) -> StorePath:
        return StorePath(self.fs, self.pure.parent)

    def with_name(self, name: str) -> StorePath:
        return self.parent / name

    def relative_to(self, folder: StorePath) -> PurePosixPath:
        return self.pure.relative_to(folder.pure)

    def exists(self) -> bool:
        return bool(self.fs.exists(str(self.pure)))

    def is_file(self) -> bool:
        return bool(self.fs.isfile(str(self.pure)))

    def is_dir(self) -> bool:
        return bool(self.fs.isdir(str(self.pure)))

    def is_symlink(self) -> bool:
        return False

    def open(self, mode: str = "rb") -> Any:
        return self.fs.open(str(self.pure), mode)

    def read_bytes(self) -> bytes:
        return bytes(self.fs.cat_file(str(self.pure)))

    def write_bytes(self, data: bytes) -> None:
        """An object appears when it is complete."""
        self.fs.pipe_file(str(self.pure), data)

    def unlink(self, *, missing_ok: bool = False) -> None:
        if not missing_ok or self.exists():
            self.fs.rm_file(str(self.pure))

    def files(self) -> list[StorePath]:
        """All files below, sorted; hidden ones are left out."""
        found = (StorePath(self.fs, path) for path in sorted(self.fs.find(str(self.pure))))
        return [file for file in found if not any(part.startswith(".") for part in file.relative_to(self).parts)]


# A file or folder, wherever it is.
Place = Path | StorePath


def place_of(name: str) -> Place:
    """The place of a path or an address."""
    return StorePath.of(name) if is_store(name) else Path(name)


def write_file(place: Place, data: bytes, *, overwrite: bool) -> None:
    """A file, whole or not at all, see `atomic_write`."""
    if isinstance(place, Path):
        with atomic_write(place, overwrite=overwrite) as file:
            file.write(data)
    elif not overwrite and place.exists():
        raise taken(place)
    else:
        with _reported(place):
            place.write_bytes(data)


@contextmanager
def local_file(place: Place, *, new: bool = False) -> Iterator[Path]:
    """A file on this machine's disk; of a store's file a private copy, which goes again.

    `new`: where a library shall write one; a store gets it when the block ends without an error.
    """
    if isinstance(place, Path):
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="ficgan-store-") as folder:  # of mode 0700
        copy = Path(folder, place.name)
        if not new:
            place.fs.get_file(str(place.pure), str(copy))
        yield copy
        if new and copy.exists():
            place.fs.put_file(str(copy), str(place.pure))
