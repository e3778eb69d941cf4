"""Sets of face images: folders, zips and tars in one locked order, their labels, and a sampler that resumes."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import tarfile
import unicodedata
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image, ImageOps

from ficgan.arrays import blocks
from ficgan.errors import InputError, UsageError
from ficgan.images import MAX_PIXELS

if TYPE_CHECKING:
    from ficgan.faces import Alignment

__all__ = ["CELEBA_ATTRIBUTES", "FaceData", "Labels", "ResumableSampler", "alignment_name", "check_alignment"]
__all__ += ["check_size", "open_faces"]


_CELEBA = (
    "5_o_Clock_Shadow Arched_Eyebrows Attractive Bags_Under_Eyes Bald Bangs Big_Lips Big_Nose Black_Hair Blond_Hair "
    "Blurry Brown_Hair Bushy_Eyebrows Chubby Double_Chin Eyeglasses Goatee Gray_Hair Heavy_Makeup High_Cheekbones Male "
    "Mouth_Slightly_Open Mustache Narrow_Eyes No_Beard Oval_Face Pale_Skin Pointy_Nose Receding_Hairline Rosy_Cheeks "
    "Sideburns Smiling Straight_Hair Wavy_Hair Wearing_Earrings Wearing_Hat Wearing_Lipstick Wearing_Necklace "
    "Wearing_Necktie Young"
)
CELEBA_ATTRIBUTES = tuple(_CELEBA.split())
_PERSON, _SPLIT, ALIGNMENT = ("person", "identity"), "split", "alignment"
_NOT_ATTRIBUTES = frozenset({"file", "shard", "source", "path", "face", "box", "score", _SPLIT, ALIGNMENT, *_PERSON})
_OVER = re.compile(r"^(?:more than|over) (\d+)$")  # one age under two names: "more than 70" is "70+"
_MOST_CATEGORIES = 32  # a text column with more values than this is a name or a note, not a category


@dataclass(frozen=True)
class Labels:
    """Labels of N images: people int64 [N], −1 where unknown; attributes uint8 [N,A], 0 or 1.

    Of the attributes of one of `attribute_columns` an image has one at most. Empty: each is a column of its own.
    """

    files: tuple[str, ...]
    people: np.ndarray | None
    attributes: np.ndarray
    attribute_names: tuple[str, ...]
    splits: tuple[str, ...] | None = None
    attribute_columns: tuple[str, ...] = ()
    alignments: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.files)

    @classmethod
    def read(cls, path: Path | str) -> Labels:
        """Read a CSV with a `file` column, one of CelebA's text files, or a folder that holds those.

        In a CSV, `person` or `identity` gives `people`; a column of 0/1 or −1/1 is one attribute; a column of a few
        texts is one attribute per text, named by it ("Female", "20-29"); other numbers are ignored.
        """
        path = Path(path)
        try:
            if path.is_dir():
                return _celeba_folder(path)
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"Labels {path} cannot be read ({error}); name a CSV with a file column.") from error
        if path.suffix.lower() == ".txt":
            return _table(*_celeba_text(text, path), path)
        header, *body = [row for row in csv.reader(text.splitlines()) if row] or [[]]
        return _table(_named(header), body, path)

    @classmethod
    def from_folders(cls, names: Sequence[str]) -> Labels:
        """Labels of a folder per person; InputError for an image in none."""
        folders = [str(PurePosixPath(name).parent) for name in names]
        if "." in folders:
            stray = names[folders.index(".")]
            raise InputError(f"{stray} lies in no person's folder; sort images into one folder per person.")
        return cls(tuple(names), _numbered(folders), np.zeros((len(names), 0), np.uint8), ())

    def take(self, rows: Sequence[int] | np.ndarray) -> Labels:
        index = np.asarray(rows, dtype=np.int64)
        texts = {name: getattr(self, name) for name in ("files", "splits", "alignments")}
        taken: dict[str, Any] = {name: tuple(of[i] for i in index) for name, of in texts.items() if of is not None}
        people = None if self.people is None else self.people[index]
        return replace(self, people=people, attributes=self.attributes[index], **taken)

    def match(self, names: Sequence[str], *, source: str = "The label file") -> Labels:
        """The labels of the images called `names`, in that order: by full name, else by a single base name."""
        bases = [PurePosixPath(file).name for file in self.files]
        count = Counter(bases)
        row_of = {base: row for row, base in enumerate(bases) if count[base] == 1}
        full = {file: row for row, file in enumerate(self.files)}
        rows = [full.get(name, row_of.get(PurePosixPath(name).name)) for name in names]
        missing = [name for name, row in zip(names, rows, strict=True) if row is None]
        if missing:
            what = f"{len(missing)} of {len(names)} images, such as {missing[0]}"
            raise InputError(f"{source} has no single row for {what}; add rows, or name only the data it describes.")
        return self.take(np.array(rows, np.int64))


def _named(header: list[str]) -> list[str]:
    """Column names; where CelebA's first row stands in place of its forty names, the published names in their order."""
    names, values = [name.strip() for name in header], len(CELEBA_ATTRIBUTES)
    if len(names) > values and names[-values - 1].endswith(".jpg") and set(names[-values:]) <= {"-1", "1"}:
        return [*names[: -values - 1], *CELEBA_ATTRIBUTES]
    return names


