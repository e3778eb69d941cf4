"""Attackers without networks: resampling, wavelets, grey pixels, learnt permutations and linear maps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import cv2
import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces, Images
from ficgan.anonymizers.base import nearest_grey
from ficgan.arrays import blocks
from ficgan.errors import InputError, UsageError
from ficgan.lab.attacks import base
from ficgan.lab.attacks.base import BLURS, FROM_PAIRS, NOISES, REVERSERS, Float, Pairs, Reverser, ReverserTraits
from ficgan.registry import param


@dataclass(frozen=True)
class _Resampling(Reverser):
    ratio: float = param(0.0, "intermediate width over the width of the crop; 0: chosen on pairs", low=0, high=1)

    cubic: ClassVar[bool]

    def fit(self, pairs: Pairs) -> Self:
        if self.ratio:
            return self
        size = pairs.clear.images.shape[1]
        # Pixelation has one right width, and its neighbours do not hint at it: all are tried, the best on more pairs.
        widths = range(2, size + 1)
        first = self._scores(pairs.at_most(12), widths)
        scores = self._scores(pairs.at_most(48), sorted(widths, key=first.__getitem__)[-6:])
        return replace(self, ratio=max(scores, key=scores.__getitem__) / size)

    def _scores(self, pairs: Pairs, widths: Iterable[int]) -> dict[int, float]:
        observed, clear = pairs.luminance()
        return {width: base.mean_ssim(clear, self._resampled(observed, width)) for width in widths}

    def guess(self, faces: Faces) -> Images:
        if not self.ratio:
            raise UsageError(f"{self.name} has no ratio yet; fit it on pairs or give ratio=FRACTION")
        return self._resampled(faces.images, max(1, round(self.ratio * faces.images.shape[1])))

    def _resampled(self, images: NDArray[Any], middle: int) -> NDArray[Any]:
        size = (images.shape[1], images.shape[1])
        how = cv2.INTER_CUBIC if self.cubic else cv2.INTER_LINEAR
        out = np.empty_like(images)
        for index, image in enumerate(images):
            small = cv2.resize(image, (middle, middle), interpolation=cv2.INTER_AREA)
            out[index] = cv2.resize(small, size, interpolation=how)
        return out


@REVERSERS.add
class LinearResampling(_Resampling):
    """Down to the width of the highest SSIM on pairs, and up again (Fantômas, §6.2.1)."""

    name = "linear"
    traits = ReverserTraits("Linear interpolation", "Fantômas, §6.2.1", FROM_PAIRS, BLURS | NOISES | {"pixelation"})
    cubic = False


@REVERSERS.add
class BicubicResampling(_Resampling):
    """Down to the width of the highest SSIM on pairs, and up again (Fantômas, §6.2.1)."""

    name = "bicubic"
    traits = replace(LinearResampling.traits, title="Bicubic interpolation")
    cubic = True


# Daubechies' filter with two vanishing moments, and its mirror.
_R3 = np.sqrt(3.0)
LOW = (np.array([1 + _R3, 3 + _R3, 3 - _R3, 1 - _R3]) / (4 * np.sqrt(2.0))).astype(np.float32)
HIGH = (LOW[::-1] * np.array([1, -1, 1, -1])).astype(np.float32)


@REVERSERS.add
class Wavelet(Reverser):
    """Wavelet coefficients drawn towards zero (BayesShrink; Chang et al. 2000, eqs. 9, 13; Fantômas, §6.2.1)."""

    name = "wavelet"
    traits = ReverserTraits("Wavelet denoising", "Fantômas, §6.2.1; Chang et al. 2000", against=NOISES)

    def guess(self, faces: Faces) -> Images:
        out, size = np.empty_like(faces.images), faces.images.shape[1]
        levels = max(1, int(np.log2(size)) - 3)  # down to 8 pixels
        # Reflected beyond the edges: the transform is periodic and must not see the left edge beside the right one.
        unit = 2**levels
        margin = min(unit, size - 1)
        pad, inside = (margin, -(-(size + 2 * margin) // unit) * unit - size - margin), slice(margin, margin + size)
        for part in blocks(len(faces), 32):
            planes = np.moveaxis(faces.images[part], 3, 1).astype(np.float32)
            bands = _shrunk(np.pad(planes, ((0, 0), (0, 0), pad, pad), "symmetric"), levels)
            out[part] = nearest_grey(np.moveaxis(bands[..., inside, inside], 1, 3))
        return out


def _shrunk(planes: NDArray[Any], levels: int, noise: Float | None = None) -> NDArray[Any]:
    """The bands of so many levels, softly thresholded; the noise is the finest diagonal one's median over 0.6745."""
    if not levels:
        return planes
    turn = wavelet_matrix(planes.shape[-1])
    band, half = turn @ planes @ turn.T, len(turn) // 2  # The smooth picture stands top left, details elsewhere
    if noise is None:
        finest = np.abs(band[..., half:, half:])
        noise = (np.median(finest, axis=(-2, -1), keepdims=True) / 0.6745).astype(np.float32)
    first, last = slice(None, half), slice(half, None)
    for quarter in ((..., first, last), (..., last, first), (..., last, last)):
        found = band[quarter]
        signal = np.sqrt(np.maximum(np.mean(found**2, axis=(-2, -1), keepdims=True) - noise**2, 0))
        # Where there is nothing but noise the threshold is infinite: the whole band goes.
        threshold = np.where(signal > 0, noise**2 / np.maximum(signal, 1e-6), np.inf).astype(np.float32)
        band[quarter] = np.sign(found) * np.maximum(np.abs(found) - threshold, 0)
    band[..., first, first] = _shrunk(band[..., first, first], levels - 1, noise)
    return turn.T @ band @ turn


