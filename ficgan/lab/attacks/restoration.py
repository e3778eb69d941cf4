"""Classical restoration: resampling, wavelets and interpolation against noise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces, Images
from ficgan.anonymizers.base import nearest_grey
from ficgan.errors import UsageError
from ficgan.lab.attacks.base import BLURS, NOISES, REVERSERS, Float, Pairs, Reverser, ReverserTraits, mean_ssim
from ficgan.registry import param

R = TypeVar("R", bound="_Resampling")


@dataclass(frozen=True)
class _Resampling(Reverser):
    ratio: float = param(0.0, "intermediate width over the width of the crop; 0: chosen on pairs", low=0, high=1)

    cubic: ClassVar[bool]

    def fit(self: R, pairs: Pairs) -> R:
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
        return {width: mean_ssim(clear, self._resampled(observed, width)) for width in widths}

    def guess(self, faces: Faces) -> Images:
        if not self.ratio:
            raise UsageError(f"{self.name} has no ratio yet; fit it on pairs or give ratio=FRACTION")
        return self._resampled(faces.images, max(1, round(self.ratio * faces.images.shape[1])))

    def _resampled(self, images: NDArray[Any], middle: int) -> NDArray[Any]:
        import cv2

        size = (images.shape[1], images.shape[1])
        how = cv2.INTER_CUBIC if self.cubic else cv2.INTER_LINEAR
        out = np.empty_like(images)
        for index, image in enumerate(images):
            small = cv2.resize(image, (middle, middle), interpolation=cv2.INTER_AREA)
            out[index] = cv2.resize(small, size, interpolation=how)
        return out


def _resampling_traits(title: str) -> ReverserTraits:
    return ReverserTraits(title, "Fantômas, §6.2.1", frozenset({"pairs"}), BLURS | NOISES | {"pixelation"})


@REVERSERS.add
@dataclass(frozen=True)
class LinearResampling(_Resampling):
    """See `_Resampling`. Source: Fantômas, §6.2.1."""

    name: ClassVar[str] = "linear"
    traits: ClassVar[ReverserTraits] = _resampling_traits("Linear interpolation")
    cubic: ClassVar[bool] = False


@REVERSERS.add
@dataclass(frozen=True)
class BicubicResampling(_Resampling):
    """See `_Resampling`. Source: Fantômas, §6.2.1."""

    name: ClassVar[str] = "bicubic"
    traits: ClassVar[ReverserTraits] = _resampling_traits("Bicubic interpolation")
    cubic: ClassVar[bool] = True


# Daubechies' filter with two vanishing moments, and its mirror.
_R3 = np.sqrt(3.0)
LOW = (np.array([1 + _R3, 3 + _R3, 3 - _R3, 1 - _R3]) / (4 * np.sqrt(2.0))).astype(np.float32)
HIGH = (LOW[::-1] * np.array([1, -1, 1, -1])).astype(np.float32)


@REVERSERS.add
@dataclass(frozen=True)
class Wavelet(Reverser):
    """Wavelet coefficients drawn towards zero (BayesShrink; Chang et al. 2000, eqs. 9, 13; Fantômas, §6.2.1).

    The noise σ is the median of the finest diagonal band over 0.6745; the threshold of a band is σ²/σ_x.
    """

    name: ClassVar[str] = "wavelet"
    traits: ClassVar[ReverserTraits] = ReverserTraits(
        title="Wavelet denoising", source="Fantômas, §6.2.1; Chang et al. 2000", against=NOISES
    )

    levels: int = param(0, "levels of the transform; 0: down to 8 pixels", low=0, high=8)

    def guess(self, faces: Faces) -> Images:
        out = np.empty_like(faces.images)
        for start in range(0, len(faces), 32):
            part = slice(start, start + 32)
            planes = np.moveaxis(faces.images[part], 3, 1).astype(np.float32)
            out[part] = nearest_grey(np.moveaxis(self._denoised(planes), 1, 3))
        return out

    def _denoised(self, planes: Float) -> Float:
        size = planes.shape[-1]
        levels = self.levels or max(1, int(np.log2(size)) - 3)
        # Reflected beyond the edges: the transform is periodic and must not see the left edge beside the right one.
        unit = 2**levels
        margin = min(unit, size - 1)
        total = -(-(size + 2 * margin) // unit) * unit
        pad = (margin, total - size - margin)
        rest = np.pad(planes, ((0, 0), (0, 0), pad, pad), "symmetric")
        bands = []
        for _ in range(levels):
            rest, *details = analyse(rest)
            bands.append(details)
        noise = (np.median(np.abs(bands[0][2]), axis=(-2, -1), keepdims=True) / 0.6745).astype(np.float32)
        for details in reversed(bands):
            rest = synthesise(rest, *(bayes_shrunk(band, noise) for band in details))
        return rest[..., margin : margin + size, margin : margin + size]


def analyse(planes: Float) -> tuple[Float, Float, Float, Float]:
    """One level of the orthogonal D4 wavelet transform, periodic (Daubechies 1988): […,H,W] → four […,H/2,W/2]."""
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
    for odd in (0, 1):
        out[..., odd::2] = LOW[odd] * low + LOW[odd + 2] * low1 + HIGH[odd] * high + HIGH[odd + 2] * high1
    return out


def bayes_shrunk(band: Float, noise: Float) -> Float:
    """A band [N,H,W] under soft thresholding; `noise` [N,1,1] is its deviation."""
    energy = np.mean(band**2, axis=(-2, -1), keepdims=True)
    signal = np.sqrt(np.maximum(energy - noise**2, 0))
    # Where there is nothing but noise the threshold is infinite: the whole band goes.
    threshold = np.where(signal > 0, noise**2 / np.maximum(signal, 1e-6), np.inf).astype(np.float32)
    return np.sign(band) * np.maximum(np.abs(band) - threshold, 0)


@REVERSERS.add
@dataclass(frozen=True)
class InterpolateGrey(Reverser):
    """Pixels of exactly one grey become the mean of their other neighbours, round by round (Fantômas, §6.2.3).

    A pixel needs `least` neighbours, so some may stay grey.
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
    import cv2

    sums = cv2.boxFilter(grid, -1, (3, 3), normalize=False, borderType=cv2.BORDER_CONSTANT)
    return sums - grid
