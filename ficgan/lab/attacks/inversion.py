"""Inversions: a keyed method's own inverse, a learnt permutation, a background taken away, and any linear map."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer, Faces, Images
from ficgan.anonymizers.base import nearest_grey
from ficgan.errors import InputError, UsageError
from ficgan.lab.attacks.base import REVERSERS, Float, Pairs, Reverser, ReverserTraits, people_of
from ficgan.lab.attacks.deconvolution import areas, filtered, laplacian
from ficgan.registry import param

Matrix = NDArray[np.float64]


@REVERSERS.add
@dataclass(frozen=True)
class KeyedInverse(Reverser):
    """The inverse of a keyed anonymiser with the "right" key, or with a "wrong" one of the same kind."""

    name: ClassVar[str] = "keyed-inverse"
    traits: ClassVar[ReverserTraits] = ReverserTraits(
        title="The method's own inverse",
        source="Fantômas, §6.1",
        knowledge=frozenset({"method", "parameters", "key"}),
        against=frozenset({"block-permutation", "pixel-relocation", "k-rtio"}),
    )

    key: str = param("right", "whose key: the anonymiser's own, or another", choices=("right", "wrong"))
    anonymizer: Anonymizer | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.anonymizer is not None and not self.anonymizer.traits.keyed:
            raise UsageError(f"{self.anonymizer.name} is not keyed: it has no inverse to try")

    def guess(self, faces: Faces) -> Images:
        if self.anonymizer is None:
            raise UsageError(f"{self.name} has no anonymiser; make it with KeyedInverse(anonymizer=…)")
        owner = self.anonymizer if self.key == "right" else another_key(self.anonymizer)
        return owner.invert(faces)


def another_key(anonymizer: Anonymizer) -> Anonymizer:
    """The same anonymiser with other values in all its secret parameters."""
    secrets = [field.name for field, limits in anonymizer.parameters() if limits["secret"]]
    if not secrets:
        raise UsageError(f"{anonymizer.name} has no secret parameter, so there is no wrong key to try")
    return dataclasses.replace(anonymizer, **{name: _other_key(getattr(anonymizer, name)) for name in secrets})


def _other_key(key: Any) -> Any:
    if isinstance(key, int):
        return key + 1
    digest = hashlib.blake2b(b"another" + (key if isinstance(key, bytes) else str(key).encode())).digest()
    if isinstance(key, bytes):
        return (digest * (len(key) // len(digest) + 1))[: len(key)]
    return (digest.hex() * (len(key) // 128 + 1))[: len(key) or 32]


@REVERSERS.add
@dataclass(frozen=True)
class LearnPermutation(Reverser):
    """One fixed permutation of all pixels, found by the colours that a place shows over all pairs (Fantômas, §6.2.3).

    Equal signatures are matched in reading order; pixels without a match are kept, as in lossy files.

    Attributes:
        source: [S,S] for every clear pixel the index, in reading order, of the anonymised one that holds it.
        ambiguous: places whose signature other places share.
        unmatched: clear places whose signature no anonymised place has.
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
        if not len(pairs.clear):
            raise InputError(f"{self.name} was given no pairs; give at least one")
        there, here = _signatures(pairs.anonymised.images), _signatures(pairs.clear.images)
        # Sorted by signature, the n-th of a kind here belongs to the n-th of that kind there.
        order = np.argsort(there, kind="stable")
        first, last = (np.searchsorted(there[order], here, side) for side in ("left", "right"))
        place = first + _rank_in_kind(here)
        found = place < last
        source = np.arange(len(here))
        source[found] = order[place[found]]
        _, kind, count = np.unique(here, return_inverse=True, return_counts=True)
        size = pairs.clear.images.shape[1]
        ambiguous, unmatched = int(np.sum((count[kind] > 1) & found)), int(np.sum(~found))
        return replace(self, source=source.reshape(size, size), ambiguous=ambiguous, unmatched=unmatched)

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
    order = np.argsort(values, kind="stable")
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values)) - np.searchsorted(values[order], values[order], "left")
    return rank


