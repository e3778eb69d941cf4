"""Where the bytes of an image lie: in a file, a tar or a zip, as one small picklable record without open handles."""

from __future__ import annotations

import stat
import struct
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ficgan.errors import InputError

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"})
_LOCAL_HEADER = struct.Struct("<4s22xHH")


@dataclass(frozen=True, slots=True)
class Blob:
    """One image's bytes: `size` bytes at `offset` of `source`, deflated when `crc` is given and `deflated` is set."""

    name: str
    source: Path
    offset: int
    size: int
    deflated: bool = False
    crc: int | None = None
    archived: bool = False

    @property
    def where(self) -> str:
        """The image's name as a person would look for it."""
        return f"{self.name} in {self.source}" if self.archived else str(self.source)

    def read(self) -> bytes:
        """The image's encoded bytes; a file handle per call, so that threads and processes may read at once."""
        try:
            with self.source.open("rb") as file:
                file.seek(self.offset)
                data = file.read(self.size if self.archived else -1)
            if self.archived and len(data) != self.size:
                raise InputError(f"{self.where} ends early: the archive is truncated; copy it again.")
            if self.deflated:
                data = zlib.decompress(data, wbits=-zlib.MAX_WBITS)
        except (OSError, zlib.error) as error:
            raise InputError(f"{self.where} cannot be read ({error}); check the file and its permissions.") from error
        if self.crc is not None and zlib.crc32(data) != self.crc:
            raise InputError(f"{self.where} is damaged: its checksum does not match; make the archive again.")
        return data


def list_blobs(path: Path) -> list[Blob]:
    """All images in a folder (recursive), zip or tar, in no promised order.

    Raises:
        InputError: `path` is missing, unreadable, damaged, of another kind, or holds no image.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise InputError(f"{path} cannot be opened ({error.strerror}); name a folder, zip or tar of images.") from error
    if stat.S_ISDIR(mode):
        blobs = list(_folder(path))
    elif path.stat().st_size == 0:
        raise InputError(f"{path} is empty; name a folder, zip or tar of images.")
    elif zipfile.is_zipfile(path):
        blobs = list(_zip(path))
    else:
        blobs = list(_tar(path))
    if not blobs:
        kinds = " ".join(sorted(IMAGE_SUFFIXES))
        raise InputError(f"{path} holds no image; it needs files that end in one of {kinds}.")
    return blobs


def _is_image(name: str) -> bool:
    path = Path(name)
    # "._x.jpg" and "__MACOSX" are what macOS leaves in archives: not images, whatever the suffix says.
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".") and "__MACOSX" not in path.parts


def _clean(name: str) -> str:
    # Composed Unicode and forward slashes, so that a name sorts alike whichever system wrote it.
    return unicodedata.normalize("NFC", name.replace("\\", "/")).removeprefix("./")


def _folder(root: Path) -> Iterator[Blob]:
    try:
        for path in root.rglob("*"):
            name = path.relative_to(root).as_posix()
            if _is_image(name) and path.is_file():
                yield Blob(_clean(name), path, 0, path.stat().st_size)
    except OSError as error:
        raise InputError(f"{root} cannot be listed ({error}); check its permissions.") from error


def _tar(path: Path) -> Iterator[Blob]:
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if member.isreg() and _is_image(member.name):
                    yield Blob(_clean(member.name), path, member.offset_data, member.size, archived=True)
            end = archive.offset
        # tarfile takes half a header for the end; a whole tar goes on with a block of zeros.
        with path.open("rb") as file:
            file.seek(end - end % tarfile.BLOCKSIZE)
            rest = file.read(tarfile.BLOCKSIZE)
        if rest.strip(b"\0") or len(rest) not in (0, tarfile.BLOCKSIZE):
            raise tarfile.ReadError("unexpected end of data")
    except tarfile.ReadError as error:
        if path.suffix.lower() in {".gz", ".tgz", ".bz2", ".xz", ".zst"}:
            raise InputError(f"{path} is a compressed tar, which cannot be read at random; unpack it first.") from error
        raise InputError(f"{path} is not a readable tar or zip ({error}); check that it was copied whole.") from error
    except (OSError, tarfile.TarError) as error:
        raise InputError(f"{path} cannot be read ({error}); check the file and its permissions.") from error


def _zip(path: Path) -> Iterator[Blob]:
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            for info in archive.infolist():
                if info.is_dir() or not _is_image(info.filename):
                    continue
                if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise InputError(f"{info.filename} in {path} is encrypted or packed in a rare way; zip it plainly.")
                file.seek(info.header_offset)
                magic, name_length, extra_length = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
                if magic != b"PK\x03\x04":
                    raise zipfile.BadZipFile(f"no local header for {info.filename}")
                offset = info.header_offset + _LOCAL_HEADER.size + name_length + extra_length
                deflated = info.compress_type == zipfile.ZIP_DEFLATED
                yield Blob(_clean(info.filename), path, offset, info.compress_size, deflated, info.CRC, archived=True)
    except (OSError, zipfile.BadZipFile, struct.error) as error:
        raise InputError(f"{path} is not a readable zip ({error}); check that it was copied whole.") from error
