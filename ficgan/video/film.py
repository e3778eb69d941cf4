"""A film from file to file: analyse, render, put together, look again; an interrupted one goes on where it stopped."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import FicganError, InputError, UsageError
from ficgan.faces import DetectAt, Face, FaceDetector, Recognizer
from ficgan.video.association import AssociationConfig, Associator, look
from ficgan.video.decisions import BoxRule, Decisions, SpanRule
from ficgan.video.folders import remove_folder, work_folder
from ficgan.video.hiding import HIDING, shown
from ficgan.video.media import EncodeOptions, Frame, partial_file
from ficgan.video.people import People, Readings, likeness, link_tracklets, look_up
from ficgan.video.plan import CheckReport, Plan, VideoResult, check_frames, independent_detector
from ficgan.video.project import PROJECT_FILE, Project, Source, edits_of
from ficgan.video.read import VideoSource, open_video
from ficgan.video.render import FrameJob, Renderer, VideoTools
from ficgan.video.review import save_thumbnails, write_review
from ficgan.video.settings import Rules, VideoSettings
from ficgan.video.state import DETECTIONS, DetectionLog, State, analysis_in, identity_of, working
from ficgan.video.tracks import SEEN, Track, Tracklet, fill_tracks
from ficgan.video.write import SegmentWriter, assemble, check_output

__all__ = ["Analysis", "Cancelled", "Progress", "analyse", "analyse_film", "process_film", "render_film"]

Progress = Callable[[int, int | None, str], None]
"""progress(frames done, frames in all or None, "analysing" | "rendering" | "checking")"""
IsCancelled = Callable[[], bool]

RECASTS = 2
"""How often people who are still recognised in the result get another face before they are covered."""

_FALLBACKS = {"small": "they are below {small:g} pixels", "turned away": "the head is turned too far"}
"""Why a face of a film gets no generated one, as the user is told it."""


class Cancelled(FicganError):
    """The caller's `is_cancelled` said so; nothing was left behind."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: cancelled; nothing was written")


@dataclass(frozen=True, eq=False)
class _Ticker:
    """Progress and cancelling of one stage."""

    name: str
    stage: str
    total: int | None
    progress: Progress | None
    is_cancelled: IsCancelled | None

    def __call__(self, frame: int) -> None:
        if self.is_cancelled is not None and self.is_cancelled():
            raise Cancelled(self.name)
        if self.progress is not None:
            done = frame + 1
            self.progress(done, None if self.total is None else max(self.total, done), self.stage)


def process_film(
    tools: VideoTools,
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    settings: VideoSettings,
    rules: Rules | None = None,
    encode: EncodeOptions | None = None,
    start: float | None = None,
    end: float | None = None,
    project: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    people: People | None = None,
    progress: Progress | None = None,
    is_cancelled: IsCancelled | None = None,
) -> VideoResult:
    """Redact a film.

    Args:
        tools: detector, recogniser, model.
        path: film, animation or pattern of numbered images; no camera or stream, see `stream`.
        output: file to make.
        settings: numbers.
        rules: whom to leave.
        encode: codec and quality.
        start, end: seconds; only this span is written.
        project: folder to keep the analysis in.
        overwrite: replace an existing output or project.
        people: those known from other films of the job; new ones are added.
        progress: called with frames done, frames in all (None: unknown) and the stage.
        is_cancelled: asked at every frame; True raises `Cancelled` and leaves nothing behind.

    Returns:
        What was done.

    Raises:
        InputError: the film cannot be read, or the output not be written.
    """
    output, encode, rules = Path(output), encode or EncodeOptions(), rules or Rules()
    _prepare(tools, {settings.mode})
    with ExitStack() as stack:
        source = stack.enter_context(open_video(path, start=start, end=end))
        check_output(source, output, encode, overwrite=overwrite)
        place = None if project is None else Path(project)
        # A project that an interrupted run of this job kept is this run's own.
        kept = place is not None and not overwrite and os.path.lexists(place / PROJECT_FILE)
        if place is not None and kept and analysis_in(place) != analysis_in(work_folder(output)):
            raise _taken(place)
        work = stack.enter_context(working(output))
        state = State(work, tools, identity_of(tools, path, settings, rules, encode, start, end))
        began = time.monotonic()
        if state.analysed:
            film = Project.load(work)
        elif place is not None and kept:
            raise _taken(place)
        else:
            film = _analysed(tools, source, path, settings, rules, people, work, progress, is_cancelled)
            film.save(work, overwrite=True)
            state.note(analysed=True)
        if place is not None and not kept:
            _keep(film, source, place, overwrite)
        state.timing["analysing"] = time.monotonic() - began
        return _rendered(
            tools, film, source, output, settings, encode, state,
            overwrite=overwrite, project=place, progress=progress, is_cancelled=is_cancelled,
        )  # fmt: skip


