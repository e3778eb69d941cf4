"""A review with its server, as tests see it, and a made film."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from starlette.testclient import TestClient

from ficgan.ui import Review
from ficgan.ui.server import HEADER, Guard, make_app
from ficgan.ui.session import Session
from ficgan.workers import _packed, _unpacked

ROOT = Path(__file__).resolve().parents[2]
PHOTO = ROOT / "tools" / "astronaut.jpg"
HOST, TOKEN = "127.0.0.1:4321", "a-secret"


class Inline:
    """`Workers` without a process: a task is done by the thread that asks."""

    def __init__(self, setup: Callable[[], Any]) -> None:
        self._setup, self._work, self.cancelled = setup, None, False

    def do(self, task: Any, progress: Callable[..., object] | None = None) -> Any:
        if self._work is None:
            self._work = self._setup()
        return json.loads(json.dumps(self._work(task), default=_packed), object_hook=_unpacked)

    def cancel(self) -> None:
        self.cancelled = True

    def close(self) -> None:
        pass


class Desk:
    """A review with its server, as a test sees it."""

    def __init__(
        self, folder: Path, make: Callable[[int], Any], root: Path | None = None, start: Callable[..., Any] = Inline
    ) -> None:
        self.make = make
        self.review = Review(folder / "review", root, folder / "out")
        self.review.output.mkdir(exist_ok=True)
        self.session = Session(self.review, make, start)
        if root is not None:
            self.session.open_folder()
        app = Guard(make_app(self.session), TOKEN, HOST)
        self.web = TestClient(app, base_url=f"http://{HOST}", headers={HEADER: TOKEN})

    def upload(self, data: bytes, name: str = "photo.png", code: int = 201) -> dict[str, Any]:
        answer = self.web.post("/api/upload", params={"name": name}, content=data)
        assert answer.status_code == code, answer.text
        return answer.json()

    def wait(self, number: str, seconds: float = 240) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            item = self.web.get(f"/api/items/{number}").json()
            if item["state"] in ("ready", "failed") and not item["progress"]:
                return item
            time.sleep(0.05)
        raise AssertionError(f"still at work: {item}")

    def ask(self, method: str, path: str, body: Any = None, code: int = 200) -> dict[str, Any]:
        answer = self.web.request(method, f"/api/{path}", json=body)
        assert answer.status_code == code, answer.text
        return answer.json()


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB"))


def make_film(path: Path, frames: int = 12) -> Path:
    """A pan over the photo: a face that moves, two pixels a frame."""
    import av

    photo = np.asarray(Image.open(PHOTO).convert("RGB"))
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=10, width=256, height=256)
        stream.pix_fmt, stream.codec_context.options = "yuv420p", {"crf": "8"}
        for n in range(frames):
            image = np.ascontiguousarray(photo[20:276, 60 + 2 * n : 316 + 2 * n])
            out.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        out.mux(stream.encode(None))
    return path
