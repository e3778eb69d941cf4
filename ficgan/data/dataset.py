"""A set of face images: folders, zips and tars in one locked order, how it is aligned, and a sampler that resumes."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import tarfile
import unicodedata
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps

from ficgan.data.labels import ALIGNMENT, Labels
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.images import MAX_PIXELS

if TYPE_CHECKING:
    from ficgan.faces import Alignment

In = TypeVar("In")
Out = TypeVar("Out")

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"})
# Bytes that one image may have, unpacked: a set that holds more is no set of faces.
_LARGEST = 128 << 20
_DAMAGED = (OSError, ValueError, EOFError, RuntimeError, zlib.error, tarfile.TarError, zipfile.BadZipFile)


@dataclass(frozen=True, slots=True)
class Blob:
    """One image's encoded bytes.

    Args:
        name: as the set calls it: composed Unicode, forward slashes.
        source: the file itself, or the archive that holds it.
        size: encoded bytes; in a zip, packed.
        offset: where the bytes begin in a tar.
        member: name in a zip.
        crc: checksum of the unpacked bytes, where a zip says it.
    """

    name: str
    source: Path
    size: int
    offset: int | None = None
    member: str | None = None
    crc: int | None = None

    @property
    def archived(self) -> bool:
        return self.offset is not None or self.member is not None

    @property
    def where(self) -> str:
        return f"{self.name} in {self.source}" if self.archived else str(self.source)

    def read(self) -> bytes:
        """The bytes; threads and processes may read at once. InputError where they are damaged or too many."""
        try:
            if self.member is not None:
                archive = _opened(self.source, os.getpid())
                size = archive.getinfo(self.member).file_size
                data = b"" if size > _LARGEST else archive.read(self.member)
            else:
                with self.source.open("rb") as file:
                    file.seek(self.offset or 0)
                    size = self.size if self.archived else os.fstat(file.fileno()).st_size
                    data = b"" if size > _LARGEST else file.read(size)
        except _DAMAGED as error:
            raise InputError(f"{self.where} cannot be read ({error}); check that it was copied whole.") from error
        if size > _LARGEST:
            raise InputError(f"{self.where} has more than {_LARGEST >> 20} MiB; leave it out.")
        if len(data) != size:
            raise InputError(f"{self.where} ends early: it is truncated; copy it again.")
        return data


@lru_cache(maxsize=64)
def _opened(path: Path, process: int) -> zipfile.ZipFile:
    """A zip, open for reading by all threads of one process."""
    return zipfile.ZipFile(path)


def list_blobs(path: Path) -> list[Blob]:
    """All images in a folder (recursive), zip or tar, in no promised order; InputError where none can be read."""
    if not path.exists():
        raise InputError(f"{path} cannot be opened; name a folder, zip or tar of images.")
    try:
        if path.is_dir():
            blobs = [
                Blob(_clean(file.relative_to(path).as_posix()), file, file.stat().st_size)
                for file in path.rglob("*")
                if _is_image(file.relative_to(path).as_posix()) and file.is_file()
            ]
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as packed:
                blobs = [
                    Blob(_clean(info.filename), path, info.compress_size, member=info.filename, crc=info.CRC)
                    for info in packed.infolist()
                    if _is_image(info.filename)
                ]
        else:
            if path.stat().st_size % tarfile.BLOCKSIZE:  # half a header would be taken for the end
                raise tarfile.ReadError("unexpected end of data")
            with tarfile.open(path, "r:") as archive:
                blobs = [
                    Blob(_clean(member.name), path, member.size, offset=member.offset_data)
                    for member in archive
                    if member.isreg() and _is_image(member.name)
                ]
    except _DAMAGED as error:
        raise InputError(
            f"{path} is not a readable folder, zip or tar ({error}); a packed tar is to be unpacked."
        ) from (error)
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


@dataclass(frozen=True)
class FaceData:
    """N face images, opened by `open_faces`; cheap to hold, decoded when asked for.

    Attributes:
        names: N unique names, sorted by code point: the order is the same on every machine.
        labels: what the label file says about these N images, in this order, or None.
        skipped: (name, reason) of images left out as damaged.
        alignment: how the faces are aligned, as `alignment_name` says it; None where no table says.
    """

    blobs: tuple[Blob, ...]
    names: tuple[str, ...]
    resolution: int
    labels: Labels | None = None
    skipped: tuple[tuple[str, str], ...] = ()
    alignment: str | None = None

    def __len__(self) -> int:
        return len(self.blobs)

    @property
    def fingerprint(self) -> str:
        """sha256 over names and encoded sizes: the same images in the same order give the same 64 hex digits."""
        digest = hashlib.sha256()
        for name, blob in zip(self.names, self.blobs, strict=True):
            digest.update(f"{name}\0{blob.size}\n".encode())
        return digest.hexdigest()

    def load(self, index: int) -> torch.Tensor:
        """Image `index` as uint8 [3, R, R] RGB: decoded, centre-cropped to a square, resized with antialiasing."""
        return torch.from_numpy(decode(self.blobs[index], self.resolution)).permute(2, 0, 1).contiguous()

    def resident(self) -> torch.Tensor:
        """All images, decoded once by several threads: uint8 [N, 3, R, R] in RAM."""
        try:
            images = torch.empty(len(self), 3, self.resolution, self.resolution, dtype=torch.uint8)
        except RuntimeError as error:  # what torch raises where memory is short
            size = len(self) * 3 * self.resolution**2 / 2**30
            raise FicganError(
                f"{len(self)} images need {size:.1f} GiB of memory; take fewer or smaller ones."
            ) from error
        for index, image in enumerate(_parallel(self.load, range(len(self)))):
            images[index] = image
        return images

    def subset(self, indices: Sequence[int] | np.ndarray) -> FaceData:
        """The images at `indices`, in that order, with their labels."""
        chosen = [int(i) for i in indices]
        labels = None if self.labels is None else self.labels.take(chosen)
        blobs, names = tuple(self.blobs[i] for i in chosen), tuple(self.names[i] for i in chosen)
        return replace(self, blobs=blobs, names=names, labels=labels)


def open_faces(
    paths: Sequence[Path | str],
    *,
    resolution: int,
    labels: Path | str | None = None,
    split: str | None = None,
    skip_damaged: bool = False,
) -> FaceData:
    """Open folders (recursive), zips and tars of face images as one set.

    Args:
        paths: one or more folders or archives; their order does not matter.
        resolution: side of the decoded squares, pixels.
        labels: a CSV with a `file` column, or CelebA's text files; see `Labels.read`.
        split: keep only images whose label row has this `split`.
        skip_damaged: decode everything once now and leave out what fails (listed in `.skipped`);
            otherwise a damaged image is an error when it is loaded.
    """
    if resolution < 1:
        raise UsageError(f"resolution {resolution} is not a size; give the side of the squares in pixels, such as 256.")
    if split is not None and labels is None:
        raise UsageError(f"split {split!r} needs labels to choose by; name the label file too.")
    sources = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    if not sources:
        raise UsageError("No data was named; give at least one folder, zip or tar of images.")
    named = _unique_names([blob for source in sources for blob in list_blobs(source)], sources)
    data = FaceData(tuple(blob for _, blob in named), tuple(name for name, _ in named), resolution)
    names = recorded(sources)
    if labels is not None:
        known = Labels.read(labels).match(data.names, source=str(labels))
        data = replace(data, labels=known)
        if split is not None:
            chosen = [i for i, name in enumerate(known.splits or ()) if name == split]
            if not chosen:
                there = ", ".join(sorted(set(known.splits or ()))) or "no split column"
                raise InputError(f"{labels} puts no image of this data into split {split!r}; it has {there}.")
            data = data.subset(chosen)
        if data.labels is not None and data.labels.alignments is not None:
            names = set(data.labels.alignments) - {""}
    data = replace(data, alignment=agreed(names))
    return _without_damaged(data) if skip_damaged else data


def check_size(data: FaceData) -> None:
    """Refuse a set with an image smaller than `data.resolution`: an enlarged one holds no detail to learn."""
    for blob in data.blobs:
        try:
            with Image.open(io.BytesIO(blob.read())) as file:
                width, height = file.size
        except Exception:  # damaged: whoever decodes it says so
            continue
        if min(width, height) < data.resolution:
            least = f"{data.resolution}×{data.resolution}"
            raise InputError(f"{blob.where} has {width}×{height} pixels; give faces of at least {least}.")


def decode(blob: Blob, resolution: int) -> np.ndarray:
    """An image's bytes as uint8 RGB [R, R, 3]: EXIF orientation applied, centre square, Lanczos with antialiasing."""
    image = decode_rgb(blob)
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = image.crop((left, top, left + side, top + side))
    return np.array(square.resize((resolution, resolution), Image.Resampling.LANCZOS))


