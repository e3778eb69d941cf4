"""Distances between two sets of images, of features of any network: Fréchet and kernel distance; distinct outputs."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ficgan.errors import InputError

__all__ = ["distinct_share", "frechet_distance", "frechet_floor", "kernel_distance", "mean_pairwise_square"]

_ROWS = 1024  # of a kernel matrix at once


def frechet_distance(a: ArrayLike, b: ArrayLike) -> float:
    """Fréchet distance of two Gaussians fitted to features; FID where they are Inception's.

    Args:
        a, b: [N,D] and [M,D] features of two sets, at least two of each.

    Returns:
        ‖μa − μb‖² + tr(Σa + Σb − 2(Σa Σb)^½), biased upwards where N and M are small: see `frechet_floor`.

    Raises:
        InputError: other shapes, or features that are not finite.

    Source: Heusel et al. 2017, eq. 6. The trace of the root is the sum of the singular values of Ca Cbᵀ, with C the
    centred features over √(N−1): exact also where there are fewer images than features.
    """
    x, y = _features(a, b)
    mean = x.mean(0) - y.mean(0)
    x, y = (x - x.mean(0)) / np.sqrt(len(x) - 1), (y - y.mean(0)) / np.sqrt(len(y) - 1)
    # A root R of XᵀX (RᵀR = XᵀX) has at most D rows, and the same singular values in such products as X itself.
    left, right = (_root(z) if len(z) > z.shape[1] else z for z in (x, y))
    shared = np.linalg.svd(left @ right.T, compute_uv=False).sum()
    return max(float(mean @ mean + np.square(x).sum() + np.square(y).sum() - 2 * shared), 0.0)


def frechet_floor(features: ArrayLike, seed: int = 0) -> float:
    """The distance of two random halves of one set: what noise alone gives at half its size."""
    x = np.asarray(features)
    order = np.random.default_rng(seed).permutation(len(x))
    return frechet_distance(x[order[: len(x) // 2]], x[order[len(x) // 2 :]])


def kernel_distance(
    a: ArrayLike, b: ArrayLike, *, subsets: int = 100, size: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Kernel distance of features, unbiased; KID where they are Inception's.

    Args:
        a, b: [N,D] and [M,D] features.
        subsets: how many pairs of subsets are drawn, each without replacement.
        size: images in a subset; at most half of the smaller set, so that subsets differ.
        seed: of the draws.

    Returns:
        Mean and standard deviation, over the subsets, of the squared maximum mean discrepancy under the kernel
        (x·y/D + 1)³; the mean may be slightly negative.

    Raises:
        InputError: fewer than four images in a set, other shapes, or features that are not finite.

    Source: Bińkowski et al. 2018, section 4 (eq. 4 for the unbiased estimate).
    """
    x, y = _features(a, b)
    size = min(size, len(x) // 2, len(y) // 2)
    if size < 2:
        raise InputError(f"{min(len(x), len(y))} images are too few for a kernel distance; give at least 4")
    rng = np.random.default_rng(seed)
    # A subset is a row of zeros and ones z: its sum over a kernel matrix K is z K zᵀ, and no K is held whole.
    chosen = [_subsets(rng, len(z), size, subsets) for z in (x, y)]
    own = [
        (_forms(z, z, pick, pick) - pick @ _kernel((z * z).sum(1), z.shape[1])) / (size * (size - 1))
        for z, pick in zip((x, y), chosen, strict=True)
    ]
    values = own[0] + own[1] - 2 * _forms(x, y, *chosen) / size**2
    return float(values.mean()), float(values.std())


def mean_pairwise_square(total: ArrayLike, squares: float, count: int) -> float:
    """Mean of ‖u − v‖² over all pairs of `count` vectors, from their sum [D] and the sum of their squared norms."""
    vector = np.asarray(total, np.float64)
    return 2.0 * max(squares - float(vector @ vector) / count, 0.0) / (count - 1) if count > 1 else 0.0


def distinct_share(images: NDArray[np.uint8]) -> float:
    """How many different images there are among [N,S,S,3], as a share of N; pixel for pixel."""
    return len({hashlib.blake2b(np.ascontiguousarray(image).tobytes()).digest() for image in images}) / len(images)


def _features(a: ArrayLike, b: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1] or min(len(x), len(y)) < 2:
        raise InputError(f"features of shapes {list(x.shape)} and {list(y.shape)} are no two sets of at least 2 images")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise InputError("some features are not finite; look for damaged images or a broken network")
    return x, y


def _root(x: NDArray[np.float64]) -> NDArray[np.float64]:
    root: Any = np.linalg.qr(x, mode="r")
    return root


def _kernel(products: NDArray[np.float64], dimensions: int) -> NDArray[np.float64]:
    root = products / dimensions + 1
    return root * root * root


def _subsets(rng: np.random.Generator, count: int, size: int, subsets: int) -> NDArray[np.float64]:
    """[subsets, count] of zeros and `size` ones."""
    order = rng.random((subsets, count)).argpartition(size - 1, axis=1)[:, :size]
    chosen = np.zeros((subsets, count))
    np.put_along_axis(chosen, order, 1.0, axis=1)
    return chosen


def _forms(
    x: NDArray[np.float64], y: NDArray[np.float64], left: NDArray[np.float64], right: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Σ_ij left_si k(x_i, y_j) right_sj for each subset s."""
    out = np.zeros(len(left))
    for begin in range(0, len(x), _ROWS):
        rows = slice(begin, begin + _ROWS)
        out += ((left[:, rows] @ _kernel(x[rows] @ y.T, x.shape[1])) * right).sum(1)
    return out
