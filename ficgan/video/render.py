"""Frames in, redacted frames out: the one renderer behind files, cameras and streams.

A person's new identity (a *cast*) is one k-same draw. In films it is chosen before the first frame is drawn, by what
the gate reads on a few of them; in streams where the person first appears. From frame to frame only pose, light and
expression (the spatial code) are read anew.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Images
from ficgan.anonymizers.modes import Methods, aligned_crop, cover, paste_aligned, placement
from ficgan.errors import InputError, UsageError
from ficgan.face_model import FaceModel, Sight, read_kinds
from ficgan.faces import (
    DlibRecognizer,
    Face,
    Paste,
    blur_face,
    colour_beside,
    matching,
    mosaic_face,
    plain_mask,
    solid_mask,
)
from ficgan.faces.blend import Colour
from ficgan.identity.kind import Kind
from ficgan.policy import Attempt, covered
from ficgan.video.media import Frame
from ficgan.video.settings import VideoSettings
from ficgan.video.tools import VideoTools

__all__ = ["LEAST_FACE", "Appearance", "Cast", "Covers", "FrameJob", "Renderer", "hides"]

LEAST_FACE = 0.9
"""Share of a track's box that is the face. It holds the smoothed and the seen place and a margin: in three films it was
1.07 to 1.2 times the detector's own. Judged by its whole size, good faces turned black for a few frames."""


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
            "blur": partial(blur_face, strength=settings.blur),
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


Image = NDArray[np.uint8]


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
    regions: Sequence[tuple[NDArray[np.float32], str, int]] = ()
    """Boxes that a person added, with their modes and numbers."""


