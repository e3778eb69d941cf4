"""Every setting of the evaluation of anonymised point clouds; the defaults are the thesis' protocol."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ficgan.pointcloud.methods import DEGREES
from ficgan.yaml_settings import check, hint, override, read_tree

__all__ = ["METHODS", "AttackConfig", "CloudStudyConfig", "GeometryConfig", "SyntheticConfig"]

METHODS = ("centroid-voxel", "uniform-noise", "tapering", "merge-2-faces", "smooth-knn", "pmp")
"""The thesis' six anonymisers, in its order (§3.2.2)."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SyntheticConfig(_Frozen):
    """People who do not exist."""

    scans: Path | None = None  # Folder of real scans whose morphs they are; None: parametric heads
    people: int = Field(200, ge=2)
    seed: int = Field(0, ge=0)


class AttackConfig(_Frozen):
    """The thesis' auto-encoder (§4.3.5), trained on people who are not tested."""

    epochs: int = Field(250, ge=1)
    degrees: tuple[int, ...] = (7, 14, 21, 28, 35)
    """At which it learns and is tried. The thesis' 52,800 pairs are 160 people × 11 views × 6 methods × 5 degrees;
    which five is not said."""
    methods: tuple[str, ...] = ()  # Whose projections it learns from and is tried on; empty: all of the study's
    views: int = Field(11, ge=1)
    """Projections of each training person, evenly from −10° to 10° of yaw; 1: the frontal one."""
    window: int = Field(256, ge=16, le=389)
    """Side of the square about the nose tip that the network sees, pixels of the picture; the head fills most of it.
    The thesis has the whole picture, of which a head is a tenth: at 128 pixels its face has five by five places in the
    middle of the network, and even clear ones do not pass."""
    size: int = Field(128, ge=16, le=1024)  # Side of the square at which the network works, pixels
    batch: int = Field(8, ge=1)
    minutes: float = Field(0.0, ge=0)  # Training ends after so many minutes; 0: no limit
    device: str = "auto"


class GeometryConfig(_Frozen):
    """What is measured on the clouds themselves, which the thesis leaves open."""

    recognisers: tuple[Literal["depth", "normals", "fpfh", "icp"], ...] = ("depth", "normals", "fpfh")
    """Attackers who compare shapes; none: distortion only. icp compares pair by pair: hours for hundreds."""
    people: int = Field(0, ge=0)  # So many people are looked for among each other; 0: all


