"""A study of obfuscation: its settings, and classification sets with the boxes of their faces and objects."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ficgan.anonymizers import generator
from ficgan.data.dataset import Blob, decode_rgb
from ficgan.errors import InputError, UsageError
from ficgan.lab.annotation.boxes import ImageRecord, ImageRecords, box_rows, have_area, listed, read_records
from ficgan.yaml_settings import check, override, read_tree

Variant = Literal["original", "blurred", "overlaid", "red", "green", "blue", "mean"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
"""`overlaid` and `mean` are the same picture (average colour of ImageNet); the paper's tables use both words."""
_SLOW = ("alexnet", "squeezenet", "vgg")
"""Networks whose learning rate starts at .01 (section 4); all others start at .1."""


class _StudyTask(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    images: Path  # Folder, tar or zip; a class is the folder of an image unless the annotations name it
    train_split: str = "train"
    eval_split: str = "val"
    holdout: float = Field(0.0, ge=0, lt=1)
    """Share set aside for evaluation, drawn once, instead of the set's own splits."""
    epochs: int = Field(90, ge=0)
    drop_every: int = Field(30, ge=1)  # The learning rate falls to a tenth after every so many epochs
    batch: int = Field(256, ge=2)
    weight_decay: float = Field(1e-4, ge=0)


class TransferConfig(_StudyTask):
    """One downstream task that the networks of the grid are fine-tuned on (section 5, appendix E)."""

    name: str = Field(pattern=r"^\w[\w.-]*$")
    kind: Literal["classification", "attributes", "detection"]
    labels: Path | None = None
    """Classification: annotations as `open_scenes` reads them, or None for a folder per class. Attributes: a label file
    as `ficgan.data` reads it; a holdout keeps people apart. Detection: annotations with boxes of faces to be found."""
    train_images: int = Field(0, ge=0)  # Train on so many images, drawn once; 0: all. The paper takes 5,000 of CelebA.
    epochs: int = Field(90, ge=1)
    lr: float = Field(0.01, gt=0)
    size: int = Field(600, ge=32)  # Detection: shorter side at which images are looked at, pixels
    anchors: tuple[int, int, int, int, int] = (32, 64, 128, 256, 512)
    """Detection: sides of anchors, pixels at that size."""
    proposals: int = Field(1000, ge=1)  # Detection: regions that reach the head
    pretrained: tuple[Literal["none", "original", "blurred", "overlaid"], ...] = (
        "none",
        "original",
        "blurred",
        "overlaid",
    )


class StudyConfig(_StudyTask):
    """What is trained on what, and how (Yang et al. 2022, section 4)."""

    annotations: Path  # Face boxes; see `open_scenes`
    objects: Path | None = None
    """Folder of the localisation task's XML files, for the object area that faces cover; None: unknown."""
    decoys: bool = False
    """Obfuscate images without a face at boxes of other images, so that the mark itself tells nothing of the class."""
    blur: Literal["paper", "released"] = "paper"
    """What the blur's reach is measured by: a box's diagonal (paper), its longer side (the released program)."""
    networks: tuple[str, ...] = Field(("resnet18",), min_length=1)
    """Names of torchvision's classifiers, or `narrow-resnet`, this package's small one."""
    weights: Path | None = None
    """Safetensors file to begin from; a head of another size is left out. With `epochs: 0` it is only evaluated."""
    crop: int = Field(224, ge=16)  # Side of what the network sees, pixels; Inception v3 wants 299
    resize: int = Field(256, ge=16)  # Shorter side before the central crop at evaluation, pixels
    min_scale: float = Field(0.08, gt=0, le=1)  # Smallest share of the image's area that a random training crop has
    train_on: tuple[Variant, ...] = Field(("original", "blurred", "overlaid"), min_length=1)
    evaluate_on: tuple[Variant, ...] = Field(VARIANTS, min_length=1)
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1)
    lr: float | None = Field(None, gt=0)  # None: .01 for AlexNet, SqueezeNet and VGG, .1 for all others.
    momentum: float = Field(0.9, ge=0, lt=1)
    area_edges: tuple[float, ...] = (0.0, 0.01, 0.02, 0.04, 0.08)
    """Left edges of the groups of Figure 3, shares of the image's area; the last group is open. The paper gives the
    first and the last group; those between are read off."""
    device: str = "auto"
    workers: int = Field(0, ge=0)  # Processes that prepare images; 0: this one
    cache_gb: float = Field(4.0, ge=0)
    """Memory for obfuscated images at full resolution, all variants together; what does not fit is made each time."""
    transfer: tuple[TransferConfig, ...] = ()

    @model_validator(mode="after")
    def _sound(self) -> StudyConfig:
        if self.resize < self.crop:
            raise ValueError(f"resize {self.resize} is smaller than crop {self.crop}")
        if list(self.area_edges) != sorted(set(self.area_edges)) or self.area_edges[:1] != (0.0,):
            raise ValueError("area_edges must begin with 0 and rise")
        if len({task.name for task in self.transfer}) != len(self.transfer):
            raise ValueError("two transfer tasks have one name")
        for name in ("networks", "seeds", "train_on", "evaluate_on"):
            if len(set(getattr(self, name))) != len(getattr(self, name)):
                raise ValueError(f"{name} names one thing twice")
        return self

    def learning_rate(self, network: str) -> float:
        """The initial rate for a network: as set, else the paper's (section 4)."""
        return self.lr if self.lr is not None else 0.01 if network.startswith(_SLOW) else 0.1

    @classmethod
    def read(cls, path: Path | str | None, overrides: Sequence[str] = (), **given: str) -> StudyConfig:
        """A YAML file with the fields above, `given` in its place, "key=value" overrides on top; every problem is one
        `UsageError` that names the key. Paths are relative to the working folder.
        """
        tree = {**({} if path is None else read_tree(path)), **given}
        where = "the study's settings" if path is None else str(path)
        return cls.parse(override(tree, overrides, example="epochs=10"), where=where)

    @classmethod
    def parse(cls, tree: dict[str, Any], *, where: str = "the study's settings") -> StudyConfig:
        return check(cls, tree, where=where)

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


