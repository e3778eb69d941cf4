"""The web application: one page and a small JSON interface. Files are named by ids of the review, never by paths."""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from inspect import iscoroutinefunction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Literal
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ficgan.deidentify.review import Drawing
from ficgan.errors import FicganError, InputError
from ficgan.files import atomic_write
from ficgan.folders import Box, Strict, checked
from ficgan.images import FILM_SUFFIXES, READABLE_SUFFIXES
from ficgan.records import SYNTHETIC_ACTIONS
from ficgan.records.risks import CLOSE
from ficgan.ui import MODES, Controls, Item, Review
from ficgan.ui.session import Session
from ficgan.ui.work import sentence
from ficgan.video.project import thumbnail

# Bytes of an upload and of a request.
LIMITS = {"photo": 500 << 20, "film": 100 << 30, "json": 1 << 20}

# Gives a file's entry, a picture (its bytes or file), JSON, a response, or a future of one of these; None: 404.
Handler = Callable[..., Any]
Mode = Literal[MODES]  # type: ignore[valid-type]


def make_app(session: Session) -> Starlette:
    """The application without its guard."""
    page = Mount("/", StaticFiles(packages=[("ficgan.ui", "page")], html=True))
    return Starlette(routes=[*_Routes(session).all(), page])


class _OnFaces(Strict):
    """What is decided on faces of a photo."""

    mode: str = ""
    draw: int = 0
    drawing: Drawing | None = None


class _Box(Strict):
    box: Box


class _Places(Strict):
    """Which places that may be faces are faces, None: all that are open; and what happens to them."""

    places: tuple[int, ...] | None = None
    mode: str = "plain"


class _OnFiles(Strict):
    """One decision on several files."""

    ids: tuple[str, ...]
    mode: Mode | Literal[""] = ""
    possible: Mode = "plain"
    reviewed: bool = False


class _Call:
    """A request, and the JSON of its body."""

    def __init__(self, request: Request, review: Review, given: dict[str, Any]) -> None:
        self.request, self.review, self.given = request, review, given
        self.path: dict[str, Any] = request.path_params
        self.query: Mapping[str, str] = request.query_params
        # What the path names in the file: face, draw, track.
        self.numbers = {name: value for name, value in self.path.items() if name != "id"}

    @property
    def item(self) -> Item:
        """The file of the path; a KeyError where there is none."""
        return self.review[self.path["id"]]

    def decided(self, model: type[Strict]) -> dict[str, Any]:
        """What the body states of a model's fields, checked."""
        made = checked(model, self.given, "the request")
        return {name: getattr(made, name) for name in made.model_fields_set}


