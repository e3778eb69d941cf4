"""Reads a page strictly, and runs its script in as much of a browser as it touches."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from ficgan.lab.results import page_script

VOID = {"meta", "img", "input", "br"}
BROWSER = (Path(__file__).parent / "page_browser.js").read_text(encoding="utf-8")
EVIL = "</script><script>alert(1)</script>\"><img src=x onerror=alert(1)>&amp;' <!-- "


class Page(HTMLParser):
    """Reads a page strictly: every element closed in order, no attribute twice."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), attrs
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        tag, one = self.elements[-1] if self.elements else ("", {})
        owner = one.get("id") or one.get("class") or tag
        self.text[owner] = self.text.get(owner, "") + data
        self.words += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def data(self) -> dict[str, Any]:
        return dict(json.loads(self.text["data"]))


def stands_alone(text: str, allowed: set[str]) -> Page:
    """A page that loads nothing, names no other address than `allowed`, and runs its own script only."""
    page, script = Page(text), page_script(text)
    assert not {"link", "iframe", "a", "form", "video"} & {tag for tag, _ in page.elements}
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert len(page.all("script")) == 2 and "</" not in script and "<!--" not in script
    addresses = re.findall(
        r"(?:https?:)?//[\w.]+", re.sub(r"base64,[\w+/=]+|^ *// .*$|  // .*$", "", script, flags=re.M)
    )
    assert set(addresses) <= allowed and "fetch" not in script and "cookie" not in script
    (policy,) = (a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert f"script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}';" in str(policy)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    return page


def run(node: str, code: str) -> Any:
    """What the last line of a script prints, from JSON."""
    done = subprocess.run([node, "-"], input=code, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def browse(node: str, text: str, actions: str, before: str = "") -> Any:
    """Load a page, act, and print `out`."""
    page = Page(text)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    head = f"const IDS = {json.dumps(ids)}, DATA = {json.dumps(page.text['data'])};\n"
    script = page_script(text)
    return run(node, f"{head}{BROWSER}\n{before}{{{script}}}\nlet out;\n{actions}\nconsole.log(JSON.stringify(out));")
