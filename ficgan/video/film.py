"""A film from file to file: analyse, render, check. An interrupted film resumes where it stopped."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from ficgan.anonymizers.modes import HIDING, shown
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.faces import DetectAt, public_name
from ficgan.files import partial_file
from ficgan.video.association import Associator, chains, half_seen, lost
from ficgan.video.folders import remove_folder, work_folder, working
from ficgan.video.look import DetectionLog, FieldSearch, look
from ficgan.video.media import EncodeOptions, Frame
from ficgan.video.people import People, Readings, likeness, link_tracklets, look_up
from ficgan.video.plan import (
    DETECTIONS,
    CheckReport,
    Plan,
    State,
    VideoResult,
    analysis_in,
    check_frames,
    identity_of,
    independent_detector,
)
from ficgan.video.project import PROJECT_FILE, Project, Source, fingerprint
from ficgan.video.read import VideoSource, open_video
from ficgan.video.render import FrameJob, Renderer
from ficgan.video.settings import BoxRule, Decision, Decisions, Rules, SpanRule, VideoSettings, edits_of
from ficgan.video.thumbnails import faces_of_tracks, save_thumbnails
from ficgan.video.tools import VideoTools
from ficgan.video.tracks import Tracklet, fill_half_seen, fill_tracks
from ficgan.video.write import SegmentWriter, assemble, check_output

__all__ = ["Cancelled", "FilmJob", "Progress", "analyse_film", "process_film", "render_film"]

PathLike = str | os.PathLike[str]
Progress = Callable[[int, int | None, str], None]
"""progress(frames done, frames in all or None, "analysing" | "choosing faces" | "rendering" | "checking")"""
IsCancelled = Callable[[], bool]

RECASTS = 2
"""How often people who are still recognised in the result get another face before they are covered."""
_FALLBACKS = {
    "small": "they are below {small:g} pixels",
    "turned away": "the head is turned too far",
    "unread": "the model could not read them, or the head was turned too far",
    "known": "a recogniser still knew the person there or nearby",
}
"""Why a face of a film gets no generated one, in words for the user."""
_LINKABLE = {
    "none": "nothing links the tracks of one person",
    "file": "one person has one new face throughout this film",
    "job": "one person has one new face in all films of this job",
}


class Cancelled(FicganError):
    """`is_cancelled` returned True; nothing was left behind."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: cancelled; nothing was written")


def process_film(
    tools: VideoTools,
    path: PathLike,
    output: PathLike,
    *,
    settings: VideoSettings,
    rules: Rules | None = None,
    encode: EncodeOptions | None = None,
    start: float | None = None,
    end: float | None = None,
    project: PathLike | None = None,
    overwrite: bool = False,
    people: People | None = None,
    progress: Progress | None = None,
    is_cancelled: IsCancelled | None = None,
) -> VideoResult:
    """Redact a film.

    Args:
        path: film, animation or pattern of numbered images; for a camera or stream see `stream`.
        rules: who stays as they are.
        start, end: seconds; only this span is written.
        project: folder to keep the analysis in.
        overwrite: replace an existing output or project.
        people: those known from other films of the job; new ones are added.
        progress: called with frames done, frames in all (None: unknown) and the stage.
        is_cancelled: asked at every frame; True raises `Cancelled` and leaves nothing behind.
    """
    output, encode, rules = Path(output), encode or EncodeOptions(), rules or Rules()
    _prepare(tools, {settings.mode})
    place = None if project is None else Path(project)
    with ExitStack() as stack:
        source = stack.enter_context(open_video(path, start=start, end=end))
        check_output(source, output, encode, overwrite=overwrite)
        # A project that an interrupted run of this job kept is this run's own.
        kept = place is not None and not overwrite and os.path.lexists(place / PROJECT_FILE)
        if place is not None and kept and analysis_in(place) != analysis_in(work_folder(output)):
            raise _taken(place)
        work = stack.enter_context(working(output))
        state = State(work, tools, identity_of(tools, path, settings, rules, encode, start, end))
        job = FilmJob(tools, path, source, settings, progress, is_cancelled)
        began = time.monotonic()
        if state.analysed:
            film = Project.load(work)
        elif place is not None and kept:
            raise _taken(place)
        else:
            film = job.analyse(rules, people, work)
            film.save(work, overwrite=True)
            state.note(analysed=True)
        if place is not None and not kept:
            _keep(film, source, place, overwrite)
        state.timing["analysing"] = time.monotonic() - began
        return job.redact(film, state, output, encode, overwrite=overwrite, project=place)


