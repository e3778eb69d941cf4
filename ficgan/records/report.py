"""One page for a data protection officer, from side-cars alone: to read, to print, to sign."""

from __future__ import annotations

import base64
import hashlib
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from html import escape
from importlib.resources import files
from itertools import groupby
from typing import Any

from ficgan.errors import FicganError
from ficgan.images import UNREAD_SUFFIXES
from ficgan.records.risks import (
    CLOSE,
    GRAVE,
    RISKS,
    AtRisk,
    at_risk,
    closeness,
    count_of,
    done_to,
    edits_in,
    left_in,
    many,
    verdict,
)
from ficgan.records.sidecars import Folder, Record

__all__ = ["page"]

# Pictures of faces that may not be published, and of each other kind: the page should stay one that is read.
MOST_PICTURES, MOST_OF_A_KIND = 200, 12
# Side of a thumbnail, px.
SIDE = 96


# -- pictures of the result ------------------------------------------------------------------------------------------


def thumbnail(face: AtRisk, image: Any) -> str:
    """The place of a face in the result, as a data address; "" where the box lies outside the picture."""
    from PIL import Image

    height, width = image.shape[:2]
    x0, y0, x1, y1 = face.box
    margin = 0.35 * max(x1 - x0, y1 - y0)
    left, top = max(0, int(x0 - margin)), max(0, int(y0 - margin))
    right, bottom = min(width, int(x1 + margin) + 1), min(height, int(y1 + margin) + 1)
    if right - left < 2 or bottom - top < 2:
        return ""
    crop = Image.fromarray(image[top:bottom, left:right])
    crop.thumbnail((2 * SIDE, 2 * SIDE))
    file = io.BytesIO()
    crop.save(file, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def _pictures(faces: list[AtRisk]) -> list[str]:
    """A thumbnail of each; "" where the result cannot vouch for it. A file is read once for all its faces."""
    made = []
    for _, group in groupby(faces, lambda face: (face.record.file, face.time)):
        same = list(group)
        image = _image(same[0])
        made += ["" if image is None else thumbnail(face, image) for face in same]
    return made


def _image(face: AtRisk) -> Any:
    if face.record.problem:
        return None
    from ficgan.images.read import read_image
    from ficgan.video.read import open_video

    try:
        if face.time is None:
            return read_image(face.record.file).rgb
        with open_video(face.record.file, start=max(0.0, face.time - 1e-3)) as film:
            return next(iter(film.frames())).image
    except (FicganError, OSError, StopIteration):
        return None


# -- the page --------------------------------------------------------------------------------------------------------

STYLE = files("ficgan.records").joinpath("report.css").read_text("utf-8")


def page(folder: Folder, *, title: str, made: datetime, version: str) -> str:
    """The report: HTML that loads nothing and runs nothing.

    Args:
        folder: side-cars as they were read.
        title: heading, for example the name of the set.
        made: when the report is made.
        version: of ficgan that makes the report.
    """
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    body = "".join(
        (
            f"<h1>{_text(title)}</h1>",
            f"<p>De-identification of faces: what was done, and what a person must still look at. Made on "
            f"{made:%Y-%m-%d %H:%M} by ficgan {_text(version)} from the records beside the results.</p>",
            _counts(folder),
            _method(folder),
            _files(folder),
            _limits(folder),
            _risks(folder),
            _signature(folder),
        )
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        '<meta name="viewport" content="width=device-width"><meta name="referrer" content="no-referrer">'
        f"<title>{_text(title)}</title><style>{STYLE}</style></head><body>{body}</body></html>\n"
    )


def _text(value: object) -> str:
    """Any text as text of the page; control characters and halves of surrogates become visible."""
    shown = str(value).encode("utf-8", "backslashreplace").decode()
    return escape("".join(c if c.isprintable() else "�" for c in shown))


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>"


# What was done to a face, in words.
_DONE = {
    "generated": "replaced by a new face",
    "retried": "replaced, after at least one new face was still recognised",
    "masked": "covered, because no new face was possible or good enough",
    "plain": "covered in one colour",
    "black": "covered in black",
    "solid": "covered in black",
    "region": "covered where a person drew a box",
    "blurred": "blurred",
    "blur": "blurred",
    "mosaic": "pixelated",
    "kept": "left as found",
}


def _counts(folder: Folder) -> str:
    photos = [record for record in folder.records if not record.is_film]
    films = [record for record in folder.records if record.is_film]
    tables = []
    if photos:
        possible = sum(face.why == "possible" for face in at_risk(photos))
        rows = [("Photos", len(photos)), ("– without any face found", sum(not record.faces for record in photos))]
        rows += _by_action("Faces in photos", photos)
        tables.append([*rows, ("Places that may be faces, left as found", possible)])
    if films:
        counted = {
            "frames": "frames",
            "people": "people followed",
            "masked_people": "people covered, because no new face hid them",
        }
        rows = [("Films", len(films))]
        rows += [(f"– {name}", sum(count_of(film.data, key) for film in films)) for key, name in counted.items()]
        rows += [("– with sound, which is as it was", sum(film.data.get("audio") == "copied" for film in films))]
        tables.append(rows + _by_action("Sightings of faces in frames of films", films))
    return _section("Counts", f'<div class="tables">{"".join(map(_table, tables))}</div>')


def _by_action(title: str, records: Iterable[Record]) -> list[tuple[str, int]]:
    """How many faces there are, and what was done to how many; those left as found are always stated."""
    done: Counter[str] = Counter({"left as found": 0})
    for record in records:
        for action, number in done_to(record).items():
            done[_DONE.get(action, f"changed by {action}")] += number
    order = list(dict.fromkeys(_DONE.values()))
    names = sorted(done, key=lambda name: (order.index(name) if name in order else -1, name))
    return [(title, done.total()), *((f"– {name}", done[name]) for name in names)]


def _table(rows: Iterable[tuple[str, int]]) -> str:
    cells = "".join(f'<tr><td>{_text(name)}</td><td class="n">{count:,}</td></tr>' for name, count in rows)
    return f"<table>{cells}</table>"


def _method(folder: Folder) -> str:
    """What holds for all files, then every way in which some were treated, in sentences, with the number of files."""
    ways = Counter(tuple(_sentences(record)) for record in folder.records)
    shared = [sentence for sentence in next(iter(ways), ()) if all(sentence in way for way in ways)]
    parts = ["".join(f"<p>{_text(sentence)}</p>" for sentence in shared)]
    for way, count in ways.most_common(12):
        if own := [sentence for sentence in way if sentence not in shared]:
            films = {record.is_film for record in folder.records if tuple(_sentences(record)) == way}
            noun = "file" if len(films) > 1 else "film" if films == {True} else "photo"
            parts.append(f"<p><strong>{many(count, noun)}:</strong> {_text(' '.join(own))}</p>")
    if len(ways) > 12:
        parts.append(f"<p>And {len(ways) - 12} more combinations of settings, in the records.</p>")
    versions = ", ".join(sorted({str(record.data.get("ficgan", "unknown")) for record in folder.records}))
    parts.append(f'<p class="small">Version of ficgan: {_text(versions)}.</p>')
    return _section("Method", "".join(parts))


def _sentences(record: Record) -> Iterator[str]:
    data, options = record.data, record.data.get("options")
    options = options if isinstance(options, Mapping) else {}
    mode = str(data.get("mode", "unknown"))
    name = mode.partition(":")[0]
    if name == "ficgan":
        bank = data.get("bank")
        people = bank.get("people") if isinstance(bank, Mapping) else None
        of = f" of {people:,}" if type(people) is int else ""
        yield (
            f"Faces were replaced by generated ones (method ficgan). The identity of each is the average of k = "
            f"{data.get('k', 'an unknown number of')} people{of} in a bank of codes."
        )
        kept = data.get("keep_kind")
        if isinstance(kept, list) and kept:
            yield (
                f"The new identity is of the source's kind ({', '.join(map(str, kept))}), read from looks and kept "
                "as a group. Which group it was is not recorded."
            )
        if data.get("target") not in (None, "bank") or options.get("exemplar") is True:
            yield "The identity was moved towards a face that the operator gave. That person is not protected by k."
        layers = data.get("layers")
        own = layers.get("source") if isinstance(layers, Mapping) else None
        if isinstance(own, list) and own:
            yield f"Layers {', '.join(map(str, own))} of the code were kept from the source: this is weaker than 0."
        if data.get("attributes"):
            yield f"Only people with these attributes were averaged: {data['attributes']}."
    elif name in ("blur", "mosaic"):
        done = "blurred" if name == "blur" else "pixelated"
        yield f"Faces were {done}. This can be undone in part, and recognised by trained programs."
    elif name in ("plain", "black", "solid"):
        yield "Faces were covered by a patch of one colour. Nothing of the face is left."
    else:
        yield f"Faces were changed by the method {mode}. Its strength is not stated here; it must be measured."
    yield from _looks(record)
    if options.get("seed") is True:
        yield "The operator gave a seed. Whoever knows it can confirm a guess at an original; keep it secret."
    if data.get("metadata") == "kept":
        yield "Camera data, place and time stayed in the photos at the operator's wish."


def _looks(record: Record) -> Iterator[str]:
    """Who searched for faces, and who looked at the result."""
    data, settings = record.data, record.data.get("settings")
    settings = settings if isinstance(settings, Mapping) else {}
    detector, gate = data.get("detector") or settings.get("detector") or "of the time", data.get("gate")
    if not record.is_film:
        yield f"Faces were searched once, by the detector {detector}. No detector looked at the finished photos."
        if gate is None:
            yield "No recogniser compared the results with their sources."
        elif "," in str(gate):
            yield f"Each new face was compared with its source by the recognisers {gate}, and none might match."
        else:
            yield (
                f"Each new face was compared with its source by the recogniser {gate} (threshold "
                f"{data.get('gate_threshold')})."
            )
        return
    check = data.get("check")
    if not (isinstance(check, Mapping) and check.get("checked") is True):
        yield f"Faces were searched by the detector {detector}. Nothing looked through the results a second time."
        return
    again = check.get("detector")
    part = "all frames" if settings.get("verify") == "full" else "about one frame a second"
    if again == detector:
        yield (
            f"The detector {detector} looked twice, at the source and at {part} of the result, as no other one was "
            "there: a face that it cannot see it missed both times."
        )
    else:
        yield f"The detector {detector} searched the source, and another one, {again}, {part} of the result."
    yield f"The recogniser {check.get('recognizer')} compared what the second look found with the source."


# -- files -----------------------------------------------------------------------------------------------------------


def _files(folder: Folder) -> str:
    """Every file and whether anything was left in it, then what has no result or no record."""
    all_left = [(record, left_in(record)) for record in folder.records]
    left = [(record, phrases) for record, phrases in all_left if phrases]
    clean = [record.path for record, phrases in all_left if not phrases]
    rows = "".join(
        f'<tr><td class="f">{_text(record.path)}</td><td class="w">{_text(_found(record))}</td>'
        f'<td class="f">{"<br>".join(map(_text, phrases))}</td></tr>'
        for record, phrases in left
    )
    heading = f"<h3>Something was left, or no face was found ({len(left):,})</h3>"
    head = "<tr><th>File</th><th>Found</th><th>Left as it was</th></tr>"
    parts = [f"{heading}<table>{head}{rows}</table>"] if left else []
    parts += [
        f"<h3>{title} ({len(lines):,})</h3>{_list(lines)}"
        for title, lines in (("Nothing that was found was left", clean), *_lacking(folder))
        if lines
    ]
    if not folder.manifests:
        parts.append(
            '<p class="small">There is no manifest here, so inputs that failed or were skipped cannot be listed. '
            "Compare the number of files with that of the sources.</p>"
        )
    return _section("Files", "".join(parts))


def _found(record: Record) -> str:
    if not record.is_film:
        return many(len(record.faces), "face")
    people = count_of(record.data, "people")
    return "1 person" if people == 1 else f"{people:,} people"


def _lacking(folder: Folder) -> list[tuple[str, list[str]]]:
    """What has no result or record, and what was decided by hand, with headings."""
    unread = [entry for entry in folder.undone if entry[0].lower().endswith(tuple(UNREAD_SUFFIXES))]
    failed = [entry for entry in folder.undone if entry not in unread]

    def of_records(notes: Callable[[Record], Any]) -> list[str]:
        return [f"{record.path}: {note}" for record in folder.records for note in notes(record)]

    def damage(record: Record) -> Any:
        return found if isinstance(found := record.data.get("damage"), list) else ()

    return [
        ("Inputs that failed and have no result", [_undone_line(*entry) for entry in failed]),
        ("Inputs of formats that are not read, without a result", [name for name, *_ in unread]),
        ("Records that cannot be read", [f"{name}: {why}" for name, why in folder.damaged]),
        ("Results that are missing or not as they were made", of_records(lambda one: filter(None, [one.problem]))),
        ("Photos and films without a record; nothing is known of them", folder.unrecorded),
        ("Sources that were damaged or ended early", of_records(damage)),
        ("Decided by hand", of_records(edits_in)),
    ]


def _undone_line(name: str, state: str, why: str) -> str:
    return why if why.startswith(f"{name}: ") else f"{name} ({state}){': ' + why if why else ''}"


def _list(lines: list[str]) -> str:
    kind = ' class="names"' if len(lines) > 8 else ""
    return f"<ul{kind}>{''.join(f'<li>{_text(line)}</li>' for line in lines)}</ul>"


# -- faces, limits, the decision -------------------------------------------------------------------------------------


def _risks(folder: Folder) -> str:
    faces, parts = at_risk(folder.records), []
    for why, sentence in RISKS.items():
        all_of_it = [face for face in faces if face.why == why]
        shown = all_of_it[: MOST_PICTURES if why in GRAVE else MOST_OF_A_KIND]
        if not all_of_it:
            continue
        figures = "".join(_figure(face, picture) for face, picture in zip(shown, _pictures(shown), strict=True))
        more = len(all_of_it) - len(shown)
        rest = f"{more:,} more in the records." if more else ""
        if why == "close":
            apart = closeness(folder.records)
            near = sum(share < CLOSE for share in apart) - len(shown)
            rest = (
                f"Of {many(len(apart), 'new face')}, {near:,} more lie within {100 * (CLOSE - 1):.0f} % of the check's "
                f"threshold, and {len(apart) - near - len(shown):,} farther away."
            )
        parts.append(
            f'<h3>{_text(sentence)} ({len(all_of_it):,})</h3><div class="faces">{figures}</div>'
            f'<p class="small">{rest}</p>'
        )
    pictures = (
        "<p>The pictures are cut from the results, not from the sources. Somebody may still be recognisable in them: "
        "treat this page as personal data.</p>"
    )
    return _section("Faces to look at", pictures + "".join(parts)) if parts else ""


def _figure(face: AtRisk, picture: str) -> str:
    drawn = f'<img src="{picture}" alt="">' if picture else '<span class="none"></span>'
    when = "" if face.time is None else f", {int(face.time // 60)}:{face.time % 60:05.2f}"
    detail = f"<br>{_text(face.detail)}" if face.detail else ""
    return f"<figure>{drawn}<figcaption>{_text(face.record.path)}{when}{detail}</figcaption></figure>"


def _limits(folder: Folder) -> str:
    limits = [
        "A face that the detector does not find stays as it was. Only places of weak finds in photos are recorded.",
        "Hair, body, clothes, tattoos, number plates, texts and places stay as they were. They identify people, too.",
        "Expression, direction of the head, light and the outline of the head come from the source.",
        "The check is one recogniser with one threshold. Another recogniser, or somebody who knows the person, may see "
        "more.",
        "k protects the code of the identity only. There is no proof of anonymity, only measurements.",
    ]
    if any(record.is_film for record in folder.records):
        limits.append("A voice identifies its speaker. Sound was copied unless the counts say otherwise.")
    return _section("Limits", _list(limits))


def _signature(folder: Folder) -> str:
    """The last part: one line that says whether the page can be signed, and the place to sign."""
    found = verdict(folder)
    kind = {"yes": "good", "if": "open", "no": "warn"}[found.fit]
    fields = ("Name and role", "Place and date", "Purpose and legal basis", "Signature")
    return (
        '<section class="decision"><h2>Decision</h2><p class="small">The sha256 of all records and lists above is '
        f"{folder.digest}. <code>ficgan report FOLDER --signed {folder.digest[:16]}</code> says whether the folder is "
        "still what is signed here.</p><p>I have looked at the results named above."
        '<span class="box"></span>They may be published.<span class="box"></span>They may not.</p>'
        f'<div class="sign">{"".join(f"<div>{name}</div>" for name in fields)}</div>'
        f'<p class="{kind}"><strong>{_text(found.line)}</strong></p></section>'
    )
