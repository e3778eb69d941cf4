"""Pages on which people correct boxes, and their key (Yang et al. 2022, appendix A).

A page is one self-contained HTML file per batch. Gold images have known faces and are shown with an error; the page
judges them itself, their faces encoded. That is quality control, not security, so collecting judges the exports again.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from PIL import Image
from pydantic import Field, PlainValidator

from ficgan.anonymizers import generator
from ficgan.data.dataset import Blob, decode_rgb
from ficgan.errors import InputError, UsageError
from ficgan.files import atomic_write
from ficgan.lab.annotation.boxes import OVERLAP, Boxes, Record, Records, box_rows, errors, have_area
from ficgan.lab.metrics.geometry import overlaps
from ficgan.lab.stored import Progress, data_url, fill_page, new_folder, page_template, read_checked, write_json

KEY_SCHEMA = "ficgan-annotation-key/1"
EXPORT_SCHEMA = "ficgan-annotation-export/1"
_QUALITY = 88
_TRIES = 100
_CLEAR = 0.1  # A false box has no more IoU than this with any face


@dataclass(frozen=True)
class Rules:
    """How batches are made and judged; the defaults are the paper's, the overlap is ours."""

    size: int = 50  # images of a batch, gold ones among them
    gold: int = 3  # gold images of a batch; 0: no quality control
    lives: int = 2  # mistakes on gold images that end the game
    overlap: float = OVERLAP  # least IoU at which a box counts as that of a face
    most_faces: int = 12  # gold images show at most so many faces: a crowd would judge patience
    seed: int = 0  # of which gold images, where, and how they are wrong

    def __post_init__(self) -> None:
        if not 0 <= self.gold < self.size:
            raise UsageError(f"{self.gold} gold images in a batch of {self.size}; give 0 or more, and fewer than all")
        if self.lives < 1 or not 0 < self.overlap <= 1 or self.most_faces < 0 or self.seed < 0:
            raise UsageError("give 1 life or more, an overlap in (0, 1], and most_faces and a seed of 0 or more")


def _boxes(raw: Any) -> Boxes:
    return box_rows(raw, "the key")


def _record(raw: dict[str, Any]) -> Record:
    more = {key: value for key, value in raw.items() if key not in ("file", "bboxes")}
    return Record(raw["file"], _boxes(raw["bboxes"]), None, more)


BoxesOfKey = Annotated[Boxes, PlainValidator(_boxes)]


@dataclass(frozen=True, eq=False)
class Item:
    id: str  # its name on the page; tells nothing of its name
    name: str  # in its folder or archive
    width: int
    height: int
    shown: BoxesOfKey  # that the page begins with
    truth: BoxesOfKey | None = None  # the faces of a gold image
    error: str = ""  # what is wrong with a gold image's boxes
    more: dict[str, Any] = field(default_factory=dict)  # from the record, for the final annotations


@dataclass(frozen=True)
class Batch:
    """Images that one person looks through; `id` is a digest of all that is in it, so an older page is recognised."""

    id: str
    title: str
    items: Annotated[tuple[Item, ...], Field(validation_alias="images")]


@dataclass(frozen=True)
class Key:
    rules: Rules
    batches: tuple[Batch, ...]
    verified: tuple[Annotated[Record, PlainValidator(_record)], ...] = ()
    """Gold images that belong to the set, with their faces; they need no review."""

    def write(self, path: Path) -> None:
        """Write the key, whole or not at all."""
        batches = [
            {"id": batch.id, "title": batch.title, "images": [_item_json(item) for item in batch.items]}
            for batch in self.batches
        ]
        verified = [record.to_json() for record in self.verified]
        write_json(path, {"schema": KEY_SCHEMA, "rules": asdict(self.rules), "verified": verified, "batches": batches})


def read_key(path: Path) -> Key:
    """The key of `Key.write`."""
    return read_checked(path, Key, (KEY_SCHEMA,), "name the key.json beside the pages, or make the pages again")


def _item_json(item: Item) -> dict[str, Any]:
    truth = None if item.truth is None else item.truth.tolist()
    return {**asdict(item), "shown": item.shown.tolist(), "truth": truth}


