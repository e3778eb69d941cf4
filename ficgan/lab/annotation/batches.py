"""Batches of images for review, and the key that says what each of them holds; the key stays with whoever collects."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ficgan.anonymizers import generator
from ficgan.data.dataset import Blob, decode_rgb
from ficgan.errors import InputError, UsageError
from ficgan.lab.annotation.boxes import OVERLAP, Boxes
from ficgan.lab.annotation.gold import spoil
from ficgan.lab.annotation.records import Record, Records, box_rows, read_json, write_json

__all__ = ["KEY_SCHEMA", "Batch", "Item", "Key", "Rules", "compose", "read_key"]

KEY_SCHEMA = "ficgan-annotation-key/1"


@dataclass(frozen=True)
class Rules:
    """How batches are made and judged; the defaults are the paper's, the overlap is ours.

    Args:
        size: images of a batch, gold ones among them.
        gold: gold images of a batch; 0: no quality control.
        lives: mistakes on gold images that end the game.
        overlap: least IoU at which a box counts as that of a face.
        most_faces: gold images show at most so many faces: a crowd would judge patience.
        seed: of which gold images, where, and how they are wrong.

    Raises:
        UsageError: numbers that cannot be.

    Source: Yang et al. 2022, appendix A.
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


@dataclass(frozen=True, eq=False)
class Item:
    """One image of a batch.

    Args:
        id: what the page calls it; tells nothing of its name.
        name: in its folder or archive.
        width, height: pixels, upright.
        shown: [M,4], the boxes that the page begins with.
        truth: the faces of a gold image, else None.
        error: what is wrong with a gold image's boxes, else "".
        more: what the record says besides, for the final annotations.
    """

    id: str
    name: str
    width: int
    height: int
    shown: Boxes
    truth: Boxes | None = None
    error: str = ""
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """Images that one person looks through; `id` is a digest of all that is in it, so an older page is told apart."""

    id: str
    title: str
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Key:
    """All batches of a set.

    Attributes:
        rules: how they were made.
        batches: in their order.
        verified: gold images that belong to the set, with their faces; they need no review.
    """

    rules: Rules
    batches: tuple[Batch, ...]
    verified: tuple[Record, ...] = ()

    def write(self, path: Path) -> None:
        """Write the key, whole or not at all."""
        batches = [
            {"id": one.id, "title": one.title, "images": [_item_json(item) for item in one.items]}
            for one in self.batches
        ]
        verified = [record.to_json() for record in self.verified]
        write_json(path, {"schema": KEY_SCHEMA, "rules": asdict(self.rules), "verified": verified, "batches": batches})


def compose(
    blobs: Sequence[Blob], detected: Records, gold: Sequence[tuple[Blob, Record]], rules: Rules, *, own_gold: bool,
    failed: list[str], progress: Callable[[int, int, str], None] | None = None,
) -> Iterator[tuple[Batch, list[Image.Image]]]:  # fmt: skip
    """Batches with their pictures, one after another, so that no more than one is in memory.

    Args:
        blobs: images to review, in the order of their names.
        detected: what the detector found; images without a record have no boxes.
        gold: images with verified faces.
        rules: how batches are made.
        own_gold: the gold images belong to `blobs`; they are then not reviewed.
        failed: takes a sentence for each image that cannot be read; it is left out.
        progress: called as progress(done, images, name).

    Raises:
        UsageError: fewer usable gold images than a batch needs.
        InputError: no image can be read.
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


def read_key(path: Path) -> Key:
    """The key of `Key.write`.

    Raises:
        InputError: missing, damaged, or something else.
    """
    raw = read_json(path)
    try:
        if raw.get("schema") != KEY_SCHEMA:
            raise InputError(f"{path} is no key of review pages ({KEY_SCHEMA}); name the key.json beside the pages")
        batches = tuple(
            Batch(one["id"], one["title"], tuple(_item_from(item, path) for item in one["images"]))
            for one in raw["batches"]
        )
        verified = []
        for row in raw["verified"]:
            name, boxes = row.pop("file"), box_rows(row.pop("bboxes"), str(path))
            verified.append(Record(name, boxes, None, row))
        return Key(Rules(**raw["rules"]), batches, tuple(verified))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged ({error!r}); make the pages again") from error


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
    told = json.dumps([_item_json(item) for item, _ in mixed] + [asdict(rules), number])
    digest = hashlib.sha256(told.encode()).hexdigest()[:16]
    named = [replace(item, id=f"{digest[:6]}-{place:03d}") for place, (item, _) in enumerate(mixed, 1)]
    return Batch(digest, f"Batch {number}", tuple(named)), [picture for _, picture in mixed]


def _item(
    name: str, picture: Image.Image, shown: Boxes, record: Record, truth: Boxes | None = None, error: str = ""
) -> Item:
    more = {key: record.more[key] for key in ("label", "split") if key in record.more}
    return Item("", name, picture.width, picture.height, shown, truth, error, more)


def _clip(boxes: Boxes, picture: Image.Image) -> Boxes:
    """Inside the image, else as they were: a box that nobody touches must stay the same. Empty ones are dropped."""
    width, height = picture.size
    inside = np.clip(boxes, 0, [width, height, width, height])
    return inside[(inside[:, 0] < inside[:, 2]) & (inside[:, 1] < inside[:, 3])]


def _item_json(item: Item) -> dict[str, Any]:
    truth = None if item.truth is None else item.truth.tolist()
    return {**asdict(item), "shown": item.shown.tolist(), "truth": truth}


def _item_from(raw: dict[str, Any], path: Path) -> Item:
    truth = None if raw["truth"] is None else box_rows(raw["truth"], str(path))
    return Item(**{**raw, "shown": box_rows(raw["shown"], str(path)), "truth": truth})
