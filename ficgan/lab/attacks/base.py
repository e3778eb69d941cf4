"""What an attacker is: it may learn from pairs of clear and anonymised faces, and gives faces back. Controls."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Set
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from skimage.metrics import structural_similarity
from torch import Tensor

from ficgan.anonymizers import Faces, Images
from ficgan.anonymizers.base import nearest_grey
from ficgan.anonymizers.external import Program
from ficgan.arrays import luminance, resize
from ficgan.errors import UsageError
from ficgan.faces import crop, similarity
from ficgan.registry import Parametrised, Registry, parse_spec

Float = NDArray[np.float32]
Knowledge = Literal["method", "pairs"]

T = TypeVar("T")


@dataclass(frozen=True)
class Pairs:
    """What an attacker may learn from: faces of people who are in no gallery and no probe."""

    anonymised: Faces
    clear: Faces

    def at_most(self, count: int) -> Pairs:
        """At most `count` pairs, spread evenly over all: enough to choose one or two parameters on."""
        if len(self.clear) <= count:
            return self
        rows = np.linspace(0, len(self.clear) - 1, count).round().astype(np.int64)
        return Pairs(self.anonymised.take(rows), self.clear.take(rows))

    def luminance(self) -> tuple[Float, Float]:
        """The anonymised and the clear faces, [N,S,S] each."""
        return luminance(self.anonymised.images), luminance(self.clear.images)


@dataclass(frozen=True)
class ReverserTraits:
    """Declared facts of an attacker."""

    title: str
    source: str
    knowledge: Set[Knowledge] = frozenset()  # "pairs" where it learns
    against: Set[str] = frozenset()  # Anonymisers that it was made for; empty: any
    several: bool = False  # Whether it gives several candidates


@dataclass(frozen=True)
class Reverser(Parametrised):
    """Anonymised faces in, guesses at the clear ones out; `fit` gives a new, fitted one."""

    traits: ClassVar[ReverserTraits]

    def fit(self, pairs: Pairs) -> Reverser:
        """A reverser that has learnt from pairs; those that learn nothing return themselves."""
        return self

    def reverse(self, faces: Faces, n: int = 1) -> NDArray[np.uint8]:
        """Guesses [N,n,S,S,3] uint8 RGB; n > 1 only where `several` is declared, else the one guess repeated."""
        return np.repeat(self.guess(faces)[:, None], n, axis=1)

    def guess(self, faces: Faces) -> Images:
        """The best guess for each face, [N,S,S,3] uint8 RGB; subclasses give this, or `reverse`."""
        return self.reverse(faces)[:, 0]


FROM_PAIRS: frozenset[Knowledge] = frozenset({"pairs"})
# Families of methods by what was done to the pixels; who attacks which: Fantômas, Table 4, and the further blurs.
BLURS = frozenset({"gaussian-blur", "box-blur", "obfuscation-blur"})
NOISES = frozenset({"gaussian-noise", "fawkes", "dp-pix", "dp-snow"})

# By name; `ficgan.lab.attacks` fills it.
REVERSERS: Registry[Reverser] = Registry("attacker")


def reverser_of(text: str) -> Reverser:
    """An attacker, untrained, from NAME or NAME:PARAMETER=VALUE,…"""
    name, parameters = parse_spec(text)
    return REVERSERS.make(name, **parameters)


@REVERSERS.add
class MeanFace(Reverser):
    """The attacker's mean clear face, whatever is shown: the control that carries nothing of the source."""

    name = "mean-face"
    traits = ReverserTraits("Mean face (negative control)", "this work", FROM_PAIRS)

    mean: Images | None = field(default=None, repr=False, compare=False)

    def fit(self, pairs: Pairs) -> MeanFace:
        return replace(self, mean=nearest_grey(pairs.clear.images.mean(axis=0)))

    def guess(self, faces: Faces) -> Images:
        return np.repeat(fitted(self.mean, self.name)[None], len(faces), axis=0)


@REVERSERS.add
class ExternalRestorer(Program, Reverser):
    """Guesses by an external restorer (MPRNet, Stripformer, DIC-SR, GFP-GAN), run or made before (Fantômas, §6.2.2)."""

    name = "external"
    traits = ReverserTraits("External restorer", "the program's own", {"method"})
    any_side = True

    def guess(self, faces: Faces) -> Images:
        return self.made_of(faces)


def mean_ssim(left: Float, right: Float) -> float:
    """Mean structural similarity of images [N,S,S], 0–255, with scikit-image's uniform 7×7 window."""
    return float(np.mean([structural_similarity(x, y, data_range=255) for x, y in zip(left, right, strict=True)]))


def one_each_unknown(people: NDArray[np.int64] | None, count: int) -> NDArray[np.int64]:
    """[count] people; every image of somebody unknown (−1), or all where nothing is known, is a person of its own."""
    out = np.full(count, -1, np.int64) if people is None else people.copy()
    unknown = out < 0
    out[unknown] = out.max(initial=-1) + 1 + np.arange(unknown.sum())
    return out


def seed_of(*key: object) -> int:
    """Of what is drawn for one candidate of one face, whatever stands beside it in a batch."""
    digest = hashlib.sha256("\0".join(map(str, key)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1  # torch's seeds are signed


def resized(images: Images, side: int) -> Images:
    """Square images [N,S,S,3] uint8 at another side: averaged down, bicubic up."""
    if images.shape[1] == side or not len(images):
        return images
    return np.stack([resize(image, side) for image in images])


def upright(faces: Faces, points: NDArray[np.floating], side: int) -> Images:
    """Each face cut so that its landmarks lie at five points [5,2] of a crop of this side: [N,side,side,3]."""
    out = np.empty((len(faces), side, side, 3), np.uint8)
    for row, (image, marks) in enumerate(zip(faces.images, faces.landmarks, strict=True)):
        out[row] = crop(image, similarity(marks, points), side)
    return out


def to_tensor(images: Images, device: torch.device | None = None) -> Tensor:
    """[N,S,S,3] uint8 → [N,3,S,S] float32 in [0, 1], channels last."""
    x = torch.from_numpy(np.ascontiguousarray(images)).to(device).permute(0, 3, 1, 2)
    return x.to(torch.float32).div_(255)


def to_images(x: Tensor) -> Images:
    """[N,3,S,S] in [0, 1] → [N,S,S,3] uint8, rounded and clipped."""
    levels = x.float().mul(255).round_().clamp_(0, 255).to(torch.uint8)
    return levels.permute(0, 2, 3, 1).contiguous().cpu().numpy()


def held_out(faces: Faces, share: float, seed: int) -> NDArray[np.bool_]:
    """[N] rows of the people on whom a training is watched."""
    people = one_each_unknown(faces.people, len(faces))
    known = np.unique(people)
    if not share or len(known) < 2:
        return np.zeros(len(people), bool)
    some = min(max(1, math.floor(share * len(known))), len(known) - 1)
    return np.isin(people, np.random.default_rng(seed).permutation(known)[:some])


def fitted(part: T | None, name: str) -> T:
    """What an attacker has learnt; UsageError where that is nothing."""
    if part is None:
        raise UsageError(f"{name} has learnt nothing yet; fit it on pairs")
    return part
