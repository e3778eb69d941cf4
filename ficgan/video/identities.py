"""The new identities of a film's people: one k-same draw each, chosen and watched by what the gate reads.

In films it is chosen on a few frames before any is drawn, in streams where the person first appears.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.face_model import FaceModel, FaceReading, Floats, read_kinds
from ficgan.faces import DlibRecognizer, Paste, matching
from ficgan.identity.kind import Kind, match_share
from ficgan.policy import Attempt
from ficgan.video import HOLD, VideoTools
from ficgan.video.decided import DRAW, Appearance, FrameJob
from ficgan.video.decisions import Drawing
from ficgan.video.source import Frame

# Factor of the match threshold under which a generated face counts as still recognised; above 1, as frames between two
# readings may come nearer to the source.
MARGIN = 1.1
# Seconds between two readings of a generated face by the gate while rendering.
CHECK = 0.5
# A face is read on every frame when a reading lies within so many times the margin above the limit.
WATCH = 1.5
NEAR = 1 + WATCH * (MARGIN - 1)
# Attempts that come near on this share of frames more than the best are as good as it.
LEVEL = 0.1
# Share of the frames on which each face of the kind must come near before the loosest one is tried.
OFTEN = 0.25
# Least diversity ψ of another draw: with the plain mean all draws are one face.
APART = 0.6
# Bytes of pictures on which faces are tried that are kept meanwhile.
KEPT = 1 << 26
# Numbers of the draws that films have beyond those of photos, and how many are tried at once: a face is seen on many
# frames.
DRAWS, AT_ONCE = range(8, 26), 6


# Track and frame.
FaceKey = tuple[int, int]


@dataclass(eq=False)
class FilmFace:
    """A face that shall be generated; `paste` and `made`: the new face on the source's frame, and as the model has
    drawn it; `known`: what the gate reads of the source, at each of `landmarks`."""

    frame: Frame
    appearance: Appearance
    reading: FaceReading
    paste: Paste | None = None
    made: Any = None
    known: Floats | None = None

    @property
    def track(self) -> int:
        return self.appearance.track

    @property
    def person(self) -> str:
        return self.appearance.person

    @property
    def landmarks(self) -> Floats:
        """[1 or 2,5,2], where the gate reads: at the track's, which may lie beside a face that is tilted or moves fast,
        and at those that the model found on it in this frame. Who looks at the film may place them as well or badly."""
        own, found = self.appearance.face.landmarks, self.reading.landmarks
        return own[None] if found is None else np.stack([own, found])


class FaceReader:
    """Source faces of a film as the model sees them, smoothed over `reach` frames on either side."""

    def __init__(self, model: FaceModel, reach: int) -> None:
        self.model, self.reach = model, reach
        self._found: dict[FaceKey, Any] = {}
        self._readings: dict[FaceKey, FaceReading] = {}
        # Track → the last reading of the face itself, which stands in where the face cannot be read.
        self._last: dict[int, FaceReading] = {}

    def read(self, jobs: Sequence[FrameJob], around: Sequence[FrameJob] = ()) -> list[FilmFace]:
        """The faces of the jobs that shall be generated."""
        first, last, reach = jobs[0].frame.index, jobs[-1].frame.index, self.reach
        shown = {
            (appearance.track, job.frame.index): (job.frame, appearance)
            for job in sorted([*jobs, *around], key=lambda job: job.frame.index)
            for appearance in job.appearances
            if appearance.mode == "ficgan"
        }
        faces = {key: (frame.image, appearance.face) for key, (frame, appearance) in shown.items()}
        for key, (_, appearance) in shown.items():
            if appearance.bridged is not None:
                self._found[key] = appearance.bridged
            elif appearance.found is not None:
                self._found[key] = self.model.of_row(appearance.found)
        new = [key for key in faces if key not in self._found]
        self._found |= zip(new, self.model.find([faces[key] for key in new]), strict=True)
        new = [key for key in faces if key not in self._readings and first - reach <= key[1] <= last + reach]
        smoothed = [self.model.smoothed(*self._window(self._found, key)) for key in new]
        readings = self.model.see([faces[key] for key in new], smoothed)
        for key, reading, found in zip(new, readings, smoothed, strict=True):
            known = self._last.get(key[0])
            if known is not None and shown[key][1].bridged is not None:
                reading = self.model.bridged(known, found)
            elif not reading.problem:
                self._last[key[0]] = reading
            self._readings[key] = reading
        wanted = [
            FilmFace(frame, appearance, self.model.steadied(*self._window(self._readings, key)))
            for key, (frame, appearance) in shown.items()
            if first <= key[1] <= last
        ]
        self._found = {key: mesh for key, mesh in self._found.items() if last - 2 * reach < key[1]}
        self._readings = {key: reading for key, reading in self._readings.items() if last - reach < key[1]}
        return wanted

    def _window(self, rows: dict[FaceKey, Any], key: FaceKey) -> tuple[list[Any], int]:
        """What is known of a track without a gap around a frame, and the place of the frame in it."""
        track, frame = key
        near = range(1, self.reach + 1)
        before = list(takewhile(rows.__contains__, ((track, frame - n) for n in near)))[::-1]
        after = takewhile(rows.__contains__, ((track, frame + n) for n in near))
        return [rows[place] for place in (*before, key, *after)], len(before)


@dataclass(eq=False)
class FilmIdentity:
    """A person's new identity.

    Args:
        styles: [1,S]; None where no setting hides the person: always the fallback.
        z_id, kind: [1,id_dim], and of `read_kinds`, of the source; kind None where nothing of it is kept.
        attempt: its number in the attempts of the person's `_DrawPlan`.
        checked: track → second of its last reading by the gate.
        distance: smallest between source and result that the gate read and that is shown.
        matched_by: recognisers that took a face for the source; that face is not shown.
        settled: whether it was chosen for the whole film, and stays where it is recognised for a moment.
        ratios: what `_read` gave on the frames that it was tried on, all identities of a person in the same order.
        hidden, watched: tracks that are covered; that the gate reads on every frame.
    """

    styles: Floats | None
    z_id: Floats
    attempt: int = 0
    kind: Floats | None = None
    draw: dict[str, Any] = field(default_factory=dict)
    checked: dict[int, float] = field(default_factory=dict)
    distance: float | None = None
    matched_by: list[str] = field(default_factory=list)
    settled: bool = False
    hidden: set[int] = field(default_factory=set)
    watched: set[int] = field(default_factory=set)
    ratios: list[float] = field(default_factory=list)

    @property
    def near(self) -> int:
        """On how many of the frames that it was tried on it came near."""
        return sum(ratio < MARGIN for ratio in self.ratios)

    @property
    def known(self) -> int:
        """On how many of these frames the gate took it for the source."""
        return sum(ratio < 1 for ratio in self.ratios)

    def shown_at(self, distance: float) -> None:
        """Note a distance that the gate read of a face that is shown."""
        self.distance = min(distance, math.inf if self.distance is None else self.distance)

    def account(self) -> dict[str, Any]:
        """How it was drawn, for the side-car."""
        distance = None if self.distance is None else round(self.distance, 4)
        return {**self.draw, "distance": distance, **({"matched_by": self.matched_by} if self.matched_by else {})}

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `Identities.restored` makes an identity of it."""
        tree = {name: getattr(self, name) for name in ("attempt", "distance", "matched_by", "settled")}
        tree |= {"checked": list(self.checked.items()), "hidden": list(self.hidden), "watched": list(self.watched)}
        return {**tree, "z_id": self.z_id.tolist(), "kind": None if self.kind is None else self.kind.tolist()}


