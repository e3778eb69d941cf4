"""Frames in, redacted frames out: the one renderer behind files, cameras and streams.

A person's new identity (a *cast*) is settled where they first appear: one k-same draw, read by the gate; its styles are
kept for the rest of the film. From frame to frame only pose, light and expression (the spatial code) are read anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Images
from ficgan.anonymizers.modes import Methods, aligned_crop, cover, paste_aligned, placement
from ficgan.errors import InputError, UsageError
from ficgan.face_model import FaceModel, Sight
from ficgan.faces import Face, FaceDetector, Paste, Recognizer, blur_face, matching, mosaic_face, solid_mask
from ficgan.policy import Attempt, Policy, covered
from ficgan.video.media import Frame
from ficgan.video.settings import VideoSettings

__all__ = ["LEAST_FACE", "Appearance", "Cast", "Covers", "FrameJob", "Renderer", "VideoTools", "hides"]

LEAST_FACE = 0.9
"""Share of a track's box that is the face. It holds the smoothed and the seen place and a margin: in three films it was
1.07 to 1.2 times the detector's own. Judged by its whole size, good faces turned black for a few frames."""


class Covers:
    """Covers faces of frames.

    All that is drawn for a person is drawn once: fresh noise, or fresh neighbours of a k-same mean, would average out
    over the film. Squares change their size in steps, as the noise of a crop changes with it.

    `coverage` is the least weight of a method's mask at the landmarks and in the middle of a face.
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
        """Cover a face in a frame [H,W,3], in place; other faces may be covered in it already.

        `mode` is any but "ficgan" and "keep". Returns the mode's name, or the fallback where the method failed.
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


def hides(mask: NDArray[np.float32], face: Face, coverage: float, outline: NDArray[np.float32] | None = None) -> bool:
    """Whether a mask [H,W] hides a face of a track; `outline` [n,2] is that of the face's mesh in this frame."""
    centre = np.tile((face.box[:2] + face.box[2:]) / 2, 2)
    box = centre + LEAST_FACE * (face.box - centre)
    return covered(mask, face.landmarks, box, coverage, outline)


Image = NDArray[np.uint8]


class _NewFace(NamedTuple):
    paste: Paste
    outline: NDArray[np.float32] | None
    """Of the source's mesh in this frame."""


@dataclass(frozen=True, eq=False)
class VideoTools:
    """What redacts a film."""

    detector: FaceDetector
    recognizer: Recognizer | None = None
    """Tells people apart, to link tracks; None: nothing does, and nothing checks new faces."""
    face_model: FaceModel | None = None
    """None where no face is generated."""
    policy: Policy = field(default_factory=Policy)
    layer: int = 0
    psi: float = 0.6
    """Diversity, so that the people of a film do not become clones of one mean face."""
    methods: Methods = field(default_factory=Methods)
    """Anonymisers for the modes that name one."""
    gate: Recognizer | None = None
    """Checks new faces and the result: one recogniser, or several as one; if not given, `recognizer` does."""

    def __post_init__(self) -> None:
        if self.gate is None:
            object.__setattr__(self, "gate", self.recognizer)


@dataclass(frozen=True, eq=False)
class Appearance:
    """One face of one frame, and what shall happen to it."""

    track: int
    person: str
    """Key of the person in the k-same draw."""
    face: Face
    mode: str


@dataclass(frozen=True, eq=False)
class FrameJob:
    """One frame and all faces that shall not be seen in it."""

    frame: Frame
    appearances: Sequence[Appearance]
    regions: Sequence[tuple[NDArray[np.float32], str]] = ()
    """Boxes that a person added, with their modes."""