def analyse_film(
    tools: VideoTools,
    path: PathLike,
    folder: PathLike,
    *,
    settings: VideoSettings,
    rules: Rules | None = None,
    start: float | None = None,
    end: float | None = None,
    overwrite: bool = False,
    people: People | None = None,
    progress: Progress | None = None,
    is_cancelled: IsCancelled | None = None,
) -> Project:
    """Find the faces of a film and write a project to review, in a private folder, as it holds source faces.

    The arguments are those of `process_film`.
    """
    folder = Path(folder)
    if not overwrite and os.path.lexists(folder / PROJECT_FILE):
        raise _taken(folder)
    with open_video(path, start=start, end=end) as source:
        if source.live:
            raise UsageError(f"{source.name}: a camera or stream cannot be reviewed; record it first")
        film = FilmJob(tools, path, source, settings, progress, is_cancelled).analyse(rules or Rules(), people)
        _keep(film, source, folder, overwrite)
    return film


def render_film(
    tools: VideoTools,
    folder: PathLike,
    path: PathLike,
    output: PathLike,
    *,
    settings: VideoSettings,
    encode: EncodeOptions | None = None,
    decisions: PathLike | None = None,
    force: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    is_cancelled: IsCancelled | None = None,
) -> VideoResult:
    """Apply a reviewed project exactly as it stands; see `process_film` for the other arguments.

    Args:
        settings: numbers; the mode is the project's, whatever `mode` says.
        decisions: file exported by the review page; None: those in the project.
        force: render another film all the same.
    """
    output, encode = Path(output), encode or EncodeOptions()
    film = Project.load(folder)
    film.check_source(path, force=force)
    if decisions is not None:
        film = film.apply_decisions(decisions)
        film.save_document(folder)
    settings = replace(settings, mode=film.decisions.default)
    _prepare(tools, film.decisions.modes)
    start, end = film.settings.get("start"), film.settings.get("end")
    with ExitStack() as stack:
        source = stack.enter_context(open_video(path, start=start, end=end))
        if not force and (film.source.width, film.source.height) != (source.info.width, source.info.height):
            raise InputError(f"{source.name}: its pictures have another size than when it was analysed; do that again")
        check_output(source, output, encode, overwrite=overwrite)
        work = stack.enter_context(working(output))
        document = (Path(folder) / PROJECT_FILE) if Path(folder).is_dir() else Path(folder)
        identity = identity_of(tools, path, settings, Rules(), encode, start, end, document.read_bytes())
        job = FilmJob(tools, path, source, settings, progress, is_cancelled)
        state = State(work, tools, identity)
        return job.redact(
            film,
            state,
            output,
            encode,
            overwrite=overwrite,
            project=document.parent,
            edits=edits_of(film),
            reviewed=decisions is not None or bool(edits_of(film)),
        )


def _prepare(tools: VideoTools, modes: Iterable[str]) -> None:
    for mode in modes:
        if mode not in HIDING:
            tools.methods(mode)


def _taken(folder: Path) -> InputError:
    return InputError(f"{folder}: holds a project already; use --overwrite, or choose another folder")


def _keep(film: Project, source: VideoSource, folder: Path, overwrite: bool) -> None:
    film.save(folder, overwrite=overwrite)
    try:
        for track, images in faces_of_tracks(film.tracks, source).items():
            save_thumbnails(folder, track, images)
    except BaseException:
        if not overwrite:
            remove_folder(folder)
        raise


