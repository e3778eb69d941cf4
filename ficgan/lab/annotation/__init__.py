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
from ficgan.lab.annotation.boxes import OVERLAP, Boxes, Record, Records, errors, have_area
from ficgan.lab.pages import data_url, fill_page, new_folder, page_template, read_checked, write_file, write_json
from ficgan.lab.run import Progress

KEY_SCHEMA = "ficgan-annotation-key/2"
EXPORT_SCHEMA = "ficgan-annotation-export/1"
SPOILS = ("removed", "shifted", "added")  # A face without a box, a box beside its face, a box without a face
_TRIES = 100
_CLEAR = 0.1  # A false box has no more IoU than this with any face


@dataclass(frozen=True)
class BatchRules:
    """How batches are made and judged; the defaults are the paper's, the overlap is ours.

    Args:
        size: images of a batch, gold ones among them.
        gold: gold images of a batch; 0: no quality control.
        lives: mistakes on gold images that end the game.
        overlap: least IoU at which a box counts as that of a face, above 0.
        most_faces: of a gold image: a crowd would judge patience.
        seed: of which gold images are shown, where, and how they are wrong.
    """

    size: int = 50
    gold: int = 3
    lives: int = 2
    overlap: float = OVERLAP
    most_faces: int = 12
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.gold < self.size:
            raise UsageError(f"{self.gold} gold images in a batch of {self.size}; give 0 or more, and fewer than all")
        if self.lives < 1 or not 0 < self.overlap <= 1 or self.most_faces < 0 or self.seed < 0:
            raise UsageError("give 1 life or more, an overlap in (0, 1], and most_faces and a seed of 0 or more")


BoxRows = list[list[float]]  # [M,4] as in a file


@dataclass(frozen=True)
class BatchImage:
    """An image of a batch.

    Args:
        id: its name on the page, which tells nothing of its `name` in its folder or archive.
        width, height: pixels.
        shown: boxes that the page begins with.
        truth: the faces of a gold image; `error`: what is wrong with its boxes.
        more: label and split, for the final annotations.
    """

    id: str
    name: str
    width: int
    height: int
    shown: BoxRows
    truth: BoxRows | None = None
    error: str = ""
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """Images that one person looks through; `id` is a digest of all that is in it, so an older page is recognised."""

    id: str
    title: str
    images: tuple[BatchImage, ...]


@dataclass(frozen=True)
class AnnotationKey:
    """All batches with their truth; `verified` are the gold images of the set, {"file", "bboxes", …}."""

    rules: BatchRules
    batches: tuple[Batch, ...]
    verified: tuple[dict[str, Any], ...] = ()

    def write(self, path: Path) -> None:
        write_json(path, {"schema": KEY_SCHEMA, **asdict(self)})


def read_key(path: Path) -> AnnotationKey:
    """The key of `AnnotationKey.write`."""
    return read_checked(path, AnnotationKey, (KEY_SCHEMA,), "name the key.json beside the pages, or make them again")


def write_pages(
    folder: Path,
    blobs: Sequence[Blob],
    detected: Records,
    gold: Sequence[tuple[Blob, Record]],
    rules: BatchRules,
    *,
    own_gold: bool = True,
    side: int = 1600,
    note: str = "",
    progress: Progress | None = None,
) -> tuple[AnnotationKey, list[str]]:
    """Write `pages/batch-0001.html`, … to hand out, and `key.json`, which holds the truth and stays here.

    Args:
        blobs, detected: images to look through, and the boxes to begin with.
        gold: verified images; `own_gold`: they belong to `blobs` and need no review.
        side: longest side at which pictures are shown, pixels.
        note: a sentence for the workers.

    Returns:
        The key, and a sentence for each unreadable image.
    """
    usable = [(blob, record) for blob, record in gold if len(record.boxes) <= rules.most_faces]
    if len(usable) < rules.gold:
        raise UsageError(
            f"a batch needs {rules.gold} gold images of at most {rules.most_faces} faces, and there are {len(usable)}; "
            "verify more, or allow fewer gold images or more faces"
        )
    new_folder(folder, "pages")
    known = {blob.name for blob, _ in gold} if own_gold else set()
    work = [blob for blob in blobs if blob.name not in known]
    batches, failed = list[Batch](), list[str]()
    waiting: list[tuple[BatchImage, Image.Image]] = []  # no more than one batch is in memory

    def close() -> None:
        batch, pictures = _batch(len(batches) + 1, waiting, usable, rules)
        text = page_html(batch, [data_url("image/jpeg", _jpeg(one, side)) for one in pictures], rules, note=note)
        write_file(folder / "pages" / f"batch-{len(batches) + 1:04d}.html", text)
        batches.append(batch)
        waiting.clear()

    for done, blob in enumerate(work, 1):
        try:
            picture = decode_rgb(blob)
        except InputError as error:
            failed.append(str(error))
        else:
            record = detected.find(blob.name) or Record(blob.name, np.empty((0, 4)))
            waiting.append((_image(record, picture, _inside(record.boxes, picture), blob.name), picture))
        if len(waiting) == rules.size - rules.gold:
            close()
        if progress is not None:
            progress(done, len(work), blob.name)
    if waiting:
        close()
    if not batches:
        raise InputError(failed[0] if failed else "every image is a gold image; there is nothing to review")
    key = AnnotationKey(rules, tuple(batches), tuple(record.to_json() for _, record in gold) if own_gold else ())
    key.write(folder / "key.json")
    return key, failed


