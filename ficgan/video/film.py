"""A film from file to file: found, decided, rendered, checked. An interrupted film resumes where it stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from ficgan.anonymizers.modes import HIDING
from ficgan.errors import InputError, UsageError
from ficgan.files import partial_file
from ficgan.video.check import CheckReport, check_film
from ficgan.video.decided import FilmPlan, cover_findings, decide
from ficgan.video.folders import remove_folder, work_folder, working
from ficgan.video.found import find_faces
from ficgan.video.live import record_live
from ficgan.video.media import EncodeOptions, display_name
from ficgan.video.people import People
from ficgan.video.project import PROJECT_FILE, Project, fingerprint
from ficgan.video.read import VideoSource, is_live, open_video
from ficgan.video.render import Renderer
from ficgan.video.rendered import Rendered, choose_faces, render_segments
from ficgan.video.result import VideoResult, film_account, film_notes
from ficgan.video.resume import DETECTIONS, JobState, analysis_in, identity_of
from ficgan.video.settings import Rules, VideoSettings, edits_of
from ficgan.video.thumbnails import faces_of_tracks, save_thumbnails
from ficgan.video.tools import FilmTask, IsCancelled, PathLike, Progress, VideoTools
from ficgan.video.write import check_output

__all__ = ["analyse_film", "process_film", "render_film"]

# How often people who are still recognised in the result get another face before they are covered.
REPLACEMENTS = 2


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
        path: film, animation or pattern of numbered images; a camera or address is recorded, see `record_live`.
        rules: who stays as they are.
        start, end: seconds; only this span is written.
        project: folder to keep the analysis in.
        overwrite: replace an existing output or project.
        people: those known from other films of the job; new ones are added.
        progress: called with frames done, frames in all (None: unknown) and the stage.
        is_cancelled: asked at every frame; True raises `Cancelled` and leaves nothing behind.
    """
    encode, rules, place = encode or EncodeOptions(), rules or Rules(), None if project is None else Path(project)
    if is_live(path) and (place is not None or rules):
        name = display_name(os.fspath(path))
        raise UsageError(f"{name}: exemptions and projects need a film that can be read twice; record it first")
    _prepare(tools, {settings.mode})
    with ExitStack() as stack:
        source = stack.enter_context(open_video(path, start=start, end=end))
        task = FilmTask(tools, path, source, settings, progress, is_cancelled)
        if is_live(path):
            return record_live(task, output, encode, overwrite=overwrite)
        output = Path(output)
        check_output(source, output, encode, overwrite=overwrite)
        # A project that an interrupted run of this job kept is this run's own.
        kept = place is not None and not overwrite and os.path.lexists(place / PROJECT_FILE)
        if place is not None and kept and analysis_in(place) != analysis_in(work_folder(output)):
            raise _taken(place)
        work = stack.enter_context(working(output))
        state = JobState(work, tools, identity_of(tools, path, settings, rules, encode, start, end))
        began, before = time.monotonic(), _file_state(path)
        if state.analysed:
            film = Project.load(work)
        elif place is not None and kept:
            raise _taken(place)
        else:
            film = find_faces(task, rules, people, work / DETECTIONS)
            film.save(work, overwrite=True)
            state.note(analysed=True)
        if place is not None and not kept:
            _keep(film, source, place, overwrite)
        state.timing["analysing"] = time.monotonic() - began
        result, made = _redacted(task, film, state, output, encode, place)
        return _published(result, made, task, before, overwrite=overwrite)


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
        film = find_faces(FilmTask(tools, path, source, settings, progress, is_cancelled), rules or Rules(), people)
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
        decisions: file exported by `ficgan ui`; None: those in the project.
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
        task, before = FilmTask(tools, path, source, settings, progress, is_cancelled), _file_state(path)
        state = JobState(work, tools, identity)
        result, made = _redacted(task, film, state, output, encode, document.parent)
        result.edits = edits_of(film.decisions, film.regions)
        if decisions is not None or result.edits:  # who has decided on the film has looked at it
            result.review = ()
        return _published(result, made, task, before, overwrite=overwrite)


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


def _redacted(
    task: FilmTask, film: Project, state: JobState, output: Path, encode: EncodeOptions, project: Path | None
) -> tuple[VideoResult, Path]:
    """The account of a film that was found, and its file, which has no name of its own yet.

    The thumbnails in the folder `project` then show the result, too.
    """
    settings = task.settings
    plan = decide(film, settings)
    plan, repaired = cover_findings(plan, state.facts.findings, settings.fallback)
    renderer = Renderer(task.tools, settings, plan.reach)
    state.load(renderer)
    choose_faces(task, plan, renderer, state)
    while True:
        rendered, report = _checked(task, plan, renderer, state, output, encode)
        if report is None:
            break
        # People who are still recognised get another face; those who have a chosen one only where half of their faces
        # or more would be covered. Where that does not help, the fallback covers them, once. Faces that were missed
        # altogether are left to a person to review.
        again, seen = state.facts.replaced < REPLACEMENTS and not repaired, report.findings
        if again and renderer.identities.replace(plan.recognised(seen), plan.mostly_recognised(seen)):
            state.note(replaced=state.facts.replaced + 1)
        elif not repaired:
            plan, repaired = cover_findings(plan, seen, settings.fallback)
            if not repaired:
                break
            state.note(findings=seen)
        else:
            break
        rendered.discard()
        renderer.restart()
        state.save(renderer, 0)
    file = rendered.file
    if project is not None:
        with open_video(file.path) as made:
            for track, images in faces_of_tracks(film.tracks, made).items():
                save_thumbnails(project, track, images, after=True)
    result = VideoResult(
        output,
        frames=file.frames,
        seconds=file.duration,
        tracks=len(film.tracks),
        people=len(set(plan.people.values())),
        faces=renderer.counts,
        fallbacks={**plan.fallbacks, **renderer.causes},
        masked_people=sum(person.styles is None for person in renderer.identities.people.values()),
        origins=plan.origins,
        exemptions=film.decider().exemptions(film.tracks),
        check=report,
        review=film.settings.get("review", ()),
        notes=film_notes(plan, renderer, rendered, report),
        damage=rendered.damage,
        settings=settings.to_dict(),
        account=film_account(plan, renderer, settings),
        has_audio=bool(file.audio_streams),
        synthetic=file.synthetic,
        timing=state.timing,
    )
    return result, file.path


def _checked(
    task: FilmTask, plan: FilmPlan, renderer: Renderer, state: JobState, output: Path, encode: EncodeOptions
) -> tuple[Rendered, CheckReport | None]:
    rendered = render_segments(task, plan, renderer, state, output, encode)
    with state.timed("checking"):
        return rendered, check_film(task, plan, rendered.file.path, generated=renderer.counts["generated"] > 0)


def _published(
    result: VideoResult, made: Path, task: FilmTask, before: tuple[int, int, str] | None, *, overwrite: bool
) -> VideoResult:
    """Give a checked file its name, if the source is still the one of before."""
    if _file_state(task.path) != before:
        raise InputError(f"{task.source.name}: the film has changed while it was processed; process it again")
    assert result.output is not None
    with partial_file(result.output, overwrite=overwrite) as temporary:
        os.replace(made, temporary)
    return result


def _file_state(path: PathLike) -> tuple[int, int, str] | None:
    if not Path(path).is_file():
        return None
    status = Path(path).stat()
    return status.st_size, status.st_mtime_ns, fingerprint(path)
