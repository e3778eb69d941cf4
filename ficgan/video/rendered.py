"""The third stage of a film, *rendered*: new faces chosen, segments drawn, and put together with the sound."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ficgan.errors import InputError
from ficgan.video.decided import FilmPlan, FrameJob
from ficgan.video.media import EncodeOptions, Frame
from ficgan.video.project import fingerprint
from ficgan.video.render import Renderer
from ficgan.video.resume import JobState
from ficgan.video.settings import CHUNK
from ficgan.video.tools import FilmTask
from ficgan.video.write import Assembled, Segment, SegmentWriter, assemble

__all__ = ["Rendered", "choose_faces", "render_segments"]


@dataclass(frozen=True)
class Rendered:
    """A film before its check."""

    file: Assembled
    segments: tuple[Segment, ...]
    notes: tuple[str, ...]
    damage: tuple[str, ...]

    def discard(self) -> None:
        """Remove the segments: all of the film is to be drawn again."""
        for segment in self.segments:
            segment.path.unlink()


def choose_faces(task: FilmTask, plan: FilmPlan, renderer: Renderer, state: JobState) -> None:
    """Try the new faces of all people on a few frames, where neither an interrupted run nor the job has done so."""
    tools, settings, identities = task.tools, task.settings, renderer.identities
    if identities.people or settings.verify == "off" or not tools.verifies:
        return
    wanted = plan.auditions()
    known = tools.job_identities if settings.link == "job" else {}
    for person in set().union(*wanted.values()) & set(known):
        identities.people[person] = identities.identity(person, *known[person])
        identities.people[person].settled = True
    wanted = {frame: people - set(identities.people) for frame, people in wanted.items()}

    def jobs(people: Collection[str]) -> Iterator[FrameJob]:
        frames = {frame: wanted[frame] & set(people) for frame in wanted if wanted[frame] & set(people)}
        step = task.step("choosing faces", len(plan.film.pts))

        def is_wanted(frame: int) -> bool:
            step(frame)
            return frame in frames

        for frame in _as_analysed(task, plan, task.source.frames(wanted=is_wanted)) if frames else ():
            job = plan.job(frame)
            yield replace(
                job,
                appearances=[appearance for appearance in job.appearances if appearance.person in frames[frame.index]],
            )

    with state.timed("choosing faces"):
        identities.choose(jobs, set().union(*wanted.values()))
    known |= {person: (one.z_id, one.attempt, one.kind) for person, one in identities.people.items()}
    state.save(renderer, 0)


def render_segments(
    task: FilmTask, plan: FilmPlan, renderer: Renderer, state: JobState, output: Path, encode: EncodeOptions
) -> Rendered:
    """Draw what is in no finished segment yet, and put all segments together with the sound.

    The result gets a name in the work folder: a file that is called `output` is always complete and checked.
    """
    with state.timed("rendering"):
        length = task.settings.segment
        writer = SegmentWriter(state.folder, task.source.info, encode, output=output, seconds=length, multiple=CHUNK)
        _draw(task, plan, renderer, state, writer)
        made, synthetic = state.folder / f"ficgan-result{output.suffix}", renderer.counts["generated"] > 0
        file = assemble(writer.segments, task.source, made, encode, overwrite=True, synthetic=encode.tag and synthetic)
    notes, damage = (*task.source.notes, *writer.notes, *file.notes), (*task.source.damage, *file.damage)
    return Rendered(file, tuple(writer.segments), notes, damage)


def _draw(task: FilmTask, plan: FilmPlan, renderer: Renderer, state: JobState, writer: SegmentWriter) -> None:
    begin, ahead = writer.next_frame, 2 * plan.reach
    jobs: deque[FrameJob] = deque()
    step = task.step("rendering", len(plan.film.pts))

    def flush() -> None:
        before = [jobs.popleft() for _ in range(len(jobs)) if jobs[0].frame.index < begin]
        now = [jobs.popleft() for _ in range(min(CHUNK, len(jobs)))]
        if not now:
            return
        if writer.ends_before(now[0].frame):
            writer.close()
            state.save(renderer, writer.next_frame)
        for job, image in zip(now, renderer(now, [*before, *jobs]), strict=True):
            writer.write(job.frame, image)
            step(job.frame.index)

    with writer:
        # A few frames before the first are read again, so that an interrupted film becomes the same one.
        for frame in _as_analysed(task, plan, task.source.frames(first=max(0, begin - ahead))):
            jobs.append(plan.job(frame))
            if frame.index >= begin + CHUNK + ahead - 1 and (frame.index + 1 - begin - ahead) % CHUNK == 0:
                flush()
        while jobs:
            flush()
    state.save(renderer, writer.next_frame)


def _as_analysed(task: FilmTask, plan: FilmPlan, frames: Iterable[Frame]) -> Iterator[Frame]:
    """The frames, as long as they are those of the analysis: with others every later face were in a wrong place."""
    film, name = plan.film, task.source.name
    times, known = film.times, film.source.fingerprint
    tolerance = max(0.002, 0.5 * float(np.median(np.diff(times)))) if len(times) > 1 else 0.002
    same_file = known is not None and fingerprint(task.path) == known
    for frame in frames:
        if frame.index >= len(times):  # nobody looked for faces there
            raise InputError(f"{name}: has changed since it was analysed: it has more frames; analyse it again")
        # Times count from the first frame that is read, so they do not tell where in the file that one lies.
        late = (frame.pts - int(film.pts[frame.index])) * task.source.info.time_base
        if same_file and abs(late) > tolerance:
            raise InputError(
                f"{name}: begins elsewhere than when it was analysed; is it still being written? Put `start` of an "
                "edited project back, or analyse the film again"
            )
        if abs(frame.time - times[frame.index]) > tolerance:
            raise InputError(
                f"{name}: has changed since it was analysed: frame {frame.index} comes at {frame.time:.3f} s instead "
                f"of {times[frame.index]:.3f} s; analyse it again"
            )
        yield frame
