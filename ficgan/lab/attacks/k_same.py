"""Against k-Same with a public background: what was added is found and taken away."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces, Images
from ficgan.errors import InputError, UsageError
from ficgan.lab.attacks.base import REVERSERS, Pairs, Reverser, ReverserTraits
from ficgan.lab.attacks.similarity import to_uint8
from ficgan.lab.attacks.spectral import filtered, laplacian, weights
from ficgan.registry import param

__all__ = ["KSameSubtraction"]


@REVERSERS.add
@dataclass(frozen=True)
class KSameSubtraction(Reverser):
    """k·y − Σ of the k − 1 faces of the background that went into y.

    The rounding of y is multiplied by k, so with the right faces every grey level is within k/2. They are found by what
    they leave behind: whatever is wrongly taken away, or not taken away, adds its edges to the result. The k − 1
    faces, one for each person, are those after whose subtraction the least edges are left: first the best one at a
    time, then exchanged while that helps.

    Source:
        Fantômas, §6.1.4 (the anonymiser adds the original to k − 1 public faces); the subtraction is this work's.
    """

    name: ClassVar[str] = "k-same-subtraction"
    traits: ClassVar[ReverserTraits] = ReverserTraits(
        title="Subtraction of a known background",
        source="this work",
        knowledge=frozenset({"method", "parameters", "background"}),
        against=frozenset({"k-same-pixel"}),
    )

    k: int = param(10, "faces that were averaged, the original included", low=2)

    background: Faces | None = field(default=None, repr=False, compare=False)
    _products: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    _people: NDArray[np.int64] | None = field(default=None, repr=False, compare=False)

    def fit(self, pairs: Pairs) -> KSameSubtraction:
        """With the background set of the pairs; the pairs themselves are not looked at.

        Raises:
            UsageError: no background, or one of fewer than k − 1 people.
        """
        if pairs.background is None:
            raise UsageError(f"{self.name} must know the background; give it with the pairs")
        background = pairs.background
        people = np.arange(len(background)) if background.people is None else background.people
        people = np.where(people < 0, -1 - np.arange(len(background)), people)
        count = len(np.unique(people))
        if count < self.k - 1:
            raise UsageError(f"{self.name}: k is {self.k}, and the background has {count} people; give the k used")
        products = _edge_products(background.images, background.images)
        return replace(self, background=background, _products=products, _people=people)

    def chosen(self, faces: Faces) -> NDArray[np.int64]:
        """Rows of the background that went into each face: [N,k − 1]."""
        if self._products is None or self._people is None or self.background is None:
            raise UsageError(f"{self.name} knows no background yet; fit it on pairs that have one")
        if faces.images.shape[1:] != self.background.images.shape[1:]:
            raise InputError(f"{self.name} has a background of another size; give crops of its size")
        shares = self.k * _edge_products(faces.images, self.background.images)
        out = np.empty((len(faces), self.k - 1), np.int64)
        for row, share in enumerate(shares):
            out[row] = _least_edges(share, self._products, self._people, self.k - 1)
        return out

    def guess(self, faces: Faces) -> Images:
        rows = self.chosen(faces)
        assert self.background is not None
        out = np.empty_like(faces.images)
        for index, (image, others) in enumerate(zip(faces.images, rows, strict=True)):
            total = self.background.images[others].sum(axis=0, dtype=np.int64)
            out[index] = to_uint8((self.k * image.astype(np.int64) - total).astype(np.float64))
        return out


def _least_edges(
    share: NDArray[np.float64], products: NDArray[np.float64], people: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """The rows S, one a person, for which |t − Σ_S b|² = |t|² − 2·Σ share + Σ Σ products is least.

    Args:
        share: [M] products of the target t with every row b.
        products: [M,M] of the rows among themselves.
        people: [M].
        count: size of S.
    """
    own = np.diag(products) - 2 * share
    chosen: list[int] = []

    def best_beside(others: list[int]) -> int:
        cost = own + 2 * products[:, others].sum(axis=1)
        cost[np.isin(people, people[others])] = np.inf
        return int(np.argmin(cost))

    for _ in range(count):
        chosen.append(best_beside(chosen))
    for _ in range(20):  # rounds of exchanges; each lowers the sum, and two or three are enough
        before = list(chosen)
        for place in range(count):
            others = chosen[:place] + chosen[place + 1 :]
            chosen[place] = best_beside(others)
        if chosen == before:
            break
    return np.array(chosen, np.int64)


def _edge_products(left: Images, right: Images) -> NDArray[np.float64]:
    """[N,M]: products of the gradients of two sets of pictures; in gradients different faces have little in common.

    ⟨∇a, ∇b⟩ is ⟨−Δa, b⟩, so the right set is used as it lies in memory, block by block.
    """
    size = left.shape[1]
    area = np.outer(weights(size), weights(size)).astype(np.float32)[..., None]  # for which the Laplacian is symmetric
    others = right.reshape(len(right), size * size * 3)
    out = np.zeros((len(left), len(right)))
    for start in range(0, len(left), _ROWS):
        rows = slice(start, start + _ROWS)
        curved = (filtered(left[rows], laplacian(size)) * area).reshape(len(out[rows]), size * size * 3)
        for first in range(0, others.shape[1], _COLUMNS):
            part = slice(first, first + _COLUMNS)
            out[rows] += curved[:, part] @ others[:, part].T.astype(np.float32)
    return out


_ROWS, _COLUMNS = 512, 8192
