"""The page on which a person reviews the people of a film and decides what happens to them.

One HTML file that needs no network; pictures lie beside it in `thumbs/`, so a copy of the page alone shows no face. The
decisions are exported as decisions.json, for `Project.apply_decisions`.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers.modes import HIDING, shown
from ficgan.errors import InputError, UsageError
from ficgan.video.decisions import Decider, Decision
from ficgan.video.folders import to_text, write_private
from ficgan.video.project import DECISIONS_SCHEMA, Project
from ficgan.video.read import VideoSource
from ficgan.video.settings import VideoSettings
from ficgan.video.tracks import FILLED, PADDED, SEEN, Track

__all__ = ["SCRIPT", "STYLE", "faces_of_tracks", "remarks", "review_page", "save_thumbnails", "write_review"]

SCRIPT, STYLE = (files("ficgan.video").joinpath(name).read_text("utf-8") for name in ("review.js", "review.css"))
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
    with write_private(path, overwrite=True) as file:
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
    with write_private(path, overwrite=True) as file:
        file.write(review_page(project, pictures).encode(errors="replace"))
    return path


def review_page(project: Project, pictures: Mapping[int, Sequence[tuple[str, str]]]) -> str:
    """The page as text; `pictures` are addresses by track, relative to the page, with what they show."""
    source, decisions = project.source, project.decisions
    times, decider = project.times, project.decider()
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = (
        f"script-src 'sha256-{digest}'; style-src 'unsafe-inline'; connect-src 'none'; object-src 'none'; "
        "frame-src 'none'; base-uri 'none'; form-action 'none'"
    )
    people = project.people
    facts = (
        f"{source.width}×{source.height}, {_count(len(times), 'frame')}, {_clock(_end(times))}; "
        f"{_count(len([p for p in people if p]), 'person', 'people')}, {_count(len(project.tracks), 'track')}, "
        f"{_count(len(project.cuts), 'cut')}"
    )
    rules = {
        name: [rule.model_dump(mode="json", by_alias=True) for rule in getattr(decisions, name)]
        for name in ("spans", "boxes")
    }
    selecting = " checked" if decisions.only is not None else ""
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>Review of {escape(source.name)}</title>\n<style>{STYLE}</style>\n</head>",
            f'<body data-schema="{DECISIONS_SCHEMA}" data-analysis="{escape(project.analysis)}">',
            f"<h1>Review of {escape(source.name)}</h1>\n<p>{escape(facts)}</p>",
            '<p class="warning"><strong>This folder holds source faces.</strong> Do not pass it on; remove it with '
            "<code>ficgan purge</code> when the film is finished. Kept faces identify people, and so do voices.</p>",
            *(f'<p class="note">{escape(note)}</p>' for note in source.notes),
            f'<div class="timeline">{_timeline(project, decider)}</div>',
            "<p><small>Blue: the detector saw the face; light blue: filled between two sightings; grey: padded before "
            "or after; red line: kept as it is; vertical lines: cuts.</small></p>",
            '<div class="controls"><label>Everybody: <select id="film-default" data-kind="film" data-field="default">'
            f"{_options(decisions.default)}</select></label>",
            f'<label><input type="checkbox" id="film-selecting" data-kind="film" data-field="selecting"{selecting}> '
            "hide only the people ticked “hide”, keep everybody else</label></div>",
            *(_person(project, person, tracks, pictures, times) for person, tracks in people.items()),
            *_regions(project),
            "<section><h2>Time spans and boxes</h2><p><small>A span in seconds on everybody, a person or a track: "
            '<code>{"mode": "keep", "from": 12.5, "to": 20, "track": 3, "reason": "…"}</code>. A box in which faces '
            'are kept: <code>{"box": [0, 0, 640, 360], "reason": "…"}</code>. A span on a track is stronger than its '
            "track, that than its person, that than boxes and spans on everybody.</small></p>",
            f'<textarea id="rules" aria-label="Time spans and boxes">\n{escape(to_text(rules))}</textarea></section>',
            '<section><h2>Decisions</h2><p id="problem" role="alert"></p>',
            '<textarea id="result" readonly aria-label="decisions.json">\n</textarea>',
            '<p><button id="download" type="button">Download decisions.json</button> <small>or copy the text above '
            "into a file of this name.</small></p></section>",
            f"<script>{SCRIPT}</script>\n</body>\n</html>\n",
        ]
    )


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


def _person(
    project: Project, person: int, tracks: Sequence[Track], pictures: Mapping[int, Sequence[tuple[str, str]]],
    times: NDArray[np.float64],
) -> str:  # fmt: skip
    first, last = min(track.first for track in tracks), max(track.last for track in tracks)
    title = f"Person {person}" if person else "Nobody known"
    head = (
        f"<h2>{title}</h2><small>{_count(len(tracks), 'track')}, {_clock(times[first])} – {_clock(times[last])}</small>"
    )
    controls = ""
    if person:
        only = project.decisions.only
        ticked = " checked" if only is not None and person in only else ""
        controls = (
            f'<div class="controls">{_controls("people", person, project.decisions.people.get(person), "as everybody")}'
            f'<label><input type="checkbox" id="people-only-{person}" data-kind="people" data-number="{person}" '
            f'data-field="only"{ticked}> hide (for “hide only”)</label></div>'
        )
    cards = "".join(_track(project, track, pictures.get(track.id, ()), times) for track in tracks)
    return f'<section id="person-{person}">{head}{controls}{cards}</section>'


def _track(project: Project, track: Track, pictures: Iterable[tuple[str, str]], times: NDArray[np.float64]) -> str:
    shown = "".join(
        f'<img src="{escape(address)}" loading="lazy" alt="track {track.id}, {escape(word)}" title="{escape(word)}">'
        for address, word in pictures
    )
    counts = [f"{int((track.origin == origin).sum())} {name}" for origin, name in _CLASSES.items()]
    controls = _controls("tracks", track.id, project.decisions.tracks.get(track.id), "as the person")
    notes = "".join(f' <span class="note">{escape(note)}</span>' for note in remarks(track, project.settings))
    return (
        f'<div class="track" id="track-{track.id}">{shown}'
        f"<div>Track {track.id} <small>{_clock(times[track.first])} – {_clock(times[track.last])}, "
        f"frames {track.first}–{track.last}: {', '.join(counts)}</small>{notes}</div>"
        f'<div class="controls">{controls}'
        f'<label>is person <input type="number" min="0" step="1" id="tracks-link-{track.id}" data-kind="tracks" '
        f'data-number="{track.id}" data-field="link" data-initial="{track.person}" value="{track.person}"></label>'
        "</div></div>"
    )


def _controls(kind: str, number: int, decision: Decision | None, inherit: str) -> str:
    common = f'data-kind="{kind}" data-number="{number}"'
    kept = decision is not None and decision.mode == "keep"
    mode = "" if decision is None or kept else decision.mode
    had = ' data-had="1"' if decision is not None else ""
    return (
        f'<label>mode <select id="{kind}-mode-{number}" {common} data-field="mode"{had}>'
        f'<option value="">{inherit}</option>{_options(mode)}</select></label>'
        f'<label><input type="checkbox" id="{kind}-keep-{number}" {common} data-field="keep"'
        f"{' checked' if kept else ''}> keep as it is</label>"
        f'<label>reason <input type="text" id="{kind}-reason-{number}" {common} data-field="reason" '
        f'value="{escape(decision.reason if decision else "")}"></label>'
    )


def _options(chosen: str) -> str:
    modes = HIDING if chosen in ("", *HIDING) else (*HIDING, chosen)
    words = ((escape(mode), " selected" if mode == chosen else "", escape(shown(mode))) for mode in modes)
    return "".join(f'<option value="{mode}"{selected}>{word}</option>' for mode, selected, word in words)


def _regions(project: Project) -> list[str]:
    if not project.regions:
        return []
    lines = (
        f"<li>frames {region.first}–{region.last}: {region.mode} {escape(region.reason)}</li>"
        for region in project.regions
    )
    return [f"<section><h2>Regions of project.json, always covered</h2><ul>{''.join(lines)}</ul></section>"]


def _timeline(project: Project, decider: Decider) -> str:
    times, people = project.times, project.people
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
            when = f"{_clock(times[track.first])} – {_clock(times[track.last])}"
            parts.append(f"<g><title>track {track.id}, {when}</title>{lines}</g>")
    size = f"0 0 {_LEFT + _COLUMNS + 4} {height}"
    return f'<svg viewBox="{size}" role="img" aria-label="Tracks over time">{"".join(parts)}</svg>'


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


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