def _table(header: list[str], body: list[list[str]], path: Path) -> Labels:
    if "file" not in header:
        raise InputError(f"Labels {path} has no file column; its first line must name the columns.")
    bad = next((number for number, row in enumerate(body, 2) if len(row) != len(header)), None)
    if not body or bad is not None:
        raise InputError(f"Labels {path} line {bad or 2} has not the {len(header)} columns of its first line; mend it.")
    if len(set(header)) < len(header):
        raise InputError(f"Labels {path} names a column more than once; rename one.")
    columns = {name: [row[i].strip() for row in body] for i, name in enumerate(header)}
    person = next((name for name in _PERSON if name in columns), None)
    table: list[tuple[str, str, np.ndarray]] = []
    for name, cells in columns.items():
        if name not in _NOT_ATTRIBUTES:
            table += _attributes_of(name, cells)
    count = Counter(value for _, value, _ in table)
    return Labels(
        files=tuple(columns["file"]),
        people=None if person is None else _numbered(columns[person]),
        attributes=np.stack([v for *_, v in table], 1) if table else np.zeros((len(body), 0), np.uint8),
        attribute_names=tuple(value if count[value] == 1 else f"{column}={value}" for column, value, _ in table),
        splits=tuple(columns[_SPLIT]) if _SPLIT in columns else None,
        attribute_columns=tuple(column for column, *_ in table),
        alignments=tuple(columns[ALIGNMENT]) if ALIGNMENT in columns else None,
    )


def _attributes_of(column: str, cells: Sequence[str]) -> list[tuple[str, str, np.ndarray]]:
    """(column, attribute name, uint8 [N]) for each attribute a column holds: one, several or none."""
    if set(cells) - {""} and set(cells) <= {"", "-1", "0", "1", "-1.0", "0.0", "1.0"}:
        return [(column, column, np.array([cell in ("1", "1.0") for cell in cells], np.uint8))]
    cells = [_OVER.sub(r"\1+", cell) for cell in cells]
    values = sorted(set(cells) - {""})
    if not values or len(values) > _MOST_CATEGORIES or all(map(is_number, values)):
        return []
    return [(column, value, np.array([cell == value for cell in cells], np.uint8)) for value in values]


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbered(cells: Iterable[str]) -> np.ndarray:
    cells = list(cells)
    try:
        return np.array([int(cell) if cell else -1 for cell in cells], np.int64)
    except (ValueError, OverflowError):  # names, also numbers that no array holds
        number = {name: i for i, name in enumerate(sorted(set(cells) - {""}))}
        return np.array([number.get(cell, -1) for cell in cells], np.int64)


def _celeba_text(text: str, path: Path) -> tuple[list[str], list[list[str]]]:
    """Column names and rows of a file of attributes, of people, or of splits."""
    rows = [line.split() for line in text.splitlines() if line.strip()]
    if len(rows) > 2 and len(rows[0]) == 1:  # count, names, then a row of ±1 per file
        return ["file", *rows[1]], rows[2:]
    if any(len(row) != 2 or not row[1].isdecimal() for row in rows):
        raise InputError(f"Labels {path} is not one of CelebA's text files; give a CSV instead.")
    if "partition" in path.name:
        return ["file", _SPLIT], [[file, ("train", "val", "test")[int(number)]] for file, number in rows]
    return ["file", "identity"], rows


