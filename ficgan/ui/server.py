"""The web application: one page and a small JSON interface. Files are named by ids of the review, never by paths."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from importlib.resources import files
from inspect import iscoroutinefunction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from ficgan.deidentify.review import Drawing
from ficgan.errors import FicganError, InputError
from ficgan.files import atomic_write
from ficgan.folders import checked
from ficgan.images import FILM_SUFFIXES, READABLE_SUFFIXES
from ficgan.records.risks import CLOSE
from ficgan.ui.items import MODES, Controls, Item
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

# What a handler may give: a file's entry, a picture (its bytes or file), JSON, a response, or one of these in its turn.
Answer = Item | bytes | Path | dict[str, Any] | list[Any] | Response | Future[Any]
Handler = Callable[..., Answer | Awaitable[Answer]]


def make_app(session: Session) -> Starlette:
    """The application without its guard."""
    return Starlette(routes=_Routes(session).all())


class _Routes:
    """Handlers get the request and the JSON of its body. They run in threads, but for those that are async."""

    def __init__(self, session: Session) -> None:
        self.session, self.review = session, session.review
        self.photos, self.films = session.photos, session.films

    def all(self) -> list[Route]:
        item = "/api/items/{id}"
        table: list[tuple[str, str, Handler]] = [
            *(("GET", path, self.page) for path in PAGES),
            ("GET", "/api/state", self.state),
            ("POST", "/api/upload", self.upload),
            ("POST", "/api/controls", self.controls),
            ("POST", "/api/save", self.save_all),
            ("POST", "/api/items", self.decide_files),
            ("POST", "/api/undo", self.undo_all),
            ("GET", "/api/decisions.json", self.decisions),
            ("GET", item, self.item),
            ("DELETE", item, self.remove),
            ("POST", f"{item}/look", self.look),
            ("GET", f"{item}/picture/{{kind}}", self.picture),
            ("POST", f"{item}/controls", self.controls),
            ("POST", f"{item}/save", self.save),
            ("POST", f"{item}/cancel", self.cancel),
            ("POST", f"{item}/faces", self.add_face),
            ("PATCH", f"{item}/faces", self.decide_faces),
            ("POST", f"{item}/possible", self.take_possible),
            ("POST", f"{item}/undo", self.undo),
            ("GET", f"{item}/draws/{{face:int}}/{{draw:int}}", self.cut),
            ("GET", "/api/people", self.people),
            ("POST", "/api/people", self.link),
            ("GET", f"{item}/faces/{{face:int}}/picture", self.face_picture),
            ("PATCH", f"{item}/faces/{{face:int}}", self.decide),
            ("DELETE", f"{item}/faces/{{face:int}}", self.remove_face),
            ("GET", f"{item}/film", self.film),
            ("PATCH", f"{item}/film", self.edit_film),
            ("GET", f"{item}/decisions.json", self.decisions),
            ("GET", f"{item}/video", self.video),
            ("GET", f"{item}/at", self.at),
            ("GET", f"{item}/frame/{{frame:int}}", self.frame),
            ("GET", f"{item}/track/{{track:int}}", self.track),
            ("GET", f"{item}/people/{{key}}/{{draw:int}}", self.person_cut),
        ]
        return [Route(path, self._answering(handler), methods=[method]) for method, path, handler in table]

    def _answering(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """A handler whose answer becomes a response, and what it raises one sentence."""

        async def answer(request: Request) -> Response:
            try:
                if iscoroutinefunction(handler):
                    made = await handler(request)
                else:
                    given = {} if request.method == "GET" else await _json(request)
                    made = await run_in_threadpool(handler, request, given)
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
            made = made if isinstance(made, bytes) else self._item(request)
        if isinstance(made, Response):
            return made
        if isinstance(made, bytes):
            return Response(made, media_type="image/jpeg")
        if isinstance(made, Path):
            return FileResponse(made, media_type="image/jpeg") if made.exists() else _sorry("Not drawn yet.", 404)
        return JSONResponse(self._whole(made) if isinstance(made, Item) else made)

    # -- the page, files ----------------------------------------------------------------------------------------------

    def page(self, request: Request, given: dict[str, Any]) -> Answer:
        name, kind = PAGES[request.url.path]
        return Response(files("ficgan.ui").joinpath("page", name).read_bytes(), media_type=kind)

    def state(self, request: Request, given: dict[str, Any]) -> Answer:
        """What changed since a revision: the page asks again and again."""
        since, items = _number(request, "since", 0), self.review.items()
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

    def _item(self, request: Request) -> Item:
        return self.review[request.path_params["id"]]

    def item(self, request: Request, given: dict[str, Any]) -> Answer:
        return self._item(request)

    async def upload(self, request: Request) -> Answer:
        """Take one file as the body of the request, piece by piece."""
        name = _file_name(request.query_params.get("name", ""))
        suffix = PurePosixPath(name).suffix.lower()
        if suffix not in READABLE_SUFFIXES | FILM_SUFFIXES:
            raise InputError(f"{name}: is neither a photo nor a film, by its name")
        kind = "film" if suffix in FILM_SUFFIXES else "photo"
        number = secrets.token_hex(5)
        upload = f"source-{number}{suffix}"
        await self._receive(request, self.review.folder / upload, LIMITS[kind], name)
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

    def remove(self, request: Request, given: dict[str, Any]) -> Answer:
        self.films.cancel(self._item(request).id)
        self.review.remove(request.path_params["id"])
        return {}

    def look(self, request: Request, given: dict[str, Any]) -> Answer:
        """Try a file again that failed."""
        item = self._item(request)
        self.review.change(item.id, quiet=True, state="waiting", error="")
        self.session.look(item.id)
        return self._item(request)

    def picture(self, request: Request, given: dict[str, Any]) -> Answer:
        kind, item = request.path_params["kind"], self._item(request)
        if kind not in ("thumb", "before", "after", "result"):
            return _sorry("There is no such picture.", 404)
        if "whole" in request.query_params and kind in ("before", "after"):
            return self.photos.whole(item.id) if kind == "after" else self.session.whole(item.id)
        return self.review.picture(kind, item.id)

    def save(self, request: Request, given: dict[str, Any]) -> Answer:
        item = self._item(request)
        future = self.session.save(item.id)
        return self._item(request) if item.kind == "film" else future

    def save_all(self, request: Request, given: dict[str, Any]) -> Answer:
        """Every file with a result that is not written yet, in the background."""
        return {"begun": self.session.save_all()}

    def cancel(self, request: Request, given: dict[str, Any]) -> Answer:
        self.films.cancel(self._item(request).id)
        return {}

    # -- decisions ----------------------------------------------------------------------------------------------------

    def controls(self, request: Request, given: dict[str, Any]) -> Answer:
        """Controls of one photo, or of all."""
        controls, number = checked(Controls, given, "the settings"), request.path_params.get("id")
        future = self.session.set_controls(controls, number)
        return (future or self._item(request)) if number else {"controls": controls.model_dump()}

    def decide(self, request: Request, given: dict[str, Any]) -> Answer:
        if unknown := set(given) - {"mode", "draw", "drawing"}:
            raise InputError(f"a face has no {', '.join(sorted(unknown))}")
        if given.get("drawing") is not None:
            self.session.check(checked(Drawing, given["drawing"], "the settings"))
        return self.photos.decide(request.path_params["id"], [request.path_params["face"]], **given)

    def decide_faces(self, request: Request, given: dict[str, Any]) -> Answer:
        """One mode for all faces of a photo."""
        return self.photos.decide(self._item(request).id, None, mode=str(given.get("mode", "")))

    def take_possible(self, request: Request, given: dict[str, Any]) -> Answer:
        """Take `places` that may be faces for faces; without it all that are open."""
        places = given.get("places")
        if places is not None and not (isinstance(places, list) and all(type(n) is int for n in places)):
            raise InputError("places is a list of numbers")
        return self.photos.take_possible(self._item(request).id, places, str(given.get("mode", "plain")))

    def decide_files(self, request: Request, given: dict[str, Any]) -> Answer:
        """One decision on several files."""
        ids = given.pop("ids", None)
        if not isinstance(ids, list) or not all(isinstance(number, str) for number in ids):
            raise InputError("ids is a list of files")
        if unknown := set(given) - {"mode", "possible", "reviewed"}:
            raise InputError(f"files have no {', '.join(sorted(unknown))}")
        if {given.get("mode", ""), given.get("possible", "")} - {"", *MODES}:
            raise InputError(f"a mode is one of {', '.join(MODES)}")
        self.session.decide(ids, given)
        return {"ids": ids}

    def undo_all(self, request: Request, given: dict[str, Any]) -> Answer:
        """The last action of all; with ?redo what was undone last."""
        return {"ids": self.session.undo(redo="redo" in request.query_params)}

    def undo(self, request: Request, given: dict[str, Any]) -> Answer:
        """The last decision on a file; with ?redo what was undone last."""
        item, redo = self._item(request), "redo" in request.query_params
        return self.review.undo(item.id, redo=redo) if item.kind == "film" else self.photos.undo(item.id, redo=redo)

    def decisions(self, request: Request, given: dict[str, Any]) -> Answer:
        """What was decided, as a file: on one photo or film, or on all photos."""
        tree = self.session.decisions(request.path_params.get("id"))
        headers = {"content-disposition": 'attachment; filename="decisions.json"'}
        text = json.dumps(tree, indent=1, ensure_ascii=False) + "\n"
        return Response(text, media_type="application/json", headers=headers)

    # -- photos -------------------------------------------------------------------------------------------------------

    def people(self, request: Request, given: dict[str, Any]) -> Answer:
        """Who is in several photos."""
        return self.photos.people.rows()

    async def link(self, request: Request) -> Answer:
        """Compare the faces of all photos."""
        return {"people": await asyncio.wrap_future(await run_in_threadpool(self.photos.people.link))}

    def face_picture(self, request: Request, given: dict[str, Any]) -> Answer:
        item, face = self._item(request), request.path_params["face"]
        kind: Literal["before", "after"] = "after" if "after" in request.query_params else "before"
        if face >= len(item.faces) or not self.review.picture(kind, item.id).exists():
            return _sorry("There is no such face.", 404)
        return self.photos.face_picture(item, face, kind)

    def cut(self, request: Request, given: dict[str, Any]) -> Answer:
        """A face as an earlier draw showed it."""
        item, face = self._item(request), request.path_params["face"]
        if face >= len(item.faces):
            return _sorry("There is no such face.", 404)
        return self.photos.cut(item, face, request.path_params["draw"])

    def add_face(self, request: Request, given: dict[str, Any]) -> Answer:
        return self.photos.add_face(self._item(request).id, _box(given))

    def remove_face(self, request: Request, given: dict[str, Any]) -> Answer:
        return self.photos.remove_face(self._item(request).id, request.path_params["face"])

    # -- films --------------------------------------------------------------------------------------------------------

    def film(self, request: Request, given: dict[str, Any]) -> Answer:
        return self.films.describe(self._item(request).id)

    def edit_film(self, request: Request, given: dict[str, Any]) -> Answer:
        """Change the decisions on a film, in the form of its decisions.json."""
        self.films.edit(self._item(request).id, given)
        return self.film(request, {})

    def track(self, request: Request, given: dict[str, Any]) -> Answer:
        after = "after" in request.query_params
        return self.films.strip(self._item(request).id, request.path_params["track"], after=after)

    def video(self, request: Request, given: dict[str, Any]) -> Answer:
        """The film, or its last result, for the player; the browser asks for parts of it."""
        item = self._item(request)
        path = self.review.result(item) if "after" in request.query_params else self.review.source(item)
        return FileResponse(path) if path is not None else _sorry("There is no result yet.", 404)

    def at(self, request: Request, given: dict[str, Any]) -> Answer:
        """The frame that is shown at a second, or of a number, with the boxes in it."""
        time, frame = request.query_params.get("time"), _number(request, "frame", 0)
        return self.films.at(self._item(request).id, time=None if time is None else _float(time), frame=frame)

    def frame(self, request: Request, given: dict[str, Any]) -> Answer:
        films, query = self.films, request.query_params
        draw = films.frame_after if "after" in query else films.frame_of_result if "result" in query else films.frame
        return draw(self._item(request).id, request.path_params["frame"])

    def person_cut(self, request: Request, given: dict[str, Any]) -> Answer:
        """The new face of a person of a film as a draw showed it."""
        path = self.films.cut(self._item(request).id, request.path_params["key"], request.path_params["draw"])
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


def _number(request: Request, name: str, usual: int) -> int:
    return int(_float(request.query_params.get(name, usual)))


def _file_name(name: str) -> str:
    """The last part of a name, without what no file name should hold."""
    last = PureWindowsPath(PurePosixPath(name.replace("\0", "")).name).name
    last = "".join(letter for letter in last if letter.isprintable()).strip().lstrip(".")
    stem, suffix = PurePosixPath(last).stem, PurePosixPath(last).suffix
    while len(stem.encode()) > 180:
        stem = stem[:-1]
    return f"{stem or 'file'}{suffix[:9]}"