@dataclass(eq=False)
class Cast:
    """A person's new identity."""

    styles: NDArray[np.float32] | None
    """[1,S]; None where no setting hides the person: always the fallback."""
    z_id: NDArray[np.float32]
    rung: int = 0
    kind: NDArray[np.float32] | None = None
    """Reading [9] of the person's kind, one for the whole film; None where nothing of it is kept."""
    draw: dict[str, Any] = field(default_factory=dict)
    """k, ψ, members digest, layer: for the account."""
    checked: dict[int, float] = field(default_factory=dict)
    """Track → second of its last reading by the gate."""
    distance: float | None = None
    """Smallest distance between source and result that the gate read; of a chosen face, where it is shown."""
    matched_by: list[str] = field(default_factory=list)
    """Recognisers that took a face for the source; that face is not shown."""
    settled: bool = False
    """Whether it was chosen for the whole film: where it is recognised a moment is covered, and the person keeps it."""
    hidden: set[int] = field(default_factory=set)
    """Tracks that are covered, as the gate recognised them."""
    watched: set[int] = field(default_factory=set)
    """Tracks that the gate reads on every frame, as it was near to recognising them."""


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
        self.causes: Counter[str] = Counter()
        """Faces of single frames that got the fallback by cause. "unread": the model could not read them there or
        nearby; "known": the gate recognised the person there or nearby. "roughly placed": new faces over a cover."""
        self.lost: dict[int, float] = {}
        """Track → second at which it could last not be read."""
        self._reader = None if tools.face_model is None else _Reader(tools.face_model, reach)
        self.covers = Covers(tools.methods, settings, tools.policy.coverage)
        model = tools.face_model
        self._ladder: list[Attempt] = []
        self._of_photos = 0
        self._of_kind = 0
        """How many attempts of the ladder photos have, too, and how many keep the kind as far as the user wants it."""
        if model is not None:
            attempts = tools.policy.attempts(tools.layer, model.band, drawn=not model.swap)
            self._ladder = [one for one in attempts if not model.gives_up_kind(one)]
            self._of_photos = len(self._ladder)
            if tools.policy.retries and not model.swap:  # a face is seen on many frames: more to choose from
                self._ladder += [Attempt(0, draw=number, psi=1.0) for number in _DRAWS]
            self._of_kind = len(self._ladder)
            self._ladder += [one for one in attempts if model.gives_up_kind(one)]

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
        for job in jobs:
            self.tally.append(Counter())
            images.append(self._compose(job, generated, [*jobs, *around]))
            self.counts += self.tally[-1]
        return images

    def restart(self) -> None:
        """Forget what was done, but not who is whom: the film is drawn again from its beginning."""
        self.counts.clear()
        self.causes.clear()
        self.lost.clear()
        for cast in self.casts.values():
            cast.checked, cast.hidden, cast.watched, cast.distance = {}, set(), set(), None

    def recast(self, people: Iterable[str], lost: Collection[str] = ()) -> bool:
        """Give people who are still recognised another face, but not who has a chosen one, unless it is `lost`.

        Returns whether anybody got one.
        """
        casts = [(person, self.casts[person]) for person in people if person in self.casts]
        again = [one for one, cast in casts if cast.styles is not None and (not cast.settled or one in lost)]
        for person in again:
            cast = self.casts[person]
            self.cast(person, cast.z_id, cast.rung + 1, cast.kind, matched_by=cast.matched_by)
        return bool(again)

    def cast(
        self,
        person: str,
        z_id: NDArray[np.float32],
        rung: int = 0,
        kind: NDArray[np.float32] | None = None,
        **known: Any,
    ) -> None:
        """Give a person a new identity: the styles of a rung of the ladder, none where it ends.

        Args:
            person: key of the person.
            z_id: [1,id_dim], the source's code.
            rung: of the ladder.
            kind: [9], reading of the source's kind.
            known: further fields of `Cast`, from what was done before.
        """
        if self.tools.face_model is not None:
            self.casts[person] = replace(self._cast(person, z_id, rung, kind), **known)

    def _cast(self, person: str, z_id: NDArray[np.float32], rung: int, kind: NDArray[np.float32] | None) -> Cast:
        model, cast = self.tools.face_model, Cast(None, z_id, rung, kind)
        if model is None or rung >= len(self._ladder):
            return cast
        attempt = self._ladder[rung]
        draw = model.draw(person, attempt, self.tools.psi, z_id[0], kind)
        cast.styles = model.styles(z_id, [draw], attempt)
        cast.draw = {"layer": None if attempt.band else attempt.layer, "attempts": rung + 1}
        if not model.swap:
            cast.draw |= {"k": draw.k, "psi": draw.psi, "members_digest": draw.members_digest}
            cast.draw |= {} if draw.kind is None else {"kind": draw.kind}
        return cast

    def audition(self, jobs: Callable[[Collection[str]], Iterable[FrameJob]], people: Collection[str]) -> None:
        """Choose the identity of each person for the whole film, from single frames that are spread over it.

        The gate reads the first attempt of the ladder on all of them. Where it comes near on one, it reads the others
        of photos. Where each of them does, it reads those that films have beyond, and where each does often, the one of
        any kind. Each is read until it cannot be chosen any more. Of those that come near about as seldom as the best,
        the one that keeps most of the source's code is taken, of these the one of the narrowest kind, and of these the
        farthest face. A person to whom each comes near on half of the frames or more always gets the fallback.

        Args:
            jobs: makes the frames of some people.
            people: whose identity is to be chosen.
        """
        model = self.tools.face_model
        if model is None:
            return
        tried: dict[str, list[_Trial]] = {}
        kinds: dict[str, list[NDArray[np.float32] | None]] = {}

        def read(people: Collection[str], rungs: range) -> None:
            reader = _Reader(model, 0)
            for job in jobs(people):
                for face in reader.read([job], ()):
                    if face.sight.problem:
                        continue
                    trials = tried.setdefault(face.person, [])
                    if not rungs[0]:
                        kinds.setdefault(face.person, []).append(self._kind([face]))
                    if len(trials) <= rungs[0]:
                        z_id = trials[0].cast.z_id if trials else face.sight.z_id[None]
                        kind = trials[0].cast.kind if trials else _mean(kinds[face.person])
                        trials += [_Trial(self._cast(face.person, z_id, rung, kind)) for rung in rungs]
                    for trial in _in_play(trials):
                        if trial.cast.rung not in rungs:
                            continue
                        assert trial.cast.styles is not None
                        made = model.render(trial.cast.styles, [face.sight])[0]
                        face.paste = model.paste(
                            face.frame.image, face.sight, made, mask_scale=self.settings.mask_scale
                        )
                        ratio = self._read(face, trial.cast).ratio
                        trial.ratios.append(ratio)
                        trial.near += ratio < self.settings.margin

        read(people, range(1))
        other = [one for one, trials in tried.items() if not self._same_group(trials[0].cast.kind, _mean(kinds[one]))]
        for person in other:  # the first frame showed somebody of another kind than all of them do
            tried[person] = []
        if other:
            read(other, range(1))
        stages = (1, self._of_photos, 0.0), (self._of_photos, self._of_kind, 0.0), (self._of_kind, None, _OFTEN)
        for begin, end, share in stages:
            rungs = range(begin, len(self._ladder) if end is None else end)
            near = [
                person
                for person, trials in tried.items()
                if min(trial.near for trial in trials) > share * len(trials[0].ratios)
            ]
            if near and rungs:
                read(near, rungs)
        for person, trials in tried.items():
            good = _in_play(trials)
            layer = self._ladder[good[0].cast.rung].layer
            alike = [trial for trial in good if self._ladder[trial.cast.rung].layer == layer]
            groups = [self._group_size(trial.cast) for trial in alike]
            alike = [trial for trial, size in zip(alike, groups, strict=True) if size == min(groups)]
            chosen = max(alike, key=lambda trial: np.mean(trial.ratios)).cast
            if min(trial.near for trial in good) >= len(good[0].ratios) / 2:
                chosen = self._cast(person, chosen.z_id, len(self._ladder), chosen.kind)
            chosen.matched_by = list(dict.fromkeys(name for trial in trials for name in trial.cast.matched_by))
            chosen.settled, chosen.distance = True, None  # nothing of what was read is shown
            self.casts[person] = chosen

    def _kind(self, faces: Sequence[_NewFace]) -> NDArray[np.float32] | None:
        """Mean reading [9] of the kind of one person's faces; None where nothing of it is kept."""
        model, gate = self.tools.face_model, self.tools.gate
        if model is None or not model.keeps_kind:
            return None
        images, marks = [face.frame.image for face in faces], [face.appearance.face.landmarks for face in faces]
        if not isinstance(gate, DlibRecognizer):
            return _mean(read_kinds(images, marks))
        for face in faces:
            self._know(face)
        return _mean(read_kinds(images, marks, np.stack([face.known[0] for face in faces if face.known is not None])))

    def _group_size(self, cast: Cast) -> int:
        """How many cells of kinds a person's new face is drawn for."""
        model = self.tools.face_model
        kind = None if model is None else model.kind_of(cast.kind, self._ladder[cast.rung])
        return int((Kind.everybody() if kind is None else kind).cells.sum())

    def _same_group(self, a: NDArray[np.float32] | None, b: NDArray[np.float32] | None) -> bool:
        model = self.tools.face_model
        kinds = [None if model is None else model.kind_of(one) for one in (a, b)]
        return all(one is None for one in kinds) or len({one.name for one in kinds if one is not None}) == 1

    # -- new faces --------------------------------------------------------------------------------------------------

    def _generate(self, jobs: Sequence[FrameJob], around: Sequence[FrameJob]) -> dict[_Key, _NewFace]:
        model, reader = self.tools.face_model, self._reader
        if model is None or reader is None:
            return {}
        faces = self._steady(reader.read(jobs, around))
        for person in dict.fromkeys(face.person for face in faces):
            if person not in self.casts:
                theirs = [face for face in faces if face.person == person]
                z_id = np.stack([face.sight.z_id for face in theirs]).mean(0, keepdims=True)
                self.cast(person, z_id, kind=self._kind(theirs))
        pending = faces
        while pending := [face for face in pending if self.casts[face.person].styles is not None]:
            styles = np.concatenate([self.casts[face.person].styles for face in pending])
            for face, made in zip(pending, model.render(styles, [face.sight for face in pending]), strict=True):
                face.paste = model.paste(face.frame.image, face.sight, made, mask_scale=self.settings.mask_scale)
            # A person the gate still knows is cast anew, and all their faces of this chunk are made again.
            known = self._recognised(faces)
            self.recast(known)
            pending = [face for face in faces if face.person in known]
            for face in pending:
                face.paste = None
        return {face.key: face for face in faces if face.paste is not None}

    def _steady(self, seen: Sequence[_NewFace]) -> list[_NewFace]:
        """Faces that get a new one: not those that cannot be read, nor what is within `hold` seconds of them."""
        lost: dict[int, list[float]] = {track: [time] for track, time in self.lost.items()}
        for face in seen:
            if face.sight.problem:
                lost.setdefault(face.track, []).append(face.frame.time)
        kept = [
            face
            for face in seen
            if not face.sight.problem
            and all(abs(face.frame.time - time) > self.settings.hold for time in lost.get(face.track, ()))
        ]
        self.causes += Counter(unread=len(seen) - len(kept))
        self.lost = {track: times[-1] for track, times in lost.items()}
        return kept

    def _recognised(self, faces: Sequence[_NewFace]) -> set[str]:
        """People who need another face. Faces of those who keep theirs are covered, see `_watch`."""
        known: set[str] = set()
        if self.tools.gate is None or not self.tools.policy.verify:
            return known
        tracks: dict[int, list[_NewFace]] = {}
        for face in faces:
            cast = self.casts[face.person]
            if face.paste is None or face.person in known:
                continue
            if cast.settled:
                tracks.setdefault(face.track, []).append(face)
            elif self._is_due(face, cast):
                reading = self._read(face, cast)
                cast.distance = min(reading.distance, math.inf if cast.distance is None else cast.distance)
                # Between two readings the face moves; a margin keeps the frames that are not read on the safe side.
                if reading.ratio < self.settings.margin:
                    known.add(face.person)
        for seen in tracks.values():
            self._watch(seen, self.casts[seen[0].person])
        return known

    def _is_due(self, face: _NewFace, cast: Cast) -> bool:
        """Whether the gate shall read a track again; notes that it does."""
        last, now = cast.checked.get(face.track), face.frame.time
        due = last is None or not 0 <= now - last < self.settings.check
        if due:
            cast.checked[face.track] = now
        return due

    def _watch(self, faces: Sequence[_NewFace], cast: Cast) -> None:
        """Cover the faces of a track in a chunk where the gate takes one of them for its source.

        A reading that came near is followed by readings of every frame, until all of a chunk are far. A cover ends with
        a chunk in which none comes within half the margin.
        """
        track, margin = faces[0].track, self.settings.margin
        watched = track in cast.watched
        readings = [self._read(faces[0], cast)] if self._is_due(faces[0], cast) or watched else []
        if readings and (watched or readings[0].ratio < 1 + _WATCH * (margin - 1)):
            readings += [self._read(face, cast) for face in faces[1:]]
        if not readings:
            return
        least = min(reading.ratio for reading in readings)
        (cast.watched.add if least < 1 + _WATCH * (margin - 1) else cast.watched.discard)(track)
        if least < (1 + (margin - 1) / 2 if track in cast.hidden else 1):
            cast.hidden.add(track)
            for face in faces:
                face.paste = None
            self.causes["known"] += len(faces)
        else:
            cast.hidden.discard(track)
            shown = min(reading.distance for reading in readings)
            cast.distance = min(shown, math.inf if cast.distance is None else cast.distance)

    def _read(self, face: _NewFace, cast: Cast) -> _Reading:
        """What the gate says of a new face and its source; recognisers that take it for the source are noted."""
        gate = self.tools.gate
        assert gate is not None and face.paste is not None
        pairs = list(zip(self._know(face), gate.embed(face.paste.image, face.landmarks), strict=True))
        distance = min(float(gate.distance(before, after)) for before, after in pairs)
        names = [name for before, after in pairs for name in matching(gate, before, after)]
        cast.matched_by += [name for name in names if name not in cast.matched_by]
        return _Reading(distance, 0.0 if names else distance / gate.match_threshold)

    def _know(self, face: _NewFace) -> NDArray[np.float32]:
        """What the gate reads of a source, once."""
        if face.known is None:
            assert self.tools.gate is not None
            face.known = self.tools.gate.embed(face.frame.image, face.landmarks)
        return face.known

    # -- pictures ---------------------------------------------------------------------------------------------------

    def _compose(self, job: FrameJob, generated: dict[_Key, _NewFace], near: Sequence[FrameJob]) -> Image:
        source, settings = job.frame.image, self.settings
        if not job.regions and all(appearance.mode == "keep" for appearance in job.appearances):
            self._count("kept", len(job.appearances))
            return source
        out, coverage = source.copy(), self.tools.policy.coverage
        faces = [(appearance, generated.get((appearance.track, job.frame.index))) for appearance in job.appearances]
        # Largest last, as the nearer face hides the farther one; covers after generated faces, which must not poke out.
        for appearance, new in sorted(faces, key=lambda pair: (pair[1] is None, _area(pair[0].face))):
            face, paste, track = appearance.face, new and new.paste, appearance.track
            views = partial(_views, near, job.frame.index, track)
            if appearance.mode == "keep":
                self._count("kept")
            elif new and paste and hides(paste.mask, face, coverage, new.sight.outline):
                _overlay(paste, out)
                self._count("generated")
            elif paste and hides(paste.mask, _scaled(face, 0.5), coverage):
                # The place is known roughly: what the new face leaves of the box is covered like a pad.
                self.covers(out, _scaled(face, 0.8), settings.fallback, track, views=views)  # 1.3 times as large
                _overlay(paste, out)
                self._count("generated")
                self.causes["roughly placed"] += 1
            else:
                mode = settings.fallback if appearance.mode == "ficgan" else appearance.mode
                self._count(self.covers(out, face, mode, track, appearance.person, views))
        for box, mode, number in job.regions:
            self.covers(out, Face(box, np.full((5, 2), np.nan, np.float32), 0.0), mode, -1 - number)
            self._count("region")
        return out

    def _count(self, what: str, number: int = 1) -> None:
        self.tally[-1][what] += number


