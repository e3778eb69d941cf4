"""Face boxes corrected by people: pages, their key, and what comes back (Yang et al. 2022, appendix A).

A page is one self-contained HTML file per batch. Gold images have known faces and are shown with an error; the page
judges them itself, their faces encoded. That is quality control, not security, so collecting judges the exports again.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from PIL import Image
from pydantic import Field, PlainValidator, StrictInt, StringConstraints

from ficgan.anonymizers import generator
from ficgan.data.dataset import Blob, decode_rgb
from ficgan.errors import InputError, UsageError
from ficgan.faces.detection import overlaps
from ficgan.files import atomic_write
from ficgan.lab.annotation.boxes import (
    OVERLAP,
    Boxes,
    Record,
    Records,
    box_rows,
    changes,
    distinct,
    errors,
    have_area,
    merge,
    pairs,
)
from ficgan.lab.metrics import wilson
from ficgan.lab.pages import data_url, fill_page, new_folder, page_template, read_checked, text_table, write_json
from ficgan.lab.run import Progress

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
    blobs: Sequence[Blob],
    detected: Records,
    gold: Sequence[tuple[Blob, Record]],
    rules: Rules,
    *,
    own_gold: bool,
    failed: list[str],
    progress: Progress | None = None,
) -> Iterator[tuple[Batch, list[Image.Image]]]:
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
    folder: Path,
    blobs: Sequence[Blob],
    detected: Records,
    gold: Sequence[tuple[Blob, Record]],
    rules: Rules,
    *,
    own_gold: bool = True,
    linked: bool = False,
    side: int = 1600,
    note: str = "",
    progress: Progress | None = None,
) -> tuple[Key, list[str]]:
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
        "schema": EXPORT_SCHEMA,
        "batch": batch.id,
        "lives": rules.lives,
        "overlap": rules.overlap,
        "checks": base64.b64encode(json.dumps(checks).encode()).decode(),
        "images": [
            {"id": item.id, "width": item.width, "height": item.height, "boxes": item.shown.tolist(), "src": source}
            for item, source in zip(batch.items, sources, strict=True)
        ],
    }
    control = (
        f"Some images have known faces: a mistake there costs one of {rules.lives} lives, and without lives you start "
        "again from the first image."
    )
    return fill_page(
        page_template(__package__),
        data,
        title=batch.title,
        count=str(len(batch.items)),
        note=note,
        control=control if checks else "",
        pictures="" if linked else " img-src data:;",  # a page from a folder has no origin that 'self' could name
    )


def _jpeg(picture: Image.Image, side: int) -> bytes:
    small = picture.copy()
    small.info.clear()  # a comment would be written again
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()


# -- what comes back: merged boxes, and errors before and after (Table 1) ----------------------------------------------

PUBLISHED_ERRORS: dict[str, tuple[int, int, int, int]] = {
    "irish setter": (12, 3, 0, 0),
    "gorilla": (32, 7, 0, 0),
    "cheetah": (3, 1, 0, 0),
    "basset": (10, 0, 0, 0),
    "lynx": (9, 1, 0, 0),
    "rottweiler": (11, 4, 0, 0),
    "sorrel": (2, 1, 0, 0),
    "impala": (1, 0, 0, 0),
    "bernese mt. dog": (20, 3, 0, 0),
    "silky terrier": (4, 0, 0, 0),
    "maypole": (0, 0, 7, 5),
    "basketball": (0, 0, 7, 2),
    "volleyball": (0, 0, 10, 5),
    "balance beam": (0, 0, 9, 5),
    "unicycle": (0, 1, 6, 1),
    "stage": (0, 0, 0, 0),
    "torch": (2, 1, 1, 1),
    "baseball player": (0, 0, 0, 0),
    "military uniform": (3, 2, 2, 0),
    "steel drum": (1, 1, 1, 0),
}
"""False positives before and after, false negatives before and after, in 50 validation images of each category; before:
Amazon Rekognition, after: crowdsourcing."""

PUBLISHED_PER_50 = (5.50, 1.25, 2.15, 0.95)  # The table's last row
NOTE = "Intervals take faces and boxes for independent, which those of a photo are not: they are too narrow for crowds."


@dataclass(frozen=True)
class Export:
    file: str
    batch: Batch
    worker: str  # by their own word
    attempt: int  # 1, and one more for every start from scratch; by the page's word
    boxes: tuple[Boxes, ...]  # one [M,4] an image, in the order of the batch
    mistakes: int  # gold images that are not right


@dataclass
class Collected:
    records: list[Record] = field(default_factory=list)
    """Final annotations in the order of their names. "workers" says how many looked at an image: at 0 the boxes are the
    detector's; "verified" ones are the gold images of the set."""
    accepted: list[Export] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)  # File and sentence
    log: list[dict[str, Any]] = field(default_factory=list)
    """{"file", "batch", "worker", "change", "before", "after"} for every box that somebody changed; the worker is
    "merged" for what the final boxes changed of the detector's."""
    agreement: list[dict[str, Any]] = field(default_factory=list)
    """{"batch", "workers", "images", "matched", "unmatched", "iou"} of each batch that several people did."""
    unseen: list[str] = field(default_factory=list)  # Names of images that nobody looked at