class FilmJob:
    """A film in three stages: `analyse` finds the faces, `render` replaces them, `check` looks for those left."""

    def __init__(
        self,
        tools: VideoTools,
        path: PathLike,
        source: VideoSource,
        settings: VideoSettings,
        progress: Progress | None = None,
        is_cancelled: IsCancelled | None = None,
    ) -> None:
        self.tools, self.path, self.source, self.settings = tools, path, source, settings
        self._progress, self._is_cancelled = progress, is_cancelled
        self._file = _file_state(path)

    def _step(self, stage: str, total: int | None) -> Callable[[int], None]:
        """To be called with the number of each frame done; reports progress, or raises `Cancelled`."""

        def step(frame: int) -> None:
            if self._is_cancelled is not None and self._is_cancelled():
                raise Cancelled(self.source.name)
            if self._progress is not None:
                self._progress(frame + 1, None if total is None else max(total, frame + 1), stage)

        return step

    # -- analyse -------------------------------------------------------------------------------------------------------

    def analyse(self, rules: Rules, people: People | None = None, work: Path | None = None) -> Project:
        """Find every face of the film, and which of them are one person.

        `people` are known from other films of the job; `work` is a folder for a log of detections, so that an
        interrupted analysis resumes.
        """
        source, recognizer = self.source, self.tools.recognizer
        settings, paced = self.settings, self.settings.at(source.info.rate)
        search = FieldSearch(DetectAt(self.tools.detector, (settings.detect_size,) * 2, enlarge=False))
        photos = {**rules.keep, **rules.only}
        references = {name: look_up(photo, name, search, recognizer) for name, photo in photos.items()}
        readings = Readings(recognizer if references or settings.link != "none" else None, settings.embeddings)
        follow, doubt = (Associator(float(source.info.rate or 25), paced.patience) for _ in range(2))
        pts: list[int] = []
        times: list[float] = []
        cuts: list[int] = []
        tracklets: list[Tracklet] = []
        faint: list[Tracklet] = []
        looks: list[int] = []
        step = self._step("analysing", source.info.frames)
        with closing(DetectionLog(search, None if work is None else work / DETECTIONS)) as log:
            for frame, faces, cut in look(source.frames(quick=True), log.detect, paced.stride):
                pts.append(frame.pts)
                times.append(frame.time)
                if cut:
                    cuts.append(frame.index)
                if faces is not None:
                    looks.append(frame.index)
                followed = follow.step(frame.index, faces, cut, frame.time)
                tracklets += followed.ended
                faint += doubt.step(frame.index, log.faint.pop(frame.index, None), cut, frame.time).ended
                if faces:
                    readings(frame.image, faces, followed.ids)
                step(frame.index)
        if not pts:
            raise InputError(f"{source.name}: holds no frame that can be decoded")
        tracklets += follow.finish()
        faint += doubt.finish()
        readings.hand_over(tracklets)
        if people is None:
            people = People(link=settings.link) if recognizer is None else People.of(recognizer, settings.link)
        tracklets = link_tracklets(tracklets, people, times)
        tracks = fill_tracks(tracklets, cuts, times, paced.pad)
        clock = np.array(times)
        found = chains(tracklets, faint, looks, clock, paced.patience)
        likely = half_seen(found, tracklets, cuts, clock)
        tracks += fill_half_seen([chain.tracklet() for chain in likely], tracks, cuts, times, paced.pad)
        doubts = lost(found, cuts, looks, clock, paced.pad, (source.info.width, source.info.height))
        likenesses = {name: likeness(reading, tracklets, recognizer) for name, reading in references.items()}
        facts = {
            **asdict(settings),
            "detector": self.tools.detector.name,
            "start": source.start,
            "end": source.end,
            "searched": len(looks),
            "review": [
                {
                    "frame": seen.frame,
                    "time": round(times[seen.frame], 3),
                    "reason": reason,
                    "box": [round(float(value), 1) for value in seen.face.box],
                }
                for seen, reason in doubts
            ],
        }
        return Project(
            Source.of(self.path, source.info),
            np.array(pts, np.int64),
            tracks,
            facts,
            tuple(cuts),
            self._decisions(rules, likenesses),
        )

    def _decisions(self, rules: Rules, likenesses: Mapping[str, dict[int, tuple[float, float]]]) -> Decisions:
        """Doubt hides: a person is kept if their readings match on average, and hidden if a single one does."""
        recognizer = self.tools.recognizer
        limit = recognizer.match_threshold if recognizer is not None else 0.0
        chosen = {person for name in rules.only for person, (_, least) in likenesses[name].items() if least < limit}
        if rules.only and not chosen:  # hiding nobody is not what was meant
            raise UsageError("nobody in the film matches the photos of --only; give a clearer photo, or leave it out")
        kept = {
            person: Decision(mode="keep", reason=f"matches {Path(name).name}")
            for name in rules.keep
            for person, (mean, _) in likenesses[name].items()
            if mean < limit and person not in chosen
        }
        return Decisions(
            default=self.settings.mode,
            only=tuple(sorted(chosen)) or None,
            people=kept,
            boxes=tuple(BoxRule(box=box, reason="given box") for box in rules.boxes),
            spans=tuple(SpanRule(start=start, end=end, mode="keep", reason="given time") for start, end in rules.spans),
        )

    # -- render and check until nobody is recognised -------------------------------------------------------------------

    def redact(
        self,
        film: Project,
        state: State,
        output: Path,
        encode: EncodeOptions,
        *,
        overwrite: bool,
        project: Path | None,
        edits: tuple[str, ...] = (),
        reviewed: bool = False,
    ) -> VideoResult:
        """Make the result of an analysed film.

        The review page in the folder `project` then shows it, too; `edits` are a person's decisions in sentences.
        Where a person has `reviewed` the film, nothing is left to be looked at.
        """
        settings = self.settings
        self.film, self.state, self.output, self.encode = film, state, output, encode
        self.plan = Plan(film, settings)
        self.renderer = Renderer(self.tools, settings, self.plan.reach)
        state.load_casts(self.renderer)
        # The result takes its name only after the check: a file of that name is always complete.
        self.made = state.folder / f"ficgan-result{output.suffix}"
        a_second = max(1, round(film.rate))
        self.every = 1 if settings.verify == "full" else min(a_second, max(1, len(film.pts) // 2))
        self.repaired = self.plan.cover(state.facts.findings)
        self._audition()
        self.render()
        report = self.check()
        while report is not None and self._change(report):
            self.render()
            report = self.check()
        notes = self._notes(report)
        if project is not None:
            with open_video(self.made) as result:
                for track, images in faces_of_tracks(film.tracks, result).items():
                    save_thumbnails(project, track, images, after=True)
        if _file_state(self.path) != self._file:
            raise InputError(f"{self.source.name}: the film has changed while it was processed; process it again")
        with partial_file(output, overwrite=overwrite) as temporary:
            os.replace(self.made, temporary)
        plan, renderer, assembled = self.plan, self.renderer, self.assembled
        return VideoResult(
            output,
            frames=assembled.frames,
            seconds=assembled.duration,
            tracks=len(film.tracks),
            people=len(set(plan.person.values())),
            faces=renderer.counts,
            fallbacks={**plan.fallbacks, **renderer.causes},
            masked_people=sum(cast.styles is None for cast in renderer.casts.values()),
            origins=plan.origins,
            exemptions=film.decider().exemptions(film.tracks),
            edits=edits,
            check=report,
            review=() if reviewed else film.settings.get("review", ()),
            notes=notes,
            damage=self.damage,
            settings=settings.to_dict(),
            account=self._account(),
            has_audio=bool(assembled.audio_streams),
            synthetic=assembled.synthetic,
            timing=state.timing,
        )

    def _audition(self) -> None:
        """Try the new faces of all people on a few frames, where neither an interrupted run nor the job has done so."""
        plan, renderer, tools = self.plan, self.renderer, self.tools
        if renderer.casts or self.settings.verify == "off" or tools.gate is None or not tools.policy.verify:
            return
        wanted = plan.auditions()
        known = tools.casts_of_job if self.settings.link == "job" else {}
        for person in set().union(*wanted.values()) & set(known):
            renderer.cast(person, *known[person], settled=True)
        wanted = {frame: people - set(renderer.casts) for frame, people in wanted.items()}

        def jobs(people: Collection[str]) -> Iterator[FrameJob]:
            frames = {frame: wanted[frame] & set(people) for frame in wanted if wanted[frame] & set(people)}
            step = self._step("choosing faces", len(self.film.pts))

            def is_wanted(frame: int) -> bool:
                step(frame)
                return frame in frames

            for frame in self._as_analysed(self.source.frames(wanted=is_wanted)) if frames else ():
                job = plan.job(frame)
                yield replace(job, appearances=[one for one in job.appearances if one.person in frames[frame.index]])

        with self.state.timed("choosing faces"):
            renderer.audition(jobs, set().union(*wanted.values()))
        known |= {person: (cast.z_id, cast.rung, cast.kind) for person, cast in renderer.casts.items()}
        self.state.save_casts(renderer, 0)

    def render(self) -> None:
        """Render what is in no finished segment yet, and put all segments together with the sound."""
        with self.state.timed("rendering"):
            self.writer = SegmentWriter(
                self.state.folder,
                self.source.info,
                self.encode,
                output=self.output,
                seconds=self.settings.segment,
                multiple=self.settings.chunk,
            )
            self._draw()
            self.assembled = assemble(
                self.writer.segments,
                self.source,
                self.made,
                self.encode,
                overwrite=True,
                synthetic=self.encode.tag and self.renderer.counts["generated"] > 0,
            )
        self.notes = [*self.source.notes, *self.writer.notes, *self.assembled.notes]
        self.damage = (*self.source.damage, *self.assembled.damage)

    def _draw(self) -> None:
        plan, writer = self.plan, self.writer
        begin, chunk, ahead = writer.next_frame, self.settings.chunk, 2 * plan.reach
        jobs: deque[FrameJob] = deque()
        step = self._step("rendering", len(self.film.pts))

        def flush() -> None:
            before = [jobs.popleft() for _ in range(len(jobs)) if jobs[0].frame.index < begin]
            now = [jobs.popleft() for _ in range(min(chunk, len(jobs)))]
            if not now:
                return
            if writer.ends_before(now[0].frame):
                writer.close()
                self.state.save_casts(self.renderer, writer.next_frame)
            for job, image in zip(now, self.renderer(now, [*before, *jobs]), strict=True):
                writer.write(job.frame, image)
                step(job.frame.index)

        with writer:
            # A few frames before the first are read again, so that an interrupted film becomes the same one.
            for frame in self._as_analysed(self.source.frames(first=max(0, begin - ahead))):
                jobs.append(plan.job(frame))
                if frame.index >= begin + chunk + ahead - 1 and (frame.index + 1 - begin - ahead) % chunk == 0:
                    flush()
            while jobs:
                flush()
        self.state.save_casts(self.renderer, writer.next_frame)

    def _as_analysed(self, frames: Iterable[Frame]) -> Iterator[Frame]:
        """The frames, as long as they are those of the analysis: with others every later face were in a wrong place."""
        times, changed = self.film.times, f"{self.source.name}: the film has changed since it was analysed"
        tolerance = max(0.002, 0.5 * float(np.median(np.diff(times)))) if len(times) > 1 else 0.002
        known = self.film.source.fingerprint
        same_file = known is not None and fingerprint(self.path) == known
        for frame in frames:
            if frame.index >= len(times):  # nobody looked for faces there
                raise InputError(f"{changed}: it has more than the {len(times)} frames of then; analyse it again")
            # Times count from the first frame that is read, so they do not tell where in the file that one lies.
            late = (frame.pts - int(self.film.pts[frame.index])) * self.source.info.time_base
            if same_file and abs(late) > tolerance:
                raise InputError(
                    f"{self.source.name}: begins elsewhere than when it was analysed; is it still being written? Put "
                    "`start` of an edited project back, or analyse the film again"
                )
            if abs(frame.time - times[frame.index]) > tolerance:
                raise InputError(
                    f"{changed}: frame {frame.index} comes at {frame.time:.3f} s instead of "
                    f"{times[frame.index]:.3f} s; analyse it again"
                )
            yield frame

    def check(self) -> CheckReport | None:
        """Compare source and result; None where that is not wanted, or there is no recogniser.

        Where a new face is still recognised, all frames up to the next ones that were looked at are looked at, too.
        """
        settings, gate = self.settings, self.tools.gate
        if settings.verify == "off" or gate is None:
            return None
        # Between two looks of the first detector, where it was blind.
        offset = min(settings.at(self.source.info.rate).stride // 2, self.every - 1)
        step = self._step("checking", len(self.film.pts))

        def compared(wanted: Callable[[int], bool]) -> CheckReport:
            with open_video(self.made) as result:
                frames = zip(self.source.frames(wanted=wanted), result.frames(wanted=wanted), strict=False)
                pairs = (pair for pair in frames if step(pair[0].index) is None)
                return check_frames(pairs, self.plan.kept_at, detector, gate, expected=bool(self.film.tracks))

        with self.state.timed("checking"):
            detector = independent_detector(self.tools.detector.name, settings.detect_size)
            report = compared(lambda frame: frame % self.every == offset)
            found = {finding.frame for finding in report.findings if self.plan.recognised([finding])}
            near = {frame for seen in found for frame in range(seen - self.every + 1, seen + self.every)} - found
            if near and self.every > 1:
                report.add(compared(near.__contains__))
        if report.frames < 2:
            report.unchecked = "fewer than two of its frames were looked at"
        elif not report.faces and self.renderer.counts["generated"]:
            report.unchecked = f"{report.detector} found no face in the result, though there are generated ones"
        return report

    def _change(self, report: CheckReport) -> bool:
        """Whether the film must be rendered again, differently.

        People who are still recognised get another face; those who have a chosen one only where half of their faces or
        more would be covered. Where that does not help, the fallback covers them, once. Faces that were missed
        altogether are left to a person to review.
        """
        done, seen = self.state.facts.recasts, report.findings
        again = done < RECASTS and not self.repaired
        if again and self.renderer.recast(self.plan.recognised(seen), self.plan.lost(seen)):
            self.state.note(recasts=done + 1)
        elif not self.repaired and (rows := self.plan.cover(report.findings)):
            self.repaired = rows
            self.state.note(findings=report.findings)
        else:
            return False
        for segment in self.writer.segments:
            segment.path.unlink()
        self.renderer.restart()
        self.state.save_casts(self.renderer, 0)
        return True

    # -- the account ---------------------------------------------------------------------------------------------------

    def _notes(self, report: CheckReport | None) -> tuple[str, ...]:
        notes, fallback, total = list(self.notes), self.settings.fallback, len(self.film.pts)
        for reason, rows in {**self.plan.fallbacks, **self.renderer.causes}.items():
            if rows and reason in _FALLBACKS:
                why = _FALLBACKS[reason].format(small=self.settings.small)
                notes.append(f"{rows} sightings of faces got the fallback, {fallback}: {why}.")
        if rows := self.renderer.causes["roughly placed"]:
            notes.append(f"New faces that lie over a cover, as their places are known only roughly: {rows}.")
        if self.repaired:
            notes.append(f"{self.repaired} generated faces were covered where the check still recognised somebody.")
        if report is not None and report.unchecked:
            notes.append(f"The result was not checked: {report.unchecked}.")
        if self.assembled.frames != total:
            notes.append(f"The film gave {self.assembled.frames} frames when rendered and {total} when analysed.")
        return tuple(dict.fromkeys(notes))

    def _account(self) -> dict[str, Any]:
        tools, settings, casts = self.tools, self.settings, self.renderer.casts
        account: dict[str, Any] = {
            "mode": shown(settings.mode),
            **tools.methods.accounts(self.film.decisions.modes),
            "detector": tools.detector.name,
            "gate": None if tools.gate is None or not tools.policy.verify else public_name(tools.gate),
            "linkable": _LINKABLE[settings.link],
        }
        if tools.face_model is not None and casts:
            psi = [cast.draw["psi"] for cast in casts.values() if "psi" in cast.draw]
            account |= tools.face_model.account(layer=tools.layer, psi=psi)
            account["draws"] = [
                {
                    "person": key.rpartition("/")[2],
                    **cast.draw,
                    "distance": None if cast.distance is None else round(cast.distance, 4),
                    **({"matched_by": cast.matched_by} if cast.matched_by else {}),
                }
                for key, cast in sorted(casts.items())
            ]
        return account


def _file_state(path: PathLike) -> tuple[int, int, str] | None:
    if not Path(path).is_file():
        return None
    status = Path(path).stat()
    return status.st_size, status.st_mtime_ns, fingerprint(path)
