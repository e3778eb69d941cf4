"""The page on which a person reviews the people of a film and decides what happens to them.

One HTML file that needs no network; pictures lie beside it in `thumbs/`, so a copy of the page alone shows no face. The
decisions are exported as decisions.json, for `Project.apply_decisions`.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers.modes import COVERS, shown
from ficgan.errors import InputError, UsageError
from ficgan.files import atomic_write
from ficgan.video.folders import to_text
from ficgan.video.project import DECISIONS_SCHEMA, Project
from ficgan.video.read import VideoSource
from ficgan.video.settings import Decision, VideoSettings
from ficgan.video.tracks import FILLED, PADDED, SEEN, Track

__all__ = ["SCRIPT", "STYLE", "faces_of_tracks", "remarks", "review_page", "save_thumbnails", "write_review"]

_FILES = files("ficgan.video")
SCRIPT, STYLE = (_FILES.joinpath(name).read_text("utf-8") for name in ("review.js", "review.css"))
_PAGE = _FILES.joinpath("review.html").read_text("utf-8")
_PARTS = dict(re.findall(r"^<!-- (\w+) -->\n(.*?)\n(?=<!-- |\Z)", _PAGE, re.M | re.S))
Image = NDArray[np.uint8]
THUMBNAIL_HEIGHT = 96
MOST_THUMBNAILS = 6
LOW_SCORE = 0.1
"""Mean score above the detector's threshold by less than this is worth a look."""
_COLUMNS, _LANE, _LEFT = 920, 12, 64
_NOTHING = 9
_CLASSES = {SEEN: "seen", FILLED: "filled", PADDED: "padded"}


def save_thumbnails(
    folder: str | os.PathLike[str], track: int, images: Sequence[Image], *, after: bool = False
) -> Path:
    """Write a strip of up to six faces of a track, uint8 [h,w,3] RGB, to `thumbs/track-0001.jpg` or `…-after.jpg`."""
    from PIL import Image as Picture

    strips = []
    for image in images[:MOST_THUMBNAILS]:
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
            raise UsageError(f"A thumbnail of track {track} is {image.dtype} {image.shape}: give uint8 [h,w,3].")
        width = max(1, min(4 * THUMBNAIL_HEIGHT, round(image.shape[1] * THUMBNAIL_HEIGHT / image.shape[0])))
        small = Picture.fromarray(np.ascontiguousarray(image)).resize(
            (width, THUMBNAIL_HEIGHT), Picture.Resampling.LANCZOS
        )
        strips.append(np.asarray(small))
    if not strips:
        raise UsageError(f"Track {track} has no thumbnail: give at least one image.")
    buffer = io.BytesIO()
    Picture.fromarray(np.concatenate(strips, axis=1)).save(buffer, "JPEG", quality=85)
    path = _thumbnail(Path(folder), track, after)
    if path.parent.is_symlink():
        raise InputError(f"{path.parent}: is a link, and would lead pictures of faces elsewhere; remove it")
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.parent.chmod(0o700)
    with atomic_write(path, overwrite=True, mode=0o600) as file:
        file.write(buffer.getvalue())
    return path


def write_review(folder: str | os.PathLike[str], project: Project) -> Path:
    """Write review.html (mode 0600) with the thumbnails that are there; after rendering it shows both."""
    folder = Path(folder)
    pictures = {
        track.id: [
            (path.relative_to(folder).as_posix(), word)
            for path, word in (
                (_thumbnail(folder, track.id, False), "before"),
                (_thumbnail(folder, track.id, True), "after"),
            )
            if path.is_file()
        ]
        for track in project.tracks
    }
    path = folder / "review.html"
    with atomic_write(path, overwrite=True, mode=0o600) as file:
        file.write(review_page(project, pictures).encode(errors="replace"))
    return path


class _Html(str):
    """Text that is HTML already."""


def _html(part: str, **values: str | int | list[_Html]) -> _Html:
    """A part of review.html with its gaps filled; what is no HTML is escaped."""

    def text(value: str | int | list[_Html]) -> str:
        if isinstance(value, list):
            return "".join(value)
        return value if isinstance(value, _Html) else escape(str(value))

    return _Html(Template(_PARTS[part]).substitute({name: text(value) for name, value in values.items()}))


def _flag(word: str, on: bool) -> _Html:
    return _Html(f" {word}" if on else "")