def _celeba_folder(folder: Path) -> Labels:
    known = ("list_attr_celeba.txt", "identity_CelebA.txt", "list_eval_partition.txt")
    parts = [Labels.read(folder / name) for name in known if (folder / name).is_file()]
    if not parts:
        raise InputError(f"Labels folder {folder} has none of {', '.join(known)}; give a CSV or CelebA's Anno folder.")
    merged, *others = (part.match(parts[0].files, source=str(folder)) for part in parts)
    for part in others:
        people = merged.people if part.people is None else part.people
        merged = replace(merged, people=people, splits=part.splits or merged.splits)
    return merged


IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"})
_LARGEST = 128 << 20  # bytes that one image may have, unpacked: a set that holds more is no set of faces
_DAMAGED = (OSError, ValueError, EOFError, RuntimeError, zlib.error, tarfile.TarError, zipfile.BadZipFile)


@dataclass(frozen=True, slots=True)
class Blob:
    """One image's encoded bytes: a file, or by its offset in a tar, or by its member's name and checksum in a zip."""

    name: str
    source: Path
    size: int
    offset: int | None = None
    member: str | None = None
    crc: int | None = None

    @property
    def where(self) -> str:
        archived = self.offset is not None or self.member is not None
        return f"{self.name} in {self.source}" if archived else str(self.source)

    def read(self) -> bytes:
        """The bytes; threads and processes may read at once. InputError where they are damaged or too many."""
        in_tar, least, size = self.offset is not None, _LARGEST + 1, 0
        try:
            if self.member is not None:
                archive = _opened(self.source, os.getpid())
                size = archive.getinfo(self.member).file_size  # it is asked before anything is unpacked
                data = archive.read(self.member) if size < least else b""
            else:
                with self.source.open("rb") as file:
                    file.seek(self.offset or 0)
                    data = file.read(min(self.size, least) if in_tar else least)
        except _DAMAGED as error:
            raise InputError(f"{self.where} cannot be read ({error}); check that it was copied whole.") from error
        if max(size, len(data)) > _LARGEST:
            raise InputError(f"{self.where} has more than {_LARGEST >> 20} MiB; leave it out.")
        if in_tar and len(data) != self.size:
            raise InputError(f"{self.where} ends early: it is truncated; copy it again.")
        return data


@lru_cache(maxsize=64)
def _opened(path: Path, process: int) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)