Image = NDArray[np.uint8]  # [H,W,3] RGB
Boxes = NDArray[np.float32]  # [M,4]: x0, y0, x1, y1 in pixels


@dataclass(frozen=True, slots=True)
class Scene:
    """One image: its class, the faces in it, and, where known, the boxes of the object it is named for."""

    name: str
    blob: Blob
    label: int
    split: str
    boxes: Boxes
    objects: Boxes | None = None

    def load(self) -> Image:
        """Decoded at full resolution; `InputError` where it is damaged."""
        return np.array(decode_rgb(self.blob))


@dataclass(frozen=True)
class Scenes:
    """Images in the order of their names; boxes without area are only counted, as the authors leave them out."""

    items: tuple[Scene, ...]
    classes: tuple[str, ...]
    empty_boxes: int = 0

    def __len__(self) -> int:
        return len(self.items)

    @property
    def labels(self) -> NDArray[np.int64]:
        return np.array([scene.label for scene in self.items], np.int64)

    @property
    def counts(self) -> NDArray[np.int64]:
        """[N] faces in each image."""
        return np.array([len(scene.boxes) for scene in self.items], np.int64)

    @property
    def faced(self) -> NDArray[np.bool_]:
        return self.counts > 0

    @property
    def fingerprint(self) -> str:
        """sha256 over names, sizes in bytes, classes and boxes: 64 hex digits."""
        digest = hashlib.sha256("\0".join(self.classes).encode())
        for scene in self.items:
            digest.update(f"{scene.name}\0{scene.blob.size}\0{scene.label}\n".encode())
            digest.update(np.ascontiguousarray(scene.boxes).tobytes())
        return digest.hexdigest()

    def take(self, rows: Iterable[int]) -> Scenes:
        return replace(self, items=tuple(self.items[int(row)] for row in rows))

    def split(self, name: str) -> Scenes:
        """The images of one split; `UsageError` where there are none."""
        rows = [row for row, scene in enumerate(self.items) if scene.split == name]
        if not rows:
            known = ", ".join(sorted({scene.split for scene in self.items if scene.split})) or "none at all"
            raise UsageError(f"no image is in split {name!r}; there are {known}; or set holdout to a share")
        return self.take(rows)

    def holdout(self, share: float, seed: int = 0) -> tuple[Scenes, Scenes]:
        """Training and evaluation images: of every class a share, at least one image, goes to evaluation."""
        chosen: set[int] = set()
        labels = self.labels
        for label in np.unique(labels):
            rows, title = np.flatnonzero(labels == label), self.classes[label]
            if len(rows) == 1:
                raise UsageError(f"class {title!r} has one image only; a holdout needs at least 2 of every class")
            count = min(max(1, round(share * len(rows))), len(rows) - 1)
            chosen.update(generator(seed, "holdout", title).permutation(rows)[:count].tolist())
        return self.take(row for row in range(len(self)) if row not in chosen), self.take(sorted(chosen))


