"""One page for a data protection officer, from side-cars alone: to read, to print, to sign."""

from __future__ import annotations

import base64
import hashlib
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from PIL import Image

from ficgan.errors import FicganError
from ficgan.images import UNREAD_SUFFIXES
from ficgan.records import Folder, Record, risks

# Pictures of faces that may not be published, and of each other kind: the page should stay one that is read.
MOST_PICTURES, MOST_OF_A_KIND = 200, 12
# Side of a thumbnail, px.
SIDE = 96
STYLE, PAGE = (files("ficgan.records").joinpath(f"report.{kind}").read_text("utf-8") for kind in ("css", "html"))


def page(folder: Folder, *, title: str, made: datetime, version: str) -> str:
    """The report, HTML that loads nothing and runs nothing, as it was `made` by a `version` of ficgan."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    found = risks.verdict(folder)
    return Template(PAGE).substitute(
        policy=f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        style=STYLE,
        title=_text(title),
        made=f"{made:%Y-%m-%d %H:%M}",
        version=_text(version),
        counts="".join(_tables(folder)),
        method="".join(_method(folder)),
        files="".join(_files(folder)),
        risks=_risks(folder),
        digest=folder.digest,
        short=folder.digest[:16],
        kind={"yes": "good", "if": "open", "no": "warn"}[found.fit],
        line=_text(found.line),
    )


def _text(value: object) -> str:
    """Any text as text of the page; control characters and halves of surrogates become visible."""
    shown = str(value).encode("utf-8", "backslashreplace").decode()
    return escape("".join(c if c.isprintable() else "�" for c in shown))


# -- counts and method -----------------------------------------------------------------------------------------------


def _tables(folder: Folder) -> Iterator[str]:
    photos = [record for record in folder.records if not record.is_film]
    films = [record for record in folder.records if record.is_film]
    if photos:
        rows = [("Photos", len(photos)), ("– without any face found", sum(not record.faces for record in photos))]
        possible = sum(len(record.data.get("possible_faces", [])) for record in photos)
        rows += [*_by_action("Faces in photos", photos), ("Places that may be faces, left", possible)]
        yield _table(rows, photos)
    if films:
        rows = [("Films", len(films))]
        for key, name in (("frames", "frames"), ("people", "people followed"), ("masked_people", "people covered")):
            rows.append((f"– {name}", sum(film.data.get(key, 0) for film in films)))
        rows.append(("– with sound, which is as it was", sum(film.data.get("audio") == "copied" for film in films)))
        yield _table([*rows, *_by_action("Sightings of faces in frames of films", films)], films)


def _by_action(title: str, records: Iterable[Record]) -> list[tuple[str, int]]:
    """How many faces there are, and what was done to how many; those left as found are always stated."""
    done = Counter({"left as found": 0})
    for record in records:
        for action, number in risks.done_to(record).items():
            done[risks.DONE.get(action, f"changed by {action}")] += number
    return [(title, done.total()), *((f"– {name}", done[name]) for name in sorted(done))]


def _table(rows: Iterable[tuple[str, int]], records: Iterable[Record]) -> str:
    """Counts, then what a detector of the operator's found in the records besides faces."""
    found: Counter[tuple[str, bool]] = Counter()
    for record in records:
        found.update(risks.objects_in(record))
    objects = [(f"{name}, {'left as found' if kept else 'covered'}", found[name, kept]) for name, kept in sorted(found)]
    return "<table>" + "".join(_row("n", name, f"{count:,}") for name, count in (*rows, *objects)) + "</table>"


def _row(kind: str, name: str, value: str) -> str:
    return f'<tr><td class="f">{_text(name)}</td><td class="{kind}">{value}</td></tr>'


def _method(folder: Folder) -> Iterator[str]:
    """Every way in which files were treated, in sentences, with the number of files."""
    ways = Counter(" ".join(_sentences(record)) for record in folder.records)
    for way, count in ways.most_common():
        yield f"<p><strong>{risks.many(count, 'file#')}:</strong> {_text(way)}</p>"
    versions = ", ".join(sorted({str(record.data.get("ficgan")) for record in folder.records}))
    yield f'<p class="small">Version of ficgan: {_text(versions)}.</p>'