def compose(
    blobs: Sequence[Blob], detected: Records, gold: Sequence[tuple[Blob, Record]], rules: Rules, *, own_gold: bool,
    failed: list[str], progress: Progress | None = None,
) -> Iterator[tuple[Batch, list[Image.Image]]]:  # fmt: skip
    """Batches with their pictures, one after another, so that no more than one is in memory.

    `own_gold`: the gold images belong to `blobs` and are not reviewed; `failed` takes a sentence for each unreadable
    image.
    """
    usable = [(blob, record) for blob, record in gold if len(record.boxes) <= rules.most_faces]
    if len(usable) < rules.gold:
        raise UsageError(
            f"a batch needs {rules.gold} gold images of at most {rules.most_faces} faces, and there are {len(usable)}; "
            "verify more, or allow fewer gold images or more faces"
        )
    known = {blob.name for blob, _ in gold} if own_gold else set()
    work = [blob for blob in blobs if blob.name not in known]
    waiting: list[tuple[Item, Image.Image]] = []
    number = 0
    for done, blob in enumerate(work, 1):
        try:
            picture = decode_rgb(blob)
        except InputError as error:
            failed.append(str(error))
        else:
            record = detected.find(blob.name) or Record(blob.name, np.empty((0, 4)))
            waiting.append((_item(blob.name, picture, _clip(record.boxes, picture), record), picture))
        if progress is not None:
            progress(done, len(work), blob.name)
        if waiting and (len(waiting) == rules.size - rules.gold or done == len(work)):
            number += 1
            yield _batch(number, waiting, usable, rules)
            waiting = []
    if waiting:  # the last image was damaged
        yield _batch(number + 1, waiting, usable, rules)
    elif not number:
        raise InputError(failed[0] if failed else "every image is a gold image; there is nothing to review")


def _batch(
    number: int, work: list[tuple[Item, Image.Image]], gold: Sequence[tuple[Blob, Record]], rules: Rules
) -> tuple[Batch, list[Image.Image]]:
    rng = generator(rules.seed, "gold", number)
    chosen: list[int] = rng.choice(len(gold), rules.gold, replace=False).tolist() if rules.gold else []
    places: list[int] = sorted(rng.choice(len(work) + rules.gold, rules.gold, replace=False).tolist())
    mixed = list(work)
    for place, row in zip(places, chosen, strict=True):
        blob, record = gold[row]
        picture = decode_rgb(blob)
        truth = _clip(record.boxes, picture)
        shown, error = spoil(truth, *picture.size, rng, overlap=rules.overlap)
        mixed.insert(place, (_item(blob.name, picture, shown, record, truth, error), picture))
    content = json.dumps([_item_json(item) for item, _ in mixed] + [asdict(rules), number])
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    named = [replace(item, id=f"{digest[:6]}-{place:03d}") for place, (item, _) in enumerate(mixed, 1)]
    return Batch(digest, f"Batch {number}", tuple(named)), [picture for _, picture in mixed]


def _item(
    name: str, picture: Image.Image, shown: Boxes, record: Record, truth: Boxes | None = None, error: str = ""
) -> Item:
    more = {key: record.more[key] for key in ("label", "split") if key in record.more}
    return Item("", name, picture.width, picture.height, shown, truth, error, more)


def _clip(boxes: Boxes, picture: Image.Image) -> Boxes:
    width, height = picture.size
    inside = np.clip(boxes, 0, [width, height, width, height])
    return inside[have_area(inside)]


def spoil(truth: Boxes, width: int, height: int, rng: np.random.Generator, *, overlap: float) -> tuple[Boxes, str]:
    """The faces [M,4] of a gold image with one error, and its kind: "removed", "shifted" or "added"."""
    for kind in rng.permutation(sorted(SPOILS)):
        shown = SPOILS[str(kind)](truth, width, height, rng)
        if shown is not None and any(errors(shown, truth, overlap)):
            return shown, str(kind)
    raise UsageError(f"no error can be made in a gold image of {width}×{height} px; choose another image")


def _removed(truth: Boxes, width: int, height: int, rng: np.random.Generator) -> Boxes | None:
    return np.delete(truth, rng.integers(len(truth)), axis=0) if len(truth) else None


def _shifted(truth: Boxes, width: int, height: int, rng: np.random.Generator) -> Boxes | None:
    for _ in range(_TRIES if len(truth) else 0):
        row = int(rng.integers(len(truth)))
        sides = truth[row, 2:] - truth[row, :2]
        angle, far = rng.uniform(0, 2 * np.pi), rng.uniform(0.5, 0.9) * np.hypot(*sides)
        box = truth[row] + np.tile([far * np.cos(angle), far * np.sin(angle)], 2)
        if _inside(box, width, height) and overlaps(box[None], np.delete(truth, row, axis=0)).max(initial=0) <= _CLEAR:
            shown = truth.copy()
            shown[row] = box.round(1)
            return shown
    return None