def _batch(
    number: int, work: list[tuple[BatchImage, Image.Image]], gold: Sequence[tuple[Blob, Record]], rules: BatchRules
) -> tuple[Batch, list[Image.Image]]:
    rng = generator(rules.seed, "gold", number)
    chosen: list[int] = rng.choice(len(gold), rules.gold, replace=False).tolist() if rules.gold else []
    places: list[int] = sorted(rng.choice(len(work) + rules.gold, rules.gold, replace=False).tolist())
    mixed = list(work)
    for place, row in zip(places, chosen, strict=True):
        blob, record = gold[row]
        picture = decode_rgb(blob)
        truth = _inside(record.boxes, picture)
        shown, error = spoil(truth, *picture.size, rng, overlap=rules.overlap)
        image = replace(_image(record, picture, shown, blob.name), truth=truth.tolist(), error=error)
        mixed.insert(place, (image, picture))
    content = json.dumps([[asdict(image) for image, _ in mixed], asdict(rules), number])
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    named = [replace(image, id=f"{digest[:6]}-{place:03d}") for place, (image, _) in enumerate(mixed, 1)]
    return Batch(digest, f"Batch {number}", tuple(named)), [picture for _, picture in mixed]


def _image(record: Record, picture: Image.Image, shown: Boxes, name: str) -> BatchImage:
    more = {key: record.more[key] for key in ("label", "split") if key in record.more}
    return BatchImage("", name, picture.width, picture.height, shown.tolist(), more=more)


def _inside(boxes: Boxes, picture: Image.Image) -> Boxes:
    inside = np.clip(boxes, 0, [*picture.size, *picture.size])
    return inside[have_area(inside)]


def spoil(truth: Boxes, width: int, height: int, rng: np.random.Generator, *, overlap: float) -> tuple[Boxes, str]:
    """The faces [M,4] of a gold image with one error, and its kind, one of `SPOILS`."""
    for kind in map(str, rng.permutation(sorted(SPOILS))):
        for _ in range(_TRIES):
            shown = _spoiled(truth, np.array([width, height]), rng, kind)
            if shown is not None and any(errors(shown, truth, overlap)):
                return shown, kind
    raise UsageError(f"no error can be made in a gold image of {width}×{height} px; choose another image")


def _spoiled(truth: Boxes, size: Boxes, rng: np.random.Generator, kind: str) -> Boxes | None:
    if kind != "added" and not len(truth):
        return None
    row = int(rng.integers(len(truth))) if len(truth) else 0
    rest = np.delete(truth, row, axis=0) if kind != "added" else truth
    if kind == "removed":
        return rest
    if not len(truth):
        sides = size.min() * rng.uniform(0.1, 0.33) * np.array([1.0, 1.25])
    else:
        sides = truth[row, 2:] - truth[row, :2]
    if kind == "shifted":
        angle, far = rng.uniform(0, 2 * np.pi), rng.uniform(0.5, 0.9) * np.hypot(*sides)
        corner = truth[row, :2] + far * np.array([np.cos(angle), np.sin(angle)])
    else:
        sides = np.minimum(sides * rng.uniform(0.8, 1.25), size)
        corner = rng.uniform((0, 0), size - sides)
    box = np.concatenate([corner, corner + sides]).round(1)
    # It must stand inside the picture and away from all other faces.
    if (box < 0).any() or (box[2:] > size).any() or overlaps(box, rest).max(initial=0) > _CLEAR:
        return None
    return np.insert(rest, row, box, axis=0)


def page_html(batch: Batch, sources: Sequence[str], rules: BatchRules, *, note: str = "") -> str:
    """The page of a batch as text; names of files do not reach the page."""
    checks = {place: image.truth for place, image in enumerate(batch.images) if image.truth is not None}
    data = {
        "schema": EXPORT_SCHEMA,
        "batch": batch.id,
        "lives": rules.lives,
        "overlap": rules.overlap,
        "checks": base64.b64encode(json.dumps(checks).encode()).decode(),
        "images": [
            {"id": image.id, "width": image.width, "height": image.height, "boxes": image.shown, "src": source}
            for image, source in zip(batch.images, sources, strict=True)
        ],
    }
    control = (
        f"Some images have known faces: a mistake there costs one of {rules.lives} lives, and without lives you start "
        "again from the first image."
    )
    texts = {"title": batch.title, "count": str(len(batch.images)), "note": note, "control": control if checks else ""}
    return fill_page(page_template(__package__), data, **texts)


def _jpeg(picture: Image.Image, side: int) -> bytes:
    small = picture.copy()
    small.info.clear()  # a comment would be written again
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=88)
    return buffer.getvalue()
