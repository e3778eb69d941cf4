"""`ficgan serve`: photos, records and health; bombs, broken files, crowds, strangers; nothing is written."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import os
import re
import socket
import struct
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from ficgan.cli.serve import serve
from ficgan.errors import FicganError
from ficgan.policy import FaceResult, Result
from ficgan.service import ServiceLimits, make_app, photo_work

JPEG = {"Content-Type": "image/jpeg"}
TOKEN = "a-token-of-twenty-letters"


def coded(format: str = "PNG", size: tuple[int, int] = (48, 32)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (30, 60, 200)).save(file, format)
    return file.getvalue()


def stand_in(change: Callable[[Result], None] = lambda result: None) -> Callable[..., Result]:
    """Paints a red box, as if it had found a face there."""

    def engine(image: np.ndarray, *, key: str = "") -> Result:
        assert len(key) == 32
        out = image.copy()
        out[8:20, 8:20] = (255, 0, 0)
        face = FaceResult(np.array([8, 8, 20, 20], np.float32), np.zeros((5, 2), np.float32), np.float32(0.9), k=3000)
        audit = {"mode": "ficgan", "faces": [face.to_dict()]}
        result = Result(out, [face], audit, np.ones(image.shape[:2], np.float32))
        change(result)
        return result

    return engine


def app_of(engine: Callable[..., Result], limits: ServiceLimits, token: str | None = None, **options: Any) -> Any:
    """The application without a worker process."""
    change = photo_work(lambda: engine, max_pixels=limits.pixels, **options)
    return make_app(change, limits, token=token, version="1.2")


def connected(app: Any, **options: Any) -> httpx.AsyncClient:
    """A client of an application without a socket."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, **options), base_url="http://service")


class Service:
    """Requests to an application, one after the other."""

    def __init__(self, engine: Any = None, limits: ServiceLimits | None = None, **options: Any) -> None:
        self._app = app_of(engine or stand_in(), limits or ServiceLimits(), **options)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with connected(self._app, raise_app_exceptions=False) as service:
                return await service.request(method, path, **options)

        return asyncio.run(ask())

    def post(self, content: bytes = b"", headers: Any = ()) -> httpx.Response:
        return self.ask("POST", "/photo", content=content, headers={**JPEG, **dict(headers)})


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "TIFF", "BMP"])
def test_a_photo_comes_back_as_it_was_coded(format: str) -> None:
    answer = Service().post(coded(format), {"Content-Type": "application/octet-stream"})
    back = "PNG" if format == "BMP" else format
    assert answer.status_code == 200 and answer.headers["content-type"] == f"image/{back.lower()}"
    assert (answer.headers["ficgan-faces"], answer.headers["ficgan-masked"]) == ("1", "0")
    assert answer.headers["cache-control"] == "no-store"
    image = Image.open(io.BytesIO(answer.content))
    assert image.format == back and image.size == (48, 32)
    pixels = np.asarray(image.convert("RGB")).astype(int)
    assert np.abs(pixels[10:18, 10:18] - (255, 0, 0)).max() < 40 and np.abs(pixels[28, 40] - (30, 60, 200)).max() < 40


def test_json_holds_photo_and_record() -> None:
    tree = Service().post(coded(), {"Accept": "application/json"}).json()
    data, record = base64.b64decode(tree["image"]), tree["record"]
    assert Image.open(io.BytesIO(data)).size == (48, 32) and tree["type"] == "image/png"
    assert record["size"] == [48, 32] and record["reidentified"] == 0 and record["faces"][0]["k"] == 3000
    assert b"compositeWithTrainedAlgorithmicMedia" in data  # the tag


def test_health_needs_no_token_and_photos_do() -> None:
    service = Service(token=TOKEN)
    state = service.ask("GET", "/health").json()
    assert state == {"ok": True, "version": "1.2", "working": 0, "waiting": 0}
    assert service.post(coded()).status_code == 401
    for given in ("Bearer wrong", f"Basic {TOKEN}", "Bearer \u00e9".encode()):
        answer = service.post(coded(), {"Authorization": given})
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
    assert service.post(coded(), {"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few kilobytes that claims a huge picture."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(1 << 20))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("body", "headers", "status", "said"),
    [
        (bomb(50_000, 50_000), {}, 413, "megapixels"),
        (coded(size=(200, 200)), {}, 413, "megapixels"),
        (b"x" * 70_000, {}, 413, "70,000|65,536 bytes"),
        (coded("JPEG")[:200], {}, 422, "damaged or truncated"),
        (b"no photo", {}, 422, "."),
        (coded("PNG")[:40], {}, 422, "."),
        (b"", {}, 400, "empty"),
        (coded(), {"Content-Type": "text/plain"}, 415, "Content-Type"),
        (coded(), {"Content-Type": "multipart/form-data; boundary=x"}, 415, "the photo itself"),
        (coded(), {"Origin": "https://elsewhere.example"}, 403, "web pages"),
    ],
)
def test_what_is_refused(body: bytes, headers: dict[str, str], status: int, said: str) -> None:
    service = Service(limits=ServiceLimits(bytes=1 << 16, pixels=30_000))
    answer = service.post(body, headers)
    assert answer.status_code == status and re.search(said, answer.json()["error"]), answer.text
    assert "/" not in answer.json()["error"].replace("image/jpeg or application/octet-stream", "")  # no paths
    assert service.post(coded()).status_code == 200  # and goes on


