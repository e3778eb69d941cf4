"""Face boxes corrected by people: pages, their key, and what comes back (Yang et al. 2022, appendix A)."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.resources import files
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray
from PIL import Image
from pydantic import StringConstraints

from ficgan.anonymizers import generator
from ficgan.data import Blob, decode_rgb, list_blobs
from ficgan.errors import InputError, Progress, UsageError, unheard
from ficgan.faces import FaceDetector
from ficgan.faces.detection import overlaps
from ficgan.lab.results import data_url, fill_page, new_folder, page_template, read_checked, read_json, write_json
from ficgan.lab.run import Store, write_file

KEY_SCHEMA = "ficgan-annotation-key/3"
EXPORT_SCHEMA = "ficgan-annotation-export/1"
LIVES = 2  # Mistakes on gold images that end the game
MOST_FACES = 12  # Of a gold image: a crowd would judge patience
_SIDE = 1600  # Longest side at which pictures are shown, pixels
_TRIES = 100
_CLEAR = 0.1  # A false box has no more IoU than this with any face
_KEPT_TOGETHER = 64  # Images that a run that is interrupted detects again, at most

BoxRows = list[list[float]]  # [M,4] as in a file


@dataclass(frozen=True)
class BatchImage:
    """An image of a batch, with the boxes that the page begins with."""

    id: str  # Its name on the page, which tells nothing of its `name` in its folder or archive
    name: str
    # width, height: pixels
    width: int
    height: int
    shown: BoxRows
    truth: BoxRows | None = None  # The faces of a gold image; None: to be reviewed
    more: dict[str, Any] = field(default_factory=dict)  # Label and split, for the final annotations


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
    progress: Progress = unheard,
) -> tuple[AnnotationKey, list[str]]:
    """Write `pages/batch-0001.html`, … to hand out, and `key.json`, which holds the truth and stays here.

    Pages begin with the boxes `detected`; gold images are drawn from those `verified`. `size` and `gold` images of a
    batch are the paper's. Returns the key, and a sentence for each unreadable image.
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
            waiting.append(_image(blob, detected.find(blob.name) or ImageRecord(blob.name)))
        except InputError as error:
            failed.append(str(error))
        if waiting and (len(waiting) == size - gold or done == len(work)):
            number = len(batches) + 1
            batch, pictures = _batch(number, waiting, usable, gold, seed)
            page = page_html(batch, [data_url("image/jpeg", _jpeg(picture)) for picture in pictures])
            write_file(folder / "pages" / f"batch-{number:04d}.html", page)
            batches.append(batch)
            waiting.clear()
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
        image, picture = _image(*usable[row])
        shown = spoil(box_rows(image.shown, image.name), *picture.size, rng)
        mixed.insert(place, (replace(image, shown=shown.tolist(), truth=image.shown), picture))
    content = json.dumps([[asdict(image) for image, _ in mixed], number])
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    named = [replace(image, id=f"{digest[:6]}-{place:03d}") for place, (image, _) in enumerate(mixed, 1)]
    return Batch(digest, f"Batch {number}", tuple(named)), [picture for _, picture in mixed]


def _image(blob: Blob, record: ImageRecord) -> Work:
    """An image with the boxes of its record; its batch gives it an id."""
    picture = decode_rgb(blob)
    boxes = np.clip(record.boxes, 0, [*picture.size, *picture.size])
    more = {key: record.more[key] for key in ("label", "split") if key in record.more}
    return BatchImage("", blob.name, *picture.size, boxes[have_area(boxes)].tolist(), more=more), picture


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


# -- boxes -------------------------------------------------------------------------------------------------------------

Boxes = NDArray[np.float64]  # [M,4]: x0, y0, x1, y1 in pixels, edges continuous from 0
OVERLAP = 0.5  # Least IoU at which two boxes are of one face


def errors(boxes: Boxes, truth: Boxes, least: float = OVERLAP) -> tuple[int, int]:
    """False positives (boxes without a face) and false negatives (faces without a box), paired as often as can be."""
    from scipy.optimize import linear_sum_assignment

    fits = overlaps(boxes, truth) >= least
    right = int(fits[linear_sum_assignment(fits, maximize=True)].sum())
    return len(boxes) - right, len(truth) - right


# -- records -----------------------------------------------------------------------------------------------------------

_EDGES = ("x0", "y0", "x1", "y1")


@dataclass(frozen=True, eq=False)
class ImageRecord:
    """The faces of an image, in pixels of the upright image; `name` is relative to its folder or archive."""

    name: str
    boxes: Boxes = field(default_factory=lambda: np.empty((0, 4)))
    more: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A record of the file; coordinates to a hundredth of a pixel."""
        boxes = [dict(zip(_EDGES, (round(float(v), 2) for v in box), strict=True)) for box in self.boxes]
        return {"file": self.name, **self.more, "bboxes": boxes}

    @property
    def category(self) -> str:
        """The class: as labelled, else the image's folder; "" where there is neither."""
        return str(self.more.get("label") or PurePosixPath(self.name).parent.name)


