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
from ficgan.faces import colour_beside
from ficgan.faces.covers import Colour
from ficgan.video import CHUNK, FilmTask, VideoSettings, VideoTools
from ficgan.video.decided import FilmPlan, FrameJob, decide
from ficgan.video.identities import Identities
from ficgan.video.project import Project
from ficgan.video.read import open_video
from ficgan.video.rendered import Renderer, chunks, colour_views, without_landmarks
from ficgan.video.source import Frame
from ficgan.video.tracks import Track
from ficgan.video.treatment import treated_people

# What is being done, as progress names it.
DRAWING = "drawing this frame"
# Seconds that are drawn before a frame that is jumped to: the gate then reads faces where it does in the film.
RUN_IN = 1.0
# Frames of the longest film that is read whole to decide how its heads are treated; of longer ones the boxes decide.
WHOLE = 3000
# What a plan says of tracks that depends on their people alone.
_SETTLED = ("modes", "bridged", "hidden")

Image = NDArray[np.uint8]


class Preview:
    """Frames of a film as `render_film` draws them.

    New faces are chosen as for the whole film, but only for the people who are near the frame. A frame is drawn in its
    chunk, after a run-in; those that follow go on from there. What the check finds and covers is not known here, and in
    films of more than `WHOLE` frames not where a new face cannot stand. `tools`, `settings`: as of `render_film`.
    """

    def __init__(self, tools: VideoTools, settings: VideoSettings, path: Path) -> None:
        self.tools, self.settings, self.path = tools, settings, path
        # Of people, by all that they depend on: their new face and the treatments of their tracks.
        self._settlements: dict[Any, tuple[Any, dict[str, Any]]] = {}
        self._colours: dict[Any, Colour] = {}
        self.plan: FilmPlan
        self._drawing: Iterator[dict[int, Image]] | None = None
        self._next, self._images = -1, dict[int, Image]()

    def decide(self, film: Project) -> None:
        """Take what was decided; what it does not change is not chosen again."""
        self.tools.prepare(film.decisions.modes)
        self.close()
        self.plan = decide(film, replace(self.settings, mode=film.decisions.default))
        self._run_in = CHUNK * math.ceil(RUN_IN * film.rate / CHUNK)  # frames

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

    def _start(self, begin: int, progress: Progress) -> None:
        """Begin to draw a little before a frame that begins a chunk."""
        self.close()
        plan, start = self.plan, max(0, begin - self._run_in)
        last = min(begin + CHUNK + 2 * plan.reach, len(plan.film.pts) - 1)
        near = [track for track in plan.tracks if track.first <= last and start <= track.last]
        renderer = Renderer(self.tools, self.settings, plan.reach, plan.drawings)
        shown = self._settled(renderer, {plan.people[track.id] for track in near}, progress)
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

    def _settled(self, renderer: Renderer, people: set[str], progress: Progress) -> FilmPlan:
        """The plan with the treatments of these people's heads, who get the new faces that they have in the film."""
        plan, identities, film = self.plan, renderer.identities, self.plan.film
        whole, ids, keys = len(film.pts) <= WHOLE, dict[str, list[int]](), dict[str, Any]()
        for person in people:
            theirs = [track for track in plan.tracks if plan.people[track.id] == person]
            ids[person] = [track.id for track in theirs]
            said = [(track.id, track.keys, plan.modes[track.id].tobytes()) for track in theirs]
            keys[person] = person, plan.drawings.get(person), tuple(said)
        if new := {person for person in people if keys[person] not in self._settlements}:
            self._choose(identities, new, progress)
            with open_video(self.path, **film.span) as source:
                task = FilmTask(self.tools, self.path, source, self.settings, progress)
                made = treated_people(task, plan, identities, new if whole else (), again=whole)
            for person in new:
                chosen, of_film = identities.people.get(person), {name: getattr(made, name) for name in _SETTLED}
                own = {name: {id: part[id] for id in ids[person] if id in part} for name, part in of_film.items()}
                self._settlements[keys[person]] = chosen and chosen.to_dict(), own
        settled: dict[str, Any] = {name: dict(getattr(plan, name)) for name in _SETTLED}
        for person in people:
            tree, own = self._settlements[keys[person]]
            if tree is not None:
                identities.people[person] = identities.restored(person, tree)
            for name in _SETTLED:
                settled[name] |= own[name]
        identities.surveyed = whole
        return replace(plan, **settled)

    def _choose(self, identities: Identities, people: set[str], progress: Progress) -> None:
        """Choose the new faces of people from the frames from which they are chosen for the whole film."""
        if self.tools.face_model is None or self.settings.verify == "off" or not self.tools.verifies:
            return
        tried = sorted(self.plan.auditions().items())

        def jobs(wanted: Collection[str]) -> Iterator[FrameJob]:
            frames = {frame: shown & set(wanted) for frame, shown in tried if shown & set(wanted)}
            for done, (frame, shown) in enumerate(frames.items()):
                progress(done, len(frames), DRAWING)
                for read in self._read(frame, 1):
                    yield self.plan.job(read, shown)

        identities.choose(jobs, people & set().union(*(shown for _, shown in tried)))

    def _colour(self, renderer: Renderer, plan: FilmPlan, near: Collection[Track], start: int) -> None:
        """Give plain covers the colours that they have from their first frame on."""
        wanted: dict[int, tuple[Any, int]] = {
            -1 - number: (region, region.first)
            for number, region in enumerate(plan.film.regions)
            if region.mode == "plain" and region.first < start <= region.last
        }
        for track in near:
            rows = np.flatnonzero(plan.modes[track.id] == "plain")
            if len(rows) and (first := track.first + int(rows[0])) < start:
                wanted[track.id] = (track.id, first, track.keys), first
        for number, (key, first) in wanted.items():
            if key not in self._colours:
                count = 1 if number < 0 else CHUNK - first % CHUNK + 2 * plan.reach
                jobs = [plan.job(frame) for frame in self._read(first, count)]
                regions = [(job.frame.image, box) for job in jobs for box, _, n in job.regions if -1 - n == number]
                views = colour_views(jobs, first, number)
                views += [(image, without_landmarks(box)) for image, box in regions]
                self._colours[key] = colour_beside(views)
            renderer.colours[number] = self._colours[key]