def _added(truth: Boxes, width: int, height: int, rng: np.random.Generator) -> Boxes | None:
    for _ in range(_TRIES):
        if len(truth):
            row = truth[rng.integers(len(truth))]
            sides = np.minimum((row[2:] - row[:2]) * rng.uniform(0.8, 1.25), (width, height))
        else:
            sides = np.minimum(width, height) * rng.uniform(0.1, 0.33) * np.array([1.0, 1.25])
        corner = rng.uniform((0, 0), np.maximum((width, height) - sides, 0))
        box = np.concatenate([corner, corner + sides])
        if _inside(box, width, height) and overlaps(box[None], truth).max(initial=0) <= _CLEAR:
            return np.insert(truth, rng.integers(len(truth) + 1), box.round(1), axis=0)
    return None


def _inside(box: Boxes, width: int, height: int) -> bool:
    # Half a tenth of a pixel is what rounding may add.
    return bool((box[:2] >= 0).all() and (box[2:] <= np.array([width, height]) - 0.05).all())


Spoil = Callable[[Boxes, int, int, np.random.Generator], Boxes | None]
SPOILS: dict[str, Spoil] = {"removed": _removed, "shifted": _shifted, "added": _added}
"""A face without a box, a box beside its face, a box without a face."""


def write_pages(
    folder: Path, blobs: Sequence[Blob], detected: Records, gold: Sequence[tuple[Blob, Record]], rules: Rules, *,
    own_gold: bool = True, linked: bool = False, side: int = 1600, note: str = "",
    progress: Progress | None = None,
) -> tuple[Key, list[str]]:  # fmt: skip
    """Write `pages/batch-0001.html`, … to hand out, and `key.json`, which holds the truth and stays here.

    `linked` puts pictures in files instead of the page; `side` is the longest side at which they are shown, pixels.
    Returns the key, and a sentence for each unreadable image.
    """
    new_folder(folder, "pages", *(["pages/images"] if linked else []))
    pages = folder / "pages"
    batches, failed = [], list[str]()
    made = compose(blobs, detected, gold, rules, own_gold=own_gold, failed=failed, progress=progress)
    for number, (batch, pictures) in enumerate(made, 1):
        sources = []
        for item, picture in zip(batch.items, pictures, strict=True):
            data = _jpeg(picture, side)
            if linked:
                with atomic_write(pages / "images" / f"{item.id}.jpg") as file:
                    file.write(data)
                sources.append(f"images/{item.id}.jpg")
            else:
                sources.append(data_url("image/jpeg", data))
        with atomic_write(pages / f"batch-{number:04d}.html") as file:
            file.write(page_html(batch, sources, rules, linked=linked, note=note).encode())
        batches.append(batch)
    verified = tuple(record for _, record in gold) if own_gold else ()
    key = Key(rules, tuple(batches), verified)
    key.write(folder / "key.json")
    return key, failed


def page_html(batch: Batch, sources: Sequence[str], rules: Rules, *, linked: bool = False, note: str = "") -> str:
    """The page of a batch as text; names of files do not reach the page."""
    checks = {place: item.truth.tolist() for place, item in enumerate(batch.items) if item.truth is not None}
    data = {
        "schema": EXPORT_SCHEMA, "batch": batch.id, "lives": rules.lives, "overlap": rules.overlap,
        "checks": base64.b64encode(json.dumps(checks).encode()).decode(),
        "images": [
            {"id": item.id, "width": item.width, "height": item.height, "boxes": item.shown.tolist(), "src": source}
            for item, source in zip(batch.items, sources, strict=True)
        ],
    }  # fmt: skip
    control = (
        f"Some images have known faces: a mistake there costs one of {rules.lives} lives, and without lives you start "
        "again from the first image."
    )
    return fill_page(
        page_template(__package__), data, title=batch.title, count=str(len(batch.items)), note=note,
        control=control if checks else "",
        pictures="" if linked else " img-src data:;",  # a page from a folder has no origin that 'self' could name
    )  # fmt: skip


def _jpeg(picture: Image.Image, side: int) -> bytes:
    small = picture.copy()
    small.info.clear()  # a comment would be written again
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()
