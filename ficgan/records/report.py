"""One page for a data protection officer, from side-cars alone: to read, to print, to sign."""

from __future__ import annotations

import base64
import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Any

from ficgan.errors import FicganError
from ficgan.records.sidecars import Folder, Record, is_box

__all__ = ["GRAVE", "AtRisk", "at_risk", "page"]

CLOSE = 1.15
"""Distances below this multiple of the recogniser's threshold count as close to it."""
MOST_PICTURES, MOST_OF_A_KIND = 200, 12
"""Pictures of faces that may not be published, and of each other kind: the page should stay one that is read."""
MOST_LINES = 200
SIDE = 96
"""Of a thumbnail, px."""
_SINGLE = {"blurred": "blurred", "mosaic": "pixelated"}
RISKS = {
    "matched": "Still recognised by the check. Do not publish.",
    "uncovered": "Not covered. Do not publish.",
    "lost": "Moved fast and was lost from sight. Look whether it is covered in the frames around.",
    "kept": "Left as found, because the operator asked for it.",
    "reversible": "Blurred or pixelated. Programs exist that undo this in part.",
    "close": "Replaced, but the check came near to recognising the source.",
    "doubt": "Perhaps no face, or only a part of one. Look whether another face beside it was missed.",
}
"""Why a face is at risk, the worst first."""
GRAVE = ("matched", "uncovered")


@dataclass(frozen=True)
class AtRisk:
    """One face that a person should look at."""

    record: Record
    why: str
    """A key of `RISKS`."""
    box: tuple[float, float, float, float]
    time: float | None = None
    """Seconds into a film; None in a photo."""
    detail: str = ""
    distance: float = 0.0
    """By which faces of a kind are ordered."""


def at_risk(records: Iterable[Record]) -> list[AtRisk]:
    """Faces to look at, the worst kind first, then by file."""
    found: list[AtRisk] = []
    for record in records:
        found += _of_film(record) if record.is_film else _of_photo(record)
    order = list(RISKS)
    return sorted(found, key=lambda face: (order.index(face.why), face.distance, face.record.path))


def _of_photo(record: Record) -> Iterator[AtRisk]:
    threshold = record.data.get("gate_threshold")
    for face in record.faces:
        box = tuple(float(value) for value in face["box"])
        action, distance = face["action"], face.get("distance")
        away = float(distance) if isinstance(distance, float | int) else None
        limit = float(threshold) if isinstance(threshold, float | int) else 0.0
        if face.get("matched") is True:
            why, detail = "matched", ""
        elif action == "kept":
            why, detail = "kept", str(face.get("note", ""))
        elif face.get("covered") is False:
            why, detail = "uncovered", ""
        elif action in _SINGLE:
            why, detail = "reversible", _SINGLE[action]
        elif away is not None and action in ("generated", "retried") and away < CLOSE * limit:
            why, detail = "close", f"distance {away:.2f}, recognised below {limit:.2f}"
        elif face.get("doubt"):
            why, detail = "doubt", str(face["doubt"])
        else:
            continue
        close = away if why == "close" and away is not None else 0.0
        yield AtRisk(record, why, box, detail=detail, distance=close)  # type: ignore[arg-type]


def _of_film(record: Record) -> Iterator[AtRisk]:
    check = record.data.get("check")
    for why, places in (
        ("matched", check.get("findings") if isinstance(check, dict) else None), ("lost", record.data.get("review")),
    ):  # fmt: skip
        for place in places if isinstance(places, list) else ():
            box, time = (place.get("box"), place.get("time")) if isinstance(place, dict) else (None, None)
            if is_box(box) and isinstance(time, float | int) and 0 <= time < 1e7:
                detail = str(place.get("reason", "")) if why == "lost" else ""
                yield AtRisk(record, why, tuple(map(float, box)), float(time), detail)  # type: ignore[arg-type]


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
    made, image, last = [], None, None
    for face in faces:
        place = face.record.file, face.time
        if place != last:
            image, last = _image(face), place
        made.append("" if image is None else thumbnail(face, image))
    return made


def _image(face: AtRisk) -> Any:
    if face.record.problem:
        return None
    from ficgan.images import read_image
    from ficgan.video.read import open_video

    try:
        if face.time is None:
            return read_image(face.record.file).rgb
        with open_video(face.record.file, start=max(0.0, face.time - 1e-3)) as film:
            return next(iter(film.frames())).image
    except (FicganError, OSError, StopIteration):
        return None


# -- the page --------------------------------------------------------------------------------------------------------

