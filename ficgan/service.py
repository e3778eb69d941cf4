"""The HTTP service behind `ficgan serve`: a photo in, a photo or JSON out, nothing kept."""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ficgan.errors import FicganError, InputError
from ficgan.records import as_json, new_photo

if TYPE_CHECKING:
    from ficgan.policy import Result

log = logging.getLogger("ficgan.service")
TYPES = {".jpg": "image/jpeg", ".tif": "image/tiff"}
TYPES |= {f".{kind}": f"image/{kind}" for kind in ("png", "webp", "avif", "heic")}


@dataclass(frozen=True)
class ServiceLimits:
    """What the service takes at most."""

    bytes: int = 32 << 20  # of a photo's file
    pixels: int = 50_000_000  # larger photos are refused from their header
    jobs: int = 2  # photos worked on at once
    queue: int = 16  # requests that may wait for one of them; more are refused at once
    patience: float = 30.0  # seconds in which a request's body must have arrived


def photo_work(make_engine: Callable[[], Callable[..., Result]], **options: Any) -> Callable[[bytes], dict[str, Any]]:
    """The setup of a worker, which turns a photo's file into a new one, its suffix, and the record of its faces.

    Args:
        make_engine: makes a `Deidentifier`, or a function with its signature.
        options: of `new_photo`.
    """
    engine = make_engine()

    def changed(data: bytes) -> dict[str, Any]:
        made = new_photo(engine, data, **options)
        if made.reidentified:
            faces = "1 face" if made.reidentified == 1 else f"{made.reidentified} faces"
            raise InputError(f"{faces} would still be recognised, so nothing is given out")
        record = {**made.record, "reidentified": made.reidentified}
        return {"data": made.data, "suffix": made.suffix, "actions": made.actions, "record": record}

    return changed


def make_app(
    change: Callable[[bytes], Mapping[str, Any]], limits: ServiceLimits, *, token: str | None = None, version: str = ""
) -> Starlette:
    """The application: POST /photo and GET /health.

    Args:
        change: does what the function of `photo_work` does, in a worker process; called in `limits.jobs` threads.
        token: what `Authorization: Bearer …` must hold; None: nothing is asked.
    """
    pool = ThreadPoolExecutor(limits.jobs, thread_name_prefix="photo")
    inside = 0  # requests that are read, wait or are worked on

    async def photo(request: Request) -> Response:
        nonlocal inside
        _check_sender(request, token)
        if inside >= limits.jobs + limits.queue:
            raise HTTPException(503, "the service is busy; try again", {"Retry-After": "1"})
        inside += 1
        try:
            data = await _body(request, limits)
            made = await asyncio.get_running_loop().run_in_executor(pool, change, data)
        finally:
            inside -= 1
        kind, record = TYPES[made["suffix"]], made["record"]
        if "application/json" in request.headers.get("accept", ""):
            text = as_json({"type": kind, "image": base64.b64encode(made["data"]).decode(), "record": record})
            return Response(text, media_type="application/json", headers=_HEADERS)
        actions = made["actions"]
        counts = {"Ficgan-Faces": str(len(actions)), "Ficgan-Masked": str(actions.count("masked"))}
        return Response(made["data"], media_type=kind, headers={**_HEADERS, **counts})

    async def health(request: Request) -> Response:
        waiting = max(0, inside - limits.jobs)
        state = {"ok": True, "version": version, "working": inside - waiting, "waiting": waiting}
        return JSONResponse(state, headers=_HEADERS)

    async def refused(request: Request, error: Exception) -> Response:
        status, message, headers = 500, "the photo could not be worked on", dict[str, str]()
        if isinstance(error, HTTPException):
            status, message, headers = error.status_code, error.detail, dict(error.headers or {})
        elif isinstance(error, InputError):
            message = str(error).removeprefix("photo: ")
            status = 413 if "megapixels" in message else 422
        else:
            log.error("a request failed", exc_info=error)
        return JSONResponse({"error": message}, status, headers={**_HEADERS, **headers})

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        pool.shutdown(wait=True, cancel_futures=True)

    return Starlette(
        routes=[Route("/photo", photo, methods=["POST"]), Route("/health", health, methods=["GET"])],
        exception_handlers=dict.fromkeys((HTTPException, FicganError, Exception), refused),
        lifespan=lifespan,
    )


_CLOSE = {"Connection": "close"}
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def _check_sender(request: Request, token: str | None) -> None:
    """The service is for programs: a web page must not reach it through a browser of the same machine."""
    if "origin" in request.headers:
        raise HTTPException(403, "requests of web pages are not served")
    if token is not None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
            raise HTTPException(401, "a token is needed: Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not kind.startswith("image/") and kind != "application/octet-stream":
        raise HTTPException(
            415, "send the photo itself as the body, with Content-Type: image/jpeg or application/octet-stream"
        )


async def _body(request: Request, limits: ServiceLimits) -> bytes:
    """The photo's file; it is never written anywhere."""
    too_large = HTTPException(413, f"the photo's file may have at most {limits.bytes:,} bytes", _CLOSE)
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limits.bytes:
        raise too_large
    data = bytearray()
    try:
        async with asyncio.timeout(limits.patience):
            async for chunk in request.stream():
                data += chunk
                if len(data) > limits.bytes:
                    raise too_large
    except TimeoutError:
        raise HTTPException(408, f"the photo did not arrive within {limits.patience:g} s", _CLOSE) from None
    except ClientDisconnect:
        raise HTTPException(400, "the photo did not arrive whole") from None
    if not data:
        raise HTTPException(400, "the body is empty; send the photo itself")
    return bytes(data)