@REVERSERS.add
@dataclass(frozen=True)
class KSameSubtraction(Reverser):
    """Against k-Same with a public background: k·y − Σ of the k − 1 faces of the background that went into y.

    With the right faces every grey level is within k/2. They are those after whose subtraction the least edges are
    left: first chosen one at a time, then exchanged while that helps. Fantômas, §6.1.4, has the anonymiser; the attack
    is ours.
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
    _products: Matrix | None = field(default=None, repr=False, compare=False)

    def fit(self, pairs: Pairs) -> KSameSubtraction:
        """With the background set of the pairs; the pairs themselves are not looked at."""
        background = pairs.background
        if background is None:
            raise UsageError(f"{self.name} must know the background; give it with the pairs")
        count = len(np.unique(people_of(background)))
        if count < self.k - 1:
            raise UsageError(f"{self.name}: k is {self.k}, and the background has {count} people; give the k used")
        products = _edge_products(background.images, background.images)
        return replace(self, background=background, _products=products)

    def chosen(self, faces: Faces) -> NDArray[np.int64]:
        """Rows of the background that went into each face: [N,k − 1]."""
        if self._products is None or self.background is None:
            raise UsageError(f"{self.name} knows no background yet; fit it on pairs that have one")
        if faces.images.shape[1:] != self.background.images.shape[1:]:
            raise InputError(f"{self.name} has a background of another size; give crops of its size")
        shares, people = self.k * _edge_products(faces.images, self.background.images), people_of(self.background)
        rows = [_least_edges(share, self._products, people, self.k - 1) for share in shares]
        return np.array(rows, np.int64).reshape(len(faces), self.k - 1)

    def guess(self, faces: Faces) -> Images:
        rows = self.chosen(faces)
        assert self.background is not None
        out = np.empty_like(faces.images)
        for index, (image, others) in enumerate(zip(faces.images, rows, strict=True)):
            total = self.background.images[others].sum(axis=0, dtype=np.int64)
            out[index] = np.clip(self.k * image.astype(np.int64) - total, 0, 255)
        return out


def _least_edges(share: Matrix, products: Matrix, people: NDArray[np.int64], count: int) -> list[int]:
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
            chosen[place] = best_beside(chosen[:place] + chosen[place + 1 :])
        if chosen == before:
            break
    return chosen


_ROWS = 512


def _edge_products(left: Images, right: Images) -> Matrix:
    """[N,M]: products of the gradients of two sets of pictures; in gradients different faces have little in common."""
    size = left.shape[1]
    area = areas(size).astype(np.float32)[..., None]  # for which the Laplacian is symmetric
    others = _flat(right)
    out = np.zeros((len(left), len(right)))
    for start in range(0, len(left), _ROWS):
        rows = slice(start, start + _ROWS)
        curved = (filtered(left[rows], laplacian(size)) * area).reshape(len(out[rows]), -1)
        for part in _blocks(others.shape[1]):
            out[rows] += curved[:, part] @ others[:, part].T.astype(np.float32)
    return out


@REVERSERS.add
@dataclass(frozen=True)
class Ridge(Reverser):
    """The linear map from anonymised to clear pixels of the least squared error, between principal components.

    With orthogonal scores A and targets C, the ridge solution is Aᵀ·C divided row by row by s² + λ, so every λ and
    every number of components is tried on held-out people at the price of one (Hoerl and Kennard 1970, eq. 2.3).

    Attributes:
        ridge: λ chosen, as a share of the mean variance of the anonymised components.
        inputs, outputs: numbers of components chosen.
    """

    name: ClassVar[str] = "ridge"
    traits: ClassVar[ReverserTraits] = ReverserTraits(
        title="Ridge regression", source="this work; Hoerl and Kennard 1970", knowledge=frozenset({"pairs"})
    )

    components: int = param(1024, "most principal components on either side", low=1)
    pairs: int = param(3000, "most pairs to learn from; memory and time grow with its square", low=2)
    held: float = param(0.2, "share of the people held out to choose on", low=0.01, high=0.9)

    ridge: float = 0.0
    inputs: int = 0
    outputs: int = 0
    _map: tuple[Float, Float, Float, Float] | None = field(default=None, repr=False, compare=False)
    """Mean of the anonymised pixels, encoder [r,D], decoder [r,D], mean of the clear pixels."""

    def fit(self, pairs: Pairs) -> Ridge:
        """With the map between the pairs; λ and the numbers of components are chosen on people held out."""
        rows = np.linspace(0, len(pairs.clear) - 1, min(self.pairs, len(pairs.clear))).round().astype(np.int64)
        seen, clear = _flat(pairs.anonymised.images[rows]), _flat(pairs.clear.images[rows])
        held = _held_out(people_of(pairs.clear)[rows], self.held)
        seen_gram, clear_gram = _gram(seen), _gram(clear)
        ridge, n, m = _choose(seen_gram, clear_gram, ~held, self.components)

        inputs, outputs = _Components(seen_gram), _Components(clear_gram)
        n, m = min(n, len(inputs.lengths)), min(m, len(outputs.lengths))
        # Directions in pixels are weighted sums of the centred images; the regression goes into the encoding side.
        code = inputs.regression(outputs.scores[:, :m], n, ridge)
        seen_mean, clear_mean = (pixels.mean(axis=0, dtype=np.float64).astype(np.float32) for pixels in (seen, clear))
        encode = _directions(seen, seen_mean, inputs.weights[:, :n] @ code)
        decode = _directions(clear, clear_mean, outputs.weights[:, :m])
        return replace(self, ridge=ridge, inputs=n, outputs=m, _map=(seen_mean, encode, decode, clear_mean))

    def guess(self, faces: Faces) -> Images:
        if self._map is None:
            raise UsageError(f"{self.name} has learnt nothing yet; fit it on pairs")
        seen_mean, encode, decode, clear_mean = self._map
        flat = _flat(faces.images)
        if flat.shape[1] != len(seen_mean):
            raise InputError(f"{self.name} was fitted on crops of another size; give crops of the fitted size")
        out = np.empty(flat.shape, np.uint8)
        for part in _blocks(len(flat), 256):
            out[part] = nearest_grey((flat[part].astype(np.float32) - seen_mean) @ encode.T @ decode + clear_mean)
        return out.reshape(faces.images.shape)


class _Components:
    def __init__(self, gram: Matrix) -> None:
        self._gram = gram
        values, vectors = np.linalg.eigh(gram - gram.mean(0) - gram.mean(1)[:, None] + gram.mean())
        kept = np.flatnonzero(values > 1e-6 * max(float(values[-1]), 1e-9))[::-1]
        if not len(kept):  # all images alike: one component, of no length to speak of
            kept = np.array([len(values) - 1])
        self.lengths = np.sqrt(np.maximum(values[kept], 1.0))
        self.scores, self.weights = vectors[:, kept] * self.lengths, vectors[:, kept] / self.lengths

    def project(self, products: Matrix) -> Matrix:
        return (products - products.mean(1)[:, None] - self._gram.mean(0) + self._gram.mean()) @ self.weights

    def regression(self, targets: Matrix, n: int, ridge: float) -> Matrix:
        squares = self.lengths**2
        return (self.scores[:, :n].T @ targets) / (squares[:n, None] + ridge * np.mean(squares))


def _choose(seen_gram: Matrix, clear_gram: Matrix, learnt: NDArray[np.bool_], most: int) -> tuple[float, int, int]:
    inputs, outputs = (_Components(gram[np.ix_(learnt, learnt)]) for gram in (seen_gram, clear_gram))
    held = inputs.project(seen_gram[np.ix_(~learnt, learnt)])
    m = min(most, len(outputs.lengths))
    truth = outputs.project(clear_gram[np.ix_(~learnt, learnt)])[:, :m]
    counts = [int(n) for n in np.unique(np.geomspace(1, min(most, len(inputs.lengths)), 12).round())]
    least, best = np.inf, (1.0, 1, 1)
    for ridge in 10.0 ** np.arange(-6, 2.1, 0.5):
        weights = inputs.regression(outputs.scores[:, :m], counts[-1], ridge)
        predicted, done = np.zeros((len(held), m)), 0
        for n in counts:
            predicted += held[:, done:n] @ weights[done:n]
            done = n
            # What another clear component gains over leaving it at its mean; then all so many first ones together.
            gains = np.cumsum(np.sum((truth - predicted) ** 2 - truth**2, axis=0))
            k = int(np.argmin(gains))
            if gains[k] < least:
                least, best = float(gains[k]), (float(ridge), n, k + 1)
    return best


def _gram(rows: NDArray[np.uint8]) -> Matrix:
    out = np.zeros((len(rows), len(rows)))
    for part in _blocks(rows.shape[1]):
        block = rows[:, part].astype(np.float32) - 127.5
        out += block @ block.T
    return out


def _held_out(people: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    known = np.unique(people)
    if len(known) < 2:
        raise InputError(f"ridge was given pairs of {len(known)} person; give pairs of at least two people")
    count = min(max(1, round(share * len(known))), len(known) - 1)
    return np.isin(people, known[np.linspace(0, len(known) - 1, count).round().astype(int)])


def _directions(rows: NDArray[np.uint8], mean: Float, weights: Matrix) -> Float:
    """Weighted sums [r,D] of the centred rows [N,D]."""
    out = np.empty((weights.shape[1], rows.shape[1]), np.float32)
    across = np.ascontiguousarray(weights.T, np.float32)
    for part in _blocks(rows.shape[1]):
        out[:, part] = across @ (rows[:, part].astype(np.float32) - mean[part])
    return out


def _flat(images: Images) -> NDArray[np.uint8]:
    return images.reshape(len(images), math.prod(images.shape[1:]))


def _blocks(width: int, step: int = 8192) -> Iterator[slice]:
    return (slice(start, start + step) for start in range(0, width, step))
