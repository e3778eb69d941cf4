"""k-Same on pixels and on eigenfaces: with a public background (Fantômas), and genuine (Newton et al.).

A *public* background protects nothing from whoever holds it: k·y − Σ is the face within ±k/2 grey levels. Only disjoint
groups with one output each make k people indistinguishable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers.base import ANONYMIZERS, Anonymizer, Faces, Images, Traits, nearest_grey
from ficgan.arrays import resize
from ficgan.errors import InputError, UsageError
from ficgan.faces.alignment import Alignment
from ficgan.faces.blend import crop, paste_back
from ficgan.registry import param

Floats = NDArray[np.float64]

_BLOCK = 1 << 24  # values in float64 that are held at a time (128 MiB)
_NULL = 1e-10  # components with less than this share of the largest variance are rounding, not faces
_CHUNK = 1024  # faces that are worked on at a time


@dataclass(frozen=True, eq=False)
class Eigenspace:
    """Principal components of a set of images, written as weights of the images: there are fewer of them than pixels.

    Args:
        rows: [N,D], one image a row.
        mean, scale: [D]; a row is standardised to z = (row − mean) / scale.
        weights: [N,r]; component c is Σ_i weights[i,c]·z_i, of length 1.
        coordinates: [N,r] of the rows themselves.
    """

    rows: NDArray[Any]
    mean: Floats
    scale: Floats
    weights: Floats
    coordinates: Floats

    @classmethod
    def of(cls, rows: NDArray[Any], components: int, standardise: bool) -> Eigenspace:
        """The space of images [N,D] by their Gram matrix (Turk and Pentland 1991, §2); `components` 0 keeps all."""
        mean, scale = np.zeros(rows.shape[1]), np.ones(rows.shape[1])
        gram = np.zeros((len(rows), len(rows)))
        for part in _columns(rows.shape[1], len(rows)):
            z = rows[:, part].astype(np.float64)
            mean[part] = z.mean(axis=0)
            z -= mean[part]
            if standardise:
                deviation = np.sqrt(np.mean(z * z, axis=0))
                scale[part] = np.where(deviation > 0, deviation, 1.0)
                z /= scale[part]
            gram += z @ z.T
        values, vectors = np.linalg.eigh(gram)
        kept = np.flatnonzero(values > max(_NULL * values[-1], 0.0))[::-1]
        if components > len(kept):
            raise UsageError(f"components is {components}, but {len(rows)} images have {len(kept)}; give fewer, or 0")
        kept = kept[:components] if components else kept
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
        z: Floats = rows[:, part].astype(np.float64)
        z -= self.mean[part]
        z /= self.scale[part]
        return z


def _columns(width: int, rows: int) -> Iterator[slice]:
    step = max(1, _BLOCK // max(rows, 1))
    return (slice(start, min(start + step, width)) for start in range(0, width, step))


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
    variant: str = param(
        "as_released", "as_released: from a background; genuine: disjoint groups", choices=("as_released", "genuine")
    )
    components: int = param(0, "principal components kept; 0 for all", low=0)
    background: _Background | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant == "genuine":  # needs nothing but the faces
            self.declare(needs=frozenset())

    def fit(self, background: Faces) -> _KSame:
        if self.variant == "genuine":
            return self
        people = background.people
        if people is None or (people < 0).any():
            nameless = "" if people is None else f" ({background.names[int(np.argmax(people < 0))]} has none)"
            raise InputError(f"{self.name} takes one face of each person: number the background's people{nameless}")
        count = len(np.unique(people))
        if count < self.k - 1:
            raise UsageError(f"{self.name}: k is {self.k}, and the background has {count} people; lower k or give more")
        if len(background) < 2:
            raise UsageError(f"{self.name}: one image spans no eigenspace; give a background of several")
        space = Eigenspace.of(_flat(background.images), self.components, standardise=True)
        if not space.coordinates.size:
            raise InputError(f"{self.name}: all images of the background are the same; give different faces")
        numbers = np.unique(people, return_inverse=True)[1].reshape(-1)
        return replace(self, background=_Background(space, numbers, background.images.shape[1:]))

    def __call__(self, faces: Faces) -> Images:
        """UsageError without a background, or `genuine` with fewer than k people; InputError for another size."""
        if not len(faces):
            return faces.images.copy()
        if self.variant == "genuine":
            return self._genuine(faces)
        if self.background is None:
            raise UsageError(f"{self.name} needs a background set of other people's faces; call fit first")
        if self.background.shape != faces.images.shape[1:]:
            sizes = [f"{shape[0]}×{shape[1]}" for shape in (self.background.shape, faces.images.shape[1:])]
            raise InputError(f"{self.name}: the background is {sizes[0]} and the faces are {sizes[1]}; make them alike")
        rows, out = _flat(faces.images), np.empty_like(_flat(faces.images))
        for start in range(0, len(rows), _CHUNK):
            part = slice(start, start + _CHUNK)
            coordinates = self.background.space.project(rows[part])
            chosen = self.background.nearest(coordinates, self.k - 1)
            out[part] = self._mean(self.background.space, rows[part], coordinates, chosen)
        return out.reshape(faces.images.shape)

    def _genuine(self, faces: Faces) -> Images:
        people = _persons(faces)
        rows, count = _flat(faces.images), int(people.max()) + 1
        if count < self.k:
            raise UsageError(f"{self.name}: k is {self.k}, and there are {count} people; lower k or give more people")
        if count < len(rows):
            rows = np.stack([rows[people == person].mean(axis=0, dtype=np.float32) for person in range(count)])
        else:
            rows = rows[np.argsort(people)]
        space = Eigenspace.of(rows, self.components, standardise=False)
        groups = k_same_groups(space.coordinates, self.k)
        group_of = np.empty(count, np.int64)
        for number, group in enumerate(groups):
            group_of[group] = number
        return self._common(space, groups)[group_of[people]].reshape(faces.images.shape)

    def _mean(self, space: Eigenspace, rows: Images, coordinates: Floats, chosen: NDArray[np.int64]) -> Images:
        """Means [M,D] of images [M,D] and of the rows `chosen` [M,k − 1] of the space."""
        raise NotImplementedError

    def _common(self, space: Eigenspace, groups: list[NDArray[np.int64]]) -> Images:
        """Means [G,D] of groups of rows of the space."""
        raise NotImplementedError


@ANONYMIZERS.add
@dataclass(frozen=True)
class KSamePixel(_KSame):
    """The mean of pixels, of neighbours in the eigenspace."""

    name = "k-same-pixel"
    traits = Traits(
        title="k-Same-Pixel",
        family="k-anonymity",
        source="Newton, Sweeney and Malin 2005; as released with Fantômas, section 6.1.5",
        strength="k",
        needs=frozenset({"background"}),
    )

    def _mean(self, space: Eigenspace, rows: Images, coordinates: Floats, chosen: NDArray[np.int64]) -> Images:
        out = np.empty_like(rows)
        for start in range(0, len(rows), 64):
            part = slice(start, start + 64)
            total = rows[part].astype(np.uint32)
            for neighbour in chosen[part].T:
                total += space.rows[neighbour]
            out[part] = nearest_grey(total / np.float64(self.k))
        return out

    def _common(self, space: Eigenspace, groups: list[NDArray[np.int64]]) -> Images:
        return np.stack([nearest_grey(space.rows[group].mean(axis=0, dtype=np.float64)) for group in groups])


@ANONYMIZERS.add
@dataclass(frozen=True)
class KSameEigen(_KSame):
    """The mean of coordinates in the eigenspace; with all components `genuine` is k-Same-Pixel."""

    name = "k-same-eigen"
    traits = Traits(
        title="k-Same-Eigen",
        family="k-anonymity",
        source="Newton, Sweeney and Malin 2005; as released with Fantômas, section 6.1.5",
        strength="k",
        needs=frozenset({"background"}),
    )

    def _mean(self, space: Eigenspace, rows: Images, coordinates: Floats, chosen: NDArray[np.int64]) -> Images:
        total = coordinates.copy()
        for neighbour in chosen.T:
            total += space.coordinates[neighbour]
        return space.restore(total / self.k)

    def _common(self, space: Eigenspace, groups: list[NDArray[np.int64]]) -> Images:
        return space.restore(np.stack([space.coordinates[group].mean(axis=0) for group in groups]))


def k_same_groups(coordinates: Floats, k: int) -> list[NDArray[np.int64]]:
    """Disjoint groups of k to 2k − 1 rows of [N,r]: the first left and the k − 1 nearest (Newton et al. 2005)."""
    left, groups = np.arange(len(coordinates)), []
    while len(left) >= 2 * k:
        far = np.square(coordinates[left[1:]] - coordinates[left[0]]).sum(axis=1)
        taken = np.concatenate([[0], 1 + np.argsort(far, kind="stable")[: k - 1]])
        groups.append(np.sort(left[taken]))
        left = np.delete(left, taken)
    return [*groups, left]


def _persons(faces: Faces) -> NDArray[np.int64]:
    """[N] numbers from 0 in order of first appearance; everybody unknown is a person of their own."""
    people = np.full(len(faces), -1) if faces.people is None else faces.people
    keys = [-1 - index if person < 0 else int(person) for index, person in enumerate(people)]
    numbers: dict[int, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


def _flat(images: Images) -> Images:
    return images.reshape(len(images), -1)


def _unit(rows: Floats) -> Floats:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float64).tiny)


@ANONYMIZERS.add
@dataclass(frozen=True)
class AverageFace(Anonymizer):
    """The mean of the background's faces, colour-matched and pasted on every face."""

    name = "average-face"
    traits = Traits(
        title="average-face sticker",
        family="synthesis",
        source="control: what is reached without any model",
        needs=frozenset({"background"}),
    )
    mean: Images | None = field(default=None, repr=False, compare=False)

    def fit(self, background: Faces) -> AverageFace:
        if not len(background):
            raise UsageError("average-face needs a background set of other people's faces, and it is empty")
        size, total = background.images.shape[1], np.zeros(background.images.shape[1:], np.float64)
        alignment = Alignment()
        for image, marks in zip(background.images, background.landmarks, strict=True):
            total += crop(image, alignment.matrix(marks, size), size)
        return replace(self, mean=np.rint(total / len(background)).astype(np.uint8))

    def __call__(self, faces: Faces) -> Images:
        if self.mean is None:
            raise UsageError("average-face needs a background set of other people's faces; call fit first")
        size, alignment, out = faces.images.shape[1], Alignment(), faces.images.copy()
        mean = resize(self.mean, size)
        for image, marks in zip(out, faces.landmarks, strict=True):
            paste_back(image, mean, alignment.matrix(marks, size)).onto(image, np.zeros((size, size), np.float32))
        return out
