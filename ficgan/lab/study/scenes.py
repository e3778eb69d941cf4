"""The study's settings, classification sets with boxes of faces and objects, and what a network sees of a picture."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, model_validator

from ficgan.anonymizers import generator
from ficgan.config import check, override, read_tree
from ficgan.data import Blob, decode_rgb
from ficgan.errors import InputError, UsageError
from ficgan.lab.annotation import ImageRecord, ImageRecords, box_rows, have_area, listed, read_records

# `overlaid` and `mean` are the same picture (average colour of ImageNet); the paper's tables use both words.
Variant = Literal["original", "blurred", "overlaid", "red", "green", "blue", "mean"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
Begun = Literal["none", "original", "blurred", "overlaid"]  # From which weights a downstream task begins
# Networks whose learning rate starts at .01 (section 4); all others start at .1.
_SLOW = ("alexnet", "squeezenet", "vgg")
_PAGE = "docs/papers.md"


class StudyTask(BaseModel, frozen=True, extra="forbid"):
    """Images, how they are divided, and a recipe of training."""

    images: Path | None = None  # Folder, tar or zip; a class is the folder of an image unless the annotations name it
    train_split: str = "train"
    eval_split: str = "val"
    holdout: float = Field(0.0, ge=0, lt=1)  # Share drawn for evaluation, instead of the set's own splits
    epochs: int = Field(90, ge=0)
    drop_every: int = Field(30, ge=1)  # The learning rate falls to a tenth after every so many epochs
    batch: int = Field(256, ge=2)
    weight_decay: float = Field(1e-4, ge=0)


_Rate = Annotated[float, Field(gt=0)]


class TransferConfig(StudyTask):
    """A downstream task that networks are fine-tuned on (section 5, appendix E); left out where it has no images."""

    kind: Literal["classification", "attributes", "detection"]
    # Classification: annotations of `open_scenes`, or None for a folder per class. Attributes: a label file of
    # `ficgan.data`; a holdout keeps people apart. Detection has none: the folder of PASCAL VOC (VOCdevkit) has lists,
    # which are the splits.
    labels: Path | None = None
    networks: tuple[str, ...] = ()  # (): those of the study
    train_images: int = Field(0, ge=0)  # Train on so many images, drawn once; 0: all. The paper takes 5,000 of CelebA.
    epochs: int = Field(90, ge=1)
    lr: _Rate | dict[str, _Rate] = 0.01  # Of all networks, or by network: the paper tunes it for each
    # Detection: shorter side of an image, sides of the anchors at that size, and regions that reach the head.
    size: int = Field(600, ge=32)
    anchors: tuple[int, int, int, int, int] = (32, 64, 128, 256, 512)
    proposals: int = Field(1000, ge=1)
    pretrained: tuple[Begun, ...] = get_args(Begun)


class StudyConfig(StudyTask):
    """What is trained on what, and how (Yang et al. 2022, section 4)."""

    images: Path
    annotations: Path  # Face boxes; see `open_scenes`
    objects: Path | None = None  # Folder of the localisation task's XML files; None: object area unknown
    # Table 2: names with the classes in each, or with what stands above them in `hierarchy`, whose lines are
    # "parent child" (ImageNet's wordnet.is_a.txt).
    supercategories: dict[str, tuple[str, ...]] = {}
    hierarchy: Path | None = None
    # What the blur's reach is measured by: a box's diagonal (paper), its longer side (the released program).
    blur: Literal["paper", "released"] = "paper"
    networks: tuple[str, ...] = Field(min_length=1)  # torchvision's classifiers, or `narrow-resnet`
    # Safetensors file to begin from, or a folder with NETWORK.safetensors for each network; a head of another size is
    # left out. With `epochs: 0` networks are only evaluated.
    weights: Path | None = None
    crop: int = Field(224, ge=16)  # Side of what the network sees, pixels
    resize: int = Field(256, ge=16)  # Shorter side before the central crop at evaluation, pixels
    min_scale: float = Field(0.08, gt=0, le=1)  # Smallest share of the image's area that a random training crop has
    train_on: tuple[Variant, ...] = Field(("original", "blurred", "overlaid"), min_length=1)
    evaluate_on: tuple[Variant, ...] = Field(VARIANTS, min_length=1)
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1)
    lr: float | None = Field(None, gt=0)  # None: .01 for AlexNet, SqueezeNet and VGG, .1 for all others
    pictures: int = Field(4, ge=0)  # Images with Grad-CAM in the page (Figure 5), which show people; 0: none
    device: str = "auto"
    # Floating type of training; auto: bfloat16 on a GPU that has it. Networks are evaluated in float32.
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    workers: int | None = Field(None, ge=0)  # Processes that prepare images; None: one a core for a GPU, else this one
    cache_gb: float = Field(4.0, ge=0)  # Memory for obfuscated images at full resolution, all variants together
    transfer: dict[Annotated[str, Field(pattern=r"^\w[\w.-]*$")], TransferConfig] = {}

    @model_validator(mode="after")
    def _sound(self) -> StudyConfig:
        if self.resize < self.crop:
            raise ValueError(f"resize {self.resize} is smaller than crop {self.crop}")
        if not self.epochs and self.weights is None:
            raise ValueError("epochs 0 only evaluates networks; name their files under weights")
        for name, task in self.tasks.items():
            for begun in task.pretrained:
                if begun not in ("none", *self.train_on):
                    raise ValueError(f"task {name} begins from {begun} weights; train on them too")
            for network in task.networks or self.networks:
                if network not in self.networks:
                    raise ValueError(f"task {name} takes {network}, which is none of the study's networks; add it")
                if isinstance(task.lr, dict) and network not in task.lr:
                    raise ValueError(f"task {name} has no lr for {network}; add it")
        return self

    @property
    def tasks(self) -> dict[str, TransferConfig]:
        """The downstream tasks that there are images for."""
        return {name: task for name, task in self.transfer.items() if task.images is not None}

    def learning_rate(self, network: str) -> float:
        """The initial rate for a network: as set, else the paper's (section 4)."""
        return self.lr if self.lr is not None else 0.01 if network.startswith(_SLOW) else 0.1

    def weights_of(self, network: str) -> Path | None:
        """The file that a network begins from."""
        if self.weights is None or not self.weights.is_dir():
            return self.weights
        path = self.weights / f"{network}.safetensors"
        if not path.is_file():
            raise InputError(f"{self.weights} has no {path.name}; write the network's state there")
        return path

    @classmethod
    def read(cls, source: str | Path, overrides: Sequence[str] = (), **given: str) -> StudyConfig:
        """A YAML file with the fields above, or a name of those that come with ficgan (obfuscation, …).

        `given` stands in its place, "key=value" overrides on top.
        """
        tree = {**read_tree(source, kind="eval", prefix="obfuscation", see=_PAGE), **given}
        return check(cls, override(tree, overrides, example="epochs=10"), where=str(source), see=_PAGE)