STYLE = """
:root { color-scheme: light; }
body { font: 10.5pt/1.4 system-ui, sans-serif; max-width: 48rem; margin: 1.5rem auto; padding: 0 1rem; color: #111; }
h1 { font-size: 1.5em; margin: 0 0 .2em; } h2 { font-size: 1.1em; margin: 1.4em 0 .4em; border-bottom: 1px solid #999; }
p { margin: .4em 0; } .small { font-size: .85em; color: #444; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .2em .8em .2em 0;
vertical-align: top; border-bottom: 1px solid #ddd; } td.n { text-align: right; width: 5em; font-variant-numeric:
tabular-nums; } td.f, li { overflow-wrap: anywhere; } .warn { border-left: 4px solid #b00; padding: .2em .8em;
background: #fdf0f0; } .good { border-left: 4px solid #286; padding: .2em .8em; background: #f0faf4; }
.faces { display: flex; flex-wrap: wrap; gap: .7rem; } figure { margin: 0; width: 7.5rem; break-inside: avoid; }
figure img, figure .none { width: 96px; height: 96px; object-fit: contain; background: #eee; display: block; }
figcaption { font-size: .72em; overflow-wrap: anywhere; } h3 { font-size: 1em; margin: .9em 0 .3em; }
.sign { display: grid; grid-template-columns: 1fr 1fr; gap: 2.2rem 2rem; margin-top: 2.6rem; break-inside: avoid; }
.sign div { border-top: 1px solid #111; font-size: .85em; } .box { display: inline-block; width: .8em; height: .8em;
border: 1px solid #111; margin: 0 .4em 0 1.2em; vertical-align: -.08em; } ul.names { columns: 2; }
h2, h3 { break-after: avoid; } tr, li { break-inside: avoid; } ul { margin: .3em 0; padding-left: 1.2em; }
.tables { display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: 0 2rem; align-items: start; }
.following { break-before: page; }
@page { size: A4; margin: 13mm 16mm; }
@media print { body { max-width: none; margin: 0; padding: 0; font-size: 9pt; line-height: 1.32; }
h2 { margin-top: 1em; } .sign { margin-top: 2.2rem; gap: 1.8rem 2rem; } .warn, .good, figure img {
print-color-adjust: exact; -webkit-print-color-adjust: exact; } a { color: inherit; text-decoration: none; } }
"""


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
    faces = at_risk(folder.records)
    unseen = _not_seen(folder)
    lists = "".join(f"<h3>{title} ({len(lines):,})</h3>{_list(lines)}" for title, lines in unseen)
    following = _risks(faces) + lists
    body = "".join((
        f"<h1>{_text(title)}</h1>",
        f"<p>De-identification of faces: what was done, and what a person must still look at. Made on "
        f"{made:%Y-%m-%d %H:%M} by ficgan {_text(version)} from the records beside the results.</p>",
        _verdict(folder, faces), _counts(folder), _method(folder), _to_look_at(folder, faces, unseen), _limits(folder),
        _signature(folder), f'<section class="following">{following}</section>' if following else "",
    ))  # fmt: skip
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


def _verdict(folder: Folder, faces: list[AtRisk]) -> str:
    grave = sum(face.why in GRAVE for face in faces)
    changed = sum(bool(record.problem) for record in folder.records)
    reasons = [
        (grave, "face", "is recognised or not covered", "are recognised or not covered"),
        (changed, "result", "is missing, or not as it was made", "are missing, or not as they were made"),
        (len(folder.unrecorded), "file", "has no record", "have no record"),
        (len(folder.undone) + len(folder.damaged), "input or record", "has no result or cannot be read",
         "have no result or cannot be read"),
    ]  # fmt: skip
    told = [f"{_many(number, noun)} {one if number == 1 else more}" for number, noun, one, more in reasons if number]
    if told:
        return f'<p class="warn"><strong>Not ready to be published:</strong> {"; ".join(told)}. See below.</p>'
    left = f"{_many(len(faces), 'face')} below should be looked at. " if faces else ""
    return (
        f'<p class="good"><strong>No obstacle is recorded.</strong> {left}This is no proof of anonymity: '
        "a face that the program did not find is not in any record. Look at the results.</p>"
    )