def collect(key: Key, files: Sequence[Path], *, union: bool = False) -> Collected:
    """Merge exported batches in the order they came in; `union` keeps every box that anybody drew."""
    out = Collected()
    done: dict[tuple[str, str], str] = {}
    for file in files:
        try:
            export = _read_export(key, file)
            who = export.batch.id, export.worker
            if who in done:
                raise InputError(f"{file} is by {export.worker}, who handed in {done[who]} for the same batch")
            if export.mistakes >= key.rules.lives:
                raise InputError(
                    f"{file} by {export.worker}: {export.mistakes} of {key.rules.gold} gold images are wrong, and "
                    f"{key.rules.lives} end the game; have the batch done again"
                )
        except InputError as error:
            out.refused.append((str(file), str(error)))
        else:
            done[who] = str(file)
            out.accepted.append(export)
    by_batch: dict[str, list[Export]] = defaultdict(list)
    for export in out.accepted:
        by_batch[export.batch.id].append(export)
    for batch in key.batches:
        _finish(out, batch, by_batch[batch.id], key, union)
    for record in key.verified:
        out.records.append(Record(record.name, record.boxes, None, {**record.more, "verified": True}))
    out.records.sort(key=lambda record: record.name)
    return out


@dataclass(frozen=True)
class _Image:
    id: str
    boxes: list[Any]


@dataclass(frozen=True)
class _ExportFile:
    batch: str
    worker: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    images: list[_Image]
    attempt: StrictInt = 1


def _read_export(key: Key, file: Path) -> Export:
    """One exported batch, checked against the key; InputError where the page cannot have written it for this key."""
    found = read_checked(file, _ExportFile, (EXPORT_SCHEMA,), "hand in what the review page saved")
    batch = next((one for one in key.batches if one.id == found.batch), None)
    if batch is None:
        raise InputError(f"{file} is of batch {found.batch!r}, which the key does not have; are the pages older?")
    known = {item.id: item for item in batch.items}
    drawn: dict[str, Boxes] = {}
    for image in found.images:
        if image.id not in known or image.id in drawn:
            word = "twice" if image.id in drawn else "which is not of its batch"
            raise InputError(f"{file} has image {image.id!r}, {word}; have it exported again")
        drawn[image.id] = _checked_boxes(image.boxes, known[image.id], f"image {image.id} in {file}")
    missing = [id for id in known if id not in drawn]
    if missing:
        raise InputError(f"{file} lacks {len(missing)} of {len(known)} images ({missing[0]}, …); have it exported anew")
    # Judged as drawn, as the page does; only then are boxes that repeat another one dropped.
    wrong = sum(
        item.truth is not None and any(errors(drawn[item.id], item.truth, key.rules.overlap)) for item in batch.items
    )
    boxes = tuple(distinct(drawn[item.id]) for item in batch.items)
    return Export(str(file), batch, found.worker, found.attempt, boxes, wrong)


