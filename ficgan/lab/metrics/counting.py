"""What is kept of a score matrix that is never there as a whole: exact counts, and what belongs to each probe."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError

from .comparison import Comparison, Index, ScoreArray
from .pairing import Columns

__all__ = ["BINS", "TAIL", "Exact", "Looks", "bins_of", "count", "look", "over"]

BINS = 1000
"""Bins of the histograms by identity: the bootstrap of AUC, EER, TAR and D_sys reads them."""

TAIL = 1e-2
"""Share of the impostor scores, from the top, that is kept as it is."""


@dataclass(frozen=True)
class Looks:
    """Of the first pass: the probes' own figures (arrays over all probes, [P]) and all genuine scores."""

    best_genuine: NDArray[np.float64]
    best_impostor: NDArray[np.float64]
    impostor_person: NDArray[np.int64]
    second_impostor: NDArray[np.float64]
    better: NDArray[np.int64]
    tied: NDArray[np.int64]
    genuine: ScoreArray
    genuine_probe: Index
    span: tuple[float, float]


@dataclass(frozen=True)
class Exact:
    """Of the second pass: impostor scores against thresholds."""

    above: NDArray[np.int64]
    at_least: NDArray[np.int64]
    tail: ScoreArray
    histogram: NDArray[np.int32]


def look(comparison: Comparison, columns: Columns, rows: Index, block: int) -> Looks:
    """Genuine scores, and how the nearest strangers compare with them.

    Raises:
        InputError: a score is not finite.
    """
    probes = len(columns.of)
    best, near, second = (np.full(probes, value) for value in (np.nan, np.nan, -math.inf))
    person, better, tied = (np.zeros(probes, np.int64) for _ in range(3))
    genuine: list[ScoreArray] = []
    owners: list[Index] = []
    low, high = math.inf, -math.inf
    single = bool((columns.images == 1).all())
    for part, scores in comparison.blocks(rows, block):
        ends = float(scores.min()), float(scores.max())
        if not (math.isfinite(ends[0]) and math.isfinite(ends[1])):
            where = int(part[np.flatnonzero(~np.isfinite(scores).all(1))[0]])
            raise InputError(f"scores of probe number {where} are not finite; check its embedding, or leave it out")
        line, column, real = columns.not_strangers(part)
        genuine.append(scores[line[real], column[real]])
        owners.append(part[line[real]])
        own_best = np.full(len(part), -np.inf, scores.dtype)
        np.maximum.at(own_best, line[real], genuine[-1])
        scores[line, column] = -np.inf
        by_person = scores if single else np.maximum.reduceat(scores, columns.first, axis=1)
        mated = columns.genuine[part] > 0
        best[part[mated]] = own_best[mated]
        better[part] = np.where(mated, np.count_nonzero(by_person > own_best[:, None], axis=1), 0)
        tied[part] = np.where(mated, np.count_nonzero(by_person == own_best[:, None], axis=1), 0)
        nearest = by_person.argmax(1)
        each = np.arange(len(part))
        near[part], person[part] = by_person[each, nearest], columns.people[nearest]
        by_person[each, nearest] = -np.inf
        second[part] = by_person.max(1)
        low, high = min(low, ends[0]), max(high, float(near[part].max()), float(own_best.max()))
    empty = np.empty(0, np.float32)
    return Looks(
        best, near, person, second, better, tied,
        genuine=np.concatenate(genuine) if genuine else empty,
        genuine_probe=np.concatenate(owners) if owners else np.empty(0, np.intp),
        span=(low, high) if rows.size else (0.0, 0.0),
    )  # fmt: skip


def count(
    comparison: Comparison,
    columns: Columns,
    rows: Index,
    block: int,
    *,
    thresholds: ScoreArray,
    span: tuple[float, float],
    group: Index,
    groups: int,
) -> Exact:
    """Exact counts of impostor scores above each threshold, their top, and a histogram for each identity.

    Args:
        thresholds: [T] ascending.
        span: lowest and highest score.
        group: [P] which identity a probe belongs to, of `groups`.
    """
    above, at_least = np.zeros(len(thresholds), np.int64), np.zeros(len(thresholds), np.int64)
    histogram = np.zeros((groups, BINS), np.int32)
    top = _Top(columns.strangers(rows))
    for part, scores in comparison.blocks(rows, block):
        line, column, _ = columns.not_strangers(part)
        scores[line, column] = -np.inf
        at = bins_of(scores, span)
        at += (np.arange(len(part), dtype=np.int32) * BINS)[:, None]
        found = np.bincount(at.ravel(), minlength=len(part) * BINS).reshape(len(part), BINS)
        found[:, 0] -= np.bincount(line, minlength=len(part))  # −∞ fell into the lowest bin
        np.add.at(histogram, group[part], found.astype(np.int32))
        flat = np.sort(scores, axis=None)
        above += len(flat) - flat.searchsorted(thresholds, "right")
        at_least += len(flat) - flat.searchsorted(thresholds, "left")
        top.add(flat[len(line) :])
    return Exact(above, at_least, top.take(), histogram)


def over(comparison: Comparison, columns: Columns, rows: Index, block: int, threshold: float) -> NDArray[np.int64]:
    """[P] how many impostor scores of each probe lie above one threshold; 0 for probes that are not in `rows`."""
    out = np.zeros(len(columns.of), np.int64)
    for part, scores in comparison.blocks(rows, block):
        line, column, _ = columns.not_strangers(part)
        scores[line, column] = -np.inf
        out[part] = np.count_nonzero(scores > threshold, axis=1)
    return out


def bins_of(scores: ScoreArray, span: tuple[float, float], bins: int = BINS) -> NDArray[np.int32]:
    """Which of the equal bins between the ends of `span` a score lies in; outside: the first, the last."""
    low, high = span
    scaled = np.maximum(scores, low)
    scaled -= low
    scaled *= bins / (high - low) if high > low else 0.0
    return np.minimum(scaled, bins - 1, out=scaled).astype(np.int32)


class _Top:
    """The highest of many scores, with memory for a few times as many."""

    def __init__(self, scores: int) -> None:
        self._size = min(scores, math.ceil(TAIL * scores) + 1)
        self._floor = -math.inf
        self._kept: list[Any] = []
        self._held = 0

    def add(self, ascending: ScoreArray) -> None:
        some = ascending[max(0, len(ascending) - self._size) :]
        some = some[some.searchsorted(self._floor, "right") if math.isfinite(self._floor) else 0 :]
        self._kept.append(some.copy())
        self._held += len(some)
        if self._held > 2 * self._size + 2**16:
            self._shrink()

    def take(self) -> ScoreArray:
        """Descending."""
        self._shrink()
        return np.sort(self._kept[0])[::-1] if self._kept else np.empty(0, np.float32)

    def _shrink(self) -> None:
        if not self._kept:
            return
        every = np.concatenate(self._kept)
        if len(every) > self._size:
            every = np.partition(every, len(every) - self._size)[len(every) - self._size :]
            self._floor = float(every[0])
        self._kept, self._held = [every], len(every)