def review_page(project: Project, pictures: Mapping[int, Sequence[tuple[str, str]]]) -> str:
    """The page as text; `pictures` are addresses by track, relative to the page, with what they show."""
    source, decisions, times, people = project.source, project.decisions, project.times, project.people
    facts = (
        f"{source.width}×{source.height}, {_count(len(times), 'frame')}, {_clock(_end(times))}; "
        f"{_count(len([p for p in people if p]), 'person', 'people')}, {_count(len(project.tracks), 'track')}, "
        f"{_count(len(project.cuts), 'cut')}"
    )
    rules = {
        name: [rule.model_dump(mode="json", by_alias=True) for rule in getattr(decisions, name)]
        for name in ("spans", "boxes")
    }
    regions = [_html("region", first=r.first, last=r.last, mode=r.mode, reason=r.reason) for r in project.regions]
    return _html(
        "page", digest=base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode(), name=source.name,
        style=_Html(STYLE), script=_Html(SCRIPT), schema=DECISIONS_SCHEMA, analysis=project.analysis, facts=facts,
        notes=[_html("note", text=note) for note in (*source.notes, *_doubts(project))], timeline=_timeline(project),
        options=_options(decisions.default), selecting=_flag("checked", decisions.only is not None),
        people=[_person(project, person, tracks, pictures) for person, tracks in people.items()],
        regions=_html("regions", lines=regions) if regions else "", rules=to_text(rules),
    )  # fmt: skip


def _person(
    project: Project, person: int, tracks: Sequence[Track], pictures: Mapping[int, Sequence[tuple[str, str]]]
) -> _Html:
    decisions = project.decisions
    first, last = min(track.first for track in tracks), max(track.last for track in tracks)
    choice = _Html()
    if person:
        ticked = decisions.only is not None and person in decisions.only
        controls = _controls("people", person, decisions.people.get(person), "as everybody")
        choice = _html("choice", person=person, controls=controls, ticked=_flag("checked", ticked))
    return _html(
        "person", person=person, title=f"Person {person}" if person else "Nobody known", controls=choice,
        facts=f"{_count(len(tracks), 'track')}, {_span(project, first, last)}",
        tracks=[_track(project, track, pictures.get(track.id, ())) for track in tracks],
    )  # fmt: skip


def _track(project: Project, track: Track, pictures: Iterable[tuple[str, str]]) -> _Html:
    counts = [f"{int((track.origin == origin).sum())} {name}" for origin, name in _CLASSES.items()]
    facts = f"{_span(project, track.first, track.last)}, frames {track.first}–{track.last}: {', '.join(counts)}"
    return _html(
        "track", id=track.id, person=track.person, facts=facts,
        images=[_html("image", track=track.id, address=address, word=word) for address, word in pictures],
        remarks=[_html("remark", text=text) for text in remarks(track, project.settings)],
        controls=_controls("tracks", track.id, project.decisions.tracks.get(track.id), "as the person"),
    )  # fmt: skip


def _controls(kind: str, number: int, decision: Decision | None, inherit: str) -> _Html:
    kept = decision is not None and decision.mode == "keep"
    return _html(
        "controls", kind=kind, number=number, inherit=inherit, kept=_flag("checked", kept),
        had=_flag('data-had="1"', decision is not None), reason=decision.reason if decision else "",
        options=_options("" if decision is None or kept else decision.mode),
    )  # fmt: skip


def _options(chosen: str) -> _Html:
    offered = ("ficgan", *COVERS)
    modes = offered if chosen in ("", *offered) else (*offered, chosen)
    return _Html("".join(
        _html("option", mode=mode, selected=_flag("selected", mode == chosen), word=shown(mode)) for mode in modes
    ))  # fmt: skip


def remarks(track: Track, settings: Mapping[str, object]) -> list[str]:
    """What about a track deserves a look; of the settings, `threshold` of the detector and `small` count."""
    threshold, small = settings.get("threshold"), settings.get("small", VideoSettings.small)
    seen = track.origin == SEEN
    found = list(track.notes)
    if seen.sum() <= 1:
        found.append("seen once" if seen.any() else "never seen by the detector")
    elif seen.mean() < 0.1 and len(track) > 30:
        found.append(f"seen in {seen.mean():.0%} of its frames only")
    if isinstance(threshold, int | float) and seen.any() and track.scores[seen].mean() < threshold + LOW_SCORE:
        found.append(f"low score ({track.scores[seen].mean():.2f}): perhaps no face")
    side = float(np.median((track.boxes[:, 2:] - track.boxes[:, :2]).max(axis=1)))
    if isinstance(small, int | float) and side < small:
        found.append(f"small ({side:.0f} px)")
    if track.person == 0:
        found.append("person unknown")
    return found


def _doubts(project: Project) -> Iterator[str]:
    """Places to look at, as the analysis names them."""
    places = project.settings.get("review")
    for place in places if isinstance(places, list) else ():
        time, reason = (place.get("time"), place.get("reason")) if isinstance(place, dict) else (None, None)
        if isinstance(time, int | float) and 0 <= time < 1e7 and isinstance(reason, str):
            yield f"Look whether all faces are covered around {_clock(time)}: {reason}."