@dataclass(eq=False)
class Cast:
    """A person's new identity."""

    styles: NDArray[np.float32] | None
    """[1,S]; None where no setting hides the person: always the fallback."""
    z_id: NDArray[np.float32]
    rung: int = 0
    draw: dict[str, Any] = field(default_factory=dict)
    """k, ψ, members digest, layer: for the account."""
    checked: dict[int, float] = field(default_factory=dict)
    """Track → second of its last reading by the gate."""
    distance: float | None = None
    """Smallest distance between source and result that the gate read."""
    matched_by: list[str] = field(default_factory=list)
    """Recognisers that took an earlier face for the source."""


class Renderer:
    """Redacts frames, a chunk at a time, in order.

    `reach` is the number of frames on either side over which a generated face's place and light are smoothed.
    """

    def __init__(self, tools: VideoTools, settings: VideoSettings, reach: int = 0) -> None:
        self.tools, self.settings = tools, settings
        self.casts: dict[str, Cast] = {}
        self.counts: Counter[str] = Counter()
        """Faces of single frames by what was done to them."""
        self.tally: list[Counter[str]] = []
        """The same for each frame of the last call."""
        self.unread = 0
        """Faces of single frames that got the fallback, as the model could not read them there or nearby."""
        self._lost: dict[int, list[float]] = {}
        self._reader = None if tools.face_model is None else _Reader(tools.face_model, reach)
        self.covers = Covers(tools.methods, settings, tools.policy.coverage)
        model = tools.face_model
        self._ladder: list[Attempt] = []
        if model is not None:
            self._ladder = tools.policy.attempts(tools.layer, model.band, drawn=not model.swap)

    def __call__(self, jobs: Sequence[FrameJob], around: Sequence[FrameJob] = ()) -> list[Image]:
        """The new images of consecutive frames; a frame without faces is the source's own array.

        Args:
            jobs: the frames; the generated faces of all of them are computed together.
            around: frames before and after them, as far as they were not among the jobs of the last call. With twice
            the
                reach on each side every frame is smoothed in the same way, wherever a chunk begins.
        """
        generated = self._generate(jobs, around)
        self.tally = []
        images = []
        for job, pastes in zip(jobs, generated, strict=True):
            self.tally.append(Counter())
            images.append(self._compose(job, pastes))
            self.counts += self.tally[-1]
        return images

    def recast(self, people: Iterable[str]) -> bool:
        """Give people who are still recognised another face; returns whether anybody has one."""
        again = [person for person in people if person in self.casts and self.casts[person].styles is not None]
        for person in again:
            cast = self.casts[person]
            self.cast(person, cast.z_id, cast.rung + 1)
            self.casts[person].matched_by = cast.matched_by
        return bool(again)

    def cast(self, person: str, z_id: NDArray[np.float32], rung: int = 0, distance: float | None = None) -> None:
        """Settle a person's new identity: the styles of a rung of the ladder, none where it ends.

        `z_id` [1,id_dim] is the source's code, `distance` the smallest that the gate read in an interrupted run.
        """
        model = self.tools.face_model
        if model is None:
            return
        cast = self.casts[person] = Cast(None, z_id, rung, distance=distance)
        if rung >= len(self._ladder):
            return
        attempt = self._ladder[rung]
        draw = model.draw(person, attempt, self.tools.psi, z_id[0])
        cast.styles = model.styles(z_id, [draw], attempt)
        cast.draw = {"layer": None if attempt.band else attempt.layer, "attempts": rung + 1}
        if not model.swap:
            cast.draw |= {"k": draw.k, "psi": draw.psi, "members_digest": draw.members_digest}

    # -- new faces --------------------------------------------------------------------------------------------------

    def _generate(self, jobs: Sequence[FrameJob], around: Sequence[FrameJob]) -> list[dict[int, _NewFace]]:
        pastes: list[dict[int, _NewFace]] = [{} for _ in jobs]
        model, reader = self.tools.face_model, self._reader
        if model is None or reader is None:
            return pastes
        wanted = self._steady(jobs, reader.read(jobs, around))
        people = [jobs[j].appearances[a].person for j, a, _ in wanted]
        for person in dict.fromkeys(people):
            if person not in self.casts:
                rows = [sight.z_id for (_, _, sight), owner in zip(wanted, people, strict=True) if owner == person]
                self.cast(person, np.mean(rows, 0, keepdims=True, dtype=np.float32))
        pending = list(range(len(wanted)))
        while pending:
            pending = [n for n in pending if self.casts[people[n]].styles is not None]
            if not pending:
                break
            styles = np.concatenate([_styles(self.casts[people[n]]) for n in pending])
            for n, made in zip(pending, model.render(styles, [wanted[n][2] for n in pending]), strict=True):
                j, a, sight = wanted[n]
                paste = model.paste(jobs[j].frame.image, sight, made, mask_scale=self.settings.mask_scale)
                pastes[j][a] = _NewFace(paste, sight.outline)
            # A person the gate still knows is cast anew, and all their faces of this chunk are made again.
            known = self._recognised(jobs, wanted, people, pastes)
            self.recast(known)
            for n in range(len(wanted)):
                if people[n] in known and self.casts[people[n]].styles is None:
                    j, a, _ = wanted[n]
                    pastes[j].pop(a, None)
            pending = [n for n in range(len(wanted)) if people[n] in known]
        return pastes

    def _steady(self, jobs: Sequence[FrameJob], seen: Sequence[tuple[int, int, Sight]]) -> list[tuple[int, int, Sight]]:
        """Faces that get a new one: not those that cannot be read, nor what is within `hold` seconds of them."""
        lost: dict[int, list[float]] = {}
        for j, a, sight in seen:
            if sight.problem:
                lost.setdefault(jobs[j].appearances[a].track, []).append(jobs[j].frame.time)
        kept = []
        for j, a, sight in seen:
            track, now = jobs[j].appearances[a].track, jobs[j].frame.time
            times = [*lost.get(track, ()), *self._lost.get(track, ())]
            if not sight.problem and all(abs(now - time) > self.settings.hold for time in times):
                kept.append((j, a, sight))
        self.unread += len(seen) - len(kept)
        self._lost = {track: times[-1:] for track, times in {**self._lost, **lost}.items()}
        return kept

    def _recognised(
        self, jobs: Sequence[FrameJob], wanted: Sequence[tuple[int, int, Sight]], people: Sequence[str],
        pastes: list[dict[int, _NewFace]],
    ) -> set[str]:  # fmt: skip
        gate = self.tools.gate
        if gate is None or not self.tools.policy.verify:
            return set()
        known: set[str] = set()
        for n, (j, a, _) in enumerate(wanted):
            job, cast = jobs[j], self.casts[people[n]]
            appearance, new = job.appearances[a], pastes[j].get(a)
            last = cast.checked.get(appearance.track)
            if new is None or people[n] in known:
                continue
            if last is not None and 0 <= job.frame.time - last < self.settings.check:
                continue
            cast.checked[appearance.track] = job.frame.time
            marks = appearance.face.landmarks[None]
            before, after = gate.embed(job.frame.image, marks)[0], gate.embed(new.paste.image, marks)[0]
            distance = float(gate.distance(before, after))
            cast.distance = distance if cast.distance is None else min(cast.distance, distance)
            # Between two readings the face moves; a margin keeps the frames that are not read on the safe side.
            names = matching(gate, before, after)
            if names or distance < self.settings.margin * gate.match_threshold:
                known.add(people[n])
                cast.matched_by += [name for name in names if name not in cast.matched_by]
        return known

    # -- pictures ---------------------------------------------------------------------------------------------------

    def _compose(self, job: FrameJob, generated: dict[int, _NewFace]) -> Image:
        source = job.frame.image
        if not job.regions and all(appearance.mode == "keep" for appearance in job.appearances):
            self._count("kept", len(job.appearances))
            return source
        out, coverage = source.copy(), self.tools.policy.coverage
        # Largest last, as the nearer face hides the farther one; covers after generated faces, which must not poke out.
        order = sorted(range(len(job.appearances)), key=lambda a: (a not in generated, _area(job.appearances[a].face)))
        for a in order:
            appearance, new = job.appearances[a], generated.get(a)
            if appearance.mode == "keep":
                self._count("kept")
            elif new is not None and hides(new.paste.mask, appearance.face, coverage, new.outline):
                _overlay(new.paste, out)
                self._count("generated")
            elif new is not None and hides(new.paste.mask, _scaled(appearance.face, 0.5), coverage):
                # The place is known roughly: what the new face leaves of the box is covered like a pad.
                under = self.settings.pad_mode
                under = self.settings.fallback if under == "ficgan" else under
                self.covers(out, _scaled(appearance.face, 0.8), under)  # covers reach 1.3 times as far
                _overlay(new.paste, out)
                self._count("generated")
            else:
                mode = self.settings.fallback if appearance.mode == "ficgan" else appearance.mode
                self._count(self.covers(out, appearance.face, mode, appearance.person))
        for box, mode in job.regions:
            self.covers(out, Face(box, np.zeros((5, 2), np.float32), 0.0), mode)
            self._count("region")
        return out

    def _count(self, what: str, number: int = 1) -> None:
        self.tally[-1][what] += number