def _counts(folder: Folder) -> str:
    photos = [record for record in folder.records if not record.is_film]
    films = [record for record in folder.records if record.is_film]
    actions = Counter(str(face["action"]) for record in photos for face in record.faces)
    named = {
        "generated": "replaced by a new face", "retried": "replaced, after at least one new face was still recognised",
        "masked": "covered, because no new face was possible or good enough", "plain": "covered in one colour",
        "black": "covered in black", "solid": "covered in black", "kept": "left as found", "blurred": "blurred",
        "mosaic": "pixelated",
    }  # fmt: skip
    rows = [("Photos", len(photos)), ("– without any face found", sum(not record.faces for record in photos))]
    rows += [("Faces in photos", sum(actions.values()))]
    order = [*(name for name in named if name in actions), *sorted(set(actions) - set(named))]
    rows += [(f"– {named.get(name, f'changed by {name}')}", actions[name]) for name in order]
    tables = [rows]
    if films:
        tables += [[
            ("Films", len(films)), ("– frames", sum(_number(film, "frames") for film in films)),
            ("– people followed", sum(_number(film, "people") for film in films)),
            ("– people covered, because no new face hid them", sum(_number(film, "masked_people") for film in films)),
            ("– with sound, which is as it was", sum(film.data.get("audio") == "copied" for film in films)),
        ]]  # fmt: skip
    return f'<section><h2>Counts</h2><div class="tables">{"".join(map(_table, tables))}</div></section>'


def _table(rows: Iterable[tuple[str, int]]) -> str:
    cells = "".join(f'<tr><td>{_text(name)}</td><td class="n">{count:,}</td></tr>' for name, count in rows)
    return f"<table>{cells}</table>"


def _number(record: Record, name: str) -> int:
    value = record.data.get(name)
    return value if type(value) is int else 0


def _method(folder: Folder) -> str:
    """What holds for all files, then every way in which some were treated, in sentences, with the number of files."""
    ways = Counter(tuple(_sentences(record)) for record in folder.records)
    shared = [sentence for sentence in next(iter(ways), ()) if all(sentence in way for way in ways)]
    parts = ["".join(f"<p>{_text(sentence)}</p>" for sentence in shared)]
    for way, count in ways.most_common(12):
        if own := [sentence for sentence in way if sentence not in shared]:
            films = {record.is_film for record in folder.records if tuple(_sentences(record)) == way}
            noun = "file" if len(films) > 1 else "film" if films == {True} else "photo"
            parts.append(f"<p><strong>{_many(count, noun)}:</strong> {_text(' '.join(own))}</p>")
    if len(ways) > 12:
        parts.append(f"<p>And {len(ways) - 12} more combinations of settings, in the records.</p>")
    versions = ", ".join(sorted({str(record.data.get("ficgan", "unknown")) for record in folder.records}))
    parts.append(f'<p class="small">Version of ficgan: {_text(versions)}.</p>')
    return f"<section><h2>Method</h2>{''.join(parts)}</section>"


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
            f"Each face was replaced by a generated one (method ficgan). Its identity is the average of k = "
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
    detector, gate = data.get("detector"), data.get("gate")
    settings = data.get("settings")
    yield f"Faces were searched by the detector {detector or _told(settings, 'detector') or 'of the time'}."
    if record.is_film:
        check = data.get("check")
        if isinstance(check, Mapping) and check.get("checked") is True:
            yield (
                f"Another detector ({check.get('detector')}) and the recogniser {check.get('recognizer')} then looked "
                f"for source faces in the results."
            )
        else:
            yield "The results were not looked through a second time."
    elif gate is not None:
        threshold = data.get("gate_threshold")
        if "," in str(gate):
            yield f"Each new face was compared with its source by the recognisers {gate}, and none might match."
        else:
            yield f"Each new face was compared with its source by the recogniser {gate} (threshold {threshold})."
    else:
        yield "No recogniser compared the results with their sources."
    if options.get("seed") is True:
        yield "The operator gave a seed. Whoever knows it can confirm a guess at an original; keep it secret."
    if data.get("metadata") == "kept":
        yield "Camera data, place and time stayed in the photos at the operator's wish."


def _told(tree: Any, name: str) -> Any:
    return tree.get(name) if isinstance(tree, Mapping) else None


def _to_look_at(folder: Folder, faces: list[AtRisk], unseen: list[tuple[str, list[str]]]) -> str:
    """The numbers of what follows the signature."""
    risks = Counter(face.why for face in faces)
    rows = [(sentence, risks[why]) for why, sentence in RISKS.items() if why in risks]
    rows += [(title, len(lines)) for title, lines in unseen]
    told = f'{_table(rows)}<p class="small">Names and pictures follow on the next pages.</p>' if rows else ""
    if not folder.manifests:
        told += (
            '<p class="small">There is no manifest here, so inputs that failed or were skipped cannot be listed. '
            "Compare the number of files with that of the sources.</p>"
        )
    return f"<section><h2>To be looked at</h2>{told or '<p>Nothing is recorded.</p>'}</section>"