class ImageRecords(dict[str, ImageRecord]):
    """Records by the name of their image; found also where a record's name lacks the suffix or the class folder."""

    def __init__(self, records: Iterable[ImageRecord]) -> None:
        super().__init__()
        self._bare: dict[str, str] = {}
        for record in records:
            if record.name in self:
                raise InputError(f"{record.name} has two records in the annotations; leave one")
            self[record.name] = record
            self._bare.setdefault(str(PurePosixPath(record.name).with_suffix("")), record.name)

    def find(self, name: str) -> ImageRecord | None:
        """The record of an image, or None; "val/x" stands for "val/n01440764/x.JPEG" as in the released file."""
        bare = PurePosixPath(name).with_suffix("")
        keys = (str(bare), f"{bare.parts[0]}/{bare.name}") if len(bare.parts) > 2 else (str(bare),)
        known = name if name in self else next((self._bare[key] for key in keys if key in self._bare), None)
        return None if known is None else self[known]


def read_records(path: Path) -> ImageRecords:
    """Annotations from a JSON list of records with `file` or `url`, and `bboxes`; boxes without area are left out."""
    raw = read_json(path)
    if not isinstance(raw, list):
        raise InputError(f"{path} holds no list of records; each needs the name of an image and its boxes")
    return ImageRecords(_record(row, f"record {number} of {path}") for number, row in enumerate(raw, 1))


def write_records(path: Path, records: Iterable[ImageRecord]) -> None:
    """Write annotations, whole or not at all; a file of this name is replaced."""
    rows = ",\n".join(json.dumps(record.to_json(), ensure_ascii=False, allow_nan=False) for record in records)
    write_file(path, f"[\n{rows}\n]\n")


def box_rows(raw: Any, where: str) -> Boxes:
    """Boxes [M,4] from a list of {"x0", "y0", "x1", "y1"} or [x0, y0, x1, y1]."""
    try:
        rows = [[box[edge] for edge in _EDGES] if isinstance(box, dict) else box for box in raw]
        boxes = np.array(rows, np.float64).reshape(len(rows), 4)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the boxes of {where} are not x0, y0, x1, y1 each ({error!r}); correct its record") from None
    if not np.isfinite(boxes).all():
        raise InputError(f"a box of {where} is not finite; correct its record")
    return boxes


def have_area(boxes: Boxes) -> NDArray[np.bool_]:
    """[M] which boxes are not empty."""
    return (boxes[:, 0] < boxes[:, 2]) & (boxes[:, 1] < boxes[:, 3])


def _record(row: Any, where: str) -> ImageRecord:
    name = (row.get("file") or row.get("url")) if isinstance(row, dict) else None
    if not isinstance(name, str):
        raise InputError(f"{where} names no image; it needs `file` or `url`")
    boxes = box_rows(row.get("bboxes", []), where)
    more = {key: value for key, value in row.items() if key not in ("file", "url", "bboxes")}
    return ImageRecord(name.removeprefix("./"), boxes[have_area(boxes)], more)


def listed(images: Path) -> list[Blob]:
    """The images of a folder, tar or zip in the order of their names."""
    blobs = sorted(list_blobs(images), key=lambda blob: blob.name)
    for first, second in pairwise(blobs):
        if first.name == second.name:
            raise InputError(f"{images} holds {first.name} twice; rename one")
    return blobs


# -- detection ---------------------------------------------------------------------------------------------------------


def detect_set(
    images: Path, out: Path, detector: FaceDetector, *, progress: Progress = unheard
) -> tuple[list[ImageRecord], list[str]]:
    """Detect the faces of all images and write the annotations: what was written, and why the other images failed.

    What is done lies in `out.part` until the end, from where an interrupted run goes on.
    """
    blobs, part = listed(images), out.with_name(f"{out.name}.part")
    records, failed, store = list[ImageRecord](), list[str](), Store(part)
    about = {"detector": detector.name, "threshold": getattr(detector, "threshold", None)}
    for begin in range(0, len(blobs), _KEPT_TOGETHER):
        block = blobs[begin : begin + _KEPT_TOGETHER]
        key = ["boxes", about, [[blob.name, blob.size] for blob in block]]
        found = store.kept(key, partial(_detect, block, detector, about))
        records += [_record(row, str(images)) for row in found["records"]]
        failed += found["failed"]
        progress(begin + len(block), len(blobs), block[-1].name)
    if not records:
        raise InputError(f"none of {len(blobs)} images of {images} could be used; the first: {failed[0]}")
    write_records(out, records)
    shutil.rmtree(part)
    return records, failed


def _detect(blobs: Sequence[Blob], detector: FaceDetector, about: dict[str, Any]) -> dict[str, list[Any]]:
    out: dict[str, list[Any]] = {"records": [], "failed": []}
    for blob in blobs:
        try:
            image = np.array(decode_rgb(blob))
        except InputError as error:
            out["failed"].append(str(error))
            continue
        boxes = np.array([face.box for face in detector.detect(image)], np.float64).reshape(-1, 4)
        more = {"width": image.shape[1], "height": image.shape[0], **about}
        out["records"].append(ImageRecord(blob.name, boxes, more).to_json())
    return out