Image = NDArray[np.uint8]  # [H,W,3] RGB
Boxes = NDArray[np.float32]  # [M,4]: x0, y0, x1, y1 in pixels
_NO_BOXES: Boxes = np.zeros((0, 4), np.float32)


@dataclass(frozen=True, slots=True)
class Scene:
    """An image: its class, the faces in it, and the boxes of the object it is named for; none: unknown."""

    name: str
    blob: Blob
    label: int
    split: str
    boxes: Boxes
    objects: Boxes = field(default_factory=lambda: _NO_BOXES)
    # Of PASCAL VOC: what the boxes are of, numbers of the set's classes [M], and which are too difficult to count [M].
    kinds: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    difficult: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))

    def load(self) -> Image:
        """Decoded at full resolution."""
        return np.array(decode_rgb(self.blob))


@dataclass(frozen=True)
class Scenes:
    """Images in the order of their names."""

    items: tuple[Scene, ...]
    classes: tuple[str, ...]

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
    def fingerprint(self) -> str:
        """sha256 over names, sizes in bytes, classes and boxes."""
        digest = hashlib.sha256("\0".join(self.classes).encode())
        for scene in self.items:
            digest.update(f"{scene.name}\0{scene.blob.size}\0{scene.label}\n".encode())
            for known in (scene.boxes, scene.kinds, scene.difficult):
                digest.update(np.ascontiguousarray(known).tobytes())
        return digest.hexdigest()

    def below(self, groups: Mapping[str, Sequence[str]], hierarchy: Path | None) -> dict[str, list[int]]:
        """The classes in each group of names, and those below such a name in the hierarchy."""
        above: dict[str, set[str]] = {}
        for line in [] if hierarchy is None else hierarchy.read_text("utf-8").splitlines():
            if len(words := line.split()) != 2:
                raise InputError(f"{hierarchy} has the line {line[:40]!r}; its lines are a parent and a child")
            above.setdefault(words[1], set()).add(words[0])

        found = [{title} for title in self.classes]
        for some in found:
            front = set(some)
            while front := set[str]().union(*(above.get(name, ()) for name in front)) - some:
                some |= front
        return {name: [k for k, some in enumerate(found) if some & set(inside)] for name, inside in groups.items()}

    def take(self, rows: Iterable[int]) -> Scenes:
        return replace(self, items=tuple(self.items[int(row)] for row in rows))

    def halves(self, task: StudyTask) -> tuple[Scenes, Scenes]:
        """Training and evaluation images: by a share of every class where one is given, else by the set's splits."""
        if not task.holdout:
            return self._split(task.train_split), self._split(task.eval_split)
        labels, held = self.labels, np.zeros(len(self), bool)
        for label in np.unique(labels):
            rows, title = np.flatnonzero(labels == label), self.classes[label]
            count = min(max(1, round(task.holdout * len(rows))), len(rows) - 1)
            held[generator(0, "holdout", title).permutation(rows)[:count]] = True
        return self.take(np.flatnonzero(~held)), self.take(np.flatnonzero(held))

    def _split(self, name: str) -> Scenes:
        rows = [row for row, scene in enumerate(self.items) if scene.split == name]
        if not rows:
            known = ", ".join(sorted({scene.split for scene in self.items if scene.split})) or "none at all"
            raise UsageError(f"no image is in split {name!r}; there are {known}; or set holdout to a share")
        return self.take(rows)