def decode_rgb(blob: Blob) -> Image.Image:
    """An image's bytes as an RGB picture, EXIF orientation applied; InputError names a damaged image."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(blob.read())) as file:
                if file.width * file.height > MAX_PIXELS:
                    raise InputError(f"{blob.where} has more than {MAX_PIXELS / 1e6:g} megapixels; scale it down.")
                return _to_rgb(ImageOps.exif_transpose(file))
    except (InputError, MemoryError):
        raise
    except Exception as error:  # Pillow's plug-ins raise OSError, SyntaxError, ValueError, struct.error, …
        raise InputError(f"{blob.where} is not a readable image ({error}); replace or remove it.") from error


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey: Pillow would clip at 255 instead of scaling
        return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    return image.convert("RGB")


def _unique_names(blobs: list[Blob], sources: Sequence[Path]) -> list[tuple[str, Blob]]:
    """Names sorted by code point; where two sources share a name, both are prefixed by their source's."""
    count = Counter(blob.name for blob in blobs)
    named = [(f"{_root(b, sources).name}/{b.name}" if count[b.name] > 1 else b.name, b) for b in blobs]
    named.sort(key=lambda pair: pair[0])
    for (first, a), (second, b) in pairwise(named):
        if first == second:
            raise InputError(f"{a.where} and {b.where} have the same name; name each source once, or rename one.")
    return named


