"""Nothing is lost when the server or the machine dies amid edits."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from desks import PHOTO, Desk, make_film
from tabs import Program, start

httpx = pytest.importorskip("httpx")
pytestmark = pytest.mark.slow

SECONDS = 300.0


class Visitor:
    """Who talks to a program as the page does, with a connection for each question."""

    def __init__(self, program: Program) -> None:
        address, _, token = program.address.partition("?token=")
        self.base, self.given = address + "api/", {"headers": {"x-ficgan-token": token}, "timeout": SECONDS}

    def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        answer = httpx.request(method, self.base + path, json=body, **self.given)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ready(self, kinds: set[str]) -> dict[str, str]:
        """The ids of one photo and one film, once they can be decided on."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            items = self.ask("GET", "state")["items"]
            found = {item["kind"]: item["id"] for item in items if item["state"] == "ready" and not item["progress"]}
            if set(found) == kinds:
                return found
            time.sleep(0.2)
        raise AssertionError(items)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "files"
    place.mkdir()
    shutil.copy(PHOTO, place / "me.jpg")
    make_film(place / "film.mp4", 60)
    yield place


@pytest.mark.parametrize("workers", [False, True], ids=["server", "machine"])
def test_no_decision_is_lost(folder: Path, workers: bool) -> None:
    program = start(folder)
    try:
        visitor = Visitor(program)
        ids = visitor.ready({"photo", "film"})
        photo, film = f"items/{ids['photo']}", f"items/{ids['film']}"
        sent, done = [], []

        def decide() -> None:
            with pytest.raises(httpx.HTTPError):  # the server is gone
                for n in range(10_000):
                    sent.append(n)
                    region = {"first": 0, "last": 1 + n % 50, "mode": "black", "box": [10, 10, 40, 40 + n % 200]}
                    visitor.ask("PATCH", f"{film}/film", {"people": {"1": {"draw": n + 1}}, "regions": [region]})
                    visitor.ask("PATCH", f"{photo}/faces/0", {"mode": ("black", "keep", "plain")[n % 3]})
                    done.append(n)

        thread = threading.Thread(target=decide)
        thread.start()
        while len(done) < 12:
            time.sleep(0.01)
        program.kill(workers=workers)
        thread.join(60)
        program = start(folder)
        visitor = Visitor(program)
        visitor.ready({"photo", "film"})
        # What was answered is there; what was only asked for may be, or not.
        last, maybe = done[-1], sent[-1]
        told = visitor.ask("GET", f"{film}/film")
        assert told["people"][0]["draw"] - 1 in (last, maybe) and len(told["regions"]) == 1
        modes = [("black", "keep", "plain")[n % 3] for n in (last, maybe)]
        assert visitor.ask("GET", photo)["list"][0]["mode"] in modes
        # And every step before it can be undone.
        visitor.ask("POST", f"{film}/undo")
        told = visitor.ask("GET", f"{film}/film")
        assert told["people"][0]["draw"] - 1 in (last - 1, last)
        while visitor.ask("GET", photo)["undo"]:
            visitor.ask("POST", f"{photo}/undo")
        assert visitor.ask("GET", photo)["list"][0]["mode"] == ""
    finally:
        program.kill()


def test_an_edit_is_on_disk_before_it_is_answered(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut a file is there whole, old or new: its data are synced before it gets its name."""
    number = desk.upload(make_film(tmp_path / "film.mp4", 4).read_bytes(), "film.mp4")["id"]
    desk.wait(number)
    calls: list[str] = []
    for name in ("fsync", "replace"):
        real = getattr(__import__("os"), name)

        def noted(*given: Any, real: Any = real, name: str = name, **more: Any) -> Any:
            calls.append(name)
            return real(*given, **more)

        monkeypatch.setattr(f"ficgan.files.os.{name}", noted)
    desk.ask("PATCH", f"items/{number}/film", {"default": "black"})
    order = [name for n, name in enumerate(calls) if n == 0 or calls[n - 1] != name]
    assert order[:4] == ["fsync", "replace", "fsync", "replace"], calls
