"""The web application: one page and a small JSON interface. Files are named by ids of the review, never by paths."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib.resources import files
from inspect import iscoroutinefunction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Literal
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ficgan.deidentify.review import Drawing
from ficgan.errors import FicganError, InputError
from ficgan.files import atomic_write
from ficgan.folders import checked
from ficgan.images import FILM_SUFFIXES, READABLE_SUFFIXES
from ficgan.records.risks import CLOSE
from ficgan.ui import MODES, Controls, Item, Review
from ficgan.ui.photos import NEW
from ficgan.ui.session import Session
from ficgan.ui.work import sentence

# Bytes of an upload and of a request.
LIMITS = {"photo": 500 << 20, "film": 100 << 30, "json": 1 << 20}
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
PAGES = {
    "/" if path.name == "index.html" else f"/{path.name}": (path.name, _KINDS[Path(path.name).suffix])
    for path in files("ficgan.ui").joinpath("page").iterdir()
    if Path(path.name).suffix in _KINDS
}

# What a handler may give: a file's entry, a picture (its bytes or file), JSON, a response, or a future of one of these.
Answer = Item | bytes | Path | dict[str, Any] | list[Any] | Response | Future[Any]
Handler = Callable[..., Answer | Awaitable[Answer]]


def make_app(session: Session) -> Starlette:
    """The application without its guard."""
    return Starlette(routes=_Routes(session).all())


@dataclass(frozen=True)
class _Call:
    """A request, and the JSON of its body."""

    request: Request
    review: Review
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def item(self) -> Item:
        """The file of the path; a KeyError where there is none."""
        return self.review[self.path["id"]]

    @property
    def path(self) -> dict[str, Any]:
        return self.request.path_params

    @property
    def query(self) -> Mapping[str, str]:
        return self.request.query_params


class _Routes:
    """Handlers run in threads, but for those that are async."""

    def __init__(self, session: Session) -> None:
        self.session, self.review = session, session.review
        self.photos, self.films = session.photos, session.films

    def all(self) -> list[Route]:
        item, photos, films = "/api/items/{id}", self.photos, self.films
        table: list[tuple[str, str, Handler]] = [
            *(("GET", path, self.page) for path in PAGES),
            ("GET", "/api/state", self.state),
            ("POST", "/api/upload", self.upload),
            ("POST", "/api/controls", self.controls),
            ("POST", "/api/save", lambda call: {"begun": self.session.save_all()}),
            ("POST", "/api/items", self.decide_files),
            ("POST", "/api/undo", lambda call: {"ids": self.session.undo(redo="redo" in call.query)}),
            ("GET", "/api/decisions.json", self.decisions),
            ("GET", item, lambda call: call.item),
            ("DELETE", item, self.remove),
            ("POST", f"{item}/look", self.look),
            ("GET", f"{item}/picture/{{kind}}", self.picture),
            ("POST", f"{item}/controls", self.controls),
            ("POST", f"{item}/save", self.save),
            ("POST", f"{item}/cancel", self.cancel),
            ("POST", f"{item}/faces", lambda call: photos.add_face(call.item.id, _box(call.given))),
            (
                "PATCH",
                f"{item}/faces",
                lambda call: photos.decide(call.item.id, None, mode=str(call.given.get("mode", ""))),
            ),
            ("POST", f"{item}/possible", self.take_possible),
            ("POST", f"{item}/undo", self.undo),
            ("GET", f"{item}/draws/{{face:int}}/{{draw:int}}", self.cut),
            ("GET", "/api/people", lambda call: photos.people.rows()),
            ("POST", "/api/people", self.link),
            ("GET", f"{item}/faces/{{face:int}}/picture", self.face_picture),
            ("PATCH", f"{item}/faces/{{face:int}}", self.decide),
            ("DELETE", f"{item}/faces/{{face:int}}", lambda call: photos.remove_face(call.item.id, call.path["face"])),
            ("GET", f"{item}/film", lambda call: films.describe(call.item.id)),
            ("PATCH", f"{item}/film", self.edit_film),
            ("GET", f"{item}/decisions.json", self.decisions),
            ("GET", f"{item}/video", self.video),
            ("GET", f"{item}/at", self.at),
            ("GET", f"{item}/frame/{{frame:int}}", self.frame),
            (
                "GET",
                f"{item}/track/{{track:int}}",
                lambda call: films.strip(call.item.id, call.path["track"], after="after" in call.query),
            ),
            ("GET", f"{item}/people/{{key}}/{{draw:int}}", self.person_cut),
        ]
        return [Route(path, self._answering(handler), methods=[method]) for method, path, handler in table]

    def _answering(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """A handler whose answer becomes a response, and what it raises one sentence."""

        async def answer(request: Request) -> Response:
            try:
                if iscoroutinefunction(handler):
                    made = await handler(_Call(request, self.review))
                else:
                    call = _Call(request, self.review, {} if request.method == "GET" else await _json(request))
                    made = await run_in_threadpool(handler, call)
                return await self._response(request, made)
            except KeyError:
                return _sorry("There is no such file in this review.", 404)
            except FicganError as error:
                return _sorry(sentence(error), 422)
            except OSError as error:
                return _sorry(f"It could not be written or read: {sentence(error)}", 507)

        return answer

    async def _response(self, request: Request, made: Any) -> Response:
        if isinstance(made, Future):
            made = await asyncio.wrap_future(made)
            made = made if isinstance(made, bytes) else self.review[request.path_params["id"]]
        if isinstance(made, Response):
            return made
        if isinstance(made, bytes):
            return Response(made, media_type="image/jpeg")
        if isinstance(made, Path):
            return FileResponse(made, media_type="image/jpeg") if made.exists() else _sorry("Not drawn yet.", 404)
        return JSONResponse(self._whole(made) if isinstance(made, Item) else made)

    # -- the page, files ----------------------------------------------------------------------------------------------

    def page(self, call: _Call) -> Answer:
        name, kind = PAGES[call.request.url.path]
        return Response(files("ficgan.ui").joinpath("page", name).read_bytes(), media_type=kind)

    def state(self, call: _Call) -> Answer:
        """What changed since a revision: the page asks again and again."""
        since, items = int(_float(call.query.get("since", 0))), self.review.items()
        about = {"folder": str(self.review.root or ""), "project": str(self.review.folder)}
        about["output"] = str(self.review.output)
        entry: dict[str, Any] = {
            "revision": self.review.revision,
            "model": self.session.model,
            "ids": [item.id for item in items],
            "items": [
                self._brief(item)
                for item in items
                if self.review.revision_of(item.id) > since or item.id in self.session.progress
            ],
            "controls": self.review.controls.model_dump(),
            "modes": MODES,
            "undo": self.review.undoable() is not None,
            "redo": self.review.undoable(redo=True) is not None,
        }
        return entry | self.session.about | ({} if since else about)

    def _brief(self, item: Item) -> dict[str, Any]:
        names = {"id", "kind", "name", "state", "error", "width", "height", "people", "saved", "changed", "notes"}
        actions = [face.action for face in item.faces]
        return item.model_dump(include=names | {"reviewed"}) | {
            "faces": len(item.faces),
            "new": sum(action in NEW for action in actions),
            "close": [
                face.distance
                for face in item.faces
                if face.action in NEW and face.distance is not None and face.distance < CLOSE
            ],
            "possible": sum(place.open for place in item.possible),
            "undo": len(item.past),
            "redo": len(item.future),
            "drawn": _time_of(self.review.picture("result", item.id)),
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

    async def upload(self, call: _Call) -> Answer:
        """Take one file as the body of the request, piece by piece."""
        name = _file_name(call.query.get("name", ""))
        suffix = PurePosixPath(name).suffix.lower()
        if suffix not in READABLE_SUFFIXES | FILM_SUFFIXES:
            raise InputError(f"{name}: is neither a photo nor a film, by its name")
        kind = "film" if suffix in FILM_SUFFIXES else "photo"
        number = secrets.token_hex(5)
        upload = f"source-{number}{suffix}"
        await self._receive(call.request, self.review.folder / upload, LIMITS[kind], name)
        item = await run_in_threadpool(self.session.add_upload, name, upload, number)
        return JSONResponse(self._whole(item), 201)

    @staticmethod
    async def _receive(request: Request, path: Path, limit: int, name: str) -> None:
        too_large = f"{name}: is larger than {limit >> 20} MiB; open its folder with `ficgan ui FOLDER` instead"
        if int(request.headers.get("content-length", "0")) > limit:
            raise InputError(too_large)
        size = 0
        with atomic_write(path, mode=0o600) as file:
            async for piece in request.stream():
                size += len(piece)
                if size > limit:
                    raise InputError(too_large)
                await run_in_threadpool(file.write, piece)
            if not size:
                raise InputError(f"{name}: is empty")

    def remove(self, call: _Call) -> Answer:
        self.films.cancel(call.item.id)
        self.review.remove(call.path["id"])
        return {}

    def look(self, call: _Call) -> Answer:
        """Try a file again that failed."""
        item = call.item
        self.review.change(item.id, quiet=True, state="waiting", error="")
        self.session.look(item.id)
        return call.item

    def picture(self, call: _Call) -> Answer:
        kind, item = call.path["kind"], call.item
        if kind not in ("thumb", "before", "after", "result"):
            return _sorry("There is no such picture.", 404)
        if "whole" in call.query and kind in ("before", "after"):
            return self.photos.whole(item.id) if kind == "after" else self.session.whole(item.id)
        return self.review.picture(kind, item.id)

    def save(self, call: _Call) -> Answer:
        item = call.item
        future = self.session.save(item.id)
        return call.item if item.kind == "film" else future

    def cancel(self, call: _Call) -> Answer:
        self.films.cancel(call.item.id)
        return {}

    # -- decisions ----------------------------------------------------------------------------------------------------

    def controls(self, call: _Call) -> Answer:
        """Controls of one photo, or of all."""
        controls, number = checked(Controls, call.given, "the settings"), call.path.get("id")
        future = self.session.set_controls(controls, number)
        return (future or call.item) if number else {"controls": controls.model_dump()}

    def decide(self, call: _Call) -> Answer:
        if unknown := set(call.given) - {"mode", "draw", "drawing"}:
            raise InputError(f"a face has no {', '.join(sorted(unknown))}")
        if call.given.get("drawing") is not None:
            self.session.check(checked(Drawing, call.given["drawing"], "the settings"))
        return self.photos.decide(call.path["id"], [call.path["face"]], **call.given)

    def take_possible(self, call: _Call) -> Answer:
        """Take `places` that may be faces for faces; without it all that are open."""
        places = call.given.get("places")
        if places is not None and not (isinstance(places, list) and all(type(n) is int for n in places)):
            raise InputError("places is a list of numbers")
        return self.photos.take_possible(call.item.id, places, str(call.given.get("mode", "plain")))

    def decide_files(self, call: _Call) -> Answer:
        """One decision on several files."""
        ids = call.given.pop("ids", None)
        if not isinstance(ids, list) or not all(isinstance(number, str) for number in ids):
            raise InputError("ids is a list of files")
        if unknown := set(call.given) - {"mode", "possible", "reviewed"}:
            raise InputError(f"files have no {', '.join(sorted(unknown))}")
        if {call.given.get("mode", ""), call.given.get("possible", "")} - {"", *MODES}:
            raise InputError(f"a mode is one of {', '.join(MODES)}")
        self.session.decide(ids, call.given)
        return {"ids": ids}

    def undo(self, call: _Call) -> Answer:
        """The last decision on a file; with ?redo what was undone last."""
        item, redo = call.item, "redo" in call.query
        return self.review.undo(item.id, redo=redo) if item.kind == "film" else self.photos.undo(item.id, redo=redo)

    def decisions(self, call: _Call) -> Answer:
        """What was decided, as a file: on one photo or film, or on all photos."""
        tree = self.session.decisions(call.path.get("id"))
        headers = {"content-disposition": 'attachment; filename="decisions.json"'}
        text = json.dumps(tree, indent=1, ensure_ascii=False) + "\n"
        return Response(text, media_type="application/json", headers=headers)

    # -- photos -------------------------------------------------------------------------------------------------------

    async def link(self, call: _Call) -> Answer:
        """Compare the faces of all photos."""
        return {"people": await asyncio.wrap_future(await run_in_threadpool(self.photos.people.link))}

    def face_picture(self, call: _Call) -> Answer:
        item, face = call.item, call.path["face"]
        kind: Literal["before", "after"] = "after" if "after" in call.query else "before"
        if face >= len(item.faces) or not self.review.picture(kind, item.id).exists():
            return _sorry("There is no such face.", 404)
        return self.photos.face_picture(item, face, kind)

    def cut(self, call: _Call) -> Answer:
        """A face as an earlier draw showed it."""
        item, face = call.item, call.path["face"]
        if face >= len(item.faces):
            return _sorry("There is no such face.", 404)
        return self.photos.cut(item, face, call.path["draw"])

    # -- films --------------------------------------------------------------------------------------------------------

    def edit_film(self, call: _Call) -> Answer:
        """Change the decisions on a film, in the form of its decisions.json."""
        self.films.edit(call.item.id, call.given)
        return self.films.describe(call.item.id)

    def video(self, call: _Call) -> Answer:
        """The film, or its last result, for the player; the browser asks for parts of it."""
        item = call.item
        path = self.review.result(item) if "after" in call.query else self.review.source(item)
        return FileResponse(path) if path is not None else _sorry("There is no result yet.", 404)

    def at(self, call: _Call) -> Answer:
        """The frame that is shown at a second, or of a number, with the boxes in it."""
        time, frame = call.query.get("time"), int(_float(call.query.get("frame", 0)))
        return self.films.at(call.item.id, time=None if time is None else _float(time), frame=frame)

    def frame(self, call: _Call) -> Answer:
        films, query = self.films, call.query
        draw = films.frame_after if "after" in query else films.frame_of_result if "result" in query else films.frame
        return draw(call.item.id, call.path["frame"])

    def person_cut(self, call: _Call) -> Answer:
        """The new face of a person of a film as a draw showed it."""
        path = self.films.cut(call.item.id, call.path["key"], call.path["draw"])
        return path or _sorry("There is no such person.", 404)


def _sorry(sentence: str, status: int) -> Response:
    return JSONResponse({"error": sentence}, status)


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


def _box(given: dict[str, Any]) -> tuple[float, float, float, float]:
    box = given.get("box")
    if not isinstance(box, list) or len(box) != 4:
        raise InputError("a box is [x0, y0, x1, y1]")
    x0, y0, x1, y1 = (_float(value) for value in box)
    return min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)


def _float(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not abs(number) < 1e9:
        raise InputError("a number is missing or is none")
    return number


def _time_of(path: Path) -> int:
    """When a picture was made; 0 where it is not there."""
    return path.stat().st_mtime_ns // 1_000_000 if path.exists() else 0


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
    """Lets nobody in without the token, and nothing out without the security headers.

    Args:
        app: what is guarded.
        token: the secret.
        host: "127.0.0.1:PORT".
    """

    def __init__(self, app: ASGIApp, token: str, host: str) -> None:
        self.app, self.token, self.host = app, token, host
        self.cookie = f"ficgan-{host.rpartition(':')[2]}"  # cookies do not tell ports apart

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in message["headers"]}
                added = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in names]
                message["headers"] = [*message["headers"], *added]
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
        origin = request.headers.get("origin")
        if origin is not None and origin != f"http://{self.host}":
            return "Another page asked for this; it is refused."
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
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


def open_socket(port: int = 0) -> socket.socket:
    """A listening socket of this machine alone; 0: on a free port.

    Raises:
        InputError: the port is taken.
    """
    try:
        # Whoever reads the address may be faster than the server.
        return socket.create_server(("127.0.0.1", port), backlog=100)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise InputError(f"port {port} of 127.0.0.1 cannot be used ({why}); leave --port out") from None


def serve(app: ASGIApp, listener: socket.socket, token: str) -> None:
    """Answer for an application until Ctrl-C or SIGTERM."""
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