@pytest.mark.parametrize(
    ("change", "options", "status"),
    [({"covered": False}, {}, 422), ({"matched": True}, {}, 422), (None, {}, 200), (None, {"require_face": True}, 422)],
)
def test_what_is_unsafe_is_not_given_out(change: dict[str, bool] | None, options: dict[str, bool], status: int) -> None:
    """`change`: of the face; None: there is none."""

    def spoil(result: Result) -> None:
        vars(result.faces[0]).update(change or {})
        if change is None:
            result.faces.clear()

    answer = Service(stand_in(spoil), **options).post(coded())
    assert answer.status_code == status


@pytest.mark.parametrize("error", [ValueError("/home/me/secret.jpg broke"), FicganError("/home/me/model is gone")])
def test_a_failing_engine_tells_nothing_of_the_machine(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def fails(image: np.ndarray, *, key: str = "") -> Result:
        raise error

    answer = Service(fails).post(coded())
    assert answer.status_code == 500 and answer.json() == {"error": "the photo could not be worked on"}
    assert any(record.name == "ficgan.service" for record in caplog.records)


@pytest.mark.parametrize("jobs", [1, 40])
def test_too_many_requests_at_once_are_refused(jobs: int) -> None:
    """So many are worked on, one waits, four are refused at once; then the service is free again."""
    go, begun = threading.Event(), list[Result]()

    def slow(result: Result) -> None:
        begun.append(result)
        assert go.wait(20)

    async def ask() -> tuple[list[int], dict[str, Any], int]:
        async with connected(app_of(stand_in(slow), ServiceLimits(jobs=jobs, queue=1))) as service:

            async def post() -> httpx.Response:
                return await service.post("/photo", content=coded(), headers=JPEG)

            asked = [asyncio.create_task(post()) for _ in range(jobs + 5)]
            while sum(task.done() for task in asked) < 4 or len(begun) < jobs:
                await asyncio.sleep(0.01)
            health = (await service.get("/health")).json()
            go.set()
            answers = [await task for task in asked]
            return [answer.status_code for answer in answers], health, (await post()).status_code

    statuses, health, after = asyncio.run(ask())
    assert sorted(statuses) == [*[200] * (jobs + 1), 503, 503, 503, 503] and after == 200
    assert (health["working"], health["waiting"]) == (jobs, 1)


def test_nothing_is_written() -> None:
    """Python reports every opened file to an audit hook; none is opened for writing while photos come and go."""
    writes: list[str] = []
    watching = threading.Event()

    def watch(event: str, given: tuple[Any, ...]) -> None:
        if watching.is_set() and event == "open":
            path, mode, flags = given
            if (isinstance(mode, str) and set(mode) & set("wax+")) or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                writes.append(str(path))
        elif watching.is_set() and event in ("os.mkdir", "os.rename", "tempfile.mkstemp", "tempfile.mkdtemp"):
            writes.append(f"{event} {given}")

    large = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (900, 900, 3), np.uint8)).save(large, "PNG")
    service = Service()
    service.post(coded())  # what is imported late
    sys.addaudithook(watch)
    watching.set()
    try:
        assert service.post(large.getvalue()).status_code == 200
        assert service.post(coded("JPEG")[:99]).status_code == 422
        assert writes == []
        with contextlib.suppress(OSError):
            Path("/nowhere/at/all").write_text("x")
        assert writes == ["/nowhere/at/all"]  # the hook is awake
    finally:
        watching.clear()


@pytest.mark.parametrize(
    ("options", "variable", "said"),
    [
        (["--host", "0.0.0.0"], None, "can be reached by others"),
        (["--host", "::"], None, "can be reached by others"),
        (["--host", "example.org"], None, "can be reached by others"),
        ([], "short", "16 characters"),
        (["--host", "no such host"], TOKEN, "no such host"),
    ],
)
def test_unsafe_settings_are_refused_before_the_model_is_loaded(
    options: list[str], variable: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ficgan.cli.deid.make_engine", lambda **settings: pytest.fail("loaded"))
    monkeypatch.delenv("FICGAN_TOKEN", raising=False)
    if variable is not None:
        monkeypatch.setenv("FICGAN_TOKEN", variable)
    outcome = CliRunner().invoke(serve, options)
    assert outcome.exit_code == 2 and said in outcome.stderr


def test_an_address_that_is_taken_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FICGAN_TOKEN", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        outcome = CliRunner().invoke(serve, ["--port", str(taken.getsockname()[1])])
    assert outcome.exit_code == 2 and "another --port" in outcome.stderr
