"""The questionnaires: one self-contained HTML file each, with its pictures in it and nothing from the network.

A page holds pictures, random ids and the two tokens of each question. What a picture is, who is on it and which answer
is right stands in the key alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from ficgan.errors import InputError
from ficgan.images import atomic_write
from ficgan.lab.survey.key import Questionnaire
from ficgan.lab.survey.page_script import SCRIPT, STYLE
from ficgan.lab.survey.pictures import Survey, png

__all__ = ["ANSWERS_SCHEMA", "CONSENT", "page_html", "write_survey"]

ANSWERS_SCHEMA = "ficgan-survey-answers/1"
CONSENT = (
    "[PLACEHOLDER: no participant may see this page before its consent text stands here. It says who asks and why, who "
    "has approved the study, what is recorded (answers, times, a code), how long it is kept, whom to ask, and that "
    "taking part is voluntary and can be ended at any time.]"
)


def write_survey(folder: Path, survey: Survey, *, consent: str = CONSENT) -> list[Path]:
    """Write `pages/TOKEN.html` to hand out, `images/TOKEN.png` and `key.json`, which stay here.

    Args:
        folder: new or empty.
        survey: of `make_survey`.
        consent: text that participants agree to; shown as it is, with its line breaks.

    Returns:
        The pages.

    Raises:
        InputError: the folder holds something, or cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise InputError(f"{folder} is not empty; two surveys must not mix: choose a new folder")
        folder.chmod(0o700)  # source faces and the right answers lie here
        (folder / "pages").mkdir()
        (folder / "images").mkdir()
    except OSError as error:
        raise InputError(f"{folder} cannot be made ({error.strerror}); choose another folder") from error
    files = {token: png(pixels) for token, pixels in sorted(survey.pixels.items())}
    for token, data in files.items():
        with atomic_write(folder / "images" / f"{token}.png") as file:
            file.write(data)
    pages = []
    for one in survey.key.questionnaires:
        shown = {token for item in one.items for token in (item.left, item.right)}
        pages.append(folder / "pages" / f"{one.token}.html")
        with atomic_write(pages[-1]) as file:
            file.write(page_html(one, {token: files[token] for token in sorted(shown)}, consent=consent).encode())
    survey.key.write(folder / "key.json")
    return pages


def page_html(asked: Questionnaire, pictures: Mapping[str, bytes], *, consent: str = CONSENT) -> str:
    """The page of a questionnaire as text.

    Args:
        asked: of its items, ids and tokens of pictures reach the page, and nothing else.
        pictures: PNG files by token.
        consent: text that participants agree to.
    """
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    data: dict[str, Any] = {
        "schema": ANSWERS_SCHEMA,
        "questionnaire": asked.token,
        "items": [{"id": item.id, "left": item.left, "right": item.right} for item in asked.items],
        "pictures": {
            token: f"data:image/png;base64,{base64.b64encode(file).decode()}" for token, file in pictures.items()
        },
    }
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>One person or two?</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>",
            '<section id="welcome"><h1>One person or two?</h1>',
            f"<p>You will see {len(asked.items)} pairs of face pictures, some of them altered. Say of each pair "
            "whether both pictures show the same person. There is no time limit.</p>",
            f'<div class="consent">{escape(consent)}</div>',
            '<p><label><input id="agree" type="checkbox"> I have read this, I am of age, and I agree to take part.'
            "</label></p>",
            '<p><label>Code <input id="code" type="text" autocomplete="off" maxlength="64" spellcheck="false"></label> '
            "Leave it as it is, unless you were given one.</p>",
            '<div class="controls"><button id="start" type="button">Begin</button></div>',
            '<p id="message" role="alert"></p></section>',
            '<section id="question" hidden><p id="place" role="status"></p>',
            '<progress id="progress" value="0" max="1" aria-label="answered"></progress>',
            '<h2 id="ask" tabindex="-1">Do both pictures show the same person?</h2>',
            '<div class="pair"><img id="left" alt="picture on the left">',
            '<img id="right" alt="picture on the right"></div>',
            '<div class="controls"><button id="yes" type="button">Yes (<kbd>y</kbd>)</button>',
            '<button id="no" type="button">No (<kbd>n</kbd>)</button>',
            '<button id="unsure" type="button">Not sure (<kbd>u</kbd>)</button></div>',
            '<div class="controls"><button id="back" type="button">Back (<kbd>b</kbd>)</button>',
            '<button id="stop" type="button">Stop here and save</button></div></section>',
            '<section id="end" hidden><h2 id="thanks" tabindex="-1">Thank you.</h2>',
            "<p>Save your answers and hand in the file. Nothing has been sent or stored: a page that is closed before "
            "has kept nothing, and closing it is all that is needed to withdraw.</p>",
            '<div class="controls"><button id="save" type="button">Save the answers</button>',
            '<button id="review" type="button">Back</button></div></section>\n</main>',
            # "<" is written as an escape, so that no text within can end the element.
            f'<script id="data" type="application/json">{json.dumps(data).replace("<", chr(92) + "u003c")}</script>',
            f"<script>{SCRIPT}</script>\n</body>\n</html>\n",
        ]
    )
