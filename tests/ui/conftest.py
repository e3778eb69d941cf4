"""One model for all tests of the desk."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

pytest.importorskip("starlette")
pytest.importorskip("httpx")

from desks import PHOTO, Desk
from tabs import CHROMIUM, PATIENCE, Program, start

from ficgan.deidentify import Deidentifier
from ficgan.errors import InputError


@pytest.fixture(autouse=True)
def not_nice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ficgan.ui.tasks.os.nice", lambda _: 0)


@pytest.fixture(scope="session")
def engine() -> Deidentifier:
    """The embedded model, without the gate: it is tested elsewhere."""
    return Deidentifier.from_pretrained(seed=7, verify=False)


@pytest.fixture(scope="module")
def png() -> bytes:
    """The photo without loss, so that pixels can be compared."""
    buffer = io.BytesIO()
    Image.open(PHOTO).convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def desk(tmp_path: Path, engine: Deidentifier) -> Iterator[Desk]:
    made = Desk(tmp_path, lambda seed: engine)
    yield made
    made.session.close()


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Desk]:
    """A review whose model is never loaded."""
    never = threading.Event()

    def wait(seed: int) -> Any:
        never.wait(60)
        raise InputError("no model here")

    made = Desk(tmp_path, wait)
    yield made
    never.set()
    made.session.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, where there is one."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if not CHROMIUM.exists():
        pytest.skip(f"needs {CHROMIUM} (or set FICGAN_CHROMIUM)")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=str(CHROMIUM),
            timeout=PATIENCE,
            args=["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"],
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    running = start(tmp_path_factory.mktemp("ui") / "photos")
    yield running
    running.kill()


@pytest.fixture
def page(browser: Any, program: Program) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1366, "height": 768}, accept_downloads=True)
    context.set_default_timeout(PATIENCE)
    made = context.new_page()
    problems: list[str] = []
    made.on("pageerror", lambda error: problems.append(str(error)))
    made.on("console", lambda message: problems.append(message.text) if "Content Security" in message.text else None)
    made.on("request", lambda r: None if r.url.startswith(("http://127.0.0.1:", "blob:")) else problems.append(r.url))
    made.goto(program.address)
    made.wait_for_selector("#status:not(:empty)")
    yield made
    context.close()
    assert problems == []
