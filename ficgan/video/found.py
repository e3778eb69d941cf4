"""The first stage of a film, *found*: every face of it as tracks, and which of them are one person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ficgan.errors import InputError, UsageError
from ficgan.faces import DetectAt, Recognizer
from ficgan.video.association import Associator, chains, half_seen, lost
from ficgan.video.look import DetectionLog, FieldSearch, look
from ficgan.video.people import EmbeddingReader, People, likeness, link_tracklets, look_up
from ficgan.video.project import Project, Source
from ficgan.video.settings import BoxRule, Decision, Decisions, Rules, SpanRule
from ficgan.video.tools import FilmTask
from ficgan.video.tracks import Tracklet, fill_half_seen, fill_tracks

__all__ = ["find_faces"]


@dataclass(eq=False)
class _Watched:
    """What one pass over the film saw: the times of its frames, its cuts, looks, faces and weaker finds."""

    pts: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    looks: list[int] = field(default_factory=list)
    tracklets: list[Tracklet] = field(default_factory=list)
    faint: list[Tracklet] = field(default_factory=list)


def find_faces(task: FilmTask, rules: Rules, people: People | None = None, log: Path | None = None) -> Project:
    """Find every face of a film, and which of them are one person.

    Args:
        people: those known from other films of the job; new ones are added.
        log: file of detections, so that an interrupted analysis resumes.
    """
    source, settings, recognizer = task.source, task.settings, task.tools.recognizer
    pace, size = settings.at(source.info.rate), (source.info.width, source.info.height)
    search = FieldSearch(DetectAt(task.tools.detector, (settings.detect_size,) * 2, enlarge=False))
    photos = {**rules.keep, **rules.only}
    references = {name: look_up(photo, name, search, recognizer) for name, photo in photos.items()}
    reader = EmbeddingReader(recognizer if references or settings.link != "none" else None)
    seen = _watch(task, search, reader, log)
    if people is None:
        people = People(link=settings.link) if recognizer is None else People.of(recognizer, settings.link)
    tracklets, clock = link_tracklets(seen.tracklets, people, seen.times), np.array(seen.times)
    tracks = fill_tracks(tracklets, seen.cuts, clock, pace.pad)
    found = chains(tracklets, seen.faint, seen.looks, clock, pace.patience)
    likely = [chain.tracklet() for chain in half_seen(found, tracklets, seen.cuts, clock)]
    tracks += fill_half_seen(likely, tracks, seen.cuts, clock, pace.pad)
    facts = {
        **asdict(settings),
        "detector": task.tools.detector.name,
        "start": source.start,
        "end": source.end,
        "searched": len(seen.looks),
        "review": [
            {
                "frame": sighting.frame,
                "time": round(seen.times[sighting.frame], 3),
                "reason": reason,
                "box": [round(float(value), 1) for value in sighting.face.box],
            }
            for sighting, reason in lost(found, seen.cuts, seen.looks, clock, pace.pad, size)
        ],
    }
    decisions = _decisions(settings.mode, rules, references, tracklets, recognizer)
    pts, described = np.array(seen.pts, np.int64), Source.of(task.path, source.info)
    return Project(described, pts, tracks, facts, tuple(seen.cuts), decisions)


def _watch(task: FilmTask, search: FieldSearch, reader: EmbeddingReader, path: Path | None) -> _Watched:
    source, pace, seen = task.source, task.settings.at(task.source.info.rate), _Watched()
    follow, doubt = Associator(pace.patience), Associator(pace.patience)
    step = task.step("analysing", source.info.frames)
    with closing(DetectionLog(search, path)) as log:
        for frame, faces, cut in look(source.frames(quick=True), log.detect, pace.stride):
            seen.pts.append(frame.pts)
            seen.times.append(frame.time)
            if cut:
                seen.cuts.append(frame.index)
            if faces is not None:
                seen.looks.append(frame.index)
            followed = follow.step(frame.index, frame.time, faces, cut)
            seen.tracklets += followed.ended
            seen.faint += doubt.step(frame.index, frame.time, log.faint.pop(frame.index, None), cut).ended
            if faces:
                reader(frame.image, faces, followed.ids)
            step(frame.index)
    if not seen.pts:
        raise InputError(f"{source.name}: holds no frame that can be decoded")
    seen.tracklets += follow.finish()
    seen.faint += doubt.finish()
    reader.hand_over(seen.tracklets)
    return seen


def _decisions(
    mode: str, rules: Rules, references: Mapping[str, Any], tracklets: Sequence[Tracklet], recognizer: Recognizer | None
) -> Decisions:
    """Doubt hides: a person is kept if their readings match on average, and hidden if a single one does."""
    limit = recognizer.match_threshold if recognizer is not None else 0.0
    alike = {name: likeness(reading, tracklets, recognizer) for name, reading in references.items()}
    chosen = {person for name in rules.only for person, (_, least) in alike[name].items() if least < limit}
    if rules.only and not chosen:  # hiding nobody is not what was meant
        raise UsageError("nobody in the film matches the photos of --only; give a clearer photo, or leave it out")
    kept = {
        person: Decision(mode="keep", reason=f"matches {Path(name).name}")
        for name in rules.keep
        for person, (mean, _) in alike[name].items()
        if mean < limit and person not in chosen
    }
    return Decisions(
        default=mode,
        only=tuple(sorted(chosen)) or None,
        people=kept,
        boxes=tuple(BoxRule(box=box, reason="given box") for box in rules.boxes),
        spans=tuple(SpanRule(start=start, end=end, mode="keep", reason="given time") for start, end in rules.spans),
    )
