"""The web application: one page and a small JSON interface. Files are named by ids of the review, never by paths."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable
from importlib.resources import files
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

Handler = Callable[[Request], Awaitable[Response]]


def make_app(session: Session) -> Starlette:
    """The application without its guard."""
    return Starlette(routes=_Routes(session).all())


class _Routes:
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
        return [Route(path, _telling(handler), methods=[method]) for method, path, handler in table]

    # -- the page, files ----------------------------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        name, kind = PAGES[request.url.path]
        return Response(files("ficgan.ui").joinpath("page", name).read_bytes(), media_type=kind)

    async def state(self, request: Request) -> Response:
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
        return JSONResponse(entry | self.session.about | ({} if since else about))

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

    async def item(self, request: Request) -> Response:
        return JSONResponse(self._whole(self._item(request)))

    def _item(self, request: Request) -> Item:
        return self.review[request.path_params["id"]]

    async def _done(self, request: Request, future: Any = None) -> Response:
        """The file after a change was drawn."""
        if future is not None:
            await asyncio.wrap_future(future)
        return JSONResponse(self._whole(self._item(request)))

    async def upload(self, request: Request) -> Response:
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

    async def remove(self, request: Request) -> Response:
        self.films.cancel(self._item(request).id)
        await run_in_threadpool(self.review.remove, request.path_params["id"])
        return JSONResponse({})

    async def look(self, request: Request) -> Response:
        """Try a file again that failed."""
        item = self._item(request)
        self.review.change(item.id, quiet=True, state="waiting", error="")
        self.session.look(item.id)
        return JSONResponse(self._whole(self._item(request)))

    async def picture(self, request: Request) -> Response:
        kind, item = request.path_params["kind"], self._item(request)
        if kind not in ("thumb", "before", "after", "result"):
            return _sorry("There is no such picture.", 404)
        if "whole" in request.query_params and kind in ("before", "after"):
            whole = self.photos.whole if kind == "after" else self.session.whole
            future = await run_in_threadpool(whole, item.id)
            return Response(await asyncio.wrap_future(future), media_type="image/jpeg")
        path = self.review.picture(kind, item.id)
        return FileResponse(path, media_type="image/jpeg") if path.exists() else _sorry("Not drawn yet.", 404)

    # -- decisions on photos ------------------------------------------------------------------------------------------

    async def controls(self, request: Request) -> Response:
        """Controls of one photo, or of all."""
        controls = checked(Controls, await _json(request), "the settings")
        number = request.path_params.get("id")
        future = await run_in_threadpool(self.session.set_controls, controls, number)
        return await self._done(request, future) if number else JSONResponse({"controls": controls.model_dump()})

    async def decide(self, request: Request) -> Response:
        given = await _json(request)
        if unknown := set(given) - {"mode", "draw", "drawing"}:
            raise InputError(f"a face has no {', '.join(sorted(unknown))}")
        number, face = request.path_params["id"], request.path_params["face"]
        if given.get("drawing") is not None:
            drawing = checked(Drawing, given["drawing"], "the settings")
            await run_in_threadpool(self.session.check, drawing)
        return await self._done(request, await run_in_threadpool(self.photos.decide, number, [face], **given))

    async def people(self, request: Request) -> Response:
        """Who is in several photos."""
        return JSONResponse(self.photos.people.rows())

    async def link(self, request: Request) -> Response:
        """Compare the faces of all photos."""
        count = await asyncio.wrap_future(await run_in_threadpool(self.photos.people.link))
        return JSONResponse({"people": count})

    async def face_picture(self, request: Request) -> Response:
        item, face = self._item(request), request.path_params["face"]
        kind: Literal["before", "after"] = "after" if "after" in request.query_params else "before"
        if face >= len(item.faces) or not self.review.picture(kind, item.id).exists():
            return _sorry("There is no such face.", 404)
        return Response(await run_in_threadpool(self.photos.face_picture, item, face, kind), media_type="image/jpeg")

    async def decide_faces(self, request: Request) -> Response:
        """One mode for all faces of a photo."""
        mode = str((await _json(request)).get("mode", ""))
        number = self._item(request).id
        return await self._done(request, await run_in_threadpool(self.photos.decide, number, None, mode=mode))

    async def take_possible(self, request: Request) -> Response:
        """Take `places` that may be faces for faces; without it all that are open."""
        given, number = await _json(request), self._item(request).id
        places = given.get("places")
        if places is not None and not (isinstance(places, list) and all(type(n) is int for n in places)):
            raise InputError("places is a list of numbers")
        mode = str(given.get("mode", "plain"))
        return await self._done(request, await run_in_threadpool(self.photos.take_possible, number, places, mode))

    async def decide_files(self, request: Request) -> Response:
        """One decision on several files."""
        given = await _json(request)
        ids = given.pop("ids", None)
        if not isinstance(ids, list) or not all(isinstance(number, str) for number in ids):
            raise InputError("ids is a list of files")
        if unknown := set(given) - {"mode", "possible", "reviewed"}:
            raise InputError(f"files have no {', '.join(sorted(unknown))}")
        if {given.get("mode", ""), given.get("possible", "")} - {"", *MODES}:
            raise InputError(f"a mode is one of {', '.join(MODES)}")
        await run_in_threadpool(self.session.decide, ids, given)
        return JSONResponse({"ids": ids})

    async def undo_all(self, request: Request) -> Response:
        """The last action of all; with ?redo what was undone last."""
        redo = "redo" in request.query_params
        return JSONResponse({"ids": await run_in_threadpool(lambda: self.session.undo(redo=redo))})

    async def undo(self, request: Request) -> Response:
        """The last decision on a file; with ?redo what was undone last."""
        item, redo = self._item(request), "redo" in request.query_params
        if item.kind == "film":
            await run_in_threadpool(lambda: self.review.undo(item.id, redo=redo))
            return await self._done(request)
        return await self._done(request, await run_in_threadpool(lambda: self.photos.undo(item.id, redo=redo)))

    async def cut(self, request: Request) -> Response:
        """A face as an earlier draw showed it."""
        item, face = self._item(request), request.path_params["face"]
        if face >= len(item.faces):
            return _sorry("There is no such face.", 404)
        path = self.photos.cut(item, face, request.path_params["draw"])
        return FileResponse(path, media_type="image/jpeg") if path.exists() else _sorry("Not kept.", 404)

    async def add_face(self, request: Request) -> Response:
        return await self._done(request, self.photos.add_face(self._item(request).id, _box(await _json(request))))

    async def remove_face(self, request: Request) -> Response:
        return await self._done(request, self.photos.remove_face(self._item(request).id, request.path_params["face"]))

    async def save(self, request: Request) -> Response:
        item = self._item(request)
        future = self.session.save(item.id)
        return await self._done(request, None if item.kind == "film" else future)

    async def save_all(self, request: Request) -> Response:
        """Every file with a result that is not written yet, in the background."""
        return JSONResponse({"begun": self.session.save_all()})

    async def cancel(self, request: Request) -> Response:
        self.films.cancel(self._item(request).id)
        return JSONResponse({})

    # -- films --------------------------------------------------------------------------------------------------------

    async def film(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self.films.describe, self._item(request).id))

    async def track(self, request: Request) -> Response:
        number, track = self._item(request).id, request.path_params["track"]
        path = self.films.strip(number, track, after="after" in request.query_params)
        return FileResponse(path, media_type="image/jpeg") if path.exists() else _sorry("No picture of it.", 404)

    async def edit_film(self, request: Request) -> Response:
        """Change the decisions on a film, in the form of its decisions.json."""
        given, number = await _json(request), self._item(request).id
        await run_in_threadpool(self.films.edit, number, given)
        return await self.film(request)

    async def decisions(self, request: Request) -> Response:
        """What was decided, as a file: on one photo or film, or on all photos."""
        number = request.path_params.get("id")
        tree = await run_in_threadpool(self.session.decisions, number)
        text = json.dumps(tree, indent=1, ensure_ascii=False) + "\n"
        headers = {"content-disposition": 'attachment; filename="decisions.json"'}
        return Response(text, media_type="application/json", headers=headers)

    async def video(self, request: Request) -> Response:
        """The film, or its last result, for the player; the browser asks for parts of it."""
        item = self._item(request)
        if "after" not in request.query_params:
            return FileResponse(self.review.source(item))
        path = self.review.result(item)
        return FileResponse(path) if path is not None else _sorry("There is no result yet.", 404)

    async def at(self, request: Request) -> Response:
        """The frame that is shown at a second, or of a number, with the boxes in it."""
        time, frame = request.query_params.get("time"), _number(request, "frame", 0)
        place = {"frame": frame} if time is None else {"time": _float(time)}
        return JSONResponse(await run_in_threadpool(lambda: self.films.at(self._item(request).id, **place)))

    async def frame(self, request: Request) -> Response:
        number, at = self._item(request).id, request.path_params["frame"]
        films, query = self.films, request.query_params
        draw = films.frame_after if "after" in query else films.frame_of_result if "result" in query else films.frame
        picture = await asyncio.wrap_future(await run_in_threadpool(draw, number, at))
        return Response(picture, media_type="image/jpeg")

    async def person_cut(self, request: Request) -> Response:
        """The new face of a person of a film as a draw showed it."""
        number, given = self._item(request).id, request.path_params
        path = await run_in_threadpool(self.films.cut, number, given["key"], given["draw"])
        return FileResponse(path, media_type="image/jpeg") if path and path.exists() else _sorry("Not drawn yet.", 404)


def _telling(handler: Handler) -> Handler:
    """What a handler raises becomes one sentence."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except KeyError:
            return _sorry("There is no such file in this review.", 404)
        except FicganError as error:
            return _sorry(sentence(error), 422)
        except OSError as error:
            return _sorry(f"It could not be written or read: {sentence(error)}", 507)

    return handle


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
