"""Covers of faces in frames, and when a mask hides a face."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Images
from ficgan.anonymizers.modes import Methods, aligned_crop, cover, paste_aligned, placement
from ficgan.errors import InputError, UsageError
from ficgan.faces import Face, Paste, blur_face, colour_beside, mosaic_face, plain_mask, solid_mask
from ficgan.faces.covers import Colour
from ficgan.policy import covered
from ficgan.video.decided import FrameJob
from ficgan.video.settings import VideoSettings

# Share of a track's box that is the face. It holds the smoothed and the seen place and a margin: in three films it was
# 1.07 to 1.2 times the detector's own. Judged by its whole size, good faces turned black for a few frames.
LEAST_FACE = 0.9
# Standard deviation of the blur as a fraction of the face's longer side.
BLUR = 0.15
# Area of a detector's box over the square of its landmarks' larger extent.
BOX_OVER_LANDMARKS = 5.0
Image = NDArray[np.uint8]


class Covers:
    """Covers faces of frames.

    All that is drawn for a person is drawn once: fresh noise would average out over the film. A plain cover has one
    colour in all of a track. `coverage` is the least weight of a method's mask at the landmarks and in the middle.
    """

    def __init__(self, methods: Methods, settings: VideoSettings, coverage: float) -> None:
        self._methods, self._settings, self._coverage = methods, settings, coverage
        self._scale = max(1.0, settings.mask_scale)
        self._quick: dict[str, Callable[..., Paste]] = {
            "blur": partial(blur_face, strength=BLUR),
            "mosaic": mosaic_face,
            "black": solid_mask,
            "solid": solid_mask,
        }
        # Mode and person → the crop that stands for the person.
        self.stills: dict[tuple[str, str], Images] = {}
        # Track → colour of its plain covers; −1 − n for the n-th of the boxes that a person added.
        self.colours: dict[int, Colour] = {}

    def __call__(
        self,
        out: Images,
        face: Face,
        mode: str,
        track: int,
        person: str = "",
        views: Callable[[], Iterable[tuple[Images, Face]]] = tuple,
    ) -> str:
        """Cover a face in a frame [H,W,3], in place, by any mode but "ficgan" and "keep"; returns the mode used.

        `views` gives frames with the face, to find its colour in.
        """
        if mode == "plain":
            if track not in self.colours:
                self.colours[track] = colour_beside(views() or [(out, face)])
            plain_mask(out, face, colour=self.colours[track], mask_scale=self._scale).onto(out)
            return mode
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
            return self(out, face, self._settings.fallback, track, views=views)
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


def hides(mask: NDArray[np.float32], face: Face, coverage: float, outline: NDArray[np.float32] | None = None) -> bool:
    """Whether a mask [H,W] hides a face of a track; `outline` [n,2] is that of the face's mesh in this frame."""
    centre = np.tile((face.box[:2] + face.box[2:]) / 2, 2)
    box = centre + LEAST_FACE * (face.box - centre)
    return covered(mask, face.landmarks, box, coverage, outline)


def colour_views(jobs: Sequence[FrameJob], frame: int, track: int) -> list[tuple[Image, Face]]:
    """A track's face in a frame and the later ones at hand; of earlier ones an interrupted film has others at hand."""
    return [
        (job.frame.image, appearance.face)
        for job in jobs
        if job.frame.index >= frame
        for appearance in job.appearances
        if appearance.track == track
    ]


def without_landmarks(box: NDArray[np.float32]) -> Face:
    return Face(box, np.full((5, 2), np.nan, np.float32), 0.0)


def face_area(face: Face) -> float:
    """Of a face by its landmarks: a box between two finds is larger than the face. Of one without landmarks its box."""
    extent = float(np.ptp(face.landmarks, axis=0).max())
    return BOX_OVER_LANDMARKS * extent**2 if np.isfinite(extent) else float(np.prod(face.box[2:] - face.box[:2]))
