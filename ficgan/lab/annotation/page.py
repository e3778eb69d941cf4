"""The pages on which people correct boxes: one self-contained HTML file a batch, without anything from the network.

Gold images are judged in the page, so their faces are in it, encoded so that nobody reads them by accident. This is
quality control, not security: whoever wants to can decode them or write an export by hand. Collecting therefore judges
the exported boxes again, and compares several people's work on a batch; neither stops a cheat who reads the page.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from PIL import Image

from ficgan.data.dataset import Blob
from ficgan.errors import InputError
from ficgan.images import atomic_write
from ficgan.lab.annotation.batches import Batch, Key, Rules, compose
from ficgan.lab.annotation.page_script import SCRIPT, STYLE
from ficgan.lab.annotation.records import Record, Records

__all__ = ["EXPORT_SCHEMA", "page_html", "write_pages"]

EXPORT_SCHEMA = "ficgan-annotation-export/1"
_QUALITY = 88
_BUTTONS = (
    ("back", "Back", "b"), ("next", "Next", "Enter"), ("add", "Add box", "a"), ("remove", "Delete box", "Del"),
    ("undo", "Undo", "u"), ("reset", "As it was", "none"), ("closer", "Zoom in", "+"), ("wider", "Zoom out", "-"),
    ("export", "Export", "none"),
)  # fmt: skip


def write_pages(
    folder: Path, blobs: Sequence[Blob], detected: Records, gold: Sequence[tuple[Blob, Record]], rules: Rules, *,
    own_gold: bool = True, linked: bool = False, side: int = 1600, note: str = "",
    progress: Callable[[int, int, str], None] | None = None,
) -> tuple[Key, list[str]]:  # fmt: skip
    """Write `pages/batch-0001.html`, … to hand out, and `key.json`, which stays here, since it holds the truth.

    Args:
        folder: new or empty.
        blobs, detected, gold, rules, own_gold: as `batches.compose` takes them.
        linked: pictures as files in `pages/images`, relative to the page, instead of within it.
        side: longer side at which pictures are shown at most, pixels; boxes stay in pixels of the image.
        note: a sentence for the workers, such as what else is to be covered.
        progress: called as progress(done, images, name).

    Returns:
        The key, and a sentence for each image that cannot be read; it is in no batch.

    Raises:
        UsageError: too few gold images.
        InputError: no image, or the folder holds something, or cannot be written.
    """
    pages = folder / "pages"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise InputError(f"{folder} is not empty; pages of two runs must not mix: choose a new folder")
        pages.mkdir()
        folder.chmod(0o700)  # source faces lie here
        if linked:
            (pages / "images").mkdir()
    except OSError as error:
        raise InputError(f"{folder} cannot be made ({error.strerror}); choose another folder") from error
    batches, failed = [], list[str]()
    made = compose(blobs, detected, gold, rules, own_gold=own_gold, failed=failed, progress=progress)
    for number, (batch, pictures) in enumerate(made, 1):
        sources = []
        for item, picture in zip(batch.items, pictures, strict=True):
            data = _jpeg(picture, side)
            if linked:
                with atomic_write(pages / "images" / f"{item.id}.jpg") as file:
                    file.write(data)
                sources.append(f"images/{item.id}.jpg")
            else:
                sources.append(f"data:image/jpeg;base64,{base64.b64encode(data).decode()}")
        with atomic_write(pages / f"batch-{number:04d}.html") as file:
            file.write(page_html(batch, sources, rules, linked=linked, note=note).encode())
        batches.append(batch)
    verified = tuple(record for _, record in gold) if own_gold else ()
    key = Key(rules, tuple(batches), verified)
    key.write(folder / "key.json")
    return key, failed


def page_html(batch: Batch, sources: Sequence[str], rules: Rules, *, linked: bool = False, note: str = "") -> str:
    """The page of a batch as text.

    Args:
        batch: what is shown; names of files do not reach the page.
        sources: addresses of the pictures, one an image.
        rules: lives and overlap.
        linked: pictures lie beside the page.
        note: a sentence for the workers.
    """
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    pictures = "" if linked else " img-src data:;"  # a page from a folder has no origin that 'self' could name
    policy = (
        f"script-src 'sha256-{digest}'; style-src 'unsafe-inline';{pictures} connect-src 'none'; object-src 'none'; "
        "frame-src 'none'; base-uri 'none'; form-action 'none'"
    )
    checks = {place: item.truth.tolist() for place, item in enumerate(batch.items) if item.truth is not None}
    data: dict[str, Any] = {
        "schema": EXPORT_SCHEMA,
        "batch": batch.id,
        "lives": rules.lives,
        "overlap": rules.overlap,
        "checks": base64.b64encode(json.dumps(checks).encode()).decode(),
        "images": [
            {"id": item.id, "width": item.width, "height": item.height, "boxes": item.shown.tolist(), "src": source}
            for item, source in zip(batch.items, sources, strict=True)
        ],
    }
    buttons = "".join(
        f'<button id="{id}" type="button" title="key: {key}">{name}</button>'
        for id, name, key in _BUTTONS
    )
    control = (
        f"Some images have known faces: a mistake there costs one of {rules.lives} lives, and without lives you start "
        "again from the first image."
    )
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>Faces: {escape(batch.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
            f"<h1>Faces: {escape(batch.title)}, {len(batch.items)} images</h1>",
            '<p class="warning"><strong>These pictures show people.</strong> Do not pass them on; delete the page and '
            "the exported file when they are handed in.</p>",
            "<p>Every human face wants one box that covers mouth, nose, eyes, forehead and cheeks, and nothing else "
            f"wants any. {control if checks else ''} {escape(note)}</p>",
            "<details><summary>Mouse and keys</summary><p>Drag on the picture: new box. Drag a box: move it; its edges "
            "and corners: resize it. <kbd>c</kbd> chooses the next box; arrow keys move the chosen box, with "
            "<kbd>Alt</kbd> they resize it, with <kbd>Shift</kbd> by ten pixels; <kbd>Del</kbd> deletes it; "
            "<kbd>a</kbd> adds one in the middle. <kbd>Enter</kbd> or <kbd>n</kbd>: next image; <kbd>b</kbd>: back; "
            "<kbd>u</kbd>: undo; <kbd>+</kbd> <kbd>-</kbd>: zoom. Progress is kept in this browser.</p></details>",
            f'<div class="controls"><strong id="place"></strong> <span id="lives"></span> {buttons}',
            '<label>your name <input id="worker" type="text" autocomplete="off"></label></div>',
            '<p id="message" role="status"></p>',
            '<div id="frame"><div id="stage"><img id="picture" alt="image to look through" draggable="false">',
            '<svg id="boxes" preserveAspectRatio="none" role="img" aria-label="boxes"></svg></div></div>',
            # "<" is written as an escape, so that no text within can end the element.
            f'<script id="data" type="application/json">{json.dumps(data).replace("<", chr(92) + "u003c")}</script>',
            f"<script>{SCRIPT}</script>\n</body>\n</html>\n",
        ]
    )


def _jpeg(picture: Image.Image, side: int) -> bytes:
    """A new file without the metadata of the old."""
    small = picture.copy()
    small.info.clear()  # a comment would be written again
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()
