"""Reads a page as strictly as the tests of pages want it."""

from __future__ import annotations

import json
import subprocess
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "img", "input", "br"}


class Page(HTMLParser):
    """Reads a page strictly: every element closed in order, no attribute twice."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
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

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def data(self) -> dict[str, Any]:
        return dict(json.loads(self.text["data"]))


def run(node: str, code: str) -> Any:
    """What the last line of a script prints, from JSON."""
    done = subprocess.run([node, "-"], input=code, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