_REVERSIBLE = " This can be undone in part, and recognised by trained programs."
_ONE_COLOUR = "Faces were covered by a patch of one colour. Nothing of the face is left."
# What our own modes are, in words.
_COVERED = {
    "blur": f"Faces were blurred.{_REVERSIBLE}",
    "mosaic": f"Faces were pixelated.{_REVERSIBLE}",
    **dict.fromkeys(("plain", "black", "solid"), _ONE_COLOUR),
}


def _sentences(record: Record) -> Iterator[str]:
    data, options = record.data, record.data["options"]
    mode = str(data.get("mode", "unknown"))
    name = mode.partition(":")[0]
    if name == "ficgan":
        yield (
            "Faces were replaced by generated ones (method ficgan). The identity of each is the average of k = "
            f"{data.get('k', 'an unknown number of')} people of a bank of codes."
        )
        if kind := data.get("keep_kind"):
            yield (
                f"The new identity is of the source's kind ({', '.join(map(str, kind))}), read from looks and kept as "
                "a group. Which group it was is not recorded."
            )
        if data.get("target") not in (None, "bank") or options.get("exemplar") is True:
            yield "The identity was moved towards a face that the operator gave. That person is not protected by k."
        if own := (data.get("layers") or {}).get("source"):
            yield f"Layers {', '.join(map(str, own))} of the code were kept from the source: this is weaker than 0."
        if data.get("attributes"):
            yield f"Only people with these attributes were averaged: {data['attributes']}."
    else:
        unknown = f"Faces were changed by the method {mode}. Its strength is not stated here; it must be measured."
        yield _COVERED.get(name, unknown)
    yield _search(record)
    if options.get("cover_also"):
        yield f"Covered was also what these detectors of the operator's found: {options['cover_also']}."
    if options.get("seed") is True:
        yield "The operator gave a seed. Whoever knows it can confirm a guess at an original; keep it secret."
    if data.get("metadata") == "kept":
        yield "Camera data, place and time stayed in the photos at the operator's wish."


def _search(record: Record) -> str:
    """Who searched for faces, and who looked at the result."""
    data, settings, check = record.data, record.data.get("settings", {}), record.check
    search = f"Faces were searched by the detector {data.get('detector') or settings.get('detector')}."
    if record.is_film and check.get("checked") is not True:
        return f"{search} Nothing looked through the results a second time."
    if record.is_film:
        part = "all frames" if settings.get("verify") == "full" else "about one frame a second"
        return (
            f"{search} The detector {check.get('detector')} looked at {part} of the result, and the recogniser "
            f"{check.get('recognizer')} compared what it found with the source."
        )
    gate = "no recogniser compared them with the sources."
    if data.get("gate") is not None:
        gate = f"{data['gate']} compared each new face with its source (threshold {data.get('gate_threshold')})."
    return f"{search} No detector looked at the finished photos, and {gate}"


# -- files -----------------------------------------------------------------------------------------------------------


