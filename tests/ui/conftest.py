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
