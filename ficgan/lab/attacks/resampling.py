"""Against pixelation and noise: the picture is made small and large again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import numpy as np

from ficgan.anonymizers import Faces, Images
from ficgan.errors import UsageError
from ficgan.lab.attacks.base import BLURS, NOISES, REVERSERS, Pairs, Reverser, ReverserTraits
from ficgan.lab.attacks.similarity import luminance, some, ssim
from ficgan.registry import param

__all__ = ["Bicubic", "Linear"]

R = TypeVar("R", bound="_Resampling")


@dataclass(frozen=True)
class _Resampling(Reverser):
    ratio: float = param(0.0, "intermediate width over the width of the crop; 0: chosen on pairs", low=0, high=1)

    cubic: ClassVar[bool]

    def fit(self: R, pairs: Pairs) -> R:
        """With the ratio of the highest SSIM on the pairs; one that was given is kept."""
        if self.ratio:
            return self
        size = pairs.clear.images.shape[1]
        # Pixelation has one right width, and its neighbours do not hint at it: all are tried, the best on more pairs.
        widths = range(2, size + 1)
        first = self._scores(some(pairs, 12), widths)
        scores = self._scores(some(pairs, 48), sorted(widths, key=first.__getitem__)[-6:])
        return replace(self, ratio=max(scores, key=scores.__getitem__) / size)

    def _scores(self, pairs: Pairs, widths: Iterable[int]) -> dict[int, float]:
        clear, observed = luminance(pairs.clear.images), luminance(pairs.anonymised.images)
        return {width: float(np.mean(ssim(clear, self._resampled(observed, width)))) for width in widths}

    def guess(self, faces: Faces) -> Images:
        if not self.ratio:
            raise UsageError(f"{self.name} has no ratio yet; fit it on pairs or give ratio=FRACTION")
        return self._resampled(faces.images, max(1, round(self.ratio * faces.images.shape[1])))

    def _resampled(self, images: np.ndarray, middle: int) -> np.ndarray:
        import cv2

        size = (images.shape[1], images.shape[1])
        how = cv2.INTER_CUBIC if self.cubic else cv2.INTER_LINEAR
        out = np.empty_like(images)
        for index, image in enumerate(images):
            small = cv2.resize(image, (middle, middle), interpolation=cv2.INTER_AREA)
            out[index] = cv2.resize(small, size, interpolation=how)
        return out


_TRAITS = {
    "source": "Fantômas, §6.2.1",
    "knowledge": frozenset({"pairs"}),
    "against": BLURS | NOISES | {"pixelation"},
}


@REVERSERS.add
@dataclass(frozen=True)
class Linear(_Resampling):
    """Down by area averages, up by linear interpolation; the width between is the one of the highest SSIM on pairs.

    Source:
        Fantômas, §6.2.1.
    """

    name: ClassVar[str] = "linear"
    traits: ClassVar[ReverserTraits] = ReverserTraits(title="Linear interpolation", **_TRAITS)  # type: ignore[arg-type]
    cubic: ClassVar[bool] = False


@REVERSERS.add
@dataclass(frozen=True)
class Bicubic(_Resampling):
    """Down by area averages, up by bicubic interpolation; the width between is the one of the highest SSIM on pairs.

    Source:
        Fantômas, §6.2.1.
    """

    name: ClassVar[str] = "bicubic"
    traits: ClassVar[ReverserTraits] = ReverserTraits(title="Bicubic interpolation", **_TRAITS)  # type: ignore[arg-type]
    cubic: ClassVar[bool] = True
