"""The second stage of a film, *decided*: what happens to each face of each track, settled before anything is drawn.

All decisions on whole tracks are made here. A plan is never changed: what the check finds leads to another plan.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.faces import Face
from ficgan.faces.mesh import SmoothConfig
from ficgan.video import CHUNK, HOLD, VideoSettings
from ficgan.video.decisions import Drawing
from ficgan.video.project import Project
from ficgan.video.source import Frame
from ficgan.video.tracks import SEEN, UNSURE, Track, TrackSet

# Sides in pixels below which a face counts as too small to generate.
SMALL = 24.0
# In the key of a person: what stands before the number of another draw.
DRAW = "~"
# Fewest and most frames on which a person's new face is tried.
AUDITIONS = (3, 8)


@dataclass(frozen=True, eq=False)
class Appearance:
    """One face of one frame, and what shall happen to it.

    `person` is the key of the person in the k-same draw. `kind` names what is no face; it is covered or stays. `found`
    is a row of `FaceModel.row`, where one is known; `bridged` stands for what the model finds where it cannot read the
    face. `hidden`: its cover lies behind new faces, as another head is before it, or there may be none.
    """

    track: int
    person: str
    face: Face
    mode: str
    kind: str = ""
    bridged: Any = None
    found: NDArray[np.float32] | None = None
    hidden: bool = False


class FoundFaces:
    """What a model found on the faces of a film, as rows of `FaceModel.row` in a file: it looks for them once."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._size = file, 0
        # Track → place of each of its rows in the file, −1 for none.
        self._places: dict[int, NDArray[np.int64]] = {}

    def keep(self, track: Track, row: int, found: NDArray[np.float32]) -> None:
        """Take what was found in a row of a track: float32 [n], as many of each."""
        places = self._places.setdefault(track.id, np.full(len(track), -1))
        places[row], self._size = self._file.seek(0, os.SEEK_END), found.nbytes
        self._file.write(found.tobytes())

    def at(self, track: Track, row: int) -> NDArray[np.float32] | None:
        """What was found in a row of a track; None where nothing was, or nobody looked."""
        places = self._places.get(track.id)
        if places is None or places[row] < 0:
            return None
        self._file.seek(int(places[row]))
        return np.frombuffer(self._file.read(self._size), np.float32)


@dataclass(frozen=True, eq=False)
class FrameJob:
    """One frame and all faces that shall not be seen in it; `regions` are added boxes, with mode and number."""

    frame: Frame
    appearances: Sequence[Appearance]
    regions: Sequence[tuple[NDArray[np.float32], str, int]] = ()


@dataclass(frozen=True)
class FilmFinding:
    """A source face that a viewer can still recognise; `distance` between source and result, by the gate."""

    frame: int
    time: float
    box: tuple[float, float, float, float]
    distance: float
    matched_by: tuple[str, ...] = ()


@dataclass
class CheckReport:
    """What another detector and the gate saw in source and result; `unchecked` says why nothing follows from it."""

    detector: str
    recognizer: str
    frames: int = 0
    faces: int = 0
    exempt: int = 0
    findings: list[FilmFinding] = field(default_factory=list)
    unchecked: str = ""

    def to_dict(self) -> dict[str, Any]:
        tree = {**asdict(self), "checked": not self.unchecked}
        for one in tree["findings"]:
            rounded = {"time": round(one["time"], 3), "box": [round(value, 1) for value in one["box"]]}
            one |= {**rounded, "distance": round(one["distance"], 4), "matched_by": list(one["matched_by"])}
        reason = tree.pop("unchecked")
        return {**tree, "reason": reason} if reason else tree


