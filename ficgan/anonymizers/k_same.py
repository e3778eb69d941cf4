"""k-Same on pixels and on eigenfaces, with a public background (Fantômas), and the average face.

A *public* background protects nothing from whoever holds it: k·y − Σ is the face within ±k/2 grey levels.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers.base import ANONYMIZERS, Anonymizer, Faces, Images, Traits, nearest_grey
from ficgan.arrays import blocks, resize
from ficgan.errors import InputError, UsageError
from ficgan.faces.crops import Alignment, crop, paste_back
from ficgan.registry import param

Floats = NDArray[np.float64]

_BLOCK = 1 << 24  # values in float64 that are held at a time (128 MiB)
_NULL = 1e-10  # components with less than this share of the largest variance are rounding, not faces
_CHUNK = 1024  # faces that are worked on at a time


@dataclass(frozen=True, eq=False)
class Eigenspace:
    """Principal components of a set of images, as weights of these: there are fewer of them than pixels."""

    rows: NDArray[Any]  # [N,D], one image a row
    mean: Floats  # [D]; a row is standardised to z = (row − mean) / scale
    scale: Floats
    weights: Floats  # [N,r]; component c is Σ_i weights[i,c]·z_i, of length 1
    coordinates: Floats  # [N,r] of the rows themselves

    @classmethod
    def of(cls, rows: NDArray[Any]) -> Eigenspace:
        """The space of images [N,D], standardised, by their Gram matrix (Turk and Pentland 1991, §2)."""
        mean, scale = np.zeros(rows.shape[1]), np.ones(rows.shape[1])
        gram = np.zeros((len(rows), len(rows)))
        for part in _columns(rows.shape[1], len(rows)):
            z = rows[:, part].astype(np.float64)
            mean[part] = z.mean(axis=0)
            z -= mean[part]
            deviation = np.sqrt(np.mean(z * z, axis=0))
            scale[part] = np.where(deviation > 0, deviation, 1.0)
            z /= scale[part]
            gram += z @ z.T
        values, vectors = np.linalg.eigh(gram)
        kept = np.flatnonzero(values > max(_NULL * values[-1], 0.0))[::-1]
        lengths = np.sqrt(values[kept])
        return cls(rows, mean, scale, vectors[:, kept] / lengths, vectors[:, kept] * lengths)

    def project(self, rows: NDArray[Any]) -> Floats:
        """Coordinates [M,r] of images [M,D]."""
        products = np.zeros((len(rows), len(self.rows)))
        for part in _columns(rows.shape[1], len(rows) + len(self.rows)):
            products += self._standard(rows, part) @ self._standard(self.rows, part).T
        return products @ self.weights

    def restore(self, coordinates: Floats) -> NDArray[np.uint8]:
        """Images [M,D] at coordinates [M,r], in the nearest grey levels."""
        mixture = coordinates @ self.weights.T
        out = np.empty((len(mixture), self.rows.shape[1]), np.uint8)
        for part in _columns(out.shape[1], len(out) + len(self.rows)):
            pixels = mixture @ self._standard(self.rows, part) * self.scale[part] + self.mean[part]
            out[:, part] = nearest_grey(pixels)
        return out

    def _standard(self, rows: NDArray[Any], part: slice) -> Floats:
        return (rows[:, part].astype(np.float64) - self.mean[part]) / self.scale[part]


def _columns(width: int, rows: int) -> Iterator[slice]:
    return blocks(width, max(1, _BLOCK // max(rows, 1)))


@dataclass(frozen=True)
class _Background:
    space: Eigenspace
    people: NDArray[np.int64]
    shape: tuple[int, ...]

    def nearest(self, coordinates: Floats, count: int) -> NDArray[np.int64]:
        """The images [M,count] of the `count` people nearest by cosine, the nearest image of each, nearest first."""
        cosine = _unit(coordinates) @ _unit(self.space.coordinates).T
        members = [np.flatnonzero(self.people == person) for person in range(self.people.max() + 1)]
        best = np.stack([images[cosine[:, images].argmax(axis=1)] for images in members], axis=1)
        order = np.argsort(-np.take_along_axis(cosine, best, axis=1), axis=1, kind="stable")
        return np.take_along_axis(best, order[:, :count], axis=1)


@dataclass(frozen=True)
class _KSame(Anonymizer):
    k: int = param(10, "people averaged, the face's own included", low=2)
    background: _Background | None = field(default=None, repr=False, compare=False)

    @property
    def crop_side(self) -> int | None:
        return None if self.background is None else self.background.shape[0]

    def fit(self, background: Faces) -> _KSame:
        people = background.people
        if people is None or (people < 0).any():
            raise InputError(f"{self.name} takes one face of each person: number the background's people")
        numbers = np.unique(people, return_inverse=True)[1].reshape(-1)
        count = int(numbers.max(initial=-1)) + 1
        if count < self.k - 1 or len(background) < 2:
            raise UsageError(f"{self.name}: k is {self.k}, and the background has {count} people; lower k or give more")
        space = Eigenspace.of(_flat(background.images))
        if not space.coordinates.size:
            raise InputError(f"{self.name}: all images of the background are the same; give different faces")
        return replace(self, background=_Background(space, numbers, background.images.shape[1:]))

    def __call__(self, faces: Faces) -> Images:
        """UsageError without a background, InputError for faces of another size than its."""
        if not len(faces):
            return faces.images.copy()
        background = self.needed(self.background)
        if background.shape != faces.images.shape[1:]:
            sizes = [f"{shape[0]}×{shape[1]}" for shape in (background.shape, faces.images.shape[1:])]
            raise InputError(f"{self.name}: the background is {sizes[0]} and the faces are {sizes[1]}; make them alike")
        rows, out = _flat(faces.images), np.empty_like(_flat(faces.images))
        for part in blocks(len(rows), _CHUNK):
            coordinates = background.space.project(rows[part])
            chosen = background.nearest(coordinates, self.k - 1)
            out[part] = self._mean(background.space, rows[part], coordinates, chosen)
        return out.reshape(faces.images.shape)

    @abstractmethod
    def _mean(self, space: Eigenspace, rows: Images, coordinates: Floats, chosen: NDArray[np.int64]) -> Images:
        """Means [M,D] of images [M,D] and of the rows `chosen` [M,k − 1] of the space."""


_SOURCE = "Newton, Sweeney and Malin 2005; as released with Fantômas, section 6.1.5"


@ANONYMIZERS.add
class KSamePixel(_KSame):
    """The mean of pixels, of neighbours in the eigenspace."""

    name = "k-same-pixel"
    traits = Traits("k-Same-Pixel", "k-anonymity", _SOURCE, strength="k", needs={"background"})

    def _mean(self, space: Eigenspace, rows: Images, coordinates: Floats, chosen: NDArray[np.int64]) -> Images:
        out = np.empty_like(rows)
        for part in blocks(len(rows), 64):
            total = rows[part].astype(np.uint32)
            for neighbour in chosen[part].T:
                total += space.rows[neighbour]
            out[part] = nearest_grey(total / np.float64(self.k))
        return out


@ANONYMIZERS.add
class KSameEigen(_KSame):
    """The mean of coordinates in the eigenspace."""

    name = "k-same-eigen"
    traits = Traits("k-Same-Eigen", "k-anonymity", _SOURCE, strength="k", needs={"background"})

    def _mean(self, space: Eigenspace, rows: Images, coordinates: Floats, chosen: NDArray[np.int64]) -> Images:
        total = coordinates.copy()
        for neighbour in chosen.T:
            total += space.coordinates[neighbour]
        return space.restore(total / self.k)


def _flat(images: Images) -> Images:
    return images.reshape(len(images), -1)


def _unit(rows: Floats) -> Floats:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float64).tiny)


@ANONYMIZERS.add
class AverageFace(Anonymizer):
    """The mean of the background's faces, colour-matched and pasted on every face."""

    mean: Images | None = field(default=None, repr=False, compare=False)

    name = "average-face"
    traits = Traits(
        "average-face sticker", "synthesis", "control: what is reached without any model", needs={"background"}
    )

    @property
    def crop_side(self) -> int | None:
        return None if self.mean is None else len(self.mean)

    def fit(self, background: Faces) -> AverageFace:
        if not len(background):
            raise UsageError("average-face needs a background set of other people's faces, and it is empty")
        size, total = background.images.shape[1], np.zeros(background.images.shape[1:], np.float64)
        alignment = Alignment()
        for image, marks in zip(background.images, background.landmarks, strict=True):
            total += crop(image, alignment.matrix(marks, size), size)
        return replace(self, mean=np.rint(total / len(background)).astype(np.uint8))

    def __call__(self, faces: Faces) -> Images:
        size, alignment, out = faces.images.shape[1], Alignment(), faces.images.copy()
        mean = resize(self.needed(self.mean), size)
        for image, marks in zip(out, faces.landmarks, strict=True):
            paste_back(image, mean, alignment.matrix(marks, size)).onto(image, np.zeros((size, size), np.float32))
        return out