def analyse_film(
    tools: VideoTools,
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
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
    """Find the faces of a film and write a project to review; see `process_film` for the arguments.

    Args:
        folder: the project's; private, for it holds source faces.
    """
    folder = Path(folder)
    if not overwrite and os.path.lexists(folder / PROJECT_FILE):
        raise _taken(folder)
    with open_video(path, start=start, end=end) as source:
        if source.live:
            raise UsageError(f"{source.name}: a camera or stream cannot be reviewed; record it first")
        film = _analysed(tools, source, path, settings, rules or Rules(), people, None, progress, is_cancelled)
        _keep(film, source, folder, overwrite)
    return film


def render_film(
    tools: VideoTools,
    folder: str | os.PathLike[str],
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    settings: VideoSettings,
    encode: EncodeOptions | None = None,
    decisions: str | os.PathLike[str] | None = None,
    force: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    is_cancelled: IsCancelled | None = None,
) -> VideoResult:
    """Apply a reviewed project exactly as it stands; see `process_film` for the arguments.

    Args:
        folder: the project's.
        path: the film it was made of.
        settings: numbers; what takes a face's place is the project's, whatever `mode` says.
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
        check_output(source, output, encode, overwrite=overwrite)
        work = stack.enter_context(working(output))
        document = (Path(folder) / PROJECT_FILE) if Path(folder).is_dir() else Path(folder)
        identity = identity_of(tools, path, settings, Rules(), encode, start, end, document.read_bytes())
        return _rendered(
            tools, film, source, output, settings, encode, State(work, tools, identity),
            overwrite=overwrite, project=document.parent, edits=edits_of(film), progress=progress,
            is_cancelled=is_cancelled,
        )  # fmt: skip


def _prepare(tools: VideoTools, modes: Iterable[str]) -> None:
    """Make the anonymisers that modes name, so that what they lack is known before the film is read."""
    for mode in modes:
        if mode not in HIDING:
            tools.methods(mode)


def _taken(folder: Path) -> InputError:
    return InputError(f"{folder}: holds a project already; use --overwrite, or choose another folder")


# -- stages ------------------------------------------------------------------------------------------------------------


def _analysed(
    tools: VideoTools, source: VideoSource, path: str | os.PathLike[str], settings: VideoSettings, rules: Rules,
    people: People | None, work: Path | None, progress: Progress | None, is_cancelled: IsCancelled | None,
) -> Project:  # fmt: skip
    log = None if work is None else DetectionLog(work / DETECTIONS)
    try:
        found = analyse(
            source, tools.detector, tools.recognizer, settings, people=people, photos={**rules.keep, **rules.only},
            log=log, step=_Ticker(source.name, "analysing", source.info.frames, progress, is_cancelled),
        )  # fmt: skip
    finally:
        if log is not None:
            log.close()
    told = {
        **asdict(settings), "detector": tools.detector.name, "start": source.start, "end": source.end,
        "searched": found.searched,
    }  # fmt: skip
    return Project(
        Source.of(path, source.info), found.pts, found.tracks, told, found.cuts,
        _decisions(settings, rules, found, tools.recognizer),
    )  # fmt: skip


def _decisions(settings: VideoSettings, rules: Rules, found: Analysis, recognizer: Recognizer | None) -> Decisions:
    """The user's rules, now that it is known who is in the film.

    Doubt hides: a person is kept where their readings match the photo on average, and counts as chosen to be hidden
    where a single one does.

    Raises:
        UsageError: `only` names somebody who is not there: hiding nobody is not what was meant.
    """
    limit = recognizer.match_threshold if recognizer is not None else 0.0
    choice = Decisions(
        default=settings.mode,
        boxes=tuple(BoxRule(box=box, reason="given box") for box in rules.boxes),
        spans=tuple(SpanRule(start=start, end=end, mode="keep", reason="given time") for start, end in rules.spans),
    )
    chosen = {person for name in rules.only for person, (_, least) in found.likeness[name].items() if least < limit}
    if rules.only and not chosen:
        raise UsageError("nobody in the film matches the photos of --only; give a clearer photo, or leave it out")
    if chosen:
        choice = choice.model_copy(update={"only": tuple(sorted(chosen))})
    for name in rules.keep:
        for person, (mean, _) in found.likeness[name].items():
            if mean < limit and person not in chosen:
                choice = choice.keep_person(person, f"matches {Path(name).name}")
    return choice


def _keep(film: Project, source: VideoSource, folder: Path, overwrite: bool) -> None:
    """Write a project with a few faces of each track and the page to review them."""
    film.save(folder, overwrite=overwrite)
    try:
        for track, images in _thumbnails(film.tracks, source).items():
            save_thumbnails(folder, track, images)
        write_review(folder, film)
    except BaseException:
        if not overwrite:
            remove_folder(folder)
        raise


def _thumbnails(tracks: Any, source: VideoSource, rows: int = 3) -> dict[int, list[NDArray[np.uint8]]]:
    """Up to three faces of each track, cut with a margin, from a second reading of the film."""
    wanted: dict[int, list[Track]] = {}
    for track in tracks:
        seen = np.flatnonzero(track.origin == SEEN)
        for row in seen[np.unique(np.linspace(0, len(seen) - 1, rows).round().astype(int))] if len(seen) else ():
            wanted.setdefault(track.first + int(row), []).append(track)
    images: dict[int, list[NDArray[np.uint8]]] = {}
    for frame in source.frames(wanted=wanted.__contains__) if wanted else ():
        for track in wanted[frame.index]:
            images.setdefault(track.id, []).append(_cut(frame.image, track.boxes[frame.index - track.first]))
    return images


def _cut(image: NDArray[np.uint8], box: NDArray[np.float32]) -> NDArray[np.uint8]:
    height, width = image.shape[:2]
    margin = 0.25 * (box[2:] - box[:2])
    x0, y0 = (int(v) for v in np.clip(np.floor(box[:2] - margin), 0, (width - 1, height - 1)))
    x1, y1 = (int(v) for v in np.clip(np.ceil(box[2:] + margin), (x0 + 1, y0 + 1), (width, height)))
    return image[y0:y1, x0:x1].copy()


def _rendered(
    tools: VideoTools, film: Project, source: VideoSource, output: Path, settings: VideoSettings,
    encode: EncodeOptions, state: State, *, overwrite: bool, project: Path | None,
    progress: Progress | None, is_cancelled: IsCancelled | None, edits: tuple[str, ...] = (),
) -> VideoResult:  # fmt: skip
    plan, total = Plan(film, settings), len(film.pts)
    renderer = Renderer(tools, settings, plan.reach)
    state.load_casts(renderer)
    # The film takes its name when it has been looked through: what bears it was not interrupted.
    made = state.folder / f"ficgan-result{output.suffix}"
    rate = max(1, round((total - 1) / max(film.times[-1], 1e-6))) if total > 1 else 1
    every = 1 if settings.verify == "full" else rate
    check, repaired, recasts = None, plan.cover(state.findings, every), state.recasts
    while True:
        with state.timed("rendering"):
            tick = _Ticker(source.name, "rendering", total, progress, is_cancelled)
            writer = SegmentWriter(state.folder, source.info, encode, output=output, seconds=settings.segment)
            _drawn(plan, renderer, source, writer, settings, state, tick)
            assembled = assemble(writer.segments, source, made, encode, overwrite=True)
        notes, damage = [*source.notes, *writer.notes, *assembled.notes], source.damage
        if settings.verify == "off" or tools.recognizer is None:
            break
        with state.timed("checking"):
            check = _looked_again(tools, film, plan, source, made, settings, every, progress, is_cancelled)
        # Who is still recognised here or there gets another face; where that does not help either, the fallback covers
        # these places, once. What was missed is for a person to see to.
        if recasts < RECASTS and not repaired and renderer.recast(plan.recognised(check.findings)):
            recasts += 1
            state.note(recasts=recasts)
        elif rows := 0 if repaired else plan.cover(check.findings, every):
            repaired = rows
            state.note(findings=[asdict(finding) for finding in check.findings])
        else:
            break
        for segment in writer.segments:
            segment.path.unlink()
        renderer.counts.clear()
        renderer.unread = 0
        state.save_casts(renderer, Counter(), 0)
    for reason, rows in plan.fallbacks.items():
        if reason in _FALLBACKS:
            why = _FALLBACKS[reason].format(small=settings.small)
            notes.append(f"{rows} sightings of faces got the fallback, {settings.fallback}: {why}.")
    if renderer.unread:
        why = "the model could not read them, or the head was turned too far"
        notes.append(f"{renderer.unread} sightings of faces got the fallback, {settings.fallback}: {why}.")
    if repaired:
        notes.append(f"{repaired} generated faces were covered where the second look still recognised somebody.")
    if assembled.frames != total:
        notes.append(f"The film gave {assembled.frames} frames when rendered and {total} when analysed.")
    if project is not None:
        with open_video(made) as result:
            for track, images in _thumbnails(film.tracks, result).items():
                save_thumbnails(project, track, images, after=True)
        write_review(project, film)
    with partial_file(output, overwrite=overwrite) as temporary:
        os.replace(made, temporary)
    return VideoResult(
        output,
        frames=assembled.frames,
        seconds=assembled.duration,
        tracks=len(film.tracks),
        people=len(set(plan.person.values())),
        faces=renderer.counts,
        fallbacks=plan.fallbacks,
        masked_people=sum(cast.styles is None for cast in renderer.casts.values()),
        origins=plan.origins,
        exemptions=film.decider().exemptions(film.tracks),
        edits=edits,
        check=check,
        notes=tuple(dict.fromkeys(notes)),
        damage=damage,
        settings=settings.told(),
        account=_account(tools, renderer, settings, film.decisions.modes),
        has_audio=bool(assembled.audio_streams),
        timing=state.timing,
    )


def _drawn(
    plan: Plan, renderer: Renderer, source: VideoSource, writer: SegmentWriter, settings: VideoSettings, state: State,
    tick: _Ticker,
) -> None:  # fmt: skip
    """Render what is in no finished segment yet."""
    jobs: deque[FrameJob] = deque()
    counts = Counter(renderer.counts)
    finished, begin, chunk = len(writer.segments), writer.next_frame, settings.chunk
    ahead = 2 * plan.reach

    def flush(number: int) -> None:
        nonlocal finished
        before = [jobs.popleft() for _ in range(len(jobs)) if jobs[0].frame.index < begin]
        now = [jobs.popleft() for _ in range(min(number, len(jobs)))]
        if not now:
            return
        for job, image, tally in zip(now, renderer(now, [*before, *jobs]), renderer.tally, strict=True):
            writer.write(job.frame, image)
            tick(job.frame.index)
            if len(writer.segments) > finished:  # this frame began a new one
                finished = len(writer.segments)
                state.save_casts(renderer, counts, writer.next_frame)
            counts.update(tally)

    with writer:
        # A few frames before the first are read again, so that an interrupted film becomes the same one.
        for frame in source.frames(first=max(0, begin - ahead)):
            jobs.append(plan.job(frame))
            if frame.index >= begin + chunk + ahead - 1 and (frame.index + 1 - begin - ahead) % chunk == 0:
                flush(chunk)
        while jobs:
            flush(chunk)
    state.save_casts(renderer, counts, writer.next_frame)


def _looked_again(
    tools: VideoTools, film: Project, plan: Plan, source: VideoSource, output: Path, settings: VideoSettings,
    every: int, progress: Progress | None, is_cancelled: IsCancelled | None,
) -> CheckReport:  # fmt: skip
    assert tools.recognizer is not None
    # Between two looks of the first detector, where it was blind.
    offset = min(settings.stride // 2, every - 1)
    tick = _Ticker(source.name, "checking", len(film.pts), progress, is_cancelled)

    def wanted(frame: int) -> bool:
        return frame % every == offset

    def pairs() -> Iterator[tuple[Frame, Frame]]:
        with open_video(output) as result:
            for pair in zip(source.frames(wanted=wanted), result.frames(wanted=wanted), strict=False):
                yield pair
                tick(pair[0].index)

    detector = independent_detector(tools.detector.name, settings.detect_size)
    return check_frames(pairs(), plan.kept_at, detector, tools.recognizer)


def _account(tools: VideoTools, renderer: Renderer, settings: VideoSettings, modes: Iterable[str]) -> dict[str, Any]:
    account: dict[str, Any] = {
        "mode": shown(settings.mode),
        **tools.methods.accounts(modes),
        "detector": tools.detector.name,
        "gate": None if tools.recognizer is None or not tools.policy.verify else Path(tools.recognizer.name).name,
        "linkable": {
            "none": "nothing links the tracks of one person",
            "file": "one person has one new face throughout this film",
            "job": "one person has one new face in all films of this job",
        }[settings.link],
    }
    if tools.face_model is not None and renderer.casts:
        psi = [cast.draw["psi"] for cast in renderer.casts.values() if "psi" in cast.draw]
        account |= tools.face_model.account(layer=tools.layer, psi=psi)
        account["draws"] = [
            {"person": key.rpartition("/")[2], **cast.draw, "distance": cast.distance}
            for key, cast in sorted(renderer.casts.items())
        ]
    return account


@dataclass
class Analysis:
    """What the first pass found."""

    pts: NDArray[np.int64]
    tracks: list[Track]
    cuts: tuple[int, ...]
    likeness: dict[str, dict[int, tuple[float, float]]] = field(default_factory=dict)
    """Name of a reference photo → person → mean and smallest distance of that person's readings from it."""
    searched: int = 0
    """Frames the detector looked at."""


def analyse(
    source: VideoSource,
    detector: FaceDetector,
    recognizer: Recognizer | None,
    settings: VideoSettings,
    *,
    people: People | None = None,
    photos: Mapping[str, NDArray[np.uint8]] | None = None,
    log: DetectionLog | None = None,
    step: Callable[[int], None] | None = None,
) -> Analysis:
    """Follow every face of a film.

    Args:
        source: the film, read once from its beginning.
        detector: finds faces.
        recognizer: tells people apart; None: every track is a person of its own.
        settings: stride, pads, linking.
        people: those known from other films of the job.
        photos: reference photos of people to recognise, by name.
        log: of detections.
        step: called with the number of each frame read; may raise to stop.

    Raises:
        InputError: the film has no frame.
        UsageError: a reference photo without a face, or nobody to recognise it.
    """
    search = DetectAt(detector, (settings.detect_size,) * 2, enlarge=False)
    known = {name: look_up(photo, name, search, recognizer) for name, photo in (photos or {}).items()}
    reader = recognizer if known or settings.link != "none" else None
    rate = float(source.info.rate) if source.info.rate else 25.0
    follow = Associator(rate, AssociationConfig(patience=settings.patience))
    readings = Readings(reader, settings.embeddings)
    pts: list[int] = []
    times: list[float] = []
    cuts: list[int] = []
    done: list[Tracklet] = []
    searched = 0

    def find(frame: Frame) -> list[Face]:
        return search.detect(frame.image) if log is None else log.faces(frame, search)

    for frame, faces, cut in look(source.frames(), find, settings.stride):
        pts.append(frame.pts)
        times.append(frame.time)
        if cut:
            cuts.append(frame.index)
        searched += faces is not None
        found = follow.step(frame.index, faces, cut, frame.time)
        done += found.ended
        if faces:
            readings(frame.image, faces, found.ids)
        if step is not None:
            step(frame.index)
    if not pts:
        raise InputError(f"{source.name}: holds no frame that can be decoded")
    done += follow.finish()
    readings.hand_over(done)
    if people is None:
        people = People(link=settings.link) if recognizer is None else People.of(recognizer, settings.link)
    done = link_tracklets(done, people, times)
    likeness = {name: likeness(reference, done, recognizer) for name, reference in known.items()}
    tracks = fill_tracks(done, cuts, times, settings.pad)
    return Analysis(np.array(pts, np.int64), tracks, tuple(cuts), likeness, searched)
