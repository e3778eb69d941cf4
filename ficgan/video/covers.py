"""What takes a face's place in a frame where no new face is generated: covers, and anonymisers by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Images
from ficgan.anonymizers.modes import Methods, aligned_crop, cover, paste_aligned, placement
from ficgan.errors import InputError, UsageError
from ficgan.faces import Face, Paste, blur_face, mosaic_face, solid_mask
from ficgan.policy import covered
from ficgan.video.settings import VideoSettings

__all__ = ["LEAST_FACE", "Covers", "hides"]

LEAST_FACE = 0.9
"""Share of a track's box that is the face. It holds the smoothed and the seen place and a margin: in three films it was
1.07 to 1.2 times the detector's own. Judged by its whole size, good faces turned black for a few frames."""


class Covers:
    """Covers faces of frames.

    All that is drawn for a person is drawn once: fresh noise in every frame would average out over the film, and so
    would fresh neighbours of a k-same mean. Squares change their size in steps, for with its size the noise of a crop
    changes. What a method with a background makes of a person is one crop, of the first frame, for the whole film.

    Args:
        methods: anonymisers ready for use.
        settings: size, fallback.
        coverage: least weight of a method's mask at the landmarks and in the middle of a face.
    """

    def __init__(self, methods: Methods, settings: VideoSettings, coverage: float) -> None:
        self._methods, self._settings, self._coverage = methods, settings, coverage
        self._scale = max(1.0, settings.mask_scale)
        self._quick: dict[str, Callable[..., Paste]] = {
            "blur": partial(blur_face, strength=settings.blur),
            "mosaic": mosaic_face,
            "solid": solid_mask,
        }
        self.stills: dict[tuple[str, str], Images] = {}
        """Mode and person → the crop that stands for the person."""

    def __call__(self, out: Images, face: Face, mode: str, person: str = "") -> str:
        """Cover a face.

        Args:
            out: [H,W,3] the frame, changed in place; other faces may be covered in it already.
            face: where.
            mode: any but "ficgan" and "keep".
            person: key; of no effect for the quick covers.

        Returns:
            What was done, in a word: the mode's name, or the fallback where the method could not do it.
        """
        if mode in self._quick:
            self._quick[mode](out, face, mask_scale=self._scale).onto(out)
            return mode
        method = self._methods(mode)
        try:
            paste = self._applied(out, face, mode, person)
        except (InputError, UsageError):
            if method.traits.family == "external":
                raise
            paste = None
        if paste is None or not hides(paste.mask, face, self._coverage):
            return self(out, face, self._settings.fallback)
        paste.onto(out)
        return method.name

    def _applied(self, out: Images, face: Face, mode: str, person: str) -> Paste:
        method = self._methods(mode)
        name = self._methods.name(person)
        if placement(method) != "aligned":
            return cover(method, out, face, name=name, mask_scale=self._scale, stepped=True)
        if (mode, person) not in self.stills:
            self.stills[mode, person] = aligned_crop(method, out, face, name=name)
        return paste_aligned(out, self.stills[mode, person], face, mask_scale=self._settings.mask_scale)


def hides(mask: NDArray[np.float32], face: Face, coverage: float) -> bool:
    """Whether a mask [H,W] hides a face of a track."""
    centre = np.tile((face.box[:2] + face.box[2:]) / 2, 2)
    box = centre + LEAST_FACE * (face.box - centre)
    return covered(mask, face.landmarks, box, coverage)
