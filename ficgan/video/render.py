"""Frames in, redacted frames out: the one renderer behind files, cameras and streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Images
from ficgan.anonymizers.modes import Methods, aligned_crop, cover, paste_aligned, placement
from ficgan.errors import InputError, UsageError
from ficgan.faces import Face, Paste, blur_face, colour_beside, mosaic_face, plain_mask, solid_mask
from ficgan.faces.blend import Colour
from ficgan.policy import covered
from ficgan.video.decided import Appearance, FrameJob
from ficgan.video.identities import FaceKey, FaceReader, FilmFace, Identities
from ficgan.video.settings import VideoSettings
from ficgan.video.tools import VideoTools

__all__ = ["Appearance", "Covers", "FrameJob", "Renderer", "hides"]

# Share of a track's box that is the face. It holds the smoothed and the seen place and a margin: in three films it was
# 1.07 to 1.2 times the detector's own. Judged by its whole size, good faces turned black for a few frames.
LEAST_FACE = 0.9
# Standard deviation of the blur as a fraction of the face's longer side.
BLUR = 0.15
Image = NDArray[np.uint8]


class Covers:
    """Covers faces of frames.

    All that is drawn for a person is drawn once: fresh noise, or fresh neighbours of a k-same mean, would average out
    over the film. Squares change their size in steps, as the noise of a crop changes with it. A plain cover has one
    colour in all of a track, which is found where the track is first covered.

    `coverage` is the least weight of a method's mask at the landmarks and in the middle of a face.
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
        self.stills: dict[tuple[str, str], Images] = {}
        """Mode and person → the crop that stands for the person."""
        self.colours: dict[int, Colour] = {}
        """Track → colour of its plain covers; −1 − n for the n-th of the boxes that a person added."""

    def __call__(
        self,
        out: Images,
        face: Face,
        mode: str,
        track: int,
        person: str = "",
        views: Callable[[], Iterable[tuple[Images, Face]]] = tuple,
    ) -> str:
        """Cover a face in a frame [H,W,3], in place; other faces may be covered in it already.

        `mode` is any but "ficgan" and "keep". `views` gives frames with the face, to find its colour in. Returns the
        mode's name, or the fallback where the method failed.
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


class Renderer:
    """Redacts frames, a chunk at a time, in order.

    `reach` is the number of frames on either side over which a generated face's place and light are smoothed.
    """

    def __init__(self, tools: VideoTools, settings: VideoSettings, reach: int = 0) -> None:
        self.tools, self.settings = tools, settings
        self.counts: Counter[str] = Counter()
        """Faces of single frames by what was done to them."""
        self.tally: list[Counter[str]] = []
        """The same for each frame of the last call."""
        self.causes: Counter[str] = Counter()
        """Faces of single frames by why they are not, or not simply, generated: "unread" and "known", see `Identities`;
        "roughly placed": new faces over a cover."""
        self.identities = Identities(tools, settings.mask_scale, self.causes)
        self.covers = Covers(tools.methods, settings, tools.policy.coverage)
        self._reader = None if tools.face_model is None else FaceReader(tools.face_model, reach)

    def __call__(self, jobs: Sequence[FrameJob], around: Sequence[FrameJob] = ()) -> list[Image]:
        """The new images of consecutive frames; a frame without faces is the source's own array.

        Args:
            jobs: the frames; the generated faces of all of them are computed together.
            around: frames before and after them, as far as they were not among the jobs of the last call. With twice
                the reach on each side every frame is smoothed in the same way, wherever a chunk begins.
        """
        new = {} if self._reader is None else self.identities.draw(self._reader.read(jobs, around))
        self.tally = []
        images = []
        for job in jobs:
            self.tally.append(Counter())
            images.append(self._compose(job, new, [*jobs, *around]))
            self.counts += self.tally[-1]
        return images

    def restart(self) -> None:
        """Forget what was drawn, but not who is whom: the film is drawn again from its beginning."""
        self.counts.clear()
        self.causes.clear()
        self.identities.restart()

    def _compose(self, job: FrameJob, new: Mapping[FaceKey, FilmFace], near: Sequence[FrameJob]) -> Image:
        source, settings, count = job.frame.image, self.settings, self.tally[-1]
        if not job.regions and all(appearance.mode == "keep" for appearance in job.appearances):
            count.update(kept=len(job.appearances))
            return source
        out, coverage = source.copy(), self.tools.policy.coverage
        faces = [(appearance, new.get((appearance.track, job.frame.index))) for appearance in job.appearances]
        # Largest last, as the nearer face hides the farther one; covers after generated faces, which must not poke out.
        for appearance, made in sorted(faces, key=lambda pair: (pair[1] is None, _area(pair[0].face))):
            face, paste, track = appearance.face, made and made.paste, appearance.track
            views = partial(_views, near, job.frame.index, track)
            if appearance.mode == "keep":
                count["kept"] += 1
            elif made and paste and hides(paste.mask, face, coverage, made.sight.outline):
                _overlay(paste, out)
                count["generated"] += 1
            elif paste and hides(paste.mask, _scaled(face, 0.5), coverage):
                # The place is known roughly: what the new face leaves of the box is covered like a pad.
                self.covers(out, _scaled(face, 0.8), settings.fallback, track, views=views)  # 1.3 times as large
                _overlay(paste, out)
                count["generated"] += 1
                self.causes["roughly placed"] += 1
            else:
                mode = settings.fallback if appearance.mode == "ficgan" else appearance.mode
                count[self.covers(out, face, mode, track, appearance.person, views)] += 1
        for box, mode, number in job.regions:
            self.covers(out, Face(box, np.full((5, 2), np.nan, np.float32), 0.0), mode, -1 - number)
            count["region"] += 1
        return out


def _views(jobs: Sequence[FrameJob], frame: int, track: int) -> list[tuple[Image, Face]]:
    """A track's face in a frame and the later ones that are at hand: the detector may see it there for the first time.

    Earlier ones do not count, as an interrupted film has others of them at hand than a whole one.
    """
    return [
        (job.frame.image, appearance.face)
        for job in jobs
        if job.frame.index >= frame
        for appearance in job.appearances
        if appearance.track == track
    ]


def _area(face: Face) -> float:
    return float(np.prod(face.box[2:] - face.box[:2]))


def _scaled(face: Face, share: float) -> Face:
    margin = (face.box[2:] - face.box[:2]) * (1 - share) / 2
    return Face(np.concatenate([face.box[:2] + margin, face.box[2:] - margin]), face.landmarks, face.score)


def _overlay(paste: Paste, out: Image) -> None:
    """Put a patch into a picture others may have changed: what it mixes with is what is there now, not the source."""
    height, width = paste.weight.shape
    region = out[paste.y0 : paste.y0 + height, paste.x0 : paste.x0 + width]
    source = paste.photo[paste.y0 : paste.y0 + height, paste.x0 : paste.x0 + width]
    if np.array_equal(region, source):
        region[:] = paste.pixels
        return
    rest = 1 - np.asarray(paste.weight, np.float32)[..., None]
    mixed = paste.pixels + rest * (region.astype(np.float32) - source)
    region[:] = np.rint(mixed).clip(0, 255).astype(np.uint8)