def list_blobs(path: Path) -> list[Blob]:
    """All images in a folder (recursive), zip or tar, in no promised order; InputError where none can be read."""
    if not path.exists():
        raise InputError(f"{path} cannot be opened; name a folder, zip or tar of images.")
    try:
        if path.is_dir():
            files = [file for file in path.rglob("*") if file.is_file()]
            blobs = [Blob(_clean(file.relative_to(path).as_posix()), file, file.stat().st_size) for file in files]
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as packed:
                blobs = [
                    Blob(_clean(info.filename), path, info.compress_size, member=info.filename, crc=info.CRC)
                    for info in packed.infolist()
                ]
        else:
            if path.stat().st_size % tarfile.BLOCKSIZE:  # half a header would be taken for the end
                raise tarfile.ReadError("unexpected end of data")
            with tarfile.open(path, "r:") as archive:
                members = [member for member in archive if member.isreg()]
            blobs = [Blob(_clean(member.name), path, member.size, offset=member.offset_data) for member in members]
    except _DAMAGED as error:
        raise InputError(f"{path} is not a readable folder, zip or tar ({error}); unpack a packed tar.") from error
    # "._x.jpg" and "__MACOSX" are what macOS leaves in archives: not images, whatever the suffix says.
    named = [(blob, Path(blob.name)) for blob in blobs if "__MACOSX" not in Path(blob.name).parts]
    images = [b for b, path in named if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")]
    if not images:
        raise InputError(f"{path} holds no image; it needs files that end in {' '.join(sorted(IMAGE_SUFFIXES))}.")
    return images


def _clean(name: str) -> str:
    # Composed Unicode and forward slashes, so that a name sorts alike whichever system wrote it.
    return unicodedata.normalize("NFC", name.replace("\\", "/")).removeprefix("./")


@dataclass(frozen=True)
class FaceData:
    """N face images, opened by `open_faces`, decoded when asked for; names are sorted by code point.

    `alignment` is how the faces are aligned, as `alignment_name` says it; None where no table says.
    """

    blobs: tuple[Blob, ...]
    names: tuple[str, ...]
    resolution: int
    labels: Labels | None = None
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
        images = torch.empty(len(self), 3, self.resolution, self.resolution, dtype=torch.uint8)
        with ThreadPoolExecutor(min(16, os.cpu_count() or 1), thread_name_prefix="decode") as pool:
            for part in blocks(len(self), 256):
                for index, image in enumerate(pool.map(self.load, range(part.start, part.stop)), part.start):
                    images[index] = image
        return images

    def subset(self, indices: Sequence[int] | np.ndarray) -> FaceData:
        chosen = [int(i) for i in indices]
        labels = None if self.labels is None else self.labels.take(chosen)
        blobs, names = tuple(self.blobs[i] for i in chosen), tuple(self.names[i] for i in chosen)
        return replace(self, blobs=blobs, names=names, labels=labels)


def open_faces(
    paths: Sequence[Path | str], *, resolution: int, labels: Path | str | None = None, split: str | None = None
) -> FaceData:
    """Open folders (recursive), zips and tars of face images as one set; their order does not matter.

    `resolution` is the side of the decoded squares; `split` keeps only images whose label row has it.
    """
    if resolution < 1:
        raise UsageError(f"resolution {resolution} is not a size; give the side of the squares in pixels, such as 256.")
    if split is not None and labels is None:
        raise UsageError(f"split {split!r} needs labels to choose by; name the label file too.")
    sources = [Path(path) for path in paths]
    if not sources:
        raise UsageError("No data was named; give at least one folder, zip or tar of images.")
    found = [(source, blob) for source in sources for blob in list_blobs(source)]
    count = Counter(blob.name for _, blob in found)
    # Where two sources share a name, both are prefixed by their source's.
    named = [(f"{source.name}/{b.name}" if count[b.name] > 1 else b.name, b) for source, b in found]
    named.sort(key=lambda pair: pair[0])
    for (first, a), (second, b) in pairwise(named):
        if first == second:
            raise InputError(f"{a.where} and {b.where} have the same name; name each source once, or rename one.")
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
    return replace(data, alignment=agreed(names))


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
                image = ImageOps.exif_transpose(file)
                if image.mode.startswith("I"):  # 16-bit grey: Pillow would clip at 255 instead of scaling
                    image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).clip(0, 255).astype(np.uint8))
                return image.convert("RGB")
    except (InputError, MemoryError):
        raise
    except Exception as error:  # Pillow's plug-ins raise OSError, SyntaxError, ValueError, struct.error, …
        raise InputError(f"{blob.where} is not a readable image ({error}); replace or remove it.") from error


def alignment_name(alignment: Alignment) -> str:
    """`ffhq`, or `template(EYE_DISTANCE,EYE_Y)`; crops for the frame are the default template's."""
    if alignment.kind == "ffhq":
        return "ffhq"
    return f"template({alignment.eye_distance:g},{alignment.eye_y:g})"


def check_alignment(faces: FaceData, alignment: Alignment, who: str = "the model") -> None:
    """UsageError for a set that was aligned otherwise than `who` needs; a set that says nothing passes."""
    wanted = alignment_name(alignment)
    if faces.alignment not in (None, wanted):
        option = wanted.replace("(", ":").removesuffix(")")
        remedy = f"make the set anew with `ficgan align --alignment {option}`"
        raise UsageError(f"these faces are aligned as {faces.alignment}, {who} needs {wanted}; {remedy}")


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
    """Batches of image indices; each epoch is a permutation of all n images.

    The stream depends on (n, seed) only; step t takes the `batch_size` positions from t·batch_size on, and each rank
    its equal share. So a run resumes at any step, on any number of processes, exactly.
    """

    def __init__(self, n: int, batch_size: int, seed: int, *, rank: int = 0, world: int = 1) -> None:
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