def open_scenes(path: Path | str, annotations: Path | str | None = None, objects: Path | str | None = None) -> Scenes:
    """Open a classification set, a folder, tar or zip, with its faces; images without a record have no faces.

    Annotations are a JSON list of records with `url`, `path` or `file`; `bboxes` or `faces`, each {"x0", "y0", "x1",
    "y1"} or [x0, y0, x1, y1] in pixels; and optional `label`, `split`, `objects`; or a CSV with file, label, split.
    Class and split default to folders. `objects` is a folder of PASCAL-VOC XML files.
    """
    records = ImageRecords([]) if annotations is None else read_records(Path(annotations))
    xml = {file.stem: file for file in Path(objects).rglob("*.xml")} if objects is not None else {}
    found, matched, empty = [], 0, 0
    for blob in listed(Path(path)):
        record = records.find(blob.name)
        matched += record is not None
        record = record or ImageRecord(blob.name, np.zeros((0, 4)))
        empty += record.without_area
        folders = PurePosixPath(blob.name).parts[:-1]
        label = record.more.get("label") or (folders[-1] if folders else None)
        if label is None:
            raise InputError(f"{blob.where} has no class; put it in a folder named by its class or name it a label")
        inside: Boxes | None = None
        if blob_xml := xml.get(PurePosixPath(blob.name).stem):
            inside = _xml_boxes(blob_xml)
        elif record.more.get("objects"):
            inside = _full(record.more["objects"], blob.where)
        split = str(record.more.get("split") or (folders[-2] if len(folders) > 1 else ""))
        found.append((blob, str(label), split, record.boxes.astype(np.float32), inside))
    if records and not matched:
        raise InputError(f"no record of {annotations} names an image of {path}; are they of the same set?")
    index = {label: number for number, label in enumerate(sorted({label for _, label, *_ in found}))}
    items = (Scene(blob.name, blob, index[label], split, faces, inside) for blob, label, split, faces, inside in found)
    return Scenes(tuple(items), tuple(index), empty)


def halves(scenes: Scenes, holdout: float, train: str, evaluation: str) -> tuple[Scenes, Scenes]:
    """Training and evaluation images: by a share where one is given, else by the set's own splits."""
    return scenes.holdout(holdout) if holdout else (scenes.split(train), scenes.split(evaluation))


def covered_share(boxes: Boxes, within: Sequence[float] | NDArray[Any]) -> float:
    """Share of the rectangle `within` (x0, y0, x1, y1) that the union of boxes [M,4] covers; they may reach outside."""
    x0, y0, x1, y1 = (float(value) for value in within)
    inside = np.clip(boxes.astype(np.float64).reshape(-1, 2, 2), (x0, y0), (x1, y1)).reshape(-1, 4)
    xs, ys = np.unique(inside[:, 0::2]), np.unique(inside[:, 1::2])
    if len(xs) < 2 or len(ys) < 2 or x1 <= x0 or y1 <= y0:
        return 0.0
    grid = np.zeros((len(ys) - 1, len(xs) - 1), bool)
    for left, top, right, bottom in inside:
        rows = slice(np.searchsorted(ys, top), np.searchsorted(ys, bottom))
        grid[rows, np.searchsorted(xs, left) : np.searchsorted(xs, right)] = True
    return float(np.diff(ys) @ grid @ np.diff(xs)) / ((x1 - x0) * (y1 - y0))


