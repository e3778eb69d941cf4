"""Face boxes corrected by people: pages, their key, and what comes back (Yang et al. 2022, appendix A).

A page is one self-contained HTML file per batch. Gold images have known faces and are shown with an error; the page
judges them itself, their faces encoded. That is quality control, not security, so collecting judges the exports again.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ficgan.anonymizers import generator
from ficgan.data.dataset import Blob, decode_rgb
from ficgan.errors import InputError, UsageError
from ficgan.faces.detection import overlaps
from ficgan.lab.annotation.boxes import OVERLAP, Boxes, ImageRecord, ImageRecords, have_area
from ficgan.lab.pages import data_url, fill_page, new_folder, page_template, read_checked, write_file, write_json
from ficgan.lab.run import Progress

KEY_SCHEMA = "ficgan-annotation-key/3"
EXPORT_SCHEMA = "ficgan-annotation-export/1"
LIVES = 2  # Mistakes on gold images that end the game
MOST_FACES = 12  # Of a gold image: a crowd would judge patience
_SIDE = 1600  # Longest side at which pictures are shown, pixels
_TRIES = 100
_CLEAR = 0.1  # A false box has no more IoU than this with any face

BoxRows = list[list[float]]  # [M,4] as in a file


@dataclass(frozen=True)
class BatchImage:
    """An image of a batch, with the boxes that the page begins with.

    Args:
        id: its name on the page, which tells nothing of its `name` in its folder or archive.
        width, height: pixels.
        truth: the faces of a gold image; None: to be reviewed.
        more: label and split, for the final annotations.
    """

    id: str
    name: str
    width: int
    height: int
    shown: BoxRows
    truth: BoxRows | None = None
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """Images that one person looks through; `id` is a digest of them, so an older page is recognised."""

    id: str
    title: str
    images: tuple[BatchImage, ...]


@dataclass(frozen=True)
class AnnotationKey:
    """All batches with their truth; `verified` are the gold images of the set, {"file", "bboxes", …}."""

    batches: tuple[Batch, ...]
    verified: tuple[dict[str, Any], ...] = ()


def read_key(path: Path) -> AnnotationKey:
    """The key of `write_pages`."""
    return read_checked(path, AnnotationKey, (KEY_SCHEMA,), "name the key.json beside the pages, or make them again")


Work = tuple[BatchImage, Image.Image]


def write_pages(
    folder: Path,
    blobs: Sequence[Blob],
    detected: ImageRecords,
    verified: ImageRecords,
    *,
    size: int = 50,
    gold: int = 3,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[AnnotationKey, list[str]]:
    """Write `pages/batch-0001.html`, … to hand out, and `key.json`, which holds the truth and stays here.

    Args:
        detected: the boxes to begin with.
        verified: faces of images that need no review; from these gold images are drawn.
        size, gold: images of a batch, and the gold ones among them; the defaults are the paper's.
        seed: of which gold images are shown, where, and how they are wrong.

    Returns:
        The key, and a sentence for each unreadable image.
    """
    if not 0 <= gold < size:
        raise UsageError(f"{gold} gold images in a batch of {size}; give 0 or more, and fewer than all")
    found = {blob.name: (blob, record) for blob in blobs if (record := verified.find(blob.name))}
    usable = [(blob, record) for blob, record in found.values() if len(record.boxes) <= MOST_FACES]
    if len(usable) < gold:
        raise UsageError(
            f"a batch needs {gold} gold images of at most {MOST_FACES} faces, and there are {len(usable)}; verify more"
        )
    new_folder(folder, "pages")
    work = [blob for blob in blobs if blob.name not in found]
    batches, failed, waiting = list[Batch](), list[str](), list[Work]()  # no more than one batch is in memory
    for done, blob in enumerate(work, 1):
        try:
            picture = decode_rgb(blob)
        except InputError as error:
            failed.append(str(error))
        else:
            record = detected.find(blob.name) or ImageRecord(blob.name, np.empty((0, 4)))
            waiting.append((_image(record, picture, _inside(record.boxes, picture), blob.name), picture))
        if waiting and (len(waiting) == size - gold or done == len(work)):
            number = len(batches) + 1
            batch, pictures = _batch(number, waiting, usable, gold, seed)
            page = page_html(batch, [data_url("image/jpeg", _jpeg(picture)) for picture in pictures])
            write_file(folder / "pages" / f"batch-{number:04d}.html", page)
            batches.append(batch)
            waiting.clear()
        if progress is not None:
            progress(done, len(work), blob.name)
    if not batches:
        raise InputError(failed[0] if failed else "every image is a gold image; there is nothing to review")
    key = AnnotationKey(tuple(batches), tuple(record.to_json() for _, record in found.values()))
    write_json(folder / "key.json", {"schema": KEY_SCHEMA, **asdict(key)})
    return key, failed


def _batch(
    number: int, work: list[Work], usable: Sequence[tuple[Blob, ImageRecord]], gold: int, seed: int
) -> tuple[Batch, list[Image.Image]]:
    rng = generator(seed, "gold", number)
    chosen: list[int] = rng.choice(len(usable), gold, replace=False).tolist() if gold else []
    places: list[int] = sorted(rng.choice(len(work) + gold, gold, replace=False).tolist())
    mixed = list(work)
    for place, row in zip(places, chosen, strict=True):
        blob, record = usable[row]
        picture = decode_rgb(blob)
        truth = _inside(record.boxes, picture)
        shown = spoil(truth, *picture.size, rng)
        mixed.insert(place, (replace(_image(record, picture, shown, blob.name), truth=truth.tolist()), picture))
    content = json.dumps([[asdict(image) for image, _ in mixed], number])
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    named = [replace(image, id=f"{digest[:6]}-{place:03d}") for place, (image, _) in enumerate(mixed, 1)]
    return Batch(digest, f"Batch {number}", tuple(named)), [picture for _, picture in mixed]


def _image(record: ImageRecord, picture: Image.Image, shown: Boxes, name: str) -> BatchImage:
    more = {key: record.more[key] for key in ("label", "split") if key in record.more}
    return BatchImage("", name, picture.width, picture.height, shown.tolist(), more=more)


def _inside(boxes: Boxes, picture: Image.Image) -> Boxes:
    inside = np.clip(boxes, 0, [*picture.size, *picture.size])
    return inside[have_area(inside)]


def spoil(truth: Boxes, width: int, height: int, rng: np.random.Generator) -> Boxes:
    """The faces [M,4] of a gold image with one error: a face has no box, or a box has no face."""
    if len(truth) and rng.random() < 0.5:
        return np.delete(truth, int(rng.integers(len(truth))), axis=0)
    size = np.array([width, height])
    for _ in range(_TRIES):
        sides = size.min() * rng.uniform(0.1, 0.33) * np.array([1.0, 1.25])
        if len(truth):
            face = truth[int(rng.integers(len(truth)))]
            sides = np.minimum((face[2:] - face[:2]) * rng.uniform(0.8, 1.25), size)
        corner = rng.uniform((0, 0), size - sides)
        box = np.concatenate([corner, corner + sides]).round(1)
        if (box[2:] <= size).all() and overlaps(box, truth).max(initial=0) <= _CLEAR:
            return np.append(truth, box[None], axis=0)
    if len(truth):
        return np.delete(truth, 0, axis=0)
    raise UsageError(f"no error can be made in a gold image of {width}×{height} px; choose another image")


def page_html(batch: Batch, sources: Sequence[str]) -> str:
    """The page of a batch as text; names of files do not reach the page."""
    checks = {place: image.truth for place, image in enumerate(batch.images) if image.truth is not None}
    data = {
        "schema": EXPORT_SCHEMA,
        "batch": batch.id,
        "lives": LIVES,
        "overlap": OVERLAP,
        "checks": base64.b64encode(json.dumps(checks).encode()).decode(),
        "images": [
            {"id": image.id, "width": image.width, "height": image.height, "boxes": image.shown, "src": source}
            for image, source in zip(batch.images, sources, strict=True)
        ],
    }
    control = (
        f"Some images have known faces: a mistake there costs one of {LIVES} lives, and without lives you start "
        "again from the first image."
    )
    texts = {"title": batch.title, "count": str(len(batch.images)), "control": control if checks else ""}
    return fill_page(page_template(__package__), data, **texts)


def _jpeg(picture: Image.Image) -> bytes:
    small = picture.copy()
    small.info.clear()  # a comment would be written again
    small.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=88)
    return buffer.getvalue()
