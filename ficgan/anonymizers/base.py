"""The interface of anonymisers: functions of aligned face crops with declared properties, repeated by their seed."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.faces.crops import Alignment
from ficgan.registry import Parametrised, Registry

Images = NDArray[np.uint8]  # [N,S,S,3] RGB
T = TypeVar("T")
Family = Literal[
    "basic", "adversarial", "overlay", "differential privacy", "k-anonymity", "synthesis", "obfuscation", "external"
]
Need = Literal["background", "model", "verifier", "overlays"]


@dataclass(frozen=True)
class Faces:
    """Face crops in memory; InputError where shapes or kinds do not fit together.

    Args:
        images: [N,S,S,3] uint8 RGB.
        names: N names, unique in their set: random numbers of an image follow from the seed and its name.
        landmarks: [N,5,2] float, pixels of the crop, as of `ficgan.faces.Face`; None: the default alignment's.
        people: [N] int64, one number per person, −1 where unknown; None where nobody is known.
    """

    images: Images
    names: tuple[str, ...]
    landmarks: NDArray[np.float32] = field(default=None)  # type: ignore[arg-type]
    people: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        images, count = self.images, len(self.images)
        if images.ndim != 4 or images.shape[1] != images.shape[2] or images.shape[3] != 3 or images.dtype != np.uint8:
            raise InputError(f"face crops must be [N,S,S,3] uint8 RGB, not {images.dtype} {list(images.shape)}")
        if self.landmarks is None:
            points = Alignment().points(images.shape[1]).astype(np.float32)
            object.__setattr__(self, "landmarks", np.broadcast_to(points, (count, 5, 2)))
        known = count if self.people is None else len(self.people)
        if len(self.names) != count or self.landmarks.shape != (count, 5, 2) or known != count:
            raise InputError(f"{count} face crops need as many names, landmarks [N,5,2] and people")

    def __len__(self) -> int:
        return len(self.images)

    def take(self, rows: Sequence[int] | NDArray[np.integer]) -> Faces:
        """The faces at `rows`, in that order."""
        index = np.asarray(rows, np.int64)
        people = None if self.people is None else self.people[index]
        return Faces(self.images[index], tuple(self.names[i] for i in index), self.landmarks[index], people)

    def with_images(self, images: Images) -> Faces:
        """The same faces in other pixels."""
        return replace(self, images=images)


@dataclass(frozen=True)
class Traits:
    """Declared facts of an anonymiser, for tables and attackers."""

    title: str
    family: Family
    source: str
    strength: str | None = None  # the parameter that rules how much is hidden
    keyed: bool = False  # whether the holder of the key can `invert`
    stochastic: bool = False
    domain: Literal["face", "scene"] = "face"  # "scene": works on whole photos with boxes
    needs: Set[Need] = frozenset()  # what must be given before the first image


@dataclass(frozen=True)
class Anonymizer(Parametrised):
    """Face crops in, as many anonymised crops of the same size out; the input is not changed.

    A subclass is a frozen dataclass with `name`, `traits`, parameters made with `ficgan.registry.param`, and
    `__call__`; keyed ones have `invert`, those that need a background `fit`.
    """

    traits: ClassVar[Traits]

    @property
    def crop_side(self) -> int | None:
        """Side of the aligned crops it works on, those of its background; None: any, or not fitted yet."""
        return None

    def declare(self, **changes: Any) -> None:
        """Change traits of this object, where they depend on its parameters."""
        object.__setattr__(self, "traits", replace(self.traits, **changes))

    def needed(self, background: T | None) -> T:
        """What was made of the background; UsageError where there was none."""
        if background is None:
            raise UsageError(f"{self.name} needs a background set of other people's faces; call fit first")
        return background

    @abstractmethod
    def __call__(self, faces: Faces) -> Images:
        """Anonymised crops [N,S,S,3] uint8 RGB, in the order given."""

    def invert(self, faces: Faces) -> Images:
        """The source crops, from anonymised ones and the right key; UsageError where the method has no inverse."""
        raise UsageError(f"{self.name} is not keyed: it has no inverse")

    def fit(self, background: Faces) -> Anonymizer:
        """The same anonymiser with a background set of other people; methods without one return themselves."""
        return self


@dataclass(frozen=True)
class PerImage(Anonymizer):
    """An anonymiser that looks at one image at a time: subclasses give `apply`."""

    seed: int = 0  # of the random numbers; no effect on methods without any

    def __call__(self, faces: Faces) -> Images:
        out = np.empty_like(faces.images)
        for index, (image, name, marks) in enumerate(zip(faces.images, faces.names, faces.landmarks, strict=True)):
            out[index] = self.apply(image, marks, generator(self.seed, self.name, name))
        return out

    @abstractmethod
    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        """One image [S,S,3] uint8 RGB → the same; landmarks [5,2]; all that is drawn comes from `rng`."""


def generator(*key: object) -> np.random.Generator:
    """Random numbers that depend on the key alone: the same on every machine, others for another key."""
    digest = hashlib.blake2b("\0".join(str(part) for part in key).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def nearest_grey(values: NDArray[np.floating]) -> NDArray[np.uint8]:
    """The nearest grey levels, 0 to 255, of values of any size; a half goes to the even number, as in OpenCV."""
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


# By name; `ficgan.anonymizers` fills it, and `ficgan.deidentify` adds the generative ones.
ANONYMIZERS: Registry[Anonymizer] = Registry("anonymiser")