class _Routes:
    """Handlers run in threads, but for those that are async."""

    def __init__(self, session: Session) -> None:
        self.session, self.review = session, session.review
        self.photos, self.films = session.photos, session.films

    def all(self) -> list[Route]:
        item, session, photos, films = "/api/items/{id}", self.session, self.photos, self.films
        face = item + "/faces/{face:int}"
        table: list[tuple[str, str, Handler]] = [
            ("GET", "/api/state", self.state),
            ("POST", "/api/upload", self.upload),
            ("POST", "/api/controls", self.controls),
            ("POST", "/api/save", lambda call: {"begun": session.save_all()}),
            ("POST", "/api/items", self.decide_files),
            ("POST", "/api/undo", lambda call: {"changed": session.undo(redo="redo" in call.query)}),
            ("GET", "/api/decisions.json", lambda call: _download(session.decisions())),
            ("GET", "/api/people", lambda call: photos.people()),
            ("POST", "/api/people", lambda call: {"people": photos.link().result()}),
            ("GET", item, lambda call: call.item),
            ("DELETE", item, self.remove),
            ("POST", f"{item}/look", self.look),
            ("GET", item + "/picture/{kind}", self.picture),
            ("POST", f"{item}/controls", self.controls),
            ("POST", f"{item}/save", lambda call: session.save(call.item.id) or call.item),
            ("POST", f"{item}/cancel", lambda call: {"cancelled": films.cancel(call.item.id)}),
            ("POST", f"{item}/undo", self.undo),
            ("GET", f"{item}/decisions.json", lambda call: _download(session.decisions(call.item.id))),
            ("POST", f"{item}/faces", lambda call: photos.add_face(call.item.id, **call.decided(_Box))),
            ("PATCH", f"{item}/faces", self.decide),
            ("PATCH", face, self.decide),
            ("DELETE", face, lambda call: photos.remove_face(call.item.id, **call.numbers)),
            ("GET", f"{face}/picture", lambda call: photos.face_picture(call.item, **call.numbers)),
            ("GET", item + "/draws/{face:int}/{draw:int}", lambda call: photos.cut(call.item, **call.numbers)),
            ("POST", f"{item}/possible", self.take_possible),
            ("GET", f"{item}/film", lambda call: films.describe(call.item.id)),
            ("PATCH", f"{item}/film", self.edit_film),
            ("GET", f"{item}/video", self.video),
            ("GET", f"{item}/at", self.at),
            ("GET", item + "/frame/{frame:int}", self.frame),
            ("GET", item + "/track/{track:int}", self.strip),
            ("GET", item + "/people/{key}/{draw:int}", lambda call: films.cut(call.item.id, **call.numbers)),
        ]
        return [Route(path, self._answering(handler), methods=[method]) for method, path, handler in table]

    def _answering(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """A handler whose answer becomes a response, and what it raises one sentence."""

        async def answer(request: Request) -> Response:
            try:
                if iscoroutinefunction(handler):
                    return await handler(_Call(request, self.review, {}))
                call = _Call(request, self.review, {} if request.method == "GET" else await _json(request))
                made = await run_in_threadpool(handler, call)
                if isinstance(made, Future):
                    made = await asyncio.wrap_future(made)
                    made = made if isinstance(made, bytes) else self.review[request.path_params["id"]]
                return self._response(made)
            except LookupError:
                return _sorry("There is no such file or face in this review.", 404)
            except FicganError as error:
                return _sorry(sentence(error), 422)
            except OSError as error:
                return _sorry(f"It could not be written or read: {sentence(error)}", 507)

        return answer

    def _response(self, made: Any) -> Response:
        if isinstance(made, Response):
            return made
        if isinstance(made, bytes):
            return Response(made, media_type="image/jpeg")
        if made is None or (isinstance(made, Path) and not made.exists()):
            return _sorry("There is no such picture, or not yet.", 404)
        if isinstance(made, Path):
            return FileResponse(made)
        return JSONResponse(self._whole(made) if isinstance(made, Item) else made)

    # -- files --------------------------------------------------------------------------------------------------------

    def state(self, call: _Call) -> Any:
        """What changed since a revision: the page asks again and again."""
        since, items, progress = int(call.query.get("since", 0)), self.review.items(), self.session.progress
        news = [item for item in items if self.review.revision_of(item.id) > since or item.id in progress]
        return self.session.about | {
            "project": str(self.review.folder),
            "output": str(self.review.output),
            "revision": self.review.revision,
            "model": self.session.model,
            "ids": [item.id for item in items],
            "items": [self._brief(item) for item in news],
            "controls": self.review.settings.controls.model_dump(),
            "modes": MODES,
            "undo": self.review.undoable() > 0,
            "redo": self.review.undoable(redo=True) > 0,
        }

    def _brief(self, item: Item) -> dict[str, Any]:
        names = {"id", "kind", "name", "state", "error", "width", "height", "people", "saved", "changed", "notes"}
        actions, result = [face.action for face in item.faces], self.review.picture("result", item.id)
        new = [face.distance for face in item.faces if face.action in SYNTHETIC_ACTIONS]
        return item.model_dump(include=names | {"reviewed"}) | {
            "faces": len(item.faces),
            "new": len(new),
            "close": [distance for distance in new if distance is not None and distance < CLOSE],
            "possible": sum(place.open for place in item.possible),
            "undo": len(item.past),
            "redo": len(item.future),
            "drawn": result.stat().st_mtime_ns // 1_000_000 if result.exists() else 0,
            "linked": sum(face.person > 0 for face in item.faces),
            "kept": actions.count("kept"),
            "masked": actions.count("masked"),
            "doubtful": sum(bool(face.doubt) and face.action != "kept" for face in item.faces),
            "matched": sum(face.matched and face.action != "kept" for face in item.faces),
            "looked": item.state == "failed" or (item.state != "waiting" and bool(item.stamp)),
            "revision": self.review.revision_of(item.id),
            "upload": item.upload is not None,
            "thumb": self.review.picture("thumb", item.id).exists(),
            "progress": self.session.progress.get(item.id),
        }

    def _whole(self, item: Item) -> dict[str, Any]:
        return self._brief(item) | {
            "controls": self.review.controls_of(item).model_dump(),
            "own_controls": item.controls is not None,
            "after": self.review.picture("after", item.id).exists(),
            "list": [face.model_dump(exclude={"landmarks"}) for face in item.faces],
            "places": [place.model_dump(exclude={"landmarks"}) for place in item.possible],
        }

    async def upload(self, call: _Call) -> Response:
        """Take one file as the body of the request, piece by piece."""
        name = _file_name(call.query.get("name", ""))
        suffix = PurePosixPath(name).suffix.lower()
        if suffix not in READABLE_SUFFIXES | FILM_SUFFIXES:
            raise InputError(f"{name}: is neither a photo nor a film, by its name")
        kind = "film" if suffix in FILM_SUFFIXES else "photo"
        too_large = f"{name}: is larger than {LIMITS[kind] >> 20} MiB; open its folder with `ficgan ui FOLDER` instead"
        if int(call.request.headers.get("content-length", "0")) > LIMITS[kind]:
            raise InputError(too_large)
        number, size = secrets.token_hex(5), 0
        upload = f"source-{number}{suffix}"
        with atomic_write(self.review.folder / upload, mode=0o600) as file:
            async for piece in call.request.stream():
                size += len(piece)
                if size > LIMITS[kind]:
                    raise InputError(too_large)
                await run_in_threadpool(file.write, piece)
            if not size:
                raise InputError(f"{name}: is empty")
        item = await run_in_threadpool(self.session.add_upload, name, upload, number)
        return JSONResponse(self._whole(item), 201)

    def remove(self, call: _Call) -> Any:
        self.films.cancel(call.item.id)
        self.review.remove(call.item.id)
        return {}

    def look(self, call: _Call) -> Any:
        """Try a file again that failed."""
        item = call.item
        self.review.change(item.id, quiet=True, state="waiting", error="")
        self.session.look(item.id)
        return call.item

    def picture(self, call: _Call) -> Any:
        kind, number = call.path["kind"], call.item.id
        if "whole" in call.query:
            return self.photos.whole(number) if kind == "after" else self.session.whole(number)
        return self.review.picture(kind, number) if kind in ("thumb", "before", "after", "result") else None

    # -- decisions ----------------------------------------------------------------------------------------------------

    def controls(self, call: _Call) -> Any:
        """Controls of one photo, or of all."""
        controls, number = checked(Controls, call.given, "the settings"), call.path.get("id")
        future = self.session.set_controls(controls, number)
        return (future or call.item) if number else {"controls": controls.model_dump()}

    def decide(self, call: _Call) -> Any:
        """On one face, or on all."""
        values, face = call.decided(_OnFaces), call.path.get("face")
        if values.get("drawing") is not None:
            self.session.check(values["drawing"])
        return self.photos.decide(call.item.id, None if face is None else [face], **values)

    def take_possible(self, call: _Call) -> Any:
        given = checked(_Places, call.given, "the request")
        return self.photos.take_possible(call.item.id, given.places, given.mode)

    def decide_files(self, call: _Call) -> Any:
        values = call.decided(_OnFiles)
        self.session.decide(values.pop("ids"), values)
        return {}

    def undo(self, call: _Call) -> Any:
        """The last decision on a file; with ?redo what was undone last."""
        self.session.undo(call.item.id, redo="redo" in call.query)
        return call.item if call.item.kind == "film" else self.photos.redraw(call.item.id)

    # -- films --------------------------------------------------------------------------------------------------------

    def edit_film(self, call: _Call) -> Any:
        """Change the decisions on a film, in the form of its decisions.json."""
        self.films.edit(call.item.id, call.given)
        return self.films.describe(call.item.id)

    def video(self, call: _Call) -> Any:
        """The film, or its last result, for the player; the browser asks for parts of it."""
        return self.review.result(call.item) if "after" in call.query else self.review.source(call.item)

    def at(self, call: _Call) -> Any:
        """The frame that is shown at a second, or of a number, with the boxes in it."""
        time, frame = call.query.get("time"), int(call.query.get("frame", 0))
        return self.films.at(call.item.id, frame if time is None else float(time))

    def strip(self, call: _Call) -> Any:
        return thumbnail(self.review.film_folder(call.item.id), call.path["track"], False)

    def frame(self, call: _Call) -> Any:
        number, at = call.item.id, call.path["frame"]
        if "after" in call.query:
            return self.films.frame_after(number, at)
        return self.films.frame(number, at, result="result" in call.query)


def _download(tree: dict[str, Any]) -> Response:
    """What was decided, as a file."""
    headers = {"content-disposition": 'attachment; filename="decisions.json"'}
    text = json.dumps(tree, indent=1, ensure_ascii=False) + "\n"
    return Response(text, media_type="application/json", headers=headers)


def _sorry(why: str, status: int) -> Response:
    return JSONResponse({"error": why}, status)


async def _json(request: Request) -> dict[str, Any]:
    data = b""
    async for piece in request.stream():
        data += piece
        if len(data) > LIMITS["json"]:
            raise InputError("the request is too large")
    try:
        given = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        raise InputError("the request is not valid JSON") from None
    if not isinstance(given, dict):
        raise InputError("the request must be a JSON object")
    return given


def _file_name(name: str) -> str:
    """The last part of a name, without what no file name should hold."""
    last = PureWindowsPath(PurePosixPath(name.replace("\0", "")).name).name
    last = "".join(letter for letter in last if letter.isprintable()).strip().lstrip(".")
    stem, suffix = PurePosixPath(last).stem, PurePosixPath(last).suffix
    while len(stem.encode()) > 180:
        stem = stem[:-1]
    return f"{stem or 'file'}{suffix[:9]}"


# -- who is let in -----------------------------------------------------------------------------------------------------

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
}
HEADER = "x-ficgan-token"


