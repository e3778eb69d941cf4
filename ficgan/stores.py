"""Files in a store that fsspec knows, such as s3://bucket/photos/a.jpg: named and used like a `Path`."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath, PurePosixPath
from types import SimpleNamespace
from typing import Any

from ficgan.errors import FicganError, InputError, TakenError, UsageError
from ficgan.files import atomic_write, file_digest

__all__ = ["Place", "StorePath", "digest_of", "is_store", "local_file", "new_local_file", "place_of", "write_file"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://.*")
# Schemes that FFmpeg reads; all others are taken for stores.
_STREAMS = {"ftp", "http", "https", "mms", "mmsh", "mmst", "rist", "rtmp", "rtmps", "rtp", "rtsp", "rtsps", "srt"}
_STREAMS |= {"tcp", "udp"}


def is_store(name: str) -> bool:
    """Whether a name is an address in a store, rather than a file, a camera or a stream."""
    found = _SCHEME.fullmatch(name)
    return found is not None and found[1].lower() not in _STREAMS


class StorePath:
    """A file or folder of a store.

    Args:
        fs: fsspec's file system, which takes keys from its own environment variables and files.
        path: within it.
    """

    def __init__(self, fs: Any, path: str) -> None:
        self.fs, self._path = fs, PurePosixPath(path)

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
            raise UsageError(f"{url.partition('?')[0]}: cannot be opened ({' '.join(str(error).split())})") from error

    def __str__(self) -> str:
        return str(self.fs.unstrip_protocol(str(self._path)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorePath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(self._path)

    def __truediv__(self, name: str | PurePath) -> StorePath:
        return StorePath(self.fs, str(self._path / name))

    @property
    def name(self) -> str:
        return self._path.name

    @property
    def stem(self) -> str:
        return self._path.stem

    @property
    def suffix(self) -> str:
        return self._path.suffix

    @property
    def parent(self) -> StorePath:
        return StorePath(self.fs, str(self._path.parent))

    def with_name(self, name: str) -> StorePath:
        return self.parent / name

    def relative_to(self, folder: StorePath) -> PurePosixPath:
        return self._path.relative_to(folder._path)

    def exists(self) -> bool:
        return bool(self.fs.exists(str(self._path)))

    def is_file(self) -> bool:
        return bool(self.fs.isfile(str(self._path)))

    def is_dir(self) -> bool:
        return bool(self.fs.isdir(str(self._path)))

    def is_symlink(self) -> bool:
        """Stores have no links."""
        return False

    def stat(self) -> SimpleNamespace:
        return SimpleNamespace(st_size=self.fs.size(str(self._path)))

    def open(self, mode: str = "rb") -> Any:
        return self.fs.open(str(self._path), mode)

    def read_bytes(self) -> bytes:
        return bytes(self.fs.cat_file(str(self._path)))

    def write_bytes(self, data: bytes) -> None:
        """An object appears when it is complete."""
        self.fs.pipe_file(str(self._path), data)

    def unlink(self, *, missing_ok: bool = False) -> None:
        if not missing_ok or self.exists():
            self.fs.rm_file(str(self._path))

    def files(self) -> list[StorePath]:
        """All files below, sorted; hidden ones are left out."""
        found = (StorePath(self.fs, path) for path in sorted(self.fs.find(str(self._path))))
        return [file for file in found if not any(part.startswith(".") for part in file.relative_to(self).parts)]


# A file or folder, wherever it is.
Place = Path | StorePath


def place_of(name: str) -> Place:
    """The place of a path or an address."""
    return StorePath.of(name) if is_store(name) else Path(name)


def digest_of(place: Place) -> str:
    """sha256 of a file, hexadecimal."""
    if isinstance(place, Path):
        return file_digest(place)
    with place.open() as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_file(place: Place, data: bytes, *, overwrite: bool) -> None:
    """A file, whole or not at all, see `atomic_write`."""
    if isinstance(place, Path):
        with atomic_write(place, overwrite=overwrite) as file:
            file.write(data)
    elif not overwrite and place.exists():
        raise TakenError(f"{place}: exists already; use --overwrite to replace it, or choose another output")
    else:
        try:
            place.write_bytes(data)
        except OSError as error:
            raise InputError(f"{place}: cannot be written ({' '.join(str(error).split())})") from error


@contextmanager
def local_file(place: Place) -> Iterator[Path]:
    """A file on this machine's disk; of a store's file a private copy, which goes again."""
    if isinstance(place, Path):
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="ficgan-store-") as folder:  # of mode 0700
        copy = Path(folder, place.name)
        place.fs.get_file(str(place._path), str(copy))
        yield copy


@contextmanager
def new_local_file(place: Place) -> Iterator[Path]:
    """Where a library shall write a new file; for a store it is sent there when the block ends without an error."""
    if isinstance(place, Path):
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="ficgan-store-") as folder:
        made = Path(folder, place.name)
        yield made
        if made.exists():
            place.fs.put_file(str(made), str(place._path))
