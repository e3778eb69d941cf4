"""Who is let in: the token, the right Host, no foreign Origin; and the socket of this machine alone."""

from __future__ import annotations

import hmac
import os
import socket
from urllib.parse import parse_qs

import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ficgan.errors import InputError

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
