"""A set of face images in a locked order, decoded to squares of one size."""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps

from ficgan.data.labels import Labels
from ficgan.data.placement import agreed, recorded
from ficgan.data.sources import Blob, list_blobs
from ficgan.errors import FicganError, InputError, UsageError

Progress = Callable[[int, int], None]
In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(frozen=True)
class FaceData:
    """N face images, opened by `open_faces`; cheap to hold, decoded when asked for.

    Attributes:
        resolution: side R of the decoded squares, pixels.
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
        """Image `index`, decoded, centre-cropped to a square, resized with antialiasing.

        Returns:
            uint8 [3, R, R], RGB.
        Raises:
            InputError: the image is damaged; names it and its archive.
        """
        return torch.from_numpy(decode(self.blobs[index], self.resolution)).permute(2, 0, 1).contiguous()

    def resident(self, progress: Progress | None = None) -> torch.Tensor:
        """All images, decoded once by several threads.

        Args:
            progress: called as progress(done, total) after each image, from the calling thread.
        Returns:
            uint8 [N, 3, R, R] in RAM: N·3·R² bytes.
        """
        try:
            images = torch.empty(len(self), 3, self.resolution, self.resolution, dtype=torch.uint8)
        except RuntimeError as error:  # what torch raises where memory is short
            size = len(self) * 3 * self.resolution**2 / 2**30
            raise FicganError(
                f"{len(self)} images need {size:.1f} GiB of memory; take fewer or smaller ones."
            ) from error
        for index, image in enumerate(_parallel(self.load, range(len(self)))):
            images[index] = image
            if progress is not None:
                progress(index + 1, len(self))
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
    Raises:
        UsageError: an argument has a value that cannot work.
        InputError: a path cannot be used, two images have one name, an image has no label row, or the faces are
            aligned in different ways.
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
    if labels is not None:
        data = replace(data, labels=Labels.read(labels).match(data.names, source=str(labels)))
    if split is not None:
        data = _only_split(data, split, str(labels))
    said = data.labels.alignments if data.labels is not None else None
    names = recorded(sources) if said is None else {name for name in said if name}
    data = replace(data, alignment=agreed(names))
    return _without_damaged(data) if skip_damaged else data


def decode(blob: Blob, resolution: int) -> np.ndarray:
    """An image's bytes as uint8 RGB [R, R, 3]: EXIF orientation applied, centre square, Lanczos with antialiasing."""
    image = decode_rgb(blob)
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = image.crop((left, top, left + side, top + side))
    return np.array(square.resize((resolution, resolution), Image.Resampling.LANCZOS))


def decode_rgb(blob: Blob) -> Image.Image:
    """An image's bytes as an RGB picture, EXIF orientation applied.

    Raises:
        InputError: the image is damaged; names it and its archive.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(blob.read())) as file:
                return _to_rgb(ImageOps.exif_transpose(file))
    except InputError:
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


def _only_split(data: FaceData, split: str, source: str) -> FaceData:
    splits = data.labels.splits if data.labels is not None else None
    if splits is None:
        raise InputError(f"{source} has no split column; leave out split={split!r} or add the column.")
    chosen = [i for i, name in enumerate(splits) if name == split]
    if not chosen:
        known = ", ".join(sorted(set(splits)))
        raise InputError(f"{source} puts no image of this data into split {split!r}; it has {known}.")
    return data.subset(chosen)


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
    """Results in order, from threads (Pillow decodes outside the GIL), a bounded number in flight."""
    chunk: list[In] = []
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1), thread_name_prefix="decode") as pool:
        for item in items:
            chunk.append(item)
            if len(chunk) == 256:
                yield from pool.map(work, chunk)
                chunk.clear()
        yield from pool.map(work, chunk)
