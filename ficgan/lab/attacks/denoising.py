"""Against noise: shrinkage of wavelet coefficients, and pixels that were painted grey taken from their neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces, Images
from ficgan.lab.attacks.base import NOISES, REVERSERS, Reverser, ReverserTraits
from ficgan.lab.attacks.similarity import to_uint8
from ficgan.registry import param

__all__ = ["InterpolateGrey", "Wavelet", "analyse", "synthesise"]

Float = NDArray[np.float32]

# Daubechies' filter with two vanishing moments, and its mirror.
_R3 = np.sqrt(3.0)
LOW = (np.array([1 + _R3, 3 + _R3, 3 - _R3, 1 - _R3]) / (4 * np.sqrt(2.0))).astype(np.float32)
HIGH = (LOW[::-1] * np.array([1, -1, 1, -1])).astype(np.float32)


def analyse(planes: Float) -> tuple[Float, Float, Float, Float]:
    """One level of the orthogonal wavelet transform, periodic at the edges.

    Args:
        planes: […,H,W], both even.

    Returns:
        four […,H/2,W/2]: low in both directions, then high across, down, and both.

    Source:
        Daubechies 1988, table 1, N = 2.
    """
    low, high = _split(planes)
    ll, lh = (part.swapaxes(-1, -2) for part in _split(low.swapaxes(-1, -2)))
    hl, hh = (part.swapaxes(-1, -2) for part in _split(high.swapaxes(-1, -2)))
    return ll, hl, lh, hh


def synthesise(ll: Float, hl: Float, lh: Float, hh: Float) -> Float:
    """The inverse of `analyse`."""
    low = _join(ll.swapaxes(-1, -2), lh.swapaxes(-1, -2)).swapaxes(-1, -2)
    high = _join(hl.swapaxes(-1, -2), hh.swapaxes(-1, -2)).swapaxes(-1, -2)
    return _join(low, high)


def _split(x: Float) -> tuple[Float, Float]:
    even, odd = x[..., 0::2], x[..., 1::2]
    even2, odd2 = np.roll(even, -1, -1), np.roll(odd, -1, -1)
    low, high = (f[0] * even + f[1] * odd + f[2] * even2 + f[3] * odd2 for f in (LOW, HIGH))
    return low, high


def _join(low: Float, high: Float) -> Float:
    low1, high1 = np.roll(low, 1, -1), np.roll(high, 1, -1)
    out = np.empty((*low.shape[:-1], 2 * low.shape[-1]), low.dtype)
    out[..., 0::2] = LOW[0] * low + LOW[2] * low1 + HIGH[0] * high + HIGH[2] * high1
    out[..., 1::2] = LOW[1] * low + LOW[3] * low1 + HIGH[1] * high + HIGH[3] * high1
    return out


@REVERSERS.add
@dataclass(frozen=True)
class Wavelet(Reverser):
    """Wavelet coefficients drawn towards zero, each band by what its noise and its signal call for.

    The noise is the median of the finest diagonal band over 0.6745; the threshold of a band is σ²/σ_x.

    Source:
        Fantômas, §6.2.1; Chang, Yu and Vetterli 2000 (BayesShrink), eqs. 9 and 13.
    """

    name: ClassVar[str] = "wavelet"
    traits: ClassVar[ReverserTraits] = ReverserTraits(
        title="Wavelet denoising",
        source="Fantômas, §6.2.1; Chang et al. 2000",
        against=NOISES,
    )

    levels: int = param(0, "levels of the transform; 0: down to 8 pixels", low=0, high=8)

    def guess(self, faces: Faces) -> Images:
        out = np.empty_like(faces.images)
        for start in range(0, len(faces), 32):
            part = slice(start, start + 32)
            planes = np.moveaxis(faces.images[part], 3, 1).astype(np.float32)
            out[part] = to_uint8(np.moveaxis(self._denoised(planes), 1, 3))
        return out

    def _denoised(self, planes: Float) -> Float:
        size = planes.shape[-1]
        levels = self.levels or max(1, int(np.log2(size)) - 3)
        # Reflected beyond the edges: the transform is periodic and must not see the left edge beside the right one.
        unit = 2**levels
        margin = min(unit, size - 1)
        total = -(-(size + 2 * margin) // unit) * unit
        pad = (margin, total - size - margin)
        padded = np.pad(planes, ((0, 0), (0, 0), pad, pad), "symmetric")
        bands = []
        rest = padded
        for _ in range(levels):
            rest, *details = analyse(rest)
            bands.append(details)
        noise = (np.median(np.abs(bands[0][2]), axis=(-2, -1), keepdims=True) / 0.6745).astype(np.float32)
        for details in reversed(bands):
            rest = synthesise(rest, *(_shrunk(band, noise) for band in details))
        return rest[..., margin : margin + size, margin : margin + size]


def _shrunk(band: Float, noise: Float) -> Float:
    energy = np.mean(band**2, axis=(-2, -1), keepdims=True)
    signal = np.sqrt(np.maximum(energy - noise**2, 0))
    # Where there is nothing but noise the threshold is infinite: the whole band goes.
    threshold = np.where(signal > 0, noise**2 / np.maximum(signal, 1e-6), np.inf).astype(np.float32)
    return np.sign(band) * np.maximum(np.abs(band) - threshold, 0)


@REVERSERS.add
@dataclass(frozen=True)
class InterpolateGrey(Reverser):
    """Pixels of exactly one grey become the mean of their neighbours that are not, until nothing more changes.

    A pixel needs `least` neighbours, so it may stay grey in a corner (three neighbours) or inside a larger grey area
    until its rim is filled. Pixels of one round do not see each other.

    Source:
        Fantômas, §6.2.3; four of eight neighbours as in kit-ps/seba.
    """

    name: ClassVar[str] = "interpolate-grey"
    traits: ClassVar[ReverserTraits] = ReverserTraits(
        title="Interpolation of grey pixels",
        source="Fantômas, §6.2.3",
        knowledge=frozenset({"method"}),
        against=frozenset({"dp-snow"}),
    )

    grey: int = param(127, "value that all three channels have where a pixel was replaced", low=0, high=255)
    least: int = param(4, "neighbours that must be valid", low=1, high=8)

    def guess(self, faces: Faces) -> Images:
        out = faces.images.copy()
        for start in range(0, len(out), 32):
            out[start : start + 32] = self._filled(out[start : start + 32])
        return out

    def _filled(self, images: Images) -> Images:
        n, size = images.shape[:2]
        valid = np.zeros((n, size + 2, size + 2), np.float32)
        values = np.zeros((n, size + 2, size + 2, 3), np.float32)
        inside = (slice(None), slice(1, -1), slice(1, -1))
        valid[inside] = (images != self.grey).any(axis=3)
        values[inside] = images * valid[inside][..., None]
        while True:
            count = _neighbours(valid)
            fill = (valid[inside] == 0) & (count >= self.least)
            if not fill.any():
                break
            total = _neighbours(values)[fill]
            values[inside][fill] = np.rint(total / count[fill][:, None])
            valid[inside][fill] = 1
        return np.where(valid[inside][..., None] > 0, values[inside], images).astype(np.uint8)


def _neighbours(grid: Float) -> Float:
    """Sum over the eight neighbours of every inner pixel: [N,H,W,…] → [N,H − 2,W − 2,…]."""
    rows = grid[:, :-2] + grid[:, 1:-1] + grid[:, 2:]
    return rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:] - grid[:, 1:-1, 1:-1]