_LEVEL = 0.1
"""Attempts that come near on this share of frames more than the best are as good as it."""
_OFTEN = 0.25
"""Share of the frames on which each face of the kind must come near before one of any kind is tried."""
_DRAWS = range(8, 14)
"""Numbers of the draws that films have beyond those of photos."""
_WATCH = 1.5
"""A face is read on every frame when a reading lies within so many times the margin above the limit."""


class _Reading(NamedTuple):
    distance: float
    """Of a new face to its source, by the gate."""
    ratio: float
    """The same, of the distance that tells people apart; 0: it is taken for the source."""


@dataclass(eq=False)
class _Trial:
    """A new identity that is tried on single frames, all in the same order."""

    cast: Cast
    ratios: list[float] = field(default_factory=list)
    near: int = 0
    """How many of the ratios lie within the margin."""


def _in_play(trials: Sequence[_Trial]) -> list[_Trial]:
    """The trials that can still be, or are, about as good as the best; the first has been read on all frames."""
    frames = len(trials[0].ratios)
    worst = min(trial.near + frames - len(trial.ratios) for trial in trials)
    return [trial for trial in trials if trial.near <= worst + _LEVEL * frames]


_Key = tuple[int, int]
"""Track and frame."""


@dataclass(eq=False)
class _NewFace:
    """A face that shall be generated."""

    frame: Frame
    appearance: Appearance
    sight: Sight
    paste: Paste | None = None
    known: NDArray[np.float32] | None = None
    """What the gate reads of the source, at each of `landmarks`."""

    @property
    def track(self) -> int:
        return self.appearance.track

    @property
    def person(self) -> str:
        return self.appearance.person

    @property
    def landmarks(self) -> NDArray[np.float32]:
        """[1 or 2,5,2], where the gate reads: at the track's, which may lie beside a face that is tilted or moves fast,
        and at those that the model found on it in this frame. Who looks at the film may place them as well or badly."""
        own, found = self.appearance.face.landmarks, self.sight.landmarks
        return own[None] if found is None else np.stack([own, found])

    @property
    def key(self) -> _Key:
        return self.track, self.frame.index


