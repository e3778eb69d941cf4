"""A film from file to file: found, decided, rendered, checked. An interrupted film resumes where it stopped."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan import __version__
from ficgan.anonymizers.modes import shown
from ficgan.errors import InputError, Progress, UsageError, unheard
from ficgan.face_model import read_kinds
from ficgan.faces import Face, FaceDetector, Recognizer, matching, public_name
from ficgan.faces.mesh import read_landmarks
from ficgan.files import file_digest, partial_file
from ficgan.folders import remove_folder, working
from ficgan.identity.kind import match_share
from ficgan.video import EncodeOptions, FilmTask, PathLike, Rules, VideoSettings, VideoTools
from ficgan.video.decided import CheckReport, FilmFinding, FilmPlan, FoundFaces, cover_findings, decide
from ficgan.video.decisions import edits_of
from ficgan.video.found import find_faces, independent_detector
from ficgan.video.live import record_live
from ficgan.video.people import People
from ficgan.video.project import PROJECT_FILE, Project, fingerprint, save_thumbnails
from ficgan.video.read import open_video
from ficgan.video.rendered import JobState, Renderer, VideoResult, choose_faces, render_segments
from ficgan.video.source import Frame
from ficgan.video.tracks import TrackSet
from ficgan.video.treatment import treated_people
from ficgan.video.write import Assembled, check_output

# File of the detections in a work folder.
_DETECTIONS = "ficgan-detections.jsonl"
# Raised where analysis, drawing or the state of a job changes: an interrupted film is not mixed of two versions.
JOB_VERSION = 4
# Most dropped finds whose frames a note names.
NAMED = 8


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
    overwrite: bool = False,
    people: People | None = None,
    progress: Progress | None = None,
) -> VideoResult:
    """Redact a film.

    Args:
        path: film or animation; a camera or address is recorded, see `record_live`.
        rules: who stays as they are.
        start, end: seconds; only this span is written.
        people: those known from other films of the job; new ones are added.
        progress: called with the frames done; its stages are analysing, choosing faces, rendering and checking.
    """
    encode, rules = encode or EncodeOptions(), rules or Rules()
    tools.prepare({settings.mode})
    with ExitStack() as stack:
        source = stack.enter_context(open_video(path, start=start, end=end))
        task = FilmTask(tools, path, source, settings, progress or unheard, Path(output), encode, overwrite)
        check_output(source, output, encode, overwrite=overwrite)
        if source.live:
            if rules:
                raise UsageError(f"{source.name}: exemptions need a film that can be read twice; record it first")
            return record_live(task)
        work = stack.enter_context(working(task.output))
        state, before = JobState.of(work, tools, _identity_of(task, rules)), _state_of(path)
        if not state.analysed:
            find_faces(task, rules, people, work / _DETECTIONS).save(work, overwrite=True)
            state.note(analysed=True)
        result, made = _redacted(task, Project.load(work), state)
        _publish(made, task, before)
        return result


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
) -> Project:
    """Find the faces of a film and write a project to review, in a private folder; see `process_film`."""
    folder = Path(folder)
    if not overwrite and os.path.lexists(folder / PROJECT_FILE):
        raise InputError(f"{folder}: holds a project already; use --overwrite, or choose another folder")
    with open_video(path, start=start, end=end) as source:
        if source.live:
            raise UsageError(f"{source.name}: a camera or stream cannot be reviewed; record it first")
        film = find_faces(FilmTask(tools, path, source, settings, progress or unheard), rules or Rules(), people)
        film.save(folder, overwrite=overwrite)
        try:
            film = Project.load(folder)
            save_thumbnails(folder, film.tracks, source)
        except BaseException:
            if not overwrite:
                remove_folder(folder)
            raise
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
    overwrite: bool = False,
    progress: Progress | None = None,
) -> VideoResult:
    """Apply a reviewed project exactly as it stands; see `process_film` for the other arguments.

    Args:
        settings: numbers; the mode is the project's.
        decisions: file exported by `ficgan ui`; None: those in the project.
    """
    encode, film = encode or EncodeOptions(), Project.load(folder)
    film.check_source(path)
    if decisions is not None:
        film = film.apply_decisions(decisions)
        film.save_document(folder)
    settings = replace(settings, mode=film.decisions.default)
    tools.prepare(film.decisions.modes)
    with ExitStack() as stack:
        source = stack.enter_context(open_video(path, **film.span))
        if (film.source.width, film.source.height) != (source.info.width, source.info.height):
            raise InputError(f"{source.name}: its pictures have another size than when it was analysed; do that again")
        check_output(source, output, encode, overwrite=overwrite)
        task = FilmTask(tools, path, source, settings, progress or unheard, Path(output), encode, overwrite)
        work = stack.enter_context(working(task.output))
        document = Path(folder) / PROJECT_FILE if Path(folder).is_dir() else Path(folder)
        before, identity = _state_of(path), _identity_of(task, Rules(), document.read_bytes())
        result, made = _redacted(task, film, JobState.of(work, tools, identity))
        with open_video(made) as rendered:
            save_thumbnails(document.parent, TrackSet(film.tracks), rendered, after=True)
        result.edits = edits_of(film.decisions, film.regions, film.tracks)
        if decisions is not None or result.edits:  # who has decided on the film has looked at it
            result.review = ()
        _publish(made, task, before)
        return result


def _identity_of(task: FilmTask, rules: Rules, document: bytes = b"") -> str:
    """Hash of everything that shapes the result but a random seed: only the same job resumes an interrupted one."""
    tools, model = task.tools, task.tools.face_model
    facts = {
        "ficgan": [__version__, JOB_VERSION],
        "film": _state_of(task.path),
        "seed": model.seed if model is not None and model.seeded else None,
        "methods": tools.methods.identity(),
        "settings": asdict(task.settings),
        "encode": asdict(task.encode),
        "span": [task.source.start, task.source.end],
        "rules": [dict(rules.keep), dict(rules.only), rules.boxes, rules.spans],
        "detector": tools.detector.name,
        "objects": [[one.name, one.cover, file_digest(one.file)] for one in tools.objects],
        "gate": tools.gate.name if tools.gate else None,
        "policy": asdict(tools.policy),
        "layer": tools.layer,
        "psi": tools.psi,
        "model": model and model.identity(),
    }

    def plain(value: Any) -> Any:
        is_photo = isinstance(value, np.ndarray)
        return [value.shape, hashlib.sha256(value.tobytes()).hexdigest()] if is_photo else str(value)

    text = json.dumps(facts, sort_keys=True, default=plain).encode()
    return hashlib.sha256(text + b"\0" + document).hexdigest()


def _redacted(task: FilmTask, film: Project, state: JobState) -> tuple[VideoResult, Path]:
    """The account of a film that was found, and its file, which has no name of its own yet."""
    settings = task.settings
    plan = decide(film, settings)
    plan, repaired = cover_findings(plan, state.findings, settings.fallback)
    renderer = Renderer(task.tools, settings, plan.reach, plan.drawings)
    state.load(renderer)
    choose_faces(task, plan, renderer, state)
    with TemporaryFile(dir=state.folder) as found:  # has no name
        again = not state.chosen and settings.link != "job"
        plan = treated_people(task, replace(plan, found=FoundFaces(found)), renderer.identities, again=again)
        if again:
            state.save(renderer, 0, chosen=True)
        while True:
            file = render_segments(task, plan, renderer, state)
            report = _check_film(task, plan, file.path, generated=renderer.counts["generated"] > 0)
            if report is None or repaired:
                break
            # Faces that were missed altogether are left to a person to review.
            plan, repaired = cover_findings(plan, report.findings, settings.fallback)
            if not repaired:
                break
            renderer.restart()
            state.save(renderer, 0, findings=report.findings)
            state.load(renderer)  # removes the segments
    return _account_of(task.output, plan, renderer, file, report), file.path


def _publish(made: Path, task: FilmTask, before: list[Any]) -> None:
    """Give a checked file its name, if the source is still the one of before."""
    if _state_of(task.path) != before:
        raise InputError(f"{task.source.name}: the film has changed while it was processed; process it again")
    with partial_file(task.output, overwrite=task.overwrite) as temporary:
        os.replace(made, temporary)


def _state_of(path: PathLike) -> list[Any]:
    """What tells a film from another one, and from itself after a change."""
    return [fingerprint(path), Path(path).stat().st_mtime_ns] if Path(path).is_file() else [os.fspath(path)]


# -- the account -----------------------------------------------------------------------------------------------------


def _account_of(
    output: Path, plan: FilmPlan, renderer: Renderer, file: Assembled, report: CheckReport | None
) -> VideoResult:
    """The account of a film that was drawn and checked."""
    film, settings, tools, people = plan.film, renderer.settings, renderer.tools, renderer.identities.people
    account: dict[str, Any] = {
        "mode": shown(settings.mode),
        **tools.methods.accounts(film.decisions.modes),
        "detector": tools.detector.name,
        "gate": public_name(tools.gate) if tools.gate is not None and tools.verifies else None,
    }
    if tools.face_model is not None and people:
        psi = [person.draw["psi"] for person in people.values() if "psi" in person.draw]
        account |= tools.face_model.account(layer=tools.layer, psi=psi)
        account["draws"] = [{"person": key.rpartition("/")[2], **one.account()} for key, one in sorted(people.items())]
    faces, causes = [track for track in plan.tracks if not track.kind], Counter(plan.fallbacks) + renderer.causes
    dropped = film.settings.get("dropped", ())
    notes, total = list(file.notes), len(film.pts)
    if rows := causes.total() - causes["pad"]:
        notes.append(f"{rows} sightings of faces got the fallback, {settings.fallback}: see `fallbacks`.")
    if dropped:
        frames = ", ".join(f"{find['first']}–{find['last']}" for find in dropped[:NAMED])
        more = f" and {len(dropped) - NAMED} more" if len(dropped) > NAMED else ""
        notes.append(f"{len(dropped)} finds that nothing confirmed were left as they are: frames {frames}{more}.")
    if report is not None and report.unchecked:
        notes.append(f"The result was not checked: {report.unchecked}.")
    if file.frames != total:
        notes.append(f"The film gave {file.frames} frames when rendered and {total} when analysed.")
    return VideoResult(
        output,
        frames=file.frames,
        seconds=file.duration,
        tracks=len(faces),
        people=len({plan.people[track.id] for track in faces}),
        faces=renderer.counts,
        fallbacks=causes,
        masked_people=sum(person.styles is None for person in people.values()),
        exemptions=film.decider().exemptions(faces),
        check=report,
        review=film.settings.get("review", ()),
        dropped=dropped,
        objects=plan.objects(),
        notes=tuple(dict.fromkeys(notes)),
        damage=file.damage,
        settings=settings.to_dict(),
        account=account,
        has_audio=bool(file.audio_streams),
        synthetic=file.synthetic,
    )


# -- the check ---------------------------------------------------------------------------------------------------------


def _check_film(task: FilmTask, plan: FilmPlan, made: Path, *, generated: bool) -> CheckReport | None:
    """Compare source and result; around new faces that are still recognised in all frames. None: no check is wanted."""
    settings, gate, source, film = task.settings, task.tools.gate, task.source, plan.film
    if settings.verify == "off" or gate is None:
        return None
    every = 1 if settings.verify == "full" else min(max(1, round(film.rate)), max(1, len(film.pts) // 2))
    # Between two looks of the first detector, where it was blind.
    offset = min(settings.at(source.info.rate).stride // 2, every - 1)
    step = task.step("checking", len(film.pts))
    detector = independent_detector(task.tools.detector.name, settings.detect_size)
    expected, model = any(not track.kind for track in film.tracks), task.tools.face_model
    keeps_kind = generated and model is not None and model.keeps_kind

    def compared(wanted: Callable[[int], bool]) -> CheckReport:
        with open_video(made) as result:
            frames = zip(source.frames(wanted=wanted), result.frames(wanted=wanted), strict=False)
            pairs = (pair for pair in frames if step(pair[0].index) is None)
            return check_frames(pairs, plan.kept_at, detector, gate, expected=expected, keeps_kind=keeps_kind)

    report = compared(lambda frame: frame % every == offset)
    found = {finding.frame for finding in report.findings if any(plan.generated([finding]))}
    near = {frame for seen in found for frame in range(seen - every + 1, seen + every)} - found
    if near and every > 1:
        more = compared(near.__contains__)
        for name in ("frames", "faces", "exempt", "findings"):
            setattr(report, name, getattr(report, name) + getattr(more, name))
        report.findings.sort(key=lambda finding: finding.frame)
    if report.frames < 2:
        report.unchecked = "fewer than two of its frames were looked at"
    elif not report.faces and generated:
        report.unchecked = f"{report.detector} found no face in the result, though there are generated ones"
    return report


def check_frames(
    pairs: Iterable[tuple[Frame, Frame]],
    kept_at: Callable[[int], NDArray[np.floating]],
    detector: FaceDetector,
    recognizer: Recognizer,
    *,
    expected: bool = True,
    keeps_kind: bool = False,
) -> CheckReport:
    """Look for faces of the source that the recogniser still knows at the same place of the result.

    Args:
        pairs: the same frame of source and result.
        kept_at: boxes [n,4] of the faces that rules keep in a frame.
        detector: should not be the one that found the faces.
        expected: whether the film has faces. A detector that then finds none, even in the source, proves nothing.
        keeps_kind: whether new faces keep their source's kind, so that `match_share` counts.
    """
    report, sighted = CheckReport(detector.name, public_name(recognizer)), not expected
    for source, result in pairs:
        report.frames += 1
        faces = detector.detect(result.image)
        sighted = sighted or bool(faces) or bool(detector.detect(source.image))
        kept = kept_at(source.index)
        seen = [face for face in faces if not _is_exempt(face, kept)]
        report.faces, report.exempt = report.faces + len(faces), report.exempt + len(faces) - len(seen)
        if not seen:
            continue
        marks = read_landmarks(result.image, seen)
        before, after = recognizer.embed(source.image, marks), recognizer.embed(result.image, marks)
        for face, at, a, b in zip(seen, marks, before, after, strict=True):
            if not matching(recognizer, a, b):
                continue
            share = match_share(read_kinds([source.image], [at])[0] if keeps_kind else None)
            if names := matching(recognizer, a, b, share):
                x0, y0, x1, y1 = face.box.tolist()
                distance = float(recognizer.distance(a, b)) / share
                report.findings.append(FilmFinding(source.index, source.time, (x0, y0, x1, y1), distance, tuple(names)))
    if not sighted:
        report.unchecked = f"{detector.name} found no face, not even in the source"
    return report


def _is_exempt(face: Face, kept: NDArray[np.floating]) -> bool:
    """Whether a rule keeps a face: its centre lies in such a box, and the sizes agree within a factor of 2."""
    centre, size = (face.box[:2] + face.box[2:]) / 2, float((face.box[2:] - face.box[:2]).max())
    sizes = (kept[:, 2:] - kept[:, :2]).max(1).clip(1e-6)
    inside = (kept[:, :2] <= centre).all(1) & (centre <= kept[:, 2:]).all(1)
    return bool((inside & (sizes / 2 <= size) & (size <= 2 * sizes)).any())
