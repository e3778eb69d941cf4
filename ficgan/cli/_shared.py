"""Options that many commands share, and `reporting`: the progress of a command and the line of JSON at its end."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ficgan.cli._errors import EXIT_SOME_FAILED, handle_errors
from ficgan.cli._progress import MODES, Progress
from ficgan.errors import UsageError

__all__ = [
    "ALIGNED", "DATA", "DETECTOR", "FILE", "FOLDER", "JOBS", "JUDGES", "KEY_VALUES", "LABELS", "NEW_FILE", "OVERWRITE",
    "PATH", "REPORT", "RESAMPLES", "TALK", "THRESHOLD", "Summary", "cpus", "device", "dry_run", "judges_instead",
    "layout", "options", "output", "refuse_existing", "reporting", "seed", "set_value",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])
Summary = dict[str, Any]
"""What a command prints at its end, as one line of JSON."""



def cpus() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
NEW_FILE = click.Path(path_type=Path, dir_okay=False)

KEY_VALUES = click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1)
LABELS = click.option("--labels", type=PATH, help="Label file or folder, where it does not lie beside the data.")
DATA = click.option("--data", required=True, type=PATH, help="Folder, zip or tar of faces, as it was downloaded.")
ALIGNED = click.option(
    "--aligned", is_flag=True, help="The images are aligned as ficgan's own crops; nothing is detected."
)
DETECTOR = click.option(
    "--detector", default="auto", show_default=True,
    help="What finds the faces: auto, insightface, yunet, centerface or dlib.",
)  # fmt: skip
THRESHOLD = click.option("-t", "--thresh", type=float, help="Lowest score of a face.  [default: the detector's]")
JUDGES = click.option(
    "--judge", "judges", multiple=True, default=("dlib",), show_default=True,
    help="Recogniser that had no part in training: dlib, insightface, shape or onnx:PATH; repeatable.",
)  # fmt: skip
JOBS = click.option(
    "--jobs", type=click.IntRange(1), callback=lambda ctx, param, value: value or min(8, cpus()),
    help="Processes.  [default: as many as there are cores, at most 8]",
)  # fmt: skip
RESAMPLES = click.option(
    "--resamples", default=1000, show_default=True, type=click.IntRange(1), help="Samples of the bootstrap."
)
REPORT = click.option("--report/--no-report", "pages", default=True, show_default=True, help="Make pages and plots.")
OVERWRITE = click.option("--overwrite", is_flag=True, help="Replace existing files.")
TALK: tuple[Any, ...] = (
    click.option(
        "--progress", type=click.Choice(MODES), default="auto", show_default=True,
        help="On stderr; auto: a bar on a terminal, else a line a minute.",
    ),
    click.option("--quiet", is_flag=True, help="Nothing on stderr but errors."),
)  # fmt: skip


def options(*added: Any) -> Callable[[F], F]:
    """A decorator that adds options, or groups of them, in the order given."""

    def add(command: F) -> F:
        flat = [option for item in added for option in (item if isinstance(item, tuple) else (item,))]
        for option in reversed(flat):
            command = option(command)
        return command

    return add


def output(what: str, *, kind: click.Path = FOLDER, required: bool = True) -> Callable[[F], F]:
    return click.option("-o", "--output", "--out", "out", required=required, type=kind, help=what)


def seed(what: str = "Seed of everything random.") -> Callable[[F], F]:
    return click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help=what)


def device(default: str = "cpu", what: str = "cpu, cuda, cuda:N or auto.") -> Callable[[F], F]:
    return click.option("--device", default=default, show_default=True, help=what)


def layout(default: str | None = "auto") -> Callable[[F], F]:
    """How a set of faces lies; None: as a configuration says."""
    return click.option(
        "--layout", default=default, show_default=default is not None,
        help=f"How the data lies: celeba, lfw, ffhq, folders, …{'' if default else '  [default: as in CONFIG]'}",
    )  # fmt: skip


def dry_run(what: str) -> Callable[[F], F]:
    return click.option("--dry-run", is_flag=True, help=what)


def judges_instead(kinds: str) -> Callable[[F], F]:
    return click.option("--judge", "judges", multiple=True, help=f"Replaces the recognisers of CONFIG: {kinds}.")


def set_value(what: str) -> Callable[[F], F]:
    return click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help=f"{what}; repeatable.")


def reporting(unit: str) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Add --progress and --quiet, and give the command `report`, a `Progress`, in their place.

    The command returns its summary, or (summary, whether something failed): it is printed with its seconds when the
    bar is closed, and a failure makes the exit code 3. Errors are handled as `handle_errors` does.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(*args: Any, progress: Any, quiet: bool, **values: Any) -> None:
            started = time.monotonic()
            with Progress(progress, unit=unit, quiet=quiet) as report:
                done = command(*args, report=report, **values)
            summary, failed = done if isinstance(done, tuple) else (done, False)
            seconds = summary.pop("seconds", round(time.monotonic() - started, 2))
            click.echo(json.dumps({**summary, "seconds": seconds}))
            if failed:
                raise SystemExit(EXIT_SOME_FAILED)

        return options(TALK)(handle_errors(run))

    return decorate


def refuse_existing(*paths: Path | None, overwrite: bool) -> None:
    """Check output files before any work."""
    for path in filter(None, paths):
        if path.exists() and not overwrite:
            raise UsageError(f"{path} exists; give another name, or --overwrite")
        if not path.parent.is_dir():
            raise UsageError(f"{path.parent} is no folder; make it first")