def _finish(out: Collected, batch: Batch, exports: Sequence[Export], key: Key, union: bool) -> None:
    least = key.rules.overlap
    if len(exports) > 1:
        out.agreement.append(_agreement(batch, exports, least))
    for row, item in enumerate(batch.items):
        if item.truth is not None:  # gold images judge people, and their faces are known
            continue
        drawn = [export.boxes[row] for export in exports]
        boxes, votes = merge(drawn, least, union=union) if drawn else (item.shown, [])
        for who, mine in [*((e.worker, e.boxes[row]) for e in exports), *([("merged", boxes)] if exports[1:] else [])]:
            entry = {"file": item.name, "batch": batch.id, "worker": who}
            out.log += [entry | change for change in changes(item.shown, mine)]
        if not drawn:
            out.unseen.append(item.name)
        size = {"width": item.width, "height": item.height}
        voted = {"votes": votes} if len(drawn) > 1 else {}
        out.records.append(Record(item.name, boxes, None, {**item.more, **size, "workers": len(drawn), **voted}))


def _agreement(batch: Batch, exports: Sequence[Export], least: float) -> dict[str, Any]:
    matched, others, shared = 0, 0, list[float]()
    rows = [row for row, item in enumerate(batch.items) if item.truth is None]
    for first, second in combinations(exports, 2):
        for row in rows:
            a, b = first.boxes[row], second.boxes[row]
            both = pairs(a, b, least)
            matched += len(both)
            others += len(a) + len(b) - 2 * len(both)
            shared += [float(overlaps(a, b)[i, j]) for i, j in both]
    return {
        "batch": batch.id,
        "workers": [export.worker for export in exports],
        "images": len(rows),
        "matched": matched,
        "unmatched": others,
        "iou": float(np.mean(shared)) if shared else None,
    }


def _checked_boxes(raw: list[Any], item: Item, where: str) -> Boxes:
    boxes = box_rows(raw, where)
    if not (
        (boxes[:, :2] >= 0).all()
        and (boxes[:, :2] < boxes[:, 2:]).all()
        and (boxes[:, 2:] <= [item.width, item.height]).all()
    ):
        raise InputError(f"a box of {where} is empty or reaches outside of {item.width}×{item.height} px; export again")
    return boxes


def summary(done: Collected) -> dict[str, Any]:
    """All that can be said in a line of JSON."""
    kinds = Counter(change["change"] for change in done.log if change["worker"] != "merged")
    return {
        "images": len(done.records),
        "unseen": len(done.unseen),
        "accepted": [
            {"file": e.file, "batch": e.batch.id, "worker": e.worker, "attempt": e.attempt, "gold_mistakes": e.mistakes}
            for e in done.accepted
        ],
        "refused": [{"file": file, "reason": reason} for file, reason in done.refused],
        "changes": {kind: kinds[kind] for kind in ("added", "removed", "moved")},
        "agreement": done.agreement,
    }