def wavelet_matrix(size: int) -> Float:
    """One level of the D4 wavelet transform, periodic and orthogonal (Daubechies 1988): [S,S], low rows above high."""
    taps = [np.pad(taps, (0, size - len(taps))) for taps in (LOW, HIGH)]
    return np.stack([np.roll(row, place) for row in taps for place in range(0, size, 2)])


@REVERSERS.add
class InterpolateGrey(Reverser):
    """Pixels of exactly one grey become the mean of their other neighbours, round by round (Fantômas, §6.2.3)."""

    name = "interpolate-grey"
    traits = ReverserTraits("Interpolation of grey pixels", "Fantômas, §6.2.3", {"method"}, against={"dp-snow"})

    grey: int = param(127, "value that all three channels have where a pixel was replaced", low=0, high=255)
    least: int = param(4, "neighbours that must be valid", low=1, high=8)

    def guess(self, faces: Faces) -> Images:
        return np.stack([self._filled(image) for image in faces.images]) if len(faces) else faces.images.copy()

    def _filled(self, image: Images) -> Images:
        valid = (image != self.grey).any(axis=2).astype(np.float32)
        values = image * valid[..., None]
        while True:
            count = _neighbours(valid)
            fill = (valid == 0) & (count >= self.least)
            if not fill.any():
                return np.where(valid[..., None] > 0, values, image).astype(np.uint8)
            values[fill] = np.rint(_neighbours(values)[fill] / count[fill][:, None])
            valid[fill] = 1


def _neighbours(grid: Float) -> Float:
    return cv2.boxFilter(grid, -1, (3, 3), normalize=False, borderType=cv2.BORDER_CONSTANT) - grid


@REVERSERS.add
class LearnPermutation(Reverser):
    """One fixed permutation of all pixels, found by the colours a place shows over all pairs (Fantômas, §6.2.3)."""

    name = "learn-permutation"
    traits = ReverserTraits(
        "Learnt permutation", "Fantômas, §6.2.3", FROM_PAIRS, {"block-permutation", "pixel-relocation"}
    )

    # [S,S] for every clear pixel the index, in reading order, of the anonymised one that holds it
    source: NDArray[np.int64] | None = field(default=None, repr=False, compare=False)

    def fit(self, pairs: Pairs) -> LearnPermutation:
        there, here = (_signatures(faces.images) for faces in (pairs.anonymised, pairs.clear))
        places: dict[int, list[int]] = {}
        for place, colours in reversed(list(enumerate(there.tolist()))):
            places.setdefault(colours, []).append(place)
        # The n-th of a kind here belongs to the n-th of that kind there.
        source = np.array([(places.get(colours) or [place]).pop() for place, colours in enumerate(here.tolist())])
        size = pairs.clear.images.shape[1]
        return replace(self, source=source.reshape(size, size))

    def guess(self, faces: Faces) -> Images:
        source = base.fitted(self.source, self.name)
        return faces.images.reshape(len(faces), source.size, 3)[:, source]


