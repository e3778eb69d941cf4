"""One treatment a head: within a shot a track has a new face in all of its frames, or a cover in all of them.

A survey reads, before anything is drawn, where a new face could stand on each track; a moment where it could not is
bridged by a face between those of before and after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.face_model import FaceModel
from ficgan.video import FilmTask
from ficgan.video.decided import SMALL, FilmPlan, FoundFaces, fallback_of
from ficgan.video.identities import FilmFace, Identities
from ficgan.video.rendered import audition, stands, to_choose_on
from ficgan.video.tracks import FILLED, PADDED, SEEN, UNSURE, Track, runs

# Seconds of a worse treatment that a change of treatment must spare.
CHANGE = 3.0
# Seconds that are bridged where the source's face cannot be read, with both sides known, and with one.
GAP, GAP_AT_END = 1.0, 0.4
# What a second costs that is bridged, and one in which a face is covered that could be drawn small.
BRIDGE_COST, COVER_COST = 0.5, 1.0
# Seconds between two frames on which the survey tries a person's new face.
TRIED = 0.5
# Rows between two tries on a track on which one came near.
OFTEN = 3
# Frames on which the gate knew a face and others are tried.
MORE = 6
# Share of a box that lies in another track's box, from which on that one may hide it.
HIDDEN = 0.4
_NEVER = 1e6

Flags = NDArray[np.bool_]


@dataclass(eq=False)
class TrackSurvey:
    """Where a new face could stand on a track.

    Args:
        readable: [n], whether the model can read the face.
        refused: [n], whether a new face that was tried would not hide the source, or the gate would know it.
        known: frames on which the gate knew the face behind the new one.
        due: the next row in which a new face shall be tried.
    """

    readable: Flags
    refused: Flags
    known: list[int] = field(default_factory=list)
    due: int = 0
    _tried: int | None = None
    _near: bool = False

    def tried(self, row: int, every: int, *, shown: bool, near: bool) -> None:
        """A new face was tried in a row; it speaks for those around. Where it comes near, the next is tried, too."""
        if not shown:
            before = row if self._tried is None else (self._tried + row) // 2 + 1
            self.refused[before : row + (0 if near else every // 2) + 1] = True
        self._tried, self.due = row, row + (1 if not shown else OFTEN if self._near or near else every)
        self._near |= near


Surveys = Mapping[int, TrackSurvey]  # by the numbers of tracks


def survey(
    task: FilmTask, plan: FilmPlan, identities: Identities, some: Collection[str] | None, before: Surveys | None = None
) -> dict[int, TrackSurvey]:
    """Read the faces of a film that shall be new, and try the new ones twice a second; of all people or of `some`.

    `before` are surveys of the same tracks, for other new faces: what can be read is known, and these are tried alone.
    """
    model, kept = task.tools.face_model, plan.found
    assert model is not None and kept is not None
    surveys: dict[int, TrackSurvey] = {}
    for track in plan.tracks:
        if (plan.modes[track.id] == "ficgan").any() and (some is None or plan.people[track.id] in some):
            readable = np.zeros(len(track), bool) if before is None else before[track.id].readable
            surveys[track.id] = TrackSurvey(readable, np.zeros(len(track), bool))
    every = max(1, round(TRIED * plan.film.rate))

    def is_due(track: Track, row: int) -> bool:
        seen = surveys.get(track.id)
        if seen is None or plan.modes[track.id][row] != "ficgan":
            return False
        return before is None or bool(seen.readable[row] and row >= seen.due)

    frames = to_choose_on(task, plan, lambda frame: any(is_due(*place) for place in plan.tracks.at(frame)))
    for frame in frames if surveys else ():
        due = {track.id: track for track, row in plan.tracks.at(frame.index) if is_due(track, row)}
        faces = [one for one in plan.job(frame).appearances if one.track in due]
        pairs = [(frame.image, one.face) for one in faces]
        known = [None if one.found is None else model.of_row(one.found) for one in faces]
        for one, pair, mesh in zip(faces, pairs, model.find(pairs) if before is None else known, strict=True):
            track, seen = due[one.track], surveys[one.track]
            row = frame.index - track.first
            if before is None:
                if (numbers := model.row(mesh)) is not None:
                    kept.keep(track, row, numbers)
                is_face = track.origin[row] != PADDED or model.is_sure(mesh)
                seen.readable[row] = is_face and not model.problem(one.face, mesh)
            if one.person in identities.people and seen.readable[row] and row >= seen.due:
                face = FilmFace(frame, one, model.see([pair], [mesh])[0])
                passes, near = identities.tried(face)
                seen.tried(row, every, shown=passes and stands(face, task.tools.policy.coverage), near=near)
                if not passes:
                    seen.known.append(frame.index)
    return surveys


def treated_people(
    task: FilmTask, plan: FilmPlan, identities: Identities, people: Collection[str] | None = None, *, again: bool = True
) -> FilmPlan:
    """A plan in which each track keeps its treatment, as far as the new faces that were chosen can stand on it.

    Args:
        people: whose tracks are read; None: all.
        again: whether people whom the gate knew on some frames try other new faces, once, on these frames, too.
    """
    model, fallback = task.tools.face_model, task.settings.fallback
    plan = _one_treatment(plan, fallback)
    if model is None:
        return plan
    plan = replace(plan, found=plan.found or FoundFaces(BytesIO()))
    surveys, identities.surveyed = survey(task, plan, identities, people), True
    wanted = _known_on(plan, surveys, identities) if again else {}
    if wanted:
        before = {person: identities.people[person] for person in set[str]().union(*wanted.values())}
        audition(task, plan, identities, wanted)
        for person, one in before.items():
            if identities.people[person].styles is None:  # on its worst frames alone nobody is judged
                identities.people[person] = one
        changed = {person for person, one in before.items() if identities.people[person] is not one}
        surveys |= survey(task, plan, identities, changed, surveys) if changed else {}
    return _one_treatment(plan, fallback, model, surveys)


def _known_on(plan: FilmPlan, surveys: Surveys, identities: Identities) -> dict[int, set[str]]:
    """Frame → people to be tried again: those known somewhere, there and on the frames of their first trial."""
    known: dict[str, list[int]] = {}
    for number, seen in surveys.items():
        one = identities.people.get(plan.people[number])
        if seen.known and one is not None and one.styles is not None:
            known.setdefault(plan.people[number], []).extend(seen.known)
    wanted = {frame: people & set(known) for frame, people in plan.auditions().items()}
    for person, frames in known.items():
        frames.sort()
        for place in np.linspace(0, len(frames) - 1, min(len(frames), MORE)):
            wanted.setdefault(frames[round(float(place))], set()).add(person)
    return {frame: people for frame, people in wanted.items() if people}


def _one_treatment(
    plan: FilmPlan, fallback: str, model: FaceModel | None = None, surveys: Surveys | None = None
) -> FilmPlan:
    """Each track with the cheapest treatment; without surveys by what is known of its boxes alone."""
    modes, bridged, hidden = dict(plan.modes), dict[int, dict[int, Any]](), dict(plan.hidden)
    reasons = Counter(plan.fallbacks)
    for track in plan.tracks:
        wanted = modes[track.id] == "ficgan"
        if track.kind or not wanted.any():
            continue
        seen = None if surveys is None else surveys.get(track.id)
        shown, held, behind, why = _treatment_of(track, wanted, seen, plan)
        covered = fallback_of(plan.drawings.get(plan.people[track.id]), fallback)
        modes[track.id] = np.where(wanted & ~shown, covered, modes[track.id])
        reasons.update(why)
        if seen is not None and model is not None:
            bridged[track.id] = _bridges(track, held, seen, plan, model)
        hidden[track.id] = frozenset(np.flatnonzero(behind).tolist())
    return replace(plan, modes=modes, bridged=bridged, hidden=hidden, fallbacks=reasons)


def _treatment_of(
    track: Track, wanted: Flags, seen: TrackSurvey | None, plan: FilmPlan
) -> tuple[Flags, Flags, Flags, Counter[str]]:
    """The cheapest treatment of the wanted rows [n] of a track: which show a new face, which of these one between those
    before and after, before which another head lies, and how many are covered for which reason.

    Flags of rows: `small`, of too few pixels for a new face; `padded`, a box before or after what was seen; `never`,
    always covered; `crossed`, another head lies there; `bare`, cannot be read, and nobody saw a face (most likely there
    is none, or another hides it); `held`, cannot be read for a moment, so that a face between its neighbours can stand.
    """
    rate, small = plan.film.rate, (track.boxes[:, 2:] - track.boxes[:, :2]).min(1) < SMALL
    padded, never = track.origin >= PADDED, wanted & (track.origin == UNSURE)
    for row in np.flatnonzero(padded & wanted):
        # Where a person who was surely here before may be here still.
        others = plan.tracks.over(track, int(row), HIDDEN)
        never[row] |= any(other.origin[there] == UNSURE and (other.origin == SEEN).any() for other, there in others)
    bare, held, crossed = np.zeros((3, len(track)), bool)
    if seen is not None:
        never |= wanted & seen.refused & (seen.readable | ~padded)
        unread = wanted & ~seen.readable & ~never
        for row in np.flatnonzero((unread | padded) & wanted):
            others = plan.tracks.over(track, int(row), HIDDEN)
            crossed[row] = any(not other.kind and other.origin[there] <= FILLED for other, there in others)
        bare = (padded & (unread | crossed) & ~never) | (unread & crossed)
        known = np.pad(wanted & seen.readable & ~never, 1)  # row r is known[r + 1]
        for first, last in runs(unread & ~bare):
            sides, length = (known[first], known[last + 2]), (last - first + 1) / rate
            if any(sides) and length <= (GAP if all(sides) else GAP_AT_END):
                held[first : last + 1] = True
            elif (track.origin[first : last + 1] == FILLED).all():
                bare[first : last + 1] = True
            else:
                never[first : last + 1] = True
    free = ~wanted | bare
    cover = np.where(free | never | small, 0.0, np.where(held, BRIDGE_COST, COVER_COST)) / rate
    new = np.where(free, 0.0, np.where(small, COVER_COST, np.where(held, BRIDGE_COST, 0.0))) / rate
    costs, shown = np.stack([cover, np.where(never, _NEVER, new)], 1), np.zeros(len(track), bool)
    for first, last in runs(wanted):
        shown[first : last + 1] = _cheapest(costs[first : last + 1])
    shown &= ~free & ~never
    inner = np.flatnonzero(~padded)
    for rows in (np.arange(inner[0] - 1, -1, -1), np.arange(inner[-1] + 1, len(shown))) if len(inner) else ():
        shown[rows] &= np.logical_and.accumulate(shown[rows])  # a pad's face does not come and go
    causes = [small, padded, bare | never | held]  # the first that holds is named
    why = np.select(causes, ["small", "pad", "unread"], "with its track")[wanted & ~shown]
    return shown, shown & held, crossed & bare, Counter(why.tolist())


def _cheapest(costs: NDArray[np.float64]) -> Flags:
    """The cheapest path through two states [n,2] where a change costs `CHANGE` (Viterbi): [n], if it is the second."""
    total, changes, path = costs[0].copy(), np.zeros((len(costs), 2), bool), np.empty(len(costs), bool)
    for row in range(1, len(costs)):
        moved = total[::-1] + CHANGE
        changes[row] = moved < total
        total = np.minimum(total, moved) + costs[row]
    state = bool(total[1] < total[0])
    for row in range(len(costs) - 1, -1, -1):
        path[row], state = state, state ^ changes[row, int(state)]
    return path


def _bridges(track: Track, rows: Flags, seen: TrackSurvey, plan: FilmPlan, model: FaceModel) -> dict[int, Any]:
    """Row → what the model would have found, from before and after; both move with the track's box."""
    places: dict[int, Any] = {}
    middles = (track.boxes[:, :2] + track.boxes[:, 2:]) / 2

    def found(row: int) -> Any:
        readable = 0 <= row < len(track) and seen.readable[row]
        numbers = plan.found.at(track, row) if readable and plan.found is not None else None
        return None if numbers is None else model.of_row(numbers)

    for first, last in runs(rows):
        before, after = found(first - 1), found(last + 1)
        ends = [first - 1 if before is not None else last + 1, last + 1 if after is not None else first - 1]
        sides = [one for one in (before, after) if one is not None]
        for row in range(first, last + 1) if sides else ():
            share = (row - first + 1) / (last - first + 2) if len(sides) == 2 else 0.0
            places[row] = model.between(sides[0], sides[-1], share, middles[row] - middles[ends])
    return places