def _timeline(project: Project) -> _Html:
    times, people, decider = project.times, project.people, project.decider()
    scale = _COLUMNS / max(_end(times), 1e-9)
    columns: NDArray[np.int64] = np.maximum.accumulate((times * scale).astype(np.int64).clip(0, _COLUMNS - 1))
    widths = np.diff(columns, append=_COLUMNS).clip(1)  # each frame reaches to the next one
    height = _LANE * max(1, len(people)) + 4
    cuts = "".join(f"M{_LEFT + int(columns[cut])} 0v{height}" for cut in project.cuts)
    parts = [f'<path class="cut" style="stroke-width:1" d="{cuts}"/>'] if cuts else []
    for lane, (person, tracks) in enumerate(people.items()):
        middle = _LANE * lane + _LANE // 2 + 2
        parts.append(f'<text x="4" y="{middle + 3}">{f"person {person}" if person else "unknown"}</text>')
        for track in tracks:
            rows = slice(track.first, track.last + 1)
            best = _painted(columns[rows], widths[rows], track.origin)
            kept = _painted(columns[rows], widths[rows], np.where(decider.decide(track) == "keep", 0, _NOTHING))
            bars = [(name, best == origin, middle) for origin, name in _CLASSES.items()]
            lines = "".join(
                f'<path class="{name}" d="{_bars(np.flatnonzero(at), y)}"/>'
                for name, at, y in [*bars, ("kept", kept == 0, middle + 4)]
                if at.any()
            )
            when = _span(project, track.first, track.last)
            parts.append(f"<g><title>track {track.id}, {when}</title>{lines}</g>")
    size = f"0 0 {_LEFT + _COLUMNS + 4} {height}"
    return _Html(f'<svg viewBox="{size}" role="img" aria-label="Tracks over time">{"".join(parts)}</svg>')


def _painted(columns: NDArray[np.int64], widths: NDArray[np.int64], values: NDArray[Any]) -> NDArray[np.int64]:
    """The smallest value in each column [920] of frames that begin at some columns and reach over some more."""
    offsets = np.arange(widths.sum()) - np.repeat(np.cumsum(widths) - widths, widths)
    found = np.full(_COLUMNS, _NOTHING)
    np.minimum.at(found, np.repeat(columns, widths) + offsets, np.repeat(values, widths))
    return found


def _bars(columns: NDArray[np.int64], y: int) -> str:
    breaks = np.flatnonzero(np.diff(columns) > 1)
    firsts, lasts = columns[np.r_[0, breaks + 1]], columns[np.r_[breaks, len(columns) - 1]]
    return "".join(f"M{_LEFT + first} {y}h{last - first + 1}" for first, last in zip(firsts, lasts, strict=True))


def faces_of_tracks(tracks: Iterable[Track], source: VideoSource, rows: int = 3) -> dict[int, list[Image]]:
    """Up to `rows` faces of each track, cut from the film with a margin."""
    wanted: dict[int, list[Track]] = {}
    for track in tracks:
        seen = np.flatnonzero(track.origin == SEEN)
        for row in seen[np.unique(np.linspace(0, len(seen) - 1, rows).round().astype(int))] if len(seen) else ():
            wanted.setdefault(track.first + int(row), []).append(track)
    images: dict[int, list[Image]] = {}
    for frame in source.frames(wanted=wanted.__contains__) if wanted else ():
        for track in wanted[frame.index]:
            images.setdefault(track.id, []).append(_cut(frame.image, track.boxes[frame.index - track.first]))
    return images


def _cut(image: Image, box: NDArray[np.float32]) -> Image:
    height, width = image.shape[:2]
    margin = 0.25 * (box[2:] - box[:2])
    x0, y0 = (int(v) for v in np.clip(np.floor(box[:2] - margin), 0, (width - 1, height - 1)))
    x1, y1 = (int(v) for v in np.clip(np.ceil(box[2:] + margin), (x0 + 1, y0 + 1), (width, height)))
    return image[y0:y1, x0:x1].copy()


def _thumbnail(folder: Path, track: int, after: bool) -> Path:
    return folder / "thumbs" / f"track-{track:04d}{'-after' if after else ''}.jpg"


def _end(times: NDArray[np.float64]) -> float:
    return float(times[-1]) if len(times) else 0.0


def _clock(seconds: float) -> str:
    tenths = round(float(seconds) * 10)
    minutes, rest = divmod(tenths, 600)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest / 10:04.1f}"


def _span(project: Project, first: int, last: int) -> str:
    return f"{_clock(project.times[first])} – {_clock(project.times[last])}"


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
