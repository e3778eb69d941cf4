"""Eigenfaces of a set of images, without ever holding a component: bounded memory for images of any size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import UsageError

__all__ = ["Eigenspace", "nearest_grey"]

_BLOCK = 1 << 24
"""Values in float64 that are held at a time (128 MiB)."""
_NULL = 1e-10
"""Components with less than this share of the largest variance are rounding, not faces."""


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
    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    weights: NDArray[np.float64]
    coordinates: NDArray[np.float64]

    @classmethod
    def of(cls, rows: NDArray[Any], components: int, standardise: bool) -> Eigenspace:
        """The space of a set of images, by the eigenvectors of its Gram matrix [N,N].

        Args:
            rows: [N,D], grey levels.
            components: how many to keep; 0 for all that are more than rounding, at most N − 1.
            standardise: divide every pixel by its standard deviation over the set, where that is not 0.

        Raises:
            UsageError: more components than there are.

        Source:
            Turk and Pentland 1991, Eigenfaces for Recognition, section 2.
        """
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

    def project(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        """Coordinates [M,r] of images [M,D]."""
        products = np.zeros((len(rows), len(self.rows)))
        for part in _columns(rows.shape[1], len(rows) + len(self.rows)):
            products += self._standard(rows, part) @ self._standard(self.rows, part).T
        return products @ self.weights

    def restore(self, coordinates: NDArray[np.float64]) -> NDArray[np.uint8]:
        """Images [M,D] at coordinates [M,r], in the nearest grey levels."""
        mixture = coordinates @ self.weights.T
        out = np.empty((len(mixture), self.rows.shape[1]), np.uint8)
        for part in _columns(out.shape[1], len(out) + len(self.rows)):
            pixels = mixture @ self._standard(self.rows, part) * self.scale[part] + self.mean[part]
            out[:, part] = nearest_grey(pixels)
        return out

    def _standard(self, rows: NDArray[Any], part: slice) -> NDArray[np.float64]:
        z: NDArray[np.float64] = rows[:, part].astype(np.float64)
        z -= self.mean[part]
        z /= self.scale[part]
        return z


def nearest_grey(values: NDArray[np.floating]) -> NDArray[np.uint8]:
    """The nearest grey levels of values of any size."""
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def _columns(width: int, rows: int) -> Iterator[slice]:
    """Runs of columns of which `rows` rows fit into a block."""
    step = max(1, _BLOCK // max(rows, 1))
    return (slice(start, min(start + step, width)) for start in range(0, width, step))