class _Reader:
    """Source faces of a film as the model sees them, their place and light smoothed over time in both directions."""

    def __init__(self, model: FaceModel, reach: int) -> None:
        self.model, self.reach = model, reach
        self._found: dict[_Key, Any] = {}
        """What the model found there."""
        self._sights: dict[_Key, Sight] = {}

    def read(self, jobs: Sequence[FrameJob], around: Sequence[FrameJob]) -> list[_NewFace]:
        """The faces of the jobs that shall be generated."""
        first, last, reach = jobs[0].frame.index, jobs[-1].frame.index, self.reach
        shown = {
            (appearance.track, job.frame.index): (job.frame, appearance)
            for job in sorted([*jobs, *around], key=lambda job: job.frame.index)
            for appearance in job.appearances
            if appearance.mode == "ficgan"
        }
        faces = {key: (frame.image, appearance.face) for key, (frame, appearance) in shown.items()}
        new = [key for key in faces if key not in self._found]
        self._found |= zip(new, self.model.find([faces[key] for key in new]), strict=True)
        new = [key for key in faces if key not in self._sights and first - reach <= key[1] <= last + reach]
        smoothed = [self.model.smoothed(*self._window(self._found, key)) for key in new]
        self._sights |= zip(new, self.model.see([faces[key] for key in new], smoothed), strict=True)
        wanted = [
            _NewFace(frame, appearance, self.model.steadied(*self._window(self._sights, key)))
            for key, (frame, appearance) in shown.items()
            if first <= key[1] <= last
        ]
        end = max(frame for _, frame in faces) if faces else last  # a film that is drawn again begins anew
        self._found = {key: mesh for key, mesh in self._found.items() if last - 2 * reach < key[1] <= end}
        self._sights = {key: sight for key, sight in self._sights.items() if last - reach < key[1] <= end}
        return wanted

    def _window(self, rows: dict[_Key, Any], key: _Key) -> tuple[list[Any], int]:
        """What is known of a track without a gap around a frame, and the place of the frame in it."""
        track, frame = key
        first = last = frame
        while frame - first < self.reach and (track, first - 1) in rows:
            first -= 1
        while last - frame < self.reach and (track, last + 1) in rows:
            last += 1
        return [rows[track, n] for n in range(first, last + 1)], frame - first


def _mean(readings: Sequence[NDArray[np.float32] | None]) -> NDArray[np.float32] | None:
    known = [one for one in readings if one is not None]
    return np.mean(known, 0, dtype=np.float32) if known else None


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
