"""`ficgan ui` as a process of its own, and what a person does in its page."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from desks import ROOT

CHROMIUM = Path(os.environ.get("FICGAN_CHROMIUM", "/usr/bin/chromium"))
PATIENCE = 1000 * int(os.environ.get("FICGAN_BROWSER_SECONDS", "300"))
"""Milliseconds to wait for anything: the machine may have much else to do."""


@dataclass
class Program:
    """`ficgan ui` as a process of its own."""

    folder: Path
    process: subprocess.Popen[str]
    address: str

    @property
    def out(self) -> Path:
        return self.folder.parent / f"{self.folder.name}_anonymized"

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def kill(self, *, workers: bool = True) -> None:
        """As the machine does when it dies; without `workers` the server alone."""
        if workers:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def start(folder: Path) -> Program:
    folder.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "ficgan.cli.main", "ui", str(folder), "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(ROOT), **os.environ},
        start_new_session=True,
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    assert address.startswith("http://127.0.0.1:") and "token=" in address
    return Program(folder, process, address)


def drop(page: Any, path: Path, name: str) -> None:
    """Drop a file onto the page, as a person does."""
    data = list(path.read_bytes())
    transfer = page.evaluate_handle(
        "([name, data]) => { const t = new DataTransfer(); t.items.add(new File([new Uint8Array(data)], name)); "
        "return t; }",
        [name, data],
    )
    page.dispatch_event("body", "drop", {"dataTransfer": transfer})


def until(page: Any, expression: str) -> None:
    """Wait until a JavaScript expression is true. Playwright's own waiting needs `eval`, which the page forbids."""
    end = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"never true: {expression}"
        page.wait_for_timeout(100)


def card(page: Any, name: str) -> Any:
    return page.locator(".card", has=page.locator(f".name:text-is({name!r})"))


def settled(page: Any) -> None:
    page.wait_for_selector("#editor[data-busy=no]")


def draw(page: Any, box: tuple[float, float, float, float], size: tuple[int, int]) -> None:
    """Draw a box with the mouse, in pixels of the picture."""
    page.get_by_role("button", name="Draw a box over a missed face").click()
    place = page.locator(".stage").bounding_box()
    at = [
        (place["x"] + x / size[0] * place["width"], place["y"] + y / size[1] * place["height"])
        for x, y in (box[:2], box[2:])
    ]
    page.mouse.move(*at[0])
    page.mouse.down()
    page.mouse.move((at[0][0] + at[1][0]) / 2, (at[0][1] + at[1][1]) / 2)
    page.mouse.move(*at[1])
    page.mouse.up()