def _risks(faces: list[AtRisk]) -> str:
    if not faces:
        return ""
    parts = []
    for why, sentence in RISKS.items():
        all_of_it = [face for face in faces if face.why == why]
        shown = all_of_it[: MOST_PICTURES if why in GRAVE else MOST_OF_A_KIND]
        if not all_of_it:
            continue
        figures = "".join(_figure(face, picture) for face, picture in zip(shown, _pictures(shown), strict=True))
        more = len(all_of_it) - len(shown)
        rest = f'<p class="small">{more:,} more are in the records.</p>' if more else ""
        parts.append(f'<h3>{_text(sentence)} ({len(all_of_it):,})</h3><div class="faces">{figures}</div>{rest}')
    return (
        "<h2>Faces at risk</h2><p>The pictures are cut from the results, not from the sources. Somebody may "
        f"still be recognisable in them: treat this page as personal data.</p>{''.join(parts)}"
    )


def _figure(face: AtRisk, picture: str) -> str:
    drawn = f'<img src="{picture}" alt="">' if picture else '<span class="none"></span>'
    when = "" if face.time is None else f", {int(face.time // 60)}:{face.time % 60:05.2f}"
    detail = f"<br>{_text(face.detail)}" if face.detail else ""
    return f"<figure>{drawn}<figcaption>{_text(face.record.path)}{when}{detail}</figcaption></figure>"


def _not_seen(folder: Folder) -> list[tuple[str, list[str]]]:
    """What nobody looked at, or where nothing was found: the likeliest places of a missed face."""
    empty = [record.path for record in folder.records if not record.is_film and not record.faces]
    empty += [record.path for record in folder.records if record.is_film and not _number(record, "tracks")]
    damage = [
        f"{record.path}: {note}" for record in folder.records if isinstance(record.data.get("damage"), list)
        for note in record.data["damage"]
    ]  # fmt: skip
    groups = [
        ("Inputs without a result, by the run's manifest", [_undone_line(*entry) for entry in folder.undone]),
        ("Records that cannot be read", [f"{name}: {why}" for name, why in folder.damaged]),
        ("Results that are missing or not as they were made",
         [f"{record.path}: {record.problem}" for record in folder.records if record.problem]),
        ("Photos and films without a record; nothing is known of them", folder.unrecorded),
        ("Sources that were damaged or ended early", damage),
        ("No face was found, so these stay as they were: look at each", empty),
    ]  # fmt: skip
    return [(title, lines) for title, lines in groups if lines]


def _undone_line(name: str, state: str, why: str) -> str:
    return f"{name} ({state}){': ' + why if why else ''}"


def _list(lines: list[str]) -> str:
    items = "".join(f"<li>{_text(line)}</li>" for line in lines[:MOST_LINES])
    more = f"<li>and {len(lines) - MOST_LINES:,} more</li>" if len(lines) > MOST_LINES else ""
    kind = ' class="names"' if len(lines) > 8 else ""
    return f"<ul{kind}>{items}{more}</ul>"


def _limits(folder: Folder) -> str:
    limits = [
        "A face that the detector does not find stays as it was, and no record mentions it.",
        "Hair, body, clothes, tattoos, number plates, texts and places stay as they were. They identify people, too.",
        "Expression, direction of the head, light, gender, age and the outline of the head come from the source.",
        "The check is one recogniser with one threshold. Another recogniser, or somebody who knows the person, may see "
        "more.",
        "k protects the code of the identity only. There is no proof of anonymity, only measurements.",
    ]
    if any(record.is_film for record in folder.records):
        limits.append("A voice identifies its speaker. Sound was copied unless the counts say otherwise.")
    return f"<section><h2>Limits</h2>{_list(limits)}</section>"


def _signature(folder: Folder) -> str:
    lines = "".join(f"<div>{name}</div>" for name in ("Name and role", "Place and date", "Signature", "Remarks"))
    return (
        "<section><h2>Decision</h2><p>I have looked at the results named here and on the next pages."
        '<span class="box"></span>They may be published.<span class="box"></span>They may not.</p>'
        f'<div class="sign">{lines}</div><p class="small">{_many(len(folder.records), "record")}, sha256 of all: '
        f"{folder.digest}</p></section>"
    )


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
