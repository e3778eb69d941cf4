"""Means over many half-precision codes in one pass, chunked so that a memory-mapped bank stays on disk."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

CHUNK = 4096
"""Rows at a time: 8 MiB of float32 at 512 numbers a code."""


def rows(codes: NDArray[np.floating], index: NDArray[np.int64] | None = None) -> Iterator[NDArray[np.float32]]:
    """The chosen rows of codes [N,D] (all when None) as float32 [≤CHUNK,D], in order."""
    count = len(codes) if index is None else len(index)
    for begin in range(0, count, CHUNK):
        part = codes[begin : begin + CHUNK] if index is None else codes[index[begin : begin + CHUNK]]
        yield part.astype(np.float32, copy=False)


def mean_of(codes: NDArray[np.floating], index: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
    """Mean of the chosen rows of codes [N,D], accumulated in float64: float64 [D]."""
    total = np.zeros(codes.shape[1], np.float64)
    for part in rows(codes, index):
        total += part.sum(0, dtype=np.float64)
    return total / (len(codes) if index is None else len(index))


def distances_to(
    centre: NDArray[np.float64], codes: NDArray[np.floating], index: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """Euclidean distance of the chosen rows of codes [N,D] from a centre [D]: float64 [M]."""
    parts = [np.linalg.norm(part - centre, axis=1) for part in rows(codes, index)]
    return np.concatenate(parts) if parts else np.zeros(0)