def _signatures(images: Images) -> NDArray[np.uint64]:
    """[N,S,S,3] → [S·S]: 64-bit hashes of the N colours a place shows; equal colours give equal hashes."""
    flat = images.reshape(len(images), -1, 3)
    out = np.zeros(flat.shape[1], np.uint64)
    for colours in flat:
        code = colours.astype(np.uint64) @ np.array([1 << 16, 1 << 8, 1], np.uint64)
        out = (out ^ (code + np.uint64(1))) * np.uint64(0x9E3779B97F4A7C15)
        out ^= out >> np.uint64(29)
    return out


@REVERSERS.add
class Ridge(Reverser):
    """The linear map from anonymised to clear pixels of the least squared error plus λ times its square.

    It is learnt between pairs in place of pixels, (X·Xᵀ + λ)⁻¹·Y, since there are fewer of them; λ is the best of a
    grid on people held out (Hoerl and Kennard 1970, eq. 2.3).
    """

    name = "ridge"
    traits = ReverserTraits("Ridge regression", "this work; Hoerl and Kennard 1970", FROM_PAIRS)

    pairs: int = param(3000, "most pairs to learn from; memory and time grow with its square", low=2)

    ridge: float = 0.0  # λ chosen, as a share of the mean squared length of the centred anonymised images
    # Anonymised pixels [N,D], their mean, the weights [N,D], mean of the clear pixels
    _map: tuple[NDArray[np.uint8], Float, Float, Float] | None = field(default=None, repr=False, compare=False)

    def fit(self, pairs: Pairs) -> Ridge:
        pairs = pairs.at_most(self.pairs)
        seen, clear = _flat(pairs.anonymised.images), _flat(pairs.clear.images)
        validation = base.held_out(pairs.clear, _VALIDATION, 0)
        if not validation.any():
            raise InputError(f"{self.name} was given pairs of one person; give pairs of at least two people")
        seen_mean, clear_mean = (pixels.mean(axis=0, dtype=np.float64).astype(np.float32) for pixels in (seen, clear))
        gram, wanted = _gram(seen, seen, seen_mean), _gram(clear, clear, clear_mean)
        scale = max(float(np.trace(gram)) / len(gram), 1.0)
        ridge = min(_RIDGES, key=lambda share: _error(gram, wanted, validation, share * scale))
        inverse = np.linalg.inv(gram + ridge * scale * np.eye(len(gram))).astype(np.float32)
        return replace(self, ridge=ridge, _map=(seen, seen_mean, inverse @ (clear - clear_mean), clear_mean))

    def guess(self, faces: Faces) -> Images:
        seen, seen_mean, weights, clear_mean = base.fitted(self._map, self.name)
        alike = _gram(_flat(faces.images), seen, seen_mean).astype(np.float32)
        return nearest_grey(alike @ weights + clear_mean).reshape(faces.images.shape)


Matrix = NDArray[np.float64]
_VALIDATION = 0.2  # Share of the people on whom λ is chosen
_RIDGES = tuple(float(10.0**e) for e in np.arange(-6, 4.1, 0.5))


def _error(gram: Matrix, wanted: Matrix, validation: NDArray[np.bool_], ridge: float) -> float:
    """Squared error on the pairs held out, but for a constant, from products of all centred images [N,N]."""
    learnt = ~validation
    inner = gram[np.ix_(learnt, learnt)]
    shares = np.linalg.solve(inner + ridge * np.eye(len(inner)), gram[np.ix_(learnt, validation)]).T
    return float(np.sum((shares @ wanted[np.ix_(learnt, learnt)] - 2 * wanted[np.ix_(validation, learnt)]) * shares))


def _gram(left: NDArray[np.uint8], right: NDArray[np.uint8], mean: Float) -> Matrix:
    """Products [N,M] of images [N,D] and [M,D] less their mean."""
    return ((left - mean) @ (right - mean).T).astype(np.float64)


def _flat(images: Images) -> NDArray[np.uint8]:
    return images.reshape(len(images), math.prod(images.shape[1:]))