def _root(blob: Blob, sources: Sequence[Path]) -> Path:
    if blob.archived:
        return blob.source
    return max((s for s in sources if s in blob.source.parents), key=lambda s: len(s.parts), default=blob.source.parent)


def _without_damaged(data: FaceData) -> FaceData:
    def trial(blob: Blob) -> str | None:
        try:
            decode(blob, data.resolution)
        except InputError as error:
            return str(error)
        return None

    reasons = list(_parallel(trial, data.blobs))
    good = [i for i, reason in enumerate(reasons) if reason is None]
    if not good:
        raise InputError(f"None of the {len(data)} images can be read; the first: {reasons[0]}")
    skipped = tuple((data.names[i], reason) for i, reason in enumerate(reasons) if reason is not None)
    return replace(data.subset(good), skipped=skipped)


def _parallel(work: Callable[[In], Out], items: Iterable[In]) -> Iterable[Out]:
    items = iter(items)
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1), thread_name_prefix="decode") as pool:
        while chunk := list(islice(items, 256)):
            yield from pool.map(work, chunk)


def alignment_name(alignment: Alignment) -> str:
    """`ffhq`, or `template(0.37,0.31)`: eye distance and height of the eyes as fractions of the crop's side.

    Crops for the canonical frame are the default template's, and called so.
    """
    if alignment.kind == "ffhq":
        return "ffhq"
    return f"template({alignment.eye_distance:g},{alignment.eye_y:g})"


def check_alignment(faces: FaceData, alignment: Alignment, who: str = "the model") -> None:
    """UsageError for a set that was aligned otherwise than `who` needs; a set that says nothing passes."""
    wanted = alignment_name(alignment)
    if faces.alignment not in (None, wanted):
        options = f"--eye-distance {alignment.eye_distance:g} --eye-y {alignment.eye_y:g}"
        raise UsageError(
            f"these faces are aligned as {faces.alignment}, {who} needs {wanted}; make the set anew with "
            f"`ficgan align {'--alignment ffhq' if alignment.kind == 'ffhq' else options}`"
        )


def recorded(sources: Iterable[Path]) -> set[str]:
    """What the tables that `ficgan align` left beside archives and in folders say."""
    found: set[str] = set()
    for source in sources:
        table = source / "faces.csv" if source.is_dir() else source.with_suffix(".csv")
        try:
            with table.open(encoding="utf-8-sig", newline="") as file:
                rows = csv.DictReader(file)
                if rows.fieldnames and {"file", ALIGNMENT} <= set(rows.fieldnames):
                    found |= {row[ALIGNMENT].strip() for row in rows if (row[ALIGNMENT] or "").strip()}
        except (OSError, UnicodeDecodeError, csv.Error):
            continue  # no table, or not ours
    return found


def agreed(names: set[str]) -> str | None:
    """The one alignment of a set, or None where no table says; InputError where there are several."""
    if len(names) > 1:
        several = " and ".join(sorted(names))
        raise InputError(f"These faces are aligned in different ways ({several}); take sets aligned alike.")
    return next(iter(names), None)


class ResumableSampler:
    """Batches of image indices; each epoch is a permutation of all n images, none repeated.

    The stream of indices depends on (n, seed) only; step t takes the `batch_size` positions from t·batch_size on, and
    each rank its own equal share. So a run resumes at any step, on any number of processes, exactly.
    """

    def __init__(self, n: int, batch_size: int, seed: int, *, rank: int = 0, world: int = 1) -> None:
        if n < 1 or batch_size < 1 or seed < 0 or not 0 <= rank < world:
            raise UsageError(f"Cannot draw {batch_size} from {n} images (rank {rank}/{world}).")
        if batch_size % world:
            raise UsageError(f"Batch size {batch_size} does not split over {world} processes; take a multiple.")
        self.n, self.batch_size, self.seed, self.rank, self.world = n, batch_size, seed, rank, world

    def batch(self, step: int) -> torch.Tensor:
        """Indices of this rank at `step`: int64 [batch_size / world], in 0..n−1."""
        share = self.batch_size // self.world
        first = step * self.batch_size + self.rank * share
        epochs, offsets = np.divmod(np.arange(first, first + share), self.n)
        indices = [_shuffle(self.n, self.seed, int(e))[offsets[epochs == e]] for e in np.unique(epochs)]
        return torch.from_numpy(np.concatenate(indices))


@lru_cache(maxsize=4)
def _shuffle(n: int, seed: int, epoch: int) -> np.ndarray:
    # Sorting raw 64-bit draws: NumPy promises the raw stream for ever, not what Generator.permutation makes of it.
    draws = np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(n)
    return np.argsort(draws, kind="stable").astype(np.int64)
