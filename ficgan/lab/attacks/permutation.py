"""Against permutations of pixels: the permutation is read off pairs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces, Images
from ficgan.errors import InputError, UsageError
from ficgan.lab.attacks.base import REVERSERS, Pairs, Reverser, ReverserTraits

__all__ = ["LearnPermutation"]


@REVERSERS.add
@dataclass(frozen=True)
class LearnPermutation(Reverser):
    """One fixed permutation of all pixels, found because a pixel brings its colours along.

    The colours that a place shows over all pairs are its signature. The clear place with the same signature is where
    an anonymised pixel came from; it takes about as many pairs as the most uniform corner of the pictures needs.
    Places that look alike in all pairs are matched in reading order. Lossy files have no equal signatures: what finds
    no match keeps the anonymised pixel.

    Attributes:
        source: [S,S] for every clear pixel the index, in reading order, of the anonymised one that holds it.
        ambiguous: places whose signature other places share.
        unmatched: clear places whose signature no anonymised place has.

    Source:
        Fantômas, §6.2.3.
    """

    name: ClassVar[str] = "learn-permutation"
    traits: ClassVar[ReverserTraits] = ReverserTraits(
        title="Learnt permutation",
        source="Fantômas, §6.2.3",
        knowledge=frozenset({"pairs"}),
        against=frozenset({"block-permutation", "pixel-relocation"}),
    )

    source: NDArray[np.int64] | None = field(default=None, repr=False, compare=False)
    ambiguous: int = 0
    unmatched: int = 0

    def fit(self, pairs: Pairs) -> LearnPermutation:
        """With the permutation between the pairs."""
        if not len(pairs.clear):
            raise InputError(f"{self.name} was given no pairs; give at least one")
        there = _signatures(pairs.anonymised.images)
        here = _signatures(pairs.clear.images)
        # Sorted by signature, the n-th of a kind here belongs to the n-th of that kind there.
        order = np.argsort(there, kind="stable")
        rank = _rank_in_kind(here)
        first = np.searchsorted(there[order], here, "left")
        last = np.searchsorted(there[order], here, "right")
        found = first + rank < last
        source = np.arange(len(here))
        source[found] = order[(first + rank)[found]]
        _, kind, count = np.unique(here, return_inverse=True, return_counts=True)
        size = pairs.clear.images.shape[1]
        return replace(
            self,
            source=source.reshape(size, size),
            ambiguous=int(np.sum((count[kind] > 1) & found)),
            unmatched=int(np.sum(~found)),
        )

    def guess(self, faces: Faces) -> Images:
        if self.source is None:
            raise UsageError(f"{self.name} has learnt no permutation yet; fit it on pairs")
        size = faces.images.shape[1]
        if len(self.source) != size:
            raise InputError(f"{self.name} was fitted on crops of {len(self.source)} pixels, and these have {size}")
        return faces.images.reshape(len(faces), size * size, 3)[:, self.source]


def _signatures(images: Images) -> NDArray[np.uint64]:
    """[N,S,S,3] → [S·S]: 64-bit hashes of the N colours a place shows; equal colours give equal hashes."""
    flat = images.reshape(len(images), -1, 3)
    out = np.zeros(flat.shape[1], np.uint64)
    for colours in flat:
        code = colours.astype(np.uint64) @ np.array([1 << 16, 1 << 8, 1], np.uint64)
        out = (out ^ (code + np.uint64(1))) * np.uint64(0x9E3779B97F4A7C15)
        out ^= out >> np.uint64(29)
    return out


def _rank_in_kind(values: NDArray[np.uint64]) -> NDArray[np.int64]:
    """How many equal values stand before each."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    run = np.zeros(len(values), np.int64)
    run[starts[1:]] = np.diff(starts)
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values)) - np.cumsum(run)
    return rank