@dataclass(frozen=True, eq=False)
class FilmPlan:
    """What happens to each face of a film.

    Args:
        modes: track → mode of each row, str [n].
        people: track → key of its person in the k-same draw.
        drawings: such key → how the person's new face is drawn, where that is not as all others.
        fallbacks: why faces fall back → rows.
        bridged: track → row → what stands for what the model would find there, where it cannot read the face.
        hidden: track → rows in which another head lies before the face.
        found: what the model found so far.
    """

    film: Project
    tracks: TrackSet
    modes: Mapping[int, NDArray[np.str_]]
    people: Mapping[int, str]
    fallbacks: Mapping[str, int]
    drawings: Mapping[str, Drawing] = field(default_factory=dict)
    bridged: Mapping[int, Mapping[int, Any]] = field(default_factory=dict)
    hidden: Mapping[int, frozenset[int]] = field(default_factory=dict)
    found: FoundFaces | None = None

    @property
    def reach(self) -> int:
        """Frames on either side over which generated faces are smoothed."""
        return SmoothConfig().frames(self.film.rate)

    def job(self, frame: Frame, people: Collection[str] | None = None) -> FrameJob:
        faces = [
            Appearance(
                track.id,
                self.people[track.id],
                track.face(row),
                str(self.modes[track.id][row]),
                track.kind,
                self.bridged.get(track.id, {}).get(row),
                None if self.found is None else self.found.at(track, row),
                row in self.hidden.get(track.id, ()) or bool((track.origin == UNSURE).all()),  # weaker finds alone
            )
            for track, row in self.tracks.at(frame.index)
            if people is None or self.people[track.id] in people
        ]
        return FrameJob(frame, faces, self.film.regions_at(frame.index))

    def may_begin(self, frame: int) -> bool:
        """Whether a segment may begin here: not within a chunk, nor in a bridge or the reach after one, whose face a
        job that begins here cannot know."""
        return frame % CHUNK == 0 and not any(
            row in self.bridged.get(track.id, ())
            for number in range(frame - self.reach, frame + 1)
            for track, row in self.tracks.at(number)
        )

    def kept_at(self, frame: int) -> NDArray[np.floating]:
        """Boxes [n,4] of the faces that stay as they are in a frame."""
        present = [(track, row) for track, row in self.tracks.at(frame) if not track.kind]
        rows = [track.boxes[row] for track, row in present if self.modes[track.id][row] == "keep"]
        return np.array(rows, np.float32).reshape(-1, 4)

    def objects(self) -> dict[str, Counter[str]]:
        """Of what is no face, by its kind: tracks that are covered, and finds of single frames covered and kept."""
        found = {kind: Counter(tracks=0, covered=0, kept=0) for kind in self.film.object_covers}
        for track in self.tracks:
            if track.kind:
                kept = int((self.modes[track.id] == "keep").sum())
                counts = Counter(tracks=int(kept < len(track)), covered=len(track) - kept, kept=kept)
                found.setdefault(track.kind, Counter()).update(counts)
        return found

    def auditions(self) -> dict[int, set[str]]:
        """Frame → people whose identities are tried on it: a frame a second each, 3 to 8, spread over those seen."""
        there: Counter[str] = Counter()
        seen: dict[str, list[int]] = {}
        for track in self.tracks:
            generated, person = self.modes[track.id] == "ficgan", self.people[track.id]
            there[person] += int(generated.sum())
            rows = np.flatnonzero(generated & (track.origin == SEEN))
            seen.setdefault(person, []).extend((track.first + rows).tolist())
        chosen: dict[int, set[str]] = {}
        for person, frames in seen.items():
            count = min(max(AUDITIONS[0], int(there[person] / self.film.rate)), AUDITIONS[1], len(frames))
            for place in np.linspace(0, len(frames) - 1, count + 2)[1:-1] if frames else ():
                chosen.setdefault(frames[round(place)], set()).add(person)
        return chosen

    def generated(self, findings: Sequence[FilmFinding]) -> Iterator[tuple[Track, int]]:
        """Tracks and rows of the generated faces that findings of the check lie on."""
        for finding in findings:
            x, y = (finding.box[0] + finding.box[2]) / 2, (finding.box[1] + finding.box[3]) / 2
            for track, row in self.tracks.at(finding.frame):
                x0, y0, x1, y1 = track.boxes[row]
                if self.modes[track.id][row] == "ficgan" and x0 <= x <= x1 and y0 <= y <= y1:
                    yield track, row


def fallback_of(drawing: Drawing | None, usual: str) -> str:
    """What covers a face that cannot be drawn as wanted."""
    return usual if drawing is None else drawing.fallback


def decide(film: Project, settings: VideoSettings) -> FilmPlan:
    """The rules of a film applied to its tracks; where another person may be, a new face falls back."""
    decider, scope = film.decider(), film.source.fingerprint or "film"
    people: dict[int, str] = {}
    modes: dict[int, NDArray[np.str_]] = {}
    fallbacks, drawings = Counter[str](), dict[str, Drawing]()
    tracks = TrackSet(film.tracks)
    for track in tracks:
        decided, face = decider.decide(track), film.decisions.of_face(track)
        if track.kind:
            modes[track.id], people[track.id] = decided, f"{scope}/{track.kind} {track.id}"
            continue
        unsure = (decided == "ficgan") & (track.origin == UNSURE)
        modes[track.id] = np.where(unsure, fallback_of(face.drawing, settings.fallback), decided)
        fallbacks.update(["unsure"] * int(unsure.sum()))
        alone = film.decisions.tracks.get(track.id)
        linked = settings.link != "none" and track.person > 0 and not (alone is not None and alone.redrawn)
        where = "job" if settings.link == "job" and linked else scope
        name = f"person {track.person}" if linked else f"track {track.id}"
        people[track.id] = f"{where}/{name}" + ("" if face.draw is None else f"{DRAW}{face.draw}")
        if face.drawing is not None:
            drawings[people[track.id]] = face.drawing
    return FilmPlan(film, tracks, modes, people, fallbacks, drawings)


def cover_findings(plan: FilmPlan, findings: Sequence[FilmFinding], fallback: str) -> tuple[FilmPlan, int]:
    """A plan that covers the generated faces still recognised, and the number of rows changed.

    Rows up to `HOLD` seconds before and after are covered, too, and those between two findings less than a second
    apart: the check's detector may have been blind there.
    """
    modes, changed, reach = dict(plan.modes), 0, max(1, round(HOLD * plan.film.rate))
    found: dict[int, list[int]] = {}
    for track, row in plan.generated(findings):
        found.setdefault(track.id, []).append(row)
    for number, rows in found.items():
        near, rows = np.zeros(len(modes[number]), bool), sorted(rows)
        for row, following in pairwise([*rows, rows[-1]]):
            last = following if following - row < plan.film.rate else row
            near[max(0, row - reach) : last + reach + 1] = True
        near &= modes[number] == "ficgan"
        modes[number] = np.where(near, fallback, modes[number])
        changed += int(near.sum())
    if not changed:
        return plan, 0
    return replace(plan, modes=modes, fallbacks={**plan.fallbacks, "still recognised": changed}), changed