def _in_play(trials: Sequence[FilmIdentity]) -> list[FilmIdentity]:
    """The trials that can still be, or are, about as good as the best; the first has been read on all frames."""
    frames = len(trials[0].ratios)
    worst = min(trial.near + frames - len(trial.ratios) for trial in trials)
    return [trial for trial in trials if trial.near <= worst + LEVEL * frames]


class _DrawPlan:
    """How the new faces of some people are drawn, and the attempts at it; in `stages` those after the first: of photos,
    the further ones of films, a few at once, and the loosest."""

    def __init__(self, tools: VideoTools) -> None:
        assert tools.face_model is not None
        self.model, self.psi = tools.face_model, tools.psi
        attempts = tools.policy.attempts(tools.layer, self.model.band, drawn=not self.model.swap)
        loosest = [attempt for attempt in attempts if self.model.is_loosest(attempt)]
        self.attempts = [attempt for attempt in attempts if attempt not in loosest]
        ends = [1, len(self.attempts)]
        if tools.policy.retries and not self.model.swap:
            self.attempts += [Attempt(0, draw=number, psi=1.0) for number in DRAWS]
            ends += [*range(ends[-1] + AT_ONCE, len(self.attempts), AT_ONCE), len(self.attempts)]
        self.attempts += loosest
        self.stages = [range(begin, end) for begin, end in pairwise([*ends, len(self.attempts)])]

    def group_size(self, identity: FilmIdentity) -> int:
        """How many cells of kinds a person's new face is drawn for."""
        kind = self.model.kind_of(identity.kind, self.attempts[identity.attempt])
        return int((Kind.everybody() if kind is None else kind).cells.sum())

    def group(self, reading: Floats | None) -> str:
        """The name of the group of kinds that a reading leads to; "" where no kind is kept."""
        kind = self.model.kind_of(reading)
        return "" if kind is None else kind.name


