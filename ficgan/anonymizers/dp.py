"""DP-Pix, DP-Snow and DP-Samp: noise on block means, pixels replaced by grey, and a few sampled pixels of each colour.

They are differentially private for *pixels*: images are neighbours where they differ in at most m pixels (DP-Pix,
DP-Samp) or in one (DP-Snow). Two photos of one person, or of two people, differ in nearly all pixels, so nothing is
promised of identities.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers.base import ANONYMIZERS, Images, PerImage, Traits, nearest_grey
from ficgan.registry import param

_GREY = 127


@ANONYMIZERS.add
@dataclass(frozen=True)
class DPPix(PerImage):
    """The mean of each block plus Laplace noise, each channel by itself.

    Neighbours are images that differ, by whatever amount, in at most m pixels. A block of a pixels then moves by
    255·m/a at most, and Laplace noise of scale 255·m/(a·ε) gives ε-differential privacy per channel; the three channels
    of RGB compose to 3ε (`budget`).

    Where the side of the crop is not divisible by `block`, the last row and column of blocks are smaller.
    `as_described`: their noise is wider, with their own a, so that ε holds. `as_released`: noise of scale 255·m/(b²·ε)
    everywhere, so it does not hold there (2.25ε per channel for 224 px and b = 12); and grey levels are cut, not
    rounded.

    Source: Fan, Image Pixelization with Differential Privacy, DBSec 2018; Fantômas section 6.1.4.
    """

    name = "dp-pix"
    traits = Traits(
        title="DP-Pix",
        family="differential privacy",
        source="Fan 2018; Fantômas §6.1.4",
        strength="eps",
        stronger="down",
        stochastic=True,
    )
    eps: float = param(5.0, "privacy budget ε of one channel; RGB costs three", low=1e-6)
    block: int = param(12, "side of a block in pixels", low=1)
    m: int = param(16, "pixels in which neighbouring images differ", low=1)
    variant: str = param("as_described", "whose rules", choices=("as_described", "as_released"))

    def budget(self, size: int = 224) -> float:
        """ε of the three channels together for crops of `size` pixels, neighbours differing in at most m pixels."""
        if self.variant == "as_described":
            return 3 * self.eps
        # The worst neighbour has its m pixels where one of them moves a mean most: in the smallest blocks.
        left, total = self.m, 0.0
        for area in np.sort(_areas(size, self.block), axis=None).tolist():
            share = min(area, left)
            total += share / area
            left -= share
            if not left:
                break
        return 3 * self.eps * total * self.block**2 / self.m

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        size = image.shape[0]
        starts = np.arange(0, size, self.block)
        sums = np.add.reduceat(np.add.reduceat(image.astype(np.int64), starts, axis=0), starts, axis=1)
        areas = _areas(size, self.block)[..., None]
        spread = areas if self.variant == "as_described" else self.block**2
        noisy = sums / areas + rng.laplace(0.0, 255 * self.m / (spread * self.eps), sums.shape)
        levels = noisy.clip(0, 255)
        if self.variant == "as_described":
            levels = np.rint(levels)
        cell = np.arange(size) // self.block
        return levels.astype(np.uint8)[cell[:, None], cell]


def _areas(size: int, block: int) -> NDArray[np.int64]:
    """Pixels [g,g] of each block of a square crop."""
    sides = np.diff(np.append(np.arange(0, size, block), size))
    return np.outer(sides, sides).astype(np.int64)


@ANONYMIZERS.add
@dataclass(frozen=True)
class DPSnow(PerImage):
    """Pixels drawn without replacement, an exact fraction of them, become grey (127, 127, 127).

    Neighbours are images that differ in one pixel. They are told apart where that pixel is kept, so the fraction kept
    is the δ of (0, δ)-differential privacy (`budget`).

    `as_described` (Fantômas): `delta` is the fraction replaced, rounded to whole pixels. `as_released`: the fraction
    kept, and the number replaced is cut to whole pixels. At .5 they agree.

    Source:
        John et al., Let It Snow: Adding Pixel Noise to Protect the User's Identity, ETRA 2020; Fantômas section 6.1.4.
    """

    name = "dp-snow"
    traits = Traits(
        title="DP-Snow",
        family="differential privacy",
        source="John et al. 2020; Fantômas §6.1.4",
        strength="delta",
        stochastic=True,
    )
    delta: float = param(0.5, "fraction of pixels replaced (as_described) or kept (as_released)", low=0.0, high=1.0)
    variant: str = param("as_described", "whose delta", choices=("as_described", "as_released"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant == "as_released":  # a larger fraction kept hides less
            object.__setattr__(self, "traits", replace(type(self).traits, stronger="down"))

    def replaced(self, size: int) -> int:
        """How many pixels of a crop of `size` pixels become grey."""
        total = size * size
        return round(self.delta * total) if self.variant == "as_described" else int((1 - self.delta) * total)

    def budget(self, size: int = 224) -> float:
        """δ of (0, δ)-differential privacy for crops of `size` pixels, neighbours differing in one pixel."""
        return 1 - self.replaced(size) / size**2

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        out = image.copy()
        total = image.shape[0] ** 2
        out.reshape(total, 3)[rng.choice(total, self.replaced(image.shape[0]), replace=False, shuffle=False)] = _GREY
        return out


_RESTARTS, _ITERATIONS, _SHIFT = 10, 100, 0.2
"""Of k-means: starts, of which the best is kept; steps at most; movement in grey levels at which it stands still."""
_COARSE = 3
"""Bits of a colour that the restarts leave out: bins 8 grey levels wide."""


@ANONYMIZERS.add
@dataclass(frozen=True)
class DPSamp(PerImage):
    """Pixels sampled within clusters of colours, each as its cluster's colour; the rest is interpolated.

    k clusters of the image's colours; f_i is how many pixels of cluster i lie within `threshold` of its centre, and
    ε_i = ε·f_i/Σf its part of the budget. Of those pixels x_i are drawn, x_i the largest number with
    C(f_i, x)/C(f_i − m, x) ≤ e^ε_i: the likeliest sets of samples are that much likelier than with m of the pixels
    gone. All take the centre's colour; between them colours are linear on Delaunay triangles, and outside of their hull
    those of the nearest pixel inside. Without a single sample the crop is grey (127).

    The budget is that of the draw alone. The centres' colours and the counts are computed from the image and shown as
    they are, without noise, so the whole is *not* ε-differentially private.

    `as_described` keeps each cluster within its ε_i, so that small ones may have no sample. `as_released` gives one
    sample to every cluster of at least m + 2 pixels, whatever its ε_i, drops a cluster that may show all f_i − m;
    channels that came out as exactly 0 count as not interpolated and are filled from the nearest that are not 0; and
    grey levels are cut, not rounded.

    Neither the paper nor the program says which threshold was used; 30 is ours, and 85 to
    99.5 % of the pixels of portraits are within it.

    Source:
        Wang et al., VideoDP, PoPETs 2020; Reilly and Fan, A Comparative Evaluation of Differentially Private Image
        Obfuscation, TPS-ISA 2021; Fantômas section 6.1.4.
    """

    name = "dp-samp"
    traits = Traits(
        title="DP-Samp",
        family="differential privacy",
        source="Reilly and Fan 2021; Fantômas §6.1.4",
        strength="eps",
        stronger="down",
        stochastic=True,
    )
    eps: float = param(25.0, "privacy budget ε of the draw, over all clusters", low=0.0, high=500.0)
    k: int = param(24, "clusters of colours", low=1, high=4096)
    m: int = param(12, "pixels in which neighbouring images differ", low=1)
    threshold: float = param(30.0, "L1 distance to the centre within which a pixel counts, grey levels", low=0)
    variant: str = param("as_described", "whose rules", choices=("as_described", "as_released"))

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        size, pixels = image.shape[0], image.reshape(-1, 3)
        centres, labels = colour_clusters(pixels, self.k, rng)
        near = np.abs(pixels - centres[labels]).sum(axis=1) <= self.threshold
        counts = np.bincount(labels[near], minlength=len(centres)).tolist()
        chosen = [
            rng.choice(np.flatnonzero(near & (labels == cluster)), self._samples(count, sum(counts)), replace=False)
            for cluster, count in enumerate(counts)
            if count
        ]
        samples = np.concatenate([*chosen, np.empty(0, np.int64)]).astype(np.int64)
        if not len(samples):
            return np.full_like(image, _GREY)
        filled, known = _interpolated(samples, centres[labels[samples]], size)
        if self.variant == "as_described":
            return nearest_grey(_nearest(filled, known))
        channels = [_nearest(filled[..., c], known & (filled[..., c] != 0)) for c in range(3)]
        return np.stack(channels, axis=-1).clip(0, 255).astype(np.uint8)

    def _samples(self, count: int, total: int) -> int:
        allowed = samples_allowed(count, self.m, self.eps * count / total)
        if self.variant == "as_described":
            return allowed
        rest = count - self.m
        return max(allowed, 1) if rest >= 2 and allowed < rest else 0

    def budget(self) -> float:
        """ε of the draw as described, for images that differ in at most m pixels and share clusters and colours."""
        return self.eps


def samples_allowed(f: int, m: int, eps: float) -> int:
    """The largest x ≥ 0 with C(f, x)/C(f − m, x) ≤ e^ε, for f pixels, m of which differ; 0 where f ≤ m.

    It is at most f − m, beyond which the ratio is infinite.
    """
    # The ratio is the product of (f − j)/(f − m − j) over j < x, so its logarithm grows step by step.
    steps = -np.log1p(-m / (f - np.arange(max(f - m, 0))))
    return int(np.searchsorted(np.cumsum(steps), eps, side="right"))


def colour_clusters(
    pixels: NDArray[np.uint8], k: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """k-means of colours [N,3]: centres [≤k,3] and the cluster [N] of each pixel.

    Ten starts (k-means++), at most 100 steps each, until no centre moves by more than .2 grey levels. The starts are
    run on a histogram of colours in bins 8 grey levels wide, at the bins' mean colours; the best continues with all
    distinct colours. OpenCV's ten starts with all pixels took 60 to 100 times as long, for clusters 2 to 11 % less
    tight.
    """
    colours, weights, where = _distinct(pixels, 0)
    k = min(k, colours.shape[1])
    coarse, mass, _ = _distinct(pixels, _COARSE)
    if coarse.shape[1] < k:
        coarse, mass = colours, weights
    starts = np.stack([_start(coarse, mass, k, rng) for _ in range(_RESTARTS)])
    centres, spread = _lloyd(coarse, mass, starts)
    centres, _ = _lloyd(colours, weights, centres[spread.argmin()][None])
    labels, _ = _assign(colours, centres)
    return centres[0], labels[0][where]


def _distinct(
    pixels: NDArray[np.uint8], drop: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.intp]]:
    """Mean colours [3,U] of pixels alike except in their last `drop` bits, how many [U], whose each is [N]."""
    code = (pixels >> drop).astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])
    _, where, weights = np.unique(code, return_inverse=True, return_counts=True)
    colours = np.stack([np.bincount(where, pixels[:, c]) / weights for c in range(3)])
    return colours, weights.astype(np.float64), where


def _start(
    colours: NDArray[np.float64], weights: NDArray[np.float64], k: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """k colours [k,3], each drawn by its squared distance to those before (Arthur and Vassilvitskii 2007)."""
    chosen: list[int] = []
    distance = np.ones(len(weights))
    for _ in range(k):
        edges = np.cumsum(distance * weights)
        new = min(int(np.searchsorted(edges, rng.random() * edges[-1], side="right")), len(edges) - 1)
        apart = ((colours - colours[:, new, None]) ** 2).sum(axis=0)
        distance = np.minimum(distance, apart) if chosen else apart
        chosen.append(new)
    return colours[:, chosen].T


def _lloyd(
    colours: NDArray[np.float64], weights: NDArray[np.float64], centres: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lloyd's steps from R starts at once, for colours [3,U] of weights [U].

    Returns:
        Centres [R,k,3] (one that loses all its colours stays where it is), and the sums of squared distances [R].
    """
    centres, spread = centres.copy(), np.zeros(len(centres))
    moving, k = np.arange(len(centres)), centres.shape[1]
    weighted = colours * weights
    for _ in range(_ITERATIONS):
        labels, distance = _assign(colours, centres[moving])
        spread[moving] = (distance * weights).sum(axis=1)
        cells = (labels + k * np.arange(len(moving))[:, None]).ravel()
        mass, *sums = (
            np.bincount(cells, np.broadcast_to(row, labels.shape).ravel(), len(moving) * k).reshape(-1, k)
            for row in (weights, *weighted)
        )
        means = np.stack(sums, axis=-1) / np.maximum(mass, 1)[..., None]
        new = np.where(mass[..., None] > 0, means, centres[moving])
        shift = ((new - centres[moving]) ** 2).sum(axis=-1).max(axis=-1)
        centres[moving] = new
        moving = moving[shift > _SHIFT**2]
        if not len(moving):
            break
    return centres, spread