class CloudStudyConfig(_Frozen):
    """Whose clouds, what is done to them, and who looks (point-cloud thesis, chapters 4.2 and 5.3)."""

    title: str = "Anonymised face point clouds"
    clouds: Path | None = None
    """Folder of scans named PERSON_EXPRESSION.ext or PERSON/EXPRESSION.ext, landmarks beside them."""
    synthetic: SyntheticConfig | None = None  # Made people in place of a folder
    photos: Path | None = None
    """Folder with a folder of photos for each person: the gallery. None: another scan of each person, projected."""
    prepared: bool = False  # The clouds are in the canonical frame already

    methods: tuple[str, ...] = Field(METHODS, min_length=1)
    degrees: tuple[int, ...] = Field(tuple(DEGREES), min_length=1)
    seed: int = Field(0, ge=0)  # Of what the methods draw
    target: str | None = None
    """Person whose face merge-2-faces mixes in, then neither enrolled nor tested; None: who has a single scan, else the
    last of all."""

    recognisers: tuple[str, ...] = Field(("dlib",), min_length=1)
    """dlib, insightface or onnx:PATH; the thesis has ArcFace."""
    detector: str = "auto"
    """auto: the first there is of insightface, yunet, centerface and dlib; the report names it. The thesis has
    RetinaFace."""
    confidence: float = Field(0.9, gt=0, lt=1)
    iou: float = Field(0.5, gt=0, lt=1)  # Least overlap with the box in the clear projection that counts as detected
    look: int = Field(320, ge=64)  # Projections are searched at this longer side, pixels, in one pass
    miss: float = Field(40.0, gt=0)  # Landmark distance of a face that is not found, pixels
    undetected: Literal["template", "whole"] = "template"
    """What recognisers see where no face is found: the place where faces lie in clear projections, or the whole image
    as the thesis has it."""

    shade: Literal["before", "after"] = "before"
    """Clouds without colours are shaded before they are anonymised, so that their colours move with the points as a
    scanner's would, or after, from what is left of the surface."""
    timed: int = Field(3, ge=0)
    """On so many people every anonymisation is timed alone, nothing remembered from the one before."""
    inverses: bool = True  # Whether clouds are also read after the inverses of their methods
    parrot: bool = True  # Whether the gallery is also anonymised, as its probes are; not where it is photos
    costly: tuple[int, ...] = (1, 5, 10, 15, 20, 25, 30, 35)
    """Degrees at which parrots, slow inverses and recognisers of shape are tried, and distortion is measured; where
    the study has none of them, at all of its own."""
    attack: AttackConfig | None = None
    geometry: GeometryConfig | None = GeometryConfig()
    pictures: int = Field(0, ge=0)  # Projections of so many people go into the report. They may show people.
    resamples: int = Field(1000, ge=1)  # Of the bootstrap over people

    @field_validator("degrees", mode="before")
    @classmethod
    def _all_up_to(cls, value: Any) -> Any:
        return tuple(range(1, value + 1)) if isinstance(value, int) else value

    @model_validator(mode="after")
    def _sound(self) -> CloudStudyConfig:
        if (self.clouds is None) == (self.synthetic is None):
            raise ValueError("give either clouds, a folder of scans, or synthetic")
        attack = self.attack or AttackConfig(degrees=self.degrees, methods=self.methods)
        for part, values in {"degrees": self.degrees, "costly": self.costly, "attack.degrees": attack.degrees}.items():
            if not set(values) <= set(DEGREES):
                raise ValueError(f"{part} must lie between {DEGREES[0]} and {DEGREES[-1]}")
            if len(set(values)) != len(values):
                raise ValueError(f"{part} names a degree twice")
        for name in (*self.methods, *attack.methods):
            if name not in METHODS:
                raise ValueError(f"there is no point-cloud anonymiser {name!r}; {hint(name, METHODS)}")
        if len(set(self.methods)) != len(self.methods):
            raise ValueError("methods names one thing twice")
        if not set(attack.methods) <= set(self.methods):
            raise ValueError("attack.methods names a method that the study does not have")
        if not set(attack.degrees) & set(self.degrees):
            raise ValueError("attack.degrees has no degree in common with degrees; give one that it has")
        return self

    @property
    def costly_degrees(self) -> list[int]:
        """Of `costly`, those that the study has."""
        return sorted(set(self.costly) & set(self.degrees)) or sorted(self.degrees)

    @classmethod
    def read(cls, path: Path | str, overrides: Sequence[str] = ()) -> CloudStudyConfig:
        """A YAML file or a packaged configuration, with "key=value" overrides; paths are relative to the working
        folder.
        """
        tree = read_tree(path, kind="eval", prefix="pointcloud")
        return cls.parse(override(tree, overrides, example="pictures=3"), where=str(path))

    @classmethod
    def parse(cls, tree: dict[str, Any], *, where: str = "the study's configuration") -> CloudStudyConfig:
        """A checked configuration from a dictionary; every problem is one `UsageError` that names the key."""
        return check(cls, tree, where=where)

    def to_dict(self) -> dict[str, Any]:
        """JSON- and YAML-ready, without folders of this machine."""
        tree = self.model_dump(mode="json")
        for part, key in ((tree, "clouds"), (tree, "photos"), (tree["synthetic"] or {}, "scans")):
            if part.get(key):
                part[key] = Path(part[key]).name
        tree["recognisers"] = [f"onnx:{Path(n[5:]).name}" if n.startswith("onnx:") else n for n in self.recognisers]
        return tree