def with_decoys(scenes: Scenes, seed: int = 0) -> Scenes:
    """The same images; those without a face get another image's boxes, so that obfuscation marks no class."""
    donors = [scene for scene in scenes.items if len(scene.boxes)]
    items = []
    for scene in scenes.items:
        if donors and not len(scene.boxes):
            donor = donors[int(generator(seed, "decoy", scene.name).integers(len(donors)))]
            scale = np.divide(scene.load().shape[1::-1], donor.load().shape[1::-1])  # width and height
            scene = replace(scene, boxes=donor.boxes * np.tile(scale, 2).astype(np.float32))
        items.append(scene)
    return replace(scenes, items=tuple(items))


class Pictures:
    """Pictures [H,W,3] uint8 RGB by number, made on demand; at most `room` bytes are kept."""

    def __init__(self, make: Callable[[int], Image], count: int, room: float = math.inf) -> None:
        self._make, self._count, self._room = make, count, room
        self._kept: dict[int, Image] = {}

    @classmethod
    def of(
        cls, scenes: Scenes, variant: Variant, room: float = math.inf, blur: Literal["paper", "released"] = "paper"
    ) -> Pictures:
        """The pictures of a set in one variant, obfuscated at full resolution."""
        return cls(lambda row: _obfuscated(scenes.items[row], variant, blur), len(scenes), room)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Image:
        if index in self._kept:
            return self._kept[index]
        picture = self._make(index)
        if picture.nbytes <= self._room:
            self._room -= picture.nbytes
            self._kept[index] = picture
        return picture

    def take(self, rows: NDArray[np.integer]) -> Pictures:
        """Some of the pictures, which are kept here alone."""
        return Pictures(lambda index: self[int(rows[index])], len(rows), room=0)

    def fill(self) -> None:
        """Make all pictures for which there is room, so that processes forked after this share them."""
        for index in range(len(self)):
            self[index]
            if index not in self._kept:
                return


def _obfuscated(scene: Scene, variant: Variant, blur: Literal["paper", "released"]) -> Image:
    from ficgan.anonymizers.basic import obfuscate_blur, obfuscate_overlay

    if variant == "original" or not len(scene.boxes):
        return scene.load()
    if variant == "blurred":
        return obfuscate_blur(scene.load(), scene.boxes, blur)
    return obfuscate_overlay(scene.load(), scene.boxes, "mean" if variant == "overlaid" else variant)


def random_view(picture: Image, crop: int, rng: np.random.Generator, min_scale: float = 0.08) -> Image:
    """A random crop of at least `min_scale` of the area, resized, often mirrored: [crop,crop,3] uint8."""
    height, width = picture.shape[:2]
    for _ in range(10):
        area = height * width * rng.uniform(min_scale, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = max(1, round(math.sqrt(area * ratio))), max(1, round(math.sqrt(area / ratio)))
        if w <= width and h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            break
    else:
        w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
        left, top = (width - w) // 2, (height - h) // 2
    view = _resized(picture, (left, top, left + w, top + h), crop)
    return view[:, ::-1] if rng.random() < 0.5 else view


def central_view(picture: Image, crop: int, resize: int) -> Image:
    """The picture with its shorter side at `resize`, then its central square: [crop,crop,3] uint8, resampled once."""
    height, width = picture.shape[:2]
    side = crop * min(height, width) / resize
    left, top = (width - side) / 2, (height - side) / 2
    box = (max(left, 0.0), max(top, 0.0), min(left + side, float(width)), min(top + side, float(height)))
    return _resized(picture, box, crop)


def _resized(picture: Image, box: tuple[float, float, float, float], side: int) -> Image:
    from PIL import Image as Pillow

    return np.asarray(Pillow.fromarray(picture).resize((side, side), Pillow.Resampling.BILINEAR, box=box))


def _xml_boxes(path: Path) -> Boxes:
    from xml.etree import ElementTree

    try:
        found = ElementTree.parse(path).getroot().iter("bndbox")
        rows = [[float(box.findtext(k, "nan")) for k in ("xmin", "ymin", "xmax", "ymax")] for box in found]
    except (OSError, ValueError, ElementTree.ParseError) as error:
        raise InputError(f"{path} is not a readable box file ({error}); fetch it again") from error
    return _full(rows, str(path))


def _full(raw: Any, where: str) -> Boxes:
    boxes = box_rows(raw, where)
    return boxes[have_area(boxes)].astype(np.float32)