def open_scenes(path: Path, annotations: Path | None = None, objects: Path | None = None) -> Scenes:
    """Open a classification set, a folder, tar or zip, with its faces; images without a record have no faces.

    Annotations are a JSON list of records as of `ficgan.lab.annotation`, with optional `label` and `split`, which
    default to folders. `objects` is a folder of PASCAL-VOC XML files.
    """
    records = ImageRecords([]) if annotations is None else read_records(annotations)
    xml = {file.stem: file for file in objects.rglob("*.xml")} if objects is not None else {}
    known = {one: replace(records.find(one.name) or ImageRecord(one.name), name=one.name) for one in listed(path)}
    if nameless := [blob.where for blob, record in known.items() if not record.category]:
        raise InputError(f"{nameless[0]} has no class; put it in a folder named by its class or name it a label")
    index = {label: number for number, label in enumerate(sorted({record.category for record in known.values()}))}
    items = []
    for blob, record in known.items():
        place = PurePosixPath(blob.name)
        split = str(record.more.get("split") or place.parent.parent.name)
        inside = voc_objects(xml[place.stem])[2] if place.stem in xml else _NO_BOXES
        items.append(Scene(blob.name, blob, index[record.category], split, record.boxes.astype(np.float32), inside))
    return Scenes(tuple(items), tuple(index))


def voc_objects(path: Path) -> tuple[list[str], NDArray[np.bool_], Boxes]:
    """Categories, whether each is difficult [M], and boxes [M,4], as they stand, in an XML file as of PASCAL VOC."""
    from xml.etree import ElementTree

    try:
        found = [one for one in ElementTree.parse(path).getroot().iter("object") if one.find("bndbox") is not None]
        rows = [[float(one.findtext(f"bndbox/{k}", "nan")) for k in ("xmin", "ymin", "xmax", "ymax")] for one in found]
    except (OSError, ValueError, ElementTree.ParseError) as error:
        raise InputError(f"{path} is not a readable box file ({error}); fetch it again") from error
    boxes = box_rows(rows, str(path))
    keep = have_area(boxes)
    names = [str(one.findtext("name")) for one, kept in zip(found, keep, strict=True) if kept]
    difficult = np.array([one.findtext("difficult") == "1" for one in found], bool)
    return names, difficult[keep], boxes[keep].astype(np.float32)


def covered_share(boxes: Boxes, within: Sequence[float] | NDArray[Any]) -> float:
    """Share of the rectangle `within` (x0, y0, x1, y1) that the union of boxes [M,4] covers; they may reach outside."""
    x0, y0, x1, y1 = (float(value) for value in within)
    inside = np.clip(boxes.astype(np.float64).reshape(-1, 2, 2), (x0, y0), (x1, y1)).reshape(-1, 4)
    xs, ys = np.unique(inside[:, 0::2]), np.unique(inside[:, 1::2])
    if len(xs) < 2 or len(ys) < 2:
        return 0.0
    grid = np.zeros((len(ys) - 1, len(xs) - 1), bool)
    for left, top, right, bottom in inside:
        rows = slice(np.searchsorted(ys, top), np.searchsorted(ys, bottom))
        grid[rows, np.searchsorted(xs, left) : np.searchsorted(xs, right)] = True
    return float(np.diff(ys) @ grid @ np.diff(xs)) / ((x1 - x0) * (y1 - y0))


# -- pictures ----------------------------------------------------------------------------------------------------------


class Pictures:
    """Pictures [H,W,3] uint8 RGB by number, made on demand; at most `room` bytes are kept."""

    def __init__(self, make: Callable[[int], Image], count: int, room: float = math.inf) -> None:
        self._make, self._count, self._room = make, count, room
        self._kept: dict[int, Image] = {}

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

    def fill(self) -> None:
        """Make all pictures for which there is room, so that processes forked after this share them."""
        for index in range(len(self)):
            self[index]
            if index not in self._kept:
                return


def obfuscated(
    scenes: Scenes, variant: Variant, blur: Literal["paper", "released"] = "paper", room: float = math.inf
) -> Pictures:
    """The pictures of a set in a variant, obfuscated at full resolution."""
    from ficgan.anonymizers.basic import obfuscate_blur, obfuscate_overlay

    def make(row: int) -> Image:
        image, boxes = scenes.items[row].load(), scenes.items[row].boxes
        if variant == "original" or not len(boxes):
            return image
        if variant == "blurred":
            return obfuscate_blur(image, boxes, blur)[0]
        return obfuscate_overlay(image, boxes, "mean" if variant == "overlaid" else variant)

    return Pictures(make, len(scenes), room)


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
    return _resized(picture, (left, top, left + side, top + side), crop)


def _resized(picture: Image, box: tuple[float, float, float, float], side: int) -> Image:
    from PIL import Image as Pillow

    return np.asarray(Pillow.fromarray(picture).resize((side, side), Pillow.Resampling.BILINEAR, box=box))
