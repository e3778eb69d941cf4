"""Single frames of a film as they will be rendered: by the same plan and the same renderer, from a little before on."""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, Progress, unheard
from ficgan.faces import Face, colour_beside
from ficgan.faces.covers import Colour
from ficgan.video.decided import FilmPlan, FrameJob, decide
from ficgan.video.film_faces import colour_views, without_landmarks
from ficgan.video.project import Project
from ficgan.video.read import open_video
from ficgan.video.rendered import Renderer, chunks, job_of
from ficgan.video.settings import CHUNK, FilmTask, VideoSettings, VideoTools
from ficgan.video.source import Frame
from ficgan.video.tracks import Track
from ficgan.video.treatment import treated_people

# What is being done, as progress names it.
DRAWING = "drawing this frame"
# Seconds that are drawn before a frame that is jumped to: the gate then reads faces where it does in the film.
RUN_IN = 1.0
# Faces of people who were chosen, their treatments, and colours of covers, that are kept.
KEPT = 500
# Frames of the longest film that is read whole to decide how its heads are treated; of longer ones the boxes decide.
WHOLE = 3000

Image = NDArray[np.uint8]


class Preview:
    """Frames of a film as `render_film` draws them.

    New faces are chosen as for the whole film, from the frames that it is chosen from there, but only for the people
    who are near the frame. A frame is drawn in its chunk, after a run-in; those that follow go on from there. What the
    check finds in a finished film, and covers, is not known here, and in films of more than `WHOLE` frames not where a
    new face cannot stand.

    Args:
        tools, settings: as of `render_film`.
        path: the film.
    """

    def __init__(self, tools: VideoTools, settings: VideoSettings, path: Path) -> None:
        self.tools, self.settings, self.path = tools, settings, path
        self._faces: dict[Any, dict[str, Any]] = {}
        self._treatments: dict[Any, FilmPlan] = {}
        self._colours: dict[Any, Colour] = {}
        self._plan: FilmPlan | None = None
        self._drawing: Iterator[dict[int, Image]] | None = None
        self._next, self._images = -1, dict[int, Image]()

    def decide(self, film: Project) -> None:
        """Take what was decided; what it does not change is not chosen again."""
        self.tools.prepare(film.decisions.modes)
        self.close()
        self._plan = decide(film, replace(self.settings, mode=film.decisions.default))

    def __call__(self, frame: int, progress: Progress = unheard) -> Image:
        """A frame by its number; `progress` is called with the frames it needs."""
        begin = frame - frame % CHUNK
        if frame not in self._images:
            if self._drawing is None or not self._next <= begin <= self._next + self._run_in:
                self._start(begin, progress)
            while frame not in self._images:
                assert self._drawing is not None
                self._images = next(self._drawing)
                progress(max(self._images), frame, DRAWING)
        return self._images[frame]

    def close(self) -> None:
        """Let go of the film."""
        self._drawing, self._images = None, {}

    @property
    def plan(self) -> FilmPlan:
        assert self._plan is not None
        return self._plan

    @property
    def _run_in(self) -> int:
        return CHUNK * math.ceil(RUN_IN * self.plan.film.rate / CHUNK)

    def _start(self, begin: int, progress: Progress) -> None:
        """Begin to draw a little before a frame that begins a chunk."""
        self.close()
        plan, start = self.plan, max(0, begin - self._run_in)
        last = min(begin + CHUNK + 2 * plan.reach, len(plan.film.pts) - 1)
        near = [track for track in plan.tracks if track.first <= last and start <= track.last]
        renderer = Renderer(self.tools, self.settings, plan.reach, plan.drawings)
        people = {plan.people[track.id] for track in near}
        shown = self._treated(renderer, people, self._choose(renderer, people, progress), progress)
        self._colour(renderer, shown, near, start)
        self._next, self._drawing = start, self._drawn(renderer, shown, start)

    def _drawn(self, renderer: Renderer, plan: FilmPlan, start: int) -> Iterator[dict[int, Image]]:
        with closing(self._read(max(0, start - 2 * plan.reach))) as frames:
            for now, around in chunks(plan, frames, start):
                images = renderer(now, around)
                self._next = now[-1].frame.index + 1
                yield {job.frame.index: image for job, image in zip(now, images, strict=True)}

    def _read(self, first: int, count: int | None = None) -> Generator[Frame]:
        """Frames from a number on."""
        film = self.plan.film
        times, pts = film.times, film.pts
        gap = float(times[1] - times[0]) / 2 if len(times) > 1 else 0.0
        start = max(0.0, float(times[first]) - gap) + float(film.settings.get("start") or 0)
        with open_video(self.path, start=start or None) as source:
            for frame in source.frames():
                if frame.pts < pts[first]:
                    continue
                index = int(np.searchsorted(pts, frame.pts))
                if index >= len(pts) or pts[index] != frame.pts:
                    raise InputError(f"{self.path}: is not as it was analysed; analyse it again")
                yield replace(frame, index=index, time=float(times[index]))
                if index == min(len(pts), first + (count or len(pts))) - 1:
                    return

    # -- what the film settles once ------------------------------------------------------------------------------------

    def _choose(self, renderer: Renderer, people: Collection[str], progress: Progress) -> dict[str, Any]:
        """Give people the new faces that they have in the whole film; returns by what each is kept."""
        plan, identities = self.plan, renderer.identities
        if self.tools.face_model is None or self.settings.verify == "off" or not self.tools.verifies:
            return {}
        tried: dict[str, list[int]] = {person: [] for person in people}
        for frame, shown in sorted(plan.auditions().items()):
            for person in shown & set(people):
                tried[person].append(frame)
        names = {person: (person, plan.drawings.get(person), tuple(tried[person])) for person in people}
        for person in people:
            if (known := self._faces.get(names[person])) is not None:
                identities.people[person] = identities.restored(person, known)

        def jobs(wanted: Collection[str]) -> Iterator[FrameJob]:
            frames: dict[int, set[str]] = {}
            for person in wanted:
                for frame in tried[person]:
                    frames.setdefault(frame, set()).add(person)
            for done, (frame, shown) in enumerate(sorted(frames.items())):
                progress(done, len(frames), DRAWING)
                for read in self._read(frame, 1):
                    yield job_of(plan, read, shown)

        new = [person for person in people if person not in identities.people and tried[person]]
        if new:
            identities.choose(jobs, new)
        return names

    def _treated(
        self, renderer: Renderer, people: Collection[str], names: dict[str, Any], progress: Progress
    ) -> FilmPlan:
        """The plan with the treatments of these people's heads, as the film gets them; keeps their faces."""
        film, identities, shown = self.plan.film, renderer.identities, self.plan
        start, end = film.settings.get("start"), film.settings.get("end")
        whole = len(film.pts) <= WHOLE

        for again in (True, False):
            group = {one for one in people if (names.get(one) not in self._faces) == again}
            tracks = [track for track in shown.tracks if shown.people[track.id] in group]
            modes = tuple((track.id, track.keys, shown.modes[track.id].tobytes()) for track in tracks)
            key = (tuple(sorted(str(names.get(one, one)) for one in group)), modes)
            if not group:
                continue
            if key not in self._treatments or (again and names):
                with open_video(self.path, start=start, end=end) as source:
                    task = FilmTask(self.tools, self.path, source, self.settings, progress)
                    plan = treated_people(task, self.plan, identities, group if whole else (), again=again and whole)
                _keep(self._treatments, key, plan)
            plan = self._treatments[key]
            mine = {track.id for track in tracks}
            shown = replace(
                shown,
                modes={**shown.modes, **{number: plan.modes[number] for number in mine}},
                bridged={**shown.bridged, **{number: plan.bridged[number] for number in mine & plan.bridged.keys()}},
                hidden={**shown.hidden, **{number: plan.hidden[number] for number in mine & plan.hidden.keys()}},
            )
        identities.surveyed = whole
        for person in names:
            if person in identities.people:
                _keep(self._faces, names[person], identities.people[person].to_dict())
        return shown

    def _colour(self, renderer: Renderer, plan: FilmPlan, near: Collection[Track], start: int) -> None:
        """Give covers the colours that they have from their first frame on."""
        regions = [(n, one) for n, one in enumerate(plan.film.regions) if one.mode == "plain" and one.first < start]
        for number, region in regions:
            key: Any = (region, None)
            if region.last >= start and key not in self._colours:
                for frame in self._read(region.first, 1):
                    job = plan.job(frame)
                    views = [(job.frame.image, face) for face in _region_faces(job, number)]
                    _keep(self._colours, key, colour_beside(views))
            if key in self._colours:
                renderer.covers.colours[-1 - number] = self._colours[key]
        for track in near:
            rows = np.flatnonzero(plan.modes[track.id] == "plain")
            first = track.first + int(rows[0]) if len(rows) else start
            key = (track.id, first, track.keys)
            if first < start and key not in self._colours:
                count = CHUNK - first % CHUNK + 2 * plan.reach
                seen = [plan.job(frame) for frame in self._read(first, count)]
                _keep(self._colours, key, colour_beside(colour_views(seen, first, track.id)))
            if key in self._colours:
                renderer.covers.colours[track.id] = self._colours[key]


def _region_faces(job: FrameJob, number: int) -> Iterator[Face]:
    return (without_landmarks(box) for box, _, region in job.regions if region == number)


def _keep(known: dict[Any, Any], key: Any, value: Any) -> None:
    known[key] = value
    while len(known) > KEPT:
        known.pop(next(iter(known)))