class Identities:
    """Gives the people of a film their new identities, draws their faces, and covers moments that the gate recognises.

    `causes` counts faces that are not shown: "unread" by the model, there or nearby; "known" to the gate. `drawings`
    says of people, by their keys, how their faces are drawn where it is not as all others.
    """

    def __init__(
        self, tools: VideoTools, mask_scale: float, causes: Counter[str], drawings: Mapping[str, Drawing] | None = None
    ) -> None:
        self.tools, self.causes, self._mask_scale = tools, causes, mask_scale
        self.people: dict[str, FilmIdentity] = {}
        # Track → second at which it could last not be read.
        self.unread: dict[int, float] = {}
        # Whether a survey has chosen the faces that can be read.
        self.surveyed = False
        self._drawings = {} if drawings is None or tools.redrawn is None else drawings
        self._plans: dict[Drawing | None, _DrawPlan] = {}

    @property
    def _model(self) -> FaceModel:
        assert self.tools.face_model is not None
        return self.tools.face_model

    def _plan_of(self, person: str) -> _DrawPlan:
        drawing, redrawn = self._drawings.get(person), self.tools.redrawn
        if drawing not in self._plans:
            tools = self.tools if drawing is None or redrawn is None else redrawn(drawing)
            self._plans[drawing] = _DrawPlan(tools)
        return self._plans[drawing]

    # -- who becomes whom ---------------------------------------------------------------------------------------------

    def identity(self, person: str, z_id: Floats, attempt: int = 0, kind: Floats | None = None) -> FilmIdentity:
        """A new identity by an attempt; without styles where there are no more of them."""
        plan, made = self._plan_of(person), FilmIdentity(None, z_id, attempt, kind)
        if attempt >= len(plan.attempts):
            return made
        how, model, psi = plan.attempts[attempt], plan.model, plan.psi
        draw = model.draw(person, how, max(psi, APART) if DRAW in person else psi, z_id[0], kind)
        made.styles = model.styles(z_id, [draw], how)
        made.draw = {"layer": None if how.band else how.layer, "attempts": attempt + 1}
        if not model.swap:
            made.draw |= {"k": draw.k, "psi": draw.psi, "members_digest": draw.members_digest}
            made.draw |= {} if draw.kind is None else {"kind": draw.kind}
        return made

    def restored(self, person: str, tree: dict[str, Any]) -> FilmIdentity:
        """An identity as `FilmIdentity.to_dict` saved it."""
        kind = None if tree["kind"] is None else np.array(tree["kind"], np.float32)
        made = self.identity(person, np.array(tree["z_id"], np.float32), tree["attempt"], kind)
        made.distance, made.matched_by, made.settled = tree["distance"], tree["matched_by"], tree["settled"]
        made.checked, made.hidden, made.watched = dict(tree["checked"]), set(tree["hidden"]), set(tree["watched"])
        return made

    # -- chosen for a whole film --------------------------------------------------------------------------------------

    def choose(self, jobs: Callable[[Collection[str]], Iterable[FrameJob]], people: Collection[str]) -> None:
        """Choose the identity of each person for the whole film, from single frames that are spread over it.

        The gate reads the first attempt on all of them, and those of the next stage where all so far come near. Of
        those that come near about as seldom as the best, the one that keeps most of the source's code is taken, then
        the one that the gate knows most seldom, of the narrowest kind, and farthest. A person whom the gate knows on
        half of the frames or more always gets the fallback.
        """
        tried: dict[str, list[FilmIdentity]] = {}
        kinds: dict[str, list[Floats | None]] = {}
        kept, size = list[FilmFace](), 0

        def faces(people: Collection[str]) -> Iterator[FilmFace]:
            """Their faces on all frames, first of all people; read once where the pictures are small enough to keep."""
            nonlocal size
            if 0 < size <= KEPT:
                yield from (face for face in kept if face.person in people)
                return
            reader = FaceReader(self._model, 0)
            for job in jobs(people):
                size += job.frame.image.nbytes
                seen = [face for face in reader.read([job]) if not face.reading.problem]
                kept[:] = [*kept, *seen] if size <= KEPT else []
                yield from seen

        def read(people: Collection[str], attempts: range) -> None:
            for face in faces(people):
                trials, seen = tried.setdefault(face.person, []), kinds.setdefault(face.person, [])
                if not attempts[0]:
                    seen.append(self._kind([face]))
                if len(trials) <= attempts[0]:
                    z_id, kind = trials[0].z_id if trials else face.reading.z_id[None], _mean(seen)
                    trials += [self.identity(face.person, z_id, number, kind) for number in attempts]
                for trial in _in_play(trials):  # those that cannot be chosen any more are left out
                    if trial.attempt in attempts:
                        trial.ratios.append(self._ratio(face, trial))
                face.paste = None

        read(people, range(1))
        plans, other = {person: self._plan_of(person) for person in tried}, list[str]()
        for person, plan in plans.items():
            if plan.group(tried[person][0].kind) != plan.group(_mean(kinds[person])):
                tried[person] = []  # the first frame showed somebody of another kind than all of them do
                other.append(person)
        if other:
            read(other, range(1))
        for stage in range(max((len(plan.stages) for plan in plans.values()), default=0)):
            near: dict[range, list[str]] = {}
            for person, trials in tried.items():
                attempts, *later = plans[person].stages[stage:] or [range(0)]
                share = 0.0 if later else OFTEN
                if attempts and min(trial.near for trial in trials) > share * len(trials[0].ratios):
                    near.setdefault(attempts, []).append(person)
            for attempts, group in near.items():
                read(group, attempts)
        for person, trials in tried.items():
            self.people[person] = self._chosen(person, trials)

    def _chosen(self, person: str, trials: Sequence[FilmIdentity]) -> FilmIdentity:
        good, plan = _in_play(trials), self._plan_of(person)
        alike = [one for one in good if plan.attempts[one.attempt].layer == plan.attempts[good[0].attempt].layer]
        chosen = max(alike, key=lambda one: (-one.known, -plan.group_size(one), np.mean(one.ratios)))
        if min(one.known for one in good) >= len(good[0].ratios) / 2:  # one that only comes near is watched
            chosen = self.identity(person, chosen.z_id, len(plan.attempts), chosen.kind)
        chosen.matched_by = list(dict.fromkeys(name for trial in trials for name in trial.matched_by))
        chosen.settled, chosen.distance = True, None  # nothing of what was read is shown
        return chosen

    def _kind(self, faces: Sequence[FilmFace]) -> Floats | None:
        """Mean of `read_kinds` of one person's faces; None where nothing of it is kept."""
        if not self._plan_of(faces[0].person).model.keeps_kind:
            return None
        images, marks = [face.frame.image for face in faces], [face.appearance.face.landmarks for face in faces]
        by_dlib = isinstance(self.tools.gate, DlibRecognizer)
        return _mean(read_kinds(images, marks, np.stack([self._known(face)[0] for face in faces]) if by_dlib else None))

    # -- drawn and watched --------------------------------------------------------------------------------------------

    def tried(self, face: FilmFace) -> tuple[bool, bool]:
        """Draw a face into its `paste` as it shall be for the whole film.

        Returns whether the gate does not know it, and whether it comes so near that the next frames should be tried.
        """
        identity = self.people[face.person]
        if identity.styles is None or face.reading.problem:
            return False, False
        ratio = self._ratio(face, identity)
        return ratio >= 1, ratio < NEAR

    def _ratio(self, face: FilmFace, identity: FilmIdentity) -> float:
        """Draw a face alone, into its `paste`, and read it."""
        assert identity.styles is not None
        made = self._model.checked(self._model.render(identity.styles, [face.reading])[0])
        face.paste = self._model.paste(face.frame.image, face.reading, made, mask_scale=self._mask_scale)
        return self._read(face, identity)[1]

    def draw(self, faces: Sequence[FilmFace]) -> dict[FaceKey, FilmFace]:
        """Draw the faces of a chunk into their `paste`; returns those that are shown."""
        model = self._model
        faces = self._steady(faces)
        for person in dict.fromkeys(face.person for face in faces):
            if person not in self.people:
                theirs = [face for face in faces if face.person == person]
                z_id = np.stack([face.reading.z_id for face in theirs]).mean(0, keepdims=True)
                self.people[person] = self.identity(person, z_id, kind=self._kind(theirs))
        pending = list(faces)
        while pending := [face for face in pending if self.people[face.person].styles is not None]:
            styles = np.concatenate([self.people[face.person].styles for face in pending])
            for face, made in zip(pending, model.render(styles, [face.reading for face in pending]), strict=True):
                face.made = made
                face.paste = model.paste(face.frame.image, face.reading, made, mask_scale=self._mask_scale)
            # A person the gate still knows gets another face, and all their faces of this chunk are made again.
            known = self._recognised(faces)
            for person in known:
                now = self.people[person]
                self.people[person] = self.identity(person, now.z_id, now.attempt + 1, now.kind)
                self.people[person].matched_by = now.matched_by
            pending = [face for face in faces if face.person in known]
            for face in pending:
                face.paste = None
        return {(face.track, face.frame.index): face for face in faces if face.paste is not None}

    def paste_onto(self, face: FilmFace, out: NDArray[np.uint8], kept: Sequence[Floats] = ()) -> Paste:
        """Put a face of `draw` into its frame, as others have changed it; `kept` are boxes of faces that stay."""
        paste = face.paste
        assert paste is not None
        if not np.array_equal(paste.region(out), paste.region(paste.photo)):
            paste = self._model.paste(out, face.reading, face.made, mask_scale=self._mask_scale)
        paste.onto(out, kept=kept)
        return paste

    def _steady(self, seen: Sequence[FilmFace]) -> list[FilmFace]:
        """Faces that get a new one: not those that cannot be read, nor in streams for `HOLD` seconds after them."""
        kept = []
        for face in seen:
            if face.reading.problem:
                self.unread[face.track] = face.frame.time
            if abs(face.frame.time - self.unread.get(face.track, -math.inf)) > (0 if self.surveyed else HOLD):
                kept.append(face)
            else:
                self.causes["unread"] += 1
        return kept

    def _recognised(self, faces: Sequence[FilmFace]) -> set[str]:
        """People who need another face. Faces of those who keep theirs are covered, see `_watch`."""
        known: set[str] = set()
        tracks: dict[int, list[FilmFace]] = {}
        for face in faces if self.tools.verifies else ():
            identity = self.people[face.person]
            if face.paste is None or face.person in known:
                continue
            if identity.settled:
                tracks.setdefault(face.track, []).append(face)
            elif self._is_due(face, identity):
                distance, ratio = self._read(face, identity)
                identity.shown_at(distance)
                # Between two readings the face moves; a margin keeps the frames that are not read on the safe side.
                if ratio < MARGIN:
                    known.add(face.person)
        for seen in tracks.values():
            self._watch(seen, self.people[seen[0].person])
        return known

    def _is_due(self, face: FilmFace, identity: FilmIdentity) -> bool:
        """Whether the gate shall read a track again; notes that it does."""
        now = face.frame.time
        due = not 0 <= now - identity.checked.get(face.track, math.inf) < CHECK
        if due:
            identity.checked[face.track] = now
        return due

    def _watch(self, faces: Sequence[FilmFace], identity: FilmIdentity) -> None:
        """Cover the faces of a track in a chunk where the gate takes one of them for its source. A near reading is
        followed by one of every frame, until all of a chunk are far."""
        track = faces[0].track
        watched = track in identity.watched
        if not self._is_due(faces[0], identity) and not watched:
            return
        readings = [self._read(faces[0], identity)]
        if watched or readings[0][1] < NEAR:
            readings += [self._read(face, identity) for face in faces[1:]]
        least = min(ratio for _, ratio in readings)
        (identity.watched.add if least < NEAR else identity.watched.discard)(track)
        if least < (1 + (MARGIN - 1) / 2 if track in identity.hidden else 1):
            identity.hidden.add(track)
            for face in faces:
                face.paste = None
            self.causes["known"] += len(faces)
        else:
            identity.hidden.discard(track)
            identity.shown_at(min(distance for distance, _ in readings))

    def _read(self, face: FilmFace, identity: FilmIdentity) -> tuple[float, float]:
        """Distance of a new face to its source, by the gate, and its ratio to the one that tells people apart, 0 where
        the one is taken for the other; recognisers that do so are noted."""
        gate, share = self.tools.gate, match_share(identity.kind)
        assert gate is not None and face.paste is not None
        pairs = list(zip(self._known(face), gate.embed(face.paste.image, face.landmarks), strict=True))
        distance = min(float(gate.distance(before, after)) for before, after in pairs) / share
        names = [name for before, after in pairs for name in matching(gate, before, after, share)]
        identity.matched_by += [name for name in names if name not in identity.matched_by]
        return distance, 0.0 if names else distance / gate.match_threshold

    def _known(self, face: FilmFace) -> Floats:
        """What the gate reads of a source, once."""
        if face.known is None:
            assert self.tools.gate is not None
            face.known = self.tools.gate.embed(face.frame.image, face.landmarks)
        return face.known


def _mean(readings: Sequence[Floats | None]) -> Floats | None:
    known = [reading for reading in readings if reading is not None]
    return np.mean(known, 0, dtype=np.float32) if known else None