class Guard:
    """Lets nobody in without the token, and nothing out without the security headers; host: "127.0.0.1:PORT"."""

    def __init__(self, app: ASGIApp, token: str, host: str) -> None:
        self.app, self.token, self.host = app, token, host
        self.cookie = f"ficgan-{host.rpartition(':')[2]}"  # cookies do not tell ports apart

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self.refusal(Request(scope))
        if refusal is None and scope["path"] == "/" and b"token=" in scope["query_string"]:
            answer: ASGIApp = RedirectResponse("/", 303)
            answer.set_cookie(self.cookie, self.token, httponly=True, samesite="strict", path="/")  # type: ignore[attr-defined]
        else:
            answer = self.app if refusal is None else PlainTextResponse(refusal, 403)
        await answer(scope, receive, sending)

    def refusal(self, request: Request) -> str | None:
        """Why a request is refused; None where it may pass."""
        if request.headers.get("host") != self.host:
            return f"This address is not served here; open http://{self.host}/ as “ficgan ui” printed it."
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "none")
        if origin not in (None, f"http://{self.host}") or site not in ("none", "same-origin"):
            return "Another page asked for this; it is refused."
        given = request.headers.get(HEADER)
        if given is None and origin is None and request.method not in ("GET", "HEAD"):
            return "A change must come from the page itself."
        if given is None and request.url.path == "/":
            given = parse_qs(request.url.query).get("token", [None])[0]
        given = given or request.cookies.get(self.cookie, "")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return "The token is missing or old; open the address that “ficgan ui” printed last."
        return None


# -- the server -------------------------------------------------------------------------------------------------------


def serve(app: ASGIApp, listener: socket.socket, token: str) -> None:
    """Answer for an application at a socket of 127.0.0.1 until Ctrl-C or SIGTERM."""
    host = f"127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(
        Guard(app, token, host),
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    uvicorn.Server(config).run(sockets=[listener])