def _files(folder: Folder) -> Iterator[str]:
    """Every file and whether anything was left in it, then what has no result or no record."""
    left = {record.path: phrases for record in folder.records if (phrases := risks.left_in(record))}
    if left:
        head = "<tr><th>File</th><th>Left as it was</th></tr>"
        rows = "".join(_row("f", path, "<br>".join(map(_text, phrases))) for path, phrases in left.items())
        yield f"<h3>Something was left, or no face was found ({len(left):,})</h3><table>{head}{rows}</table>"
    unread = [entry for entry in folder.undone if entry[0].lower().endswith(tuple(UNREAD_SUFFIXES))]
    failed = [entry for entry in folder.undone if entry not in unread]
    changed = [f"{record.path}: {record.problem}" for record in folder.records if record.problem]
    damage = [f"{record.path}: {note}" for record in folder.records for note in record.data.get("damage", [])]
    edits = [f"{record.path}: {edit}" for record in folder.records for edit in risks.edits_in(record)]
    for title, lines in (
        ("Nothing that was found was left", [record.path for record in folder.records if record.path not in left]),
        ("Inputs that failed and have no result", [_undone(*entry) for entry in failed]),
        ("Inputs of formats that are not read, without a result", [name for name, *_ in unread]),
        ("Records that cannot be read", [f"{name}: {why}" for name, why in folder.damaged]),
        ("Results that are missing or not as they were made", changed),
        ("Photos and films without a record: nothing is known of them", folder.unrecorded),
        ("Sources that were damaged or cut", damage),
        ("Decided by hand", edits),
    ):
        if lines:
            kind, items = ' class="names"' * (len(lines) > 8), "".join(f"<li>{_text(line)}</li>" for line in lines)
            yield f"<h3>{title} ({len(lines):,})</h3><ul{kind}>{items}</ul>"
    if not folder.manifests:
        yield (
            '<p class="small">There is no manifest here, so inputs that failed or were skipped cannot be listed. '
            "Compare the number of files with that of the sources.</p>"
        )


def _undone(name: str, state: str, why: str) -> str:
    return why if why.startswith(f"{name}: ") else f"{name} ({state}){': ' + why if why else ''}"


# -- faces -------------------------------------------------------------------------------------


def _risks(folder: Folder) -> str:
    faces, parts = risks.at_risk(folder.records), []
    read = lru_cache(maxsize=1)(_image)  # a file is read once for all its faces
    for why, sentence in risks.RISKS.items():
        found = [face for face in faces if face.why == why]
        shown = found[: MOST_PICTURES if why in risks.GRAVE else MOST_OF_A_KIND]
        if found:
            figures, more = "".join(_figure(face, read) for face in shown), len(found) - len(shown)
            rest = f'<p class="small">{more:,} more in the records.</p>' if more else ""
            parts.append(f'<h3>{_text(sentence)} ({len(found):,})</h3><div class="faces">{figures}</div>{rest}')
    if not parts:
        return ""
    return (
        "<section><h2>Faces to look at</h2><p>The pictures are cut from the results, not from the sources. Somebody "
        f"may still be recognisable in them: treat this page as personal data.</p>{''.join(parts)}</section>"
    )


def _figure(face: risks.AtRisk, read: Callable[..., Any]) -> str:
    # A record with a problem does not vouch for the picture.
    image = None if face.record.problem else read(face.record.file, face.time)
    picture = "" if image is None else _thumbnail(face, image)
    drawn = f'<img src="{picture}" alt="">' if picture else '<span class="none"></span>'
    when = "" if face.time is None else f", {int(face.time // 60)}:{face.time % 60:05.2f}"
    detail = f"<br>{_text(face.detail)}" if face.detail else ""
    return f"<figure>{drawn}<figcaption>{_text(face.record.path)}{when}{detail}</figcaption></figure>"


def _image(path: Path, time: float | None) -> Any:
    """A photo, or the frame of a film at a second; None where it cannot be read."""
    from ficgan.images.read import read_image
    from ficgan.video.read import open_video

    try:
        if time is None:
            return read_image(path).rgb
        with open_video(path, start=max(0.0, time - 1e-3)) as film:
            return next(iter(film.frames())).image
    except (FicganError, OSError, StopIteration):
        return None


def _thumbnail(face: risks.AtRisk, image: Any) -> str:
    """The place of a face in the result, as a data address; "" where the box lies outside the picture."""
    x0, y0, x1, y1 = face.box
    margin = 0.35 * max(x1 - x0, y1 - y0)
    left, top, right, bottom = (max(0, int(v)) for v in (x0 - margin, y0 - margin, x1 + margin + 1, y1 + margin + 1))
    part = image[top:bottom, left:right]
    if min(part.shape[:2]) < 2:
        return ""
    crop = Image.fromarray(part)
    crop.thumbnail((2 * SIDE, 2 * SIDE))
    file = io.BytesIO()
    crop.save(file, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
