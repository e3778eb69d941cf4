"""`ficgan ui`: the review in the browser."""

from __future__ import annotations

import secrets
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ficgan.cli import HELP
from ficgan.cli import _options as opts
from ficgan.cli._console import handle_errors
from ficgan.cli._shared import options
from ficgan.errors import FicganError, UsageError

if TYPE_CHECKING:
    from ficgan.deidentify import Deidentifier

__all__ = ["ui"]


@click.command(context_settings=HELP)
@click.argument("folder", required=False, type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "-o", "--output", "out", metavar="OUT", type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the results.  [default: FOLDER_anonymized; without FOLDER ./anonymized]",
)  # fmt: skip
@click.option(
    "--project", metavar="DIR", type=click.Path(path_type=Path, file_okay=False),
    help="Private folder that keeps the review.  [default: FOLDER/.ficgan-ui; without FOLDER one of your user data]",
)  # fmt: skip
@click.option(
    "--port", metavar="N", type=click.IntRange(0, 65535), default=0, help="Of 127.0.0.1.  [default: a free one]"
)  # fmt: skip
@click.option("--browser/--no-browser", default=True, show_default=True, help="Open the page.")
@options(
    opts.SEARCH[:1], opts.SEARCH[2:], opts.sandboxed(usual=True), opts.MODEL[:1], opts.MODEL[2:3], opts.MODEL[4:6]
)
@handle_errors
def ui(folder: Path | None, out: Path | None, project: Path | None, port: int, browser: bool, **given: Any) -> None:
    """Review and redact photos and films in the browser, on this machine alone.

    FOLDER: its photos and films are listed; more can be dropped into the page. What is decided is kept in a private
    folder (--project), so the same command goes on where it was left; `ficgan purge` removes that folder. It holds
    source faces.

    Prints the address of the page, which holds a secret token, and runs until Ctrl-C.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise FicganError(f"`ficgan ui` needs {error.name}: pip install 'ficgan[ui]'") from None
    from ficgan.cli._plan import is_film
    from ficgan.images import FILM_SUFFIXES, READABLE_SUFFIXES
    from ficgan.ui.project import Review
    from ficgan.ui.server import open_socket, serve
    from ficgan.ui.session import Session
    from ficgan.ui.work import FileKinds

    if folder is not None and not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    listener, token = open_socket(port), secrets.token_urlsafe(24)
    review = Review(project or _usual_project(folder), folder, (out or _usual_output(folder)).absolute())
    session = Session(
        review, FileKinds(is_film, READABLE_SUFFIXES | FILM_SUFFIXES), partial(_make_engine, given)
    )
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/?token={token}"
    if folder is not None:
        session.open_folder()
    click.echo(address)
    click.echo(f"The review is kept in {review.folder}, the results go to {review.output}. Ctrl-C ends.", err=True)
    if browser:
        import webbrowser

        webbrowser.open(address)
    try:
        serve(session, listener, token)
    except KeyboardInterrupt:
        pass
    finally:
        session.close()
        click.echo(f"\nEverything is kept; `ficgan purge {review.folder}` removes it.", err=True)


def _usual_project(folder: Path | None) -> Path:
    if folder is not None:
        return folder / ".ficgan-ui"
    from platformdirs import user_data_path

    return user_data_path("ficgan") / "ui"


def _usual_output(folder: Path | None) -> Path:
    if folder is None:
        return Path("anonymized")
    place = folder.absolute()
    return place.with_name(f"{place.name}_anonymized")


def _make_engine(given: dict[str, Any], seed: int) -> Deidentifier:
    """The model, with the usual controls; the page has its own."""
    from ficgan.deidentify import Deidentifier

    names = ("checkpoint", "bank", "detector", "recognizer", "thorough", "device", "precision")
    return Deidentifier.from_pretrained(seed=seed, threshold=given["thresh"], **{name: given[name] for name in names})