def score_annotations(
    truth: Records, lists: Mapping[str, Records], *, overlap: float = OVERLAP, names: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Count errors against verified faces, in groups of their category (label, else folder).

    Args:
        lists: "before" and "after" → boxes; others may be added.
        overlap: least IoU of a right box, above 0 and at most 1.
        names: category → name in the paper's table.

    Returns:
        {"overlap", "note", "categories": [row, …], "all": row}, where a row is {"category", "images", "faces",
        "published", NAME: {"boxes", "fp", "fn", "fp_per_50", "fn_per_50", "fp_rate", "fn_rate"}}. A rate is
        {"value", "low", "high", "n"} or None: false positives among boxes, false negatives among faces.
    """
    if not truth or not lists or not 0 < overlap <= 1:
        raise UsageError("scoring needs verified images, boxes to judge, and an overlap above 0 and at most 1")
    groups: dict[str, list[tuple[int, dict[str, tuple[int, int, int]]]]] = defaultdict(list)
    for record in truth.values():
        counts = {}
        for name, some in lists.items():
            judged = some.find(record.name)
            if judged is None:
                raise InputError(f"the boxes {name} correction lack {record.name}; give its record, empty if need be")
            counts[name] = (len(judged.boxes), *errors(judged.boxes, record.boxes, overlap))
        groups[record.category].append((len(record.boxes), counts))
    published = {category: PUBLISHED_ERRORS.get((names or {}).get(category, category)) for category in groups}
    rows = [_row(category or "–", groups[category], published[category]) for category in sorted(groups)]
    everything = _row("all", [image for group in groups.values() for image in group], PUBLISHED_PER_50)
    return {"overlap": overlap, "note": NOTE, "categories": rows, "all": everything}


def score_text(score: Mapping[str, Any]) -> str:
    """The table to read: counts, and for all images errors per 50 images and rates; the paper's figures beside them."""
    names = [name for name in score["all"] if name not in ("category", "images", "faces", "published")]
    head = ["category", "images", "faces", *(f"{kind} {name}" for kind in ("FP", "FN") for name in names)]
    shown = [*score["categories"], score["all"]] if len(score["categories"]) > 1 else [score["all"]]
    beside = any(row["published"] for row in score["categories"])
    lines = [[*head, "paper: FP A, H; FN A, H"] if beside else head]
    for row in shown:
        counts = [row[name][kind] for kind in ("fp", "fn") for name in names]
        lines.append([str(value) for value in (row["category"], row["images"], row["faces"], *counts)])
        if beside:
            lines[-1].append(_published(row["published"]) if row["category"] != "all" else "–")
    text = text_table(lines)
    for name in names:
        all_images = score["all"][name]
        text.append(
            f"{name}: {all_images['fp_per_50']:.2f} false positives and {all_images['fn_per_50']:.2f} false negatives "
            "per 50 images; "
            f"{_rate(all_images['fp_rate'])} of boxes are no face, {_rate(all_images['fn_rate'])} of faces have no box"
        )
    a, h, less_a, less_h = PUBLISHED_PER_50
    text.append(f"paper, other images (Table 1, per 50): FP {a:.2f} → {h:.2f}, FN {less_a:.2f} → {less_h:.2f}")
    return "\n".join([*text, f"IoU ≥ {score['overlap']:g}. {score['note']}"])


def _row(
    category: str, group: list[tuple[int, dict[str, tuple[int, int, int]]]], published: tuple[float, ...] | None
) -> dict[str, Any]:
    faces = sum(count for count, _ in group)
    row: dict[str, Any] = {"category": category, "images": len(group), "faces": faces}
    row["published"] = dict(zip(("fp_a", "fp_h", "fn_a", "fn_h"), published, strict=True)) if published else None
    for name in group[0][1]:
        boxes, more, less = (sum(counts[name][k] for _, counts in group) for k in range(3))
        per = 50 / len(group)
        row[name] = {
            "boxes": boxes,
            "fp": more,
            "fn": less,
            "fp_per_50": more * per,
            "fn_per_50": less * per,
            "fp_rate": _share(more, boxes),
            "fn_rate": _share(less, faces),
        }
    return row


def _share(errors: int, n: int) -> dict[str, float] | None:
    if not n:
        return None
    low, high = wilson(errors, n)
    return {"value": errors / n, "low": low, "high": high, "n": n}


def _rate(share: Mapping[str, float] | None) -> str:
    if share is None:
        return "– (none)"
    return f"{100 * share['value']:.1f} % ({100 * share['low']:.1f}–{100 * share['high']:.1f}, n = {share['n']})"


def _published(row: Mapping[str, float] | None) -> str:
    return f"{row['fp_a']}, {row['fp_h']}; {row['fn_a']}, {row['fn_h']}" if row else "–"
