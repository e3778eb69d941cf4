"""Settings of the obfuscation study; the defaults are the paper's recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ficgan.yaml_settings import check, override, read_tree

__all__ = ["VARIANTS", "StudyConfig", "TransferConfig", "Variant"]

Variant = Literal["original", "blurred", "overlaid", "red", "green", "blue", "mean"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
"""`overlaid` and `mean` are the same picture (average colour of ImageNet); the paper's tables use both words."""
_SLOW = ("alexnet", "squeezenet", "vgg")
"""Networks whose learning rate starts at .01 (section 4); all others start at .1."""


class _Task(BaseModel):
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


class TransferConfig(_Task):
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
        "none", "original", "blurred", "overlaid",
    )  # fmt: skip


class StudyConfig(_Task):
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
    def read(cls, path: Path | str, overrides: Sequence[str] = ()) -> StudyConfig:
        """A YAML file with the fields above and "key=value" overrides; paths are relative to the working folder."""
        return check(cls, override(read_tree(path), overrides, example="epochs=10"), where=str(path))

    @classmethod
    def parse(cls, tree: dict[str, Any], *, where: str = "the study's configuration") -> StudyConfig:
        """A checked configuration from a dictionary; every problem is one `UsageError` that names the key."""
        return check(cls, tree, where=where)

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json")