class _Reader:
    """Source faces of a film as the model sees them, their place and light smoothed over time in both directions."""

    def __init__(self, model: FaceModel, reach: int) -> None:
        self.model, self.reach = model, reach
        self._found: dict[tuple[int, int], Any] = {}
        """(track, frame) → what the model found there."""
        self._sights: dict[tuple[int, int], Sight] = {}

    def read(self, jobs: Sequence[FrameJob], around: Sequence[FrameJob]) -> list[tuple[int, int, Sight]]:
        """Number of the job, number of the appearance and sight of each face that shall be generated."""
        first, last, reach = jobs[0].frame.index, jobs[-1].frame.index, self.reach
        faces = {
            (appearance.track, job.frame.index): (job.frame.image, appearance.face)
            for job in sorted([*jobs, *around], key=lambda job: job.frame.index)
            for appearance in job.appearances
            if appearance.mode == "ficgan"
        }
        new = [key for key in faces if key not in self._found]
        self._found |= zip(new, self.model.find([faces[key] for key in new]), strict=True)
        new = [key for key in faces if key not in self._sights and first - reach <= key[1] <= last + reach]
        smoothed = [self.model.smoothed(*self._window(self._found, key)) for key in new]
        self._sights |= zip(new, self.model.see([faces[key] for key in new], smoothed), strict=True)
        sights = []
        for j, job in enumerate(jobs):
            for a, appearance in enumerate(job.appearances):
                if appearance.mode == "ficgan":
                    key = (appearance.track, job.frame.index)
                    sights.append((j, a, self.model.steadied(*self._window(self._sights, key))))
        end = max(frame for _, frame in faces) if faces else last  # a film that is drawn again begins anew
        self._found = {key: mesh for key, mesh in self._found.items() if last - 2 * reach < key[1] <= end}
        self._sights = {key: sight for key, sight in self._sights.items() if last - reach < key[1] <= end}
        return sights

    def _window(self, rows: dict[tuple[int, int], Any], key: tuple[int, int]) -> tuple[list[Any], int]:
        track, frame = key
        window = [rows[key]]
        at = 0
        for step in (-1, 1):
            for away in range(1, self.reach + 1):
                if (track, frame + step * away) not in rows:
                    break
                if step < 0:
                    window.insert(0, rows[track, frame - away])
                    at += 1
                else:
                    window.append(rows[track, frame + away])
        return window, at


def _styles(cast: Cast) -> NDArray[np.float32]:
    assert cast.styles is not None
    return cast.styles


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
