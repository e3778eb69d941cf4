"""`ficgan serve`, de-identification of photos over HTTP, and `ficgan ui`, the review in the browser."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import socket
import webbrowser
from functools import partial
from pathlib import Path
from typing import Any

import click
from platformdirs import user_data_path

from ficgan import __version__
from ficgan.cli import _options as opts
from ficgan.cli import deid as _deid
from ficgan.cli._files import make_folder
from ficgan.cli.main import FILE, FOLDER, QUIET, count, handle_errors, named, options, path
from ficgan.errors import UsageError
from ficgan.workers import Limits, Workers

TOKEN = "FICGAN_TOKEN"
LEAST_TOKEN = 16


@click.command()
@options(
    named("--host", "Address to listen at.", default="127.0.0.1"),
    named("--port", "0: any that is free.", type=click.IntRange(0, 65535), default=8750),
    path("--token-file", f"Holds the bearer token of requests.  [default: the variable {TOKEN}, else none]", type=FILE),
    count("--max-bytes", 32 << 20, "Of a photo's file."),
    count("--jobs", 2, "Photos worked on at once; 16 requests may wait, more are refused with 503."),
)
@options(opts.HIDE, opts.FACE, opts.SEARCH, opts.OBJECTS, opts.DOUBT, opts.VERIFY, opts.FALLBACK, opts.PHOTOS_OUT[:2])
@options(opts.sandbox(True), opts.MODEL, QUIET)
@handle_errors
def serve(host: str, port: int, token_file: Path | None, quiet: bool, **given: Any) -> None:
    """Answer requests over HTTP: POST /photo takes a photo and gives the new one; GET /health.

    \b
    curl --data-binary @in.jpg -H 'Content-Type: image/jpeg' http://127.0.0.1:8750/photo -o out.jpg
    curl … -H 'Accept: application/json'        the photo (base64) and the record of every face

    Photos stay in memory and are gone after the answer; nothing of them is logged. Ends with Ctrl-C or
    SIGTERM, when the requests at work are answered; the exit code is 0.
    """
    opts.share_processors(mode=given["mode"])
    token, is_local = _token(token_file), host == "localhost"
    with contextlib.suppress(ValueError):  # a name
        is_local = ipaddress.ip_address(host).is_loopback
    if token is None and not is_local:
        raise UsageError(f"--host {host} can be reached by others; give a token by --token-file FILE or {TOKEN}")
    if given["sandbox"] and given["mode"].startswith("external"):
        raise UsageError(f"--mode {given['mode']} runs a program of yours, which workers may not; give --no-sandbox")
    settings = opts.engine_settings(given, verify=given["verify"] != "off")
    import uvicorn

    from ficgan import service

    limits = service.ServiceLimits(bytes=given["max_bytes"], pixels=opts.max_pixels(given), jobs=given["jobs"])
    photo = {name: given[name] for name in ("tag", "require_face")}
    engine = partial(_deid.make_engine, **settings, **opts.loaded(given))
    setup = partial(service.photo_work, engine, max_pixels=limits.pixels, **photo)
    held = Limits() if given["sandbox"] else None
    with _bound(host, port) as listening, Workers(setup, limits.jobs, held) as workers:
        workers.wait()
        app = service.make_app(workers.do, limits, token=token, version=__version__)
        name, number = listening.getsockname()[:2]
        if not quiet:
            click.echo(f"Listening at http://{f'[{name}]' if ':' in name else name}:{number}/photo", err=True)
        quietly: dict[str, Any] = {"access_log": False, "log_level": "error", "server_header": False}
        safely: dict[str, Any] = {"h11_max_incomplete_event_size": 64 << 10, "ws": "none", "proxy_headers": False}
        config = uvicorn.Config(app, timeout_graceful_shutdown=30, lifespan="on", **quietly, **safely)
        with contextlib.suppress(KeyboardInterrupt):  # after Ctrl-C or SIGTERM the last answers are given out
            uvicorn.Server(config).run(sockets=[listening])


def _token(file: Path | None) -> str | None:
    """The token, never from the command line, where other users could read it."""
    try:
        token = os.environ.get(TOKEN, "").strip() if file is None else file.read_text("ascii").strip()
    except (OSError, ValueError):
        raise UsageError(f"--token-file {file}: cannot be read as a line of plain text") from None
    if file is None and not token:
        return None
    if len(token) < LEAST_TOKEN or not token.isascii():
        raise UsageError(f"the token must have {LEAST_TOKEN} characters or more; `openssl rand -hex 16` makes one")
    return token


def _bound(host: str, port: int) -> socket.socket:
    """A listening socket: an address in use is refused before the model is loaded."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise UsageError(f"{host}:{port} cannot be listened at ({error.strerror}); choose another --port") from error


@click.command()
@click.argument("folder", required=False, type=FOLDER)
@options(
    path("-o", "Folder for the results.  [default: FOLDER_anonymized]", "--output", "out", type=FOLDER),
    path("--project", "Private folder that keeps the review.  [default: FOLDER/.ficgan-ui]", type=FOLDER),
    named("--port", "Of 127.0.0.1; 0: a free one.", type=click.IntRange(0, 65535), default=0),
    named("--browser/--no-browser", "Open the page.", default=True),
    (*opts.SEARCH[:2], *opts.SEARCH[3:], *opts.OBJECTS, opts.sandbox(True), *opts.MODEL[:4]),
)
@handle_errors
def ui(folder: Path | None, out: Path | None, project: Path | None, **given: Any) -> None:
    """Review and redact photos and films in the browser, on this machine alone.

    FOLDER: its photos and films are listed; more can be dropped into the page. What is decided is kept in a private
    folder (--project) with source faces, so the same command goes on where it was left; `ficgan purge` removes it.

    Prints the address of the page, which holds a secret token, and runs until Ctrl-C.
    """
    opts.share_processors()
    from ficgan.ui import Review
    from ficgan.ui.server import make_app, serve
    from ficgan.ui.session import Session

    if folder is not None and not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    port, browser, sandbox = (given.pop(name) for name in ("port", "browser", "sandbox"))
    listener, token = _bound("127.0.0.1", port), secrets.token_urlsafe(24)
    if folder is None:
        usual = user_data_path("ficgan") / "ui", Path("anonymized")
    else:
        usual = folder / ".ficgan-ui", folder.absolute().with_name(f"{folder.absolute().name}_anonymized")
    review = Review(project or usual[0], folder, (out or usual[1]).absolute())
    is_new = not review.output.exists()
    make_folder(review.output)  # workers may write there, if it is there before them
    limits = Limits(seconds=600.0, folders=[review.folder, review.output]) if sandbox else None
    session = Session(review, partial(_deid.make_engine, **given), partial(Workers, limits=limits))
    listener.listen(128)  # whoever reads the address may be faster than the server
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/?token={token}"
    if folder is not None:
        session.open_folder()
    click.echo(address)
    click.echo(f"The review is kept in {review.folder}, the results go to {review.output}. Ctrl-C ends.", err=True)
    if browser:
        webbrowser.open(address)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            serve(make_app(session), listener, token)
    finally:
        session.close()
        if is_new:
            with contextlib.suppress(OSError):
                review.output.rmdir()  # nothing was saved
        click.echo(f"\nEverything is kept; `ficgan purge {review.folder}` removes it.", err=True)
