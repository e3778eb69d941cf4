"""Every probe against the whole gallery, some rows of the score matrix at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.errors import InputError

__all__ = [
    "Comparison",
    "EmbeddingComparison",
    "Index",
    "Likeness",
    "MatrixComparison",
    "ScoreArray",
    "embeddings",
    "finite",
]

ScoreArray = NDArray[np.floating[Any]]
Index = NDArray[np.intp]
Likeness = Literal["cosine", "euclidean"]

_ENTRIES = 2**21
"""Scores of one block at most, so that memory does not grow with the number of probes."""


class Comparison(Protocol):
    """What gives similarities: higher is more alike."""

    def blocks(self, rows: Index, block: int) -> Iterator[tuple[Index, ScoreArray]]:
        """Some of `rows`, and their similarities [R,G], which the caller may overwrite.

        Every row comes once, in any order; another call gives the same values bit for bit.
        """
        ...


class EmbeddingComparison:
    """Cosines, or negative Euclidean distances, of embeddings.

    Equal embeddings have equal scores bit for bit wherever they stand, which a matrix product does not promise: only
    different ones are multiplied, and the scores handed out to all that share them. So ties are ties.

    Args:
        probe: [P,D] finite.
        gallery: [G,D] finite, in the order of the columns.
        metric: "cosine" or "euclidean".
    """

    def __init__(self, probe: NDArray[Any], gallery: NDArray[Any], metric: Likeness) -> None:
        self._metric = metric
        centre = gallery.mean(0, dtype=np.float64) if metric == "euclidean" and len(gallery) else None
        self._probe, self._probe_of = _distinct(_prepared(probe, centre, "probe"))
        self._gallery, self._gallery_of = _distinct(_prepared(gallery, centre, "gallery"))
        self._squares = _squares(self._gallery) if metric == "euclidean" else None

    def blocks(self, rows: Index, block: int) -> Iterator[tuple[Index, ScoreArray]]:
        columns = len(self._gallery) if self._gallery_of is None else len(self._gallery_of)
        step = max(1, min(block, _ENTRIES // max(1, columns)))
        if self._probe_of is None:
            for begin in range(0, len(rows), step):
                part = rows[begin : begin + step]
                yield part, self._expanded(self._similarity(self._probe[part]))
            return
        rows = rows[np.argsort(self._probe_of[rows], kind="stable")]
        owners = self._probe_of[rows]
        wanted = np.unique(owners)
        for begin in range(0, len(wanted), step):
            part = wanted[begin : begin + step]
            scores = self._similarity(self._probe[part])
            first, last = np.searchsorted(owners, [part[0], part[-1] + 1])
            for low in range(first, last, step):
                high = min(low + step, last)
                yield rows[low:high], self._expanded(scores[np.searchsorted(part, owners[low:high])])

    def twins(self, people: NDArray[np.int64]) -> int:
        """Gallery images whose embedding stands in the gallery under another person too."""
        if self._gallery_of is None:
            return 0
        lowest, highest = np.full(len(self._gallery), np.iinfo(np.int64).max), np.full(len(self._gallery), -1)
        np.minimum.at(lowest, self._gallery_of, people)
        np.maximum.at(highest, self._gallery_of, people)
        return int((lowest < highest)[self._gallery_of].sum())

    def _similarity(self, probe: ScoreArray) -> ScoreArray:
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused by whoever counts
            scores = probe @ self._gallery.T
            if self._squares is not None:
                scores *= -2
                scores += _squares(probe)[:, None]
                scores += self._squares
                np.maximum(scores, 0, out=scores)  # NaN stays NaN
                np.sqrt(scores, out=scores)
                np.negative(scores, out=scores)
        return scores

    def _expanded(self, scores: ScoreArray) -> ScoreArray:
        return scores if self._gallery_of is None else scores[:, self._gallery_of]


class MatrixComparison:
    """Scores that are there already.

    Args:
        matrix: [P,G] floats, higher is more alike.
        order: [G], which column stands where.
    """

    def __init__(self, matrix: ScoreArray, order: Index) -> None:
        self._matrix, self._order = matrix, order

    def blocks(self, rows: Index, block: int) -> Iterator[tuple[Index, ScoreArray]]:
        step = max(1, min(block, _ENTRIES // max(1, len(self._order))))
        for begin in range(0, len(rows), step):
            part = rows[begin : begin + step]
            yield part, self._matrix[part[:, None], self._order]


def embeddings(given: ArrayLike, what: str) -> NDArray[Any]:
    """Embeddings as an array [N,D] of numbers.

    Raises:
        InputError: another shape, or nothing in it.
    """
    array = np.asarray(given)
    if array.ndim != 2 or not array.size or array.dtype.kind not in "fiu":
        raise InputError(f"the {what} embeddings are {array.dtype} {list(array.shape)}; give numbers [N,D], N ≥ 1")
    return array


def finite(array: NDArray[Any], what: str) -> None:
    """Refuse embeddings that hold NaN or infinity.

    Raises:
        InputError: names the first of them and their number.
    """
    bad = np.flatnonzero(~np.isfinite(array).all(1))
    if len(bad):
        raise InputError(
            f"{len(bad)} of {len(array)} {what} embeddings are not finite (the first is number {bad[0]}); "
            "say that these faces were not acquired, or leave them out"
        )


def _prepared(array: NDArray[Any], centre: NDArray[np.float64] | None, what: str) -> NDArray[np.float32]:
    """Unit length for cosines; for distances about the gallery's middle, where float32 cancels least."""
    out = np.empty(array.shape, np.float32)
    for begin in range(0, len(array), 4096):
        part = array[begin : begin + 4096].astype(np.float64)
        if centre is not None:
            part -= centre
        else:
            part /= np.abs(part).max(1, keepdims=True).clip(np.finfo(np.float64).tiny)  # no overflow in the square
            length = np.linalg.norm(part, axis=1, keepdims=True)
            if not length.all():
                where = begin + int(np.flatnonzero(length == 0)[0])
                raise InputError(f"{what} embedding number {where} is all zeros, which has no cosine; leave it out")
            part /= length
        with np.errstate(over="ignore"):
            out[begin : begin + 4096] = part + 0.0  # −0 becomes 0, so that equal rows have equal bytes
    return out


def _distinct(array: NDArray[np.float32]) -> tuple[NDArray[np.float32], Index | None]:
    """The different rows, and which of them each row is; None if all differ."""
    rows = array.view(np.dtype((np.void, array.dtype.itemsize * array.shape[1]))).ravel()
    _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    return (array, None) if len(first) == len(array) else (array[first], inverse.ravel())


def _squares(array: ScoreArray) -> ScoreArray:
    return np.einsum("nd,nd->n", array, array)