PUBLISHED = yaml.safe_load(files("ficgan.lab.annotation").joinpath("published.yaml").read_text("utf-8"))


class Collected(NamedTuple):
    """What came of all exports."""

    # Final annotations by name: "reviewed" says whether somebody looked at an image, or its boxes are the detector's;
    # "verified" ones are the gold images of the set
    records: list[ImageRecord]
    accepted: list[str]  # Ids of the batches
    refused: list[str]  # A sentence for each file
    unseen: list[str]  # Names of images that nobody looked at


def collect(key: AnnotationKey, paths: Sequence[Path]) -> Collected:
    """The annotations after one finished batch of each, the first that came in."""
    done: dict[str, dict[str, Boxes]] = {}
    refused, records, unseen = list[str](), list[ImageRecord](), list[str]()
    for path in paths:
        try:
            name, found = _read_export(key, path)
            if name in done:
                raise InputError(f"{path} is of a batch that was handed in before; leave one of the two")
            done[name] = found
        except InputError as error:
            refused.append(str(error))
    for batch in key.batches:
        for image in batch.images:
            if image.truth is not None:
                continue  # gold images judge people, and their faces are known
            reviewed = batch.id in done
            boxes = done[batch.id][image.id] if reviewed else box_rows(image.shown, image.name)
            unseen += [] if reviewed else [image.name]
            more = {**image.more, "width": image.width, "height": image.height, "reviewed": reviewed}
            records.append(ImageRecord(image.name, boxes, more))
    records += [_record({**row, "verified": True}, "the key") for row in key.verified]
    return Collected(sorted(records, key=lambda record: record.name), list(done), refused, unseen)


@dataclass(frozen=True)
class _ExportedImage:
    id: str
    boxes: list[Any]


@dataclass(frozen=True)
class _ExportFile:
    batch: str
    worker: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    images: list[_ExportedImage]


def _read_export(key: AnnotationKey, path: Path) -> tuple[str, dict[str, Boxes]]:
    """Id of the batch that somebody handed in, and the boxes [M,4] of its images by their ids."""
    found = read_checked(path, _ExportFile, (EXPORT_SCHEMA,), "hand in what the review page saved")
    batch = next((batch for batch in key.batches if batch.id == found.batch), None)
    if batch is None:
        raise InputError(f"{path} is of batch {found.batch!r}, which the key does not have; are the pages older?")
    if sorted(image.id for image in found.images) != sorted(image.id for image in batch.images):
        raise InputError(f"{path} does not have every image of its batch once; have it exported again")
    boxes = {image.id: box_rows(image.boxes, f"image {image.id} in {path}") for image in found.images}
    mistakes = 0
    for image in batch.images:
        some = boxes[image.id]
        if not have_area(some).all() or (some < 0).any() or (some[:, 2:] > [image.width, image.height]).any():
            raise InputError(f"a box of image {image.id} in {path} is empty or reaches outside; have it exported again")
        mistakes += image.truth is not None and any(errors(some, box_rows(image.truth, image.name)))
    if mistakes >= LIVES:
        raise InputError(
            f"{path} by {found.worker}: {mistakes} gold images are wrong, and {LIVES} end the game; have it done again"
        )
    return batch.id, boxes


def score_annotations(truth: ImageRecords, lists: Mapping[str, ImageRecords]) -> dict[str, Any]:
    """Count errors against verified faces, by category (label, else folder); `lists`: boxes "before" and "after".

    Returns {"categories": [row, …], "all": row}, where a row is {"category", "images", "faces", "published", NAME:
    {"boxes", "fp", "fn", "fp_per_50", "fn_per_50"}}.
    """
    if not truth:
        raise UsageError("scoring needs verified images")
    groups = defaultdict[str, list[ImageRecord]](list)
    for record in truth.values():
        groups[record.category].append(record)

    def row(category: str, records: Sequence[ImageRecord], published: Sequence[float] | None) -> dict[str, Any]:
        faces = sum(len(record.boxes) for record in records)
        out: dict[str, Any] = {"category": category or "–", "images": len(records), "faces": faces}
        out["published"] = dict(zip(("fp_a", "fp_h", "fn_a", "fn_h"), published, strict=True)) if published else None
        for name, some in lists.items():
            counts = []
            for record in records:
                if (judged := some.find(record.name)) is None:
                    raise InputError(f"the boxes {name} correction lack {record.name}; give its record, be it empty")
                counts.append((len(judged.boxes), *errors(judged.boxes, record.boxes)))
            boxes, fp, fn = np.sum(counts, axis=0).tolist()
            per_50 = {"fp_per_50": fp * 50 / len(records), "fn_per_50": fn * 50 / len(records)}
            out[name] = {"boxes": boxes, "fp": fp, "fn": fn, **per_50}
        return out

    categories = [row(category, groups[category], PUBLISHED["errors"].get(category)) for category in sorted(groups)]
    return {"categories": categories, "all": row("all", list(truth.values()), PUBLISHED["per_50"])}
