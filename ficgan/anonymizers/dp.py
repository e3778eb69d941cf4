"""DP-Pix, DP-Snow and DP-Samp: noise on block means, pixels replaced by grey, and a few sampled pixels of each colour.

They are differentially private for *pixels*: neighbouring images differ in at most m pixels (one for DP-Snow). Photos
of people differ in nearly all pixels, so nothing is promised of identities.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers.base import ANONYMIZERS, Images, PerImage, Traits, nearest_grey
from ficgan.anonymizers.basic import variant
from ficgan.registry import param

Floats = NDArray[np.float64]
_GREY = 127


@ANONYMIZERS.add
class DPPix(PerImage):
    """The mean of each block plus Laplace noise, each channel by itself (Fan, DBSec 2018; Fantômas, §6.1.4).

    A block of a pixels moves by 255·m/a at most between neighbours, so noise of scale 255·m/(a·ε) gives ε-differential
    privacy per channel, 3ε for RGB. Blocks at the border may be smaller. `as_released` uses 255·m/(b²·ε)
    everywhere, so that ε does not hold there, and cuts grey levels instead of rounding.
    """

    eps: float = param(5.0, "privacy budget ε of one channel; RGB costs three", low=1e-6)
    block: int = param(12, "side of a block in pixels", low=1)
    m: int = param(16, "pixels in which neighbouring images differ", low=1)
    variant: str = variant()

    name = "dp-pix"
    traits = Traits("DP-Pix", "differential privacy", "Fan 2018; Fantômas §6.1.4", "eps", stochastic=True)

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        size = image.shape[0]
        starts = np.arange(0, size, self.block)
        sums = np.add.reduceat(np.add.reduceat(image.astype(np.int64), starts, axis=0), starts, axis=1)
        sides = np.diff(starts, append=size)
        areas = (sides[:, None] * sides)[..., None]
        spread = areas if self.variant == "as_described" else self.block**2
        noisy = sums / areas + rng.laplace(0.0, 255 * self.m / (spread * self.eps), sums.shape)
        levels = nearest_grey(noisy) if self.variant == "as_described" else noisy.clip(0, 255).astype(np.uint8)
        cell = np.arange(size) // self.block
        return levels[cell[:, None], cell]


@ANONYMIZERS.add
class DPSnow(PerImage):
    """An exact fraction of the pixels becomes grey (127); that kept is δ of (0, δ)-privacy (John et al., ETRA 2020)."""

    delta: float = param(0.5, "fraction of pixels replaced (as_described) or kept (as_released)", low=0.0, high=1.0)
    variant: str = variant()

    name = "dp-snow"
    traits = Traits("DP-Snow", "differential privacy", "John et al. 2020; Fantômas §6.1.4", "delta", stochastic=True)

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        out, total = image.copy(), len(image) ** 2
        replaced = round(self.delta * total) if self.variant == "as_described" else int((1 - self.delta) * total)
        out.reshape(total, 3)[rng.choice(total, replaced, replace=False, shuffle=False)] = _GREY
        return out


_RESTARTS = 10  # starts of k-means, of which the best is kept
_COARSE = 3  # bits of a colour that the restarts leave out: bins 8 grey levels wide


@ANONYMIZERS.add
class DPSamp(PerImage):
    """Pixels sampled within clusters of colours, each shown as its cluster's colour; the rest is interpolated.

    f_i pixels of cluster i lie within `threshold` (ours: 30) of its centre; its budget is ε_i = ε·f_i/Σf, and x_i of
    them are drawn, the largest number with C(f_i, x)/C(f_i − m, x) ≤ e^ε_i. Between samples colours are linear on
    Delaunay triangles, outside their hull the nearest pixel's. Centres and counts are shown without noise, so the whole
    is *not* ε-differentially private.
    `as_released` gives one sample to every cluster of at least m + 2 pixels, drops a cluster that may show all f_i − m,
    interpolates over channels that are exactly 0, and cuts grey levels.
    Wang et al., VideoDP, PoPETs 2020; Reilly and Fan, TPS-ISA 2021; Fantômas, §6.1.4.
    """

    eps: float = param(25.0, "privacy budget ε of the draw, over all clusters", low=0.0, high=500.0)
    k: int = param(24, "clusters of colours", low=1, high=4096)
    m: int = param(12, "pixels in which neighbouring images differ", low=1)
    threshold: float = param(30.0, "L1 distance to the centre within which a pixel counts, grey levels", low=0)
    variant: str = variant()

    name = "dp-samp"
    traits = Traits("DP-Samp", "differential privacy", "Reilly and Fan 2021; Fantômas §6.1.4", "eps", stochastic=True)

    def apply(self, image: Images, landmarks: NDArray[np.float32], rng: np.random.Generator) -> Images:
        size, pixels = image.shape[0], image.reshape(-1, 3)
        centres, labels = colour_clusters(pixels, self.k, rng)
        near = np.abs(pixels - centres[labels]).sum(axis=1) <= self.threshold
        counts = np.bincount(labels[near], minlength=len(centres))
        chosen = [np.empty(0, np.int64)]
        for cluster in np.flatnonzero(counts):
            count = int(counts[cluster])
            drawn = samples_allowed(count, self.m, self.eps * count / int(counts.sum()))
            if self.variant == "as_released":
                rest = count - self.m
                drawn = max(drawn, 1) if rest >= 2 and drawn < rest else 0
            chosen.append(rng.choice(np.flatnonzero(near & (labels == cluster)), drawn, replace=False))
        samples = np.concatenate(chosen)
        if not len(samples):
            return np.full_like(image, _GREY)
        filled, known = _interpolated(samples, centres[labels[samples]], size)
        if self.variant == "as_described":
            return nearest_grey(_nearest(filled, known))
        channels = [_nearest(filled[..., c], known & (filled[..., c] != 0)) for c in range(3)]
        return np.stack(channels, axis=-1).clip(0, 255).astype(np.uint8)


def samples_allowed(f: int, m: int, eps: float) -> int:
    """The largest x ≥ 0 with C(f, x)/C(f − m, x) ≤ e^ε, for f pixels, m of which differ; at most f − m."""
    # The ratio is the product of (f − j)/(f − m − j) over j < x, so its logarithm grows step by step.
    steps = -np.log1p(-m / (f - np.arange(max(f - m, 0))))
    return int(np.searchsorted(np.cumsum(steps), eps, side="right"))


def colour_clusters(pixels: NDArray[np.uint8], k: int, rng: np.random.Generator) -> tuple[Floats, NDArray[np.int64]]:
    """k-means of colours [N,3]: centres [≤k,3] and the cluster [N] of each pixel.

    Ten k-means++ starts on a histogram of bins 8 grey levels wide; the best continues with all distinct colours.
    """
    from sklearn.cluster import KMeans

    colours, weights, where = _distinct(pixels, 0)
    coarse, mass, _ = _distinct(pixels, _COARSE)
    k = min(k, len(colours))
    if len(coarse) < k:
        coarse, mass = colours, weights
    best = KMeans(k, n_init=_RESTARTS, random_state=int(rng.integers(2**31))).fit(coarse, sample_weight=mass)
    fitted = KMeans(k, init=best.cluster_centers_, n_init=1).fit(colours, sample_weight=weights)
    return fitted.cluster_centers_, fitted.labels_[where].astype(np.int64)


def _distinct(pixels: NDArray[np.uint8], drop: int) -> tuple[Floats, Floats, NDArray[np.intp]]:
    """Mean colours [U,3] of pixels alike except in their last `drop` bits, how many [U], whose each is [N]."""
    code = (pixels >> drop).astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])
    _, where, weights = np.unique(code, return_inverse=True, return_counts=True)
    colours = np.stack([np.bincount(where, pixels[:, c]) / weights for c in range(3)], axis=1)
    return colours, weights.astype(np.float64), where


def _interpolated(samples: NDArray[np.int64], colours: Floats, size: int) -> tuple[Floats, NDArray[np.bool_]]:
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


def _nearest(values: Floats, known: NDArray[np.bool_]) -> NDArray[Any]:
    from scipy.ndimage import distance_transform_edt

    if not known.any():
        return values
    rows, columns = distance_transform_edt(~known, return_distances=False, return_indices=True)
    return values[rows, columns]
