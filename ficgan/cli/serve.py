"""`ficgan serve`: de-identification of photos over HTTP."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ficgan import __version__
from ficgan.cli import HELP
from ficgan.cli import _options as opts
from ficgan.cli import deid as _deid
from ficgan.cli._console import handle_errors
from ficgan.cli._shared import TALK, Finite, options
from ficgan.errors import FicganError, UsageError

__all__ = ["serve"]

TOKEN = "FICGAN_TOKEN"
LEAST_TOKEN = 16


@click.command(context_settings=HELP)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=8750, show_default=True, help="0: any that is free.")
@click.option(
    "--token-file", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
    help=f"Holds the bearer token that requests must name.  [default: the variable {TOKEN}, else none]",
)  # fmt: skip
@click.option(
    "--max-bytes", type=click.IntRange(min=1), default=32 << 20, show_default=True, help="Of a photo's file."
)
@click.option(
    "--jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Photos worked on at once."
)
@click.option(
    "--queue", type=click.IntRange(min=0), default=16, show_default=True,
    help="Requests that may wait; more are refused with 503.",
)  # fmt: skip
@click.option(
    "--rate", type=Finite(min=0), default=0.0, help="Requests a minute and client; more are refused with 429.  "
    "[default: no limit]",
)  # fmt: skip
@click.option(
    "--body-timeout", metavar="SECONDS", type=Finite(min=0, min_open=True), default=30.0, show_default=True,
    help="In which a photo must have arrived.",
)  # fmt: skip
@options(opts.HIDE, opts.FACE, opts.SEARCH, opts.DOUBT, opts.STILLS)
@options(opts.PHOTOS_OUT[:2])
@click.option(
    "--allow-recognised", is_flag=True, help="Give out photos in which the check still recognises a face."
)
@options(opts.sandboxed(usual=True), opts.MODEL, TALK[1])
@handle_errors
def serve(host: str, port: int, token_file: str | None, quiet: bool, **given: Any) -> None:
    """Answer requests over HTTP: POST /photo takes a photo and gives the new one; GET /health.

    \b
    curl --data-binary @in.jpg -H 'Content-Type: image/jpeg' http://127.0.0.1:8750/photo -o out.jpg
    curl … -H 'Accept: application/json'        the photo (base64) and the record of every face

    Photos stay in memory and are gone after the answer; nothing of them is logged. Ends with Ctrl-C.
    """
    token = _token(token_file)
    if token is None and not _is_loopback(host):
        raise UsageError(
            f"--host {host} can be reached by others; give a token by --token-file FILE or {TOKEN}, or keep 127.0.0.1"
        )
    settings = opts.engine_settings(given, verify=given["verify"])
    try:
        import uvicorn

        from ficgan.service import Limits, make_app
    except ImportError as error:
        raise FicganError("`ficgan serve` needs Starlette and uvicorn: pip install 'ficgan[serve]'") from error
    limits = Limits(
        bytes=given["max_bytes"], pixels=opts.max_pixels(given), jobs=given["jobs"],
        queue=given["queue"], rate=given["rate"], patience=given["body_timeout"],
    )  # fmt: skip
    with _bound(host, port) as listening, contextlib.redirect_stdout(sys.stderr):
        engine = _deid.make_engine(**settings, **opts.loaded(given))
        app = make_app(
            engine, limits, token=token, version=__version__, tag=given["tag"], require_face=given["require_face"],
            allow_recognised=given["allow_recognised"],
        )  # fmt: skip
        listening.listen(128)
        name, number = listening.getsockname()[:2]
        if not quiet:
            shown = f"[{name}]" if ":" in name else name
            click.echo(f"Listening at http://{shown}:{number}/photo", err=True)
        config = uvicorn.Config(
            app, access_log=False, log_level="error", server_header=False, timeout_graceful_shutdown=30,
            h11_max_incomplete_event_size=64 << 10, ws="none", lifespan="on", proxy_headers=False,
        )  # fmt: skip
        uvicorn.Server(config).run(sockets=[listening])


def _token(file: str | None) -> str | None:
    """The token, never from the command line, where other users could read it."""
    if file is not None:
        try:
            token = Path(file).read_text("ascii").strip()
        except (OSError, ValueError):
            raise UsageError(f"--token-file {file}: cannot be read as a line of plain text") from None
    else:
        token = os.environ.get(TOKEN, "").strip()
        if not token:
            return None
    if len(token) < LEAST_TOKEN or not token.isascii():
        raise UsageError(f"the token must have {LEAST_TOKEN} characters or more; `openssl rand -hex 16` makes one")
    return token


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextlib.contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket: an address in use is told before the model is loaded."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, number)
    except OSError as error:
        raise UsageError(f"--host {host}: {error.strerror or error}") from error
    with listening:
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
        except OSError as error:
            told = f"{host}:{port} cannot be listened at ({error.strerror}); choose another --port"
            raise UsageError(told) from error
        yield listening
