"""The toy every generative method must beat: one mean face, in the source's colours, on everybody."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ficgan.anonymizers.base import ANONYMIZERS, Anonymizer, Faces, Images, Traits
from ficgan.arrays import resize
from ficgan.errors import UsageError
from ficgan.faces.alignment import Alignment

__all__ = ["AverageFace"]


@ANONYMIZERS.add
@dataclass(frozen=True)
class AverageFace(Anonymizer):
    """The mean of the background's faces, colour-matched and pasted on every face."""

    name = "average-face"
    traits = Traits(
        title="average-face sticker",
        family="synthesis",
        source="control: what is reached without any model",
        needs=frozenset({"background"}),
    )
    mean: Images | None = field(default=None, init=False, repr=False, compare=False)

    def fit(self, background: Faces) -> AverageFace:
        from ficgan.faces.blend import crop

        if not len(background):
            raise UsageError("average-face needs a background set of other people's faces, and it is empty")
        size, total = background.images.shape[1], np.zeros(background.images.shape[1:], np.float64)
        alignment = Alignment()
        for image, marks in zip(background.images, background.landmarks, strict=True):
            total += crop(image, alignment.matrix(marks, size), size)
        fitted = replace(self)
        object.__setattr__(fitted, "mean", np.rint(total / len(background)).astype(np.uint8))
        return fitted

    def __call__(self, faces: Faces) -> Images:
        from ficgan.faces.blend import paste_back

        if self.mean is None:
            raise UsageError("average-face needs a background set of other people's faces; call fit first")
        size, alignment, out = faces.images.shape[1], Alignment(), faces.images.copy()
        mean = resize(self.mean, size)
        for image, marks in zip(out, faces.landmarks, strict=True):
            paste_back(image, mean, alignment.matrix(marks, size)).onto(image, np.zeros((size, size), np.float32))
        return out