def _assign(
    colours: NDArray[np.float64], centres: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """For colours [3,U] and centres [R,k,3] the nearest centre [R,U], and its squared distance [R,U]."""
    # No matrix product: its rounding differs from machine to machine, and with it what is nearest.
    points, near = colours.astype(np.float32), centres.astype(np.float32)
    best = np.full((len(centres), colours.shape[1]), np.inf, np.float32)
    labels = np.zeros(best.shape, np.int64)
    distance, part, closer = np.empty_like(best), np.empty_like(best), np.empty(best.shape, bool)
    for cluster in range(centres.shape[1]):
        np.square(np.subtract(points[0], near[:, cluster, 0, None], out=distance), out=distance)
        for channel in (1, 2):
            np.subtract(points[channel], near[:, cluster, channel, None], out=part)
            distance += np.square(part, out=part)
        np.less(distance, best, out=closer)
        np.copyto(best, distance, where=closer)
        np.copyto(labels, cluster, where=closer)
    return labels, best


def _interpolated(
    samples: NDArray[np.int64], colours: NDArray[np.float64], size: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Colours [n,3] at pixels [n] → [S,S,3] linear on their triangles, and where that is known [S,S]."""
    from scipy.interpolate import LinearNDInterpolator
    from scipy.spatial import Delaunay

    points = np.stack(np.divmod(samples, size), axis=1)
    filled, known = np.zeros((size, size, 3)), np.zeros((size, size), bool)
    if np.linalg.matrix_rank(points - points[0]) == 2:
        filled = LinearNDInterpolator(Delaunay(points), colours)(*np.mgrid[:size, :size])
        known = ~np.isnan(filled[..., 0])
        filled[~known] = 0
    filled[points[:, 0], points[:, 1]] = colours
    known[points[:, 0], points[:, 1]] = True
    return filled, known


def _nearest(values: NDArray[np.float64], known: NDArray[np.bool_]) -> NDArray[Any]:
    """Values where they are known, elsewhere those of the nearest pixel where they are; all as they are if none is."""
    from scipy.ndimage import distance_transform_edt

    if known.all() or not known.any():
        return values
    rows, columns = distance_transform_edt(~known, return_distances=False, return_indices=True)
    return values[rows, columns]
